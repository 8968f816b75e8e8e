//! `chgrp`: groups. The work is that of `chown`.

use super::chown::{ChownArgs, Task};
use crate::context::Context;
use crate::show::owner::{self, OwnerSpec};
use crate::status::Status;
use crate::verb::{Command, Example};
use anyhow::Result;
use std::ffi::OsString;

// As in `chown`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Chgrp {
    #[command(flatten)]
    how: ChownArgs,
    /// GROUP by name or number, unless an option gives it, then files, each IMAGE:/path
    #[arg(required = true, value_name = "GROUP|IMAGE:/path")]
    operands: Vec<OsString>,
}

impl Command for Chgrp {
    const NAME: &'static str = "chgrp";
    const ABOUT: &'static str = "Change the group of files";
    const DETAILS: &'static str = "As myriad chown :GROUP.";
    const EXAMPLES: &'static [Example] = &[("myriad chgrp -R staff vol.img:/srv", "gives a tree to a group")];

    fn run(self, context: &Context) -> Result<Status> {
        let (spec, files) = self.how.operands(&self.operands, parse)?;
        self.how.run(context, Self::NAME, &Task { spec, from: OwnerSpec::default(), is_group: true }, &files)
    }
}

fn parse(text: &str) -> Result<OwnerSpec, String> {
    let group = if text.is_empty() { None } else { Some((owner::parse_group(text)?, text.to_owned())) };
    Ok(OwnerSpec { user: None, group })
}
