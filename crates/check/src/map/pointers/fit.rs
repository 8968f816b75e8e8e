//! Which part of salvaged extents a map of pointers can express.
//!
//! A pointer leads to a run of fragments side by side, from the first fragment of its file block on; a pointer in a
//! block of pointers leads to all fragments. If damage has left of a file block anything else, such as its second half
//! alone, repair keeps the beginning that fits, or nothing.

use myriad_format::extent::{Extent, LENGTH_MAX};
use myriad_format::table::DIRECT;
use myriad_format::{FileBlock, FsBlock};

/// Removes from the extents of a file what no pointer can say, and what lies at and behind fragment `end`; returns what
/// it removed. The file's blocks have so many fragments, a power of two. The end of a block that must be whole stays,
/// and reads as zeros.
pub(crate) fn fit(bits: u32, extents: &mut Vec<Extent>, end: u64) -> Vec<(FsBlock, u64)> {
    let mut pieces = std::mem::take(extents).into_iter().flat_map(|extent| pieces_of(extent, bits)).peekable();
    let (mut kept, mut lost): (Vec<Extent>, _) = (Vec::new(), Vec::new());
    while let Some(&first) = pieces.peek() {
        let block = first.file_block.0 >> bits;
        let (from, to) = (block << bits, (block + 1) << bits);
        let mut run: Vec<Extent> = Vec::new();
        while let Some(piece) = pieces.next_if(|piece| piece.file_block.0 < to) {
            let follows = match run.last() {
                None => piece.file_block.0 == from,
                Some(last) => last.end() == piece.file_block && last.start.offset_by(last.length.into()) == piece.start,
            };
            let reach = piece.start.0 % (1 << bits) + u64::from(piece.length);
            let is_apart =
                reach > 1 << bits || run.first().is_some_and(|first| first.start.0 >> bits != piece.start.0 >> bits);
            if follows && !is_apart { run.push(piece) } else { lost.push((piece.start, piece.length.into())) }
        }
        let is_direct = block < DIRECT as u64;
        let is_whole = run.last().is_some_and(|last| last.end().0 == to);
        let most = if from >= end || !is_direct && !is_whole { from } else { end.min(to) };
        for piece in run {
            let length = most.clamp(piece.file_block.0, piece.end().0) - piece.file_block.0;
            let rest = u64::from(piece.length) - length;
            if length > 0 {
                keep(&mut kept, Extent { length: length as u32, ..piece });
            }
            let behind = piece.start.offset_by(length);
            if rest > 0 && !is_direct && most > from {
                let file_block = FileBlock(piece.file_block.0 + length);
                keep(&mut kept, Extent { file_block, start: behind, length: rest as u32, unwritten: true });
            } else if rest > 0 {
                lost.push((behind, rest));
            }
        }
    }
    *extents = kept;
    lost
}

/// Adds a piece behind others, as a part of the last one if it goes on there: a file has many blocks in few extents.
fn keep(kept: &mut Vec<Extent>, piece: Extent) {
    match kept.last_mut() {
        Some(last)
            if last.end() == piece.file_block
                && last.start.offset_by(last.length.into()) == piece.start
                && last.unwritten == piece.unwritten
                && last.length + piece.length <= LENGTH_MAX =>
        {
            last.length += piece.length;
        }
        _ => kept.push(piece),
    }
}

/// The parts of an extent in each file block.
fn pieces_of(extent: Extent, bits: u32) -> impl Iterator<Item = Extent> {
    let blocks = extent.file_block.0 >> bits..extent.end().0.div_ceil(1 << bits);
    blocks.map(move |block| {
        let from = extent.file_block.0.max(block << bits);
        let to = extent.end().0.min((block + 1) << bits);
        let start = extent.start.offset_by(from - extent.file_block.0);
        Extent { file_block: FileBlock(from), start, length: (to - from) as u32, ..extent }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(file_block: u64, start: u64, length: u32, unwritten: bool) -> Extent {
        Extent { file_block: FileBlock(file_block), start: FsBlock(start), length, unwritten }
    }

    /// As the fields of an extent.
    type Left = Vec<(u64, u64, u32, bool)>;

    /// Blocks of four fragments: what is left, and what has gone.
    fn fitted(mut extents: Vec<Extent>, end: u64) -> (Left, Vec<(u64, u64)>) {
        let lost = fit(2, &mut extents, end);
        let left = extents.iter().map(|e| (e.file_block.0, e.start.0, e.length, e.unwritten)).collect();
        (left, lost.into_iter().map(|(start, length)| (start.0, length)).collect())
    }

    #[test]
    fn a_sound_map_stays() {
        let sound = vec![extent(0, 400, 4, false), extent(4, 501, 2, true), extent(6, 503, 1, false)];
        let (left, lost) = fitted(sound, u64::MAX);
        assert_eq!((left, lost), (vec![(0, 400, 4, false), (4, 501, 2, true), (6, 503, 1, false)], vec![]));
    }

    /// Each block of a file was an extent of its own, and repair needed memory for all of them.
    #[test]
    fn blocks_side_by_side_are_one_extent() {
        let sound = vec![extent(0, 400, 4000, false), extent(4000, 4400, 40, true), extent(4040, 8000, 40, true)];
        let (left, lost) = fitted(sound, u64::MAX);
        assert_eq!((left, lost), (vec![(0, 400, 4000, false), (4000, 4400, 40, true), (4040, 8000, 40, true)], vec![]));
    }

    #[test]
    fn of_a_block_with_a_gap_the_beginning_stays() {
        assert_eq!(fitted(vec![extent(0, 400, 1, false), extent(2, 402, 2, false)], 99).0, [(0, 400, 1, false)]);
        assert_eq!(fitted(vec![extent(1, 401, 3, false)], 99), (vec![], vec![(401, 3)]));
        // Side by side, but in two blocks; and not side by side.
        assert_eq!(fitted(vec![extent(0, 402, 3, false)], 99), (vec![], vec![(402, 3)]));
        assert_eq!(fitted(vec![extent(0, 400, 2, false), extent(2, 500, 2, false)], 99).1, [(500, 2)]);
    }

    #[test]
    fn a_block_behind_blocks_of_pointers_is_whole_or_nothing() {
        let at = DIRECT as u64 * 4;
        assert_eq!(fitted(vec![extent(at, 400, 3, false)], 99), (vec![], vec![(400, 3)]));
        let (left, lost) = fitted(vec![extent(at, 400, 8, false)], at + 2);
        assert_eq!(left, [(at, 400, 2, false), (at + 2, 402, 2, true)]);
        assert_eq!(lost, [(404, 4)]);
        // A direct pointer leads to less.
        assert_eq!(fitted(vec![extent(0, 400, 8, false)], 2), (vec![(0, 400, 2, false)], vec![(402, 2), (404, 4)]));
    }
}
