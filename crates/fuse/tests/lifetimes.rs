//! Files without names, mounts without servers, servers that die.

mod common;

use common::{Mounted, assert_sound, mounted, mounted_with};
use myriad_engine::{Fs, MkfsOptions, MountOptions};
use myriad_fuse::Options;
use rustix::fs::{self as unix, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

#[test]
fn an_open_file_outlives_its_name() {
    skip_without_mounts!();
    for no_open in [true, false] {
        let mount = mounted_with(Options { no_open, ..Options::default() });
        let totals = || unix::statvfs(mount.root()).unwrap();
        fs::write(mount.path("warm"), b"").unwrap();
        let before = (totals().f_files - totals().f_ffree, totals().f_bfree);
        let mut file = OpenFile::make(&mount.path("file"));
        fs::remove_file(mount.path("file")).unwrap();
        let mut replaced = OpenFile::make(&mount.path("replaced"));
        fs::write(mount.path("new"), b"new").unwrap();
        fs::rename(mount.path("new"), mount.path("replaced")).unwrap();
        for open in [&mut file, &mut replaced] {
            open.check();
            assert_eq!(open.0.metadata().unwrap().nlink(), 0);
            // Written to, emptied, and synced to the device, it still has nothing to do with names.
            open.0.set_len(0).unwrap();
            open.0.write_all_at(&[5; 100_000], 10).unwrap();
            open.0.sync_all().unwrap();
            assert_eq!(open.0.metadata().unwrap().len(), 100_010);
        }
        // Its number goes to nobody else meanwhile.
        let ino = file.0.metadata().unwrap().ino();
        for i in 0..200 {
            fs::write(mount.path(&format!("f{i}")), b"other").unwrap();
            assert_ne!(fs::metadata(mount.path(&format!("f{i}"))).unwrap().ino(), ino);
        }
        for i in 0..200 {
            fs::remove_file(mount.path(&format!("f{i}"))).unwrap();
        }
        let mut byte = [0];
        file.0.read_exact_at(&mut byte, 50_000).unwrap();
        assert_eq!(byte, [5]);
        drop((file, replaced));
        fs::remove_file(mount.path("replaced")).unwrap();
        unix::fsync(File::open(mount.root()).unwrap()).unwrap();
        // All of it comes back: FORGET is not waited for, so look until it has come.
        let all_back = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            (totals().f_files - totals().f_ffree, totals().f_bfree).0 == before.0 && totals().f_bfree + 8 >= before.1
        });
        assert!(all_back, "{before:?} {} {}", totals().f_ffree, totals().f_bfree);
        mount.unmount();
    }
}

/// A file with content, open.
struct OpenFile(File);

impl OpenFile {
    fn make(path: &Path) -> Self {
        let mut file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.write_all(b"still here").unwrap();
        Self(file)
    }

    fn check(&mut self) {
        let mut text = String::new();
        self.0.seek(SeekFrom::Start(0)).unwrap();
        self.0.read_to_string(&mut text).unwrap();
        assert_eq!(text, "still here");
    }
}

#[test]
fn a_working_directory_may_go() {
    skip_without_mounts!();
    let mount = mounted();
    fs::create_dir(mount.path("dir")).unwrap();
    let dir = File::open(mount.path("dir")).unwrap();
    fs::remove_dir(mount.path("dir")).unwrap();
    for i in 0..100 {
        fs::create_dir(mount.path(&format!("other{i}"))).unwrap();
    }
    assert_eq!(unix::fstat(&dir).unwrap().st_nlink, 0);
    let made = unix::openat(&dir, "new", OFlags::CREATE | OFlags::RDWR, Mode::from_raw_mode(0o600));
    assert_eq!(made.err(), Some(Errno::NOENT));
    assert_eq!(unix::Dir::read_from(&dir).unwrap().filter(|entry| entry.is_ok()).count(), 0);
    drop(dir);
    mount.unmount();
}

