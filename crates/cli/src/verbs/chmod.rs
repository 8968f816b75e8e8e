//! `chmod`: permission bits.

use crate::change::{Changes, TellArgs};
use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::mode;
use crate::show::mode_change::ModeChange;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, ChangeArgs, Place, Reference, Tree, Visit, Visited, Volumes, descend};
use anyhow::Result;
use myriad_engine::{FileType, SetAttr, Stat};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

#[derive(clap::Args)]
pub struct Chmod {
    /// Change directories with all that is below them
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Say only what was changed
    #[arg(short, long, conflicts_with = "json")]
    changes: bool,
    /// Say nothing of what cannot be changed; the exit code tells all the same
    #[arg(short = 'f', long)]
    silent: bool,
    /// Give files the bits of this one: IMAGE:/path, or a file of the host
    #[arg(long, value_name = "FILE", value_parser = volume::reference(), conflicts_with = "mode")]
    reference: Option<Reference>,
    /// The mode, before all operands; -w in its place is read as --mode=-w
    #[arg(long, value_name = "MODE", allow_hyphen_values = true)]
    mode: Option<String>,
    #[command(flatten)]
    tell: TellArgs,
    /// MODE (755, u=rwx,go=rX, g+w, a-x, g=u, +t), unless an option gives it, then files, each IMAGE:/path
    #[arg(required = true, value_name = "MODE|IMAGE:/path")]
    operands: Vec<OsString>,
    #[command(flatten)]
    change: ChangeArgs,
}

pub const NAME: &str = "chmod";

impl Command for Chmod {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "Change the permission bits of files";
    const DETAILS: &'static str = "A symbolic link given as an operand is followed; those that -R meets are left alone. Without u, g, o or a \
        the umask holds bits back. A directory keeps set-id bits that MODE does not name, in octal unless it has five digits.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad chmod 640 vol.img:/secret", "sets all bits of a file"),
        ("myriad chmod -R u=rwX,go=rX vol.img:/srv", "lets everybody read a tree, and enter its directories"),
        ("myriad chmod -w vol.img:/done", "takes the right to write away"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let (mode, files) = self.operands()?;
        let tell = TellArgs { verbose: self.tell.verbose || self.changes, ..self.tell };
        if self.silent {
            context.pass_over_errors();
        }
        let changes = Changes::new(context, Self::NAME, tell);
        let umask = volume::umask();
        let result = Volumes::new(Access::Change, self.change.mount_options()).finish(|volumes| {
            let change = match (&self.reference, mode) {
                (Some(reference), _) => ModeChange::exactly(reference.stat(volumes, true)?.mode & 0o7777),
                (None, mode) => ModeChange::parse(&mode).map_err(|error| Failure::usage("", error, ""))?,
            };
            let mut work = Changing { verb: &self, context, changes: &changes, change, umask };
            for file in &files {
                context.check()?;
                let result = volumes.get(&file.image).and_then(|volume| work.operand(volume.tree(), file));
                context.tolerate(result)?;
            }
            Ok(())
        });
        changes.finish(result)
    }
}

impl Chmod {
    /// The mode, empty with `--reference`, and the files.
    fn operands(&self) -> Result<(String, Vec<Place>)> {
        let text = |mode: &OsStr| mode.to_string_lossy().into_owned();
        let (mode, files) = match (&self.reference, &self.mode, self.operands.split_first()) {
            (Some(_), ..) => (String::new(), &*self.operands),
            (_, Some(mode), _) => (mode.clone(), &*self.operands),
            (.., Some((mode, files))) => (text(mode), files),
            (.., None) => unreachable!("the parser asks for one"),
        };
        if files.is_empty() {
            let what = format!("`{mode}`: of which file?");
            return Err(Failure::usage("", what, "name files, each IMAGE:/path, after the mode").into());
        }
        Ok((mode, volume::places(files)?))
    }
}

struct Changing<'a> {
    verb: &'a Chmod,
    context: &'a Context,
    changes: &'a Changes<'a>,
    change: ModeChange,
    umask: u16,
}

