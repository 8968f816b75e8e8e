use super::blocks::Record;
use super::trees::{TRIM_SLACK, Trees};
use super::*;
use crate::btree::testing::{Rng, TestStore, geometry};
use crate::error::Error;
use crate::inodes::Inodes as Places;
use crate::inodes::chunks::Chunks;
use myriad_format::Geometry;
use myriad_format::btree::{FREE_BY_LENGTH, FREE_BY_START, NodeHeader};
use myriad_format::inode::ChunkRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// What tests look at inside a group.
impl AgSpace {
    fn geometry(&self) -> &Geometry {
        &self.blocks.pool.geometry
    }

    fn trees(&self) -> Option<&Trees> {
        match &self.blocks.record {
            Record::Trees(trees) => Some(trees),
            Record::Bitmap(_) => None,
        }
    }

    fn chunks(&self) -> &Chunks {
        match &self.inodes {
            Places::Chunks(chunks) => chunks,
            Places::Table(_) => panic!("the group has a table"),
        }
    }

    /// Blocks held back.
    fn reserve(&self) -> &[u32] {
        self.trees().map_or(&[], |trees| &trees.reserve.blocks[..trees.reserve.count])
    }

    fn reserve_need(&self) -> usize {
        self.trees().map_or(0, Trees::reserve_need)
    }

    /// Free extents in order of their start, without those held back.
    fn free_list(&mut self, store: &mut TestStore) -> Vec<(u32, u32)> {
        let mut list = Vec::new();
        let mut at = 0;
        while let Some((start, length)) = self.free_after(store, AgBlock(at)).unwrap() {
            list.push((start.0, length));
            at = start.0 + length;
        }
        list
    }

    fn inode_blocks(&self) -> u32 {
        self.chunks().blocks
    }

    fn chunk_list(&self, store: &mut TestStore) -> Vec<ChunkRecord> {
        let mut list = Vec::new();
        self.chunks().for_each_chunk(&self.blocks.pool, store, |chunk| list.push(*chunk)).unwrap();
        list
    }
}

/// How a test's group records its blocks and inodes.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Trees,
    Bitmap,
    /// A bitmap, and an inode table.
    Table,
}

/// A group, what the test has allocated in it, and the limbo that the engine would keep.
struct Fixture {
    store: TestStore,
    space: AgSpace,
    /// Allocated extents by start.
    used: BTreeMap<u32, u32>,
    limbo: Vec<(u32, u32)>,
    initially_free: u32,
}

/// Second group of two, so that volume and group addresses differ.
const AG: AgNo = AgNo(1);

impl Fixture {
    fn new(block_bits: u32, ag_bits: u32, region_bits: u32, blocks: u32, used: &[(u32, u32)]) -> Self {
        Self::of(Kind::Trees, block_bits, ag_bits, region_bits, blocks, used)
    }

    fn of(kind: Kind, block_bits: u32, ag_bits: u32, region_bits: u32, blocks: u32, used: &[(u32, u32)]) -> Self {
        let mut geometry = geometry(block_bits, ag_bits, region_bits, (1 << ag_bits) + u64::from(blocks));
        geometry.has_bitmap = kind != Kind::Trees;
        geometry.table_every = if kind == Kind::Table { 16 } else { 0 };
        let mut store = TestStore::new(geometry);
        let space = AgSpace::init_group(&mut store, AG, used).unwrap();
        store.commit();
        let initially_free = space.free_blocks();
        let mut fixture =
            Self { store, space, used: used.iter().copied().collect(), limbo: Vec::new(), initially_free };
        fixture.audit();
        fixture
    }

    fn free_list(&mut self) -> Vec<(u32, u32)> {
        self.space.free_list(&mut self.store)
    }

