//! Where an inode's extended attributes lie: packed at the end of its body, or in a chain of attribute blocks.

use crate::attr_list::{self, ACCESS_ACL, CAPABILITIES, DEFAULT_ACL};
use crate::cache::Placed;
use crate::checksums;
use crate::dir::BlockSource;
use crate::edit::{BlockStore, NewBlock};
use crate::error::{Errno, Error, Result};
use crate::inode;
use crate::map;
use crate::order::{Look, Txn};
use crate::placement;
use myriad_format::extent::Extent;
use myriad_format::fork::{AttributeRoot, Fork};
use myriad_format::inode::{ROOM_BESIDE_ROOT, RawInode, flag};
use myriad_format::xattr::{AttrBlockHeader, AttrHeader, LIST_MAX};
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Ino, header};
use zerocopy::little_endian::{U32, U64};

/// Longest list that goes into the body: the other slots stay for directory entries and neighbours.
const BODY_LIST_MAX: usize = 512;

fn corrupt(ino: Ino, field: &'static str, value: u64) -> Error {
    Corrupt::Attributes { ino, field, value }.into()
}

/// Whether an inode has attributes.
pub(crate) fn has_some(raw: &RawInode) -> bool {
    raw.has_flag(flag::ATTR_BODY | flag::ATTR_BLOCKS)
}

/// The packed list of an inode.
pub(crate) fn read(look: &Look<'_>, ino: Ino, raw: &RawInode) -> Result<Vec<u8>> {
    if raw.has_flag(flag::ATTR_BODY) {
        return inode::read_body(look, ino, raw, |_, attrs| attrs.to_vec());
    }
    let mut list = Vec::new();
    for_each_block(look, ino, raw, |_, bytes| list.extend_from_slice(bytes))?;
    Ok(list)
}

fn for_each_block(look: &Look<'_>, ino: Ino, raw: &RawInode, mut f: impl FnMut(FsBlock, &[u8])) -> Result<()> {
    while_blocks(look, ino, raw, |block, bytes| {
        f(block, bytes);
        true
    })
}

/// Hands the blocks of a chain and what they have of the list to `f`, until it returns false.
fn while_blocks(look: &Look<'_>, ino: Ino, raw: &RawInode, mut f: impl FnMut(FsBlock, &[u8]) -> bool) -> Result<()> {
    let Some(AttributeRoot { mut block, count }) = raw.attribute_root() else { return Ok(()) };
    for index in 0..usize::from(count) {
        let mut next = FsBlock::NONE;
        // A chain may have more blocks than there are frames.
        let goes_on = look.volume.cache.read_past(block, BlockKind::Attributes, |bytes| -> Result<bool> {
            header::verify_owner(bytes, block, ino.0)?;
            let raw = AttrBlockHeader::read(bytes);
            let length = raw.length.get() as usize;
            if raw.index.get() as usize != index || length > bytes.len() - AttrBlockHeader::SIZE {
                return Err(corrupt(ino, "block", block.0));
            }
            next = FsBlock(raw.next.get());
            Ok(f(block, &bytes[AttrBlockHeader::SIZE..AttrBlockHeader::SIZE + length]))
        })??;
        if !goes_on {
            return Ok(());
        }
        block = next;
    }
    if !block.is_none() {
        return Err(corrupt(ino, "chain length", u64::from(count)));
    }
    Ok(())
}

pub(crate) fn access_acl(look: &Look<'_>, ino: Ino, raw: &RawInode) -> Result<Option<Vec<u8>>> {
    one(look, ino, raw, ACCESS_ACL)
}

pub(crate) fn default_acl(look: &Look<'_>, ino: Ino, raw: &RawInode) -> Result<Option<Vec<u8>>> {
    if !raw.has_flag(flag::HAS_ACL) {
        return Ok(None);
    }
    one(look, ino, raw, DEFAULT_ACL)
}

