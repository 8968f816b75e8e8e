//! What lies where a volume is to be made, so that nothing is overwritten unasked.

use crate::context::Context;
use crate::failure::{At, Failure, image_name};
use crate::volume::recognise;
use crate::volume::signatures;
use anyhow::Result;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io::Seek;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

pub enum Existing {
    Missing,
    /// Nothing, or nothing but zeros.
    Blank {
        size: u64,
    },
    Holds(String),
}

impl Existing {
    /// Looks at an image or device. A block device without a known signature counts as blank, as everywhere; a file
    /// does so only if all of it is zero.
    pub fn look(context: &Context, image: &Path) -> Result<Self> {
        let name = image_name(image);
        let metadata = match std::fs::metadata(image) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::Missing),
            metadata => metadata.at(&name)?,
        };
        let is_block_device = metadata.file_type().is_block_device();
        if !metadata.is_file() && !is_block_device {
            let next = "give an image file or a block device";
            return Err(Failure::usage(name, "neither a regular file nor a block device", next).into());
        }
        let mut file = File::open(image).at(&name)?;
        let size = file.seek(std::io::SeekFrom::End(0)).at(&name)?;
        if let Some(what) = known(&file, size, image)? {
            return Ok(Self::Holds(what));
        }
        if !is_block_device && !is_zero(context, &file, size, &name)? {
            return Ok(Self::Holds(format!("{size} bytes of data that are not a volume")));
        }
        Ok(Self::Blank { size })
    }

    /// Looks again, once the place is locked: the first look may have taken minutes. Finds what has a mark, and a file where there was
    /// none. `is_new`: the file was made together with the lock.
    pub fn look_again(&self, image: &Path, is_new: bool) -> Result<Self> {
        let name = image_name(image);
        let mut file = File::open(image).at(&name)?;
        let size = file.seek(std::io::SeekFrom::End(0)).at(&name)?;
        match (known(&file, size, image)?, self) {
            (Some(what), _) => Ok(Self::Holds(what)),
            (None, Self::Missing) if !is_new && !image.is_symlink() => {
                Ok(Self::Holds("what somebody else has just put there".into()))
            }
            (None, _) => Ok(Self::Blank { size }),
        }
    }
}

/// What a file or device holds, by its marks, if it is something known.
fn known(file: &File, size: u64, image: &Path) -> Result<Option<String>> {
    let name = image_name(image);
    if let Some(what) = recognise::describe(file, image).at(&name)? {
        return Ok(Some(what));
    }
    let read = |offset: u64, length: usize| {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset).map(|()| bytes)
    };
    Ok(signatures::known(size, read).at(&name)?.map(Into::into))
}

/// Whether a file holds nothing but zeros. Holes are skipped, so a sparse giant costs nothing.
pub fn is_zero(context: &Context, file: &File, size: u64, name: &str) -> Result<bool> {
    let mut chunk = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < size {
        context.check()?;
        match rustix::fs::seek(file, SeekFrom::Data(offset)) {
            Ok(data) => offset = data,
            Err(Errno::NXIO) => return Ok(true),
            // The host does not know holes: read them.
            Err(Errno::INVAL) => (),
            Err(error) => return Err(std::io::Error::from(error)).at(name),
        }
        let length = chunk.len().min(usize::try_from(size - offset).unwrap_or(usize::MAX));
        file.read_exact_at(&mut chunk[..length], offset).at(name)?;
        if chunk[..length].iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
        offset += length as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device counts as blank without a mark, and was written over though blkid(8) knew what it held.
    #[test]
    fn what_others_have_is_known_by_marks_anywhere() {
        const SIZE: u64 = (8 << 20) + 512;
        let md = b"\xfc\x4e\x2b\xa9";
        let uberblock = 0x00ba_b10c_u64.to_le_bytes();
        let marks: &[(u64, &[u8], &str)] = &[
            ((8 << 20) - (64 << 10), md, "RAID"),
            ((8 << 20) - (8 << 10), md, "RAID"),
            (SIZE - 1024, b"Intel Raid ISM Cfg Sig. ", "RAID"),
            ((8 << 20) - (512 << 10) + (128 << 10), &uberblock, "ZFS"),
            ((8 << 20) - (128 << 10) + 5 * 1024, &uberblock, "ZFS"),
            (1 << 20, b"\x0d\xd0\x01\xc0", "VMFS"),
            (0x4000, b"SKUL\xba\xbe", "LUKS"),
            (0x40_0000, b"SKUL\xba\xbe", "LUKS"),
            (0, b"bluestore block device", "Ceph"),
            (32, b"ORCLDISK", "Oracle"),
            (8182, b"SWAPSPACE2", "swap"),
            (65526, b"SWAP-SPACE", "swap"),
            (0, b"integrt\0", "dm-integrity"),
            (0, b"verity\0\0", "dm-verity"),
            (0, b"dmvdo001", "VDO"),
        ];
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut unknown = Vec::new();
        for &(offset, bytes, what) in marks {
            file.as_file().set_len(0).unwrap();
            file.as_file().set_len(SIZE).unwrap();
            file.as_file().write_all_at(bytes, offset).unwrap();
            match Existing::look(&Context::new(true), file.path()).unwrap() {
                Existing::Holds(found) if found.contains(what) => {}
                _ => unknown.push((what, offset)),
            }
        }
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