#[test]
fn files_without_names_may_get_one() {
    skip_without_mounts!();
    for no_open in [true, false] {
        let mount = mounted_with(Options { no_open, ..Options::default() });
        fs::create_dir(mount.path("dir")).unwrap();
        let tmpfile = |flags| {
            let fd = unix::open(mount.path("dir"), OFlags::TMPFILE | OFlags::RDWR | flags, Mode::from_raw_mode(0o640));
            File::from(fd.unwrap())
        };
        let named = tmpfile(OFlags::empty());
        named.write_all_at(b"content", 0).unwrap();
        assert_eq!((named.metadata().unwrap().nlink(), named.metadata().unwrap().mode()), (0, 0o100640));
        unix::linkat(&named, "", CWD, mount.path("dir/named"), AtFlags::EMPTY_PATH).unwrap();
        assert_eq!(named.metadata().unwrap().nlink(), 1);
        // O_EXCL: never.
        let exclusive = tmpfile(OFlags::EXCL);
        let linked = unix::linkat(&exclusive, "", CWD, mount.path("dir/other"), AtFlags::EMPTY_PATH);
        assert_eq!(linked, Err(Errno::NOENT));
        drop((named, exclusive));
        assert_eq!(fs::read(mount.path("dir/named")).unwrap(), b"content");
        let mount = mount.remount(Options::default());
        assert_eq!(fs::read(mount.path("dir/named")).unwrap(), b"content");
        assert_eq!(fs::read_dir(mount.path("dir")).unwrap().count(), 1);
    }
}

/// Held by who drops the kernel's caches, or counts on what is in them.
static CACHES: Mutex<()> = Mutex::new(());

#[test]
fn memory_comes_back_with_forget() {
    skip_without_mounts!();
    let _caches = CACHES.lock().unwrap();
    let mount = mounted();
    for i in 0..500 {
        fs::write(mount.path(&format!("file{i}")), b"x").unwrap();
    }
    assert!(mount.handle().stats().nodes >= 500);
    // The kernel forgets inodes when it is told to drop what it caches.
    fs::write("/proc/sys/vm/drop_caches", b"2").unwrap();
    let few = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        mount.handle().stats().nodes < 100
    });
    assert!(few, "{} nodes", mount.handle().stats().nodes);
    // And learns of them anew.
    assert_eq!(fs::read(mount.path("file77")).unwrap(), b"x");
}

#[test]
fn file_handles_outlive_what_the_kernel_remembers() {
    skip_without_mounts!();
    let _caches = CACHES.lock().unwrap();
    let mount = mounted();
    fs::write(mount.path("file"), b"content").unwrap();
    fs::create_dir(mount.path("directory")).unwrap();
    // As a file server over the network does it; by a program, without unsafe code here.
    let script = "import ctypes,os,sys\nl=ctypes.CDLL(None,use_errno=True)\n\
        h=ctypes.create_string_buffer(136)\nh[0:4]=(128).to_bytes(4,'little')\nm=ctypes.c_int()\n\
        assert l.name_to_handle_at(-100,sys.argv[1].encode(),h,ctypes.byref(m),0)==0,ctypes.get_errno()\n\
        open('/proc/sys/vm/drop_caches','w').write('2')\n\
        d=os.open(sys.argv[2],os.O_RDONLY)\nf=l.open_by_handle_at(d,h,os.O_RDONLY)\nassert f>=0,ctypes.get_errno()\n\
        assert os.read(f,9)==b'content'\nos.close(f)\nos.unlink(sys.argv[1])\n\
        f=l.open_by_handle_at(d,h,os.O_RDONLY)\nassert f==-1 and ctypes.get_errno()==116,(f,ctypes.get_errno())\n\
        h[0:4]=(128).to_bytes(4,'little')\n\
        assert l.name_to_handle_at(-100,sys.argv[3].encode(),h,ctypes.byref(m),0)==0,ctypes.get_errno()\n\
        open('/proc/sys/vm/drop_caches','w').write('2')\n\
        f=l.open_by_handle_at(d,h,os.O_RDONLY)\nassert f>=0,ctypes.get_errno()\n\
        assert os.listdir(sys.argv[2])==['directory'],os.listdir(sys.argv[2])\n";
    // Of a directory, the kernel looks for those above it as well, up to the root.
    let [file, directory] = ["file", "directory"].map(|name| mount.path(name));
    let run = Command::new("python3").args(["-c", script]).args([&file, &mount.root(), &directory]).output();
    match run {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => println!("skipped: python3: {error}"),
    }
    mount.unmount();
}

