//! Where the fields of a metadata block are, by the layouts that `myriad-format` declares.

use myriad_format::btree::{ChildEntry, EXTENTS, FREE_BY_LENGTH, FREE_BY_START, INODE_CHUNKS, NodeHeader, TreeKind};
use myriad_format::checksum::ChecksumHeader;
use myriad_format::choices::Directory;
use myriad_format::dir::{
    ENTRIES_OFFSET, EntryBlockHeader, EntryHeader, IndexHeader, IndexRecord, POINTER_SIZE, node_bits,
};
use myriad_format::dir_tree::{
    DirNodeHeader, DirTreeChild, DirTreeEntry, NODE_OFFSET, OFFSET_SIZE, fan_out, leaf_room, offset_at,
};
use myriad_format::group::{GroupHeader, RegionSummary};
use myriad_format::inode::{BodyHeader, ChunkRecord, InodeBlockHeader, RawInode, fork};
use myriad_format::slots::{DirExtent, ExtentsHeader, SlotBlockHeader, SlotHeader, SlotLayout};
use myriad_format::superblock::{OrphanHeader, Superblock};
use myriad_format::table::{INODE_SIZE, POINTERS_OFFSET};
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use myriad_format::xattr::{AttrBlockHeader, AttrHeader};
use myriad_format::{BlockHeader, BlockKind, Layout, SLOT_SIZE};

/// A number in a block: `bits` bits from bit `bit` of the little-endian word that starts at byte `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub at: usize,
    pub bit: u32,
    /// 1 to 64; `bit + bits` is at most 64.
    pub bits: u32,
    pub name: &'static str,
}

impl Field {
    fn bytes(&self) -> usize {
        (self.bit + self.bits).div_ceil(8) as usize
    }

