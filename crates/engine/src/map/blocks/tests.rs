use super::*;
use crate::btree::testing::{Rng, TestSource, TestStore, geometry};
use crate::error::{Errno, Error};
use myriad_format::AgNo;
use myriad_format::fork::AttributeRoot;
use myriad_format::inode::{S_IFDIR, S_IFREG, fork};
use std::collections::{BTreeMap, BTreeSet};

const POOL: Range<u64> = 10_000..70_000;
/// Data lies in the second group.
const DATA: u64 = (1 << 23) + 10_000;
const ROOT: AttributeRoot = AttributeRoot { block: FsBlock(0x9_8765), count: 3 };
const INDEX: FsBlock = FsBlock(0x1234);

/// Where the tests put a file block: neighbours are neighbours on disk too, except every 50 blocks.
fn place(file_block: u64) -> u64 {
    // The largest file has more blocks than the group.
    let file_block = file_block % 4_000_000;
    DATA + file_block + file_block / 50 * 3
}

fn extent(from: u64, length: u32, unwritten: bool) -> Extent {
    Extent { file_block: FileBlock(from), start: FsBlock(place(from)), length, unwritten }
}

struct Fixture {
    store: TestStore,
    source: TestSource,
    inode: RawInode,
    ino: Ino,
    /// Whether a mapped block is unwritten.
    model: BTreeMap<u64, bool>,
}

impl Fixture {
    fn new(block_bits: u32, mode: u16, attributes: bool) -> Self {
        let geometry = Geometry {
            has_bitmap: true,
            table_every: 1 << 14,
            map: myriad_format::choices::Map::Blocks,
            fragment_bits: 0,
            ..geometry(block_bits, 23, 20, 1 << 24)
        };
        assert!(u64::from(geometry.first_data_block(AgNo(0))) < POOL.start);
        let mut store = TestStore::new(geometry);
        let (block, slot) = geometry.table_place(AgNo(0), 3);
        let block = geometry.fs_block(AgNo(0), block);
        // What the slot had before means nothing.
        store
            .init(NewBlock::free(block), BlockKind::InodeTable, 0, |edit| {
                edit.put(geometry.inode_offset(slot), &[0xee; 248])
            })
            .unwrap();
        let mut inode = RawInode::zeroed();
        inode.mode.set(mode | 0o644);
        inode.set_block_total(3);
        inode.set_attribute_root(attributes.then_some(ROOT));
        if mode == S_IFDIR {
            Fork::Blocks { index: FsBlock::NONE }.encode(&mut inode);
            inode.set_index_root(INDEX);
        }
        let ino = geometry.ino(block, slot);
        let mut fixture = Self { store, source: TestSource::new(POOL), inode, ino, model: BTreeMap::new() };
        if mode == S_IFDIR {
            let array = Array::of_inode(&geometry, ino).unwrap();
            array.put(&mut fixture.store, 0, [RawPointer::zeroed(); POINTERS]).unwrap();
        }
        fixture
    }

    fn list(&mut self) -> Vec<Extent> {
        let (mut list, mut at) = (Vec::new(), FileBlock(0));
        while at < FILE_END {
            at = match self.lookup(at.0) {
                Mapping::Hole { until } => until,
                Mapping::Mapped(extent) => {
                    list.push(extent);
                    extent.end()
                }
            };
        }
        list
    }

    /// Compares the map with the model, and the blocks of pointers there are with those that there must be.
    fn audit(&mut self) {
        let geometry = self.store.geometry();
        let list = self.list();
        let mapped = list.iter().flat_map(|extent| {
            (0..u64::from(extent.length)).map(|at| (extent.file_block.0 + at, extent.start.0 + at, extent.unwritten))
        });
        assert!(
            mapped.eq(self.model.iter().map(|(&at, &unwritten)| (at, place(at), unwritten))),
            "map and model differ"
        );
        let mut needed = BTreeSet::new();
        for &at in self.model.keys() {
            let way = geometry.way(FileBlock(at)).unwrap();
            let spans = (0..way.depth).map(|level| geometry.node_span(&way, level, FileBlock(at)));
            needed.extend(spans.map(|span| (span.start, span.end)));
        }
        let nodes = self.store.blocks.len() - 1;
        assert_eq!(nodes, needed.len(), "blocks of pointers");
        assert_eq!(self.inode.block_total() as usize, 3 + self.model.len() + nodes);
        assert_eq!((nodes + self.source.free.len()) as u64, POOL.end - POOL.start);
        let kind = if self.model.is_empty() && !self.inode.is_dir() { fork::NONE } else { fork::BLOCKS };
        assert_eq!(self.inode.fork_code(), kind);
        assert!(self.inode.attribute_root().is_none_or(|root| root == ROOT));
        assert_eq!(self.inode.index_root(), self.inode.is_dir().then_some(INDEX));
        self.inode.check(self.ino).unwrap();
    }

