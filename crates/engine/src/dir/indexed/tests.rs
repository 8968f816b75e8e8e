//! Directories of the largest size, and directories that give up their blocks.

use super::rooms::{ENTRY_BLOCKS, entry_blocks_max};
use super::*;
use crate::namei;
use crate::ops::{NewFile, Ops};
use crate::types::{Cred, LinkRules, Node, RenameMode};
use crate::volume::transact;
use crate::volume::{Volume, testing};
use myriad_check::{Options as CheckOptions, check};
use myriad_device::MemoryDevice;
use myriad_format::inode::{S_IFDIR, S_IFREG};
use myriad_format::superblock::state;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::little_endian::U32;

/// Sets how many entry blocks the index root of a directory says there are, and counts them among its blocks.
fn claim_blocks(volume: &Volume, dir: Node, blocks: u32) {
    let ino = Ino(dir.ino);
    transact(volume, 0, |txn| {
        let mut raw = inode::read(&txn.look, ino)?;
        let root = index_root(&raw).unwrap();
        txn.change(root, BlockKind::DirIndex, |edit| edit.put(ENTRY_BLOCKS, &blocks.to_le_bytes()))?;
        raw.add_blocks(i64::from(blocks));
        inode::write(txn, ino, &raw)
    })
    .unwrap();
}

