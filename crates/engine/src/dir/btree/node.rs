//! Nodes of a directory tree, as bytes: what is read of them is checked, whatever it says.
//!
//! In a leaf the offsets of the entries grow from the header on, in the order of the entries' keys; the entries themselves grow
//! from the end of the block down, in no order. A removed entry leaves a hole, unless it is the lowest one; when what lies
//! between offsets and entries is too little for a new one, and the holes are enough, the entries are moved together.

use crate::dir::NewEntry;
use crate::edit::BlockEdit;
use crate::error::{Error, Result};
use myriad_format::dir_tree::{
    DirNodeHeader, DirTreeChild, DirTreeEntry, LEVEL_MAX, NODE_OFFSET, OFFSET_SIZE, child_at, fan_out, key, leaf_room,
    offset_at, tree_entry_size,
};
use myriad_format::{Corrupt, FileBlock, FsBlock, Ino, header};
use std::mem::offset_of;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

/// Which directory, which of its nodes, and where that lies.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub dir: Ino,
    pub node: u32,
    pub block: FsBlock,
}

impl Place {
    /// Something of the node is impossible.
    pub fn corrupt(self, field: &'static str, value: u64) -> Error {
        Corrupt::DirIndex { ino: self.dir, block: self.block, field, value }.into()
    }

    /// Something of an entry is impossible.
    pub fn corrupt_entry(self, offset: usize, field: &'static str, value: u64) -> Error {
        let block = FileBlock(u64::from(self.node));
        Corrupt::DirEntry { ino: self.dir, block, offset: offset as u32, field, value }.into()
    }
}

/// An entry of a leaf or of a body.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    /// In its block, or in the data of the body.
    pub offset: usize,
    pub header: &'a DirTreeEntry,
    pub name: &'a [u8],
}

impl<'a> Entry<'a> {
    /// The entry at an offset of some bytes; `None` if it does not end in them.
    pub fn at(bytes: &'a [u8], offset: usize) -> Option<Self> {
        let rest = bytes.get(offset..)?;
        let header = DirTreeEntry::read(rest.get(..DirTreeEntry::SIZE)?);
        let name = rest[DirTreeEntry::SIZE..].get(..usize::from(header.name_len))?;
        Some(Self { offset, header, name })
    }

    pub fn key(&self) -> u64 {
        key(self.header.tag.get(), self.header.number.get())
    }

    pub fn ino(&self) -> Ino {
        Ino(self.header.ino.get())
    }

    pub fn end(&self) -> usize {
        self.offset + tree_entry_size(self.name.len())
    }
}

/// The bytes of an entry.
pub(super) fn entry_bytes(entry: &NewEntry<'_>, number: u16) -> Vec<u8> {
    let mut header = DirTreeEntry::zeroed();
    header.ino = U64::new(entry.ino.0);
    header.number = U16::new(number);
    header.name_len = entry.name.bytes.len() as u8;
    header.file_type = entry.file_type;
    header.tag = U32::new(entry.name.tag());
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(entry.name.bytes);
    bytes
}

/// A node whose header has been checked.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    pub bytes: &'a [u8],
    pub place: Place,
    pub level: u8,
    /// Entries or children, all of which lie in the block.
    pub count: usize,
}

impl<'a> Node<'a> {
    pub fn read(bytes: &'a [u8], place: Place) -> Result<Self> {
        header::verify_owner(bytes, place.block, place.dir.0)?;
        let header = DirNodeHeader::read(bytes);
        let (level, count) = (header.level, usize::from(header.count.get()));
        if level > LEVEL_MAX {
            return Err(place.corrupt("level", u64::from(level)));
        }
        let most = if level == 0 { leaf_room(bytes.len()) / OFFSET_SIZE } else { fan_out(bytes.len()) };
        if count > most || level > 0 && count == 0 {
            return Err(place.corrupt("count", count as u64));
        }
        let node = Self { bytes, place, level, count };
        if level == 0 {
            let (heap, live) = (header.heap.get() as usize, header.live.get() as usize);
            if heap > bytes.len() || heap < NODE_OFFSET + count * OFFSET_SIZE {
                return Err(place.corrupt("heap", heap as u64));
            }
            if live > bytes.len() - heap {
                return Err(place.corrupt("live", live as u64));
            }
        }
        Ok(node)
    }

