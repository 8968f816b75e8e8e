//! What rounds read behind the closed gate: how much, and what becomes of them if it cannot be read. And how often they write new blocks.

use super::*;
use crate::cache::Sweep;
use crate::error::{Errno, Error};
use crate::ops::{NewFile, Ops};
use crate::order::Txn;
use crate::types::{Cred, DirHash, LinkRules, MkfsOptions, Node, Order, RenameMode};
use crate::volume::{Share, Volume, testing};
use crate::{dir, file, inode, namei};
use myriad_device::{BlockDevice, FaultDevice, FaultOp, FaultSpan, MemoryDevice, PausingDevice};
use myriad_format::choices::Profile;
use myriad_format::group::{GroupHeader, HEADER_BLOCK};
use myriad_format::inode::{S_IFDIR, S_IFLNK, S_IFREG};
use myriad_format::pointers::BLOCK;
use myriad_format::table::{DIRECT, INODE_SIZE, UNIT_SLOTS};
use myriad_format::{AgBlock, Corrupt};
use std::sync::Arc;

fn format(device: Arc<dyn BlockDevice>, block_size: u32) {
    format_with(device, MkfsOptions { block_size, order: Order::Soft, ..MkfsOptions::default() });
}

fn format_with(device: Arc<dyn BlockDevice>, options: MkfsOptions) {
    let choices = Profile::parse("ffs").unwrap().choices;
    crate::mkfs::format(device, None, &MkfsOptions { choices, ..options }).unwrap();
}

