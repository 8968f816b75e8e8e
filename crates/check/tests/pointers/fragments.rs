//! Pointers to runs of fragments, and what is counted of them. A repair shows no byte that a file never had.

use crate::Written;
use myriad_check::number;
use myriad_device::BlockDevice;
use myriad_engine::{MkfsOptions, OpenOptions};
use myriad_format::choices::{Order, Profile};
use myriad_format::group::{GroupHeader, HEADER_BLOCK};
use myriad_format::pointers::{self, Pointer, RawPointer};
use myriad_format::superblock::{Superblock, state};
use myriad_format::table::POINTERS_OFFSET;
use myriad_format::{AgBlock, AgNo, FsBlock, Ino};
use std::ops::Deref;

const FRAGMENT: usize = 512;
const BLOCK: usize = 8 * FRAGMENT;
/// Files and their lengths: runs of two and of five fragments, whole blocks and a run, and a block of pointers.
const FILES: [(&str, usize); 4] =
    [("two", 700), ("five", 5 * FRAGMENT), ("mixed", 3 * BLOCK + 1000), ("large", 15 * BLOCK + 100)];

fn content(name: &str, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 5 + name.len() * 11) as u8 | 1).collect()
}

struct Sample(Written);

impl Deref for Sample {
    type Target = Written;

    fn deref(&self) -> &Written {
        &self.0
    }
}

impl Sample {
    fn new() -> Self {
        let choices = Profile::parse("ffs").unwrap().choices;
        let options =
            MkfsOptions { block_size: BLOCK as u32, fragments: 8, choices, seed: Some(7), ..MkfsOptions::default() };
        Self(Written::new(16 << 20, &options, |session| {
            session.mkdir("dir", 0o755).unwrap();
            session.create("dir/name", 0o644).unwrap();
            for (name, length) in FILES {
                let create = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };
                let file = session.open(name, create).unwrap();
                file.write_at(&content(name, length), 0).unwrap();
                file.sync().unwrap();
            }
        }))
    }

    fn ino(&self, path: &str) -> Ino {
        Ino(self.with_session(|session| session.lstat(path).unwrap().ino))
    }

    /// Sets a pointer of a file to what `f` makes of it: one of its inode's.
    fn set(&self, path: &str, index: usize, f: impl FnOnce(u64) -> u64) {
        let (block, slot) = self.geometry.locate(self.ino(path)).unwrap();
        let at = self.geometry.inode_offset(slot) + POINTERS_OFFSET + index * RawPointer::SIZE;
        self.change(block, |bytes| put(bytes, at, f));
    }

    fn word(&self, path: &str, index: usize) -> u64 {
        let mut found = 0;
        self.set(path, index, |word| {
            found = word;
            word
        });
        found
    }

    /// Every byte of each file is what it was, or zero.
    fn assert_nothing_foreign(&self, what: &str) -> usize {
        self.with_session(|session| {
            let mut lost = 0;
            for (name, length) in FILES {
                let mut bytes = vec![9; length];
                let count = session.open(name, OpenOptions::READ).unwrap().read_at(&mut bytes, 0).unwrap();
                assert_eq!(count, length, "{what}: {name}");
                for (at, (&found, expected)) in bytes.iter().zip(content(name, length)).enumerate() {
                    assert!(found == expected || found == 0, "{what}: byte {at} of {name} is {found}, was {expected}");
                    lost += usize::from(found == 0);
                }
            }
            lost
        })
    }
}

fn put(bytes: &mut [u8], at: usize, f: impl FnOnce(u64) -> u64) {
    let word = RawPointer::read(&bytes[at..]).word.get();
    bytes[at..at + 8].copy_from_slice(&f(word).to_le_bytes());
}

/// The check reports `expected`; after a repair, `lost` bytes of files are zeros that were none.
fn damaged(what: &str, expected: u32, lost: usize, damage: impl FnOnce(&Sample)) {
    let sample = Sample::new();
    damage(&sample);
    sample.mend(what, expected);
    assert_eq!(sample.assert_nothing_foreign(what), lost, "{what}");
}