    /// Every block of the group has exactly one use, and all counts and both trees say the same.
    fn audit(&mut self) {
        let list = self.free_list();
        assert!(list.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "free extents touch");
        if let Some(trees) = self.space.trees() {
            let mut by_length = Vec::new();
            let word = |record: &[u8]| u64::from_le_bytes(record.try_into().unwrap());
            let tree = trees.by_length;
            tree.for_each_from(&mut self.store, 0, |record| {
                by_length.push((word(record) as u32, (word(record) >> 32) as u32));
                ControlFlow::Continue(())
            })
            .unwrap();
            by_length.sort_unstable();
            assert_eq!(list, by_length, "the trees differ");
        }

        let pool = &self.space.blocks.pool;
        let count = pool.block_count;
        let mut uses = vec![0u8; count as usize];
        let mut mark = |start: u32, length: u32| (start..start + length).for_each(|block| uses[block as usize] += 1);
        let reserve = self.space.reserve().to_vec();
        for &(start, length) in list.iter().chain(&self.limbo) {
            mark(start, length);
        }
        for &block in &reserve {
            mark(block, 1);
        }
        for (&start, &length) in &self.used {
            mark(start, length);
        }
        for block in &pool.released {
            mark(pool.geometry.ag_block_of(*block).0, 1);
        }
        let fixed = pool.first_block;
        for (&block, bytes) in &self.store.blocks {
            let at = pool.geometry.ag_block_of(block).0;
            if BlockHeader::read(bytes).magic.get() != BlockKind::Inode.magic()
                && (at >= fixed || fixed == FIXED_BLOCKS)
            {
                mark(at, 1);
            }
        }
        mark(0, if fixed == FIXED_BLOCKS { 1 } else { fixed });
        let wrong: Vec<_> = uses.iter().enumerate().filter(|&(_, &uses)| uses != 1).collect();
        assert!(wrong.is_empty(), "blocks not used once: {wrong:?}");

        let bits = pool.geometry.region_bits;
        let mut regions = vec![0; pool.regions.len()];
        let blocks = list.iter().flat_map(|&(start, length)| start..start + length).chain(reserve);
        blocks.for_each(|block| regions[(block >> bits) as usize] += 1);
        let stored: Vec<u32> = pool.regions.iter().map(|region| region.free_blocks).collect();
        assert_eq!(stored, regions);
        assert_eq!(self.space.free_blocks(), regions.iter().sum::<u32>());
        let longest = list.iter().map(|free| free.1).max().unwrap_or(0);
        let pool = &self.space.blocks.pool;
        let found = match &mut self.space.blocks.record {
            Record::Trees(trees) => trees.longest(pool, &mut self.store),
            Record::Bitmap(bitmap) => bitmap.longest(pool, &mut self.store, u32::MAX),
        };
        assert_eq!(found.unwrap(), longest);

        // What is in memory is what was written.
        let mut loaded = AgSpace::load(&mut self.store, AG).unwrap();
        let roots = |space: &AgSpace| space.trees().map(|trees| (trees.by_start, trees.by_length));
        assert_eq!(roots(&loaded), roots(&self.space));
        assert_eq!(loaded.blocks.pool.regions, self.space.blocks.pool.regions);
        assert_eq!(loaded.reserve(), self.space.reserve());
        let counts = |space: &AgSpace| {
            let mut head = GroupHeader::zeroed();
            space.blocks.save(&mut head);
            space.inodes.save(&space.blocks.pool, &mut head);
            (head, space.inodes_used, space.directories)
        };
        assert_eq!(counts(&loaded), counts(&self.space));
        assert_eq!(loaded.free_list(&mut self.store), list);
    }

    fn allocate(&mut self, goal: u32, min: u32, max: u32) -> Option<(u32, u32)> {
        let changes = self.store.changes;
        let (start, length) = match self.space.allocate(&mut self.store, AgBlock(goal), min, max, &mut None).unwrap() {
            Some((start, length)) => (start.0, length),
            None => {
                let list = self.free_list();
                assert!(list.iter().all(|free| free.1 < min), "refused {min} with {list:?}");
                let refilled = self.space.reserve().len() >= self.space.reserve_need() || list.is_empty();
                assert!(refilled && self.store.changes - changes < 20);
                return None;
            }
        };
        assert!(length >= min && length <= max);
        self.own(start, length);
        Some((start, length))
    }

    fn own(&mut self, start: u32, length: u32) {
        for block in start..start + length {
            let block = self.space.geometry().fs_block(AG, AgBlock(block));
            assert!(!self.store.is_committed(block), "{block:?} of the committed state was handed out");
        }
        self.used.insert(start, length);
    }

    /// A random part of a random extent goes to limbo.
    fn discard(&mut self, rng: &mut Rng) {
        let pick = rng.below(u64::from(self.space.blocks.pool.block_count)) as u32;
        let Some((&start, &length)) = self.used.range(pick..).next().or(self.used.iter().next()) else { return };
        self.used.remove(&start);
        let from = rng.below(u64::from(length)) as u32 * u32::from(rng.one_in(2));
        let to = if rng.one_in(2) { length } else { from + 1 + rng.below(u64::from(length - from)) as u32 };
        if from > 0 {
            self.used.insert(start, from);
        }
        if to < length {
            self.used.insert(start + to, length - to);
        }
        self.limbo.push((start + from, to - from));
    }

