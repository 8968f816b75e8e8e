//! Kernel file systems on image files: mkfs, loop device with direct I/O, mount; and every way back.
//!
//! What may be left behind, and what takes it away
//!   1. A loop device: set to detach itself at its last close as soon as it is mounted; until then a guard detaches it.
//!   2. A mount: a guard unmounts it; mounts are made in a mount namespace of the run's own, so that they go with its last process, even one
//!      that is killed. What serves a FUSE mount is a process of its own, and stays with its loop device when only the run is killed.
//!   3. Image files: in a temporary folder with a guard.

use crate::provider::{Place, Provider, Side};
use crate::targets::Target;
use crate::targets::sys_calls::SysCalls;
use anyhow::{Context, Result, bail, ensure};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A kernel file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ext4,
    /// ext4 without a journal, as Lensing and others compared with it.
    Ext4NoJournal,
    Xfs,
    Btrfs,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Ext4NoJournal => "ext4-nojournal",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// As the kernel calls it.
    fn file_system(self) -> &'static str {
        if self == Self::Ext4NoJournal { "ext4" } else { self.name() }
    }

    fn mkfs(self) -> (&'static str, &'static str) {
        match self {
            Self::Ext4 | Self::Ext4NoJournal => ("mkfs.ext4", "e2fsprogs"),
            Self::Xfs => ("mkfs.xfs", "xfsprogs"),
            Self::Btrfs => ("mkfs.btrfs", "btrfs-progs"),
        }
    }

    /// Defaults, but for three things. No discard: the image's blocks stay allocated for every round. ext4: tables are
    /// written now, not by a thread while we measure, and hold as many inodes as the workload needs. btrfs: one copy of
    /// metadata, as the others keep.
    pub fn mkfs_arguments(self, image: &Path, inodes: u64) -> Result<Vec<String>> {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let mut arguments = match self {
            Self::Ext4 | Self::Ext4NoJournal => {
                let mut arguments = words("-q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0");
                if self == Self::Ext4NoJournal {
                    arguments.extend(words("-O ^has_journal"));
                }
                let default = image.metadata()?.len() / EXT4_BYTES_PER_INODE;
                if inodes > default {
                    arguments.extend(["-N".to_owned(), inodes.to_string()]);
                }
                arguments
            }
            Self::Xfs => words("-q -f -K"),
            Self::Btrfs => words("-q -f -K -m single -d single"),
        };
        arguments.push(image.to_str().context("the folder's path is not UTF-8")?.to_owned());
        Ok(arguments)
    }

    /// Makes an empty file system in the image, with nothing of it in the host's memory.
    pub fn format(self, image: &Path, inodes: u64) -> Result<()> {
        let (mkfs, _) = self.mkfs();
        run_program(mkfs, &self.mkfs_arguments(image, inodes)?)?;
        settle_image(image)
    }

    /// Times of access are off for all. btrfs would punch holes into the image by itself.
    fn mount_data(self) -> &'static std::ffi::CStr {
        match self {
            Self::Btrfs => c"nodiscard",
            Self::Ext4 | Self::Ext4NoJournal | Self::Xfs => c"",
        }
    }

    /// The smallest image that mkfs takes.
    fn image_bytes_min(self) -> u64 {
        match self {
            Self::Ext4 | Self::Ext4NoJournal => 16 << 20,
            Self::Xfs => 300 << 20,
            Self::Btrfs => 256 << 20,
        }
    }

    fn table_bytes_per_inode(self) -> u64 {
        if matches!(self, Self::Ext4 | Self::Ext4NoJournal) { 256 } else { 0 }
    }

    /// Why this file system cannot be measured here; `None` if it can.
    pub fn missing(self, image_bytes: u64) -> Option<String> {
        let (mkfs, package) = self.mkfs();
        if !rustix::process::geteuid().is_root() {
            return Some("needs root, for loop devices and mounts".to_owned());
        }
        if let Some(why) = not_installed(mkfs, package).or_else(no_loop_devices) {
            return Some(why);
        }
        if !known_to_kernel(self.file_system()) {
            return Some(format!("this kernel has no {} (see /proc/filesystems)", self.file_system()));
        }
        if image_bytes < self.image_bytes_min() {
            return Some(format!("needs an image of at least {} MiB", self.image_bytes_min() >> 20));
        }
        None
    }
}

const EXT4_BYTES_PER_INODE: u64 = 16384;

/// Why a program cannot be run; `None`: it is there.
pub fn not_installed(tool: &str, package: &str) -> Option<String> {
    find_in_path(tool).is_none().then(|| format!("{tool} is not installed (package {package})"))
}

