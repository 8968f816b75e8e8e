//! A file that a search came to.

use crate::show::name::last;
use crate::volume::{Opened, Place};
use myriad_engine::{Errno, Error, FileType, Stat};
use std::os::unix::ffi::OsStrExt;

/// A file that the walk came to.
pub struct Found<'a> {
    /// Where the search began.
    pub start: &'a Place,
    /// In the volume.
    pub path: Vec<u8>,
    /// Relative to the start.
    pub below: &'a [u8],
    pub depth: usize,
    /// Of the target, where links are followed.
    pub stat: &'a Stat,
    /// Inode of the directory that it was found in; `None` where the search began.
    pub directory: Option<u64>,
}

impl Found<'_> {
    pub fn name(&self) -> &[u8] {
        last(&self.path).unwrap_or(b"/")
    }

    pub fn place(&self) -> Place {
        Place { image: self.start.image.clone(), path: self.path.clone() }
    }

    /// `IMAGE:/path`, byte for byte.
    pub fn bytes(&self) -> Vec<u8> {
        [self.start.image.as_os_str().as_bytes(), b":", &self.path].concat()
    }

    /// Type of what a symbolic link leads to; `None`: nowhere.
    pub fn target_type(&self, volume: &Opened) -> myriad_engine::Result<Option<FileType>> {
        if self.stat.file_type() != FileType::Symlink {
            return Ok(Some(self.stat.file_type()));
        }
        Ok(followed(volume, &self.path)?.map(|stat| stat.file_type()))
    }
}

/// What a symbolic link leads to, if it leads anywhere. One that leads in a circle is an error.
pub fn followed(volume: &Opened, path: &[u8]) -> myriad_engine::Result<Option<Stat>> {
    match volume.tree().stat(path) {
        Ok(stat) => Ok(Some(stat)),
        Err(Error::Refused(Errno::NOENT | Errno::NOTDIR)) => Ok(None),
        Err(error) => Err(error),
    }
}
