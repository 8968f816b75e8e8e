//! A host that has no room for the image: clean errors that name it, nothing lost, and all goes on once there is room.

use myriad_device::{BlockDevice, FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_engine::{
    AllocateMode, Cred, Errno, Error, Fs, MkfsOptions, MountOptions, OpenOptions, Order, RenameMode, Result, Session,
    SetAttr,
};
use myriad_format::superblock::Superblock;
use myriad_format::{FsBlock, Ino};
use myriad_sim::rng::{self, Rng};
use myriad_trials::setup::Devices;
use myriad_trials::verdict::check_silent;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const WRITE: OpenOptions = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };
const ENOSPC: i32 = Errno::NOSPC.raw_os_error();

type Host = FaultDevice<MemoryDevice>;

fn open(device: Arc<dyn BlockDevice>, order: Order) -> Fs {
    open_with(device, order, MountOptions::default().cache_size)
}

fn open_with(device: Arc<dyn BlockDevice>, order: Order, cache_size: u64) -> Fs {
    let options = MountOptions { background: false, order: Some(order), cache_size, ..MountOptions::default() };
    Fs::open_device(device, None, options).expect("open")
}

fn format(size: u64, options: &MkfsOptions) -> Arc<Host> {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(size)));
    Fs::format_device(device.clone(), None, options).expect("format");
    device
}

/// The device as a crash leaves it that loses nothing that was written.
fn crashed(device: &Host) -> Arc<MemoryDevice> {
    Arc::new(device.inner().clone_image())
}

fn is_host_full<T>(result: &Result<T>) -> bool {
    result.as_ref().is_err_and(|error| matches!(error, Error::HostFull(_)) && error.errno() == Errno::NOSPC)
}

/// What a volume should hold: files in the root directory.
#[derive(Clone, Default)]
struct Files {
    content: BTreeMap<String, Vec<u8>>,
    /// Of which a failed change may have left some part.
    unsure: BTreeSet<String>,
    /// Changed since the last sync.
    changed: BTreeSet<String>,
}

impl Files {
    fn step(&mut self, session: &Session, rng: &mut Rng) -> Result<()> {
        let name = format!("/file-{}", rng.below(24));
        let other = format!("/file-{}", rng.below(24));
        self.changed.extend([name.clone(), other.clone()]);
        let old = self.content.get(&name).cloned();
        let result = match (rng.below(8), old) {
            (0..4, old) => {
                let mut bytes = old.unwrap_or_default();
                let at = rng.below(bytes.len() as u64 + 1);
                let new: Vec<u8> = (0..1 + rng.below(30_000)).map(|_| rng.next_u64() as u8).collect();
                let result = session.open(&name, WRITE).and_then(|file| file.write_at(&new, at));
                bytes.resize(bytes.len().max(at as usize + new.len()), 0);
                bytes[at as usize..][..new.len()].copy_from_slice(&new);
                result.map(|written| {
                    assert_eq!(written, new.len());
                    self.content.insert(name.clone(), bytes);
                })
            }
            (4, Some(mut bytes)) => {
                let size = rng.below(40_000);
                let result = session.open(&name, WRITE).and_then(|file| file.truncate(size));
                bytes.resize(size as usize, 0);
                result.map(|()| drop(self.content.insert(name.clone(), bytes)))
            }
            (5, Some(bytes)) if name != other => session.rename(&name, &other, RenameMode::Replace).map(|()| {
                self.content.remove(&name);
                self.content.insert(other.clone(), bytes);
                if self.unsure.remove(&name) {
                    self.unsure.insert(other.clone());
                } else {
                    self.unsure.remove(&other);
                }
            }),
            (6, Some(_)) => session.unlink(&name).map(|()| {
                self.content.remove(&name);
                self.unsure.remove(&name);
            }),
            _ => Ok(()),
        };
        if result.is_err() {
            self.unsure.insert(name);
        }
        result
    }

