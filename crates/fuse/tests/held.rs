//! What the kernel holds and the volume does not have yet: pages that programs have stored to through a mapping, or with
//! `writeback` have written. Nobody may be told of the volume what the kernel knows better.

mod common;

use common::{Mounted, mounted_with};
use io_uring::{IoUring, opcode, types};
use myriad_engine::{Fs, MkfsOptions, MountOptions};
use myriad_fuse::{Options, TransportChoice};
use rustix::fs::{self as unix, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A program that has a file mapped and has stored something in it, until it is told to end.
struct Storing(Child);

impl Storing {
    /// In Python, for there is no `unsafe` here: `m` is the mapping, `f` the file's descriptor. `None`, having said why, without it.
    fn begin(path: &Path, store: &str) -> Option<Self> {
        let script = format!(
            "import mmap,os,sys\nf=os.open(sys.argv[1],os.O_RDWR)\nm=mmap.mmap(f,0)\n{store}\n\
             print('stored',flush=True)\nsys.stdin.readline()\n"
        );
        let mut python = Command::new("python3");
        let child = python.arg("-c").arg(script).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                println!("skipped: python3: {error}");
                return None;
            }
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "stored\n");
        Some(Self(child))
    }

    fn end(mut self) {
        let mut input = self.0.stdin.take().unwrap();
        input.write_all(b"\n").unwrap();
        drop(input);
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Storing {
    fn drop(&mut self) {
        // Nothing, if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file's content as `cp` and `tar` take it: data where the kernel says that it is, and zeros elsewhere.
fn sparse_copy(path: &Path) -> Vec<u8> {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut copy = vec![0; size as usize];
    let mut at = 0;
    while at < size {
        at = match unix::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(error) => panic!("{error}"),
        };
        let hole = unix::seek(&file, SeekFrom::Hole(at)).unwrap();
        file.read_exact_at(&mut copy[at as usize..hole as usize], at).unwrap();
        at = hole;
    }
    copy
}

/// Where the kernel says that data is.
fn data_ranges(path: &Path) -> Vec<(u64, u64)> {
    let file = File::open(path).unwrap();
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Ok(data) = unix::seek(&file, SeekFrom::Data(at)) {
        at = unix::seek(&file, SeekFrom::Hole(data)).unwrap();
        ranges.push((data, at));
    }
    ranges
}

/// The kernel sent the pages that a program had stored to in requests of up to 256. Of a request for which the volume had room in part, the
/// server said how much it had written. The kernel does not look at that: it took all pages for written, msync(2) returned 0, and the
/// file read as zeros where there had been no room.
#[test]
fn what_is_stored_and_finds_no_room_is_an_error_of_msync() {
    skip_without_mounts!();
    for writeback in [false, true] {
        let mount = mounted_with(Options { writeback, ..Options::default() });
        let path = mount.path("mapped");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        // Room for some of the 256 pages.
        let left = unix::statvfs(mount.root()).unwrap();
        let filler = File::create(mount.path("filler")).unwrap();
        unix::fallocate(&filler, unix::FallocateFlags::empty(), 0, (left.f_bavail - 100) * left.f_bsize).unwrap();
        let store = format!(
            "for at in range(0, 1 << 20, 4096): m[at:at+4]=b'data'\n\
             try: m.flush(); error=0\n\
             except OSError as refused: error=refused.errno\n\
             assert error == {}, error",
            Errno::NOSPC.raw_os_error()
        );
        let Some(storing) = Storing::begin(&path, &store) else { return };
        storing.end();
        drop(filler);
        mount.unmount();
    }
}

/// The kernel does not write back before it asks where data is: of a file that a process had mapped and stored to, `cp`
/// and `tar -S` copied holes, and said that all was well.
#[test]
fn what_is_stored_in_a_hole_is_data() {
    skip_without_mounts!();
    const SIZE: u64 = 1 << 20;
    for (no_open, writeback, direct_io) in [
        (true, false, false),
        (true, true, false),
        (false, false, false),
        (false, true, false),
        (true, false, true),
        (false, true, true),
    ] {
        let case = format!("no_open {no_open}, writeback {writeback}, direct_io {direct_io}");
        let mount = mounted_with(Options { no_open, writeback, direct_io, ..Options::default() });
        let path = mount.path("file");
        File::create(&path).unwrap().set_len(SIZE).unwrap();
        let Some(storing) = Storing::begin(&path, "m[300000:300003]=b'far'\nm[0:4]=b'near'") else { return };
        let mut expected = vec![0; SIZE as usize];
        expected[300_000..300_003].copy_from_slice(b"far");
        expected[..4].copy_from_slice(b"near");
        assert!(sparse_copy(&path) == expected, "{case}");
        let copy = mount.path("copy");
        assert!(Command::new("cp").args([&path, &copy]).status().unwrap().success());
        assert!(fs::read(&copy).unwrap() == expected, "{case}: cp");
        storing.end();
        assert!(sparse_copy(&path) == expected, "{case}: afterwards");
        // What is written past the end the kernel may hold, too.
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"end", 2 * SIZE - 3).unwrap();
        expected.resize(2 * SIZE as usize, 0);
        expected[2 * SIZE as usize - 3..].copy_from_slice(b"end");
        assert!(sparse_copy(&path) == expected, "{case}: written");
        drop(file);
        mount.unmount();
    }
}

/// Holes are known where no program can have stored anything in them: in a file that nobody has open for writing, on a
/// mount whose kernel asks at each opening, and on one for reading only.
#[test]
fn holes_are_told_of_where_nothing_can_be_stored() {
    skip_without_mounts!();
    const FAR: u64 = 1 << 30;
    let mount = mounted_with(Options { no_open: false, ..Options::default() });
    let path = mount.path("file");
    let file = File::create(&path).unwrap();
    file.write_all_at(b"far", FAR).unwrap();
    assert_eq!(data_ranges(&path), [(0, FAR + 3)], "open for writing");
    assert_eq!(unix::seek(&file, SeekFrom::Data(FAR + 3)), Err(Errno::NXIO));
    assert_eq!(unix::seek(&file, SeekFrom::Hole(FAR + 3)), Err(Errno::NXIO));
    drop(file);
    // The kernel tells of a closed file when it gets round to it.
    let end = Instant::now() + Duration::from_secs(60);
    while data_ranges(&path) != [(FAR, FAR + 3)] {
        assert!(Instant::now() < end, "{:?}", data_ranges(&path));
        std::thread::sleep(Duration::from_millis(1));
    }
    let mount = mount.remount(Options { read_only: true, ..Options::default() });
    assert_eq!(data_ranges(&mount.path("file")), [(FAR, FAR + 3)]);
    let mount = mount.remount(Options::default());
    assert_eq!(data_ranges(&mount.path("file")), [(0, FAR + 3)]);
    mount.unmount();
}

/// Bytes as direct I/O wants them in memory.
#[derive(Clone)]
#[repr(align(4096))]
struct Page([u8; 4096]);

/// Writes whole pages from the beginning of a file, all at once, and calls `done` with the number of each when it is written.
fn write_at_once(ring: &mut IoUring, file: &File, pages: &[Page], mut done: impl FnMut(usize)) {
    for (i, page) in pages.iter().enumerate() {
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), page.0.as_ptr(), 4096).offset(i as u64 * 4096);
        // SAFETY: `pages` and `file` stay until all completions have come, below.
        unsafe { ring.submission().push(&write.build().user_data(i as u64)) }.unwrap();
    }
    let mut left = pages.len();
    while left > 0 {
        ring.submit_and_wait(1).unwrap();
        let completions: Vec<_> = ring.completion().map(|one| (one.user_data(), one.result())).collect();
        for (i, result) in completions {
            assert_eq!(result, 4096);
            left -= 1;
            done(i as usize);
        }
    }
}

