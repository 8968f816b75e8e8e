//! Volumes of profile ffs with more than 16,000 allocation groups: sums that no 32 bits hold, and all groups in use in little memory.

use myriad_check::{Options, check};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{Cred, DirPrefVersion, Fs, Order, Session};
use myriad_format::choices::Profile;
use myriad_format::superblock::Superblock;
use myriad_format::{AgNo, Geometry, Ino};
use myriad_trials::setup::{Setup, statfs_but_root};
use myriad_trials::table::Row;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Of `groups` groups of `ag_size` bytes. The memory device keeps only what was written.
fn setup(block_size: u32, groups: u64, ag_size: u64) -> Setup {
    let choices = Profile::parse("ffs").unwrap().choices;
    let mut setup = Setup::of(Row { choices, order: Order::Soft, fragments: 1 }, block_size, groups * ag_size);
    setup.ag_size = Some(ag_size);
    setup.log_size = Some(0);
    setup
}

fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = vec![0; 512];
    device.read(0, &mut bytes).unwrap();
    *Superblock::read(&bytes)
}

/// In which groups the directories of these names lie.
fn groups_of(session: &Session, geometry: &Geometry, names: &[String]) -> BTreeSet<AgNo> {
    let group = |name| geometry.ag_of(geometry.locate(Ino(session.stat(name).unwrap().ino)).unwrap().0);
    names.iter().map(group).collect()
}

/// Opens the volume, and says how many requests to read that took.
fn open(setup: &Setup, device: &Arc<MemoryDevice>) -> (Fs, u64) {
    let before = device.counters().reads;
    let fs = setup.open(device.clone()).unwrap();
    (fs, device.counters().reads - before)
}

fn assert_sound(device: &Arc<MemoryDevice>) {
    let report = check(device.clone(), None, &Options { threads: 1, ..Options::default() }).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
}

/// 20 TiB: more blocks and more inodes than 32 bits count, in 20,000 groups of which few were ever used.
#[test]
fn sums_over_many_large_groups_do_not_overflow() {
    const GROUPS: u64 = 20_000;
    const MANY: u64 = u32::MAX as u64;
    for version in [DirPrefVersion::Old, DirPrefVersion::New] {
        let mut setup = setup(4096, GROUPS, 1 << 30);
        setup.bytes_per_inode = 4096;
        setup.options.dirpref.version = version;
        let device = Arc::new(setup.format());
        let geometry = superblock(&device).geometry();
        let (fs, _) = open(&setup, &device);
        let session = fs.session(Cred::root());
        session.mkdir("first", 0o755).unwrap();
        session.rmdir("first").unwrap();
        fs.sync().unwrap();
        let fresh = statfs_but_root(&fs).unwrap();
        assert_eq!((u64::from(geometry.ag_count), fresh.blocks), (GROUPS, GROUPS << 18));
        assert!(fresh.blocks > MANY && fresh.inodes_free > MANY, "{fresh:?}");
        assert_eq!(fresh.free_blocks, geometry.usable_blocks());
        assert_eq!(fresh.inodes_free + fresh.inodes_used, geometry.inodes_max().unwrap());
        let names: Vec<String> = (0..40).map(|i| format!("directory {i}")).collect();
        for name in &names {
            session.mkdir(name, 0o755).unwrap();
            session.write(&format!("{name}/file"), vec![b'x'; 100 << 10]).unwrap();
        }
        assert_eq!(groups_of(&session, &geometry, &names).len(), names.len(), "{version:?}: a group each");
        fs.sync().unwrap();
        let used = statfs_but_root(&fs).unwrap();
        assert_eq!(fresh.free_blocks - used.free_blocks, names.len() as u64 * (1 + 25 + 1), "{used:?}");
        assert_eq!(used.inodes_used - fresh.inodes_used, 2 * names.len() as u64);
        let lost = Arc::new(device.clone_image());
        fs.close().unwrap();
        for (device, groups_read) in [(&device, 0), (&lost, names.len() as u64 + 3)] {
            let (fs, reads) = open(&setup, device);
            assert!(reads < 32 + 24 * groups_read, "{version:?}: {reads} requests to read");
            assert_eq!(statfs_but_root(&fs).unwrap(), used, "{version:?}, {groups_read} groups read");
            let session = fs.session(Cred::root());
            for name in &names {
                session.remove_tree(name, &mut |_| true).unwrap();
            }
            assert_eq!(
                statfs_but_root(&fs).unwrap().free_blocks,
                fresh.free_blocks,
                "{version:?}, before anything was written"
            );
            fs.sync().unwrap();
            assert_eq!(statfs_but_root(&fs).unwrap(), fresh, "{version:?}, {groups_read} groups read");
            fs.close().unwrap();
            assert_sound(device);
        }
    }
}

/// Each of 17,000 groups has a directory, and the cache room for the headers of a tenth of them.
#[test]
fn many_groups_in_use_take_little_memory() {
    const GROUPS: u64 = 17_000;
    const CACHE: u64 = 2 << 20;
    let mut setup = setup(512, GROUPS, 64 * 512);
    setup.options.cache_size = CACHE;
    let device = Arc::new(setup.format());
    let geometry = superblock(&device).geometry();
    let (fs, _) = open(&setup, &device);
    let session = fs.session(Cred::root());
    let fresh = statfs_but_root(&fs).unwrap();
    let names: Vec<String> = (1..GROUPS).map(|i| format!("d{i}")).collect();
    for (index, name) in names.iter().enumerate() {
        session.mkdir(name, 0o755).unwrap();
        if index % 500 == 0 {
            fs.sync().unwrap();
        }
    }
    fs.sync().unwrap();
    assert_eq!(groups_of(&session, &geometry, &names).len(), names.len(), "a group each");
    let used = statfs_but_root(&fs).unwrap();
    assert_eq!(used.directories - fresh.directories, names.len() as u64);
    assert_eq!(used.inodes_used - fresh.inodes_used, names.len() as u64);
    assert!(fs.levels().cache_used <= CACHE);
    let lost = Arc::new(device.clone_image());
    fs.close().unwrap();
    assert_eq!(u64::from(superblock(&device).ag_high_water.get()), GROUPS);
    // After a crash the bits of each group are counted.
    for (device, reads_max) in [(&device, 32), (&lost, 4 * GROUPS)] {
        let (fs, reads) = open(&setup, device);
        assert!(reads <= reads_max, "{reads} requests to read, expected at most {reads_max}");
        assert!(fs.levels().cache_used <= CACHE);
        assert_eq!(statfs_but_root(&fs).unwrap(), used);
        let session = fs.session(Cred::root());
        session.mkdir("one more", 0o755).unwrap();
        session.rmdir("one more").unwrap();
        fs.close().unwrap();
        assert_sound(device);
    }
}
