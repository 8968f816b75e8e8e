//! What the kernel passes on to a mount: everything to one of type `fuseblk`, and to one of type `fuse` neither sync(2) nor the
//! end of umount(2). The table of README.md, row by row.

mod common;

use common::{Mounted, assert_sound};
use myriad_device::{Access, FaultDevice, FaultOp, FaultSpan, FileDevice};
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, OpenOptions};
use myriad_fuse::{Kind, KindChoice, MountError, Options};
use rustix::fs as unix;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// A mount of one type that commits nothing of itself; `None` where it cannot be had.
fn mounted_as(kind: KindChoice) -> Option<Mounted> {
    let folder = tempfile::tempdir().unwrap();
    Fs::format(&folder.path().join("image"), Some(64 << 20), &MkfsOptions::default()).unwrap();
    fs::create_dir(folder.path().join("mount")).unwrap();
    let open = MountOptions { cache_size: 32 << 20, commit_interval_ms: 0, ..MountOptions::default() };
    let fs = Fs::open(&folder.path().join("image"), open).unwrap();
    serve_as(kind, folder, fs)
}

fn serve_as(kind: KindChoice, folder: TempDir, fs: Fs) -> Option<Mounted> {
    // Not KindChoice::FuseBlk: a host without loop devices is no failure.
    let choice = if kind == KindChoice::Fuse { kind } else { KindChoice::Auto };
    let mount = Mounted::serve(folder, fs, Options { kind: choice, ..Options::default() });
    match (kind, mount.handle().kind()) {
        (KindChoice::Fuse, Kind::Fuse { .. }) | (KindChoice::FuseBlk, Kind::FuseBlk) => Some(mount),
        (_, Kind::Fuse { because }) => {
            println!("skipped: no fuseblk here: {because}");
            mount.unmount();
            None
        }
        (_, Kind::FuseBlk) => panic!("plain fuse was asked for"),
    }
}

/// What a power cut at this moment would leave.
fn file_after_power_cut(mount: &Mounted, name: &str) -> Option<Vec<u8>> {
    let copy = tempfile::tempdir().unwrap();
    let image = copy.path().join("image");
    fs::copy(mount.image(), &image).unwrap();
    let options = MountOptions { cache_size: 32 << 20, ..MountOptions::default() };
    let fs = Fs::open(&image, options).unwrap();
    let session = fs.session(myriad_engine::Cred::root());
    let content = session
        .open(name.as_bytes(), myriad_engine::OpenOptions { read: true, ..Default::default() })
        .ok()
        .map(|file| {
            let mut bytes = vec![0; 100];
            let len = file.read_at(&mut bytes, 0).unwrap();
            bytes.truncate(len);
            bytes
        });
    drop(session);
    fs.close().unwrap();
    content
}

#[test]
fn sync_and_syncfs_make_everything_durable() {
    skip_without_mounts!();
    type Sync = fn(&Path);
    let syncs: [(&str, Sync); 2] =
        [("syncfs", |root| unix::syncfs(File::open(root).unwrap()).unwrap()), ("sync", |_| unix::sync())];
    for kind in [KindChoice::Fuse, KindChoice::FuseBlk] {
        let Some(mount) = mounted_as(kind) else { continue };
        let passes_sync = mount.handle().kind().passes_sync();
        assert_eq!(passes_sync, mount.handle().kind().why_no_sync().is_none());
        for (name, sync) in syncs {
            fs::write(mount.path(name), name).unwrap();
            let (before, expected) = (mount.requests("SYNCFS"), passes_sync.then(|| name.as_bytes().to_vec()));
            sync(&mount.root());
            assert_eq!(mount.requests("SYNCFS") > before, passes_sync, "{name} {kind:?}");
            assert_eq!(file_after_power_cut(&mount, name), expected, "{name} {kind:?}");
        }
        // What does in either case.
        fs::write(mount.path("fsync"), b"fsync").unwrap();
        File::open(mount.root()).unwrap().sync_all().unwrap();
        assert_eq!(file_after_power_cut(&mount, "fsync"), Some(b"fsync".to_vec()), "{kind:?}");
        mount.unmount();
    }
}

#[test]
fn umount_returns_when_the_volume_is_closed() {
    skip_without_mounts!();
    let Some(mut mount) = mounted_as(KindChoice::FuseBlk) else { return };
    for transport in [myriad_fuse::TransportChoice::Classic, myriad_fuse::TransportChoice::Auto] {
        mount = mount.remount(Options { transport, ..Options::default() });
        for i in 0..100 {
            fs::write(mount.path(&i.to_string()), vec![7; 10_000]).unwrap();
        }
        let closed = Arc::new(AtomicBool::new(false));
        let (told, fs) = (Arc::clone(&closed), mount.handle().fs().clone());
        mount.handle().on_closed(move || told.store(true, Ordering::SeqCst));
        rustix::mount::unmount(mount.root(), UnmountFlags::empty()).unwrap();
        // No waiting.
        assert!(closed.load(Ordering::SeqCst), "{transport:?}");
        assert!(matches!(fs.sync(), Err(myriad_engine::Error::Closed)));
        drop(fs);
        let (folder, served) = mount.ended();
        served.unwrap();
        assert_sound(&folder.path().join("image"));
        mount = Mounted::again(folder, MountOptions::default(), Options::default());
    }
    mount.unmount();
}

