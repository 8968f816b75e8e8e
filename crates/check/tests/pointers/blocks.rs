//! Pointers to blocks and to blocks of pointers.

use crate::Written;
use myriad_check::number;
use myriad_device::BlockDevice;
use myriad_engine::{AllocateMode, MkfsOptions, OpenOptions};
use myriad_format::choices::{Choices, Directory, Inodes, Map, Order, Space};
use myriad_format::group::{GroupHeader, HEADER_BLOCK};
use myriad_format::inode::{RawInode, fork};
use myriad_format::pointers::{self, RawPointer};
use myriad_format::superblock::{Superblock, state};
use myriad_format::table::POINTERS_OFFSET;
use myriad_format::unit::{self, UNIT_SIZE, UnitHeader};
use myriad_format::{AgBlock, FileBlock, FsBlock, Ino};
use std::ops::Deref;

const BLOCK: usize = 1024;
/// Pointers of a block of pointers.
const N: u64 = 2 * 62;
/// The first file block behind pointers 12, 13 and 14.
const SINGLE: u64 = 12;
const DOUBLE: u64 = SINGLE + N;
const TRIPLE: u64 = DOUBLE + N * N;
/// File blocks that the sample file has: some behind each kind of pointer.
const WRITTEN: [std::ops::Range<u64>; 5] = [
    0..20,
    SINGLE + 60..SINGLE + 64,
    DOUBLE - 3..DOUBLE + 3,
    DOUBLE + 5 * N..DOUBLE + 5 * N + 90,
    TRIPLE..TRIPLE + 130,
];

/// What the sample file has in one of its blocks.
fn content(block: u64) -> [u8; BLOCK] {
    [(block % 250) as u8 + 1; BLOCK]
}

/// Those of FFS, but for the directory.
fn choices(directory: Directory) -> Choices {
    Choices { space: Space::Bitmap, inodes: Inodes::Static, map: Map::Blocks, directory, ..Choices::default() }
}

struct Sample {
    written: Written,
    file: Ino,
    other: Ino,
    dir: Ino,
}

impl Deref for Sample {
    type Target = Written;

    fn deref(&self) -> &Written {
        &self.written
    }
}

impl Sample {
    fn new() -> Self {
        Self::with(Directory::Indexed)
    }

    fn with(directory: Directory) -> Self {
        let choices = choices(directory);
        let options = MkfsOptions { block_size: BLOCK as u32, choices, seed: Some(7), ..MkfsOptions::default() };
        let mut inos = [Ino(0); 3];
        let written = Written::new(32 << 20, &options, |session| {
            let create = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };
            let file = session.open("file", create).unwrap();
            for block in WRITTEN.into_iter().flatten() {
                file.write_at(&content(block), block * BLOCK as u64).unwrap();
            }
            let other = session.open("other", create).unwrap();
            for block in 0..40 {
                other.write_at(&content(block), block * BLOCK as u64).unwrap();
            }
            other.allocate(AllocateMode::Extend, 0, 60 * BLOCK as u64).unwrap();
            session.mkdir("dir", 0o755).unwrap();
            for name in 0..800 {
                session.open(&format!("dir/a name that is long enough, number {name}"), create).unwrap();
            }
            inos = ["file", "other", "dir"].map(|path| Ino(session.lstat(path).unwrap().ino));
        });
        let [file, other, dir] = inos;
        Self { written, file, other, dir }
    }

    fn change_inode(&self, ino: Ino, f: impl FnOnce(&mut RawInode, &mut [u8])) {
        let (block, slot) = self.geometry.locate(ino).unwrap();
        let at = self.geometry.inode_offset(slot);
        self.change(block, |bytes| {
            let (raw, rest) = bytes[at..].split_at_mut(POINTERS_OFFSET);
            f(RawInode::read_mut(raw), &mut rest[..15 * RawPointer::SIZE]);
        });
    }

    /// Where the pointer at the end of so many steps towards a file block lies: block, and byte of it. No step: the inode's.
    fn pointer(&self, ino: Ino, at: u64, steps: usize) -> (FsBlock, usize) {
        let way = self.geometry.way(FileBlock(at)).unwrap();
        let (block, slot) = self.geometry.locate(ino).unwrap();
        let mut place = (block, self.geometry.inode_offset(slot) + POINTERS_OFFSET + way.root * RawPointer::SIZE);
        for level in 0..steps {
            let (block, offset) = place;
            let next = FsBlock(RawPointer::read(&self.read(block)[offset..]).word.get());
            place = (next, pointers::offset(way.index(level)));
        }
        place
    }

    fn word(&self, (block, offset): (FsBlock, usize)) -> u64 {
        RawPointer::read(&self.read(block)[offset..]).word.get()
    }

    fn set(&self, (block, offset): (FsBlock, usize), word: u64) {
        self.change(block, |bytes| bytes[offset..offset + 8].copy_from_slice(&word.to_le_bytes()));
    }

    /// Blocks of the sample file that read as zeros, as the engine sees it; all others must be what they were.
    fn lost(&self) -> Vec<u64> {
        self.with_session(|session| {
            let read = |path: &str, block: u64| {
                let mut bytes = [9; BLOCK];
                let file = session.open(path, OpenOptions::READ).unwrap();
                let count = file.read_at(&mut bytes, block * BLOCK as u64).unwrap();
                assert!(count == BLOCK || count == 0, "{path}, block {block}: {count}");
                bytes
            };
            let mut lost = Vec::new();
            for block in WRITTEN.into_iter().flatten() {
                match read("file", block) {
                    bytes if bytes == content(block) => {}
                    bytes if bytes == [0; BLOCK] => lost.push(block),
                    _ => panic!("block {block} has what it never had"),
                }
            }
            for block in 0..60 {
                let expected = if block < 40 { content(block) } else { [0; BLOCK] };
                assert!(read("other", block) == expected, "block {block} of the other file");
            }
            assert_eq!(session.read_dir("dir").unwrap().count(), 800);
            lost
        })
    }
}

