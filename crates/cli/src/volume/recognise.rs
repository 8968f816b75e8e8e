//! What a file of the host is, by its bytes: a volume, its log, or what is left of one.

use crate::show::name::Shown;
use myriad_check::find_superblock_copy;
use myriad_device::{Access, DirectIo, FileDevice, FileOptions, IoBackend};
use myriad_format::log::{ANCHOR_MAGIC, AnchorBlock};
use myriad_format::superblock::{Superblock, SuperblockError, state};
use myriad_format::{BlockKind, FsBlock};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

/// Least size of a file that can have a copy of the superblock: one group of 64 blocks of 512 bytes, and more.
const COPY_MIN: u64 = 64 * 512;

/// What a log on a device of its own is called.
pub const LOG: &str = "the log of a Myriad volume";

/// Bytes at the beginning of a file that say whether it is ours.
pub const HEAD_SIZE: usize = Superblock::SIZE;

/// What the first bytes of a file say that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ours {
    Volume,
    /// The log of this volume, on a device of its own; zero where the bytes do not reach so far.
    Log([u8; 16]),
}

pub fn begins_as(head: &[u8]) -> Option<Ours> {
    if head.starts_with(&BlockKind::Superblock.magic().to_le_bytes()) {
        return Some(Ours::Volume);
    }
    let is_log = head.starts_with(&ANCHOR_MAGIC.to_le_bytes());
    let volume = if head.len() < AnchorBlock::SIZE { [0; 16] } else { AnchorBlock::read(head).volume };
    is_log.then_some(Ours::Log(volume))
}

/// What a file is, if it is a volume or a part of one: in words that follow "is".
pub fn describe(file: &File, path: &Path) -> io::Result<Option<String>> {
    let mut head = [0; HEAD_SIZE];
    let mut length = 0;
    while length < head.len() {
        match file.read_at(&mut head[length..], length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let ours = begins_as(&head);
    if ours == Some(Ours::Volume) {
        return Ok(Some(match Superblock::decode(&head, FsBlock(0)) {
            Ok(superblock) => named(&superblock, volume_state(&superblock)),
            Err(SuperblockError::Incompatible(_)) => "a Myriad volume of another version".into(),
            Err(_) => "a Myriad volume, its superblock damaged".into(),
        }));
    }
    if ours.is_some() {
        return Ok(Some(LOG.into()));
    }
    let size = io::Seek::seek(&mut &*file, io::SeekFrom::End(0))?;
    if size <= COPY_MIN {
        return Ok(None);
    }
    let copy = whole(path).ok().and_then(|device| find_superblock_copy(&device));
    Ok(copy.map(|superblock| named(&superblock, "its superblock lost")))
}

fn named(superblock: &Superblock, state: &str) -> String {
    let label = superblock.label.split(|&byte| byte == 0).next().unwrap_or_default();
    match label {
        b"" => format!("a Myriad volume, {state}"),
        label => format!("a Myriad volume, label {}, {state}", Shown(label)),
    }
}

/// A file as a device, to look at.
pub fn whole(path: &Path) -> Result<FileDevice, myriad_device::OpenError> {
    let options = FileOptions { direct: DirectIo::Never, backend: IoBackend::Threads, ..FileOptions::default() };
    FileDevice::open_with(path, Access::ReadOnly, &options)
}

/// Whether a path leads to a volume, as far as one can see: for a better word about something else.
pub fn is_volume(path: &Path) -> bool {
    let is_candidate = path.metadata().is_ok_and(|found| found.is_file() || found.file_type().is_block_device());
    is_candidate && File::open(path).and_then(|file| describe(&file, path)).is_ok_and(|found| found.is_some())
}

/// How a volume was left, in words; whether somebody has it open is another matter.
pub fn volume_state(superblock: &Superblock) -> &'static str {
    match superblock.state.get() {
        state::CLEAN => "closed cleanly",
        state::SEALED => "sealed",
        _ => "not closed cleanly",
    }
}
