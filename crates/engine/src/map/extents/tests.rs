use super::*;
use crate::btree::testing::{Rng, TestSource, TestStore, geometry};
use crate::error::{Errno, Error};
use myriad_format::btree::NodeHeader;
use myriad_format::inode::{S_IFDIR, S_IFREG, flag, fork};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

const INO: Ino = Ino(4711);
const POOL: Range<u64> = 100..60_000;
/// Data lies in the second group.
const DATA: u64 = (1 << 23) + 5;

/// Where the tests put a file block: neighbours are neighbours on disk too, except every 50 blocks.
fn place(file_block: u64) -> u64 {
    DATA + file_block + file_block / 50 * 3
}

fn extent(from: u64, length: u32, unwritten: bool) -> Extent {
    Extent { file_block: FileBlock(from), start: FsBlock(place(from)), length, unwritten }
}

struct Fixture {
    store: TestStore,
    source: TestSource,
    inode: RawInode,
    /// Whether a mapped block is unwritten.
    model: BTreeMap<u64, bool>,
    inline_max: usize,
}

/// What the map must leave alone: a directory's index root, an attribute root.
const INDEX: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
const ATTRIBUTES: [u8; 8] = [9; 8];

impl Fixture {
    fn new(block_bits: u32, mode: u16, attributes: bool) -> Self {
        let store = TestStore::new(geometry(block_bits, 23, 20, 1 << 24));
        let mut inode = RawInode::zeroed();
        inode.mode.set(mode | 0o644);
        inode.set_block_total(3);
        if attributes {
            inode.flags.set(flag::ATTR_BLOCKS);
            inode.fork[24..].copy_from_slice(&ATTRIBUTES);
        }
        if mode == S_IFDIR {
            inode.set_fork(fork::DIRECTORY, 0);
            inode.fork[..8].copy_from_slice(&INDEX);
        }
        let inline_max = if mode == S_IFDIR || attributes { 1 } else { 2 };
        Self { store, source: TestSource::new(POOL), inode, model: BTreeMap::new(), inline_max }
    }

    fn list(&mut self) -> Vec<Extent> {
        let mut list = Vec::new();
        for_each_from(&mut self.store, &self.inode, INO, FileBlock(0), |extent| {
            list.push(extent);
            ControlFlow::Continue(())
        })
        .unwrap();
        list
    }

    fn audit(&mut self) -> usize {
        let list = self.list();
        let mapped = list.iter().flat_map(|extent| {
            (0..u64::from(extent.length))
                .map(|at| (extent.file_block.0 + at, extent.start.0 + at, extent.unwritten))
                .collect::<Vec<_>>()
        });
        assert!(
            mapped.eq(self.model.iter().map(|(&at, &unwritten)| (at, place(at), unwritten))),
            "map and model differ"
        );
        let nodes = self.store.blocks.len();
        assert_eq!(self.inode.block_total() as usize, 3 + self.model.len() + nodes);
        assert_eq!(nodes == 0, list.len() <= self.inline_max, "{nodes} nodes for {} extents", list.len());
        assert_eq!(nodes + self.source.free.len(), POOL.count());
        self.inode.check(INO).unwrap();
        if self.inode.is_dir() {
            assert_eq!(self.inode.fork[..8], INDEX);
        }
        if self.inode.has_flag(flag::ATTR_BLOCKS) {
            assert_eq!(self.inode.fork[24..], ATTRIBUTES);
        }
        list.len()
    }

    fn insert(&mut self, extent: Extent) -> Result<()> {
        insert(&mut self.store, &mut self.source, &mut self.inode, INO, extent)
    }

    fn remove(&mut self, range: Range<u64>, max: usize) -> (Result<Option<FileBlock>>, Vec<(FsBlock, u32)>) {
        let mut freed = Vec::new();
        let range = FileBlock(range.start)..FileBlock(range.end);
        let result = remove(&mut self.store, &mut self.source, &mut self.inode, INO, range, max, &mut freed);
        (result, freed)
    }

    fn mark_written(&mut self, range: Range<u64>) -> Result<()> {
        let range = FileBlock(range.start)..FileBlock(range.end);
        mark_written(&mut self.store, &mut self.source, &mut self.inode, INO, range)
    }

    fn lookup(&mut self, at: u64) -> Mapping {
        lookup(&mut self.store, &self.inode, INO, FileBlock(at)).unwrap()
    }
}

