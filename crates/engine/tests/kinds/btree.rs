//! Directories of kind `btree`: what their kind promises beyond what every directory does.

use crate::{Volume, list_while_it_changes, name};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{Cred, Error, RenameMode};
use myriad_format::choices::{Choices, Directory, Inodes, Map};
use myriad_format::dir_tree::{DirNodeHeader, DirTreeChild, DirTreeEntry, NODE_OFFSET, offset_at, tree_entry_size};
use myriad_format::superblock::Superblock;
use myriad_format::{BlockKind, Corrupt, FEW_TAGS_KEY, NameHasher, header};
use myriad_sim::generate::Profile;
use myriad_sim::rng::{self, Rng};
use myriad_trials::setup::{Devices, Setup};
use myriad_trials::verdict::check_silent;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn setup(block_size: u32, size: u64) -> Setup {
    let mut setup = Setup::new(block_size, size);
    setup.choices = Choices { directory: Directory::Tree, ..Choices::default() };
    setup.ag_size = Some(size.next_power_of_two());
    setup
}

/// A volume whose names share eight tags.
fn with_few_tags(setup: &Setup) -> MemoryDevice {
    let device = setup.format();
    let mut block = vec![0; setup.block_size as usize];
    device.read(0, &mut block).unwrap();
    let superblock = Superblock::read_mut(&mut block);
    assert_eq!(superblock.ag_count.get(), 1, "a copy of the superblock would say otherwise");
    superblock.hash_key = FEW_TAGS_KEY;
    header::seal(&mut block, 0);
    device.write(0, &block).unwrap();
    device
}

impl Volume {
    /// Blocks of the directory, and how many of them its size needs.
    fn tree_blocks(&self) -> (u64, u64) {
        let stat = self.session.stat("d").unwrap();
        let block_size = u64::from(self.fs.statfs().unwrap().block_size);
        (stat.blocks * 512 / block_size, stat.size.div_ceil(block_size))
    }

    fn assert_sound(&self) {
        self.fs.sync().unwrap();
        check_silent(&Devices::from(Arc::new(self.memory.clone_image()))).unwrap();
    }
}

/// Volumes of honest hashes, and of names that share eight tags.
fn both(block_size: u32) -> [Volume; 2] {
    let setup = setup(block_size, 24 << 20);
    [Volume::new(&setup), Volume::on(&setup, with_few_tags(&setup))]
}

/// Leaves are split, merged and moved meanwhile.
#[test]
fn a_listing_shows_once_what_is_there_throughout() {
    for (which, volume) in both(512).into_iter().enumerate() {
        list_while_it_changes(&volume, 11 + which as u64, 400, 60);
        assert!(volume.count("dir_leaf_splits") > 50 && volume.count("dir_merges") > 10);
        assert!(volume.count("dir_compactions") > 50);
        volume.close();
    }
}

/// Any entry can be the one to go on from, and gives what came behind it; also when the entry itself has gone.
#[test]
fn a_listing_goes_on_from_any_entry() {
    for volume in both(512) {
        for i in 0..300 {
            volume.link(&name(i));
        }
        let all = volume.list_all();
        assert_eq!(all.len(), 300);
        for (index, (entry, cookie)) in all.iter().enumerate() {
            assert!(volume.list(*cookie, usize::MAX) == all[index + 1..], "{index}");
            if index % 10 == 0 {
                volume.unlink(entry);
                assert!(volume.list(*cookie, usize::MAX) == all[index + 1..]);
            }
        }
        // What no listing gave is no reason for more than nothing, or some of it.
        let all = volume.list_all();
        for cookie in [1 << 62, u64::MAX, u64::MAX >> 1, 5, 77 << 32] {
            let rest = volume.list(cookie, usize::MAX);
            assert!(all.ends_with(&rest), "{cookie}");
        }
        volume.close();
    }
}

