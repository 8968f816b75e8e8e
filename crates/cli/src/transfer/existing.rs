//! What happens to a file that is there when another one comes to its name.

use super::batch::{Meta, Wanted};
use super::holes::Holes;
use super::link::Linking;
use super::target::{Attrs, Found, Keep};
use crate::volume::BackupArgs;
use anyhow::Result;
use myriad_engine::FileType;
use std::sync::Arc;

/// Which of the files that are there make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// None; each is an error.
    Refuse,
    /// None; they stay as they are.
    Skip,
    /// All.
    Replace,
    /// Those that were last changed before the file that comes.
    Older,
    /// Those that are not what would come.
    Differing,
}

impl Existing {
    /// Whether a file that is there stays without an error, as its attributes and those that would come say.
    pub fn spares(self, found: &Found, meta: &Meta, attrs: &Attrs) -> bool {
        match self {
            Self::Refuse | Self::Replace => false,
            Self::Skip => true,
            Self::Older => found.mtime >= meta.mtime,
            Self::Differing => is_alike(found, meta, attrs),
        }
    }
}

/// Looks for a file of the target, by its path from where the transfer begins.
pub type Look = Box<dyn Fn(&[u8]) -> Option<Found> + Send + Sync>;

/// Lets a source read only what will be taken, unless that is all.
pub fn wanted(existing: Existing, keep: Keep, look: Look) -> Option<Wanted> {
    if matches!(existing, Existing::Refuse | Existing::Replace) {
        return None;
    }
    let is_spared = move |found: &Found, meta: &Meta| existing.spares(found, meta, &keep.attrs(meta));
    Some(Arc::new(move |path, meta| !look(path).is_some_and(|found| is_spared(&found, meta))))
}

/// Whether a file looks like the one that would come: everything that is compared without reading its content.
fn is_alike(found: &Found, meta: &Meta, attrs: &Attrs) -> bool {
    let file_type = meta.file_type();
    // A link has no mode of its own.
    let mode = attrs.mode.filter(|_| file_type != FileType::Symlink);
    found.file_type == file_type
        && (file_type != FileType::File || found.size == meta.size)
        && found.mtime == meta.mtime
        && mode.is_none_or(|mode| mode == found.mode & 0o7777)
        && attrs.owner.is_none_or(|owner| owner == (found.uid, found.gid))
}

/// Asks whether the file of this name is to be replaced. An error ends the work.
pub type Ask<'a> = Box<dyn Fn(&str) -> Result<bool> + 'a>;

/// How a writer treats what is there, and how it writes.
pub struct Rules<'a> {
    pub existing: Existing,
    /// Whether the user is asked before each replacement.
    pub ask: Option<Ask<'a>>,
    /// What is replaced is removed, and not written anew: its mode and owner are no longer of interest, nor its type.
    pub removes: bool,
    /// What is replaced is kept under another name.
    pub backups: BackupArgs,
    /// Files get no copies but links.
    pub linking: Option<Linking>,
    /// Nothing is made: the target only looks.
    pub is_dry: bool,
    pub holes: Holes,
}

impl From<Existing> for Rules<'_> {
    fn from(existing: Existing) -> Self {
        Self {
            existing,
            ask: None,
            removes: false,
            backups: BackupArgs::default(),
            linking: None,
            is_dry: false,
            holes: Holes::Auto,
        }
    }
}