fn refused<T>(result: Result<T>) -> bool {
    match result {
        Ok(_) => false,
        Err(Error::Refused(Errno::NOSPC)) => true,
        Err(error) => panic!("{error}"),
    }
}

/// Returns how often marking, insertion and removal were refused.
fn check(block_bits: u32, mode: u16, attributes: bool, span: u64, seed: u64, steps: u64) -> [u32; 3] {
    let mut rng = Rng::new(seed);
    let mut fixture = Fixture::new(block_bits, mode, attributes);
    let (mut refusals, mut most) = ([0; 3], 0);
    for step in 0..steps {
        let growing = step * 6 / steps % 2 == 0;
        let from = rng.below(span);
        let to = from + 1 + rng.below(20);
        fixture.source.budget = if rng.one_in(4) { rng.below(2) as usize } else { usize::MAX };
        match rng.below(8) {
            0 => {
                let expected = fixture.model.contains_key(&from);
                match fixture.lookup(from) {
                    Mapping::Mapped(found) => {
                        assert!(expected && found.file_block.0 <= from && found.end().0 > from);
                        assert_eq!(found.start.0 + from - found.file_block.0, place(from));
                        let whole = (found.file_block.0..found.end().0)
                            .all(|at| fixture.model.get(&at) == Some(&found.unwritten));
                        assert!(whole, "an extent says more than is there");
                    }
                    Mapping::Hole { until } => {
                        assert!(!expected);
                        let next = fixture.model.range(from..).next().map_or(FILE_END.0, |(&at, _)| at);
                        assert_eq!(until.0, next);
                    }
                }
            }
            1 => {
                let result = fixture.mark_written(from..to);
                if refused(result) {
                    // What lies before the refusal may be done; a block never becomes unwritten.
                    refusals[0] += 1;
                    for extent in fixture.list() {
                        for at in extent.file_block.0..extent.end().0 {
                            let before = fixture.model.insert(at, extent.unwritten).expect("mapped before");
                            assert!(before == extent.unwritten || (before && (from..to).contains(&at)));
                        }
                    }
                } else {
                    fixture.model.range_mut(from..to).for_each(|(_, unwritten)| *unwritten = false);
                }
            }
            2..=6 if growing => {
                // As much of the hole at `from` as lies together on disk.
                let free =
                    (from..to.min((from / 50 + 1) * 50)).take_while(|at| !fixture.model.contains_key(at)).count();
                let new = extent(from, free as u32, rng.one_in(2));
                if free == 0 {
                    let before = fixture.store.changes;
                    assert!(matches!(
                        fixture.insert(extent(from, 1, false)),
                        Err(Error::Corrupt(found)) if matches!(*found, Corrupt::Extent { .. })
                    ));
                    assert_eq!(before, fixture.store.changes);
                } else if refused(fixture.insert(new)) {
                    refusals[1] += 1;
                } else {
                    fixture.model.extend((from..from + free as u64).map(|at| (at, new.unwritten)));
                }
            }
            _ => {
                let to = if rng.one_in(4) { from + rng.below(span / 4) + 1 } else { to };
                let max = 1 + rng.below(4) as usize;
                let before = fixture.list();
                let (result, freed) = fixture.remove(from..to, max);
                let touched: Vec<_> =
                    before.iter().filter(|e| e.file_block.0 < to && e.end().0 > from).take(max).collect();
                if let Err(error) = result {
                    assert!(matches!(error, Error::Refused(Errno::NOSPC)) && freed.len() < touched.len());
                    refusals[2] += 1;
                    let left: Vec<u64> = fixture.list().iter().flat_map(|e| e.file_block.0..e.end().0).collect();
                    let gone: u32 = freed.iter().map(|freed| freed.1).sum();
                    assert_eq!(left.len() + gone as usize, fixture.model.len());
                    fixture.model.retain(|at, _| left.binary_search(at).is_ok());
                } else {
                    let parts: Vec<_> = touched.iter().map(|e| (e.file_block.0.max(from), e.end().0.min(to))).collect();
                    let expected: Vec<_> = parts.iter().map(|&(a, b)| (FsBlock(place(a)), (b - a) as u32)).collect();
                    assert_eq!(freed, expected);
                    let end = match result.unwrap() {
                        Some(next) => next.0,
                        None => to,
                    };
                    assert!(freed.len() == max || end == to);
                    fixture.model.retain(|at, _| !(from..end).contains(at));
                    assert!(parts.last().is_none_or(|&(_, b)| end >= b));
                }
            }
        }
        if step % (steps / 200) == 0 {
            most = most.max(fixture.audit());
        }
    }
    assert!(most > 40 || span < 100, "{most} extents at most");
    fixture.audit();
    let (mut result, _) = fixture.remove(0..FILE_END.0, 3);
    while let Some(next) = result.unwrap() {
        (result, _) = fixture.remove(next.0..FILE_END.0, 3);
    }
    fixture.model.clear();
    fixture.audit();
    let empty = if mode == S_IFDIR { fork::DIRECTORY } else { fork::NONE };
    assert_eq!(fixture.inode.fork_code(), empty);
    refusals
}

