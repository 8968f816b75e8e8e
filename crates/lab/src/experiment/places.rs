//! Targets by name, made anew for each cell and taken away after it.
//!
//! Volumes are made as the combination of a cell says. The kernel's file systems lie in images on loop devices with direct I/O, made by
//! `compare`'s own code. Each target has one image for all of its cells, whose blocks are written once, so that no cell pays for the host's
//! allocation; or each cell begins with one that is all a hole, so that all do. As root, all mounts are in a mount namespace of their own,
//! and end with it.

use crate::compare::kernel::{
    Attached, KernelProvider, Kind, no_loop_devices, not_installed, run_program, unmount_when_idle,
};
use crate::compare::{ensure_room, make_image};
use crate::disk::{PRESETS, Preset, Recorder, Traced};
use crate::provider::{Provider, SqliteProvider};
use crate::targets::in_process::InProcess;
use crate::targets::packed::{Packed, Packer};
use crate::targets::served::Served as Server;
use crate::targets::sqlite::Sqlite;
use crate::targets::sys_calls::{Serving, SysCalls};
use crate::targets::{Durability, Target};
use anyhow::{Context, Result, ensure};
use myriad_device::{Access, FileDevice, MemoryDevice};
use myriad_engine::options::{Options, TABLE};
use myriad_engine::{Clock, Discard, Fs};
use rustix::mount::MountFlags;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A kind of target.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// A volume in an image file, in this process.
    Process,
    /// A volume in memory, in this process, that takes the time of a modelled device.
    Modelled(&'static Preset),
    /// A volume in an image file, mounted.
    Mount,
    Kernel(Kind),
    /// ext4, served from user space by the library of e2fsprogs, which writes no journal.
    Fuse2fs,
    /// Made whole and then only read.
    Packed(Packer),
    Tmpfs,
    /// A directory where the images are made, on whatever file system that is.
    Folder,
    Sqlite,
}

/// What fuse2fs serves.
const FUSE2FS_KIND: Kind = Kind::Ext4NoJournal;
const KINDS: [Kind; 4] = [Kind::Ext4, Kind::Ext4NoJournal, Kind::Xfs, Kind::Btrfs];

