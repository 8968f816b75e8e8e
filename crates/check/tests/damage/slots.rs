//! Damage to directories of slots.

use crate::common::{Sample, sample};
use crate::{Case, SLOTS, SLOTS_SMALL, every_kind, look, mend, remaining, text};
use myriad_check::number as n;
use myriad_format::btree::NodeHeader;
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::slots::{
    DirExtent, EXTENT_BLOCKS, ExtentsHeader, SLOT_BYTES, SlotBlockHeader, SlotHeader, SlotLayout,
};
use myriad_format::{BlockHeader, BlockKind, FileBlock, FsBlock, Ino};
use zerocopy::IntoBytes;

fn slot_blocks(s: &Sample, ino: Ino) -> Vec<FsBlock> {
    s.image.blocks_of(BlockKind::DirSlots, ino.0)
}

fn extents_block(s: &Sample, ino: Ino) -> FsBlock {
    s.image.blocks_of(BlockKind::DirExtents, ino.0)[0]
}

/// Blocks and slots in use of a directory, in their order.
fn used(s: &Sample, ino: Ino) -> Vec<(FsBlock, usize)> {
    let mut used = Vec::new();
    for block in slot_blocks(s, ino) {
        let bytes = s.image.read(block);
        let layout = SlotLayout::new(bytes.len());
        let is_used = |slot: &usize| SlotHeader::read(&bytes[layout.offset(*slot)..]).ino.get() != 0;
        used.extend((0..layout.slots).filter(is_used).map(|slot| (block, slot)));
    }
    used
}

/// Changes the name with a number of a directory: the start of its slot, and the bytes of its name.
fn change(s: &Sample, ino: Ino, which: usize, f: fn(&mut SlotHeader, &mut [u8])) {
    let (block, slot) = used(s, ino)[which];
    s.image.change(block, |bytes| {
        let at = SlotLayout::new(bytes.len()).offset(slot);
        let (head, name) = bytes[at..at + SLOT_BYTES].split_at_mut(SlotHeader::SIZE);
        f(SlotHeader::read_mut(head), name);
    });
}

/// Changes the first record of a directory's extents.
fn change_record(s: &Sample, ino: Ino, which: usize, f: fn(&mut DirExtent)) {
    s.image.change(extents_block(s, ino), |bytes| {
        f(DirExtent::read_mut(&mut bytes[ExtentsHeader::SIZE + which * DirExtent::SIZE..]));
    });
}

/// Moves the last run of blocks of a directory `by` file blocks further on.
fn move_extent(s: &Sample, ino: Ino, by: u64) {
    let geometry = s.image.geometry;
    let last_of = |bytes: &[u8]| {
        let head = NodeHeader::read(bytes);
        let at = NodeHeader::SIZE + (usize::from(head.count.get()) - 1) * RawExtent::SIZE;
        (head.level.get() == 0).then(|| (at, Extent::decode(RawExtent::read(&bytes[at..]), &geometry, ino).unwrap()))
    };
    let nodes = s.image.blocks_of(BlockKind::ExtentTree, ino.0).into_iter();
    let leaves = nodes.filter_map(|node| last_of(&s.image.read(node)).map(|(at, extent)| (node, at, extent)));
    let (leaf, at, extent) = leaves.max_by_key(|(.., extent)| extent.file_block).unwrap();
    let moved = Extent { file_block: FileBlock(extent.file_block.0 + by), ..extent };
    s.image.change(leaf, |bytes| bytes[at..at + RawExtent::SIZE].copy_from_slice(moved.encode().as_bytes()));
}

