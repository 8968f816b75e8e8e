//! What lies where a volume is to be made, so that nothing is overwritten unasked.

use crate::context::Context;
use crate::failure::{At, Failure, image_name};
use anyhow::Result;
use myriad_format::BlockKind;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io::Seek;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

/// Bytes at the start of a device that hold the signatures below.
const HEAD_SIZE: usize = 128 << 10;

/// Offset, bytes, what they are the mark of.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (0x10034, b"ReIsEr", "a ReiserFS file system"),
    (0x400, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (1024, b"\xe2\xe1\xf5\xe0", "an EROFS file system"),
    (0, b"hsqs", "a SquashFS file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (54, b"FAT1", "a FAT file system"),
    (82, b"FAT32", "a FAT file system"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (0x218, b"LVM2 001", "an LVM physical volume"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of a RAID array (md)"),
    (4086, b"SWAPSPACE2", "swap space"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (257, b"ustar", "a tar archive"),
    // Last: file systems carry this mark too.
    (510, b"\x55\xaa", "a partition table or boot sector"),
];

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
        let mut head = vec![0; HEAD_SIZE.min(usize::try_from(size).unwrap_or(HEAD_SIZE))];
        file.read_exact_at(&mut head, 0).at(&name)?;
        if let Some(what) = signature(&head) {
            return Ok(Self::Holds(what.into()));
        }
        if !is_block_device && !is_zero(context, &file, size, &name)? {
            return Ok(Self::Holds(format!("{size} bytes of data that are not a volume")));
        }
        Ok(Self::Blank { size })
    }
}

fn signature(head: &[u8]) -> Option<&'static str> {
    if head.starts_with(&BlockKind::Superblock.magic().to_le_bytes()) {
        return Some("a Myriad volume");
    }
    let is_there =
        |(offset, bytes, _): &&(usize, &[u8], &str)| head.get(*offset..).is_some_and(|rest| rest.starts_with(bytes));
    SIGNATURES.iter().find(is_there).map(|(_, _, what)| *what)
}

/// Whether a file holds nothing but zeros. Holes are skipped, so a sparse giant costs nothing.
fn is_zero(context: &Context, file: &File, size: u64, name: &str) -> Result<bool> {
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

    #[test]
    fn signatures_are_found_where_they_lie() {
        assert_eq!(signature(&[0; 4096]), None);
        assert_eq!(signature(b"MYSB"), Some("a Myriad volume"));
        for (offset, bytes, what) in SIGNATURES {
            let mut head = vec![0; HEAD_SIZE];
            head[*offset..*offset + bytes.len()].copy_from_slice(bytes);
            assert_eq!(signature(&head), Some(*what));
            assert_eq!(signature(&head[..*offset]), None, "a short file is no reason to fail");
        }
    }
}
