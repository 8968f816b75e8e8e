//! The ring transport: what the classic one does, the same.

mod common;

use common::{Mounted, mounted_with};
use myriad_device::{Access, FaultDevice, FaultOp, FaultSpan, FileDevice};
use myriad_engine::{Fs, MkfsOptions, MountOptions};
use myriad_fuse::{Options, TransportChoice};
use myriad_sim::host::{Traits, check};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The kernel's switch, as one test needs it; put back afterwards.
struct Switched {
    before: String,
    _alone: MutexGuard<'static, ()>,
}

impl Switched {
    fn to(value: &str) -> Result<Self, String> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let error = |error: std::io::Error| format!("{SWITCH}: {error}");
        let before = fs::read_to_string(SWITCH).map_err(error)?;
        fs::write(SWITCH, value).map_err(error)?;
        Ok(Self { before, _alone: alone })
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, self.before.trim());
    }
}

/// Returns from the test, saying why, where the switch cannot be set.
macro_rules! switch {
    ($value:literal) => {
        match Switched::to($value) {
            Ok(switched) => switched,
            Err(reason) => {
                println!("skipped: {reason}");
                return;
            }
        }
    };
}

/// How many files this process may open, lowered until this goes; other tests wait for the switch meanwhile.
struct FewFiles(Rlimit);

impl FewFiles {
    /// Room for so many more.
    fn more(count: u64) -> Self {
        let open: BTreeSet<u64> = fs::read_dir("/proc/self/fd")
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
            .collect();
        // The descriptor of that listing is closed again.
        let limit = (0..).filter(|fd| !open.contains(fd)).nth(count as usize - 1).unwrap();
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(limit), ..before }).unwrap();
        Self(before)
    }
}

impl Drop for FewFiles {
    fn drop(&mut self) {
        let _ = setrlimit(Resource::Nofile, self.0);
    }
}

fn ring() -> Options {
    Options { transport: TransportChoice::Ring, acl: Some(true), ..Options::default() }
}

#[test]
fn chosen_where_it_is_switched_on_and_refused_where_not() {
    let on = switch!("Y");
    skip_without_mounts!();
    let mount = mounted_with(Options::default());
    assert_eq!(mount.handle().stats().transport, "ring");
    mount.unmount();
    let mount = mounted_with(Options { transport: TransportChoice::Classic, ..Options::default() });
    assert_eq!(mount.handle().stats().transport, "classic");
    mount.unmount();
    drop(on);
    let _off = switch!("N");
    let mount = mounted_with(Options::default());
    assert_eq!(mount.handle().stats().transport, "classic");
    let folder = mount.unmount();
    let fs = Fs::open(&folder.path().join("image"), MountOptions::default()).unwrap();
    let error = myriad_fuse::mount(fs, &folder.path().join("mount"), ring()).err().unwrap();
    assert!(error.to_string().contains(SWITCH), "{error}");
}

/// The kernel was promised a ring that could not be built, and all who asked anything of the mount waited for ever.
#[test]
fn a_ring_that_lacks_a_queue_is_none() {
    let _on = switch!("Y");
    skip_without_mounts!();
    const FILES: u64 = 3;
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    if possible.trim() == "0" {
        println!("skipped: one processor's rings need no more files than mounting does");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Fs::format(&image, Some(64 << 20), &MkfsOptions::default()).unwrap();
    fs::create_dir(folder.path().join("mount")).unwrap();
    let open = || Fs::open(&image, MountOptions::default()).unwrap();
    let fs = open();
    let few = FewFiles::more(FILES);
    let error = myriad_fuse::mount(fs, &folder.path().join("mount"), ring()).err().unwrap();
    drop(few);
    assert!(error.to_string().contains("Too many open files"), "{error}");
    let fs = open();
    let few = FewFiles::more(FILES);
    let mount = Mounted::serve(folder, fs, Options::default());
    drop(few);
    assert_eq!(mount.handle().stats().transport, "classic");
    fs::write(mount.path("file"), b"answered").unwrap();
    mount.unmount();
}

#[test]
fn content_of_every_size() {
    let _on = switch!("Y");
    skip_without_mounts!();
    let mount = mounted_with(ring());
    let bytes: Vec<u8> = (0..3 << 20).map(|i: u32| (i / 1000) as u8).collect();
    for size in [0, 1, 4095, 4096, 4097, 65536, 1 << 20, (1 << 20) + 1, 3 << 20] {
        let path = mount.path(&format!("file{size}"));
        fs::write(&path, &bytes[..size]).unwrap();
        assert!(fs::read(&path).unwrap() == bytes[..size], "{size}");
    }
    // Past the page cache, both ways.
    fs::write("/proc/sys/vm/drop_caches", b"3").unwrap();
    for size in [1, 65536, 3 << 20] {
        assert!(fs::read(mount.path(&format!("file{size}"))).unwrap() == bytes[..size], "{size}");
    }
    // Answers to requests that bring something along: long names, long values.
    let name = "n".repeat(255);
    fs::write(mount.path(&name), b"x").unwrap();
    let value = vec![b'v'; 3000];
    rustix::fs::setxattr(mount.path(&name), "user.long", &value, rustix::fs::XattrFlags::empty()).unwrap();
    let mut back = vec![0; 4000];
    let len = rustix::fs::getxattr(mount.path(&name), "user.long", &mut back[..]).unwrap();
    assert!(back[..len] == value);
    assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 10);
    // FORGET comes by the other way, in its own time.
    for size in [0, 4096, 65536] {
        fs::remove_file(mount.path(&format!("file{size}"))).unwrap();
    }
    let nodes = || mount.handle().stats().nodes;
    let before = nodes();
    fs::write("/proc/sys/vm/drop_caches", b"2").unwrap();
    let forgotten = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        nodes() < 3
    });
    assert!(forgotten, "{before} {}", nodes());
    mount.unmount();
}

