//! What the requests of a mounted volume cost above those of a server that does nothing, on the same transport.
//!
//! Both are mounted side by side and do the same system calls, phase by phase in turn, so that whatever disturbs one
//! disturbs the other. Unless told otherwise everything runs on one processor: then a request costs two switches and what
//! the server does, and not what the machine makes of wake-ups across processors, which is several times as much and
//! never the same twice.

use crate::interrupt;
use crate::provenance::Provenance;
use crate::report;
use crate::schedule;
use crate::stats::{self, Estimate};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use myriad_engine::{Fs, MkfsOptions, MountOptions};
use myriad_fuse::{Options, TransportChoice};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// What to measure, and how.
#[derive(Debug, Args, Serialize)]
pub struct MountFloor {
    /// Runs of each phase on each mount, in turn
    #[arg(long, value_name = "N", default_value = "15", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Operations of a phase
    #[arg(long, value_name = "N", default_value = "2000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    ops: u32,
    /// How requests come from the kernel
    #[arg(long, value_enum, default_value = "classic")]
    transport: Transport,
    /// Let clients and servers run on any processor
    #[arg(long)]
    spread: bool,
    /// Where the image is made
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// Of the bootstrap behind the intervals
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// One JSON object, with every sample
    #[arg(long)]
    json: bool,
    /// Be the server of a mount point, in a process of its own
    #[arg(long, hide = true, value_name = "DIRECTORY")]
    #[serde(skip)]
    serve: Option<PathBuf>,
    /// Of this volume
    #[arg(long, hide = true, requires = "serve")]
    #[serde(skip)]
    image: Option<PathBuf>,
}

/// What a server says once it can be used.
const MOUNTED: &str = "mounted\n";

#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Transport {
    Classic,
    Ring,
}

/// A phase: what is done `ops` times.
struct Phase {
    name: &'static str,
    /// Names and inodes leave the kernel's cache first.
    cold: bool,
    run: fn(&Path, u32) -> Result<()>,
    /// Puts things back, not timed.
    after: fn(&Path, u32) -> Result<()>,
}

fn file(root: &Path, i: u32) -> PathBuf {
    root.join(format!("file{i:07}"))
}

fn make(path: &Path) -> Result<rustix::fd::OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?)
}

fn each(root: &Path, ops: u32, mut f: impl FnMut(&Path) -> Result<()>) -> Result<()> {
    (0..ops).try_for_each(|i| f(&file(root, i)))
}

fn nothing(_: &Path, _: u32) -> Result<()> {
    Ok(())
}

fn unlink_all(root: &Path, ops: u32) -> Result<()> {
    each(root, ops, |path| Ok(rustix::fs::unlink(path)?))
}

const PHASES: &[Phase] = &[
    Phase {
        name: "statfs",
        cold: false,
        run: |root, ops| (0..ops).try_for_each(|_| Ok(rustix::fs::statvfs(root).map(drop)?)),
        after: nothing,
    },
    Phase {
        name: "create + close",
        cold: false,
        run: |root, ops| each(root, ops, |path| make(path).map(drop)),
        after: nothing,
    },
    Phase {
        name: "stat, cached",
        cold: false,
        run: |root, ops| each(root, ops, |path| Ok(rustix::fs::stat(path).map(drop)?)),
        after: nothing,
    },
    Phase {
        name: "open + close",
        cold: false,
        run: |root, ops| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            each(root, ops, |path| Ok(rustix::fs::open(path, flags, Mode::empty()).map(drop)?))
        },
        after: nothing,
    },
    Phase {
        name: "chmod",
        cold: false,
        run: |root, ops| each(root, ops, |path| Ok(rustix::fs::chmod(path, Mode::from_raw_mode(0o600))?)),
        after: nothing,
    },
    Phase {
        name: "stat, not cached",
        cold: true,
        run: |root, ops| each(root, ops, |path| Ok(rustix::fs::stat(path).map(drop)?)),
        after: nothing,
    },
    Phase {
        name: "readdir + stat, not cached",
        cold: true,
        run: |root, ops| {
            let mut listed = 0;
            for entry in std::fs::read_dir(root)? {
                // The system call, for the kernel to use what came with the listing.
                rustix::fs::stat(entry?.path())?;
                listed += 1;
            }
            ensure!(listed == ops, "{listed} entries listed, {ops} made");
            Ok(())
        },
        after: nothing,
    },
    Phase { name: "unlink", cold: false, run: unlink_all, after: nothing },
    Phase {
        name: "mkdir",
        cold: false,
        run: |root, ops| each(root, ops, |path| Ok(rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(0o755))?)),
        after: nothing,
    },
    Phase {
        name: "rmdir",
        cold: false,
        run: |root, ops| each(root, ops, |path| Ok(rustix::fs::rmdir(path)?)),
        after: nothing,
    },
    Phase {
        name: "create + write 4 KiB + close",
        cold: false,
        run: |root, ops| {
            let block = [7; 4096];
            each(root, ops, |path| {
                ensure!(rustix::io::write(make(path)?, &block)? == block.len(), "a short write");
                Ok(())
            })
        },
        after: unlink_all,
    },
];