    fn insert(&mut self, extent: Extent) -> Result<()> {
        insert(&mut self.store, &mut self.source, &mut self.inode, self.ino, extent)
    }

    fn remove(&mut self, range: Range<u64>, max: usize) -> (Result<Option<FileBlock>>, Vec<(FsBlock, u32)>) {
        let mut freed = Vec::new();
        let range = FileBlock(range.start)..FileBlock(range.end);
        let left = remove(&mut self.store, &mut self.source, &mut self.inode, self.ino, range, max, &mut freed);
        (left, freed)
    }

    fn mark_written(&mut self, range: Range<u64>) -> Result<()> {
        mark_written(&mut self.store, &self.inode, self.ino, FileBlock(range.start)..FileBlock(range.end))
    }

    fn lookup(&mut self, at: u64) -> Mapping {
        lookup(&mut self.store, &self.inode, self.ino, FileBlock(at)).unwrap()
    }
}

/// A file block: near the beginning, at a border between kinds of pointers, or anywhere.
fn somewhere(rng: &mut Rng, geometry: &Geometry) -> u64 {
    let borders = (DIRECT..POINTERS).map(|root| geometry.root_span(root));
    let borders: Vec<u64> = borders.flat_map(|span| [span.start, span.end]).collect();
    match rng.below(4) {
        0 => rng.below(600),
        1 => (borders[rng.below(borders.len() as u64) as usize] + rng.below(40)).saturating_sub(20),
        _ => rng.below(geometry.pointed_blocks_max().min(400_000)),
    }
    .min(geometry.pointed_blocks_max() - 1)
}

