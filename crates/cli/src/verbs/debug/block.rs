//! What a block holds, by its kind. Bytes are not believed: every count ends where the block does.

use super::part::Part;
use super::raw::Block;
use crate::show::name::Shown;
use myriad_format::bitmap::UNIT_BITS;
use myriad_format::btree::{ChildEntry, EXTENTS, FREE_BY_START, NodeHeader, TreeKind};
use myriad_format::checksum::ChecksumHeader;
use myriad_format::dir::{
    ENTRIES_OFFSET, EntryBlockHeader, EntryHeader, IndexHeader, IndexRecord, encode_pointer, node_bits, pointer,
};
use myriad_format::dir_tree::{
    DirNodeHeader, DirTreeChild, DirTreeEntry, NODE_OFFSET, OFFSET_SIZE, fan_out, leaf_room, offset_at,
};
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::group::{GroupHeader, RegionSummary};
use myriad_format::inode::{ChunkRecord, InodeBlockHeader, RawInode, fork};
use myriad_format::pointers::Pointer;
use myriad_format::slots::{DirExtent, ExtentsHeader, SlotBlockHeader, SlotHeader, SlotLayout};
use myriad_format::superblock::{OrphanHeader, Superblock};
use myriad_format::table::{INODE_SIZE, POINTERS_OFFSET, UNIT_INODES};
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use myriad_format::xattr::{AttrBlockHeader, AttrHeader, AttrIter};
use myriad_format::{BlockKind, Geometry, Ino, SLOT_SIZE};

/// The block's structures, in order of their place. None for what is no metadata.
pub fn parts(geometry: &Geometry, block: &Block) -> Vec<Part> {
    let bytes = &block.bytes[..];
    let Some(kind) = block.kind() else { return Vec::new() };
    match kind {
        BlockKind::Superblock => Vec::from_iter(Part::read(&Superblock::LAYOUT, bytes, 0, kind.name())),
        BlockKind::Group => group(bytes),
        BlockKind::FreeByStart | BlockKind::FreeByLength => tree(bytes, kind, &FREE_BY_START, geometry),
        BlockKind::InodeTree => tree(bytes, kind, &myriad_format::btree::INODE_CHUNKS, geometry),
        BlockKind::ExtentTree => tree(bytes, kind, &EXTENTS, geometry),
        BlockKind::Inode => inodes(geometry, block),
        BlockKind::DirEntries => entry_block(bytes),
        BlockKind::DirIndex => index(bytes, geometry.block_bits),
        BlockKind::DirSlots => slots(bytes),
        BlockKind::DirExtents => dir_extents(bytes),
        BlockKind::DirTree => dir_tree(bytes),
        BlockKind::Attributes => attributes(bytes),
        BlockKind::Orphans => orphans(bytes),
        BlockKind::Checksums => checksums(bytes),
        BlockKind::BlockBitmap | BlockKind::InodeBitmap => units(bytes, kind, bits),
        BlockKind::InodeTable => units(bytes, kind, |bytes, at| table_unit(geometry, block, bytes, at)),
        BlockKind::Pointers => {
            units(bytes, kind, |bytes, at| pointers(geometry, &bytes[at..][..UNIT_SIZE], UnitHeader::SIZE, at))
        }
        BlockKind::LinearEntries => {
            units(bytes, kind, |bytes, at| entries(bytes, at + UnitHeader::SIZE, at + UNIT_SIZE))
        }
    }
}

fn group(bytes: &[u8]) -> Vec<Part> {
    let regions = GroupHeader::read(bytes).region_count.get() as usize;
    let at = |index: usize| GroupHeader::SIZE + index * RegionSummary::SIZE;
    let region = |index: usize| Part::read(&RegionSummary::LAYOUT, bytes, at(index), format!("region {index}"));
    Part::read(&GroupHeader::LAYOUT, bytes, 0, "group header")
        .into_iter()
        .chain((0..regions).map_while(region))
        .collect()
}

