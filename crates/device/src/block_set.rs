//! A set of block numbers: a bit a block, in pages made when first touched.

use std::collections::HashMap;

const WORDS: usize = 64;
const PAGE_BLOCKS: u64 = WORDS as u64 * 64;

/// Block numbers; each 4096 of them of which one is in the set take 512 bytes.
#[derive(Default)]
pub struct BlockSet {
    pages: HashMap<u64, Box<[u64; WORDS]>>,
}

impl BlockSet {
    pub fn contains(&self, block: u64) -> bool {
        let bit = block % PAGE_BLOCKS;
        self.pages.get(&(block / PAGE_BLOCKS)).is_some_and(|page| page[bit as usize / 64] >> (bit % 64) & 1 == 1)
    }

    /// Takes a block out, if it is in.
    pub fn remove(&mut self, block: u64) {
        let number = block / PAGE_BLOCKS;
        let Some(page) = self.pages.get_mut(&number) else { return };
        let bit = (block % PAGE_BLOCKS) as usize;
        page[bit / 64] &= !(1 << (bit % 64));
        if page.iter().all(|&word| word == 0) {
            self.pages.remove(&number);
        }
    }

    /// Adds a run; `new` is called with each longest part of it that was not there.
    pub fn insert(&mut self, start: u64, length: u64, mut new: impl FnMut(u64, u64)) {
        let end = start.saturating_add(length);
        let mut gap: Option<u64> = None;
        let mut at = start;
        while at < end {
            let page = self.pages.entry(at / PAGE_BLOCKS).or_insert_with(|| Box::new([0; WORDS]));
            let bit = at % 64;
            let count = (64 - bit).min(end - at);
            let mask = u64::MAX >> (64 - count) << bit;
            let word = &mut page[(at % PAGE_BLOCKS) as usize / 64];
            let missing = mask & !*word;
            *word |= mask;
            if missing == mask {
                gap.get_or_insert(at);
            } else {
                for bit in bit..bit + count {
                    let block = at - at % 64 + bit;
                    if missing >> bit & 1 == 1 {
                        gap.get_or_insert(block);
                    } else if let Some(from) = gap.take() {
                        new(from, block - from);
                    }
                }
            }
            at += count;
        }
        if let Some(from) = gap {
            new(from, end - from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_plain_set() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let mut set = BlockSet::default();
        let mut plain = vec![false; 5 * PAGE_BLOCKS as usize];
        for _ in 0..400 {
            let start = random(plain.len() as u64);
            let most = if random(10) == 0 { 2 * PAGE_BLOCKS } else { 150 };
            let end = (start + random(most)).min(plain.len() as u64);
            let mut told: Vec<u64> = Vec::new();
            set.insert(start, end - start, |from, length| {
                assert!(length > 0 && told.last().is_none_or(|&last| last + 1 < from), "longest parts, ascending");
                told.extend(from..from + length);
            });
            let expected: Vec<u64> = (start..end).filter(|&block| !plain[block as usize]).collect();
            assert_eq!(told, expected);
            plain[start as usize..end as usize].fill(true);
            for _ in 0..random(200) {
                let block = random(plain.len() as u64);
                set.remove(block);
                plain[block as usize] = false;
            }
        }
        assert!(plain.iter().enumerate().all(|(block, &is_in)| set.contains(block as u64) == is_in));
        assert!(plain.contains(&false) && !set.contains(u64::MAX));
        (0..plain.len() as u64).for_each(|block| set.remove(block));
        assert!(set.pages.is_empty());
    }
}
