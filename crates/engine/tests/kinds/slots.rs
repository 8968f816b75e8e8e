//! Directories of slots: what their kind promises beyond what every directory does.

use crate::{Volume, list_while_it_changes, name};
use myriad_device::BlockDevice;
use myriad_engine::options::read_for_tune;
use myriad_engine::{AllocateMode, Allocation, Cred, Errno, OpenOptions, RenameMode};
use myriad_format::choices::{Choices, Directory, Inodes, Map, PROFILES};
use myriad_format::slots::PAPER_NAMES_MAX;
use myriad_format::{BlockHeader, BlockKind};
use myriad_sim::generate::Profile;
use myriad_sim::rng;
use myriad_trials::setup::{Devices, Setup};
use myriad_trials::verdict::check_silent;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Slots of a block of 4096 bytes, and of an extent of such blocks.
const SLOTS: u64 = 15;
const EXTENT: u32 = 8 * 15;

fn setup(block_size: u32, size: u64) -> Setup {
    let mut setup = Setup::new(block_size, size);
    setup.choices = Choices { directory: Directory::Slots, ..Choices::default() };
    setup
}

impl Volume {
    /// The slot of a name: a cookie is the number of the slot behind it.
    fn slot(&self, name: &[u8]) -> u64 {
        self.list_all().into_iter().find(|(other, _)| other == name).unwrap().1 - 1
    }

    fn blocks(&self) -> u64 {
        self.session.stat("d").unwrap().blocks / 8
    }

    fn free(&self) -> u64 {
        self.fs.sync().unwrap();
        self.fs.sync().unwrap();
        self.fs.statfs().unwrap().free_blocks
    }

    /// How much a counter goes up by what `f` does.
    fn counted(&self, name: &str, f: impl FnOnce()) -> u64 {
        let before = self.count(name);
        f();
        self.count(name) - before
    }
}

/// The first free slot gets the next name, whatever was removed before it, and removed names free theirs for one of any length.
#[test]
fn the_first_free_slot_is_used_first() {
    let volume = Volume::new(&setup(4096, 64 << 20));
    for i in 0..3 * EXTENT {
        volume.link(&name(i));
        assert_eq!(volume.list(u64::from(i), 9), [(name(i), u64::from(i) + 1)]);
    }
    // A block for the records, and three extents.
    assert_eq!(volume.blocks(), 1 + 3 * 8);
    for i in [300, 7, 15, 8, 16, 121] {
        volume.unlink(&name(i));
    }
    for (slot, length) in [(7, 255), (8, 1), (15, 254), (16, 2), (121, 100), (300, 8)] {
        let new = vec![b'a' + (slot % 26) as u8; length];
        volume.link(&new);
        assert_eq!(volume.slot(&new), slot);
    }
    volume.link(b"further");
    assert_eq!((volume.slot(b"further"), volume.blocks()), (u64::from(3 * EXTENT), 1 + 4 * 8));
    assert_eq!(volume.session.stat("d").unwrap().size, 268 * u64::from(3 * EXTENT + 1));
    volume.close();
}

/// Blocks and extents without names are not looked at: what is left is found at once, and so is where there is room.
#[test]
fn what_is_empty_is_passed_over() {
    let mut setup = setup(4096, 64 << 20);
    setup.options.name_cache = false;
    let volume = Volume::new(&setup);
    for i in 0..10 * EXTENT {
        volume.link(&name(i));
    }
    let last = name(10 * EXTENT - 1);
    let look = || assert!(volume.session.lookup(volume.dir, &last).is_ok());
    let full = volume.counted("blocks_touched", look);
    assert!(full > 80, "{full}");
    assert_eq!(volume.counted("dir_blocks_skipped", look), 0);
    // The last name is behind all others.
    assert_eq!(volume.counted("dir_tags_compared", look), u64::from(10 * EXTENT));
    // Left are the last name, and the eighth of the third block of the third extent.
    let alone = 2 * EXTENT + 2 * SLOTS as u32 + 7;
    for i in (0..10 * EXTENT - 1).filter(|i| *i != alone) {
        volume.unlink(&name(i));
    }
    let left = volume.counted("blocks_touched", look);
    assert!(left <= full - 80 + 2, "{left} of {full}");
    assert_eq!(volume.counted("dir_blocks_skipped", look), 80 - 2);
    // Seven free slots before one and seven behind it, and fourteen before the other.
    assert_eq!(volume.counted("dir_slots_skipped", look), (7 - 1) + 7 + (14 - 1));
    assert_eq!(volume.counted("dir_tags_compared", look), 2);
    let list = || assert_eq!(volume.list(0, 100).len(), 2);
    assert!(volume.counted("blocks_touched", list) < 10);
    assert_eq!(volume.counted("dir_blocks_skipped", list), 80 - 2);
    // All is where it was, and the first slot is free.
    assert_eq!((volume.slot(&name(alone)), volume.slot(&last)), (u64::from(alone), u64::from(10 * EXTENT - 1)));
    let link = volume.counted("blocks_touched", || volume.link(b"new"));
    assert!(link < 16, "{link}");
    assert_eq!(volume.slot(b"new"), 0);
    volume.close();
}

