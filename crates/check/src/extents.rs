//! File maps: where an inode's blocks are.

use crate::context::Context;
use crate::findings::number;
use crate::io::{Damage, Reader};
use crate::report::Place;
use crate::tree::{Tree, Visitor, check_tree, walk};
use myriad_format::btree;
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::inode::{RawInode, fork};
use myriad_format::{FsBlock, Ino};
use std::collections::HashSet;

/// How an inode's fork maps blocks.
pub(crate) enum Map {
    None,
    Inline(Vec<RawExtent>),
    Tree { root: FsBlock, level: u8 },
}

/// The map in a fork that `RawInode::check` accepted.
pub(crate) fn map_of(raw: &RawInode) -> Map {
    let word = |at: usize| u64::from_le_bytes(raw.fork[at..at + 8].try_into().expect("eight bytes"));
    match raw.fork_code() {
        fork::EXTENTS => {
            Map::Inline((0..raw.inline_extent_count()).map(|index| *RawExtent::read(&raw.fork[index * 16..])).collect())
        }
        fork::TREE => Map::Tree { root: FsBlock(word(0)), level: raw.fork[8] },
        // An indexed directory may have no entry block left.
        fork::DIRECTORY if raw.fork[8..24] == [0; 16] => Map::None,
        fork::DIRECTORY => Map::Inline(vec![*RawExtent::read(&raw.fork[8..])]),
        fork::DIRECTORY_TREE => Map::Tree { root: FsBlock(word(8)), level: raw.fork[16] },
        _ => Map::None,
    }
}

/// Root block of a directory's index; `None` for a directory without.
pub(crate) fn index_root(raw: &RawInode) -> Option<FsBlock> {
    let root = u64::from_le_bytes(raw.fork[..8].try_into().expect("eight bytes"));
    (matches!(raw.fork_code(), fork::DIRECTORY | fork::DIRECTORY_TREE) && root != 0).then_some(FsBlock(root))
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
    match map_of(raw) {
        Map::None => {}
        Map::Inline(extents) => extents.iter().for_each(|extent| record(zerocopy::IntoBytes::as_bytes(extent))),
        Map::Tree { root, level } => {
            let tree = Tree { kind: btree::EXTENTS, owner: ino.0, root, level: u16::from(level) };
            let walked = check_tree(context, &tree, place, &mut record);
            result.blocks += walked.nodes;
            result.is_sound &= walked.sound;
        }
    }
    result
}

/// Hands an inode's extents to `each`, of a map that was checked before: what cannot be read of it is left out.
pub(crate) fn for_each_extent(reader: &Reader, ino: Ino, raw: &RawInode, mut each: impl FnMut(Extent)) {
    let mut record = |bytes: &[u8]| {
        if let Ok(extent) = Extent::decode(RawExtent::read(bytes), &reader.geometry, ino) {
            each(extent);
        }
    };
    match map_of(raw) {
        Map::None => {}
        Map::Inline(extents) => extents.iter().for_each(|extent| record(zerocopy::IntoBytes::as_bytes(extent))),
        Map::Tree { root, level } => {
            let tree = Tree { kind: btree::EXTENTS, owner: ino.0, root, level: u16::from(level) };
            // A node met again would be a circle of a damaged tree.
            walk(reader, &tree, &mut Reading { met: HashSet::new(), record: &mut record });
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