fn tree(bytes: &[u8], kind: BlockKind, tree: &TreeKind, geometry: &Geometry) -> Vec<Part> {
    let node = NodeHeader::read(bytes);
    let count = usize::from(node.count.get());
    let mut parts = Vec::from_iter(Part::read(&NodeHeader::LAYOUT, bytes, 0, kind.name()));
    if node.level.get() > 0 {
        let at = |index: usize| NodeHeader::SIZE + index * ChildEntry::SIZE;
        parts.extend(
            (0..count).map_while(|index| Part::read(&ChildEntry::LAYOUT, bytes, at(index), format!("child {index}"))),
        );
        return parts;
    }
    for index in 0..count {
        let at = NodeHeader::SIZE + index * tree.record_size;
        let Some(record) = bytes.get(at..at + tree.record_size) else { break };
        let title = format!("record {index}");
        parts.push(match kind {
            BlockKind::ExtentTree => extent(RawExtent::read(record), geometry, at, title),
            BlockKind::InodeTree => match Part::read(&ChunkRecord::LAYOUT, bytes, at, title) {
                Some(part) => part,
                None => break,
            },
            _ => {
                let word = u64::from_le_bytes(record.try_into().expect("records of these trees have 8 bytes"));
                let (high, low) = (word >> 32, word & 0xffff_ffff);
                let (start, length) = if kind == BlockKind::FreeByStart { (high, low) } else { (low, high) };
                Part::note(title, at).with("start", start).with("length", length)
            }
        });
    }
    parts
}

/// An extent, decoded; the raw words if that is impossible.
pub fn extent(raw: &RawExtent, geometry: &Geometry, at: usize, title: String) -> Part {
    let part = Part::note(title, at);
    match Extent::decode(raw, geometry, Ino::NONE) {
        Ok(extent) => part
            .with("file_block", extent.file_block.0)
            .with("start", extent.start.0)
            .with("length", extent.length)
            .with("unwritten", extent.unwritten),
        Err(_) => part
            .with("word0", format!("{:#018x}", raw.word0.get()))
            .with("word1", format!("{:#018x}", raw.word1.get()))
            .with("problem", "impossible extent"),
    }
}

fn inodes(geometry: &Geometry, block: &Block) -> Vec<Part> {
    let bytes = &block.bytes[..];
    let header = InodeBlockHeader::read(bytes);
    let mut parts = Vec::from_iter(Part::read(&InodeBlockHeader::LAYOUT, bytes, 0, "inode block"));
    for slot in 1..geometry.slots_per_block() as usize {
        let is_free = header.free_mask[slot / 8] & (1 << (slot % 8)) != 0;
        let at = slot * SLOT_SIZE;
        if is_free {
            continue;
        }
        let ino = geometry.ino(block.number, slot as u32);
        let raw = RawInode::read(&bytes[at..]);
        let owner = body_owner(bytes, geometry, slot);
        parts.push(match owner {
            Some(owner) => Part::note(format!("slot {slot}: body of slot {owner}"), at),
            None => match raw.check(ino) {
                Ok(()) => inode(raw, bytes, at, ino),
                Err(problem) => {
                    Part::note(format!("slot {slot}: no sound inode"), at).with("problem", problem.to_string())
                }
            },
        });
    }
    parts
}

/// The slot whose inode has its body in `slot`, if one has.
fn body_owner(bytes: &[u8], geometry: &Geometry, slot: usize) -> Option<usize> {
    let has_it = |&other: &usize| {
        let raw = RawInode::read(&bytes[other * SLOT_SIZE..]);
        let first = usize::from(raw.body_first.get());
        let is_placed = other != slot && (!geometry.bodies_follow || first > other);
        is_placed && raw.check(Ino::NONE).is_ok() && (first..first + usize::from(raw.body_slots)).contains(&slot)
    };
    // What lies in a body may look like an inode that has the slot, too.
    let is_inode = |other: usize| !geometry.bodies_follow || body_owner(bytes, geometry, other).is_none();
    (1..geometry.slots_per_block() as usize).filter(has_it).find(|&other| is_inode(other))
}

fn entry_block(bytes: &[u8]) -> Vec<Part> {
    let tail = (EntryBlockHeader::read(bytes).tail.get() as usize).min(bytes.len());
    let mut parts = Vec::from_iter(Part::read(&EntryBlockHeader::LAYOUT, bytes, 0, "directory entries"));
    parts.extend(entries(bytes, ENTRIES_OFFSET, tail));
    parts
}

/// Directory entries from `at` to `end`.
pub fn entries(bytes: &[u8], mut at: usize, end: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    while at + EntryHeader::SIZE <= end {
        let entry = EntryHeader::read(&bytes[at..]);
        let length = usize::from(entry.length.get());
        let name_at = at + EntryHeader::SIZE;
        let name = bytes.get(name_at..name_at + usize::from(entry.name_len)).unwrap_or_default();
        let title = if entry.ino.get() == 0 { "free entry".into() } else { format!("entry {}", Shown(name)) };
        parts.extend(Part::read(&EntryHeader::LAYOUT, bytes, at, title));
        // Entries of impossible length: where the next one starts cannot be known.
        if length < EntryHeader::SIZE || length % 8 != 0 {
            parts.push(Part::note("the entries after it cannot be found", at));
            break;
        }
        at += length;
    }
    parts
}

