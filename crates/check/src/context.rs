//! What every pass shares: the reader, who has which block, what was found, the table of inode slots.

use crate::blocks::Blocks;
use crate::findings::number;
use crate::io::{Damage, Reader};
use crate::report::{Finding, Place};
use crate::run::Progress;
use crate::tables::NeededParts;
use myriad_device::Moment;
use myriad_format::extent::Extent;
use myriad_format::superblock::Superblock;
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, Geometry, Ino, NameHasher, group};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Findings as they come in, capped.
pub(crate) struct Sink {
    findings: Mutex<Vec<Finding>>,
    count: AtomicU64,
    max: usize,
}

impl Sink {
    pub fn new(max: usize) -> Self {
        Self { findings: Mutex::new(Vec::new()), count: AtomicU64::new(0), max }
    }

    pub fn add(&self, finding: Finding) {
        if self.count.fetch_add(1, Relaxed) < self.max as u64 {
            self.findings.lock().unwrap_or_else(PoisonError::into_inner).push(finding);
        }
    }

    /// Findings sorted by place, so that a report does not depend on which thread was faster; and their full count.
    pub fn take(self) -> (Vec<Finding>, u64) {
        let mut findings = self.findings.into_inner().unwrap_or_else(PoisonError::into_inner);
        findings
            .sort_by(|a, b| (a.place, a.number, &a.file, &a.message).cmp(&(b.place, b.number, &b.file, &b.message)));
        (findings, self.count.into_inner())
    }
}

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

/// A run of initialised inode blocks and the index of its first slot in the table.
#[derive(Clone, Copy)]
struct Span {
    block: u64,
    count: u32,
    base: u64,
}

/// A word or two for every inode slot of the volume.
#[derive(Default)]
pub(crate) struct SlotTable {
    spans: Vec<Span>,
    slots_per_block: u32,
    state: Vec<AtomicU8>,
    identity: Vec<u32>,
    /// Links on disk less names found, wrapping.
    links: Vec<AtomicU32>,
}

/// A slot of one inode block, as the inode pass saw it.
#[derive(Clone, Copy, Default)]
pub(crate) struct SlotInfo {
    pub state: u8,
    pub identity: u32,
    pub nlink: u32,
}

impl SlotTable {
    pub fn new(geometry: &Geometry) -> Self {
        Self { slots_per_block: geometry.slots_per_block(), ..Self::default() }
    }

    /// Adds the next run; runs come by ascending block and do not overlap.
    pub fn push(&mut self, block: FsBlock, slots: &[SlotInfo]) {
        let count = slots.len() as u32 / self.slots_per_block;
        debug_assert!(self.spans.last().is_none_or(|span| span.block + u64::from(span.count) <= block.0));
        self.spans.push(Span { block: block.0, count, base: self.state.len() as u64 });
        self.state.extend(slots.iter().map(|slot| AtomicU8::new(slot.state)));
        self.identity.extend(slots.iter().map(|slot| slot.identity));
        self.links.extend(slots.iter().map(|slot| AtomicU32::new(slot.nlink)));
    }

    fn index(&self, geometry: &Geometry, ino: Ino) -> Option<usize> {
        let (block, slot) = geometry.locate(ino)?;
        let after = self.spans.partition_point(|span| span.block <= block.0);
        let span = self.spans[..after].last()?;
        let offset = block.0 - span.block;
        (offset < u64::from(span.count))
            .then(|| (span.base + offset * u64::from(self.slots_per_block) + u64::from(slot)) as usize)
    }

    /// The slot of an inode that is in use.
    pub fn find(&self, geometry: &Geometry, ino: Ino) -> Option<SlotRef<'_>> {
        let index = self.index(geometry, ino)?;
        let slot = SlotRef { table: self, index };
        (slot.state() & slot_bit::TYPE != 0).then_some(slot)
    }

    /// Every inode in use, ascending.
    pub fn iter<'a>(&'a self, geometry: &'a Geometry) -> impl Iterator<Item = (Ino, SlotRef<'a>)> + 'a {
        let slots = u64::from(self.slots_per_block);
        self.spans.iter().flat_map(move |span| {
            (0..u64::from(span.count) * slots).filter_map(move |at| {
                let slot = SlotRef { table: self, index: (span.base + at) as usize };
                let used = slot.state() & slot_bit::TYPE != 0;
                used.then(|| (geometry.ino(FsBlock(span.block + at / slots), (at % slots) as u32), slot))
            })
        })
    }
}

