//! A device that fails under a mounted volume, and data that is damaged there: who uses the mount gets EIO where POSIX
//! has it, what is in order stays readable, and nothing synced is lost.

mod common;

use common::{Mounted, assert_sound};
use myriad_device::{Access, FaultDevice, FaultOp, FaultSpan, FileDevice};
use myriad_engine::{Fs, MkfsOptions, MountOptions};
use myriad_fuse::Options;
use rustix::fs::{self as unix, Advice};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

const SIZE: usize = 100_000;

/// What a file of this number holds.
fn content(number: u8) -> Vec<u8> {
    (0..SIZE).map(|at| number ^ (at / 4096) as u8 ^ at as u8).collect()
}

#[track_caller]
fn assert_eio<T: std::fmt::Debug>(what: &str, result: io::Result<T>) {
    let errno = result.as_ref().err().and_then(Errno::from_io_error);
    assert_eq!(errno, Some(Errno::IO), "{what}: {result:?}");
}

fn format(mkfs: &MkfsOptions) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    Fs::format(&folder.path().join("image"), Some(64 << 20), mkfs).unwrap();
    fs::create_dir(folder.path().join("mount")).unwrap();
    folder
}

/// Mounts the image in the folder, on a device that fails when told to.
fn mount_on_faults(folder: TempDir, options: Options) -> (Mounted, Arc<FaultDevice<FileDevice>>) {
    let device = FileDevice::open(folder.path().join("image"), Access::ReadWrite).unwrap();
    let device = Arc::new(FaultDevice::new(device));
    // Nothing is written behind the test's back.
    let open = MountOptions { cache_size: 32 << 20, commit_interval_ms: 3_600_000, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, open).unwrap();
    (Mounted::serve(folder, fs, options), device)
}

/// The file's bytes, from the server and not from the kernel's cache.
fn read_anew(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    unix::fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut bytes = vec![0; SIZE];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn write_synced(path: &Path, number: u8) -> io::Result<File> {
    let file = File::create(path)?;
    file.write_all_at(&content(number), 0)?;
    file.sync_all()?;
    Ok(file)
}

/// Every request that a sync of a small file makes, with the kernel's cache written through and back: the sync that
/// needs the device fails, and so does all that would change anything after it.
#[test]
fn a_write_that_fails_is_an_error_of_fsync_and_ends_all_changes() {
    skip_without_mounts!();
    for (op, nth, writeback) in [
        (FaultOp::Write, 1, false),
        (FaultOp::Write, 2, false),
        (FaultOp::Write, 1, true),
        (FaultOp::Write, 2, true),
        (FaultOp::Flush, 1, false),
        (FaultOp::Flush, 1, true),
    ] {
        let case = format!("{op:?} {nth}, writeback {writeback}");
        let options = Options { writeback, ..Options::default() };
        let (mount, device) = mount_on_faults(format(&MkfsOptions::default()), options);
        write_synced(&mount.path("synced"), 1).unwrap();
        let file = File::create(mount.path("failing")).unwrap();
        let other = File::options().write(true).open(mount.path("failing")).unwrap();
        file.write_all_at(&content(2), 0).unwrap();
        device.fail(op, nth, FaultSpan::Once, Errno::IO.raw_os_error());
        assert_eio(&case, file.sync_all());
        assert_eq!(device.struck(), 1, "{case}");
        // Not only of the descriptor that asked first, and not only once: the bytes are nowhere.
        assert_eio(&case, other.sync_all());
        assert_eio(&case, file.sync_all());
        assert_eio(&case, File::create(mount.path("later")));
        assert_eio(&case, fs::rename(mount.path("synced"), mount.path("other")));
        let late = file.write_all_at(b"late", 0).and_then(|()| file.sync_data());
        assert_eio(&case, late);
        assert!(mount.handle().fs().shut_down_reason().is_some(), "{case}");
        // What was synced is read, from the device.
        assert!(read_anew(&mount.path("synced")).unwrap() == content(1), "{case}");
        assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 2, "{case}");
        drop((file, other));
        let (folder, served) = mount.end();
        let error = served.expect_err("the volume is not closed cleanly").to_string();
        assert!(error.contains("shut down") || error.contains("device"), "{case}: {error}");
        let mount = Mounted::again(folder, MountOptions::default(), Options::default());
        assert!(read_anew(&mount.path("synced")).unwrap() == content(1), "{case}");
        write_synced(&mount.path("later"), 3).unwrap();
        mount.unmount();
    }
}