pub const CASES: &[Case] = &[
    Case {
        name: "dangling entry",
        expected: n::NO_INODE,
        damage: |s| change(s, s.single, 0, |head, _| head.ino.set(head.ino.get() + 4000)),
    },
    Case { name: "entry type", expected: n::ENTRY_TYPE, damage: |s| change(s, s.big, 1, |head, _| head.file_type = 2) },
    Case {
        name: "entry tag",
        expected: n::ENTRY_TAG,
        damage: |s| change(s, s.single, 2, |head, _| head.tag.set(!head.tag.get())),
    },
    Case {
        name: "entry with a slash",
        expected: n::DIR_ENTRY,
        damage: |s| change(s, s.single, 1, |_, name| name[0] = b'/'),
    },
    Case {
        name: "entry without a name",
        expected: n::DIR_ENTRY,
        damage: |s| change(s, s.single, 0, |head, _| head.name_len = 0),
    },
    // A slot has room for the longest name that its header can tell of: what is behind a name is no part of it until the
    // header says so.
    Case {
        name: "entry of 255 bytes with bytes of nothing",
        expected: n::DIR_ENTRY,
        damage: |s| change(s, s.single, 3, |head, _| head.name_len = 255),
    },
    Case {
        name: "entry twice",
        expected: n::ENTRY_TWICE,
        damage: |s| {
            let [(from, first), (to, second)] = [used(s, s.single)[0], used(s, s.single)[1]];
            let bytes = s.image.read(from);
            let layout = SlotLayout::new(bytes.len());
            let slot = bytes[layout.offset(first)..][..SLOT_BYTES].to_vec();
            s.image.change(to, |bytes| {
                let run = SlotHeader::read(&bytes[layout.offset(second)..]).run;
                bytes[layout.offset(second)..][..SLOT_BYTES].copy_from_slice(&slot);
                SlotHeader::read_mut(&mut bytes[layout.offset(second)..]).run = run;
            });
        },
    },
    Case {
        name: "directory twice",
        expected: n::DIRECTORY_TWICE,
        damage: |s| {
            let deep = s.deep.0;
            let (block, slot) = used(s, s.single)[0];
            s.image.change(block, |bytes| {
                let at = SlotLayout::new(bytes.len()).offset(slot);
                let head = SlotHeader::read_mut(&mut bytes[at..]);
                head.ino.set(deep);
                head.file_type = 4;
            });
        },
    },
    Case {
        name: "run that leads past a name",
        expected: n::SLOT_RUNS,
        damage: |s| change(s, s.big, 4, |head, _| head.run += 1),
    },
    Case { name: "run of nothing", expected: n::SLOT_RUNS, damage: |s| change(s, s.big, 4, |head, _| head.run = 0) },
    Case {
        name: "run of an empty block",
        expected: n::SLOT_RUNS,
        damage: |s| {
            s.image.change(*slot_blocks(s, s.single).last().unwrap(), |bytes| {
                SlotHeader::read_mut(&mut bytes[SlotBlockHeader::SIZE..]).run = 0;
            })
        },
    },
    Case {
        name: "names of a block of slots",
        expected: n::ENTRY_BLOCK,
        damage: |s| {
            s.image.change(slot_blocks(s, s.big)[1], |bytes| SlotBlockHeader::read_mut(bytes).names.set(0));
        },
    },
    Case {
        name: "names of an extent",
        expected: n::SLOT_COUNTS,
        damage: |s| change_record(s, s.big, 1, |record| record.names.set(0)),
    },
    Case {
        name: "block with names that is said to have none",
        expected: n::SLOT_COUNTS,
        damage: |s| change_record(s, s.big, 0, |record| record.used &= !4),
    },
    Case {
        name: "extent that does not exist and has names",
        expected: n::SLOT_COUNTS,
        damage: |s| change_record(s, s.single, 1, |record| record.names.set(3)),
    },
    Case {
        name: "more extents than are mapped",
        expected: n::SLOT_COUNTS,
        damage: |s| {
            s.image.change(extents_block(s, s.big), |bytes| {
                let head = ExtentsHeader::read_mut(bytes);
                head.extents.set(head.extents.get() + 1);
            });
        },
    },
    Case {
        name: "fewer extents than are mapped",
        expected: n::SLOT_COUNTS,
        damage: |s| s.image.change(extents_block(s, s.single), |bytes| ExtentsHeader::read_mut(bytes).extents.set(0)),
    },
    Case {
        name: "torn block of extents",
        expected: n::BLOCK_CRC,
        damage: |s| {
            let block = extents_block(s, s.big);
            let mut bytes = s.image.read(block);
            bytes[60] ^= 1;
            s.image.write(block, &bytes);
        },
    },
    Case {
        name: "torn block of slots",
        expected: n::BLOCK_CRC,
        damage: |s| {
            let block = slot_blocks(s, s.big)[2];
            let mut bytes = s.image.read(block);
            *bytes.last_mut().unwrap() ^= 1;
            s.image.write(block, &bytes);
        },
    },
    Case {
        name: "block of slots of nothing",
        expected: n::BLOCK_KIND,
        damage: |s| s.image.write(slot_blocks(s, s.big)[2], &s.image.read(FsBlock(2))),
    },
    Case {
        name: "block of slots of another directory",
        expected: n::BLOCK_OWNER,
        damage: |s| s.image.change(slot_blocks(s, s.big)[2], |bytes| BlockHeader::read_mut(bytes).owner.set(4711)),
    },
    Case { name: "size of a directory of slots", ..every_kind::SIZE_BETWEEN_BLOCKS },
    every_kind::SIZE_OF_NOTHING,
    Case { name: "hole before the last extent", expected: n::SLOT_COUNTS, damage: |s| move_extent(s, s.big, 8) },
    Case { name: "hole of less than an extent", expected: n::SLOT_COUNTS, damage: |s| move_extent(s, s.big, 3) },
    every_kind::WITH_AN_INDEX,
    every_kind::IN_ITS_BODY,
    every_kind::TWINS_WITHOUT_THEIR_FLAG,
    every_kind::IDENTITY_OF_A_DIRECTORY,
];

