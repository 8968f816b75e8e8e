//! Whole trees: walking them, removing them.

use super::directories::READ_DIR_BATCH;
use super::{AsPath, Session};
use crate::error::{Errno, Error, Result};
use crate::ops::Ops;
use crate::types::*;
use std::collections::VecDeque;

impl Session {
    /// Every file at and below `path`, a directory before its content, with attributes.
    pub fn walk(&self, path: &(impl AsPath + ?Sized)) -> Result<Walk> {
        let stat = self.lstat(path)?;
        Ok(Walk { session: self.again(), pending: VecDeque::from([Step::File(WalkEntry { path: Vec::new(), stat })]) })
    }

    /// Removes `path` and all below it; returns how many files and directories that were. Now and then it calls `progress` with the number removed
    /// so far. If `progress` returns false, it ends with [`Error::Cancelled`], and what was removed stays removed. Files that another thread
    /// removes meanwhile are not counted. If another thread makes files there meanwhile, it may end with ENOTEMPTY, as rm does. ENOTDIR for a
    /// path with a slash at its end that names no directory.
    pub fn remove_tree(&self, path: &(impl AsPath + ?Sized), progress: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
        let top = self.by_path(|ops| {
            let place = self.old_name(path.as_path_bytes(), Errno::INVAL, Errno::NOTEMPTY)?;
            // With a slash behind it, neither a file nor a link is what the path names.
            if place.must_be_dir && !ops.lookup(place.parent, &place.name)?.is_dir() {
                return Err(Errno::NOTDIR.into());
            }
            Emptying::begin(&ops, place.parent, &place.name)
        })?;
        top.map_or(Ok(1), |top| self.remove_directory(top, progress))
    }

    /// As [`Session::remove_tree`], of a name in a directory.
    pub fn remove_tree_at(&self, parent: Node, name: &[u8], progress: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
        let top = Emptying::begin(&self.ops(), parent, name)?;
        top.map_or(Ok(1), |top| self.remove_directory(top, progress))
    }

    fn remove_directory(&self, top: Emptying, progress: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
        let mut removed = 0;
        let mut told = 0;
        // A stack, not recursion: trees may be deeper than ours.
        let mut stack = vec![top];
        while let Some(level) = stack.last_mut() {
            if removed >= told + 256 {
                told = removed;
                if !progress(removed) {
                    return Err(Error::Cancelled);
                }
            }
            let dir = level.node;
            let Some(entry) = unless_gone(level.next(self))?.flatten() else {
                match self.ops().rmdir(level.parent, &level.name) {
                    // Others have made names behind our back. We go on for as long as a round removes something: names
                    // that damage has made can be listed for ever.
                    Err(Error::Refused(Errno::NOTEMPTY)) if level.removed => (level.cookie, level.removed) = (0, false),
                    result => {
                        let is_removed = unless_gone(result)?.is_some();
                        removed += u64::from(is_removed);
                        stack.pop();
                        if let Some(above) = stack.last_mut() {
                            above.removed |= is_removed;
                        }
                    }
                }
                continue;
            };
            let result = if entry.file_type == FileType::Directory {
                let Some(child) = unless_gone(self.ops().lookup(dir, &entry.name))? else { continue };
                if child.is_dir() && child.size > 0 {
                    stack.push(Emptying::new(dir, &entry.name, child.node()));
                    continue;
                }
                self.ops().rmdir(dir, &entry.name)
            } else {
                self.ops().unlink(dir, &entry.name)
            };
            if unless_gone(result)?.is_none() {
                continue;
            }
            level.removed = true;
            removed += 1;
        }
        Ok(removed)
    }
}

/// `None` if somebody else has removed it already.
fn unless_gone<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(Error::Refused(Errno::NOENT | Errno::STALE)) => Ok(None),
        result => result.map(Some),
    }
}

/// A directory that is being emptied.
struct Emptying {
    parent: Node,
    name: Vec<u8>,
    node: Node,
    /// How far it has been listed: entries do not move, so nothing is listed twice.
    cookie: u64,
    entries: VecDeque<DirEntry>,
    /// Something was removed from it since it was listed from the start.
    removed: bool,
}

