//! `find`: files by what they are, and what to do with them.
//!
//! ```text
//! words.rs       the words of expressions, for the help and for the order of the command line
//! expression.rs  from words to a tree
//! test.rs        what tests compare
//! regular.rs     regular expressions
//! search.rs      the walk, and the tree on every file
//! print.rs       what is printed
//! exec.rs        commands
//! ```

mod exec;
mod expression;
mod found;
mod print;
mod regular;
mod search;
mod test;
mod words;

use crate::context::Context;
use crate::failure::Failure;
use crate::show::time;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, OpenArgs, Place};
use anyhow::Result;
use search::{Links, Search, Searched};
use std::ffi::OsString;
pub use words::arrange;

pub const NAME: &str = "find";

#[derive(clap::Args)]
#[command(override_usage = "myriad find [OPTIONS] <IMAGE[:/path]>... [EXPRESSION]")]
pub struct Find {
    /// Never follow symbolic links, as without it
    #[arg(short = 'P', overrides_with_all = ["follow", "follow_places"])]
    stay: bool,
    /// Follow symbolic links: tests are about what they lead to, and directories that they lead to are searched
    #[arg(short = 'L', overrides_with_all = ["stay", "follow_places"])]
    follow: bool,
    /// Follow those of the places only
    #[arg(short = 'H', overrides_with_all = ["stay", "follow"])]
    follow_places: bool,
    /// Print one JSON object a line, with all attributes
    #[arg(long)]
    json: bool,
    /// Trees to search
    #[arg(required = true, value_name = "IMAGE[:/path]", value_parser = volume::place_or_root())]
    places: Vec<Place>,
    /// Tests and actions, as find(1) has them (below)
    #[arg(last = true, value_name = "EXPRESSION", allow_hyphen_values = true)]
    expression: Vec<OsString>,
    #[command(flatten)]
    open: OpenArgs,
}

impl Command for Find {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "Find files by name, type, size or age";
    const DETAILS: &'static str = "Walks the trees and evaluates the expression on each file, as find(1) does. Files are printed \
        as IMAGE:/path, as the other verbs take them; -name and -path look at the path in the volume.";
    const MORE: fn() -> String = words::help;
    const EXAMPLES: &'static [Example] = &[
        ("myriad find vol.img:/src -name '*.o' -type f", "prints the object files below a directory"),
        ("myriad find vol.img -size +100M -mtime -7", "prints large files changed in the last week"),
        ("myriad find vol.img:/tmp -name '*.o' -print0 | xargs -0 myriad rm", "removes what was found"),
        ("myriad find vol.img -type f '(' -name '*~' -o -empty ')' -delete", "removes backups and empty files"),
        ("myriad find vol.img -name .git -prune -o -print", "prints all but what is in directories named .git"),
        ("myriad find vol.img -name '*.log' -exec myriad cat {} +", "hands files to another verb"),
        ("myriad find vol.img --json | jq 'select(.nlink > 1)'", "hands every file to a program"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let now = time::now();
        let (_, plan) = expression::parse(&self.expression, now)?;
        if self.json && plan.prints_own {
            let what = "there is a form of its own in the expression";
            return Err(Failure::usage("find: --json", what, "leave out -print0, -printf, -ls and -exec").into());
        }
        if plan.deletes || plan.runs_commands {
            self.search(context, now)?;
        } else {
            volume::look(context, self.places.iter().map(|place| &*place.image), || self.search(context, now))?;
        }
        Ok(context.status())
    }
}

impl Find {
    fn search(&self, context: &Context, now: myriad_engine::Time) -> Result<()> {
        let (mut expression, plan) = expression::parse(&self.expression, now)?;
        let links = match (self.follow || plan.follows, self.follow_places) {
            (true, _) => Links::Follow,
            (_, true) => Links::Places,
            _ => Links::Stay,
        };
        let access = if plan.deletes { Access::Change } else { Access::Read };
        let searched = Searched::new(access, self.open.mount_options());
        let mut search = Search::new(context, &plan, links, self.json, now, searched);
        search.resolve(&mut expression)?;
        if !plan.runs_commands {
            context.out().hold();
        }
        let result = search.run(&self.places, &expression);
        context.out().release()?;
        result
    }
}

/// Whether these words are an expression.
pub fn is_expression(words: &[OsString]) -> bool {
    expression::parse(words, 0).is_ok()
}
