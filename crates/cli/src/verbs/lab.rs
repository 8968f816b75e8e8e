//! `lab`: the papers' workloads with options flipped, in the table of all.

use crate::context::Context;
use crate::failure::At;
use crate::interrupt::{self, Interrupted};
use crate::status::Status;
use crate::verb::{Command, Example};
use anyhow::Result;
use myriad_lab::experiment::cli::Lab;
use myriad_lab::interrupt::Interrupted as LabInterrupted;

impl Command for Lab {
    const NAME: &'static str = "lab";
    const ABOUT: &'static str = "Run the papers' workloads with options flipped, and keep every sample";
    const DETAILS: &'static str = "A SUITE is a set of workloads, as a paper has them; --scale 1 is its size. A FACTOR is an option of a \
        volume (myriad tune lists all) and the choices it is flipped between; all combinations of all factors run, with the other targets, \
        in random order. What this build or this machine does not have is named and left out. The targets disk1996, disk2001, ssd and \
        object are volumes in memory whose time is that of a modelled device: the same on every machine. docs/lab.md describes the file \
        that --out writes, and myriad lab list what there is. The page that report makes wants Python, which it finds or sets up by itself.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad lab list", "what can be run, and on what"),
        ("myriad lab quick", "every suite, tiny, on every target there is, and a page with pictures in lab-quick/"),
        (
            "myriad lab run ports --scale 1 --set profile=ffs --factors dirpref=old/new,order=none/softdep --target disk2001 --out ports.jsonl.zst",
            "what near directories and soft updates are worth on a disk of 2001",
        ),
        (
            "myriad lab report ports.jsonl.zst --out report",
            "the papers' figures and claims with these numbers: report/index.html",
        ),
        (
            "sudo myriad lab run postmark kernel --target process,mount,ext4,xfs,btrfs,sqlite --runs 5 --out today.jsonl",
            "beside the kernel's file systems and SQLite",
        ),
        ("myriad lab run all --out all.jsonl --resume", "goes on where an interrupted run ended"),
    ];
    const EXIT: &'static [(u8, &'static str)] = &[
        (0, "All was run."),
        (1, "Something could not be done, or a target did not do what it was asked; standard error says what."),
        (2, "The command line was wrong; nothing was done."),
        (
            130,
            "Interrupted (SIGINT; 143: SIGTERM, 129: SIGHUP). What was made for the measurement was removed; --resume goes on.",
        ),
        (141, "The reader of standard output went away."),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        // However often the signal comes, it must not leave a mount behind.
        interrupt::never_abruptly();
        let can_be_resumed = self.can_be_resumed();
        match self.run(&mut *context.out(), context.is_quiet()) {
            Err(error) if error.is::<LabInterrupted>() => {
                let next = if can_be_resumed { "; --resume goes on with the samples that there are" } else { "" };
                context.note(&format!("myriad: interrupted{next}"));
                Ok(Status(128 + Interrupted::latest().0))
            }
            Err(error) => {
                let doing = error.to_string();
                match error.downcast::<myriad_engine::Error>() {
                    Ok(error) => Err(error).at(doing),
                    Err(error) => Err(error),
                }
            }
            Ok(()) => Ok(Status::OK),
        }
    }
}
