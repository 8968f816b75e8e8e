//! What a crash cut short on a volume without a log: an exchange of two names that its superblock notes.

use crate::place::LogError;
use myriad_device::{AlignedBuf, BlockDevice};
use myriad_format::dir::EntryHeader;
use myriad_format::exchange::ExchangedName;
use myriad_format::inode::{RawInode, S_IFDIR};
use myriad_format::superblock::Superblock;
use myriad_format::unit::{self, UNIT_SIZE, UnitHeader};
use myriad_format::{BlockKind, Corrupt, FsBlock, Geometry, Ino, header};

/// A unit that is changed, and where it lies.
struct Changed {
    kind: BlockKind,
    block: FsBlock,
    number: u32,
    bytes: [u8; UNIT_SIZE],
}

/// The units of a volume that an exchange changes.
struct Units<'a> {
    device: &'a dyn BlockDevice,
    geometry: Geometry,
    volume: [u8; 16],
    changed: Vec<Changed>,
}

/// Does what the superblock notes of two names that exchange what they name, and takes the note away. Nothing is written if the note cannot be right.
pub fn finish_exchange(device: &dyn BlockDevice, superblock: &mut Superblock) -> Result<(), LogError> {
    let Some(names) = superblock.exchange() else { return Ok(()) };
    let mut units =
        Units { device, geometry: superblock.geometry(), volume: superblock.volume(), changed: Vec::with_capacity(4) };
    let inos = names.map(|name| name.ino.get());
    for name in &names {
        units.put_name(name, inos)?;
    }
    units.write()?;
    superblock.set_exchange(None);
    note_exchange(device, None)
}

/// Notes an exchange in the superblock on the device, or takes the note away, durably. All else in it stays as it is there.
pub fn note_exchange(device: &dyn BlockDevice, names: Option<[ExchangedName; 2]>) -> Result<(), LogError> {
    let mut sector = AlignedBuf::zeroed(device.alignment().max(UNIT_SIZE));
    device.read(0, &mut sector).map_err(|source| LogError::Io { op: "read", offset: 0, source })?;
    Superblock::read_mut(&mut sector).set_exchange(names);
    header::seal(&mut sector, 0);
    device.write_durable(0, &sector).map_err(|source| LogError::Io { op: "write", offset: 0, source })
}

impl Units<'_> {
    /// Has a name name what it is to name, and a directory of that name say so.
    fn put_name(&mut self, name: &ExchangedName, inos: [u64; 2]) -> Result<(), LogError> {
        let (block, at) = (FsBlock(name.block.get()), name.at.get() as usize);
        let is_entry = self.geometry.is_data_range(block, 1)
            && at + EntryHeader::SIZE <= self.geometry.block_size()
            && inos.iter().all(|&ino| ino != 0);
        let impossible = |value| Err(LogError::Corrupt(Corrupt::Superblock { field: "exchange", value }));
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

    /// A unit, for change: verified, and whose it is to be.
    fn unit(&mut self, kind: BlockKind, block: FsBlock, number: u32, owner: u64) -> Result<&mut [u8], LogError> {
        let is_it = |changed: &Changed| (changed.block, changed.number) == (block, number);
        let index = match self.changed.iter().position(is_it) {
            Some(index) => index,
            None => {
                let mut bytes = [0; UNIT_SIZE];
                let (sector, within) = self.read(block, number)?;
                bytes.copy_from_slice(&sector[within..][..UNIT_SIZE]);
                unit::verify_one(&bytes, kind, &self.volume, block, number)?;
                self.changed.push(Changed { kind, block, number, bytes });
                self.changed.len() - 1
            }
        };
        let changed = &mut self.changed[index];
        let stored = UnitHeader::read(&changed.bytes).owner.get();
        if changed.kind != kind || stored != owner {
            return Err(Corrupt::BlockOwner { block, stored, expected: owner }.into());
        }
        Ok(&mut changed.bytes)
    }

    /// The sectors of the device that a unit lies in, and where in them it begins.
    fn read(&self, block: FsBlock, number: u32) -> Result<(AlignedBuf, usize), LogError> {
        let (offset, within, length) = self.place(block, number);
        let mut sector = AlignedBuf::zeroed(length);
        self.device.read(offset, &mut sector).map_err(|source| LogError::Io { op: "read", offset, source })?;
        Ok((sector, within))
    }

    fn place(&self, block: FsBlock, number: u32) -> (u64, usize, usize) {
        let sector = self.device.alignment().max(UNIT_SIZE);
        let offset = (block.0 << self.geometry.block_bits) + u64::from(number) * UNIT_SIZE as u64;
        (offset / sector as u64 * sector as u64, (offset % sector as u64) as usize, sector)
    }

    /// Writes the units, durably.
    fn write(&mut self) -> Result<(), LogError> {
        for index in 0..self.changed.len() {
            let Changed { block, number, mut bytes, .. } = self.changed[index];
            let crc = unit::checksum(&bytes, &self.volume, block, number);
            UnitHeader::read_mut(&mut bytes).crc.set(crc);
            let (mut sector, within) = self.read(block, number)?;
            sector[within..][..UNIT_SIZE].copy_from_slice(&bytes);
            let (offset, ..) = self.place(block, number);
            self.device.write(offset, &sector).map_err(|source| LogError::Io { op: "write", offset, source })?;
        }
        self.device.flush().map_err(|source| LogError::Io { op: "flush", offset: 0, source })
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
