//! Under soft updates the bytes of names that have gone are not free until the order gives them back, and are free then.
//!
//! A rename in order `softdep` leaves the old entry in its place until its removal is durable. A hash that took such bytes for free would try
//! units in vain, and let the directory grow.

use crate::UNIT;
use crate::volume::{Volume, name};
use myriad_engine::{DirHash, Order};
use myriad_sim::rng::{self, Rng};
use myriad_trials::setup::Setup;
use myriad_trials::table;

/// A volume of profile `ffs` in order `softdep`.
fn ffs(has_hashes: bool) -> Volume {
    let mut setup = Setup::new(4096, 256 << 20);
    setup.choices = table::select("profile=ffs").unwrap()[0].choices;
    setup.order = Order::Soft;
    setup.options.dirhash = DirHash { is_on: Some(has_hashes), ..DirHash::default() };
    setup.options.name_cache = false;
    Volume::new(&setup)
}

/// With so many names that last.
fn with_names(has_hashes: bool, names: u32) -> Volume {
    let volume = ffs(has_hashes);
    (0..names).for_each(|i| volume.link(&name(i)));
    volume.fs.sync().unwrap();
    volume
}

fn units_of(volume: &Volume) -> u64 {
    volume.size() / UNIT
}

/// The story of the bug: a mail folder of 3,314 messages was packed, and with a hash its directory grew from 85 KB to 962 KB, where a search
/// from the front made it 121 KB. The hash took the bytes of old names for free, tried the eight fullest units in vain, and the directory grew
/// by a unit for every other name.
#[test]
fn a_packed_folder_is_as_large_with_a_hash_as_without() {
    for synced_every in [usize::MAX, 300, 20] {
        let sizes = [true, false].map(|has_hashes| {
            let volume = with_names(has_hashes, 1600);
            let before = units_of(&volume);
            for i in 0..1600 {
                // As in a folder with gaps: old and new numbers lie in other units.
                volume.rename(&name(i * 7 % 1600), &name(10_000 + i));
                if (i as usize + 1) % synced_every == 0 {
                    volume.fs.sync().unwrap();
                }
            }
            assert!((0..1600).all(|i| volume.has(&name(10_000 + i)) && !volume.has(&name(i))));
            if has_hashes {
                assert!(volume.count("dirhash_hits") > 1600, "the hash was in use");
            }
            let after = units_of(&volume);
            volume.close();
            (before, after)
        });
        let [(before, with), (_, without)] = sizes;
        println!("synced every {synced_every}: {before} units, then {with} with a hash and {without} without");
        assert!(with <= without + 4, "{with} units with a hash, {without} without, {before} before");
        // Each unit has what is kept, and each name at most one kept beside it.
        assert!(with <= 2 * before + 4, "{with} units, {before} before");
    }
}

/// What all names gave up is there again after a sync: the next names need no unit more.
#[test]
fn what_a_sync_gives_back_is_used_before_the_directory_grows() {
    let volume = with_names(true, 1000);
    let units = units_of(&volume);
    (0..1000).step_by(2).for_each(|i| volume.unlink(&name(i)));
    // Nothing is given back yet: a new name goes into a new unit.
    volume.link(b"eight888");
    assert_eq!(units_of(&volume), units + 1);
    volume.unlink(b"eight888");
    volume.fs.sync().unwrap();
    (0..500).for_each(|i| volume.link(&name(10_000 + i)));
    assert!(units_of(&volume) <= units, "{} units, {units} before", units_of(&volume));
    volume.close();
}

/// Some of a directory's blocks may last while others wait: what the first give back is found by looking at charged units, before the
/// directory grows.
#[test]
fn what_a_part_of_the_directory_gives_back_is_found_before_it_grows() {
    let volume = with_names(true, 2000);
    // Gaps everywhere, which wait.
    (0..2000).step_by(2).for_each(|i| volume.unlink(&name(i)));
    // A file that is synced makes the block last in which its name is, and no other.
    let synced = volume.session.create("d/synced", 0o644).unwrap();
    volume
        .session
        .open_node(synced, myriad_engine::OpenOptions { write: true, ..Default::default() })
        .unwrap()
        .sync()
        .unwrap();
    let (units, recharges) = (units_of(&volume), volume.count("dirhash_recharges"));
    (0..60).for_each(|i| volume.link(&name(10_000 + i)));
    println!("{} looks at charged units", volume.count("dirhash_recharges") - recharges);
    assert!(volume.count("dirhash_recharges") > recharges);
    assert!(units_of(&volume) <= units + 1, "{} units, {units} before", units_of(&volume));
    volume.close();
}

