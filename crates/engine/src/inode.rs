//! Inodes in their blocks: reading, writing, and the body of further slots beside them.
//!
//! An inode is read as a copy and written back as a whole; only the bytes that differ are marked as changed. Callers hold
//! the inode's lock.

use crate::edit::{BlockEdit, BlockStore};
use crate::error::{Errno, Error, Result};
use crate::order::{Look, Txn};
use crate::types::{Node, Stat};
use crate::volume::Volume;
use myriad_format::fork::Fork;
use myriad_format::inode::{BodyHeader, ROOM_BESIDE_ROOT, RawInode, S_IFLNK, S_IFREG, TARGET_MAX, flag};
use myriad_format::table::INODE_SIZE;
use myriad_format::{BlockKind, Corrupt, FsBlock, Ino, SLOT_SIZE};
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

/// Where an inode lies: block, and byte in it.
#[inline]
fn locate(volume: &Volume, ino: Ino) -> Result<(FsBlock, usize)> {
    let (block, slot) = volume.geometry.locate(ino).ok_or(Corrupt::NoInode { ino })?;
    Ok((block, volume.geometry.inode_offset(slot)))
}

/// A used inode, checked. One that is not there is damage: something that should know better named it.
#[inline]
pub(crate) fn read(look: &Look<'_>, ino: Ino) -> Result<RawInode> {
    let (block, at) = locate(look.volume, ino)?;
    let raw = look.read_at(block, look.volume.geometry.inode_kind(), at, |bytes| *RawInode::read(&bytes[at..]))?;
    check_used(ino, &raw)?;
    Ok(raw)
}

/// Whether the place of an inode is empty.
pub(crate) fn is_empty(look: &Look<'_>, ino: Ino) -> Result<bool> {
    let (block, at) = locate(look.volume, ino)?;
    let read = |bytes: &[u8]| RawInode::read(&bytes[at..]).mode.get() == 0;
    look.read_at(block, look.volume.geometry.inode_kind(), at, read)
}

#[inline]
fn check_used(ino: Ino, raw: &RawInode) -> std::result::Result<(), Corrupt> {
    if raw.mode.get() == 0 { Err(Corrupt::NoInode { ino }) } else { raw.check(ino) }
}

/// As [`read`], into its place and without the latch: on the way to a stat an inode is copied once, since each further copy
/// costs as much as a look at the cache.
#[inline(always)]
pub(crate) fn read_into(look: &Look<'_>, ino: Ino, raw: &mut RawInode) -> Result<()> {
    let (block, at) = locate(look.volume, ino)?;
    look.copy_at(block, look.volume.geometry.inode_kind(), at, raw)?;
    Ok(check_used(ino, raw)?)
}

/// A directory has one name, and its identity says which: `is_name` whether that is the name of `dir` by which it was
/// found. So names that damage has made lead no walk into a circle, or twice to the same place. `dir` is locked; a caller
/// that has not locked it may be told of damage that is none, and asks again.
#[inline]
pub(crate) fn check_named(
    ino: Ino,
    raw: &RawInode,
    dir: Ino,
    is_name: impl FnOnce(&RawInode) -> bool,
) -> std::result::Result<(), Corrupt> {
    if raw.is_dir() && (raw.parent.get() != dir.0 || ino == dir || !is_name(raw)) {
        return Err(Corrupt::Inode { ino, field: "parent", value: raw.parent.get() });
    }
    Ok(())
}

/// The inode a caller holds; ESTALE if it is gone.
#[inline]
pub(crate) fn read_node(look: &Look<'_>, node: Node) -> Result<RawInode> {
    read_kept(look, Ino(node.ino), Some(node.generation))
}

/// The node that has this number now; ESTALE if there is none. The caller may have made the number up.
pub(crate) fn node_at(look: &Look<'_>, ino: Ino) -> Result<Node> {
    let (block, slot) = look.volume.geometry.locate(ino).ok_or(Errno::STALE)?;
    // Not before it has been looked at: of a block that was given back, the device may still have the inodes.
    let _group = look.volume.group_of_inode(look, block, slot)?.ok_or(Errno::STALE)?;
    Ok(node(ino, &read_kept(look, ino, None)?))
}

/// As [`read_node`], into its place, by an operation that will write it back.
pub(crate) fn read_node_into(look: &Look<'_>, node: Node, raw: &mut RawInode) -> Result<()> {
    read_kept_into::<true>(look, Ino(node.ino), Some(node.generation), raw)
}

