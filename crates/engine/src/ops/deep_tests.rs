//! Ways and listings that take more inodes than the cache has frames: what walks them neither runs out of frames nor takes those of others.

use super::ancestors::Question;
use super::rename::testing::{attempt_move, is_waiting_for_a_turn, is_walk_first};
use super::{NewFile, Ops};
use crate::attr_list::{ACCESS_ACL, DEFAULT_ACL};
use crate::cache::Sweep;
use crate::error::{Errno, Error, Result};
use crate::inode;
use crate::namei;
use crate::types::{Cred, MkfsOptions, Node, Order, RenameMode, XattrMode};
use crate::volume::{Volume, testing, transact};
use myriad_device::MemoryDevice;
use myriad_format::Ino;
use myriad_format::choices::Profile;
use myriad_format::inode::{S_IFDIR, S_IFREG};
use std::sync::Arc;
use zerocopy::little_endian::U64;

/// Directories of the chain. Two of them have their inodes in one block, and the smallest cache has 1,024 frames.
const DEPTH: usize = 2500;
/// Files of a directory. Three have their inodes in one block.
const FILES: usize = 5000;

/// A volume with blocks of 512 bytes and the smallest cache.
fn volume(order: Order) -> Volume {
    volume_with(order, 0)
}

fn volume_with(order: Order, cache_size: u64) -> Volume {
    let choices =
        if order == Order::Log { MkfsOptions::default().choices } else { Profile::parse("ffs").unwrap().choices };
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let options = MkfsOptions { block_size: 512, choices, order, ..MkfsOptions::default() };
    crate::mkfs::format(device.clone(), None, &options).unwrap();
    testing::open_with(device, cache_size)
}