#[test]
fn behaves_as_a_map_of_blocks() {
    let mut refusals = [0; 3];
    let mut count = |some: [u32; 3]| refusals.iter_mut().zip(some).for_each(|(sum, some)| *sum += some);
    for seed in 0..3 {
        for attributes in [false, true] {
            count(check(9, S_IFREG, attributes, 8000, seed, 20_000));
            count(check(9, S_IFREG, attributes, 60, seed + 10, 5_000));
            count(check(9, S_IFDIR, attributes, 8000, seed + 20, 20_000));
            count(check(9, S_IFDIR, attributes, 60, seed + 30, 5_000));
        }
        count(check(12, S_IFREG, false, 8000, seed + 40, 20_000));
    }
    assert!(refusals.iter().all(|&count| count > 5), "refusals: {refusals:?}");
}

/// A removal took the last node below one of the root's two children, and then could not read the other one, which was to be the root. A cut that had
/// removed something before ended as if nothing of that had happened: the nodes belonged to nobody, and were counted. Where that one was a leaf, the
/// error came after the change.
#[test]
fn a_next_root_that_cannot_be_read_is_met_before_its_neighbour_goes() {
    for level in [1, 2] {
        let mut fixture = Fixture::new(9, S_IFREG, false);
        let mut end = 0;
        let tree = loop {
            fixture.insert(extent(end, 1, end % 2 == 1)).unwrap();
            fixture.model.insert(end, end % 2 == 1);
            end += 1;
            match Root::read(&fixture.inode, INO, &fixture.store.geometry()).unwrap() {
                Root::Tree(tree) if tree.level == level => break tree,
                _ => {}
            }
        };
        let root = &fixture.store.blocks[&tree.root];
        assert_eq!(NodeHeader::read(root).count.get(), 2);
        let [left, first_right] =
            [8, 16].map(|at| u64::from_le_bytes(root[NodeHeader::SIZE + at..][..8].try_into().unwrap()));
        // Of the extents on the right, one is left for each level.
        let first_left = end - u64::from(level);
        fixture.remove(first_right..first_left, usize::MAX).0.unwrap();
        fixture.model.retain(|&at, _| at < first_right || at >= first_left);
        fixture.audit();
        let sound = fixture.store.blocks.remove(&FsBlock(left)).unwrap();
        let (result, freed) = fixture.remove(first_left..FILE_END.0, usize::MAX);
        assert_eq!((result.is_err(), freed.len()), (level == 1, usize::from(level) - 1));
        fixture.store.blocks.insert(FsBlock(left), sound);
        fixture.model.retain(|&at, _| at < first_left || at == end - 1);
        fixture.audit();
        assert_eq!(fixture.remove(first_left..FILE_END.0, usize::MAX).0.unwrap(), None);
        fixture.model.remove(&(end - 1));
        fixture.audit();
    }
}

#[test]
fn sequential_writes_are_one_extent() {
    let mut fixture = Fixture::new(12, S_IFREG, false);
    for at in 0..50 {
        fixture.insert(extent(at, 1, false)).unwrap();
    }
    assert_eq!(fixture.list(), [extent(0, 50, false)]);
    let long = Extent { file_block: FileBlock(100), start: FsBlock(DATA), length: LENGTH_MAX / 2, unwritten: false };
    fixture.insert(Extent { length: 1 << 21, ..long }).unwrap();
    assert_eq!(fixture.list().len(), 2);
}