    /// A volume holds these files; of those in `except`, it does not matter what is in them, or whether they are there.
    #[track_caller]
    fn assert_in(&self, session: &Session, except: &BTreeSet<String>, when: &str) {
        let names: BTreeSet<String> = session
            .read_dir("/")
            .and_then(|entries| {
                entries.map(|entry| Ok(format!("/{}", String::from_utf8_lossy(&entry?.name)))).collect()
            })
            .expect("list");
        let sure = |name: &&String| !except.contains(*name);
        let (found, wanted): (Vec<_>, Vec<_>) =
            (names.iter().filter(sure).collect(), self.content.keys().filter(sure).collect());
        assert_eq!(found, wanted, "{when}");
        for (name, content) in self.content.iter().filter(|(name, _)| sure(name)) {
            let file = session.open(name, OpenOptions::READ).expect("open");
            let mut bytes = vec![0; content.len() + 1];
            let length = file.read_at(&mut bytes, 0).expect("read");
            assert!(length == content.len() && bytes[..length] == content[..], "{when}: {name} differs");
        }
    }
}

#[derive(Clone, Copy)]
struct Trial {
    order: Order,
    data_checksums: bool,
    /// Cache and log are so small that checkpoints come in between, and blocks go home to make room.
    is_crowded: bool,
}

const LOGGED: Trial = Trial { order: Order::Log, data_checksums: false, is_crowded: false };

/// The host has room for the log, which is written in place, and for every block but one: a hole in the image, say. What keeps being changed in that block is
/// logged, and cannot go home; the log's tail cannot pass it. Each fsync answered that all was well until the log was full, and that shut the
/// volume down.
#[test]
fn a_block_for_which_there_is_no_room_is_told_of_before_the_log_is_full() {
    let options = MkfsOptions { log_size: Some(1 << 20), ..MkfsOptions::default() };
    let device = format(64 << 20, &options);
    let fs = open(device.clone(), Order::Log);
    let session = fs.session(Cred::root());
    session.create("busy", 0o644).unwrap();
    session.create("other", 0o644).unwrap();
    fs.sync().unwrap();
    let mut block = vec![0; 4096];
    device.read(0, &mut block).unwrap();
    let geometry = Superblock::decode(&block, FsBlock(0)).unwrap().geometry();
    let at = geometry.locate(Ino(session.stat("busy").unwrap().ino)).unwrap().0.0 << geometry.block_bits;
    device.fill(at..at + (1 << geometry.block_bits));
    let mut refused = 0;
    for i in 0..600 {
        // Each also leaves a change that the open epoch makes before the next checkpoint.
        session.set_attr("busy", SetAttr { mode: Some(0o600 + i % 64), ..SetAttr::default() }).unwrap();
        let synced = fs.sync();
        session.set_attr("busy", SetAttr { mode: Some(0o600 + (i + 1) % 64), ..SetAttr::default() }).unwrap();
        if let Err(error) = synced {
            assert!(matches!(error, Error::HostFull(_)), "{i}: {error}");
            refused += 1;
        }
        assert!(fs.shut_down_reason().is_none(), "{i}: {:?}", fs.shut_down_reason());
        if refused == 20 {
            break;
        }
    }
    assert_eq!(refused, 20, "the log goes round, and cannot");
    device.clear();
    fs.sync().unwrap();
    let mode = session.stat("busy").unwrap().mode;
    let after = open(crashed(&device), Order::Log);
    assert_eq!(after.session(Cred::root()).stat("busy").unwrap().mode, mode);
    drop(session);
    fs.close().unwrap();
    check_silent(&Devices::from(crashed(&device))).unwrap();
}

/// At each of a checkpoint's writes in turn the host has no room any more.
fn full_at_each_write(trial: Trial) {
    let first = rng::seed_or(1);
    let runs = if rng::is_long() { 20 } else { 2 };
    for seed in first..first + runs {
        println!("replay: MYRIAD_SEED={seed} cargo test -p myriad-engine --test host_full -- --nocapture");
        let mut nth = 1;
        while full_at_write(trial, seed, nth) {
            nth += 1 + nth / 8;
        }
        assert!(nth > 2, "a checkpoint has more writes than one");
    }
}