/// Does something as root.
fn with<R>(volume: &Volume, f: impl FnOnce(&Ops<'_>) -> R) -> R {
    let cred = Cred::root();
    f(&Ops { volume, cred: &cred, caller: &cred })
}

fn root(volume: &Volume) -> Node {
    namei::root(&volume.look()).unwrap()
}

fn make(volume: &Volume, dir: Node, name: &str, mode: u16) -> Node {
    let new = NewFile { mode, ..NewFile::default() };
    with(volume, |ops| ops.make(dir, name.as_bytes(), &new).unwrap().node())
}

fn mkdir(volume: &Volume, dir: Node, name: &str) -> Node {
    make(volume, dir, name, S_IFDIR | 0o755)
}

fn rename(volume: &Volume, from: (Node, &str), to: (Node, &str), mode: RenameMode) -> Result<()> {
    with(volume, |ops| ops.rename((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), mode, (false, false)))
}

/// Makes `d/d/d/...` in the root; all of these directories, the last one at the bottom.
fn chain(volume: &Volume, depth: usize) -> Vec<Node> {
    let mut at = root(volume);
    let down = (0..depth).map(|_| {
        at = mkdir(volume, at, "d");
        at
    });
    down.collect()
}

/// Brings all home, and takes all from the cache.
fn empty_cache(volume: &Volume) {
    assert!(volume.checkpointer.lock().settle(volume).unwrap());
    volume.cache.sweep(Sweep::Everything);
}

fn count(volume: &Volume, name: &str) -> u64 {
    volume.counters.snapshot().into_iter().find(|(other, _)| *other == name).unwrap().1
}

fn refused(result: Result<()>) -> Errno {
    match result {
        Err(Error::Refused(errno)) => errno,
        other => panic!("{other:?}"),
    }
}

/// A rename looked at all directories above the target inside its transaction, and took a frame for each.
#[test]
fn a_directory_moves_below_more_directories_than_there_are_frames() {
    for order in [Order::Log, Order::Soft] {
        let volume = volume(order);
        let chain = chain(&volume, DEPTH);
        let (root, bottom) = (root(&volume), *chain.last().unwrap());
        mkdir(&volume, root, "other");
        let inside = mkdir(&volume, bottom, "inside");
        empty_cache(&volume);
        rename(&volume, (root, "other"), (bottom, "other"), RenameMode::Replace).unwrap();
        empty_cache(&volume);
        rename(&volume, (bottom, "other"), (root, "other"), RenameMode::NoReplace).unwrap();
        empty_cache(&volume);
        // Below itself; in the place of what it is in; and both.
        assert_eq!(
            refused(rename(&volume, (root, "d"), (inside, "d"), RenameMode::Replace)),
            Errno::INVAL,
            "{order:?}"
        );
        empty_cache(&volume);
        let result = rename(&volume, (bottom, "inside"), (root, "d"), RenameMode::Replace);
        assert_eq!(refused(result), Errno::NOTEMPTY, "{order:?}");
        empty_cache(&volume);
        let result = rename(&volume, (bottom, "inside"), (root, "d"), RenameMode::Exchange);
        assert_eq!(refused(result), Errno::INVAL, "{order:?}");
        empty_cache(&volume);
        rename(&volume, (bottom, "inside"), (root, "other"), RenameMode::Exchange).unwrap();
        volume.commit_now().unwrap();
    }
}

/// What was found out about the directories above a place holds until a directory moves.
#[test]
fn what_was_found_of_a_long_way_is_asked_again_after_a_move() {
    let volume = volume(Order::Log);
    let chain = chain(&volume, 100);
    let (root, bottom) = (root(&volume), *chain.last().unwrap());
    let moved = mkdir(&volume, root, "moved");
    mkdir(&volume, root, "other");
    let question = Question { directory: bottom, ancestor: Ino(moved.ino) };
    with(&volume, |ops| {
        let attempt = |known| attempt_move(ops, (root, b"moved"), (bottom, b"moved"), known);
        assert!(is_walk_first(&attempt(None).unwrap()), "nothing is known");
        let early = ops.find_ancestry(question).unwrap();
        rename(&volume, (root, "other"), (chain[0], "other"), RenameMode::Replace).unwrap();
        assert!(is_walk_first(&attempt(Some(early)).unwrap()), "the tree has another shape");
        // Now what is moved is above the place.
        rename(&volume, (root, "d"), (moved, "d"), RenameMode::Replace).unwrap();
        let known = ops.find_ancestry(question).unwrap();
        assert!(matches!(attempt(Some(known)), Err(Error::Refused(Errno::INVAL))));
        rename(&volume, (moved, "d"), (root, "d"), RenameMode::Replace).unwrap();
        let known = ops.find_ancestry(question).unwrap();
        {
            let _turn = volume.moves_turn.lock();
            assert!(is_waiting_for_a_turn(&attempt(Some(known)).unwrap()), "another one walks");
        }
        assert!(!is_walk_first(&attempt(Some(known)).unwrap()));
    });
    assert_eq!(with(&volume, |ops| ops.lookup(bottom, b"moved")).unwrap().node(), moved);
}

/// Threads that move directories all the time keep no rename from its end that has a long way to walk.
#[test]
fn a_long_way_ends_beside_many_moves() {
    let volume = volume(Order::Log);
    let chain = chain(&volume, 300);
    let (root, bottom) = (root(&volume), *chain.last().unwrap());
    mkdir(&volume, root, "deep");
    let places = [mkdir(&volume, root, "a"), mkdir(&volume, root, "b")];
    mkdir(&volume, places[0], "moving");
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in (0..).take_while(|_| !is_done.load(std::sync::atomic::Ordering::Relaxed)) {
                let (from, to) = (places[i % 2], places[(i + 1) % 2]);
                rename(&volume, (from, "moving"), (to, "moving"), RenameMode::Replace).unwrap();
            }
        });
        for _ in 0..10 {
            rename(&volume, (root, "deep"), (bottom, "deep"), RenameMode::Replace).unwrap();
            rename(&volume, (bottom, "deep"), (root, "deep"), RenameMode::Replace).unwrap();
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// A rename went around a ring of parents, inside the gate, as often as the volume said that it had inodes.
#[test]
fn a_ring_of_parents_ends_a_rename() {
    let volume = volume(Order::Log);
    let chain = chain(&volume, 100);
    let (root, bottom) = (root(&volume), *chain.last().unwrap());
    mkdir(&volume, root, "moved");
    transact(&volume, 0, |txn| {
        let mut raw = inode::read(&txn.look, Ino(chain[0].ino))?;
        raw.parent = U64::new(chain[40].ino);
        inode::write(txn, Ino(chain[0].ino), &raw)
    })
    .unwrap();
    volume.totals.inodes_used.store(i64::MAX / 2, std::sync::atomic::Ordering::Relaxed);
    let result = rename(&volume, (root, "moved"), (bottom, "moved"), RenameMode::Replace);
    assert!(matches!(result, Err(Error::Corrupt(_))), "{result:?}");
    volume.check_running().unwrap();
}

/// An fsync of order `softdep` read all directories above its file behind the closed gate, where nothing is evicted, and ended the volume.
#[test]
fn a_file_below_more_directories_than_there_are_frames_is_synced() {
    let volume = volume(Order::Soft);
    let bottom = *chain(&volume, DEPTH).last().unwrap();
    empty_cache(&volume);
    let file = make(&volume, bottom, "file", S_IFREG | 0o644);
    volume.commit_file(Ino(file.ino)).unwrap();
    assert_eq!(count(&volume, "soft_fsyncs_of_all"), 0);
    volume.check_running().unwrap();
}

/// A round looked at all directories above a name for each further name of a file, while everybody waited.
#[test]
fn what_reaches_a_directory_is_found_out_once_for_all_of_its_names() {
    let volume = volume_with(Order::Soft, 8 << 20);
    let bottom = *chain(&volume, 300).last().unwrap();
    let files: Vec<Node> = (0..100).map(|i| make(&volume, bottom, &format!("file {i}"), S_IFREG | 0o644)).collect();
    volume.commit_now().unwrap();
    for (i, &file) in files.iter().enumerate() {
        with(&volume, |ops| ops.link(file, bottom, format!("link {i}").as_bytes(), Default::default())).unwrap();
    }
    let before = count(&volume, "blocks_touched");
    volume.commit_now().unwrap();
    let touched = count(&volume, "blocks_touched") - before;
    assert!(touched < 20 * 300, "{touched} blocks");
}

/// A listing took a frame for the inode of each entry, down to the last ones, and left out what came after.
#[test]
fn a_listing_of_more_inodes_than_there_are_frames_has_all() {
    let volume = volume(Order::Log);
    let dir = mkdir(&volume, root(&volume), "dir");
    let kept = mkdir(&volume, root(&volume), "kept");
    for i in 0..FILES {
        let file = make(&volume, dir, &format!("file {i}"), S_IFREG | 0o644);
        if i % 100 == 0 {
            // In `dir` it has a further name.
            with(&volume, |ops| {
                ops.link(file, kept, format!("{i}").as_bytes(), Default::default()).unwrap();
                ops.unlink(dir, format!("file {i}").as_bytes()).unwrap();
                ops.link(file, dir, format!("file {i}").as_bytes(), Default::default()).unwrap();
            });
        }
    }
    with(&volume, |ops| {
        empty_cache(&volume);
        let mut entries = Vec::new();
        let mut cookie = 0;
        loop {
            let listed = ops.read_dir_plus(dir, cookie, FILES).unwrap();
            let Some((last, _)) = listed.last() else { break };
            cookie = last.cookie;
            assert!(listed.iter().all(|(entry, stat)| stat.is_some_and(|stat| stat.ino == entry.ino)));
            entries.extend(listed.into_iter().map(|(entry, _)| entry));
        }
        assert_eq!(entries.len(), FILES);
        empty_cache(&volume);
        let stats = ops.stat_entries(dir, &entries, |_| true);
        assert!(stats.iter().zip(&entries).all(|(stat, entry)| stat.is_some_and(|stat| stat.ino == entry.ino)));
    });
}

/// A path took frames for all of its directories in one stay inside the gate.
#[test]
fn a_path_through_more_directories_than_there_are_frames_is_walked() {
    let volume = volume(Order::Log);
    let bottom = *chain(&volume, 2040).last().unwrap();
    let path = b"d/".repeat(2040);
    empty_cache(&volume);
    let root = root(&volume);
    let (ino, _) = namei::resolve(&mut volume.look(), &Cred::root(), root, &path, true).unwrap();
    assert_eq!(ino.0, bottom.ino);
}

/// Each file that was made in a directory read all attributes of the directory, for its ACLs.
#[test]
fn acls_are_found_before_a_long_list_has_been_read() {
    let volume = volume(Order::Log);
    let dir = mkdir(&volume, root(&volume), "dir");
    // Owner, user 1000, group, mask, others.
    let entry =
        |tag: u16, mode: u16, id: u32| [&tag.to_le_bytes()[..], &mode.to_le_bytes(), &id.to_le_bytes()].concat();
    let entries = [(1, 7, u32::MAX), (2, 7, 1000), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];
    let entries = entries.map(|(tag, mode, id)| entry(tag, mode, id)).concat();
    let acl = [&2_u32.to_le_bytes()[..], &entries].concat();
    with(&volume, |ops| {
        for i in 0..10 {
            ops.set_xattr(dir, format!("user.{i}").as_bytes(), &[i; 10_000], XattrMode::Set).unwrap();
        }
        [ACCESS_ACL, DEFAULT_ACL].iter().for_each(|name| ops.set_xattr(dir, name, &acl, XattrMode::Set).unwrap());
        assert_eq!(ops.get_xattr(dir, b"user.9").unwrap(), [9; 10_000]);
    });
    make(&volume, dir, "first", S_IFREG | 0o644);
    let before = count(&volume, "blocks_touched");
    make(&volume, dir, "second", S_IFREG | 0o644);
    let touched = count(&volume, "blocks_touched") - before;
    assert!(touched < 100, "{touched} blocks");
}
