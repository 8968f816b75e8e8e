//! The check of directories of kind `indexed`: entries, the list of blocks with room, and the index, each against the others.
//!
//! Index and entries are compared without holding either in memory: both sides add up a digest of each (tag, position,
//! inode). Only when the sums differ are the two listed and compared.

use super::blocks::{for_each_block, position};
use super::index::{Digest, Index, Root, entry_blocks_made};
use crate::context::Context;
use crate::directory::entries::{self, Entry, entry_at, parse};
use crate::directory::names::{At, Names, Sums, covered, report_bad_entry, report_equal_hashes};
use crate::directory::{Checked, Dir};
use crate::findings::number;
use crate::map::for_each_extent;
use crate::report::Place;
use myriad_format::dir::{ENTRIES_OFFSET, LIST_END};
use myriad_format::extent::Extent;
use myriad_format::inode::{RawInode, fork};
use myriad_format::{BlockKind, FileBlock, Ino};
use std::collections::HashMap;

/// Sums over a directory's live entries.
struct IndexedSums<'a> {
    all: &'a mut Sums,
    live: u64,
    digest: Digest,
}

/// The position of an entry is the place that the identity of its inode has.
fn at(position: u64) -> At {
    At { place: position, position: position as u32 }
}

/// Checks a directory whose blocks have been claimed.
pub(in crate::directory) fn check(names: &Names<'_>, dir: Dir<'_>, extents: &[Extent], sums: &mut Sums) -> Checked {
    let context = names.context;
    let Dir { ino, raw, body: data } = dir;
    let mut sums = IndexedSums { all: sums, live: 0, digest: Digest::default() };
    let index = raw.index_root().map(|root| Index::walk(context, ino, root));
    let unmapped = index.as_ref().map_or(0, |index| index.blocks);
    let mut checked = Checked { made: 0, is_whole: true, unmapped };
    match raw.fork_code() {
        fork::INLINE => {
            let (live, mut hashes) = check_entries(names, ino, FileBlock(0), data, &mut sums);
            sums.live += live;
            check_unique(context, ino, raw, data, &mut hashes);
        }
        _ if raw.is_dir_in_blocks() => {
            let (made, is_whole) = check_blocks(names, ino, raw, extents, index.as_ref(), &mut sums);
            checked.made = made;
            checked.is_whole = is_whole && index.as_ref().is_none_or(|index| index.root.is_some());
        }
        _ => {}
    }
    if let Some(index) = &index {
        index.compare(context, ino, raw, sums.digest, extents);
    }
    if raw.size.get() != sums.live {
        let message = format!("size {}, its live entries have {} bytes", raw.size, sums.live);
        context.report(number::INODE_SIZE, Place::Inode(ino), message);
    }
    checked
}

