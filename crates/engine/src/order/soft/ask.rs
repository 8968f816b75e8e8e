//! What operations ask and do only because a volume is, or was, written in order `sync` or `softdep`. With other orders each question is answered with
//! "no", at the cost of a look at a field.

use super::Soft;
use crate::cache::Sweep;
use crate::error::{Errno, Result};
use crate::inode::check_named;
use crate::order::{Look, Txn};
use crate::volume::Volume;
use myriad_format::inode::RawInode;
use myriad_format::unit::UNIT_SIZE;
use myriad_format::{AgNo, BlockKind, Corrupt, FsBlock, Ino};
use std::sync::atomic::Ordering;

/// How often an operation makes everything durable because of what others did meanwhile.
pub(crate) const SETTLE_TRIES: u32 = 8;

impl Look<'_> {
    /// Whether nothing else may take the place of an entry of a directory, whose name has gone: that with this tag in a unit of a block, which holds
    /// this.
    pub fn holds_entry(&self, block: FsBlock, number: usize, unit: &[u8], tag: u32) -> bool {
        self.volume.soft.as_ref().is_some_and(|soft| soft.holds(block, number, unit, tag))
    }

    /// As [`Self::holds_entry`], of a block that is looked for.
    pub fn holds_entry_of(&self, block: FsBlock, number: usize, tag: u32) -> Result<bool> {
        let Some(soft) = &self.volume.soft else { return Ok(false) };
        self.read(block, BlockKind::LinearEntries, |bytes| soft.holds(block, number, unit_of(bytes, number), tag))
    }

    /// Whether such an entry, whose name is about to go, has to stay in its place.
    pub fn keeps_entry(&self, block: FsBlock, number: usize, tag: u32) -> Result<bool> {
        let Some(soft) = &self.volume.soft else { return Ok(false) };
        self.read(block, BlockKind::LinearEntries, |bytes| soft.keeps(block, number, unit_of(bytes, number), tag))
    }

    /// Whether a block of a directory waits for something: of others, no entry keeps its place.
    pub fn has_changed(&self, dir: Ino) -> bool {
        self.volume.soft.as_ref().is_some_and(|soft| soft.has_changed(dir))
    }

    /// Whether a directory may go only once all that was changed before is durable (`Soft::keeps_others`). EBUSY if everything was made durable often
    /// enough, and others move files through the directory all the same: with it would go the only names that last of them.
    pub fn keeps_others(&self, dir: Ino, is_settled: bool) -> Result<bool> {
        let keeps = self.volume.soft.as_ref().map_or(Ok(false), |soft| soft.keeps_others(self, dir))?;
        if keeps && is_settled { Err(Errno::BUSY.into()) } else { Ok(keeps) }
    }

    /// Whether a name of a file that lives on may be another's only once all that was changed before is durable (`Soft::is_taker`). EBUSY as of
    /// [`Self::keeps_others`]: a ring of names that wait for each other would lose one of them.
    pub fn is_taker(&self, ino: Ino, is_settled: bool) -> Result<bool> {
        let is_taker = self.volume.soft.as_ref().is_some_and(|soft| soft.is_taker(ino));
        if is_taker && is_settled { Err(Errno::BUSY.into()) } else { Ok(is_taker) }
    }

    /// Whether a name may name another inode only once all that was changed before is durable (`Soft::holds_another`).
    pub fn holds_another(&self, dir: Ino, tag: u32, victim: Ino, links: u32) -> Result<bool> {
        self.volume.soft.as_ref().map_or(Ok(false), |soft| soft.holds_another(self, dir, tag, victim, links))
    }

    /// Whether a name of a directory, which a search did not find, may come only once all that was changed before is durable: it was another
    /// file's, which lives on, and would be there twice.
    pub fn holds_name(&self, dir: Ino, tag: u32) -> Result<bool> {
        self.holds_another(dir, tag, Ino(0), 0)
    }
}

fn unit_of(block: &[u8], number: usize) -> &[u8] {
    &block[number * UNIT_SIZE..][..UNIT_SIZE]
}

impl Volume {
    /// Does what may have to wait until all that was changed before is durable; `None` says so, and that nothing was done. Others may be in the
    /// way again after that; `is_settled`: there were so many of them that it is to be done all the same. Where
    /// something cannot be read that keeps changes from becoming durable, it is done if it need not wait for them.
    pub fn once_settled<T>(&self, mut attempt: impl FnMut(bool) -> Result<Option<T>>) -> Result<T> {
        let mut left_out = None;
        for _ in 0..SETTLE_TRIES {
            if let Some(done) = attempt(false)? {
                return Ok(done);
            }
            if let Some(error) = left_out {
                return Err(error);
            }
            left_out = self.commit_what_can_be_read()?;
        }
        match left_out {
            Some(error) => attempt(false)?.ok_or(error),
            None => Ok(attempt(true)?.expect("it waits no more")),
        }
    }