/// One slot of the table.
#[derive(Clone, Copy)]
pub(crate) struct SlotRef<'a> {
    table: &'a SlotTable,
    index: usize,
}

impl SlotRef<'_> {
    pub fn state(&self) -> u8 {
        self.table.state[self.index].load(Relaxed)
    }

    pub fn file_type(&self) -> u8 {
        self.state() & slot_bit::TYPE
    }

    pub fn set(&self, bits: u8) -> u8 {
        self.table.state[self.index].fetch_or(bits, Relaxed)
    }

    pub fn identity(&self) -> u32 {
        self.table.identity[self.index]
    }

    /// Counts names found.
    pub fn found(&self, names: u32) {
        self.table.links[self.index].fetch_sub(names, Relaxed);
    }

    /// Links on disk less names found.
    pub fn links_left(&self) -> u32 {
        self.table.links[self.index].load(Relaxed)
    }
}

/// 32 bits that stand for an identity, so that comparing a name with its inode needs no read of the inode.
pub(crate) fn identity_digest(parent: u64, name_hash: u64, position: u32) -> u32 {
    let mut mixed = parent.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ name_hash.rotate_left(17) ^ u64::from(position) << 7;
    mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 32) as u32
}

/// Part of the time of a scrub that the passes before it are said to take.
const METADATA_SHARE: f64 = 0.1;

/// What a pass works with.
pub(crate) struct Context<'a> {
    pub reader: Reader,
    pub superblock: Superblock,
    pub geometry: Geometry,
    pub hasher: NameHasher,
    /// Groups in use.
    pub ag_used: u32,
    /// Blocks with an owner, the groups' fixed blocks apart.
    pub blocks: Blocks,
    /// Fixed blocks that hold a tree node.
    pub fixed: Mutex<HashSet<FsBlock>>,
    pub sink: Sink,
    /// Blocks of metadata that the device could not read.
    pub unreadable: AtomicU64,
    pub threads: usize,
    pub progress: Option<&'a (dyn Fn(Progress) -> bool + Sync)>,
    pub cancelled: AtomicBool,
    /// Whether some inode has attributes, an ACL: to compare with the feature word.
    pub has_xattr: AtomicBool,
    pub has_acl: AtomicBool,
    pub entries: AtomicU64,
    /// Blocks that hold file data, if they are to be read.
    pub data: Option<Blocks>,
    pub data_blocks: AtomicU64,
    /// What is looked at, if it is a moment of a volume in use: its data may be freed while it is read.
    pub moment: Option<&'a Moment>,
    pub needed_parts: NeededParts,
}

