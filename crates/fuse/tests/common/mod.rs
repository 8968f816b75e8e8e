//! Mounts for tests: made in a temporary folder, served by a thread, gone when dropped, and checked then.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod for_all;

use myriad_check::{Options as CheckOptions, check};
use myriad_device::FileDevice;
use myriad_engine::{Fs, MkfsOptions, MountOptions};
use myriad_fuse::{Handle, Options, ServeError};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Why nothing can be mounted here, if so.
pub fn obstacle() -> Option<String> {
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        return Some(format!("/dev/fuse: {error}"));
    }
    let is_root = rustix::process::geteuid().is_root();
    (!is_root).then(|| "mounting takes root here".to_owned())
}

/// Returns from the test, saying why, where nothing can be mounted.
#[macro_export]
macro_rules! skip_without_mounts {
    () => {
        if let Some(reason) = common::obstacle() {
            println!("skipped: {reason}");
            return;
        }
    };
}

pub struct Mounted {
    folder: TempDir,
    handle: Handle,
    server: Option<JoinHandle<Result<(), ServeError>>>,
}

/// A volume of 256 MiB, mounted as most would.
pub fn mounted() -> Mounted {
    mounted_with(Options::default())
}

/// The same, but for these options, and for all users.
pub fn mounted_with(options: Options) -> Mounted {
    let options = Options { allow_other: true, ..options };
    Mounted::new(&MkfsOptions::default(), MountOptions::default(), options)
}

impl Mounted {
    pub fn new(mkfs: &MkfsOptions, open: MountOptions, options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Fs::format(&folder.path().join("image"), Some(256 << 20), mkfs).unwrap();
        std::fs::create_dir(folder.path().join("mount")).unwrap();
        Self::again(folder, open, options)
    }

    /// Mounts the image that is in the folder.
    pub fn again(folder: TempDir, open: MountOptions, options: Options) -> Self {
        let open = MountOptions { cache_size: 32 << 20, read_only: options.read_only, ..open };
        let fs = Fs::open(&folder.path().join("image"), open).unwrap();
        Self::serve(folder, fs, options)
    }

    /// Mounts an opened volume, whose image is in the folder.
    pub fn serve(folder: TempDir, fs: Fs, options: Options) -> Self {
        let options = Options { source: "the source".into(), ..options };
        let mount = myriad_fuse::mount(fs, &folder.path().join("mount"), options).unwrap();
        let handle = mount.handle();
        let server = std::thread::spawn(move || mount.serve());
        Self { folder, handle, server: Some(server) }
    }

    pub fn root(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    pub fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// As /proc/mounts has it.
    pub fn fs_type(&self) -> String {
        format!("{}.myriad", self.handle.kind().name())
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// How often a kind of request came.
    pub fn requests(&self, name: &str) -> u64 {
        self.handle.stats().requests.iter().find(|kind| kind.name == name).map_or(0, |kind| kind.count)
    }

    /// Unmounts, waits until the volume is closed, and mounts again.
    pub fn remount(self, options: Options) -> Self {
        Self::again(self.unmount(), MountOptions::default(), options)
    }

    /// Unmounts, waits until the volume is closed, and checks it.
    pub fn unmount(self) -> TempDir {
        let (folder, served) = self.end();
        served.unwrap();
        assert_sound(&folder.path().join("image"));
        folder
    }

    /// Unmounts, and waits until the volume is closed, as far as it can be.
    pub fn end(self) -> (TempDir, Result<(), ServeError>) {
        // A child that another test has just begun has, until it becomes another program, whatever was open then.
        let end = Instant::now() + Duration::from_secs(60);
        while let Err(error) = self.handle.unmount(false) {
            let is_busy = Errno::from_io_error(&error) == Some(Errno::BUSY);
            assert!(is_busy && Instant::now() < end, "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.ended()
    }

    /// Of a mount that was unmounted otherwise: waits until serving has ended.
    pub fn ended(mut self) -> (TempDir, Result<(), ServeError>) {
        let served = self.server.take().unwrap().join().unwrap();
        (std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap()), served)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A test that failed may have files open.
        if let Some(server) = self.server.take() {
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
            let _ = rustix::mount::unmount(self.root(), flags);
            let ended = server.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
                assert_sound(&self.image());
            }
        }
    }
}

/// The checker has nothing to say about an image.
pub fn assert_sound(image: &Path) {
    let device = FileDevice::open(image, myriad_device::Access::ReadOnly).unwrap();
    let report = check(Arc::new(device), None, &CheckOptions::default()).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
}