    /// Whether a name of a directory is what a rename left when power was lost, on a volume of order `softdep`: the directory has another
    /// one, which its identity says. Such a name counts as gone; the check takes it away.
    pub fn is_leftover(&self, ino: Ino, raw: &RawInode, dir: Ino, hash: u64) -> bool {
        self.may_have_leftovers && check_named(ino, raw, dir, |raw| raw.name_hash.get() == hash).is_err()
    }

    /// Gives back the slot of an inode that was freed, and that had to wait. Where what says so cannot be read, the slot stays taken and is nobody's, until
    /// a check gives it back.
    pub fn release_inode(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<()> {
        let (block, slot) = self.geometry.locate(ino).ok_or(Corrupt::NoInode { ino })?;
        let (ag, at) = (self.geometry.ag_of(block), self.geometry.ag_block_of(block));
        if !self.can_release(txn, ag, at, slot)? {
            self.note_stranded_inode();
            return Ok(());
        }
        self.with_group(txn, ag, |space, txn| space.free_inode(txn, at, slot, None))
    }

    /// Counts anew what is free in each group, and in the volume: what the counts say is not what the bitmaps say after a crash without a
    /// log.
    pub fn recount(&self) -> Result<()> {
        let (mut free, mut parts, mut ready, mut inodes, mut directories) = (0, 0, 0, 0, 0);
        for ag in (0..self.geometry.ag_count).map(AgNo) {
            if ag.0 >= self.high_water() {
                let virgin = i64::from(self.geometry.usable_blocks_in(ag));
                let virgin_parts = i64::from(self.geometry.usable_parts_in(ag));
                free += virgin;
                parts += virgin_parts;
                ready += virgin - virgin_parts;
                continue;
            }
            if !self.cache.has_room() {
                self.cache.sweep(Sweep::ForRoom);
            }
            let mut txn = Txn::enter(self);
            let counted = (|| {
                let mut group = self.group(&txn.look, ag)?;
                let space = group.as_mut().expect("just loaded");
                space.recount(&mut txn)?;
                free += i64::from(space.free_blocks());
                parts += i64::from(space.free_parts());
                ready += i64::from(space.available());
                inodes += i64::from(space.inodes_used());
                directories += i64::from(space.directories());
                Ok(())
            })();
            txn.finish(counted)?;
        }
        self.totals.free_blocks.store(free, Ordering::Relaxed);
        self.totals.free_parts.store(parts, Ordering::Relaxed);
        self.totals.ready_blocks.store(ready, Ordering::Relaxed);
        self.totals.inodes_used.store(inodes, Ordering::Relaxed);
        // No bits say how many these are: the counts of the groups are all there is.
        self.totals.directories.store(directories, Ordering::Relaxed);
        Ok(())
    }
}

impl Soft {
    /// Whether all that is changed must last before a directory goes: names of files that live on elsewhere last in it, and would be lost
    /// with it.
    pub fn keeps_others(&self, look: &Look<'_>, dir: Ino) -> Result<bool> {
        lives_any(look, &self.lasting_names(&look.volume.cache.arena, dir, None))
    }

    /// Whether all that is changed must last before a name of a directory, with this tag, names another inode than `victim`, which has so
    /// many links: one entry cannot hold both. If what it named lives on by other names, one of them must last first. Were that left to
    /// rounds, two such changes could wait for each other.
    pub fn holds_another(&self, look: &Look<'_>, dir: Ino, tag: u32, victim: Ino, links: u32) -> Result<bool> {
        let mut others = self.lasting_names(&look.volume.cache.arena, dir, Some(tag));
        others.retain(|&ino| ino != victim);
        Ok(links > 1 || lives_any(look, &others)?)
    }

    /// A file has got a name that was another one's, which lives on by other names: this entry waits until one of them lasts. The caller is inside the gate.
    pub fn note_taker(&self, ino: Ino) {
        self.takers.lock().insert(ino.0);
    }

    /// Whether a file may have a name that waits until another file's name lasts. Were one of its other names given to that file, the two would wait for each
    /// other; so would more of them in a ring. The last rename that would close a ring always has such a file in its way.
    pub fn is_taker(&self, ino: Ino) -> bool {
        self.takers.lock().contains(&ino.0)
    }
}

/// Whether any of these inodes has a name.
fn lives_any(look: &Look<'_>, inos: &[Ino]) -> Result<bool> {
    let geometry = &look.volume.geometry;
    for &ino in inos {
        let (block, slot) = geometry.locate(ino).ok_or(Corrupt::NoInode { ino })?;
        let at = geometry.inode_offset(slot);
        let lives = |bytes: &[u8]| {
            let raw = RawInode::read(&bytes[at..]);
            raw.mode.get() != 0 && raw.nlink.get() > 0
        };
        if look.read(block, BlockKind::InodeTable, lives)? {
            return Ok(true);
        }
    }
    Ok(false)
}
