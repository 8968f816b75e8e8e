//! Linear directories: what their kind promises beyond what every directory does.

use crate::{Volume, list_while_it_changes, name};
use myriad_device::BlockDevice;
use myriad_engine::RenameMode;
use myriad_format::choices::{Choices, Directory};
use myriad_format::{NameHasher, superblock::Superblock};
use myriad_sim::generate::Profile;
use myriad_trials::setup::Setup;
use std::collections::{BTreeMap, BTreeSet};

fn setup(block_size: u32, size: u64) -> Setup {
    let mut setup = Setup::new(block_size, size);
    setup.choices = Choices { directory: Directory::Linear, ..Choices::default() };
    // What there is beside the rules of the kind itself is in `dirhash.rs`.
    setup.options.dirhash.is_on = Some(false);
    setup
}

impl Volume {
    /// The unit of each name: a cookie is the number of a unit above a tag.
    fn units(&self) -> BTreeMap<Vec<u8>, u64> {
        self.list_all().into_iter().map(|(name, cookie)| (name, (cookie - 1) >> 32)).collect()
    }

    fn size(&self) -> u64 {
        self.session.stat("d").unwrap().size
    }

    fn sectors(&self) -> u64 {
        self.session.stat("d").unwrap().blocks
    }
}

/// Units are filled, compacted, emptied and dropped meanwhile.
#[test]
fn a_listing_shows_once_what_is_there_throughout() {
    let volume = Volume::new(&setup(4096, 64 << 20));
    list_while_it_changes(&volume, 11, 400, 60);
    assert!(volume.count("dir_compactions") > 50 && volume.count("dir_trims") > 0);
    volume.close();
}

/// Any entry can be the one to go on from, and gives what came behind it.
#[test]
fn a_listing_goes_on_from_any_entry() {
    let volume = Volume::new(&setup(4096, 64 << 20));
    for i in 0..300 {
        volume.link(&name(i));
    }
    assert_eq!(volume.assert_goes_on_from_any_entry().len(), 300);
    volume.close();
}

/// A name goes (a) where one entry has slack, (b) where a unit has it altogether, (c) into a new unit; names stay in their units.
#[test]
fn compaction_stays_in_a_unit() {
    let volume = Volume::new(&setup(4096, 64 << 20));
    // Entries of 24 bytes: 20 in a unit of 496, with 16 bytes left.
    for i in 0..60 {
        volume.link(&name(i));
    }
    assert_eq!(volume.size(), 3 * 512);
    for i in 0..60 {
        assert_eq!(volume.units()[&name(i)], u64::from(i / 20));
    }
    // Holes of 24 bytes, no two of them neighbours, in the second unit.
    for i in [21, 24, 27, 30] {
        volume.unlink(&name(i));
    }
    let before = volume.units();
    assert_eq!(volume.count("dir_compactions"), 0);
    // (b): 16 + 30 bytes, to be a multiple of 8: 48. That of two holes.
    volume.link(&[b'b'; 30]);
    assert_eq!(volume.count("dir_compactions"), 1);
    assert_eq!(volume.size(), 3 * 512);
    let after = volume.units();
    assert_eq!(after[&[b'b'; 30][..]], 1);
    assert!(before.iter().all(|(name, unit)| after[name] == *unit));
    // (a): one of the holes that are left, and the slack at the end of the first unit is too small.
    volume.link(b"eight888");
    assert_eq!(volume.count("dir_compactions"), 1);
    assert_eq!(volume.units()[&b"eight888"[..]], 1);
    // (c)
    volume.link(&[b'c'; 100]);
    assert_eq!(volume.size(), 4 * 512);
    assert_eq!(volume.units()[&[b'c'; 100][..]], 3);
    for (name, _) in volume.units() {
        assert!(volume.session.lookup(volume.dir, &name).is_ok());
    }
    volume.close();
}

/// A lookup begins at the unit where the last one succeeded, and goes around: who asks for names in the order of a listing has about
/// one unit searched for each. Whoever changes something looks from the front.
#[test]
fn a_lookup_begins_where_the_last_one_succeeded() {
    let mut setup = setup(4096, 64 << 20);
    setup.options.name_cache = false;
    let volume = Volume::new(&setup);
    for i in 0..2000 {
        volume.link(&name(i));
    }
    let compared = |work: &dyn Fn()| {
        let before = volume.count("dir_tags_compared");
        work();
        volume.count("dir_tags_compared") - before
    };
    let look = |i| assert!(volume.session.lookup(volume.dir, &name(i)).is_ok());
    look(0);
    let in_order = compared(&|| (0..2000).for_each(look));
    // Half of a unit of 20, and the rest of the one before at each border.
    assert!((20_000..24_000).contains(&in_order), "{in_order}");
    // From the last unit around to the first one, and to what lies right before.
    assert_eq!(compared(&|| look(5)), 20 + 6);
    look(1999);
    assert_eq!(compared(&|| look(1979)), 20 + 1980);
    // All of them, once.
    assert_eq!(compared(&|| assert!(volume.session.lookup(volume.dir, b"none").is_err())), 2000);
    look(1999);
    assert_eq!(compared(&|| volume.unlink(&name(100))), 101);
    volume.close();
}

