//! An unmounted volume, read block by block.

use crate::failure::{Failure, TRUNCATED_NEXT, host_error, image_name};
use crate::volume::{OpenArgs, device};
use anyhow::Result;
use myriad_check::find_superblock_copy;
use myriad_device::{Access, FileDevice};
use myriad_format::superblock::Superblock;
use myriad_format::{BlockHeader, BlockKind, FsBlock, Geometry, header};
use myriad_log::Overlay;
use std::path::Path;
use std::sync::Arc;

/// An unmounted volume, block by block.
pub struct RawVolume {
    pub name: String,
    pub device: Arc<FileDevice>,
    pub log_device: Option<Arc<FileDevice>>,
    pub superblock: Superblock,
    pub geometry: Geometry,
    /// What the log holds, if there is one; why it cannot be read, if so.
    pub log: Result<Option<myriad_log::Recovered>>,
    /// Everything is home: the log shows the last checkpoint, and a mount leaves it alone.
    pub was_closed_cleanly: bool,
}

/// A block as read.
pub struct Block {
    pub number: FsBlock,
    pub bytes: Vec<u8>,
    pub is_overlaid: bool,
}

impl Block {
    pub fn kind(&self) -> Option<BlockKind> {
        BlockKind::from_magic(BlockHeader::read(&self.bytes).magic.get())
    }
}

impl RawVolume {
    pub fn open(image: &Path, open: &OpenArgs) -> Result<Self> {
        let name = image_name(image);
        let device = device::open(image, Access::ReadOnly)?;
        // A copy serves where the original is damaged: seeing what is left is what this verb is for.
        let original = device::superblock(&*device, &name);
        let was_closed_cleanly = original.as_ref().is_ok_and(device::was_closed_cleanly);
        let superblock = original.or_else(|error| find_superblock_copy(&*device).ok_or(error))?;
        let log_device = open.log_device.as_deref().map(|log| device::open(log, Access::ReadOnly)).transpose()?;
        let log = device::log(&device, log_device.clone(), &superblock, &name);
        let geometry = superblock.geometry();
        Ok(Self { name, device, log_device, superblock, geometry, log, was_closed_cleanly })
    }

    /// A block as a mount would see it or, with `home`, as it lies on the disk.
    pub fn block(&self, number: FsBlock, home: bool) -> Result<Block> {
        let place = || format!("{}: block {number}", self.name);
        if number.0 >= self.geometry.block_count {
            let next = format!("the volume has {} blocks, from 0", self.geometry.block_count);
            return Err(Failure::usage(place(), "no such block", next).into());
        }
        let mut bytes = device::read_at(
            &*self.device,
            number.0 << self.geometry.block_bits,
            self.geometry.block_size(),
        )
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Failure::new(place(), "the image ends before it", TRUNCATED_NEXT),
            _ => Failure::new(place(), host_error(&error), "see the host's log"),
        })?;
        let is_overlaid = match &self.log {
            Ok(Some(log)) if !home && !self.was_closed_cleanly => self.lay_over(&log.overlay, number, &mut bytes),
            _ => false,
        };
        Ok(Block { number, bytes, is_overlaid })
    }

    /// Lays the log over a block, with the checksums that a mount would set. Whether the log has it.
    fn lay_over(&self, overlay: &Overlay, number: FsBlock, bytes: &mut [u8]) -> bool {
        let home = bytes.to_vec();
        if overlay.apply(number, bytes).is_none() {
            return false;
        }
        let volume = self.superblock.volume();
        match BlockKind::of(bytes) {
            Some(kind) if kind.is_of_units() => {
                bytes.copy_from_slice(&home);
                overlay.apply_to_units(number, kind, &volume, bytes);
            }
            // The checksum is that of the block before the log's changes, which have checksums of their own.
            Some(_) => header::reseal(bytes, &volume, number),
            None => {}
        }
        true
    }

    /// What the block's header says of it, and whether that is true.
    pub fn verdict(&self, block: &Block) -> String {
        let Some(kind) = block.kind() else { return "no metadata: file data, or nothing".into() };
        match header::verify(&block.bytes, kind, &self.superblock.volume(), block.number) {
            Ok(()) => format!("{}, intact", kind.name()),
            Err(corrupt) => format!("{}, NOT INTACT: {corrupt}", kind.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_device::{BlockDevice, MemoryDevice};
    use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions};
    use myriad_format::choices::{Choices, Directory, Inodes, Space};
    use myriad_format::unit::UNIT_SIZE;

    /// The log had a change of one unit of a block, and a bit of another unit had rotted at home. The block was called intact.
    #[test]
    fn a_damaged_unit_below_the_log_is_not_intact() {
        let choices = Choices {
            directory: Directory::Linear,
            space: Space::Bitmap,
            inodes: Inodes::Static,
            ..Choices::default()
        };
        let device = Arc::new(MemoryDevice::new(16 << 20));
        Fs::format_device(device.clone(), None, &MkfsOptions { choices, ..MkfsOptions::default() }).unwrap();
        let options = MountOptions { background: false, ..MountOptions::default() };
        let fs = Fs::open_device(device.clone(), None, options).unwrap();
        for name in ["a", "b"] {
            fs.session(Cred::root()).create(name, 0o600).unwrap();
            fs.sync().unwrap();
        }
        // Power is lost.
        let mut bytes = vec![0; 16 << 20];
        device.read(0, &mut bytes).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("vol.img");
        std::fs::write(&image, &bytes).unwrap();
        let volume = RawVolume::open(&image, &OpenArgs::default()).unwrap();
        let overlay = &volume.log.as_ref().unwrap().as_ref().unwrap().overlay;
        let mut kinds = Vec::new();
        for (number, _) in overlay.blocks() {
            let block = volume.block(number, false).unwrap();
            let Some(kind) = block.kind().filter(|kind| kind.is_of_units()) else { continue };
            assert_eq!(volume.verdict(&block), format!("{}, intact", kind.name()));
            let applied = overlay.apply(number, &mut block.bytes.clone()).unwrap();
            let Some(unit) = (0..8).find(|unit| applied.mask >> (unit * 8) & 0xff == 0) else { continue };
            let at = ((number.0 as usize) << 12) + unit * UNIT_SIZE + 100;
            bytes[at] ^= 1;
            std::fs::write(&image, &bytes).unwrap();
            let verdict = volume.verdict(&volume.block(number, false).unwrap());
            assert!(verdict.contains("NOT INTACT"), "{verdict}");
            bytes[at] ^= 1;
            kinds.push(kind.name());
        }
        assert!(kinds.len() >= 3, "{kinds:?}");
    }
}
