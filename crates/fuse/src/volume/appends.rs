//! Writes to a file that may only be appended to.
//!
//! Such a file cannot be opened for writing anywhere but at its end. The kernel does not know which files these are, and
//! with `no_open` nobody asks us at the opening: it lets a program map the file shared and for writing, and with
//! `writeback` write in its middle. What it sends of its cache then are whole pages, with the bytes that were there before
//! what was appended, and several requests in whatever order they come. So a write is judged by what it would change:
//! bytes that are there stay what they are.
//!
//! A piece of a long append may come before the one that lies in front of it. The gap that it leaves reads as zeros, and
//! is remembered, for it is still to be written.
//!
//! Two other ways fail. Refusing all that comes from the cache and lies before the end would refuse appends too, since with
//! `writeback` they come as whole pages. Asking for OPEN on volumes with such files costs every file a request, and the first
//! `chattr +a` would come too late. The price of this way: the error comes at msync(2), fsync(2) or close(2) and not at mmap(2),
//! and until the kernel drops the page, programs that read through its cache see what was refused. What was stored and not sent
//! when `chattr +a` came is taken ([`super::settling`]). The kernel's own update of times after a write-back is
//! answered and not done, because it would be refused and the write has set them. A kernel that takes inode flags from a FUSE
//! server would undo this.

use super::{VolumeService, errno};
use myriad_engine::{Errno, File, Node, OpenOptions};
use std::ops::Range;

/// Gaps remembered, of all files: a few times the requests that the kernel sends at once of one file. Of more, the oldest stay
/// zeros.
const GAPS_MAX: usize = 256;

#[derive(Default)]
pub struct Gaps(Vec<(Node, Range<u64>)>);

impl Gaps {
    /// The parts of a range that are not in a gap.
    fn outside(&self, node: Node, range: Range<u64>) -> Vec<Range<u64>> {
        let mut left = vec![range];
        for (_, gap) in self.0.iter().filter(|(of, _)| *of == node) {
            left = left.into_iter().flat_map(|part| without(part, gap)).collect();
        }
        left
    }

    /// A file of `size` bytes was written to.
    fn wrote(&mut self, node: Node, size: u64, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        let old = std::mem::take(&mut self.0);
        for (of, gap) in old {
            if of == node {
                self.0.extend(without(gap, range).into_iter().map(|part| (of, part)));
            } else {
                self.0.push((of, gap));
            }
        }
        if range.start > size {
            self.0.push((node, size..range.start));
        }
        self.0.drain(..self.0.len().saturating_sub(GAPS_MAX));
    }

    /// Of a file whose flags change nothing is to come any more.
    pub fn forget(&mut self, node: Node) {
        self.0.retain(|(of, _)| *of != node);
    }
}

/// What is left of a range without another one.
fn without(range: Range<u64>, other: &Range<u64>) -> Vec<Range<u64>> {
    let before = range.start..range.end.min(other.start);
    let after = range.start.max(other.end)..range.end;
    [before, after].into_iter().filter(|part| !part.is_empty()).collect()
}

impl VolumeService {
    /// Writes where the kernel says, but for bytes that are there already: those must be what they are, and may be sent
    /// only by its cache.
    pub(super) fn write_appended(
        &self,
        file: &File,
        offset: u64,
        data: &[u8],
        is_cached: bool,
    ) -> Result<usize, Errno> {
        let node = file.node();
        // Until it is written: the size must not change between the look and the write.
        let mut gaps = self.gaps.lock();
        let size = file.stat().map_err(errno)?.size;
        let end = offset.saturating_add(data.len() as u64);
        for part in gaps.outside(node, offset..end.min(size)).into_iter().filter(|part| !part.is_empty()) {
            let sent = &data[(part.start - offset) as usize..(part.end - offset) as usize];
            let mut there = vec![0; sent.len()];
            let options = OpenOptions { no_atime: true, ..super::data::READ };
            let len = self.file(node, options)?.read_at(&mut there, part.start).map_err(errno)?;
            if !is_cached || there[..len] != *sent {
                return Err(Errno::PERM);
            }
        }
        let written = file.write_placed(data, offset).map_err(errno)?;
        gaps.wrote(node, size, &(offset..offset + written as u64));
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_written_once() {
        let (node, other) = (Node::from_parts(7, 1), Node::from_parts(8, 1));
        let mut gaps = Gaps::default();
        let outside = |gaps: &Gaps, node, end| -> Vec<(u64, u64)> {
            gaps.outside(node, 0..end).into_iter().map(|part| (part.start, part.end)).collect()
        };
        assert_eq!(outside(&gaps, node, 10), [(0, 10)]);
        gaps.wrote(node, 10, &(10..20));
        assert!(gaps.0.is_empty(), "an append leaves none");
        gaps.wrote(node, 20, &(50..60));
        gaps.wrote(node, 60, &(90..100));
        assert_eq!(outside(&gaps, node, 100), [(0, 20), (50, 60), (90, 100)]);
        assert_eq!(outside(&gaps, other, 100), [(0, 100)]);
        gaps.wrote(node, 100, &(30..40));
        assert_eq!(outside(&gaps, node, 100), [(0, 20), (30, 40), (50, 60), (90, 100)]);
        gaps.wrote(node, 100, &(0..60));
        assert_eq!(outside(&gaps, node, 100), [(0, 60), (90, 100)]);
        gaps.wrote(other, 0, &(5..6));
        gaps.forget(node);
        assert_eq!((outside(&gaps, node, 100), gaps.0.len()), (vec![(0, 100)], 1));
        for size in 1..2 * GAPS_MAX as u64 {
            gaps.wrote(node, size * 10, &(size * 10 + 5..size * 10 + 10));
        }
        assert_eq!(gaps.0.len(), GAPS_MAX);
    }
}