/// Does something as root.
fn with<R>(volume: &Volume, f: impl FnOnce(&Ops<'_>, Node) -> R) -> R {
    let cred = Cred::root();
    let ops = Ops { volume, cred: &cred, caller: &cred };
    let root = namei::root(&volume.look()).unwrap();
    f(&ops, root)
}

fn make(volume: &Volume, dir: Node, name: &str, mode: u16) -> Node {
    let new = NewFile { mode, ..NewFile::default() };
    with(volume, |ops, _| ops.make(dir, name.as_bytes(), &new).unwrap().node())
}

fn mkdir(volume: &Volume, dir: Node, name: &str) -> Node {
    make(volume, dir, name, S_IFDIR | 0o755)
}

fn root(volume: &Volume) -> Node {
    with(volume, |_, root| root)
}

/// What a thread that syncs a file asks for, having looked for its name.
fn wanted(volume: &Volume, file: Node) -> Wanted {
    let (look, file) = (volume.look(), Ino(file.ino));
    let name = dir::own_name(&look, file, &inode::read(&look, file).unwrap()).unwrap().expect("it has the name");
    Wanted { file, name }
}

fn count(volume: &Volume, name: &str) -> u64 {
    volume.counters.snapshot().into_iter().find(|(other, _)| *other == name).unwrap().1
}

/// A volume with a directory of so many names, opened without hashes in memory; and that directory.
fn large_directory(names: usize) -> (Volume, Node) {
    let device = Arc::new(MemoryDevice::new(8 << 20));
    format(device.clone(), 512);
    let volume = testing::open(device.clone());
    let dir = mkdir(&volume, root(&volume), "dir");
    for i in 0..names {
        make(&volume, dir, &format!("a name of some length, as many have that people give {i}"), S_IFREG | 0o644);
    }
    volume.commit_now().unwrap();
    drop(volume);
    let dirhash = DirHash { is_on: Some(false), ..DirHash::default() };
    (testing::open_as(device, MountOptions { dirhash, cache_size: 8 << 20, ..MountOptions::default() }), dir)
}

/// Names of a large directory, as far as a test can have one: its blocks, of a unit each, need no block of pointers.
const MANY: usize = 50;
/// A search through it looks at more blocks.
const MANY_BLOCKS: u64 = 6;
/// A name for which only the end of such a directory has room.
const LAST: &str = "a name that is so long that it finds no room between the others, which are shorter";

/// After an fsync had looked for its file's name, its last round looked for it once more, through all of the directory and behind the closed gate.
#[test]
fn rounds_for_a_file_look_at_one_unit_of_its_directory() {
    let looked_at = |names| {
        let (volume, dir) = large_directory(names);
        let counts = || (count(&volume, "dir_scans"), count(&volume, "blocks_touched"));
        let file = make(&volume, dir, LAST, S_IFREG | 0o644);
        let at_first = counts();
        let wanted = wanted(&volume, file);
        let before = counts();
        assert!(before.0 == at_first.0 + 1 && (names < MANY || before.1 > at_first.1 + MANY_BLOCKS), "the first look");
        volume.checkpointer.lock().run_for(&volume, &[wanted]).unwrap();
        let after = counts();
        assert_eq!((after.0 - before.0, count(&volume, "soft_fsyncs_of_all")), (0, 0));
        after.1 - before.1
    };
    let (few, many) = (looked_at(10), looked_at(MANY));
    assert!(many < few + MANY_BLOCKS / 2, "{few} blocks of a small directory, {many} of a large one");
}

/// The note of a name that a directory left to a whiteout has the directory's other name as well, which was searched for through all of its parent, behind
/// the closed gate.
#[test]
fn a_name_that_is_noted_is_not_searched_for() {
    let looked_at = |names, is_kept: bool| {
        let (volume, parent) = large_directory(names);
        mkdir(&volume, parent, "old");
        volume.commit_now().unwrap();
        with(&volume, |ops, _| {
            ops.rename((parent, b"old"), (parent, LAST.as_bytes()), RenameMode::Whiteout, (false, false)).unwrap();
        });
        assert_eq!(volume.soft().to_note(), 1);
        if !is_kept {
            volume.soft().homes.lock().clear();
        }
        let before = count(&volume, "blocks_touched");
        volume.commit_now().unwrap();
        assert!(volume.soft().is_clean() && count(&volume, "soft_forced") == 0);
        count(&volume, "blocks_touched") - before
    };
    let (few, many) = (looked_at(10, true), looked_at(MANY, true));
    assert!(many < few + MANY_BLOCKS / 2, "{few} blocks with a small directory, {many} with a large one");
    let searched = looked_at(MANY, false);
    assert!(searched > many + MANY_BLOCKS, "{searched} blocks with a search, {many} without");
}

/// A volume on a device whose reads can be made to fail, with directory `c` three levels deep, of whose parent nothing is in the cache; and `c`.
fn deep_directory(order: Order, bytes_per_inode: u64) -> (Arc<FaultDevice<Arc<MemoryDevice>>>, Volume, Node) {
    let memory = Arc::new(MemoryDevice::new(16 << 20));
    format_with(memory.clone(), MkfsOptions { block_size: 512, order, bytes_per_inode, ..MkfsOptions::default() });
    let device = Arc::new(FaultDevice::new(memory));
    let volume = testing::open(device.clone());
    let a = mkdir(&volume, root(&volume), "a");
    let b = mkdir(&volume, a, "b");
    for i in 0..4 {
        make(&volume, b, &format!("file {i}"), S_IFREG | 0o644);
    }
    let c = mkdir(&volume, b, "c");
    volume.commit_now().unwrap();
    drop(volume);
    let volume = testing::open(device.clone());
    let block = |node: Node| volume.geometry.locate(Ino(node.ino)).unwrap().0;
    assert!(block(b) != block(c) && block(a) != block(b), "inodes in blocks of their own");
    (device, volume, c)
}

/// The same, and a new name `link` in `c` of a file that lasts: whether it may show depends on what has to be read.
fn deep_link() -> (Arc<FaultDevice<Arc<MemoryDevice>>>, Volume, Node) {
    let (device, volume, c) = deep_directory(Order::Soft, MkfsOptions::default().bytes_per_inode);
    let file = testing::new_file(&volume, b"file");
    volume.commit_now().unwrap();
    with(&volume, |ops, _| ops.link(file.node(), c, b"link", LinkRules::default()).unwrap());
    (device, volume, c)
}

/// Whether what the device has shows this name in its root directory.
fn has_lasting(device: &FaultDevice<Arc<MemoryDevice>>, name: &str) -> bool {
    let volume = testing::open(Arc::new(device.inner().clone_image()));
    with(&volume, |ops, root| ops.lookup(root, name.as_bytes()).is_ok())
}

const EIO: i32 = 5;

/// A new name may show only in a directory that is reached by what lasts. The inode of one above it could not be read: that shut the volume down, at each
/// sync of anything.
#[test]
fn what_cannot_be_judged_waits_and_all_else_lasts() {
    let (device, volume, c) = deep_link();
    let other = testing::new_file(&volume, b"other");
    device.fail(FaultOp::Read, 1, FaultSpan::Forever, EIO);
    for _ in 0..3 {
        assert!(matches!(volume.commit_now(), Err(Error::Io(_))));
    }
    assert!(volume.check_running().is_ok() && count(&volume, "soft_forced") == 0);
    assert!(has_lasting(&device, "other") && !volume.soft().is_clean());
    // An fsync that does not need it.
    device.clear();
    let synced = testing::new_file(&volume, b"synced");
    device.fail(FaultOp::Read, 1, FaultSpan::Forever, EIO);
    volume.commit_file(synced.ino).unwrap();
    assert!(has_lasting(&device, "synced"));
    volume.commit_file(other.ino).unwrap();
    device.clear();
    volume.soft().unreadable.forget();
    volume.commit_now().unwrap();
    assert!(volume.soft().is_clean());
    let after = testing::open(Arc::new(device.inner().clone_image()));
    assert!(with(&after, |ops, _| ops.lookup(c, b"link")).is_ok());
}

/// An answer of the device that was noted for a while was the answer to an fsync that came later, though the device could read again; and one that came once
/// shut down a volume on which each operation makes itself durable.
#[test]
fn what_can_be_read_by_now_is_read() {
    let (device, volume, _) = deep_link();
    // Nothing says by which of its names a file is found that has lost the one of its identity: all is made durable.
    let file = testing::new_file(&volume, b"first");
    with(&volume, |ops, root| {
        ops.link(file.node(), root, b"second", LinkRules::default()).unwrap();
        ops.unlink(root, b"first").unwrap();
    });
    device.fail(FaultOp::Read, 1, FaultSpan::Forever, EIO);
    assert!(matches!(volume.commit_file(file.ino), Err(Error::Io(_))));
    device.clear();
    volume.commit_file(file.ino).unwrap();
    assert!(volume.soft().is_clean());

    let mut struck = 0;
    for nth in 1.. {
        let (device, volume, c) = deep_directory(Order::Sync, MkfsOptions::default().bytes_per_inode);
        let file = testing::new_file(&volume, b"file");
        device.fail(FaultOp::Read, nth, FaultSpan::Once, EIO);
        let linked = with(&volume, |ops, _| ops.link(file.node(), c, b"link", LinkRules::default()));
        assert!(volume.check_running().is_ok(), "read {nth}");
        if device.struck() == 0 {
            break;
        }
        struck += 1;
        let lasting = testing::open(Arc::new(device.inner().clone_image()));
        assert_eq!(with(&lasting, |ops, _| ops.lookup(c, b"link")).is_ok(), linked.is_ok(), "read {nth}");
    }
    assert!(struck > 1, "{struck}");
}

/// The thread that gets the checkpointer syncs for others as well. One whose file's directories cannot be read is no reason for its own fsync to fail.
#[test]
fn an_fsync_does_not_fail_for_what_another_one_needs() {
    let (device, volume, c) = deep_link();
    let needing = make(&volume, c, "needing", S_IFREG | 0o644);
    volume.soft().wants(wanted(&volume, needing));
    let synced = testing::new_file(&volume, b"synced");
    device.fail(FaultOp::Read, 1, FaultSpan::Forever, EIO);
    volume.commit_file(synced.ino).unwrap();
    assert!(has_lasting(&device, "synced"));
    assert_eq!(volume.soft().wanted().len(), 1, "the other one waits still");
    assert!(matches!(volume.commit_file(Ino(needing.ino)), Err(Error::Io(_))));
    assert!(volume.check_running().is_ok());
}

/// Each unit that waited for a block which cannot be read asked for it, in each round, while the gate was closed. On a medium that tries for seconds that was
/// a hang.
#[test]
fn what_cannot_be_read_is_not_asked_for_by_each_round() {
    let (device, volume, c) = deep_link();
    let other = testing::new_file(&volume, b"other");
    with(&volume, |ops, _| ops.link(other.node(), c, b"another link", LinkRules::default()).unwrap());
    device.fail(FaultOp::Read, 1, FaultSpan::Forever, EIO);
    assert!(matches!(volume.commit_now(), Err(Error::Io(_))));
    // The sector of one inode, a second time by way of what is read ahead.
    let struck = device.struck();
    assert!(struck <= 2, "{struck} reads");
    for i in 0..4 {
        testing::new_file(&volume, format!("{i}").as_bytes());
        assert!(matches!(volume.commit_now(), Err(Error::Io(_))));
    }
    assert_eq!(device.struck(), struck);
    // Somebody else may have read it.
    device.clear();
    with(&volume, |ops, root| {
        let a = ops.lookup(root, b"a").unwrap();
        ops.lookup(a.node(), b"b").unwrap();
    });
    volume.commit_now().unwrap();
    assert!(volume.soft().is_clean());
}

/// A commit was made only so that a name could be used again, and its error became the operation's, though that needed nothing of what could not be read.
#[test]
fn what_waits_for_a_commit_goes_on_if_its_own_names_last() {
    let (device, volume, c) = deep_directory(Order::Soft, 8192);
    let names = ["made", "linked", "target", "late"];
    let files = names.map(|name| testing::new_file(&volume, name.as_bytes()).node());
    let moved = testing::new_file(&volume, b"moved").node();
    volume.commit_now().unwrap();
    // The name is free for others once the file lasts under another one, in `dir`.
    let give_up = |name: &str, dir| {
        let file = files[names.iter().position(|&other| other == name).unwrap()];
        with(&volume, |ops, root| {
            ops.link(file, dir, format!("other {name}").as_bytes(), LinkRules::default()).unwrap();
            ops.unlink(root, name.as_bytes()).unwrap();
        });
    };
    let new = NewFile { mode: S_IFREG | 0o644, ..NewFile::default() };
    give_up("late", c);
    device.fail(FaultOp::Read, 1, FaultSpan::Forever, EIO);
    with(&volume, |ops, root| {
        give_up("made", root);
        ops.make(root, b"made", &new).unwrap();
        give_up("linked", root);
        ops.link(moved, root, b"linked", LinkRules::default()).unwrap();
        give_up("target", root);
        ops.rename((root, b"moved"), (root, b"target"), RenameMode::Replace, (false, false)).unwrap();
        // What needs it is told why it cannot be done, and not asked for ever.
        assert!(matches!(ops.make(root, b"late", &new), Err(Error::Io(_))));
        let renamed = ops.rename((root, b"target"), (root, b"late"), RenameMode::Replace, (false, false));
        assert!(matches!(renamed, Err(Error::Io(_))));
        // The shape of the tree that an exchange begins with has to last.
        let exchanged = ops.rename((root, b"target"), (root, b"made"), RenameMode::Exchange, (false, false));
        assert!(matches!(exchanged, Err(Error::Io(_))));
    });
    assert!(volume.check_running().is_ok() && !volume.soft().is_clean());
    device.clear();
    volume.soft().unreadable.forget();
    make(&volume, root(&volume), "late", S_IFREG | 0o644);
}

/// A commit was made only for room, and its error became the answer to operations that had the room, or were to hear that there is none.
#[test]
fn who_wants_room_is_not_told_of_what_cannot_be_read() {
    // With so few inodes that an operation has those given back that wait for it.
    let (device, volume, c) = deep_directory(Order::Soft, 128 << 10);
    let file = testing::new_file(&volume, b"file");
    make(&volume, root(&volume), "gone", S_IFREG | 0o644);
    volume.commit_now().unwrap();
    with(&volume, |ops, _| ops.link(file.node(), c, b"link", LinkRules::default()).unwrap());
    device.fail(FaultOp::Read, 1, FaultSpan::Forever, EIO);
    with(&volume, |ops, root| ops.unlink(root, b"gone").unwrap());
    assert!(volume.soft().inodes_waiting() > 0);
    make(&volume, root(&volume), "new", S_IFREG | 0o644);
    assert!(matches!(volume.commit_now(), Err(Error::Io(_))));
    volume.files.is_over_bound.store(true, Ordering::Relaxed);
    assert_eq!(file::write(&volume, &Cred::root(), &file, b"data", 0, false, false).unwrap(), 4);
    assert!(matches!(volume.reserve(1 << 40, Share::Common), Err(Error::Refused(Errno::NOSPC))));
    assert!(volume.check_running().is_ok() && !volume.soft().is_clean());
}

/// Two directories exchange their names. The unit with the inode of one of them cannot be judged, for the sake of the inode beside it, and is not written:
/// nor may the names be, or the note taken away, else one of the names would be that of a directory which says that it has the other one.
#[test]
fn no_exchange_is_noted_of_which_a_part_cannot_be_judged() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(16 << 20))));
    format(device.clone(), 4096);
    let volume = testing::open(device.clone());
    // A directory, and a file whose inode lies in the unit of that of the directory.
    let place = |node: Node| volume.geometry.locate(Ino(node.ino)).unwrap();
    let unit = |node: Node| (place(node).0, place(node).1 / UNIT_SLOTS);
    let q = mkdir(&volume, root(&volume), "q");
    let pairs = (0..8).map(|i| {
        let dir = mkdir(&volume, root(&volume), &format!("p{i}"));
        let file = make(&volume, dir, "file", S_IFREG | 0o644);
        make(&volume, dir, "another", S_IFREG | 0o644);
        (format!("p{i}"), dir, file)
    });
    let (name, p, node) = pairs.into_iter().find(|(_, dir, file)| unit(*dir) == unit(*file)).expect("such a pair");
    let file = volume.files.open(Ino(node.ino), node.generation);
    // Its end lies behind a block of pointers.
    let end = (DIRECT as u64 + 2) * 4096;
    file::write(&volume, &Cred::root(), &file, &vec![1; end as usize - 100], 0, false, false).unwrap();
    file::flush(&volume, &file).unwrap();
    volume.commit_now().unwrap();

    with(&volume, |ops, root| {
        ops.rename((root, name.as_bytes()), (root, b"q"), RenameMode::Exchange, (false, false)).unwrap();
    });
    file::truncate(&volume, &Cred::root(), &file, end - 500).unwrap();
    file::flush(&volume, &file).unwrap();
    let (table, slot) = place(node);
    let at = volume.geometry.inode_offset(slot);
    let pointer = |bytes: &[u8]| facts::pointers_of(&bytes[at..at + INODE_SIZE]).nth(DIRECT).unwrap();
    let pointers = volume.look().read(table, BlockKind::InodeTable, pointer).unwrap();
    let damage = |block: &mut [u8]| block.iter_mut().for_each(|byte| *byte = !*byte);
    let at = (pointers & BLOCK) << 12;
    let mut block = myriad_device::AlignedBuf::zeroed(4096);
    device.read(at, &mut block).unwrap();
    damage(&mut block);
    device.write(at, &block).unwrap();
    volume.cache.sweep(Sweep::Everything);
    assert!(matches!(volume.commit_now(), Err(Error::Corrupt(_))));
    assert!(volume.check_running().is_ok() && volume.soft().has_exchange());
    let names = |volume: &Volume| {
        let ino = |name: &[u8]| with(volume, |ops, root| ops.lookup(root, name).map(|stat| stat.ino).ok());
        [ino(name.as_bytes()), ino(b"q")]
    };
    let lasting = || names(&testing::open(Arc::new(device.inner().clone_image())));
    assert_eq!(lasting(), [Some(p.ino), Some(q.ino)]);

    damage(&mut block);
    device.write(at, &block).unwrap();
    volume.soft().unreadable.forget();
    volume.commit_now().unwrap();
    assert!(volume.soft().is_clean());
    assert_eq!(lasting(), [Some(q.ino), Some(p.ino)]);
}