/// Programs that only close learn of it where the kernel keeps what they write.
#[test]
fn a_write_back_that_fails_is_an_error_of_close() {
    skip_without_mounts!();
    let (mount, device) =
        mount_on_faults(format(&MkfsOptions::default()), Options { writeback: true, ..Options::default() });
    write_synced(&mount.path("synced"), 1).unwrap();
    let file = File::create(mount.path("failing")).unwrap();
    device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::IO.raw_os_error());
    file.write_all_at(&content(2), 0).unwrap();
    assert_eio("the sync that ends all changes", File::open(mount.root()).unwrap().sync_all());
    let target = format!("of={}", mount.path("failing").display());
    let said =
        Command::new("dd").args(["if=/dev/zero", "bs=4096", "count=4", "conv=notrunc", &target]).output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && text.contains("Input/output error"), "{text}");
    drop(file);
    let (folder, served) = mount.end();
    served.unwrap_err();
    assert_sound(&folder.path().join("image"));
    let mount = Mounted::again(folder, MountOptions::default(), Options::default());
    assert!(read_anew(&mount.path("synced")).unwrap() == content(1));
}

#[test]
fn a_read_that_fails_is_an_error_of_read_and_of_nothing_else() {
    skip_without_mounts!();
    let folder = format(&MkfsOptions::default());
    let mount = Mounted::again(folder, MountOptions::default(), Options::default());
    for number in 0..3 {
        write_synced(&mount.path(&format!("file{number}")), number).unwrap();
    }
    // Mounted anew, so that nothing is in memory but what was looked at.
    let (mount, device) = mount_on_faults(mount.unmount(), Options::default());
    let path = |number: u8| mount.path(&format!("file{number}"));
    let opened = File::open(path(0)).unwrap();
    assert!(read_anew(&path(1)).unwrap() == content(1));
    // Where the inode and its map come from is known now: this is the data.
    assert_eq!(opened.metadata().unwrap().len(), SIZE as u64);
    device.fail(FaultOp::Read, 1, FaultSpan::Forever, Errno::IO.raw_os_error());
    let mut bytes = vec![0; SIZE];
    assert_eio("read", opened.read_exact_at(&mut bytes, 0));
    assert!(device.struck() > 0);
    device.clear();
    // Neither the volume nor the descriptor is the worse for it.
    opened.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == content(0));
    assert_eq!(mount.handle().fs().shut_down_reason(), None);
    write_synced(&path(2), 9).unwrap();
    assert!(read_anew(&path(2)).unwrap() == content(9));
    drop(opened);
    mount.unmount();
}

#[test]
fn damaged_data_is_an_error_of_its_block_alone() {
    skip_without_mounts!();
    let mkfs = MkfsOptions { data_checksums: true, ..MkfsOptions::default() };
    let mount = Mounted::again(format(&mkfs), MountOptions::default(), Options::default());
    write_synced(&mount.path("damaged"), 0xa0).unwrap();
    write_synced(&mount.path("whole"), 0x50).unwrap();
    let folder = mount.unmount();
    // One bit of the file's block 7, wherever it lies.
    let (bad, image) = (7 * 4096, folder.path().join("image"));
    let bytes = fs::read(&image).unwrap();
    let block = &content(0xa0)[bad..bad + 4096];
    let places: Vec<usize> = (0..bytes.len()).step_by(4096).filter(|&at| &bytes[at..at + 4096] == block).collect();
    let [place] = places[..] else { panic!("{places:?}") };
    let device = File::options().write(true).open(&image).unwrap();
    device.write_all_at(&[bytes[place + 100] ^ 1], place as u64 + 100).unwrap();

    let mount = Mounted::again(folder, MountOptions::default(), Options::default());
    let file = File::options().read(true).write(true).open(mount.path("damaged")).unwrap();
    // No read-ahead, so that each block is asked for alone.
    unix::fadvise(&file, 0, None, Advice::Random).unwrap();
    for at in (0..SIZE).step_by(4096) {
        let mut bytes = vec![0; 4096.min(SIZE - at)];
        let read = file.read_exact_at(&mut bytes, at as u64);
        if at == bad {
            assert_eio("the damaged block", read);
        } else {
            read.unwrap_or_else(|error| panic!("block at {at}: {error}"));
            assert!(bytes == content(0xa0)[at..at + bytes.len()], "block at {at}");
        }
    }
    assert!(read_anew(&mount.path("whole")).unwrap() == content(0x50));
    assert_eq!(mount.handle().fs().shut_down_reason(), None);
    // Written anew, it is as good as any.
    file.write_all_at(&content(0xa0)[bad..bad + 4096], bad as u64).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert!(read_anew(&mount.path("damaged")).unwrap() == content(0xa0));
    mount.unmount();
}

/// The ioctl that crash tests use, without a flush: changes are refused from then on, reads go on, and what was synced is there
/// afterwards.
#[test]
fn a_volume_is_shut_down_on_demand() {
    skip_without_mounts!();
    let (mount, _) = mount_on_faults(format(&MkfsOptions::default()), Options::default());
    drop(write_synced(&mount.path("synced"), 7).unwrap());
    fs::write(mount.path("late"), b"not synced").unwrap();
    let script = "import fcntl,os,struct,sys\nd=os.open(sys.argv[1],os.O_RDONLY)\n\
        fcntl.ioctl(d,0x8004587d,struct.pack('I',2))\n";
    match Command::new("python3").arg("-c").arg(script).arg(mount.root()).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => return println!("skipped: python3: {error}"),
    }
    assert_eio("create", File::create(mount.path("new")));
    assert_eio("write", fs::write(mount.path("synced"), b"changed"));
    assert_eio("remove", fs::remove_file(mount.path("synced")));
    assert_eq!(read_anew(&mount.path("synced")).unwrap(), content(7));
    assert_eq!(mount.handle().fs().shut_down_reason().unwrap(), "it was told to by the shutdown ioctl");
    let (folder, served) = mount.end();
    assert!(served.unwrap_err().to_string().contains("was shut down"));
    let mount = Mounted::again(folder, MountOptions::default(), Options::default());
    assert_eq!(fs::read(mount.path("synced")).unwrap(), content(7));
    assert!(!mount.path("late").exists() && !mount.path("new").exists());
    mount.unmount();
}