/// Damages a sample: the check reports one of `expected` and nothing else that `may` not be; after a repair the volume is sound, and of
/// the sample file just `lost` reads as zeros.
fn damaged(what: &str, expected: u32, may: &[u32], lost: &[u64], damage: impl FnOnce(&Sample)) {
    let sample = Sample::new();
    damage(&sample);
    let report = sample.mend(what, expected);
    // What nothing leads to any more has leaked, and a count that is right counts it.
    let usual = [expected, number::BLOCK_LEAKED, number::INODE_BLOCKS];
    let others: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| !usual.contains(&finding.number) && !may.contains(&finding.number))
        .collect();
    assert!(others.is_empty(), "{what}: {others:#?}");
    assert_eq!(sample.lost(), lost, "{what}");
}

#[test]
fn damaged_pointers_are_found_and_put_right() {
    let single: Vec<u64> = (12..20).chain(SINGLE + 60..SINGLE + 64).chain(DOUBLE - 3..DOUBLE).collect();
    let double: Vec<u64> = (DOUBLE..DOUBLE + 3).chain(DOUBLE + 5 * N..DOUBLE + 5 * N + 90).collect();
    damaged("a pointer out of the volume", number::EXTENT, &[], &[7], |s| s.set(s.pointer(s.file, 7, 0), 1 << 40));
    damaged("a pointer to a fixed block", number::EXTENT, &[], &[SINGLE + 61], |s| {
        s.set(s.pointer(s.file, SINGLE + 61, 1), 3);
    });
    damaged("a pointer with bits that mean nothing", number::EXTENT, &[], &[TRIPLE + 128], |s| {
        let place = s.pointer(s.file, TRIPLE + 128, 3);
        s.set(place, s.word(place) | 1 << 55);
    });
    damaged("an unwritten block of pointers", number::EXTENT, &[], &single, |s| {
        let place = s.pointer(s.file, SINGLE, 0);
        s.set(place, s.word(place) | 1 << 63);
    });
    damaged("a file block that is a younger file's pointers", number::BLOCK_TWICE, &[], &[9], |s| {
        let theirs = s.word(s.pointer(s.other, SINGLE, 0));
        s.set(s.pointer(s.file, 9, 0), theirs);
    });
    damaged("a file block of two files", number::BLOCK_TWICE, &[], &[9], |s| {
        // The other one is younger: its block stays the first owner's, which comes first in the table.
        let theirs = s.word(s.pointer(s.file, 8, 0));
        s.set(s.pointer(s.file, 9, 0), theirs);
    });
    damaged("a circle", number::BLOCK_TWICE, &[], &double, |s| {
        let (node, _) = s.pointer(s.file, DOUBLE, 1);
        s.change(node, |bytes| {
            for index in 0..N as usize {
                bytes[pointers::offset(index)..][..8].copy_from_slice(&node.0.to_le_bytes());
            }
        });
    });
    damaged("a block of pointers of another file", number::BLOCK_OWNER, &[], &single, |s| {
        let (node, _) = s.pointer(s.file, SINGLE, 1);
        let owner = s.other.0;
        s.change(node, |bytes| {
            bytes.chunks_exact_mut(UNIT_SIZE).for_each(|unit| UnitHeader::read_mut(unit).owner.set(owner));
        });
    });
    damaged("something else in place of a block of pointers", number::BLOCK_KIND, &[], &single, |s| {
        let (node, _) = s.pointer(s.file, SINGLE, 1);
        s.write(node, &[0x5a; BLOCK]);
    });
    // Of the two units the second is torn: what the first leads to stays.
    let second: Vec<u64> = (SINGLE + 62..SINGLE + 64).chain(DOUBLE - 3..DOUBLE).collect();
    damaged("a torn unit", number::BLOCK_CRC, &[], &second, |s| {
        let (node, _) = s.pointer(s.file, SINGLE, 1);
        let mut bytes = s.read(node);
        bytes[UNIT_SIZE + 100] ^= 1;
        assert!(unit::verify_one(&bytes[..UNIT_SIZE], myriad_format::BlockKind::Pointers, &s.volume, node, 0).is_ok());
        s.write(node, &bytes);
    });
    let empty: Vec<u64> = (DOUBLE + 5 * N..DOUBLE + 5 * N + 90).collect();
    damaged("a block of pointers without any", number::TREE_NODE, &[], &empty, |s| {
        let (leaf, _) = s.pointer(s.file, DOUBLE + 5 * N, 2);
        s.change(leaf, |bytes| {
            (0..N as usize).for_each(|index| bytes[pointers::offset(index)..][..8].fill(0));
        });
    });
    let all: Vec<u64> = WRITTEN.into_iter().flatten().collect();
    damaged("a map without pointers", number::INODE, &[], &all, |s| {
        s.change_inode(s.file, |_, pointers| pointers.fill(0))
    });
    damaged("a map of another kind", number::INODE, &[], &all, |s| {
        s.change_inode(s.file, |raw, pointers| {
            raw.set_fork(fork::TREE, 0);
            pointers.fill(0);
        });
    });
}