/// A hash that is made while names wait knows what they keep; and one may go and come again at any moment.
#[test]
fn a_hash_that_is_made_while_names_wait_charges_for_them() {
    let sizes = [true, false].map(|goes| {
        let volume = with_names(true, 800);
        for i in 0..800 {
            volume.rename(&name(i), &name(10_000 + i));
            if goes && i % 50 == 0 {
                volume.fs.tune(&myriad_engine::options::read_for_tune(["dirhash_maxmem=0"]).unwrap()).unwrap();
                volume.fs.tune(&myriad_engine::options::read_for_tune(["dirhash_maxmem=2M"]).unwrap()).unwrap();
            }
        }
        let units = units_of(&volume);
        volume.close();
        units
    });
    assert!(sizes[0] <= sizes[1] + 2, "{} units with hashes that go, {} with one", sizes[0], sizes[1]);
}

/// A directory that shrinks gives its units back once nothing in them waits, and not before.
#[test]
fn units_that_wait_stay_and_go_with_the_next_name_after_a_sync() {
    let volume = with_names(true, 1000);
    let units = units_of(&volume);
    (100..1000).for_each(|i| volume.unlink(&name(i)));
    assert_eq!(units_of(&volume), units, "entries keep their places");
    volume.fs.sync().unwrap();
    volume.link(b"another1");
    assert!(units_of(&volume) <= 6, "{} units for 101 names", units_of(&volume));
    volume.close();
}

/// Random names of all lengths come, go and change, in rounds at random moments: free space is as the directory has it, which the comparison
/// of each changed unit says, and the directory is not much larger than one without a hash.
#[test]
fn random_changes_and_rounds_keep_the_charges_right() {
    let first = rng::seed_or(11);
    for seed in first..first + 4 {
        let sizes = [true, false].map(|has_hashes| {
            let volume = ffs(has_hashes);
            let mut rng = Rng::new(seed);
            let mut names: Vec<Vec<u8>> = Vec::new();
            let mut largest = 0;
            for step in 0..2500_u32 {
                let mut new = name(step);
                new.resize(8 + rng.index(if step % 5 == 0 { 240 } else { 20 }), b'x');
                match rng.below(if names.len() > 400 { 6 } else { 4 }) {
                    0 | 1 => {
                        volume.link(&new);
                        names.push(new);
                    }
                    2 if !names.is_empty() => {
                        let at = rng.index(names.len());
                        volume.rename(&names[at], &new);
                        names[at] = new;
                    }
                    _ if !names.is_empty() => volume.unlink(&names.swap_remove(rng.index(names.len()))),
                    _ => {}
                }
                if rng.below(60) == 0 {
                    volume.fs.sync().unwrap();
                }
                largest = largest.max(units_of(&volume));
            }
            assert!(names.iter().all(|name| volume.has(name)), "seed {seed}");
            volume.close();
            largest
        });
        println!("seed {seed}: {sizes:?} units at most");
        assert!(sizes[0] <= sizes[1] + sizes[1] / 10 + 4, "seed {seed}: {sizes:?}");
    }
}

/// Of whose first unit the first name is gone, and the second one has come back in its place: what that left where it was lies there still.
fn with_a_name_that_came_back() -> Volume {
    let volume = with_names(true, 100);
    volume.unlink(&name(0));
    volume.unlink(&name(1));
    volume.fs.sync().unwrap();
    // It goes where the first one was.
    volume.link(&name(1));
    volume.fs.sync().unwrap();
    volume
}

/// What a name left behind in a unit, long let go of, was taken for kept once the name had come back elsewhere in the unit and another one
/// went: no removal had charged the hash for it, so that a sound hash counted as wrong.
#[test]
fn what_a_name_left_is_not_kept_once_the_name_is_back() {
    let volume = with_a_name_that_came_back();
    volume.unlink(&name(5));
    assert!(volume.has(&name(1)) && !volume.has(&name(0)) && !volume.has(&name(5)));
    volume.close();
}

/// As before, and the name goes once more: the order goes by tags, and keeps what the name left the first time as well, for which the hash was
/// not charged.
#[test]
fn what_a_name_left_twice_is_charged_twice() {
    let volume = with_a_name_that_came_back();
    volume.unlink(&name(1));
    assert!(!volume.has(&name(1)) && volume.has(&name(2)));
    volume.close();
}
