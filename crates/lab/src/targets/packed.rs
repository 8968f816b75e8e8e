//! File systems that are made whole and then only read: SquashFS in the kernel, DwarFS as a FUSE server.
//!
//! Phases that change something work in a directory of the host, and are no samples. Before the first phase that only looks, the directory
//! is packed into an image, which is mounted until something changes again. What others have in memory by then, because they wrote it, is read
//! from the image once, unless the phase wants empty caches.

use super::served::Served;
use super::sys_calls::{SysCalls, remove_all};
use super::{Counters, Target, Usage, Worker};
use crate::compare::kernel::{Mounted, known_to_kernel, no_loop_devices, not_installed, run_program, settle_image};
use anyhow::{Context, Result};
use rustix::mount::MountFlags;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packer {
    Squashfs,
    Dwarfs,
}

impl Packer {
    pub const ALL: [Self; 2] = [Self::Squashfs, Self::Dwarfs];

    pub fn name(self) -> &'static str {
        match self {
            Self::Squashfs => "squashfs",
            Self::Dwarfs => "dwarfs",
        }
    }

    /// Why it cannot be measured here; `None`: it can. Mounts are root's.
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Squashfs => not_installed("mksquashfs", "squashfs-tools").or_else(no_loop_devices).or_else(|| {
                (!known_to_kernel("squashfs")).then(|| "this kernel has no squashfs (see /proc/filesystems)".to_owned())
            }),
            Self::Dwarfs => not_installed("mkdwarfs", "dwarfs").or_else(|| not_installed("dwarfs", "dwarfs")),
        }
    }

    fn pack(self, folder: &Path, image: &Path) -> Result<()> {
        let path = |path: &Path| path.to_str().map(str::to_owned).context("the folder's path is not UTF-8");
        let (folder, image) = (path(folder)?, path(image)?);
        let (program, arguments) = match self {
            Self::Squashfs => ("mksquashfs", vec![folder, image, "-noappend".to_owned(), "-no-progress".to_owned()]),
            Self::Dwarfs => {
                let arguments = ["-i", &folder, "-o", &image, "--force", "--log-level=error"];
                ("mkdwarfs", arguments.map(str::to_owned).to_vec())
            }
        };
        run_program(program, &arguments).map(drop)
    }

    fn mount(self, image: &Path, point: &Path) -> Result<Shown> {
        match self {
            Self::Squashfs => Mounted::of_type("squashfs", MountFlags::RDONLY, c"", image, point).map(Shown::Kernel),
            Self::Dwarfs => Served::start("dwarfs", &[image, point, Path::new("-f")], point).map(Shown::Server),
        }
    }
}

/// A mounted image.
enum Shown {
    Kernel(Mounted),
    Server(Served),
}

impl Shown {
    fn end(self) -> Result<()> {
        match self {
            Self::Kernel(mut mounted) => mounted.unmount(),
            Self::Server(mut served) => served.stop(),
        }
    }
}

pub struct Packed {
    packer: Packer,
    /// What will be packed.
    source: PathBuf,
    image: PathBuf,
    point: PathBuf,
    shown: Mutex<Option<Shown>>,
    /// Packed, and not read since.
    is_new: AtomicBool,
}

impl Packed {
    /// In `folder`, which is there; what an earlier one has left in it goes.
    pub fn make(packer: Packer, folder: &Path) -> Result<Self> {
        let (source, point) = (folder.join("source"), folder.join("packed"));
        remove_all(&source)?;
        for folder in [&source, &point] {
            std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        let image = folder.join("packed.img");
        Ok(Self { packer, source, image, point, shown: Mutex::default(), is_new: AtomicBool::new(false) })
    }

    fn shown(&self) -> MutexGuard<'_, Option<Shown>> {
        self.shown.lock().expect("no panic with the lock held")
    }

    /// Mounts the image, with none of it in the host's memory.
    fn show(&self) -> Result<Shown> {
        settle_image(&self.image)?;
        self.packer.mount(&self.image, &self.point)
    }

    /// Where the next phase works.
    fn here(&self) -> SysCalls {
        let root = if self.shown().is_some() { &self.point } else { &self.source };
        SysCalls::new(root, false)
    }
}

impl Target for Packed {
    fn with_worker(&self, work: &mut dyn FnMut(&mut dyn Worker) -> Result<()>) -> Result<()> {
        self.here().with_worker(work)
    }

    fn begin(&self, changes: bool) -> Result<()> {
        let mut shown = self.shown();
        if changes {
            self.is_new.store(false, Ordering::Relaxed);
            return shown.take().map_or(Ok(()), Shown::end);
        }
        if shown.is_none() {
            self.packer.pack(&self.source, &self.image).context("packing")?;
            *shown = Some(self.show()?);
            self.is_new.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn warm_up(&self) -> Result<()> {
        if self.is_new.swap(false, Ordering::Relaxed) {
            self.here().read_all()?;
        }
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        true
    }

    /// The directory is no more than where an image comes from.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn drop_caches(&self) -> Result<()> {
        self.is_new.store(false, Ordering::Relaxed);
        let mut shown = self.shown();
        if let Some(old) = shown.take() {
            old.end()?;
            *shown = Some(self.show()?);
        }
        Ok(())
    }

    fn counters(&self) -> Result<Counters> {
        match &*self.shown() {
            Some(Shown::Kernel(mounted)) => {
                Ok(super::sys_calls::device_counters(mounted.device()?).unwrap_or_default())
            }
            _ => Ok(Counters::default()),
        }
    }

    fn usage(&self) -> Result<Usage> {
        self.here().usage()
    }

    fn names(&self) -> Result<u64> {
        self.here().names()
    }

    fn close(self: Box<Self>) -> Result<()> {
        let shown = self.shown().take();
        shown.map_or(Ok(()), Shown::end)?;
        remove_all(&self.source)
    }
}