/// A directory was moved, and the host had no room to make that durable. To drop the name, as the kernel was told to,
/// unmounts what is mounted below the directory. Nor did the kernel learn of names that went: it kept the links of a
/// file, and the file with its space.
#[test]
fn a_name_in_doubt_is_looked_up_again_and_what_is_mounted_below_it_stays() {
    skip_without_mounts!();
    let options = Options { kernel_options: vec!["dirsync".into()], ..Options::default() };
    let (mount, device) = mount_on_faults(format(&MkfsOptions::default()), options);
    fs::create_dir_all(mount.path("dir/below")).unwrap();
    fs::write(mount.path("a"), vec![1; SIZE]).unwrap();
    fs::hard_link(mount.path("a"), mount.path("b")).unwrap();
    let links = || fs::metadata(mount.path("a")).unwrap().nlink();
    let on_device = |path: &str| fs::metadata(mount.path(path)).map(|metadata| metadata.dev());
    assert_eq!(links(), 2);
    let dev = on_device("a").unwrap();
    let below = mount.path("dir/below");
    rustix::mount::mount("none", &below, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    assert_ne!(on_device("dir/below").unwrap(), dev);
    let files = || mount.handle().fs().statfs().unwrap().inodes_used;
    let before = files();

    device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
    let is_full = |result: io::Result<()>| result.as_ref().err().and_then(Errno::from_io_error) == Some(Errno::NOSPC);
    assert!(is_full(fs::rename(mount.path("dir"), mount.path("moved"))));
    assert!(is_full(fs::create_dir(mount.path("new"))));
    assert!(is_full(fs::remove_file(mount.path("b"))));
    assert_eq!(links(), 1, "the one that went is known to be gone");
    // The kernel is told of names after the answers.
    for (name, is_there) in [("moved", true), ("new", true), ("b", false)] {
        eventually(name, || fs::symlink_metadata(mount.path(name)).is_ok() == is_there);
    }
    assert_ne!(on_device("moved/below").unwrap(), dev, "it is mounted as before");
    device.clear();
    fs::remove_file(mount.path("a")).unwrap();
    eventually("the file's space is free", || files() == before);
    rustix::mount::unmount(mount.path("moved/below"), rustix::mount::UnmountFlags::empty()).unwrap();
    eventually("dir", || fs::symlink_metadata(mount.path("dir")).is_err());
    mount.unmount();
}

/// Content was replaced, and the host had no room to make that durable. The kernel went on giving programs what it had of it in its cache.
#[test]
fn content_in_doubt_is_read_anew() {
    skip_without_mounts!();
    const BLOCK: u64 = 4096;
    const HOLE: unix::FallocateFlags = unix::FallocateFlags::PUNCH_HOLE.union(unix::FallocateFlags::KEEP_SIZE);
    let options = Options { kernel_options: vec!["sync".into()], ..Options::default() };
    let (mount, device) = mount_on_faults(format(&MkfsOptions::default()), options);
    for (name, byte) in [("source", b's'), ("target", b't')] {
        fs::write(mount.path(name), vec![byte; 5 * BLOCK as usize]).unwrap();
    }
    let [source, target] =
        ["source", "target"].map(|name| File::options().read(true).write(true).open(mount.path(name)).unwrap());
    target.sync_all().unwrap();
    let first_bytes = || {
        let mut bytes = [0; 5];
        for (block, byte) in (0..).zip(&mut bytes) {
            target.read_at(std::slice::from_mut(byte), block * BLOCK).unwrap();
        }
        bytes
    };
    assert_eq!(&first_bytes(), b"ttttt");
    device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
    assert_eq!(unix::fallocate(&target, HOLE, BLOCK, BLOCK), Err(Errno::NOSPC));
    let copied = unix::copy_file_range(&source, Some(&mut 0), &target, Some(&mut (2 * BLOCK)), BLOCK as usize);
    assert_eq!(copied, Err(Errno::NOSPC));
    assert_eq!(unix::ftruncate(&target, 4 * BLOCK), Err(Errno::NOSPC));
    eventually("the kernel reads anew", || &first_bytes() == b"t\0st\0");
    device.clear();
    drop((source, target));
    mount.unmount();
}

/// What comes a moment later, from another thread.
#[track_caller]
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < end, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