/// A mount that a process serves, until dropped.
struct Served {
    label: &'static str,
    /// Where its files are made.
    root: PathBuf,
    server: Option<Child>,
}

impl Served {
    /// Ends it, and says what went wrong while it was served.
    fn close(mut self) -> Result<()> {
        unmount(&self.root).with_context(|| format!("unmounting the {} server", self.label))?;
        let status = self.server.take().expect("closed once").wait()?;
        ensure!(status.success(), "the {} server ended with {status}", self.label);
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = unmount(&self.root);
            let _ = server.wait();
        }
    }
}

fn unmount(root: &Path) -> rustix::io::Result<()> {
    rustix::mount::unmount(root, rustix::mount::UnmountFlags::DETACH)
}

impl MountFloor {
    /// Starts a server. A process of its own, as servers are: between threads of one, switches are cheaper.
    fn start(&self, label: &'static str, image: Option<&Path>, root: PathBuf) -> Result<Served> {
        std::fs::create_dir(&root)?;
        let transport = match self.transport {
            Transport::Classic => "classic",
            Transport::Ring => "ring",
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "mount", "--transport", transport, "--serve"]).arg(&root);
        if let Some(image) = image {
            command.arg("--image").arg(image);
        }
        let mut server = command.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let stdout = server.stdout.take().context("the server's output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let served = Served { label, root, server: Some(server) };
        ensure!(line == MOUNTED, "the {label} server did not mount; what it said is above");
        Ok(served)
    }

    /// Is the server, in a process that `start` made.
    fn serve(&self, root: &Path, out: &mut dyn Write) -> Result<()> {
        let transport = match self.transport {
            Transport::Classic => TransportChoice::Classic,
            Transport::Ring => TransportChoice::Ring,
        };
        let options = Options { source: "myriad bench".into(), transport, ..Options::default() };
        let mut mounted = || write!(out, "{MOUNTED}").and_then(|()| out.flush());
        match &self.image {
            None => {
                let mount = myriad_fuse::mount_null(root, options)?;
                mounted()?;
                mount.serve()?;
            }
            Some(image) => {
                let mount = myriad_fuse::mount(Fs::open(image, MountOptions::default())?, root, options)?;
                mounted()?;
                mount.serve()?;
            }
        }
        Ok(())
    }

    /// Measures, and writes the table to `out`.
    pub fn run(&self, out: &mut dyn Write, quiet: bool) -> Result<()> {
        if let Some(root) = &self.serve {
            return self.serve(root, out);
        }
        let provenance = Provenance::now();
        if !self.spread {
            pin()?;
        }
        let folder = tempfile::Builder::new().prefix("myriad-bench-").tempdir_in(&self.folder)?;
        let image = folder.path().join("image");
        // Room for the files of a phase with a block each, several times.
        let size = (u64::from(self.ops) * (64 << 10)).max(512 << 20);
        Fs::format(&image, Some(size), &MkfsOptions::default())?;
        let mounts = [
            self.start("null", None, folder.path().join("null"))?,
            self.start("volume", Some(&image), folder.path().join("volume"))?,
        ];
        let samples = self.measure(&mounts, quiet)?;
        for mount in mounts {
            mount.close()?;
        }
        self.tell(&provenance, &samples, out)
    }

