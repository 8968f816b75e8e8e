//! Names that show together with an identity, and are noted meanwhile: those that a directory takes from another one, or leaves to something else. What is
//! noted of them, and why, says `exchange`; McKusick and Ganger have no structure for it, since a directory of FFS has ".." instead of an identity.
//!
//! Invariants
//!   1. A name is to be noted if in between it would be a second one of a directory that lasts, or that lives on ([`Judge::needs_note`]). Without a note it
//!      does not show.
//!   2. The other name of a directory that leaves one lasts before the note is made, and is found by one look, where the rename has put it.

use super::{Judge, Place};
use crate::dir;
use crate::error::Result;
use crate::order::facts::Named;
use crate::order::soft::pending::DIRECTORY;
use crate::planted::{Bug, planted};
use myriad_format::dir::EntryHeader;
use myriad_format::exchange::ExchangedName;
use myriad_format::inode::RawInode;
use myriad_format::unit::UNIT_SIZE;
use myriad_format::{FsBlock, Ino};

impl Judge<'_> {
    /// Whether a name of an exchange may name what it is to name.
    pub fn may_be_named(&self, name: &ExchangedName) -> Result<bool> {
        let named = Named { ino: Ino(name.ino.get()), file_type: name.file_type };
        let unit = name.at.get() as usize / UNIT_SIZE;
        let place = Place { dir: Ino(name.dir.get()), block: FsBlock(name.block.get()), unit };
        self.may_name(named, &place, true)
    }

    /// Whether an entry that names another inode than before may show only with a note: the name would be a second one of a directory until the identity
    /// follows, or from the identity on.
    pub fn needs_note(&self, old: Named, new: Named) -> Result<bool> {
        let is_exempt = self.is_forced || planted(Bug::SoftTaken);
        Ok(!is_exempt && (self.is_moving(new)? && self.names(new.ino).removed > 0 || self.is_moving(old)?))
    }

    /// Whether it is a directory that has another name of its own than the one that lasts.
    pub fn is_moving(&self, named: Named) -> Result<bool> {
        if named.file_type != DIRECTORY {
            return Ok(false);
        }
        let (lasting, current) = self.inodes(named.ino)?;
        Ok(lasting.is_used()
            && current.is_used()
            && lasting.raw().generation == current.raw().generation
            && current.raw().nlink.get() > 0
            && lasting.identity() != current.identity())
    }

    /// Whether it is no directory, or one of this name.
    pub fn is_at_home(&self, named: Named, dir: Ino, hash: u64) -> Result<bool> {
        if named.file_type != DIRECTORY {
            return Ok(true);
        }
        let (parent, own_hash, _) = self.inodes(named.ino)?.1.identity();
        Ok((parent, own_hash) == (dir.0, hash))
    }

    /// Block and byte of the entry that the identity of a directory, with this inode, says; `None` if it is not reached by that in what lasts.
    pub fn home_of(&self, dir: Ino, raw: &RawInode) -> Result<Option<(FsBlock, usize)>> {
        if self.names(dir).added > 0 || !self.is_anchored(Ino(raw.parent.get()))? {
            return Ok(None);
        }
        // Where its last rename has put it. A search goes through all of the directory, and all operations wait.
        let home = self.look.volume.soft().home_of(dir);
        let place = home.map_or(Ok(None), |home| dir::place_of(self.look, dir, raw, home))?;
        if place.is_some() { Ok(place) } else { dir::place_of_own_name(self.look, dir, raw) }
    }

    /// The hash of the name of an entry of a directory's block.
    pub fn hash_at(&self, block: &[u8], at: usize) -> u64 {
        let length = usize::from(EntryHeader::read(&block[at..]).name_len);
        self.look.volume.hasher.hash(&block[at + EntryHeader::SIZE..][..length])
    }
}