/// Makes directories of some files each, with inodes in several new blocks of tables; the directories.
fn make_trees(volume: &Volume) -> Vec<Node> {
    let tree = |i| {
        let dir = mkdir(volume, root(volume), &format!("d{i}"));
        for j in 0..10 {
            make(volume, dir, &format!("f{j}"), S_IFREG | 0o644);
        }
        dir
    };
    (0..20).map(tree).collect()
}

/// New blocks went out empty first, so that a mark could cover those of inode tables, and a pointer lead to those of directories.
#[test]
fn new_blocks_are_written_once() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    format(device.clone(), 4096);
    let volume = testing::open(device);
    volume.commit_now().unwrap();
    let before = (count(&volume, "soft_rounds"), count(&volume, "soft_images"));
    make_trees(&volume);
    let changed = volume.soft().frames.load(Ordering::Relaxed);
    volume.commit_now().unwrap();
    let written = count(&volume, "soft_images") - before.1;
    // Twice only what they share, such as headers of groups: fewer than there are new directories.
    assert!(written < changed + 20, "{written} images of {changed} blocks");
    assert_eq!(count(&volume, "soft_rounds") - before.0, 3);
}

/// A new directory is removed while the round writes it that fills the block of its inode: its block may have been left out, and the inode that is on the device leads there.
#[test]
fn no_mark_shows_an_inode_whose_block_was_freed_before_it_was_written() {
    let device = Arc::new(PausingDevice::new(MemoryDevice::new(64 << 20)));
    format(device.clone(), 4096);
    let volume = testing::open(device.clone());
    volume.commit_now().unwrap();
    let dirs = make_trees(&volume);
    let ag = volume.geometry.ag_of(volume.geometry.locate(Ino(dirs[0].ino)).unwrap().0);
    let mark = || {
        let mut block = myriad_device::AlignedBuf::zeroed(4096);
        let at = volume.geometry.fs_block(ag, AgBlock(HEADER_BLOCK)).0 << 12;
        device.inner().read(at, &mut block).unwrap();
        GroupHeader::read(&block).inode_blocks.get()
    };
    let (first, rounds) = (mark(), count(&volume, "soft_rounds"));
    // Held at the flush of each of two rounds.
    let marks = std::thread::scope(|scope| {
        device.pause_at(FaultOp::Flush, 1);
        let commit = scope.spawn(|| volume.commit_now().unwrap());
        assert!(device.wait_until_held(|| commit.is_finished()));
        with(&volume, |ops, root| {
            (0..10).for_each(|j| ops.unlink(dirs[0], format!("f{j}").as_bytes()).unwrap());
            ops.rmdir(root, b"d0").unwrap();
        });
        let at_first = mark();
        // The next round begins once nobody is inside the gate.
        let txn = Txn::enter(&volume);
        device.go_on();
        while count(&volume, "soft_rounds") == rounds {
            std::thread::yield_now();
        }
        device.pause_at(FaultOp::Flush, 1);
        txn.finish(Ok(())).unwrap();
        assert!(device.wait_until_held(|| commit.is_finished()));
        let marks = [at_first, mark()];
        device.go_on();
        commit.join().unwrap();
        marks
    });
    assert_eq!(marks, [first, first]);
    assert!(mark() > first && volume.soft().is_clean());
}

