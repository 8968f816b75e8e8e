//! What directories of all kinds have in common.

use super::*;
use crate::cache::Sweep;
use crate::error::Errno;
use crate::namei;
use crate::ops::{NewFile, Ops};
use crate::types::{Cred, LinkRules, MkfsOptions, Node, RenameMode};
use crate::volume::{testing, transact};
use myriad_check::{Options as CheckOptions, check};
use myriad_device::{FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_format::BlockKind;
use myriad_format::choices::{Choices, Inodes, Map};
use myriad_format::inode::{S_IFDIR, S_IFREG};
use myriad_format::slots::ExtentsHeader;
use myriad_format::superblock::state;
use myriad_format::table::DIRECT;
use myriad_format::unit::UNIT_SIZE;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const KINDS: [Directory; 4] = [Directory::Indexed, Directory::Linear, Directory::Slots, Directory::Tree];

/// A volume with an empty directory, and a file to be linked into it.
pub(super) struct Tried {
    device: Arc<MemoryDevice>,
    pub volume: Volume,
    root: Node,
    pub dir: Node,
    other: Node,
}

fn new_file() -> NewFile<'static> {
    NewFile { mode: S_IFREG | 0o644, ..NewFile::default() }
}

/// A device with a new volume.
pub(super) fn formatted(choices: Choices) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    crate::mkfs::format(device.clone(), None, &MkfsOptions { choices, ..MkfsOptions::default() }).unwrap();
    device
}

impl Tried {
    fn new(choices: Choices) -> Self {
        Self::on(formatted(choices))
    }