fn check(block_bits: u32, mode: u16, attributes: bool, seed: u64, steps: u64) -> u32 {
    let mut rng = Rng::new(seed);
    let mut fixture = Fixture::new(block_bits, mode, attributes);
    let geometry = fixture.store.geometry();
    let mut refusals = 0;
    for step in 0..steps {
        let growing = step * 6 / steps % 2 == 0;
        let from = somewhere(&mut rng, &geometry);
        let to = (from + 1 + rng.below(200)).min(geometry.pointed_blocks_max());
        fixture.source.budget = if rng.one_in(4) { rng.below(3) as usize } else { usize::MAX };
        match rng.below(8) {
            0 => match fixture.lookup(from) {
                Mapping::Mapped(found) => {
                    assert_eq!((found.file_block.0, found.start.0), (from, place(from)));
                    let mut all = found.file_block.0..found.end().0;
                    assert!(all.all(|at| fixture.model.get(&at) == Some(&found.unwritten)), "more than is there");
                }
                Mapping::Hole { until } => {
                    let next = fixture.model.range(from..).next().map_or(FILE_END.0, |(&at, _)| at);
                    assert!(until.0 > from && until.0 <= next, "{from}: {until} though {next} is mapped");
                }
            },
            1 => {
                let changes = fixture.source.free.len();
                fixture.mark_written(from..to).unwrap();
                fixture.model.range_mut(from..to).for_each(|(_, unwritten)| *unwritten = false);
                assert_eq!(fixture.source.free.len(), changes);
            }
            2..=6 if growing => {
                let free =
                    (from..to.min((from / 50 + 1) * 50)).take_while(|at| !fixture.model.contains_key(at)).count();
                let new = extent(from, free as u32, rng.one_in(2));
                let before = (fixture.store.changes, fixture.inode);
                if free == 0 {
                    let refused = fixture.insert(extent(from, 1, false));
                    assert!(matches!(refused, Err(Error::Corrupt(found)) if matches!(*found, Corrupt::Pointer { .. })));
                    assert_eq!(before, (fixture.store.changes, fixture.inode));
                    continue;
                }
                match fixture.insert(new) {
                    Ok(()) => fixture.model.extend((from..from + free as u64).map(|at| (at, new.unwritten))),
                    Err(Error::Refused(Errno::NOSPC)) => {
                        refusals += 1;
                        assert_eq!(before, (fixture.store.changes, fixture.inode), "a refusal changed something");
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            _ => {
                let to = if rng.one_in(4) { from + rng.below(50_000) + 1 } else { to };
                let max = 1 + rng.below(4) as usize;
                let (left, freed) = fixture.remove(from..to, max);
                let end = left.unwrap().map_or(to, |next| next.0);
                let gone: Vec<u64> = fixture.model.range(from..end).map(|(&at, _)| at).collect();
                fixture.model.retain(|at, _| !(from..end).contains(at));
                let freed: Vec<u64> =
                    freed.iter().flat_map(|&(start, length)| start.0..start.0 + u64::from(length)).collect();
                assert_eq!(freed, gone.into_iter().map(place).collect::<Vec<_>>());
            }
        }
        if step % (steps / 50) == 0 {
            fixture.audit();
        }
    }
    assert!(fixture.model.len() > 500, "{}", fixture.model.len());
    fixture.audit();
    let mut from = 0;
    while let (Ok(Some(next)), _) = fixture.remove(from..FILE_END.0, 7) {
        from = next.0;
    }
    fixture.model.clear();
    fixture.audit();
    refusals
}

#[test]
fn behaves_as_a_map_of_blocks() {
    let mut refusals = 0;
    for seed in 0..3 {
        for attributes in [false, true] {
            refusals += check(9, S_IFREG, attributes, seed, 6000);
            refusals += check(9, S_IFDIR, attributes, seed + 10, 6000);
            refusals += check(12, S_IFREG, attributes, seed + 20, 6000);
        }
    }
    assert!(refusals > 50, "{refusals}");
}

#[test]
fn a_long_run_is_found_in_few_looks() {
    let mut fixture = Fixture::new(12, S_IFREG, false);
    let long = Extent { file_block: FileBlock(0), start: FsBlock(DATA), length: 3000, unwritten: false };
    fixture.insert(long).unwrap();
    assert_eq!(
        fixture.list().iter().map(|extent| extent.length).collect::<Vec<_>>(),
        [12, 496, 496, 496, 496, 496, 496, 12]
    );
    // Where they go on, one entry is freed.
    let (left, freed) = fixture.remove(0..FILE_END.0, 8);
    assert_eq!((left.unwrap(), freed), (None, vec![(FsBlock(DATA), 3000)]));
}

/// Power loss left blocks of pointers that led nowhere. A file that was removed then kept them: they were nobody's, and their pointers were
/// found behind the next inode in its place.
#[test]
fn blocks_of_pointers_that_lead_nowhere_go_with_the_rest() {
    for at in [12, 12 + 496 + 3, 12 + 496 + 496 * 496 + 7] {
        let mut fixture = Fixture::new(12, S_IFREG, false);
        let geometry = fixture.store.geometry();
        fixture.insert(extent(at, 1, false)).unwrap();
        fixture.insert(extent(at + 496 * 496 * 2, 1, false)).unwrap();
        let way = geometry.way(FileBlock(at)).unwrap();
        let steps = go(&mut fixture.store, fixture.ino, way, FileBlock(at)).unwrap();
        let (array, index) = steps.list()[way.depth];
        array.put(&mut fixture.store, index, [RawPointer::zeroed()]).unwrap();
        fixture.inode.add_blocks(-1);
        let (left, freed) = fixture.remove(0..FILE_END.0, usize::MAX);
        assert_eq!((left.unwrap(), freed.len()), (None, 1), "{at}");
        fixture.audit();
    }
}

#[test]
fn few_blocks_fit_one_transaction() {
    let fits = |at: u64, length| {
        let mut fixture = Fixture::new(12, S_IFREG, false);
        let length = u32::min(length, 50);
        fixture.insert(Extent { file_block: FileBlock(at), start: FsBlock(DATA), length, unwritten: false }).unwrap();
        fits_one_txn(&mut fixture.store, &fixture.inode, fixture.ino).unwrap()
    };
    assert!(fits(0, 50) && fits(12 + 495, 1));
    assert!(!fits(12 + 496, 1) && !fits(12 + 495, 2) && !fits(12 + 496 + 496 * 496, 1));
    let mut fixture = Fixture::new(16, S_IFREG, false);
    for at in 0..30 {
        let extent =
            Extent { file_block: FileBlock(at * 50), start: FsBlock(DATA + at * 50), length: 50, unwritten: false };
        let fits = fits_one_txn(&mut fixture.store, &fixture.inode, fixture.ino).unwrap();
        assert_eq!(fits, at * 50 < ONE_TXN_MAX, "{at}");
        fixture.insert(extent).unwrap();
    }
}

#[test]
fn what_lies_past_the_largest_file_is_a_hole_and_cannot_be_mapped() {
    let mut fixture = Fixture::new(9, S_IFREG, false);
    let end = fixture.store.geometry().pointed_blocks_max();
    fixture.insert(extent(end - 1, 1, false)).unwrap();
    assert_eq!(fixture.lookup(end), Mapping::Hole { until: FILE_END });
    let past = Extent { length: 2, ..extent(end - 1, 1, false) };
    assert!(matches!(fixture.insert(past), Err(Error::Corrupt(_))));
    assert_eq!(fixture.lookup(0), Mapping::Hole { until: FileBlock(12 + 62 + 62 * 62) });
}

/// Directories use no runs: where blocks have fragments, the largest directory has so many fragments as the largest file has blocks of them.
#[test]
fn the_largest_directory_has_as_many_fragments_as_there_are_pointers() {
    let mut fixture = Fixture::new(9, S_IFDIR, false);
    fixture.store.geometry.fragment_bits = 3;
    let end = fixture.store.geometry().pointed_blocks_max();
    assert_eq!(end, 12 + 62 + 62 * 62 + 62 * 62 * 62);
    fixture.insert(extent(end - 1, 1, false)).unwrap();
    assert_eq!(fixture.lookup(end), Mapping::Hole { until: FILE_END });
    assert!(matches!(fixture.insert(extent(end, 1, false)), Err(Error::Corrupt(_))));
}

/// Random bytes in pointers: operations fail or not, but end, and nothing panics.
#[test]
fn hostile_maps_neither_loop_nor_panic() {
    let mut damaged = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mode = if rng.one_in(2) { S_IFREG } else { S_IFDIR };
        let mut fixture = Fixture::new(9, mode, rng.one_in(3));
        for at in 0..=rng.below(400) {
            fixture.insert(extent(at * 3, 2, rng.one_in(2))).unwrap();
        }
        let mut blocks: Vec<FsBlock> = fixture.store.blocks.keys().copied().collect();
        blocks.sort_unstable();
        (fixture.store.lenient, fixture.source.lenient) = (true, true);
        let (table, at) = match Array::of_inode(&fixture.store.geometry(), fixture.ino).unwrap() {
            Array::Inode(block, at) => (block, at),
            Array::Node(_) => unreachable!(),
        };
        for _ in 0..=rng.below(3) {
            let block = blocks[rng.below(blocks.len() as u64) as usize];
            let value = match rng.below(3) {
                0 => rng.next(),
                1 => blocks[rng.below(blocks.len() as u64) as usize].0,
                _ => POOL.start + rng.below(500),
            };
            let at = if block == table {
                at + 8 * rng.below(POINTERS as u64) as usize
            } else {
                pointers::offset(rng.below(62) as usize)
            };
            fixture.store.blocks.get_mut(&block).unwrap()[at..at + 8].copy_from_slice(&value.to_le_bytes());
            if rng.one_in(4) {
                fixture.inode.fork_kind = rng.next() as u8;
            }
        }
        for _ in 0..100 {
            let at = rng.below(1200);
            let found = lookup(&mut fixture.store, &fixture.inode, fixture.ino, FileBlock(at));
            damaged += u32::from(found.is_err());
            let _ = fixture.insert(extent(at, 1 + rng.below(3) as u32, false));
            let _ = fixture.mark_written(at..at + rng.below(30));
            let _ = fixture.remove(at..at + rng.below(30), 5);
        }
    }
    assert!(damaged > 1000, "{damaged}");
}
