//! Reads and writes of whole blocks, whatever the device's alignment, with the log laid over what is read.

use myriad_device::BlockDevice;
use myriad_format::unit::{self, UNIT_SIZE, UnitHeader};
use myriad_format::{BlockKind, Corrupt, FsBlock, Geometry, Lsn, header};
use myriad_log::{Overlay, POSITION_MAX};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a medium loses at a time, at least.
const SECTOR: usize = 512;

/// A block with a larger LSN does not say where a new log may begin: no log gets that far, and one that begins there has no room.
pub(crate) const LSN_BELIEVED: u64 = POSITION_MAX / 2;

/// Why a block cannot be believed.
#[derive(Debug)]
pub(crate) enum Damage {
    Corrupt(Corrupt),
    Unreadable { block: FsBlock, error: io::Error },
}

impl From<Corrupt> for Damage {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(corrupt)
    }
}

/// What of a block of units cannot be believed.
#[derive(Default)]
pub(crate) struct BadUnits {
    /// The units, ascending. Their bytes are zeros.
    pub bad: Vec<u32>,
    /// Why: a reason a unit, or one for all that the device could not read.
    pub why: Vec<Damage>,
}

/// How much of a block was read.
pub(crate) struct Part {
    /// Bytes that are not there, whatever they held.
    pub missing: Vec<Range<usize>>,
    /// Why it was not read as a whole, if some sectors cannot be read.
    pub worn: Option<Damage>,
}

impl Part {
    pub fn has(&self, bytes: Range<usize>) -> bool {
        self.missing.iter().all(|missing| missing.end <= bytes.start || bytes.end <= missing.start)
    }
}

/// A volume's blocks as a mount would see them.
pub(crate) struct Reader {
    device: Arc<dyn BlockDevice>,
    overlay: Option<Overlay>,
    pub geometry: Geometry,
    pub volume: [u8; 16],
    /// Bytes that count as unreadable until their block is written anew.
    lost: BTreeMap<FsBlock, Mutex<Vec<Range<usize>>>>,
    lsn_max: AtomicU64,
}

impl Reader {
    pub fn new(device: Arc<dyn BlockDevice>, overlay: Option<Overlay>, geometry: Geometry, volume: [u8; 16]) -> Self {
        Self { device, overlay, geometry, volume, lost: BTreeMap::new(), lsn_max: AtomicU64::new(0) }
    }

    pub fn block_size(&self) -> usize {
        self.geometry.block_size()
    }

    pub fn new_buffer(&self) -> Vec<u8> {
        vec![0; self.block_size()]
    }

    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Reads a run of blocks as they are on the device; `buf` is whole blocks.
    pub fn read_device(&self, block: FsBlock, buf: &mut [u8]) -> Result<(), Damage> {
        let unreadable = |error| Damage::Unreadable { block, error };
        let end = block.0.checked_add((buf.len() / self.block_size()) as u64);
        let Some(end) = end.filter(|&end| end <= self.geometry.block_count) else {
            return Err(unreadable(io::Error::new(io::ErrorKind::InvalidInput, "outside the volume")));
        };
        if self.lost.range(block..FsBlock(end)).any(|(_, bytes)| !hold(bytes).is_empty()) {
            return Err(unreadable(io::Error::other("a part of it is lost")));
        }
        read_at(&*self.device, block.0 << self.geometry.block_bits, buf).map_err(unreadable)
    }

    /// Reads one block and lays the log over it. `true`: the log changed it, so its checksum means nothing.
    pub fn read_raw(&self, block: FsBlock, buf: &mut [u8]) -> Result<bool, Damage> {
        self.read_device(block, buf)?;
        Ok(self.lay_over(block, buf))
    }

    /// As [`Self::read_raw`] of a block that cannot be read as a whole: zeros for the sectors that cannot. False if that is
    /// all of them.
    pub fn read_sectors(&self, block: FsBlock, buf: &mut [u8]) -> bool {
        let missing: usize = self.read_each_sector(block, buf).iter().map(Range::len).sum();
        let is_any = missing < buf.len();
        if is_any {
            self.lay_over(block, buf);
        }
        is_any
    }

    /// As [`Self::read_raw`]; of a block that cannot be read as a whole, what there is of it as [`Self::read_each_sector`] does.
    pub fn read_with_gaps(&self, block: FsBlock, buf: &mut [u8]) -> Vec<Range<usize>> {
        match self.read_raw(block, buf) {
            Ok(_) => Vec::new(),
            Err(_) => self.read_each_sector(block, buf),
        }
    }