/// A stale pointer of a file came first, in the order of the table, to a block that had become a directory's: the directory lost it.
#[test]
fn a_block_that_says_whose_it_is_stays_its() {
    let sample = Sample::with(Directory::Linear);
    assert!(sample.file < sample.dir);
    let theirs = sample.word(sample.pointer(sample.dir, 1, 0));
    sample.set(sample.pointer(sample.file, 9, 0), theirs);
    sample.mend("a file block that is a directory's", number::BLOCK_TWICE);
    assert_eq!(sample.lost(), [9]);
    // In the place of a block of pointers, which was taken before it was looked at.
    let sample = Sample::with(Directory::Linear);
    let theirs = sample.word(sample.pointer(sample.dir, 1, 0));
    sample.set(sample.pointer(sample.file, SINGLE, 0), theirs);
    assert!(!sample.check(false).is_sound());
    let report = sample.check(true);
    assert!(report.is_sound(), "{:#?}", report.remaining);
    assert!(sample.check(false).is_sound());
    let names = sample.with_session(|session| session.read_dir("dir").unwrap().count());
    let before = Sample::with(Directory::Linear).with_session(|session| session.read_dir("dir").unwrap().count());
    assert_eq!(names, before);
}

/// As above, of a block that does not say whose it is: data of a younger file, in the place of a block of pointers.
#[test]
fn data_is_not_taken_for_pointers() {
    let sample = Sample::new();
    assert!(sample.file < sample.other);
    let theirs = sample.word(sample.pointer(sample.other, 5, 0));
    sample.set(sample.pointer(sample.file, DOUBLE, 0), theirs);
    assert!(!sample.check(false).is_sound());
    let report = sample.check(true);
    assert!(report.is_sound(), "{:#?}", report.remaining);
    let double: Vec<u64> = (DOUBLE..DOUBLE + 3).chain(DOUBLE + 5 * N..DOUBLE + 5 * N + 90).collect();
    assert_eq!(sample.lost(), double);
}

/// Whether a directory has a block was found by walking all of its map, for each block that an older file's pointers named.
#[test]
fn a_map_is_not_walked_for_each_of_its_blocks() {
    let choices = choices(Directory::Linear);
    let options = MkfsOptions { block_size: BLOCK as u32, choices, seed: Some(7), ..MkfsOptions::default() };
    let reads = |stale: u64| {
        let written = Written::new(32 << 20, &options, |session| {
            let create = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };
            session.open("file", create).unwrap().write_at(&[1; 70 * BLOCK], 0).unwrap();
            session.mkdir("dir", 0o755).unwrap();
            for name in 0..3000 {
                session.open(&format!("dir/a name that is long enough, number {name}"), create).unwrap();
            }
        });
        let [file, dir] =
            written.with_session(|session| ["file", "dir"].map(|path| Ino(session.lstat(path).unwrap().ino)));
        let sample = Sample { written, file, other: file, dir };
        for block in 0..stale {
            let steps = |at| usize::from(at >= SINGLE);
            let theirs = sample.word(sample.pointer(dir, 100 + block, 1));
            sample.set(sample.pointer(file, 10 + block, steps(10 + block)), theirs);
        }
        let before = sample.device.counters().reads;
        let report = sample.check(true);
        assert!(report.is_sound(), "{:#?}", report.remaining);
        let reads = sample.device.counters().reads - before;
        assert_eq!(sample.with_session(|session| session.read_dir("dir").unwrap().count()), 3000);
        reads
    };
    let (few, many) = (reads(6), reads(36));
    assert!(many - few < 3 * 30, "{few} reads for 6 blocks, {many} for 36");
}

