//! What a crash of order `softdep` has left behind, given back while the volume is in use.
//!
//! A check of a held moment has found what is in use for nothing ([`Leftovers`]). Since then the volume has gone on. What it says still
//! holds:
//!
//!  - A block that was neither free nor anybody's is still nobody's: only free blocks are given out. The same goes for the place of an
//!    inode that is called used and is empty.
//!  - An inode that had more links than names still has as many too many: whatever was linked and unlinked since moved both. So the
//!    difference is taken away, and not what was found put in.
//!  - An inode without a name is nobody's unless it was on the list of orphans for that reason at the moment. Somebody may have opened it by its number
//!    meanwhile, or before it lost its last name, or have given it a name. The former keep it until they close it, as any file without a
//!    name; a mount, which has no handle of what its programs have open, is asked. The latter added a link, which stays when the
//!    difference goes.
//!
//!  - A directory without a name may have names: of files that were made in it or moved to it before it had lasted itself. Nobody has been
//!    promised those; they go first, each with the link that it counts for.
//!  - An inode that was removed meanwhile has taken all of that with it. Numbers are used again, so generations are compared.
//!
//! Each inode is a transaction; its order is what the order in force makes of it. A crash in between leaves less behind than there was.

use super::Ops;
use super::leftovers::take;
use super::unlink::reclaim;
use crate::dir;
use crate::error::{Errno, Error, Result};
use crate::inode;
use crate::order::Look;
use crate::order::moment::HeldMoment;
use crate::types::{Cred, GivenBack, Node};
use crate::volume::{Reason, Volume, transact};
use myriad_format::inode::RawInode;
use myriad_format::leftovers::{BlockCount, Leftovers, SurplusLinks};
use myriad_format::{Corrupt, Ino};
use zerocopy::little_endian::{I64, U32};

/// Extents given back in one transaction.
const EXTENTS_PER_TXN: usize = 64;

/// What became of one inode.
enum Settled {
    Done,
    /// It was removed meanwhile.
    Gone,
    /// It has no link any more, and nobody keeps it; its blocks are still to be freed.
    Nameless(Node),
    /// It is a directory that is not empty, or has fewer links than were too many.
    Left,
}

