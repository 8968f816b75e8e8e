//! Blocks that could not be read when a change was judged.
//!
//! A medium may try for seconds before it says that it cannot read a block, and nobody else can do anything while the gate is closed. All units that wait for
//! such a block would ask for it, in each round of each commit. So for a while nobody asks the device again, and the answer is the one that it gave last. Somebody
//! who syncs the volume, or closes it, has all of them asked for again: the medium may have been mended. So has an fsync that would fail for them, and an
//! operation of order `sync`, which would shut the volume down.

use crate::error::{Error, IoError};
use crate::locks::{Mutex, Rank};
use crate::types::Time;
use crate::volume::UNREADABLE_FOR;
use myriad_format::{Corrupt, FsBlock};
use std::collections::BTreeMap;
use std::io;

/// Blocks that could not be read lately.
#[derive(Default)]
pub(crate) struct Unreadable {
    blocks: Mutex<{ Rank::Leaf as u8 }, BTreeMap<u64, Failure>>,
}

/// Why a block could not be read, and when that was last tried.
struct Failure {
    at: Time,
    why: Why,
}

enum Why {
    Io { op: &'static str, offset: Option<u64>, kind: io::ErrorKind, errno: Option<i32> },
    Corrupt(Box<Corrupt>),
}

impl Why {
    /// `None`: the block is not to blame.
    fn of(error: &Error) -> Option<Self> {
        match error {
            Error::Io(error) => {
                let IoError { op, offset, source } = &**error;
                Some(Self::Io { op, offset: *offset, kind: source.kind(), errno: source.raw_os_error() })
            }
            Error::Corrupt(corrupt) => Some(Self::Corrupt(corrupt.clone())),
            _ => None,
        }
    }

    fn error(&self) -> Error {
        match self {
            Self::Io { op, offset, kind, errno } => {
                let source = errno.map_or_else(|| (*kind).into(), io::Error::from_raw_os_error);
                Error::Io(Box::new(IoError { op, offset: *offset, source }))
            }
            Self::Corrupt(corrupt) => Error::Corrupt(corrupt.clone()),
        }
    }
}

impl Unreadable {
    /// Why a block could not be read lately.
    pub(super) fn find(&self, block: FsBlock, now: Time) -> Option<Error> {
        let blocks = self.blocks.lock();
        blocks.get(&block.0).filter(|failure| now - failure.at < UNREADABLE_FOR).map(|failure| failure.why.error())
    }

    /// A block cannot be read.
    pub(super) fn note(&self, block: FsBlock, error: &Error, now: Time) {
        if let Some(why) = Why::of(error) {
            let mut blocks = self.blocks.lock();
            blocks.retain(|_, failure| now - failure.at < UNREADABLE_FOR);
            blocks.insert(block.0, Failure { at: now, why });
        }
    }

    /// All are to be asked for again.
    pub fn forget(&self) {
        self.blocks.lock().clear();
    }
}