/// A thread had a file open for a moment when its mount ended: the volume of a mount of type `fuse` was not closed, and what had been
/// written since the last commit was gone.
#[test]
fn closing_waits_for_who_is_at_work() {
    skip_without_mounts!();
    for kind in [KindChoice::Fuse, KindChoice::FuseBlk] {
        let Some(mount) = mounted_as(kind) else { continue };
        fs::write(mount.path("file"), b"not synced").unwrap();
        let file = mount.handle().fs().session(Cred::root()).open("file", OpenOptions::READ).unwrap();
        let place = mount.root().canonicalize().unwrap();
        let at_work = std::thread::spawn(move || {
            while myriad_fuse::mounts::mounted_at(&place).unwrap().is_some() {
                std::thread::yield_now();
            }
            // The volume is being closed now, or soon.
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(file);
        });
        let mount = mount.remount(Options::default());
        assert_eq!(fs::read(mount.path("file")).unwrap(), b"not synced", "{kind:?}");
        assert!(!mount.handle().fs().info().recovered, "{kind:?}");
        at_work.join().unwrap();
        mount.unmount();
    }
}

/// umount(2) passes over the answer to DESTROY, so the end of serving says it.
#[test]
fn what_cannot_be_made_durable_is_an_error_of_syncfs_and_of_the_end() {
    skip_without_mounts!();
    let folder = tempfile::tempdir().unwrap();
    Fs::format(&folder.path().join("image"), Some(64 << 20), &MkfsOptions::default()).unwrap();
    fs::create_dir(folder.path().join("mount")).unwrap();
    let device = FileDevice::open(folder.path().join("image"), Access::ReadWrite).unwrap();
    let device = Arc::new(FaultDevice::new(device));
    let open = MountOptions { cache_size: 32 << 20, commit_interval_ms: 0, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, open).unwrap();
    let Some(mount) = serve_as(KindChoice::FuseBlk, folder, fs) else { return };
    fs::write(mount.path("file"), b"lost").unwrap();
    device.fail(FaultOp::Flush, 1, FaultSpan::Forever, Errno::IO.raw_os_error());
    if mount.handle().kind().passes_sync() {
        let root = File::open(mount.root()).unwrap();
        assert_eq!(unix::syncfs(&root), Err(Errno::IO));
    }
    rustix::mount::unmount(mount.root(), UnmountFlags::empty()).unwrap();
    let (_folder, served) = mount.ended();
    assert!(matches!(served, Err(myriad_fuse::ServeError::Close(_))), "{served:?}");
}

/// Its loop device is there for as long as the mount, and no longer, though it was never served.
#[test]
fn nothing_is_left_of_a_mount() {
    skip_without_mounts!();
    let folder = tempfile::tempdir().unwrap();
    let [image, point] = ["image", "mount"].map(|name| folder.path().join(name));
    Fs::format(&image, Some(64 << 20), &MkfsOptions::default()).unwrap();
    fs::create_dir(&point).unwrap();
    let source = image.to_str().unwrap();
    let handles = || {
        let devices = fs::read_dir("/sys/block").unwrap().flatten();
        let backing = devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
        backing.filter(|name| name.contains(source)).count()
    };
    let mount = |kind| {
        let fs = Fs::open(&image, MountOptions::default()).unwrap();
        myriad_fuse::mount(fs, &point, Options { source: source.into(), kind, ..Options::default() })
    };
    match mount(KindChoice::FuseBlk) {
        Err(MountError::FuseBlk(because)) => return println!("skipped: no fuseblk here: {because}"),
        unserved => {
            let unserved = unserved.unwrap();
            assert_eq!(handles(), 1);
            drop(unserved);
        }
    }
    assert_eq!(handles(), 0);
    assert!(!fs::read_to_string("/proc/mounts").unwrap().contains(source));
    // A source that no node can stand at is no obstacle to a mount, and named to those who insist.
    let long = "x".repeat(300);
    let fs = || Fs::open(&image, MountOptions::default()).unwrap();
    let options = |kind| Options { source: long.clone().into(), kind, ..Options::default() };
    let error = myriad_fuse::mount(fs(), &point, options(KindChoice::FuseBlk)).err().unwrap().to_string();
    assert!(error.contains("as fuseblk: ") && error.contains("File name too long"), "{error}");
    let plain = myriad_fuse::mount(fs(), &point, options(KindChoice::Auto)).unwrap();
    let said = plain.handle().kind().why_no_sync();
    assert!(said.as_ref().is_some_and(|said| said.contains("File name too long")), "{said:?}");
    drop(plain);
    assert_eq!(handles(), 0);
    assert_sound(&image);
}
