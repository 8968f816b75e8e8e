//! Logs written by hand.

use super::builder::VOLUME;
use super::image::Image;
use myriad_device::BlockDevice;
use myriad_format::FsBlock;
use myriad_format::log::{ANCHOR_UNITS, CHECKPOINT_MAGIC, CheckpointHeader, PendingFree, RecordHeader, unit};
use zerocopy::IntoBytes;

/// What a checkpoint has of a block.
pub struct Logged {
    pub block: FsBlock,
    /// Numbers of its granules, ascending.
    pub granules: Vec<usize>,
    /// All of the block.
    pub bytes: Vec<u8>,
}

/// Writes one checkpoint, in which blocks ascend, and pending frees.
pub fn write_log(image: &Image, records: &[Logged], pending: &[(FsBlock, u32)]) {
    let mut body = Vec::new();
    let granule = image.geometry.granule_size();
    let place = image.log_place();
    for Logged { block, granules, bytes } in records {
        let mut record = RecordHeader::zeroed();
        record.block.set(block.0);
        record.mask.set(granules.iter().fold(0, |mask, at| mask | 1 << at));
        body.extend_from_slice(record.as_bytes());
        for at in granules {
            body.extend_from_slice(&bytes[at * granule..][..granule]);
        }
    }
    for &(start, length) in pending {
        let mut free = PendingFree::zeroed();
        free.start.set(start.0);
        free.length.set(length);
        body.extend_from_slice(free.as_bytes());
    }
    let mut head = CheckpointHeader::zeroed();
    head.magic.set(CHECKPOINT_MAGIC);
    head.volume = VOLUME;
    head.body_len.set(body.len() as u64);
    head.body_crc.set(crc32c::crc32c(&body));
    head.record_count.set(records.len() as u32);
    head.pending_count.set(pending.len() as u32);
    head.crc.set(crc32c::crc32c(head.as_bytes()));
    let unit = unit(image.geometry.block_size());
    let mut bytes = head.as_bytes().to_vec();
    bytes.extend_from_slice(&body);
    bytes.resize(bytes.len().next_multiple_of(unit), 0);
    let ring = place.start + ANCHOR_UNITS * unit as u64;
    assert!(ring + bytes.len() as u64 <= place.start + place.length, "the log is too small for the test");
    image.device.write(ring, &bytes).unwrap();
}