    pub fn is_leaf(&self) -> bool {
        self.level == 0
    }

    fn header(&self) -> &DirNodeHeader {
        DirNodeHeader::read(self.bytes)
    }

    /// Where the lowest entry of a leaf begins.
    fn heap(&self) -> usize {
        self.header().heap.get() as usize
    }

    pub fn live(&self) -> usize {
        self.header().live.get() as usize
    }

    /// Bytes in use, of those that a node has for what it holds.
    pub fn used(&self) -> usize {
        if self.is_leaf() { self.live() + self.count * OFFSET_SIZE } else { self.count * DirTreeChild::SIZE }
    }

    /// As [`Self::used`], by what it holds and not by what it says.
    pub fn taken(&self) -> Result<usize> {
        if !self.is_leaf() {
            return Ok(self.used());
        }
        let length = |index| self.entry(index).map(|entry| entry.end() - entry.offset + OFFSET_SIZE);
        (0..self.count).map(length).sum()
    }

    pub fn entry(&self, index: usize) -> Result<Entry<'a>> {
        let offset = offset_at(self.bytes, index);
        let entry = Entry::at(self.bytes, offset).filter(|_| offset >= self.heap());
        let entry = entry.ok_or_else(|| self.place.corrupt_entry(offset, "place", offset as u64))?;
        if entry.name.is_empty() || entry.header.ino.get() == 0 {
            return Err(self.place.corrupt_entry(offset, "name_len", entry.name.len() as u64));
        }
        Ok(entry)
    }

    /// The first entry of a leaf whose key is at least `key`.
    pub fn lower_bound(&self, key: u64) -> Result<usize> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = (low + high) / 2;
            if self.entry(middle)?.key() < key { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }

    /// The entry of a leaf with this key.
    pub fn find(&self, key: u64) -> Result<usize> {
        let index = self.lower_bound(key)?;
        if index < self.count && self.entry(index)?.key() == key {
            return Ok(index);
        }
        Err(self.place.corrupt("key", key))
    }

    /// Key and file block of a child.
    pub fn child(&self, index: usize) -> (u64, u32) {
        let child = child_at(self.bytes, index);
        (child.key.get(), child.child.get())
    }

    /// The child below which `key` belongs: the last whose own key is not greater, or the first one.
    pub fn child_for(&self, key: u64) -> usize {
        let (mut low, mut high) = (1, self.count);
        while low < high {
            let middle = (low + high) / 2;
            if self.child(middle).0 <= key { low = middle + 1 } else { high = middle }
        }
        low - 1
    }

    /// All entries of a leaf, as bytes, in the order of their keys.
    pub fn entries(&self) -> Result<Vec<Vec<u8>>> {
        (0..self.count)
            .map(|index| self.entry(index).map(|entry| self.bytes[entry.offset..entry.end()].to_vec()))
            .collect()
    }

    pub fn children(&self) -> Vec<(u64, u32)> {
        (0..self.count).map(|index| self.child(index)).collect()
    }
}

fn put_header(edit: &mut BlockEdit<'_>, level: u8, count: usize, heap: usize, live: usize) {
    let mut header = DirNodeHeader::zeroed();
    header.level = level;
    header.count = U16::new(count as u16);
    header.heap = U32::new(heap as u32);
    header.live = U32::new(live as u32);
    let at = offset_of!(DirNodeHeader, level);
    edit.put(at, &header.as_bytes()[at..]);
}

