//! `debug superblock`: the original and its copies, also where the original is lost.

use super::part::{self, Part};
use crate::context::Context;
use crate::failure::{Failure, SUPERBLOCK_NEXT};
use crate::volume::device::read_at;
use anyhow::Result;
use myriad_check::find_superblock_copy;
use myriad_device::BlockDevice;
use myriad_format::superblock::{Superblock, has_copy};
use myriad_format::{AgNo, FsBlock};
use serde_json::json;
use std::io::Write;

pub fn show(context: &Context, device: &dyn BlockDevice, name: &str, json: bool) -> Result<()> {
    let original = read_at(device, 0, Superblock::SIZE).unwrap_or_default();
    let decoded = (original.len() == Superblock::SIZE).then(|| Superblock::decode(&original, FsBlock(0)));
    let sound = match &decoded {
        Some(Ok(superblock)) => Some(*superblock),
        _ => find_superblock_copy(device),
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
            let what = "no superblock of a Myriad volume, and no copy of one";
            return Err(Failure::new(name, what, SUPERBLOCK_NEXT).into());
        }
        None => (),
        Some(superblock) => {
            let geometry = superblock.geometry();
            for ag in (1..geometry.ag_count).map(AgNo).filter(|&ag| has_copy(ag)) {
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