    /// On what `formatted` made.
    pub fn on(device: Arc<MemoryDevice>) -> Self {
        let volume = testing::open(device.clone());
        volume.write_superblock(state::IN_USE).unwrap();
        let root = namei::root(&volume.look()).unwrap();
        let cred = Cred::root();
        let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
        let dir = ops.make(root, b"d", &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap().node();
        let other = ops.make(root, b"other", &new_file()).unwrap().node();
        Self { device, volume, root, dir, other }
    }

    fn with<R>(&self, f: impl FnOnce(Ops<'_>) -> R) -> R {
        let cred = Cred::root();
        f(Ops { volume: &self.volume, cred: &cred, caller: &cred })
    }

    pub fn link(&self, name: &[u8]) -> Result<()> {
        self.with(|ops| ops.link(self.other, self.dir, name, LinkRules::default()).map(drop))
    }

    pub fn unlink(&self, name: &[u8]) {
        self.with(|ops| ops.unlink(self.dir, name).map(drop)).unwrap();
    }

    /// Every way to add a name is refused, and nothing has changed.
    pub fn assert_refuses(&self, name: &[u8]) {
        let used = self.volume.totals.inodes_used.load(Ordering::Relaxed);
        let free = self.volume.totals.free_blocks.load(Ordering::Relaxed);
        self.with(|ops| {
            let renamed = ops.rename((self.root, b"other"), (self.dir, name), RenameMode::Replace, (false, false));
            for refused in [ops.make(self.dir, name, &new_file()).map(drop), self.link(name), renamed] {
                assert_eq!(refused.unwrap_err().errno(), Errno::NOSPC);
                assert!(self.volume.check_running().is_ok());
            }
        });
        assert_eq!(self.volume.totals.inodes_used.load(Ordering::Relaxed), used);
        assert_eq!(self.volume.totals.free_blocks.load(Ordering::Relaxed), free);
    }

    pub fn assert_sound(&self) {
        self.volume.commit_now().unwrap();
        let report = check(Arc::new(self.device.clone_image()), None, &CheckOptions::default()).unwrap();
        assert!(report.is_sound(), "{:#?}", report.findings);
    }
}

/// A directory took names until its map had no place for one more block, or for one of those that it maps ahead. It found that out in the middle
/// of a change, which shut the volume down.
#[test]
fn a_directory_ends_where_its_map_does_and_the_volume_goes_on() {
    for directory in KINDS {
        let choices = Choices { directory, map: Map::Blocks, inodes: Inodes::Static, ..Choices::default() };
        let tried = Tried::new(choices);
        let long = |i: u32| format!("{i:0255}").into_bytes();
        let refused = (0..).find_map(|i| tried.link(&long(i)).err().map(|error| (i, error)));
        let (made, error) = refused.expect("it ends some time");
        assert_eq!(error.errno(), Errno::NOSPC, "{directory:?}, {made} names: {error}");
        tried.assert_refuses(&long(made));
        let look = tried.volume.look();
        let raw = inode::read_node(&look, tried.dir).unwrap();
        let most = map::directory_blocks_max(&tried.volume.geometry);
        let end = map::lookup(&mut &look, &raw, Ino(tried.dir.ino), FileBlock(most)).unwrap();
        assert!(matches!(end, Mapping::Hole { .. }), "{directory:?}: {end:?}");
        assert!(raw.block_total() + 8 > most, "{directory:?}: {} blocks of {most}", raw.block_total());
        drop(look);
        tried.assert_sound();
        for i in 0..made / 2 {
            tried.unlink(&long(i));
        }
        tried.link(&long(made)).unwrap();
        tried.assert_sound();
    }
}

/// What a directory says of its size is not walked through before it can be true: pointers of a forged one may lead to one block again and
/// again.
#[test]
fn no_directory_has_more_blocks_than_its_volume() {
    for directory in [Directory::Linear, Directory::Slots] {
        let tried = Tried::new(Choices { directory, ..Choices::default() });
        for i in 0..100 {
            tried.link(format!("{i:0100}").as_bytes()).unwrap();
        }
        let ino = Ino(tried.dir.ino);
        let mut raw = inode::read_node(&tried.volume.look(), tried.dir).unwrap();
        let claimed = tried.volume.geometry.block_count + 1;
        if directory == Directory::Linear {
            raw.size = (claimed << tried.volume.geometry.block_bits).into();
        } else {
            transact(&tried.volume, 0, |txn| {
                let Mapping::Mapped(first) = map::lookup(&mut &txn.look, &raw, ino, FileBlock(0))? else {
                    panic!("it has extents")
                };
                let extents = (claimed as u32 / 8).to_le_bytes();
                txn.change(first.start, BlockKind::DirExtents, |edit| {
                    edit.put(offset_of!(ExtentsHeader, extents), &extents)
                })
            })
            .unwrap();
        }
        let mut listed = 0;
        let result = list(&tried.volume.look(), ino, &raw, 0, &mut |_| {
            listed += 1;
            true
        });
        let error = result.unwrap_err().to_string();
        let field = if directory == Directory::Linear { "size" } else { "extents" };
        assert!(error.contains(field) && listed == 0, "{directory:?}: {error}, after {listed} names");
    }
}

/// With a hash in memory nobody had looked at the end of a linear directory's map before it got another block, in the middle of a creation: that it could not be
/// read shut the volume down.
#[test]
fn a_map_that_cannot_be_read_ends_a_creation_before_it_changes_anything() {
    let choices =
        Choices { directory: Directory::Linear, map: Map::Blocks, inodes: Inodes::Static, ..Choices::default() };
    let device = Arc::new(FaultDevice::new(formatted(choices)));
    let volume = testing::open(device.clone());
    let root = namei::root(&volume.look()).unwrap();
    let cred = Cred::root();
    let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
    let dir = ops.make(root, b"d", &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap().node();
    let other = ops.make(root, b"other", &new_file()).unwrap().node();
    let name = |i: u64| format!("{i:0255}").into_bytes();
    // One a unit, until the first block is full that a block of pointers leads to.
    let count = (DIRECT as u64 + 1) * (volume.cache.block_size() / UNIT_SIZE) as u64;
    for i in 0..count {
        ops.link(other, dir, &name(i), LinkRules::default()).unwrap();
    }
    volume.checkpointer.lock().settle(&volume).unwrap();
    volume.cache.sweep(Sweep::Everything);
    // All else that a creation reads.
    ops.lookup(dir, &name(0)).unwrap();
    ops.make(root, b"another", &new_file()).unwrap();
    device.fail(FaultOp::Read, 1, FaultSpan::Forever, 5);
    let refused = ops.make(dir, &name(count), &new_file()).map(drop).unwrap_err();
    assert_eq!(refused.errno(), Errno::IO);
    assert!(volume.check_running().is_ok());
    device.clear();
    ops.make(dir, &name(count), &new_file()).unwrap();
}