/// False: there were not so many writes.
fn full_at_write(trial: Trial, seed: u64, nth: u64) -> bool {
    let Trial { order, data_checksums, is_crowded } = trial;
    let mut rng = Rng::new(seed);
    let steps = if is_crowded { 300 } else { 30 };
    let log_size = is_crowded.then_some(256 << 10);
    let setup = MkfsOptions { data_checksums, log_size, seed: Some(seed), ..MkfsOptions::default() };
    let device = format(48 << 20, &setup);
    let fs = open_with(device.clone(), order, if is_crowded { 1 << 20 } else { 64 << 20 });
    let told = Arc::new(AtomicU64::new(0));
    fs.on_host_full({
        let told = Arc::clone(&told);
        // Tens: has room again; ones: has none.
        move |is_full| _ = told.fetch_add(if is_full { 1 } else { 10 }, Ordering::Relaxed)
    });
    let session = fs.session(Cred::root());
    let mut files = Files::default();
    for _ in 0..steps + 10 {
        files.step(&session, &mut rng).expect("there is room");
    }
    fs.sync().expect("there is room");
    files.changed.clear();
    let durable = files.clone();
    for _ in 0..30 {
        files.step(&session, &mut rng).expect("there is room");
    }
    let struck = device.struck();
    device.fail(FaultOp::Write, nth, FaultSpan::Forever, ENOSPC);
    let refused = fs.sync();
    if device.struck() == struck {
        refused.expect("nothing failed");
        return false;
    }
    if refused.is_ok() {
        // What failed was a block on its way home after the commit: it stays in the log.
        assert_eq!(order, Order::Log);
    } else {
        assert!(is_host_full(&refused), "{refused:?}");
    }
    for _ in 0..steps {
        if let Err(error) = files.step(&session, &mut rng) {
            assert_eq!(error.errno(), Errno::NOSPC, "{error}");
        }
    }
    files.assert_in(&session, &files.unsure, "on the full host");
    if refused.is_err() {
        assert_eq!(told.load(Ordering::Relaxed), 1, "told once");
        assert!(is_host_full(&fs.sync()), "it is still full");
        assert_eq!(told.load(Ordering::Relaxed), 1, "told once");
        if order == Order::Log {
            let image = crashed(&device);
            check_silent(&Devices { main: image.clone(), log: None }).expect("sound in between");
            let after = open(image, order);
            if !is_crowded {
                durable.assert_in(&after.session(Cred::root()), &files.changed, "after a crash on the full host");
            }
        }
    }
    assert_eq!(fs.shut_down_reason(), None);
    device.clear();
    fs.sync().expect("there is room again");
    assert_eq!(told.load(Ordering::Relaxed), if refused.is_err() { 11 } else { 0 });
    for name in &files.unsure.clone() {
        match session.unlink(name) {
            Ok(()) | Err(Error::Refused(Errno::NOENT)) => {}
            Err(error) => panic!("{name}: {error}"),
        }
        files.content.remove(name);
    }
    fs.sync().expect("there is room again");
    let synced = files.clone();
    if order == Order::Log {
        let after = open(crashed(&device), order);
        synced.assert_in(&after.session(Cred::root()), &BTreeSet::new(), "after a crash with room");
    }
    drop(session);
    fs.close().expect("close");
    let image = crashed(&device);
    check_silent(&Devices { main: image.clone(), log: None }).expect("sound at the end");
    files.assert_in(&open(image, order).session(Cred::root()), &BTreeSet::new(), "after closing");
    true
}

#[test]
fn a_checkpoint_goes_on_where_the_host_was_full() {
    full_at_each_write(LOGGED);
}

#[test]
fn so_it_does_with_checksums_of_data() {
    full_at_each_write(Trial { data_checksums: true, ..LOGGED });
}

#[test]
fn so_it_does_without_a_log() {
    full_at_each_write(Trial { order: Order::None, ..LOGGED });
}

#[test]
fn so_it_does_in_a_small_cache() {
    full_at_each_write(Trial { is_crowded: true, ..LOGGED });
}

#[test]
fn closing_can_be_tried_again() {
    for order in [Order::Log, Order::None] {
        let device = format(16 << 20, &MkfsOptions::default());
        let fs = open(device.clone(), order);
        let session = fs.session(Cred::root());
        session.mkdir("/before", 0o755).unwrap();
        device.fail(FaultOp::Write, 1, FaultSpan::Forever, ENOSPC);
        assert!(is_host_full(&fs.clone().close()));
        session.mkdir("/meanwhile", 0o755).expect("it goes on in memory");
        assert!(is_host_full(&fs.clone().close()));
        device.clear();
        drop(session);
        fs.close().expect("there is room");
        let fs = open(crashed(&device), order);
        assert!(!fs.info().recovered, "closed cleanly");
        for name in ["/before", "/meanwhile"] {
            fs.session(Cred::root()).stat(name).unwrap();
        }
    }
}