/// Hands the live entries of a directory to `f`; what cannot be read is left out.
pub(in crate::directory) fn for_each_entry(context: &Context<'_>, dir: Dir<'_>, f: &mut dyn FnMut(&Entry<'_>)) {
    let mut extents = Vec::new();
    for_each_extent(&context.reader, dir.ino, dir.raw, |extent| extents.push(extent));
    // Blocks mapped past those made hold nothing yet, and are not believed.
    entries_again(context, dir, Some((extents, u64::MAX)), &mut |entry, _| f(entry));
}

/// The name of an inode by the position that its identity has.
pub(in crate::directory) fn name_at(context: &Context<'_>, dir: Dir<'_>, ino: Ino, position: u32) -> Option<Vec<u8>> {
    let at = usize::try_from(u64::from(position) * 8).ok()?;
    let mut buf = context.reader.new_buffer();
    let (bytes, at) = if dir.raw.fork_code() == fork::INLINE {
        (dir.body, at.checked_sub(ENTRIES_OFFSET)?)
    } else {
        let file_block = (at / buf.len()) as u64;
        let mut found = None;
        for_each_extent(&context.reader, dir.ino, dir.raw, |extent| {
            if (extent.file_block.0..extent.end().0).contains(&file_block) {
                found = Some(extent.start.offset_by(file_block - extent.file_block.0));
            }
        });
        context.reader.read(found?, BlockKind::DirEntries, dir.ino.0, &mut buf).ok()?;
        (&buf[..], at % buf.len())
    };
    if at >= bytes.len() {
        return None;
    }
    entry_at(bytes, at).ok().filter(|entry| entry.ino == ino).map(|entry| entry.name.to_vec())
}

/// Hands the entries of a directory that has been checked to `f`. `left_out`: what of its map is believed, if not all of it
/// could be read.
pub(in crate::directory) fn entries_again(
    context: &Context<'_>,
    Dir { ino, raw, body: data }: Dir<'_>,
    left_out: Option<(Vec<Extent>, u64)>,
    f: &mut dyn FnMut(&Entry<'_>, At),
) {
    let block_size = context.reader.block_size();
    let mut each = |file_block: FileBlock, bytes: &[u8]| {
        for entry in parse(bytes).flatten().filter(|entry| !entry.ino.is_none()) {
            f(&entry, at(position(file_block, entry.offset, block_size)));
        }
    };
    match raw.fork_code() {
        fork::INLINE => each(FileBlock(0), data),
        _ if raw.is_dir_in_blocks() => {
            let is_told = left_out.is_some();
            let (extents, made) = left_out.unwrap_or_else(|| {
                let root = raw.index_root().map(|root| Root::read(context, ino, root).ok().map(|(root, _)| root));
                let mut extents = Vec::new();
                for_each_extent(&context.reader, ino, raw, |extent| extents.push(extent));
                (extents, entry_blocks_made(root.as_ref().map(Option::as_ref)))
            });
            for_each_block(context, ino, &extents, made, |file_block, block| match block {
                Ok((_, bytes)) => each(file_block, bytes),
                Err(bad) if !is_told => bad.report(context, ino, file_block),
                Err(_) => {}
            });
        }
        _ => {}
    }
}

/// Entry blocks and the list of those with room; how many blocks were made, and whether all could be read. Blocks mapped
/// past those hold nothing yet.
fn check_blocks(
    names: &Names<'_>,
    ino: Ino,
    raw: &RawInode,
    extents: &[Extent],
    index: Option<&Index>,
    sums: &mut IndexedSums<'_>,
) -> (u64, bool) {
    let context = names.context;
    let place = Place::Inode(ino);
    let block_size = context.reader.block_size();
    let mut with_room: HashMap<u32, u32> = HashMap::new();
    let said = entry_blocks_made(index.map(|index| index.root.as_ref()));
    // A position has 32 bits.
    let most = (1_u64 << 35) / block_size as u64;
    if said > most {
        context.report(number::INDEX_SHAPE, place, format!("the index says that {said} entry blocks were made"));
    }
    let made = said.min(most);
    let covered = covered(extents);
    let is_readable = index.is_none_or(|index| index.root.is_some());
    if is_readable && (made == 0 || covered < made) {
        context.report(number::INDEX_SHAPE, place, format!("of {made} entry blocks made {covered} are mapped"));
    }
    let mut is_whole = made == said;
    for_each_block(context, ino, extents, made, |file_block, block| {
        let (header, bytes) = match block {
            Ok(block) => block,
            Err(bad) => {
                is_whole = false;
                return bad.report(context, ino, file_block);
            }
        };
        let (live, mut hashes) = check_entries(names, ino, file_block, bytes, sums);
        sums.live += live;
        if index.is_none() {
            check_unique(context, ino, raw, bytes, &mut hashes);
        }
        if u64::from(header.live.get()) != live {
            let message = format!("entry block {file_block}: {live} bytes are live, its header says {}", header.live);
            context.report(number::ENTRY_BLOCK, place, message);
        }
        if index.is_some() && header.next_room.get() != 0 {
            with_room.insert(file_block.0 as u32, header.next_room.get());
        }
    });
    let head = index.and_then(|index| index.root.as_ref()).map_or(LIST_END, |root| root.room_head);
    if let Err(why) = check_room(head, with_room) {
        context.report(number::ROOM_LIST, place, why);
    }
    (made, is_whole)
}

/// Checks packed entries; bytes of the live ones, and (hash, offset) of each.
fn check_entries(
    names: &Names<'_>,
    ino: Ino,
    file_block: FileBlock,
    bytes: &[u8],
    sums: &mut IndexedSums<'_>,
) -> (u64, Vec<(u64, u32)>) {
    let context = names.context;
    let mut live = 0;
    let mut hashes = Vec::new();
    for entry in parse(bytes) {
        match entry {
            Err(bad) => {
                report_bad_entry(context, ino, file_block, bad.offset + ENTRIES_OFFSET as u32, &bad);
            }
            Ok(entry) if entry.ino.is_none() => {}
            Ok(entry) => {
                live += u64::from(entry.length);
                let position = position(file_block, entry.offset, context.reader.block_size());
                let hash = context.hasher.hash(entry.name);
                hashes.push((hash, entry.offset));
                sums.digest.add(entry.tag, position as u32, entry.ino);
                names.check_name(ino, &entry, at(position), hash, sums.all);
            }
        }
    }
    (live, hashes)
}

/// Names of one run of entries, by hash: a directory without index is small.
fn check_unique(context: &Context<'_>, ino: Ino, raw: &RawInode, bytes: &[u8], names: &mut [(u64, u32)]) {
    names.sort_unstable();
    for pair in names.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        let name = |offset: u32| entries::name_at(bytes, offset as usize).unwrap_or_default();
        report_equal_hashes(context, ino, raw, name(pair[0].1), name(pair[1].1));
    }
}
/// Follows the list of blocks with room from its head; `blocks` are those that say they are on it, and what is next.
fn check_room(head: u32, mut blocks: HashMap<u32, u32>) -> Result<(), String> {
    let mut at = head;
    while at != LIST_END {
        // A block leaves the map when it is met, so a circle ends here.
        let Some(next) = at.checked_sub(1).and_then(|block| blocks.remove(&block)) else {
            return Err(format!("the list of blocks with room leads to {at}, which is not on it or was met before"));
        };
        at = next;
    }
    match blocks.keys().min() {
        None => Ok(()),
        Some(block) => Err(format!("entry block {block} says it is on the list of blocks with room, and is not")),
    }
}