/// Names that share a tag lie side by side in several leaves: each is found, removed, replaced and renamed as itself, and none is listed
/// for another.
#[test]
fn hundreds_of_names_may_share_a_tag() {
    for (block_size, inodes) in [(512, Inodes::Dynamic), (4096, Inodes::Static)] {
        let mut setup = setup(block_size, 24 << 20);
        setup.choices.inodes = inodes;
        if inodes == Inodes::Static {
            setup.choices.map = Map::Blocks;
        }
        let volume = Volume::on(&setup, with_few_tags(&setup));
        let hasher = NameHasher::new(FEW_TAGS_KEY);
        let mut tags: BTreeMap<u32, u32> = BTreeMap::new();
        for i in 0..2000 {
            *tags.entry(hasher.hash(&name(i)) as u32).or_default() += 1;
            volume.link(&name(i));
        }
        assert!(tags.len() == 8 && tags.values().all(|count| *count > 200), "{tags:?}");
        assert!(volume.tree_blocks().1 > 20);
        volume.assert_sound();
        let keys: BTreeSet<u64> = volume.list_all().into_iter().map(|(_, cookie)| cookie).collect();
        assert_eq!(keys.len(), 2000);
        for i in 0..2000 {
            assert!(volume.session.lookup(volume.dir, &name(i)).is_ok(), "{i}");
            assert!(volume.session.lookup(volume.dir, &name(i + 2000)).is_err(), "{i}");
        }
        // One of each seven goes, one gets another name, one is replaced by a file of its own.
        let own = volume.session.create("own", 0o600).unwrap();
        for i in 0..2000 {
            match i % 7 {
                0 => volume.unlink(&name(i)),
                1 => volume.rename(&name(i), &name(i + 10_000)),
                2 => {
                    volume.session.link_at(own, volume.dir, b"its").unwrap();
                    let to = [b"d/", &name(i)[..]].concat();
                    volume.session.rename(b"d/its", &to, RenameMode::Replace).unwrap();
                }
                _ => {}
            }
        }
        volume.assert_sound();
        for i in 0..2000 {
            let found = volume.session.lookup(volume.dir, &name(i)).map(|stat| stat.ino);
            match i % 7 {
                0 | 1 => assert!(found.is_err(), "{i}"),
                2 => assert_eq!(found.unwrap(), own.ino(), "{i}"),
                _ => assert_eq!(found.unwrap(), volume.file.ino(), "{i}"),
            }
            assert_eq!(volume.session.lookup(volume.dir, &name(i + 10_000)).is_ok(), i % 7 == 1, "{i}");
        }
        for name in volume.names() {
            volume.unlink(&name);
        }
        assert_eq!(volume.tree_blocks(), (0, 0));
        volume.close();
    }
}

/// A directory takes blocks as it grows and gives them back as it becomes smaller, down to one, and to none with its last entry,
/// whatever the order in which names go.
#[test]
fn names_in_random_order_leave_nothing_behind() {
    let count = 100_000;
    let mut setup = setup(4096, 256 << 20);
    setup.options.cache_size = 64 << 20;
    let volume = Volume::new(&setup);
    let free = volume.fs.statfs().unwrap().free_blocks;
    let mut rng = Rng::new(rng::seed_or(5));
    let mut order: Vec<u32> = (0..count).collect();
    let mut shuffle = |order: &mut Vec<u32>| {
        for i in (1..order.len()).rev() {
            order.swap(i, rng.index(i + 1));
        }
    };
    shuffle(&mut order);
    for &i in &order {
        volume.link(&name(i));
    }
    let (blocks, nodes) = volume.tree_blocks();
    // 26 bytes an entry: a leaf is at least half full, and at the mean more than two thirds.
    let least = u64::from(count) * 26 / 4032;
    assert!((least..least * 3 / 2).contains(&nodes), "{nodes} nodes, at least {least}");
    assert!(blocks <= nodes + 64 + 8, "{blocks} blocks, {nodes} nodes");
    volume.assert_sound();
    shuffle(&mut order);
    for (done, &i) in order[10..].iter().enumerate() {
        volume.unlink(&name(i));
        if done % 20_000 == 0 {
            volume.assert_sound();
            let left = u64::from(count) - done as u64;
            let (blocks, nodes) = volume.tree_blocks();
            // Leaves that are left alone are more than half full; those that find no neighbour to join may be emptier.
            assert!(nodes <= left * 26 * 3 / 4032 + 10, "{nodes} nodes for {left} names");
            assert!(blocks <= nodes + 64 + 8);
        }
    }
    assert_eq!(volume.tree_blocks(), (1, 1));
    assert!(volume.names() == order[..10].iter().map(|&i| name(i)).collect());
    volume.assert_sound();
    for &i in &order[..10] {
        volume.unlink(&name(i));
    }
    assert_eq!(volume.tree_blocks(), (0, 0));
    volume.fs.sync().unwrap();
    volume.fs.sync().unwrap();
    assert_eq!(volume.fs.statfs().unwrap().free_blocks, free);
    volume.close();
}