/// A device that has lost the write of a group's header says that a block of inodes was never used which has some. Where one of them had changed since,
/// whoever wanted an inode panicked.
#[test]
fn a_block_that_has_changed_is_not_made_anew() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    format(device.clone(), 512);
    let volume = testing::open(device.clone());
    let dir = mkdir(&volume, root(&volume), "dir");
    let last = (0..40).map(|i| make(&volume, dir, &format!("file {i}"), S_IFREG | 0o644)).last().unwrap();
    volume.commit_now().unwrap();
    let (geometry, volume_id) = (volume.geometry, volume.cache.volume);
    drop(volume);
    let block = geometry.locate(Ino(last.ino)).unwrap().0;
    let ag = geometry.ag_of(block);
    let header = geometry.fs_block(ag, AgBlock(HEADER_BLOCK));
    let mut bytes = myriad_device::AlignedBuf::zeroed(512);
    device.read(header.0 << 9, &mut bytes).unwrap();
    GroupHeader::read_mut(&mut bytes).inode_blocks.set(geometry.ag_block_of(block).0 - geometry.table_start(ag));
    myriad_format::header::reseal(&mut bytes, &volume_id, header);
    device.write(header.0 << 9, &bytes).unwrap();

    let volume = testing::open(device);
    with(&volume, |ops, _| ops.link(last, dir, b"link", LinkRules::default()).unwrap());
    let made = with(&volume, |ops, _| ops.make(dir, b"new", &NewFile { mode: S_IFREG | 0o644, ..NewFile::default() }));
    assert!(
        matches!(&made, Err(Error::Corrupt(what)) if matches!(**what, Corrupt::Group { value, .. } if value == block.0)),
        "{made:?}"
    );
    with(&volume, |ops, _| assert_eq!(ops.lookup(dir, b"link").unwrap().ino, last.ino));
}