impl Place {
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Process];
        all.extend(PRESETS.iter().map(Self::Modelled));
        all.push(Self::Mount);
        all.extend(KINDS.map(Self::Kernel));
        all.push(Self::Fuse2fs);
        all.extend(Packer::ALL.map(Self::Packed));
        all.extend([Self::Tmpfs, Self::Folder, Self::Sqlite]);
        all
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Modelled(preset) => preset.name,
            Self::Mount => "mount",
            Self::Kernel(kind) => kind.name(),
            Self::Fuse2fs => "fuse2fs",
            Self::Packed(packer) => packer.name(),
            Self::Tmpfs => "tmpfs",
            Self::Folder => "folder",
            Self::Sqlite => "sqlite",
        }
    }

    pub fn about(self) -> String {
        match self {
            Self::Process => "a volume in an image file, in this process".to_owned(),
            Self::Modelled(preset) => format!("a volume in this process, in the time of {}", preset.about),
            Self::Mount => "a volume in an image file, mounted: any program's system calls".to_owned(),
            Self::Kernel(kind) => {
                format!("the kernel's {} in an image file, on a loop device with direct I/O", kind.name())
            }
            Self::Fuse2fs => {
                "ext4 in an image file, served from user space by fuse2fs, which writes no journal".to_owned()
            }
            Self::Packed(Packer::Squashfs) => {
                "the kernel's SquashFS, a compressed image, for phases that read".to_owned()
            }
            Self::Packed(Packer::Dwarfs) => "DwarFS, a compressed image, for phases that read".to_owned(),
            Self::Tmpfs => "the kernel's tmpfs: no device, no durability".to_owned(),
            Self::Folder => "a directory below --folder, whatever file system that is; others may use it".to_owned(),
            Self::Sqlite => "a database of SQLite, a row a file".to_owned(),
        }
    }

    pub fn parse(name: &str) -> Result<Self, String> {
        Self::all().into_iter().find(|place| place.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::all().into_iter().map(Self::name).collect();
            format!("`{name}` is no target; there are {}", names.join(", "))
        })
    }

    /// Whether options of volumes say anything about it.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Process | Self::Modelled(_) | Self::Mount)
    }

    pub fn is_modelled(self) -> bool {
        matches!(self, Self::Modelled(_))
    }

    /// Whether requests can be recorded: the device is one of this process.
    pub fn can_be_recorded(self) -> bool {
        matches!(self, Self::Process | Self::Modelled(_))
    }

    /// Whether only phases that change nothing are measured.
    pub fn is_read_only(self) -> bool {
        matches!(self, Self::Packed(_))
    }

    /// Whether it wants a mount namespace, which root has.
    pub fn mounts(self) -> bool {
        !matches!(self, Self::Process | Self::Modelled(_) | Self::Folder)
    }

    /// Whether a program of its own could work in it: it has a path, and is not only read.
    pub fn has_directory(self) -> bool {
        matches!(self, Self::Mount | Self::Kernel(_) | Self::Fuse2fs | Self::Tmpfs | Self::Folder)
    }

    /// Why it cannot be measured here; `None`: it can.
    pub fn missing(self, volume_bytes: u64) -> Option<String> {
        let is_root = rustix::process::geteuid().is_root();
        match self {
            Self::Kernel(kind) => kind.missing(volume_bytes),
            Self::Tmpfs | Self::Packed(_) | Self::Fuse2fs if !is_root => Some("needs root, for a mount".to_owned()),
            Self::Folder if !is_root => Some("needs root, to drop the kernel's caches".to_owned()),
            Self::Packed(packer) => packer.missing(),
            Self::Fuse2fs => not_installed("fuse2fs", "fuse2fs").or_else(|| FUSE2FS_KIND.missing(volume_bytes)),
            Self::Mount if !Path::new("/dev/fuse").exists() => Some("there is no /dev/fuse".to_owned()),
            Self::Mount if !is_root => Some("needs root, to leave nothing behind".to_owned()),
            Self::Modelled(preset) if preset.volume_bytes < volume_bytes => {
                Some(format!("the device has {} MiB, and {} are needed", preset.volume_bytes >> 20, volume_bytes >> 20))
            }
            _ => None,
        }
    }
}

/// Makes targets in a folder.
pub struct Places {
    folder: PathBuf,
    /// This program, for mounts.
    exe: PathBuf,
    volume_bytes: u64,
    names: u64,
    /// Images are holes, for each cell anew.
    sparse: bool,
    kernels: BTreeMap<&'static str, KernelProvider>,
    recorder: Option<Recorder>,
}

impl Places {
    /// In `folder`, which is there; for trees of at most so many names in volumes of at most so many bytes.
    pub fn new(folder: &Path, exe: PathBuf, volume_bytes: u64, names: u64, sparse: bool) -> Self {
        Self { folder: folder.to_owned(), exe, volume_bytes, names, sparse, kernels: BTreeMap::new(), recorder: None }
    }

    /// Fails unless there is room for the images of all these.
    pub fn ensure_room(&self, places: &[Place]) -> Result<()> {
        let images = places.iter().filter(|place| self.has_image(**place)).count();
        if self.sparse { Ok(()) } else { ensure_room(&self.folder, images, self.volume_bytes, "--sparse or --folder") }
    }

    fn has_image(&self, place: Place) -> bool {
        match place {
            Place::Process | Place::Mount | Place::Kernel(_) | Place::Fuse2fs => true,
            // On an ext4 of its own its requests can be counted.
            Place::Sqlite => Kind::Ext4.missing(self.volume_bytes).is_none(),
            Place::Modelled(_) | Place::Packed(_) | Place::Tmpfs | Place::Folder => false,
        }
    }

