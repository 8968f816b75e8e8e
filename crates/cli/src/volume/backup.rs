//! Backups of what a verb is about to replace, named as GNU's tools name them.

use super::{Opened, Place};
use crate::failure::{At, Failure};
use anyhow::Result;
use myriad_engine::RenameMode;
use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;

#[derive(clap::Args, Clone, Debug, Default)]
pub struct BackupArgs {
    /// Keep a file that is replaced under another name; without CONTROL as `existing`
    #[arg(long, value_enum, value_name = "CONTROL", num_args = 0..=1, require_equals = true, default_missing_value = "existing")]
    backup: Option<Control>,
    /// As --backup
    #[arg(short = 'b')]
    backup_plain: bool,
    /// End of a simple backup's name, instead of `~`; as --backup too
    #[arg(short = 'S', long, value_name = "SUFFIX")]
    suffix: Option<OsString>,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Control {
    /// No backup
    #[value(alias = "off")]
    None,
    /// `name.~1~`, `name.~2~` and so on
    #[value(alias = "t")]
    Numbered,
    /// Numbered if there is a numbered one, else simple
    #[value(alias = "nil")]
    Existing,
    /// `name~`
    #[value(alias = "never")]
    Simple,
}

impl BackupArgs {
    fn control(&self) -> Control {
        let is_asked = self.backup_plain || self.suffix.is_some();
        self.backup.unwrap_or(if is_asked { Control::Existing } else { Control::None })
    }

    /// Whether a file that is in the way is to be kept.
    pub fn is_asked(&self) -> bool {
        self.control() != Control::None
    }

    /// The name under which a file is to be kept that has the name `name`, if it is; `names` are those of its directory.
    pub fn name_for<E>(
        &self,
        name: &[u8],
        names: impl FnOnce() -> Result<Vec<Vec<u8>>, E>,
    ) -> Result<Option<Vec<u8>>, E> {
        let last = match self.control() {
            Control::None => return Ok(None),
            Control::Simple => 0,
            Control::Numbered | Control::Existing => {
                names()?.iter().filter_map(|found| number(found, name)).max().unwrap_or(0)
            }
        };
        Ok(Some(match (self.control(), last) {
            (Control::Simple, _) | (Control::Existing, 0) => {
                [name, self.suffix.as_ref().map_or(b"~", |suffix| suffix.as_bytes())].concat()
            }
            _ => [name, format!(".~{}~", last + 1).as_bytes()].concat(),
        }))
    }

    /// Gives the file at `place` the name of its backup: which that is, if one is to be kept. Refuses if that is the name of `source`,
    /// which is to replace it: its content would be gone.
    pub fn keep(&self, volume: &Opened, place: &Place, source: Option<&Place>) -> Result<Option<Place>> {
        let (directory, name) = place.split();
        let names = || volume.tree().names(&directory.path).at(&directory)?.map(|name| name.at(&directory)).collect();
        let Some(backup) = self.name_for(name, names)? else { return Ok(None) };
        let backup = directory.below(&backup);
        if let Some(source) = source.filter(|source| volume.is_same_name(source, &backup)) {
            return Err(Self::would_take_name(source));
        }
        volume.tree().rename(&place.path, &backup.path, RenameMode::Replace).at(&backup)?;
        Ok(Some(backup))
    }

    /// Of a source whose name what it replaces would be kept under.
    pub fn would_take_name(source: impl Display) -> anyhow::Error {
        let what = "the backup of what it replaces would take its name";
        Failure::new(source, what, "give --backup=numbered, or another -S").into()
    }

    /// Gives it its name back, after what was to replace it could not.
    pub fn undo(volume: &Opened, backup: &Place, place: &Place) -> Result<()> {
        volume.tree().rename(&backup.path, &place.path, RenameMode::NoReplace).at(backup)
    }
}

/// The number in the name `found`, if that is one of a numbered backup of `name`.
fn number(found: &[u8], name: &[u8]) -> Option<u64> {
    let digits = found.strip_prefix(name)?.strip_prefix(b".~")?.strip_suffix(b"~")?;
    std::str::from_utf8(digits)
        .ok()
        .filter(|digits| !digits.starts_with('+'))?
        .parse()
        .ok()
        .filter(|&number| number < u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_backups_are_known_by_their_names() {
        for (found, expected) in [
            ("f.~7~", Some(7)),
            ("f.~18446744073709551615~", None),
            ("f~", None),
            ("f.~x~", None),
            ("f.~+1~", None),
            ("g.~7~", None),
        ] {
            assert_eq!(number(found.as_bytes(), b"f"), expected, "{found}");
        }
    }
}
