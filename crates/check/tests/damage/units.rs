//! Damage to what is made of units: bitmaps and inode tables. A unit costs what it held, and its neighbours nothing.

use crate::common::{Builder, Image, SHAPE, SMALL, Sample, Shape, Worn, sample};
use crate::{Case, look, mend, places, remaining, shapes, shown};
use myriad_check::{Options, check, number as n};
use myriad_device::BlockDevice;
use myriad_format::choices::{Inodes, Space};
use myriad_format::extent::{RawExtent, UNWRITTEN};
use myriad_format::superblock::OrphanHeader;
use myriad_format::table::{INODE_SIZE, POINTERS_OFFSET};
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, Ino};
use std::collections::BTreeSet;
use std::sync::Arc;

fn bitmap_of_blocks(s: &Sample, ag: u32) -> FsBlock {
    s.image.geometry.fs_block(AgNo(ag), AgBlock(s.image.geometry.block_bitmap_start(AgNo(ag))))
}

fn bitmap_of_inodes(s: &Sample, ag: u32) -> FsBlock {
    s.image.geometry.fs_block(AgNo(ag), AgBlock(s.image.geometry.inode_bitmap_start(AgNo(ag))))
}

/// Says of a number in a bitmap that it is free, or not.
fn set_bit(s: &Sample, bitmap: FsBlock, number: u32, is_free: bool) {
    let place = s.image.geometry.bit_place(number);
    s.image.change(bitmap.offset_by(u64::from(place.block)), |bytes| {
        assert_ne!(bytes[place.byte] >> place.bit & 1 == 1, is_free, "it says something else now");
        bytes[place.byte] ^= 1 << place.bit;
    });
}

/// Sets the bit of the first inode of `small`'s block that has this place in the table.
fn set_inode_bit(s: &Sample, ino: Ino, is_free: bool) {
    let geometry = &s.image.geometry;
    let (block, slot) = geometry.locate(ino).unwrap();
    let number = geometry.table_index(block, slot).unwrap();
    set_bit(s, bitmap_of_inodes(s, geometry.ag_of(block).0), number, is_free);
}

/// An inode of a table's last block, which is never in use.
fn last_inode(s: &Sample) -> Ino {
    let geometry = &s.image.geometry;
    let (block, slot) = geometry.table_place(AgNo(0), geometry.table_inodes(AgNo(0)) - 1);
    geometry.ino(geometry.fs_block(AgNo(0), block), slot)
}

fn first_free(s: &Sample) -> u32 {
    let geometry = &s.image.geometry;
    let bitmap = bitmap_of_blocks(s, 0);
    let is_free = |&number: &u32| {
        let place = geometry.bit_place(number);
        s.image.read(bitmap.offset_by(u64::from(place.block)))[place.byte] >> place.bit & 1 == 1
    };
    (0..geometry.blocks_in(AgNo(0))).find(is_free).unwrap()
}

pub const BITMAPS: &[Case] = &[
    Case { name: "torn bitmap of blocks", expected: n::BLOCK_CRC, damage: |s| s.image.smash(bitmap_of_blocks(s, 0)) },
    Case {
        name: "bitmap of blocks gone",
        expected: n::BLOCK_KIND,
        damage: |s| s.image.write(bitmap_of_blocks(s, 1), &vec![0; s.image.geometry.block_size()]),
    },
    Case {
        name: "bitmap of another group",
        expected: n::BLOCK_OWNER,
        damage: |s| s.image.change(bitmap_of_blocks(s, 1), |bytes| UnitHeader::read_mut(bytes).owner.set(0)),
    },
    Case {
        name: "bitmap of another place",
        expected: n::BLOCK_CRC,
        damage: |s| {
            let other = s.image.read(bitmap_of_blocks(s, 1));
            s.image.write(bitmap_of_blocks(s, 0), &other);
        },
    },
    Case {
        name: "block of a file called free",
        expected: n::BLOCK_TWICE,
        damage: |s| {
            let block = places::first_extent(&s.image.inode(s.small));
            set_bit(s, bitmap_of_blocks(s, 0), s.image.geometry.ag_block_of(block).0, true);
        },
    },
    Case {
        name: "free block not called so",
        expected: n::BLOCK_LEAKED,
        damage: |s| set_bit(s, bitmap_of_blocks(s, 0), first_free(s), false),
    },
    Case {
        name: "fixed block called free",
        expected: n::BLOCK_BITMAP,
        damage: |s| set_bit(s, bitmap_of_blocks(s, 0), 4, true),
    },
    Case {
        name: "block past the end called free",
        expected: n::BLOCK_BITMAP,
        damage: |s| set_bit(s, bitmap_of_blocks(s, 0), s.image.geometry.blocks_in(AgNo(0)), true),
    },
    Case {
        name: "tree of free space that there is not",
        expected: n::GROUP,
        damage: |s| s.image.change_group(0, |h| h.by_length_root.set(3)),
    },
    Case {
        name: "reserve that there is not",
        expected: n::GROUP,
        damage: |s| s.image.change_group(0, |h| h.reserve_count.set(1)),
    },
];