#[test]
fn an_open_file_outlives_its_name() {
    let _on = switch!("Y");
    skip_without_mounts!();
    let mount = mounted_with(ring());
    let file = File::create_new(mount.path("file")).unwrap();
    file.write_all_at(b"still here", 0).unwrap();
    fs::remove_file(mount.path("file")).unwrap();
    file.write_all_at(&[1; 100_000], 10).unwrap();
    file.sync_all().unwrap();
    assert_eq!((file.metadata().unwrap().size(), file.metadata().unwrap().nlink()), (100_010, 0));
    drop(file);
    mount.unmount();
}

#[test]
fn the_model_agrees() {
    let _on = switch!("Y");
    skip_without_mounts!();
    let mount = mounted_with(ring());
    let traits =
        Traits { fine_times: false, zeroes_ranges: true, kernel_knows_flags: false, size_max: i64::MAX as u64 };
    check("myriad-fuse", "ring::the_model_agrees", &mount.root(), traits, 3, 1000);
    mount.unmount();
}

#[test]
fn many_threads_at_once() {
    let _on = switch!("Y");
    skip_without_mounts!();
    let mount = Mounted::new(&MkfsOptions::default(), MountOptions::default(), ring());
    std::thread::scope(|scope| {
        for id in 0..6 {
            let root = mount.path(&format!("dir{}", id % 2));
            scope.spawn(move || {
                let _ = fs::create_dir(&root);
                for i in 0..200 {
                    let path = root.join(format!("file{id}-{i}"));
                    fs::write(&path, format!("{id} {i}")).unwrap();
                    if i % 20 == 0 {
                        // A request that waits for the device holds nobody else up.
                        File::open(&path).unwrap().sync_all().unwrap();
                    }
                    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{id} {i}"));
                }
            });
        }
    });
    mount.unmount();
}

/// An answer goes to the kernel with the question for the next request, and only after it may the kernel be told that a name is in doubt: here
/// of directories that were made, though the host had no room to make them durable.
#[test]
fn names_in_doubt_are_told_after_the_answer() {
    let _on = switch!("Y");
    skip_without_mounts!();
    let folder = tempfile::tempdir().unwrap();
    Fs::format(&folder.path().join("image"), Some(64 << 20), &MkfsOptions::default()).unwrap();
    fs::create_dir(folder.path().join("mount")).unwrap();
    let device = FileDevice::open(folder.path().join("image"), Access::ReadWrite).unwrap();
    let device = Arc::new(FaultDevice::new(device));
    let open = MountOptions { commit_interval_ms: 3_600_000, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, open).unwrap();
    let mount = Mounted::serve(folder, fs, Options { kernel_options: vec!["dirsync".into()], ..ring() });
    assert_eq!(mount.handle().stats().transport, "ring");
    device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
    for number in 0..20 {
        let path = mount.path(&format!("dir{number}"));
        let made = fs::create_dir(&path);
        assert_eq!(made.err().and_then(|error| Errno::from_io_error(&error)), Some(Errno::NOSPC));
        // Nobody asks anything meanwhile but this.
        let end = Instant::now() + Duration::from_secs(60);
        while fs::symlink_metadata(&path).is_err() {
            assert!(Instant::now() < end, "the kernel takes {number} for missing");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    device.clear();
    mount.unmount();
}
