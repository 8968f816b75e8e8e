//! Each kind of request, by the system calls that send it.

mod common;

use common::{Mounted, mounted, mounted_with};
use myriad_engine::{AccessTimes, Cred, MkfsOptions, MountOptions, OpenOptions};
use myriad_fuse::Options;
use rustix::fs::{
    self as unix, AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, StatxFlags, XattrFlags,
};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

fn open(path: &Path, flags: OFlags) -> rustix::io::Result<rustix::fd::OwnedFd> {
    unix::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))
}

fn read_write() -> OFlags {
    OFlags::RDWR | OFlags::CREATE
}

/// The same things on a mount whose kernel opens by itself, and on one that asks.
fn both(test: impl Fn(Mounted)) {
    for no_open in [true, false] {
        test(mounted_with(Options { no_open, ..Options::default() }));
    }
}

#[test]
fn the_mount_table_shows_source_and_type() {
    skip_without_mounts!();
    let (first, second) = (mounted(), mounted());
    let table = fs::read_to_string("/proc/mounts").unwrap();
    for mount in [&first, &second] {
        let line = format!("the\\040source {} {} rw,nosuid,nodev", mount.root().display(), mount.fs_type());
        assert!(table.lines().any(|entry| entry.starts_with(&line)), "{table}");
    }
    fs::write(first.path("one"), b"1").unwrap();
    assert!(!second.path("one").exists());
    first.unmount();
    second.unmount();
}

#[test]
fn names() {
    skip_without_mounts!();
    both(|mount| {
        let at = |name: &str| mount.path(name);
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("dir/file"), b"content").unwrap();
        assert_eq!(fs::read(at("dir/file")).unwrap(), b"content");
        assert_eq!(fs::create_dir(at("dir")).unwrap_err().raw_os_error(), Some(Errno::EXIST.raw_os_error()));
        assert!(open(&at("dir/file"), read_write() | OFlags::EXCL).is_err());
        // Link counts are right at once, whatever the kernel remembers.
        fs::hard_link(at("dir/file"), at("link")).unwrap();
        assert_eq!((fs::metadata(at("dir/file")).unwrap().nlink(), fs::metadata(at("link")).unwrap().nlink()), (2, 2));
        fs::remove_file(at("dir/file")).unwrap();
        assert_eq!(fs::metadata(at("link")).unwrap().nlink(), 1);
        std::os::unix::fs::symlink("dir/../link", at("symlink")).unwrap();
        assert_eq!(fs::read_link(at("symlink")).unwrap(), Path::new("dir/../link"));
        assert_eq!(fs::read(at("symlink")).unwrap(), b"content");
        // Renaming: over a file, without replacing, exchanging.
        fs::write(at("other"), b"other").unwrap();
        let rename = |a: &str, b: &str, flags| unix::renameat_with(CWD, at(a), CWD, at(b), flags);
        assert_eq!(rename("link", "other", RenameFlags::NOREPLACE), Err(Errno::EXIST));
        rename("link", "other", RenameFlags::EXCHANGE).unwrap();
        assert_eq!(
            (fs::read(at("link")).unwrap(), fs::read(at("other")).unwrap()),
            (b"other".to_vec(), b"content".to_vec())
        );
        fs::rename(at("link"), at("other")).unwrap();
        assert_eq!(fs::read(at("other")).unwrap(), b"other");
        assert_eq!(rename("other", "link", RenameFlags::WHITEOUT | RenameFlags::EXCHANGE), Err(Errno::INVAL));
        // A name that was missing is found once it is made.
        assert!(!at("late").exists());
        fs::write(at("late"), b"").unwrap();
        assert!(at("late").exists());
        assert_eq!(fs::remove_dir(at("late")).unwrap_err().raw_os_error(), Some(Errno::NOTDIR.raw_os_error()));
        fs::remove_dir(at("dir")).unwrap();
        assert!(!at("dir").exists());
        // Special files, with any device number.
        let device = unix::makedev(259, 0x12345);
        unix::mknodat(CWD, at("device"), unix::FileType::BlockDevice, Mode::from_raw_mode(0o600), device).unwrap();
        assert_eq!(fs::metadata(at("device")).unwrap().rdev(), device);
        unix::mknodat(CWD, at("fifo"), unix::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let long = "n".repeat(255);
        fs::write(at(&long), b"").unwrap();
        let longer = open(&at(&"n".repeat(256)), read_write());
        assert_eq!(longer.err(), Some(Errno::NAMETOOLONG));
        mount.unmount();
    });
}

#[test]
fn attributes() {
    skip_without_mounts!();
    let mount = mounted();
    let path = mount.path("file");
    fs::write(&path, b"content").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
    unix::chown(&path, Some(unix::Uid::from_raw(12)), Some(unix::Gid::from_raw(34))).unwrap();
    let stat = fs::metadata(&path).unwrap();
    // chown takes set-id bits.
    assert_eq!((stat.mode(), stat.uid(), stat.gid(), stat.size(), stat.blocks()), (0o100751, 12, 34, 7, 8));
    let times = [(-5, 999_999_999), (7_000_000_000, 1)];
    let [access, modified] = times.map(|(tv_sec, tv_nsec)| unix::Timespec { tv_sec, tv_nsec });
    let set = unix::Timestamps { last_access: access, last_modification: modified };
    unix::utimensat(CWD, &path, &set, AtFlags::empty()).unwrap();
    let stat = fs::metadata(&path).unwrap();
    assert_eq!([(stat.atime(), stat.atime_nsec()), (stat.mtime(), stat.mtime_nsec())], times);
    // The time of creation.
    let statx = unix::statx(CWD, &path, AtFlags::empty(), StatxFlags::BTIME | StatxFlags::BASIC_STATS).unwrap();
    assert!(statx.stx_mask & StatxFlags::BTIME.bits() != 0 && statx.stx_btime.tv_sec > 1_700_000_000, "{statx:?}");
    assert_eq!((statx.stx_size, statx.stx_nlink), (7, 1));
    // Totals.
    let total = unix::statvfs(mount.root()).unwrap();
    assert_eq!((total.f_bsize, total.f_namemax), (4096, 255));
    assert!(total.f_bfree > 0 && total.f_bfree < total.f_blocks && total.f_ffree > 0);
    // Shown as somebody else's.
    let mount = mount.remount(Options { uid: Some(1), gid: Some(2), umask: Some(0o27), ..Options::default() });
    let stat = fs::metadata(mount.path("file")).unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.size(), stat.mode()), (1, 2, 7, 0o100750));
    assert_eq!(fs::metadata(mount.root()).unwrap().mode(), 0o40750);
    // Nothing else has changed.
    let mount = mount.remount(Options::default());
    assert_eq!(fs::metadata(mount.path("file")).unwrap().mode(), 0o100751);
}

