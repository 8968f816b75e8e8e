//! All that a volume holds, read through the engine.

use crate::convert::{entry_of, kind_of, stat_of};
use crate::machine::Engine;
use myriad_engine as engine;
use myriad_engine::{Error, Session};
use myriad_sim::compare::{ContentDigest, TreeEntry, join};
use myriad_sim::model::content::Content;
use myriad_sim::op::*;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry::{Occupied, Vacant};

/// Files up to this size are read whole; larger ones by their data.
const WHOLE_SIZE_MAX: u64 = 1 << 20;

impl Engine {
    /// Everything below the prefix, as the super-user sees it, with the bytes of the files.
    pub fn found(&self) -> Result<(Vec<TreeEntry>, BTreeMap<u64, Content>), ReadError> {
        let session = self.root();
        let top = if self.prefix.is_empty() { b"/".to_vec() } else { self.prefix.clone() };
        let node = session.resolve(&top)?;
        let mut found = (Vec::new(), BTreeMap::new());
        add_tree(&session, node, Vec::new(), &mut found)?;
        Ok(found)
    }

    /// As [`Engine::found`], without the bytes.
    pub fn tree(&self) -> Result<Vec<TreeEntry>, ReadError> {
        Ok(self.found()?.0)
    }

    /// `walk` must show the same files, each after its directory.
    pub fn check_walk(&self, tree: &[TreeEntry]) -> Result<(), String> {
        let session = self.root();
        let top = if self.prefix.is_empty() { b"/".to_vec() } else { self.prefix.clone() };
        let mut seen = BTreeMap::new();
        for entry in session.walk(&top).map_err(|error| error.to_string())? {
            let entry = entry.map_err(|error| error.to_string())?;
            if let Some(end) = entry.path.iter().rposition(|&byte| byte == b'/')
                && !seen.contains_key(&entry.path[..end])
            {
                return Err(format!("walk shows {:?} before its directory", entry.path.escape_ascii().to_string()));
            }
            if seen.insert(entry.path.clone(), stat_of(&entry.stat)).is_some() {
                return Err(format!("walk shows {:?} twice", entry.path.escape_ascii().to_string()));
            }
        }
        let expected: BTreeMap<_, _> = tree.iter().map(|entry| (entry.path.clone(), entry.stat)).collect();
        let paths: Vec<&Vec<u8>> = expected.keys().collect();
        let many: Option<Vec<Stat>> =
            session.stat_many(&paths[1..]).into_iter().map(|stat| stat.ok().map(|stat| stat_of(&stat))).collect();
        if self.prefix.is_empty() && many.is_none_or(|many| !expected.values().skip(1).eq(many.iter())) {
            return Err("stat_many differs from the tree".into());
        }
        if seen == expected { Ok(()) } else { Err("walk differs from the tree of readdir".into()) }
    }
}

pub(crate) fn read_pages(session: &Session, dir: engine::Node, page: usize) -> engine::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut cookie = 0;
    loop {
        let more = session.read_dir_at(dir, cookie, page)?;
        let Some(last) = more.last() else { return Ok(entries) };
        assert!(more.len() <= page);
        assert_ne!(last.cookie, cookie, "a page must lead on");
        cookie = last.cookie;
        entries.extend(more.into_iter().map(entry_of));
    }
}

/// Why a tree could not be read.
#[derive(Debug)]
pub enum ReadError {
    Engine(Error),
    /// Two answers of the engine contradict each other.
    Contradiction(String),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Engine(error) => error.fmt(f),
            Self::Contradiction(message) => f.write_str(message),
        }
    }
}

impl From<Error> for ReadError {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

type Collected = (Vec<TreeEntry>, BTreeMap<u64, Content>);

fn add_tree(session: &Session, node: engine::Node, path: Vec<u8>, found: &mut Collected) -> Result<(), ReadError> {
    let stat = stat_of(&session.stat_node(node)?);
    let mut xattrs = BTreeMap::new();
    for name in session.list_xattr_node(node)? {
        let value = session.get_xattr_node(node, &name)?;
        xattrs.insert(name, value);
    }
    let target = (stat.kind == Kind::Symlink).then(|| session.readlink_node(node)).transpose()?;
    let mut digest = None;
    if stat.kind == Kind::File {
        let content = match found.1.entry(stat.ino) {
            Vacant(first) => first.insert(read_content(session, node, stat.size)?),
            Occupied(again) => again.into_mut(),
        };
        let mut sum = ContentDigest::default();
        content.chunks().for_each(|(offset, bytes)| sum.add(offset, bytes));
        digest = Some(sum.finish());
    }
    let is_dir = stat.kind == Kind::Directory;
    found.0.push(TreeEntry { path: path.clone(), stat, target, xattrs, content: digest });
    if is_dir {
        let mut entries = read_pages(session, node, 100)?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            let child = session.lookup(node, &entry.name)?;
            let looked_up = (child.ino, kind_of(child.file_type()));
            if looked_up != (entry.ino, entry.kind) {
                let (name, listed) = (entry.name.escape_ascii(), (entry.ino, entry.kind));
                return Err(ReadError::Contradiction(format!(
                    "{name} is listed as {listed:?} and found as {looked_up:?}"
                )));
            }
            add_tree(session, child.node(), join(&path, &entry.name), found)?;
        }
    }
    Ok(())
}

fn read_content(session: &Session, node: engine::Node, size: u64) -> Result<Content, ReadError> {
    let options = engine::OpenOptions { read: true, ..engine::OpenOptions::default() };
    let file = session.open_node(node, options)?;
    let mut content = Content::default();
    let mut buf = vec![0; size.clamp(1, 64 << 10) as usize];
    let mut at = 0;
    while at < size {
        if size > WHOLE_SIZE_MAX {
            at = match file.seek_data(at) {
                Ok(data) => data,
                Err(Error::Refused(engine::Errno::NXIO)) => break,
                Err(error) => return Err(error.into()),
            };
        }
        let count = file.read_at(&mut buf, at)?;
        if count == 0 {
            return Err(ReadError::Contradiction(format!("size is {size}, but nothing can be read at {at}")));
        }
        content.write(at, &buf[..count]);
        at += count as u64;
    }
    content.truncate(size);
    Ok(content)
}