impl Changing<'_> {
    fn operand(&mut self, tree: &dyn Tree, place: &Place) -> Result<()> {
        let stat = tree.stat(&place.path).at(place)?;
        if self.verb.recursive && stat.is_dir() {
            let context = self.context;
            return descend(context, tree, place, true, self);
        }
        self.set(place, &stat, &mut |attr| tree.set_attr(&place.path, true, attr))
    }

    fn set(&self, place: &Place, stat: &Stat, set: &mut dyn FnMut(SetAttr) -> myriad_engine::Result<()>) -> Result<()> {
        let before = stat.mode & 0o7777;
        let after = self.change.apply(before, stat.is_dir(), self.umask);
        set(SetAttr { mode: Some(after), ..SetAttr::default() }).at(place)?;
        let shown = |bits: u16| format!("{bits:04o} ({})", &mode::string(FileType::File, bits)[1..]);
        if after != before {
            let words = || format!("mode of {} changed from {} to {}", place.quoted(), shown(before), shown(after));
            self.changes.tell(place, "mode", words, |fields| {
                fields.insert("mode".into(), format!("{after:04o}").into());
                fields.insert("mode_before".into(), format!("{before:04o}").into());
            })?;
        } else if !self.verb.changes {
            self.changes.say(|| format!("mode of {} retained as {}", place.quoted(), shown(before)))?;
        }
        // `-w` that leaves somebody the right to write: the umask held that back.
        let wanted = self.change.apply(before, stat.is_dir(), 0);
        if self.verb.mode.as_ref().is_some_and(|mode| mode.starts_with('-')) && after & !wanted != 0 {
            let symbolic = |bits: u16| mode::string(FileType::File, bits)[1..].to_owned();
            let what = format!("the mode is now {}, not {}", symbolic(after), symbolic(wanted));
            let next = "the umask kept the rest; write a- for all";
            return Err(Failure::new(place, what, next).into());
        }
        Ok(())
    }

    fn visited(&self, file: &Visited<'_, '_>) -> Result<bool> {
        let result = self.set(file.place, file.stat, &mut |attr| file.folder.set_attr(file.name, file.stat, attr));
        self.context.tolerate(result)?;
        Ok(true)
    }
}

impl Visit for Changing<'_> {
    fn enter(&mut self, directory: &Visited<'_, '_>) -> Result<bool> {
        self.visited(directory)
    }

    fn leave(&mut self, _directory: &Visited<'_, '_>, is_all: bool) -> Result<bool> {
        Ok(is_all)
    }

    fn file(&mut self, file: &Visited<'_, '_>) -> Result<bool> {
        if file.stat.file_type() != FileType::Symlink {
            return self.visited(file);
        }
        if !self.verb.changes {
            let place = file.place.quoted();
            self.changes.say(|| format!("neither symbolic link {place} nor referent has been changed"))?;
        }
        Ok(true)
    }
}

/// A mode that begins with a minus looks like an option: `-w` becomes `--mode=-w`.
pub fn with_mode_option(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut is_past = false;
    let mut with = |argument: OsString| {
        is_past |= argument == "--";
        let is_mode = match argument.as_bytes() {
            [b'-', first, rest @ ..] if !is_past => {
                b"rwxXstugoa,+=01234567".contains(first)
                    && rest.iter().all(|byte| b"rwxXstugoa,+-=01234567".contains(byte))
            }
            _ => false,
        };
        if !is_mode {
            return argument;
        }
        let mut option = OsString::from("--mode=");
        option.push(&argument);
        option
    };
    arguments.into_iter().map(&mut with).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_with_a_minus_are_told_from_options() {
        for (argument, expected) in [
            ("-w", "--mode=-w"),
            ("-rwx,u+s", "--mode=-rwx,u+s"),
            ("-R", "-R"),
            ("-vf", "-vf"),
            ("--mode", "--mode"),
            ("a-w", "a-w"),
            ("-", "-"),
        ] {
            assert_eq!(with_mode_option(vec![argument.into()]), [expected], "{argument}");
        }
        assert_eq!(with_mode_option(vec!["--".into(), "-w".into()]), ["--", "-w"]);
    }
}