/// A bitmap of inodes cannot be read any more: that shut the volume down when a removed file's slot was to be given back, though a slot that stays taken
/// harms nobody.
#[test]
fn a_slot_that_cannot_be_given_back_stays_taken() {
    for (order, is_late) in [(Order::Soft, false), (Order::Soft, true), (Order::Sync, false)] {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        format_with(device.clone(), MkfsOptions { order, ..MkfsOptions::default() });
        let volume = testing::open(device.clone());
        let gone = make(&volume, root(&volume), "gone", S_IFREG | 0o644);
        volume.commit_now().unwrap();
        let damage = || {
            volume.cache.sweep(Sweep::Everything);
            let (ag, block_size) =
                (volume.geometry.ag_of(volume.block_of(Ino(gone.ino))), volume.geometry.block_size());
            let at =
                volume.geometry.fs_block(ag, AgBlock(volume.geometry.inode_bitmap_start(ag))).0 * block_size as u64;
            device.write(at, &vec![0xee; block_size]).unwrap();
        };
        if !is_late {
            damage();
        }
        let unlinked = with(&volume, |ops, root| ops.unlink(root, b"gone"));
        if is_late {
            damage();
        }
        let context = format!("{order:?}, late {is_late}");
        assert!(unlinked.is_ok(), "{context}: {unlinked:?}");
        let commit = volume.commit_now();
        assert!(volume.check_running().is_ok(), "{context}: {commit:?}");
        assert_eq!(count(&volume, "inodes_stranded"), u64::from(is_late), "{context}");
        with(&volume, |ops, root| assert!(ops.lookup(root, b"gone").is_err()));
    }
}