/// A truncation that frees more than one transaction can met the full host in the middle and shut the volume down.
#[test]
fn a_truncation_in_several_parts_is_finished_later() {
    const PIECES: u64 = 6000;
    const BLOCK: u64 = 512;
    for reopens in [false, true] {
        let options = MkfsOptions { block_size: BLOCK as u32, log_size: Some(256 << 10), ..MkfsOptions::default() };
        let device = format(64 << 20, &options);
        let fs = open(device.clone(), Order::Log);
        let session = fs.session(Cred::root());
        let mut file = session.open("/file", WRITE).unwrap();
        for i in 0..PIECES {
            file.write_at(&[7; BLOCK as usize], i * 2 * BLOCK).unwrap();
        }
        fs.sync().unwrap();
        let free = fs.statfs().unwrap().free_blocks;
        device.fail(FaultOp::Write, 1, FaultSpan::Forever, ENOSPC);
        file.truncate(10 * BLOCK).expect("it has its size at once");
        assert_eq!((file.stat().unwrap().size, fs.shut_down_reason()), (10 * BLOCK, None));
        assert!(fs.statfs().unwrap().free_blocks < free + PIECES - 100, "it had no room to free all of it");
        if reopens {
            drop(file);
            file = session.open("/file", WRITE).unwrap();
        }
        device.clear();
        file.truncate(PIECES * 2 * BLOCK).unwrap();
        assert!(fs.statfs().unwrap().free_blocks >= free + PIECES - 100, "all of it is free");
        let mut bytes = vec![1; (PIECES * 2 * BLOCK) as usize];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
        let expected = |at: usize| if at < 10 * BLOCK as usize && at / BLOCK as usize % 2 == 0 { 7 } else { 0 };
        assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == expected(at)), "what was cut is seen again");
        drop((file, session));
        fs.close().unwrap();
        check_silent(&Devices { main: crashed(&device), log: None }).unwrap();
    }
}

/// A write had taken its bytes, and then waited for a checkpoint to keep memory within bounds, for which the host had no room. It
/// answered ENOSPC for what was in the file: whoever appended the record again had it twice.
#[test]
fn what_a_write_refuses_on_a_full_host_is_not_in_the_file() {
    const RECORD: usize = 5000;
    for data_checksums in [false, true] {
        let device = format(64 << 20, &MkfsOptions { data_checksums, ..MkfsOptions::default() });
        let fs = open_with(device.clone(), Order::Log, 4 << 20);
        let session = fs.session(Cred::root());
        let file = session.open("log", OpenOptions { append: true, ..WRITE }).unwrap();
        device.fail(FaultOp::Write, 1, FaultSpan::Forever, ENOSPC);
        let mut taken = Vec::new();
        let mut append = |is_full: bool| {
            for _ in 0..4000 {
                let record = [taken.len() as u8; RECORD];
                match file.write_at(&record, 0) {
                    Ok(written) => taken.extend_from_slice(&record[..written]),
                    Err(error) => {
                        assert!(is_full && matches!(error, Error::HostFull(_)), "{error}");
                        break;
                    }
                }
                if !is_full && taken.len() > 12 << 20 {
                    break;
                }
            }
            assert_eq!(file.stat().unwrap().size, taken.len() as u64);
            assert_eq!(fs.shut_down_reason(), None);
        };
        // As long as it is full, it stays refused.
        append(true);
        append(true);
        append(true);
        device.clear();
        append(false);
        fs.sync().unwrap();
        assert!(session.read("log").unwrap() == taken);
        assert!(taken.len() > 12 << 20);
        drop((file, session));
        fs.close().unwrap();
        check_silent(&Devices { main: crashed(&device), log: None }).unwrap();
    }
}

/// A flush that fails for lack of room has lost what the host had taken: that is no full host any more, but a failed device.
#[test]
fn a_flush_without_room_is_the_end() {
    let device = format(16 << 20, &MkfsOptions::default());
    let fs = open(device.clone(), Order::Log);
    fs.session(Cred::root()).mkdir("/a", 0o755).unwrap();
    device.fail(FaultOp::Flush, 1, FaultSpan::Once, ENOSPC);
    assert_eq!(fs.sync().unwrap_err().errno(), Errno::IO);
    assert!(fs.shut_down_reason().is_some());
}