/// A removal changes a block of slots, the block of records, and no other of the directory's. The log has little of either.
#[test]
fn a_removal_changes_two_blocks_of_the_directory() {
    let volume = Volume::new(&setup(4096, 64 << 20));
    for i in 0..5 * EXTENT {
        volume.link(&name(i));
    }
    volume.fs.sync().unwrap();
    let written = volume.counted("checkpoint_bytes", || {
        volume.unlink(&name(300));
        volume.fs.sync().unwrap();
    });
    assert!(written < 2048, "{written}");
    volume.close();
}

/// With the paper's limit a directory takes 30,600 names and no more; without it, more. A name that makes room is followed by another.
#[test]
fn a_limit_is_kept_by_those_who_set_it() {
    let mut limited = setup(4096, 64 << 20);
    limited.options.dir_limit = Some(200);
    let volume = Volume::new(&limited);
    for i in 0..200 {
        volume.link(&name(i));
    }
    let refused = |result: myriad_engine::Result<()>| assert_eq!(result.unwrap_err().errno(), Errno::MLINK);
    let inodes = volume.fs.statfs().unwrap().inodes_used;
    refused(volume.session.link_at(volume.file, volume.dir, b"new").map(drop));
    refused(volume.session.create("d/new", 0o644).map(drop));
    refused(volume.session.mkdir("d/new", 0o755).map(drop));
    refused(volume.session.rename("f", "d/new", RenameMode::NoReplace));
    assert_eq!(volume.fs.statfs().unwrap().inodes_used, inodes);
    // What takes another's place is none more.
    volume.session.create("g", 0o644).unwrap();
    volume.session.rename("g", &[b"d/", &name(5)[..]].concat(), RenameMode::Replace).unwrap();
    volume.unlink(&name(7));
    volume.link(b"new");
    refused(volume.session.link_at(volume.file, volume.dir, b"newer").map(drop));
    volume.fs.tune(&read_for_tune(["dirlimit=auto"]).unwrap()).unwrap();
    volume.link(b"newer");
    volume.fs.tune(&read_for_tune(["dirlimit=100"]).unwrap()).unwrap();
    refused(volume.session.link_at(volume.file, volume.dir, b"newest").map(drop));
    assert_eq!(volume.list_all().len(), 201);
    volume.close();
}

