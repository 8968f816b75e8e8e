//! Facts of units that are made by hand.

use super::*;
use myriad_format::dir::{EntryHeader, clear_unit, entry_size};
use myriad_format::inode::{RawInode, fork};
use myriad_format::table::{INODE_SIZE, POINTERS_OFFSET};
use myriad_format::unit::UnitHeader;
use myriad_format::{FsBlock, Ino};

fn facts(kind: BlockKind, old: &[u8], new: &[u8]) -> Vec<Fact> {
    let mut found = Vec::new();
    between(kind, Some(old), new, &mut |fact| found.push(fact));
    found
}

/// A unit of a directory with these names, each in an entry of its own length.
fn names(names: &[(&str, u64)]) -> Vec<u8> {
    let mut unit = vec![0; UNIT_SIZE];
    clear_unit(&mut unit);
    let mut at = UnitHeader::SIZE;
    for (index, (name, ino)) in names.iter().enumerate() {
        let is_last = index + 1 == names.len();
        let length = if is_last { UNIT_SIZE - at } else { entry_size(name.len()) };
        let header = EntryHeader::read_mut(&mut unit[at..]);
        header.ino.set(*ino);
        header.length.set(length as u16);
        header.name_len = name.len() as u8;
        header.file_type = 8;
        header.tag.set(name.len() as u32);
        unit[at + EntryHeader::SIZE..][..name.len()].copy_from_slice(name.as_bytes());
        at += length;
    }
    unit
}

fn named(ino: u64) -> Option<Named> {
    Some(Named { ino: Ino(ino), file_type: 8 })
}

