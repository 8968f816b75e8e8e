//! Zeros of a file's content: stored, or left as holes.

use super::target::Target;
use crate::interrupt::Interrupted;
use myriad_engine::Error;

/// Which zeros of a file's content are not stored.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holes {
    /// Those that are holes in the source
    #[default]
    Auto,
    /// All, in blocks of 4 KiB
    Always,
    /// None: what is a hole in the source is stored as zeros
    Never,
}

/// What may become a hole.
const HOLE: usize = 4 << 10;

fn is_zero(piece: &[u8]) -> bool {
    piece.iter().all(|&byte| byte == 0)
}

/// Whether some of a file's content may become a hole.
pub fn has_zeros(data: &[u8]) -> bool {
    data.chunks_exact(HOLE).any(is_zero)
}

/// Writes all but whole blocks of zeros. The pieces of a file begin at multiples of a block, but for those of a pipe: there fewer
/// holes are found.
pub fn write_sparsely<T: Target>(target: &T, file: &T::File, offset: u64, bytes: &[u8]) -> Result<(), Error> {
    let mut start = 0;
    for (index, piece) in bytes.chunks(HOLE).enumerate() {
        let at = index * HOLE;
        if piece.len() < HOLE || !is_zero(piece) {
            continue;
        }
        if start < at {
            target.write(file, offset + start as u64, &bytes[start..at])?;
        }
        start = at + HOLE;
    }
    if start < bytes.len() { target.write(file, offset + start as u64, &bytes[start..]) } else { Ok(()) }
}

pub fn write_zeros<T: Target>(target: &T, file: &T::File, range: std::ops::Range<u64>) -> Result<(), Error> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut offset = range.start;
    while offset < range.end {
        if Interrupted::received().is_some() {
            return Err(Error::Cancelled);
        }
        let length = (range.end - offset).min(ZEROS.len() as u64);
        target.write(file, offset, &ZEROS[..length as usize])?;
        offset += length;
    }
    Ok(())
}
