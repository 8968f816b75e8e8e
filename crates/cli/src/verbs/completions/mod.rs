//! `completions`: scripts for shells. Options and verbs are in the scripts; for paths inside volumes they call this verb again.

mod paths;

use crate::context::Context;
use crate::status::Status;
use anyhow::Result;
use clap_complete::Shell;
use std::ffi::OsString;
use std::io::Write;

#[derive(clap::Args)]
pub struct Completions {
    /// bash, zsh, fish, elvish or powershell
    #[arg(required_unless_present = "paths")]
    shell: Option<Shell>,
    /// Print the paths in a volume that a word may become, for a script
    #[arg(long, value_name = "WORD", hide = true, conflicts_with = "shell", allow_hyphen_values = true)]
    paths: Option<OsString>,
}

impl Completions {
    /// Prints the script for the command line of this parser.
    pub fn print(self, context: &Context, parser: &mut clap::Command) -> Result<Status> {
        if let Some(word) = self.paths {
            for path in paths::complete(word) {
                context.out().write_all(&[&path[..], b"\n"].concat())?;
            }
            return Ok(Status::OK);
        }
        let shell = self.shell.expect("the parser asks for one");
        // The generator panics if it cannot write, so it writes to memory.
        let mut script = Vec::new();
        clap_complete::generate(shell, parser, "myriad", &mut script);
        context.out().write_all(&with_paths(shell, String::from_utf8(script)?).into_bytes())?;
        Ok(Status::OK)
    }
}

/// The generated script, which knows nothing of volumes, with what completes paths in them.
fn with_paths(shell: Shell, script: String) -> String {
    match shell {
        // The last function that is named counts.
        Shell::Bash => script + include_str!("paths.bash"),
        Shell::Zsh => {
            // The function that the shell calls is renamed, and ours takes its name.
            let script = script.replacen("\n_myriad() {", "\n_myriad_words() {", 1);
            let end = script.rfind("\nif [ \"$funcstack[1]\"").unwrap_or(script.len());
            [&script[..end], include_str!("paths.zsh"), &script[end..]].concat()
        }
        Shell::Fish => script + include_str!("paths.fish"),
        _ => script,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zsh_script_calls_ours_first() {
        let mut script = Vec::new();
        let mut parser = clap::Command::new("myriad").subcommand(clap::Command::new("ls"));
        clap_complete::generate(Shell::Zsh, &mut parser, "myriad", &mut script);
        let script = with_paths(Shell::Zsh, String::from_utf8(script).unwrap());
        let at = |text: &str| script.find(text).unwrap_or_else(|| panic!("{text} is missing"));
        assert!(at("\n_myriad_words() {") < at("\n_myriad() {"), "the generated function has made room");
        assert!(at("\n_myriad() {") < at("if [ \"$funcstack[1]\" = \"_myriad\" ]"), "it is there when it is called");
        assert_eq!(script.matches("\n_myriad() {").count(), 1);
    }
}
