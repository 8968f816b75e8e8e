//! Building a checkpoint in memory.

use crate::overlay::for_each_run;
use crate::place::granule;
use myriad_format::log::{CHECKPOINT_MAGIC, CheckpointHeader, PendingFree, RecordHeader, unit};
use myriad_format::{FsBlock, Lsn};

/// A checkpoint being built. It is filled while all operations stand still, so every method only copies: the body grows
/// in its final form behind room for the header, and checksums wait for [`crate::Log::seal`].
pub struct Checkpoint {
    block_size: usize,
    /// Header (zero until sealed), then the records; once sealed the whole checkpoint with its padding.
    bytes: Vec<u8>,
    /// Block numbers as they go to disk.
    revokes: Vec<u8>,
    /// Pending frees as they go to disk.
    pendings: Vec<u8>,
    record_count: u32,
}

impl Checkpoint {
    pub fn new(block_size: usize) -> Self {
        let bytes = vec![0; CheckpointHeader::SIZE];
        Self { block_size, bytes, revokes: Vec::new(), pendings: Vec::new(), record_count: 0 }
    }

    /// Empties it and keeps the buffers.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.resize(CheckpointHeader::SIZE, 0);
        self.revokes.clear();
        self.pendings.clear();
        self.record_count = 0;
    }

    /// Logs the granules of `block` named by `mask`; `image` is the whole block. A later record of the same block in
    /// the same checkpoint wins.
    pub fn record(&mut self, block: FsBlock, mask: u64, image: &[u8]) {
        // Replay calls a record without granules damage, and granules beyond the block cannot exist.
        assert!(mask != 0);
        assert!(image.len() == self.block_size);
        let granule = granule(self.block_size);
        self.bytes.reserve(RecordHeader::SIZE + mask.count_ones() as usize * granule);
        self.bytes.extend_from_slice(&block.0.to_le_bytes());
        self.bytes.extend_from_slice(&mask.to_le_bytes());
        // Neighbouring granules in one copy.
        let bytes = &mut self.bytes;
        for_each_run(mask, |bit, run| bytes.extend_from_slice(&image[bit * granule..(bit + run) * granule]));
        self.record_count += 1;
    }

    /// Makes replay drop what this checkpoint and earlier ones logged for `block`; later ones count again.
    pub fn revoke(&mut self, block: FsBlock) {
        self.revokes.extend_from_slice(&block.0.to_le_bytes());
    }

    /// Notes blocks that are freed by this checkpoint and not in the free-space trees yet.
    pub fn pending(&mut self, start: FsBlock, length: u32) {
        // The reader verifies both.
        assert!(length > 0);
        assert!(start.0.checked_add(u64::from(length)).is_some());
        self.pendings.extend_from_slice(&start.0.to_le_bytes());
        self.pendings.extend_from_slice(&length.to_le_bytes());
        self.pendings.extend_from_slice(&[0; 4]);
    }

    /// Bytes of the body so far.
    pub fn body_len(&self) -> u64 {
        (self.bytes.len() - CheckpointHeader::SIZE + self.revokes.len() + self.pendings.len()) as u64
    }

    /// Bytes it will take in the log: header and body in whole units. Compare with [`crate::Log::room`].
    pub fn size(&self) -> u64 {
        padded(self.body_len(), unit(self.block_size) as u64)
    }

    pub fn is_empty(&self) -> bool {
        self.body_len() == 0
    }

    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Takes the contents out, complete and with checksums.
    pub(crate) fn seal(&mut self, volume: [u8; 16], link: Link, time: i64) -> Sealed {
        let mut done = std::mem::replace(self, Self::new(self.block_size));
        let (size, body_len) = (done.size(), done.body_len());
        let header = CheckpointHeader {
            magic: CHECKPOINT_MAGIC.into(),
            volume,
            lsn: link.lsn.0.into(),
            sequence: link.sequence.into(),
            body_len: body_len.into(),
            record_count: done.record_count.into(),
            revoke_count: ((done.revokes.len() / size_of::<u64>()) as u32).into(),
            pending_count: ((done.pendings.len() / PendingFree::SIZE) as u32).into(),
            time: time.into(),
            previous_crc: link.previous_crc.into(),
            ..CheckpointHeader::zeroed()
        };
        done.bytes.reserve_exact(size as usize - done.bytes.len());
        done.bytes.extend_from_slice(&done.revokes);
        done.bytes.extend_from_slice(&done.pendings);
        let unit = unit(self.block_size);
        let escape = free_escape(further_words(&mut done.bytes, unit).map(|word| u32::from_le_bytes(*word)));
        apply_escape(&mut done.bytes, unit, escape);
        let body_crc = crc32c::crc32c(&done.bytes[CheckpointHeader::SIZE..]);
        *CheckpointHeader::read_mut(&mut done.bytes) =
            CheckpointHeader { body_crc: body_crc.into(), escape: escape.into(), ..header };
        let crc = crc32c::crc32c(&done.bytes[..CheckpointHeader::SIZE]);
        CheckpointHeader::read_mut(&mut done.bytes).crc = crc.into();
        // The padding is zero, so that equal checkpoints are equal bytes.
        done.bytes.resize(size as usize, 0);
        Sealed { checkpoint: done, link, crc }
    }
}

/// The first words of all units of a checkpoint but the first, as far as it fills them: ours are multiples of 8 bytes.
fn further_words(bytes: &mut [u8], unit: usize) -> impl Iterator<Item = &mut [u8; 4]> {
    bytes.chunks_mut(unit).skip(1).filter_map(|unit| unit.first_chunk_mut())
}

/// Escapes a checkpoint's units, or undoes it.
pub(crate) fn apply_escape(bytes: &mut [u8], unit: usize, escape: u32) {
    if escape != 0 {
        for word in further_words(bytes, unit) {
            *word = (u32::from_le_bytes(*word) ^ escape).to_le_bytes();
        }
    }
}

/// The least number with which none of the words becomes the magic: almost always 0.
fn free_escape(words: impl Iterator<Item = u32>) -> u32 {
    let mut taken: Vec<u32> = words.map(|word| word ^ CHECKPOINT_MAGIC).collect();
    taken.sort_unstable();
    taken.into_iter().fold(0, |free, taken| if taken == free { free + 1 } else { free })
}

/// What ties a checkpoint to its place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub lsn: Lsn,
    pub sequence: u64,
    pub previous_crc: u32,
}

/// A checkpoint with its place in the log fixed: nothing in it changes any more.
pub struct Sealed {
    checkpoint: Checkpoint,
    pub(crate) link: Link,
    /// The header's checksum: the next checkpoint's `previous_crc`.
    pub(crate) crc: u32,
}

impl Sealed {
    pub fn lsn(&self) -> Lsn {
        self.link.lsn
    }

    /// Bytes it takes in the log.
    pub fn size(&self) -> u64 {
        self.checkpoint.bytes.len() as u64
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.checkpoint.bytes
    }

    /// An empty checkpoint with this one's buffers.
    pub fn recycle(mut self) -> Checkpoint {
        self.checkpoint.clear();
        self.checkpoint
    }
}

/// Bytes in the log of a checkpoint with `body_len` bytes of body, at most `RING_BYTES_MAX` of them.
pub(crate) fn padded(body_len: u64, unit: u64) -> u64 {
    (CheckpointHeader::SIZE as u64 + body_len).next_multiple_of(unit)
}
