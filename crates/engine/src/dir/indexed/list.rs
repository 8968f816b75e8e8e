//! Entries in the order of their positions.

use super::entries::Entries;
use super::rooms::entry_blocks_max;
use super::{entry_block, index_root, is_in_body, position_of};
use crate::dir::place::Place;
use crate::dir::{Listed, is_in_blocks, is_shown, may_have_blocks, type_of};
use crate::error::Result;
use crate::inode;
use crate::order::Look;
use myriad_format::dir::{IndexHeader, entry_size};
use myriad_format::inode::RawInode;
use myriad_format::{BlockKind, Corrupt, FileBlock, Ino, header};

/// Blocks that a listing looks at in one stay inside the gate, where nothing can be evicted for what it reads: a directory
/// that had many names has as many blocks, which may all be empty.
const LISTED_BLOCKS: u64 = 64;

/// Lists entries in the order of their positions. A cookie is the position behind an entry.
pub(crate) fn list(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    cookie: u64,
    f: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<Option<u64>> {
    let place = Place { dir, block: FileBlock(0) };
    let mut visit = |run: Entries<'_>, block: FileBlock| -> Result<bool> {
        for entry in run {
            let entry = entry?;
            let position = u64::from(position_of(look, block, entry.offset));
            if entry.header.ino.get() == 0 || position < cookie {
                continue;
            }
            let place = Place { dir, block };
            if !is_shown(entry.name) {
                let first = entry.name.first().copied().unwrap_or(0);
                return Err(place.corrupt(entry.offset, "name", u64::from(first)));
            }
            let more = f(Listed {
                name: entry.name,
                ino: Ino(entry.header.ino.get()),
                file_type: type_of(entry.header.file_type, |value| place.corrupt(entry.offset, "type", value))?,
                cookie: position + (entry_size(entry.name.len()) / 8) as u64,
            });
            if !more {
                return Ok(false);
            }
        }
        Ok(true)
    };
    if !is_in_blocks(raw) {
        if is_in_body(raw) {
            inode::read_body(look, dir, raw, |data, _| visit(Entries::new(data, place), FileBlock(0)))??;
        }
        return Ok(None);
    }
    let blocks = match index_root(raw) {
        Some(root) => look.read(root, BlockKind::DirIndex, |bytes| IndexHeader::read(bytes).entry_blocks.get())?,
        None => 1,
    };
    if u64::from(blocks) > entry_blocks_max(look) || !may_have_blocks(look, blocks.into()) {
        let block = index_root(raw).expect("one that says so");
        return Err(Corrupt::DirIndex { ino: dir, block, field: "entry_blocks", value: blocks.into() }.into());
    }
    let first = cookie.saturating_mul(8) >> look.volume.geometry.block_bits;
    for number in first..u64::from(blocks) {
        let block = FileBlock(number);
        if number - first == LISTED_BLOCKS {
            return Ok(Some(u64::from(position_of(look, block, 0))));
        }
        let at = entry_block(look, dir, raw, block)?;
        let more = look.read(at, BlockKind::DirEntries, |bytes| {
            header::verify_owner(bytes, at, dir.0)?;
            visit(Entries::of_block(bytes, Place { dir, block })?, block)
        })??;
        if !more {
            break;
        }
    }
    Ok(None)
}
