//! Answers and trees held against the model's.

use crate::errno::Errno;
use crate::model::content::{CHUNK, first_not_zero};
use crate::model::{Ino, Model, ROOT};
use crate::op::{Answer, Entry, Kind, Op, Stat, Step, Value};
use crate::pattern::mix;
use std::collections::BTreeMap;

/// Everything about one name in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    /// From the root, without a leading slash; empty for the root.
    pub path: Vec<u8>,
    pub stat: Stat,
    /// Of a symbolic link.
    pub target: Option<Vec<u8>>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// [`ContentDigest`] of a file.
    pub content: Option<u64>,
}

/// Digest of a file's bytes, in which zeros and holes are the same and cost nothing.
#[derive(Clone, Debug, Default)]
pub struct ContentDigest {
    sum: u64,
}

impl ContentDigest {
    /// Adds bytes that begin at a multiple of 4096 and end at one, or at the end of the file.
    pub fn add(&mut self, offset: u64, bytes: &[u8]) {
        assert!(offset % CHUNK as u64 == 0);
        for (index, chunk) in bytes.chunks(CHUNK).enumerate() {
            if first_not_zero(chunk).is_some() {
                let mut whole = [0; CHUNK];
                whole[..chunk.len()].copy_from_slice(chunk);
                self.sum = self.sum.wrapping_add(chunk_digest(offset + (index * CHUNK) as u64, &whole));
            }
        }
    }

    pub fn finish(&self) -> u64 {
        self.sum
    }
}

/// Of a chunk at an offset. Several words at a time: each state of a volume has the contents of all its files digested.
fn chunk_digest(offset: u64, chunk: &[u8; CHUNK]) -> u64 {
    const LANES: usize = 8;
    let mut lanes: [u64; LANES] = std::array::from_fn(|lane| mix(offset ^ lane as u64));
    for words in chunk.as_chunks::<8>().0.as_chunks::<LANES>().0 {
        for (lane, &word) in lanes.iter_mut().zip(words) {
            *lane = mix(*lane ^ u64::from_le_bytes(word)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        }
    }
    lanes.into_iter().fold(0, |state, lane| mix(state ^ lane))
}

/// Not for enemies: digests of what tests made.
pub fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mut state = mix(seed ^ bytes.len() as u64);
    for word in bytes.chunks(8) {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        state = mix(state ^ u64::from_le_bytes(padded)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    }
    state
}

impl Model {
    /// The whole tree: directories before their content, names in byte order.
    pub fn tree(&self) -> Vec<TreeEntry> {
        self.tree_of(true)
    }

    /// As [`Model::tree`], without digests of contents.
    pub fn names(&self) -> Vec<TreeEntry> {
        self.tree_of(false)
    }

    fn tree_of(&self, contents: bool) -> Vec<TreeEntry> {
        let mut out = Vec::new();
        self.add_tree(ROOT, Vec::new(), contents, &mut out);
        out
    }

    fn add_tree(&self, ino: Ino, path: Vec<u8>, contents: bool, out: &mut Vec<TreeEntry>) {
        let inode = self.inode(ino);
        let digest = |content: &crate::model::content::Content| {
            let mut digest = ContentDigest::default();
            content.chunks().for_each(|(offset, bytes)| digest.add(offset, bytes));
            digest.finish()
        };
        out.push(TreeEntry {
            path: path.clone(),
            stat: self.stat(ino),
            target: match &inode.body {
                crate::model::Body::Link(target) => Some(target.clone()),
                _ => None,
            },
            xattrs: self.all_xattrs(ino),
            content: inode.content().filter(|_| contents).map(digest),
        });
        for (name, child) in inode.entries().into_iter().flatten() {
            self.add_tree(*child, join(&path, name), contents, out);
        }
    }
}

/// `path` and a name below it.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut joined = path.to_vec();
    if !joined.is_empty() {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    joined
}

/// Digest of names, links, owners, modes, attributes and flags: all but sizes, times and contents of files. Hard
/// links count: which names are one file. `tree` is in the order of [`Model::tree`].
pub fn namespace_digest(tree: &[TreeEntry]) -> u64 {
    let mut first_name: BTreeMap<u64, u64> = BTreeMap::new();
    let mut state = 0;
    for (index, entry) in tree.iter().enumerate() {
        let stat = &entry.stat;
        let first = *first_name.entry(stat.ino).or_insert(index as u64);
        let fixed = [
            first,
            stat.kind as u64,
            u64::from(stat.mode),
            u64::from(stat.nlink),
            u64::from(stat.uid),
            u64::from(stat.gid),
            stat.rdev,
            u64::from(stat.flags),
        ];
        for number in fixed {
            state = mix(state ^ number).wrapping_add(1);
        }
        state = hash(state, &entry.path);
        state = hash(state, entry.target.as_deref().unwrap_or_default());
        for (name, value) in &entry.xattrs {
            state = hash(hash(state, name), value);
        }
    }
    state
}

/// What of a `Stat` two file systems must agree on, beside type, mode, owner, links and size.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub times: bool,
    pub flags: bool,
    /// Which errno a refusal has. Without it a refusal is a refusal: `MYRIAD_ANY_ERRNO=1`, to look behind known ones.
    pub errnos: bool,
    /// Whether a directory without entries has size 0. Those of some file systems keep what they had for them.
    pub dir_sizes: bool,
}