    /// A target's image, for the next cell.
    fn image(&self, label: &str) -> Result<PathBuf> {
        let path = self.folder.join(format!("{label}.img"));
        if self.sparse && path.exists() {
            std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
        if !path.exists() {
            make_image(&path, self.volume_bytes, self.sparse)?;
        }
        Ok(path)
    }

    /// What the device of the next volume in this process is asked goes there.
    pub fn record_next(&mut self, recorder: Option<Recorder>) {
        self.recorder = recorder;
    }

    /// `options` count for volumes only, but for the size of the cache, which SQLite heeds as well.
    pub fn make(&mut self, place: Place, options: &Options, seed: u64) -> Result<Box<dyn Target>> {
        let mut options = options.clone();
        options.mkfs.seed = Some(seed);
        options.mount.seed = Some(seed);
        match place {
            Place::Process => {
                let image = self.image(place.name())?;
                let device = FileDevice::open(&image, Access::ReadWrite).context("opening the image")?;
                // Ours alone, in a folder of our own: the lock is the engine's habit.
                device.lock_exclusive().context("locking the image")?;
                let device = Traced::new(device).recorded_by(self.recorder.take());
                Ok(Box::new(InProcess::make_on(device, None, &options.mkfs, options.mount)?))
            }
            Place::Modelled(preset) => {
                // The same every time: no thread of its own, no clock, no time after which something is written.
                options.mount.background = false;
                options.mount.commit_interval_ms = 0;
                let clock = Clock::Manual(Arc::new((1_000_000_000 * NS_PER_SECOND).into()));
                options.mkfs.clock = clock.clone();
                options.mount.clock = clock;
                let device = Traced::new(MemoryDevice::new(preset.volume_bytes)).with_model(preset.model());
                let device = device.recorded_by(self.recorder.take());
                Ok(Box::new(InProcess::make_on(device, preset.host, &options.mkfs, options.mount)?))
            }
            Place::Mount => {
                let image = self.image(place.name())?;
                Fs::format(&image, None, &options.mkfs).context("mkfs")?;
                self.mount(&image, &options)
            }
            Place::Kernel(kind) => self.kernel(kind, kind.name())?.make(),
            Place::Fuse2fs => {
                let image = self.image(place.name())?;
                FUSE2FS_KIND.format(&image, self.names)?;
                self.fuse2fs(&image)
            }
            Place::Packed(packer) => Ok(Box::new(Packed::make(packer, &self.folder)?)),
            Place::Tmpfs => {
                let point = self.folder.join("tmpfs");
                std::fs::create_dir_all(&point)?;
                rustix::mount::mount("tmpfs", &point, "tmpfs", MountFlags::NOATIME, c"size=100%")
                    .context("mounting tmpfs")?;
                let target = SysCalls::new(&point, false).with_drop_caches(Box::new(|| Ok(())));
                Ok(Box::new(target.with_guard(Box::new(Unmount(point)))))
            }
            Place::Folder => {
                let folder = tempfile::Builder::new().prefix("folder-").tempdir_in(&self.folder)?;
                // The device below has the requests of everybody.
                let target = SysCalls::new(folder.path(), false).with_device(Box::new(|| None));
                Ok(Box::new(target.with_guard(Box::new(folder))))
            }
            Place::Sqlite => {
                let cache_size = options.mount.cache_size;
                if self.has_image(place) {
                    let mounted = self.kernel(Kind::Ext4, "sqlite")?.mount_fresh()?;
                    let database = self.folder.join("sqlite/files.db");
                    let device = mounted.device()?.to_owned();
                    let sqlite = Sqlite::make(&database, Durability::End, cache_size)?;
                    return Ok(Box::new(sqlite.with_device(device, Box::new(mounted))));
                }
                let database = self.folder.join("files.db");
                // Its files go with the folder.
                let mut provider =
                    SqliteProvider::new("sqlite".to_owned(), &database, Durability::End, cache_size, true, true)?;
                provider.make()
            }
        }
    }

    /// A kernel's file system that is made in an image of its own; `label` is the name of image and mount point.
    fn kernel(&mut self, kind: Kind, label: &'static str) -> Result<&mut KernelProvider> {
        let image = self.image(label)?;
        match self.kernels.entry(label) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let point = self.folder.join(label);
                Ok(entry.insert(KernelProvider::new(label.to_owned(), kind, &image, &point, self.names)?))
            }
        }
    }

    fn fuse2fs(&self, image: &Path) -> Result<Box<dyn Target>> {
        let point = self.folder.join("fuse2fs");
        std::fs::create_dir_all(&point)?;
        let device = Attached::new(image)?;
        let name = device.name()?.to_owned();
        let served = Fuse2fs { served: Mutex::new(None), device, point: point.clone() };
        let target = SysCalls::new(&point, false).with_server(Box::new(served));
        Ok(Box::new(target.with_device(Box::new(move || Some(name.clone())))))
    }

    fn mount(&self, image: &Path, options: &Options) -> Result<Box<dyn Target>> {
        let point = self.folder.join("mount");
        std::fs::create_dir_all(&point)?;
        // On a loop device, as the kernel's file systems are: the same way to the disk, and the device counts.
        let device = no_loop_devices().is_none().then(|| Attached::new(image)).transpose()?;
        let image = device.as_ref().map_or(image, Attached::path).to_owned();
        let name = device.as_ref().map(|device| device.name().map(str::to_owned)).transpose()?;
        let mounted = Served { exe: self.exe.clone(), image, point: point.clone(), words: words(options) };
        mounted.mount()?;
        let mounted = Arc::new(Mutex::new(mounted));
        let again = Arc::clone(&mounted);
        // The daemon's cache goes with the daemon, the kernel's with the mount.
        let remount = move || -> Result<()> {
            let mounted = again.lock().expect("no panic with the lock held");
            mounted.unmount()?;
            mounted.mount()
        };
        let target = SysCalls::new(&point, false).with_drop_caches(Box::new(remount));
        let target = target.with_device(Box::new(move || name.clone()));
        // In this order: the device goes when the daemon has gone.
        Ok(Box::new(target.with_guard(Box::new((mounted, device)))))
    }
}