/// A reader that goes through the kernel's cache may bring an old page there while it is written directly. The kernel drops it
/// after a direct write, but did not after one that it answered asynchronously: who read a page once it was written found what
/// had been there before (xfstests generic/451).
#[test]
fn what_was_written_directly_is_what_is_read() {
    skip_without_mounts!();
    const PAGES: usize = 32;
    let mut ring = match IoUring::new(64) {
        Ok(ring) => ring,
        Err(error) => return println!("skipped: io_uring: {error}"),
    };
    for (no_open, writeback) in [(true, false), (false, false), (true, true)] {
        let mount = mounted_with(Options { no_open, writeback, ..Options::default() });
        let path = mount.path("file");
        fs::write(&path, [0; PAGES * 4096]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        let direct: File =
            unix::open(&path, OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).unwrap().into();
        let cached = File::open(&path).unwrap();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut buf = vec![0; PAGES * 4096];
                    while !ended.load(Ordering::Relaxed) {
                        cached.read_exact_at(&mut buf, 0).unwrap();
                    }
                });
            }
            let mut stale = 0;
            for round in 1..=200 {
                let pages = vec![Page([round; 4096]); PAGES];
                write_at_once(&mut ring, &direct, &pages, |i| {
                    let mut buf = [0; 4096];
                    cached.read_exact_at(&mut buf, i as u64 * 4096).unwrap();
                    stale += usize::from(buf != pages[i].0);
                });
            }
            ended.store(true, Ordering::Relaxed);
            assert_eq!(stale, 0, "no_open {no_open}, writeback {writeback}: pages that were old once written");
        });
        drop((direct, cached));
        mount.unmount();
    }
}

