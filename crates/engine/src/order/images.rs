//! Copies of blocks on their way to the device.

use crate::cache::Placed;
use myriad_device::AlignedBuf;
use std::ops::Range;

/// Blocks as they were when their epoch closed. Many lie in one buffer: each in its own page-aligned one would take twice the
/// memory.
pub(super) struct Images {
    /// What was copied, and which image it is.
    pub blocks: Vec<(Placed, usize)>,
    buffers: Vec<AlignedBuf>,
    block_size: usize,
}

/// Bytes of the first buffer of images: most checkpoints of a volume that is little used need no more.
const FIRST: usize = 64 << 10;
/// Bytes of the others: as many as one long write to the device takes.
const BUFFER: usize = 1 << 20;
/// Buffers of images that are kept for the next checkpoint: 32 MiB, not a burst's worth for ever.
const BUFFERS_KEPT: usize = 32;

impl Images {
    pub fn new(block_size: usize) -> Self {
        Self { blocks: Vec::new(), buffers: Vec::new(), block_size }
    }

    /// The buffer of an image, and where in it.
    fn place(&self, image: usize) -> (usize, Range<usize>) {
        let (in_first, in_others) = (FIRST / self.block_size, BUFFER / self.block_size);
        let (buffer, place) = match image.checked_sub(in_first) {
            None => (0, image),
            Some(image) => (1 + image / in_others, image % in_others),
        };
        let start = place * self.block_size;
        (buffer, start..start + self.block_size)
    }

    pub fn push(&mut self, block: u64, frame: u32, bytes: &[u8]) -> &mut [u8] {
        let image = self.blocks.len();
        let (buffer, range) = self.place(image);
        if buffer == self.buffers.len() {
            self.buffers.push(AlignedBuf::zeroed(if buffer == 0 { FIRST } else { BUFFER }));
        }
        self.blocks.push((Placed { block, frame }, image));
        let place = &mut self.buffers[buffer][range];
        place.copy_from_slice(bytes);
        place
    }

    pub fn get(&self, image: usize) -> &[u8] {
        let (buffer, range) = self.place(image);
        &self.buffers[buffer][range]
    }

    pub fn get_mut(&mut self, image: usize) -> &mut [u8] {
        let (buffer, range) = self.place(image);
        &mut self.buffers[buffer][range]
    }

    /// Forgets all images.
    pub fn clear(&mut self) {
        let (used, _) = self.place(self.blocks.len());
        self.buffers.truncate((used + 1).max(self.buffers.len() / 2).min(BUFFERS_KEPT));
        self.blocks.clear();
    }
}
