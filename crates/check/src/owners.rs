//! Finds the files to which the damaged blocks of a scrub belong: their paths, and the bytes that are damaged.
//!
//! An inode's identity says in which directory its name is. So the path is followed upwards from the inode, with a read or two for each
//! component. A file that had several names may have kept the identity of one that is gone; for such files all directories are searched.

use crate::context::Context;
use crate::directory::{Dir, Directories, for_each_entry, name_of};
use crate::fault::Fault;
use crate::inodes::{Run, for_each_inode};
use crate::map::for_each_extent;
use crate::report::{FileRange, Finding, Place};
use crate::slots::{body_parts, inode_at, inodes_of};
use myriad_format::inode::RawInode;
use myriad_format::{FsBlock, Ino};
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
            let Some((raw, body)) = inode(context, directory) else { continue };
            for_each_entry(context, Dir { ino: directory, raw: &raw, body: &body }, &mut |entry| {
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
    let name = name_of(context, Dir { ino: parent, raw: &directory, body: &body }, ino, &raw)?;
    Some((parent, name))
}
