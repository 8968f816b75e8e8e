//! Reading file data: from pages, from cached blocks, from the device.

use super::{FileData, OpenFile};
use crate::checksums;
use crate::counters::Count;
use crate::error::{DamagedData, Error, Result};
use crate::inode;
use crate::map::{self, Mapping};
use crate::order::Look;
use crate::volume::Volume;
use myriad_device::{AlignedBuf, ReadRequest};
use myriad_format::checksum;
use myriad_format::extent::Extent;
use myriad_format::inode::RawInode;
use myriad_format::{FileBlock, FsBlock, Ino};
use std::ops::Range;
use std::sync::Arc;

/// Reads at least this long go straight to the caller's buffer and do not displace what the cache holds.
const DIRECT_MIN: usize = 256 << 10;
/// As often checksums are asked for, of so many blocks that they lie in two blocks of checksums at most.
const CHECKSUM_RUNS_PER_LOOK: usize = 32;

/// Blocks by which a copy of many is ahead in loading the cache's table, and frames: a third less time than without, and flat
/// around these.
const ENTRIES_AHEAD: usize = 8;
const FRAMES_AHEAD: usize = 4;

/// What of a request the cache does not have.
struct Missing {
    ino: Ino,
    /// Byte of the file at which the caller's buffer begins.
    offset: u64,
    pieces: Vec<Piece>,
    /// Of the blocks of all pieces, one after the other; empty on a volume without checksums.
    checksums: Vec<u32>,
}

/// A run of a request: where in the caller's buffer, how much, and the blocks that hold it.
struct Piece {
    at: usize,
    length: usize,
    /// First block of the run.
    block: FsBlock,
    /// Bytes into that block.
    within: usize,
}

impl Missing {
    fn new(ino: Ino, offset: u64) -> Self {
        Self { ino, offset, pieces: Vec::new(), checksums: Vec::new() }
    }
}

impl Piece {
    fn blocks(&self, block_size: usize) -> u64 {
        (self.within + self.length).div_ceil(block_size) as u64
    }
}

/// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file. `passing`: the cache need not keep what
/// is not in it yet.
pub(crate) fn read(volume: &Volume, file: &Arc<OpenFile>, buf: &mut [u8], offset: u64, passing: bool) -> Result<usize> {
    volume.counters.bump(Count::reads);
    if !file.data.read().loaded {
        let mut data = file.data.write();
        super::load::load_size(volume, file, &mut data)?;
    }
    let data = file.data.read();
    if offset >= data.size || buf.is_empty() {
        return Ok(0);
    }
    let rest = usize::try_from(data.size - offset).unwrap_or(usize::MAX);
    let length = buf.len().min(rest);
    let buf = &mut buf[..length];
    let cache_bytes = volume.cache.frame_count() as u64 * volume.cache.block_size() as u64;
    let window = rest.min(file.in_order.note(offset, length as u64, cache_bytes) as usize);
    if window > length && length < DIRECT_MIN && !data.emptied {
        // A failure shows in the read of what cannot be read.
        let _ = read_ahead(volume, file, &data, offset, window);
    }
    if data.emptied {
        buf.fill(0);
    } else {
        read_clean(volume, file, &data, offset, buf, !passing)?;
    }
    // Dirty pages lie over what is on the device.
    let block_size = volume.cache.block_size() as u64;
    let last = (offset + length as u64 - 1) / block_size;
    for (&block, &frame) in data.pages.range(offset / block_size..=last) {
        let page = volume.cache.arena.read(frame);
        let start = (block * block_size).max(offset);
        let end = ((block + 1) * block_size).min(offset + length as u64);
        let within = (start - block * block_size) as usize;
        let count = (end - start) as usize;
        let at = (start - offset) as usize;
        buf[at..at + count].copy_from_slice(&page[within..within + count]);
    }
    Ok(length)
}

/// Whether a file block has content on the device: one that is reserved and was never written is zeros.
pub(super) fn is_written(volume: &Volume, file: &OpenFile, data: &FileData, block: u64) -> Result<bool> {
    Ok(mapped(volume, file, data, block)?.is_some_and(|extent| !extent.unwritten))
}

/// A file block whose new content goes where it is mapped.
pub(super) enum InPlace {
    Written,
    /// It has not been written yet.
    Reserved,
}

