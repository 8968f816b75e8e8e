//! The bytes of a file: chunks where something was written, zeros elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;

pub const CHUNK: usize = 4096;
/// What disks write as one.
pub const SECTOR: usize = 512;

type Chunk = [u8; CHUNK];
const ZERO_CHUNK: Chunk = [0; CHUNK];

/// Where the first byte is that is not zero. Compares a chunk at a time: most of what tests look at is as it should be.
pub fn first_not_zero(bytes: &[u8]) -> Option<usize> {
    let chunk = bytes.chunks(CHUNK).position(|chunk| *chunk != ZERO_CHUNK[..chunk.len()])?;
    let within = bytes[chunk * CHUNK..].iter().position(|&byte| byte != 0)?;
    Some(chunk * CHUNK + within)
}

/// Cheap to clone: chunks are shared until written.
///
/// Invariants: no byte past `size` is nonzero; no chunk is all zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    chunks: BTreeMap<u64, Arc<Chunk>>,
    size: u64,
}

impl Content {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// `offset + bytes.len()` does not overflow.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let inside = (at % CHUNK as u64) as usize;
            let (head, tail) = rest.split_at(rest.len().min(CHUNK - inside));
            self.edit(at / CHUNK as u64, |chunk| chunk[inside..inside + head.len()].copy_from_slice(head));
            at += head.len() as u64;
            rest = tail;
        }
        self.size = self.size.max(offset + bytes.len() as u64);
    }

    fn edit(&mut self, index: u64, change: impl FnOnce(&mut Chunk)) {
        let chunk = Arc::make_mut(self.chunks.entry(index).or_insert_with(|| Arc::new(ZERO_CHUNK)));
        change(chunk);
        if *chunk == ZERO_CHUNK {
            self.chunks.remove(&index);
        }
    }

    /// Bytes from `offset`, at most `len`, fewer only at the end.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        if offset >= self.size {
            return Vec::new();
        }
        let len = (self.size - offset).min(len as u64) as usize;
        let mut out = vec![0; len];
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let inside = (at % CHUNK as u64) as usize;
            let part = (len - done).min(CHUNK - inside);
            if let Some(chunk) = self.chunks.get(&(at / CHUNK as u64)) {
                out[done..done + part].copy_from_slice(&chunk[inside..inside + part]);
            }
            done += part;
        }
        out
    }

    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size - size);
        }
        self.size = size;
    }

    /// Makes a range read as zero; the size stays.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let chunk_size = CHUNK as u64;
        let touched: Vec<u64> =
            self.chunks.range(offset / chunk_size..end.div_ceil(chunk_size)).map(|(index, _)| *index).collect();
        for index in touched {
            let start = index * chunk_size;
            let from = offset.saturating_sub(start).min(chunk_size) as usize;
            let to = (end - start).min(chunk_size) as usize;
            self.edit(index, |chunk| chunk[from..to].fill(0));
        }
    }

    pub fn extend(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Chunks that are not all zeros, with their offsets.
    pub fn chunks(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.chunks.iter().map(|(index, chunk)| (index * CHUNK as u64, &chunk[..]))
    }

    /// The first nonzero byte at or after `offset`.
    pub fn next_nonzero(&self, offset: u64) -> Option<u64> {
        self.chunks.range(offset / CHUNK as u64..).find_map(|(index, chunk)| {
            let start = index * CHUNK as u64;
            let from = offset.saturating_sub(start).min(CHUNK as u64) as usize;
            let at = first_not_zero(&chunk[from..])?;
            Some(start + (from + at) as u64)
        })
    }

    /// A sector's bytes; zeros past the end.
    pub fn sector(&self, index: u64) -> &[u8] {
        let per_chunk = (CHUNK / SECTOR) as u64;
        match self.chunks.get(&(index / per_chunk)) {
            Some(chunk) => &chunk[(index % per_chunk) as usize * SECTOR..][..SECTOR],
            None => &ZERO_CHUNK[..SECTOR],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_bytes() {
        let mut content = Content::default();
        content.write(5000, b"abc");
        assert_eq!(content.size(), 5003);
        assert_eq!(content.read(4998, 10), b"\0\0abc");
        assert_eq!(content.next_nonzero(0), Some(5000));
        assert_eq!(content.next_nonzero(5003), None);
        content.write(1 << 40, b"z");
        content.zero(5001, 1 << 41);
        assert_eq!((content.size(), content.next_nonzero(5001)), ((1 << 40) + 1, None));
        content.truncate(5000);
        content.truncate(6000);
        assert_eq!(content.read(0, 7000), vec![0; 6000]);
        assert_eq!(content.chunks().count(), 0);
    }
}