#[test]
fn a_mount_that_is_never_served_goes_away() {
    skip_without_mounts!();
    let folder = tempfile::tempdir().unwrap();
    let (image, point) = (folder.path().join("image"), folder.path().join("mount"));
    Fs::format(&image, Some(64 << 20), &MkfsOptions::default()).unwrap();
    fs::create_dir(&point).unwrap();
    let open = || Fs::open(&image, MountOptions::default()).unwrap();
    let mount = myriad_fuse::mount(open(), &point, Options::default()).unwrap();
    let is_mounted = || fs::read_to_string("/proc/mounts").unwrap().contains(&*point.to_string_lossy());
    assert!(is_mounted());
    drop(mount);
    assert!(!is_mounted());
    // What cannot be mounted leaves the volume free for another try.
    let error = myriad_fuse::mount(open(), &folder.path().join("missing"), Options::default()).err().unwrap();
    assert!(error.to_string().contains("missing"), "{error}");
    let error = myriad_fuse::mount(open(), &image, Options::default()).err().unwrap();
    assert!(error.to_string().contains("must be a directory"), "{error}");
    let options = Options { kernel_options: vec!["exotic".into()], ..Options::default() };
    assert!(myriad_fuse::mount(open(), &point, options).is_err());
    assert!(!is_mounted());
    assert_sound(&image);
}

/// The kernel has the mount under its new path then; at the old one nothing was found, and the mount could not be ended.
#[test]
fn a_mount_below_a_renamed_directory_is_unmounted() {
    skip_without_mounts!();
    let folder = tempfile::tempdir().unwrap();
    let [image, old, new] = ["image", "old", "new"].map(|name| folder.path().join(name));
    Fs::format(&image, Some(64 << 20), &MkfsOptions::default()).unwrap();
    fs::create_dir_all(old.join("mount")).unwrap();
    let fs = Fs::open(&image, MountOptions::default()).unwrap();
    let mount = myriad_fuse::mount(fs, &old.join("mount"), Options::default()).unwrap();
    let handle = mount.handle();
    let server = std::thread::spawn(move || mount.serve());
    fs::rename(&old, &new).unwrap();
    fs::write(new.join("mount/file"), b"content").unwrap();
    let mut unmounted = handle.unmount(false);
    for _ in 0..1000 {
        // As in `Mounted::end`: children that are just beginning.
        let is_busy = matches!(&unmounted, Err(error) if Errno::from_io_error(error) == Some(Errno::BUSY));
        if !is_busy {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        unmounted = handle.unmount(false);
    }
    if unmounted.is_err() {
        rustix::mount::unmount(new.join("mount"), rustix::mount::UnmountFlags::DETACH).unwrap();
    }
    server.join().unwrap().unwrap();
    unmounted.unwrap();
    // Its device's number may be another one's by now.
    assert_eq!(Errno::from_io_error(&handle.unmount(false).unwrap_err()), Some(Errno::INVAL));
    assert_sound(&image);
}

/// Set in a child process: where it mounts what.
const CHILD_IMAGE: &str = "MYRIAD_TEST_SERVE_IMAGE";
const CHILD_MOUNT: &str = "MYRIAD_TEST_SERVE_MOUNT";

/// Not a test of its own: in a child process, it serves the mount that its parent kills.
#[test]
fn child_serves() {
    let (Some(image), Some(point)) = (std::env::var_os(CHILD_IMAGE), std::env::var_os(CHILD_MOUNT)) else { return };
    let fs = Fs::open(Path::new(&image), MountOptions::default()).unwrap();
    let mount = myriad_fuse::mount(fs, Path::new(&point), Options::default()).unwrap();
    println!("mounted");
    mount.serve().unwrap();
}

#[test]
fn a_killed_server_leaves_a_volume_that_mounts_again() {
    skip_without_mounts!();
    let folder = tempfile::tempdir().unwrap();
    let (image, point) = (folder.path().join("image"), folder.path().join("mount"));
    Fs::format(&image, Some(256 << 20), &MkfsOptions::default()).unwrap();
    fs::create_dir(&point).unwrap();
    for round in 0..3 {
        // The mount point is dead from the second round on; mounting takes the dead mount away.
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_serves", "--exact", "--nocapture"])
            .envs([(CHILD_IMAGE, &image), (CHILD_MOUNT, &point)])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("mounted")));
        for i in 0..300 {
            fs::write(point.join(format!("file{round}-{i}")), vec![i as u8; 5000]).unwrap();
        }
        if round > 0 {
            assert_eq!(fs::read(point.join("synced0")).unwrap(), b"synced");
        }
        let synced = point.join(format!("synced{round}"));
        fs::write(&synced, b"synced").unwrap();
        File::open(&synced).unwrap().sync_all().unwrap();
        let orphan = File::create_new(point.join("orphan")).unwrap();
        orphan.write_all_at(&[1; 100_000], 0).unwrap();
        fs::remove_file(point.join("orphan")).unwrap();
        // The orphan is on the device, and has no name. And so is all else: as it says in docs/design/mount.md, nothing but a
        // sync of the root reaches files that nobody synced. It reached their names only, and left them empty.
        File::open(&point).unwrap().sync_all().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // The latter two if the kernel has not taken down its end of the ring yet.
        let error = fs::metadata(&point).unwrap_err();
        assert!(
            matches!(Errno::from_io_error(&error), Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)),
            "{error}"
        );
        drop(orphan);
    }
    let mount = Mounted::again(folder, MountOptions::default(), Options::default());
    for round in 0..3 {
        assert_eq!(fs::read(mount.path(&format!("synced{round}"))).unwrap(), b"synced");
        for i in 0..300 {
            assert!(fs::read(mount.path(&format!("file{round}-{i}"))).unwrap() == vec![i as u8; 5000], "{round} {i}");
        }
    }
    let used = |mount: &Mounted| {
        let total = unix::statvfs(mount.root()).unwrap();
        total.f_files - total.f_ffree
    };
    let names = fs::read_dir(mount.root()).unwrap().count() as u64;
    // One more: the root.
    assert_eq!(used(&mount), names + 1, "orphans were reclaimed");
    mount.unmount();
}

