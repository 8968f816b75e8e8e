//! The bitmap of a group's blocks (`space=bitmap`): how the check reads it, and how a repair writes it.
//!
//! All of it can be derived from the owners of the blocks. So a torn unit is taken to agree with the owners, and is compared with nothing
//! else.

use super::free::Free;
use crate::bitmap::{self, Bitmap};
use crate::context::Context;
use crate::findings::number;
use crate::io::Reader;
use crate::report::Place;
use myriad_format::group::GroupHeader;
use myriad_format::{AgBlock, AgNo, Corrupt, FsBlock};
use std::io;

/// Reads the bitmap.
pub(super) fn read(context: &Context<'_>, ag: AgNo, header: &GroupHeader) -> Free {
    let place = Place::Group(ag);
    let geometry = &context.geometry;
    for (field, value) in [
        ("by_start_root", header.by_start_root.get()),
        ("by_length_root", header.by_length_root.get()),
        ("by_start_level", u32::from(header.by_start_level)),
        ("by_length_level", u32::from(header.by_length_level)),
        ("reserve_count", header.reserve_count.get()),
    ] {
        if value != 0 {
            let corrupt = Corrupt::Group { ag, field, value: u64::from(value) };
            context.report(corrupt.number(), place, corrupt.to_string());
        }
    }
    let bits = bitmap::Place::of_blocks(geometry, ag);
    let mut found = bitmap::read(&context.reader, &bits, |block, damage| context.damage(Place::Block(block), damage));
    if found.is_past_end {
        let message = format!("the bitmap of blocks calls some free past its {} blocks", bits.count);
        context.report(number::BLOCK_BITMAP, place, message);
    }
    let fixed = geometry.first_data_block(ag);
    if found.bits.has_free_in(0..fixed) {
        let message = format!("the bitmap of blocks calls some free of the {fixed} that lie at fixed places");
        context.report(number::BLOCK_BITMAP, place, message);
        found.bits.set(0..fixed, false);
    }
    let first = geometry.fs_block(ag, AgBlock(0));
    for lost in found.lost {
        let (start, end) = (lost.start.max(fixed), lost.end);
        if start >= end {
            continue;
        }
        context.blocks.for_each_gap(first.offset_by(u64::from(start)), u64::from(end - start), |start, length| {
            let start = (start.0 - first.0) as u32;
            found.bits.set(start..start + length as u32, true);
            true
        });
    }
    Free { extents: found.bits.free_runs(), reserve: Vec::new() }
}

/// Writes the bitmap of a group whose free extents are known.
pub(crate) fn write(reader: &Reader, ag: AgNo, free: &[(u32, u32)]) -> Result<(), (FsBlock, io::Error)> {
    let place = bitmap::Place::of_blocks(&reader.geometry, ag);
    let mut bits = Bitmap::new(place.count);
    free.iter().for_each(|&(start, length)| bits.set(start..start + length, true));
    bitmap::write(reader, &place, &bits)
}
