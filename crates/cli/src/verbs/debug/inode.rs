//! `debug inode`: an inode with its fork and body.

use super::block::{attribute_parts, entries, extent, inode, pointers, tree_entries};
use super::part::{self, Part};
use super::raw::RawVolume;
use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::name::Shown;
use anyhow::Result;
use myriad_engine::{Cred, Fs, MountOptions};
use myriad_format::choices::Directory;
use myriad_format::extent::RawExtent;
use myriad_format::fork::Fork;
use myriad_format::inode::{BodyHeader, RawInode, fork};
use myriad_format::pointers::RawPointer;
use myriad_format::table::{POINTERS, POINTERS_OFFSET};
use myriad_format::{Ino, SLOT_SIZE};
use serde_json::json;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

pub fn show(context: &Context, volume: &RawVolume, wanted: &OsStr, json: bool) -> Result<()> {
    let ino = match wanted.to_str().and_then(|text| text.parse().ok()) {
        Some(number) => Ino(number),
        None if wanted.as_bytes().starts_with(b"/") => resolve(volume, wanted.as_bytes())?,
        None => {
            let what = format!("`{}` is no inode number and no path", Shown(wanted.as_bytes()));
            return Err(Failure::usage("", what, "write a number, or a path that begins with a slash").into());
        }
    };
    let place = format!("{}: {ino:?}", volume.name);
    let Some((number, slot)) = volume.geometry.locate(ino) else {
        return Err(
            Failure::new(place, "this volume can have no such inode", "myriad ls -i shows inode numbers").into()
        );
    };
    let block = volume.block(number, false)?;
    let at = volume.geometry.inode_offset(slot);
    let raw = *RawInode::read(&block.bytes[at..]);
    let mut parts = vec![inode(&raw, &block.bytes, at, ino)];
    match raw.check(ino) {
        Ok(()) => {
            parts.extend(fork_parts(volume, ino, &raw, &block.bytes, at));
            parts.extend(body_parts(volume, &raw, &block.bytes));
        }
        Err(problem) => parts.push(Part::note("not a sound inode in use", at).with("problem", problem.to_string())),
    }
    let verdict = volume.verdict(&block);
    let mut out = context.out();
    if json {
        let parts: Vec<_> = parts.iter().map(Part::json).collect();
        return Ok(
            out.json(&json!({ "ino": ino.0, "block": number.0, "slot": slot, "verdict": verdict, "parts": parts }))?
        );
    }
    writeln!(out, "{ino:?} is slot {slot} of block {number}: {verdict}")?;
    Ok(part::print(&mut out, &parts)?)
}

/// The inode that a path leads to, by the engine.
fn resolve(volume: &RawVolume, path: &[u8]) -> Result<Ino> {
    let options = MountOptions { read_only: true, background: false, ..MountOptions::default() };
    let log = volume.log_device.clone().map(|log| log as Arc<_>);
    let fs = Fs::open_device(Arc::clone(&volume.device) as Arc<_>, log, options).at(&volume.name)?;
    let stat = fs.session(Cred::root()).lstat(path).at(format_args!("{}:{}", volume.name, Shown(path)))?;
    fs.close().at(&volume.name)?;
    Ok(Ino(stat.ino))
}

fn fork_parts(volume: &RawVolume, ino: Ino, raw: &RawInode, block: &[u8], inode_at: usize) -> Vec<Part> {
    let at = inode_at + RawInode::SIZE - raw.fork.len();
    let read = |raw: &RawExtent, offset: usize, title: String| extent(raw, &volume.geometry, at + offset, title);
    let fork = match Fork::decode(raw, ino) {
        Ok(fork) => fork,
        Err(problem) => return vec![Part::note("not a sound fork", at).with("problem", problem.to_string())],
    };
    match fork {
        Fork::Extents(extents) => extents
            .list()
            .iter()
            .enumerate()
            .map(|(index, extent)| read(extent, index * RawExtent::SIZE, format!("extent {index}")))
            .collect(),
        Fork::Tree(tree) => vec![Part::note("extent tree", at).with("root", tree.block.0).with("level", tree.level)],
        Fork::Directory { index, extent } => {
            let index = Part::note("directory index", at).with("root", index.0);
            let extent = extent.map(|extent| read(&extent, 8, "entry blocks".into()));
            [Some(index), extent].into_iter().flatten().collect()
        }
        Fork::DirectoryTree { index, tree } => {
            vec![
                Part::note("directory", at)
                    .with("index_root", index.0)
                    .with("extent_root", tree.block.0)
                    .with("level", tree.level),
            ]
        }
        Fork::ShortLink(target) => {
            vec![Part::note("link", at).with("target", Shown(target.target()).to_string())]
        }
        Fork::Blocks { index } => {
            let index = raw.is_dir().then(|| Part::note("directory index", at).with("root", index.0));
            let from = inode_at + POINTERS_OFFSET;
            let behind = block.get(from..from + POINTERS * RawPointer::SIZE);
            index
                .into_iter()
                .chain(behind.map_or_else(Vec::new, |bytes| pointers(&volume.geometry, bytes, 0, from)))
                .collect()
        }
        Fork::None | Fork::Device(_) | Fork::Inline => Vec::new(),
    }
}

fn body_parts(volume: &RawVolume, raw: &RawInode, block: &[u8]) -> Vec<Part> {
    let at = usize::from(raw.body_first.get()) * SLOT_SIZE;
    if u32::from(raw.body_slots) > volume.geometry.body_slots_max() {
        return vec![Part::note("a body of more slots than one can have here", at)];
    }
    let Some(body) = block.get(at..).and_then(|rest| rest.get(..usize::from(raw.body_slots) * SLOT_SIZE)) else {
        return vec![Part::note("body outside the block", at)];
    };
    if body.len() < BodyHeader::SIZE {
        return Vec::new();
    }
    let header = BodyHeader::read(body);
    let data_end = BodyHeader::SIZE + usize::from(header.data_len.get());
    let attr_end = data_end + usize::from(header.attr_len.get());
    let mut parts = Vec::from_iter(Part::read(&BodyHeader::LAYOUT, block, at, "body"));
    let (Some(data), Some(list)) = (body.get(BodyHeader::SIZE..data_end), body.get(data_end..attr_end)) else {
        parts.push(Part::note("the lengths reach past the body", at));
        return parts;
    };
    let is_tree = volume.superblock.directory == Directory::Tree as u8;
    if raw.is_dir() && is_tree {
        parts.extend(tree_entries(block, at + BodyHeader::SIZE, at + data_end));
    } else if raw.is_dir() {
        parts.extend(entries(block, at + BodyHeader::SIZE, at + data_end));
    } else if raw.fork_code() == fork::INLINE {
        parts.push(Part::note("data", at + BodyHeader::SIZE).with("bytes", Shown(data).to_string()));
    }
    parts.extend(attribute_parts(list, at + data_end));
    parts
}