/// The paper's tests, one after the other, on its profile: make as many files as the limit allows, of which one more is refused;
/// list them; remove every other one and make as many, then those between; remove all; and a volume as it was. With its 30,600
/// files in the long form, otherwise with a tenth: each operation looks at all names.
#[test]
fn the_paper_s_four_tests() {
    let profile = PROFILES.iter().find(|profile| profile.name == "simplefs").unwrap();
    let mut setup = Setup::new(4096, 200 << 20);
    (setup.choices, setup.order) = (profile.choices, myriad_engine::Order::None);
    // As many inodes as blocks, as the paper's volumes have.
    setup.bytes_per_inode = 4096;
    let extents = if rng::is_long() { 255 } else { 26 };
    let most = extents * u64::from(EXTENT);
    assert_eq!(255 * u64::from(EXTENT), PAPER_NAMES_MAX);
    setup.options.dir_limit = Some(most);
    let volume = Volume::new(&setup);
    let path = |i: u64, suffix: &str| format!("d/{i}{suffix}.txt");
    let free = volume.free();
    for i in 0..most {
        volume.session.create(&path(i, ""), 0o644).unwrap();
    }
    assert_eq!(volume.session.create(&path(most, ""), 0o644).unwrap_err().errno(), Errno::MLINK);
    assert_eq!(volume.blocks(), 1 + extents * 8, "extents, and the block of their records");
    let list = |volume: &Volume| -> BTreeSet<Vec<u8>> {
        let all = volume.list_all();
        let names: BTreeSet<Vec<u8>> = all.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(all.len(), names.len(), "a name was listed twice");
        names
    };
    assert_eq!(list(&volume).len() as u64, most);
    for start in [0, 1] {
        for i in (start..most).step_by(2) {
            volume.session.unlink(&path(i, "")).unwrap();
            volume.session.create(&path(i, "_1"), 0o644).unwrap();
        }
        volume.fs.sync().unwrap();
    }
    let expected: BTreeSet<Vec<u8>> = (0..most).map(|i| path(i, "_1").into_bytes()[2..].to_vec()).collect();
    assert_eq!(list(&volume), expected);
    let devices = volume.devices();
    drop(volume.session);
    volume.fs.close().unwrap();
    check_silent(&devices).unwrap();
    let fs = setup.open(devices).unwrap();
    let session = fs.session(Cred::root());
    let volume = Volume { fs, session, ..volume };
    assert_eq!(list(&volume), expected);
    for i in 0..most {
        volume.session.unlink(&path(i, "_1")).unwrap();
    }
    assert_eq!(volume.blocks(), 1 + extents * 8, "extents stay");
    assert_eq!(list(&volume), BTreeSet::new());
    volume.session.rmdir("d").unwrap();
    volume.session.mkdir("d", 0o755).unwrap();
    assert_eq!(volume.free(), free);
    volume.close();
}

#[test]
fn a_listing_shows_once_what_is_there_throughout() {
    let volume = Volume::new(&setup(1024, 64 << 20));
    list_while_it_changes(&volume, 12, 300, 250);
    volume.close();
}

/// Any entry can be the one to go on from, and gives what came behind it.
#[test]
fn a_listing_goes_on_from_any_entry() {
    let volume = Volume::new(&setup(4096, 64 << 20));
    for i in 0..300 {
        volume.link(&name(i));
    }
    for i in (40..250).filter(|i| i % 3 > 0) {
        volume.unlink(&name(i));
    }
    assert_eq!(volume.assert_goes_on_from_any_entry().len(), 300 - 140);
    volume.close();
}

/// An extent is taken in pieces where no eight free blocks lie side by side.
#[test]
fn space_in_pieces_is_space() {
    for map in [Map::Extents, Map::Blocks] {
        let mut setup = setup(4096, 8 << 20);
        setup.options.allocation = Allocation::AtWrite;
        setup.choices.map = map;
        setup.choices.inodes = if map == Map::Blocks { Inodes::Static } else { setup.choices.inodes };
        let volume = Volume::new(&setup);
        // One file takes all the space there is, and gives every other block of it back.
        volume.session.create("large", 0o644).unwrap();
        let file = volume.session.open("large", OpenOptions::READ_WRITE).unwrap();
        let mut blocks = 0;
        while file.write_at(&[1; 4096], 4096 * blocks).is_ok() {
            blocks += 1;
        }
        let left = volume.free();
        for block in (0..blocks).step_by(2) {
            file.allocate(AllocateMode::Punch, 4096 * block, 4096).unwrap();
        }
        let free = volume.free();
        assert!(left < 200 && free > left + 600, "{left} blocks were left, and {free} are free");
        let mut names = 0;
        loop {
            match volume.session.link_at(volume.file, volume.dir, &name(names)) {
                Ok(_) => names += 1,
                Err(error) => break assert_eq!(error.errno(), Errno::NOSPC),
            }
        }
        // More extents than would fit what was left, if all of that lay side by side: the others are made of single blocks.
        assert!(volume.blocks() > left + 400, "{} blocks, of which {left} may lie side by side", volume.blocks());
        // It was a refusal, before any change.
        volume.fs.sync().unwrap();
        names -= 1;
        volume.unlink(&name(names));
        volume.fs.sync().unwrap();
        let listed: Vec<Vec<u8>> = volume.list_all().into_iter().map(|(name, _)| name).collect();
        assert_eq!(listed, (0..names).map(name).collect::<Vec<_>>());
        drop(file);
        volume.close();
    }
}

