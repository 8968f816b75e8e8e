//! What a verb is. One declaration each, read by the parser, the help, the manual pages and the completions.

use crate::context::Context;
use crate::failure::Kind;
use crate::status::Status;
use clap::ArgMatches;

/// A verb: its options are the fields that clap derives from, the rest is here. Added to the table of verbs by one line.
pub trait Command: clap::Args {
    const NAME: &'static str;
    /// One sentence, without full stop.
    const ABOUT: &'static str;
    /// Paragraphs of the manual page and of `--help`.
    const DETAILS: &'static str = "";
    /// Paragraphs that follow, where they come from a table of their own.
    const MORE: fn() -> String = String::new;
    const EXAMPLES: &'static [Example];
    /// What it may exit with.
    const EXIT: &'static [(u8, &'static str)] = EXIT_STATUS;
    /// Exit code of a run that ended in an error.
    const EXIT_CODE: fn(Kind) -> u8 = exit_code;

    fn run(self, context: &Context) -> anyhow::Result<Status>;
}

/// A command line, and what it does.
pub type Example = (&'static str, &'static str);

/// Exit codes of all verbs but `fsck`.
pub const EXIT_STATUS: &[(u8, &str)] = &[
    (0, "All was done."),
    (1, "Something could not be done; standard error says what, where, and the next step. The rest was done."),
    (2, "The command line was wrong; nothing was done."),
    (
        130,
        "Interrupted (SIGINT; 143: SIGTERM, 129: SIGHUP). The volume was closed cleanly; what had been done stays done.",
    ),
    (141, "The reader of standard output went away."),
];

/// Exit code of an error by its kind, as in `EXIT_STATUS`.
pub fn exit_code(kind: Kind) -> u8 {
    match kind {
        Kind::Error => 1,
        Kind::Usage => 2,
        Kind::Interrupted(signal) => 128 + signal,
        Kind::Pipe => 141,
    }
}

/// A `Command` as a row of the table.
pub struct Verb {
    pub name: &'static str,
    pub about: &'static str,
    pub details: &'static str,
    more: fn() -> String,
    pub examples: &'static [Example],
    pub exit: &'static [(u8, &'static str)],
    pub exit_code: fn(Kind) -> u8,
    pub run: fn(&ArgMatches, &Context) -> anyhow::Result<Status>,
    arguments: fn(clap::Command) -> clap::Command,
}

impl Verb {
    pub const fn of<C: Command>() -> Self {
        Self {
            name: C::NAME,
            about: C::ABOUT,
            details: C::DETAILS,
            more: C::MORE,
            examples: C::EXAMPLES,
            exit: C::EXIT,
            exit_code: C::EXIT_CODE,
            run: |matches, context| C::from_arg_matches(matches)?.run(context),
            arguments: C::augment_args,
        }
    }

    /// The verb's part of the parser.
    pub fn parser(&self) -> clap::Command {
        let command = (self.arguments)(clap::Command::new(self.name)).about(self.about).disable_help_subcommand(true);
        let paragraphs = [format!("{}.", self.about), self.details.into(), (self.more)()];
        let paragraphs: Vec<String> = paragraphs.into_iter().filter(|text| !text.is_empty()).collect();
        let command = if paragraphs.len() > 1 { command.long_about(paragraphs.join("\n\n")) } else { command };
        let examples: Vec<String> =
            self.examples.iter().map(|(line, does)| format!("  {line}\n      {does}")).collect();
        let exit: Vec<String> = self.exit.iter().map(|(code, meaning)| format!("  {code:<3}  {meaning}")).collect();
        let exit = format!("Exit status:\n{}", exit.join("\n"));
        command
            .mut_subcommands(|part| part.after_long_help(exit.clone()))
            .after_long_help(format!("Examples:\n{}\n\n{exit}", examples.join("\n")))
    }
}