impl Emptying {
    /// The directory of a name; `None`: it was something else, and has been removed.
    fn begin(ops: &Ops<'_>, parent: Node, name: &[u8]) -> Result<Option<Self>> {
        let stat = ops.lookup(parent, name)?;
        if stat.is_dir() {
            return Ok(Some(Self::new(parent, name, stat.node())));
        }
        ops.unlink(parent, name).map(|()| None)
    }

    fn new(parent: Node, name: &[u8], node: Node) -> Self {
        Self { parent, name: name.to_vec(), node, cookie: 0, entries: VecDeque::new(), removed: false }
    }

    /// The next entry; `None` at the end of the directory.
    fn next(&mut self, session: &Session) -> Result<Option<DirEntry>> {
        if self.entries.is_empty() {
            let mut entries = session.read_dir_at(self.node, self.cookie, 2 * READ_DIR_BATCH)?;
            self.cookie = entries.last().map_or(self.cookie, |entry| entry.cookie);
            // Neighbours among inodes one after the other, also where entries lie in places used before.
            entries.sort_unstable_by_key(|entry| entry.ino);
            self.entries = entries.into();
        }
        Ok(self.entries.pop_front())
    }
}

/// Iterator over a tree: a directory before its content.
pub struct Walk {
    session: Session,
    pending: VecDeque<Step>,
}

enum Step {
    File(WalkEntry),
    /// A name whose inode cannot be read.
    Damaged(WalkError),
    /// The rest of a directory's content.
    Content {
        path: Vec<u8>,
        node: Node,
        cookie: u64,
    },
}

/// One file of a walk.
#[derive(Clone, Debug)]
pub struct WalkEntry {
    /// Path relative to where the walk began; empty for the beginning itself.
    pub path: Vec<u8>,
    pub stat: Stat,
}

/// Something that a walk could not read. The walk goes on with the rest of the tree.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", String::from_utf8_lossy(path))]
pub struct WalkError {
    /// The file, or the directory, relative to where the walk began.
    pub path: Vec<u8>,
    #[source]
    pub error: Error,
}

impl From<WalkError> for Error {
    fn from(error: WalkError) -> Self {
        error.error
    }
}

impl Iterator for Walk {
    type Item = std::result::Result<WalkEntry, WalkError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.pending.pop_front()? {
                Step::File(entry) => {
                    if entry.stat.is_dir() {
                        let node = entry.stat.node();
                        self.pending.push_front(Step::Content { path: entry.path.clone(), node, cookie: 0 });
                    }
                    return Some(Ok(entry));
                }
                Step::Damaged(error) => return Some(Err(error)),
                Step::Content { path, node, cookie } => {
                    let entries = match self.session.read_dir_plus_at(node, cookie, READ_DIR_BATCH) {
                        Ok(entries) => entries,
                        // The directory went while we walked.
                        Err(Error::Refused(Errno::STALE | Errno::NOENT)) => continue,
                        Err(error) => return Some(Err(WalkError { path, error })),
                    };
                    let Some((last, _)) = entries.last() else { continue };
                    let cookie = last.cookie;
                    self.session.read_ahead_directories(entries.iter().map(|(entry, _)| entry));
                    self.pending.push_front(Step::Content { path: path.clone(), node, cookie });
                    for (entry, stat) in entries.into_iter().rev() {
                        let mut child = Vec::with_capacity(path.len() + 1 + entry.name.len());
                        child.extend_from_slice(&path);
                        if !child.is_empty() {
                            child.push(b'/');
                        }
                        child.extend_from_slice(&entry.name);
                        // Gone meanwhile, or damaged: looking the name up tells which. A walk that passed over damage
                        // would make backups that lack files and say nothing.
                        let stat = match stat.map_or_else(|| self.session.lookup(node, &entry.name), Ok) {
                            Ok(stat) => stat,
                            Err(Error::Refused(Errno::STALE | Errno::NOENT)) => continue,
                            Err(error) => {
                                self.pending.push_front(Step::Damaged(WalkError { path: child, error }));
                                continue;
                            }
                        };
                        self.pending.push_front(Step::File(WalkEntry { path: child, stat }));
                    }
                }
            }
        }
    }
}
