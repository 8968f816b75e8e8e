//! Damage to linear directories.

use crate::common::{Sample, sample};
use crate::{Case, LINEAR, LINEAR_SMALL, every_kind, look, mend, remaining, text};
use myriad_check::number as n;
use myriad_format::dir::{EntryHeader, clear_unit};
use myriad_format::unit::{UNIT_ROOM, UNIT_SIZE, UnitHeader};
use myriad_format::{BlockKind, FsBlock, Ino};

fn block_of(s: &Sample, ino: Ino) -> FsBlock {
    s.image.blocks_of(BlockKind::LinearEntries, ino.0)[0]
}

/// Offsets of the live entries of the first unit.
fn live(bytes: &[u8]) -> Vec<usize> {
    let mut at = UnitHeader::SIZE;
    let mut live = Vec::new();
    while at < UNIT_SIZE {
        let head = EntryHeader::read(&bytes[at..]);
        if head.ino.get() != 0 {
            live.push(at);
        }
        at += usize::from(head.length.get());
    }
    live
}

/// Changes the live entry with a number of a directory's first unit.
fn change(s: &Sample, ino: Ino, which: usize, f: fn(&mut EntryHeader, &mut [u8])) {
    s.image.change(block_of(s, ino), |bytes| {
        let at = live(bytes)[which];
        let (head, rest) = bytes[at..].split_at_mut(EntryHeader::SIZE);
        f(EntryHeader::read_mut(head), rest);
    });
}

/// The last unit of a directory's first block.
fn last_unit(bytes: &mut [u8]) -> &mut [u8] {
    let at = bytes.len() - UNIT_SIZE;
    &mut bytes[at..]
}

/// Puts the second of two twins, which lie in units of their own, behind the first.
pub fn bring_twins_together(s: &Sample) {
    let blocks = s.image.blocks_of(BlockKind::LinearEntries, s.twins.0);
    let mut last = s.image.read(*blocks.last().unwrap());
    let unit = if blocks.len() == 1 { UNIT_SIZE } else { 0 };
    let twin = last[unit + UnitHeader::SIZE..][..32].to_vec();
    clear_unit(&mut last[unit..unit + UNIT_SIZE]);
    s.image.change(*blocks.last().unwrap(), |bytes| bytes.copy_from_slice(&last));
    s.image.change(blocks[0], |bytes| {
        let first = UnitHeader::SIZE;
        EntryHeader::read_mut(&mut bytes[first..]).length.set(32);
        bytes[first + 32..first + 64].copy_from_slice(&twin);
        EntryHeader::read_mut(&mut bytes[first + 32..]).length.set((UNIT_ROOM - 32) as u16);
    });
}

