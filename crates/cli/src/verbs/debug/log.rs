//! `debug log`: the anchors, and what a mount would replay.

use super::part::{self, Part};
use super::raw::RawVolume;
use crate::context::Context;
use crate::failure::host_error;
use crate::show::name::count;
use crate::show::{size, table, time};
use crate::volume::device;
use anyhow::Result;
use myriad_format::log::{ANCHOR_UNITS, AnchorBlock, unit};
use serde_json::json;
use std::io::Write;

pub fn show(context: &Context, volume: &RawVolume, json: bool) -> Result<()> {
    let block_size = volume.geometry.block_size();
    let start = volume.superblock.log_start.get() * block_size as u64;
    let length = volume.superblock.log_blocks.get() * block_size as u64;
    let mut out = context.out();
    if length == 0 {
        if json {
            out.json(&json!({ "length": 0 }))?
        } else {
            writeln!(out, "the volume has no log")?
        }
        return Ok(());
    }
    let is_external = volume.superblock.has_external_log();
    let device = if is_external { volume.log_device.as_ref() } else { Some(&volume.device) };
    let mut anchors = Vec::new();
    // Of a log on a device that was not named there is nothing to show; what is missing is said below.
    for (device, slot) in device.into_iter().flat_map(|device| (0..ANCHOR_UNITS).map(move |slot| (device, slot))) {
        let offset = start + slot * unit(block_size) as u64;
        let title = format!("anchor {slot}");
        let part = match device::read_at(&**device, offset, AnchorBlock::SIZE) {
            Ok(bytes) => Part::read(&AnchorBlock::LAYOUT, &bytes, 0, title).map(|part| part.at(offset as usize)),
            Err(error) => Some(Part::note(title, offset as usize).with("problem", host_error(&error))),
        };
        anchors.extend(part);
    }
    let problem = volume.log.as_ref().err().map(|error| error.to_string());
    let recovered = volume.log.as_ref().ok().and_then(Option::as_ref);
    if json {
        let replay = recovered.map(|log| {
            json!({
                "tail": log.tail.0, "head": log.head.0, "last": log.last.map(|lsn| lsn.0), "checkpoints": log.checkpoints,
                "bytes": log.bytes, "closed_cleanly": volume.was_closed_cleanly, "blocks": log.overlay.len(), "pending_frees": log.pending.len(), "time_ns": log.time,
            })
        });
        let anchors: Vec<_> = anchors.iter().map(Part::json).collect();
        return Ok(out.json(
            &json!({ "start": start, "length": length, "anchors": anchors, "replay": replay, "problem": problem }),
        )?);
    }
    part::print(&mut out, &anchors)?;
    match recovered {
        Some(log) => table::facts(
            &mut out,
            &[
                ("Log", size::exact(length)),
                ("Tail", log.tail.to_string()),
                ("Last checkpoint", log.last.map_or("none yet".into(), |lsn| lsn.to_string())),
                ("Head", log.head.to_string()),
                (
                    "To replay",
                    match (volume.was_closed_cleanly, log.checkpoints) {
                        (true, _) => "nothing: the volume was closed cleanly".into(),
                        (_, number) => format!("{}, {}", count(number, "checkpoint"), size::exact(log.bytes)),
                    },
                ),
                ("Blocks changed", log.overlay.len().to_string()),
                ("Pending frees", log.pending.len().to_string()),
                ("Time", log.time.map_or("none".into(), time::full)),
            ],
        )?,
        None => writeln!(out, "replay is impossible: {}", problem.unwrap_or_default())?,
    }
    Ok(())
}