/// Whether a file has capabilities. By attributes that cannot be read nobody can run it with some.
pub(crate) fn has_capabilities(look: &Look<'_>, ino: Ino, raw: &RawInode) -> bool {
    has_some(raw) && !raw.is_dir() && one(look, ino, raw, CAPABILITIES).is_ok_and(|value| value.is_some())
}

/// One attribute. Of a long list no more is read than up to it: each file that is made in a directory asks for its ACLs, which come first.
fn one(look: &Look<'_>, ino: Ino, raw: &RawInode, name: &[u8]) -> Result<Option<Vec<u8>>> {
    if raw.has_flag(flag::ATTR_BODY) {
        return Ok(attr_list::get(ino, &read(look, ino, raw)?, name)?.map(<[u8]>::to_vec));
    }
    let (mut list, mut passed, mut value) = (Vec::new(), 0, None);
    while_blocks(look, ino, raw, |_, bytes| {
        list.extend_from_slice(bytes);
        match attr_list::get_so_far(&list[passed..], name) {
            Ok(found) => value = Some(found.to_vec()),
            Err(whole) => passed += whole,
        }
        value.is_none()
    })?;
    match value {
        Some(value) => Ok(Some(value)),
        // Not there, or the list is damaged.
        None => Ok(attr_list::get(ino, &list, name)?.map(<[u8]>::to_vec)),
    }
}

/// Bytes of a list that one attribute takes beside its name and value, at most.
pub(crate) const ENTRY_ROOM: usize = AttrHeader::SIZE;

/// Blocks that a list of this length may need.
pub(crate) fn blocks_for(block_size: usize, len: usize) -> u64 {
    (len.div_ceil(block_size - AttrBlockHeader::SIZE) + 4) as u64
}

/// Blocks that an inode's attributes have.
pub(crate) fn blocks_of(raw: &RawInode, block_size: usize) -> u64 {
    let most = LIST_MAX.div_ceil(block_size - AttrBlockHeader::SIZE);
    raw.attribute_root().map_or(0, |root| usize::from(root.count).min(most) as u64)
}

/// Gives an inode this packed list, in place of what it has. Changes `raw`. The transaction has reserved
/// [`blocks_for`] the list, and asked for as many frames.
pub(crate) fn write(txn: &mut Txn<'_>, ino: Ino, raw: &mut RawInode, list: &[u8]) -> Result<()> {
    if list.len() > LIST_MAX {
        return Err(Errno::NOSPC.into());
    }
    let data = inode::read_body(&txn.look, ino, raw, |data, _| data.to_vec())?;
    let mut old = Vec::new();
    for_each_block(&txn.look, ino, raw, |block, _| old.push(block))?;
    let mut source = BlockSource::new(placement::beside(txn.volume(), ino));
    let in_body = list.len() <= BODY_LIST_MAX && inode::set_body(txn, ino, raw, &data, list)?;
    if in_body {
        raw.set_attribute_root(None);
        raw.flags = U32::new(raw.flags.get() & !flag::ATTR_BODY | if list.is_empty() { 0 } else { flag::ATTR_BODY });
    } else {
        free_root_place(txn, &mut source, ino, raw)?;
        if raw.has_flag(flag::ATTR_BODY) {
            // Shrinking always succeeds.
            let data = inode::read_body(&txn.look, ino, raw, |data, _| data.to_vec())?;
            inode::set_body(txn, ino, raw, &data, &[])?;
        }
        let per_block = txn.volume().cache.block_size() - AttrBlockHeader::SIZE;
        let count = list.len().div_ceil(per_block);
        let mut next = FsBlock::NONE;
        for (index, part) in list.chunks(per_block).enumerate().rev() {
            let block = source.allocate(txn)?;
            txn.init(NewBlock::free(block), BlockKind::Attributes, ino.0, |edit| {
                let raw = AttrBlockHeader::read_mut(edit.range_mut(0, AttrBlockHeader::SIZE));
                raw.length = U32::new(part.len() as u32);
                raw.index = U32::new(index as u32);
                raw.next = U64::new(next.0);
                edit.put(AttrBlockHeader::SIZE, part);
            })?;
            next = block;
        }
        raw.flags = U32::new(raw.flags.get() & !flag::ATTR_BODY);
        raw.set_attribute_root(Some(AttributeRoot { block: next, count: count as u16 }));
    }
    for block in old {
        source.free(txn, block);
    }
    source.settle(raw);
    let acl = attr_list::has_acl(ino, list)?;
    raw.flags = U32::new(raw.flags.get() & !flag::HAS_ACL | if acl { flag::HAS_ACL } else { 0 });
    if !list.is_empty() {
        txn.volume().note_features(acl);
    }
    Ok(())
}

