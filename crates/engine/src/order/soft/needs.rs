//! The blocks that have to be written for an fsync of a file: the file's own, and those of a name by which the file can be reached from the root.
//!
//! FreeBSD follows the pending names of a file upwards, and writes what each of them waits for. We do the same, from inode to inode. The list
//! begins with the file. Then come the directories that its names are in, and every inode that has to last before one of these names may
//! show. Of each of these inodes the changed blocks are written, with those changes in them undone that are not safe yet. Bitmaps
//! and the headers of groups, which all files share, go along in every round.
//!
//! For example, `mkdir a; create a/f; fsync a/f` asks for the inode of `a/f`, the block of `a` with the entry, the inode of `a`, and the block of the
//! root with the entry `a`. A file `b` made meanwhile in the root is left out, although its entry may lie in the same block: it is undone in that image, unless the inode of `b` lasts.
//!
//! The list need not be complete, because a round may leave out any block. If it leaves out too much, a time comes at which nothing on the list is left to be
//! written and the file still does not last. Then the fsync makes everything durable.

use super::State;
use super::judge::Judge;
use super::shadow::Shadow;
use crate::dir::OwnName;
use crate::error::Result;
use crate::inode;
use crate::order::facts::Named;
use crate::planted::{Bug, planted};
use myriad_format::{BlockKind, Ino};
use std::collections::{BTreeSet, HashMap};

/// A file that is to last, and where the thread that syncs it has found its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub file: Ino,
    pub name: OwnName,
}

/// Blocks and files that files need.
pub(super) struct Needs {
    pub blocks: BTreeSet<u64>,
    /// Those whose data is to be written.
    pub inodes: BTreeSet<u64>,
    /// The files last, and are reached.
    pub is_there: bool,
}

/// A name that differs between a directory's block and its shadow.
struct Change {
    dir: u64,
    block: u64,
    tag: u32,
    old: Option<Named>,
    new: Option<Named>,
}

/// Where to find what has changed of an inode.
#[derive(Default)]
struct Index {
    changes: Vec<Change>,
    /// Changes by the inode that is named anew.
    by_ino: HashMap<u64, Vec<usize>>,
    /// Changes by directory and tag of the name.
    by_name: HashMap<(u64, u32), Vec<usize>>,
    /// Blocks of pointers and attributes, and new blocks of directories, by owner.
    by_owner: HashMap<u64, Vec<u64>>,
    /// Blocks that many inodes share.
    shared: Vec<u64>,
}

impl Index {
    fn new(state: &State) -> Self {
        let mut index = Self::default();
        for (&block, shadow) in &state.shadows {
            index.add(block, shadow);
        }
        for (at, change) in index.changes.iter().enumerate() {
            index.by_name.entry((change.dir, change.tag)).or_default().push(at);
            if let Some(new) = change.new {
                index.by_ino.entry(new.ino.0).or_default().push(at);
            }
        }
        index
    }

    fn add(&mut self, block: u64, shadow: &Shadow) {
        match shadow.kind {
            BlockKind::LinearEntries => {
                if shadow.is_new {
                    self.by_owner.entry(shadow.owner).or_default().push(block);
                }
                let changes = shadow.changes.iter();
                self.changes.extend(changes.map(|change| Change {
                    dir: shadow.owner,
                    block,
                    tag: change.tag,
                    old: change.named_before(),
                    new: change.named_now(),
                }));
            }
            BlockKind::Pointers | BlockKind::Attributes => self.by_owner.entry(shadow.owner).or_default().push(block),
            BlockKind::InodeTable if !shadow.is_new => {}
            // The group says only that all of its new blocks of inodes are there.
            _ => self.shared.push(block),
        }
    }
}

impl Needs {
    /// `None`: nobody can say by which name one of them is reached, for it has several; or it is no file. A file with one name has the name that its
    /// identity says: the fsync looks before the rounds (`Volume::commit_needed_by`), and the last round looks again (`have_their_names`).
    pub fn of(judge: &Judge<'_>, state: &State, files: &[Wanted]) -> Result<Option<Self>> {
        for wanted in files {
            let raw = judge.raw(wanted.file)?;
            if !inode::is_file(&raw) || raw.nlink.get() != 1 {
                return Ok(None);
            }
        }
        let index = Index::new(state);
        let mut needs =
            Self { blocks: index.shared.iter().copied().collect(), inodes: BTreeSet::new(), is_there: true };
        let mut queue: Vec<Ino> = files.iter().map(|wanted| wanted.file).collect();
        while let Some(ino) = queue.pop() {
            if !needs.inodes.insert(ino.0) {
                continue;
            }
            needs.blocks.extend(judge.block_of(ino));
            needs.blocks.extend(index.by_owner.get(&ino.0).into_iter().flatten());
            if planted(Bug::SoftFsyncUnreached) {
                continue;
            }
            let raw = judge.raw(ino)?;
            let changes = index.by_ino.get(&ino.0).into_iter().flatten();
            for change in changes.map(|&at| &index.changes[at]) {
                queue.push(Ino(change.dir));
                // What had the name, here or in another place of the directory, must be gone, and have another name if it lives on.
                let same_name = index.by_name[&(change.dir, change.tag)].iter().map(|&at| &index.changes[at]);
                for other in same_name {
                    needs.blocks.insert(other.block);
                    if let Some(old) = other.old
                        && judge.raw(old.ino)?.nlink.get() > 0
                    {
                        queue.push(old.ino);
                    }
                }
            }
            let parent = Ino(raw.parent.get());
            if ino != judge.root()
                && (raw.is_dir() || !index.by_ino.contains_key(&ino.0))
                && judge.raw(parent)?.is_dir()
            {
                queue.push(parent);
            }
        }
        for Wanted { file, .. } in files {
            needs.is_there &= judge.lasts(*file)? && of_file_last(state, *file);
        }
        Ok(Some(needs))
    }
}

/// Whether the blocks that only the file has are as they last.
fn of_file_last(state: &State, file: Ino) -> bool {
    let is_its =
        |shadow: &Shadow| matches!(shadow.kind, BlockKind::Pointers | BlockKind::Attributes) && shadow.owner == file.0;
    !state.shadows.values().any(|shadow| is_its(shadow) && shadow.has_changed())
}
