//! The table of inode slots: what the inode pass saw of each, and what names add to that.
//!
//! Nine bytes a slot, for some groups at a time: those that fit first, then as many of the others as fit, read again. Directories
//! are gone through once for each part: time grows instead of memory. A group is never parted.
//!
//! The slots of all inodes at once took 296 MiB for 10^7 files and 2 GiB for 10^8, on a machine that may be in trouble already.
//! Sorting what names say in a file needs room on the host, which a rescue system may not have. Fewer bytes a slot would miss
//! damage (digests of 16 bits one wrong identity in 65,536, link counts of 8 bits one in 256) and still grow. The price: from a
//! few million files on, one more pass over all names for each 8 million slots (`Options::slots_max`). What the first round left
//! out of a damaged directory is remembered, for otherwise the later rounds would find other names.
//! `groups_by_themselves_show_what_all_do` (`tests/damage/`) compares. Repair still knows all inodes at once. Names that lie with
//! their inodes would undo this.

use myriad_format::inode::RawInode;
use myriad_format::{AgNo, FsBlock, Geometry, Ino};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

/// Bits of a slot's state: the low four are the file type, 0 for "no inode here".
pub(crate) mod slot_bit {
    pub const TYPE: u8 = 15;
    /// An entry was found that the inode's identity describes.
    pub const IDENTITY: u8 = 1 << 4;
    /// In the list of orphans.
    pub const ORPHAN: u8 = 1 << 5;
    /// Its link count on disk is 0.
    pub const NO_LINKS: u8 = 1 << 6;
}

/// A slot of one inode block, as the inode pass saw it.
#[derive(Clone, Copy, Default)]
pub(crate) struct SlotInfo {
    state: u8,
    identity: u32,
    nlink: u32,
}

impl SlotInfo {
    pub fn is_used(&self) -> bool {
        self.state & slot_bit::TYPE != 0
    }

    pub fn of(raw: &RawInode) -> Self {
        let no_links = if raw.nlink.get() == 0 { slot_bit::NO_LINKS } else { 0 };
        Self {
            state: (raw.mode.get() >> 12) as u8 | no_links,
            identity: identity_digest(raw.parent.get(), raw.name_hash.get(), raw.entry_position.get()),
            nlink: raw.nlink.get(),
        }
    }
}

/// Slots of a run of initialised inode blocks.
pub(crate) struct Span {
    block: u64,
    count: u64,
    state: Box<[AtomicU8]>,
    identity: Box<[u32]>,
    /// Links on disk less names found, wrapping.
    links: Box<[AtomicU32]>,
}

impl Span {
    pub fn new(block: FsBlock, slots: &[SlotInfo], slots_per_block: u32) -> Self {
        Self {
            block: block.0,
            count: slots.len() as u64 / u64::from(slots_per_block),
            state: slots.iter().map(|slot| AtomicU8::new(slot.state)).collect(),
            identity: slots.iter().map(|slot| slot.identity).collect(),
            links: slots.iter().map(|slot| AtomicU32::new(slot.nlink)).collect(),
        }
    }
}

/// The groups whose slots a table has.
pub(crate) enum Part {
    /// All but these: also what lies in no group that could be read.
    AllBut(BTreeSet<AgNo>),
    Only(BTreeSet<AgNo>),
}

/// Slots of a part of the volume.
pub(crate) struct SlotTable<'a> {
    geometry: &'a Geometry,
    part: Part,
    /// By ascending block; they do not overlap.
    spans: Vec<Span>,
}

impl<'a> SlotTable<'a> {
    pub fn new(geometry: &'a Geometry, part: Part, spans: Vec<Span>) -> Self {
        debug_assert!(spans.windows(2).all(|pair| pair[0].block + pair[0].count <= pair[1].block));
        Self { geometry, part, spans }
    }

    /// Whether the table would have the inode, if it is in use.
    pub fn covers(&self, ino: Ino) -> bool {
        let ag = self.geometry.locate(ino).map(|(block, _)| self.geometry.ag_of(block));
        match &self.part {
            Part::AllBut(groups) => ag.is_none_or(|ag| !groups.contains(&ag)),
            Part::Only(groups) => ag.is_some_and(|ag| groups.contains(&ag)),
        }
    }

    /// The slot of an inode that is in use.
    pub fn find(&self, ino: Ino) -> Option<SlotRef<'_>> {
        let (block, slot) = self.geometry.locate(ino)?;
        let after = self.spans.partition_point(|span| span.block <= block.0);
        let span = self.spans[..after].last()?;
        let offset = block.0 - span.block;
        let index = (offset * u64::from(self.geometry.slots_per_block()) + u64::from(slot)) as usize;
        let slot = SlotRef { span, index };
        (offset < span.count && slot.state() & slot_bit::TYPE != 0).then_some(slot)
    }

    /// Every inode in use, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, SlotRef<'_>)> {
        let slots = self.geometry.slots_per_block() as usize;
        self.spans.iter().flat_map(move |span| {
            (0..span.state.len()).filter_map(move |index| {
                let slot = SlotRef { span, index };
                let block = FsBlock(span.block + (index / slots) as u64);
                (slot.state() & slot_bit::TYPE != 0).then(|| (self.geometry.ino(block, (index % slots) as u32), slot))
            })
        })
    }
}

/// One slot of the table.
#[derive(Clone, Copy)]
pub(crate) struct SlotRef<'a> {
    span: &'a Span,
    index: usize,
}

impl SlotRef<'_> {
    pub fn state(&self) -> u8 {
        self.span.state[self.index].load(Relaxed)
    }

    pub fn file_type(&self) -> u8 {
        self.state() & slot_bit::TYPE
    }

    pub fn set(&self, bits: u8) -> u8 {
        self.span.state[self.index].fetch_or(bits, Relaxed)
    }

    pub fn identity(&self) -> u32 {
        self.span.identity[self.index]
    }

    /// Counts names found.
    pub fn found(&self, names: u32) {
        self.span.links[self.index].fetch_sub(names, Relaxed);
    }

    /// Links on disk less names found.
    pub fn links_left(&self) -> u32 {
        self.span.links[self.index].load(Relaxed)
    }
}

/// 32 bits that stand for an identity, so that comparing a name with its inode needs no read of the inode.
pub(crate) fn identity_digest(parent: u64, name_hash: u64, position: u32) -> u32 {
    let mut mixed = parent.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ name_hash.rotate_left(17) ^ u64::from(position) << 7;
    mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 32) as u32
}
