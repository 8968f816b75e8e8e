//! What the kernel asks for, and what it need not; and what is told of that.

use crate::common::{self, Mounted, mounted};
use crate::skip_without_mounts;
use myriad_engine::{MkfsOptions, MountOptions};
use myriad_fuse::Options;
use rustix::fs::{self as unix, AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

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