/// The inode of a number that a caller has kept; ESTALE if there is none, or not one of this generation.
#[inline]
fn read_kept(look: &Look<'_>, ino: Ino, generation: Option<u32>) -> Result<RawInode> {
    let mut raw = RawInode::zeroed();
    read_kept_into::<false>(look, ino, generation, &mut raw)?;
    Ok(raw)
}

/// As [`read_kept`], into its place; `MET`: its block is one that the operation will ask for again.
#[inline(always)]
fn read_kept_into<const MET: bool>(
    look: &Look<'_>,
    ino: Ino,
    generation: Option<u32>,
    raw: &mut RawInode,
) -> Result<()> {
    let stale = || Error::Refused(Errno::STALE);
    let (block, slot) = look.volume.geometry.locate(ino).ok_or_else(stale)?;
    let at = look.volume.geometry.inode_offset(slot);
    let kind = look.volume.geometry.inode_kind();
    let copied = if MET { look.copy_met(block, kind, at, raw) } else { look.copy_at(block, kind, at, raw) };
    match copied {
        Ok(()) => {}
        // The block holds something else by now.
        Err(Error::Corrupt(found)) if matches!(*found, Corrupt::BlockKind { .. }) => return Err(stale()),
        Err(error) => return Err(error),
    };
    // First of all: its slot may hold part of another inode by now.
    if raw.mode.get() == 0 || generation.is_some_and(|generation| generation != raw.generation.get()) {
        return Err(stale());
    }
    Ok(raw.check(ino)?)
}

/// Writes an inode back; only what differs is marked.
pub(crate) fn write(txn: &mut Txn<'_>, ino: Ino, raw: &RawInode) -> Result<()> {
    let (block, at) = locate(txn.volume(), ino)?;
    txn.change(block, txn.volume().geometry.inode_kind(), |edit| edit.put_changed(at, raw.as_bytes()))
}

/// Whether a file is gone though its inode is still there: it has no name, and nobody has it open. It is being freed,
/// and must be neither opened nor named any more. The inode is locked.
pub(crate) fn is_gone(volume: &Volume, ino: Ino, raw: &RawInode) -> bool {
    raw.nlink.get() == 0 && !volume.files.is_open(ino)
}

/// Initialises a slot just allocated. Its generation is one that it has not had before, so that old handles to it are known
/// to be stale.
pub(crate) fn init(txn: &mut Txn<'_>, ino: Ino, raw: &mut RawInode) -> Result<()> {
    let (block, at) = locate(txn.volume(), ino)?;
    // Not from what the slot had: its block may have been made anew, or the slot been part of another inode meanwhile.
    let mut generation = 0;
    while generation == 0 {
        generation = txn.volume().generations.fetch_add(1, Ordering::Relaxed);
    }
    raw.generation = U32::new(generation);
    let end = at + txn.volume().geometry.inode_bytes();
    txn.change(block, txn.volume().geometry.inode_kind(), |edit| {
        edit.put(at, raw.as_bytes());
        let pointers = at + RawInode::SIZE..end;
        // What damage has left behind an empty place would be found behind this inode.
        if edit.bytes()[pointers.clone()].iter().any(|&byte| byte != 0) {
            edit.put(pointers.start, &[0; INODE_SIZE][..pointers.len()]);
        }
    })
}

/// Where in an inode the block of its attributes is named.
pub(crate) const ATTRIBUTE_ROOT: usize = offset_of!(RawInode, fork) + ROOM_BESIDE_ROOT;

/// With what the slot of an inode begins that is gone: neither mode nor generation. A body that ends in the slot gives it a mode
/// again, but no generation, and none is 0, so that old handles to the inode stay stale.
pub(crate) const GONE: [u8; 24] = [0; 24];

/// Empties the place that an inode had in a table. A slot of a chunk is emptied by the change that gives it back, in the same block.
pub(crate) fn clear(txn: &mut Txn<'_>, ino: Ino) -> Result<()> {
    if !txn.volume().geometry.has_table() {
        return Ok(());
    }
    let (block, at) = locate(txn.volume(), ino)?;
    txn.change(block, BlockKind::InodeTable, |edit| {
        edit.put(at, &GONE);
        // What it named waits for this to last, and by this word the order knows that it did name it.
        let root = at + ATTRIBUTE_ROOT;
        if edit.bytes()[root..root + 8] != [0; 8] {
            edit.put(root, &[0; 8]);
        }
    })
}

/// Bytes of data that the largest body holds.
pub(crate) fn body_capacity_max(volume: &Volume) -> usize {
    (volume.geometry.body_slots_max() as usize * SLOT_SIZE).saturating_sub(BodyHeader::SIZE)
}

