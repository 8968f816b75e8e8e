//! Options changed while the volume is open: what happens next goes by them.

use myriad_check::{Options as CheckOptions, check};
use myriad_device::{BlockDevice, FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_engine::options::{read_for_tune, row};
use myriad_engine::{
    AccessTimes, Clock, Cred, Discard, Errno, Error, Fs, MkfsOptions, MountOptions, OpenOptions, Order,
    PlacementPolicy, Session,
};
use myriad_format::choices::Profile;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::sleep;
use std::time::Duration;

const WRITE: OpenOptions = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };

fn quiet() -> MountOptions {
    MountOptions { background: false, commit_interval_ms: 0, cache_size: 8 << 20, ..MountOptions::default() }
}

fn formatted(options: &MkfsOptions) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Fs::format_device(device.clone(), None, options).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>, options: MountOptions) -> Fs {
    Fs::open_device(device.clone(), None, options).unwrap()
}

fn assert_sound(device: &Arc<MemoryDevice>) {
    let report = check(device.clone(), None, &CheckOptions::default()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

fn tune(fs: &Fs, settings: &[&str]) {
    fs.tune(&read_for_tune(settings.iter().copied()).unwrap()).unwrap();
}

fn value(fs: &Fs, name: &str) -> String {
    row(name).unwrap().get(&fs.options()).to_string()
}

fn counter(fs: &Fs, name: &str) -> u64 {
    fs.counters().into_iter().find(|&(known, _)| known == name).unwrap().1
}

/// Regions in which a directory's children come to lie.
fn regions_of_children(session: &Session, parent: &str, count: u32) -> BTreeSet<u64> {
    let children = (0..count).map(|i| {
        let child = format!("{parent}/{i}");
        session.mkdir(&child, 0o755).unwrap();
        // 32 inode slots a block of 4 KiB, 256 blocks a region.
        session.stat(&child).unwrap().ino / 32 / 256
    });
    children.collect()
}

#[test]
fn directories_go_by_the_placement_of_the_moment() {
    let device = formatted(&MkfsOptions { region_size: 1 << 20, ..MkfsOptions::default() });
    let fs = open(&device, MountOptions { seed: Some(3), ..quiet() });
    let session = fs.session(Cred::root());
    for top in ["a", "b", "c", "d"] {
        session.mkdir(top, 0o755).unwrap();
    }
    // Files of 1 KiB, 64 a directory: many directories fit a region of 1 MiB, where only one of the usual size does.
    assert_eq!(value(&fs, "avgfilesize"), "16K");
    let usual = regions_of_children(&session, "a", 4);
    assert_eq!(usual.len(), 4, "{usual:?}");
    tune(&fs, &["avgfilesize=1K", "avgfpdir=8"]);
    let small = regions_of_children(&session, "b", 4);
    assert_eq!(small.len(), 1, "{small:?}");
    tune(&fs, &["dirpref=old"]);
    let spread = regions_of_children(&session, "c", 8);
    assert!(spread.len() >= 7, "{spread:?}");
    tune(&fs, &["placement=rotor"]);
    assert_eq!(value(&fs, "placement"), "rotor");
    tune(&fs, &["placement=dirpref", "dirpref=new"]);
    let near = regions_of_children(&session, "d", 8);
    assert_eq!(near.len(), 1, "{near:?}");
    let options = fs.options().mount;
    assert_eq!((options.placement, options.dirpref.average_file_size), (Some(PlacementPolicy::DirPref), 1024));
    drop(session);
    fs.close().unwrap();
    assert_sound(&device);
    // It was for that opening.
    let fs = open(&device, quiet());
    assert_eq!(value(&fs, "avgfilesize"), "16K");
}

#[test]
fn changes_reach_the_device_within_the_interval_of_the_moment() {
    let device = formatted(&MkfsOptions::default());
    let fs =
        open(&device, MountOptions { cache_size: 8 << 20, commit_interval_ms: 3_600_000, ..MountOptions::default() });
    let session = fs.session(Cred::root());
    fs.sync().unwrap();
    let checkpoints = counter(&fs, "checkpoints");
    session.mkdir("directory", 0o755).unwrap();
    sleep(Duration::from_millis(300));
    assert_eq!(counter(&fs, "checkpoints"), checkpoints, "an hour has not passed");
    // The thread that makes them is waiting for the hour.
    tune(&fs, &["commit=0.02"]);
    let is_done = || counter(&fs, "checkpoints") > checkpoints;
    assert!(
        (0..1000).any(|_| is_done() || {
            sleep(Duration::from_millis(10));
            false
        }),
        "nothing happened in 10 s"
    );
    // And for ever, once it is told so.
    tune(&fs, &["commit=0"]);
    fs.sync().unwrap();
    sleep(Duration::from_millis(100));
    let checkpoints = counter(&fs, "checkpoints");
    session.mkdir("another", 0o755).unwrap();
    sleep(Duration::from_millis(300));
    assert_eq!(counter(&fs, "checkpoints"), checkpoints, "nobody asked for one");
}

#[test]
fn access_times_move_by_the_policy_of_the_moment() {
    let device = formatted(&MkfsOptions::default());
    let clock = Arc::new(AtomicI64::new(1_000_000_000_000_000_000));
    let fs = open(&device, MountOptions { clock: Clock::Manual(clock.clone()), ..quiet() });
    let session = fs.session(Cred::root());
    session.mkdir("directory", 0o755).unwrap();
    session.write("file", b"x").unwrap();
    assert_eq!(fs.options().mount.atime, AccessTimes::Never);
    for (setting, file_moves, directory_moves) in [
        ("atime=never", false, false),
        ("atime=strict", true, true),
        ("nodiratime", true, false),
        ("relatime", false, false),
        ("diratime=on", false, false),
        ("strictatime", true, true),
        ("noatime", false, false),
    ] {
        tune(&fs, &[setting]);
        let now = clock.fetch_add(1_000_000_000, Ordering::Relaxed) + 1_000_000_000;
        session.read("file").unwrap();
        session.read_dir("directory").unwrap().for_each(drop);
        assert_eq!(session.stat("file").unwrap().atime == now, file_moves, "{setting}");
        assert_eq!(session.stat("directory").unwrap().atime == now, directory_moves, "{setting}");
    }
}

#[test]
fn freed_space_goes_back_while_it_is_wanted() {
    let device = formatted(&MkfsOptions::default());
    let fs = open(&device, MountOptions { discard: Discard::Never, discard_piece: 4096, ..quiet() });
    let session = fs.session(Cred::root());
    for (settings, goes_back) in [
        (&[][..], false),
        (&["discard=always"], true),
        (&["nodiscard"], false),
        (&["discard=auto", "discard_piece=4K"], true),
        // What lies beside the block is in use, so no piece is free.
        (&["discard_piece=1M"], false),
    ] {
        tune(&fs, settings);
        for name in ["before", "file", "after"] {
            session.write(name, [7; 4096]).unwrap();
            fs.sync().unwrap();
        }
        let before = counter(&fs, "blocks_discarded");
        session.unlink("file").unwrap();
        (0..3).for_each(|_| fs.sync().unwrap());
        let blocks = counter(&fs, "blocks_discarded") - before;
        assert_eq!(blocks > 0, goes_back, "{settings:?}: {blocks} blocks");
    }
    drop(session);
    fs.close().unwrap();
    assert_sound(&device);
}

#[test]
fn blocks_are_chosen_when_the_option_of_the_moment_says() {
    let device = formatted(&MkfsOptions::default());
    let fs = open(&device, quiet());
    let session = fs.session(Cred::root());
    for (i, (setting, waits)) in
        [("alloc=delayed", true), ("alloc=write", false), ("alloc=delayed", true)].into_iter().enumerate()
    {
        tune(&fs, &[setting]);
        fs.sync().unwrap();
        let file = session.open(&format!("file {i}"), WRITE).unwrap();
        file.write_at(&[7; 20_000], 0).unwrap();
        assert_eq!(fs.levels().dirty_data > 0, waits, "{setting}");
    }
}

#[test]
fn a_label_is_kept_and_everything_else_stays() {
    let device = formatted(&MkfsOptions { label: "first, and long".into(), ..MkfsOptions::default() });
    let fs = open(&device, quiet());
    fs.session(Cred::root()).mkdir("directory", 0o755).unwrap();
    tune(&fs, &["label=second"]);
    assert_eq!((fs.info().label.as_str(), value(&fs, "label").as_str()), ("second", "second"));
    // Durable at once.
    let cut = Arc::new(device.clone_image());
    assert_eq!(open(&cut, quiet()).info().label, "second");
    let longest = "x".repeat(63);
    tune(&fs, &[&format!("label={longest}"), "commit=1"]);
    assert!(read_for_tune([&*format!("label={longest}x")]).is_err());
    fs.close().unwrap();
    assert_sound(&device);
    let fs = open(&device, quiet());
    assert_eq!(fs.info().label, longest);
    assert!(fs.session(Cred::root()).stat("directory").is_ok());
    fs.close().unwrap();
}

/// Of several options the label changed alone when the host had no room to make it durable: the others were left as they had been.
#[test]
fn without_room_for_a_label_no_option_changes() {
    let made = formatted(&MkfsOptions { label: "first".into(), ..MkfsOptions::default() }).clone_image();
    let device = Arc::new(FaultDevice::new(made));
    let fs = Fs::open_device(device.clone(), None, quiet()).unwrap();
    fs.sync().unwrap();
    device.fail(FaultOp::Write, 1, FaultSpan::Once, Errno::NOSPC.raw_os_error());
    let refused = fs.tune(&read_for_tune(["label=second", "commit=1"]).unwrap()).unwrap_err();
    assert!(matches!(refused, Error::HostFull(_)), "{refused}");
    let options = || (fs.info().label, value(&fs, "label"), value(&fs, "commit"));
    assert_eq!(options(), ("first".into(), "first".into(), "0".into()));
    // There is room again.
    fs.sync().unwrap();
    let after = Arc::new(device.inner().clone_image());
    assert_eq!(open(&after, quiet()).info().label, "first");
    tune(&fs, &["label=second", "commit=1"]);
    assert_eq!(options(), ("second".into(), "second".into(), "1".into()));
    fs.close().unwrap();
}

#[test]
fn a_volume_open_for_reading_only_has_nothing_to_tune() {
    let device = formatted(&MkfsOptions::default());
    let fs = open(&device, MountOptions { read_only: true, ..quiet() });
    for setting in ["label=x", "commit=1"] {
        let refused = fs.tune(&read_for_tune([setting]).unwrap()).unwrap_err();
        assert!(matches!(&refused, Error::Option(bad) if setting.starts_with(bad.option)), "{refused}");
    }
    assert_eq!(value(&fs, "commit"), "0");
}

/// What an opening reports of how the volume was made.
#[test]
fn options_tell_how_the_volume_was_made() {
    let made = MkfsOptions {
        block_size: 1024,
        ag_size: Some(16 << 20),
        region_size: 2 << 20,
        log_size: Some(4 << 20),
        data_checksums: true,
        label: "some".into(),
        ..MkfsOptions::default()
    };
    let fs = open(&formatted(&made), quiet());
    for (name, expected) in [
        ("profile", "myriad"),
        ("directory", "indexed"),
        ("block-size", "1K"),
        ("ag-size", "16M"),
        ("region-size", "2M"),
        ("log-size", "4M"),
        ("data-checksums", "on"),
        ("label", "some"),
        ("order", "log"),
        ("cachesize", "8M"),
        ("commit", "0"),
    ] {
        assert_eq!(value(&fs, name), expected, "{name}");
    }
}

/// The bound comes and goes while the volume is in use, and what the second traversal reads of the device tells.
#[test]
fn directories_have_the_memory_of_the_moment() {
    let choices = Profile::parse("ffs").unwrap().choices;
    let device = Arc::new(MemoryDevice::new(256 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions { choices, order: Order::None, ..MkfsOptions::default() })
        .unwrap();
    let fs = open(&device, quiet());
    let session = fs.session(Cred::root());
    // A block of entries each.
    let directories: Vec<String> = (0..200).map(|i| format!("directory {i}")).collect();
    for directory in &directories {
        session.mkdir(directory, 0o755).unwrap();
        (0..50)
            .for_each(|i| drop(session.open(&format!("{directory}/a name of thirty bytes or so {i}"), WRITE).unwrap()));
    }
    fs.sync().unwrap();
    let read_all = || {
        // Blocks that the device has read, those of inodes included.
        let counts = || (device.counters().read_bytes >> 12, counter(&fs, "dir_cache_hits"));
        let before = counts();
        for directory in &directories {
            assert_eq!(session.read_dir(directory).unwrap().count(), 50);
        }
        let after = counts();
        (after.0 - before.0, after.1 - before.1)
    };
    read_all();
    let used = fs.levels().dircache_used;
    assert!(used >= 200 << 12, "{used}");
    let (read, hits) = read_all();
    assert!(read == 0 && hits >= 200, "{read} read, {hits} hits");
    const LIMIT: u64 = 64 << 12;
    tune(&fs, &["dircache=bounded", "dircache_size=256K"]);
    assert_eq!(value(&fs, "dircache_size"), "256K");
    assert!(fs.levels().dircache_used <= LIMIT, "at once");
    for _ in 0..2 {
        let (read, _) = read_all();
        assert!(read >= 200 - 64, "{read} read");
        assert!(fs.levels().dircache_used <= LIMIT);
    }
    assert!(counter(&fs, "dir_cache_evictions") >= 200 - 64);
    tune(&fs, &["dircache=unified"]);
    read_all();
    assert_eq!(read_all().0, 0);
    fs.close().unwrap();
    assert_sound(&device);
}

/// A program that set an option again and again, more often than the interval of commits, put off the commit for ever.
#[test]
fn options_that_are_set_again_and_again_put_off_no_commit() {
    let device = formatted(&MkfsOptions::default());
    let fs = open(&device, MountOptions { background: true, ..quiet() });
    let count = || fs.counters().into_iter().find(|&(known, _)| known == "checkpoints").unwrap().1;
    let before = count();
    fs.session(Cred::root()).write("file", b"content").unwrap();
    let mut rounds = 0;
    while count() == before {
        rounds += 1;
        assert!(rounds < 200, "no commit");
        tune(&fs, &["commit=1"]);
        sleep(Duration::from_millis(50));
    }
}
