//! File maps: where an inode's blocks are.

pub(crate) mod pointers;

use crate::context::Context;
use crate::findings::number;
use crate::io::{Damage, Reader};
use crate::report::Place;
use crate::tree::{Tree, check_pointers, check_tree, walk};
use crate::visitor::Visitor;
use myriad_format::btree;
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::fork::{Fork, TreeRoot};
use myriad_format::inode::{RawInode, fork};
use myriad_format::{Corrupt, FsBlock, Geometry, Ino, choices};
use pointers::InodePointers;
use std::collections::HashSet;

/// How an inode's fork maps blocks.
pub(crate) enum Map {
    None,
    Inline(Vec<RawExtent>),
    Tree(Tree),
    Pointers(InodePointers),
}

/// The map in a fork that `RawInode::check` accepted. `pointers` reads those behind the inode.
pub(crate) fn map_of(
    geometry: &Geometry,
    ino: Ino,
    raw: &RawInode,
    pointers: impl FnOnce() -> InodePointers,
) -> Result<Map, Corrupt> {
    if !raw.has_map() {
        return Ok(Map::None);
    }
    // A volume has maps of one kind.
    if (raw.fork_code() == fork::BLOCKS) != (geometry.map == choices::Map::Blocks) {
        return Err(Corrupt::Inode { ino, field: "fork_kind", value: u64::from(raw.fork_kind) });
    }
    let tree =
        |root: TreeRoot| Tree { kind: btree::EXTENTS, owner: ino.0, root: root.block, level: u16::from(root.level) };
    Ok(match Fork::decode(raw, ino)? {
        Fork::Extents(extents) => Map::Inline(extents.list().to_vec()),
        Fork::Tree(root) | Fork::DirectoryTree { tree: root, .. } => Map::Tree(tree(root)),
        // An indexed directory may have no entry block left.
        Fork::Directory { extent, .. } => extent.map_or(Map::None, |extent| Map::Inline(vec![extent])),
        Fork::Blocks { .. } => Map::Pointers(pointers()),
        Fork::None | Fork::Device(_) | Fork::Inline | Fork::ShortLink(_) => Map::None,
    })
}

/// What a look at a map gave.
pub(crate) struct MapResult {
    /// Of data and tree.
    pub blocks: u64,
    /// All of it was handed on.
    pub is_sound: bool,
}

/// Claims an inode's blocks and hands its extents to `each`.
pub(crate) fn check_map(context: &Context<'_>, ino: Ino, raw: &RawInode, mut each: impl FnMut(Extent)) -> MapResult {
    let place = Place::Inode(ino);
    let mut result = MapResult { blocks: 0, is_sound: true };
    let mut end = 0;
    let mut record = |bytes: &[u8]| match Extent::decode(RawExtent::read(bytes), &context.geometry, ino) {
        Err(corrupt) => {
            result.is_sound = false;
            context.damage(place, corrupt.into());
        }
        Ok(extent) if extent.file_block.0 < end => {
            result.is_sound = false;
            let message = format!("the extent at file block {} begins before file block {end}", extent.file_block);
            context.report(number::EXTENT_ORDER, place, message);
        }
        Ok(extent) => {
            end = extent.end().0;
            result.blocks += u64::from(extent.length);
            if context.claim(extent.start, u64::from(extent.length), place, "extent") {
                each(extent);
            } else {
                result.is_sound = false;
            }
        }
    };
    let walked = match map_of(&context.geometry, ino, raw, || pointers::of_inode(&context.reader, ino)) {
        Ok(Map::None) => return result,
        Ok(Map::Inline(extents)) => {
            extents.iter().for_each(|extent| record(zerocopy::IntoBytes::as_bytes(extent)));
            return result;
        }
        Ok(Map::Tree(tree)) => check_tree(context, &tree, place, &mut record),
        Ok(Map::Pointers(list)) => {
            if raw.index_root().is_none() && list.iter().all(|raw| raw.word.get() == 0) {
                context.damage(place, Corrupt::Inode { ino, field: "pointers", value: 0 }.into());
            }
            check_pointers(context, ino, pointers::bits_of(&context.geometry, raw), &list, &mut record)
        }
        Err(corrupt) => {
            context.damage(place, corrupt.into());
            return MapResult { blocks: 0, is_sound: false };
        }
    };
    result.blocks += walked.nodes;
    result.is_sound &= walked.sound;
    result
}

/// Hands an inode's extents to `each`, of a map that was checked before: what cannot be read of it is left out.
pub(crate) fn for_each_extent(reader: &Reader, ino: Ino, raw: &RawInode, mut each: impl FnMut(Extent)) {
    let mut record = |bytes: &[u8]| {
        if let Ok(extent) = Extent::decode(RawExtent::read(bytes), &reader.geometry, ino) {
            each(extent);
        }
    };
    // A node met again would be a circle of a damaged map.
    let mut reading = Reading { met: HashSet::new(), record: &mut record };
    match map_of(&reader.geometry, ino, raw, || pointers::of_inode(reader, ino)) {
        Ok(Map::None) | Err(_) => {}
        Ok(Map::Inline(extents)) => {
            extents.iter().for_each(|extent| reading.record(zerocopy::IntoBytes::as_bytes(extent)));
        }
        Ok(Map::Tree(tree)) => walk(reader, &tree, &mut reading),
        Ok(Map::Pointers(list)) => {
            pointers::walk(reader, ino, pointers::bits_of(&reader.geometry, raw), &list, &mut reading);
        }
    }
}

struct Reading<'a> {
    met: HashSet<FsBlock>,
    record: &'a mut dyn FnMut(&[u8]),
}

impl Visitor for Reading<'_> {
    fn node(&mut self, block: FsBlock) -> bool {
        self.met.insert(block)
    }

    fn record(&mut self, record: &[u8]) {
        (self.record)(record);
    }

    fn damage(&mut self, _damage: Damage) {}
}