    /// Micro-seconds an operation: by phase, mount, run.
    fn measure(&self, mounts: &[Served; 2], quiet: bool) -> Result<Vec<[Vec<f64>; 2]>> {
        let mut samples = vec![<[Vec<f64>; 2]>::default(); PHASES.len()];
        let bar = schedule::progress(u64::from(self.runs) * PHASES.len() as u64, quiet);
        // The first run only warms up: caches, allocators, what the kernel learns not to ask.
        for run in 0..=self.runs {
            let roots: Vec<PathBuf> = mounts.iter().map(|mount| mount.root.join(format!("run{run}"))).collect();
            roots.iter().try_for_each(std::fs::create_dir)?;
            for (phase, samples) in PHASES.iter().zip(&mut samples) {
                for mount in schedule::order(2, run, self.seed) {
                    interrupt::check()?;
                    if phase.cold {
                        std::fs::write("/proc/sys/vm/drop_caches", "2").context("dropping the kernel's caches")?;
                    }
                    let place = || format!("{} on the {} server", phase.name, mounts[mount].label);
                    let start = Instant::now();
                    (phase.run)(&roots[mount], self.ops).with_context(place)?;
                    let took = start.elapsed();
                    (phase.after)(&roots[mount], self.ops).with_context(place)?;
                    if run > 0 {
                        samples[mount].push(took.as_secs_f64() * 1e6 / f64::from(self.ops));
                    }
                }
                if run > 0 {
                    bar.inc(1);
                }
            }
            roots.iter().try_for_each(std::fs::remove_dir)?;
        }
        bar.finish_and_clear();
        Ok(samples)
    }

    fn tell(&self, provenance: &Provenance, samples: &[[Vec<f64>; 2]], out: &mut dyn Write) -> Result<()> {
        let rows: Vec<Row<'_>> = PHASES
            .iter()
            .zip(samples)
            .map(|(phase, [null, volume])| {
                // Ratio of medians, runs drawn in pairs.
                let ratio = stats::speedup(&[volume], null, self.seed).expect("as many runs of both");
                Row { phase: phase.name, null, volume, ratio }
            })
            .collect();
        if self.json {
            let object = serde_json::json!({ "provenance": provenance, "options": self, "phases": rows });
            writeln!(out, "{object}")?;
            return Ok(());
        }
        let where_ = if self.spread { "any processor" } else { "one processor" };
        writeln!(
            out,
            "{}; {}; {} CPUs; commit {}",
            provenance.kernel, provenance.cpu, provenance.cpus, provenance.commit
        )?;
        writeln!(
            out,
            "{} runs of {} operations, {:?} transport, {where_}; medians",
            self.runs, self.ops, self.transport
        )?;
        let mut table =
            report::table(&["phase", "null us/op", "volume us/op", "ratio", stats::ends(self.runs as usize)]);
        for row in &rows {
            let median = |values: &[f64]| format!("{:.2}", stats::median(values).unwrap_or(f64::NAN));
            table.add_row([
                row.phase.to_owned(),
                median(row.null),
                median(row.volume),
                format!("{:.2}", row.ratio.value),
                report::between(row.ratio, self.runs as usize, |end| format!("{end:.2}")),
            ]);
        }
        writeln!(out, "{}", table.trim_fmt())?;
        Ok(())
    }
}

#[derive(Serialize)]
struct Row<'a> {
    phase: &'static str,
    null: &'a [f64],
    volume: &'a [f64],
    ratio: Estimate,
}

/// This thread, and those that it starts, on the processor it is on.
fn pin() -> Result<()> {
    let mut set = CpuSet::new();
    set.set(rustix::thread::sched_getcpu());
    Ok(sched_setaffinity(None, &set)?)
}
