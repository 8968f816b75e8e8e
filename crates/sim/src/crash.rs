//! The crash oracle for order=log: what may be found on a volume after power was lost.
//!
//! A [`History`] is one run: the model after every operation, and how far the device's trace had come by then. After a
//! crash at trace point p and recovery, [`History::judge`] asks for a prefix k of the operations such that
//!
//!   1. names, links, owners, modes, attributes and flags are the model's after k operations;
//!   2. k is no older than the last fsync, fdatasync, sync or write with O_SYNC that had been answered at p;
//!   3. a checkpoint can have been made there: something was written during operation k or k+1;
//!   4. every sector of every file is as in one of its versions, from the oldest that may remain to the newest at p; its
//!      size is that of one no newer than k, for sizes travel in checkpoints and bytes do not. The oldest is the last
//!      synced one, or the one that a file had when it replaced another's name before k;
//!   5. a file truncated to zero and written again before k has what it had before, or what it had at any time since it
//!      was written again: not the nothing in between. A flush for whatever reason may bring the new content early, and
//!      what follows it comes with the next one. One cut before the volume was opened is like one that never had content.
//!
//! Zeros and holes need no rule of their own: a sector beyond the end, or never written, is zero in that version. So
//! "old, new or zero" comes out, zero only where some allowed version has it, and foreign bytes never.

use crate::compare::{TreeEntry, namespace_digest, text};
use crate::model::content::{Content, SECTOR};
use crate::model::{Ino, Model, ROOT};
use crate::op::{Answer, Kind, Op, RenameHow, Step, Value};
use crate::pattern;
use std::collections::{BTreeMap, BTreeSet};

/// What recovery found: the tree, and the bytes of each file by its inode number.
pub struct Found {
    /// In the order of `Model::tree`.
    pub tree: Vec<TreeEntry>,
    pub contents: BTreeMap<u64, Content>,
}

/// One version of a file: from operation `from` on.
struct Version {
    from: usize,
    content: Content,
}

#[derive(Default)]
struct FileHistory {
    versions: Vec<Version>,
    /// Operations after which all older versions are gone from the medium, ascending.
    synced: Vec<usize>,
    /// Operations whose checkpoint has the file's data.
    forced: Vec<Forced>,
    /// Operation that truncated it to zero, if nothing has been written since.
    emptied: Option<usize>,
}

#[derive(Clone, Copy)]
enum Forced {
    /// It replaced another's name, with the content it had by then.
    Replacing(usize),
    /// It was truncated to zero by `cut` and is written again by `first`.
    Rewritten { cut: usize, first: usize },
}

/// A name that was exchanged with another one: where it is, what it named, and what it names since.
#[derive(Clone)]
pub(crate) struct ExchangedName {
    pub dir: Ino,
    pub name: Vec<u8>,
    pub before: Ino,
    pub after: Ino,
}

/// Operation 0 is making the volume; operation i is the i-th that was run.
pub struct History {
    model: Model,
    /// As it was after each operation.
    states: Vec<Model>,
    /// Digest of the namespace after each operation.
    digests: Vec<u64>,
    by_digest: BTreeMap<u64, Vec<usize>>,
    /// Path to inode, after each operation that changed a name.
    names: Vec<(usize, BTreeMap<Vec<u8>, Ino>)>,
    /// Trace length when each operation had been answered.
    ends: Vec<usize>,
    files: BTreeMap<Ino, FileHistory>,
    /// Operations that made all before them durable.
    durable: Vec<usize>,
    /// Those among them that said so of the whole volume; and fsyncs, with the file of each.
    durable_wholly: Vec<usize>,
    fsynced: Vec<(usize, Ino)>,
    /// Operations that exchanged two names.
    exchanges: Vec<(usize, [ExchangedName; 2])>,
    /// Operations that moved a directory over another one and left a whiteout: where.
    left: Vec<(usize, (Ino, Vec<u8>))>,
    /// Operations that the volume failed: they may be in effect or not.
    failed: BTreeSet<usize>,
    /// Syncs by others: trace length when one was answered, and the operation after which it began.
    promises: Vec<(usize, usize)>,
    /// Others make checkpoints, too.
    beside: bool,
    tag_max: u32,
}

