//! Files of the host: attributes, extended attributes, and where their data is.

use super::batch::{LinkKey, Meta, Segment};
use super::tar::pax;
use crate::volume::proc_path;
use myriad_engine::{Errno, FileType, Time};
use myriad_format::xattr;
use rustix::fs::{SeekFrom, Stat};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Unit of `st_blocks`.
const BLOCK_UNIT: u64 = 512;

/// Zeros that are worth a hole, where only a file's content tells: a few blocks of any volume.
const ZEROS_MIN: usize = 32 << 10;

pub fn time(seconds: i64, nanoseconds: u64) -> Time {
    pax::clamp(i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds))
}

/// `None` for a type of file that Linux does not have.
pub fn meta(stat: &Stat) -> Option<Meta> {
    let mode = stat.st_mode as u16;
    FileType::from_mode(mode)?;
    Some(Meta {
        mode,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev,
        size: stat.st_size as u64,
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        atime: Some(time(stat.st_atime, stat.st_atime_nsec)),
    })
}

pub fn link_key(stat: &Stat) -> LinkKey {
    LinkKey { device: stat.st_dev, ino: stat.st_ino }
}

/// Whether the file may have holes: it has fewer blocks than bytes.
pub fn may_have_holes(stat: &Stat) -> bool {
    (stat.st_blocks as u64) * BLOCK_UNIT < stat.st_size as u64
}

/// Where the data of a file of `size` bytes is. All of it, on a file system that does not know.
pub fn segments(file: impl AsFd, size: u64) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut offset = 0;
    while offset < size {
        let start = match rustix::fs::seek(&file, SeekFrom::Data(offset)) {
            Ok(start) if start < size => start,
            // Nothing but a hole is left.
            Ok(_) | Err(Errno::NXIO) => break,
            Err(_) => return vec![Segment { offset: 0, length: size }],
        };
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap_or(size).clamp(start + 1, size);
        segments.push(Segment { offset: start, length: end - start });
        offset = end;
    }
    let is_whole = matches!(segments[..], [Segment { offset: 0, length }] if length == size);
    if is_whole && is_fuse(&file) {
        return segments_by_content(&file, size).unwrap_or(segments);
    }
    segments
}

/// Whether a file lies on a FUSE mount, our own among them. The kernel calls all of a file data there if the server cannot know what programs
/// have stored in it, though the file may have large holes.
fn is_fuse(file: impl AsFd) -> bool {
    const FUSE_SUPER_MAGIC: u64 = 0x6573_5546;
    rustix::fs::fstatfs(file).is_ok_and(|total| total.f_type as u64 == FUSE_SUPER_MAGIC)
}

/// Where a file has anything but zeros, found by reading it. Runs of zeros shorter than [`ZEROS_MIN`] count as data.
fn segments_by_content(file: impl AsFd, size: u64) -> Result<Vec<Segment>, Errno> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut buf = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < size {
        let wanted = (size - offset).min(buf.len() as u64) as usize;
        let count = match rustix::io::pread(&file, &mut buf[..wanted], offset) {
            // It was cut off while we read; who reads the content will notice.
            Ok(0) => break,
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        for piece in buf[..count].chunks(ZEROS_MIN) {
            if piece.iter().any(|&byte| byte != 0) {
                match segments.last_mut() {
                    Some(last) if last.offset + last.length == offset => last.length += piece.len() as u64,
                    _ => segments.push(Segment { offset, length: piece.len() as u64 }),
                }
            }
            offset += piece.len() as u64;
        }
    }
    Ok(segments)
}

/// Where attributes are read: a file that is open, or a name in a directory that is.
pub enum Named<'a> {
    Open(BorrowedFd<'a>),
    /// The file itself, if it is a symbolic link.
    In(BorrowedFd<'a>, &'a [u8]),
}

impl Named<'_> {
    /// The kernel has these calls by path only; this path leads to the directory whatever its name is by now.
    pub fn path(directory: BorrowedFd<'_>, name: &[u8]) -> PathBuf {
        proc_path(directory).join(OsStr::from_bytes(name))
    }
}

/// Reads extended attributes, with room that is made once.
pub struct Xattrs {
    names: Vec<u8>,
    value: Vec<u8>,
}

impl Default for Xattrs {
    fn default() -> Self {
        // The kernel's own limits of a list and of a value.
        Self { names: vec![0; 64 << 10], value: vec![0; xattr::VALUE_MAX] }
    }
}

impl Xattrs {
    /// Appends them to `list`, packed.
    pub fn read(&mut self, file: &Named, list: &mut Vec<u8>) -> Result<(), Errno> {
        let length = match file {
            Named::Open(file) => rustix::fs::flistxattr(file, &mut self.names[..]),
            Named::In(directory, name) => rustix::fs::llistxattr(Named::path(*directory, name), &mut self.names[..]),
        };
        let length = match length {
            Ok(length) => length,
            // The file system has none; or /proc is not there, and links and device nodes have none but rarely.
            Err(Errno::OPNOTSUPP | Errno::NOENT | Errno::PERM) => return Ok(()),
            Err(error) => return Err(error),
        };
        let start = list.len();
        for name in self.names[..length].split(|&byte| byte == 0).filter(|name| is_kept(name)) {
            let length = match file {
                Named::Open(file) => rustix::fs::fgetxattr(file, name, &mut self.value[..]),
                Named::In(directory, entry) => {
                    rustix::fs::lgetxattr(Named::path(*directory, entry), name, &mut self.value[..])
                }
            };
            match length {
                Ok(length) if list.len() - start + name.len() + length + 5 > xattr::LIST_MAX => {
                    return Err(Errno::TOOBIG);
                }
                Ok(length) => xattr::push(list, name, &self.value[..length]),
                // Gone since, or not for us to see.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Attributes that belong to the file, not to the file system it is on.
pub fn is_kept(name: &[u8]) -> bool {
    [&b"user."[..], b"trusted.", b"security."].iter().any(|space| name.starts_with(space))
        || name == b"system.posix_acl_access"
        || name == b"system.posix_acl_default"
}
