//! Words of a block in which it differs from its frame: copies that cost what has changed, not what a block has.
//!
//! Everything on disk is made of fields at multiples of 8 bytes, so a word of 8 bytes is the piece that is kept. A new name costs four to eight of
//! them, a bit one, a new inode a dozen; a whole copy of the block would cost 4 to 64 KiB for each.

use myriad_format::unit::UNIT_SIZE;

/// Bytes of a word.
pub(super) const WORD: usize = 8;
/// Words of a unit.
const UNIT_WORDS: usize = UNIT_SIZE / WORD;

/// A word, and where in its block it is, counted in words.
#[derive(Clone, Copy)]
struct Kept {
    at: u16,
    /// Not a `u64`, which would make it sixteen bytes instead of ten.
    bytes: [u8; WORD],
}

const _: () = assert!(size_of::<Kept>() == 10);

/// Words of a block, in the order of their places.
#[derive(Default)]
pub(super) struct Words(Vec<Kept>);

impl Words {
    /// Bytes of memory for one.
    pub const EACH: u64 = size_of::<Kept>() as u64;

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of memory.
    pub fn memory(&self) -> u64 {
        (self.0.capacity() * size_of::<Kept>()) as u64
    }

    fn find(&self, at: u16) -> Result<usize, usize> {
        match self.0.last() {
            // Most come in order.
            Some(last) if last.at < at => Err(self.0.len()),
            _ => self.0.binary_search_by_key(&at, |kept| kept.at),
        }
    }

    /// Keeps the word at a byte of the block, unless one is kept from there already.
    pub fn keep(&mut self, at: usize, word: &[u8]) {
        let at = (at / WORD) as u16;
        if let Err(index) = self.find(at) {
            if self.0.len() == self.0.capacity() {
                // Most blocks have few: doubling would waste more than copying costs.
                self.0.reserve_exact((self.0.len() / 4).max(4));
            }
            self.0.insert(index, Kept { at, bytes: word.try_into().expect("a word") });
        }
    }

    /// Keeps all words of a unit in which it differs from another one.
    pub fn keep_differences(&mut self, unit: usize, is: &[u8], other: &[u8]) {
        for word in 0..UNIT_WORDS {
            let range = word * WORD..(word + 1) * WORD;
            if is[range.clone()] != other[range.clone()] {
                self.keep(unit * UNIT_SIZE + range.start, &is[range]);
            }
        }
    }

    /// The word kept from a byte of the block on.
    pub fn word(&self, at: usize) -> Option<u64> {
        let index = self.find((at / WORD) as u16).ok()?;
        Some(u64::from_le_bytes(self.0[index].bytes))
    }

    /// All words, and where in the block each begins.
    pub fn all(&self) -> impl Iterator<Item = (usize, u64)> {
        self.0.iter().map(|kept| (usize::from(kept.at) * WORD, u64::from_le_bytes(kept.bytes)))
    }

    /// Units with words, in order.
    pub fn units(&self) -> impl Iterator<Item = usize> {
        self.0.chunk_by(|a, b| unit_of(a) == unit_of(b)).map(|words| unit_of(&words[0]))
    }

    /// Whether there are words of a unit.
    pub fn has_unit(&self, unit: usize) -> bool {
        let index = self.find((unit * UNIT_WORDS) as u16).unwrap_or_else(|index| index);
        self.0.get(index).is_some_and(|kept| unit_of(kept) == unit)
    }

    /// Makes of bytes of the frame, which begin at a byte of the block, those of the block. All of them are whole words.
    pub fn lay_over(&self, from: usize, bytes: &mut [u8]) {
        let first = self.find((from / WORD) as u16).unwrap_or_else(|index| index);
        for kept in &self.0[first..] {
            let at = usize::from(kept.at) * WORD;
            let Some(place) = bytes.get_mut(at - from..at - from + WORD) else { return };
            place.copy_from_slice(&kept.bytes);
        }
    }

    /// A unit of the block, given that of the frame.
    pub fn unit(&self, number: usize, frame: &[u8]) -> [u8; UNIT_SIZE] {
        let mut bytes: [u8; UNIT_SIZE] = frame.try_into().expect("a unit");
        self.lay_over(number * UNIT_SIZE, &mut bytes);
        bytes
    }

    /// Drops the words that are as the frame has them.
    pub fn drop_equal(&mut self, frame: &[u8]) {
        self.0.retain(|kept| frame[usize::from(kept.at) * WORD..][..WORD] != kept.bytes);
        if self.0.len() < self.0.capacity() / 2 {
            self.0.shrink_to_fit();
        }
    }
}

fn unit_of(kept: &Kept) -> usize {
    usize::from(kept.at) / UNIT_WORDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_were_kept_are_laid_over_the_frame() {
        let before: Vec<u8> = (0..2048).map(|i| (i / 8) as u8).collect();
        let mut now = before.clone();
        let mut words = Words::default();
        for at in [1024, 8, 0, 1032, 2040, 1024] {
            words.keep(at, &now[at..at + 8]);
            now[at..at + 8].fill(0xEE);
        }
        assert_eq!(words.units().collect::<Vec<_>>(), [0, 2, 3]);
        assert!(words.has_unit(2) && !words.has_unit(1));
        assert_eq!((words.word(1032), words.word(16)), (Some(u64::from_le_bytes([129; 8])), None));
        let mut whole = now.clone();
        words.lay_over(0, &mut whole);
        assert!(whole == before);
        let mut part = now[1032..1048].to_vec();
        words.lay_over(1032, &mut part);
        assert_eq!(part, before[1032..1048]);
        now[1024..1032].copy_from_slice(&before[1024..1032]);
        words.drop_equal(&now);
        assert_eq!(words.all().map(|(at, _)| at).collect::<Vec<_>>(), [0, 8, 1032, 2040]);

        let mut other = Words::default();
        other.keep_differences(2, &before[1024..1536], &now[1024..1536]);
        assert_eq!(other.all().collect::<Vec<_>>(), [(1032, u64::from_le_bytes([129; 8]))]);
    }
}