    /// Makes a checkpoint durable: only now do the blocks in limbo become free.
    fn commit(&mut self) {
        for block in self.space.take_released(&mut self.store).unwrap() {
            self.limbo.push((self.space.geometry().ag_block_of(block).0, 1));
        }
        self.store.commit();
        for (start, length) in std::mem::take(&mut self.limbo) {
            self.space.free(&mut self.store, AgBlock(start), length).unwrap();
        }
    }

    fn empty(&mut self) {
        for (start, length) in std::mem::take(&mut self.used) {
            self.limbo.push((start, length));
        }
        self.commit();
        // Shrinking trees and the trimmed reserve release blocks of their own.
        for _ in 0..20 {
            self.commit();
        }
        assert!(self.limbo.is_empty());
        self.audit();
        // The reserve keeps a few blocks out of the trees.
        let reserve = self.space.reserve().len();
        assert!(reserve <= self.space.reserve_need() + TRIM_SLACK && self.free_list().len() <= reserve + 1);
    }
}

fn check(kind: Kind, block_bits: u32, blocks: u32, largest: u64, seed: u64, steps: u64) {
    let mut rng = Rng::new(seed);
    let mut fixture = Fixture::of(kind, block_bits, 14, 10, blocks, &[]);
    let (mut refused, mut levels) = (0, 0);
    for step in 0..steps {
        let filling = step * 4 / steps % 2 == 0;
        match 1 + rng.below(7) {
            1..=4 if filling => {
                let max = 1 + rng.below(largest) as u32;
                let min = 1 + rng.below(u64::from(max)) as u32;
                refused += u32::from(fixture.allocate(rng.below(u64::from(blocks)) as u32, min, max).is_none());
            }
            _ if filling && !rng.one_in(3) => {}
            _ => fixture.discard(&mut rng),
        }
        if rng.one_in(40) {
            fixture.commit();
        }
        if let Some(trees) = fixture.space.trees() {
            levels = levels.max(trees.by_start.level).max(trees.by_length.level);
        }
        if step % (steps / 60) == 0 {
            fixture.audit();
        }
    }
    let tiny = blocks < 500;
    assert!(refused > 10, "{refused} refused");
    assert!(levels > 0 || tiny || block_bits > 9 || kind != Kind::Trees, "no tree grew");
    fixture.empty();
    assert_eq!(fixture.space.free_blocks(), fixture.initially_free);
}

#[test]
fn every_block_has_one_use_and_all_come_back() {
    for (kind, first) in [(Kind::Trees, 0), (Kind::Bitmap, 100), (Kind::Table, 200)] {
        for seed in first..first + 4 {
            check(kind, 9, 16_000, 12, seed, 24_000);
            check(kind, 9, 700, 5, seed + 10, 6_000);
            check(kind, 9, 40, 3, seed + 20, 3_000);
            check(kind, 12, 16_384, 60, seed + 30, 12_000);
        }
    }
}

/// The worst case for the reserve: all blocks used, then freed so that no two of them touch.
#[test]
fn freeing_in_a_full_group_needs_no_space() {
    let mut fixture = Fixture::new(9, 14, 10, 16_384, &[]);
    while fixture.allocate(5, 1, 1).is_some() {}
    assert_eq!(fixture.space.available(), 0);
    let blocks: Vec<u32> = fixture.used.keys().copied().collect();
    for parity in [0, 1] {
        for block in blocks.iter().filter(|&block| block % 2 == parity) {
            fixture.used.remove(block);
            fixture.space.free(&mut fixture.store, AgBlock(*block), 1).unwrap();
        }
        fixture.audit();
        assert!(parity == 1 || fixture.space.trees().unwrap().by_start.level >= 2, "8000 extents in leaves of 56");
    }
    fixture.empty();
    assert_eq!(fixture.space.free_blocks(), fixture.initially_free);
}

