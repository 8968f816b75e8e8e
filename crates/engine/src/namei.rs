//! From a path to an inode, one component at a time.

use crate::counters::Count;
use crate::dir::{self, Name};
use crate::error::{Errno, Result};
use crate::inode;
use crate::order::Look;
use crate::perm;
use crate::types::{Cred, Node};
use crate::xattr;
use myriad_format::Ino;
use myriad_format::inode::{RawInode, flag};

/// Symbolic links followed in one resolution before ELOOP; Linux's number.
const LINKS_MAX: usize = 40;
/// Longest path, as Linux's PATH_MAX, its NUL included.
const PATH_MAX: usize = 4096;
/// Components looked up in one stay inside the gate. Each may read four blocks: of an index two, then of entries, and of inodes.
const COMPONENTS_AT_A_TIME: usize = crate::cache::FRAMES_UNASKED / 8;

/// What one resolution has done so far, with all links on the way.
#[derive(Default)]
struct Done {
    links: usize,
    /// Components looked up since it was outside of the gate last.
    components: usize,
}

impl Done {
    /// Counts a component that is about to be looked up. No lock is held.
    #[inline]
    fn count(&mut self, look: &mut Look<'_>) {
        self.components += 1;
        if self.components > COMPONENTS_AT_A_TIME {
            look.step_out();
            self.components = 1;
        }
    }
}

/// What permission depends on, with the access ACL if there is one.
pub(crate) struct Guarded {
    mode: u16,
    uid: u32,
    gid: u32,
    flags: u32,
    acl: Option<Vec<u8>>,
}

impl Guarded {
    #[inline]
    pub fn new(look: &Look<'_>, ino: Ino, raw: &RawInode) -> Result<Self> {
        let acl = if raw.has_flag(flag::HAS_ACL) { xattr::access_acl(look, ino, raw)? } else { None };
        Ok(Self { mode: raw.mode.get(), uid: raw.uid.get(), gid: raw.gid.get(), flags: raw.flags.get(), acl })
    }

    #[inline]
    pub fn subject(&self) -> perm::Subject<'_> {
        perm::Subject {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            flags: self.flags,
            access_acl: self.acl.as_deref(),
        }
    }
}

/// Fails unless `cred` may do `mask` to the inode.
#[inline]
pub(crate) fn check_access(look: &Look<'_>, cred: &Cred, ino: Ino, raw: &RawInode, mask: u8) -> Result<()> {
    Ok(perm::may_access(cred, &Guarded::new(look, ino, raw)?.subject(), mask)?)
}

/// A directory that `cred` must be allowed to search. Its inode is locked.
pub(crate) fn searchable(look: &Look<'_>, cred: &Cred, node: Node) -> Result<RawInode> {
    let raw = inode::read_node(look, node)?;
    if !raw.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    check_access(look, cred, Ino(node.ino), &raw, perm::EXECUTE)?;
    Ok(raw)
}

/// One step: what `name` names in the directory `node`, which `cred` must be allowed to search. ENOENT if it is not there.
/// While the directory is locked, what it names cannot go, so the inode is the name's own.
pub(crate) fn step(look: &Look<'_>, cred: &Cred, node: Node, name: Name<'_>) -> Result<(Ino, RawInode)> {
    let volume = look.volume;
    let dir = Ino(node.ino);
    volume.counters.bump(Count::walk_components);
    let _lock = volume.lock_shared(dir);
    let raw = searchable(look, cred, node)?;
    if name.bytes.len() > myriad_format::dir::NAME_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    find(look, dir, &raw, name)
}