    /// Bytes that are read or not read together.
    fn sector_size(&self) -> usize {
        self.device.alignment().max(SECTOR)
    }

    /// The sectors of a block that can be read; zeros for the others, whose bytes it returns, ascending.
    pub fn read_each_sector(&self, block: FsBlock, buf: &mut [u8]) -> Vec<Range<usize>> {
        let sector = self.sector_size();
        let mut missing = Vec::new();
        for (index, part) in buf.chunks_mut(sector).enumerate() {
            let start = index * sector;
            let offset = (block.0 << self.geometry.block_bits) + start as u64;
            if read_at(&*self.device, offset, part).is_err() {
                part.fill(0);
                missing.push(start..start + part.len());
            }
        }
        if let Some(lost) = self.lost.get(&block) {
            missing.extend(hold(lost).iter().cloned());
            missing.sort_by_key(|bytes| bytes.start);
        }
        missing
    }

    /// Lets bytes of a block count as unreadable that are zeros on the device, until the block is written anew.
    pub fn lose(&mut self, block: FsBlock, bytes: Vec<Range<usize>>) {
        self.lost.insert(block, Mutex::new(bytes));
    }

    pub fn lay_over(&self, block: FsBlock, buf: &mut [u8]) -> bool {
        self.overlay.as_ref().is_some_and(|overlay| overlay.apply(block, buf).is_some())
    }

    /// Reads a metadata block and verifies its header.
    pub fn read(&self, block: FsBlock, kind: BlockKind, owner: u64, buf: &mut [u8]) -> Result<(), Damage> {
        let overlaid = self.read_raw(block, buf)?;
        self.verify(block, kind, owner, buf, overlaid)
    }

    /// Whether all that a header says of its block is right, but for its checksum.
    pub fn is_headed(&self, block: FsBlock, kind: BlockKind, owner: u64, buf: &[u8]) -> bool {
        let head = header::BlockHeader::read(buf);
        head.magic.get() == kind.magic()
            && head.volume == self.volume
            && head.address.get() == block.0
            && head.owner.get() == owner
    }

    /// As [`Self::read`]. Of a block that cannot be read as a whole, what there is of it if it says the same of itself: zeros, and which
    /// bytes they stand for. None do if the block is right with zeros in their place.
    pub fn read_part(&self, block: FsBlock, kind: BlockKind, owner: u64, buf: &mut [u8]) -> Result<Part, Damage> {
        let error = match self.read(block, kind, owner, buf) {
            Err(error @ Damage::Unreadable { .. }) if block.0 < self.geometry.block_count => error,
            result => return result.map(|()| Part { missing: Vec::new(), worn: None }),
        };
        let missing = self.read_each_sector(block, buf);
        let is_changed = self.lay_over(block, buf);
        if !self.is_headed(block, kind, owner, buf) {
            return Err(error);
        }
        let is_whole = !is_changed && header::verify(buf, kind, &self.volume, block).is_ok();
        Ok(Part { missing: if is_whole { Vec::new() } else { missing }, worn: Some(error) })
    }

    pub fn verify(
        &self,
        block: FsBlock,
        kind: BlockKind,
        owner: u64,
        buf: &mut [u8],
        overlaid: bool,
    ) -> Result<(), Damage> {
        if overlaid {
            // The checksum is for the block before the log's granules; everything else must hold already.
            header::reseal(buf, &self.volume, block);
        }
        header::verify(buf, kind, &self.volume, block)?;
        header::verify_owner(buf, block, owner)?;
        let lsn = header::lsn_of(buf).filter(|&lsn| lsn <= LSN_BELIEVED);
        self.lsn_max.fetch_max(lsn.unwrap_or(0), Relaxed);
        Ok(())
    }

    /// As [`Self::read_raw`], of a block of units: the checksums are for what stands there now.
    pub fn read_raw_units(&self, block: FsBlock, kind: BlockKind, buf: &mut [u8]) -> Result<(), Damage> {
        self.read_device(block, buf)?;
        if let Some(overlay) = &self.overlay {
            overlay.apply_to_units(block, kind, &self.volume, buf);
        }
        Ok(())
    }

    /// Reads a block of inodes again that was checked before; what cannot be believed of an inode table becomes zeros.
    pub fn read_inodes(&self, block: FsBlock, buf: &mut [u8]) -> Result<(), Damage> {
        let kind = self.geometry.inode_kind();
        if !kind.is_of_units() {
            return self.read_raw(block, buf).map(drop);
        }
        if block.0 >= self.geometry.block_count {
            return self.read_device(block, buf);
        }
        self.read_units(block, kind, u64::from(self.geometry.ag_of(block).0), buf);
        Ok(())
    }