#[test]
fn allocation_prefers_the_goal_then_its_surroundings_then_the_best_fit() {
    // Free: 100..110, 200..250, 300..304, 9000..9040, and a long rest from 12000.
    let used = [(5, 95), (110, 90), (250, 50), (304, 8696), (9040, 2960)];
    let mut fixture = Fixture::new(12, 14, 10, 16_384, &used);
    let reserve = fixture.space.reserve().len() as u32;
    assert_eq!(fixture.free_list()[3], (9000, 40), "the reserve took the shortest extent: {:?}", fixture.free_list());
    assert!(reserve >= 6);
    assert_eq!(fixture.allocate(220, 5, 10), Some((220, 10)), "at the goal");
    assert_eq!(fixture.allocate(215, 5, 10), Some((230, 10)), "right after the goal, as that gives the most");
    assert_eq!(fixture.allocate(215, 5, 20), Some((215, 5)), "at the goal, as nothing close gives the most");
    assert_eq!(fixture.allocate(150, 5, 10), Some((200, 10)), "right after the goal");
    assert_eq!(fixture.allocate(8000, 20, 20), Some((9000, 20)), "nearest, from its start");
    assert_eq!(fixture.allocate(11_999, 20, 20), Some((12_000, 20)), "right after, in the goal's region");
    assert_eq!(fixture.allocate(10_500, 20, 20), Some((9020, 20)), "nearest, from its end");
    assert_eq!(fixture.allocate(300, 1000, 6000), Some((12_020, 4364)), "the longest, as none has the most");
    assert_eq!(fixture.allocate(300, 100, 6000), None);
    fixture.audit();
}

#[test]
fn freeing_what_is_free_is_damage() {
    let mut fixture = Fixture::new(12, 14, 10, 10_000, &[(100, 50)]);
    let reserve = fixture.space.reserve()[0];
    let before = fixture.store.blocks.clone();
    for (start, length) in
        [(99, 2), (149, 2), (4, 10), (90, 5), (9999, 2), (u32::MAX, 2), (100, 0), (reserve, 1), (80, 100)]
    {
        match fixture.space.free(&mut fixture.store, AgBlock(start), length) {
            Err(Error::Corrupt(found)) if matches!(*found, Corrupt::DoubleFree { .. }) => {}
            other => panic!("{start} {length}: {other:?}"),
        }
    }
    assert!(before == fixture.store.blocks, "a refusal left a trace");
    fixture.space.free(&mut fixture.store, AgBlock(100), 50).unwrap();
}

/// Filling the reserve changed the tree by length and then met a leaf of the tree by start that could not be read: the error came after a
/// change, though what was to be freed lay elsewhere, and it came at every opening again.
#[test]
fn a_leaf_that_cannot_be_read_is_met_before_the_reserve_is_filled() {
    let mut fixture = Fixture::new(9, 14, 10, 16_384, &[]);
    while fixture.allocate(5, 1, 1).is_some() {}
    let mut apart = fixture.used.keys().copied().filter(|block| block % 2 == 0).collect::<Vec<_>>().into_iter();
    let is_short = |space: &AgSpace| space.reserve().len() < space.reserve_need();
    let mut last = 0;
    while fixture.space.trees().unwrap().by_start.level == 0 || !is_short(&fixture.space) {
        last = apart.next().unwrap();
        fixture.used.remove(&last);
        fixture.space.free(&mut fixture.store, AgBlock(last), 1).unwrap();
    }
    let next = apart.next().unwrap();
    let first_of = |(&block, bytes): (&FsBlock, &Vec<u8>)| {
        let is_leaf = BlockHeader::read(bytes).magic.get() == FREE_BY_START.block.magic()
            && NodeHeader::read(bytes).level.get() == 0;
        is_leaf.then(|| (u64::from_le_bytes(bytes[NodeHeader::SIZE..][..8].try_into().unwrap()), block))
    };
    let (_, leaf) = fixture.store.blocks.iter().filter_map(first_of).min().unwrap();
    let sound = fixture.store.blocks.remove(&leaf).unwrap();
    let before = fixture.store.blocks.clone();
    let Fixture { store, space, .. } = &mut fixture;
    assert!(space.read_ahead_of_free(store, AgBlock(next), 1).is_err());
    assert!(space.free(store, AgBlock(next), 1).is_err());
    let mut unreadable = None;
    assert!(space.allocate(store, AgBlock(last), 1, 1, &mut unreadable).unwrap().is_none());
    assert!(unreadable.is_some());
    assert!(before == store.blocks, "a refusal left a trace");
    store.blocks.insert(leaf, sound);
    fixture.audit();
    fixture.used.remove(&next);
    fixture.space.read_ahead_of_free(&mut fixture.store, AgBlock(next), 1).unwrap();
    fixture.space.free(&mut fixture.store, AgBlock(next), 1).unwrap();
    fixture.audit();
}

