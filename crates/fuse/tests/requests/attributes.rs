//! Attributes, flags and permissions.

use super::{both, open};
use crate::common::{self, Mounted, mounted, mounted_with};
use crate::skip_without_mounts;
use myriad_engine::{AccessTimes, Cred, MkfsOptions, MountOptions, OpenOptions};
use myriad_fuse::Options;
use rustix::fs::{self as unix, AtFlags, CWD, IFlags, Mode, OFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

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
    // Read by a copy inside the server, of which the kernel does not expect that.
    let copy = || {
        let (source, target) = (File::open(&path).unwrap(), File::create(mount.path("copy")).unwrap());
        assert_eq!(unix::copy_file_range(source, None, target, None, 7), Ok(7));
    };
    let after_another_day = pass(DAY);
    copy();
    assert_eq!(atime("file"), after_another_day);
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
    assert_eq!((atime(&mount, "file"), atime(&mount, "dir")), (after_another_day, later));
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
    // Nothing of it changes while the kernel has the mount for reading only.
    for (flags, moves) in [(MountFlags::RDONLY, false), (MountFlags::empty(), true)] {
        let end = Instant::now() + Duration::from_secs(60);
        while let Err(error) = mount_remount(mount.root(), flags, "") {
            // A program that another test is just starting may have inherited a file.
            assert!(error == Errno::BUSY && Instant::now() < end, "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
        mount.handle().remounted().unwrap();
        let later = pass(1);
        fs::read(mount.path("file")).unwrap();
        third = if moves { later } else { third };
        // Not as the kernel has it, which expects no change then.
        let session = mount.handle().fs().session(Cred::root());
        assert_eq!(session.stat("file").unwrap().atime, third * SECOND, "{flags:?}");
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
