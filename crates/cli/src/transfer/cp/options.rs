//! Options of `cp`, as cp(1) has them, and what they mean together.

use super::super::existing::Existing;
use super::super::target::{Keep, Modes, Owner};
use crate::failure::Failure;
use crate::volume::{BackupArgs, Guard};
use anyhow::Result;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};

/// What becomes of files that are there.
#[derive(clap::Args)]
pub struct ReplaceArgs {
    /// Leave files that are there as they are
    #[arg(short, long, overrides_with = "interactive")]
    no_clobber: bool,
    /// Ask before a file is replaced
    #[arg(short, long, overrides_with = "no_clobber")]
    pub interactive: bool,
    /// Replace only files that were last changed before their source; `none` is -n, `all` is the default
    #[arg(short, long, value_name = "WHICH", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "older")]
    update: Option<Update>,
    /// Remove a file that is there instead of writing it anew: it keeps neither its mode nor its owner, and a link, pipe or
    /// device is replaced itself
    #[arg(long)]
    pub remove_destination: bool,
    /// Replace files that may not be written, too, as is done in any case; with -l and -s, replace files that are there
    #[arg(short = 'f')]
    unwritable: bool,
    /// Replace a file though it is a volume; never one that is in use
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub backups: BackupArgs,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Update {
    All,
    None,
    Older,
}

impl ReplaceArgs {
    pub fn existing(&self) -> Existing {
        match self.update {
            _ if self.no_clobber => Existing::Skip,
            Some(Update::None) => Existing::Skip,
            Some(Update::Older) => Existing::Older,
            Some(Update::All) | None => Existing::Replace,
        }
    }

    /// Likewise, where links are made: they take the place of nothing unasked.
    pub fn existing_for_links(&self) -> Existing {
        let makes_room = self.unwritable || self.interactive || self.remove_destination || self.backups.is_asked();
        if makes_room || self.existing() != Existing::Replace { self.existing() } else { Existing::Refuse }
    }

    /// Refuses what makes no sense together.
    pub fn check(&self) -> Result<()> {
        if self.backups.is_asked() && self.existing() == Existing::Skip {
            let what = "nothing that is to be left as it is needs a backup";
            return Err(Failure::usage("--backup", what, "leave out one of -b and -n").into());
        }
        Ok(())
    }

    pub fn guard(&self) -> Guard {
        Guard::unless(self.force)
    }
}

/// Links instead of copies.
#[derive(clap::Args)]
pub struct LinkArgs {
    /// Give files a further name instead of copying them; inside one volume
    #[arg(short, long, conflicts_with = "symbolic_link")]
    link: bool,
    /// Make symbolic links to files instead of copying them; inside one volume, by the way from one to the other
    #[arg(short, long)]
    symbolic_link: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    Hard,
    Symbolic,
}

impl LinkArgs {
    pub fn asked(&self) -> Option<Links> {
        match (self.link, self.symbolic_link) {
            (true, _) => Some(Links::Hard),
            (_, true) => Some(Links::Symbolic),
            _ => None,
        }
    }
}

/// What options say about symbolic links: the last one given counts. Not derived, because of that order.
pub struct FollowArgs(Option<Follow>);

/// Options of [`FollowArgs`], and those of others that say something about links too.
const FOLLOWING: &[(&str, Follow)] = &[
    ("no_dereference", Follow::Never),
    ("dereference", Follow::Always),
    ("follow_operands", Follow::Operands),
    ("archive", Follow::Never),
    ("links_as_such", Follow::Never),
];

impl clap::FromArgMatches for FollowArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = FOLLOWING.iter().filter(|(id, _)| matches.value_source(id) == Some(ValueSource::CommandLine));
        let last = given.max_by_key(|(id, _)| matches.indices_of(id).and_then(Iterator::max));
        Ok(Self(last.map(|(_, follow)| *follow)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for FollowArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        let option = |id: &'static str, short| Arg::new(id).short(short).action(ArgAction::SetTrue).overrides_with(id);
        command
            .arg(
                option("no_dereference", 'P')
                    .long("no-dereference")
                    .help("Copy symbolic links as such, also those that are operands"),
            )
            .arg(option("dereference", 'L').long("dereference").help("Copy what symbolic links lead to"))
            .arg(option("follow_operands", 'H').help("Copy what those symbolic links lead to that are operands"))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    Never,
    Operands,
    Always,
}

/// What copies keep of their sources.
#[derive(clap::Args)]
pub struct KeepArgs {
    /// Keep everything: as -r -P --preserve=all
    #[arg(short, long)]
    archive: bool,
    /// As -P --preserve=links
    #[arg(short = 'd')]
    links_as_such: bool,
    /// Keep modes, times, and, as root or into a volume, owners
    #[arg(short = 'p')]
    usual: bool,
    /// Keep these; without a list as -p. ACLs belong to the mode
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', num_args = 0.., require_equals = true, default_missing_values = ["mode", "ownership", "timestamps"])]
    preserve: Vec<Attribute>,
    /// Do not keep these
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', require_equals = true)]
    no_preserve: Vec<Attribute>,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Attribute {
    Mode,
    Ownership,
    Timestamps,
    /// That files are names of one inode
    Links,
    /// Extended attributes; named so, it is an error if the target refuses some
    Xattr,
    /// The security context, which is an extended attribute: as `xattr`
    Context,
    All,
}

impl KeepArgs {
    pub fn is_archive(&self) -> bool {
        self.archive
    }

    fn has(&self, attribute: Attribute) -> bool {
        use Attribute::{All, Context, Links, Mode, Ownership, Timestamps, Xattr};
        let is_asked = |list: &[Attribute]| list.iter().any(|&found| found == attribute || found == All);
        let is_usual = self.usual && matches!(attribute, Mode | Ownership | Timestamps);
        let is_kept = self.archive
            || is_usual
            || self.links_as_such && attribute == Links
            || is_asked(&self.preserve)
            || attribute == Xattr && self.preserve.contains(&Context);
        is_kept && !is_asked(&self.no_preserve)
    }

    pub fn links(&self) -> bool {
        self.has(Attribute::Links)
    }

    pub fn owner(&self) -> bool {
        self.has(Attribute::Ownership)
    }

    pub fn keep(&self, owner: Option<Owner>, umask: u16) -> Keep {
        let modes = match self.has(Attribute::Mode) {
            true => Modes::Keep,
            false if self.no_preserve.contains(&Attribute::Mode) => Modes::Plain(umask),
            false => Modes::Mask(umask),
        };
        let is_named = |attribute| self.preserve.contains(&attribute);
        let xattrs = self.has(Attribute::Xattr);
        let needs_xattrs = xattrs && (is_named(Attribute::Xattr) || is_named(Attribute::Context));
        Keep { owner, modes, times: self.has(Attribute::Timestamps), xattrs, needs_xattrs }
    }
}

impl FollowArgs {
    pub fn follow(&self, is_recursive: bool) -> Follow {
        self.0.unwrap_or(if is_recursive { Follow::Never } else { Follow::Always })
    }
}
