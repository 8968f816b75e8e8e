//! Directories of kind `indexed` by their hashes (dirhash): names are found without the index on disk.
//!
//! Entries never move and always keep their bytes to themselves, so a hash here knows positions only. Where there is room the list of
//! blocks with room says, which is on the device and has to be kept in any case; free bytes of a block would say little, for
//! nothing may be moved together to join them.

use super::{Place, entries, entry_block, index_root, position_of, split_position};
use crate::counters::Count;
use crate::dir::dirhash::{Change, Kept, Noted, Shape, Summarised, WORD};
use crate::dir::{Hit, Name, NewEntry, Search, Seen, is_in_blocks};
use crate::error::Result;
use crate::map::{self, Mapping};
use crate::order::{Look, Txn};
use myriad_format::dir::{ENTRIES_OFFSET, IndexHeader, entry_size};
use myriad_format::inode::RawInode;
use myriad_format::{BlockKind, FileBlock, Ino, header};

/// All of a directory in blocks, for whoever makes its hash.
struct Whole<'w, 'v> {
    look: &'w Look<'v>,
    dir: Ino,
    raw: &'w RawInode,
}

impl Whole<'_, '_> {
    /// Entry blocks that the directory has.
    fn blocks(&self) -> Result<u64> {
        match index_root(self.raw) {
            Some(root) => {
                self.look.read(root, BlockKind::DirIndex, |bytes| IndexHeader::read(bytes).entry_blocks.get())
            }
            None => Ok(1),
        }
        .map(u64::from)
    }
}

impl Summarised for Whole<'_, '_> {
    fn shape(&self) -> Result<Shape> {
        let piece_size = self.look.volume.cache.block_size();
        let entries_max = ((piece_size - ENTRIES_OFFSET) / entry_size(1)) as u64;
        Ok(Shape {
            pieces: self.blocks()?,
            entries_max,
            piece_size: piece_size as u64,
            sums_free: false,
            keeps_gone: false,
        })
    }

    fn each(&self, f: &mut dyn FnMut(Noted<'_>) -> Kept) -> Result<Kept> {
        let (look, dir) = (self.look, self.dir);
        let (mut kept, mut next, end) = (Ok(()), 0, self.blocks()?);
        while next < end && kept.is_ok() {
            let Mapping::Mapped(extent) = map::lookup(&mut &*look, self.raw, dir, FileBlock(next))? else {
                return Err(Place { dir, block: FileBlock(next) }.corrupt(0, "block", 0));
            };
            let skipped = next - extent.file_block.0;
            let start = extent.start.offset_by(skipped);
            let count = (u64::from(extent.length) - skipped).min(end - next);
            look.volume.cache.pass_over(start, count, BlockKind::DirEntries, &mut |i, bytes| {
                header::verify_owner(bytes, start.offset_by(i), dir.0)?;
                let block = FileBlock(next + i);
                for entry in entries::Entries::of_block(bytes, Place { dir, block })? {
                    let entry = entry?;
                    if entry.header.ino.get() != 0 {
                        let position = position_of(look, block, entry.offset);
                        kept = f(Noted::Name { name: entry.name, position, words: 0, piece: block.0 });
                    }
                }
                Ok(kept.is_ok())
            })?;
            next += count;
        }
        Ok(kept)
    }
}

/// Looks a name up, as [`super::search`]. `None`: the directory has no hash.
pub(super) fn search(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Option<Search> {
    let volume = look.volume;
    let hashes = &volume.dir_hashes;
    if !is_in_blocks(raw) {
        return None;
    }
    hashes.look(dir, raw, &Whole { look, dir, raw }, |table| {
        let (mut hit, mut twin, mut compared) = (None, None, 0);
        let passed = table.find(hashes.home(name.hash), |position, is_expected| {
            compared += 1;
            let (block, offset) = split_position(look, position);
            let at = entry_block(look, dir, raw, block)?;
            look.read(at, BlockKind::DirEntries, |bytes| {
                header::verify_owner(bytes, at, dir.0)?;
                let entry = entries::at(bytes, offset, Place { dir, block })?;
                if entry.header.tag.get() != name.tag() {
                    return Ok(false);
                }
                if entry.name == name.bytes {
                    hit = Some(super::hit(Ino(entry.header.ino.get()), position, at));
                    table.found(position, entry_size(name.bytes.len()) / WORD);
                    volume.counters.add(Count::dirhash_expected, u64::from(is_expected));
                    return Ok(true);
                }
                if volume.hasher.hash(entry.name) == name.hash {
                    twin = Some(Ino(entry.header.ino.get()));
                }
                Ok(false)
            })?
        })?;
        volume.counters.add(Count::dirhash_probes, passed);
        volume.counters.add(Count::dir_tags_compared, compared);
        volume.counters.bump(if hit.is_some() { Count::dirhash_hits } else { Count::dirhash_misses });
        Ok(Search { hit, twin, seen: Seen::Indexed(super::Seen { index: None }) })
    })
}

/// Adds an entry by `insert`, and tells the hash.
pub(super) fn insert(
    txn: &mut Txn<'_>,
    dir: Ino,
    raw: &mut RawInode,
    entry: &NewEntry<'_>,
    insert: impl FnOnce(&mut Txn<'_>, &mut RawInode) -> Result<u32>,
) -> Result<u32> {
    txn.volume().dir_hashes.change(dir, raw.generation.get(), |change| {
        let position = insert(txn, raw)?;
        let piece = split_position(&txn.look, position).0.0;
        change.tell(|hashes, table| table.added(hashes.home(entry.name.hash), position, 0, piece));
        check(&txn.look, dir, raw, position, change);
        Ok(position)
    })
}

/// Removes an entry by `remove`, and tells the hash.
pub(super) fn remove(
    txn: &mut Txn<'_>,
    dir: Ino,
    raw: &mut RawInode,
    name: Name<'_>,
    hit: Hit,
    remove: impl FnOnce(&mut Txn<'_>, &mut RawInode) -> Result<()>,
) -> Result<()> {
    txn.volume().dir_hashes.change(dir, raw.generation.get(), |change| {
        remove(txn, raw)?;
        change.tell(|hashes, table| table.removed(hashes.home(name.hash), hit.position, 0, 0));
        check(&txn.look, dir, raw, hit.position, change);
        change.has_size(raw.size.get());
        Ok(())
    })
}

/// Compares the block that has a position, which has changed, with the hash.
fn check(look: &Look<'_>, dir: Ino, raw: &RawInode, position: u32, change: &mut Change<'_>) {
    if change.table().is_none() || !look.volume.dir_hashes.checks() || !is_in_blocks(raw) {
        return;
    }
    let (block, _) = split_position(look, position);
    let names = entry_block(look, dir, raw, block).and_then(|at| {
        look.read(at, BlockKind::DirEntries, |bytes| {
            let mut names = Vec::new();
            for entry in entries::Entries::of_block(bytes, Place { dir, block })? {
                let entry = entry?;
                if entry.header.ino.get() != 0 {
                    let home = look.volume.dir_hashes.home_of(entry.name);
                    names.push((home, position_of(look, block, entry.offset)));
                }
            }
            Ok(names)
        })?
    });
    // What cannot be read is found by whoever has to.
    if let Ok(names) = names {
        change.tell(|_, table| table.agrees(names.into_iter(), block.0, 0, 0));
    }
}
