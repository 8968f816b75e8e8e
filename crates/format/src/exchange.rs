//! The note of an exchange: two names that change what they name with each other, on a volume that is written without a log.
//!
//! An entry can name only one inode, and a device writes no two sectors as one. So the superblock, which is one sector, first says what the two
//! names are to name. Then the entries are written, and the identities of what they name, and then the note is taken away. Whoever opens or checks
//! the volume in between does what the note says: doing it twice does no harm.

use crate::dir::EntryHeader;
use crate::inode::{RawInode, S_IFDIR};
use crate::on_disk::on_disk;
use crate::superblock::Superblock;
use crate::unit::{self, UNIT_SIZE, UnitHeader};
use crate::{BlockKind, Corrupt, FsBlock, Geometry, Ino};
use zerocopy::little_endian::{U32, U64};

on_disk! {
    /// One of the two names of an exchange; all zero if none is noted.
    pub struct ExchangedName: 40 {
        /// Block of the directory in which its entry lies.
        0 => block: U64,
        /// Byte of the block at which the entry begins.
        8 => at: U32,
        /// `mode >> 12` of the inode that it is to name.
        12 => file_type: u8,
        13 => reserved: [u8; 3],
        /// The inode that it is to name.
        16 => ino: U64,
        /// The directory, and the hash of the name: the identity that a directory of this name is to have.
        24 => dir: U64,
        32 => hash: U64,
    }
}

impl Superblock {
    /// The two names whose exchange is noted.
    pub fn exchange(&self) -> Option<[ExchangedName; 2]> {
        let names = [self.exchange_source, self.exchange_target];
        (names != [ExchangedName::zeroed(); 2]).then_some(names)
    }

    /// Notes an exchange of two names, or takes the note away.
    pub fn set_exchange(&mut self, names: Option<[ExchangedName; 2]>) {
        [self.exchange_source, self.exchange_target] = names.unwrap_or([ExchangedName::zeroed(); 2]);
    }
}

/// A unit as an exchange is to leave it, sealed: its block, its number there, and its bytes.
pub type PlannedUnit = (FsBlock, u32, [u8; UNIT_SIZE]);

/// The units that an exchange changes, on their way.
struct Plan<'a, R> {
    geometry: &'a Geometry,
    volume: [u8; 16],
    read_unit: R,
    changed: Vec<(BlockKind, PlannedUnit)>,
}

/// What a note has to be written: at most four units, of the two entries and of the directories that they are to name. `read_unit` reads a unit as it is.
/// A note that cannot be right is an error: each unit must be of its kind, sound, and whose the note says, and each entry must have the tag of its name
/// and name one of the two inodes.
pub fn plan<E: From<Corrupt>>(
    names: &[ExchangedName; 2],
    geometry: &Geometry,
    volume: [u8; 16],
    read_unit: impl FnMut(FsBlock, u32) -> Result<[u8; UNIT_SIZE], E>,
) -> Result<Vec<PlannedUnit>, E> {
    let mut plan = Plan { geometry, volume, read_unit, changed: Vec::with_capacity(4) };
    let inos = names.map(|name| name.ino.get());
    for name in names {
        plan.put_name(name, inos)?;
    }
    for (_, (block, number, bytes)) in &mut plan.changed {
        let crc = unit::checksum(bytes, &volume, *block, *number);
        UnitHeader::read_mut(bytes).crc.set(crc);
    }
    Ok(plan.changed.into_iter().map(|(_, unit)| unit).collect())
}