pub const CASES: &[Case] = &[
    Case {
        name: "dangling entry",
        expected: n::NO_INODE,
        damage: |s| change(s, s.single, 0, |head, _| head.ino.set(head.ino.get() + 4000)),
    },
    Case { name: "entry type", expected: n::ENTRY_TYPE, damage: |s| change(s, s.big, 1, |head, _| head.file_type = 2) },
    Case { name: "entry tag", expected: n::ENTRY_TAG, damage: |s| change(s, s.single, 2, |head, _| head.tag.set(1)) },
    Case {
        name: "tag of another name of the unit",
        expected: n::UNIT_TAGS,
        damage: |s| {
            s.image.change(block_of(s, s.single), |bytes| {
                let entries = live(bytes);
                let tag = EntryHeader::read(&bytes[entries[0]..]).tag;
                EntryHeader::read_mut(&mut bytes[entries[3]..]).tag = tag;
            })
        },
    },
    // Of twins both tags are right.
    Case { name: "twins in one unit", expected: n::UNIT_TAGS, damage: bring_twins_together },
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
    Case {
        name: "entry too long",
        expected: n::DIR_ENTRY,
        damage: |s| change(s, s.big, 3, |head, _| head.length.set(0xfff8)),
    },
    Case {
        name: "entry of no length",
        expected: n::DIR_ENTRY,
        damage: |s| change(s, s.big, 0, |head, _| head.length.set(0)),
    },
    // What is left behind it is no entry.
    Case {
        name: "entry that ends just before its unit",
        expected: n::DIR_ENTRY,
        damage: |s| change(s, s.single, 6, |head, _| head.length.set(head.length.get() - 8)),
    },
    Case {
        name: "entry twice",
        expected: n::ENTRY_TWICE,
        damage: |s| {
            s.image.change(block_of(s, s.single), |bytes| {
                let entries = live(bytes);
                let length = entries[1] - entries[0];
                bytes.copy_within(entries[0]..entries[0] + length, entries[1]);
            })
        },
    },
    Case {
        name: "directory twice",
        expected: n::DIRECTORY_TWICE,
        damage: |s| {
            let deep = s.deep.0;
            s.image.change(block_of(s, s.single), |bytes| {
                let at = live(bytes)[0];
                let head = EntryHeader::read_mut(&mut bytes[at..]);
                head.ino.set(deep);
                head.file_type = 4;
            })
        },
    },
    Case {
        name: "torn unit",
        expected: n::BLOCK_CRC,
        damage: |s| {
            let block = block_of(s, s.big);
            let mut bytes = s.image.read(block);
            last_unit(&mut bytes)[100] ^= 1;
            s.image.write(block, &bytes);
        },
    },
    Case {
        name: "unit of nothing",
        expected: n::BLOCK_KIND,
        damage: |s| {
            let block = block_of(s, s.big);
            let mut bytes = s.image.read(block);
            last_unit(&mut bytes).fill(0);
            s.image.write(block, &bytes);
        },
    },
    Case {
        name: "unit of another directory",
        expected: n::BLOCK_OWNER,
        damage: |s| s.image.change(block_of(s, s.big), |bytes| UnitHeader::read_mut(last_unit(bytes)).owner.set(4711)),
    },
    Case { name: "size that no units have", ..every_kind::SIZE_BETWEEN_BLOCKS },
    Case { name: "size beyond what is mapped", ..every_kind::SIZE_BEYOND_THE_MAP },
    every_kind::SIZE_OF_NOTHING,
    every_kind::BEGINS_WITH_A_HOLE,
    every_kind::WITH_AN_INDEX,
    every_kind::IN_ITS_BODY,
    every_kind::TWINS_WITHOUT_THEIR_FLAG,
    every_kind::IDENTITY_OF_A_DIRECTORY,
];

/// A unit costs the names that it had, and no others; the files among them come back in lost+found.
#[test]
fn a_torn_unit_costs_its_neighbours_nothing() {
    for shape in [LINEAR, LINEAR_SMALL] {
        let sample = sample(shape);
        let before = look(&sample.image).totals;
        let block = block_of(&sample, sample.big);
        let mut bytes = sample.image.read(block);
        let lost = live(&bytes).len() as u64;
        bytes[300] ^= 1;
        sample.image.write(block, &bytes);
        let report = mend(&sample.image);
        assert!(report.is_sound(), "{}", remaining(&report));
        // Some of them were further names of a file that has others.
        let back = report
            .actions
            .iter()
            .find_map(|action| action.strip_prefix("moved "))
            .map_or(0, |rest| rest.split(' ').next().unwrap().parse::<u64>().unwrap() + 1);
        assert!(lost > 3 && back > 1, "{lost} lost, {back} back: {:?}", report.actions);
        assert_eq!(report.totals.entries, before.entries - lost + back, "{}", report.actions.join("\n"));
    }
}

/// What lies in the last block behind a directory's end is no name of it, and repair leaves nothing there.
#[test]
fn entries_behind_the_end_are_found() {
    let sample = sample(LINEAR);
    sample.image.change(block_of(&sample, sample.single), |bytes| bytes.copy_within(..UNIT_SIZE, 3 * UNIT_SIZE));
    let report = look(&sample.image);
    let found = report.findings.iter().filter(|finding| finding.number == n::ENTRY_BLOCK).count();
    assert_eq!((found, report.finding_count), (7, 7), "{}", text(&report));
    let before = report.totals.entries;
    let report = mend(&sample.image);
    assert!(report.is_sound(), "{}", remaining(&report));
    assert_eq!(report.totals.entries, before);
}

/// Names that share a tag cannot be told apart by who lists their unit: one of them moves, and none is lost.
#[test]
fn names_with_one_tag_are_parted() {
    for shape in [LINEAR, LINEAR_SMALL] {
        let sample = sample(shape);
        let before = look(&sample.image);
        bring_twins_together(&sample);
        let report = mend(&sample.image);
        assert!(report.is_sound(), "{}", remaining(&report));
        assert_eq!(report.totals.entries, before.totals.entries, "{}", report.actions.join("\n"));
    }
}