const NS_PER_SECOND: i64 = 1_000_000_000;

/// The options of a volume that a benchmark has beside those that somebody chooses: like the kernel's file systems beside it, it discards
/// nothing.
pub fn base_options(cache_bytes: u64) -> Options {
    let mut options = Options::default();
    options.mount.cache_size = cache_bytes;
    options.mount.discard = Discard::Never;
    options
}

/// What `-o` has to say of options that are not the default.
fn words(options: &Options) -> String {
    let default = Options::default();
    let differs = TABLE.iter().filter(|row| row.when.at_mount() && row.get(options) != row.get(&default));
    differs.map(|row| format!("{}={}", row.name, row.get(options))).collect::<Vec<_>>().join(",")
}

/// A mount point that is unmounted when it goes.
pub struct Unmount(pub PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        // A child that another thread is just starting still has our files.
        if let Err(error) = unmount_when_idle(&self.0) {
            eprintln!("{} stays mounted: {error:#}", self.0.display());
        }
    }
}

/// fuse2fs does nothing for an fsync of the root, and the kernel passes it no syncfs: what makes all of it durable is its end.
struct Fuse2fs {
    /// Before the device, which goes when its server has gone.
    served: Mutex<Option<Server>>,
    device: Attached,
    point: PathBuf,
}

impl Serving for Fuse2fs {
    fn start(&self) -> Result<()> {
        let mut served = self.served.lock().expect("no panic with the lock held");
        if served.is_none() {
            // Without the last, what is unlinked before its release has come in stays under another name, and its directory cannot go.
            let words = ["-f", "-ohard_remove"].map(Path::new);
            let arguments = [self.device.path(), &self.point, words[0], words[1]];
            *served = Some(Server::start("fuse2fs", &arguments, &self.point)?);
        }
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        let mut served = self.served.lock().expect("no panic with the lock held");
        served.take().map_or(Ok(()), |mut server| server.stop())
    }
}