/// Makes a node a leaf of these entries, which fit it. Bytes that nothing uses are 0.
pub(super) fn write_leaf(edit: &mut BlockEdit<'_>, entries: &[Vec<u8>]) {
    let size = edit.bytes().len();
    let live: usize = entries.iter().map(Vec::len).sum();
    let mut heap = size;
    let mut bytes = vec![0; leaf_room(size)];
    for (index, entry) in entries.iter().enumerate() {
        heap -= entry.len();
        bytes[heap - NODE_OFFSET..][..entry.len()].copy_from_slice(entry);
        bytes[index * OFFSET_SIZE..][..OFFSET_SIZE].copy_from_slice(&(heap as u16).to_le_bytes());
    }
    assert!(heap >= NODE_OFFSET + entries.len() * OFFSET_SIZE, "whoever fills a leaf has counted");
    edit.put(NODE_OFFSET, &bytes);
    put_header(edit, 0, entries.len(), heap, live);
}

/// Makes a node an inner one with these children, from the one with number `from` on: those before it are there already.
pub(super) fn write_children(edit: &mut BlockEdit<'_>, level: u8, children: &[(u64, u32)], from: usize) {
    for (index, &(key, child)) in children.iter().enumerate().skip(from) {
        let mut record = DirTreeChild::zeroed();
        record.key = U64::new(key);
        record.child = U32::new(child);
        edit.put(NODE_OFFSET + index * DirTreeChild::SIZE, record.as_bytes());
    }
    put_header(edit, level, children.len(), 0, 0);
}

/// Makes a node one with the contents of another.
pub(super) fn copy_contents(edit: &mut BlockEdit<'_>, other: &[u8]) {
    let at = offset_of!(DirNodeHeader, level);
    edit.put(at, &other[at..]);
}

/// What a leaf says it has in use may be less than its entries take: they must fit it together, with their offsets.
pub(super) fn check_fit(place: Place, entries: &[Vec<u8>], live: usize, block_size: usize) -> Result<()> {
    let used: usize = entries.iter().map(|entry| entry.len() + OFFSET_SIZE).sum();
    if used > leaf_room(block_size) { Err(place.corrupt("live", live as u64)) } else { Ok(()) }
}

/// Puts an entry into a leaf; `None` if there is no room for it, else whether entries were moved for it.
pub(super) fn insert_entry(edit: &mut BlockEdit<'_>, place: Place, key: u64, entry: &[u8]) -> Result<Option<bool>> {
    let node = Node::read(edit.bytes(), place)?;
    if node.used() + entry.len() + OFFSET_SIZE > leaf_room(node.bytes.len()) {
        return Ok(None);
    }
    let index = node.lower_bound(key)?;
    let (count, live) = (node.count, node.live());
    let offsets_end = NODE_OFFSET + (count + 1) * OFFSET_SIZE;
    if offsets_end + entry.len() > node.heap() {
        let mut entries = node.entries()?;
        entries.insert(index, entry.to_vec());
        check_fit(place, &entries, live, node.bytes.len())?;
        write_leaf(edit, &entries);
        return Ok(Some(true));
    }
    let heap = node.heap() - entry.len();
    let at = NODE_OFFSET + index * OFFSET_SIZE;
    edit.put(heap, entry);
    edit.copy_within(at, at + OFFSET_SIZE, (count - index) * OFFSET_SIZE);
    edit.put(at, &(heap as u16).to_le_bytes());
    put_header(edit, 0, count + 1, heap, live + entry.len());
    Ok(Some(false))
}

