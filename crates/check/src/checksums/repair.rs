//! Repair of tables of data checksums, where blocks of them are lost.
//!
//! A checksum that is lost cannot be derived: the contents are all there is. Most of a damaged block's sectors are sound
//! as a rule, so each checksum that can still be read is compared with its contents first. The table is then written anew
//! from the contents, and what no checksum vouched for is told of, file by file. Contents that differ from a checksum in a
//! sound table are never taken as they are, unless that is asked for (`accept`). Nor are those that differ from one in a
//! sector that can be read of a block that otherwise cannot: such a sector is as it was written.

use super::check::{first_of, part_blocks, read_table};
use crate::blocks::Blocks;
use crate::io::Reader;
use crate::map::for_each_extent;
use crate::options::CheckError;
use crate::repair::build::{flush, write};
use crate::repair::volume::{Repair, state};
use myriad_format::checksum::{self, ChecksumHeader, PARTS};
use myriad_format::group::{GroupHeader, HEADER_BLOCK};
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, header};
use std::collections::BTreeMap;

impl Repair<'_> {
    /// The written blocks of files, on a volume with checksums.
    pub(crate) fn find_data(&mut self) -> Result<(), CheckError> {
        if self.geometry.has_checksums {
            let data = Blocks::new();
            self.for_each_data(|_, start, length| _ = data.claim(start, length))?;
            self.data = data;
        }
        Ok(())
    }

    /// Runs of written blocks of each file, with the index of its item.
    fn for_each_data(&mut self, mut each: impl FnMut(usize, FsBlock, u64)) -> Result<(), CheckError> {
        for index in 0..self.items.len() {
            let item = self.items[index];
            if item.state & state::GONE != 0 || item.file_type == 4 {
                continue;
            }
            let raw = self.raw(item.ino)?;
            for_each_extent(&self.reader, item.ino, &raw, |extent| {
                if !extent.unwritten {
                    each(index, extent.start, u64::from(extent.length));
                }
            });
        }
        Ok(())
    }

    /// Puts a group's table right; which parts of it there are.
    pub(crate) fn mend_table(&mut self, ag: AgNo) -> Result<u64, CheckError> {
        if !self.geometry.has_checksums {
            return Ok(0);
        }
        let geometry = self.geometry;
        let mut buf = self.reader.new_buffer();
        let at = geometry.fs_block(ag, AgBlock(HEADER_BLOCK));
        let believed = self.reader.read(at, BlockKind::Group, u64::from(ag.0), &mut buf).is_ok();
        let made = if believed { GroupHeader::read(&buf).checksums_made.get() } else { 0 };
        let mut mask = 0;
        for part in 0..PARTS {
            let tables: Vec<FsBlock> = part_blocks(&geometry, ag, part).collect();
            let is_needed = made >> part & 1 == 1 || tables.iter().any(|&table| self.has_data(table));
            let lost: Vec<FsBlock> =
                tables.iter().copied().filter(|&table| read_table(&self.reader, table, &mut buf).is_err()).collect();
            if tables.is_empty() || (!is_needed && !lost.is_empty()) {
                continue;
            }
            for table in lost {
                self.write_table(table)?;
            }
            mask |= 1 << part;
        }
        Ok(mask)
    }

    /// Blocks that a block of the table has the checksums of: the first, and how many.
    fn covered(&self, table: FsBlock) -> (FsBlock, u64) {
        let ag = self.geometry.ag_of(table);
        let first = first_of(&self.geometry, table);
        let count = self.geometry.checksums_per_block().min(self.geometry.blocks_in(ag) - first);
        (self.geometry.fs_block(ag, AgBlock(first)), u64::from(count))
    }

    fn has_data(&self, table: FsBlock) -> bool {
        let (start, count) = self.covered(table);
        self.data.first_in(start, count).is_some()
    }

    /// Writes a block of the table anew: with the checksums in sectors that can be read, if others cannot, else from the contents of the blocks it
    /// speaks of.
    fn write_table(&mut self, table: FsBlock) -> Result<(), CheckError> {
        let mut old = self.reader.new_buffer();
        let owner = u64::from(self.geometry.ag_of(table).0);
        let part = self.reader.read_part(table, BlockKind::Checksums, owner, &mut old);
        // What is left of it is worth a look only if it is what was once written here.
        let is_ours = self.reader.is_headed(table, BlockKind::Checksums, owner, &old);
        // A sector that can be read is as it was written, if the block is worn. If it is not, any byte may be the wrong one.
        let is_in_place = ChecksumHeader::read(&old).first.get() == first_of(&self.geometry, table);
        let worn = part.ok().filter(|part| part.worn.is_some() && is_in_place);
        let mut new = self.reader.new_buffer();
        header::init(&mut new, BlockKind::Checksums, self.reader.volume, owner, table);
        ChecksumHeader::read_mut(&mut new).first.set(first_of(&self.geometry, table));
        let (start, count) = self.covered(table);
        let mut contents = self.reader.new_buffer();
        let (mut agree, mut differ, mut taken) = (0_u64, 0_u64, 0_u64);
        for block in (0..count).map(|i| start.offset_by(i)) {
            if self.data.first_in(block, 1).is_none() {
                continue;
            }
            let (_, index) = self.geometry.checksum_of(block);
            let at = checksum::offset(index);
            let is_kept = worn.as_ref().is_some_and(|part| part.has(at..at + 4));
            if is_kept {
                new[at..at + 4].copy_from_slice(&old[at..at + 4]);
            }
            if self.reader.read_device(block, &mut contents).is_err() {
                continue;
            }
            let sum = checksum::of(&contents);
            if is_ours && checksum::read(&old, index) == sum {
                agree += 1;
            } else if is_kept {
                differ += 1;
            } else {
                taken += 1;
                self.unvouched.claim(block, 1);
            }
            if !is_kept {
                new[at..at + 4].copy_from_slice(&sum.to_le_bytes());
            }
        }
        if worn.is_some() {
            // What cannot be read comes last: as long as it cannot, the next repair knows that the rest is as it was written. Once it
            // can, half of a block that is torn says nothing.
            let missing = self.reader.read_each_sector(table, &mut contents);
            header::reseal(&mut new, &self.reader.volume, table);
            self.reader.write_sectors(table, &new, &missing).map_err(|source| {
                let offset = table.0 << self.geometry.block_bits;
                CheckError::Io { op: "write", offset, source }
            })?;
            self.flush()?;
        }
        write(&self.reader, table, &mut new)?;
        self.act(format!(
            "checksums of data, block {table}: lost and written anew; blocks of data that agree with what was left: {agree}, \
             that were taken as they are: {taken}, that differ from what was left: {differ}"
        ));
        Ok(())
    }

    /// Says whose contents were taken as they are.
    pub(crate) fn tell_unvouched(&mut self) -> Result<(), CheckError> {
        let mut files: BTreeMap<usize, u64> = BTreeMap::new();
        let unvouched = std::mem::replace(&mut self.unvouched, Blocks::new());
        if unvouched.is_empty() {
            return Ok(());
        }
        self.for_each_data(|index, start, length| {
            let mut count = 0;
            unvouched.for_each_run(start, length, |_, length| {
                count += length;
                true
            });
            if count > 0 {
                *files.entry(index).or_default() += count;
            }
        })?;
        for (index, count) in files {
            let ino = self.items[index].ino;
            self.act(format!("inode {ino}: its checksums were lost; blocks of data taken as they are: {count}"));
        }
        Ok(())
    }
}

/// Takes the contents of these blocks as they are: their checksums become those of what is there. Everything is home.
pub(crate) fn accept(reader: &Reader, blocks: &[FsBlock]) -> Result<(), CheckError> {
    let mut tables: BTreeMap<FsBlock, Vec<FsBlock>> = BTreeMap::new();
    for &block in blocks {
        tables.entry(reader.geometry.checksum_of(block).0).or_default().push(block);
    }
    let (mut buf, mut contents) = (reader.new_buffer(), reader.new_buffer());
    for (table, blocks) in tables {
        if read_table(reader, table, &mut buf).is_err() {
            continue;
        }
        for block in blocks {
            if reader.read_device(block, &mut contents).is_ok() {
                let at = checksum::offset(reader.geometry.checksum_of(block).1);
                buf[at..at + 4].copy_from_slice(&checksum::of(&contents).to_le_bytes());
            }
        }
        write(reader, table, &mut buf)?;
    }
    flush(reader.device())
}
