//! Starts a program and notes when its phases begin: by the moment at which it writes that they do.

use super::watch::Watch;
use super::{Call, Held, Ran, Said, Tool, Watching};
use crate::compare::kernel::find_in_path;
use crate::interrupt;
use crate::targets::{Counters, Target};
use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{WaitId, WaitIdOptions};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// One phase of a program.
#[derive(Debug)]
pub struct Measured {
    pub phase: &'static str,
    pub said: Said,
    /// By the program's own clock where it has a fine one, else by the lab's; with the sync after the call in its last phase.
    pub seconds: f64,
    pub counters: Counters,
}

/// How often a program that says nothing is looked at: interrupts, and what the kernel saw.
const LOOK: Duration = Duration::from_millis(1);

/// Runs a tool on a target; `folder` has its program in place of the system's.
pub fn run(target: &dyn Target, tool: &dyn Tool, folder: Option<&Path>) -> Result<Vec<Measured>> {
    let directory = target.directory().context("the target has no directory that a program could work in")?;
    let program = match folder {
        Some(folder) => folder.join(tool.program().0),
        None => find_in_path(tool.program().0).with_context(|| tool.missing().unwrap_or_default())?,
    };
    let scratch = tempfile::tempdir().context("a folder for what a program is told")?;
    let (mut ran, mut used) = (Vec::new(), Vec::new());
    for call in tool.calls(directory, scratch.path())? {
        interrupt::check()?;
        target.begin(true)?;
        if call.cold {
            target.drop_caches()?
        } else {
            target.warm_up()?
        }
        let one = one_call(target, directory, &program, &call, scratch.path())?;
        let start = Instant::now();
        target.sync()?;
        let sync = start.elapsed();
        // Requests of the sync are the last phase's.
        let mut counters = one.counters;
        counters.push(target.counters()?);
        let phases = one.ran.spans.len();
        for (at, span) in one.ran.spans.iter().enumerate() {
            let sync = if at + 1 == phases { sync } else { Duration::ZERO };
            used.push((*span, sync, counters[at + 1].since(&counters[at])));
        }
        ran.push(one.ran);
    }
    target.begin(false)?;
    let said = tool.judge(directory, &ran)?;
    let phases = tool.phases();
    ensure!(
        said.len() == phases.len() && used.len() == phases.len(),
        "it has {} phases where {} were expected",
        used.len(),
        phases.len()
    );
    let measured = phases.into_iter().zip(said).zip(used).map(|((phase, said), (span, sync, counters))| {
        let seconds = said.seconds.unwrap_or(span.as_secs_f64()) + sync.as_secs_f64();
        Measured { phase, said, seconds, counters }
    });
    Ok(measured.collect())
}

struct OneCall {
    ran: Ran,
    /// As each phase began.
    counters: Vec<Counters>,
}

/// What came from a program, and when.
enum Came {
    Output(Vec<u8>),
    Complaint(Vec<u8>),
}

fn listen(mut from: impl Read + Send + 'static, to: Sender<(Instant, Came)>, wrap: fn(Vec<u8>) -> Came) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if to.send((Instant::now(), wrap(buffer[..length].to_vec()))).is_err() {
                return;
            }
        }
    });
}

/// Ends a program that is left running when its caller fails.
struct Running(Option<Child>);

impl Running {
    /// Its end, and the bytes that it wrote: what the kernel keeps of it until it is waited for.
    fn wait(mut self) -> Result<(ExitStatus, Option<u64>)> {
        let child = self.0.as_mut().expect("a child is waited for once");
        let pid = rustix::process::Pid::from_child(child);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::Pid(pid), options).context("waiting for its end")?;
        let io = std::fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap_or_default();
        let written = io.lines().find_map(|line| line.strip_prefix("wchar: ")?.trim().parse().ok());
        Ok((child.wait().context("waiting for it")?, written))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended meanwhile.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn one_call(target: &dyn Target, directory: &Path, program: &Path, call: &Call, scratch: &Path) -> Result<OneCall> {
    let directory = call.place.as_deref().unwrap_or(directory);
    let mut watch = match call.watch {
        Watching::Nowhere => None,
        watching => Some(Watch::new(directory, watching == Watching::Here)?),
    };
    let mut counters = vec![target.counters()?];
    let mut command = Command::new(program);
    command.args(&call.arguments).current_dir(call.place.as_deref().unwrap_or(scratch)).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("running {}", program.display()))?;
    let (sender, receiver) = channel();
    listen(child.stdout.take().context("its output")?, sender.clone(), Came::Output);
    listen(child.stderr.take().context("its complaints")?, sender, Came::Complaint);
    let running = Running(Some(child));
    let (mut output, mut complaints) = (Vec::new(), Vec::new());
    let (mut begins, mut largest) = (Vec::new(), Vec::new());
    while let Some((came_at, came)) = wait(&receiver, watch.as_mut())? {
        let (text, marked) = match came {
            Came::Output(bytes) => {
                output.extend(bytes);
                (&output, call.marks_in_output)
            }
            Came::Complaint(bytes) => {
                complaints.extend(bytes);
                (&complaints, !call.marks_in_output)
            }
        };
        while marked && call.marks.get(begins.len()).is_some_and(|mark| holds(text, mark)) {
            // The first phase has what the device was asked since the start.
            if !begins.is_empty() {
                counters.push(target.counters()?);
            }
            begins.push(came_at);
            if call.look {
                largest.push(Held::largest_in(directory)?);
            }
        }
    }
    let (status, written) = running.wait()?;
    let end = Instant::now();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !status.success() {
        interrupt::check()?;
        let why = text(&[&output[..], &complaints[..]].concat());
        let why = why.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned();
        bail!("{} {} failed ({status}): {why}", program.display(), call.arguments.join(" "));
    }
    if let Some(mark) = call.marks.get(begins.len()) {
        return Err(anyhow!("it never said `{mark}`: {}", text(&complaints).trim()));
    }
    if begins.is_empty() {
        begins.push(start);
    }
    let ends = begins.iter().skip(1).copied().chain([end]);
    let spans = begins.iter().zip(ends).map(|(&begin, end)| end - begin).collect();
    let seen = watch.map(Watch::end).transpose()?.unwrap_or_default();
    Ok(OneCall { ran: Ran { output: text(&output), spans, seen, largest, written }, counters })
}

/// The next that a program writes; `None`: it has closed its outputs.
fn wait(receiver: &Receiver<(Instant, Came)>, mut watch: Option<&mut Watch>) -> Result<Option<(Instant, Came)>> {
    loop {
        let came = receiver.recv_timeout(LOOK);
        if let Some(watch) = &mut watch {
            watch.take()?;
        }
        interrupt::check()?;
        match came {
            Ok(came) => return Ok(Some(came)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

fn holds(text: &[u8], mark: &str) -> bool {
    text.windows(mark.len()).any(|window| window == mark.as_bytes())
}
