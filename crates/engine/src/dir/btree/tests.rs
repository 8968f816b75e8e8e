//! What a directory tree refuses, and that it refuses it before it changes anything.

use crate::error::{Errno, Result};
use crate::namei;
use crate::ops::{NewFile, Ops};
use crate::types::{Cred, LinkRules, MkfsOptions, Node, RenameMode};
use crate::volume::{Volume, testing};
use myriad_check::{Options as CheckOptions, check};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_format::choices::{Choices, Directory};
use myriad_format::inode::{S_IFDIR, S_IFREG};
use myriad_format::superblock::{Superblock, state};
use myriad_format::{FEW_TAGS_KEY, NameHasher, header};
use std::sync::Arc;
use std::sync::atomic::Ordering;

struct Tried {
    device: Arc<MemoryDevice>,
    volume: Volume,
    root: Node,
    dir: Node,
    other: Node,
}

fn new_file() -> NewFile<'static> {
    NewFile { mode: S_IFREG | 0o644, ..NewFile::default() }
}

impl Tried {
    fn new(has_few_tags: bool) -> Self {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        let choices = Choices { directory: Directory::Tree, ..Choices::default() };
        crate::mkfs::format(device.clone(), None, &MkfsOptions { choices, ..MkfsOptions::default() }).unwrap();
        if has_few_tags {
            let mut block = vec![0; 4096];
            device.read(0, &mut block).unwrap();
            Superblock::read_mut(&mut block).hash_key = FEW_TAGS_KEY;
            header::seal(&mut block, 0);
            device.write(0, &block).unwrap();
        }
        let volume = testing::open(device.clone());
        volume.write_superblock(state::IN_USE).unwrap();
        let cred = Cred::root();
        let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
        let root = namei::root(&volume.look()).unwrap();
        let dir = ops.make(root, b"d", &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap().node();
        let other = ops.make(root, b"other", &new_file()).unwrap().node();
        Self { device, volume, root, dir, other }
    }

    fn with<R>(&self, f: impl FnOnce(Ops<'_>) -> R) -> R {
        let cred = Cred::root();
        f(Ops { volume: &self.volume, cred: &cred, caller: &cred })
    }

    fn link(&self, name: &[u8]) -> Result<()> {
        self.with(|ops| ops.link(self.other, self.dir, name, LinkRules::default()).map(drop))
    }

    fn unlink(&self, name: &[u8]) {
        self.with(|ops| ops.unlink(self.dir, name).map(drop)).unwrap();
    }

    /// Every way to add a name is refused, and nothing has changed.
    fn assert_refuses(&self, name: &[u8]) {
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

    fn assert_sound(&self) {
        self.volume.commit_now().unwrap();
        let report = check(Arc::new(self.device.clone_image()), None, &CheckOptions::default()).unwrap();
        assert!(report.is_sound(), "{:#?}", report.findings);
    }
}

/// So many nodes that no leaf may be split any more: names that need that are refused, others are not.
#[test]
fn a_directory_of_the_largest_size_refuses_names_and_the_volume_goes_on() {
    let tried = Tried::new(false);
    let long = |i: u32| format!("{i:0255}").into_bytes();
    let made = (0..).take_while(|&i| tried.link(&long(i)).is_ok()).count() as u32;
    assert!((super::tree::NODES_MAX as u32 * 7..super::tree::NODES_MAX as u32 * 15).contains(&made), "{made}");
    tried.assert_refuses(&long(made));
    // There are leaves with room, and for a short name most have some.
    let more = (0..200_u32).filter(|i| tried.link(&i.to_le_bytes().map(|byte| byte | 1)).is_ok()).count();
    assert!(more > 20, "{more}");
    tried.assert_sound();
    for i in 0..made / 2 {
        tried.unlink(&long(i));
    }
    tried.link(&long(made)).unwrap();
    tried.assert_sound();
}

/// A tag has so many numbers and no more; one that a name gave back is another one's.
#[test]
fn names_with_one_tag_are_counted() {
    let tried = Tried::new(true);
    let hasher = NameHasher::new(FEW_TAGS_KEY);
    let names: Vec<Vec<u8>> = (0..)
        .map(|i: u32| format!("{i:x}").into_bytes())
        .filter(|name| hasher.hash(name) as u32 == 3)
        .take(super::NUMBERS as usize + 2)
        .collect();
    let (fit, beyond) = names.split_at(super::NUMBERS as usize);
    for name in fit {
        tried.link(name).unwrap();
    }
    tried.assert_refuses(&beyond[0]);
    tried.unlink(&fit[77]);
    tried.unlink(&fit[78]);
    tried.link(&beyond[0]).unwrap();
    tried.link(&beyond[1]).unwrap();
    tried.assert_refuses(&fit[77]);
    tried.assert_sound();
    // Behind the last number there is room again once the last name has gone.
    tried.unlink(&fit[super::NUMBERS as usize - 1]);
    tried.link(&fit[77]).unwrap();
    tried.assert_sound();
}