impl History {
    /// A volume with nothing left to write, which is as `model`; the trace had `point` events then.
    pub fn new(model: Model, point: usize) -> Self {
        let mut history = Self {
            model,
            states: Vec::new(),
            digests: Vec::new(),
            by_digest: BTreeMap::new(),
            names: Vec::new(),
            ends: Vec::new(),
            files: BTreeMap::new(),
            durable: vec![0],
            durable_wholly: vec![0],
            fsynced: Vec::new(),
            exchanges: Vec::new(),
            left: Vec::new(),
            failed: BTreeSet::new(),
            promises: Vec::new(),
            beside: false,
            tag_max: 0,
        };
        history.record(point);
        history.add_new_files(0);
        history
    }

    /// The first version of each file that has none.
    fn add_new_files(&mut self, index: usize) {
        let new: Vec<Ino> = self
            .model
            .inodes()
            .filter(|(ino, inode)| inode.kind == Kind::File && !self.files.contains_key(ino))
            .map(|(ino, _)| ino)
            .collect();
        for ino in new {
            self.add_version(ino, index);
        }
    }

    /// From here on others make checkpoints while these operations go on: any operation may be the last in one.
    pub fn checkpoints_beside(&mut self) {
        self.beside = true;
    }

    /// Somebody else's sync, which began when operation `index` had been answered, was answered when the trace had
    /// `point` events.
    pub fn promise(&mut self, index: usize, point: usize) {
        self.promises.push((point, index));
    }