/// Where the body of an inode lies in its block, and how long its parts are.
struct Body {
    block: FsBlock,
    /// Offset of the header; data follows.
    at: usize,
    data_len: usize,
    attr_len: usize,
}

fn body(look: &Look<'_>, ino: Ino, raw: &RawInode) -> Result<Option<Body>> {
    if raw.body_slots == 0 {
        return Ok(None);
    }
    if u32::from(raw.body_slots) > look.volume.geometry.body_slots_max() {
        return Err(Corrupt::Inode { ino, field: "body_slots", value: u64::from(raw.body_slots) }.into());
    }
    let (block, _) = locate(look.volume, ino)?;
    let first = usize::from(raw.body_first.get());
    let slots = usize::from(raw.body_slots);
    if first == 0 || first + slots > look.volume.geometry.slots_per_block() as usize {
        return Err(Corrupt::Inode { ino, field: "body_first", value: first as u64 }.into());
    }
    let at = first * SLOT_SIZE;
    let header = look.read(block, BlockKind::Inode, |bytes| *BodyHeader::read(&bytes[at..]))?;
    let (data_len, attr_len) = (usize::from(header.data_len.get()), usize::from(header.attr_len.get()));
    if BodyHeader::SIZE + data_len + attr_len > slots * SLOT_SIZE {
        return Err(Corrupt::Inode { ino, field: "body length", value: (data_len + attr_len) as u64 }.into());
    }
    Ok(Some(Body { block, at, data_len, attr_len }))
}

/// Calls `f` with the body's data and attributes; both are empty without a body.
pub(crate) fn read_body<R>(look: &Look<'_>, ino: Ino, raw: &RawInode, f: impl FnOnce(&[u8], &[u8]) -> R) -> Result<R> {
    let Some(body) = body(look, ino, raw)? else { return Ok(f(&[], &[])) };
    look.read(body.block, BlockKind::Inode, |bytes| {
        let data = body.at + BodyHeader::SIZE;
        let attrs = data + body.data_len;
        f(&bytes[data..attrs], &bytes[attrs..attrs + body.attr_len])
    })
}

