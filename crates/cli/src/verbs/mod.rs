//! The verbs, one file each, and the table of them all.

use crate::context::Context;
use crate::status::Status;
use crate::transfer;
use crate::verb::{Command, Example, Verb};
use anyhow::Result;
use clap::{Arg, ArgAction};

mod bench;
pub mod cat;
mod chgrp;
pub mod chmod;
mod chown;
pub mod completions;
pub mod debug;
pub mod df;
pub mod du;
pub mod find;
pub mod fsck;
pub mod info;
mod lab;
pub mod ln;
pub mod ls;
pub mod man;
pub mod mkdir;
pub mod mkfs;
pub mod mount;
pub mod mv;
pub mod readlink;
pub mod rm;
pub mod stat;
pub mod stats;
mod sync;
mod tee;
mod touch;
pub mod tree;
pub mod trim;
mod truncate;
pub mod tune;
pub mod umount;

/// Every verb, in the order in which help shows them. A verb that is written elsewhere (as in `transfer`) is a type that
/// implements `verb::Command`, and one more line here.
pub const VERBS: &[Verb] = &[
    Verb::of::<mkfs::Mkfs>(),
    Verb::of::<mount::Mount>(),
    Verb::of::<umount::Umount>(),
    Verb::of::<info::Info>(),
    Verb::of::<tune::Tune>(),
    Verb::of::<ls::Ls>(),
    Verb::of::<tree::Tree>(),
    Verb::of::<cat::Cat>(),
    Verb::of::<transfer::Cp>(),
    Verb::of::<mv::Mv>(),
    Verb::of::<rm::Rm>(),
    Verb::of::<mkdir::Mkdir>(),
    Verb::of::<ln::Ln>(),
    Verb::of::<touch::Touch>(),
    Verb::of::<chmod::Chmod>(),
    Verb::of::<chown::Chown>(),
    Verb::of::<chgrp::Chgrp>(),
    Verb::of::<truncate::Truncate>(),
    Verb::of::<tee::Tee>(),
    Verb::of::<sync::Sync>(),
    Verb::of::<transfer::Import>(),
    Verb::of::<transfer::Export>(),
    Verb::of::<transfer::Verify>(),
    Verb::of::<find::Find>(),
    Verb::of::<du::Du>(),
    Verb::of::<df::Df>(),
    Verb::of::<stat::Stat>(),
    Verb::of::<readlink::Readlink>(),
    Verb::of::<stats::Stats>(),
    Verb::of::<trim::Trim>(),
    Verb::of::<fsck::Fsck>(),
    Verb::of::<debug::Debug>(),
    Verb::of::<myriad_lab::cli::Bench>(),
    Verb::of::<myriad_lab::experiment::cli::Lab>(),
    Verb::of::<completions::Completions>(),
    Verb::of::<man::Man>(),
];

/// The verb of a name.
pub fn named(name: &str) -> Option<&'static Verb> {
    VERBS.iter().find(|verb| verb.name == name)
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

// These two describe the table, so they are declared beside it.

impl Command for man::Man {
    const NAME: &'static str = "man";
    const ABOUT: &'static str = "Write the manual pages to a directory";
    const EXAMPLES: &'static [Example] = &[("myriad man /usr/local/share/man/man1", "installs them")];

    fn run(self, context: &Context) -> Result<Status> {
        self.write_pages(context, VERBS, &parser())
    }
}

impl Command for completions::Completions {
    const NAME: &'static str = "completions";
    const ABOUT: &'static str = "Print a script that completes command lines in a shell";
    const DETAILS: &'static str = "In bash, zsh and fish, paths inside volumes are completed too: after IMAGE:/ the names that the volume \
        has, mounted or not. A volume that somebody else has in use, or that takes long to open, completes to nothing.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad completions bash > ~/.local/share/bash-completion/completions/myriad", "installs it for bash"),
        ("myriad completions fish > ~/.config/fish/completions/myriad.fish", "installs it for fish"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        self.print(context, &mut parser())
    }
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
