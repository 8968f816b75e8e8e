//! The `myriad` command: argument table, output, exit codes. No file-system logic: that is the engine's and the check's.
//!
//! ```text
//! verb.rs      what a verb is: options, examples, exit codes, code; parser, help, manual and completions read it
//! status.rs    how a run that came to its end exits
//! verbs/       one file a verb, and the table of them all
//! transfer/    files in and out: import, export, cp, verify
//! volume/      IMAGE:/path, opening a volume or its device or its mount, refusing by name
//! mount/       mounted volumes: options, the daemon, its control socket
//! show/        names, sizes, times and owners as people and as programs read them
//! pattern.rs   patterns of names
//! ask.rs       questions to the user
//! context.rs   what a run shares: output, errors reported so far, signals, progress
//! output.rs    standard output: bytes for a pipe, nothing that could steer a terminal for a terminal
//! progress.rs  progress of long work, on a terminal
//! interrupt.rs signals that ask long work to stop
//! limits.rs    limits that the host sets
//! failure.rs   `myriad: PLACE: what; next step`, and which exit code it means
//! hints.rs     what was meant by a verb that there is not
//! change.rs    what verbs that change files say of each, in words or as JSON
//! fuzzing.rs   what the fuzz targets may call
//! ```

#![forbid(unsafe_code)]

mod ask;
mod change;
mod context;
mod failure;
#[doc(hidden)]
pub mod fuzzing;
mod hints;
mod interrupt;
mod limits;
mod mount;
mod output;
mod pattern;
mod progress;
mod show;
mod status;
mod transfer;
mod verb;
mod verbs;
mod volume;

use clap::ArgMatches;
use context::Context;
use failure::Kind;
use status::Status;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

/// The command as a whole: reads the process's arguments, runs the verb, says how it went.
pub fn run() -> ExitCode {
    let (name, arguments) = called_as(std::env::args_os().collect());
    let fallback = arguments.get(1).and_then(|verb| verb.to_str()).and_then(verbs::named);
    let mut parser = verbs::parser().bin_name(name.clone());
    let matches = match parser.try_get_matches_from_mut(&arguments) {
        Ok(matches) => matches,
        Err(error) => {
            // Help and version are answers, not errors.
            if !error.use_stderr() {
                let printed = error.print().and_then(|()| io::stdout().flush()).map_err(output::named);
                return ended(&Context::new(false), printed.map(|()| Status::OK).map_err(Into::into), verb::exit_code);
            }
            let is_json =
                arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json");
            match hints::failure(&error, is_json) {
                Some(failure) => Context::new(false).with_json(is_json).report(&failure.into()),
                // Nobody is left to tell if this fails.
                None => drop(error.print()),
            }
            return fallback.map_or(verb::exit_code as fn(Kind) -> u8, |verb| verb.exit_code)(Kind::Usage).into();
        }
    };
    let (verb, matches) = matches.subcommand().expect("the parser requires a verb");
    let verb = verbs::named(verb).expect("the parser knows the verbs of the table only");
    let context = Context::new(matches.get_flag("quiet")).with_json(wants_json(matches));
    // Verbs that open no volume have no such option.
    let mut options = parser.find_subcommand(verb.name).into_iter().flat_map(clap::Command::get_arguments);
    if options.any(|option| option.get_id() == "wait") {
        volume::wait::begin(matches.get_one("wait").copied(), context.is_quiet());
    }
    let result = (verb.run)(matches, &context).and_then(|status| {
        context.out().finish()?;
        Ok(status)
    });
    ended(&context, result, verb.exit_code)
}

/// Tells of what ended a run; its exit code.
fn ended(context: &Context, result: anyhow::Result<Status>, exit_code: fn(Kind) -> u8) -> ExitCode {
    match result {
        Ok(status) => status.into(),
        Err(error) => {
            let kind = failure::kind(&error);
            // The reader has left: it knows why, and there is nobody to tell.
            if kind != Kind::Pipe {
                let _ = context.out().finish();
                context.report(&error);
            }
            exit_code(kind).into()
        }
    }
}

/// Whether a verb, or a part of one (`bench dir`), was asked for JSON.
fn wants_json(matches: &ArgMatches) -> bool {
    let is_asked = matches.try_get_one::<bool>("json").ok().flatten().is_some_and(|json| *json);
    is_asked || matches.subcommand().is_some_and(|(_, part)| wants_json(part))
}

/// The name to show in usage lines, and the arguments with the verb in its place: mount(8)'s family calls
/// `mkfs.myriad`, `fsck.myriad`, `mount.fuse.myriad` and `umount.fuse.myriad`.
fn called_as(mut arguments: Vec<OsString>) -> (String, Vec<OsString>) {
    let own = arguments.first().map(std::path::PathBuf::from).unwrap_or_default();
    let own = own.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for verb in ["mkfs", "fsck", "mount", "umount"] {
        if own.strip_prefix(verb).is_some_and(|rest| rest.starts_with('.')) {
            if verb == verbs::mount::NAME {
                let is_root = rustix::process::getuid().is_root() && rustix::process::geteuid().is_root();
                arguments = verbs::mount::from_mount(arguments, is_root);
            }
            arguments.insert(1, verb.into());
        }
    }
    let verb = 1 + arguments.iter().skip(1).take_while(|word| *word == "-q" || *word == "--quiet").count();
    if arguments.get(verb).is_some_and(|verb| verb == "help") {
        arguments.remove(verb);
        arguments.push("--help".into());
    }
    if arguments.get(verb).is_some_and(|verb| verb == verbs::chmod::NAME) {
        arguments = verbs::chmod::with_mode_option(arguments);
    }
    if arguments.get(verb).is_some_and(|verb| verb == verbs::find::NAME) {
        arguments = verbs::find::arrange(arguments, verb);
    }
    if arguments.get(verb).is_some_and(|verb| verb == verbs::fsck::NAME) {
        arguments = verbs::fsck::as_standard_options(arguments);
    }
    ("myriad".into(), arguments)
}
