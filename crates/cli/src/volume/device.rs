//! The bytes of an unmounted volume, for verbs that look below the engine: `info`, `debug`, `fsck`.

use super::meant;
use super::place::unreachable_name;
use super::wait::patiently;
use crate::failure::{At, FOREIGN_NEXT, Failure, host_error, image_name, of_open};
use crate::mount::below::below_mount;
use crate::mount::control;
use anyhow::Result;
use myriad_device::{Access, BlockDevice, FileDevice, Holder, InUse, OpenError};
use myriad_engine::{Error, Truncated};
use myriad_format::superblock::{Superblock, SuperblockError, state};
use myriad_format::{FsBlock, Lsn};
use std::path::Path;
use std::sync::Arc;

/// What cannot be an image is refused here, in words that fit the command line.
pub fn check_is_image(image: &Path) -> Result<()> {
    let metadata = std::fs::metadata(image).map_err(|error| unreachable_name(image, error))?;
    if metadata.is_dir() {
        if let Some((mount_point, path)) = below_mount(image) {
            if path.as_os_str().is_empty() {
                let next = "name its image, once it is unmounted; fsck --online and -n look at it as it is";
                return Err(Failure::new(image_name(image), "a volume is mounted there", next).into());
            }
            let (mount_point, path) = (image_name(&mount_point), image_name(&path));
            let what = format!("a directory in the volume that is mounted on {mount_point}");
            return Err(Failure::new(image_name(image), what, format!("write {mount_point}:/{path}")).into());
        }
        let next = "give an image file or a block device";
        return Err(Failure::new(image_name(image), "a directory of the host, not an image", next).into());
    }
    if metadata.is_file() && metadata.len() == 0 {
        if let Some(meant) = meant::below_mount(image) {
            let what = "an empty file in a volume that is mounted, not a volume itself";
            return Err(Failure::new(image_name(image), what, format!("write {meant}")).into());
        }
        let next = "make a volume in it with myriad mkfs --size SIZE";
        return Err(Failure::new(image_name(image), "an empty file, not a Myriad volume", next).into());
    }
    Ok(())
}

/// Opens an image for reading beside other readers, or for changing it alone.
pub fn open(image: &Path, access: Access) -> Result<Arc<FileDevice>> {
    // The host's own errors first: they have a next step of their own.
    std::fs::metadata(image).map_err(|error| unreachable_name(image, error))?;
    let device = FileDevice::open(image, access).map_err(explain_open)?;
    let locked = patiently(|| {
        let locked = match access {
            Access::ReadOnly => device.lock_shared(),
            Access::ReadWrite => device.lock_exclusive(),
        };
        match locked {
            Err(OpenError::InUse(in_use)) => Ok(Err(in_use)),
            locked => locked.map_err(explain_open).map(Ok),
        }
    })?;
    locked.map_err(|in_use| explain_open(OpenError::InUse(in_use)))?;
    Ok(Arc::new(device))
}

/// Opens an image to look at it beside whoever is changing it; who that is, if anybody. The lock is shared while nobody
/// is, so that nobody begins.
pub fn open_beside(image: &Path) -> Result<(Arc<FileDevice>, Option<InUse>)> {
    std::fs::metadata(image).at(image_name(image))?;
    let device = FileDevice::open(image, Access::ReadOnly).map_err(explain_open)?;
    let in_use = match device.lock_shared() {
        Ok(()) => None,
        // The kernel's own file systems have no log of ours.
        Err(OpenError::InUse(in_use)) if !matches!(in_use.holder, Some(Holder::Mount { .. })) => Some(in_use),
        Err(error) => return Err(explain_open(error)),
    };
    Ok((Arc::new(device), in_use))
}

/// The error in the words of `failure`, or of what of the host is in the way.
pub fn explain_open(error: OpenError) -> anyhow::Error {
    match &error {
        OpenError::InUse(in_use) => {
            let path = in_use.path.clone();
            control::or_mounted(&path, of_open(error))
        }
        OpenError::Unsuitable { path, .. } => match control::inside_mount(path) {
            Some(failure) => failure.into(),
            None if path.is_dir() => check_is_image(path).expect_err("it is a directory"),
            None => of_open(error),
        },
        OpenError::Io { .. } => of_open(error),
    }
}