impl Rules {
    pub const ALL: Self = Self { times: true, flags: true, errnos: true, dir_sizes: true };

    /// All, or what the environment asks for.
    pub fn from_env() -> Self {
        Self { errnos: crate::rng::number("MYRIAD_ANY_ERRNO").unwrap_or(0) == 0, ..Self::ALL }
    }
}

/// Compares answers with the model's, and keeps which of their inode numbers is which of the model's.
#[derive(Clone, Debug)]
pub struct Differ {
    rules: Rules,
    theirs: BTreeMap<Ino, u64>,
    ours: BTreeMap<u64, Ino>,
}

impl Differ {
    pub fn new(rules: Rules) -> Self {
        Self { rules, theirs: BTreeMap::new(), ours: BTreeMap::new() }
    }

    /// One file has one number as long as it lives, and no other living file has it.
    fn same_ino(&mut self, model: &Model, ours: Ino, theirs: u64) -> Result<(), String> {
        match self.theirs.get(&ours) {
            Some(&known) if known == theirs => return Ok(()),
            Some(&known) => return Err(format!("inode {known} has become {theirs} (model's {ours})")),
            None => {}
        }
        if let Some(&other) = self.ours.get(&theirs)
            && model.contains(other)
        {
            return Err(format!("inode {theirs} stands for two files of the model, {other} and {ours}"));
        }
        self.theirs.insert(ours, theirs);
        self.ours.insert(theirs, ours);
        Ok(())
    }

    fn same_stat(&mut self, model: &Model, ours: &Stat, theirs: &Stat) -> Result<(), String> {
        self.same_ino(model, ours.ino, theirs.ino)?;
        let mut theirs = Stat { ino: ours.ino, ..*theirs };
        let is_empty = ours.size == 0;
        let fits = if self.rules.dir_sizes { is_empty == (theirs.size == 0) } else { is_empty || theirs.size != 0 };
        if ours.kind == Kind::Directory && fits {
            theirs.size = ours.size;
        }
        if !self.rules.times {
            let Stat { atime, mtime, ctime, btime, .. } = *ours;
            theirs = Stat { atime, mtime, ctime, btime, ..theirs };
            if ours.kind == Kind::Directory {
                theirs.size = ours.size;
            }
        }
        if !self.rules.flags {
            theirs.flags = ours.flags;
        }
        if *ours == theirs { Ok(()) } else { Err(format!("stat: expected {ours:?}\n           got {theirs:?}")) }
    }

    /// `expected` is the model's answer to `step`, and `model` its state afterwards.
    pub fn answer(&mut self, model: &Model, step: &Step, expected: &Answer, got: &Answer) -> Result<(), String> {
        if let Op::SeekData { slot, offset } | Op::SeekHole { slot, offset } = step.op {
            return judge_seek(model, slot, offset, matches!(step.op, Op::SeekData { .. }), expected, got);
        }
        match (expected, got) {
            (Ok(Value::Stat(ours)), Ok(Value::Stat(theirs))) => self.same_stat(model, ours, theirs),
            (Ok(Value::Entries(ours)), Ok(Value::Entries(theirs))) => self.same_entries(model, ours, theirs),
            (Ok(Value::Names(ours)), Ok(Value::Names(theirs))) => {
                let mut theirs = theirs.clone();
                theirs.sort();
                if *ours == theirs { Ok(()) } else { Err(differ(&show_names(ours), &show_names(&theirs))) }
            }
            (Ok(Value::Bytes(ours)), Ok(Value::Bytes(theirs))) if ours != theirs => Err(differ_bytes(ours, theirs)),
            (Err(_), Err(_)) if !self.rules.errnos => Ok(()),
            _ if expected == got => Ok(()),
            _ => Err(differ(&brief(expected), &brief(got))),
        }
    }