    /// Reads a block of units. What cannot be believed of it becomes zeros, and costs no neighbour.
    pub fn read_units(&self, block: FsBlock, kind: BlockKind, owner: u64, buf: &mut [u8]) -> BadUnits {
        let Err(damage) = self.read_device(block, buf) else { return self.settle_units(block, kind, owner, buf) };
        self.read_each_sector(block, buf);
        // Of a unit that was not read nothing more is to be said, even if the log has all of it.
        BadUnits { why: vec![damage], ..self.settle_units(block, kind, owner, buf) }
    }

    /// As [`Self::read_units`], of a block as it is on the device.
    pub fn settle_units(&self, block: FsBlock, kind: BlockKind, owner: u64, buf: &mut [u8]) -> BadUnits {
        if let Some(overlay) = &self.overlay {
            overlay.apply_to_units(block, kind, &self.volume, buf);
        }
        let mut found = BadUnits::default();
        for (number, bytes) in buf.chunks_exact_mut(UNIT_SIZE).enumerate() {
            let stored = UnitHeader::read(bytes).owner.get();
            let is_ours =
                if stored == owner { Ok(()) } else { Err(Corrupt::BlockOwner { block, stored, expected: owner }) };
            let verified = unit::verify_one(bytes, kind, &self.volume, block, number as u32).and(is_ours);
            if let Err(corrupt) = verified {
                bytes.fill(0);
                found.bad.push(number as u32);
                found.why.push(corrupt.into());
            }
        }
        found
    }

    /// Newest LSN in the header of a block that was verified, of those that a log can have reached.
    pub fn lsn_max(&self) -> Lsn {
        Lsn(self.lsn_max.load(Relaxed))
    }

    /// Seals and writes a metadata block.
    pub fn write(&self, block: FsBlock, buf: &mut [u8]) -> io::Result<()> {
        header::reseal(buf, &self.volume, block);
        self.write_raw(block, buf)
    }

    pub fn write_raw(&self, block: FsBlock, buf: &[u8]) -> io::Result<()> {
        self.write_sectors(block, buf, &[])?;
        if let Some(lost) = self.lost.get(&block) {
            hold(lost).clear();
        }
        Ok(())
    }

    /// Writes a block but for some of its sectors, which stay as they are.
    pub fn write_sectors(&self, block: FsBlock, buf: &[u8], left: &[Range<usize>]) -> io::Result<()> {
        assert!(block.0 < self.geometry.block_count, "repair writes inside the volume only");
        let offset = block.0 << self.geometry.block_bits;
        if left.is_empty() {
            return write_at(&*self.device, offset, buf);
        }
        let sector = self.sector_size();
        let sectors = buf.chunks(sector).enumerate().map(|(index, part)| (index * sector, part));
        let mut wanted = sectors.filter(|(start, _)| left.iter().all(|bytes| bytes.start != *start));
        wanted.try_for_each(|(start, part)| write_at(&*self.device, offset + start as u64, part))
    }
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads bytes at any offset, through a larger aligned buffer where the device asks for it.
pub(crate) fn read_at(device: &dyn BlockDevice, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    let (start, len) = aligned(device, offset, buf.len())?;
    if start == offset && len == buf.len() {
        return device.read(offset, buf);
    }
    let mut wide = vec![0; len];
    device.read(start, &mut wide)?;
    let at = (offset - start) as usize;
    buf.copy_from_slice(&wide[at..at + buf.len()]);
    Ok(())
}

/// Writes bytes at any offset; what the device's alignment adds is read first and written back.
pub(crate) fn write_at(device: &dyn BlockDevice, offset: u64, buf: &[u8]) -> io::Result<()> {
    let (start, len) = aligned(device, offset, buf.len())?;
    if start == offset && len == buf.len() {
        return device.write(offset, buf);
    }
    let mut wide = vec![0; len];
    device.read(start, &mut wide)?;
    let at = (offset - start) as usize;
    wide[at..at + buf.len()].copy_from_slice(buf);
    device.write(start, &wide)
}

/// The smallest aligned range around a range, if it lies on the device.
fn aligned(device: &dyn BlockDevice, offset: u64, len: usize) -> io::Result<(u64, usize)> {
    let unit = device.alignment().max(1) as u64;
    let start = offset / unit * unit;
    let end = offset.checked_add(len as u64).and_then(|end| end.checked_next_multiple_of(unit));
    match end {
        Some(end) if end <= device.size() => Ok((start, (end - start) as usize)),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "past the end of the device")),
    }
}