/// A name that a run leads past is there for the check and for repair: runs are derived, slots are not.
#[test]
fn what_runs_lead_past_is_found_again() {
    for shape in [SLOTS, SLOTS_SMALL] {
        let sample = sample(shape);
        let before = look(&sample.image);
        let layout = SlotLayout::new(shape.block_size);
        for block in slot_blocks(&sample, sample.big) {
            sample.image.change(block, |bytes| {
                SlotHeader::read_mut(&mut bytes[SlotBlockHeader::SIZE..]).run = layout.slots as u8;
                SlotBlockHeader::read_mut(bytes).names.set(1);
            });
        }
        let report = mend(&sample.image);
        assert!(report.is_sound(), "{}", remaining(&report));
        assert_eq!(report.totals.entries, before.totals.entries, "{}", report.actions.join("\n"));
    }
}

/// A block of slots costs the names that it had; torn, only those that the tear went through.
#[test]
fn a_lost_block_costs_its_neighbours_nothing() {
    let sample = sample(SLOTS);
    let before = look(&sample.image).totals;
    let blocks = slot_blocks(&sample, sample.big);
    let names = |block: FsBlock| SlotBlockHeader::read(&sample.image.read(block)).names.get();
    let lost = u64::from(names(blocks[1]));
    sample.image.write(blocks[1], &vec![0; 4096]);
    // One byte of a name, far from the others.
    let layout = SlotLayout::new(4096);
    let (block, slot) = *used(&sample, sample.big).iter().find(|(block, _)| *block == blocks[3]).unwrap();
    let mut bytes = sample.image.read(block);
    bytes[layout.offset(slot) + SlotHeader::SIZE] ^= 1;
    sample.image.write(block, &bytes);
    let report = mend(&sample.image);
    assert!(report.is_sound(), "{}", remaining(&report));
    // Some of them were further names of a file that has others.
    let back = report
        .actions
        .iter()
        .find_map(|action| action.strip_prefix("moved "))
        .map_or(0, |rest| rest.split(' ').next().unwrap().parse::<u64>().unwrap() + 1);
    assert!(lost > 3, "{lost}");
    assert_eq!(report.totals.entries, before.entries - lost - 1 + back, "{}", report.actions.join("\n"));
}

/// Where the map has a hole, what is behind it moves up, and identities follow.
#[test]
fn a_directory_with_holes_is_put_together() {
    for (shape, to) in [(SLOTS, 8), (SLOTS, 3), (SLOTS_SMALL, 5), (SLOTS_SMALL, 80)] {
        let sample = sample(shape);
        let before = look(&sample.image).totals;
        move_extent(&sample, sample.big, to);
        let report = mend(&sample.image);
        assert!(report.is_sound(), "{}", remaining(&report));
        assert_eq!(report.totals.entries, before.entries, "{}", report.actions.join("\n"));
        let again = look(&sample.image);
        assert_eq!(again.finding_count, 0, "{}", text(&again));
        assert_eq!(slot_blocks(&sample, sample.big).len() as u64 % EXTENT_BLOCKS, 0);
    }
}