/// A mounted volume.
struct Served {
    exe: PathBuf,
    image: PathBuf,
    point: PathBuf,
    words: String,
}

impl Served {
    fn run(&self, arguments: &[&str]) -> Result<()> {
        let exe = self.exe.to_str().context("this program's path is not UTF-8")?;
        run_program(exe, &arguments.iter().map(|&argument| argument.to_owned()).collect::<Vec<_>>()).map(drop)
    }

    fn mount(&self) -> Result<()> {
        let path = |path: &Path| path.to_str().map(str::to_owned).context("the folder's path is not UTF-8");
        let (image, point) = (path(&self.image)?, path(&self.point)?);
        let mut arguments = vec!["mount", &image, &point];
        if !self.words.is_empty() {
            arguments.extend(["-o", &self.words]);
        }
        self.run(&arguments)
    }

    fn unmount(&self) -> Result<()> {
        let point = self.point.to_str();
        ensure!(point.is_some(), "the folder's path is not UTF-8");
        self.run(&["umount", point.unwrap_or_default()])
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("{} stays mounted: {error:#}", self.point.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::kernel::find_in_path;
    use std::os::unix::fs::{FileExt, MetadataExt};

    /// In the build's own folder: on a file system that allows direct I/O, most likely.
    fn folder() -> tempfile::TempDir {
        let build = std::env::current_exe().unwrap();
        tempfile::tempdir_in(build.parent().unwrap()).unwrap()
    }

    /// `mke2fs` without a type made ext2.
    #[test]
    fn fuse2fs_serves_an_ext4_without_a_journal() {
        if Place::Fuse2fs.missing(64 << 20).is_some() || find_in_path("dumpe2fs").is_none() {
            return eprintln!("skipped: fuse2fs or dumpe2fs is missing, or this is not root");
        }
        let folder = folder();
        let mut places = Places::new(folder.path(), PathBuf::new(), 64 << 20, 100, true);
        let target = places.make(Place::Fuse2fs, &base_options(4 << 20), 1).unwrap();
        let image = folder.path().join("fuse2fs.img").to_str().unwrap().to_owned();
        let said = run_program("dumpe2fs", &["-h".to_owned(), image]).unwrap();
        let features: Vec<&str> = said
            .lines()
            .find_map(|line| line.strip_prefix("Filesystem features:"))
            .unwrap()
            .split_whitespace()
            .collect();
        for feature in ["extent", "flex_bg", "metadata_csum"] {
            assert!(features.contains(&feature), "{feature} in {features:?}");
        }
        assert!(!features.contains(&"has_journal"), "{features:?}");
        target.close().unwrap();
    }

    /// An image is the same file for all cells of a target, and whole; or it is all a hole before each.
    #[test]
    fn images_are_alike_in_every_cell() {
        let bytes = 24 << 20;
        let mut targets = vec![Place::Process];
        targets.extend(KINDS.into_iter().filter(|kind| kind.missing(bytes).is_none()).map(Place::Kernel));
        for sparse in [true, false] {
            let folder = folder();
            let mut places = Places::new(folder.path(), PathBuf::new(), bytes, 100, sparse);
            for &place in &targets {
                let image = folder.path().join(format!("{}.img", place.name()));
                let mut blocks = || {
                    places.make(place, &base_options(4 << 20), 1).unwrap().close().unwrap();
                    image.metadata().unwrap().blocks()
                };
                let first = blocks();
                // A cell has written here.
                std::fs::File::options()
                    .write(true)
                    .open(&image)
                    .unwrap()
                    .write_all_at(&[1; 1 << 20], 20 << 20)
                    .unwrap();
                let second = blocks();
                assert!(second == first, "{}: {second} blocks instead of {first}", image.display());
                assert_eq!(second >= bytes / 512, !sparse, "{}: {second} blocks", image.display());
            }
        }
    }
}