#[test]
fn damaged_runs_are_found_and_put_right() {
    const ONE_LESS: u64 = 1 << 48;
    damaged("a run that is longer than it was", number::BLOCK_TWICE, 0, |s| {
        // What follows it is the block of pointers of the next file, which says so and stays its.
        s.set("mixed", 3, |word| word - ONE_LESS);
    });
    damaged("a run that is shorter than it was", number::INODE_BLOCKS, FRAGMENT, |s| {
        s.set("five", 0, |word| word + ONE_LESS);
    });
    damaged("a whole block that begins in the middle of one", number::EXTENT, BLOCK, |s| {
        s.set("mixed", 1, |word| word + 1)
    });
    damaged("a run that leaves its block", number::EXTENT, 5 * FRAGMENT, |s| {
        s.set("five", 0, |word| {
            let (start, length) = Pointer::run_of(word, &s.geometry);
            Pointer::new(FsBlock(start.0 / 8 * 8 + 6), length, false).encode(&s.geometry).word.get()
        });
    });
    damaged("a fragment unwritten that the run has not", number::EXTENT, 700, |s| {
        s.set("two", 0, |word| word | 1 << 58)
    });
    damaged("runs of two files that overlap", number::BLOCK_TWICE, BLOCK, |s| {
        // The younger file loses.
        let theirs = s.word("five", 0);
        s.set("mixed", 0, |_| theirs);
    });
    damaged("a part of a block behind the direct pointers", number::EXTENT, BLOCK, |s| {
        let node = Pointer::run_of(s.word("large", 12), &s.geometry).0;
        s.change(node, |bytes| put(bytes, pointers::offset(1), |word| word + 3 * ONE_LESS));
    });
    damaged("more than one block of pointers", number::EXTENT, 3 * BLOCK + 100, |s| {
        s.set("large", 12, |word| word - ONE_LESS)
    });
}

#[test]
fn a_directory_has_no_runs() {
    let sample = Sample::new();
    sample.set("dir", 0, |word| word - (1 << 48));
    sample.mend("a run of a directory", number::EXTENT);
}

#[test]
fn counts_of_parts_are_compared() {
    let sample = Sample::new();
    let group = sample.geometry.fs_block(AgNo(0), AgBlock(HEADER_BLOCK));
    sample.change(group, |bytes| {
        let head = GroupHeader::read_mut(bytes);
        head.free_parts.set(head.free_parts.get() + 8);
    });
    sample.change(FsBlock(0), |bytes| {
        let superblock = Superblock::read_mut(bytes);
        superblock.free_parts.set(superblock.free_parts.get() + 1);
    });
    let report = sample.mend("counts", number::GROUP_FREE);
    let numbers: Vec<u32> = report.findings.iter().map(|finding| finding.number).collect();
    assert_eq!(numbers, [number::VOLUME_COUNTS, number::GROUP_FREE], "{:#?}", report.findings);
    assert_eq!(sample.assert_nothing_foreign("counts"), 0);
}

/// Where the list of orphans may be older than the inodes, blocks that are written past the end of a file go. Files that end within a block have none.
#[test]
fn files_that_end_within_a_block_have_nothing_past_their_end() {
    let sample = Sample::new();
    let log_start = sample.change(FsBlock(0), |bytes| {
        let superblock = Superblock::read_mut(bytes);
        superblock.state.set(state::IN_USE);
        superblock.last_order.set(Order::None as u32);
        superblock.log_start.get()
    });
    // Both anchors of the log, which would give the superblock back.
    sample.device.write(log_start << sample.geometry.block_bits, &[0; 8192]).unwrap();
    let report = sample.check(true);
    assert!(report.repaired && report.is_sound(), "{:#?}", report.remaining);
    assert!(!report.actions.iter().any(|action| action.contains("past its end")), "{:?}", report.actions);
}
