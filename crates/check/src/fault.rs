//! What a scrub finds wrong.

use crate::findings::number;

/// What is wrong with a block of data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Checksum,
    Unreadable(String),
}

impl Fault {
    pub fn number(&self) -> u32 {
        match self {
            Self::Checksum => number::DATA_CHECKSUM,
            Self::Unreadable(_) => number::DATA_UNREADABLE,
        }
    }

    pub fn sentence(&self) -> String {
        match self {
            Self::Checksum => "the contents are not what was written: their checksum is wrong".to_owned(),
            Self::Unreadable(error) => format!("the device cannot read the contents: {error}"),
        }
    }
}