/// All that statfs says is available can be preallocated for one file (xfstests' generic/103), and written.
#[test]
fn what_statfs_says_is_available_can_be_had() {
    for block_size in [512, 4096, 65536] {
        for (is_new, writes) in [(true, false), (false, false), (true, true)] {
            let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(40 << 20));
            Fs::format_device(device.clone(), None, &MkfsOptions { block_size, ..MkfsOptions::default() }).unwrap();
            let fs = open(device.clone(), Order::Log);
            let session = fs.session(Cred::root());
            if !is_new {
                for i in 0..300 {
                    session.open(&format!("/{i}"), WRITE).unwrap().write_at(&vec![1; 20_000], 0).unwrap();
                }
                fs.sync().unwrap();
                for i in (0..300).step_by(3) {
                    session.unlink(&format!("/{i}")).unwrap();
                }
            }
            let file = session.open("/all", WRITE).unwrap();
            let statfs = fs.statfs().unwrap();
            let bytes = statfs.available_blocks * u64::from(statfs.block_size);
            assert!(statfs.free_blocks - statfs.available_blocks < statfs.free_blocks / 100 + 200, "{statfs:?}");
            if writes {
                let mut done = 0;
                while done < bytes {
                    let part = vec![3; (bytes - done).min(1 << 20) as usize];
                    let written = file.write_at(&part, done);
                    done += written.unwrap_or_else(|error| panic!("{block_size} at {done} of {bytes}: {error}")) as u64;
                }
            } else {
                file.allocate(AllocateMode::Extend, 0, bytes).unwrap_or_else(|error| panic!("{block_size}: {error}"));
            }
            fs.sync().unwrap();
            drop((file, session));
            fs.close().unwrap();
            check_silent(&Devices { main: device, log: None }).unwrap();
        }
    }
}

#[test]
fn a_preallocated_image_has_all_its_room() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let options = MkfsOptions { preallocate: true, ..MkfsOptions::default() };
    for size in [Some(24 << 20), None] {
        Fs::format(&image, size, &options).unwrap();
        let found = image.metadata().unwrap();
        assert!(found.blocks() * 512 >= 24 << 20, "{} blocks of 512 bytes", found.blocks());
        // Without it, a new file takes only what it holds.
        if size.is_some() {
            Fs::format(&image, size, &MkfsOptions::default()).unwrap();
            assert!(image.metadata().unwrap().blocks() * 512 < 12 << 20);
        }
    }
}

/// Opens what a crash leaves, until a directory is there; whether that came within a minute.
fn comes_home(device: &Host, dir: &str) -> bool {
    (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        let fs = open(crashed(device), Order::Log);
        fs.session(Cred::root()).exists(dir).expect("look")
    })
}

/// A checkpoint of the background thread met a full host. When there was room again and nobody changed anything, the thread, which asked for
/// new changes only, left in memory what it had.
#[test]
fn the_background_goes_on_once_there_is_room() {
    let device = format(48 << 20, &MkfsOptions::default());
    let options = MountOptions { commit_interval_ms: 5, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).expect("open");
    let (tell, told) = std::sync::mpsc::channel();
    fs.on_host_full(move |is_full| _ = tell.send(is_full));
    device.fail(FaultOp::Write, 1, FaultSpan::Forever, ENOSPC);
    fs.session(Cred::root()).mkdir("d", 0o755).expect("it is in memory");
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(true));
    device.clear();
    assert!(comes_home(&device, "d"));
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(false));
}

/// Work that fills the log in less than the commit interval woke the background thread before that had passed, each time. Each time it committed, and
/// began to wait anew; what other files had in memory stayed there.
#[test]
fn file_data_goes_home_beside_steady_work() {
    let device = format(48 << 20, &MkfsOptions { log_size: Some(256 << 10), ..MkfsOptions::default() });
    let options = MountOptions { commit_interval_ms: 200, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).expect("open");
    let session = fs.session(Cred::root());
    (0..2000).for_each(|i| session.create(&format!("n{i}"), 0o644).map(drop).expect("create"));
    fs.sync().expect("sync");
    let content = vec![7; 100 << 10];
    session.write("f", &content).expect("write");
    let stop = AtomicBool::new(false);
    let is_home = std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in (0_u64..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                let mode = if i / 2000 % 2 == 0 { 0o600 } else { 0o644 };
                let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
                session.set_attr(&format!("n{}", i % 2000), change).expect("chmod");
            }
        });
        let is_home = (0..300).any(|_| {
            std::thread::sleep(Duration::from_millis(100));
            let fs = open(crashed(&device), Order::Log);
            fs.session(Cred::root()).read("f").is_ok_and(|found| found == content)
        });
        stop.store(true, Ordering::Relaxed);
        is_home
    });
    assert!(is_home);
}
