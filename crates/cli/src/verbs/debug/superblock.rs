//! `debug superblock`: the original and its copies, also where the original is lost.

use super::part::{self, Part};
use crate::context::Context;
use crate::failure::Failure;
use crate::volume::device::read_at;
use anyhow::Result;
use myriad_device::BlockDevice;
use myriad_format::superblock::{Superblock, has_copy};
use myriad_format::{AgNo, BlockHeader, BlockKind, FsBlock};
use serde_json::json;
use std::io::Write;

pub fn show(context: &Context, device: &dyn BlockDevice, name: &str, json: bool) -> Result<()> {
    let original = read_at(device, 0, Superblock::SIZE).unwrap_or_default();
    let decoded = (original.len() == Superblock::SIZE).then(|| Superblock::decode(&original, FsBlock(0)));
    let sound = match &decoded {
        Some(Ok(superblock)) => Some(*superblock),
        _ => first_copy(device),
    };
    let mut found = Vec::new();
    let verdict = match &decoded {
        None => "cannot be read".into(),
        Some(Ok(_)) => "intact".into(),
        Some(Err(error)) => format!("NOT INTACT: {error}"),
    };
    found.push(("superblock".to_owned(), verdict, Part::read(&Superblock::LAYOUT, &original, 0, "superblock")));
    match sound {
        None if !matches!(decoded, Some(Ok(_))) => {
            let next = "if it is one, its superblock and the copies are lost; check the name";
            return Err(Failure::new(name, "no superblock of a Myriad volume, and no copy of one", next).into());
        }
        None => (),
        Some(superblock) => {
            let geometry = superblock.geometry();
            for ag in (1..superblock.ag_high_water.get()).map(AgNo).filter(|&ag| has_copy(ag)) {
                let block = geometry.fs_block(ag, myriad_format::AgBlock(0));
                let title = format!("copy in {ag:?}, {block:?}");
                let bytes = read_at(device, block.0 << geometry.block_bits, Superblock::SIZE);
                let verdict = match bytes.as_ref().map(|bytes| Superblock::decode(bytes, block)) {
                    Ok(Ok(_)) => "intact".into(),
                    Ok(Err(error)) => format!("NOT INTACT: {error}"),
                    Err(error) => format!("cannot be read: {error}"),
                };
                let part = bytes.ok().and_then(|bytes| Part::read(&Superblock::LAYOUT, &bytes, 0, title.clone()));
                found.push((title, verdict, part));
            }
        }
    }
    let mut out = context.out();
    if json {
        let all: Vec<_> = found.iter().map(|(title, verdict, part)| json!({ "title": title, "verdict": verdict, "part": part.as_ref().map(Part::json) })).collect();
        return Ok(out.json(&all.into())?);
    }
    // The original in full, and the copies in a line each: they hold the same fields as of an earlier time.
    for (index, (title, verdict, part)) in found.iter().enumerate() {
        writeln!(out, "{title}: {verdict}")?;
        if index == 0 {
            part::print(&mut out, part.as_slice())?;
        }
    }
    Ok(())
}

/// The copy in group 1, whatever the size of a group is: a power of two, so there are few places to look at.
pub fn first_copy(device: &dyn BlockDevice) -> Option<Superblock> {
    (15..48).map(|bits| 1_u64 << bits).take_while(|&offset| offset < device.size()).find_map(|offset| {
        let bytes = read_at(device, offset, Superblock::SIZE).ok()?;
        let header = BlockHeader::read(&bytes);
        let is_superblock = header.magic.get() == BlockKind::Superblock.magic();
        is_superblock.then(|| Superblock::decode(&bytes, FsBlock(header.address.get())).ok()).flatten()
    })
}
