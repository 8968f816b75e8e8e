//! A counter on every distinct path, read by `stats`, benchmarks and tests.
//!
//! Counters are kept a copy a thread slot, so that counting is a plain add on a line nobody else writes.

use crate::thread_slot::{SLOTS, thread_slot};
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What is counted.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Count { $($(#[$doc])* $name,)* }
        const NAMES: &[&str] = &[$(stringify!($name),)*];
    };
}

counters! {
    /// Operations by kind.
    creates, mkdirs, links, unlinks, rmdirs, renames, stats, setattrs, opens, reads, writes, truncates,
    readdirs, xattr_gets, xattr_sets, fsyncs, syncs,
    /// Path resolution.
    walk_components, parent_memo_hits, name_cache_hits, name_cache_misses,
    /// Names that were known not to be there.
    name_cache_absent_hits,
    /// Blocks asked of the cache, and those that were not there.
    blocks_touched, cache_misses, blocks_read_ahead, cache_evictions, cache_sweeps,
    /// Of those read ahead, blocks that were evicted before anybody asked for them.
    blocks_ahead_unused,
    /// Of these, blocks of directories: those found in the cache (as kept here those asked for, see [`Counters::snapshot`]), read, evicted
    /// alive, and brought in while their pool was full.
    dir_cache_hits, dir_cache_misses, dir_cache_evictions, dir_cache_over,
    /// Directories.
    dir_scans, dir_index_probes, dir_index_false_hits, dir_leaf_splits, dir_doublings, dir_to_block, dir_to_index,
    dir_to_inline, dir_compactions, dir_trims, dir_merges, dir_tags_compared,
    /// Blocks that counts said have no names, and free slots that runs led past: neither was looked at.
    dir_blocks_skipped, dir_slots_skipped,
    /// Hashes in memory over directories.
    dirhash_hits, dirhash_misses, dirhash_probes, dirhash_expected, dirhash_builds, dirhash_declined, dirhash_recycled,
    dirhash_outgrown, dirhash_recharges, dirhash_mismatches,
    /// Where new directories went: below the root, into their parent's region, past it, as the backstop has it, and spread by a rule
    /// that does not ask for the parent.
    placed_first_level, placed_near, placed_past, placed_backstop, placed_spread,
    /// Sections of files that began in a group of their own.
    data_sections,
    /// Space.
    blocks_allocated, blocks_freed, blocks_discarded, chunk_blocks_freed, inodes_allocated, inodes_freed,
    /// Freed blocks that could not be given back to their group, because it is damaged.
    blocks_stranded,
    /// Slots of inodes that could not be given back, because what says so could not be read.
    inodes_stranded,
    /// Order.
    checkpoints, checkpoint_bytes, checkpoint_fresh_blocks, checkpoint_data_blocks, checkpoint_groups, blocks_homed,
    log_stalls, soft_rounds, soft_images, soft_forced, soft_fsyncs_of_all, soft_overdue, soft_sheds, soft_stalls,
    orphans_reclaimed, deferred_truncates, before_images,
    /// File data.
    delalloc_flushes, delalloc_pages, delalloc_cancelled, data_reads, direct_reads, data_checksum_errors,
}

const COUNT: usize = NAMES.len();

#[repr(align(128))]
struct Row([AtomicU64; COUNT]);

pub(crate) struct Counters {
    /// As many as there are slots, so that a slot needs no comparison.
    rows: Box<[Row; SLOTS]>,
}

impl Counters {
    pub fn new() -> Self {
        let rows: Box<[Row]> = (0..SLOTS).map(|_| Row([const { AtomicU64::new(0) }; COUNT])).collect();
        Self { rows: rows.try_into().unwrap_or_else(|_| unreachable!("a row for each slot")) }
    }

    #[inline]
    pub fn add(&self, count: Count, n: u64) {
        let cell = &self.rows[thread_slot() % SLOTS].0[count as usize];
        // More threads than slots may lose an increment between the two; a counter is a measure, not a fact to act on.
        cell.store(cell.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    #[inline]
    pub fn bump(&self, count: Count) {
        self.add(count, 1);
    }

    pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
        let sum = |i: usize| self.rows.iter().map(|row| row.0[i].load(Ordering::Relaxed)).sum();
        let mut all: Vec<(&'static str, u64)> = NAMES.iter().enumerate().map(|(i, &name)| (name, sum(i))).collect();
        // Each block asked for is counted once, in one of two cells: a second one would cost an instruction or ten each time.
        let asked = all[Count::dir_cache_hits as usize].1;
        all[Count::blocks_touched as usize].1 += asked;
        all[Count::dir_cache_hits as usize].1 = asked.saturating_sub(all[Count::dir_cache_misses as usize].1);
        all
    }
}
