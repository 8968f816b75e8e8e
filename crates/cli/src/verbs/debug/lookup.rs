//! `debug lookup`: what a lookup reads from the device, with nothing cached at its start.

use super::raw::RawVolume;
use super::trace::{Read, Trace};
use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::mode;
use crate::show::name::{Shown, put};
use crate::volume::OpenArgs;
use anyhow::Result;
use myriad_device::FileDevice;
use myriad_engine::{Cred, Fs, MountOptions};
use myriad_format::{FsBlock, Ino};
use serde_json::{Map, Value, json};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

pub fn show(context: &Context, volume: RawVolume, path: &OsStr, open: &OpenArgs, json: bool) -> Result<()> {
    let name = &volume.name;
    let place = [name.as_bytes(), b":"].concat();
    if let Some(below) = path.as_bytes().strip_prefix(&*place) {
        let next = format!("leave the volume out: {}", Shown(below));
        return Err(Failure::usage(Shown(path.as_bytes()), "is to be a path in the volume alone", next).into());
    }
    let trace = Trace::new(Arc::clone(&volume.device), volume.geometry.block_size());
    let log = volume.log_device.clone().map(|log| log as Arc<_>);
    let options = MountOptions { read_only: true, background: false, ..open.mount_options() };
    let fs = Fs::open_device(Arc::clone(&trace) as Arc<_>, log, options).at(name)?;
    fs.drop_caches().at(name)?;
    trace.take();
    follow(context, &volume, &fs, &trace, path, json)?;
    fs.close().at(name)
}

fn follow(
    context: &Context,
    volume: &RawVolume,
    fs: &Fs,
    trace: &Trace<Arc<FileDevice>>,
    path: &OsStr,
    json: bool,
) -> Result<()> {
    let name = &volume.name;
    let session = fs.session(Cred::root());
    let mut total = 0;
    for prefix in prefixes(path.as_bytes()) {
        let result = session.lstat(prefix);
        let reads = trace.take();
        total += reads.len();
        let mut out = context.out();
        let stat = result.as_ref().ok();
        if json {
            let mut object = Map::new();
            put(&mut object, "path", prefix);
            object.insert("ino".into(), stat.map(|stat| stat.ino).into());
            object.insert("reads".into(), reads.iter().map(|read| read_json(*read)).collect::<Vec<_>>().into());
            out.json(&object.into())?;
        } else {
            match stat {
                Some(stat) => {
                    let place = volume.geometry.locate(Ino(stat.ino));
                    let (block, slot) = place.unwrap_or((FsBlock::NONE, 0));
                    let kind = mode::name(stat.file_type());
                    writeln!(out, "{}: {kind}, inode {} (block {block} slot {slot})", Shown(prefix), stat.ino)?;
                }
                None => writeln!(out, "{}: not found", Shown(prefix))?,
            }
            for read in reads {
                writeln!(out, "    read block {:<12} {}", read.block, kind_name(read))?;
            }
        }
        drop(out);
        result.at(format_args!("{name}:{}", Shown(prefix)))?;
    }
    if !json {
        writeln!(context.out(), "{total} blocks read")?;
    }
    Ok(())
}

fn kind_name(read: Read) -> &'static str {
    read.kind.map_or("data", myriad_format::BlockKind::name)
}

fn read_json(read: Read) -> Value {
    json!({ "block": read.block, "kind": kind_name(read) })
}

/// `/`, `/a`, `/a/b` of `/a/b`.
fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let is_end = |at: &usize| *at == path.len() || *at > 0 && path[*at] == b'/' && path[*at - 1] != b'/';
    std::iter::once(&b"/"[..]).chain((1..=path.len()).filter(is_end).map(|end| &path[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_fall_into_prefixes() {
        let of = |path: &'static str| prefixes(path.as_bytes()).map(String::from_utf8_lossy).collect::<Vec<_>>();
        assert_eq!(of("/a/bc"), ["/", "/a", "/a/bc"]);
        assert_eq!(of("/"), ["/"]);
        assert_eq!(of("a//b/"), ["/", "a", "a//b"]);
    }
}
