//! Changing a metadata block while noting which of its granules changed, and the seam through which structures above
//! the cache (trees, space, extents) reach blocks.

use crate::cache::SharedBytes;
use crate::error::Result;
use myriad_format::{BlockKind, FsBlock, Geometry};

/// A metadata block open for change. Every change marks the granules it touches (1/64 of the block, at least 8 bytes):
/// they are what the log copies.
pub struct BlockEdit<'a> {
    bytes: Bytes<'a>,
    mask: &'a mut u64,
    granule_bits: u32,
    before: Option<&'a mut Before>,
}

/// The granules of a block that an edit has changed, as they were before: for an order of writes that may have to show them.
#[derive(Default)]
pub(crate) struct Before {
    /// As many bytes as the block; only those of changed granules mean anything.
    bytes: Vec<u8>,
    granules: u64,
}

impl Before {
    /// Begins anew, for a block of so many bytes.
    pub fn begin(&mut self, len: usize) {
        self.bytes.resize(len, 0);
        self.granules = 0;
    }

    fn keep(&mut self, granules: u64, granule_bits: u32, bytes: &[u8]) {
        let mut new = granules & !self.granules;
        self.granules |= new;
        while new != 0 {
            let start = (new.trailing_zeros() as usize) << granule_bits;
            let granule = start..start + (1 << granule_bits);
            self.bytes[granule.clone()].copy_from_slice(&bytes[granule]);
            new &= new - 1;
        }
    }

    /// The words of 8 bytes that differ from what the block holds now: where they begin, and what they were.
    pub fn differences<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = (usize, &'a [u8])> {
        let words_per_granule = (bytes.len() / 64).max(8) / 8;
        let granules = (0..64).filter(|granule| self.granules >> granule & 1 == 1);
        let words = granules.flat_map(move |granule| granule * words_per_granule..(granule + 1) * words_per_granule);
        words.map(|word| word * 8).filter_map(move |at| {
            let was = &self.bytes[at..at + 8];
            (was != &bytes[at..at + 8]).then_some((at, was))
        })
    }
}

/// The bytes of a block that is being changed.
enum Bytes<'a> {
    /// Nobody else looks at them.
    Own(&'a mut [u8]),
    /// Others may copy them meanwhile, without a latch: they are changed by [`BlockEdit::put`] alone.
    Shared(SharedBytes<'a>),
}

impl<'a> BlockEdit<'a> {
    /// `mask` gains a bit for every granule changed.
    #[inline]
    pub fn new(bytes: &'a mut [u8], mask: &'a mut u64) -> Self {
        Self::of(Bytes::Own(bytes), mask)
    }

    /// As [`Self::new`], of a block that others may copy meanwhile.
    #[inline]
    pub(crate) fn shared(bytes: SharedBytes<'a>, mask: &'a mut u64) -> Self {
        Self::of(Bytes::Shared(bytes), mask)
    }

    #[inline]
    fn of(bytes: Bytes<'a>, mask: &'a mut u64) -> Self {
        let mut edit = Self { bytes, mask, granule_bits: 0, before: None };
        edit.granule_bits = (edit.bytes().len() / 64).max(8).trailing_zeros();
        edit
    }

    /// What it changes is kept as it was.
    pub(crate) fn keeping(self, before: Option<&'a mut Before>) -> Self {
        Self { before, ..self }
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Own(bytes) => bytes,
            Bytes::Shared(bytes) => bytes.get(),
        }
    }

    #[inline]
    fn own(&mut self) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Own(bytes) => bytes,
            Bytes::Shared(_) => panic!("a block of inodes is changed by `put`"),
        }
    }

    /// The bytes `offset..offset + len`, for change; all their granules are marked. Not of a block of inodes that is in use.
    #[inline(always)]
    pub fn range_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        self.mark(offset, len);
        &mut self.own()[offset..offset + len]
    }

    #[inline(always)]
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.mark(offset, bytes.len());
        match &mut self.bytes {
            Bytes::Own(own) => own[offset..offset + bytes.len()].copy_from_slice(bytes),
            Bytes::Shared(shared) => shared.put(offset, bytes),
        }
    }

    /// Puts bytes of whole words at a multiple of eight, at most 64 of them; only words that differ are changed and marked.
    #[inline]
    pub fn put_changed(&mut self, offset: usize, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty() && offset % 8 == 0 && words.len() <= 64);
        if self.before.is_some() {
            return self.put_changed_keeping(offset, words);
        }
        let mut changed = match &mut self.bytes {
            Bytes::Own(own) => {
                let mut changed = 0_u64;
                let (old, _) = own[offset..offset + bytes.len()].as_chunks_mut::<8>();
                for (i, (old, new)) in old.iter_mut().zip(words).enumerate() {
                    if old != new {
                        *old = *new;
                        changed |= 1 << i;
                    }
                }
                changed
            }
            Bytes::Shared(shared) => shared.put_changed(offset, words),
        };
        while changed != 0 {
            // A granule is a whole number of words.
            *self.mask |= 1 << ((offset + changed.trailing_zeros() as usize * 8) >> self.granule_bits);
            changed &= changed - 1;
        }
    }

    /// As [`Self::put_changed`], when what changes is kept as it was: a granule before the first of its words changes.
    #[cold]
    fn put_changed_keeping(&mut self, offset: usize, words: &[[u8; 8]]) {
        for (at, new) in (offset..).step_by(8).zip(words) {
            if self.bytes()[at..at + 8] != *new {
                self.put(at, new);
            }
        }
    }

    /// Moves `len` bytes inside the block, as `memmove`; the target's granules are marked. Not of a block of inodes that is in use.
    pub fn copy_within(&mut self, source: usize, target: usize, len: usize) {
        self.mark(target, len);
        self.own().copy_within(source..source + len, target);
    }

    #[inline(always)]
    fn mark(&mut self, offset: usize, len: usize) {
        debug_assert!(offset + len <= self.bytes().len());
        if len == 0 {
            return;
        }
        let first = offset >> self.granule_bits;
        let last = (offset + len - 1) >> self.granule_bits;
        let granules = (u64::MAX << first) & (u64::MAX >> (63 - last));
        if self.before.is_some() {
            self.keep(granules);
        }
        *self.mask |= granules;
    }

    #[cold]
    fn keep(&mut self, granules: u64) {
        let bytes = match &self.bytes {
            Bytes::Own(bytes) => bytes,
            Bytes::Shared(bytes) => bytes.get(),
        };
        if let Some(before) = &mut self.before {
            before.keep(granules, self.granule_bits, bytes);
        }
    }
}