/// Slots in use, and slot 0.
fn slots(bytes: &[u8]) -> Vec<Part> {
    let layout = SlotLayout::new(bytes.len());
    let mut parts = Vec::from_iter(Part::read(&SlotBlockHeader::LAYOUT, bytes, 0, "directory slots"));
    for slot in 0..layout.slots {
        let at = layout.offset(slot);
        let header = SlotHeader::read(&bytes[at..]);
        let name = &bytes[at + SlotHeader::SIZE..][..usize::from(header.name_len)];
        let title = match header.ino.get() {
            0 if slot == 0 => "slot 0: free".into(),
            0 => continue,
            _ => format!("slot {slot}: {}", Shown(name)),
        };
        parts.extend(Part::read(&SlotHeader::LAYOUT, bytes, at, title));
    }
    parts
}

/// Extents that have names.
fn dir_extents(bytes: &[u8]) -> Vec<Part> {
    let mut parts = Vec::from_iter(Part::read(&ExtentsHeader::LAYOUT, bytes, 0, "directory extents"));
    let records = bytes[ExtentsHeader::SIZE..].chunks_exact(DirExtent::SIZE).enumerate();
    parts.extend(records.filter(|(_, record)| record.iter().any(|&byte| byte != 0)).filter_map(|(index, _)| {
        let at = ExtentsHeader::SIZE + index * DirExtent::SIZE;
        Part::read(&DirExtent::LAYOUT, bytes, at, format!("extent {index}"))
    }));
    parts
}

fn index(bytes: &[u8], block_bits: u32) -> Vec<Part> {
    let mut parts = Vec::from_iter(Part::read(&IndexHeader::LAYOUT, bytes, 0, "directory index"));
    if IndexHeader::read(bytes).level > 0 {
        let children = (0..1 << node_bits(block_bits)).map(|index| (index, pointer(bytes, index)));
        let used = children.filter(|(_, child)| *child != 0);
        parts.extend(used.map(|(index, child)| {
            Part::note(format!("pointer {index}"), encode_pointer(index, child).0).with("child", child)
        }));
        return parts;
    }
    for (record, at) in
        bytes[IndexHeader::SIZE..].chunks_exact(IndexRecord::SIZE).zip((IndexHeader::SIZE..).step_by(IndexRecord::SIZE))
    {
        if IndexRecord::read(record).ino.get() != 0 {
            parts.extend(Part::read(&IndexRecord::LAYOUT, bytes, at, "record"));
        }
    }
    parts
}

/// A node of a directory tree: its children, or its entries in the order of their keys.
fn dir_tree(bytes: &[u8]) -> Vec<Part> {
    let node = DirNodeHeader::read(bytes);
    let count = usize::from(node.count.get());
    let mut parts = Vec::from_iter(Part::read(&DirNodeHeader::LAYOUT, bytes, 0, "directory tree"));
    if node.level > 0 {
        let at = |index: usize| NODE_OFFSET + index * DirTreeChild::SIZE;
        parts.extend(
            (0..count.min(fan_out(bytes.len())))
                .map_while(|index| Part::read(&DirTreeChild::LAYOUT, bytes, at(index), format!("child {index}"))),
        );
        return parts;
    }
    for index in 0..count.min(leaf_room(bytes.len()) / OFFSET_SIZE) {
        let at = offset_at(bytes, index);
        match tree_entry(bytes, at, bytes.len()) {
            Some(part) => parts.push(part),
            None => parts.push(Part::note(format!("entry {index} does not end in the block"), at)),
        }
    }
    parts
}

/// The entry of a directory tree at an offset, if it ends before `end`.
fn tree_entry(bytes: &[u8], at: usize, end: usize) -> Option<Part> {
    let name_at = at + DirTreeEntry::SIZE;
    if name_at > end {
        return None;
    }
    let entry = DirTreeEntry::read(&bytes[at..]);
    let name = bytes[..end].get(name_at..name_at + usize::from(entry.name_len))?;
    let title = if entry.ino.get() == 0 { "free entry".into() } else { format!("entry {}", Shown(name)) };
    Part::read(&DirTreeEntry::LAYOUT, bytes, at, title)
}

