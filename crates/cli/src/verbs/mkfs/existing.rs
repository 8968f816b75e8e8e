//! What lies where a volume is to be made, so that nothing is overwritten unasked.

use crate::context::Context;
use crate::failure::{At, Failure, image_name};
use crate::volume::recognise;
use crate::volume::signatures::{self, HEAD_SIZE, MD, md_at_end};
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
    let mut head = vec![0; HEAD_SIZE.min(usize::try_from(size).unwrap_or(HEAD_SIZE))];
    file.read_exact_at(&mut head, 0).at(&name)?;
    if let Some(what) = recognise::describe(file, image).at(&name)? {
        return Ok(Some(what));
    }
    if let Some(what) = signatures::other(&head) {
        return Ok(Some(what.into()));
    }
    for offset in md_at_end(size) {
        let mut magic = [0; MD.len()];
        file.read_exact_at(&mut magic, offset).at(&name)?;
        if magic == MD {
            return Ok(Some("a member of a RAID array (md)".into()));
        }
    }
    Ok(None)
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
    fn arrays_are_found_by_their_members_ends() {
        assert_eq!(md_at_end(4096).count(), 0);
        assert_eq!(md_at_end((1 << 20) + 512).collect::<Vec<_>>(), [(1 << 20) - (64 << 10), (1 << 20) - (8 << 10)]);
        let file = tempfile::NamedTempFile::new().unwrap();
        for offset in md_at_end(1 << 20) {
            file.as_file().set_len(0).unwrap();
            file.as_file().set_len(1 << 20).unwrap();
            file.as_file().write_all_at(MD, offset).unwrap();
            let Existing::Holds(what) = Existing::look(&Context::new(true), file.path()).unwrap() else {
                panic!("something is at {offset}")
            };
            assert!(what.contains("RAID"), "{what}");
        }
    }
}