/// Why there are no loop devices; `None`: there are.
pub fn no_loop_devices() -> Option<String> {
    let missing = (!Path::new("/dev/loop-control").exists())
        .then(|| "there are no loop devices (/dev/loop-control is missing)".to_owned());
    not_installed("losetup", "util-linux").or(missing)
}

pub fn find_in_path(tool: &str) -> Option<PathBuf> {
    // sbin is not in every user's path, but it is where mkfs lives.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(sbin).map(|folder| folder.join(tool)).find(|path| path.is_file())
}

/// Whether the kernel has a file system, or a module of it.
pub fn known_to_kernel(name: &str) -> bool {
    let listed = || {
        let table = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        table.lines().any(|line| line.split_whitespace().next_back() == Some(name))
    };
    let load = || {
        let mut modprobe = Command::new("modprobe");
        modprobe.args(["-q", name]).stdout(Stdio::null()).stderr(Stdio::null());
        modprobe.status().is_ok_and(|status| status.success())
    };
    listed() || load() && listed()
}

/// Runs a program to its end; its standard error in the message if it fails.
pub fn run_program(program: &str, arguments: &[String]) -> Result<String> {
    let found = find_in_path(program).unwrap_or_else(|| PathBuf::from(program));
    let output = Command::new(&found).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("running {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {} failed ({}): {}", arguments.join(" "), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// From here on, mounts of this thread, and of threads and programs it starts, are seen by nobody else and end with them.
pub fn enter_mount_namespace() -> Result<()> {
    #[expect(deprecated, reason = "its hazard is shared descriptor tables, which a mount namespace leaves alone")]
    rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNS).context("a mount namespace of our own")?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("making mounts private")
}

/// A loop device with direct I/O until it is dropped.
pub struct Attached {
    device: String,
}

impl Attached {
    pub fn new(image: &Path) -> Result<Self> {
        let image = image.to_str().context("the folder's path is not UTF-8")?;
        let arguments = ["--find", "--show", "--direct-io=on", image].map(str::to_owned);
        let attached = Self { device: run_program("losetup", &arguments)? };
        let direct = std::fs::read_to_string(attached.sysfs("loop/dio")?).unwrap_or_default();
        ensure!(direct.trim() == "1", "{} refuses direct I/O: the host file system cannot do it", attached.device);
        Ok(attached)
    }

    pub fn path(&self) -> &Path {
        Path::new(&self.device)
    }

    /// In /sys/class/block.
    pub fn name(&self) -> Result<&str> {
        self.device.strip_prefix("/dev/").with_context(|| format!("losetup answered {}", self.device))
    }

    fn sysfs(&self, attribute: &str) -> Result<PathBuf> {
        Ok(Path::new("/sys/block").join(self.name()?).join(attribute))
    }

    /// While mounted, detaching means: at the last close.
    fn detach(&self) -> Result<()> {
        run_program("losetup", &["--detach".to_owned(), self.device.clone()]).map(drop)
    }

    fn is_gone(&self) -> bool {
        self.sysfs("loop/backing_file").is_ok_and(|path| !path.exists())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if !self.is_gone()
            && let Err(error) = self.detach()
        {
            eprintln!("{} stays behind: {error:#}", self.device);
        }
    }
}

/// A mounted image until it is dropped.
pub struct Mounted {
    point: PathBuf,
    device: Attached,
    unmounted: bool,
}

/// How long a busy mount or a device on its way out is waited for.
const BUSY_WAIT: Duration = Duration::from_secs(10);
const BUSY_STEP: Duration = Duration::from_millis(20);

/// Unmounts; whoever uses it is waited for, but not for long.
pub fn unmount_when_idle(point: &Path) -> Result<()> {
    let start = Instant::now();
    loop {
        match rustix::mount::unmount(point, UnmountFlags::empty()) {
            Err(rustix::io::Errno::BUSY) if start.elapsed() < BUSY_WAIT => std::thread::sleep(BUSY_STEP),
            done => return done.with_context(|| format!("unmounting {}", point.display())),
        }
    }
}

impl Mounted {
    fn new(kind: Kind, image: &Path, point: &Path) -> Result<Self> {
        Self::of_type(kind.file_system(), MountFlags::NOATIME, kind.mount_data(), image, point)
    }

    pub fn of_type(
        file_system: &str,
        flags: MountFlags,
        data: &std::ffi::CStr,
        image: &Path,
        point: &Path,
    ) -> Result<Self> {
        let device = Attached::new(image)?;
        rustix::mount::mount(&*device.device, point, file_system, flags, data)
            .with_context(|| format!("mounting {file_system} on {}", point.display()))?;
        let mounted = Self { point: point.to_owned(), device, unmounted: false };
        mounted.device.detach()?;
        Ok(mounted)
    }

    pub fn device(&self) -> Result<&str> {
        self.device.name()
    }

    /// Unmounts, and waits until the loop device has let go of the image.
    pub fn unmount(&mut self) -> Result<()> {
        let start = Instant::now();
        if !self.unmounted {
            self.unmounted = true;
            unmount_when_idle(&self.point).inspect_err(|_| {
                // Out of sight at least, and gone with its last user.
                let _ = rustix::mount::unmount(&*self.point, UnmountFlags::DETACH);
            })?;
        }
        while !self.device.is_gone() {
            ensure!(start.elapsed() < BUSY_WAIT, "{} did not let go of its image", self.device.device);
            std::thread::sleep(BUSY_STEP);
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.unmounted
            && let Err(error) = self.unmount()
        {
            eprintln!("{error:#}");
        }
    }
}

/// A file system on an image, mounted anew for each run.
pub struct KernelProvider {
    label: String,
    kind: Kind,
    image: PathBuf,
    point: PathBuf,
    inodes: u64,
}

impl KernelProvider {
    /// `image` is there; `point` is made.
    pub fn new(label: String, kind: Kind, image: &Path, point: &Path, inodes: u64) -> Result<Self> {
        std::fs::create_dir(point).with_context(|| format!("making {}", point.display()))?;
        Ok(Self { label, kind, image: image.to_owned(), point: point.to_owned(), inodes })
    }

    /// A new file system, mounted.
    pub fn mount_fresh(&self) -> Result<Mounted> {
        self.kind.format(&self.image, self.inodes)?;
        Mounted::new(self.kind, &self.image, &self.point)
    }

    fn fresh(&self) -> Result<SysCalls> {
        let (kind, image, point) = (self.kind, self.image.clone(), self.point.clone());
        let remount = move || Mounted::new(kind, &image, &point);
        let target = remounting(&self.point, self.mount_fresh()?, remount);
        Ok(target.with_table_bytes_per_inode(self.kind.table_bytes_per_inode()))
    }
}

/// A directory on a mounted image. Caches are dropped by mounting again: that drops what the file system knows for certain; dropping the
/// kernel's caches is a request. Counted is the loop device, which may be another one from then on.
pub fn remounting(
    point: &Path,
    mounted: Mounted,
    remount: impl Fn() -> Result<Mounted> + Send + Sync + 'static,
) -> SysCalls {
    let mounted = Arc::new(Mutex::new(Some(mounted)));
    let (again, counted) = (Arc::clone(&mounted), Arc::clone(&mounted));
    let remount = move || -> Result<()> {
        let mut slot = again.lock().expect("no panic with the lock held");
        if let Some(mut old) = slot.take() {
            old.unmount()?;
        }
        *slot = Some(remount()?);
        Ok(())
    };
    let device = move || {
        let slot = counted.lock().expect("no panic with the lock held");
        slot.as_ref().and_then(|mounted| mounted.device().ok().map(str::to_owned))
    };
    let target = SysCalls::new(point, false).with_drop_caches(Box::new(remount)).with_device(Box::new(device));
    target.with_guard(Box::new(mounted))
}

impl Provider for KernelProvider {
    fn label(&self) -> &str {
        &self.label
    }

    fn side(&self) -> Side {
        Side::Kernel
    }

    fn make(&mut self) -> Result<Box<dyn Target>> {
        Ok(Box::new(self.fresh()?))
    }

    fn place(&mut self) -> Result<Option<Place>> {
        let target: Box<dyn Target> = Box::new(self.fresh()?);
        Ok(Some(Place { variable: ("dir", self.point.clone()), target: Some(target) }))
    }
}

/// mkfs wrote through the host's page cache; the loop device and our engine go past it.
pub fn settle_image(image: &Path) -> Result<()> {
    let file = std::fs::File::open(image)?;
    file.sync_all()?;
    Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_fail_say_why() {
        let message = run_program("ls", &["/no/such/file".to_owned()]).unwrap_err().to_string();
        assert!(message.contains("/no/such/file"), "{message}");
        assert!(run_program("no-such-program-at-all", &[]).is_err());
    }

    #[test]
    fn small_images_are_refused_with_the_reason() {
        let reason = Kind::Xfs.missing(1 << 20);
        assert!(reason.is_some());
    }

    #[test]
    fn ext4_gets_the_inodes_that_the_workload_needs() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(64 << 20).unwrap();
        let arguments = |inodes: u64| Kind::Ext4.mkfs_arguments(image.path(), inodes).unwrap().join(" ");
        assert!(arguments(1_000_000).contains("-N 1000000"));
        assert!(!arguments(100).contains("-N"));
    }
}