/// In the smallest blocks a leaf may have room for one long name and nothing else: a leaf becomes three.
#[test]
fn long_names_in_small_blocks() {
    for seed in [rng::seed_or(3), rng::seed_or(3) + 1] {
        for volume in both(512) {
            let mut rng = Rng::new(seed);
            let mut names = BTreeSet::new();
            for round in 0..3000 {
                if round % 3 < 2 && round < 2000 {
                    let mut name = format!("{round}").into_bytes();
                    name.resize(name.len().max(if rng.below(3) == 0 { 255 } else { 1 + rng.index(180) }), b'y');
                    volume.link(&name);
                    names.insert(name);
                } else if let Some(name) = names.iter().nth(rng.index(names.len().max(1))).cloned() {
                    volume.unlink(&name);
                    names.remove(&name);
                }
                if round % 500 == 0 {
                    volume.assert_sound();
                    assert!(volume.names() == names);
                }
            }
            for name in &names {
                assert!(volume.session.lookup(volume.dir, name).is_ok());
                volume.unlink(name);
            }
            assert_eq!(volume.tree_blocks(), (0, 0));
            volume.close();
        }
    }
}

/// A small directory lies in its inode, and its names keep their cookies when they move to a leaf.
#[test]
fn a_small_directory_has_no_block() {
    let volume = Volume::new(&setup(4096, 24 << 20));
    let mut before = Vec::new();
    for i in 0..200 {
        volume.link(&name(i));
        let all = volume.list_all();
        let cookies: BTreeMap<&[u8], u64> = all.iter().map(|(name, cookie)| (&name[..], *cookie)).collect();
        assert!(before.iter().all(|(name, cookie): &(Vec<u8>, u64)| cookies[&name[..]] == *cookie));
        assert_eq!(volume.tree_blocks().0 > 0, i >= 37, "{i}");
        before = all;
    }
    volume.close();
}

/// A directory may be larger than the cache: no operation looks at more of it than the way to a few leaves.
#[test]
fn a_directory_may_be_larger_than_the_cache() {
    let mut setup = setup(512, 64 << 20);
    setup.options.cache_size = 0;
    let volume = Volume::new(&setup);
    let wide = |i: u32| format!("{i:0232}").into_bytes();
    for i in 0..2400 {
        volume.link(&wide(i));
    }
    assert!(volume.tree_blocks().1 > 1100);
    volume.fs.drop_caches().unwrap();
    assert_eq!(volume.names().len(), 2400);
    for i in (0..2400).rev() {
        volume.unlink(&wide(i));
    }
    assert_eq!(volume.tree_blocks(), (0, 0));
    volume.session.rmdir("d").unwrap();
    volume.close();
}

