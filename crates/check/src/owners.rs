//! Finds the files to which the damaged blocks of a scrub belong: their paths, and the bytes that are damaged.
//!
//! An inode's identity says in which directory its name is. So the paths of all files are followed upwards together, a component at a time. A
//! directory of a kind in which an identity does not say where the name lies is gone through once for all the names that are wanted of it. A file
//! that had several names may have kept the identity of one that is gone; for such files all directories are searched.

use crate::context::Context;
use crate::directory::{Dir, Directories, for_each_entry, names_of};
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
    // Findings that are counted and not kept need no path.
    let mut room = context.sink.room();
    let kept = damaged.iter().take_while(|(_, ranges)| {
        let is_kept = room > 0;
        room = room.saturating_sub(ranges.len());
        is_kept
    });
    let paths = Paths::find(context, directories, kept.map(|(&ino, _)| ino).collect());
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
                        Some((from, length, same)) if from.saturating_add(*length) == offset && same == fault => {
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
    fn find(context: &Context<'_>, directories: &Directories, files: Vec<Ino>) -> Self {
        let mut paths = Self { root: Ino(context.superblock.root_ino.get()), names: HashMap::new() };
        let mut nameless = paths.follow(context, files);
        let mut above = Vec::new();
        for &directory in &directories.inos {
            if nameless.is_empty() {
                break;
            }
            let Some((raw, body)) = inode(context, directory) else { continue };
            for_each_entry(context, Dir { ino: directory, raw: &raw, body: &body }, &mut |entry| {
                if nameless.remove(&entry.ino) {
                    paths.names.insert(entry.ino, (directory, entry.name.to_vec()));
                    above.push(directory);
                }
            });
        }
        // Directories have one name and know it.
        paths.follow(context, above);
        paths
    }

    /// Finds the names that inodes say are theirs, and those of the directories above them; what has none.
    fn follow(&mut self, context: &Context<'_>, mut wanted: Vec<Ino>) -> HashSet<Ino> {
        let mut nameless = HashSet::new();
        while !wanted.is_empty() {
            let mut by_parent: BTreeMap<Ino, BTreeMap<Ino, RawInode>> = BTreeMap::new();
            for ino in std::mem::take(&mut wanted) {
                if ino == self.root || self.names.contains_key(&ino) || !nameless.insert(ino) {
                    continue;
                }
                if let Some((raw, _)) = inode(context, ino) {
                    by_parent.entry(Ino(raw.parent.get())).or_default().insert(ino, raw);
                }
            }
            for (parent, children) in by_parent {
                let Some((raw, body)) = inode(context, parent).filter(|(raw, _)| raw.is_dir()) else { continue };
                let mut is_any = false;
                names_of(context, Dir { ino: parent, raw: &raw, body: &body }, &children, &mut |ino, name| {
                    nameless.remove(&ino);
                    self.names.insert(ino, (parent, name));
                    is_any = true;
                });
                wanted.extend(is_any.then_some(parent));
            }
        }
        nameless
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