/// What a directory's lost pointers led to are entries: repair brings back what it can reach, and the rest is in lost+found.
#[test]
fn a_directory_survives_a_lost_block_of_pointers() {
    let sample = Sample::new();
    let (node, _) = sample.pointer(sample.dir, SINGLE, 1);
    sample.write(node, &[0x5a; BLOCK]);
    assert!(!sample.check(false).is_sound());
    let report = sample.check(true);
    assert!(report.is_sound(), "{:#?}", report.remaining);
    assert!(sample.check(false).is_sound());
    let [kept, found] =
        sample.with_session(|session| ["dir", "lost+found"].map(|path| session.read_dir(path).unwrap().count()));
    assert_eq!(kept + found, 800, "{kept} kept, {found} found");
    assert!(kept > 100 && found > 50, "{kept} kept, {found} found");
}

/// Power was lost after a directory's size had shrunk and one of the two units that cleared pointers behind its end had arrived. The map has a hole
/// behind the end then, which was damage: the background check locked the volume.
#[test]
fn a_hole_behind_the_end_of_a_directory_is_left_over() {
    let sample = Sample::with(Directory::Linear);
    let blocks = sample.with_session(|session| session.lstat("dir").unwrap().size) / BLOCK as u64;
    sample.change_inode(sample.dir, |raw, _| raw.size.set((blocks - 9) * BLOCK as u64));
    for block in blocks - 9..blocks - 4 {
        sample.set(sample.pointer(sample.dir, block, 1), 0);
    }
    let report = sample.mend("a hole behind the end", number::INODE_SIZE);
    let damage: Vec<_> = report.findings.iter().filter(|finding| !finding.is_leftover).collect();
    assert!(damage.is_empty(), "{damage:#?}");
}

/// Power was lost after a round had filled a block of a table and before the mark: nobody may read the inodes there, for what they lead to may be deleted
/// bytes of others. A repair took them for lost, and gave them names under lost+found.
#[test]
fn inodes_behind_the_mark_of_a_table_stay_unread() {
    let choices = choices(Directory::Linear);
    let options =
        MkfsOptions { choices, order: Order::Soft, log_size: Some(0), seed: Some(7), ..MkfsOptions::default() };
    for (order, is_cleared) in [(Order::Soft, true), (Order::Sync, true), (Order::None, false)] {
        let written = Written::new(32 << 20, &options, |session| {
            let create = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };
            session.open("file", create).unwrap().write_at(&[1; BLOCK], 0).unwrap();
        });
        let file = written.with_session(|session| Ino(session.lstat("file").unwrap().ino));
        let geometry = written.geometry;
        let (block, slot) = geometry.locate(file).unwrap();
        let ag = geometry.ag_of(block);
        let header = written.read(geometry.fs_block(ag, AgBlock(HEADER_BLOCK)));
        let made = GroupHeader::read(&header).inode_blocks.get();
        let behind = geometry.fs_block(ag, AgBlock(geometry.table_start(ag) + made));
        let filled = written.read(block);
        written.change(behind, |bytes| bytes.copy_from_slice(&filled));
        written.change(FsBlock(0), |bytes| {
            let superblock = Superblock::read_mut(bytes);
            superblock.state.set(state::IN_USE);
            superblock.mount_nonce.set(77);
            superblock.last_order.set(order as u32);
        });
        // Something that a repair has to do.
        written.change(block, |bytes| {
            RawInode::read_mut(&mut bytes[geometry.inode_offset(slot)..]).set_block_total(99);
        });
        let before = written.check(false).totals.inodes;
        let report = written.check(true);
        assert!(report.is_sound(), "{}: {:#?}", order.name(), report.remaining);
        assert_eq!(report.totals.inodes == before, is_cleared, "{}: {:#?}", order.name(), report.actions);
        assert_eq!(written.read(behind).iter().all(|&byte| byte == 0), is_cleared, "{}", order.name());
    }
}
