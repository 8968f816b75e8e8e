//! An answer to a request, before it is sent.

use myriad_engine::Errno;
use zerocopy::IntoBytes;

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// With this many bytes.
    Bytes(usize),
    Error(Errno),
    /// Not at all: the kernel expects none.
    Nothing,
}

impl From<Result<usize, Errno>> for Answer {
    fn from(result: Result<usize, Errno>) -> Self {
        match result {
            Ok(len) => Self::Bytes(len),
            Err(errno) => Self::Error(errno),
        }
    }
}

/// Puts a structure at the front of an answer.
pub fn put(out: &mut [u8], value: &(impl IntoBytes + zerocopy::Immutable)) -> Result<usize, Errno> {
    let bytes = value.as_bytes();
    out.get_mut(..bytes.len()).ok_or(Errno::INVAL)?.copy_from_slice(bytes);
    Ok(bytes.len())
}