/// An emptied directory was removed before its map was read. Damage of that shut the volume down when the name had gone, and so it did each time that somebody
/// tried, also by opening the volume.
#[test]
fn an_emptied_directory_with_a_damaged_map_can_be_removed() {
    // One extent of eight blocks, and more of them than go in one transaction: a block has one slot.
    for names in [1, 100] {
        let mut setup = setup(512, 2 << 20);
        setup.options.allocation = Allocation::AtWrite;
        let volume = Volume::new(&setup);
        // One file takes all the space there is, and gives every other block of some back; another directory takes what lies side by side. So each
        // block of this one is an extent.
        let other = volume.session.mkdir("other", 0o755).unwrap();
        volume.session.create("large", 0o644).unwrap();
        let file = volume.session.open("large", OpenOptions::READ_WRITE).unwrap();
        let mut blocks = 0;
        while file.write_at(&[1; 512], 512 * blocks).is_ok() {
            blocks += 1;
        }
        let left = volume.free();
        for at in (0..blocks.min(1000)).step_by(2) {
            file.allocate(AllocateMode::Punch, 512 * at, 512).unwrap();
        }
        volume.fs.sync().unwrap();
        for i in 0.. {
            volume.session.link_at(volume.file, other, &name(i)).unwrap();
            if volume.session.stat("other").unwrap().blocks > left + 16 {
                break;
            }
        }
        volume.fs.sync().unwrap();
        for i in 0..names {
            volume.link(&name(i));
        }
        for i in 0..names {
            volume.unlink(&name(i));
        }
        drop(file);
        let (device, dir) = (volume.memory.clone(), volume.dir);
        volume.close();
        let mut nodes = Vec::new();
        for offset in (0..device.size()).step_by(512) {
            let mut bytes = vec![0; 512];
            device.read(offset, &mut bytes).unwrap();
            let head = BlockHeader::read(&bytes);
            if head.magic.get() == BlockKind::ExtentTree.magic() && head.owner.get() == dir.ino() {
                nodes.push(offset);
            }
        }
        assert!(nodes.len() > names as usize / 28, "{} nodes", nodes.len());
        for offset in nodes {
            let image = Arc::new(device.clone_image());
            image.write(offset + 256, &[0xee; 256]).unwrap();
            let fs = setup.open(Devices::from(image.clone())).unwrap();
            let session = fs.session(Cred::root());
            session.rmdir("d").unwrap();
            assert!(session.stat("d").is_err());
            session.create("new", 0o644).unwrap();
            fs.sync().unwrap();
            assert!(fs.shut_down_reason().is_none());
            drop(session);
            fs.close().unwrap();
            let fs = setup.open(Devices::from(image)).unwrap();
            fs.session(Cred::root()).unlink("new").unwrap();
            assert!(fs.shut_down_reason().is_none());
        }
    }
}

/// Names that need more blocks than the smallest cache has frames, 1024: a block of 512 bytes has one slot.
const MANY: u32 = 1500;

/// A search goes through all of a directory inside the gate, where nothing leaves the cache; and a directory of several spans is
/// given up some extents at a time.
#[test]
fn a_directory_may_be_larger_than_the_cache() {
    for map in [Map::Extents, Map::Blocks] {
        let mut setup = setup(512, 64 << 20);
        setup.choices.map = map;
        setup.choices.inodes = if map == Map::Blocks { Inodes::Static } else { setup.choices.inodes };
        setup.options.cache_size = 0;
        let volume = Volume::new(&setup);
        let fresh = volume.free();
        for i in 0..MANY {
            volume.link(&name(i));
        }
        volume.assert_finds(MANY, name);
        let blocks = volume.session.stat("d").unwrap().blocks;
        assert!(volume.session.rmdir("d").is_err());
        for i in 0..MANY {
            volume.unlink(&name(i));
        }
        assert_eq!(volume.session.stat("d").unwrap().blocks, blocks);
        assert!(volume.list_all().is_empty());
        volume.session.rmdir("d").unwrap();
        assert!(volume.session.stat("d").is_err());
        // As it was: with an empty directory.
        volume.session.mkdir("d", 0o755).unwrap();
        assert_eq!(volume.free(), fresh);
        volume.close();
    }
}

/// The same while the log holds what the blocks do not, and without leave to write.
#[test]
fn what_the_log_holds_is_found_past_the_cache() {
    crate::what_the_log_holds_is_found(setup(512, 64 << 20), MANY, name);
}

/// See [`crate::lose_power`].
#[test]
fn power_may_be_lost_at_any_time() {
    let bursts = Profile { burst_every: 40, burst_max: 60, ..Profile::crash() };
    crate::lose_power("slots", &bursts, |block_size, size, _| setup(block_size, size));
}
