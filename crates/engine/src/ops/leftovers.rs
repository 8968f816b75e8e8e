//! Second names of directories, which renames have left that power loss cut short on a volume of order `softdep`.
//!
//! The identity of a directory says which name is its own. The other one counts as not there, but must not stay: when the directory goes, it would name
//! whatever is given the inode next. So after an opening for writing that follows a crash somebody looks for such names, in all directories that can
//! be reached, and takes them away. The opening does not wait for that:
//!
//!  - a thread looks for them while the volume is in use ([`settle_second_names`]), if it has threads;
//!  - who is about to make a name that is such a second one takes that away first ([`make_way`]);
//!  - who is about to remove or move a directory waits until all were looked at ([`settle_before_moving`]). So directories stay where they are
//!    meanwhile, and none is missed; and no inode is given to another one while it may have a second name;
//!  - who is about to hold a moment or to close the volume waits as well.
//!
//! What is damaged is passed over: that is for the check to find. So is a directory that has not the name that its identity says: a write of its
//! inode may have been lost, and the name that counts as second be its only one.

use crate::dir::{self, Name};
use crate::error::{Error, Result};
use crate::inode;
use crate::planted::{Bug, planted};
use crate::types::{FileType, Node};
use crate::volume::{Volume, transact};
use myriad_format::Ino;
use std::collections::HashSet;
use zerocopy::little_endian::U32;

/// Links of a directory that has no directory in it.
const LINKS_MIN: u32 = 2;

/// A name in a directory, and the directory that it names.
type Found = (Vec<u8>, Ino);

/// Takes all of them away, if there may be any. Without locks.
pub(crate) fn settle_second_names(volume: &Volume) -> Result<()> {
    if !volume.second_names.may_be() || planted(Bug::SoftSecondNames) {
        return Ok(());
    }
    let Some(search) = volume.second_names.search() else { return Ok(()) };
    let all_read = take_all(volume)?;
    // If not, the next opening looks again.
    volume.note_second_names(all_read);
    volume.second_names.end(search);
    Ok(())
}

/// Takes a name away that an operation is about to make, if it is a second one. Without locks.
#[inline]
pub(super) fn make_way(volume: &Volume, dir: Node, name: Name<'_>) -> Result<()> {
    if volume.second_names.may_be() { take_second(volume, dir, name) } else { Ok(()) }
}

#[cold]
fn take_second(volume: &Volume, dir: Node, name: Name<'_>) -> Result<()> {
    // Whatever is in the way of looking, the name is at worst found to be there.
    match directory_named(volume, dir, name) {
        // The search may have ended meanwhile: then there is none.
        Ok(Some((ino, true))) if volume.second_names.may_be() => take(volume, Ino(dir.ino), name, ino),
        _ => Ok(()),
    }
}

/// Before a directory is moved, replaced or removed: waits until all directories were looked at, if one of the names, each in a directory, is that
/// of a directory. A directory that gets one of the names after this look needs no waiting: it is new, or was moved there, which waited. Without
/// locks.
#[inline]
pub(super) fn settle_before_moving<const N: usize>(volume: &Volume, ends: [(Node, Name<'_>); N]) -> Result<()> {
    if !volume.second_names.may_be() {
        return Ok(());
    }
    for (dir, name) in ends {
        // An error is no answer: what was in the way may be gone when the operation comes to the name.
        if directory_named(volume, dir, name)?.is_some() {
            return settle_second_names(volume);
        }
    }
    Ok(())
}

/// What a name names, if it is a directory, and whether it is a second name.
fn directory_named(volume: &Volume, dir: Node, name: Name<'_>) -> Result<Option<(Ino, bool)>> {
    let look = volume.look();
    let ino = Ino(dir.ino);
    let _lock = volume.lock_shared(ino);
    let raw = inode::read_node(&look, dir)?;
    if !raw.is_dir() {
        return Ok(None);
    }
    let Some(hit) = dir::search(&look, ino, &raw, name)?.hit else { return Ok(None) };
    let named = inode::read(&look, hit.ino)?;
    Ok(named.is_dir().then(|| (hit.ino, volume.is_leftover(hit.ino, &named, ino, name.hash))))
}

/// Whether everything could be read.
fn take_all(volume: &Volume) -> Result<bool> {
    let mut all_read = true;
    let (mut waiting, mut met) = (vec![volume.root], HashSet::from([volume.root]));
    while let Some(dir) = waiting.pop() {
        volume.check_running()?;
        let mut next = Some(0);
        while let Some(cookie) = next {
            let mut found = Vec::new();
            next = match subdirectories(volume, dir, cookie, &mut found) {
                Err(Error::Corrupt(_) | Error::Io(_)) => {
                    all_read = false;
                    None
                }
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
                    Ok(false) => {}
                    Err(Error::Corrupt(_) | Error::Io(_)) => all_read = false,
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(all_read)
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

/// Takes the name away from its directory, if it still is a second one, and the directory that it names has another one.
pub(super) fn take(volume: &Volume, dir: Ino, name: Name<'_>, ino: Ino) -> Result<()> {
    let taken = transact(volume, 0, |txn| {
        // Where it has its own name: as long as there are second names no directory moves.
        let own = match inode::read(&txn.look, ino) {
            Err(Error::Corrupt(_)) => return Ok(None),
            named => Ino(named?.parent.get()),
        };
        let _locks = volume.lock_two(dir, own);
        let mut raw = inode::read(&txn.look, dir)?;
        let Some(hit) = dir::search(&txn.look, dir, &raw, name)?.hit.filter(|hit| hit.ino == ino) else {
            return Ok(None);
        };
        let named = inode::read(&txn.look, ino)?;
        let is_second = named.is_dir() && volume.is_leftover(ino, &named, dir, name.hash);
        if !is_second || named.parent.get() != own.0 || dir::own_name(&txn.look, ino, &named)?.is_none() {
            return Ok(None);
        }
        dir::remove(txn, dir, &mut raw, name, hit)?;
        raw.nlink = U32::new(raw.nlink.get().saturating_sub(1).max(LINKS_MIN));
        volume.names.forget(dir, name.hash, ino);
        inode::write(txn, dir, &raw)?;
        Ok(Some(inode::node(dir, &raw)))
    })?;
    // A kernel that remembers the link would say that there is one more directory in it.
    if let (Some(node), Some(keeper)) = (taken, volume.files.keeper.get()) {
        keeper.given_back(node);
    }
    Ok(())
}
