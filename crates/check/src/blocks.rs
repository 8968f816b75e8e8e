//! Which blocks have an owner: one bit a block, in pages of memory that are made when they are first touched.

use myriad_format::FsBlock;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// log2 of the blocks of a page.
const PAGE_BITS: u32 = 15;
pub(crate) const PAGE_BLOCKS: u64 = 1 << PAGE_BITS;
const WORDS: usize = (PAGE_BLOCKS / 64) as usize;
/// Locks; pages are spread over them so that threads on different groups seldom meet.
const SHARDS: usize = 64;

#[derive(Clone)]
enum Page {
    /// Every bit set: a long extent costs an entry a page, not a bit a block.
    Full,
    Bits(Box<[u64; WORDS]>),
}

/// A set of blocks.
pub(crate) struct Blocks {
    shards: Vec<Mutex<HashMap<u64, Page>>>,
}

impl Blocks {
    pub fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).is_empty())
    }

    fn with_page<R>(&self, page: u64, f: impl FnOnce(&mut HashMap<u64, Page>) -> R) -> R {
        let shard = &self.shards[(page % SHARDS as u64) as usize];
        f(&mut shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a run; the first block of it that was there already, if any.
    pub fn claim(&self, start: FsBlock, length: u64) -> Option<FsBlock> {
        let mut conflict = None;
        for (page, first, last) in pages(start, length) {
            let found = self.with_page(page, |map| claim_in_page(map, page, first, last));
            if conflict.is_none() {
                conflict = found.map(|bit| FsBlock((page << PAGE_BITS) + bit));
            }
        }
        conflict
    }

    /// Removes a run; how many of its blocks were there.
    pub fn release(&self, start: FsBlock, length: u64) -> u64 {
        let mut count = 0;
        for (page, first, last) in pages(start, length) {
            self.with_page(page, |map| {
                if let Some(entry) = map.get_mut(&page) {
                    if matches!(entry, Page::Full) {
                        *entry = Page::Bits(Box::new([u64::MAX; WORDS]));
                    }
                    if let Page::Bits(bits) = entry {
                        for (word, mask) in words(first, last) {
                            count += u64::from((bits[word] & mask).count_ones());
                            bits[word] &= !mask;
                        }
                    }
                }
            });
        }
        count
    }

    /// First block of a run that is in the set.
    pub fn first_in(&self, start: FsBlock, length: u64) -> Option<FsBlock> {
        pages(start, length).find_map(|(page, first, last)| {
            let bit = self.with_page(page, |map| match map.get(&page) {
                None => None,
                Some(Page::Full) => Some(first),
                Some(Page::Bits(bits)) => first_set(bits, first, last),
            })?;
            Some(FsBlock((page << PAGE_BITS) + bit))
        })
    }

    /// How many blocks of a run are in the set.
    #[cfg(test)]
    pub fn count_in(&self, start: FsBlock, length: u64) -> u64 {
        pages(start, length)
            .map(|(page, first, last)| {
                self.with_page(page, |map| match map.get(&page) {
                    None => 0,
                    Some(Page::Full) => last - first + 1,
                    Some(Page::Bits(bits)) => {
                        words(first, last).map(|(word, mask)| u64::from((bits[word] & mask).count_ones())).sum()
                    }
                })
            })
            .sum()
    }

    /// Calls `f` with each longest run of blocks inside `start..start + length` that is not in the set, ascending, until
    /// it says stop (`false`).
    pub fn for_each_gap(&self, start: FsBlock, length: u64, mut f: impl FnMut(FsBlock, u64) -> bool) {
        let end = start.0 + length;
        let mut gap: Option<u64> = None;
        for (page, first, last) in pages(start, length) {
            let base = page << PAGE_BITS;
            // A page is copied out so that `f` may claim.
            let bits = match self.with_page(page, |map| map.get(&page).cloned()) {
                None => {
                    gap.get_or_insert(base + first);
                    continue;
                }
                // Not word by word: a damaged volume may ask for the same long extent over and over.
                Some(Page::Full) => {
                    if let Some(from) = gap.take()
                        && !f(FsBlock(from), base + first - from)
                    {
                        return;
                    }
                    continue;
                }
                Some(Page::Bits(bits)) => bits,
            };
            let mut at = first;
            while at <= last {
                let word = bits[(at / 64) as usize] >> (at % 64);
                let left = 64 - at % 64;
                if word & 1 == 1 {
                    if let Some(from) = gap.take()
                        && !f(FsBlock(from), base + at - from)
                    {
                        return;
                    }
                    at += u64::from((!word).trailing_zeros()).min(left);
                } else {
                    gap.get_or_insert(base + at);
                    at += u64::from(word.trailing_zeros()).min(left);
                }
            }
        }
        if let Some(from) = gap {
            f(FsBlock(from), end - from);
        }
    }
}

impl Blocks {
    /// As [`Self::for_each_gap`], with the runs of blocks that are in the set.
    pub fn for_each_run(&self, start: FsBlock, length: u64, mut f: impl FnMut(FsBlock, u64) -> bool) {
        let mut at = start.0;
        let mut go_on = true;
        self.for_each_gap(start, length, |gap, length| {
            if gap.0 > at {
                go_on = f(FsBlock(at), gap.0 - at);
            }
            at = gap.0 + length;
            go_on
        });
        let end = start.0 + length;
        if go_on && at < end {
            f(FsBlock(at), end - at);
        }
    }
}

/// The pages of a run: number, first and last bit.
fn pages(start: FsBlock, length: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let end = start.0.saturating_add(length);
    let first_page = start.0 >> PAGE_BITS;
    let last_page = if length == 0 { first_page } else { (end - 1) >> PAGE_BITS };
    (first_page..=last_page).filter(move |_| length > 0).map(move |page| {
        let base = page << PAGE_BITS;
        (page, start.0.max(base) - base, (end - 1).min(base + PAGE_BLOCKS - 1) - base)
    })
}

/// The words that bits `first..=last` lie in, with their masks.
fn words(first: u64, last: u64) -> impl Iterator<Item = (usize, u64)> {
    (first / 64..=last / 64).map(move |word| {
        let low = if word == first / 64 { u64::MAX << (first % 64) } else { u64::MAX };
        let high = if word == last / 64 { u64::MAX >> (63 - last % 64) } else { u64::MAX };
        (word as usize, low & high)
    })
}

fn first_set(bits: &[u64; WORDS], first: u64, last: u64) -> Option<u64> {
    words(first, last).find_map(|(word, mask)| {
        let hit = bits[word] & mask;
        (hit != 0).then(|| word as u64 * 64 + u64::from(hit.trailing_zeros()))
    })
}

fn claim_in_page(map: &mut HashMap<u64, Page>, page: u64, first: u64, last: u64) -> Option<u64> {
    if first == 0 && last == PAGE_BLOCKS - 1 {
        return match map.insert(page, Page::Full) {
            None => None,
            Some(Page::Full) => Some(0),
            Some(Page::Bits(bits)) => first_set(&bits, first, last),
        };
    }
    match map.entry(page).or_insert_with(|| Page::Bits(Box::new([0; WORDS]))) {
        Page::Full => Some(first),
        Page::Bits(bits) => {
            let conflict = first_set(bits, first, last);
            for (word, mask) in words(first, last) {
                bits[word] |= mask;
            }
            conflict
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_across_pages() {
        let blocks = Blocks::new();
        assert_eq!(blocks.claim(FsBlock(100), 3 * PAGE_BLOCKS), None);
        assert_eq!(blocks.claim(FsBlock(50), 51), Some(FsBlock(100)));
        assert_eq!(blocks.claim(FsBlock(2 * PAGE_BLOCKS + 7), 1), Some(FsBlock(2 * PAGE_BLOCKS + 7)), "a full page");
        assert_eq!(blocks.count_in(FsBlock(0), 4 * PAGE_BLOCKS), 3 * PAGE_BLOCKS + 50);
        assert_eq!(blocks.first_in(FsBlock(0), 50), None);
        assert_eq!(blocks.first_in(FsBlock(0), 60), Some(FsBlock(50)));
        blocks.release(FsBlock(PAGE_BLOCKS * 2), 10);
        let mut gaps = Vec::new();
        blocks.for_each_gap(FsBlock(5), 5 * PAGE_BLOCKS, |start, length| {
            gaps.push((start.0, length));
            true
        });
        assert_eq!(gaps, [(5, 45), (2 * PAGE_BLOCKS, 10), (3 * PAGE_BLOCKS + 100, 2 * PAGE_BLOCKS - 95)]);
        let mut runs = Vec::new();
        blocks.for_each_run(FsBlock(60), 3 * PAGE_BLOCKS, |start, length| {
            runs.push((start.0, length));
            true
        });
        assert_eq!(runs, [(60, 2 * PAGE_BLOCKS - 60), (2 * PAGE_BLOCKS + 10, PAGE_BLOCKS + 50)]);
    }

    #[test]
    fn agrees_with_a_plain_set() {
        let mut state = 0x1234_5678_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let blocks = Blocks::new();
        let mut plain = vec![false; 3 * PAGE_BLOCKS as usize];
        for _ in 0..500 {
            let start = random(plain.len() as u64 - 1);
            let length = (1 + random(700)).min(plain.len() as u64 - start);
            let range = start as usize..(start + length) as usize;
            if random(3) == 0 {
                let expected = plain[range.clone()].iter().filter(|&&set| set).count() as u64;
                assert_eq!(blocks.release(FsBlock(start), length), expected);
                plain[range].fill(false);
            } else {
                let expected = range.clone().find(|&at| plain[at]).map(|at| FsBlock(at as u64));
                assert_eq!(blocks.claim(FsBlock(start), length), expected);
                plain[range].fill(true);
            }
        }
        let mut seen = vec![true; plain.len()];
        blocks.for_each_gap(FsBlock(0), plain.len() as u64, |start, length| {
            seen[start.0 as usize..(start.0 + length) as usize].fill(false);
            true
        });
        assert_eq!(seen, plain);
        let count = plain.iter().filter(|&&set| set).count() as u64;
        assert_eq!(blocks.count_in(FsBlock(0), plain.len() as u64), count);
    }
}