/// Adds what another node of the same level has behind what a node has. `key` is the one by which the parent led to the other: the
/// key of a node's first child is 0, and that of the other's is the first no longer.
pub(super) fn append(edit: &mut BlockEdit<'_>, place: Place, other: &Node<'_>, key: u64) -> Result<()> {
    let node = Node::read(edit.bytes(), place)?;
    if node.level != other.level {
        return Err(place.corrupt("level", u64::from(node.level)));
    }
    if !node.is_leaf() {
        let (level, count) = (node.level, node.count);
        let mut children = node.children();
        children.extend(other.children());
        children[count].0 = key;
        write_children(edit, level, &children, count);
        return Ok(());
    }
    let added = other.entries()?;
    let bytes: usize = added.iter().map(Vec::len).sum();
    let (count, live, mut heap) = (node.count, node.live(), node.heap());
    if heap < NODE_OFFSET + (count + added.len()) * OFFSET_SIZE + bytes {
        let mut entries = node.entries()?;
        entries.extend(added);
        check_fit(place, &entries, live, node.bytes.len())?;
        write_leaf(edit, &entries);
        return Ok(());
    }
    for (index, entry) in added.iter().enumerate() {
        heap -= entry.len();
        edit.put(heap, entry);
        edit.put(NODE_OFFSET + (count + index) * OFFSET_SIZE, &(heap as u16).to_le_bytes());
    }
    put_header(edit, 0, count + added.len(), heap, live + bytes);
    Ok(())
}

/// Takes the entry with a key out of a leaf.
pub(super) fn remove_entry(edit: &mut BlockEdit<'_>, place: Place, key: u64) -> Result<()> {
    let node = Node::read(edit.bytes(), place)?;
    let index = node.find(key)?;
    let entry = node.entry(index)?;
    let length = entry.end() - entry.offset;
    let (count, live) = (node.count, node.live());
    if live < length {
        return Err(place.corrupt("live", live as u64));
    }
    let heap = match (count, entry.offset == node.heap()) {
        (1, _) => node.bytes.len(),
        (_, true) => entry.end(),
        _ => node.heap(),
    };
    let at = NODE_OFFSET + index * OFFSET_SIZE;
    edit.copy_within(at + OFFSET_SIZE, at, (count - index - 1) * OFFSET_SIZE);
    put_header(edit, 0, count - 1, heap, live - length);
    Ok(())
}

/// Leaves a leaf its first `kept` entries, where they are.
pub(super) fn cut_leaf(edit: &mut BlockEdit<'_>, place: Place, kept: usize) -> Result<()> {
    let node = Node::read(edit.bytes(), place)?;
    let (mut heap, mut live) = (node.bytes.len(), 0);
    for index in 0..kept {
        let entry = node.entry(index)?;
        heap = heap.min(entry.offset);
        live += entry.end() - entry.offset;
    }
    put_header(edit, 0, kept, heap, live);
    Ok(())
}

/// Makes the entry with a key name another inode.
pub(super) fn replace(edit: &mut BlockEdit<'_>, place: Place, key: u64, ino: Ino, file_type: u8) -> Result<()> {
    let node = Node::read(edit.bytes(), place)?;
    let offset = node.entry(node.find(key)?)?.offset;
    put_target(edit, offset, ino, file_type);
    Ok(())
}

/// Makes the entry at an offset of a block name another inode.
pub(super) fn put_target(edit: &mut BlockEdit<'_>, offset: usize, ino: Ino, file_type: u8) {
    edit.put(offset, &ino.0.to_le_bytes());
    edit.put(offset + offset_of!(DirTreeEntry, file_type), &[file_type]);
}

/// Makes the child with a number another file block.
pub(super) fn put_child(edit: &mut BlockEdit<'_>, index: usize, child: u32) {
    let at = NODE_OFFSET + index * DirTreeChild::SIZE + offset_of!(DirTreeChild, child);
    edit.put(at, &child.to_le_bytes());
}

/// Takes a child out of an inner node. The key of the first one is 0, whichever it is.
pub(super) fn remove_child(edit: &mut BlockEdit<'_>, level: u8, count: usize, index: usize) {
    let at = NODE_OFFSET + index * DirTreeChild::SIZE;
    edit.copy_within(at + DirTreeChild::SIZE, at, (count - index - 1) * DirTreeChild::SIZE);
    if index == 0 {
        edit.put(at, &0_u64.to_le_bytes());
    }
    put_header(edit, level, count - 1, 0, 0);
}