    fn same_entries(&mut self, model: &Model, ours: &[Entry], theirs: &[Entry]) -> Result<(), String> {
        let mut theirs = theirs.to_vec();
        theirs.sort_by(|a, b| a.name.cmp(&b.name));
        let key = |entries: &[Entry]| -> Vec<_> { entries.iter().map(|e| (e.name.clone(), e.kind)).collect() };
        if key(ours) != key(&theirs) {
            let missing = ours.iter().filter(|e| !theirs.iter().any(|t| (&t.name, t.kind) == (&e.name, e.kind)));
            let extra = theirs.iter().filter(|t| !ours.iter().any(|e| (&t.name, t.kind) == (&e.name, e.kind)));
            let show = |of: Vec<&Entry>| -> Vec<_> { of.into_iter().map(|e| (text(&e.name), e.kind)).collect() };
            return Err(format!(
                "{} entries expected, {} got; missing {:?}, extra or twice {:?}",
                ours.len(),
                theirs.len(),
                show(missing.collect()),
                show(extra.collect())
            ));
        }
        ours.iter().zip(&theirs).try_for_each(|(a, b)| self.same_ino(model, a.ino, b.ino))
    }

    /// Compares whole trees; `got` is in any order.
    pub fn tree(&mut self, model: &Model, got: &[TreeEntry]) -> Result<(), String> {
        let ours: BTreeMap<Vec<u8>, TreeEntry> =
            model.tree().into_iter().map(|entry| (entry.path.clone(), entry)).collect();
        let mut seen = BTreeMap::new();
        for theirs in got {
            let at = |message: String| format!("{:?}: {message}", text(&theirs.path));
            let Some(ours) = ours.get(&theirs.path) else { return Err(at("should not exist".into())) };
            if seen.insert(&theirs.path, ()).is_some() {
                return Err(at("appears twice".into()));
            }
            self.same_stat(model, &ours.stat, &theirs.stat).map_err(at)?;
            if ours.target != theirs.target {
                return Err(at("another target".into()));
            }
            if ours.xattrs != theirs.xattrs {
                return Err(at(differ(&format!("{:?}", ours.xattrs), &format!("{:?}", theirs.xattrs))));
            }
            if ours.content != theirs.content {
                return Err(at("another content".into()));
            }
        }
        match ours.keys().find(|path| !seen.contains_key(path)) {
            Some(path) => Err(format!("{:?}: is missing", text(path))),
            None => Ok(()),
        }
    }
}

/// Where holes are is the implementation's choice, but a hole reads as zero and what was not zero is data.
fn judge_seek(
    model: &Model,
    slot: usize,
    offset: u64,
    for_data: bool,
    expected: &Answer,
    got: &Answer,
) -> Result<(), String> {
    let inode = model.handle(slot).map(|handle| model.inode(handle.ino));
    if inode.is_some_and(|inode| inode.is_dir()) {
        // Each file system's own affair.
        return Ok(());
    }
    let content = match model.handle(slot).and_then(|handle| model.inode(handle.ino).content()) {
        Some(content) if offset < content.size() => content,
        _ if expected == got => return Ok(()),
        _ => return Err(differ(&brief(expected), &brief(got))),
    };
    let (next, size) = (content.next_nonzero(offset), content.size());
    match got {
        Err(Errno::NXIO) if for_data && next.is_none() => Ok(()),
        Err(Errno::NXIO) if for_data => Err(format!("SEEK_DATA({offset}): ENXIO, but there is data at {next:?}")),
        Ok(Value::Position(at)) if *at < offset || *at > size || (for_data && *at == size) => {
            Err(format!("seek from {offset} ends at {at}, size {size}"))
        }
        Ok(Value::Position(at)) if for_data && next.is_some_and(|next| next < *at) => {
            Err(format!("SEEK_DATA({offset}) = {at} skips the data at {next:?}"))
        }
        Ok(Value::Position(at)) if !for_data && *at < size && content.next_nonzero(*at) == Some(*at) => {
            Err(format!("SEEK_HOLE({offset}) = {at}, but there is data"))
        }
        Ok(Value::Position(_)) => Ok(()),
        _ => Err(differ(&brief(expected), &brief(got))),
    }
}

pub fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn show_names(names: &[Vec<u8>]) -> String {
    format!("{:?}", names.iter().map(|name| text(name)).collect::<Vec<_>>())
}

