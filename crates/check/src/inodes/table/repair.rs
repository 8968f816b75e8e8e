//! Repair of inodes in tables. Each inode has its place, so none has to be searched for, and every inode in the table is in use.
//!
//! If two inodes own one block, the first one keeps it, unless the block says that it is another's (`Repair::leave_to_others`). Inodes that the
//! bitmap calls used come first in that order. Where bitmap and table disagree, an order without a log may have written the one and not the
//! other, so an inode that the bitmap calls free may be one that was removed.

use super::check::{block_at, initialised, mend_fixed, sound_behind, write_bitmap};
use crate::bitmap;
use crate::inodes::repair::InBody;
use crate::io::write_at;
use crate::options::CheckError;
use crate::repair::build::{write, written};
use crate::repair::volume::{Item, Repair, state};
use crate::slots::{inode_at, is_type};
use myriad_format::group::{GroupHeader, HEADER_BLOCK};
use myriad_format::inode::RawInode;
use myriad_format::table::{INODE_SIZE, POINTERS_OFFSET};
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, Ino, header};
use zerocopy::IntoBytes;

impl Repair<'_> {
    /// Takes the groups' headers at their word about how far their tables go, and clears what lies behind that: a round fills blocks
    /// of inodes before the header counts them. What these inodes lead to may not have been written yet, and have deleted bytes of others.
    pub(crate) fn believe_table_marks(&mut self) -> Result<(), CheckError> {
        let geometry = self.geometry;
        let zeros = self.reader.new_buffer();
        for ag in (0..self.ag_used).map(AgNo).filter(|_| geometry.has_table()) {
            let mut buf = self.reader.new_buffer();
            let at = geometry.fs_block(ag, AgBlock(HEADER_BLOCK));
            if self.reader.read(at, BlockKind::Group, u64::from(ag.0), &mut buf).is_err() {
                continue;
            }
            let count = GroupHeader::read(&buf).inode_blocks.get().min(geometry.table_blocks(ag));
            self.tables.insert(ag, count);
            let behind = sound_behind(&self.reader, ag, count);
            for &index in &behind {
                let offset = block_at(&geometry, ag, index).0 << geometry.block_bits;
                write_at(&**self.reader.device(), offset, &zeros).map_err(|source| CheckError::Io {
                    op: "write",
                    offset,
                    source,
                })?;
            }
            if !behind.is_empty() {
                self.act(format!(
                    "group {}: cleared {} blocks of inodes that its table did not have yet",
                    ag.0,
                    behind.len()
                ));
            }
        }
        self.flush()
    }

    /// Finds the inodes in the groups' tables.
    pub(crate) fn find_in_tables(&mut self) -> Result<(), CheckError> {
        let geometry = self.geometry;
        let mut later = Vec::new();
        for ag in (0..self.ag_used).map(AgNo) {
            let mut buf = self.reader.new_buffer();
            let at = self.geometry.fs_block(ag, AgBlock(HEADER_BLOCK));
            let is_header = self.reader.read(at, BlockKind::Group, u64::from(ag.0), &mut buf).is_ok();
            let header = is_header.then(|| GroupHeader::read(&buf));
            let count = *self.tables.entry(ag).or_insert_with(|| initialised(&self.reader, ag, header));
            // What the bitmap does not say it does not call free.
            let bits = bitmap::read(&self.reader, &bitmap::Place::of_inodes(&self.geometry, ag), |_, _| {}).bits;
            let mut with_others = Vec::new();
            for block in (0..count).map(|index| block_at(&geometry, ag, index)) {
                self.mend_units(block)?;
                if self.take_table_block(block, &|number| !bits.is_free(number))? {
                    with_others.push(block);
                }
            }
            if !with_others.is_empty() {
                later.push((bits, with_others));
            }
            self.tick("repairing inodes", u64::from(ag.0) + 1, u64::from(self.ag_used), 0.0, 0.5);
        }
        for (bits, blocks) in later {
            for block in blocks {
                self.take_table_block(block, &|number| bits.is_free(number))?;
            }
        }
        Ok(())
    }

    /// Writes units of a table anew that cannot be believed: without inodes.
    fn mend_units(&mut self, block: FsBlock) -> Result<(), CheckError> {
        let mut buf = self.reader.new_buffer();
        let owner = u64::from(self.geometry.ag_of(block).0);
        let bad = self.reader.read_units(block, BlockKind::InodeTable, owner, &mut buf).bad;
        if bad.is_empty() {
            return Ok(());
        }
        let mut empty = self.reader.new_buffer();
        header::init(&mut empty, BlockKind::InodeTable, self.reader.volume, owner, block);
        for unit in &bad {
            let at = *unit as usize * UNIT_SIZE;
            buf[at..at + UnitHeader::SIZE].copy_from_slice(&empty[at..at + UnitHeader::SIZE]);
        }
        self.act(format!("inode table, block {block}: units that are lost, made empty: {}", bad.len()));
        write(&self.reader, block, &mut buf)
    }

    /// Puts those inodes of a block of a table right that `is_wanted`, by their numbers in the table, and takes what they own.
    /// Whether there are others.
    fn take_table_block(&mut self, block: FsBlock, is_wanted: &dyn Fn(u32) -> bool) -> Result<bool, CheckError> {
        let geometry = self.geometry;
        let mut buf = self.reader.new_buffer();
        self.reader
            .read_raw(block, &mut buf)
            .map_err(|damage| CheckError::Repair(format!("inode block {block} cannot be read again: {damage:?}")))?;
        let before = buf.clone();
        let mut are_others = false;
        for slot in geometry.inode_slots() {
            let mut raw = *inode_at(&geometry, &buf, slot);
            if raw.mode.get() == 0 {
                continue;
            }
            if !is_wanted(geometry.table_index(block, slot).expect("it lies in the table")) {
                are_others = true;
                continue;
            }
            let ino = geometry.ino(block, slot);
            let bytes = &mut buf[geometry.inode_offset(slot)..][..INODE_SIZE];
            if is_type(raw.mode.get()) && !mend_fixed(geometry.map, &mut raw, &mut bytes[POINTERS_OFFSET..]) {
                self.act(format!("inode {ino} had fields that no inode of a table has"));
            }
            if self.take_inode(ino, &mut raw, &[], InBody::default()).is_none() {
                self.act(format!("inode {ino} was impossible and is gone"));
                bytes.fill(0);
                continue;
            }
            bytes[..RawInode::SIZE].copy_from_slice(raw.as_bytes());
            let no_links = if raw.nlink.get() == 0 { state::NO_LINKS } else { 0 };
            self.items.push(Item { ino, names: 0, file_type: (raw.mode.get() >> 12) as u8, state: no_links });
        }
        if buf != before {
            write(&self.reader, block, &mut buf)?;
            self.forget_shared(block);
        }
        Ok(are_others)
    }

    /// Leaves nothing of an inode. Its unit is one sector: it is there or it is not.
    pub(crate) fn free_in_table(&mut self, ino: Ino) -> Result<(), CheckError> {
        let Some((block, slot)) = self.geometry.locate(ino) else { return Ok(()) };
        self.load_at_hand(block)?;
        if let Some((_, buf, dirty)) = &mut self.at_hand {
            buf[self.geometry.inode_offset(slot)..][..INODE_SIZE].fill(0);
            *dirty = true;
        }
        Ok(())
    }

    /// The place of an inode that is not in use, and whose bytes are zeros now; `None` if every inode is in use.
    pub(crate) fn place_in_tables(
        &mut self,
        wanted: Option<(FsBlock, u32)>,
    ) -> Result<Option<(FsBlock, u32)>, CheckError> {
        let geometry = self.geometry;
        let is_initialised = |repair: &Self, block: FsBlock| {
            let ag = repair.geometry.ag_of(block);
            let end = block_at(&repair.geometry, ag, repair.tables.get(&ag).copied().unwrap_or(0));
            (block_at(&repair.geometry, ag, 0)..end).contains(&block)
        };
        if let Some((block, slot)) = wanted.filter(|&(block, _)| is_initialised(self, block))
            && self.clear_place(block, slot)?
        {
            return Ok(Some((block, slot)));
        }
        loop {
            let tables: Vec<(AgNo, u32)> = self.tables.iter().map(|(&ag, &count)| (ag, count)).collect();
            for &(ag, count) in &tables {
                for block in (0..count).map(|index| block_at(&geometry, ag, index)) {
                    for slot in self.geometry.inode_slots() {
                        if self.clear_place(block, slot)? {
                            return Ok(Some((block, slot)));
                        }
                    }
                }
            }
            match tables.into_iter().find(|&(ag, count)| count < self.geometry.table_blocks(ag)) {
                Some((ag, count)) => {
                    let block = block_at(&self.geometry, ag, count);
                    let mut buf = self.reader.new_buffer();
                    header::init(&mut buf, BlockKind::InodeTable, self.reader.volume, u64::from(ag.0), block);
                    write(&self.reader, block, &mut buf)?;
                    self.tables.insert(ag, count + 1);
                }
                None if self.use_another_group()? => {}
                None => return Ok(None),
            }
        }
    }

    /// Clears the place of an inode, unless that is in use.
    fn clear_place(&mut self, block: FsBlock, slot: u32) -> Result<bool, CheckError> {
        self.load_at_hand(block)?;
        let Some((_, buf, dirty)) = &mut self.at_hand else { return Ok(false) };
        if inode_at(&self.geometry, buf, slot).mode.get() != 0 {
            return Ok(false);
        }
        buf[self.geometry.inode_offset(slot)..][..INODE_SIZE].fill(0);
        *dirty = true;
        Ok(true)
    }

    /// Writes the bitmap of a group's inodes; how many blocks of its table are initialised.
    pub(crate) fn write_inode_bitmap(&mut self, ag: AgNo) -> Result<u32, CheckError> {
        let geometry = self.geometry;
        written(&self.reader, write_bitmap(&self.reader, ag, self.items_in(ag).map(|item| item.ino)))?;
        Ok(self.tables.get(&ag).copied().unwrap_or(0).min(geometry.table_blocks(ag)))
    }
}