/// The entries in the body of a directory of kind `btree`, from `at` to `end`.
pub fn tree_entries(bytes: &[u8], mut at: usize, end: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    while at < end {
        let Some(part) = tree_entry(bytes, at, end) else {
            parts.push(Part::note("the entries from here on cannot be found", at));
            break;
        };
        parts.push(part);
        at += DirTreeEntry::SIZE + usize::from(DirTreeEntry::read(&bytes[at..]).name_len);
    }
    parts
}

fn attributes(bytes: &[u8]) -> Vec<Part> {
    let mut parts = Vec::from_iter(Part::read(&AttrBlockHeader::LAYOUT, bytes, 0, "extended attributes"));
    // A list that goes on in the next block cannot be told from a damaged one here, so only whole attributes are named.
    let length = AttrBlockHeader::read(bytes).length.get() as usize;
    let list = bytes[AttrBlockHeader::SIZE..].get(..length).unwrap_or(&bytes[AttrBlockHeader::SIZE..]);
    if AttrBlockHeader::read(bytes).index.get() == 0 {
        parts.extend(attribute_parts(list, AttrBlockHeader::SIZE));
    }
    parts
}

/// The attributes of a packed list that begins at `at`, up to the first that is not whole.
pub fn attribute_parts(list: &[u8], mut at: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    for (name, value) in AttrIter::new(list).map_while(Result::ok) {
        parts.push(Part::note(format!("attribute {}", Shown(name)), at).with("value", Shown(value).to_string()));
        at += AttrHeader::SIZE + name.len() + value.len();
    }
    parts
}

fn orphans(bytes: &[u8]) -> Vec<Part> {
    let mut parts = Vec::from_iter(Part::read(&OrphanHeader::LAYOUT, bytes, 0, "orphan list"));
    let count = OrphanHeader::read(bytes).count.get() as usize;
    let numbers = bytes[OrphanHeader::SIZE..].chunks_exact(8).take(count).zip((OrphanHeader::SIZE..).step_by(8));
    parts.extend(numbers.map(|(number, at)| {
        let ino = u64::from_le_bytes(number.try_into().expect("chunks of 8"));
        Part::note("orphan", at).with("ino", ino)
    }));
    parts
}

/// A part a line of sixteen checksums.
fn checksums(bytes: &[u8]) -> Vec<Part> {
    let mut parts = Vec::from_iter(Part::read(&ChecksumHeader::LAYOUT, bytes, 0, "checksums of file data"));
    let first = u64::from(ChecksumHeader::read(bytes).first.get());
    let sums = bytes[ChecksumHeader::SIZE..].chunks_exact(4).zip(first..).zip((ChecksumHeader::SIZE..).step_by(4));
    parts.extend(sums.filter(|((sum, _), _)| **sum != [0; 4]).map(|((sum, block), at)| {
        let sum = u32::from_le_bytes(sum.try_into().expect("chunks of 4"));
        Part::note("checksum", at).with("ag_block", block).with("crc", format!("{sum:#010x}"))
    }));
    parts
}

/// The units of a block, each with what `f` says of the one that begins at a byte.
fn units(bytes: &[u8], kind: BlockKind, f: impl Fn(&[u8], usize) -> Vec<Part>) -> Vec<Part> {
    let unit = |at| {
        let header = Part::read(&UnitHeader::LAYOUT, bytes, at, format!("{}: unit {}", kind.name(), at / UNIT_SIZE));
        header.into_iter().chain(f(bytes, at))
    };
    (0..bytes.len()).step_by(UNIT_SIZE).flat_map(unit).collect()
}

/// The runs of free ones in a unit of a bitmap, by their numbers in the unit.
fn bits(bytes: &[u8], at: usize) -> Vec<Part> {
    let start = at + UnitHeader::SIZE;
    let is_free = |bit: u32| bytes[start + bit as usize / 8] >> (bit % 8) & 1 == 1;
    let mut parts = Vec::new();
    let mut bit = 0;
    while bit < UNIT_BITS {
        let length = (bit..UNIT_BITS).take_while(|&bit| is_free(bit)).count() as u32;
        if length > 0 {
            parts.push(Part::note("free", start + bit as usize / 8).with("bit", bit).with("length", length));
        }
        bit += length + 1;
    }
    parts
}