/// Set in a child process: where it mounts what, and with how many threads.
const CHILD_IMAGE: &str = "MYRIAD_TEST_HELD_IMAGE";
const CHILD_MOUNT: &str = "MYRIAD_TEST_HELD_MOUNT";
const CHILD_THREADS: &str = "MYRIAD_TEST_HELD_THREADS";

/// Not a test of its own: in a child process, it serves the mount that its parent kills.
#[test]
fn child_serves() {
    let var = std::env::var_os;
    let (Some(image), Some(point), Some(threads)) = (var(CHILD_IMAGE), var(CHILD_MOUNT), var(CHILD_THREADS)) else {
        return;
    };
    let threads = threads.to_str().unwrap().parse().unwrap();
    let fs = Fs::open(Path::new(&image), MountOptions::default()).unwrap();
    let options = Options { writeback: true, threads, ..Options::default() };
    let mount = myriad_fuse::mount(fs, Path::new(&point), options).unwrap();
    println!("mounted");
    mount.serve().unwrap();
}

/// How a new file comes to another one's name.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Replaces,
    Exchanges,
    IsExchanged,
}

/// With `writeback` the kernel had what was written to a new file until it was closed. Renamed over another one before that, it
/// was empty after a crash, and what it had replaced was gone. So it was when the other one was exchanged with it. Renames wait for what
/// the kernel sends: as many as there are threads that serve, and more.
#[test]
fn with_writeback_what_replaces_a_file_is_whole() {
    skip_without_mounts!();
    const WAYS: [Way; 3] = [Way::Replaces, Way::Exchanges, Way::IsExchanged];
    const FILES: usize = 6;
    let content = |i: usize, byte: u8| vec![byte + i as u8; 300_000];
    let rename = |way, new: &Path, old: &Path| match way {
        Way::Replaces => fs::rename(new, old).unwrap(),
        Way::Exchanges => unix::renameat_with(unix::CWD, new, unix::CWD, old, unix::RenameFlags::EXCHANGE).unwrap(),
        Way::IsExchanged => unix::renameat_with(unix::CWD, old, unix::CWD, new, unix::RenameFlags::EXCHANGE).unwrap(),
    };
    for (threads, way) in ["1", "2"].into_iter().flat_map(|threads| WAYS.map(|way| (threads, way))) {
        let folder = tempfile::tempdir().unwrap();
        let (image, point) = (folder.path().join("image"), folder.path().join("mount"));
        Fs::format(&image, Some(256 << 20), &MkfsOptions::default()).unwrap();
        fs::create_dir(&point).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_serves", "--exact", "--nocapture"])
            .envs([
                (CHILD_IMAGE, image.as_os_str()),
                (CHILD_MOUNT, point.as_os_str()),
                (CHILD_THREADS, threads.as_ref()),
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("mounted")));
        // In directories of their own: renames in one come one after the other.
        let paths = |i: usize| (point.join(format!("{i}/new")), point.join(format!("{i}/file")));
        for i in 0..FILES {
            fs::create_dir(point.join(i.to_string())).unwrap();
            fs::write(paths(i).1, content(i, b'a')).unwrap();
        }
        File::open(&point).unwrap().sync_all().unwrap();
        let open: Vec<File> = std::thread::scope(|scope| {
            let write = |i| {
                let (new, old) = paths(i);
                let mut file = File::create(&new).unwrap();
                file.write_all(&content(i, b'k')).unwrap();
                rename(way, &new, &old);
                file
            };
            let threads: Vec<_> = (0..FILES).map(|i| scope.spawn(move || write(i))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        File::open(&point).unwrap().sync_all().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        drop(open);
        let mount = Mounted::again(folder, MountOptions::default(), Options::default());
        for i in 0..FILES {
            let is_whole = |name, byte| {
                let found = fs::read(mount.path(&format!("{i}/{name}"))).unwrap();
                let (len, first) = (found.len(), found.first());
                assert!(found == content(i, byte), "{threads} threads, {way:?}: {name} has {len} bytes, {first:?}");
            };
            is_whole("file", b'k');
            if way != Way::Replaces {
                is_whole("new", b'a');
            }
        }
        mount.unmount();
    }
}

/// The two do not go together, and that is said before anything is mounted.
#[test]
fn writeback_takes_the_classic_transport() {
    skip_without_mounts!();
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Fs::format(&image, Some(64 << 20), &MkfsOptions::default()).unwrap();
    let fs = Fs::open(&image, MountOptions::default()).unwrap();
    let options = Options { writeback: true, transport: TransportChoice::Ring, ..Options::default() };
    let error = myriad_fuse::mount(fs, folder.path(), options).err().unwrap().to_string();
    assert!(error.contains("writeback") && error.contains("leave out transport=ring"), "{error}");
}

/// FS_IOC_SHUTDOWN.
fn shut_down(path: &Path, flags: u32) -> Result<(), Errno> {
    const SHUTDOWN: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(b'X', 125);
    let file = File::open(path).unwrap();
    // SAFETY: it reads one u32 and writes at most one (ext4, XFS), in a copy of `flags`.
    unsafe { rustix::ioctl::ioctl(&file, rustix::ioctl::Updater::<SHUTDOWN, u32>::new(&mut { flags })) }
}

/// The background thread commits nothing by itself while a test runs.
fn patient() -> MountOptions {
    MountOptions { commit_interval_ms: 3_600_000, ..MountOptions::default() }
}

/// The shutdown ioctl made nothing durable, whatever its caller wanted (xfstests generic/474, 635).
#[test]
fn the_shutdown_ioctl_makes_durable_what_it_is_told_to() {
    skip_without_mounts!();
    for (flags, has_name, has_content) in [(0, true, true), (1, true, false), (2, false, false)] {
        let mount = Mounted::new(&MkfsOptions::default(), patient(), Options::default());
        fs::write(mount.path("new"), [7; 100_000]).unwrap();
        assert_eq!(shut_down(&mount.root(), 3), Err(Errno::INVAL), "of a kind that is not known");
        fs::create_dir(mount.path("goes on")).unwrap();
        shut_down(&mount.root(), flags).unwrap();
        assert!(fs::write(mount.path("after"), b"").is_err(), "{flags}");
        let (folder, _) = mount.end();
        let mount = Mounted::again(folder, MountOptions::default(), Options::default());
        assert_eq!(mount.path("new").exists(), has_name, "{flags}");
        if has_content {
            assert!(fs::read(mount.path("new")).unwrap() == [7; 100_000], "{flags}");
        }
        mount.unmount();
    }
}

/// Who remounts otherwise than by our helper had nothing made durable by that; a shutdown, or a crash, lost what a volume for
/// reading only had shown (xfstests generic/599).
#[test]
fn what_a_mount_has_when_it_becomes_read_only_is_durable() {
    skip_without_mounts!();
    for told in [false, true] {
        let mount = Mounted::new(&MkfsOptions::default(), patient(), Options::default());
        fs::write(mount.path("new"), [7; 100_000]).unwrap();
        let syncs = |mount: &Mounted| {
            mount.handle().fs().counters().into_iter().find(|(name, _)| *name == "syncs").map(|(_, count)| count)
        };
        let before = syncs(&mount);
        let end = Instant::now() + Duration::from_secs(60);
        while let Err(error) = mount_remount(mount.root(), MountFlags::RDONLY, "") {
            // A program that another test is just starting may have inherited the file.
            assert!(error == Errno::BUSY && Instant::now() < end, "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
        if told {
            // Nobody but the kernel has told the server.
            let end = Instant::now() + Duration::from_secs(60);
            while syncs(&mount) == before {
                assert!(Instant::now() < end, "nothing was made durable");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        shut_down(&mount.root(), 2).unwrap();
        let (folder, _) = mount.end();
        let mount = Mounted::again(folder, MountOptions::default(), Options::default());
        assert!(fs::read(mount.path("new")).unwrap() == [7; 100_000], "told {told}");
        mount.unmount();
    }
}