#[test]
fn extended_attributes() {
    skip_without_mounts!();
    let mount = mounted();
    let path = mount.path("file");
    fs::write(&path, b"").unwrap();
    let mut buf = [0; 64];
    unix::setxattr(&path, "user.a", b"one", XattrFlags::CREATE).unwrap();
    assert_eq!(unix::setxattr(&path, "user.a", b"two", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(unix::setxattr(&path, "user.b", b"two", XattrFlags::REPLACE), Err(Errno::NODATA));
    unix::setxattr(&path, "user.b", b"", XattrFlags::empty()).unwrap();
    assert_eq!(unix::getxattr(&path, "user.a", &mut buf), Ok(3));
    assert_eq!(&buf[..3], b"one");
    assert_eq!(unix::getxattr(&path, "user.a", &mut buf[..2]), Err(Errno::RANGE));
    assert_eq!(unix::getxattr_query(&path, "user.a"), Ok(3));
    let len = unix::listxattr(&path, &mut buf).unwrap();
    assert_eq!(&buf[..len], b"user.a\0user.b\0");
    unix::removexattr(&path, "user.a").unwrap();
    assert_eq!(unix::getxattr(&path, "user.a", &mut buf), Err(Errno::NODATA));
    // An ACL would change the mode behind the kernel's back, unless it was told to look.
    let mount = mount.remount(Options { acl: Some(false), ..Options::default() });
    let acl = [2u32.to_le_bytes().to_vec()].concat();
    let path = mount.path("file");
    assert_eq!(unix::setxattr(&path, "system.posix_acl_access", &acl, XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    // Refused altogether, they are asked for once.
    let mount = mount.remount(Options { no_xattr: true, ..Options::default() });
    for _ in 0..3 {
        assert_eq!(unix::getxattr(mount.path("file"), "user.b", &mut buf), Err(Errno::OPNOTSUPP));
    }
    assert_eq!(mount.requests("GETXATTR"), 1);
}

#[test]
fn content() {
    skip_without_mounts!();
    both(|mount| {
        let path = mount.path("file");
        let mut file = File::from(open(&path, read_write()).unwrap());
        file.write_all(&[1; 100_000]).unwrap();
        file.write_all_at(b"far", 1 << 40).unwrap();
        assert_eq!(file.metadata().unwrap().size(), (1 << 40) + 3);
        let mut buf = [9; 8];
        file.read_exact_at(&mut buf, 99_996).unwrap();
        assert_eq!(buf, [1, 1, 1, 1, 0, 0, 0, 0]);
        // Of a file that is open for writing all is data (`held.rs`).
        assert_eq!(unix::seek(&file, unix::SeekFrom::Hole(0)), Ok((1 << 40) + 3));
        assert_eq!(unix::seek(&file, unix::SeekFrom::Data(200_000)), Ok(200_000));
        unix::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 50_000).unwrap();
        unix::fallocate(&file, FallocateFlags::ZERO_RANGE, 60_000, 10).unwrap();
        file.read_exact_at(&mut buf, 49_996).unwrap();
        assert_eq!(buf, [0, 0, 0, 0, 1, 1, 1, 1]);
        file.read_exact_at(&mut buf, 60_006).unwrap();
        assert_eq!(buf, [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(unix::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
        file.set_len(70_000).unwrap();
        unix::fallocate(&file, FallocateFlags::empty(), 70_000, 30_000).unwrap();
        file.seek(SeekFrom::Start(69_999)).unwrap();
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).unwrap();
        assert_eq!((rest.len(), rest[0], rest[1]), (30_001, 1, 0));
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        // Copied in the server.
        let mut copy = File::from(open(&mount.path("copy"), read_write()).unwrap());
        let copied = unix::copy_file_range(&file, Some(&mut 50_000), &copy, Some(&mut 10), 1 << 30).unwrap();
        assert_eq!(copied, 50_000);
        assert!(mount.requests("COPY_FILE_RANGE") + mount.requests("COPY_FILE_RANGE_64") > 0);
        let mut bytes = Vec::new();
        copy.read_to_end(&mut bytes).unwrap();
        assert_eq!((bytes.len(), &bytes[8..12]), (50_010, &[0, 0, 1, 1][..]));
        // Appending goes to the end, wherever others write.
        let append = File::from(open(&path, OFlags::WRONLY | OFlags::APPEND).unwrap());
        append.write_all_at(b"end", 5).unwrap();
        assert_eq!(file.metadata().unwrap().size(), 100_003);
        // Opening with truncation.
        drop(open(&path, OFlags::WRONLY | OFlags::TRUNC).unwrap());
        assert_eq!(file.metadata().unwrap().size(), 0);
        drop((file, copy, append));
        mount.unmount();
    });
}

#[test]
fn direct_io() {
    skip_without_mounts!();
    for direct_io in [false, true] {
        let mount = mounted_with(Options { direct_io, ..Options::default() });
        let flags = if direct_io { OFlags::empty() } else { OFlags::DIRECT };
        let path = mount.path("file");
        let file = File::from(open(&path, read_write() | flags).unwrap());
        let bytes: Vec<u8> = (0..1 << 20).map(|i| (i / 4096) as u8).collect();
        file.write_all_at(&bytes, 0).unwrap();
        let mut back = vec![0; bytes.len()];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == bytes);
        // 1 MiB at a time, and the buffer does not begin at a page.
        assert!(mount.requests("READ") <= 2, "{}", mount.requests("READ"));
        // Through the page cache it is the same file.
        let other = File::open(&path).unwrap();
        other.read_exact_at(&mut back[..10], 4091).unwrap();
        assert_eq!(back[..10], [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
        file.write_all_at(&[77; 4096], 4096).unwrap();
        other.read_exact_at(&mut back[..10], 4091).unwrap();
        assert_eq!(back[..10], [0, 0, 0, 0, 0, 77, 77, 77, 77, 77]);
        drop((file, other));
        mount.unmount();
    }
}

#[test]
fn synchronous_writes_are_durable_when_they_return() {
    skip_without_mounts!();
    for (flag, durable) in [(OFlags::SYNC, true), (OFlags::DSYNC, true), (OFlags::empty(), false)] {
        let mount = mounted();
        let file = File::from(open(&mount.path("file"), read_write() | flag).unwrap());
        file.write_all_at(b"synced", 0).unwrap();
        // What is on the device now, as after a loss of power.
        let copy = mount.image().with_file_name("copy");
        fs::copy(mount.image(), &copy).unwrap();
        let fs = myriad_engine::Fs::open(&copy, MountOptions::default()).unwrap();
        let found = fs.session(myriad_engine::Cred::root()).stat("file").map(|stat| stat.size).ok();
        assert_eq!(found, durable.then_some(6), "{flag:?}");
        drop(file);
        mount.unmount();
    }
}

#[test]
fn directories_are_listed_whatever_happens_to_them() {
    skip_without_mounts!();
    let mount = mounted();
    let names: Vec<String> = (0..3000).map(|i| format!("a name that is not short {i:05}")).collect();
    fs::create_dir(mount.path("dir")).unwrap();
    for name in &names {
        fs::write(mount.path("dir").join(name), b"x").unwrap();
    }
    let mount = mount.remount(Options::default());
    let list = |path: &Path| {
        let mut found: Vec<_> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        found.sort();
        found
    };
    assert_eq!(list(&mount.path("dir")), names);
    assert!(mount.requests("READDIRPLUS") > 0);
    // Every second name goes while the directory is read; the others come once each. A cookie is good for ever.
    let mut dir = unix::Dir::new(open(&mount.path("dir"), OFlags::RDONLY | OFlags::DIRECTORY).unwrap()).unwrap();
    let mut seen = Vec::new();
    let mut half = None;
    while let Some(entry) = dir.read() {
        let entry = entry.unwrap();
        seen.push(entry.file_name().to_string_lossy().into_owned());
        if seen.len() == 1000 {
            half = Some(entry.offset());
            for name in names.iter().step_by(2) {
                fs::remove_file(mount.path("dir").join(name)).unwrap();
            }
        }
    }
    seen.retain(|name| !name.starts_with('.'));
    let odd: Vec<_> = names.iter().skip(1).step_by(2).collect();
    assert!(odd.iter().all(|name| seen.iter().filter(|other| other == name).count() == 1));
    dir.seek(half.unwrap()).unwrap();
    let mut after = 0;
    while let Some(entry) = dir.read() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        assert!(!name.starts_with('.') && odd.contains(&&name), "{name}");
        after += 1;
    }
    assert!((900..=1001).contains(&after), "{after}");
    drop(dir);
    mount.unmount();
}

#[test]
fn inode_flags() {
    skip_without_mounts!();
    both(flags_of_inodes);
}

fn flags_of_inodes(mount: Mounted) {
    let path = mount.path("file");
    fs::write(&path, b"content").unwrap();
    let file = File::open(&path).unwrap();
    assert_eq!(unix::ioctl_getflags(&file), Ok(IFlags::empty()));
    unix::ioctl_setflags(&file, IFlags::IMMUTABLE | IFlags::NODUMP).unwrap();
    assert_eq!(unix::ioctl_getflags(&file), Ok(IFlags::IMMUTABLE | IFlags::NODUMP));
    assert_eq!(unix::unlink(&path), Err(Errno::PERM));
    assert_eq!(unix::rename(&path, mount.path("other")), Err(Errno::PERM));
    assert_eq!(unix::chmod(&path, Mode::empty()), Err(Errno::PERM));
    unix::ioctl_setflags(&file, IFlags::APPEND).unwrap();
    let append = File::from(open(&path, OFlags::WRONLY | OFlags::APPEND).unwrap());
    append.write_all_at(b"!", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"content!");
    // Refused at the write, or at the opening if that is asked for.
    let refused = open(&path, OFlags::WRONLY).and_then(|fd| rustix::io::pwrite(fd, b"!", 0));
    assert_eq!(refused, Err(Errno::PERM));
    // A flag that we do not have.
    assert_eq!(unix::ioctl_setflags(&file, IFlags::COMPRESSED), Err(Errno::OPNOTSUPP));
    unix::ioctl_setflags(&file, IFlags::empty()).unwrap();
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_mapped_file_is_the_file() {
    skip_without_mounts!();
    both(|mount| {
        let path = mount.path("file");
        fs::write(&path, vec![b'.'; 10_000]).unwrap();
        // A program that maps: the linker's way, without unsafe code here.
        let script = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\nassert m[9999:]==b'.'\n\
            m[4094:4098]=b'abcd'\np=mmap.mmap(f.fileno(),0,mmap.MAP_PRIVATE)\np[0:1]=b'x'\nm.flush()\nm.close()\n";
        let run = std::process::Command::new("python3").arg("-c").arg(script).arg(&path).status();
        match run {
            Ok(status) => assert!(status.success()),
            Err(error) => {
                println!("skipped: python3: {error}");
                return;
            }
        }
        let bytes = fs::read(&path).unwrap();
        assert_eq!((bytes[0], &bytes[4092..4100]), (b'.', &b"..abcd.."[..]));
        let mount = mount.remount(Options::default());
        assert_eq!(fs::read(mount.path("file")).unwrap(), bytes);
    });
}

/// Cached or not, what one maps is what another reads.
#[test]
fn a_file_is_mapped_without_the_kernels_cache() {
    skip_without_mounts!();
    let mount = mounted_with(Options { direct_io: true, ..Options::default() });
    let path = mount.path("file");
    fs::write(&path, vec![b'.'; 10_000]).unwrap();
    let script = "import mmap,os,sys\nf=os.open(sys.argv[1],os.O_RDWR)\nm=mmap.mmap(f,0)\nassert m[9999:]==b'.'\n\
        m[4094:4098]=b'abcd'\nm.flush()\nassert os.pread(f,8,4092)==b'..abcd..'\n\
        os.pwrite(f,b'new',0)\nassert m[0:3]==b'new', m[0:3]\n";
    match std::process::Command::new("python3").arg("-c").arg(script).arg(&path).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => return println!("skipped: python3: {error}"),
    }
    let bytes = fs::read(&path).unwrap();
    assert_eq!((&bytes[..4], &bytes[4092..4100], bytes.len()), (&b"new."[..], &b"..abcd.."[..], 10_000));
    mount.unmount();
}

#[test]
fn who_watches_a_directory_is_told() {
    use unix::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
    skip_without_mounts!();
    let mount = mounted();
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    let wanted = WatchFlags::CREATE | WatchFlags::CLOSE_WRITE | WatchFlags::MOVE | WatchFlags::DELETE;
    inotify::add_watch(&watch, mount.root(), wanted).unwrap();
    fs::write(mount.path("file"), b"content").unwrap();
    fs::rename(mount.path("file"), mount.path("other")).unwrap();
    fs::remove_file(mount.path("other")).unwrap();
    let mut buf = [std::mem::MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(&watch, &mut buf);
    let mut told = Vec::new();
    while let Ok(event) = reader.next() {
        told.push((event.events(), event.file_name().unwrap().to_str().unwrap().to_owned()));
    }
    let expected = [
        (ReadFlags::CREATE, "file"),
        (ReadFlags::CLOSE_WRITE, "file"),
        (ReadFlags::MOVED_FROM, "file"),
        (ReadFlags::MOVED_TO, "other"),
        (ReadFlags::DELETE, "other"),
    ];
    assert_eq!(told, expected.map(|(flag, name)| (flag, name.to_owned())));
    mount.unmount();
}

#[test]
fn a_place_in_a_large_directory_is_found_again() {
    const COUNT: usize = 100_000;
    skip_without_mounts!();
    let mount = mounted();
    let session = mount.handle().fs().session(Cred::root());
    session.mkdir("/dir", 0o755).unwrap();
    for number in 0..COUNT {
        session.mknod(&format!("/dir/{number}"), 0o100_644, 0).unwrap();
    }
    let mut dir = unix::Dir::new(open(&mount.path("dir"), OFlags::RDONLY | OFlags::DIRECTORY).unwrap()).unwrap();
    let mut entries = Vec::new();
    while let Some(entry) = dir.read() {
        let entry = entry.unwrap();
        entries.push((entry.file_name().to_owned(), entry.offset()));
    }
    assert_eq!(entries.len(), COUNT + 2);
    let names: std::collections::HashSet<_> = entries.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), entries.len(), "each once");
    // Forwards and back.
    for index in [1, COUNT / 2, 17, COUNT - 1, COUNT / 3, 0] {
        dir.seek(entries[index].1).unwrap();
        for (name, _) in entries.iter().skip(index + 1).take(3) {
            assert_eq!(dir.read().unwrap().unwrap().file_name(), name.as_c_str(), "after {index}");
        }
    }
    dir.seek(entries[COUNT + 1].1).unwrap();
    assert!(dir.read().is_none());
    dir.rewind();
    assert_eq!(dir.read().unwrap().unwrap().file_name(), entries[0].0.as_c_str());
    drop((dir, session));
    mount.unmount();
}

/// The option was read by nobody: access times never moved.
#[test]
fn access_times_move_if_asked_for() {
    const SECOND: i64 = 1_000_000_000;
    const DAY: i64 = 24 * 3600;
    skip_without_mounts!();
    let now = std::sync::Arc::new(std::sync::atomic::AtomicI64::new(1_000_000 * SECOND));
    let pass = |seconds: i64| now.fetch_add(seconds * SECOND, std::sync::atomic::Ordering::Relaxed) / SECOND + seconds;
    let clock = myriad_engine::Clock::Manual(now.clone());
    // Every read is seen.
    let options = || Options { direct_io: true, ..Options::default() };
    let open_options = MountOptions { atime: AccessTimes::Relative, clock, ..MountOptions::default() };
    let mount = Mounted::new(&MkfsOptions::default(), open_options.clone(), options());
    let path = mount.path("file");
    let atime = |name: &str| fs::symlink_metadata(mount.path(name)).unwrap().atime();
    fs::write(&path, b"content").unwrap();
    let read = || fs::read(&path).unwrap();
    let first = pass(10);
    read();
    let stat = fs::metadata(&path).unwrap();
    assert_eq!((stat.atime(), stat.mtime(), stat.ctime()), (first, first - 10, first - 10));
    pass(10);
    read();
    assert_eq!(atime("file"), first, "later than all changes, and young");
    let after_a_day = pass(DAY);
    read();
    assert_eq!(atime("file"), after_a_day);
    pass(10);
    fs::write(&path, b"changed").unwrap();
    let after_change = pass(10);
    // Not by who says so, and not of a file that is marked so.
    let mut unnoticed = File::from(open(&path, OFlags::RDONLY | OFlags::NOATIME).unwrap());
    assert_eq!(unnoticed.read(&mut [0; 7]).unwrap(), 7);
    assert_eq!(atime("file"), after_a_day);
    unix::ioctl_setflags(&unnoticed, IFlags::NOATIME).unwrap();
    read();
    assert_eq!(atime("file"), after_a_day);
    unix::ioctl_setflags(&unnoticed, IFlags::empty()).unwrap();
    read();
    assert_eq!(atime("file"), after_change);
    // Directories and links.
    fs::create_dir(mount.path("dir")).unwrap();
    std::os::unix::fs::symlink("file", mount.path("link")).unwrap();
    let later = pass(10);
    assert_eq!(fs::read_dir(mount.path("dir")).unwrap().count(), 0);
    fs::read_link(mount.path("link")).unwrap();
    assert_eq!((atime("dir"), atime("link")), (later, later));
    // Stored; and where nothing may be stored, reading goes on.
    drop(unnoticed);
    let again = |mount: Mounted, open_options: MountOptions, options: Options| {
        Mounted::again(mount.unmount(), open_options, options)
    };
    let only_files = MountOptions { dir_atime: false, ..open_options.clone() };
    let mount = again(mount, only_files, options());
    let atime = |mount: &Mounted, name: &str| fs::symlink_metadata(mount.path(name)).unwrap().atime();
    assert_eq!((atime(&mount, "file"), atime(&mount, "dir")), (after_change, later));
    let third = pass(2 * DAY);
    assert_eq!(fs::read_dir(mount.path("dir")).unwrap().count(), 0);
    fs::read(mount.path("file")).unwrap();
    assert_eq!((atime(&mount, "file"), atime(&mount, "dir")), (third, later));
    let strict = MountOptions { atime: AccessTimes::Strict, ..open_options.clone() };
    let mut mount = again(mount, strict, options());
    let mut third = third;
    for _ in 0..3 {
        third = pass(1);
        assert_eq!(fs::read_dir(mount.path("dir")).unwrap().count(), 0);
        fs::read(mount.path("file")).unwrap();
        assert_eq!((atime(&mount, "file"), atime(&mount, "dir")), (third, third));
    }
    for (when, read_only) in [(AccessTimes::Relative, true), (AccessTimes::Never, false)] {
        let open_options = MountOptions { atime: when, ..open_options.clone() };
        mount = again(mount, open_options, Options { read_only, ..options() });
        pass(2 * DAY);
        assert_eq!(fs::read(mount.path("file")).unwrap(), b"changed");
        assert_eq!(atime(&mount, "file"), third);
    }
    mount.unmount();
}

/// Flags were judged by the owner that the volume has, whoever the files are shown as: who is shown as the owner was refused.
#[test]
fn the_owner_that_is_shown_sets_flags() {
    skip_without_mounts!();
    let mount = mounted();
    for (name, owner) in [("own", 4242), ("other", 4243), ("roots", 0)] {
        fs::write(mount.path(name), b"").unwrap();
        unix::chown(mount.path(name), Some(unix::Uid::from_raw(owner)), None).unwrap();
    }
    let check = |mount: &Mounted, user: u32, expected: [bool; 3]| {
        fs::set_permissions(mount.root().parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
        let set = |name: &str, flag: &str| {
            let user = user.to_string();
            let mut command = std::process::Command::new("setpriv");
            command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "chattr", flag]);
            command.arg(mount.path(name)).stderr(std::process::Stdio::null()).status().unwrap().success()
        };
        assert_eq!(["own", "other", "roots"].map(|name| set(name, "+d")), expected, "by {user}");
        assert!(!["own", "other", "roots"].iter().any(|name| set(name, "+a") || set(name, "+i")), "by {user}");
        for name in ["own", "other", "roots"] {
            unix::ioctl_setflags(File::open(mount.path(name)).unwrap(), IFlags::empty()).unwrap();
        }
    };
    check(&mount, 4242, [true, false, false]);
    let mount = mount.remount(Options { uid: Some(4244), allow_other: true, ..Options::default() });
    check(&mount, 4244, [true; 3]);
    check(&mount, 4242, [false; 3]);
    mount.unmount();
}

/// What the kernel wrote back from its cache passed for an append wherever it lay: an append-only file could be changed by a
/// shared mapping, and with writeback by a write in its middle.
#[test]
fn what_an_append_only_file_has_stays() {
    const LENGTH: usize = 10_000;
    skip_without_mounts!();
    for (no_open, writeback) in [(true, false), (true, true), (false, false), (false, true)] {
        let mount = mounted_with(Options { no_open, writeback, threads: 4, ..Options::default() });
        let path = mount.path("file");
        let mut expected: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
        fs::write(&path, &expected).unwrap();
        // Behind the kernel's cache.
        let stored = || {
            let session = mount.handle().fs().session(Cred::root());
            let file = session.open("/file", OpenOptions::READ).unwrap();
            let mut bytes = vec![0; file.stat().unwrap().size as usize];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
            bytes
        };
        let script =
            "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\nm[5000:5001]=b'!'\nm.flush()\n";
        let map = || std::process::Command::new("python3").arg("-c").arg(script).arg(&path).output();
        let setter = File::open(&path).unwrap();
        for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
            unix::ioctl_setflags(&setter, flag).unwrap();
            // With writeback the kernel asks for the same after it has written: then it names an open file.
            let then = unix::Timestamps {
                last_access: unix::Timespec { tv_sec: 0, tv_nsec: unix::UTIME_OMIT },
                last_modification: unix::Timespec { tv_sec: 946_684_800, tv_nsec: 0 },
            };
            assert_eq!(unix::utimensat(CWD, &path, &then, AtFlags::empty()), Err(Errno::PERM));
            match map() {
                Ok(output) => assert!(!output.status.success(), "refused at opening or at msync: {output:?}"),
                Err(error) => println!("skipped: python3: {error}"),
            }
            let written = open(&path, OFlags::WRONLY).and_then(|fd| {
                rustix::io::pwrite(&fd, b"!", 100)?;
                unix::fsync(&fd)
            });
            assert!(written.is_err());
            assert!(stored() == expected, "{flag:?}, no_open {no_open}, writeback {writeback}");
            unix::ioctl_setflags(&setter, IFlags::empty()).unwrap();
            // What the kernel still has of it is dropped.
            rustix::fs::fadvise(&setter, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        unix::ioctl_setflags(&setter, IFlags::APPEND).unwrap();
        // Appends work, whatever their pieces' order, in the middle of a page and over many.
        let mut append = File::from(open(&path, OFlags::WRONLY | OFlags::APPEND).unwrap());
        for length in [1, 100, 5_000, 7 << 20, 3, 9 << 20] {
            let more: Vec<u8> = (0..length).map(|at| (at % 241) as u8).collect();
            append.write_all(&more).unwrap();
            expected.extend(more);
        }
        append.sync_all().unwrap_or_else(|error| panic!("{error}, no_open {no_open}, writeback {writeback}"));
        assert!(stored() == expected, "no_open {no_open}, writeback {writeback}");
        drop((append, setter));
        mount.unmount();
    }
}

#[test]
fn locks_are_the_kernels() {
    skip_without_mounts!();
    let mount = mounted();
    fs::write(mount.path("file"), b"").unwrap();
    let (one, two) = (File::open(mount.path("file")).unwrap(), File::open(mount.path("file")).unwrap());
    unix::flock(&one, unix::FlockOperation::LockExclusive).unwrap();
    assert_eq!(unix::flock(&two, unix::FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    drop(one);
    unix::flock(&two, unix::FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(mount.requests("SETLK") + mount.requests("SETLKW"), 0);
}

#[test]
fn read_only_volumes_stay_as_they_are() {
    skip_without_mounts!();
    let mount = mounted();
    fs::write(mount.path("file"), b"content").unwrap();
    let mount = mount.remount(Options { read_only: true, ..Options::default() });
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"content");
    assert_eq!(open(&mount.path("new"), read_write()).err(), Some(Errno::ROFS));
    assert_eq!(unix::unlink(mount.path("file")), Err(Errno::ROFS));
    let line = format!("{} {} ro,", mount.root().display(), mount.fs_type());
    assert!(fs::read_to_string("/proc/mounts").unwrap().contains(&line));
    mount.unmount();
}

#[test]
fn permissions_are_the_kernels_or_the_engines() {
    skip_without_mounts!();
    for default_permissions in [true, false] {
        let mount = mounted_with(Options { default_permissions, ..Options::default() });
        fs::create_dir(mount.path("shared")).unwrap();
        unix::chown(mount.path("shared"), None, Some(unix::Gid::from_raw(500))).unwrap();
        unix::chmod(mount.path("shared"), Mode::from_raw_mode(0o2770)).unwrap();
        fs::write(mount.path("secret"), b"secret").unwrap();
        unix::chmod(mount.path("secret"), Mode::from_raw_mode(0o600)).unwrap();
        let try_as = |uid: u32, groups: &'static [u32], command: String| {
            std::thread::spawn(move || {
                use rustix::process::{Gid, Uid};
                use rustix::thread as threads;
                let groups: Vec<Gid> = groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
                threads::set_thread_groups(&groups).unwrap();
                threads::set_thread_res_gid(Gid::from_raw(uid), Gid::from_raw(uid), Gid::from_raw(uid)).unwrap();
                threads::set_thread_res_uid(Uid::from_raw(uid), Uid::from_raw(uid), Uid::from_raw(uid)).unwrap();
                File::create(command).err().and_then(|error| error.raw_os_error())
            })
            .join()
            .unwrap()
        };
        let denied = Some(Errno::ACCESS.raw_os_error());
        let shared = mount.path("shared/new").display().to_string();
        // The folder that holds the mount is the test's own: others must be let through.
        unix::chmod(mount.root().parent().unwrap(), Mode::from_raw_mode(0o755)).unwrap();
        unix::chmod(mount.root(), Mode::from_raw_mode(0o755)).unwrap();
        assert_eq!(try_as(1000, &[], shared.clone()), denied, "{default_permissions}");
        // A supplementary group, which requests do not carry.
        assert_eq!(try_as(1000, &[500], shared.clone()), None, "{default_permissions}");
        let stat = fs::metadata(&shared).unwrap();
        assert_eq!((stat.uid(), stat.gid()), (1000, 500));
        assert_eq!(try_as(1000, &[], mount.path("secret").display().to_string()), denied);
        // What the kernel knows of a directory that others may not search does not let them through.
        fs::create_dir(mount.path("closed")).unwrap();
        unix::chmod(mount.path("closed"), Mode::from_raw_mode(0o700)).unwrap();
        fs::write(mount.path("closed/open"), b"secret").unwrap();
        unix::chmod(mount.path("closed/open"), Mode::from_raw_mode(0o666)).unwrap();
        let inside = mount.path("closed/open").display().to_string();
        assert_eq!(try_as(1000, &[], inside), denied, "{default_permissions}");
        assert_eq!(try_as(1000, &[], mount.path("new").display().to_string()), denied);
        mount.unmount();
    }
}

#[test]
fn what_need_not_be_asked_is_not_asked() {
    skip_without_mounts!();
    // The kernel asks for a directory's mode after each change of the directory, or from Linux 7 on does not; if nobody is
    // checked it never does. A file's capabilities are asked for at its first write. Access control lists are not asked
    // for where the owner is the one who works.
    for (allow_other, unchecked, no_xattr, attributes, capabilities) in
        [(true, false, false, 3, 1), (false, false, false, 3, 1), (false, true, false, 0, 1), (false, true, true, 0, 0)]
    {
        let options = Options { allow_other, unchecked, no_xattr, ..Options::default() };
        let mount = Mounted::new(&MkfsOptions::default(), MountOptions::default(), options);
        fs::create_dir(mount.path("dir")).unwrap();
        fs::write(mount.path("dir/first"), b"x").unwrap();
        drop(File::open(mount.path("dir/first")).unwrap());
        fs::rename(mount.path("dir/first"), mount.path("dir/renamed")).unwrap();
        fs::remove_file(mount.path("dir/renamed")).unwrap();
        let count = |names: &[&str]| names.iter().map(|name| mount.requests(name)).sum::<u64>();
        let opens = || count(&["OPEN", "RELEASE", "FLUSH", "ACCESS"]);
        let before = (opens(), count(&["GETATTR"]), count(&["GETXATTR"]));
        for i in 0..50 {
            let path = mount.path(&format!("dir/{i}"));
            fs::write(&path, b"content").unwrap();
            drop(File::open(&path).unwrap());
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            fs::rename(&path, mount.path("dir/renamed")).unwrap();
            fs::remove_file(mount.path("dir/renamed")).unwrap();
        }
        let asked = (opens() - before.0, count(&["GETATTR"]) - before.1, count(&["GETXATTR"]) - before.2);
        assert_eq!(asked, (0, 50 * attributes, 50 * capabilities), "{}", mount.handle().stats().to_text());
        // A missing name is looked up once.
        let lookups = count(&["LOOKUP"]);
        assert!((0..5).all(|_| !mount.path("dir/missing").exists()));
        assert_eq!(count(&["LOOKUP"]) - lookups, 1);
        // The inodes are forgotten with their names.
        let forgotten = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            mount.handle().stats().nodes < 10
        });
        assert!(forgotten, "{}", mount.handle().stats().nodes);
        mount.unmount();
    }
}

/// Access control lists cost who is not the owner a request for each inode that he uses, and for a mount's root, which the
/// kernel keeps none of, one each time: they are served unasked to who owns the root and shares it with nobody.
#[test]
fn access_control_lists_are_asked_for_by_strangers() {
    skip_without_mounts!();
    let give = |mount: &Mounted, path: &str, user| {
        unix::chown(mount.path(path), Some(unix::Uid::from_raw(user)), None).unwrap();
    };
    for (allow_other, acl, strangers_root, files, again) in [
        (false, None, false, 11, 0),
        (false, None, true, 0, 0),
        (true, None, false, 0, 0),
        (false, Some(false), false, 0, 0),
        (true, Some(true), false, 11, 0),
        (true, Some(true), true, 21, 10),
    ] {
        let options = || Options { allow_other, acl, ..Options::default() };
        let mount = Mounted::new(&MkfsOptions::default(), MountOptions::default(), options());
        fs::create_dir(mount.path("dir")).unwrap();
        for i in 0..10 {
            fs::write(mount.path(&format!("dir/{i}")), b"content").unwrap();
        }
        let mount = mount.remount(options());
        let open = |mount: &Mounted| {
            let before = mount.requests("GETXATTR");
            assert!((0..10).all(|i| File::open(mount.path(&format!("dir/{i}"))).is_ok()));
            mount.requests("GETXATTR") - before
        };
        assert_eq!(open(&mount), 0, "the owner");
        (0..10).for_each(|i| give(&mount, &format!("dir/{i}"), 1000));
        give(&mount, "dir", 1000);
        give(&mount, "", if strangers_root { 1000 } else { 0 });
        let mount = mount.remount(options());
        let said = format!("allow_other {allow_other}, acl {acl:?}, a stranger's root {strangers_root}");
        assert_eq!((open(&mount), open(&mount)), (files, again), "{said}");
        mount.unmount();
    }
}

#[test]
fn sequential_readers_send_large_requests() {
    skip_without_mounts!();
    for (max_readahead, requests) in [(4 << 20, 4..=14), (64 << 10, 60..=130)] {
        let mount = mounted();
        fs::write(mount.path("file"), vec![1; 8 << 20]).unwrap();
        let mount = mount.remount(Options { max_readahead, ..Options::default() });
        let device = fs::metadata(mount.root()).unwrap().dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let suffix = if mount.fs_type().starts_with("fuseblk") { "-fuseblk" } else { "" };
        let setting = format!("/sys/class/bdi/{major}:{minor}{suffix}/read_ahead_kb");
        if let Err(error) = File::options().write(true).open(&setting) {
            println!("skipped: {setting} cannot be changed here: {error}");
            mount.unmount();
            return;
        }
        assert_eq!(fs::read_to_string(&setting).unwrap().trim(), (max_readahead >> 10).to_string());
        assert!(fs::read(mount.path("file")).unwrap().iter().all(|byte| *byte == 1));
        assert!(requests.contains(&mount.requests("READ")), "{}", mount.handle().stats().to_text());
        mount.unmount();
    }
}

/// `find -type f` wants names, `du` attributes, and the kernel does not say which of them asks.
#[test]
fn who_lists_is_told_what_it_will_ask_for() {
    skip_without_mounts!();
    let mount = mounted();
    for i in 0..200 {
        fs::create_dir_all(mount.path(&format!("dir{}", i % 5))).unwrap();
        fs::write(mount.path(&format!("dir{}/{i}", i % 5)), b"content").unwrap();
    }
    let mount = mount.remount(Options::default());
    let list = |dir: &str| fs::read_dir(mount.path(dir)).unwrap().map(Result::unwrap).collect::<Vec<_>>();
    let mut found = 0;
    for dir in list("") {
        assert!(dir.file_type().unwrap().is_dir());
        let files = list(dir.file_name().to_str().unwrap());
        found += files.iter().filter(|file| file.file_type().unwrap().is_file()).count();
    }
    assert_eq!(found, 200);
    let told = mount.handle().stats();
    assert_eq!((told.nodes, mount.requests("LOOKUP")), (5, 0), "{}", told.to_text());
    // Whoever looks files up gets them with the names from then on.
    let sizes = |dir: &str| list(dir).iter().map(|file| file.metadata().unwrap().len()).sum::<u64>();
    assert_eq!(sizes("dir0"), 40 * 7);
    let lookups = mount.requests("LOOKUP");
    assert!(lookups > 0 && lookups <= 40, "{lookups}");
    assert_eq!((sizes("dir1"), sizes("dir2")), (40 * 7, 40 * 7));
    assert_eq!(mount.requests("LOOKUP"), lookups);
    // Whoever reads what it lists finds the content of the next files in memory.
    let mount = mount.remount(Options::default());
    let list = |dir: &str| fs::read_dir(mount.path(dir)).unwrap().map(Result::unwrap).collect::<Vec<_>>();
    let read = |dir: &str| {
        assert!(list(dir).iter().all(|file| fs::read(file.path()).unwrap() == b"content"));
        let counters = mount.handle().fs().counters();
        counters.iter().find(|(name, _)| *name == "data_reads").unwrap().1
    };
    let first = read("dir0");
    assert_eq!(first, 40);
    assert_eq!(["dir1", "dir2"].map(read), [first; 2]);
    mount.unmount();
}

#[test]
fn statistics_are_files() {
    skip_without_mounts!();
    let mount = mounted();
    fs::write(mount.path("file"), b"content").unwrap();
    let listed: Vec<_> = fs::read_dir(mount.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(listed, ["file"]);
    let mut files: Vec<_> =
        fs::read_dir(mount.path(".myriad")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["counters", "stats"]);
    let written = |text: &str| text.lines().any(|line| line.starts_with("WRITE "));
    assert!(written(&fs::read_to_string(mount.path(".myriad/stats")).unwrap()));
    let creates = || {
        let text = fs::read_to_string(mount.path(".myriad/counters")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("creates ")).unwrap().to_owned();
        line.parse::<u64>().unwrap()
    };
    let before = creates();
    fs::write(mount.path("another"), b"").unwrap();
    assert_eq!(creates(), before + 1);
    let statx = unix::statx(CWD, mount.path(".myriad/stats"), AtFlags::empty(), StatxFlags::BTIME).unwrap();
    assert_eq!(statx.stx_mode & 0o777, 0o444);
    assert!(fs::write(mount.path(".myriad/new"), b"").is_err());
    assert!(fs::rename(mount.path("file"), mount.path(".myriad")).is_err());
    assert!(fs::create_dir(mount.path(".myriad")).is_err());
    // A file of the volume's own goes first.
    let mount = mount.remount(Options { stats_dir: false, ..Options::default() });
    fs::write(mount.path(".myriad"), b"mine").unwrap();
    let mount = mount.remount(Options::default());
    assert_eq!(fs::read(mount.path(".myriad")).unwrap(), b"mine");
}

#[test]
fn small_blocks_and_writeback() {
    skip_without_mounts!();
    let mkfs = MkfsOptions { block_size: 512, ..MkfsOptions::default() };
    let options = Options { writeback: true, allow_other: true, ..Options::default() };
    let mount = Mounted::new(&mkfs, MountOptions::default(), options);
    let mut file = File::create(mount.path("file")).unwrap();
    for i in 0..2000 {
        writeln!(file, "line {i}").unwrap();
    }
    drop(file);
    assert!(mount.requests("WRITE") < 100, "the kernel gathers small writes");
    let mount = mount.remount(Options::default());
    let text = fs::read_to_string(mount.path("file")).unwrap();
    assert_eq!((text.lines().count(), text.lines().last()), (2000, Some("line 1999")));
}

/// A file that leaves no room for these bytes, open.
fn fill(mount: &Mounted, bytes: &[u8]) -> File {
    let mut file = File::create(mount.path("file")).unwrap();
    let error = (0..1000).find_map(|_| file.write_all(bytes).err()).expect("256 MiB hold no 1000");
    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    file
}

#[test]
fn a_full_volume_says_so_at_the_write() {
    skip_without_mounts!();
    let mount = mounted();
    let bytes = vec![7; 1 << 20];
    drop(fill(&mount, &bytes));
    fs::remove_file(mount.path("file")).unwrap();
    fs::write(mount.path("file"), &bytes).unwrap();
    mount.unmount();
}

/// The kernel says that it is done with a file after it was removed, and others ask for its space in between.
#[test]
fn the_space_of_a_removed_file_is_waited_for() {
    skip_without_mounts!();
    let mount = mounted();
    let bytes = vec![7; 1 << 20];
    let file = fill(&mount, &bytes);
    fs::remove_file(mount.path("file")).unwrap();
    let closes = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        drop(file);
    });
    fs::write(mount.path("other"), &bytes).unwrap();
    closes.join().unwrap();
    // Not for ever: somebody may have it open for long.
    let file = fill(&mount, &bytes);
    fs::remove_file(mount.path("file")).unwrap();
    let refused = fs::write(mount.path("third"), &bytes).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    drop(file);
    mount.unmount();
}

#[test]
fn the_request_log_has_a_line_for_each() {
    skip_without_mounts!();
    #[derive(Clone, Default)]
    struct Sink(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mount = mounted();
    let sink = Sink::default();
    mount.handle().set_request_log(Some(Box::new(sink.clone())));
    fs::create_dir(mount.path("tab\there")).unwrap();
    mount.handle().set_request_log(None);
    fs::create_dir(mount.path("unseen")).unwrap();
    let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("MKDIR unique=") && text.contains(r#"name="tab\there" -> 128 bytes"#), "{text}");
    assert!(!text.contains("unseen"));
}

/// Pieces of a long direct write come at the same time, and each was put at the end that the file had when it came.
#[test]
fn what_is_appended_lies_where_the_kernel_has_it() {
    const LENGTH: usize = (1 << 20) + (64 << 10);
    skip_without_mounts!();
    let mount = mounted_with(Options { threads: 4, ..Options::default() });
    let path = mount.path("file");
    let append = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::DIRECT;
    let file = File::from(open(&path, append).unwrap());
    let mut buffer = myriad_device::AlignedBuf::zeroed(LENGTH);
    let rounds = 100;
    for round in 0..rounds {
        for (block, bytes) in buffer.chunks_exact_mut(4096).enumerate() {
            bytes[..8].copy_from_slice(&((round << 32 | block) as u64).to_le_bytes());
        }
        assert_eq!(rustix::io::write(&file, &buffer).unwrap(), LENGTH);
    }
    for round in 0..rounds {
        assert_eq!(rustix::io::pread(&file, &mut buffer[..], (round * LENGTH) as u64).unwrap(), LENGTH);
        for (block, bytes) in buffer.chunks_exact(4096).enumerate() {
            let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert_eq!(found, (round << 32 | block) as u64, "round {round}, block {block}");
        }
    }
    // Who appends may do without it for once (RWF_NOAPPEND, Linux 6.9).
    let once = rustix::io::ReadWriteFlags::from_bits_retain(0x20);
    buffer[..4096].fill(7);
    match rustix::io::pwritev2(&file, &[std::io::IoSlice::new(&buffer[..4096])], 4096, once) {
        Err(Errno::OPNOTSUPP) => println!("skipped: this kernel knows no RWF_NOAPPEND"),
        written => {
            assert_eq!(written.unwrap(), 4096);
            assert_eq!(rustix::io::pread(&file, &mut buffer[..4096], 4096).unwrap(), 4096);
            assert!(buffer[..4096] == [7; 4096]);
            assert_eq!(file.metadata().unwrap().len(), (rounds * LENGTH) as u64);
        }
    }
    drop(file);
    mount.unmount();
}

/// A rename may leave a whiteout under the old name: an overlay needs that of the file system that it changes.
#[test]
fn an_overlay_lies_on_a_mount() {
    skip_without_mounts!();
    both(|mount| {
        let (source, target) = (mount.path("source"), mount.path("target"));
        fs::write(&source, b"content").unwrap();
        let rename = |flags| unix::renameat_with(CWD, &source, CWD, &target, flags);
        assert_eq!(rename(RenameFlags::WHITEOUT | RenameFlags::EXCHANGE), Err(Errno::INVAL));
        rename(RenameFlags::WHITEOUT | RenameFlags::NOREPLACE).unwrap();
        let left = fs::symlink_metadata(&source).unwrap();
        assert_eq!((left.mode(), left.rdev(), left.nlink()), (0o020_000, 0, 1));
        assert_eq!(fs::read(&target).unwrap(), b"content");
        assert_eq!(rename(RenameFlags::WHITEOUT | RenameFlags::NOREPLACE), Err(Errno::EXIST));
        rename(RenameFlags::WHITEOUT).unwrap();
        assert_eq!(fs::symlink_metadata(&target).unwrap().mode(), 0o020_000, "one whiteout in another's place");

        let folder = tempfile::tempdir().unwrap();
        let (lower, merged) = (folder.path().join("lower"), folder.path().join("merged"));
        for directory in [&lower, &merged, &mount.path("upper"), &mount.path("work")] {
            fs::create_dir(directory).unwrap();
        }
        fs::create_dir(lower.join("directory")).unwrap();
        for name in ["changed", "removed", "moved", "directory/file"] {
            fs::write(lower.join(name), name).unwrap();
        }
        let show = |path: &Path| path.to_str().unwrap().to_owned();
        let (upper, work) = (mount.path("upper"), mount.path("work"));
        let options = format!("lowerdir={},upperdir={},workdir={}", show(&lower), show(&upper), show(&work));
        let mut command = std::process::Command::new("mount");
        command.args(["-t", "overlay", "overlay", "-o", &options]).arg(&merged);
        let mounted = command.output().unwrap();
        if !mounted.status.success() {
            // Not every kernel has it; one that has says in its log what it lacks.
            let known = fs::read_to_string("/proc/filesystems").unwrap();
            assert!(!known.contains("\toverlay\n"), "{}", String::from_utf8_lossy(&mounted.stderr));
            return println!("skipped: this kernel has no overlay file system");
        }
        let worked = std::panic::catch_unwind(|| {
            fs::write(merged.join("changed"), b"anew").unwrap();
            fs::remove_file(merged.join("removed")).unwrap();
            fs::rename(merged.join("moved"), merged.join("directory/moved")).unwrap();
            fs::remove_file(merged.join("directory/file")).unwrap();
            let names = |directory: &Path| {
                let mut names: Vec<_> =
                    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
                names.sort();
                names
            };
            assert_eq!(names(&merged), ["changed", "directory"]);
            assert_eq!(names(&merged.join("directory")), ["moved"]);
            assert_eq!(fs::read(merged.join("changed")).unwrap(), b"anew");
            assert_eq!(fs::read(merged.join("directory/moved")).unwrap(), b"moved");
        });
        rustix::mount::unmount(&merged, rustix::mount::UnmountFlags::DETACH).unwrap();
        if let Err(panic) = worked {
            std::panic::resume_unwind(panic);
        }
        assert_eq!(fs::symlink_metadata(mount.path("upper/removed")).unwrap().mode(), 0o020_000);
        let mount = mount.remount(Options::default());
        assert_eq!(fs::symlink_metadata(mount.path("upper/moved")).unwrap().rdev(), 0);
    });
}