/// What `name` names in the directory, which is locked: by the name cache or else by the directory's blocks. ENOENT if it is not
/// there.
#[inline]
pub(crate) fn find(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<(Ino, RawInode)> {
    let volume = look.volume;
    if let Some(ino) = volume.names.get(dir, name.hash) {
        volume.counters.bump(Count::name_cache_hits);
        return Ok((ino, inode::read(look, ino)?));
    }
    if volume.names.is_absent(dir, name.hash) {
        volume.counters.bump(Count::name_cache_absent_hits);
        // Nobody adds a name while the directory is locked.
        debug_assert!(!matches!(dir::lookup(look, dir, raw, name), Ok(Some(_))), "an absent name is in its directory");
        return Err(Errno::NOENT.into());
    }
    volume.counters.bump(Count::name_cache_misses);
    find_in_blocks(look, dir, raw, name)
}

/// What `name` names by the blocks of the directory, which is locked; that is known from then on. ENOENT if it is not there.
#[inline]
fn find_in_blocks(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<(Ino, RawInode)> {
    let has_twins = raw.has_flag(flag::HASH_TWINS);
    let Some(hit) = dir::lookup(look, dir, raw, name)? else {
        if !has_twins {
            look.volume.names.put_absent(dir, name.hash);
        }
        return Err(Errno::NOENT.into());
    };
    let found = match hit.raw {
        Some(found) => found,
        None => inode::read(look, hit.ino)?,
    };
    if look.volume.is_leftover(hit.ino, &found, dir, name.hash) {
        return Err(Errno::NOENT.into());
    }
    if !has_twins {
        look.volume.names.put(dir, name.hash, hit.ino);
    }
    Ok((hit.ino, found))
}

/// Where a path's last component would be.
pub(crate) struct Target {
    pub parent: Node,
    /// Empty for the root itself, and for paths that end in "." or "..": then `parent` is the directory meant.
    pub name: Vec<u8>,
    /// The path ended in a slash: only a directory will do.
    pub must_be_dir: bool,
    /// The path ended in ".".
    pub ends_in_dot: bool,
}

/// Resolves all but the last component of a path. Of a long one it leaves the gate on the way ([`Look::step_out`]).
pub(crate) fn resolve_parent(look: &mut Look<'_>, cred: &Cred, start: Node, path: &[u8]) -> Result<Target> {
    walk(look, cred, start, path, &mut Done::default())
}

/// Resolves a whole path; a final symbolic link is followed if `follow`, or if the path ends in a slash. Of a long one it leaves the gate on the way.
pub(crate) fn resolve(
    look: &mut Look<'_>,
    cred: &Cred,
    start: Node,
    path: &[u8],
    follow: bool,
) -> Result<(Ino, RawInode)> {
    resolve_counted(look, cred, start, path, follow, &mut Done::default())
}

fn resolve_counted(
    look: &mut Look<'_>,
    cred: &Cred,
    start: Node,
    path: &[u8],
    follow: bool,
    done: &mut Done,
) -> Result<(Ino, RawInode)> {
    let mut target = walk(look, cred, start, path, done)?;
    loop {
        if target.name.is_empty() {
            let raw = inode::read_node(look, target.parent)?;
            if target.must_be_dir && !raw.is_dir() {
                return Err(Errno::NOTDIR.into());
            }
            return Ok((Ino(target.parent.ino), raw));
        }
        let name = Name { bytes: &target.name, hash: look.volume.hasher.hash(&target.name) };
        done.count(look);
        let (ino, raw) = step(look, cred, target.parent, name)?;
        if !follow && !target.must_be_dir {
            return Ok((ino, raw));
        }
        if inode::is_link(&raw) {
            let must_be_dir = target.must_be_dir;
            let link = follow_link(look, inode::node(ino, &raw), &mut done.links)?;
            target = walk(look, cred, target.parent, &link, done)?;
            target.must_be_dir |= must_be_dir;
            continue;
        }
        if target.must_be_dir && !raw.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        return Ok((ino, raw));
    }
}

/// Where every absolute path begins.
pub(crate) fn root(look: &Look<'_>) -> Result<Node> {
    let root = look.volume.root;
    Ok(inode::node(root, &inode::read(look, root)?))
}

/// What a link says. Locked, for it may go and its place be used again meanwhile.
pub(crate) fn follow_link(look: &Look<'_>, link: Node, links: &mut usize) -> Result<Vec<u8>> {
    *links += 1;
    if *links > LINKS_MAX {
        return Err(Errno::LOOP.into());
    }
    let ino = Ino(link.ino);
    let _lock = look.volume.lock_shared(ino);
    inode::link_target(look, ino, &inode::read_node(look, link)?)
}

/// The directory that a directory is in (the root's is the root). It is locked, so that its parent, which is not empty,
/// cannot go; ENOENT if it has no name any more.
pub(crate) fn parent(look: &Look<'_>, raw: &RawInode) -> Result<Node> {
    if raw.nlink.get() == 0 {
        return Err(Errno::NOENT.into());
    }
    let ino = Ino(raw.parent.get());
    Ok(inode::node(ino, &inode::read(look, ino)?))
}

/// Resolves all but the last component; links on the way are followed.
fn walk(look: &mut Look<'_>, cred: &Cred, start: Node, path: &[u8], done: &mut Done) -> Result<Target> {
    if path.len() >= PATH_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    if path.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    let mut at = if path.first() == Some(&b'/') { root(look)? } else { start };
    let must_be_dir = path.last() == Some(&b'/');
    let mut components = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".").peekable();
    let last_is_dot = path.split(|&byte| byte == b'/').rfind(|part| !part.is_empty()) == Some(b".");
    while let Some(component) = components.next() {
        let is_last = components.peek().is_none();
        done.count(look);
        if component == b".." {
            let _lock = look.volume.lock_shared(Ino(at.ino));
            let raw = searchable(look, cred, at)?;
            at = parent(look, &raw)?;
            continue;
        }
        if is_last && !last_is_dot {
            // Whatever is done with the name, its directory must be one, and searchable.
            let _lock = look.volume.lock_shared(Ino(at.ino));
            searchable(look, cred, at)?;
            return Ok(Target { parent: at, name: component.to_vec(), must_be_dir, ends_in_dot: false });
        }
        let name = Name { bytes: component, hash: look.volume.hasher.hash(component) };
        let (mut ino, mut raw) = step(look, cred, at, name)?;
        if inode::is_link(&raw) {
            let link = follow_link(look, inode::node(ino, &raw), &mut done.links)?;
            (ino, raw) = resolve_counted(look, cred, at, &link, true, done)?;
        }
        at = inode::node(ino, &raw);
    }
    // Only "/", "." and ".." are left: the inode itself is meant.
    let _lock = look.volume.lock_shared(Ino(at.ino));
    if last_is_dot {
        searchable(look, cred, at)?;
    } else if must_be_dir && !inode::read_node(look, at)?.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    Ok(Target { parent: at, name: Vec::new(), must_be_dir, ends_in_dot: last_is_dot })
}
