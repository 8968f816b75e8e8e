//! The log of a base, taken apart: where its anchors and checkpoints are, and their checksums made right again after a
//! change. A change in one checkpoint moves its header's checksum, and with it the link of the next one.

use crate::hostile::Field;
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_format::log::{
    ANCHOR_MAGIC, ANCHOR_UNITS, AnchorBlock, CHECKPOINT_MAGIC, CheckpointHeader, RecordHeader, unit,
};
use myriad_format::superblock::Superblock;

/// A log in memory: all its bytes, anchors first.
#[derive(Clone)]
pub struct LogImage {
    /// Byte of the device where the log starts.
    pub start: u64,
    pub bytes: Vec<u8>,
    unit: usize,
    /// Checkpoints from the tail on: offset in the ring, bytes of the body.
    checkpoints: Vec<(usize, usize)>,
}

impl LogImage {
    /// The log of a sound volume.
    pub fn read(device: &MemoryDevice, superblock: &Superblock) -> Self {
        let block_size = 1_u64 << superblock.block_bits;
        let start = superblock.log_start.get() * block_size;
        let mut bytes = vec![0; (superblock.log_blocks.get() * block_size) as usize];
        device.read(start, &mut bytes).expect("the log lies in the volume");
        let mut log = Self { start, bytes, unit: unit(block_size as usize), checkpoints: Vec::new() };
        let anchors = (0..ANCHOR_UNITS as usize).map(|slot| *AnchorBlock::read(&log.bytes[slot * log.unit..]));
        let anchor =
            anchors.filter(|anchor| anchor.magic.get() == ANCHOR_MAGIC).max_by_key(|anchor| anchor.sequence.get());
        let Some(anchor) = anchor else { return log };
        let mut lsn = anchor.tail.get();
        // A sound ring holds fewer checkpoints than units.
        for _ in 0..log.capacity() / log.unit {
            let at = (lsn % log.capacity() as u64) as usize;
            let header = *CheckpointHeader::read(&log.bytes[log.ring() + at..]);
            if header.magic.get() != CHECKPOINT_MAGIC || header.lsn.get() != lsn {
                break;
            }
            let body = header.body_len.get() as usize;
            log.checkpoints.push((at, body));
            lsn += (CheckpointHeader::SIZE + body).next_multiple_of(log.unit) as u64;
        }
        log
    }

    pub fn checkpoint_count(&self) -> usize {
        self.checkpoints.len()
    }

    fn ring(&self) -> usize {
        ANCHOR_UNITS as usize * self.unit
    }

    fn capacity(&self) -> usize {
        (self.bytes.len() / self.unit - ANCHOR_UNITS as usize) * self.unit
    }

    /// Where byte `at` of checkpoint `index`, header included, lies in `bytes`: the ring may wrap in it.
    pub fn place(&self, index: usize, at: usize) -> usize {
        self.ring() + (self.checkpoints[index].0 + at) % self.capacity()
    }

    /// Bytes of a checkpoint, header included.
    pub fn length(&self, index: usize) -> usize {
        CheckpointHeader::SIZE + self.checkpoints[index].1
    }

    /// Bytes of a checkpoint before its body ends in revokes and pending frees, record by record: offsets of the records'
    /// headers.
    pub fn records(&self, index: usize, granule: usize) -> Vec<usize> {
        let count = CheckpointHeader::read(&self.bytes[self.place(index, 0)..]).record_count.get();
        let mut records = Vec::new();
        let mut at = CheckpointHeader::SIZE;
        for _ in 0..count {
            if at + RecordHeader::SIZE > self.length(index) {
                break;
            }
            records.push(at);
            let mask = self.word(index, at + 8);
            at += RecordHeader::SIZE + mask.count_ones() as usize * granule;
        }
        records
    }

    fn word(&self, index: usize, at: usize) -> u64 {
        let mut word = [0; 8];
        for (offset, byte) in word.iter_mut().enumerate() {
            *byte = self.bytes[self.place(index, at + offset)];
        }
        u64::from_le_bytes(word)
    }

    /// Fields of an anchor, in `bytes`.
    pub fn anchor_fields(&self, slot: usize) -> Vec<Field> {
        fields(slot * self.unit, &AnchorBlock::LAYOUT)
    }

    /// Fields of a checkpoint's header, in `bytes`.
    pub fn header_fields(&self, index: usize) -> Vec<Field> {
        fields(self.place(index, 0), &CheckpointHeader::LAYOUT)
    }

    /// Makes every checksum right: bodies, headers and the chain between them, anchors. The length that a header says is
    /// believed if it can be.
    pub fn seal(&mut self) {
        for slot in 0..ANCHOR_UNITS as usize {
            let at = slot * self.unit;
            let anchor = AnchorBlock::read_mut(&mut self.bytes[at..]);
            anchor.crc.set(0);
            let crc = crc32c::crc32c(&self.bytes[at..at + AnchorBlock::SIZE]);
            AnchorBlock::read_mut(&mut self.bytes[at..]).crc.set(crc);
        }
        let mut previous: Option<u32> = None;
        for index in 0..self.checkpoints.len() {
            let at = self.place(index, 0);
            let said = CheckpointHeader::read(&self.bytes[at..]).body_len.get() as usize;
            let body = if said <= self.capacity() - CheckpointHeader::SIZE { said } else { self.checkpoints[index].1 };
            let from = self.place(index, CheckpointHeader::SIZE);
            let before_wrap = body.min(self.ring() + self.capacity() - from);
            let crc = crc32c::crc32c(&self.bytes[from..from + before_wrap]);
            let crc = crc32c::crc32c_append(crc, &self.bytes[self.ring()..self.ring() + body - before_wrap]);
            let header = CheckpointHeader::read_mut(&mut self.bytes[at..]);
            header.body_crc.set(crc);
            if let Some(previous) = previous {
                header.previous_crc.set(previous);
            }
            header.crc.set(0);
            let crc = crc32c::crc32c(&self.bytes[at..at + CheckpointHeader::SIZE]);
            CheckpointHeader::read_mut(&mut self.bytes[at..]).crc.set(crc);
            previous = Some(crc);
        }
    }
}

fn fields(at: usize, layout: &myriad_format::Layout) -> Vec<Field> {
    let numbers = layout.fields.iter().filter(|field| field.size <= 8);
    numbers
        .map(|field| Field { at: at + field.offset, bit: 0, bits: field.size as u32 * 8, name: field.name })
        .collect()
}