pub const TABLES: &[Case] = &[
    Case { name: "torn bitmap of inodes", expected: n::BLOCK_CRC, damage: |s| s.image.smash(bitmap_of_inodes(s, 0)) },
    Case { name: "inodes in use called free", expected: n::INODE_BITMAP, damage: |s| set_inode_bit(s, s.small, true) },
    Case {
        name: "free inode not called so",
        expected: n::INODE_BITMAP,
        damage: |s| set_inode_bit(s, last_inode(s), false),
    },
    Case {
        name: "inode past the end called free",
        expected: n::INODE_BITMAP,
        damage: |s| set_bit(s, bitmap_of_inodes(s, 0), s.image.geometry.table_inodes(AgNo(0)), true),
    },
    Case {
        name: "inode gone",
        expected: n::NO_INODE,
        damage: |s| {
            let (block, slot) = s.image.geometry.locate(s.small).unwrap();
            let at = s.image.geometry.inode_offset(slot);
            s.image.change(block, |bytes| bytes[at..at + 24].fill(0));
        },
    },
    Case {
        name: "mode of no type in a table",
        expected: n::INODE,
        damage: |s| s.image.change_inode(s.small, |raw| raw.mode.set(0o644)),
    },
    Case {
        name: "link whose target was never written",
        expected: n::INODE_SIZE,
        damage: |s| {
            s.image.change_inode(s.text, |raw| {
                let target = RawExtent::read_mut(&mut raw.fork);
                target.word1.set(target.word1.get() | u64::from(UNWRITTEN));
            });
        },
    },
    Case {
        name: "body where there is none",
        expected: n::INODE,
        damage: |s| s.image.change_inode(s.small, |raw| raw.body_slots = 1),
    },
    Case {
        name: "pointers of a file with extents",
        expected: n::INODE,
        damage: |s| {
            let (block, slot) = s.image.geometry.locate(s.small).unwrap();
            let at = s.image.geometry.inode_offset(slot);
            s.image.change(block, |bytes| bytes[at + POINTERS_OFFSET..at + INODE_SIZE].fill(7));
        },
    },
    Case {
        name: "misdirected write to a table",
        expected: n::BLOCK_CRC,
        damage: |s| {
            let other = s.image.read(places::inode_block(s, s.leaf));
            s.image.write(places::inode_block(s, s.image.root), &other);
        },
    },
    Case {
        name: "extent over a table",
        expected: n::EXTENT,
        damage: |s| places::give_to_file(s, places::inode_block(s, s.deep)),
    },
    Case {
        name: "fewer blocks of a table",
        expected: n::NO_INODE,
        damage: |s| s.image.change_group(0, |h| h.inode_blocks.set(1)),
    },
    Case {
        name: "more blocks than a table has",
        expected: n::GROUP,
        damage: |s| s.image.change_group(0, |h| h.inode_blocks.set(1 << 20)),
    },
    Case {
        name: "header of a group with a table gone",
        expected: n::BLOCK_KIND,
        damage: |s| s.image.write(s.image.header_block(0), &vec![0; s.image.geometry.block_size()]),
    },
    Case {
        name: "tree of inodes that there is not",
        expected: n::GROUP,
        damage: |s| s.image.change_group(1, |h| h.inode_root.set(4)),
    },
    Case {
        name: "orphan list names a free inode",
        expected: n::ORPHAN,
        damage: |s| {
            let ino = last_inode(s).0.to_le_bytes();
            s.image.change(s.image.blocks_of(BlockKind::Orphans, 0)[0], |bytes| {
                bytes[OrphanHeader::SIZE..][..8].copy_from_slice(&ino)
            });
        },
    },
];

/// The inodes of all tables that are in use, with their generations and modes.
fn inodes(image: &Image) -> BTreeSet<(Ino, u32, u16)> {
    let geometry = &image.geometry;
    let mut found = BTreeSet::new();
    for block in (0..geometry.block_count).map(FsBlock) {
        if !(0..2).any(|slot| geometry.table_index(block, slot).is_some()) {
            continue;
        }
        for ino in geometry.inode_slots().map(|slot| geometry.ino(block, slot)) {
            let raw = image.inode(ino);
            if raw.mode.get() != 0 {
                found.insert((ino, raw.generation.get(), raw.mode.get()));
            }
        }
    }
    found
}

/// What the unit at a byte of the device is made to be.
#[derive(Clone, Copy, Debug)]
enum Bad {
    Filled(u8),
    Unreadable,
}

