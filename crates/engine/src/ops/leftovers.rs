//! Second names of directories, which renames have left that power loss cut short on a volume of order `softdep`.
//!
//! The identity of a directory says which name is its own. The other one must not stay: when the directory goes, it would name whatever is given
//! the inode next. So an opening for writing after a crash looks for such names, in all directories that can be reached, and takes them
//! away. What is damaged is passed over: that is for the check to find.

use crate::dir::{self, Name};
use crate::error::{Error, Result};
use crate::inode;
use crate::types::FileType;
use crate::volume::{Volume, transact};
use myriad_format::Ino;
use std::collections::HashSet;
use zerocopy::little_endian::U32;

/// Links of a directory that has no directory in it.
const LINKS_MIN: u32 = 2;

/// A name in a directory, and the directory that it names.
type Found = (Vec<u8>, Ino);

/// Takes all of them away.
pub(crate) fn take_leftovers(volume: &Volume) -> Result<()> {
    let (mut waiting, mut met) = (vec![volume.root], HashSet::from([volume.root]));
    while let Some(dir) = waiting.pop() {
        let mut next = Some(0);
        while let Some(cookie) = next {
            let mut found = Vec::new();
            next = match subdirectories(volume, dir, cookie, &mut found) {
                Err(Error::Corrupt(_) | Error::Io { .. }) => None,
                next => next?,
            };
            for (name, ino) in found {
                if ino == volume.root {
                    continue;
                }
                let name = Name { bytes: &name, hash: volume.hasher.hash(&name) };
                match is_left(volume, dir, name, ino) {
                    Ok(true) => take(volume, dir, name, ino)?,
                    Ok(false) if met.insert(ino) => waiting.push(ino),
                    Ok(false) | Err(Error::Corrupt(_) | Error::Io { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(())
}

fn subdirectories(volume: &Volume, dir: Ino, cookie: u64, found: &mut Vec<Found>) -> Result<Option<u64>> {
    let look = volume.look();
    let _lock = volume.lock_shared(dir);
    let raw = inode::read(&look, dir)?;
    dir::list(&look, dir, &raw, cookie, &mut |entry| {
        if entry.file_type == FileType::Directory {
            found.push((entry.name.to_vec(), entry.ino));
        }
        true
    })
}

fn is_left(volume: &Volume, dir: Ino, name: Name<'_>, ino: Ino) -> Result<bool> {
    let look = volume.look();
    let raw = inode::read(&look, ino)?;
    Ok(raw.is_dir() && volume.is_leftover(ino, &raw, dir, name.hash))
}

/// Takes the name away from its directory.
pub(super) fn take(volume: &Volume, dir: Ino, name: Name<'_>, ino: Ino) -> Result<()> {
    transact(volume, 0, |txn| {
        let _lock = volume.lock_exclusive(dir);
        let mut raw = inode::read(&txn.look, dir)?;
        let Some(hit) = dir::search(&txn.look, dir, &raw, name)?.hit.filter(|hit| hit.ino == ino) else {
            return Ok(());
        };
        dir::remove(txn, dir, &mut raw, name, hit)?;
        raw.nlink = U32::new(raw.nlink.get().saturating_sub(1).max(LINKS_MIN));
        volume.names.forget(dir, name.hash, ino);
        inode::write(txn, dir, &raw)
    })
}
