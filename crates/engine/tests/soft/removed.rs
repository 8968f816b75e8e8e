//! A large tree is removed: the call returns without a write, and what the tree had counts as free, and can be had, before the device knows of it.

use crate::recorded::{Volume, setup};
use myriad_engine::{OpenOptions, Order, RenameMode};
use myriad_trials::setup::statfs_but_root;

const MIB: usize = 1 << 20;

/// Small files in many directories, and one file that needs blocks of pointers of two levels.
fn make_tree(volume: &Volume) {
    let session = &volume.session;
    for dir in 0..40 {
        session.mkdir(&format!("tree/{dir}"), 0o755).unwrap();
        for file in 0..25 {
            session.write(&format!("tree/{dir}/{file}"), vec![b'x'; 700 * (file + 1)]).unwrap();
        }
    }
    session.write("tree/large", vec![b'y'; 6 * MIB]).unwrap();
}

#[test]
fn a_removed_tree_counts_as_free_at_once() {
    for fragments in [1, 8] {
        let mut setup = setup(Order::Soft, 4096 / fragments, 64 << 20);
        setup.fragments = fragments;
        let volume = Volume::new(&setup);
        volume.session.mkdir("tree", 0o755).unwrap();
        volume.fs.sync().unwrap();
        let before = statfs_but_root(&volume.fs).unwrap();
        make_tree(&volume);
        volume.fs.sync().unwrap();
        let full = statfs_but_root(&volume.fs).unwrap();
        assert!(before.free_blocks - full.free_blocks > (14 * MIB) as u64 / u64::from(full.block_size), "{full:?}");
        volume.device.take();
        volume.session.remove_tree("tree", &mut |_| true).unwrap();
        assert_eq!(volume.device.event_count(), 0, "neither a write nor a flush");
        volume.session.mkdir("tree", 0o755).unwrap();
        // Inodes count as used until they are given back.
        let free = statfs_but_root(&volume.fs).unwrap().free_blocks;
        assert_eq!(free, before.free_blocks, "{fragments} fragments");
        assert_eq!(volume.device.event_count(), 0);
        volume.fs.sync().unwrap();
        let after = statfs_but_root(&volume.fs).unwrap();
        assert_eq!(
            (after.free_blocks, after.inodes_used),
            (before.free_blocks, before.inodes_used),
            "{fragments} fragments"
        );
    }
}

/// While what a tree had waits to be given back, on a volume that is full without it, a file as large as the tree can be written.
#[test]
fn what_a_removed_tree_had_can_be_taken_at_once() {
    let setup = setup(Order::Soft, 4096, 32 << 20);
    let volume = Volume::new(&setup);
    let session = &volume.session;
    session.mkdir("tree", 0o755).unwrap();
    make_tree(&volume);
    let rest = session.open("rest", OpenOptions::CREATE).unwrap();
    let mut end = 0;
    while let Ok(written @ 1..) = rest.write_at(&[b'x'; 64 << 10], end) {
        end += written as u64;
    }
    volume.fs.sync().unwrap();
    let full = volume.fs.statfs().unwrap();
    session.remove_tree("tree", &mut |_| true).unwrap();
    let freed = volume.fs.statfs().unwrap();
    assert!(freed.available_blocks > full.available_blocks + ((14 * MIB) >> 12) as u64, "{full:?}, then {freed:?}");
    session.write("taken", vec![b'z'; 14 * MIB]).unwrap();
    volume.fs.sync().unwrap();
    assert_eq!(session.read("taken").unwrap(), vec![b'z'; 14 * MIB]);
}

/// What a rename replaces has its name until the new one lasts. What was given up of it meanwhile was gone at once: power loss left the name with neither
/// the old content nor the new.
#[test]
fn a_replaced_file_gives_nothing_up_while_its_name_lasts() {
    let setup = setup(Order::Soft, 1024, 8 << 20);
    let volume = Volume::new(&setup);
    // Direct pointers, and a block of pointers.
    let content = |byte| vec![byte; 40 << 10];
    volume.session.write("old", content(b'o')).unwrap();
    volume.session.write("new", content(b'n')).unwrap();
    volume.fs.sync().unwrap();
    let states = volume.states(|session| {
        let old = session.open("old", OpenOptions::READ_WRITE).unwrap();
        session.rename("new", "old", RenameMode::Replace).unwrap();
        old.truncate(0).unwrap();
        session.fs().sync().unwrap();
    });
    for state in &states {
        state.check();
        let found = state.open(&setup).session.read("old").unwrap();
        assert!([b'o', b'n'].map(content).contains(&found), "{}: {} bytes", state.what, found.len());
    }
}