fn brief(answer: &Answer) -> String {
    match answer {
        Ok(Value::Bytes(bytes)) if bytes.len() > 64 => format!("{} bytes", bytes.len()),
        other => format!("{other:?}"),
    }
}

fn differ(ours: &str, theirs: &str) -> String {
    format!("expected {ours}\n     got {theirs}")
}

fn differ_bytes(ours: &[u8], theirs: &[u8]) -> String {
    if ours.len() != theirs.len() {
        return format!("{} bytes expected, {} got", ours.len(), theirs.len());
    }
    let at = ours.iter().zip(theirs).position(|(a, b)| a != b).unwrap_or(0);
    let show = |bytes: &[u8]| format!("{:02x?}", &bytes[at..bytes.len().min(at + 16)]);
    format!("bytes differ from {at} of {}: {}", ours.len(), differ(&show(ours), &show(theirs)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::OpenHow;

    fn apply(model: &mut Model, ops: Vec<Op>) {
        for op in ops {
            model.apply(&Step { cred: 0, op }).unwrap();
        }
    }

    fn sample() -> Model {
        let mut model = Model::new(0);
        let how = OpenHow { read: true, write: true, create: true, mode: 0o644, ..OpenHow::default() };
        apply(
            &mut model,
            vec![
                Op::Mkdir { path: b"d".into(), mode: 0o755 },
                Op::Open { slot: 0, path: b"d/f".into(), how },
                Op::Write { slot: 0, offset: 10_000, len: 100, tag: 1 },
                Op::Link { source: b"d/f".into(), target: b"g".into() },
            ],
        );
        model
    }

    #[test]
    fn every_difference_between_trees_shows() {
        let model = sample();
        type Edit = fn(&mut Vec<TreeEntry>);
        let edits: [(&str, Edit); 9] = [
            ("", |_| {}),
            ("is missing", |tree| drop(tree.pop())),
            ("should not exist", |tree| tree[1].path = b"e".into()),
            ("twice", |tree| tree.push(tree[1].clone())),
            ("stat", |tree| tree[1].stat.mode = 0o700),
            ("stat", |tree| tree[2].stat.mtime += 1),
            ("has become", |tree| tree[3].stat.ino += 1),
            ("xattrs", |tree| drop(tree[3].xattrs.insert(b"user.a".into(), vec![]))),
            ("content", |tree| tree[2].content = Some(0)),
        ];
        for (expected, edit) in edits {
            let mut tree = model.tree();
            edit(&mut tree);
            let answer = Differ::new(Rules::ALL).tree(&model, &tree);
            match answer {
                Ok(()) => assert_eq!(expected, ""),
                Err(message) => assert!(message.contains(expected) || expected == "xattrs", "{message}"),
            }
        }
    }

    #[test]
    fn holes_are_judged() {
        let model = sample();
        let judge = |for_data, offset, got| {
            let expected = Ok(Value::None);
            judge_seek(&model, 0, offset, for_data, &expected, &got).is_ok()
        };
        let at = |at| Ok(Value::Position(at));
        for (for_data, offset, got, legal) in [
            (true, 0, at(0), true),
            (true, 0, at(8192), true),
            (true, 0, at(10_000), true),
            (true, 0, at(10_001), false),
            (true, 10_050, at(10_000), false),
            (true, 0, Err(Errno::NXIO), false),
            (false, 0, at(0), true),
            (false, 0, at(10_100), true),
            (false, 0, at(10_000), false),
            (false, 0, at(10_101), false),
            (false, 0, Err(Errno::NXIO), false),
        ] {
            assert_eq!(judge(for_data, offset, got.clone()), legal, "{for_data} {offset} {got:?}");
        }
    }

    #[test]
    fn the_namespace_digest_sees_names_and_not_sizes() {
        let mut model = sample();
        let before = namespace_digest(&model.tree());
        apply(&mut model, vec![Op::Write { slot: 0, offset: 0, len: 100, tag: 2 }]);
        assert_eq!(namespace_digest(&model.names()), before);
        let path = b"g".to_vec();
        for op in [
            Op::SetAttr { path: path.clone(), change: crate::op::Change::Mode(0o600) },
            Op::Unlink { path: path.clone() },
            Op::Create { path: path.clone(), mode: 0o644 },
            Op::Symlink { target: path, path: b"s".into() },
        ] {
            let before = namespace_digest(&model.tree());
            apply(&mut model, vec![op]);
            assert_ne!(namespace_digest(&model.tree()), before);
        }
    }
}
