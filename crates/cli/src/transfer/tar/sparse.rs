//! Maps of files with holes, in the four ways GNU tar has written them.
//!
//!     old GNU     in the header and blocks after it, type 'S'
//!     PAX 0.0     pairs of records GNU.sparse.offset and GNU.sparse.numbytes
//!     PAX 0.1     one record GNU.sparse.map, numbers with commas between them
//!     PAX 1.0     lines of decimal numbers before the data, padded to a block

use super::header::{Block, number};
use super::pax;
use crate::transfer::batch::Segment;

/// Most segments of one file that are read: 16 MiB of memory, far beyond what programs write.
pub const SEGMENTS_MAX: usize = 1 << 20;

/// A map while it is read. Numbers alternate: offset, length.
#[derive(Debug, Default)]
pub struct Map {
    segments: Vec<Segment>,
    offset: Option<u64>,
}

impl Map {
    /// Takes the next number.
    pub fn push(&mut self, number: u64) -> Result<(), &'static str> {
        let Some(offset) = self.offset.take() else {
            self.offset = Some(number);
            return Ok(());
        };
        if self.segments.len() == SEGMENTS_MAX {
            return Err("more than a million pieces in one sparse file");
        }
        let end = self.segments.last().map_or(0, |last| last.offset + last.length);
        if offset < end || offset.checked_add(number).is_none_or(|end| end > i64::MAX as u64) {
            return Err("the map of a sparse file is not in order");
        }
        self.segments.push(Segment { offset, length: number });
        Ok(())
    }

    /// Takes numbers with commas between them.
    pub fn push_list(&mut self, list: &[u8]) -> Result<(), &'static str> {
        for field in list.split(|&byte| byte == b',') {
            self.push(pax::number(field).ok_or("a number in the map of a sparse file is not one")?)?;
        }
        Ok(())
    }

    /// Takes entries of an old GNU header, up to the first empty one.
    pub fn push_header(&mut self, entries: &[u8]) -> Result<(), &'static str> {
        for entry in entries.chunks_exact(24) {
            if entry[0] == 0 || entry[12] == 0 {
                break;
            }
            for field in [&entry[..12], &entry[12..]] {
                let number = number(field).and_then(|number| u64::try_from(number).ok());
                self.push(number.ok_or("a number in the map of a sparse file is not one")?)?;
            }
        }
        Ok(())
    }

    /// The segments that hold data, checked against the size of the file and of the data stored for it.
    pub fn finish(mut self, size: u64, stored: u64) -> Result<Vec<Segment>, &'static str> {
        self.segments.retain(|segment| segment.length > 0);
        let end = self.segments.last().map_or(0, |last| last.offset + last.length);
        let sum: u64 = self.segments.iter().map(|segment| segment.length).sum();
        if self.offset.is_some() || end > size || sum != stored {
            return Err("the map of a sparse file does not fit its size");
        }
        Ok(self.segments)
    }
}

/// Entries in an old GNU header, whether blocks with more follow it, and the file's size.
pub fn old_header(block: &Block) -> (&[u8], bool, Option<u64>) {
    (&block[386..482], block[482] != 0, number(&block[483..495]).and_then(|size| u64::try_from(size).ok()))
}

/// Entries in a block that follows an old GNU header, and whether another one follows.
pub fn old_extension(block: &Block) -> (&[u8], bool) {
    (&block[..504], block[504] != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_checked() {
        // List, size, data stored, number of segments.
        let cases: &[(&str, u64, u64, Option<usize>)] = &[
            ("0,10,20,10", 30, 20, Some(2)),
            ("0,10,20,10,40,0", 40, 20, Some(2)),
            ("40,0", 40, 0, Some(0)),
            ("0,10,20", 30, 10, None),
            ("0,10,5,10", 30, 20, None),
            ("0,10", 5, 10, None),
            ("0,10", 10, 9, None),
            ("0,9223372036854775808", 10, 10, None),
            ("18446744073709551615,1", 10, 1, None),
            ("", 0, 0, None),
            ("a,1", 1, 1, None),
        ];
        for (list, size, stored, count) in cases {
            let mut map = Map::default();
            let segments = map.push_list(list.as_bytes()).and_then(|()| map.finish(*size, *stored));
            assert_eq!(segments.ok().map(|segments| segments.len()), *count, "{list}");
        }
    }
}
