//! `completions`: scripts for shells.

use crate::context::Context;
use crate::verb::{self, Command, Example, Status};
use anyhow::Result;
use clap_complete::Shell;
use std::io::Write;

#[derive(clap::Args)]
pub struct Completions {
    /// bash, zsh, fish, elvish or powershell
    shell: Shell,
}

impl Command for Completions {
    const NAME: &'static str = "completions";
    const ABOUT: &'static str = "Print a script that completes command lines in a shell";
    const EXAMPLES: &'static [Example] = &[
        ("myriad completions bash > ~/.local/share/bash-completion/completions/myriad", "installs it for bash"),
        ("myriad completions fish > ~/.config/fish/completions/myriad.fish", "installs it for fish"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        // The generator panics if it cannot write, so it writes to memory.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut verb::parser(), "myriad", &mut script);
        context.out().write_all(&script)?;
        Ok(Status::OK)
    }
}
