//! Whose the damaged blocks of a scrub are: files by path, with the bytes that are damaged.
//!
//! An inode says where its name is (its identity): the path is followed upwards from there, a read or two a component. A
//! file that had several names may have kept the identity of one that is gone; for such files the directories are searched.

use crate::context::Context;
use crate::directory::entries::{Entry, entry_at, parse};
use crate::directory::{Directories, btree, linear, slots};
use crate::fault::Fault;
use crate::inodes::{Run, for_each_inode};
use crate::map::for_each_extent;
use crate::report::{FileRange, Finding, Place};
use crate::slots::{body_parts, inode_at, inodes_of};
use myriad_format::choices::Directory;
use myriad_format::dir::{ENTRIES_OFFSET, EntryBlockHeader};
use myriad_format::extent::Extent;
use myriad_format::inode::{RawInode, fork};
use myriad_format::{BlockKind, FsBlock, Ino};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Longest path followed, in components: what is deeper is a circle of a damaged tree, or of no use to a reader.
const DEPTH_MAX: usize = 4096;

/// Damaged bytes of a file: offset, length, and what is wrong with them.
type Ranges = Vec<(u64, u64, Fault)>;

/// Reports each damaged range of each file that owns some of `faults`.
pub(crate) fn report(
    context: &Context<'_>,
    runs: &[Run],
    directories: &Directories,
    faults: &BTreeMap<FsBlock, Fault>,
) {
    let damaged = damaged_files(context, runs, faults);
    let paths = Paths::find(context, directories, damaged.keys().copied());
    for (ino, ranges) in damaged {
        let path = paths.path(ino);
        for (offset, length, fault) in ranges {
            let file = Some(FileRange { path: path.clone(), offset, length });
            context.sink.add(Finding {
                is_leftover: false,
                number: fault.number(),
                place: Place::Inode(ino),
                message: fault.sentence(),
                file,
            });
        }
    }
}

fn damaged_files(context: &Context<'_>, runs: &[Run], faults: &BTreeMap<FsBlock, Fault>) -> BTreeMap<Ino, Ranges> {
    let block_size = context.geometry.block_size() as u64;
    let mut damaged: BTreeMap<Ino, Ranges> = BTreeMap::new();
    for &run in runs {
        for_each_inode(context, run, |ino, raw| {
            if raw.is_dir() {
                return;
            }
            for_each_extent(&context.reader, ino, raw, |extent| {
                if extent.unwritten {
                    return;
                }
                let end = extent.start.offset_by(u64::from(extent.length));
                for (block, fault) in faults.range(extent.start..end) {
                    let offset = (extent.file_block.0 + (block.0 - extent.start.0)).saturating_mul(block_size);
                    let ranges = damaged.entry(ino).or_default();
                    match ranges.last_mut() {
                        Some((from, length, same)) if *from + *length == offset && same == fault => {
                            *length += block_size
                        }
                        _ => ranges.push((offset, block_size, fault.clone())),
                    }
                }
            });
        });
    }
    damaged
}

/// Names of inodes and of the directories above them.
struct Paths {
    root: Ino,
    /// The directory that names it, and how.
    names: HashMap<Ino, (Ino, Vec<u8>)>,
}

impl Paths {
    fn find(context: &Context<'_>, directories: &Directories, files: impl Iterator<Item = Ino>) -> Self {
        let mut paths = Self { root: Ino(context.superblock.root_ino.get()), names: HashMap::new() };
        let mut wanted: Vec<Ino> = files.collect();
        let mut nameless = HashSet::new();
        while let Some(ino) = wanted.pop() {
            if ino == paths.root || paths.names.contains_key(&ino) {
                continue;
            }
            match name_by_identity(context, ino) {
                Some((parent, name)) => {
                    wanted.push(parent);
                    paths.names.insert(ino, (parent, name));
                }
                None => _ = nameless.insert(ino),
            }
        }
        for &directory in &directories.inos {
            if nameless.is_empty() {
                break;
            }
            for_each_entry(context, directory, &mut |entry| {
                if nameless.remove(&entry.ino) {
                    paths.names.insert(entry.ino, (directory, entry.name.to_vec()));
                    wanted.push(directory);
                }
            });
        }
        // What names those: directories have one name and know it.
        while let Some(ino) = wanted.pop() {
            if ino != paths.root
                && !paths.names.contains_key(&ino)
                && let Some((parent, name)) = name_by_identity(context, ino)
            {
                wanted.push(parent);
                paths.names.insert(ino, (parent, name));
            }
        }
        paths
    }

    fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != self.root {
            let (parent, name) = self.names.get(&at)?;
            names.push(name);
            at = *parent;
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        let mut path = Vec::new();
        for name in names.into_iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Some(path)
    }
}

/// An inode, and the data in its body.
fn inode(context: &Context<'_>, ino: Ino) -> Option<(RawInode, Vec<u8>)> {
    let (block, slot) = context.geometry.locate(ino)?;
    let mut buf = context.reader.new_buffer();
    context.reader.read_inodes(block, &mut buf).ok()?;
    let inodes = inodes_of(&context.geometry, &buf).inodes;
    let (_, body) = inodes.iter().find(|(at, _)| *at == slot)?;
    let raw = *inode_at(&context.geometry, &buf, slot);
    raw.check(ino).ok()?;
    Some((raw, body_parts(&buf, body).0.to_vec()))
}

/// The entry that an inode's identity describes, if it is there: its directory and name.
fn name_by_identity(context: &Context<'_>, ino: Ino) -> Option<(Ino, Vec<u8>)> {
    let (raw, _) = inode(context, ino)?;
    let parent = Ino(raw.parent.get());
    let (directory, body) = inode(context, parent).filter(|(raw, _)| raw.is_dir())?;
    let mut name = None;
    let mut compare = |entry: &Entry<'_>| {
        if entry.ino == ino && context.hasher.hash(entry.name) == raw.name_hash.get() {
            name = Some((parent, entry.name.to_vec()));
        }
    };
    match context.directory_kind() {
        Directory::Linear => linear::for_each_entry(context, parent, &directory, &mut compare),
        Directory::Slots => slots::for_each_entry(context, parent, &directory, &mut compare),
        Directory::Tree => btree::for_each_entry(context, parent, &directory, &body, &mut compare),
        _ => return name_at_position(context, ino, &raw, (parent, &directory, body)),
    }
    name
}

/// As [`name_by_identity`], where entries have positions: by that of the identity.
fn name_at_position(
    context: &Context<'_>,
    ino: Ino,
    raw: &RawInode,
    (parent, directory, body): (Ino, &RawInode, Vec<u8>),
) -> Option<(Ino, Vec<u8>)> {
    let at = usize::try_from(u64::from(raw.entry_position.get()) * 8).ok()?;
    let (bytes, at) = if directory.fork_code() == fork::INLINE {
        (body, at.checked_sub(ENTRIES_OFFSET)?)
    } else {
        let block_size = context.geometry.block_size();
        let mut found = None;
        for_each_block(context, parent, directory, &mut |file_block, block| {
            if file_block == (at / block_size) as u64 {
                found = Some(block);
            }
        });
        let mut buf = context.reader.new_buffer();
        context.reader.read(found?, BlockKind::DirEntries, parent.0, &mut buf).ok()?;
        (buf, at % block_size)
    };
    if at >= bytes.len() {
        return None;
    }
    let entry = entry_at(&bytes, at).ok().filter(|entry| entry.ino == ino)?;
    Some((parent, entry.name.to_vec()))
}

/// Hands the live entries of a directory to `f`; what cannot be read is left out.
fn for_each_entry(context: &Context<'_>, directory: Ino, f: &mut dyn FnMut(&Entry<'_>)) {
    let mut visit =
        |bytes: &[u8]| parse(bytes).flatten().filter(|entry| !entry.ino.is_none()).for_each(|entry| f(&entry));
    let Some((raw, body)) = inode(context, directory) else { return };
    match context.directory_kind() {
        Directory::Linear => return linear::for_each_entry(context, directory, &raw, f),
        Directory::Slots => return slots::for_each_entry(context, directory, &raw, f),
        Directory::Tree => return btree::for_each_entry(context, directory, &raw, &body, f),
        _ => {}
    }
    if raw.fork_code() == fork::INLINE {
        visit(&body);
        return;
    }
    let mut buf = context.reader.new_buffer();
    for_each_block(context, directory, &raw, &mut |_, block| {
        // Blocks mapped past those made hold nothing yet, and fail here.
        if context.reader.read(block, BlockKind::DirEntries, directory.0, &mut buf).is_ok() {
            let tail = EntryBlockHeader::read(&buf).tail.get() as usize;
            visit(&buf[ENTRIES_OFFSET..tail.clamp(ENTRIES_OFFSET, buf.len())]);
        }
    });
}

fn for_each_block(context: &Context<'_>, ino: Ino, raw: &RawInode, f: &mut dyn FnMut(u64, FsBlock)) {
    for_each_extent(&context.reader, ino, raw, |extent: Extent| {
        for offset in 0..u64::from(extent.length) {
            f(extent.file_block.0 + offset, extent.start.offset_by(offset));
        }
    });
}