#[test]
fn a_user_without_rights_mounts_by_the_helper() {
    skip_without_mounts!();
    const NOBODY: u32 = 65534;
    if let Some(reason) = common::for_all::why_no_helper() {
        return println!("skipped: {reason}");
    }
    let folder = tempfile::tempdir().unwrap();
    if let Err(reason) = common::for_all::let_all_mount(folder.path()) {
        println!("skipped: {reason}");
        return;
    }
    // A copy of this program where that user can reach it.
    let [image, point, program] = ["image", "a,b\\c", "program"].map(|name| folder.path().join(name));
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    Fs::format(&image, Some(64 << 20), &MkfsOptions { root_uid: NOBODY, ..MkfsOptions::default() }).unwrap();
    fs::create_dir(&point).unwrap();
    for path in [&image, &point] {
        unix::chown(path, Some(unix::Uid::from_raw(NOBODY)), Some(unix::Gid::from_raw(NOBODY))).unwrap();
    }
    unix::chmod(folder.path(), Mode::from_raw_mode(0o755)).unwrap();
    let as_user = |program: &Path| {
        let mut command = Command::new(program);
        std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
        std::os::unix::process::CommandExt::gid(&mut command, NOBODY);
        command
    };
    let mut server = as_user(&program)
        .args(["child_serves", "--exact", "--nocapture"])
        .envs([(CHILD_IMAGE, &image), (CHILD_MOUNT, &point)])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("mounted")));
    let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let escaped = point.to_str().unwrap().replace('\\', "\\134");
    let ours = table.lines().find(|line| line.split(' ').nth(1) == Some(&*escaped));
    let (shown, more) = ("fuse.myriad rw,nosuid,nodev,relatime,user_id=65534,", ",max_read=1048576");
    assert!(ours.is_some_and(|line| line.contains(shown) && line.contains(more)), "{table}");
    // It is that user's alone; not even the super-user looks in.
    assert_eq!(fs::metadata(&point).unwrap_err().raw_os_error(), Some(Errno::ACCESS.raw_os_error()));
    let script = "cd \"$0\" && echo text > file && chmod 400 file && ! echo more 2> /dev/null >> file && cat file";
    let output = as_user(Path::new("sh")).args(["-c", script]).arg(&point).output().unwrap();
    assert_eq!(output.stdout, b"text\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert!(as_user(Path::new("fusermount3")).arg("-u").arg(&point).status().unwrap().success());
    assert!(server.wait().unwrap().success());
    assert_sound(&image);
}