#[test]
fn names_that_come_go_and_name_another() {
    let old = names(&[("a", 7), ("bb", 8), ("ccc", 9)]);
    // One goes and keeps its place, one names another inode, one stays, one is new.
    let new = names(&[("a", 0), ("bb", 5), ("ccc", 9), ("dddd", 6)]);
    let found = facts(BlockKind::LinearEntries, &old, &new);
    let told: Vec<_> = found
        .iter()
        .map(|fact| match *fact {
            Fact::Entry { tag, old, new, .. } => (tag, old, new),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, [(1, named(7), None), (2, named(8), named(5)), (4, None, named(6))]);
    let mut undone = new.clone();
    found.iter().for_each(|fact| undo(&mut undone, Some(&old), fact));
    let live: Vec<_> = entries::live(&undone).map(|(entry, named)| (entry.name.to_vec(), named.ino.0)).collect();
    assert_eq!(live, [(b"a".to_vec(), 7), (b"bb".to_vec(), 8), (b"ccc".to_vec(), 9)]);
    check_explained(BlockKind::LinearEntries, FsBlock(1), &old, &new);
    // A name that moves inside its unit is no fact.
    let moved = names(&[("ccc", 9), ("a", 7), ("bb", 8)]);
    assert_eq!(facts(BlockKind::LinearEntries, &old, &moved), []);
}

/// Damage had made a name there twice in a unit: one of the two entries was taken for one that had lost its place, which ended a checkpoint in a panic.
#[test]
fn a_name_that_is_there_twice() {
    let old = names(&[("a", 7), ("a", 8), ("bb", 9)]);
    let new = names(&[("a", 7), ("a", 8), ("bb", 0)]);
    let found = facts(BlockKind::LinearEntries, &old, &new);
    assert!(matches!(found[..], [Fact::Entry { at: Some(_), tag: 2, new: None, .. }]), "{found:?}");
}

fn inode(unit: &mut [u8], index: usize) -> &mut RawInode {
    RawInode::read_mut(&mut unit[UnitHeader::SIZE + index * INODE_SIZE..])
}

fn set_pointer(unit: &mut [u8], index: usize, pointer: usize, word: u64) {
    let at = UnitHeader::SIZE + index * INODE_SIZE + POINTERS_OFFSET + pointer * 8;
    unit[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// A unit with a file of one block and a directory.
fn inodes() -> Vec<u8> {
    let mut unit = vec![0; UNIT_SIZE];
    for (index, mode) in [0o100644, 0o040755].into_iter().enumerate() {
        let raw = inode(&mut unit, index);
        raw.mode.set(mode);
        raw.nlink.set(1 + index as u32);
        raw.generation.set(5);
    }
    inode(&mut unit, 0).set_fork(fork::BLOCKS, 0);
    set_pointer(&mut unit, 0, 0, 400);
    unit
}

#[test]
fn what_changes_of_an_inode() {
    let old = inodes();
    let check = |change: fn(&mut [u8]), expected: &[Part], pointers: usize| {
        let mut new = old.clone();
        change(&mut new);
        let found = facts(BlockKind::InodeTable, &old, &new);
        let parts: Vec<Part> = found
            .iter()
            .filter_map(|fact| match *fact {
                Fact::Inode { part, .. } => Some(part),
                _ => None,
            })
            .collect();
        assert_eq!(parts, expected);
        assert_eq!(found.len() - parts.len(), pointers);
        check_explained(BlockKind::InodeTable, FsBlock(1), &old, &new);
    };
    check(|unit| inode(unit, 0).nlink.set(2), &[Part::Links { old: 1, new: 2 }], 0);
    check(|unit| inode(unit, 0).mtime.set(9), &[], 0);
    check(|unit| inode(unit, 0).size.set(9), &[], 0);
    check(|unit| inode(unit, 1).size.set(512), &[Part::Size { old: 0, new: 512 }], 0);
    check(|unit| inode(unit, 1).parent.set(9), &[Part::Identity], 0);
    check(|unit| inode(unit, 0).parent.set(9), &[], 0);
    check(|unit| set_pointer(unit, 0, 1, 401), &[], 1);
    check(|unit| inode(unit, 0).set_fork(fork::NONE, 0), &[], 1);
    check(|unit| inode(unit, 0).mode.set(0), &[Part::Died], 1);
    check(
        |unit| {
            let raw = inode(unit, 1);
            raw.mode.set(0);
            let raw = inode(unit, 1);
            raw.mode.set(0o100600);
            raw.generation.set(6);
        },
        &[Part::Died, Part::Born],
        0,
    );
}

/// The oracle that runs with every change finds what no fact tells of.
#[test]
fn a_change_without_a_fact_is_found() {
    let old = inodes();
    let silent = |kind: BlockKind, old: &[u8], new: &[u8]| {
        let old = old.to_vec();
        let new = new.to_vec();
        std::panic::catch_unwind(move || check_explained(kind, FsBlock(1), &old, &new)).is_ok()
    };
    let mut new = old.clone();
    inode(&mut new, 0).body_slots = 1;
    assert!(!silent(BlockKind::InodeTable, &old, &new), "a field that no inode of a table has");
    let mut new = old.clone();
    inode(&mut new, 0).mode.set(0o120644);
    assert!(!silent(BlockKind::InodeTable, &old, &new), "another type");
    let mut new = old.clone();
    new[8] ^= 1;
    assert!(!silent(BlockKind::InodeTable, &old, &new), "the owner of the unit");
    let directory = names(&[("a", 7), ("bb", 8)]);
    let mut new = directory.clone();
    EntryHeader::read_mut(&mut new[UnitHeader::SIZE..]).length.set(40);
    assert!(!silent(BlockKind::LinearEntries, &directory, &new), "entries that do not fill their unit");
    let bitmap = vec![0; UNIT_SIZE];
    let mut new = bitmap.clone();
    new[3] = 1;
    assert!(!silent(BlockKind::BlockBitmap, &bitmap, &new), "the header of a bitmap");
    new[3] = 0;
    new[20] = 0x81;
    assert!(silent(BlockKind::BlockBitmap, &bitmap, &new));
    assert_eq!(facts(BlockKind::BlockBitmap, &bitmap, &new), [Fact::Given { at: 16, bits: 0x81 << 32 }]);
}

#[test]
fn a_pointer_is_undone_though_nothing_is_mapped_any_more() {
    let old = inodes();
    let mut new = old.clone();
    inode(&mut new, 0).set_fork(fork::NONE, 0);
    // What lies there means nothing now.
    set_pointer(&mut new, 0, 3, 77);
    let found = facts(BlockKind::InodeTable, &old, &new);
    let mut image = new.clone();
    found.iter().for_each(|fact| undo(&mut image, Some(&old), fact));
    settle(BlockKind::InodeTable, &mut image);
    let shown: Vec<u64> = pointers_of(&image[UnitHeader::SIZE..][..INODE_SIZE]).collect();
    assert_eq!((shown[0], shown[3]), (400, 0));
}