/// The tag of an entry in the middle of a leaf was made a low one. Whoever went on from its cookie began at the front again, for ever:
/// 2 of 12 500 hostile images.
#[test]
fn a_listing_only_goes_forwards() {
    let setup = setup(512, 24 << 20);
    let device = with_changed_leaves(&setup, |block| {
        let at = offset_at(block, 3);
        DirTreeEntry::read_mut(&mut block[at..]).tag.set(0x190);
    });
    let fs = setup.open(Devices::from(device)).unwrap();
    let session = fs.session(Cred::root());
    let dir = session.lookup(session.root(), b"d").unwrap().node();
    let mut failed = 0;
    for batch in [1, 2, 3, 4, 5, 50] {
        let mut cookie = 0;
        // A listing that ends has passed over names, one that fails says why; neither goes round.
        loop {
            match session.read_dir_at(dir, cookie, batch) {
                Ok(entries) if entries.is_empty() => break,
                Ok(entries) => {
                    let last = entries[entries.len() - 1].cookie;
                    assert!(last > cookie, "batches of {batch}: {last:#x} behind {cookie:#x}");
                    cookie = last;
                }
                Err(Error::Corrupt(found)) if matches!(*found, Corrupt::DirEntry { field: "key", .. }) => {
                    failed += 1;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(failed > 0);
}

/// The device of a closed volume whose directory has so many names.
fn with_names(setup: &Setup, count: u32) -> Arc<MemoryDevice> {
    let volume = Volume::new(setup);
    for i in 0..count {
        volume.link(&name(i));
    }
    let device = volume.memory.clone();
    volume.close();
    device
}

/// The same with 300 names, and each leaf with more than four entries changed.
fn with_changed_leaves(setup: &Setup, change: impl Fn(&mut [u8])) -> Arc<MemoryDevice> {
    let device = with_names(setup, 300);
    let changed = change_nodes(&device, |_, block| {
        let head = DirNodeHeader::read(block);
        let is_one = head.level == 0 && head.count.get() > 4;
        if is_one {
            change(block);
        }
        is_one
    });
    assert!(changed > 10, "{changed}");
    device
}

/// Changes nodes of the directory on the device: `change` is given the number and the bytes of each, in the order of their places.
fn change_nodes(device: &MemoryDevice, mut change: impl FnMut(usize, &mut [u8]) -> bool) -> usize {
    let (mut number, mut changed) = (0, 0);
    for offset in (0..device.size()).step_by(512) {
        let mut block = vec![0; 512];
        device.read(offset, &mut block).unwrap();
        if DirNodeHeader::read(&block).header.magic.get() != BlockKind::DirTree.magic() {
            continue;
        }
        if change(number, &mut block) {
            header::seal(&mut block, 0);
            device.write(offset, &block).unwrap();
            changed += 1;
        }
        number += 1;
    }
    changed
}

/// Full leaves said that nothing of them is in use. The next entry was put over what was there, and the engine panicked.
#[test]
fn a_leaf_that_says_less_than_it_has_is_damage() {
    let setup = setup(512, 24 << 20);
    let device = with_changed_leaves(&setup, |block| DirNodeHeader::read_mut(block).live.set(0));
    let mut refused = 0;
    for i in 300..340 {
        // A damaged leaf that is met in the middle of a change shuts the volume down.
        let fs = setup.open(Devices::from(Arc::new(device.clone_image()))).unwrap();
        let session = fs.session(Cred::root());
        let long = format!("d/{}{}", "x".repeat(120), i);
        match session.create(&long, 0o644) {
            Ok(_) => {}
            Err(Error::Corrupt(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0);
}

/// Leaves a leaf its first entry: its name.
fn leave_one(block: &mut [u8]) -> Vec<u8> {
    let at = offset_at(block, 0);
    let length = usize::from(DirTreeEntry::read(&block[at..]).name_len);
    let head = DirNodeHeader::read_mut(block);
    (head.count, head.live) = (1.into(), (tree_entry_size(length) as u32).into());
    block[at + DirTreeEntry::SIZE..][..length].to_vec()
}

/// Two ways led to one node. The unlink of its last entry gave the node up twice, and with it one that others are in.
#[test]
fn a_node_that_is_reached_twice_is_damage() {
    let setup = setup(512, 24 << 20);
    let device = with_names(&setup, 40);
    let mut sole = Vec::new();
    let changed = change_nodes(&device, |number, block| {
        let inner = |block: &mut [u8], level: u8, children: &[(u64, u32)]| {
            let head = DirNodeHeader::read_mut(block);
            (head.level, head.count) = (level, (children.len() as u16).into());
            for (index, &(key, child)) in children.iter().enumerate() {
                let at = NODE_OFFSET + index * DirTreeChild::SIZE;
                let record = DirTreeChild::read_mut(&mut block[at..]);
                (record.key, record.child) = (key.into(), child.into());
            }
        };
        match number {
            0 => inner(block, 2, &[(0, 1), (1 << 40, 1)]),
            1 => inner(block, 1, &[(0, 2)]),
            2 => sole = leave_one(block),
            _ => return false,
        }
        true
    });
    assert_eq!(changed, 3);
    let fs = setup.open(Devices::from(device)).unwrap();
    let path = format!("d/{}", String::from_utf8(sole).unwrap());
    let unlinked = fs.session(Cred::root()).unlink(&path);
    assert!(matches!(unlinked, Err(Error::Corrupt(_))), "{unlinked:?}");
}

/// The root was a leaf of one entry, in a directory whose size was that of many nodes. With the last name, all of them were given up in
/// one transaction, however many there were.
#[test]
fn with_the_last_name_goes_no_more_than_the_way_to_it() {
    let setup = setup(512, 24 << 20);
    let device = with_names(&setup, 40);
    let (mut leaf, mut sole) = (Vec::new(), Vec::new());
    change_nodes(&device, |number, block| {
        if number == 1 {
            leaf = block.to_vec();
        }
        false
    });
    let changed = change_nodes(&device, |number, block| {
        if number == 0 {
            let from = std::mem::offset_of!(DirNodeHeader, level);
            block[from..].copy_from_slice(&leaf[from..]);
            sole = leave_one(block);
        }
        number == 0
    });
    assert_eq!(changed, 1);
    let fs = setup.open(Devices::from(device)).unwrap();
    let path = format!("d/{}", String::from_utf8(sole).unwrap());
    let unlinked = fs.session(Cred::root()).unlink(&path);
    let is_size = |found: &Corrupt| matches!(found, Corrupt::Inode { field: "size", .. });
    assert!(matches!(&unlinked, Err(Error::Corrupt(found)) if is_size(found)), "{unlinked:?}");
}

/// The blocks of a directory's attributes counted as if they were nodes. Where they were many, no name could be removed: the directory was said to be
/// damaged. A rename learned it when the new name was there, and that shut the volume down.
#[test]
fn a_directory_of_many_attributes_loses_names() {
    let volume = Volume::new(&setup(512, 24 << 20));
    for i in 0..100 {
        volume.link(&name(i));
    }
    for attribute in [b"user.a", b"user.b", b"user.c", b"user.d"] {
        volume.session.set_xattr("d", attribute, &[7; 64 << 10], Default::default()).unwrap();
    }
    let (blocks, nodes) = volume.tree_blocks();
    assert!(blocks > 2 * nodes + 400, "{blocks} blocks, {nodes} nodes");
    volume.unlink(&name(0));
    volume.rename(&name(1), b"new");
    volume.assert_sound();
    for name in volume.names() {
        volume.unlink(&name);
    }
    assert_eq!(volume.session.stat("d").unwrap().size, 0);
    volume.close();
}

/// A removal changed its leaf before it read the neighbours of that, and what moves to the place of a node that goes. So one damaged leaf shut the volume down, again
/// and again, when names in others were removed.
#[test]
fn one_damaged_leaf_is_in_the_way_of_few_other_names() {
    let setup = setup(512, 24 << 20);
    let device = with_names(&setup, 250);
    let mut leaves = Vec::new();
    for offset in (0..device.size()).step_by(512) {
        let mut block = vec![0; 512];
        device.read(offset, &mut block).unwrap();
        let head = DirNodeHeader::read(&block);
        if head.header.magic.get() == BlockKind::DirTree.magic() && head.level == 0 {
            leaves.push((offset, u64::from(head.count.get())));
        }
    }
    assert!(leaves.len() > 15, "{} leaves", leaves.len());
    for (which, &(offset, lost)) in leaves.iter().enumerate() {
        let image = Arc::new(device.clone_image());
        image.write(offset + 256, &[0xee; 256]).unwrap();
        let fs = setup.open(Devices::from(image)).unwrap();
        let session = fs.session(Cred::root());
        let mut refused = 0;
        for i in (0..250).map(|i| i * 77 % 250) {
            let path = [b"d/", &name(i)[..]].concat();
            // Out of the directory: the new name might belong into the damaged leaf.
            let result = match which % 2 {
                0 => session.unlink(&path),
                _ => session.rename(&path, &[b"r", &name(i)[..]].concat(), RenameMode::NoReplace),
            };
            match result {
                Ok(()) => {}
                Err(Error::Corrupt(_)) => refused += 1,
                Err(error) => panic!("leaf {which}, {i}: {error}; {:?}", fs.shut_down_reason()),
            }
        }
        assert!(fs.shut_down_reason().is_none(), "leaf {which}");
        // The names in the leaf; and if it is the last node, which cannot take another's place, one of each that has to go.
        assert!((lost..=lost + leaves.len() as u64).contains(&refused), "leaf {which}: {refused} refused, {lost} lost");
    }
}

/// See [`crate::lose_power`].
#[test]
fn power_may_be_lost_at_any_time() {
    let bursts = Profile { burst_every: 20, burst_max: 120, ..Profile::crash() };
    crate::lose_power("btree", &bursts, |block_size, size, _| setup(block_size, size));
}