/// An allocation took its blocks out of one tree and then met a node of the other that could not be read: the error came after a change.
#[test]
fn a_node_that_cannot_be_read_is_met_before_an_allocation_changes_anything() {
    let mut fixture = Fixture::new(9, 14, 10, 16_384, &[]);
    while fixture.allocate(5, 1, 1).is_some() {}
    let mut rng = Rng::new(7);
    while fixture.space.trees().is_none_or(|trees| trees.by_start.level == 0 || trees.by_length.level == 0) {
        // Runs of one to three, apart from each other.
        let start = rng.below(4000) as u32 * 4;
        let length = 1 + rng.below(3) as u32;
        if (start..start + length).all(|block| fixture.used.remove(&block).is_some()) {
            fixture.space.free(&mut fixture.store, AgBlock(start), length).unwrap();
        }
    }
    while fixture.space.reserve().len() < fixture.space.reserve_need() {
        fixture.allocate(5, 1, 1);
    }
    let kinds = [FREE_BY_START.block.magic(), FREE_BY_LENGTH.block.magic()];
    let is_node = |bytes: &[u8]| kinds.contains(&BlockHeader::read(bytes).magic.get());
    let sound = fixture.store.blocks.clone();
    let nodes: Vec<FsBlock> = sound.iter().filter(|(_, bytes)| is_node(bytes)).map(|(&block, _)| block).collect();
    assert!(nodes.len() >= 6, "{} nodes", nodes.len());
    let (mut found, mut passed) = (0, 0);
    for node in nodes {
        for _ in 0..40 {
            fixture.store.blocks = sound.clone();
            let lost = fixture.store.blocks.remove(&node);
            let mut space = AgSpace::load(&mut fixture.store, AG).unwrap();
            let mut unreadable = None;
            let goal = AgBlock(rng.below(16_000) as u32);
            let allocated = space.allocate(&mut fixture.store, goal, 1, 1 + rng.below(4) as u32, &mut unreadable);
            match allocated.unwrap() {
                Some(_) => found += 1,
                None => {
                    assert!(unreadable.is_some());
                    fixture.store.blocks.extend(lost.map(|bytes| (node, bytes)));
                    assert!(fixture.store.blocks == sound, "a refusal left a trace");
                    passed += 1;
                }
            }
        }
    }
    assert!(found > 0 && passed > 50, "{found} found, {passed} refused");
}

#[test]
fn directories_are_counted_by_region() {
    let mut fixture = Fixture::new(9, 14, 10, 10_000, &[]);
    for at in [5, 6, 5000] {
        fixture.space.count_directory(&mut fixture.store, AgBlock(at), true).unwrap();
    }
    fixture.space.count_directory(&mut fixture.store, AgBlock(900), false).unwrap();
    assert_eq!((fixture.space.region(AgBlock(7)).1, fixture.space.region(AgBlock(4999)).1), (1, 1));
    assert_eq!(fixture.space.directories(), 2);
    assert!(fixture.space.count_directory(&mut fixture.store, AgBlock(2000), false).is_err());
    fixture.audit();
}

/// Inodes in use by (block, slot), with their bodies.
type Inodes = BTreeMap<(u32, u32), Option<(u32, u32)>>;

fn audit_inodes(fixture: &mut Fixture, inodes: &Inodes) {
    let slots = fixture.space.geometry().slots_per_block();
    let mut taken = BTreeMap::<u32, BTreeSet<u32>>::new();
    for (&(block, slot), body) in inodes {
        let all = [(slot, 1)].into_iter().chain(*body);
        for slot in all.flat_map(|(first, count)| first..first + count) {
            assert!(taken.entry(block).or_default().insert(slot), "slot {slot} of block {block} is used twice");
        }
    }
    let chunks = fixture.space.chunk_list(&mut fixture.store);
    let (mut covered, mut blocks) = (0, 0);
    for chunk in &chunks {
        let start = chunk.start.get() as u32;
        blocks += u32::from(chunk.count);
        for index in 0..u32::from(chunk.initialised) {
            let used = taken.get(&(start + index)).map_or(0, |set| set.len() as u32);
            covered += u32::from(used > 0);
            assert_eq!(chunk.used_mask.get() >> index & 1, u64::from(used > 0), "used bit of {}", start + index);
            assert_eq!(
                chunk.free_mask.get() >> index & 1,
                u64::from(used < slots - 1),
                "free bit of {}",
                start + index
            );
            let pool = &fixture.space.blocks.pool;
            let at = AgBlock(start + index);
            let (_, free) = fixture.space.chunks().slots_of(pool, &mut fixture.store, at).unwrap();
            assert_eq!(free, slots - 1 - used);
        }
    }
    assert_eq!(covered as usize, taken.len(), "inodes outside chunks");
    assert_eq!((fixture.space.inode_blocks(), fixture.space.inodes_used()), (blocks, inodes.len() as u32));
    fixture.used = chunks.iter().map(|chunk| (chunk.start.get() as u32, u32::from(chunk.count))).collect();
}