/// Gives back what a check of the moment found. A moment is used once: a second time the blocks would be others'.
pub(crate) fn give_back(held: HeldMoment, found: &Leftovers) -> Result<GivenBack> {
    let volume = held.volume();
    let mut given = GivenBack { left: found.others, ..GivenBack::default() };
    for extents in found.blocks.chunks(EXTENTS_PER_TXN) {
        transact(volume, 0, |txn| {
            extents.iter().for_each(|&(start, length)| txn.block_free(start, length));
            Ok(())
        })?;
        given.blocks += extents.iter().map(|&(_, length)| u64::from(length)).sum::<u64>();
    }
    for &ino in &found.places {
        match free_place(volume, ino)? {
            true => given.inodes += 1,
            false => given.left += 1,
        }
    }
    for &(region, too_many) in &found.directories {
        transact(volume, 0, |txn| volume.correct_directories(txn, region, too_many))?;
    }
    // Before their inodes may go.
    for &BlockCount { ino, generation, said, found } in &found.block_counts {
        let mut has_changed = false;
        change(volume, Node { ino: ino.0, generation }, |_, raw| {
            // A count that was too low has ended at 0 where more was freed than it said: the difference is no longer what it was.
            has_changed = said < found && raw.block_total() != said;
            if !has_changed {
                raw.add_blocks(found as i64 - said as i64);
            }
            Ok(!has_changed)
        })?;
        given.left += u64::from(has_changed);
    }
    for &surplus in found.links.iter().filter(|surplus| !held.nameless.contains(&surplus.ino.0)) {
        let node = Node { ino: surplus.ino.0, generation: surplus.generation };
        if surplus.is_nameless {
            empty(volume, node)?;
        }
        match settle_links(volume, node, surplus) {
            Ok(Settled::Done) => given.links += 1,
            Ok(Settled::Gone) => {}
            Ok(Settled::Left) => given.left += 1,
            Ok(Settled::Nameless(node)) => {
                reclaim(volume, node)?;
                given.inodes += 1;
            }
            Err(Error::Corrupt(_)) if volume.check_running().is_ok() => given.left += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(given)
}

/// Gives back the place of an inode that is called used, and is empty.
fn free_place(volume: &Volume, ino: Ino) -> Result<bool> {
    transact(volume, 0, |txn| {
        let _lock = volume.lock_exclusive(ino);
        // A block of the table that was not begun when its bits were may hold anything, also inodes that a round has filled before power was lost.
        let (block, slot) = volume.geometry.locate(ino).ok_or(Corrupt::NoInode { ino })?;
        let has_begun = volume.group_of_inode(&txn.look, block, slot)?.is_some();
        if has_begun && !inode::is_empty(&txn.look, ino)? {
            return Ok(false);
        }
        volume.free_place(txn, ino)?;
        Ok(true)
    })
}

/// Makes a directory without links a living one, for whoever empties it: it had been removed, and was held open, when power was lost, and nothing can be
/// done in a directory without links. It has lost them again when two directories have been removed from it.
fn revive(volume: &Volume, node: Node) -> Result<()> {
    change(volume, node, |_, raw| {
        // One that was removed since the moment is somebody's still.
        let is_removed = raw.is_dir() && raw.nlink.get() == 0 && !volume.orphans.has(Ino(node.ino), Reason::Nameless);
        if is_removed {
            raw.nlink = U32::new(2);
        }
        Ok(is_removed)
    })
}

/// Removes all that a directory without a name has names for; what cannot be removed stays, and keeps it. Of anything else there is none.
fn empty(volume: &Volume, node: Node) -> Result<()> {
    let root = Cred::root();
    let ops = Ops { volume, cred: &root, caller: &root };
    // A stack, not recursion: trees may be deeper than ours.
    let mut stack = vec![(node, Vec::new(), 0)];
    while let Some((dir, name, cookie)) = stack.last_mut() {
        unless_refused(revive(volume, *dir))?;
        let mut entries = Vec::new();
        match ops.read_all_names(*dir, *cookie, 1, &mut entries) {
            Ok(()) => {}
            // It is a file, or has been removed.
            Err(Error::Refused(_) | Error::Corrupt(_)) => entries.clear(),
            Err(error) => return Err(error),
        }
        let Some(entry) = entries.pop() else {
            let name = std::mem::take(name);
            stack.pop();
            if let Some((above, ..)) = stack.last() {
                unless_refused(revive(volume, *above).and_then(|()| ops.rmdir(*above, &name)))?;
            }
            continue;
        };
        *cookie = entry.cookie;
        let dir = *dir;
        if entry.name == b"." || entry.name == b".." {
            continue;
        }
        match ops.lookup(dir, &entry.name) {
            Ok(stat) if stat.is_dir() => stack.push((stat.node(), entry.name, 0)),
            Ok(stat) => {
                let removed = ops.unlink_only(dir, &entry.name, stat.node());
                // The file may have another name, by which a kernel knows it, with the links that it had.
                if removed.is_ok() {
                    tell_given_back(volume, stat.node());
                }
                unless_refused(removed)?;
            }
            // The second name of a directory, which a rename has left.
            Err(Error::Refused(Errno::NOENT)) => take(volume, Ino(dir.ino), ops.name(&entry.name), Ino(entry.ino))?,
            Err(error) => unless_refused(Err(error))?,
        }
    }
    Ok(())
}

/// A name that is not there any more, or is damaged, is no reason to stop.
fn unless_refused(result: Result<()>) -> Result<()> {
    match result {
        Err(Error::Refused(_) | Error::Corrupt(_)) => Ok(()),
        result => result,
    }
}

/// Changes an inode, unless it has gone or `f` says no.
fn change(volume: &Volume, node: Node, mut f: impl FnMut(&Look<'_>, &mut RawInode) -> Result<bool>) -> Result<()> {
    let ino = Ino(node.ino);
    let has_changed = transact(volume, 0, |txn| {
        let _lock = volume.lock_exclusive(ino);
        let mut raw = match inode::read_node(&txn.look, node) {
            Err(Error::Refused(Errno::STALE)) => return Ok(false),
            raw => raw?,
        };
        let changes = f(&txn.look, &mut raw)?;
        if changes {
            inode::write(txn, ino, &raw)?;
        }
        Ok(changes)
    })?;
    if has_changed {
        tell_given_back(volume, node);
    }
    Ok(())
}

/// Tells whoever remembers the attributes of an inode. A kernel that remembered too many links would keep the file when its last name goes.
fn tell_given_back(volume: &Volume, node: Node) {
    if let Some(keeper) = volume.files.keeper.get() {
        keeper.given_back(node);
    }
}

/// Takes away the links of an inode that nothing accounts for. Without any it goes on the list of orphans: whoever keeps it frees it in the end.
fn settle_links(volume: &Volume, node: Node, surplus: SurplusLinks) -> Result<Settled> {
    let mut settled = Settled::Gone;
    change(volume, node, |look, raw| {
        settled = Settled::Left;
        let left = match raw.nlink.get().checked_sub(surplus.count) {
            None => return Ok(false),
            Some(_) if raw.is_dir() && surplus.is_nameless => {
                if !dir::is_empty(look, surplus.ino, raw)? {
                    return Ok(false);
                }
                0
            }
            Some(left) => left,
        };
        raw.nlink = U32::new(left);
        raw.ctime = I64::new(volume.now());
        settled = Settled::Done;
        if left == 0 {
            volume.orphans.note(surplus.ino, Reason::Nameless);
            // Its last name went with a link to spare, and nobody was asked then.
            if !volume.files.is_kept(surplus.ino, surplus.generation) {
                settled = Settled::Nameless(node);
            }
        }
        Ok(true)
    })?;
    Ok(settled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::NewFile;
    use crate::volume::testing;
    use myriad_device::MemoryDevice;
    use myriad_format::inode::{S_IFDIR, S_IFREG};
    use std::sync::Arc;

    /// One link too many of a file that was in the middle of a flush, a truncation or a clearing at the moment: the file was passed over as if it
    /// had no name, and nobody counted it. So the volume was said to have nothing left, and no later mount looked.
    #[test]
    fn links_of_files_with_a_name_are_given_back_whatever_goes_on_with_them() {
        for reason in [Reason::Ahead, Reason::Cut, Reason::Emptied, Reason::Found] {
            let volume = Arc::new(testing::volume(Arc::new(MemoryDevice::new(16 << 20))));
            let file = testing::new_file(&volume, b"a");
            let node = Node { ino: file.ino.0, generation: file.generation };
            change(&volume, node, |_, raw| {
                raw.nlink = U32::new(2);
                Ok(true)
            })
            .unwrap();
            volume.orphans.note(file.ino, reason);
            let images = tempfile::tempfile().unwrap();
            images.set_len(1 << 20).unwrap();
            let held = HeldMoment::begin(Arc::clone(&volume), images).unwrap();
            volume.orphans.settle(file.ino, reason);
            let surplus = SurplusLinks { ino: file.ino, generation: file.generation, count: 1, is_nameless: false };
            let given = give_back(held, &Leftovers { links: vec![surplus], ..Leftovers::default() }).unwrap();
            assert_eq!((given.links, given.left), (1, 0), "{reason:?}");
            assert_eq!(inode::read(&volume.look(), file.ino).unwrap().nlink.get(), 1, "{reason:?}");
        }
    }

    /// A directory that had been removed, and was held open, when power was lost had its names still on the device. They could not be removed from a directory
    /// without links, so each mount checked the volume in vain.
    #[test]
    fn a_removed_directory_is_given_back_with_what_it_has() {
        let volume = Arc::new(testing::volume(Arc::new(MemoryDevice::new(16 << 20))));
        let root = Cred::root();
        let ops = Ops { volume: &volume, cred: &root, caller: &root };
        let top = crate::namei::root(&volume.look()).unwrap();
        let make = |dir: Node, name: &[u8], mode: u16| {
            ops.make(dir, name, &NewFile { mode, ..NewFile::default() }).unwrap().node()
        };
        let dir = make(top, b"d", S_IFDIR | 0o755);
        let below = make(dir, b"below", S_IFDIR | 0o755);
        let file = make(below, b"f", S_IFREG | 0o644);
        for removed in [dir, below] {
            change(&volume, removed, |_, raw| {
                raw.nlink = U32::new(0);
                Ok(true)
            })
            .unwrap();
        }
        let images = tempfile::tempfile().unwrap();
        images.set_len(1 << 20).unwrap();
        let held = HeldMoment::begin(Arc::clone(&volume), images).unwrap();
        let surplus = SurplusLinks { ino: Ino(dir.ino), generation: dir.generation, count: 0, is_nameless: true };
        let given = give_back(held, &Leftovers { links: vec![surplus], ..Leftovers::default() }).unwrap();
        assert_eq!((given.inodes, given.left), (1, 0));
        for gone in [dir, below, file] {
            let stale = inode::read_node(&volume.look(), gone).map(drop).unwrap_err();
            assert_eq!(stale.errno(), Errno::STALE, "{gone:?}");
        }
    }

    /// What was left behind while a check looked at an earlier moment was forgotten with what it gave back.
    #[test]
    fn what_is_left_behind_after_the_moment_stays_noted() {
        let volume = Arc::new(testing::volume(Arc::new(MemoryDevice::new(16 << 20))));
        for is_late in [false, true] {
            volume.note_leftovers();
            let images = tempfile::tempfile().unwrap();
            images.set_len(1 << 20).unwrap();
            let held = HeldMoment::begin(Arc::clone(&volume), images).unwrap();
            if is_late {
                volume.note_leftovers();
            }
            let left_behind = held.left_behind;
            drop(held);
            volume.nothing_is_left(left_behind).unwrap();
            assert_eq!(volume.has_leftovers(), is_late);
        }
    }

    /// A file that had lost its last name and not its last handle at the moment is no leftover.
    #[test]
    fn what_somebody_has_open_without_a_name_is_not_given_back() {
        let volume = Arc::new(testing::volume(Arc::new(MemoryDevice::new(16 << 20))));
        let file = testing::new_file(&volume, b"a");
        let root = Cred::root();
        let ops = Ops { volume: &volume, cred: &root, caller: &root };
        let top = crate::namei::root(&volume.look()).unwrap();
        ops.unlink(top, b"a").unwrap();
        let images = tempfile::tempfile().unwrap();
        images.set_len(1 << 20).unwrap();
        let held = HeldMoment::begin(Arc::clone(&volume), images).unwrap();
        let surplus = SurplusLinks { ino: file.ino, generation: file.generation, count: 0, is_nameless: true };
        let given = give_back(held, &Leftovers { links: vec![surplus], ..Leftovers::default() }).unwrap();
        assert_eq!(given, GivenBack::default());
        assert!(volume.orphans.has(file.ino, Reason::Nameless));
    }
}
