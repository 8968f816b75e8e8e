//! The check of tables of data checksums: whether their blocks are sound, and whether each part that data needs has been made. The scrub compares
//! the checksums with the data.

use crate::context::Context;
use crate::findings::number;
use crate::io::{Damage, Reader};
use crate::report::Place;
use myriad_format::checksum::{ChecksumHeader, PARTS};
use myriad_format::group::{FIXED_BLOCKS, GroupHeader};
use myriad_format::{AgBlock, AgNo, BlockKind, Corrupt, FsBlock, Geometry};

/// Blocks of a group's table that part `part` consists of.
pub(crate) fn part_blocks(geometry: &Geometry, ag: AgNo, part: u32) -> impl Iterator<Item = FsBlock> + use<> {
    let first = geometry.fs_block(ag, AgBlock(FIXED_BLOCKS));
    geometry.checksum_part(ag, part).map(move |index| first.offset_by(u64::from(index)))
}

/// The block of its group that the first checksum in a block of the table is of.
pub(crate) fn first_of(geometry: &Geometry, table: FsBlock) -> u32 {
    (geometry.ag_block_of(table).0 - FIXED_BLOCKS) * geometry.checksums_per_block()
}

/// Reads a block of the table and verifies it.
pub(crate) fn read_table(reader: &Reader, table: FsBlock, buf: &mut [u8]) -> Result<(), Damage> {
    let geometry = &reader.geometry;
    let ag = geometry.ag_of(table);
    reader.read(table, BlockKind::Checksums, u64::from(ag.0), buf)?;
    let first = ChecksumHeader::read(buf).first.get();
    if first != first_of(geometry, table) {
        return Err(Corrupt::Group { ag, field: "first block of a table of checksums", value: u64::from(first) }.into());
    }
    Ok(())
}

/// Checks a group's table.
pub(crate) fn check_group(context: &Context<'_>, ag: AgNo, header: &GroupHeader) {
    let geometry = &context.geometry;
    let made = header.checksums_made.get();
    if !geometry.has_checksums {
        if made != 0 {
            let corrupt = Corrupt::Group { ag, field: "checksums_made", value: made };
            context.report(corrupt.number(), Place::Group(ag), corrupt.to_string());
        }
        return;
    }
    let missing = context.needed_parts.of(ag) & !made;
    if missing != 0 {
        let message = format!("there is data, and parts {missing:#x} of the table of its checksums were never made");
        context.report(number::CHECKSUM_TABLE, Place::Group(ag), message);
    }
    let mut buf = context.reader.new_buffer();
    for part in (0..PARTS).filter(|part| made >> part & 1 == 1) {
        for table in part_blocks(geometry, ag, part) {
            if let Err(damage) = read_table(&context.reader, table, &mut buf) {
                context.damage(Place::Block(table), damage);
            }
        }
    }
}
