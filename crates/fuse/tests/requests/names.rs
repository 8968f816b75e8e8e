//! Names, directories and what is seen of them.

use super::{both, open, read_write};
use crate::common::{self, mounted};
use crate::skip_without_mounts;
use myriad_engine::Cred;
use myriad_fuse::Options;
use rustix::fs::{self as unix, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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