    /// The last operation that a sync by others has made durable at `point`.
    fn promised(&self, point: usize) -> usize {
        self.promises.iter().filter(|(at, _)| *at <= point).map(|(_, index)| *index).max().unwrap_or(0)
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Operations so far, making the volume not counted.
    pub fn len(&self) -> usize {
        self.digests.len() - 1
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn record(&mut self, point: usize) {
        let index = self.digests.len();
        let tree = self.model.names();
        let digest = namespace_digest(&tree);
        // Not by the digest, which is the same when two files that are alike change places.
        let names: BTreeMap<_, _> = tree.into_iter().map(|entry| (entry.path, entry.stat.ino)).collect();
        if self.names.last().is_none_or(|(_, last)| *last != names) {
            self.names.push((index, names));
        }
        self.digests.push(digest);
        self.states.push(self.model.clone());
        self.by_digest.entry(digest).or_default().push(index);
        self.ends.push(point);
    }

    /// Runs the step on the model; `point` is the length of the trace after the volume had answered.
    pub fn apply(&mut self, step: &Step, point: usize) -> Answer {
        self.apply_promised(step, point, true)
    }

    /// As [`History::apply`], for a step that the volume failed for its device's sake: it may be in effect or not, and
    /// nothing was promised.
    pub fn apply_failed(&mut self, step: &Step, point: usize) {
        self.failed.insert(self.digests.len());
        let _ = self.apply_promised(step, point, false);
    }

    fn apply_promised(&mut self, step: &Step, point: usize, promised: bool) -> Answer {
        let index = self.digests.len();
        let replaced = self.replaces(step);
        let exchanged = self.exchanges(step);
        let left = self.leaves(step);
        let touched = self.touched(step);
        let size_before = touched.map(|ino| self.model.inode(ino).size());
        let answer = self.model.apply(step);
        self.record(point);
        self.add_new_files(index);
        if let Op::Write { tag, .. } = step.op {
            self.tag_max = self.tag_max.max(tag);
        }
        answer.as_ref().map_err(|errno| *errno)?;
        if let Some(ino) = touched.filter(|ino| self.model.contains(*ino)) {
            self.add_version(ino, index);
            let size = self.model.inode(ino).size();
            let file = self.files.entry(ino).or_default();
            if size == 0 {
                if size_before.is_some_and(|size| size > 0) {
                    file.emptied = Some(index);
                }
            } else if let Some(cut) = file.emptied.take() {
                file.forced.push(Forced::Rewritten { cut, first: index });
            }
        }
        if let Some(ino) = replaced {
            self.files.entry(ino).or_default().forced.push(Forced::Replacing(index));
        }
        self.exchanges.extend(exchanged.map(|names| (index, names)));
        self.left.extend(left.map(|name| (index, name)));
        if step.op == Op::Remount {
            self.files.values_mut().for_each(|file| file.emptied = None);
        }
        if promised {
            self.sync(step, index, &answer);
        }
        answer
    }

    /// The two names that a step exchanges, if it is answered with success.
    fn exchanges(&self, step: &Step) -> Option<[ExchangedName; 2]> {
        let Op::Rename { source, target, how: RenameHow::Exchange } = &step.op else { return None };
        let ((dir, name, ino), (other_dir, other_name, other)) = (self.end(source)?, self.end(target)?);
        let named = |dir, name, before, after| ExchangedName { dir, name, before, after };
        (ino != other).then(|| [named(dir, name, ino, other), named(other_dir, other_name, other, ino)])
    }

    /// The name that a step leaves to a whiteout, if it is answered with success and moves a directory over another one.
    fn leaves(&self, step: &Step) -> Option<(Ino, Vec<u8>)> {
        let Op::Rename { source, target, how: RenameHow::Whiteout } = &step.op else { return None };
        let ((dir, name, ino), (.., other)) = (self.end(source)?, self.end(target)?);
        let are_dirs = [ino, other].iter().all(|&ino| self.model.inode(ino).kind == Kind::Directory);
        (are_dirs && ino != other).then_some((dir, name))
    }

    /// One end of a rename, as it is now: directory, name, and what that names.
    fn end(&self, path: &[u8]) -> Option<(Ino, Vec<u8>, Ino)> {
        let at = path.iter().rposition(|&byte| byte == b'/');
        let (dir, name) = at.map_or((&b""[..], path), |at| (&path[..at], &path[at + 1..]));
        let dir = if dir.is_empty() { ROOT } else { self.model.find(dir)? };
        let ino = self.model.inode(dir).entries()?.get(name).copied()?;
        Some((dir, name.to_vec(), ino))
    }

    /// Names that directories have left to whiteouts as they took those of others, and the operations that did.
    pub(crate) fn all_left(&self) -> &[(usize, (Ino, Vec<u8>))] {
        &self.left
    }

    /// Operations that exchanged two names, with these.
    pub(crate) fn all_exchanges(&self) -> &[(usize, [ExchangedName; 2])] {
        &self.exchanges
    }

    fn add_version(&mut self, ino: Ino, from: usize) {
        let content = self.model.inode(ino).content().expect("a file").clone();
        let file = self.files.entry(ino).or_default();
        if file.versions.last().is_none_or(|last| last.content != content) {
            file.versions.push(Version { from, content });
        }
    }

    /// The regular file that a rename is about to put in another's place.
    fn replaces(&self, step: &Step) -> Option<Ino> {
        let Op::Rename { source, target, .. } = &step.op else { return None };
        let file = |path: &[u8]| self.model.find_exact(path).filter(|ino| self.model.inode(*ino).kind == Kind::File);
        let (source, target) = (file(source)?, file(target)?);
        (source != target).then_some(source)
    }

    /// The regular file whose content the step may change.
    fn touched(&self, step: &Step) -> Option<Ino> {
        let ino = match &step.op {
            Op::Write { slot, .. } | Op::Truncate { slot, .. } | Op::Allocate { slot, .. } => {
                self.model.handle(*slot)?.ino
            }
            Op::SetAttr { path, .. } | Op::Open { path, .. } => self.model.find(path)?,
            _ => return None,
        };
        (self.model.inode(ino).kind == Kind::File).then_some(ino)
    }

    fn sync(&mut self, step: &Step, index: usize, answer: &Answer) {
        let mut sync_file = |ino: Ino| {
            if let Some(file) = self.files.get_mut(&ino) {
                file.synced.push(index);
            }
        };
        match &step.op {
            // For data only as well: the engine makes no difference, and a file without its name would be lost.
            Op::Fsync { slot, .. } => {
                let ino = self.model.handle(*slot).expect("it was answered").ino;
                sync_file(ino);
                self.durable.push(index);
                self.fsynced.push((index, ino));
            }
            Op::Write { slot, .. } if *answer != Ok(Value::Count(0)) => {
                // As an fsync after it: data, attributes and the file's name.
                let handle = self.model.handle(*slot).expect("it was answered");
                if handle.sync {
                    sync_file(handle.ino);
                    self.durable.push(index);
                    self.fsynced.push((index, handle.ino));
                }
            }
            Op::Sync | Op::Remount => {
                self.files.values_mut().for_each(|file| file.synced.push(index));
                self.durable.push(index);
                self.durable_wholly.push(index);
            }
            _ => {}
        }
    }

    /// Operations answered when the trace had `point` events; a crash there may also show the next one.
    pub fn answered(&self, point: usize) -> usize {
        self.ends.partition_point(|&end| end <= point) - 1
    }

    /// What a judgement at `point` depends on, beside what was found: the newest operation that may show, how many had
    /// been answered, and whether the newest can end a checkpoint. Two histories that begin with the same operations
    /// up to that newest one, and agree in the rest, judge alike.
    pub fn moment(&self, point: usize) -> (usize, usize, bool) {
        let answered = self.answered(point);
        let newest = (answered + 1).min(self.len());
        (newest, answered, self.may_be_checkpoint(newest))
    }

    /// Whether a checkpoint can have been made right after operation `index`: the device was written to in it, or in
    /// the one after it.
    fn may_be_checkpoint(&self, index: usize) -> bool {
        let wrote = |index: usize| index > 0 && self.ends.get(index).is_some_and(|end| *end > self.ends[index - 1]);
        self.beside || index == 0 || wrote(index) || wrote(index + 1)
    }

    fn names_after(&self, index: usize) -> &BTreeMap<Vec<u8>, Ino> {
        let at = self.names.partition_point(|(from, _)| *from <= index) - 1;
        &self.names[at].1
    }

    pub(crate) fn states(&self) -> &[Model] {
        &self.states
    }

    /// The last operation that must show after a crash at `point`, and the last that may.
    pub(crate) fn window(&self, point: usize) -> (usize, usize) {
        let answered = self.answered(point);
        let own = *self.durable.iter().rfind(|&&index| index <= answered).expect("making the volume is durable");
        (own.max(self.promised(point)), (answered + 1).min(self.len()))
    }

    /// As [`Self::window`], where an fsync makes durable one file and no more.
    pub(crate) fn window_of_syncs(&self, point: usize) -> (usize, usize) {
        let answered = self.answered(point);
        let own = *self.durable_wholly.iter().rfind(|&&index| index <= answered).expect("making the volume is durable");
        (own.max(self.promised(point)), (answered + 1).min(self.len()))
    }

    /// Fsyncs answered at `point` after operation `from`, with the file of each.
    pub(crate) fn fsyncs(&self, point: usize, from: usize) -> impl Iterator<Item = (usize, Ino)> {
        let answered = self.answered(point);
        self.fsynced.iter().copied().filter(move |&(index, _)| index > from && index <= answered)
    }

    /// The last operation that had returned when the trace had `point` events, and all before it had: one that failed may be in effect or not.
    pub(crate) fn returned(&self, point: usize) -> usize {
        (0..=self.answered(point))
            .rev()
            .find(|index| !self.failed.contains(index))
            .expect("making the volume did not fail")
    }

    /// The versions that a file may have after a crash at `point`, of those since operation `from`.
    pub(crate) fn versions_since(&self, point: usize, ino: Ino, from: usize) -> Vec<&Content> {
        let answered = self.answered(point);
        let Some(file) = self.files.get(&ino) else { return Vec::new() };
        let synced = file.synced.iter().rfind(|&&index| index <= answered).copied().unwrap_or(0);
        file.versions_between(synced.max(self.promised(point)).max(from), (answered + 1).min(self.len()))
    }

    /// Whether names, links, owners, modes and attributes are those of any moment of the run.
    pub fn was(&self, found: &Found) -> bool {
        self.by_digest.contains_key(&namespace_digest(&found.tree))
    }

    /// Whether what recovery `found` after a crash at `point` is allowed. The error says what is not.
    pub fn judge(&self, point: usize, found: &Found) -> Result<(), String> {
        let answered = self.answered(point);
        let own = *self.durable.iter().rfind(|&&index| index <= answered).expect("making the volume is durable");
        let promised = self.promised(point);
        let oldest = own.max(promised);
        let newest = (answered + 1).min(self.len());
        let digest = namespace_digest(&found.tree);
        let same = self.by_digest.get(&digest).map_or(&[][..], Vec::as_slice);
        let prefixes: Vec<usize> = same
            .iter()
            .copied()
            .filter(|index| (oldest..=newest).contains(index) && self.may_be_checkpoint(*index))
            .collect();
        if prefixes.is_empty() {
            return Err(self.explain_names(oldest, newest, same, found));
        }
        let mut reasons = BTreeSet::new();
        for prefix in prefixes {
            match self.judge_contents(prefix, answered, promised, newest, found) {
                Ok(()) => return Ok(()),
                Err(reason) => reasons.insert(format!("as after operation {prefix}: {reason}")),
            };
        }
        Err(reasons.into_iter().collect::<Vec<_>>().join("\n"))
    }

    fn judge_contents(
        &self,
        prefix: usize,
        answered: usize,
        promised: usize,
        newest: usize,
        found: &Found,
    ) -> Result<(), String> {
        let names = self.names_after(prefix);
        let mut done = BTreeSet::new();
        for entry in found.tree.iter().filter(|entry| entry.stat.kind == Kind::File) {
            if !done.insert(entry.stat.ino) {
                continue;
            }
            let ino = names.get(&entry.path).ok_or("a name that the digest did not show")?;
            let file = &self.files[ino];
            // A sync counts once it is answered; what it had to write is the version at its beginning.
            let synced = file.synced.iter().rfind(|&&index| index <= answered).copied().unwrap_or(0).max(promised);
            let spans = self.spans(file, synced, prefix, newest);
            let versions: Vec<&Content> =
                spans.iter().flat_map(|&(from, to)| file.versions_between(from, to)).collect();
            let sizes: Vec<u64> = spans
                .iter()
                .flat_map(|&(from, to)| file.versions_between(from, to.min(prefix.max(from))))
                .map(Content::size)
                .collect();
            let content = found.contents.get(&entry.stat.ino).ok_or("the content was not read")?;
            judge_size(&sizes, content.size())
                .and_then(|()| self.judge_file(&versions, content))
                .map_err(|reason| format!("{}, versions of operations {spans:?}: {reason}", text(&entry.path)))?;
        }
        Ok(())
    }

    /// First and last operations between which a file has a version that may be found, newest first.
    fn spans(&self, file: &FileHistory, synced: usize, prefix: usize, newest: usize) -> Vec<(usize, usize)> {
        let mut spans = Vec::new();
        let mut to = newest;
        for forced in file.forced.iter().rev() {
            let (from, cut) = match *forced {
                Forced::Replacing(index) => (index, None),
                Forced::Rewritten { cut, first } => (first, Some(cut)),
            };
            if from > prefix {
                continue;
            }
            if from <= synced {
                break;
            }
            if from <= to {
                spans.push((from, to));
            }
            match cut {
                // Or all of it is still as it was before.
                Some(cut) if cut > synced => to = cut - 1,
                _ => return spans,
            }
        }
        spans.push((synced, to));
        spans
    }

    pub(crate) fn judge_file(&self, versions: &[&Content], found: &Content) -> Result<(), String> {
        let size = found.size();
        // Only sectors where some version, or what was found, is not zero can differ.
        let mut sectors = BTreeSet::new();
        for content in versions.iter().copied().chain([found]) {
            for (offset, bytes) in content.chunks() {
                let first = offset / SECTOR as u64;
                sectors.extend(first..first + (bytes.len() / SECTOR) as u64);
            }
        }
        for sector in sectors {
            let start = sector * SECTOR as u64;
            if start >= size {
                break;
            }
            let len = (size - start).min(SECTOR as u64) as usize;
            let bytes = &found.sector(sector)[..len];
            if versions.iter().any(|version| version.sector(sector)[..len] == *bytes) {
                continue;
            }
            return Err(self.explain_sector(versions, sector, bytes));
        }
        Ok(())
    }

    fn explain_sector(&self, versions: &[&Content], sector: u64, bytes: &[u8]) -> String {
        let name = |bytes: &[u8]| match pattern::identify(bytes, self.tag_max) {
            Some((tag, offset)) => format!("write {tag} at {offset}"),
            None if bytes.iter().all(|&byte| byte == 0) => "zeros".into(),
            None => format!("{:02x?}", &bytes[..bytes.len().min(16)]),
        };
        let first = versions.iter().map(|version| &version.sector(sector)[..bytes.len()]);
        let differs = |version: &[u8]| version.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or(0) & !7;
        let at = first.clone().map(differs).max().unwrap_or(0);
        let expected: BTreeSet<String> = first.map(|version| name(&version[at..])).collect();
        format!(
            "sector {sector} (byte {}), from byte {at}: found {}, expected one of {expected:?}",
            sector * SECTOR as u64,
            name(&bytes[at..])
        )
    }

    fn explain_names(&self, oldest: usize, newest: usize, same: &[usize], found: &Found) -> String {
        let mut message = format!("names are those of no checkpoint among operations {oldest} to {newest}");
        if same.is_empty() {
            message += "; of no operation at all";
        } else {
            message += &format!("; they are those after {same:?}");
        }
        let names: BTreeSet<_> = found.tree.iter().map(|entry| entry.path.clone()).collect();
        for index in [oldest, newest] {
            let expected: BTreeSet<_> = self.names_after(index).keys().cloned().collect();
            let show = |of: Vec<&Vec<u8>>| of.iter().take(8).map(|name| text(name)).collect::<Vec<_>>().join(", ");
            let missing = show(expected.difference(&names).collect());
            let extra = show(names.difference(&expected).collect());
            message += &format!("\n  against {index}: missing [{missing}], extra [{extra}]");
        }
        message
    }
}

pub(crate) fn judge_size(sizes: &[u64], size: u64) -> Result<(), String> {
    if sizes.contains(&size) { Ok(()) } else { Err(format!("size {size} is none of {sizes:?}")) }
}

impl FileHistory {
    /// The version in force after operation `from`, and all later ones up to `to`.
    fn versions_between(&self, from: usize, to: usize) -> Vec<&Content> {
        let first = self.versions.partition_point(|version| version.from <= from).saturating_sub(1);
        let later = self.versions[first..].iter().take_while(|version| version.from <= to);
        let mut versions: Vec<&Content> = later.map(|version| &version.content).collect();
        if versions.is_empty() {
            versions.push(&self.versions[first].content);
        }
        versions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::OpenHow;

    const FRESH: OpenHow = OpenHow {
        read: true,
        write: true,
        append: false,
        truncate: false,
        create: true,
        exclusive: false,
        no_follow: false,
        sync: false,
        mode: 0o644,
    };

    /// Each operation, and how many events it left in the trace.
    fn history(ops: &[(Op, usize)]) -> History {
        let mut history = History::new(Model::new(0), 1);
        let mut point = 1;
        for (op, events) in ops {
            point += events;
            history.apply(&Step { cred: 0, op: op.clone() }, point).unwrap();
        }
        history
    }

    fn open(path: &[u8], how: OpenHow) -> Op {
        Op::Open { slot: 0, path: path.into(), how }
    }

    fn write(len: usize, tag: u32) -> Op {
        Op::Write { slot: 0, offset: 0, len, tag }
    }

    const FSYNC: Op = Op::Fsync { slot: 0, data_only: false };

    /// What a volume would show that had stopped after `prefix` operations, with edits.
    fn found(ops: &[(Op, usize)], prefix: usize) -> Found {
        let model = history(&ops[..prefix]).model;
        let contents = model.inodes().filter_map(|(ino, inode)| Some((ino, inode.content()?.clone()))).collect();
        Found { tree: model.tree(), contents }
    }

    fn edit(found: &mut Found, path: &[u8], change: impl FnOnce(&mut Content)) {
        let ino = found.tree.iter().find(|entry| entry.path == path).unwrap().stat.ino;
        change(found.contents.get_mut(&ino).unwrap());
    }

    #[test]
    fn prefixes_no_older_than_the_last_sync() {
        let ops = [
            (open(b"f", FRESH), 0),
            (FSYNC, 3),
            (Op::Mkdir { path: b"d".into(), mode: 0o755 }, 0),
            (Op::Mkdir { path: b"e".into(), mode: 0o755 }, 0),
            (Op::Sync, 2),
        ];
        let history = history(&ops);
        // Events: 1 made, 4 after the fsync, 6 after the sync.
        for (point, prefix, legal) in [
            (1, 0, true),
            (1, 1, true),
            (3, 0, true),
            (3, 1, true),
            (4, 0, false),
            (4, 1, true),
            (4, 3, false),
            (4, 4, true),
            (5, 1, true),
            (5, 4, true),
            (6, 1, false),
            (6, 4, true),
        ] {
            let judged = history.judge(point, &found(&ops, prefix));
            // Operation 3 alone is in no checkpoint: nothing was written between it and 4.
            assert_eq!(judged.is_ok(), legal, "point {point} prefix {prefix}: {judged:?}");
        }
    }

    /// The oracle took a file for allowed to be missing that had been created and written with O_SYNC.
    #[test]
    fn a_synced_write_makes_the_name_durable() {
        let ops = [(open(b"f", OpenHow { sync: true, ..FRESH }), 0), (write(1024, 1), 3)];
        let history = history(&ops);
        for (point, prefix, legal) in [(3, 0, true), (3, 1, true), (4, 0, false), (4, 1, false), (4, 2, true)] {
            let judged = history.judge(point, &found(&ops, prefix));
            assert_eq!(judged.is_ok(), legal, "point {point} prefix {prefix}: {judged:?}");
        }
    }

    /// The oracle took a new file for allowed to be missing after fdatasync. The engine promises the name as well.
    #[test]
    fn a_new_file_lasts_with_its_fdatasync() {
        let ops = [(open(b"f", FRESH), 0), (Op::Fsync { slot: 0, data_only: true }, 3)];
        let history = history(&ops);
        for (point, prefix, legal) in [(3, 0, true), (3, 1, true), (4, 0, false), (4, 1, true)] {
            let judged = history.judge(point, &found(&ops, prefix));
            assert_eq!(judged.is_ok(), legal, "point {point} prefix {prefix}: {judged:?}");
        }
    }

    /// Two files that differ in nothing but their contents were exchanged, and the oracle looked for each one's bytes
    /// in the other.
    #[test]
    fn contents_follow_an_exchange() {
        let exchange = Op::Rename { source: b"f".into(), target: b"g".into(), how: RenameHow::Exchange };
        let ops = [
            (open(b"f", FRESH), 0),
            (write(1024, 1), 0),
            (open(b"g", FRESH), 0),
            (write(2048, 2), 0),
            (Op::Sync, 3),
            (exchange, 0),
            (Op::Sync, 2),
        ];
        assert_eq!(history(&ops).judge(6, &found(&ops, 7)), Ok(()));
        assert!(history(&ops).judge(6, &found(&ops, 5)).is_err());
    }

    /// A sync by another thread promises what had been done when it began.
    #[test]
    fn a_sync_beside_the_operations() {
        let ops = [(open(b"f", FRESH), 0), (write(1024, 1), 0), (open(b"g", FRESH), 0), (Op::Close { slot: 0 }, 3)];
        let mut history = history(&ops);
        history.checkpoints_beside();
        history.promise(2, 4);
        let mut state = found(&ops, 2);
        assert_eq!(history.judge(4, &state), Ok(()));
        assert_eq!(history.judge(4, &found(&ops, 3)), Ok(()));
        assert_eq!(history.judge(3, &found(&ops, 1)), Ok(()));
        assert!(history.judge(4, &found(&ops, 1)).is_err());
        edit(&mut state, b"f", |content| content.zero(0, 512));
        assert!(history.judge(4, &state).is_err());
        assert_eq!(history.judge(3, &state), Ok(()));
    }

    #[test]
    fn every_sector_is_old_or_new_or_zero() {
        let ops = [(open(b"f", FRESH), 0), (write(2048, 1), 0), (FSYNC, 3), (write(4096, 2), 0), (Op::Sync, 3)];
        let history = history(&ops);
        let check = |point, change: fn(&mut Content), legal| {
            let mut found = found(&ops, 4);
            edit(&mut found, b"f", change);
            let judged = history.judge(point, &found);
            assert_eq!(judged.is_ok(), legal, "{judged:?}");
        };
        check(5, |_| {}, true);
        check(5, |content| content.write(0, &pattern::bytes(1, 0, 512)), true);
        check(5, |content| content.zero(2048, 512), true);
        // Synced, and zero in no version.
        check(5, |content| content.zero(0, 512), false);
        // Another place's bytes, another write's, and a tear inside a sector.
        check(5, |content| content.write(512, &pattern::bytes(2, 0, 512)), false);
        check(5, |content| content.write(512, &pattern::bytes(3, 512, 512)), false);
        check(5, |content| content.write(0, &pattern::bytes(1, 0, 256)), false);
        check(5, |content| content.truncate(2048), true);
        check(5, |content| content.truncate(1024), false);
        // After the sync only the new one.
        check(7, |_| {}, true);
        check(7, |content| content.write(0, &pattern::bytes(1, 0, 512)), false);
        check(7, |content| content.truncate(2048), false);
    }

    #[test]
    fn replacing_and_rewriting_are_never_empty() {
        let rename = Op::Rename { source: b"new".into(), target: b"f".into(), how: RenameHow::Replace };
        let ops = [
            (open(b"f", FRESH), 0),
            (write(1024, 1), 0),
            (Op::Sync, 3),
            (open(b"new", FRESH), 0),
            (write(1024, 2), 0),
            (rename, 0),
            (Op::Sync, 3),
        ];
        let history_ = history(&ops);
        let mut state = found(&ops, 6);
        assert_eq!(history_.judge(5, &state), Ok(()));
        edit(&mut state, b"f", |content| content.zero(0, 512));
        assert!(history_.judge(5, &state).unwrap_err().contains("found zeros"));
        edit(&mut state, b"f", |content| content.truncate(0));
        assert!(history_.judge(5, &state).unwrap_err().contains("size 0"));
        let old = found(&ops, 3);
        assert_eq!(history_.judge(5, &old), Ok(()));

        let again = |events| {
            let truncate = OpenHow { truncate: true, ..FRESH };
            [
                (open(b"f", FRESH), 0),
                (write(1024, 1), 0),
                (Op::Sync, 3),
                (open(b"f", truncate), events),
                (write(1024, 2), 0),
                (Op::Sync, 3),
            ]
        };
        let mut empty = found(&again(0), 5);
        edit(&mut empty, b"f", |content| content.truncate(0));
        // Empty only if a checkpoint can have been made between truncating and writing.
        assert!(history(&again(0)).judge(5, &empty).is_err());
        // What it had before may be all that is there, though not with the new size.
        let ops = again(0);
        let mut old = found(&ops, 5);
        edit(&mut old, b"f", |content| content.write(0, &pattern::bytes(1, 0, 1024)));
        assert_eq!(history(&ops).judge(5, &old), Ok(()));
        edit(&mut old, b"f", |content| content.truncate(512));
        assert!(history(&ops).judge(5, &old).unwrap_err().contains("size 512"));
        assert_eq!(history(&again(2)).judge(6, &empty), Ok(()));
    }

    /// That a file was cut is known in memory only: the volume opened again flushes its new content like any other, and a
    /// checkpoint before that shows it empty. The oracle wanted all or nothing of a cut that had been closed over.
    #[test]
    fn a_cut_before_the_volume_was_opened() {
        for (between, legal) in [(Op::Sync, false), (Op::Remount, true)] {
            let ops = [
                (open(b"f", FRESH), 0),
                (write(1024, 1), 0),
                (Op::Sync, 3),
                (open(b"f", OpenHow { truncate: true, ..FRESH }), 0),
                (between, 2),
                (open(b"f", FRESH), 0),
                (write(1024, 2), 0),
                (Op::Mkdir { path: b"d".into(), mode: 0o755 }, 3),
            ];
            let mut empty = found(&ops, 8);
            edit(&mut empty, b"f", |content| content.truncate(0));
            let judged = history(&ops).judge(9, &empty);
            assert_eq!(judged.is_ok(), legal, "{judged:?}");
        }
    }
}