impl Context<'_> {
    pub fn report(&self, number: u32, place: Place, message: impl Into<String>) {
        self.sink.add(Finding { number, place, message: message.into(), file: None });
    }

    /// Notes an extent of a file or link.
    pub fn note_data(&self, extent: &Extent) {
        if extent.unwritten {
            return;
        }
        self.needed_parts.note(&self.geometry, extent);
        if let Some(data) = &self.data {
            data.claim(extent.start, u64::from(extent.length));
            self.data_blocks.fetch_add(u64::from(extent.length), Relaxed);
        }
    }

    /// Reports a block that cannot be believed.
    pub fn damage(&self, place: Place, damage: Damage) {
        match damage {
            Damage::Corrupt(corrupt) => self.report(corrupt.number(), place, corrupt.to_string()),
            Damage::Unreadable { block, error } => {
                self.unreadable.fetch_add(1, Relaxed);
                self.report(number::UNREADABLE, place, format!("block {block}: {error}"));
            }
        }
    }

    /// Tells the caller how far a phase is; `false`: stop.
    pub fn tick(&self, phase: &'static str, done: u64, total: u64, from: f64, to: f64) -> bool {
        // Reading all data takes longer than everything else.
        let share = if self.data.is_some() { METADATA_SHARE } else { 1.0 };
        self.tell(phase, done, total, from * share, to * share)
    }

    /// As [`Self::tick`], of the scrub.
    pub fn tick_scrub(&self, done: u64, total: u64) -> bool {
        self.tell("data", done, total, METADATA_SHARE, 1.0)
    }

    fn tell(&self, phase: &'static str, done: u64, total: u64, from: f64, to: f64) -> bool {
        if self.cancelled.load(Relaxed) {
            return false;
        }
        let Some(progress) = self.progress else { return true };
        let part = if total == 0 { 1.0 } else { done as f64 / total as f64 };
        let go_on = progress(Progress { phase, fraction: from + (to - from) * part.min(1.0) });
        if !go_on {
            self.cancelled.store(true, Relaxed);
        }
        go_on
    }

    /// Takes a run of data blocks for one owner; whether it was free to take.
    pub fn claim(&self, start: FsBlock, length: u64, place: Place, what: &str) -> bool {
        if !self.geometry.is_data_range(start, length) {
            self.report(
                number::BLOCK_VIRGIN,
                place,
                format!("{what}: blocks {start} + {length} are not inside one group's data"),
            );
            return false;
        }
        let ag = self.geometry.ag_of(start);
        if ag.0 >= self.ag_used {
            self.report(
                number::BLOCK_VIRGIN,
                place,
                format!("{what}: block {start} lies in group {ag}, said to be never used"),
            );
            return false;
        }
        if let Some(block) = self.blocks.claim(start, length) {
            self.report(number::BLOCK_TWICE, place, format!("{what}: block {block} has another owner already"));
            return false;
        }
        true
    }

    /// Takes the block of a tree node. A group's trees stay in their group, where they may also use the fixed blocks made
    /// for trees: each of those is a node of some tree of the group or in its reserve.
    pub fn claim_node(&self, block: FsBlock, kind: BlockKind, owner: u64, place: Place) -> bool {
        if kind == BlockKind::ExtentTree {
            return self.claim(block, 1, place, kind.name());
        }
        if block.0 >= self.geometry.block_count || u64::from(self.geometry.ag_of(block).0) != owner {
            self.report(number::BLOCK_VIRGIN, place, format!("{}: block {block} lies outside the group", kind.name()));
            return false;
        }
        self.claim_in_group(block, place, kind.name())
    }

    /// Takes a block of a group for its trees or its reserve.
    pub fn claim_in_group(&self, block: FsBlock, place: Place, what: &str) -> bool {
        if !is_tree_block(self.geometry.ag_block_of(block)) {
            return self.claim(block, 1, place, what);
        }
        let new = self.fixed.lock().unwrap_or_else(PoisonError::into_inner).insert(block);
        if !new {
            self.report(number::BLOCK_TWICE, place, format!("{what}: block {block} has another owner already"));
        }
        new
    }

    /// Whether a fixed block was taken by a tree or the reserve.
    pub fn is_fixed_taken(&self, block: FsBlock) -> bool {
        self.fixed.lock().unwrap_or_else(PoisonError::into_inner).contains(&block)
    }

    /// First record of a tree: `root` relative to group `ag`, `None` (reported) if that is impossible.
    pub fn group_block(&self, ag: AgNo, field: &'static str, root: u32) -> Option<FsBlock> {
        if root <= group::HEADER_BLOCK || root >= self.geometry.blocks_in(ag) {
            let corrupt = myriad_format::Corrupt::Group { ag, field, value: u64::from(root) };
            self.report(corrupt.number(), Place::Group(ag), corrupt.to_string());
            return None;
        }
        Some(self.geometry.fs_block(ag, AgBlock(root)))
    }
}

/// The fixed blocks that begin the group's trees.
pub(crate) fn is_tree_block(block: AgBlock) -> bool {
    (group::FIRST_BY_START_BLOCK..group::FIXED_BLOCKS).contains(&block.0)
}

/// Runs `work(index)` for `0..count` on `threads` threads; `work` answers `false` to stop them all.
pub(crate) fn in_parallel(threads: usize, count: u64, work: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let run = || {
        while !stop.load(Relaxed) {
            let index = next.fetch_add(1, Relaxed);
            if index >= count {
                break;
            }
            if !work(index) {
                stop.store(true, Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(count as usize) {
            scope.spawn(run);
        }
        run();
    });
}