/// Stores a link's target that fits neither fork nor body in blocks, as a file's data. The fork is empty.
pub(crate) fn target_to_blocks(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    ino: Ino,
    raw: &mut RawInode,
    target: &[u8],
) -> Result<()> {
    let volume = txn.volume();
    for (i, part) in target.chunks(volume.cache.block_size()).enumerate() {
        let (block, _) = volume.allocate_data(txn, source.goal, 1, 1)?;
        let frame = volume.cache.take_private_inside()?;
        {
            let mut bytes = volume.cache.arena.write(frame);
            bytes.fill(0);
            bytes[..part.len()].copy_from_slice(part);
        }
        if volume.geometry.has_checksums {
            checksums::store(txn, block, &[checksums::of_page(volume, frame)])?;
        }
        let frame = volume.cache.publish(frame, block, false, volume.epoch.current());
        txn.order_data(ino, &[Placed { block: block.0, frame }]);
        let extent = Extent { file_block: FileBlock(i as u64), start: block, length: 1, unwritten: false };
        map::insert(txn, source, raw, ino, extent)?;
    }
    Ok(())
}

/// Clears the fork's last 8 bytes for the attribute root: a second extent moves to a tree, a long target to the body or,
/// without room there, to a block.
fn free_root_place(txn: &mut Txn<'_>, source: &mut BlockSource, ino: Ino, raw: &mut RawInode) -> Result<()> {
    if raw.has_flag(flag::ATTR_BLOCKS) {
        return Ok(());
    }
    match Fork::decode(raw, ino)? {
        Fork::ShortLink(target) if target.target().len() > ROOM_BESIDE_ROOT => {
            let attrs = inode::read_body(&txn.look, ino, raw, |_, attrs| attrs.to_vec())?;
            let in_body = inode::set_body(txn, ino, raw, target.target(), &attrs)?;
            let fork = if in_body { Fork::Inline } else { Fork::None };
            fork.encode(raw);
            if !in_body {
                // The inode's block is full of others.
                target_to_blocks(txn, source, ino, raw, target.target())?;
            }
            Ok(())
        }
        _ => map::leave_attr_room(txn, source, raw, ino),
    }
}

/// Reads what [`free`] has to read.
pub(crate) fn read_ahead(look: &Look<'_>, ino: Ino, raw: &RawInode) -> Result<()> {
    if raw.has_flag(flag::ATTR_BLOCKS) { for_each_block(look, ino, raw, |_, _| ()) } else { Ok(()) }
}

/// Frees the attributes of an inode that goes.
#[inline]
pub(crate) fn free(txn: &mut Txn<'_>, ino: Ino, raw: &mut RawInode) -> Result<()> {
    if raw.has_flag(flag::ATTR_BLOCKS) {
        let mut blocks = Vec::new();
        for_each_block(&txn.look, ino, raw, |block, _| blocks.push(block))?;
        for block in blocks {
            txn.forget(block);
            txn.block_free(block, 1);
        }
        raw.set_attribute_root(None);
    }
    Ok(())
}
