//! Path walk: component by component, in Linux' order of checks.

use super::{Body, Ino, Model, NAME_MAX, ROOT};
use crate::errno::Errno;
use crate::op::{Cred, Kind};

/// Symbolic links that one walk may follow.
const LINKS_MAX: u32 = 40;

/// The last component of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// The path is slashes only.
    Root,
    Dot,
    DotDot,
    Name(Vec<u8>),
}

/// A path walked up to its last component.
#[derive(Clone, Debug)]
pub(super) struct Parent {
    pub dir: Ino,
    pub last: Last,
    /// Slashes follow the last component.
    pub trailing: bool,
}

/// One walk; counts the links it follows.
pub(super) struct Walk<'a> {
    pub model: &'a Model,
    pub cred: &'a Cred,
    links: u32,
}

impl<'a> Walk<'a> {
    pub fn new(model: &'a Model, cred: &'a Cred) -> Self {
        Self { model, cred, links: 0 }
    }

    pub fn parent(&mut self, base: Ino, path: &[u8]) -> Result<Parent, Errno> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        let mut dir = if path[0] == b'/' { ROOT } else { base };
        let mut rest = trim_slashes(path);
        if rest.is_empty() {
            return Ok(Parent { dir, last: Last::Root, trailing: false });
        }
        loop {
            self.model.permission(self.cred, dir, 1)?;
            let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            let last = match name {
                b"." => Last::Dot,
                b".." => Last::DotDot,
                _ => Last::Name(name.to_vec()),
            };
            rest = trim_slashes(after);
            if rest.is_empty() {
                return Ok(Parent { dir, last, trailing: !after.is_empty() });
            }
            dir = self.step(dir, &last, true)?.ok_or(Errno::NOENT)?;
            self.check_dir(dir)?;
        }
    }

    /// What the component names: `None` when nothing.
    pub fn step(&mut self, dir: Ino, last: &Last, follow: bool) -> Result<Option<Ino>, Errno> {
        let name = match last {
            Last::Root | Last::Dot => return Ok(Some(dir)),
            Last::DotDot => return Ok(Some(self.model.inode(dir).parent)),
            Last::Name(name) => name,
        };
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        match self.model.lookup(dir, name) {
            Some(ino) if follow && self.model.inode(ino).kind == Kind::Symlink => {
                let parent = self.follow(dir, ino)?;
                self.finish(&parent, true).map(Some)
            }
            found => Ok(found),
        }
    }

    /// Walks a link's target up to its last component.
    pub fn follow(&mut self, dir: Ino, link: Ino) -> Result<Parent, Errno> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP);
        }
        let Body::Link(target) = &self.model.inode(link).body else { unreachable!("only links are followed") };
        self.parent(dir, target)
    }

    pub fn finish(&mut self, parent: &Parent, follow: bool) -> Result<Ino, Errno> {
        let ino = self.step(parent.dir, &parent.last, follow || parent.trailing)?.ok_or(Errno::NOENT)?;
        if parent.trailing {
            self.check_dir(ino)?;
        }
        Ok(ino)
    }

    fn check_dir(&self, ino: Ino) -> Result<(), Errno> {
        if self.model.inode(ino).is_dir() { Ok(()) } else { Err(Errno::NOTDIR) }
    }
}

fn trim_slashes(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    &path[start..]
}

impl Model {
    /// The file that `path` names for `cred`.
    pub(super) fn resolve(&self, cred: &Cred, path: &[u8], follow: bool) -> Result<Ino, Errno> {
        let mut walk = Walk::new(self, cred);
        let parent = walk.parent(ROOT, path)?;
        walk.finish(&parent, follow)
    }

    /// Where a new name would go. A name that exists is refused before the directory's permissions are asked.
    pub(super) fn place_for(&self, cred: &Cred, path: &[u8], for_dir: bool) -> Result<(Ino, Vec<u8>), Errno> {
        let parent = Walk::new(self, cred).parent(ROOT, path)?;
        let Last::Name(name) = parent.last else { return Err(Errno::EXIST) };
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if self.lookup(parent.dir, &name).is_some() {
            return Err(Errno::EXIST);
        }
        if parent.trailing && !for_dir {
            return Err(Errno::NOENT);
        }
        Ok((parent.dir, name))
    }

    /// Whether a new name may be made in `dir`.
    pub(super) fn may_create(&self, cred: &Cred, dir: Ino) -> Result<(), Errno> {
        self.permission(cred, dir, 3)
    }
}