    /// Largest value.
    pub fn max(&self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    fn word(&self, block: &[u8]) -> u64 {
        let mut word = [0; 8];
        word[..self.bytes()].copy_from_slice(&block[self.at..self.at + self.bytes()]);
        u64::from_le_bytes(word)
    }

    pub fn get(&self, block: &[u8]) -> u64 {
        self.word(block) >> self.bit & self.max()
    }

    pub fn set(&self, block: &mut [u8], value: u64) {
        let mask = self.max() << self.bit;
        let word = self.word(block) & !mask | value << self.bit & mask;
        block[self.at..self.at + self.bytes()].copy_from_slice(&word.to_le_bytes()[..self.bytes()]);
    }

    /// Whether it holds the number of a block or of an inode.
    pub fn is_pointer(&self) -> bool {
        matches!(
            self.name,
            "child"
                | "pointer"
                | "next"
                | "start"
                | "extent start"
                | "fork root"
                | "attribute root"
                | "ino"
                | "parent"
                | "orphan_root"
                | "root_ino"
                | "log_start"
                | "by_start_root"
                | "by_length_root"
                | "inode_root"
                | "reserve"
                | "next_room"
                | "room_head"
                | "body_first"
                | "block"
        )
    }
}

/// The fields of a block that starts with a header of a known kind, those of the header itself included. What cannot be
/// made sense of is left out. The kind of directory says what the bodies of directories hold.
pub fn fields_of(block: &[u8], directory: Directory) -> Vec<Field> {
    let mut fields = Vec::new();
    if block.len() < BlockHeader::SIZE {
        return fields;
    }
    let Some(kind) = BlockKind::from_magic(BlockHeader::read(block).magic.get()) else { return fields };
    if block.len() < 512 {
        return fields;
    }
    if kind.is_of_units() {
        push_units(&mut fields, block, kind);
        return fields;
    }
    push_layout(&mut fields, 0, &BlockHeader::LAYOUT);
    match kind {
        BlockKind::Superblock => push_layout(&mut fields, 0, &Superblock::LAYOUT),
        BlockKind::Group => {
            push_layout(&mut fields, 0, &GroupHeader::LAYOUT);
            let regions = GroupHeader::read(block).region_count.get().min(32) as usize;
            for region in 0..regions {
                push_record(
                    &mut fields,
                    GroupHeader::SIZE + region * RegionSummary::SIZE,
                    &RegionSummary::LAYOUT,
                    block,
                );
            }
        }
        BlockKind::FreeByStart => push_node(&mut fields, block, FREE_BY_START),
        BlockKind::FreeByLength => push_node(&mut fields, block, FREE_BY_LENGTH),
        BlockKind::InodeTree => push_node(&mut fields, block, INODE_CHUNKS),
        BlockKind::ExtentTree => push_node(&mut fields, block, EXTENTS),
        BlockKind::Inode => push_inodes(&mut fields, block, directory),
        BlockKind::DirEntries => {
            push_layout(&mut fields, 0, &EntryBlockHeader::LAYOUT);
            let tail = (EntryBlockHeader::read(block).tail.get() as usize).clamp(ENTRIES_OFFSET, block.len());
            push_entries(&mut fields, block, ENTRIES_OFFSET, tail);
        }
        BlockKind::DirIndex => push_index(&mut fields, block),
        BlockKind::DirSlots => push_slots(&mut fields, block),
        BlockKind::DirExtents => {
            push_layout(&mut fields, 0, &ExtentsHeader::LAYOUT);
            // Of extents that there are, and of the first one that there is not.
            let rooms = (ExtentsHeader::SIZE..block.len()).step_by(DirExtent::SIZE);
            let is_used = |at: &usize| block[*at..].iter().take(DirExtent::SIZE).any(|&byte| byte != 0);
            let last = rooms.clone().rev().find(is_used).unwrap_or(0);
            for at in rooms.take_while(|&at| at <= last + DirExtent::SIZE) {
                push_record(&mut fields, at, &DirExtent::LAYOUT, block);
            }
        }
        BlockKind::DirTree => push_dir_tree(&mut fields, block),
        BlockKind::Attributes => {
            push_layout(&mut fields, 0, &AttrBlockHeader::LAYOUT);
            let length = AttrBlockHeader::read(block).length.get() as usize;
            let end = AttrBlockHeader::SIZE.saturating_add(length).min(block.len());
            // Of a chain the first block begins with an attribute; the others may begin anywhere in one.
            push_attributes(&mut fields, block, AttrBlockHeader::SIZE, end);
        }
        BlockKind::Checksums => {
            push_layout(&mut fields, 0, &ChecksumHeader::LAYOUT);
            // Of the data there is, at the start of the table and wherever else it lies.
            let sums = block[ChecksumHeader::SIZE..].chunks_exact(4).zip((ChecksumHeader::SIZE..).step_by(4));
            for (_, at) in sums.filter(|(sum, _)| **sum != [0; 4]).take(64) {
                fields.push(Field { at, bit: 0, bits: 32, name: "checksum" });
            }
        }
        BlockKind::BlockBitmap
        | BlockKind::InodeBitmap
        | BlockKind::InodeTable
        | BlockKind::Pointers
        | BlockKind::LinearEntries => unreachable!("they are made of units"),
        BlockKind::Orphans => {
            push_layout(&mut fields, 0, &OrphanHeader::LAYOUT);
            let count = (OrphanHeader::read(block).count.get() as usize).min((block.len() - OrphanHeader::SIZE) / 8);
            for index in 0..count {
                fields.push(Field { at: OrphanHeader::SIZE + index * 8, bit: 0, bits: 64, name: "ino" });
            }
        }
    }
    fields
}

/// The fields of a layout, the block header's left out: long ones in words of 8 bytes, arrays of numbers one by one.
fn push_layout(fields: &mut Vec<Field>, at: usize, layout: &Layout) {
    for field in layout.fields {
        if field.type_name.ends_with("BlockHeader") {
            continue;
        }
        let unit = match field.size {
            6 => 6,
            size if size > 8 && field.type_name.starts_with("[U32") => 4,
            size => size.min(8),
        };
        for part in 0..field.size / unit {
            let at = at + field.offset + part * unit;
            fields.push(Field { at, bit: 0, bits: unit as u32 * 8, name: field.name });
        }
    }
}

fn push_record(fields: &mut Vec<Field>, at: usize, layout: &Layout, block: &[u8]) {
    if at + layout.size <= block.len() {
        push_layout(fields, at, layout);
    }
}

fn push_extent(fields: &mut Vec<Field>, at: usize) {
    fields.extend([
        Field { at, bit: 10, bits: 54, name: "extent file block" },
        Field { at, bit: 0, bits: 10, name: "extent start, high bits" },
        Field { at: at + 8, bit: 27, bits: 37, name: "extent start" },
        Field { at: at + 8, bit: 5, bits: 22, name: "extent length" },
        Field { at: at + 8, bit: 0, bits: 5, name: "extent flags" },
    ]);
}

fn push_node(fields: &mut Vec<Field>, block: &[u8], kind: TreeKind) {
    push_layout(fields, 0, &NodeHeader::LAYOUT);
    let head = NodeHeader::read(block);
    let (is_leaf, count) = (head.level.get() == 0, usize::from(head.count.get()));
    let size = if is_leaf { kind.record_size } else { ChildEntry::SIZE };
    for index in 0..count.min((block.len() - NodeHeader::SIZE) / size) {
        let at = NodeHeader::SIZE + index * size;
        if !is_leaf {
            push_layout(fields, at, &ChildEntry::LAYOUT);
        } else if kind == EXTENTS {
            push_extent(fields, at);
        } else if kind == INODE_CHUNKS {
            push_layout(fields, at, &ChunkRecord::LAYOUT);
        } else {
            fields.push(Field { at, bit: 0, bits: 32, name: "free extent, low half" });
            fields.push(Field { at: at + 4, bit: 0, bits: 32, name: "free extent, high half" });
        }
    }
}

fn push_units(fields: &mut Vec<Field>, block: &[u8], kind: BlockKind) {
    let words = |fields: &mut Vec<Field>, from: usize, until: usize, name| {
        fields.extend((from..until).step_by(8).map(|at| Field { at, bit: 0, bits: 64, name }));
    };
    for unit in (0..block.len()).step_by(UNIT_SIZE) {
        push_layout(fields, unit, &UnitHeader::LAYOUT);
        let (start, end) = (unit + UnitHeader::SIZE, unit + UNIT_SIZE);
        match kind {
            BlockKind::InodeTable => {
                for at in (start..end).step_by(INODE_SIZE) {
                    if RawInode::read(&block[at..]).mode.get() != 0 {
                        push_inode(fields, block, at);
                        words(fields, at + POINTERS_OFFSET, at + INODE_SIZE, "pointer");
                        push_runs(fields, block, at + POINTERS_OFFSET, at + INODE_SIZE);
                    }
                }
            }
            BlockKind::Pointers => {
                words(fields, start, end, "pointer");
                push_runs(fields, block, start, end);
            }
            BlockKind::LinearEntries => push_entries(fields, block, start, end),
            _ => words(fields, start, end, "bits"),
        }
    }
}

/// Of pointers that lead to less than a whole block of fragments: how many fragments the run lacks, and which of it are unwritten.
fn push_runs(fields: &mut Vec<Field>, block: &[u8], from: usize, until: usize) {
    for at in (from..until).step_by(8) {
        let missing = Field { at, bit: 48, bits: 3, name: "run, missing" };
        if missing.get(block) != 0 {
            fields.extend([missing, Field { at, bit: 56, bits: 8, name: "run, unwritten" }]);
        }
    }
}

/// The fields of an inode but for its body.
fn push_inode(fields: &mut Vec<Field>, block: &[u8], at: usize) {
    let raw = RawInode::read(&block[at..]);
    for field in RawInode::LAYOUT.fields.iter().filter(|field| field.name != "fork") {
        fields.push(Field { at: at + field.offset, bit: 0, bits: field.size as u32 * 8, name: field.name });
    }
    let in_fork = at + 96;
    match raw.fork_code() {
        fork::EXTENTS => (0..raw.inline_extent_count()).for_each(|index| push_extent(fields, in_fork + index * 16)),
        fork::TREE => push_fork_root(fields, in_fork),
        fork::DIRECTORY => {
            fields.push(Field { at: in_fork, bit: 0, bits: 64, name: "fork root" });
            push_extent(fields, in_fork + 8);
        }
        fork::DIRECTORY_TREE => {
            fields.push(Field { at: in_fork, bit: 0, bits: 64, name: "fork root" });
            push_fork_root(fields, in_fork + 8);
        }
        _ => fields.push(Field { at: in_fork, bit: 0, bits: 64, name: "fork" }),
    }
    fields.push(Field { at: in_fork + 24, bit: 0, bits: 48, name: "attribute root" });
    fields.push(Field { at: in_fork + 30, bit: 0, bits: 16, name: "attribute blocks" });
}

fn push_inodes(fields: &mut Vec<Field>, block: &[u8], directory: Directory) {
    push_layout(fields, 0, &InodeBlockHeader::LAYOUT);
    let mask = InodeBlockHeader::read(block).free_mask;
    let is_free = |slot: usize| mask[slot / 8] >> (slot % 8) & 1 == 1;
    let mut slot = 1;
    while slot < block.len() / SLOT_SIZE {
        let at = slot * SLOT_SIZE;
        let raw = RawInode::read(&block[at..]);
        slot += 1;
        if is_free(slot - 1) || raw.check(myriad_format::Ino(1)).is_err() {
            continue;
        }
        push_inode(fields, block, at);
        let body = usize::from(raw.body_first.get()) * SLOT_SIZE;
        let end = body + usize::from(raw.body_slots) * SLOT_SIZE;
        if raw.body_slots == 0 || body == 0 || end > block.len() {
            continue;
        }
        push_layout(fields, body, &BodyHeader::LAYOUT);
        let head = BodyHeader::read(&block[body..]);
        let data = body + BodyHeader::SIZE;
        let attributes = data + usize::from(head.data_len.get());
        if raw.is_dir() && directory == Directory::Tree {
            let mut at = data;
            while let Some(next) = push_tree_entry(fields, block, at, attributes.min(end)) {
                at = next;
            }
        } else if raw.is_dir() {
            push_entries(fields, block, data, attributes.min(end));
        }
        push_attributes(fields, block, attributes, (attributes + usize::from(head.attr_len.get())).min(end));
        // A body's bytes may look like inodes.
        if body == slot * SLOT_SIZE {
            slot += usize::from(raw.body_slots);
        }
    }
}

fn push_fork_root(fields: &mut Vec<Field>, at: usize) {
    fields.push(Field { at, bit: 0, bits: 64, name: "fork root" });
    fields.push(Field { at: at + 8, bit: 0, bits: 8, name: "fork level" });
}

fn push_entries(fields: &mut Vec<Field>, block: &[u8], mut at: usize, end: usize) {
    while at + EntryHeader::SIZE <= end {
        push_layout(fields, at, &EntryHeader::LAYOUT);
        let head = EntryHeader::read(&block[at..]);
        if head.name_len > 0 && at + EntryHeader::SIZE < block.len() {
            fields.push(Field { at: at + EntryHeader::SIZE, bit: 0, bits: 8, name: "name" });
        }
        let length = usize::from(head.length.get());
        if length < EntryHeader::SIZE {
            break;
        }
        at += length;
    }
}

fn push_slots(fields: &mut Vec<Field>, block: &[u8]) {
    push_layout(fields, 0, &SlotBlockHeader::LAYOUT);
    let layout = SlotLayout::new(block.len());
    for at in (0..layout.slots).map(|slot| layout.offset(slot)) {
        push_layout(fields, at, &SlotHeader::LAYOUT);
        if SlotHeader::read(&block[at..]).ino.get() != 0 {
            fields.push(Field { at: at + SlotHeader::SIZE, bit: 0, bits: 8, name: "name" });
        }
    }
}

/// The fields of an entry of a directory tree or of the body of such a directory, if it ends before `end`; where it ends.
fn push_tree_entry(fields: &mut Vec<Field>, block: &[u8], at: usize, end: usize) -> Option<usize> {
    let name = at + DirTreeEntry::SIZE;
    if name > end {
        return None;
    }
    push_layout(fields, at, &DirTreeEntry::LAYOUT);
    if name < end {
        fields.push(Field { at: name, bit: 0, bits: 8, name: "name" });
    }
    Some(name + usize::from(DirTreeEntry::read(&block[at..]).name_len))
}

fn push_dir_tree(fields: &mut Vec<Field>, block: &[u8]) {
    push_layout(fields, 0, &DirNodeHeader::LAYOUT);
    let head = DirNodeHeader::read(block);
    let count = usize::from(head.count.get());
    if head.level > 0 {
        for index in 0..count.min(fan_out(block.len())) {
            push_layout(fields, NODE_OFFSET + index * DirTreeChild::SIZE, &DirTreeChild::LAYOUT);
        }
        return;
    }
    for index in 0..count.min(leaf_room(block.len()) / OFFSET_SIZE) {
        fields.push(Field { at: NODE_OFFSET + index * OFFSET_SIZE, bit: 0, bits: 16, name: "entry offset" });
        push_tree_entry(fields, block, offset_at(block, index), block.len());
    }
}

fn push_attributes(fields: &mut Vec<Field>, block: &[u8], mut at: usize, end: usize) {
    while at + AttrHeader::SIZE <= end {
        push_layout(fields, at, &AttrHeader::LAYOUT);
        let head = AttrHeader::read(&block[at..]);
        at += AttrHeader::SIZE + usize::from(head.name_len) + head.value_len.get().min(1 << 20) as usize;
    }
}

fn push_index(fields: &mut Vec<Field>, block: &[u8]) {
    push_layout(fields, 0, &IndexHeader::LAYOUT);
    if IndexHeader::read(block).level == 0 {
        for at in (IndexHeader::SIZE..=block.len() - IndexRecord::SIZE).step_by(IndexRecord::SIZE) {
            if IndexRecord::read(&block[at..]).ino.get() != 0 {
                push_layout(fields, at, &IndexRecord::LAYOUT);
            }
        }
    } else {
        for index in 0..1 << node_bits(block.len().trailing_zeros()) {
            let at = IndexHeader::SIZE + index * POINTER_SIZE;
            // The first few empty ones too: a pointer where there was none.
            if index < 4 || block[at..at + POINTER_SIZE].iter().any(|&byte| byte != 0) {
                fields.push(Field { at, bit: 0, bits: 48, name: "pointer" });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_a_word_are_set_alone() {
        let mut block = vec![0xff; 16];
        let field = Field { at: 3, bit: 5, bits: 22, name: "" };
        field.set(&mut block, 0);
        assert_eq!(field.get(&block), 0);
        assert_eq!(block[..3], [0xff; 3]);
        assert_eq!(u32::from_le_bytes(block[3..7].try_into().unwrap()), !(0x3f_ffff << 5));
        field.set(&mut block, u64::MAX);
        assert_eq!(block, [0xff; 16]);
        assert_eq!(field.max(), 0x3f_ffff);
    }
}