fn check_inodes(block_bits: u32, blocks: u32, seed: u64, steps: u64) {
    let mut rng = Rng::new(seed);
    let mut fixture = Fixture::new(block_bits, 14, 8, blocks, &[]);
    let mut inodes = Inodes::new();
    let (mut refused, mut levels) = (0, 0);
    for step in 0..steps {
        let growing = step * 4 / steps % 2 == 0;
        let near = AgBlock(rng.below(u64::from(blocks)) as u32);
        if rng.below(10) < if growing { 9 } else { 2 } {
            match fixture.space.allocate_inode(&mut fixture.store, near, !rng.one_in(10)).unwrap() {
                Some((block, slot)) => {
                    let count = 1 + rng.below(3) as u32;
                    let body = match rng.one_in(3) && count + 2 < fixture.space.geometry().slots_per_block() {
                        true => fixture.space.allocate_body(&mut fixture.store, block, slot, count).unwrap(),
                        false => None,
                    };
                    assert!(inodes.insert((block.0, slot), body.map(|first| (first, count))).is_none());
                }
                None => refused += 1,
            }
        } else {
            let pick = inodes.range((near.0, 0)..).next().or(inodes.iter().next()).map(|(&key, &body)| (key, body));
            let Some(((block, slot), body)) = pick else { continue };
            let (store, at) = (&mut fixture.store, AgBlock(block));
            if let Some((first, count)) = body.filter(|_| rng.one_in(2)) {
                fixture.space.free_body(store, at, first, count).unwrap();
                inodes.insert((block, slot), None);
            } else {
                fixture.space.free_inode(store, at, slot, body).unwrap();
                inodes.remove(&(block, slot));
            }
        }
        if rng.one_in(200) {
            let mut freed = Vec::new();
            fixture.space.release_empty_chunks(&mut fixture.store, 5, &mut freed).unwrap();
            for (block, count) in freed {
                fixture.limbo.push((fixture.space.geometry().ag_block_of(block).0, count));
            }
            fixture.commit();
        }
        levels = levels.max(fixture.space.chunks().tree.level);
        if step % (steps / 40) == 0 {
            audit_inodes(&mut fixture, &inodes);
            fixture.audit();
        }
    }
    assert!(refused > 10, "{refused} refused");
    assert!(levels > 0 || blocks < 5000, "the inode tree did not grow");
    for ((block, slot), body) in std::mem::take(&mut inodes) {
        fixture.space.free_inode(&mut fixture.store, AgBlock(block), slot, body).unwrap();
    }
    let mut freed = Vec::new();
    fixture.space.release_empty_chunks(&mut fixture.store, usize::MAX, &mut freed).unwrap();
    fixture
        .limbo
        .extend(freed.into_iter().map(|(block, count)| (fixture.space.geometry().ag_block_of(block).0, count)));
    audit_inodes(&mut fixture, &inodes);
    fixture.empty();
    assert_eq!((fixture.space.free_blocks(), fixture.space.inode_blocks()), (fixture.initially_free, 0));
}

#[test]
fn inode_slots_have_one_owner_and_all_come_back() {
    for seed in 0..3 {
        check_inodes(9, 300, seed, 8_000);
        check_inodes(9, 6_000, seed + 10, 110_000);
        check_inodes(12, 60, seed + 20, 12_000);
    }
}

#[test]
fn inodes_made_in_order_lie_in_order() {
    let mut fixture = Fixture::new(12, 14, 10, 16_384, &[]);
    let mut last = (0, 0);
    const COUNT: u64 = 31 * 16 - 3;
    let before = fixture.store.changes;
    for _ in 0..COUNT {
        let (block, slot) = fixture.space.allocate_inode(&mut fixture.store, AgBlock(3000), true).unwrap().unwrap();
        assert!((block.0, slot) > last && block.0 < 3016);
        last = (block.0, slot);
    }
    let per_inode = (fixture.store.changes - before) as f64 / COUNT as f64;
    assert!(per_inode < 2.3, "{per_inode} block changes an inode: the fast path was not taken");
    // Another region has its own chunk; without leave to grow, the nearest place that exists serves.
    let (block, _) = fixture.space.allocate_inode(&mut fixture.store, AgBlock(9000), false).unwrap().unwrap();
    assert!(block.0 < 3016);
    let (block, _) = fixture.space.allocate_inode(&mut fixture.store, AgBlock(12_000), true).unwrap().unwrap();
    assert_eq!(block.0, 12_000);
}