/// A symbolic link of which the slot could not be given back had lost its target by then: an orphan that was no link, which nobody could reclaim, and damage to
/// a check.
#[test]
fn a_link_that_stays_an_orphan_is_a_link() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    format(device.clone(), 4096);
    let volume = testing::open(device.clone());
    let target = [b't'; 600];
    let new = NewFile { mode: S_IFLNK | 0o777, target: &target, ..NewFile::default() };
    let link = with(&volume, |ops, root| ops.make(root, b"link", &new).unwrap().node());
    volume.commit_now().unwrap();
    volume.cache.sweep(Sweep::Everything);
    let ag = volume.geometry.ag_of(volume.block_of(Ino(link.ino)));
    let at = volume.geometry.fs_block(ag, AgBlock(volume.geometry.inode_bitmap_start(ag))).0 << 12;
    device.write(at, &[0xee; 4096]).unwrap();
    with(&volume, |ops, root| ops.unlink(root, b"link").unwrap());
    volume.commit_now().unwrap();
    let raw = inode::read(&volume.look(), Ino(link.ino)).unwrap();
    assert_eq!((raw.nlink.get(), raw.size.get()), (0, 600));
    raw.check(Ino(link.ino)).unwrap();
}

/// As [`a_slot_that_cannot_be_given_back_stays_taken`], of a bitmap of blocks: all that waited to be written was lost, so that the blocks of a removed directory would not be.
#[test]
fn blocks_that_cannot_be_given_back_stay_taken() {
    let memory = Arc::new(MemoryDevice::new(16 << 20));
    format(memory.clone(), 4096);
    let device = Arc::new(FaultDevice::new(memory));
    let volume = testing::open(device.clone());
    let gone = mkdir(&volume, root(&volume), "gone");
    make(&volume, gone, "file", S_IFREG | 0o644);
    with(&volume, |ops, _| ops.unlink(gone, b"file").unwrap());
    volume.commit_now().unwrap();
    volume.cache.sweep(Sweep::Everything);
    with(&volume, |ops, root| ops.rmdir(root, b"gone").unwrap());
    for (block, kind) in [(0, BlockKind::Superblock), (HEADER_BLOCK.into(), BlockKind::Group)] {
        volume.look().read(FsBlock(block), kind, |_| ()).unwrap();
    }
    device.fail(FaultOp::Read, 1, FaultSpan::Forever, EIO);
    let commits: Vec<_> = (0..3).map(|_| volume.commit_now().map_err(|error| error.to_string())).collect();
    assert!(volume.check_running().is_ok(), "{commits:?}");
    assert_eq!(count(&volume, "blocks_stranded"), 1, "{commits:?}");
    assert!(volume.has_leftovers());
}

/// A file was opened to be written anew, and by the time of the flush a block of its pointers could not be read: that was met when some of its blocks had been
/// freed.
#[test]
fn a_file_that_was_emptied_is_read_before_it_is_freed() {
    // The inode, and then the pointers.
    for nth in 1..=2 {
        let memory = Arc::new(MemoryDevice::new(16 << 20));
        format(memory.clone(), 4096);
        let device = Arc::new(FaultDevice::new(memory));
        let volume = testing::open(device.clone());
        let file = testing::new_file(&volume, b"file");
        let write = |bytes: &[u8]| file::write(&volume, &Cred::root(), &file, bytes, 0, false, false).unwrap();
        write(&[1; 20 << 12]);
        file::flush(&volume, &file).unwrap();
        volume.commit_now().unwrap();
        file::truncate(&volume, &Cred::root(), &file, 0).unwrap();
        write(&[2; 20 << 12]);
        volume.cache.sweep(Sweep::Everything);
        device.fail(FaultOp::Read, nth, FaultSpan::Once, EIO);
        let flushed = file::flush(&volume, &file);
        assert!(flushed.is_err() && volume.check_running().is_ok(), "read {nth}: {flushed:?}");
        file::flush(&volume, &file).unwrap();
    }
}