/// Whether a file block that is written stays where it is mapped. With checksums only space reserved ahead does.
pub(super) fn in_place(volume: &Volume, file: &OpenFile, data: &FileData, block: u64) -> Result<Option<InPlace>> {
    Ok(mapped(volume, file, data, block)?.and_then(|extent| match extent.unwritten {
        true => Some(InPlace::Reserved),
        false => (!volume.geometry.has_checksums).then_some(InPlace::Written),
    }))
}

fn mapped(volume: &Volume, file: &OpenFile, data: &FileData, block: u64) -> Result<Option<Extent>> {
    if data.emptied {
        return Ok(None);
    }
    let look = volume.look();
    let raw = inode::read_node(&look, file.node())?;
    match map::lookup(&mut &look, &raw, file.ino, FileBlock(block))? {
        Mapping::Mapped(extent) => Ok(Some(extent)),
        Mapping::Hole { .. } => Ok(None),
    }
}

/// Reads what the inode maps, leaving dirty pages aside; holes and what lies past its size are zero. The data lock is
/// held, so the map stays. `keep`: in the cache, what had to be read and is not long.
pub(super) fn read_clean(
    volume: &Volume,
    file: &OpenFile,
    _data: &FileData,
    offset: u64,
    buf: &mut [u8],
    keep: bool,
) -> Result<()> {
    let missing = collect_all(volume, file, offset, buf.len(), put_into(buf))?;
    fetch(volume, None, &missing, buf, keep)
}

/// As [`collect`], in as many stays inside the gate as it takes; with the checksums of what is missing. The data lock is held, so
/// all of them find the same map, blocks and checksums.
fn collect_all(
    volume: &Volume,
    file: &OpenFile,
    offset: u64,
    length: usize,
    mut put: impl FnMut(Range<usize>, Option<&[u8]>),
) -> Result<Missing> {
    let mut missing = Missing::new(file.ino, offset);
    let mut at = 0;
    while at < length {
        let look = volume.look();
        let raw = inode::read_node(&look, file.node())?;
        at = collect(&look, &raw, &mut missing, at..length, &mut put)?;
    }
    if volume.geometry.has_checksums && !missing.pieces.is_empty() {
        let mut look = volume.look();
        for (i, (start, count)) in checksum_runs(volume, &missing.pieces).enumerate() {
            if i > 0 && i % CHECKSUM_RUNS_PER_LOOK == 0 {
                drop(look);
                look = volume.look();
            }
            checksums::load(&look, start, count, &mut missing.checksums)?;
        }
    }
    Ok(missing)
}

/// The blocks of pieces, in parts of so many that their checksums lie in two blocks at most.
fn checksum_runs(volume: &Volume, pieces: &[Piece]) -> impl Iterator<Item = (FsBlock, u64)> {
    let block_size = volume.cache.block_size();
    let most = u64::from(volume.geometry.checksums_per_block());
    pieces.iter().flat_map(move |piece| {
        let blocks = piece.blocks(block_size);
        (0..blocks).step_by(most as usize).map(move |at| (piece.block.offset_by(at), most.min(blocks - at)))
    })
}

/// Reads into the cache what it lacks of `length` bytes at `offset`.
fn read_ahead(volume: &Volume, file: &OpenFile, _data: &FileData, offset: u64, length: usize) -> Result<()> {
    let missing = collect_all(volume, file, offset, length, |_, _| ())?;
    let pieces = &missing.pieces;
    if pieces.is_empty() {
        return Ok(());
    }
    let block_size = volume.cache.block_size();
    let bits = volume.geometry.block_bits;
    volume.counters.add(Count::data_reads, pieces.len() as u64);
    let lengths = pieces.iter().map(|piece| piece.blocks(block_size) as usize * block_size);
    let mut buffers: Vec<AlignedBuf> = lengths.map(|length| volume.read_buffers.take(length)).collect();
    let mut requests: Vec<ReadRequest<'_>> = pieces
        .iter()
        .zip(&mut buffers)
        .map(|(piece, buf)| ReadRequest { offset: piece.block.0 << bits, buf })
        .collect();
    volume.read_device(&mut requests)?;
    verify(volume, &missing, &requests, |_| false)?;
    drop(requests);
    let blocks = buffers.iter().map(|buffer| buffer.len() >> bits).sum();
    volume.make_room_to_keep(blocks);
    {
        let _entered = volume.look();
        for (piece, buffer) in pieces.iter().zip(&buffers) {
            insert(volume, piece, buffer);
        }
    }
    buffers.into_iter().for_each(|buffer| volume.read_buffers.put(buffer));
    Ok(())
}