/// What the engine says of opening or making a volume at `place`, in the same words.
pub fn explain_opening(error: Error, place: String) -> anyhow::Error {
    match error {
        Error::Open(open) => explain_open(*open),
        error => Err::<(), _>(error).at(place).expect_err("made from an error"),
    }
}

/// Reads bytes at any offset, whatever alignment the device asks for.
pub fn read_at(device: &dyn BlockDevice, offset: u64, length: usize) -> std::io::Result<Vec<u8>> {
    let unit = device.alignment() as u64;
    let start = offset / unit * unit;
    let end = offset.checked_add(length as u64).and_then(|end| end.checked_next_multiple_of(unit));
    let end = end.filter(|&end| end <= device.size()).ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let mut wide = vec![0; (end - start) as usize];
    device.read(start, &mut wide)?;
    wide.drain(..(offset - start) as usize);
    wide.truncate(length);
    Ok(wide)
}

/// The superblock of the volume on a device, checked.
pub fn superblock(device: &dyn BlockDevice, place: &str) -> Result<Superblock> {
    let foreign = |what: &str| Failure::new(place, what, FOREIGN_NEXT);
    if device.size() < Superblock::SIZE as u64 {
        return Err(foreign("too short to be a Myriad volume").into());
    }
    let bytes = read_at(device, 0, Superblock::SIZE).map_err(|error| {
        Failure::new(place, format!("cannot read the superblock: {}", host_error(&error)), "see the host's log")
    })?;
    let superblock = Superblock::decode(&bytes, FsBlock(0)).map_err(|error| match error {
        SuperblockError::Foreign => foreign("not a Myriad volume"),
        SuperblockError::Corrupt(corrupt) => {
            Failure::new(place, corrupt.to_string(), "run myriad fsck, which knows the copies")
        }
        SuperblockError::Incompatible(incompatible) => {
            Failure::new(place, incompatible.to_string(), "use a newer myriad")
        }
    })?;
    check_is_whole(device, &superblock, place)?;
    Ok(superblock)
}

/// The superblock, if it is intact.
pub fn intact_superblock(device: &dyn BlockDevice) -> Option<Superblock> {
    let bytes = read_at(device, 0, Superblock::SIZE).ok()?;
    Superblock::decode(&bytes, FsBlock(0)).ok()
}

/// Refuses an image that ends before the volume in it does.
pub fn check_is_whole(device: &dyn BlockDevice, superblock: &Superblock, place: &str) -> Result<()> {
    let geometry = superblock.geometry();
    let expected = geometry.block_count.saturating_mul(geometry.block_size() as u64);
    // Without that the size leaves out what is no whole request. Who opens the volume says what is wrong if it cannot be.
    device.take_units(geometry.block_size()).at(place)?;
    if device.size() < expected {
        return Err(Error::from(Truncated { found: device.size(), needed: expected })).at(place);
    }
    Ok(())
}

/// Whether everything is home. A copy of the superblock does not know.
pub fn was_closed_cleanly(superblock: &Superblock) -> bool {
    superblock.state.get() != state::IN_USE
}

/// The log's changes that a mount would lay over the blocks, with what the log holds.
pub fn log(
    device: &Arc<FileDevice>,
    log: Option<Arc<FileDevice>>,
    superblock: &Superblock,
    place: &str,
) -> Result<Option<myriad_log::Recovered>> {
    if superblock.log_blocks.get() == 0 {
        return Ok(None);
    }
    let block_size = superblock.geometry().block_size();
    let is_external = superblock.has_external_log();
    let device: Arc<dyn BlockDevice> = match (is_external, log) {
        (false, _) => Arc::clone(device) as _,
        (true, Some(log)) => log,
        (true, None) => {
            return Err(Failure::new(place, "its log lies on another device", "name that with --log-device").into());
        }
    };
    let log_place = myriad_log::LogPlace {
        device,
        start: superblock.log_start.get() * block_size as u64,
        length: superblock.log_blocks.get() * block_size as u64,
        block_size,
        volume: superblock.volume(),
        known_end: Lsn(0),
    };
    // Somebody may be writing to it, and what lies there is shown whatever it is.
    let recovered = myriad_log::recover(&log_place, myriad_log::Reach::End)
        .map_err(|error| Failure::new(place, error.to_string(), "run myriad fsck"))?;
    Ok(Some(recovered))
}