/// Changes the body's data in place: `f` gets the block, the data's offset in it, and its length.
pub(crate) fn change_body<R>(
    txn: &mut Txn<'_>,
    ino: Ino,
    raw: &RawInode,
    f: impl FnOnce(&mut BlockEdit<'_>, usize, usize) -> R,
) -> Result<R> {
    let body = body(&txn.look, ino, raw)?.ok_or(Corrupt::Inode { ino, field: "body_slots", value: 0 })?;
    txn.change(body.block, BlockKind::Inode, |edit| f(edit, body.at + BodyHeader::SIZE, body.data_len))
}

/// Makes the body's data `data_len` bytes long, keeping what fits and the attributes. False, with nothing changed, when
/// the block has no room for it. Changes `raw`.
pub(crate) fn resize_body(txn: &mut Txn<'_>, ino: Ino, raw: &mut RawInode, data_len: usize) -> Result<bool> {
    let (mut data, attrs) = read_body(&txn.look, ino, raw, |data, attrs| (data.to_vec(), attrs.to_vec()))?;
    data.resize(data_len, 0);
    set_body(txn, ino, raw, &data, &attrs)
}

/// Gives an inode this body. False, with nothing changed, when its block has no room. Changes `raw`; in its block, the inode leads to the
/// new body at once, while its other fields are the caller's to write. So at no moment is a slot in use that no inode has for its body and
/// that has what a user put into one: whoever looks for a number would take it for an inode.
pub(crate) fn set_body(txn: &mut Txn<'_>, ino: Ino, raw: &mut RawInode, data: &[u8], attrs: &[u8]) -> Result<bool> {
    let volume = txn.volume();
    let (block, inode_at) = locate(volume, ino)?;
    let old = usize::from(raw.body_first.get())..usize::from(raw.body_first.get()) + usize::from(raw.body_slots);
    let len = data.len() + attrs.len();
    let slots = if len == 0 { 0 } else { (BodyHeader::SIZE + len).div_ceil(SLOT_SIZE) };
    if slots > volume.geometry.body_slots_max() as usize {
        return Ok(false);
    }
    let (first, given_up) = if slots > old.len() {
        match volume.allocate_body(txn, ino, slots as u32)? {
            Some(first) => (first as usize, old.clone()),
            None => return Ok(false),
        }
    } else {
        (old.start, old.start + slots..old.end)
    };
    raw.body_slots = slots as u8;
    raw.body_first = U16::new(if slots == 0 { 0 } else { first as u16 });
    if slots == 0 && old.is_empty() {
        return Ok(true);
    }
    txn.change(block, BlockKind::Inode, |edit| {
        if slots > 0 {
            put_body(edit, first * SLOT_SIZE, data, attrs);
        }
        if slots != old.len() {
            edit.put(inode_at + offset_of!(RawInode, body_slots), &[raw.body_slots]);
            edit.put(inode_at + offset_of!(RawInode, body_first), raw.body_first.as_bytes());
            // The first slot begins with the body's header, which looks like no inode.
            for slot in given_up.clone().filter(|&slot| slot != old.start) {
                edit.put(slot * SLOT_SIZE, &GONE[..8]);
            }
        }
    })?;
    if !given_up.is_empty() {
        volume.free_body(txn, block, given_up.start as u32, given_up.len() as u32)?;
    }
    Ok(true)
}

/// Writes a body to its place in a block.
fn put_body(edit: &mut BlockEdit<'_>, at: usize, data: &[u8], attrs: &[u8]) {
    let mut header = BodyHeader::zeroed();
    header.data_len = U16::new(data.len() as u16);
    header.attr_len = U16::new(attrs.len() as u16);
    let body = [header.as_bytes(), data, attrs].concat();
    // Word by word, so that growing a directory marks what it adds and no more.
    for (i, word) in body.chunks(8).enumerate() {
        let range = at + i * 8..at + i * 8 + word.len();
        if edit.bytes()[range.clone()] != *word {
            edit.put(range.start, word);
        }
    }
}

/// A symbolic link's target.
pub(crate) fn link_target(look: &Look<'_>, ino: Ino, raw: &RawInode) -> Result<Vec<u8>> {
    let size = raw.size.get() as usize;
    let bad = || Error::from(Corrupt::Inode { ino, field: "size", value: size as u64 });
    match Fork::decode(raw, ino)? {
        Fork::ShortLink(target) => Ok(target.target().to_vec()),
        Fork::Inline => {
            read_body(look, ino, raw, |data, _| (data.len() == size).then(|| data.to_vec()))?.ok_or_else(bad)
        }
        _ if crate::map::is_mapped(raw) && raw.size.get() <= TARGET_MAX => {
            let mut target = vec![0; size];
            look.volume.read_mapped(look, ino, raw, 0, &mut target)?;
            Ok(target)
        }
        _ => Err(bad()),
    }
}

/// What stat shows of an inode, leaving aside what open files have not written yet.
#[inline(always)]
pub(crate) fn stat(volume: &Volume, ino: Ino, raw: &RawInode) -> Stat {
    Stat {
        ino: ino.0,
        generation: raw.generation.get(),
        mode: raw.mode.get(),
        nlink: raw.nlink.get(),
        uid: raw.uid.get(),
        gid: raw.gid.get(),
        rdev: raw.device_number(),
        size: raw.size.get(),
        blocks: raw.block_total() << (volume.geometry.block_bits - 9),
        atime: raw.atime.get(),
        mtime: raw.mtime.get(),
        ctime: raw.ctime.get(),
        btime: raw.btime.get(),
        flags: raw.flags.get() & flag::USER,
    }
}

pub(crate) fn is_file(raw: &RawInode) -> bool {
    raw.file_type() == S_IFREG
}

pub(crate) fn is_link(raw: &RawInode) -> bool {
    raw.file_type() == S_IFLNK
}

pub(crate) fn node(ino: Ino, raw: &RawInode) -> Node {
    Node { ino: ino.0, generation: raw.generation.get() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namei;
    use crate::ops::{NewFile, Ops};
    use crate::types::{Cred, XattrMode};
    use crate::volume::testing;
    use myriad_device::MemoryDevice;
    use std::sync::Arc;

    /// The generation went on from what the slot had, which after its block was made anew was nothing.
    #[test]
    fn a_number_never_has_a_generation_twice() {
        for begin in [5, 1 << 30, 3 << 30, u32::MAX - 100] {
            let volume = testing::volume(Arc::new(MemoryDevice::new(16 << 20)));
            volume.generations.store(begin, Ordering::Relaxed);
            let cred = Cred::root();
            let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
            let root = namei::root(&volume.look()).unwrap();
            let mut seen = std::collections::HashSet::new();
            let mut again = 0;
            for round in 0..6 {
                let new = NewFile { mode: S_IFREG | 0o644, ..NewFile::default() };
                let names: Vec<String> = (0..100).map(|i| format!("file {round} {i}")).collect();
                for name in &names {
                    let stat = ops.make(root, name.as_bytes(), &new).unwrap();
                    again += usize::from(seen.iter().any(|&(ino, _)| ino == stat.ino));
                    assert!(seen.insert((stat.ino, stat.generation)), "{stat:?}, from {begin}");
                    assert_ne!(stat.generation, 0, "as what is gone has");
                }
                for name in &names {
                    ops.unlink(root, name.as_bytes()).unwrap();
                }
                // The blocks of their inodes are given back, and made anew.
                for _ in 0..3 {
                    volume.commit_now().unwrap();
                }
            }
            assert!(again > 100, "{again} numbers were used again");
        }
    }

    /// What users put into a body may look like an inode of their own making: its number, made up, was an inode's.
    #[test]
    fn part_of_a_body_is_no_inode_though_it_looks_like_one() {
        let volume = testing::volume(Arc::new(MemoryDevice::new(16 << 20)));
        let cred = Cred::root();
        let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
        let root = namei::root(&volume.look()).unwrap();
        let file = testing::new_file(&volume, b"file").node();
        let mut made_up = *RawInode::read(&[0; SLOT_SIZE]);
        made_up.mode = U16::new(S_IFREG | 0o777);
        made_up.nlink = U32::new(1);
        let (_, first) = volume.geometry.locate(Ino(file.ino)).unwrap();
        let slots = volume.geometry.slots_per_block();
        let of_block = |slot: u32| file.ino - u64::from(first) + u64::from(slot);
        let true_ones: Vec<u64> = (1..slots).map(of_block).filter(|&ino| ino == file.ino || ino == root.ino).collect();
        let mut imitations = 0;
        for shift in (0..SLOT_SIZE).step_by(2) {
            let value = [&vec![0; shift][..], made_up.as_bytes(), made_up.as_bytes(), &[0; SLOT_SIZE]].concat();
            ops.set_xattr(file, b"user.body", &value[..300], XattrMode::Set).unwrap();
            let look = volume.look();
            let looks_like_one = |&ino: &u64| read_kept(&look, Ino(ino), None).is_ok();
            imitations += (1..slots).map(of_block).filter(looks_like_one).count() - true_ones.len();
            let found: Vec<u64> = (1..slots).map(of_block).filter(|&ino| node_at(&look, Ino(ino)).is_ok()).collect();
            assert_eq!(found, true_ones, "shift {shift}");
            drop(look);
            // What is left of it in free slots is none, either.
            ops.remove_xattr(file, b"user.body").unwrap();
            let look = volume.look();
            let found: Vec<u64> = (1..slots).map(of_block).filter(|&ino| node_at(&look, Ino(ino)).is_ok()).collect();
            assert_eq!(found, true_ones, "shift {shift}");
        }
        assert!(imitations > 0);
    }

    /// A body that ended in the first bytes of the slot gave the inode that had been there a mode again: a walk said that the
    /// directory it was in, removed meanwhile, was none.
    #[test]
    fn part_of_a_body_is_not_the_inode_that_was_there() {
        let volume = testing::volume(Arc::new(MemoryDevice::new(16 << 20)));
        let cred = Cred::root();
        let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
        let root = namei::root(&volume.look()).unwrap();
        let kept = testing::new_file(&volume, b"kept").node();
        let name = |i: u32| format!("gone {i}").into_bytes();
        let new = NewFile { mode: S_IFREG | 0o644, ..NewFile::default() };
        let gone: Vec<Node> = (0..20).map(|i| ops.make(root, &name(i), &new).unwrap().node()).collect();
        for i in 0..20 {
            ops.unlink(root, &name(i)).unwrap();
        }
        let block_of = |node: Node| volume.geometry.locate(Ino(node.ino)).unwrap().0;
        let mut in_bodies = 0;
        for len in (1..600).step_by(3) {
            ops.set_xattr(kept, b"user.body", &vec![b'x'; len], XattrMode::Set).unwrap();
            let look = volume.look();
            let raw = read_node(&look, kept).unwrap();
            let first = kept.ino - u64::from(volume.geometry.locate(Ino(kept.ino)).unwrap().1)
                + u64::from(raw.body_first.get());
            for &node in &gone {
                let is_part = (first..first + u64::from(raw.body_slots)).contains(&node.ino);
                in_bodies += usize::from(is_part && block_of(node) == block_of(kept));
                let found = read_node(&look, node);
                assert!(matches!(found, Err(Error::Refused(Errno::STALE))), "{len} bytes: {node:?}: {:?}", found.err());
            }
        }
        assert!(in_bodies > 200, "{in_bodies}");
    }
}