/// Puts the blocks of a piece into the cache, as far as there is room. Inside the gate.
fn insert(volume: &Volume, piece: &Piece, bytes: &[u8]) {
    for (n, bytes) in bytes.chunks(volume.cache.block_size()).enumerate() {
        volume.cache.insert_data(piece.block.offset_by(n as u64), bytes);
    }
}

impl Volume {
    /// Reads mapped data inside the gate: for the few bytes of a link's target.
    pub fn read_mapped(&self, look: &Look<'_>, ino: Ino, raw: &RawInode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut missing = Missing::new(ino, offset);
        let mut at = 0;
        while at < buf.len() {
            at = collect(look, raw, &mut missing, at..buf.len(), &mut put_into(buf))?;
        }
        if self.geometry.has_checksums {
            for (start, count) in checksum_runs(self, &missing.pieces) {
                checksums::load(look, start, count, &mut missing.checksums)?;
            }
        }
        fetch(self, Some(look), &missing, buf, true)
    }
}

/// Copies what is cached, and fills holes with zeros.
fn put_into(buf: &mut [u8]) -> impl FnMut(Range<usize>, Option<&[u8]>) {
    |range, cached| match cached {
        Some(bytes) => buf[range].copy_from_slice(bytes),
        None => buf[range].fill(0),
    }
}

/// Hands what is cached of a range of what is asked for to `put` (`None`: of a hole), and adds to `missing` what must come from the
/// device. Returns up to where: after many extents it ends early.
fn collect(
    look: &Look<'_>,
    raw: &RawInode,
    missing: &mut Missing,
    range: Range<usize>,
    put: &mut impl FnMut(Range<usize>, Option<&[u8]>),
) -> Result<usize> {
    let volume = look.volume;
    let block_size = volume.cache.block_size();
    let Range { start: mut at, end: length } = range;
    if !map::is_mapped(raw) {
        put(at..length, None);
        return Ok(length);
    }
    let mut extents = 0;
    let most = map::looks_per_stay(&volume.geometry);
    while at < length && extents < most {
        extents += 1;
        let position = missing.offset + at as u64;
        let block = FileBlock(position / block_size as u64);
        let mut within = (position % block_size as u64) as usize;
        match map::lookup(&mut &*look, raw, missing.ino, block)? {
            Mapping::Hole { until } => {
                let bytes = (until.0 - block.0).saturating_mul(block_size as u64) - within as u64;
                let count = bytes.min((length - at) as u64) as usize;
                put(at..at + count, None);
                at += count;
            }
            Mapping::Mapped(extent) => {
                let skip = block.0 - extent.file_block.0;
                let bytes = (u64::from(extent.length) - skip) * block_size as u64 - within as u64;
                let end = at + bytes.min((length - at) as u64) as usize;
                if extent.unwritten {
                    put(at..end, None);
                    at = end;
                    continue;
                }
                let mut target = extent.start.offset_by(skip);
                while at < end {
                    let left = (end - at) / block_size;
                    if left > ENTRIES_AHEAD {
                        volume.cache.prefetch_entry(target.offset_by(ENTRIES_AHEAD as u64));
                    }
                    if left > FRAMES_AHEAD {
                        volume.cache.prefetch_frame(target.offset_by(FRAMES_AHEAD as u64), 0);
                    }
                    let count = (block_size - within).min(end - at);
                    if let Some(frame) = volume.cache.find_data(target) {
                        put(at..at + count, Some(&frame.read()[within..within + count]));
                    } else {
                        add_piece(&mut missing.pieces, block_size, Piece { at, length: count, block: target, within });
                    }
                    at += count;
                    within = 0;
                    target = target.offset_by(1);
                }
            }
        }
    }
    Ok(at)
}

