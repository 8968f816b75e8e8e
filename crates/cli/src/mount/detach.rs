//! A daemon that outlives its command.
//!
//! The command runs itself a second time, as a process of its own session, and waits until that says on its standard output that
//! the mount is live, or ends. What goes wrong before is written by the daemon to the standard error that both have, and its exit
//! code is the command's. A signal to the waiting command is handed on. `ps` shows what was asked for, because the daemon has the
//! same command line.
//!
//! fork(2) would be less to do, but it is unsafe code, which this crate forbids. The child would have one thread of many, and
//! every lock in whatever state it was; so nothing that runs before (signal handlers, the parser, the progress display) could
//! ever start a thread. This daemon opens the volume itself: no lock, ring or thread crosses.

use crate::context::Context;
use crate::failure::{At, Failure, image_name};
use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

const READY: &[u8] = b"ready\n";

/// Starts a daemon by the arguments of a command line; `Err` of a code if it said that it could not.
pub fn start(arguments: Vec<OsString>, context: &Context) -> Result<Result<(), u8>> {
    let program = std::env::current_exe().at("myriad")?;
    let place = image_name(&program);
    let mut daemon =
        Command::new(&program).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().at(&place)?;
    let pid = Pid::from_child(&daemon);
    let mut said = daemon.stdout.take().expect("it was asked for");
    let (sender, answer) = channel();
    thread::spawn(move || {
        let mut word = Vec::new();
        let result = said.read_to_end(&mut word).map(|_| word == READY);
        // Nobody waits any more only if the command ends.
        let _ = sender.send(result);
    });
    let mut was_told = false;
    let is_ready = loop {
        match answer.recv_timeout(Duration::from_millis(100)) {
            Ok(result) => break result.at(&place)?,
            Err(RecvTimeoutError::Timeout) => {
                if context.check().is_err() && !was_told {
                    was_told = true;
                    // It has a session of its own, so the terminal's signal did not reach it.
                    let _ = kill_process(pid, Signal::TERM);
                }
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread sends before it ends"),
        }
    };
    if is_ready {
        return Ok(Ok(()));
    }
    let status = daemon.wait().at(&place)?;
    match status.code() {
        Some(code) => Ok(Err(u8::try_from(code).unwrap_or(1))),
        None => Err(Failure::new("the daemon", format!("ended with {status}"), "see the host's log").into()),
    }
}

/// In the daemon: leaves the terminal and its signals behind.
pub fn leave_session() -> Result<()> {
    rustix::process::setsid().map(|_| ()).map_err(io::Error::from).at("setsid")
}

/// In the daemon: the mount is live. `hand_over` is called before standard error is closed.
pub fn report_ready(hand_over: impl FnOnce()) -> io::Result<()> {
    let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    io::stdout().write_all(READY)?;
    io::stdout().flush()?;
    hand_over();
    // Whoever has the pipe's other end sees it end here.
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(())
}
