//! The note of an exchange: two names that change what they name with each other, on a volume that is written without a log.
//!
//! An entry can name only one inode, and a device writes no two sectors as one. So the superblock, which is one sector, first says what the two
//! names are to name. Then the entries are written, and the identities of what they name, and then the note is taken away. Whoever opens or checks
//! the volume in between does what the note says: doing it twice does no harm.

use crate::on_disk::on_disk;
use crate::superblock::Superblock;
use zerocopy::little_endian::{U32, U64};

on_disk! {
    /// One of the two names of an exchange; all zero if none is noted.
    pub struct ExchangedName: 40 {
        /// Block of the directory in which its entry lies.
        0 => block: U64,
        /// Byte of the block at which the entry begins.
        8 => at: U32,
        /// `mode >> 12` of the inode that it is to name.
        12 => file_type: u8,
        13 => reserved: [u8; 3],
        /// The inode that it is to name.
        16 => ino: U64,
        /// The directory, and the hash of the name: the identity that a directory of this name is to have.
        24 => dir: U64,
        32 => hash: U64,
    }
}

impl Superblock {
    /// The two names whose exchange is noted.
    pub fn exchange(&self) -> Option<[ExchangedName; 2]> {
        let names = [self.exchange_source, self.exchange_target];
        (names != [ExchangedName::zeroed(); 2]).then_some(names)
    }

    /// Notes an exchange of two names, or takes the note away.
    pub fn set_exchange(&mut self, names: Option<[ExchangedName; 2]>) {
        [self.exchange_source, self.exchange_target] = names.unwrap_or([ExchangedName::zeroed(); 2]);
    }
}