/// Adds a piece, joined with the last one where they continue each other.
fn add_piece(pieces: &mut Vec<Piece>, block_size: usize, piece: Piece) {
    if let Some(last) = pieces.last_mut() {
        let blocks = ((last.within + last.length) / block_size) as u64;
        let aligned = (last.within + last.length) % block_size == 0;
        if aligned && last.block.0 + blocks == piece.block.0 && last.at + last.length == piece.at {
            last.length += piece.length;
            return;
        }
    }
    pieces.push(piece);
}

/// Reads pieces from the device: whole blocks that the cache is not to keep straight into the buffer. `inside`: the
/// caller is inside the gate already.
fn fetch(volume: &Volume, inside: Option<&Look<'_>>, missing: &Missing, buf: &mut [u8], keep: bool) -> Result<()> {
    let pieces = &missing.pieces;
    if pieces.is_empty() {
        return Ok(());
    }
    let block_size = volume.cache.block_size();
    let bits = volume.geometry.block_bits;
    let total: usize = pieces.iter().map(|piece| piece.length).sum();
    volume.counters.add(Count::data_reads, pieces.len() as u64);
    let keep = keep && total < DIRECT_MIN;
    let is_direct = |piece: &Piece| piece.within == 0 && piece.length % block_size == 0 && !keep;
    let mut rest = buf;
    let mut consumed = 0;
    let mut requests = Vec::new();
    let mut bounced: Vec<(usize, AlignedBuf)> = Vec::new();
    let mut targets: Vec<(usize, &mut [u8])> = Vec::new();
    for (i, piece) in pieces.iter().enumerate() {
        let (_, tail) = rest.split_at_mut(piece.at - consumed);
        let (target, tail) = tail.split_at_mut(piece.length);
        rest = tail;
        consumed = piece.at + piece.length;
        if is_direct(piece) {
            volume.counters.bump(Count::direct_reads);
            requests.push(ReadRequest { offset: piece.block.0 << bits, buf: target });
        } else {
            let blocks = piece.blocks(block_size) as usize;
            bounced.push((i, AlignedBuf::zeroed(blocks * block_size)));
            targets.push((i, target));
        }
    }
    for (i, bounce) in &mut bounced {
        requests.push(ReadRequest { offset: pieces[*i].block.0 << bits, buf: &mut bounce[..] });
    }
    volume.read_device(&mut requests)?;
    verify(volume, missing, &requests, is_direct)?;
    drop(requests);
    for ((i, bounce), (_, target)) in bounced.iter().zip(targets) {
        let piece = &pieces[*i];
        target.copy_from_slice(&bounce[piece.within..piece.within + piece.length]);
    }
    if keep && !bounced.is_empty() {
        let _entered = inside.is_none().then(|| volume.look());
        for (i, bounce) in &bounced {
            insert(volume, &pieces[*i], bounce);
        }
    }
    Ok(())
}

/// Compares what was read with its checksums: on a volume that has them, nothing that was not written is ever handed out
/// or kept. Each request has the whole blocks of a piece; those of the direct ones come first.
fn verify(
    volume: &Volume,
    missing: &Missing,
    requests: &[ReadRequest<'_>],
    is_direct: impl Fn(&Piece) -> bool,
) -> Result<()> {
    if missing.checksums.is_empty() {
        return Ok(());
    }
    let block_size = volume.cache.block_size();
    let mut first = 0;
    let (direct, bounced) = requests.split_at(missing.pieces.iter().filter(|&piece| is_direct(piece)).count());
    let (mut direct, mut bounced) = (direct.iter(), bounced.iter());
    for piece in &missing.pieces {
        let stored = &missing.checksums[first..][..piece.blocks(block_size) as usize];
        first += stored.len();
        let request = if is_direct(piece) { direct.next() } else { bounced.next() };
        let request = request.expect("a request a piece");
        for (i, (bytes, &stored)) in request.buf.chunks(block_size).zip(stored).enumerate() {
            let computed = checksum::of(bytes);
            if computed != stored {
                volume.counters.bump(Count::data_checksum_errors);
                let offset = missing.offset + (piece.at + i * block_size) as u64 - piece.within as u64;
                let (ino, block) = (missing.ino, piece.block.offset_by(i as u64));
                let damage = DamagedData { ino, offset, block, stored, computed };
                if let Some(tell) = volume.on_damage.get() {
                    tell(damage);
                }
                return Err(Error::Damaged(Box::new(damage)));
            }
        }
    }
    Ok(())
}
