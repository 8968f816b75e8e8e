//! `bench`: the lab's verb, in the table of all.

use crate::context::Context;
use crate::failure::At;
use crate::interrupt::{self, Interrupted};
use crate::status::Status;
use crate::verb::{Command, Example};
use anyhow::Result;
use myriad_lab::cli::Bench;
use myriad_lab::interrupt::Interrupted as LabInterrupted;

impl Command for Bench {
    const NAME: &'static str = "bench";
    const ABOUT: &'static str = "Measure volumes, directories and databases side by side";
    const DETAILS: &'static str = "A TARGET is an image (made fresh, worked on in this process), a directory (through system calls), \
        direct:DIRECTORY (the same, reads and writes inside files with direct I/O), or sqlite:PATH (a row a file). Words after an \
        image say how its volume is made and opened: IMAGE,order=none,data-checksums,placement=rotor; myriad tune lists all. Runs of the targets are interleaved; \
        every number is a median over them, final sync included.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad bench dir /tmp/b.img /tmp", "measures one large directory, in a volume and through the kernel"),
        (
            "myriad bench tree a.img b.img,placement=rotor c.img,alloc=write",
            "what one choice is worth: three volumes that differ in one, in turn",
        ),
        ("myriad bench tree b.img sqlite:b.db --runs 3 --json > tree.json", "keeps every sample of a tree"),
        ("sudo myriad bench mount", "what FUSE requests of a volume cost above FUSE itself"),
        ("myriad bench recovery --entries 10k,1M", "how long opening and checking take after a crash"),
        ("sudo myriad bench compare --folder /data --tar linux.tar", "compares with ext4, xfs, btrfs and SQLite"),
    ];
    const EXIT: &'static [(u8, &'static str)] = &[
        (0, "All was measured."),
        (1, "Something could not be done, or a target did not answer as it should; standard error says what."),
        (2, "The command line was wrong; nothing was done."),
        (130, "Interrupted (SIGINT; 143: SIGTERM, 129: SIGHUP). What was made for the measurement was removed."),
        (141, "The reader of standard output went away."),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        // However often the signal comes, it must not leave a mount behind.
        interrupt::never_abruptly();
        match self.run(&mut *context.out(), context.is_quiet()) {
            Err(error) if error.is::<LabInterrupted>() => {
                context.note("myriad: interrupted; nothing is left behind");
                Ok(Status(128 + Interrupted::latest().0))
            }
            Err(error) => {
                let doing = error.to_string();
                // The engine's own errors in the words of this command.
                match error.downcast::<myriad_engine::Error>() {
                    Ok(error) => Err(error).at(doing),
                    Err(error) => Err(error),
                }
            }
            Ok(()) => Ok(Status::OK),
        }
    }
}