/// Metadata blocks by address, to look at. The engine's looks and transactions implement it over the cache; tests over a
/// plain map.
pub trait BlockRead {
    fn geometry(&self) -> Geometry;
    /// Reads a block of the given kind; one of another kind, or one that fails its checks, is an error.
    fn read<R>(&mut self, block: FsBlock, kind: BlockKind, f: impl FnOnce(&[u8]) -> R) -> Result<R>;
}

/// Metadata blocks by address, to change.
pub trait BlockStore: BlockRead {
    /// The epoch whose changes are gathered. At its end, a count that goes up and down all the time may be written once; `None`: each
    /// change of it is written at once.
    fn epoch(&self) -> Option<u64> {
        None
    }
    /// Changes a block of the given kind.
    fn change<R>(&mut self, block: FsBlock, kind: BlockKind, f: impl FnOnce(&mut BlockEdit<'_>) -> R) -> Result<R>;
    /// Makes a block one of the given kind, header filled in and the rest zero, whatever it held before.
    fn init<R>(
        &mut self,
        block: NewBlock,
        kind: BlockKind,
        owner: u64,
        f: impl FnOnce(&mut BlockEdit<'_>) -> R,
    ) -> Result<R>;
    /// Forgets a block that was metadata and is being freed: nothing of what it holds is written any more. Who still holds the number of an
    /// inode in it does not find there again what the device has of it.
    fn forget(&mut self, block: FsBlock);
}

/// A block that is to become metadata, and where it comes from: that decides how the order in force may write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBlock {
    pub block: FsBlock,
    pub origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Free space: the committed state does not use the block, so it may be written at once.
    Free,
    /// It may have been forgotten since the last commit: the committed state may still use it until the next one.
    Reused,
}

impl NewBlock {
    /// A block taken from free space, which a freed block reaches only when its freeing is durable; or a block of a new group.
    pub fn free(block: FsBlock) -> Self {
        Self { block, origin: Origin::Free }
    }

    pub fn reused(block: FsBlock) -> Self {
        Self { block, origin: Origin::Reused }
    }
}

/// Where a tree's nodes come from and go to.
pub trait NodeSource<S: BlockStore> {
    /// A block for a new node; not yet initialised.
    fn allocate(&mut self, store: &mut S) -> Result<NewBlock>;
    /// Takes back a node's block, which the store has forgotten already, or a block it allocated that was never used.
    fn free(&mut self, store: &mut S, block: FsBlock) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_the_granules_it_touches() {
        let mut bytes = vec![0; 4096];
        let mut mask = 0;
        let mut edit = BlockEdit::new(&mut bytes, &mut mask);
        edit.put(63, &[1, 2]);
        edit.put(4095, &[3]);
        edit.copy_within(0, 640, 64);
        assert_eq!(mask, 0b11 | 1 << 63 | 1 << 10);
        let mut small = vec![0; 512];
        let mut mask = 0;
        BlockEdit::new(&mut small, &mut mask).put(8, &[1; 8]);
        assert_eq!(mask, 0b10);
    }

    #[test]
    fn keeps_what_it_changes_as_it_was() {
        for len in [512, 4096, 65536] {
            let mut bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let was = bytes.clone();
            let mut before = Before::default();
            before.begin(len);
            let mut mask = 0;
            let mut edit = BlockEdit::new(&mut bytes, &mut mask).keeping(Some(&mut before));
            edit.put(16, &[0xEE; 8]);
            edit.put(20, &[0xDD; 2]);
            // As it is, and back again.
            edit.put(len - 16, &was[len - 16..len - 8]);
            edit.put(len - 8, &[0xCC; 8]);
            edit.put(len - 8, &was[len - 8..]);
            edit.range_mut(256, 16).fill(0xBB);
            let words = [&was[384..392], &[0xAA; 8], &was[400..408]].concat();
            edit.put_changed(384, &words);
            let found: Vec<_> = before.differences(&bytes).collect();
            assert_eq!(found, [16, 256, 264, 392].map(|at| (at, &was[at..at + 8])), "{len}");
        }
    }
}
