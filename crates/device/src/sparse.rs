//! Sparse bytes, shared copy-on-write: what the memory and overlay devices are made of.
//!
//! ```text
//! Sparse -> 64 shards -> Arc<map: chunk number -> Arc<chunk>, or "zeros">
//! ```
//!
//! A copy shares all shards and costs 64 reference counts, whatever the image holds. The first change to a shard
//! copies its map (pointers only), the first change to a chunk copies its 4 KiB. So the cost of a state made from
//! another is what it changes, and dropping it frees just that.
//!
//! Locking: one shard at a time. A write that crosses chunks is not atomic against a concurrent reader of them, as
//! on a real device.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::BlockDevice;

/// Bytes that are allocated and shared together. Small, because mkfs of a huge image writes one block in each of many
/// thousand groups, and because crash images differ from each other by single blocks.
pub(crate) const CHUNK_SIZE: usize = 4096;

/// Enough that a copy of one shard's map is cheap, few enough that copying the image is.
const SHARD_COUNT: usize = 64;

/// Neighbouring chunks share a shard (256 KiB), so that a local change copies few maps.
const SHARD_RUN_CHUNKS: u64 = 64;

type Chunk = [u8; CHUNK_SIZE];
/// `None` is a chunk of zeros that hides the base's bytes.
type Shard = HashMap<u64, Option<Arc<Chunk>>, BuildHasherDefault<ChunkHasher>>;

/// One multiplication: chunk numbers come from our own tests, not from an attacker.
#[derive(Default)]
struct ChunkHasher(u64);

impl Hasher for ChunkHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // Fibonacci hashing; the map takes its bucket from the low bits and a tag from the high ones.
        self.0 = value.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}

/// What lies below an image: zeros, or a device that is only read. `size` bytes of it exist.
#[derive(Clone, Copy)]
pub(crate) struct Base<'a> {
    pub device: Option<&'a dyn BlockDevice>,
    pub size: u64,
}

impl Base<'_> {
    fn chunk(&self, number: u64) -> io::Result<Chunk> {
        let mut chunk = [0; CHUNK_SIZE];
        if let Some(device) = self.device {
            let start = number * CHUNK_SIZE as u64;
            // The device's last chunk may be cut short.
            let len = self.size.saturating_sub(start).min(CHUNK_SIZE as u64) as usize;
            device.read(start, &mut chunk[..len])?;
        }
        Ok(chunk)
    }
}

pub(crate) struct Sparse {
    shards: [RwLock<Arc<Shard>>; SHARD_COUNT],
}

impl Sparse {
    pub fn new() -> Self {
        Self { shards: std::array::from_fn(|_| RwLock::default()) }
    }

    /// A copy that shares everything until either side changes it. Taken shard by shard, so it is one moment's image
    /// only while nobody writes.
    pub fn share(&self) -> Self {
        Self { shards: std::array::from_fn(|index| RwLock::new(Arc::clone(&self.shards[index].read()))) }
    }

    /// Chunks that differ from the base, or were written at all if it is zeros.
    pub fn chunk_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Callers of this and of `write` have checked that the range lies within `base.size`.
    pub fn read(&self, base: Base<'_>, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match base.device {
            // One read of the whole range keeps the base's alignment, whatever the chunks in it are.
            Some(device) if !self.covers(offset, buf.len()) => device.read(offset, buf)?,
            Some(_) => {}
            None => buf.fill(0),
        }
        for piece in pieces(offset, buf.len()) {
            let shard = self.shard(piece.chunk).read();
            let part = &mut buf[piece.start..piece.start + piece.len];
            match shard.get(&piece.chunk) {
                Some(Some(chunk)) => part.copy_from_slice(&chunk[piece.within..piece.within + piece.len]),
                Some(None) => part.fill(0),
                None => {}
            }
        }
        Ok(())
    }

    pub fn write(&self, base: Base<'_>, offset: u64, buf: &[u8]) -> io::Result<()> {
        for piece in pieces(offset, buf.len()) {
            let part = &buf[piece.start..piece.start + piece.len];
            let mut shard = self.shard(piece.chunk).write();
            if let Ok(whole) = Chunk::try_from(part) {
                Arc::make_mut(&mut shard).insert(piece.chunk, Some(Arc::new(whole)));
                continue;
            }
            // Reading first keeps the image as it was when the base fails.
            let fresh = match shard.get(&piece.chunk) {
                Some(Some(_)) => None,
                Some(None) => Some([0; CHUNK_SIZE]),
                None => Some(base.chunk(piece.chunk)?),
            };
            let slot = Arc::make_mut(&mut shard).entry(piece.chunk).or_default();
            if let Some(fresh) = fresh {
                *slot = Some(Arc::new(fresh));
            }
            let chunk = slot.as_mut().expect("slot was filled above");
            Arc::make_mut(chunk)[piece.within..piece.within + piece.len].copy_from_slice(part);
        }
        Ok(())
    }

    /// Makes a range read as zeros. Whole chunks are dropped.
    pub fn erase(&self, base: Base<'_>, offset: u64, length: u64) -> io::Result<()> {
        let end = offset + length;
        let chunk_size = CHUNK_SIZE as u64;
        let whole = offset.div_ceil(chunk_size)..end / chunk_size;
        if whole.is_empty() {
            return self.write_zeros(base, offset, length);
        }
        self.write_zeros(base, offset, whole.start * chunk_size - offset)?;
        self.write_zeros(base, whole.end * chunk_size, end - whole.end * chunk_size)?;
        if base.device.is_some() {
            for chunk in whole {
                Arc::make_mut(&mut self.shard(chunk).write()).insert(chunk, None);
            }
            return Ok(());
        }
        // Over zeros, absence is enough; what is costly is looking at each of the chunks of a huge range.
        for shard in &self.shards {
            let mut shard = shard.write();
            if shard.keys().any(|chunk| whole.contains(chunk)) {
                let map = Arc::make_mut(&mut shard);
                map.retain(|chunk, _| !whole.contains(chunk));
                map.shrink_to_fit();
            }
        }
        Ok(())
    }

    /// Fewer than two chunks' worth. Over a zero base a chunk that is absent stays absent.
    fn write_zeros(&self, base: Base<'_>, offset: u64, length: u64) -> io::Result<()> {
        const ZEROS: Chunk = [0; CHUNK_SIZE];
        for piece in pieces(offset, length as usize) {
            let absent = !self.shard(piece.chunk).read().contains_key(&piece.chunk);
            if absent && base.device.is_none() {
                continue;
            }
            self.write(base, offset + piece.start as u64, &ZEROS[..piece.len])?;
        }
        Ok(())
    }

    fn covers(&self, offset: u64, len: usize) -> bool {
        pieces(offset, len).all(|piece| self.shard(piece.chunk).read().contains_key(&piece.chunk))
    }

    fn shard(&self, chunk: u64) -> &RwLock<Arc<Shard>> {
        &self.shards[(chunk / SHARD_RUN_CHUNKS) as usize % SHARD_COUNT]
    }
}

/// The part of a request that falls into one chunk; all but the chunk's number are bytes.
struct Piece {
    chunk: u64,
    /// Where in the chunk.
    within: usize,
    /// Where in the request.
    start: usize,
    len: usize,
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut start = 0;
    std::iter::from_fn(move || {
        if start == len {
            return None;
        }
        let position = offset + start as u64;
        let within = (position % CHUNK_SIZE as u64) as usize;
        let piece =
            Piece { chunk: position / CHUNK_SIZE as u64, within, start, len: (CHUNK_SIZE - within).min(len - start) };
        start += piece.len;
        Some(piece)
    })
}