impl<E: From<Corrupt>, R: FnMut(FsBlock, u32) -> Result<[u8; UNIT_SIZE], E>> Plan<'_, R> {
    /// Has a name name what it is to name, and a directory of that name say so.
    fn put_name(&mut self, name: &ExchangedName, inos: [u64; 2]) -> Result<(), E> {
        let (block, at) = (FsBlock(name.block.get()), name.at.get() as usize);
        let is_entry = self.geometry.is_data_range(block, 1)
            && at + EntryHeader::SIZE <= self.geometry.block_size()
            && inos.iter().all(|&ino| ino != 0);
        let impossible = |value| Err(Corrupt::Superblock { field: "exchange", value }.into());
        if !is_entry {
            return impossible(block.0);
        }
        let unit = self.unit(BlockKind::LinearEntries, block, (at / UNIT_SIZE) as u32, name.dir.get())?;
        let within = at % UNIT_SIZE;
        if !entries(unit).any(|entry| entry == within) {
            return impossible(name.at.get().into());
        }
        let entry = EntryHeader::read_mut(&mut unit[within..]);
        if entry.tag.get() != name.hash.get() as u32 || !inos.contains(&entry.ino.get()) {
            return impossible(entry.ino.get());
        }
        (entry.ino, entry.file_type) = (name.ino, name.file_type);
        if u16::from(name.file_type) != S_IFDIR >> 12 {
            // The identity of a file is a hint.
            return Ok(());
        }
        let ino = Ino(name.ino.get());
        let Some((block, slot)) = self.geometry.locate(ino).filter(|_| self.geometry.has_table()) else {
            return impossible(ino.0);
        };
        let at = self.geometry.inode_offset(slot);
        let ag = u64::from(self.geometry.ag_of(block).0);
        let unit = self.unit(BlockKind::InodeTable, block, (at / UNIT_SIZE) as u32, ag)?;
        let inode = RawInode::read_mut(&mut unit[at % UNIT_SIZE..]);
        if !inode.is_dir() {
            return impossible(ino.0);
        }
        (inode.parent, inode.name_hash, inode.entry_position) = (name.dir, name.hash, 0.into());
        Ok(())
    }

    /// A unit, for change: verified when it was read, and whose it is to be.
    fn unit(&mut self, kind: BlockKind, block: FsBlock, number: u32, owner: u64) -> Result<&mut [u8], E> {
        let is_it = |(_, (other, index, _)): &(BlockKind, PlannedUnit)| (*other, *index) == (block, number);
        let index = match self.changed.iter().position(is_it) {
            Some(index) => index,
            None => {
                let bytes = (self.read_unit)(block, number)?;
                unit::verify_one(&bytes, kind, &self.volume, block, number)?;
                self.changed.push((kind, (block, number, bytes)));
                self.changed.len() - 1
            }
        };
        let (known, (.., bytes)) = &mut self.changed[index];
        let stored = UnitHeader::read(bytes).owner.get();
        if *known != kind || stored != owner {
            return Err(Corrupt::BlockOwner { block, stored, expected: owner }.into());
        }
        Ok(bytes)
    }
}