/// Chunks were once begun anew for every block when more than ten full ones lay around the parent.
#[test]
fn chunks_are_filled_before_new_ones_are_made() {
    let mut fixture = Fixture::new(12, 14, 10, 16_384, &[]);
    for _ in 0..31 * 8 * 40 {
        fixture.space.allocate_inode(&mut fixture.store, AgBlock(3500), true).unwrap().unwrap();
    }
    assert_eq!(fixture.space.inode_blocks(), 8 * 40);
}

fn is_bad_inode<T>(answer: &Result<T>) -> bool {
    matches!(answer, Err(Error::Corrupt(found)) if matches!(**found, Corrupt::Inode { .. }))
}

#[test]
fn slots_freed_twice_are_damage() {
    let mut fixture = Fixture::new(12, 14, 10, 16_384, &[]);
    let (block, slot) = fixture.space.allocate_inode(&mut fixture.store, AgBlock(50), true).unwrap().unwrap();
    let first = fixture.space.allocate_body(&mut fixture.store, block, slot, 7).unwrap().unwrap();
    assert_eq!((slot, first), (1, 2));
    let before = fixture.store.blocks.clone();
    for (slot, body) in
        [(0, None), (9, None), (32, None), (1, Some((8, 2))), (1, Some((30, 3))), (1, Some((2, u32::MAX)))]
    {
        let result = fixture.space.free_inode(&mut fixture.store, block, slot, body);
        assert!(is_bad_inode(&result), "{slot} {body:?}: {result:?}");
    }
    assert!(before == fixture.store.blocks, "a refusal left a trace");
    fixture.space.free_inode(&mut fixture.store, block, slot, Some((first, 7))).unwrap();
    assert!(fixture.space.has_empty_chunks());
}

/// An inode of a table has one owner, comes back once, and its block is initialised before it is used.
#[test]
fn inodes_of_a_table_have_one_owner_and_all_come_back() {
    for (seed, block_bits, blocks) in [(0, 9, 300), (1, 9, 6_000), (2, 12, 1_000), (3, 12, 16_384)] {
        let mut rng = Rng::new(seed);
        let mut fixture = Fixture::of(Kind::Table, block_bits, 14, 14, blocks, &[]);
        let all = fixture.space.geometry().table_inodes(AG);
        let mut used = BTreeSet::new();
        let mut refused = 0;
        for step in 0..4 * all {
            let growing = step / all % 2 == 0;
            let near = AgBlock(rng.below(u64::from(blocks)) as u32);
            if growing || rng.one_in(4) {
                match fixture.space.allocate_inode(&mut fixture.store, near, true).unwrap() {
                    Some((block, slot)) => {
                        assert!(used.insert((block, slot)), "{block:?} {slot} was taken twice");
                        let at = fixture.space.geometry().fs_block(AG, block);
                        assert!(fixture.store.blocks.contains_key(&at), "{at:?} was not initialised");
                        assert!(fixture.space.holds_inode(&mut fixture.store, block, slot).unwrap());
                    }
                    None => {
                        assert_eq!(used.len() as u32, all);
                        refused += 1;
                    }
                }
            } else if let Some(&(block, slot)) = used.range((near, 0)..).next().or(used.first()) {
                used.remove(&(block, slot));
                fixture.space.free_inode(&mut fixture.store, block, slot, None).unwrap();
                assert!(!fixture.space.holds_inode(&mut fixture.store, block, slot).unwrap());
                let twice = fixture.space.free_inode(&mut fixture.store, block, slot, None);
                assert!(used.is_empty() || is_bad_inode(&twice), "{twice:?}");
            }
            assert_eq!(fixture.space.inodes_used() as usize, used.len());
            if rng.one_in(u64::from(all) / 10 + 1) {
                fixture.audit();
                fixture.commit();
                // Nothing is remembered but what was written.
                fixture.space = AgSpace::load(&mut fixture.store, AG).unwrap();
            }
        }
        assert!(refused > 0);
    }
}

#[test]
fn an_inode_of_a_table_is_taken_near_its_directory_and_lowest_first() {
    let mut fixture = Fixture::of(Kind::Table, 12, 14, 14, 16_384, &[]);
    let first = fixture.space.geometry().table_start(AG);
    let mut take = |near| fixture.space.allocate_inode(&mut fixture.store, AgBlock(near), true).unwrap().unwrap();
    assert_eq!(take(9000), (AgBlock(first), 1));
    assert_eq!(take(9000), (AgBlock(first), 2));
    assert_eq!(take(first), (AgBlock(first), 5));
    // Another block of the table: those before it are initialised with it.
    assert_eq!(take(first + 3), (AgBlock(first + 3), 1));
    assert_eq!(take(first), (AgBlock(first), 6));
    // As FFS: from the rotor on.
    assert_eq!(take(9000), (AgBlock(first), 9));
    for place in [(first + 4, 1), (first, 3), (first, 0), (first - 1, 1), (9000, 1)] {
        assert!(!fixture.space.holds_inode(&mut fixture.store, AgBlock(place.0), place.1).unwrap(), "{place:?}");
    }
}

