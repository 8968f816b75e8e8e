//! The log: two anchors, then a ring of checkpoints.
//!
//! The log is written in units of [`unit()`] bytes. Anchors take the first two units; the ring is the rest, rounded down
//! to whole units. A log position (LSN) counts bytes since the volume was made; its place in the ring is the LSN modulo
//! the ring's size. A checkpoint is its header and body, padded to whole units; it may wrap. It is valid when header
//! checksum, body checksum and LSN are right and `previous_crc` is the header checksum of the checkpoint before it (the
//! first one found from the tail is exempt). Replay applies valid checkpoints in order, from the anchor's tail.
//!
//! Body, once its units are no longer escaped: `record_count` records (header, then one granule for each bit set in the mask, lowest first), then
//! `revoke_count` block numbers of 8 bytes, then `pending_count` pending frees.

use crate::on_disk::on_disk;
use zerocopy::little_endian::{I64, U32, U64};

on_disk! {
    /// An anchor: where replay starts. Of two valid anchors the one with the higher sequence counts. One of sequence 0 counts for
    /// nothing: it says that the log is being emptied, that all that the ring held is home, and what a search of it had found.
    pub struct AnchorBlock: 64 {
        0 => magic: U32,
        /// CRC32C of the 64 bytes with this field taken as zero.
        4 => crc: U32,
        8 => volume: [u8; 16],
        24 => sequence: U64,
        /// LSN of the oldest checkpoint that replay needs.
        32 => tail: U64,
        /// Of sequence 0: checkpoints that were found; [`u32::MAX`]: the volume did not need the log.
        40 => found: U32,
        /// Of sequence 0: checkpoints that are damaged, at least so many.
        44 => missing: U32,
        /// Of sequence 0: time of the last one found.
        48 => time: I64,
        56 => reserved: [u8; 8],
    }
}

on_disk! {
    /// Start of a checkpoint.
    pub struct CheckpointHeader: 128 {
        0 => magic: U32,
        /// CRC32C of the 128 bytes with this field taken as zero.
        4 => crc: U32,
        8 => volume: [u8; 16],
        24 => lsn: U64,
        /// Number of the checkpoint since the volume was made.
        32 => sequence: U64,
        /// Bytes of the body that follows this header.
        40 => body_len: U64,
        /// CRC32C of the body.
        48 => body_crc: U32,
        52 => record_count: U32,
        56 => revoke_count: U32,
        60 => pending_count: U32,
        64 => time: I64,
        72 => previous_crc: U32,
        /// On the disk, the first four bytes of all units but the first are XORed with it: so none of them is
        /// [`CHECKPOINT_MAGIC`], and only headers look like headers, whatever bytes users have chosen.
        76 => escape: U32,
        80 => reserved: [u8; 48],
    }
}

on_disk! {
    /// A changed block: its granules follow.
    pub struct RecordHeader: 16 {
        0 => block: U64,
        /// Bit i set: granule i follows.
        8 => mask: U64,
    }
}

on_disk! {
    /// Blocks freed by the checkpoint, not yet in the free-space trees: nothing may use them before the checkpoint is
    /// durable. A mount that finds this the last checkpoint puts them there.
    pub struct PendingFree: 16 {
        0 => start: U64,
        8 => length: U32,
        12 => reserved: U32,
    }
}

pub const ANCHOR_MAGIC: u32 = u32::from_le_bytes(*b"MYLA");
pub const CHECKPOINT_MAGIC: u32 = u32::from_le_bytes(*b"MYLC");
/// Units before the ring.
pub const ANCHOR_UNITS: u64 = 2;

/// Unit of log writes in bytes: a block, at least 4096, so that no two writes share a sector of any common disk.
pub fn unit(block_size: usize) -> usize {
    block_size.max(4096)
}