/// The limit was met after blocks had been tried and an inode allocated: ENOSPC, and the volume shut down.
#[test]
fn a_directory_of_the_largest_size_refuses_names_and_the_volume_goes_on() {
    let volume = testing::volume(Arc::new(MemoryDevice::new(16 << 20)));
    let cred = Cred::root();
    let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
    let root = namei::root(&volume.look()).unwrap();
    let dir = ops.make(root, b"d", &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap().node();
    let new = NewFile { mode: S_IFREG | 0o644, ..NewFile::default() };
    let other = ops.make(root, b"other", &new).unwrap().node();
    let name = |i: u32| format!("{i:08}").into_bytes();
    for i in 0..1000 {
        ops.link(other, dir, &name(i), LinkRules::default()).unwrap();
    }
    // Of no block two neighbours: each has room, but none for a long name.
    for i in (0..1000).step_by(3) {
        ops.unlink(dir, &name(i)).unwrap();
    }
    let largest = entry_blocks_max(&volume.look()) as u32;
    claim_blocks(&volume, dir, largest);
    let long = [b'n'; 255];
    let refused = |result: Result<()>| {
        assert_eq!(result.unwrap_err().errno(), Errno::NOSPC);
        assert!(volume.check_running().is_ok());
    };
    let used = volume.totals.inodes_used.load(Ordering::Relaxed);
    refused(ops.make(dir, &long, &new).map(drop));
    assert_eq!(volume.totals.inodes_used.load(Ordering::Relaxed), used);
    refused(ops.link(other, dir, &long, LinkRules::default()).map(drop));
    refused(ops.rename((root, b"other"), (dir, &long), RenameMode::Replace, (false, false)));
    // What fits is made still, until nothing does.
    let mut made = 0;
    let full = loop {
        match ops.make(dir, &name(2000 + made), &new) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.errno(), Errno::NOSPC);
    assert!(made > 300, "{made}");
    assert!(volume.check_running().is_ok());
    ops.unlink(dir, &name(1)).unwrap();
}

/// What its index says of its size is not walked through before it can be true: extents of a forged directory may lead to one block again and
/// again, and positions behind the largest size begin anew.
#[test]
fn no_directory_has_more_entry_blocks_than_its_volume() {
    let (emptied, _) = Emptied::after(0);
    let Emptied { volume, dir, .. } = &emptied;
    let cred = Cred::root();
    let ops = Ops { volume, cred: &cred, caller: &cred };
    ops.make(*dir, b"name", &NewFile { mode: S_IFREG | 0o644, ..NewFile::default() }).unwrap();
    for blocks in [volume.geometry.block_count as u32 + 1, u32::MAX] {
        claim_blocks(volume, *dir, blocks);
        let look = volume.look();
        let raw = inode::read_node(&look, *dir).unwrap();
        let mut listed = 0;
        let result = list::list(&look, Ino(dir.ino), &raw, 0, &mut |_| {
            listed += 1;
            true
        });
        let error = result.unwrap_err().to_string();
        assert!(error.contains("entry_blocks") && listed == 0, "{error}, after {listed} names");
    }
}

/// A volume with a directory of many names, and of long ones.
struct Emptied {
    device: Arc<MemoryDevice>,
    volume: Volume,
    root: Node,
    dir: Node,
}

const LONG_NAMES: u32 = 700;

fn long_name(i: u32) -> Vec<u8> {
    format!("{i:0255}").into_bytes()
}

impl Emptied {
    /// As the removal of the last entry leaves it, with some of its blocks given up.
    fn after(parts: u32) -> (Self, bool) {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let volume = testing::volume(device.clone());
        volume.write_superblock(state::IN_USE).unwrap();
        let cred = Cred::root();
        let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
        let root = namei::root(&volume.look()).unwrap();
        let dir = ops.make(root, b"d", &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap().node();
        let new = NewFile { mode: S_IFREG | 0o644, ..NewFile::default() };
        let other = ops.make(root, b"other", &new).unwrap().node();
        for i in 0..LONG_NAMES {
            ops.link(other, dir, &long_name(i), LinkRules::default()).unwrap();
        }
        for i in (1..LONG_NAMES).map(|i| i * 37 % LONG_NAMES) {
            ops.unlink(dir, &long_name(i)).unwrap();
        }
        let last = long_name(0);
        let name = Name { bytes: &last, hash: volume.hasher.hash(&last) };
        let ino = Ino(dir.ino);
        transact(&volume, 0, |txn| {
            let mut raw = inode::read(&txn.look, ino)?;
            let hit = search(&txn.look, ino, &raw, name)?.hit.unwrap();
            remove(txn, ino, &mut raw, name, hit)?;
            let mut file = inode::read(&txn.look, hit.ino)?;
            file.nlink = U32::new(file.nlink.get() - 1);
            inode::write(txn, hit.ino, &file)?;
            inode::write(txn, ino, &raw)
        })
        .unwrap();
        assert!(volume.orphans.has(ino, Reason::Emptied));
        let mut done = false;
        for _ in 0..parts {
            done = transact(&volume, 0, |txn| {
                let mut raw = inode::read(&txn.look, ino)?;
                let done = give_up_emptied(txn, ino, &mut raw, &mut 0)?;
                inode::write(txn, ino, &raw)?;
                Ok(done)
            })
            .unwrap();
        }
        (Self { device, volume, root, dir }, done)
    }

    fn assert_sound(&self) {
        self.volume.commit_now().unwrap();
        let report = check(Arc::new(self.device.clone_image()), None, &CheckOptions::default()).unwrap();
        assert!(report.is_sound(), "{:#?}", report.findings);
    }
}

/// Where the block lies to which a name was added last is remembered, and forgotten when the directory gives it up.
#[test]
fn a_block_given_up_is_remembered_no_more() {
    let volume = testing::volume(Arc::new(MemoryDevice::new(64 << 20)));
    let cred = Cred::root();
    let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
    let root = namei::root(&volume.look()).unwrap();
    let dir = ops.make(root, b"d", &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap().node();
    let file = ops.make(root, b"f", &NewFile { mode: S_IFREG | 0o644, ..NewFile::default() }).unwrap().node();
    let remembered = |block: u32| {
        let look = volume.look();
        let raw = inode::read_node(&look, dir).unwrap();
        let known = volume.last_blocks.get(Ino(dir.ino), &raw, FileBlock(block.into()));
        let at = known.map(|(at, _)| at);
        at.map(|at| entry_block(&look, Ino(dir.ino), &raw, FileBlock(block.into())).is_ok_and(|block| block == at))
    };
    // One block, which goes with the last entry, and many, which go by and by.
    for (names, last) in [(10, 0), (LONG_NAMES, (LONG_NAMES - 1) / 14)] {
        for i in 0..names {
            ops.link(file, dir, &long_name(i), LinkRules::default()).unwrap();
        }
        assert_eq!(remembered(last), Some(true), "block {last}");
        for i in 0..names {
            ops.unlink(dir, &long_name(i)).unwrap();
        }
        assert_eq!(ops.stat_node(dir).unwrap().blocks, 0);
        assert_eq!(remembered(last), None, "block {last}");
    }
}

/// Whoever makes entries in a directory that is giving up its blocks, or removes it, need not wait, and loses nothing.
#[test]
fn a_directory_that_gives_up_its_blocks_is_a_directory() {
    let cred = Cred::root();
    let mut parts = 0;
    loop {
        let (emptied, done) = Emptied::after(parts);
        emptied.assert_sound();
        let Emptied { volume, dir, .. } = &emptied;
        let ops = Ops { volume, cred: &cred, caller: &cred };
        let blocks = ops.stat_node(*dir).unwrap().blocks;
        assert_eq!(done, blocks == 0);
        let new = NewFile { mode: S_IFREG | 0o644, ..NewFile::default() };
        for i in 0..50 {
            ops.make(*dir, format!("{i}").as_bytes(), &new).unwrap();
        }
        emptied.assert_sound();
        // It is left with what it has, on the list of blocks with room.
        crate::ops::reclaim_orphans(volume).unwrap();
        assert!(volume.orphans.numbers().is_empty());
        let kept = ops.stat_node(*dir).unwrap().blocks;
        assert!(kept + 4 >= blocks, "{kept} of {blocks} blocks after {parts} parts");
        for i in 0..LONG_NAMES / 2 {
            ops.make(*dir, &long_name(i), &new).unwrap();
        }
        let grown = ops.stat_node(*dir).unwrap().blocks;
        assert!(parts > 0 || grown <= kept, "{grown} of {kept} blocks");
        assert!(ops.lookup(*dir, b"7").is_ok());
        emptied.assert_sound();

        let (emptied, _) = Emptied::after(parts);
        let Emptied { volume, .. } = &emptied;
        let ops = Ops { volume, cred: &cred, caller: &cred };
        ops.rmdir(emptied.root, b"d").unwrap();
        assert!(volume.orphans.numbers().is_empty());
        assert_eq!(ops.stat_node(emptied.dir).unwrap_err().errno(), Errno::STALE);
        assert_eq!(ops.lookup(emptied.root, b"d").unwrap_err().errno(), Errno::NOENT);
        emptied.assert_sound();
        if done {
            break;
        }
        parts += 1;
    }
    assert!(parts > 3, "{parts}");
}