/// A bitmap gives what is at the goal, else the first run that is long enough, else the longest.
#[test]
fn a_bitmap_is_searched_from_the_goal_on() {
    // Free: 100..110, 200..250, 300..304, 9000..9040, and a long rest from 12000, past several units.
    let used = [(6, 94), (110, 90), (250, 50), (304, 8696), (9040, 2960)];
    let mut fixture = Fixture::of(Kind::Bitmap, 12, 14, 10, 16_384, &used);
    assert_eq!(fixture.free_list(), [(100, 10), (200, 50), (300, 4), (9000, 40), (12_000, 4384)]);
    assert_eq!(fixture.allocate(220, 5, 10), Some((220, 10)), "at the goal");
    assert_eq!(fixture.allocate(215, 5, 10), Some((215, 5)), "at the goal, as it has the least");
    assert_eq!(fixture.allocate(150, 5, 10), Some((200, 10)), "right after the goal");
    assert_eq!(fixture.allocate(8000, 20, 20), Some((9000, 20)), "the next that has the most");
    assert_eq!(fixture.allocate(10_500, 20, 20), Some((12_000, 20)));
    assert_eq!(fixture.allocate(300, 1000, 6000), Some((12_020, 4364)), "the longest, as none has the most");
    assert_eq!(fixture.allocate(16_000, 8, 8), Some((100, 8)), "from the beginning on");
    assert_eq!(fixture.allocate(300, 100, 6000), None);
    fixture.audit();
    let before = fixture.store.blocks.clone();
    for (start, length) in [(108, 4), (4, 10), (230, 20), (16_383, 2), (u32::MAX, 2), (100, 0), (9010, 20)] {
        match fixture.space.free(&mut fixture.store, AgBlock(start), length) {
            Err(Error::Corrupt(found)) if matches!(*found, Corrupt::DoubleFree { .. }) => {}
            other => panic!("{start} {length}: {other:?}"),
        }
    }
    assert!(before == fixture.store.blocks, "a refusal left a trace");
}

/// Words of the group's blocks set to random values: operations fail or not, but end, and nothing panics.
#[test]
fn hostile_groups_neither_loop_nor_panic() {
    for kind in [Kind::Trees, Kind::Bitmap, Kind::Table] {
        use_hostile_groups(kind);
    }
}

fn use_hostile_groups(kind: Kind) {
    let mut opened = 0;
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let mut fixture = Fixture::of(kind, 9, 14, 10, 5_000, &[]);
        for _ in 0..200 {
            fixture.allocate(rng.below(5000) as u32, 1, 8);
            fixture.space.allocate_inode(&mut fixture.store, AgBlock(rng.below(5000) as u32), true).unwrap();
        }
        fixture.store.lenient = true;
        let mut blocks: Vec<FsBlock> = fixture.store.blocks.keys().copied().collect();
        blocks.sort_unstable();
        for _ in 0..=rng.below(3) {
            let victim = blocks[if rng.one_in(2) { rng.below(4) } else { rng.below(blocks.len() as u64) } as usize];
            let bytes = fixture.store.blocks.get_mut(&victim).unwrap();
            let at = 48 + 4 * rng.below((512 - 48) / 4) as usize;
            let value = if rng.one_in(2) { rng.next() as u32 } else { rng.below(6000) as u32 };
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let Ok(mut space) = AgSpace::load(&mut fixture.store, AG) else { continue };
        opened += 1;
        let (store, mut freed) = (&mut fixture.store, Vec::new());
        for _ in 0..200 {
            let at = AgBlock(rng.below(5000) as u32);
            let _ = space.allocate(store, at, 1, 8, &mut None);
            let _ = space.free(store, at, 1 + rng.below(4) as u32);
            let _ = space.blocks.longest(store, 100);
            if let Ok(Some((block, slot))) = space.allocate_inode(store, at, true)
                && rng.one_in(2)
            {
                let _ = space.free_inode(store, block, slot, None);
            }
            let _ = space.free_inode(store, at, 1 + rng.below(3) as u32, None);
            let _ = space.release_empty_chunks(store, 2, &mut freed);
        }
    }
    assert!(opened > 100);
}