/// The inodes of a unit of an inode table.
fn table_unit(geometry: &Geometry, block: &Block, bytes: &[u8], unit: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    for half in 0..UNIT_INODES {
        let at = unit + UnitHeader::SIZE + half as usize * INODE_SIZE;
        let raw = RawInode::read(&bytes[at..]);
        if raw.mode.get() == 0 {
            continue;
        }
        let ino = geometry.ino(block.number, (unit / UNIT_SIZE) as u32 * 4 + 1 + half);
        match raw.check(ino) {
            Ok(()) => {
                parts.push(inode(raw, bytes, at, ino));
                parts.extend(pointers(geometry, &bytes[at..][..INODE_SIZE], POINTERS_OFFSET, at));
            }
            Err(problem) => parts.push(Part::note("no sound inode", at).with("problem", problem.to_string())),
        }
    }
    parts
}

/// The block pointers from `from` on to the end of `bytes`, which begin at byte `at` of the block.
pub fn pointers(geometry: &Geometry, bytes: &[u8], from: usize, at: usize) -> Vec<Part> {
    let words = bytes[from..].chunks_exact(8).enumerate();
    let words = words.map(|(index, word)| (index, u64::from_le_bytes(word.try_into().expect("chunks of 8"))));
    words
        .filter(|(_, word)| *word != 0)
        .map(|(index, word)| {
            let (block, flags) = (word & ((1 << 48) - 1), word >> 48);
            let part = Part::note(format!("pointer {index}"), at + from + index * 8).with("block", block);
            let part = match geometry.fragments() {
                1 => part,
                _ => part.with("fragments", Pointer::run_of(word, geometry).1),
            };
            part.with("flags", format!("{flags:#x}"))
        })
        .collect()
}

/// An inode's fixed fields.
pub fn inode(raw: &RawInode, block: &[u8], at: usize, ino: Ino) -> Part {
    let part = Part::read(&RawInode::LAYOUT, block, at, format!("{ino:?}")).expect("a slot lies inside its block");
    part.with("blocks, decoded", raw.block_total()).with("fork, kind", fork_name(raw.fork_code()))
}

fn fork_name(code: u8) -> &'static str {
    match code {
        fork::NONE => "nothing, or the device number",
        fork::EXTENTS => "extents",
        fork::TREE => "extent tree",
        fork::INLINE => "in the body",
        fork::SHORT_LINK => "target of the link",
        fork::DIRECTORY => "directory: index root and one extent",
        fork::DIRECTORY_TREE => "directory: index root and extent tree",
        fork::BLOCKS => "pointers behind the inode",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_format::{FsBlock, header};

    /// Each part says where it begins, not where its list does.
    #[test]
    fn parts_of_lists_lie_one_behind_the_other() {
        let mut node = vec![0; 4096];
        node[48] = 1;
        for (index, child) in [(0, 7), (3, 9)] {
            let (at, bytes) = encode_pointer(index, child);
            node[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let offsets: Vec<usize> = super::index(&node, 12).iter().map(|part| part.offset).collect();
        assert_eq!(offsets, [0, 64, 64 + 3 * 6]);

        let mut list = Vec::new();
        myriad_format::xattr::push(&mut list, b"user.a", b"one");
        myriad_format::xattr::push(&mut list, b"user.long", b"two");
        let offsets: Vec<usize> = attribute_parts(&list, 100).iter().map(|part| part.offset).collect();
        assert_eq!(offsets, [100, 100 + 5 + 6 + 3]);
    }

    /// Blocks of every kind with random contents: nothing may panic, whatever the bytes.
    #[test]
    fn no_bytes_make_it_panic() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        for (block_bits, table_every) in [(9, 0), (12, 0), (16, 0), (9, 16), (12, 16), (16, 16)] {
            let geometry = Geometry {
                block_bits,
                ag_bits: 12,
                region_bits: 10,
                ag_count: 4,
                block_count: 1 << 14,
                chunk_blocks: 8,
                has_checksums: false,
                bodies_follow: true,
                has_bitmap: table_every > 0,
                table_every,
                map: myriad_format::choices::Map::Extents,
                fragment_bits: 0,
            };
            for kind in BlockKind::ALL {
                for round in 0..8 {
                    let mut bytes = vec![0; geometry.block_size()];
                    header::init(&mut bytes, kind, [7; 16], 1, FsBlock(9));
                    let mask = if round % 2 == 0 { 0xff } else { 3 };
                    bytes[48..].fill_with(|| random() & mask);
                    let block = Block { number: FsBlock(9), bytes, is_overlaid: false };
                    assert!(!parts(&geometry, &block).is_empty(), "{kind:?}");
                }
            }
        }
    }
}