/// A name whose tag a unit has goes into another one: who lists could not tell the two apart.
#[test]
fn no_unit_has_a_tag_twice() {
    let volume = Volume::new(&setup(4096, 64 << 20));
    let mut block = vec![0; 4096];
    volume.memory.read(0, &mut block).unwrap();
    let hasher = NameHasher::new(Superblock::read(&block).hash_key);
    let mut tags: BTreeMap<u32, u32> = BTreeMap::new();
    let mut pairs = Vec::new();
    for i in 0..400_000 {
        if let Some(other) = tags.insert(hasher.hash(&name(i)) as u32, i) {
            pairs.push((other, i));
        }
    }
    assert!(pairs.len() > 5, "{}", pairs.len());
    for (one, other) in &pairs {
        volume.link(&name(*one));
        volume.link(&name(*other));
    }
    let units = volume.units();
    assert_eq!(units.len(), 2 * pairs.len());
    for (one, other) in &pairs {
        assert_ne!(units[&name(*one)], units[&name(*other)]);
    }
    // One of each is moved to where the other one's twin is: by another name, and back.
    for (one, other) in &pairs {
        let [one, other] = [one, other].map(|i| [b"d/", &name(*i)[..]].concat());
        volume.session.rename(&one, b"d/away", RenameMode::NoReplace).unwrap();
        volume.session.rename(b"d/away", &one, RenameMode::NoReplace).unwrap();
        assert!(volume.session.stat(&other).is_ok());
    }
    volume.close();
}

/// What is not used at the end goes when a name is added, not when one is removed or renamed; some blocks at a time.
#[test]
fn unused_units_at_the_end_are_dropped_by_a_create() {
    let volume = Volume::new(&setup(4096, 64 << 20));
    for i in 0..2000 {
        volume.link(&name(i));
    }
    let (size, blocks) = (volume.size(), volume.sectors());
    assert_eq!((size, blocks), (100 * 512, 13 * 8));
    for i in 30..2000 {
        volume.unlink(&name(i));
    }
    volume.session.rename("d/00000000", "d/renamed0", RenameMode::NoReplace).unwrap();
    assert_eq!((volume.size(), volume.sectors()), (size, blocks));
    // A directory that is not empty, though most of its units are; and free blocks that come back.
    assert!(volume.session.rmdir("d").is_err());
    let free = volume.fs.statfs().unwrap().free_blocks;
    while volume.size() > 2 * 512 {
        let before = volume.size();
        volume.link(b"new");
        volume.unlink(b"new");
        assert!(volume.size() < before);
    }
    assert_eq!(volume.sectors(), 8);
    assert_eq!(volume.fs.statfs().unwrap().free_blocks, free + 12);
    let left: BTreeSet<Vec<u8>> = volume.list_all().into_iter().map(|(name, _)| name).collect();
    let expected = (1..30).map(name).chain([b"renamed0".to_vec()]).collect();
    assert_eq!(left, expected);
    volume.close();
}

/// Names that need more blocks than the smallest cache has frames, 1024: two fit a unit, which is a block here.
const MANY: u32 = 2400;

fn wide_name(i: u32) -> Vec<u8> {
    format!("{i:0232}").into_bytes()
}

/// A search goes through all of a directory inside the gate, where nothing leaves the cache.
#[test]
fn a_directory_may_be_larger_than_the_cache() {
    let mut setup = setup(512, 64 << 20);
    setup.options.cache_size = 0;
    let volume = Volume::new(&setup);
    for i in 0..MANY {
        volume.link(&wide_name(i));
    }
    assert!(volume.size() / 512 > 1100);
    volume.assert_finds(MANY, wide_name);
    // The last one leaves; the directory has all its units still, and is empty.
    for i in 0..MANY {
        volume.unlink(&wide_name(i));
    }
    assert!(volume.size() / 512 > 1100);
    assert!(volume.list_all().is_empty());
    let free = volume.fs.statfs().unwrap().free_blocks;
    volume.session.rmdir("d").unwrap();
    volume.fs.sync().unwrap();
    assert!(volume.fs.statfs().unwrap().free_blocks > free + 1100);
    assert!(volume.session.stat("d").is_err());
    volume.close();
}

/// The same while the log holds what the blocks do not, and without leave to write.
#[test]
fn what_the_log_holds_is_found_past_the_cache() {
    crate::what_the_log_holds_is_found(setup(512, 64 << 20), MANY, wide_name);
}

/// See [`crate::lose_power`].
#[test]
fn power_may_be_lost_at_any_time() {
    crate::lose_power(
        "linear",
        &Profile { burst_every: 40, burst_max: 60, ..Profile::crash() },
        |block_size, size, seed| {
            let mut setup = setup(block_size, size);
            // Hashes are in memory only, and make no difference.
            setup.options.dirhash.is_on = Some(seed % 2 == 0);
            setup.options.dirhash.size_min = 0;
            setup
        },
    );
}