/// Where the entries of a unit begin, up to the first one that is damaged.
fn entries(unit: &[u8]) -> impl Iterator<Item = usize> {
    let mut next = UnitHeader::SIZE;
    std::iter::from_fn(move || {
        let at = next;
        if at + EntryHeader::SIZE > UNIT_SIZE {
            return None;
        }
        let length = usize::from(EntryHeader::read(&unit[at..]).length.get());
        next = at + length;
        (length >= EntryHeader::SIZE && next <= UNIT_SIZE).then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::testing::geometry;
    use crate::{AgBlock, AgNo, header};

    const VOLUME: [u8; 16] = [7; 16];
    const DIR: u64 = 70;
    const FILE: u64 = 71;

    /// A block of a directory with two entries of one unit, a block of inodes in which `dir` is a directory, and the note by which the two exchange a file
    /// and that directory.
    struct Case {
        geometry: Geometry,
        entries: (FsBlock, Vec<u8>),
        inodes: (FsBlock, Vec<u8>),
        dir: Ino,
        names: [ExchangedName; 2],
    }

    fn case() -> Case {
        let geometry = geometry(10);
        let block = geometry.fs_block(AgNo(0), AgBlock(2000));
        let table = geometry.fs_block(AgNo(0), AgBlock(geometry.table_start(AgNo(0))));
        let dir = geometry.ino(table, 1);
        let mut entries = vec![0; 1024];
        header::init(&mut entries, BlockKind::LinearEntries, VOLUME, DIR, block);
        let names =
            [(544, FILE, dir.0, 4, 111_u64), (576, dir.0, FILE, 8, 222)].map(|(at, old, new, file_type, hash)| {
                let entry = EntryHeader::read_mut(&mut entries[at..]);
                let length = if at == 576 { 1024 - 576 } else { 32 };
                (entry.ino, entry.length, entry.tag) = (old.into(), length.into(), (hash as u32).into());
                let mut name = ExchangedName::zeroed();
                (name.block, name.at, name.file_type) = (block.0.into(), (at as u32).into(), file_type);
                (name.ino, name.dir, name.hash) = (new.into(), DIR.into(), hash.into());
                name
            });
        // The unit's first entry has no name.
        EntryHeader::read_mut(&mut entries[528..]).length = 16.into();
        header::seal_at(&mut entries, &VOLUME, block, 0);
        let mut inodes = vec![0; 1024];
        header::init(&mut inodes, BlockKind::InodeTable, VOLUME, 0, table);
        RawInode::read_mut(&mut inodes[geometry.inode_offset(1)..]).mode = S_IFDIR.into();
        header::seal_at(&mut inodes, &VOLUME, table, 0);
        Case { geometry, entries: (block, entries), inodes: (table, inodes), dir, names }
    }

    type Change = fn(&mut Case);

    impl Case {
        fn plan(&self) -> Result<Vec<PlannedUnit>, Corrupt> {
            let read_unit = |block, number: u32| {
                let (_, bytes) = [&self.entries, &self.inodes].into_iter().find(|(other, _)| *other == block).unwrap();
                Ok(bytes[number as usize * UNIT_SIZE..][..UNIT_SIZE].try_into().unwrap())
            };
            plan(&self.names, &self.geometry, VOLUME, read_unit)
        }
    }

    #[test]
    fn a_note_changes_entries_and_identities() {
        let mut case = case();
        let units = case.plan().unwrap();
        assert_eq!(units.len(), 2, "both entries lie in one unit");
        for (block, number, bytes) in &units {
            let kind = BlockKind::of(bytes).unwrap();
            unit::verify_one(bytes, kind, &VOLUME, *block, *number).unwrap();
            let of = if *block == case.entries.0 { &mut case.entries.1 } else { &mut case.inodes.1 };
            of[*number as usize * UNIT_SIZE..][..UNIT_SIZE].copy_from_slice(bytes);
        }
        let named = |at: usize| (EntryHeader::read(&case.entries.1[at..]).ino.get(), case.entries.1[at + 11]);
        assert_eq!((named(544), named(576)), ((case.dir.0, 4), (FILE, 8)));
        let inode = RawInode::read(&case.inodes.1[case.geometry.inode_offset(1)..]);
        assert_eq!((inode.parent.get(), inode.name_hash.get()), (DIR, 111));
        assert_eq!(case.plan().unwrap(), units, "done twice it does no harm");
    }

    #[test]
    fn a_note_that_cannot_be_right_changes_nothing() {
        let wrong: [(&str, Change); 8] = [
            ("another name's tag", |case| case.names[0].hash = 112.into()),
            ("an entry that names a third inode", |case| {
                (case.names[0].ino, case.names[1].ino) = (99.into(), 98.into());
            }),
            ("another directory's block", |case| case.names[1].dir = 69.into()),
            ("no entry begins there", |case| case.names[1].at = 584.into()),
            ("past the block", |case| case.names[1].at = 1020.into()),
            ("no block of data", |case| case.names[0].block = 0.into()),
            ("a damaged unit", |case| case.entries.1[700] ^= 1),
            ("no directory", |case| {
                let at = case.geometry.inode_offset(1);
                RawInode::read_mut(&mut case.inodes.1[at..]).mode = 0.into();
                header::seal_at(&mut case.inodes.1, &VOLUME, case.inodes.0, 0);
            }),
        ];
        for (what, make_wrong) in wrong {
            let mut case = case();
            make_wrong(&mut case);
            assert!(case.plan().is_err(), "{what}");
        }
    }
}