#[test]
fn the_longest_extent_is_not_exceeded() {
    // Needs groups of more than 2^22 blocks.
    let mut fixture = Fixture::new(12, S_IFREG, false);
    fixture.store = TestStore::new(geometry(12, 26, 21, 1 << 27));
    let start = (1 << 26) + 5;
    for (from, length) in [(0, LENGTH_MAX), (u64::from(LENGTH_MAX), 7)] {
        let new = Extent { file_block: FileBlock(from), start: FsBlock(start + from), length, unwritten: false };
        fixture.insert(new).unwrap();
    }
    assert_eq!(fixture.list().iter().map(|extent| extent.length).collect::<Vec<_>>(), [LENGTH_MAX, 7]);
}

#[test]
fn writing_through_reserved_space_moves_one_border() {
    let mut fixture = Fixture::new(12, S_IFREG, false);
    fixture.insert(extent(0, 50, true)).unwrap();
    fixture.source.budget = 0;
    for at in 0..49 {
        fixture.mark_written(at..at + 1).unwrap();
        assert_eq!(fixture.list(), [extent(0, at as u32 + 1, false), extent(at + 1, 49 - at as u32, true)]);
    }
    fixture.mark_written(0..60).unwrap();
    assert_eq!(fixture.list(), [extent(0, 50, false)]);
    // Three extents do not fit the fork, and there is no block for a tree: nothing has changed.
    let mut fixture = Fixture::new(12, S_IFREG, false);
    fixture.insert(extent(0, 50, true)).unwrap();
    fixture.source.budget = 0;
    assert!(refused(fixture.mark_written(10..20)));
    fixture.model.extend((0..50).map(|at| (at, true)));
    fixture.audit();
    fixture.source.budget = 1;
    fixture.mark_written(10..20).unwrap();
    assert_eq!(fixture.list(), [extent(0, 10, true), extent(10, 10, false), extent(20, 30, true)]);
}

#[test]
fn room_is_made_for_an_attribute_root() {
    let mut fixture = Fixture::new(12, S_IFREG, false);
    fixture.insert(extent(0, 5, false)).unwrap();
    fixture.insert(extent(20, 5, false)).unwrap();
    let list = fixture.list();
    leave_attr_room(&mut fixture.store, &mut fixture.source, &mut fixture.inode, INO).unwrap();
    assert_eq!(fixture.inode.fork[24..], [0; 8]);
    fixture.inode.flags.set(flag::ATTR_BLOCKS);
    fixture.inode.fork[24..].copy_from_slice(&ATTRIBUTES);
    fixture.inline_max = 1;
    fixture.model = (0..5).chain(20..25).map(|at| (at, false)).collect();
    fixture.audit();
    assert_eq!(fixture.list(), list);
}

/// Random bytes in forks and nodes: operations fail or not, but end, and nothing panics.
#[test]
fn hostile_maps_neither_loop_nor_panic() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mode = if rng.one_in(2) { S_IFREG } else { S_IFDIR };
        let mut fixture = Fixture::new(9, mode, rng.one_in(3));
        for at in 0..rng.below(400) {
            fixture.insert(extent(at * 3, 2, rng.one_in(2))).unwrap();
        }
        let mut blocks: Vec<FsBlock> = fixture.store.blocks.keys().copied().collect();
        blocks.sort_unstable();
        (fixture.store.lenient, fixture.source.lenient) = (true, true);
        for _ in 0..=rng.below(3) {
            let value = if rng.one_in(2) { rng.next() } else { rng.below(1200) << 16 };
            let bytes = if blocks.is_empty() || rng.one_in(4) {
                fixture.inode.fork_kind = if rng.one_in(2) { rng.next() as u8 } else { fixture.inode.fork_kind };
                &mut fixture.inode.fork[..]
            } else {
                fixture.store.blocks.get_mut(&blocks[rng.below(blocks.len() as u64) as usize]).unwrap()
            };
            let at = if bytes.len() == 32 { 8 * rng.below(4) } else { 48 + 8 * rng.below(58) } as usize;
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        for _ in 0..100 {
            let at = rng.below(1200);
            let _ = lookup(&mut fixture.store, &fixture.inode, INO, FileBlock(at));
            let _ = fixture.insert(extent(at, 1 + rng.below(3) as u32, false));
            let _ = fixture.mark_written(at..at + rng.below(30));
            let _ = fixture.remove(at..at + rng.below(30), 5);
            let _ =
                for_each_from(&mut fixture.store, &fixture.inode, INO, FileBlock(at), |_| ControlFlow::Continue(()));
        }
    }
}