/// Each unit of bitmaps and tables is lost, one at a time. A bitmap costs nothing, for it is derived. A unit of a table costs
/// its two inodes.
#[test]
fn a_unit_costs_what_it_held() {
    let mut lost_units = [0; 2];
    for shape in shapes() {
        let sample = sample(shape);
        let geometry = sample.image.geometry;
        let before = inodes(&sample.image);
        let totals = look(&sample.image).totals;
        for block in (0..geometry.block_count).map(FsBlock) {
            let kind = BlockKind::of(&sample.image.read(block)).filter(|kind| kind.is_of_units());
            // Those of directories have tests of their own.
            let Some(kind) = kind.filter(|kind| *kind != BlockKind::LinearEntries) else { continue };
            let is_table = kind == BlockKind::InodeTable;
            for unit in 0..geometry.units_per_block() {
                let held = |ino: Ino| geometry.locate(ino).is_some_and(|(at, slot)| at == block && slot / 4 == unit);
                let at = (block.0 << geometry.block_bits) + u64::from(unit) * UNIT_SIZE as u64;
                for bad in [Bad::Filled(0), Bad::Filled(0xa5), Bad::Unreadable] {
                    let image = Image { device: Arc::new(sample.image.device.clone_image()), ..sample.image };
                    let mut unreadable = Vec::new();
                    match bad {
                        Bad::Filled(byte) => image.device.write(at, &[byte; UNIT_SIZE]).unwrap(),
                        Bad::Unreadable => unreadable.push(at..at + UNIT_SIZE as u64),
                    }
                    let what = format!("{kind:?}, block {block} unit {unit} {bad:?} ({})", shown(&shape));
                    let options = Options { repair: true, now: 5, ..Options::default() };
                    let report = check(Worn::new(image.device.clone(), unreadable), None, &options).unwrap();
                    assert!(report.repaired && report.is_sound(), "{what}: {}", remaining(&report));
                    lost_units[usize::from(is_table)] += 1;
                    if !is_table {
                        assert_eq!(report.totals.entries, totals.entries, "{what}: {}", report.actions.join("\n"));
                    }
                    if shape.has_table() {
                        let after = inodes(&image);
                        let is_lost = |inode: &&(Ino, u32, u16)| {
                            !after.contains(*inode) && !held(inode.0) && inode.0 != sample.orphan
                        };
                        let lost: Vec<_> = before.iter().filter(is_lost).collect();
                        assert!(lost.is_empty(), "{what}: {lost:?}\n{}", report.actions.join("\n"));
                    }
                }
            }
        }
    }
    assert!(lost_units.iter().all(|&count| count > 100), "{lost_units:?}");
}

/// A file that was removed may be written and its bitmap not, or the other way round, where no order says which comes first.
/// What the bitmap calls free took a block from the file that had it by then, for it came first in the table.
#[test]
fn what_a_bitmap_calls_free_takes_nothing_from_others() {
    for shape in shapes().filter(Shape::has_table) {
        let sample = sample(shape);
        let image = &sample.image;
        let fork = image.inode(sample.chain).fork;
        assert!(sample.small < sample.chain);
        image.change_inode(sample.small, |raw| raw.fork[..16].copy_from_slice(&fork[..16]));
        set_inode_bit(&sample, sample.small, true);
        let report = mend(image);
        assert!(report.is_sound(), "{}: {}", shown(&shape), remaining(&report));
        let actions = report.actions.join("\n");
        assert_eq!(image.inode(sample.chain).fork, fork, "{}: {actions}", shown(&shape));
        assert_ne!(image.inode(sample.small).fork[..16], fork[..16], "{}: {actions}", shown(&shape));
    }
}

/// A stray needs an inode for lost+found: it comes from the next block of a table or from a group that was never used. Where none is left, the volume
/// could not be repaired.
#[test]
fn a_lost_and_found_takes_an_inode_that_there_is() {
    for shape in [SHAPE, SMALL].map(|shape| shape.with(Space::Bitmap, Inodes::Static)) {
        let shape = Shape { table_every: shape.ag_blocks / 4, ..shape };
        for (ag_used, left, expected) in
            [(2, 64, "moved"), (2, 0, "took group 2 into use"), (3, 0, "to the root directory")]
        {
            let mut builder = Builder::new(Shape { ag_used, ..shape });
            let root = builder.root;
            let stray = builder.inode(0, 0o100644, 0);
            builder.node(stray).raw.nlink.set(1);
            let each = builder.geometry.table_inodes_per_block();
            for ag in 0..ag_used {
                let used = if ag == 0 { 2 } else { 0 };
                // Initialised blocks are full, but for those that are left.
                let blocks = builder.geometry.table_blocks(AgNo(ag)).saturating_sub(left);
                for file in used..(blocks * each).max(each) {
                    builder.file(root, format!("file {ag} {file}").as_bytes(), ag, &[]);
                }
            }
            let image = builder.finish();
            let what = format!("{ag_used} groups, {left} blocks left ({})", shown(&shape));
            let report = mend(&image);
            assert!(report.is_sound(), "{what}: {}", remaining(&report));
            assert!(report.actions.iter().any(|action| action.contains(expected)), "{what}: {:?}", report.actions);
        }
    }
}
