//! Entries of a small directory in the body of its inode: one after the other, in any order, from the first byte to the last.
//!
//! The size of such a directory is that of its body's data.

use super::node::{Entry, put_target};
use crate::error::{Error, Result};
use crate::inode;
use crate::order::{Look, Txn};
use myriad_format::dir_tree::{OFFSET_SIZE, leaf_room};
use myriad_format::fork::Fork;
use myriad_format::inode::{RawInode, fork};
use myriad_format::{Corrupt, FileBlock, Ino};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

pub(super) fn is_in_body(raw: &RawInode) -> bool {
    raw.fork_code() == fork::INLINE
}

pub(super) fn corrupt(dir: Ino, offset: usize, field: &'static str, value: u64) -> Error {
    Corrupt::DirEntry { ino: dir, block: FileBlock(0), offset: offset as u32, field, value }.into()
}

/// Hands the live entries of some bytes to `f`, until it returns false.
fn each_of(bytes: &[u8], dir: Ino, f: &mut dyn FnMut(&Entry<'_>) -> Result<bool>) -> Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        let entry = Entry::at(bytes, at).ok_or_else(|| corrupt(dir, at, "room", (bytes.len() - at) as u64))?;
        at = entry.end();
        if entry.ino().is_none() {
            continue;
        }
        if entry.name.is_empty() {
            return Err(corrupt(dir, entry.offset, "name_len", 0));
        }
        if !f(&entry)? {
            break;
        }
    }
    Ok(())
}

/// Hands the entries of a directory that has no blocks to `f`, until it returns false.
pub(super) fn each(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    f: &mut dyn FnMut(&Entry<'_>) -> Result<bool>,
) -> Result<()> {
    if !is_in_body(raw) {
        return Ok(());
    }
    inode::read_body(look, dir, raw, |data, _| each_of(data, dir, f))?
}

/// The entries of a directory that has no blocks, in the order of their keys.
pub(super) fn sorted(look: &Look<'_>, dir: Ino, raw: &RawInode) -> Result<Vec<Vec<u8>>> {
    let mut entries = Vec::new();
    each(look, dir, raw, &mut |entry| {
        entries.push((entry.key(), [entry.header.as_bytes(), entry.name].concat()));
        Ok(true)
    })?;
    entries.sort();
    Ok(entries.into_iter().map(|(_, bytes)| bytes).collect())
}

/// Makes the body hold these bytes; false, with nothing changed, if there is no room for them.
fn set(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, data: &[u8]) -> Result<bool> {
    let attributes = inode::read_body(&txn.look, dir, raw, |_, attributes| attributes.to_vec())?;
    if !inode::set_body(txn, dir, raw, data, &attributes)? {
        return Ok(false);
    }
    if data.is_empty() {
        Fork::None.encode(raw)
    } else {
        Fork::Inline.encode(raw)
    }
    raw.size = U64::new(data.len() as u64);
    Ok(true)
}

/// Adds an entry; false, with nothing changed, if there is no room for it.
pub(super) fn insert(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, entry: &[u8]) -> Result<bool> {
    let mut data =
        if is_in_body(raw) { inode::read_body(&txn.look, dir, raw, |data, _| data.to_vec())? } else { Vec::new() };
    let mut count = 1;
    each_of(&data, dir, &mut |_| {
        count += 1;
        Ok(true)
    })?;
    data.extend_from_slice(entry);
    // One leaf takes them all one day.
    if data.len() + count * OFFSET_SIZE > leaf_room(txn.volume().cache.block_size()) {
        return Ok(false);
    }
    set(txn, dir, raw, &data)
}

/// Where the entry with a key lies in the data.
fn find(data: &[u8], dir: Ino, key: u64) -> Result<std::ops::Range<usize>> {
    let mut found = None;
    each_of(data, dir, &mut |entry| {
        if entry.key() == key {
            found = Some(entry.offset..entry.end());
        }
        Ok(found.is_none())
    })?;
    found.ok_or_else(|| corrupt(dir, 0, "key", key))
}

pub(super) fn remove(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, key: u64) -> Result<()> {
    let mut data = inode::read_body(&txn.look, dir, raw, |data, _| data.to_vec())?;
    data.drain(find(&data, dir, key)?);
    set(txn, dir, raw, &data).map(drop)
}

pub(super) fn replace(txn: &mut Txn<'_>, dir: Ino, raw: &RawInode, key: u64, ino: Ino, file_type: u8) -> Result<()> {
    let at = inode::read_body(&txn.look, dir, raw, |data, _| find(data, dir, key))??.start;
    inode::change_body(txn, dir, raw, |edit, base, _| put_target(edit, base + at, ino, file_type))
}

/// Takes all entries out.
pub(super) fn clear(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode) -> Result<()> {
    if is_in_body(raw) {
        set(txn, dir, raw, &[])?;
    }
    Ok(())
}
