//! What a verb is. One declaration each, read by the parser, the help, the manual pages and the completions.

use crate::context::Context;
use crate::failure::Kind;
use crate::verbs::VERBS;
use clap::{Arg, ArgAction, ArgMatches};
use std::process::ExitCode;

/// A verb: its options are the fields that clap derives from, the rest is here. Added to `VERBS` by one line.
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

/// Exit code of a run that came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u8);

impl Status {
    pub const OK: Self = Self(0);
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        status.0.into()
    }
}

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

    pub fn named(name: &str) -> Option<&'static Self> {
        VERBS.iter().find(|verb| verb.name == name)
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

/// The parser of the whole command line.
pub fn parser() -> clap::Command {
    let quiet = Arg::new("quiet")
        .long("quiet")
        .short('q')
        .global(true)
        .display_order(900)
        .action(ArgAction::SetTrue)
        .help("Say nothing but errors and what was asked for");
    clap::Command::new("myriad")
        .about("A file system for very many files, in one image file")
        .long_about(
            "A file system for very many files, in one image file.\n\n\
             IMAGE is an image file or a block device; of a mounted volume also the directory that it is mounted on, itself \
             and not one below it: /mnt:/doc, not /mnt/doc. IMAGE:/path names a file inside a volume, as scp does; the \
             argument is split at the last `:/` that follows the name of an existing file.\n\n\
             myriad help VERB explains a verb.",
        )
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .arg(quiet)
        .subcommands(VERBS.iter().map(Verb::parser))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_makes_a_sound_parser() {
        parser().debug_assert();
    }

    #[test]
    fn the_help_of_a_verb_says_how_it_exits() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        for verb in VERBS {
            let mut parser = verb.parser();
            let helps = parser.get_subcommands_mut().map(|part| part.render_long_help().to_string());
            let mut helps: Vec<String> = helps.collect();
            helps.push(parser.render_long_help().to_string());
            for help in helps {
                for (code, meaning) in verb.exit {
                    let line = words(&format!("{code} {meaning}"));
                    assert!(words(&help).contains(&line), "{}: {line} is not in {help}", verb.name);
                }
            }
        }
    }

    #[test]
    fn every_verb_has_examples_that_parse_as_far_as_the_shell_lets_us_see() {
        for verb in VERBS {
            assert!(!verb.examples.is_empty(), "{} has no example", verb.name);
            for (line, _) in verb.examples {
                assert!(line.contains(verb.name), "{line}");
            }
        }
    }
}
