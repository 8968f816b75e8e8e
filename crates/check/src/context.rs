//! The state that all passes share: the reader, the owners of blocks, the findings.

use crate::blocks::Blocks;
use crate::findings::number;
use crate::io::{Damage, Reader};
use crate::needed::NeededParts;
use crate::options::Progress;
use crate::report::{Finding, Place};
use myriad_device::Moment;
use myriad_format::choices::{Choices, Directory, Order};
use myriad_format::extent::Extent;
use myriad_format::leftovers::Leftovers;
use myriad_format::superblock::Superblock;
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, Geometry, Ino, NameHasher, group};
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Findings as they come in, capped.
pub(crate) struct Sink {
    findings: Mutex<Vec<Finding>>,
    count: AtomicU64,
    /// Of findings that are no leftovers.
    damage_count: AtomicU64,
    /// Of findings about contents of files.
    data_count: AtomicU64,
    max: usize,
}

impl Sink {
    pub fn new(max: usize) -> Self {
        Self {
            findings: Mutex::new(Vec::new()),
            count: AtomicU64::new(0),
            damage_count: AtomicU64::new(0),
            data_count: AtomicU64::new(0),
            max,
        }
    }

    pub fn add(&self, finding: Finding) {
        self.damage_count.fetch_add(u64::from(!finding.is_leftover), Relaxed);
        self.data_count.fetch_add(u64::from(finding.is_of_data()), Relaxed);
        if self.count.fetch_add(1, Relaxed) < self.max as u64 {
            self.findings.lock().unwrap_or_else(PoisonError::into_inner).push(finding);
        }
    }

    /// How many more findings are kept.
    pub fn room(&self) -> usize {
        self.max.saturating_sub(self.count.load(Relaxed) as usize)
    }

    /// How many findings are no leftovers.
    pub fn damage_count(&self) -> u64 {
        self.damage_count.load(Relaxed)
    }

    /// How many findings are about contents of files.
    pub fn data_count(&self) -> u64 {
        self.data_count.load(Relaxed)
    }

    /// Findings sorted by place, so that a report does not depend on which thread was faster; and their full count.
    pub fn take(self) -> (Vec<Finding>, u64) {
        let mut findings = self.findings.into_inner().unwrap_or_else(PoisonError::into_inner);
        findings
            .sort_by(|a, b| (a.place, a.number, &a.file, &a.message).cmp(&(b.place, b.number, &b.file, &b.message)));
        (findings, self.count.into_inner())
    }
}

/// Of a leftover that only a repair puts right.
pub(crate) fn for_repair(leftovers: &mut Leftovers) {
    leftovers.others += 1;
}

/// Of a count that each opening makes anew after a crash.
pub(crate) fn counted_anew(_: &mut Leftovers) {}

/// Part of the time of a scrub that the passes before it are said to take.
const METADATA_SHARE: f64 = 0.1;

/// What a pass works with.
pub(crate) struct Context<'a> {
    pub reader: Reader,
    pub superblock: Superblock,
    pub choices: Choices,
    pub geometry: Geometry,
    pub hasher: NameHasher,
    /// Groups in use.
    pub ag_used: u32,
    /// Blocks with an owner, the groups' fixed blocks apart.
    pub blocks: Blocks,
    /// Runs that were taken a second time: all blocks with several owners are among them.
    pub contested: Blocks,
    /// Fixed blocks that hold a tree node.
    pub fixed: Mutex<HashSet<FsBlock>>,
    pub sink: Sink,
    /// What power loss has left behind, if it is to be told.
    pub leftovers: Option<Mutex<Leftovers>>,
    /// Blocks of metadata that the device could not read.
    pub unreadable: AtomicU64,
    pub threads: usize,
    pub progress: Option<&'a (dyn Fn(Progress) -> bool + Sync)>,
    pub cancelled: AtomicBool,
    /// Compatible features of which the volume has something: to compare with what the superblock says.
    pub features: AtomicU64,
    pub entries: AtomicU64,
    /// Blocks that hold file data, if they are to be read.
    pub data: Option<Blocks>,
    pub data_blocks: AtomicU64,
    /// What is looked at, if it is a moment of a volume in use: its data may be freed while it is read.
    pub moment: Option<&'a Moment>,
    pub needed_parts: NeededParts,
    /// Files with content behind their end. If the list of orphans does not name one, nothing cuts it off: it shows when the file grows.
    pub past_end: Mutex<BTreeSet<Ino>>,
    /// Slots whose table is held, and the most there may be.
    pub slots_held: AtomicU64,
    pub slots_max: u64,
}

impl Context<'_> {
    /// How the volume's directories lie on the device.
    pub fn directory_kind(&self) -> Directory {
        directory_kind(&self.superblock)
    }

    /// Whether the volume may have been of order `softdep`, under which power loss leaves what nothing lists.
    pub fn may_have_leftovers(&self) -> bool {
        self.choices.check_order(Order::Soft).is_ok() && !self.geometry.has_checksums
    }

    pub fn report(&self, number: u32, place: Place, message: impl Into<String>) {
        self.sink.add(Finding { number, place, message: message.into(), file: None, is_leftover: false });
    }

    /// As [`Self::report`], of what power loss may leave on a volume of order `softdep`. `note` says how it is given back.
    pub fn report_leftover(
        &self,
        number: u32,
        place: Place,
        message: impl Into<String>,
        note: impl FnOnce(&mut Leftovers),
    ) {
        self.sink.add(Finding { number, place, message: message.into(), file: None, is_leftover: true });
        if let Some(leftovers) = &self.leftovers {
            note(&mut leftovers.lock().unwrap_or_else(PoisonError::into_inner));
        }
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
            self.contested.claim(start, length);
            self.report(number::BLOCK_TWICE, place, format!("{what}: block {block} has another owner already"));
            return false;
        }
        true
    }

    /// Takes the block of a tree node. A group's trees stay in their group, where they may also use the fixed blocks made
    /// for trees: each of those is a node of some tree of the group or in its reserve.
    pub fn claim_node(&self, block: FsBlock, kind: BlockKind, owner: u64, place: Place) -> bool {
        if matches!(kind, BlockKind::ExtentTree | BlockKind::Pointers) {
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

/// How a volume's directories lie on the device. A superblock that says something unknown has been refused.
pub(crate) fn directory_kind(superblock: &Superblock) -> Directory {
    Directory::from_code(superblock.directory).expect("a superblock that was read has known choices")
}
