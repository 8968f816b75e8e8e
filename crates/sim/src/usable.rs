//! The crash oracle for orders that keep the volume usable without a log, such as soft updates: what may be found after power was lost.
//!
//! There is no prefix: of what was done since the last sync some may show and some not. Let the *window* be the states of the model from
//! the last sync that was answered to the crash. [`History::judge_usable`] asks that
//!
//!   1. each name that is found named what it names in some state of the window: the same kind, owner, mode, flags, extended attributes,
//!      ACLs and target as in some state;
//!   2. each name that was there in all states is found, with something that it named. Only one that a directory has left to a whiteout, as it took the name of
//!      another directory, may be gone while the first one is found by another name: it is a second name then;
//!   3. each file that had a name in all states is found by one of its names. So of a rename at least one name is there;
//!   4. each sector of a file is as in one of its versions since it was synced, and so is its size;
//!      A sync is one of the volume. An fsync promises its file alone: it is found, by each path that has led to it since, and with
//!      owner, mode and attributes of some state since. What is found at such a path is that file and no other;
//!   5. a file that is found in the place of another one, which a rename replaced by it, has the content that it had by then;
//!   6. two names that one operation exchanged, and that nothing else has changed in the window, are both as before or both as after.
//!
//! Order `sync` promises more: what an operation has changed is durable when it returns. [`History::judge_returned`] asks the same with a
//! window that begins with the last operation that was answered, so that it holds two states: without the operation under way, and with
//! it. Times of modification count as well, but for files whose contents may come later. Contents and sizes of files have the window of
//! the last sync, unless those are promised as well.
//!
//! What an inode of the model is called on the volume nobody knows. It is found out on the way down from the root: a name in a directory
//! can only be one of those inodes that had this name there, and no inode is found twice under two numbers.

use crate::compare::{TreeEntry, text};
use crate::crash::{ExchangedName, Found, History, judge_size};
use crate::model::{Ino, Inode, Model, ROOT};
use crate::op::Kind;
use std::collections::{BTreeMap, BTreeSet};

/// A name that was found, and which inodes of the model it may be.
struct Met<'a> {
    entry: &'a TreeEntry,
    inos: BTreeSet<Ino>,
}

/// Whose times of modification are promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Times {
    Nobodys,
    /// Of all but regular files, whose content may come later and brings its time along.
    WithoutData,
    All,
}

impl Times {
    fn count(self, kind: Kind) -> bool {
        match self {
            Self::Nobodys => false,
            Self::WithoutData => kind != Kind::File,
            Self::All => true,
        }
    }
}

/// The states between the last sync and the crash.
struct Window<'a> {
    states: &'a [Model],
    /// The operation after which the first of them was.
    oldest: usize,
    times: Times,
}

impl Window<'_> {
    fn child(state: &Model, dir: Ino, name: &[u8]) -> Option<Ino> {
        state.contains(dir).then(|| state.inode(dir).entries()?.get(name).copied()).flatten()
    }

    fn children(&self, dir: Ino, name: &[u8]) -> BTreeSet<Ino> {
        self.distinct(dir).filter_map(|inode| inode?.entries()?.get(name).copied()).collect()
    }

    /// The inode in all states; once where it is the same in some that follow each other.
    fn distinct(&self, ino: Ino) -> impl Iterator<Item = Option<&Inode>> {
        let mut all = self.states.iter().map(move |state| state.contains(ino).then(|| state.inode(ino)));
        let mut before = None;
        std::iter::from_fn(move || {
            let next = all.by_ref().find(|&inode| before != Some(inode.map(std::ptr::from_ref)))?;
            before = Some(next.map(std::ptr::from_ref));
            Some(next)
        })
    }

    /// Whether the inode was in some state as the entry shows it.
    fn shows(&self, ino: Ino, entry: &TreeEntry) -> bool {
        self.states.iter().any(|state| is_like(state, ino, entry, self.times))
    }

    /// Whether the inode had a name in every state: without one it has no links.
    fn always_named(&self, ino: Ino) -> bool {
        self.distinct(ino).all(|inode| inode.is_some_and(|inode| inode.nlink > 0))
    }

    /// Whether a name may be a directory's second one, which does not show: the directory had it in some state, and is found by another name.
    fn may_be_second(&self, dir: Ino, name: &[u8], met: &BTreeMap<Vec<u8>, Met<'_>>) -> bool {
        let is_directory =
            |ino: Ino| self.states.iter().any(|state| state.contains(ino) && state.inode(ino).kind == Kind::Directory);
        self.children(dir, name)
            .into_iter()
            .any(|ino| is_directory(ino) && met.values().any(|found| found.inos.contains(&ino)))
    }

    /// The operation that put `ino` in the place of another file, by the name that it has had there since.
    fn replaced_at(&self, dir: Ino, name: &[u8], ino: Ino) -> Option<usize> {
        let named: Vec<_> = self.states.iter().map(|state| Self::child(state, dir, name)).collect();
        let index = named
            .iter()
            .rposition(|&named| named != Some(ino))
            .map(|index| index + 1)
            .filter(|&index| index < named.len())?;
        let before = named[index - 1]?;
        let is_file = |state: &Model, ino| state.contains(ino) && state.inode(ino).kind == Kind::File;
        (is_file(&self.states[index - 1], before) && is_file(&self.states[index], ino)).then_some(self.oldest + index)
    }
}

/// Directory and last name of a path.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

impl History {
    /// Whether what was `found` after a crash at `point` is allowed. The error says what is not.
    pub fn judge_usable(&self, point: usize, found: &Found) -> Result<(), String> {
        let (oldest, newest) = self.window_of_syncs(point);
        self.judge_from((oldest, oldest, newest), 0, Times::Nobodys, point, found)
    }

    /// As [`Self::judge_usable`], and what was answered is there. `with_data`: contents and sizes as well.
    pub fn judge_returned(&self, point: usize, found: &Found, with_data: bool) -> Result<(), String> {
        let (oldest, newest) = self.window(point);
        let returned = self.returned(point).max(oldest);
        let (contents, times) = if with_data { (returned, Times::All) } else { (0, Times::WithoutData) };
        self.judge_from((oldest, returned, newest), contents, times, point, found)
    }

    /// Names and attributes are those of states from `returned` on, contents those since operation `contents`, or since each file's sync.
    fn judge_from(
        &self,
        (oldest, returned, newest): (usize, usize, usize),
        contents: usize,
        times: Times,
        point: usize,
        found: &Found,
    ) -> Result<(), String> {
        let window = |oldest: usize| Window { states: &self.states()[oldest..=newest], oldest, times };
        let mut met = meet(&window(returned), found)?;
        for (index, ino) in self.fsyncs(point, returned) {
            fsynced_there(&window(index), ino, &mut met).map_err(|why| format!("fsync by operation {index}: {why}"))?;
        }
        tell_apart(&mut met)?;
        all_there(&window(returned), self.all_left(), &met)?;
        self.both_or_neither(&window(returned), &met)?;
        self.judge_contents_of(point, &window(oldest), contents, &met, found)
            .map_err(|why| format!("operations {oldest} to {newest}: {why}"))
    }

    /// Of an exchange both names show, or neither.
    fn both_or_neither(&self, window: &Window<'_>, met: &BTreeMap<Vec<u8>, Met<'_>>) -> Result<(), String> {
        for (index, names) in self.all_exchanges() {
            let Some(at) = index.checked_sub(window.oldest).filter(|&at| (1..window.states.len()).contains(&at)) else {
                continue;
            };
            let is_alone = names.iter().all(|name| {
                let named = |state| Window::child(state, name.dir, &name.name);
                window.states[..at].iter().all(|state| named(state) == Some(name.before))
                    && window.states[at..].iter().all(|state| named(state) == Some(name.after))
            });
            if !is_alone {
                continue;
            }
            // What each of the two may be, by where its directory may be.
            let may_be = |name: &ExchangedName, ino: Ino| {
                met.iter().any(|(path, found)| {
                    let (dir, last) = split(path);
                    !path.is_empty()
                        && last == name.name
                        && found.inos.contains(&ino)
                        && met[dir].inos.contains(&name.dir)
                })
            };
            let is_whole = |pick: fn(&ExchangedName) -> Ino| names.iter().all(|name| may_be(name, pick(name)));
            if !is_whole(|name| name.before) && !is_whole(|name| name.after) {
                let shown = names.each_ref().map(|name| text(&name.name));
                return Err(format!(
                    "{} and {} are neither as before nor as after they were exchanged",
                    shown[0], shown[1]
                ));
            }
        }
        Ok(())
    }

    fn judge_contents_of(
        &self,
        point: usize,
        window: &Window<'_>,
        contents: usize,
        met: &BTreeMap<Vec<u8>, Met<'_>>,
        found: &Found,
    ) -> Result<(), String> {
        for (path, name) in met.iter().filter(|(_, name)| name.entry.stat.kind == Kind::File) {
            let content = found.contents.get(&name.entry.stat.ino).ok_or("the content was not read")?;
            let (dir, last) = split(path);
            let mut reasons = Vec::new();
            let is_allowed = name.inos.iter().any(|&ino| {
                let replaced = met[dir].inos.iter().find_map(|&dir| window.replaced_at(dir, last, ino));
                let versions = self.versions_since(point, ino, replaced.unwrap_or(0).max(contents));
                let sizes: Vec<u64> = versions.iter().map(|version| version.size()).collect();
                let judged = judge_size(&sizes, content.size()).and_then(|()| self.judge_file(&versions, content));
                judged.map_err(|why| reasons.push(why)).is_ok()
            });
            if !is_allowed {
                return Err(format!("{}: {}", text(path), reasons.join("; or ")));
            }
        }
        Ok(())
    }
}

/// Finds out what the names that were found may be.
fn meet<'a>(window: &Window<'_>, found: &'a Found) -> Result<BTreeMap<Vec<u8>, Met<'a>>, String> {
    let mut met: BTreeMap<Vec<u8>, Met<'a>> = BTreeMap::new();
    let mut by_number: BTreeMap<u64, BTreeSet<Ino>> = BTreeMap::new();
    for entry in &found.tree {
        let mut inos = BTreeSet::from([ROOT]);
        if !entry.path.is_empty() {
            let (dir, name) = split(&entry.path);
            let parent = met.get(dir).ok_or_else(|| format!("{} lies in what was not found", text(&entry.path)))?;
            inos = parent.inos.iter().flat_map(|&dir| window.children(dir, name)).collect();
        }
        if inos.is_empty() {
            return Err(format!("{} never was there", text(&entry.path)));
        }
        inos.retain(|&ino| window.shows(ino, entry));
        if inos.is_empty() {
            return Err(format!("{} never was as it is: {entry:?}", text(&entry.path)));
        }
        if entry.stat.kind == Kind::Directory && by_number.contains_key(&entry.stat.ino) {
            return Err(format!("{} is a second name of a directory, and shows", text(&entry.path)));
        }
        let same = by_number.entry(entry.stat.ino).or_insert_with(|| inos.clone());
        same.retain(|ino| inos.contains(ino));
        met.insert(entry.path.clone(), Met { entry, inos });
    }
    for (path, name) in &mut met {
        name.inos = by_number[&name.entry.stat.ino].clone();
        if name.inos.is_empty() {
            return Err(format!("{} and another name are one file, and never were", text(path)));
        }
    }
    Ok(met)
}

/// A number that can be one inode of the model only is that one, so no other number is.
fn tell_apart(met: &mut BTreeMap<Vec<u8>, Met<'_>>) -> Result<(), String> {
    let mut by_number: BTreeMap<u64, BTreeSet<Ino>> = BTreeMap::new();
    let mut numbers: BTreeMap<Ino, BTreeSet<u64>> = BTreeMap::new();
    for name in met.values() {
        by_number.entry(name.entry.stat.ino).or_insert_with(|| name.inos.clone());
        for &ino in &name.inos {
            numbers.entry(ino).or_default().insert(name.entry.stat.ino);
        }
    }
    let mut known: Vec<u64> = by_number.iter().filter(|(_, inos)| inos.len() == 1).map(|(&number, _)| number).collect();
    while let Some(number) = known.pop() {
        let Some(&ino) = by_number[&number].first() else { continue };
        for &other in numbers[&ino].iter().filter(|&&other| other != number) {
            let inos = by_number.get_mut(&other).expect("a number that was found");
            if inos.remove(&ino) && inos.len() == 1 {
                known.push(other);
            }
        }
    }
    for (path, name) in met {
        name.inos = by_number[&name.entry.stat.ino].clone();
        if name.inos.is_empty() {
            return Err(format!("{} can only be what another file is", text(path)));
        }
    }
    Ok(())
}

/// Whether an inode was in this state as the entry shows it, but for links, size and contents, and of times but for those that count.
fn is_like(state: &Model, ino: Ino, entry: &TreeEntry, times: Times) -> bool {
    if !state.contains(ino) {
        return false;
    }
    let (stat, shown) = (state.stat(ino), &entry.stat);
    let target = match &state.inode(ino).body {
        crate::model::Body::Link(target) => Some(target),
        _ => None,
    };
    (stat.kind, stat.uid, stat.gid, stat.rdev) == (shown.kind, shown.uid, shown.gid, shown.rdev)
        && (stat.mode, stat.flags) == (shown.mode, shown.flags)
        && target == entry.target.as_ref()
        && (!times.count(stat.kind) || stat.mtime == shown.mtime)
        && state.all_xattrs(ino) == entry.xattrs
}

/// A file that was synced when the window began, and has had a name since, is there as it was in some state of the window; by each path
/// that has led to it all the time. What is there is that file, and no other that it may have replaced.
fn fsynced_there(window: &Window<'_>, ino: Ino, met: &mut BTreeMap<Vec<u8>, Met<'_>>) -> Result<(), String> {
    if !window.always_named(ino) {
        return Ok(());
    }
    let is_it = |name: &Met<'_>| name.inos.contains(&ino) && window.shows(ino, name.entry);
    if !met.values().any(is_it) {
        return Err(format!("inode {ino} of the model is lost, or as it was before"));
    }
    let paths = window.states[0].names().into_iter().filter(|entry| entry.stat.ino == ino).map(|entry| entry.path);
    for path in paths.filter(|path| window.states.iter().all(|state| state.find_exact(path) == Some(ino))) {
        let Some(number) = met.get(&path).filter(|name| is_it(name)).map(|name| name.entry.stat.ino) else {
            return Err(format!("{} is lost, or as it was before", text(&path)));
        };
        let same = met.values_mut().filter(|name| name.entry.stat.ino == number);
        same.for_each(|name| name.inos = BTreeSet::from([ino]));
    }
    Ok(())
}

/// Nothing is missing that was there all the time.
fn all_there(
    window: &Window<'_>,
    left: &[(usize, (Ino, Vec<u8>))],
    met: &BTreeMap<Vec<u8>, Met<'_>>,
) -> Result<(), String> {
    let is_left = |ino, name: &Vec<u8>| {
        let operations = window.oldest + 1..window.oldest + window.states.len();
        left.iter().any(|(index, (dir, other))| operations.contains(index) && (*dir, other) == (ino, name))
    };
    let mut places: BTreeMap<Ino, Vec<&Vec<u8>>> = BTreeMap::new();
    for (path, name) in met {
        name.inos.iter().for_each(|&ino| places.entry(ino).or_default().push(path));
    }
    let first = &window.states[0];
    for (ino, inode) in first.inodes().filter(|&(ino, _)| window.always_named(ino)) {
        let Some(places) = places.get(&ino) else {
            return Err(format!("inode {ino} of the model, {:?}, is lost", inode.kind));
        };
        for name in inode.entries().into_iter().flat_map(BTreeMap::keys) {
            let is_in =
                |inode: Option<&Inode>| inode.and_then(Inode::entries).is_some_and(|names| names.contains_key(name));
            if !window.distinct(ino).all(is_in) {
                continue;
            }
            let children = window.children(ino, name);
            let is_there = places.iter().any(|place| {
                let found = met.get(&crate::compare::join(place, name));
                found.is_some_and(|found| !found.inos.is_disjoint(&children))
            });
            let may_be_missing = is_left(ino, name) && window.may_be_second(ino, name, met);
            if !is_there && !may_be_missing {
                return Err(format!("{} in {} is lost", text(name), text(places[0])));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TICK_NS;
    use crate::op::{Change, Op, OpenHow, RenameHow, SetTime, Step, XattrHow};

    /// Two files with further names exchange two of them: with one of the two early no file is lost, and still it is wrong.
    #[test]
    fn of_an_exchange_both_names_show_or_neither() {
        let how = OpenHow { write: true, create: true, mode: 0o644, ..OpenHow::default() };
        let link = |source: &[u8], target: &[u8]| Op::Link { source: source.into(), target: target.into() };
        let ops = [
            Op::Open { slot: 0, path: b"a".to_vec(), how },
            Op::Open { slot: 0, path: b"b".to_vec(), how: OpenHow { mode: 0o600, ..how } },
            link(b"a", b"a2"),
            link(b"b", b"b2"),
            Op::Sync,
            Op::Rename { source: b"a".to_vec(), target: b"b".to_vec(), how: RenameHow::Exchange },
        ];
        let history = history(ops);
        let [a, b] = [b"a2", b"b2"].map(|name| history.model().find_exact(name).unwrap());
        for (names, is_allowed) in [([a, b], true), ([b, a], true), ([a, a], false), ([b, b], false)] {
            let mut tree = history.model().tree();
            for (name, ino) in [&b"a"[..], b"b"].into_iter().zip(names) {
                let stat = history.model().stat(ino);
                tree.iter_mut().find(|entry| entry.path == name).unwrap().stat = stat;
            }
            let contents = [a, b].map(|ino| (ino, history.model().inode(ino).content().unwrap().clone()));
            let judged = history.judge_usable(100, &Found { tree, contents: contents.into() });
            assert_eq!(judged.is_ok(), is_allowed, "{names:?}: {judged:?}");
        }
    }

    /// One file with an attribute, and what is found of it after a loss of power that `change` has been through.
    fn found_with(history: &History, path: &[u8], change: impl FnOnce(&mut TreeEntry)) -> Found {
        let mut found = found_as(history.model());
        change(found.tree.iter_mut().find(|entry| entry.path == path).unwrap());
        found
    }

    fn found_as(model: &Model) -> Found {
        let contents = model.inodes().filter_map(|(ino, inode)| Some((ino, inode.content()?.clone())));
        Found { tree: model.tree(), contents: contents.collect() }
    }

    fn without(mut found: Found, paths: &[&[u8]]) -> Found {
        found.tree.retain(|entry| !paths.contains(&&entry.path[..]));
        found
    }

    fn history(ops: impl IntoIterator<Item = Op>) -> History {
        let mut history = History::new(Model::new(0), 0);
        for (index, op) in ops.into_iter().enumerate() {
            history.apply(&Step { cred: 0, op }, index + 1).unwrap();
        }
        history
    }

    fn create() -> Op {
        open(0, b"a")
    }

    fn open(slot: usize, path: &[u8]) -> Op {
        let how = OpenHow { write: true, create: true, mode: 0o644, ..OpenHow::default() };
        Op::Open { slot, path: path.into(), how }
    }

    fn replace(source: &[u8], target: &[u8]) -> Op {
        Op::Rename { source: source.into(), target: target.into(), how: RenameHow::Replace }
    }

    fn set_xattr(value: &[u8]) -> Op {
        Op::SetXattr { path: b"a".into(), name: b"user.x".into(), value: value.into(), how: XattrHow::Set }
    }

    /// The oracle read the extended attributes of what it found, and compared them with nothing: a sync that left them out was good.
    #[test]
    fn attributes_that_were_synced_are_there() {
        let history = history([create(), set_xattr(b"old"), Op::Sync, set_xattr(b"new")]);
        let set = |value: &'static [u8]| {
            move |entry: &mut TreeEntry| drop(entry.xattrs.insert(b"user.x".into(), value.into()))
        };
        for (found, is_allowed) in [
            (found_with(&history, b"a", |_| {}), true),
            (found_with(&history, b"a", set(b"old")), true),
            (found_with(&history, b"a", set(b"other")), false),
            (found_with(&history, b"a", |entry| entry.xattrs.clear()), false),
        ] {
            let judged = history.judge_usable(100, &found);
            assert_eq!(judged.is_ok(), is_allowed, "{:?}: {judged:?}", found.tree);
        }
    }

    /// An fsync was good if the file was there, with whatever mode and attributes it had had at any time since the last sync of the volume.
    #[test]
    fn a_file_that_was_fsynced_is_as_it_was_then() {
        let fsync = Op::Fsync { slot: 0, data_only: false };
        let history = history([create(), set_xattr(b"old"), Op::Sync, set_xattr(b"new"), fsync]);
        let old = |entry: &mut TreeEntry| drop(entry.xattrs.insert(b"user.x".into(), b"old".into()));
        assert_eq!(history.judge_usable(5, &found_with(&history, b"a", |_| {})), Ok(()));
        assert_eq!(history.judge_usable(4, &found_with(&history, b"a", old)), Ok(()));
        let judged = history.judge_usable(5, &found_with(&history, b"a", old));
        assert!(judged.as_ref().is_err_and(|why| why.contains("fsync by operation 5")), "{judged:?}");
    }

    /// Order `sync` promises times, and nobody looked at them.
    #[test]
    fn times_of_what_returned_are_there() {
        let change = Change::Times { atime: None, mtime: Some(SetTime::At(77)) };
        let history = history([
            create(),
            Op::Mkdir { path: b"d".into(), mode: 0o755 },
            Op::SetAttr { path: b"d".into(), change },
        ]);
        let older = found_with(&history, b"d", |entry| entry.stat.mtime = 2 * TICK_NS);
        assert_eq!(history.judge_returned(2, &older, false), Ok(()));
        assert!(history.judge_returned(3, &older, false).is_err());
        assert_eq!(history.judge_usable(3, &older), Ok(()));
        assert_eq!(history.judge_returned(3, &found_with(&history, b"d", |_| {}), false), Ok(()));
    }

    /// A name that named another file after a rename was asked for no more: it could be gone altogether.
    #[test]
    fn a_name_stays_that_names_another_file() {
        let history = history([open(0, b"f"), Op::Sync, open(1, b"new"), replace(b"new", b"f")]);
        let [before, after] = [3, 4].map(|operation| found_as(&history.states()[operation]));
        let judge = |found: &Found| history.judge_usable(100, found);
        assert_eq!((judge(&before), judge(&after)), (Ok(()), Ok(())));
        for found in [without(before, &[b"f"]), without(after, &[b"f"])] {
            assert!(judge(&found).is_err_and(|why| why.contains("is lost")), "{:?}", found.tree);
        }
    }

    /// A name that a directory takes from another one, or leaves to a whiteout, names the one or the other. Only of one that it leaves as it takes another's name
    /// does the directory have a second name in between.
    #[test]
    fn a_name_that_directories_take_or_leave_shows() {
        let mkdir = |path: &[u8]| Op::Mkdir { path: path.into(), mode: 0o755 };
        let whiteout = Op::Rename { source: b"e".into(), target: b"p".into(), how: RenameHow::Whiteout };
        let taken = history([mkdir(b"e"), mkdir(b"p"), Op::Sync, replace(b"e", b"p")]);
        let left = history([mkdir(b"e"), mkdir(b"other"), Op::Sync, whiteout.clone()]);
        let both = history([mkdir(b"e"), mkdir(b"p"), Op::Sync, whiteout]);
        for (history, state, gone, is_allowed) in [
            (&taken, 3, &[][..], true),
            (&taken, 3, &[&b"p"[..]], false),
            (&taken, 3, &[b"e", b"p"], false),
            (&taken, 4, &[], true),
            (&taken, 4, &[b"p"], false),
            (&left, 3, &[], true),
            (&left, 3, &[b"e"], false),
            (&left, 4, &[b"e"], false),
            (&left, 4, &[b"e", b"p"], false),
            (&both, 4, &[b"e"], true),
            (&both, 4, &[b"p"], false),
        ] {
            let found = without(found_as(&history.states()[state]), gone);
            let judged = history.judge_usable(100, &found);
            assert_eq!(judged.is_ok(), is_allowed, "{:?}: {judged:?}", found.tree);
        }
    }

    /// A file replaced another one like it and was synced. Its place with the other one in it passed for the file: that one had had the name since the last
    /// sync of the volume, too.
    #[test]
    fn a_file_that_was_synced_is_not_what_it_replaced() {
        let write = |slot, tag| Op::Write { slot, offset: 0, len: 1024, tag };
        let history = history([
            open(0, b"f"),
            write(0, 1),
            Op::Sync,
            open(1, b"new"),
            write(1, 2),
            replace(b"new", b"f"),
            Op::Fsync { slot: 1, data_only: false },
        ]);
        let [old, new] = [3, 7].map(|operation| found_as(&history.states()[operation]));
        assert_eq!(history.judge_usable(7, &new), Ok(()));
        assert_eq!(history.judge_usable(6, &old), Ok(()));
        assert!(history.judge_usable(7, &old).is_err());
    }

    /// One file is the one that was synced. Another one, of the same attributes, passed for it as well.
    #[test]
    fn a_file_is_not_two() {
        let history = history([
            open(0, b"f"),
            Op::Sync,
            open(1, b"new"),
            Op::Write { slot: 1, offset: 0, len: 1024, tag: 2 },
            replace(b"new", b"f"),
            Op::Fsync { slot: 1, data_only: false },
            open(2, b"new"),
        ]);
        let mut found = found_as(history.model());
        assert_eq!(history.judge_usable(7, &found), Ok(()));
        let [file, other] = [&b"f"[..], b"new"].map(|path| history.model().find_exact(path).unwrap());
        found.contents.insert(other, found.contents[&file].clone());
        assert!(history.judge_usable(7, &found).is_err());
    }

    /// A directory that was found by two paths.
    #[test]
    fn a_directory_shows_by_one_name() {
        let history = history([Op::Mkdir { path: b"e".into(), mode: 0o755 }, Op::Sync, replace(b"e", b"p")]);
        let mut found = found_as(history.model());
        let mut second = found.tree.last().unwrap().clone();
        assert_eq!((history.judge_usable(100, &found), &second.path[..]), (Ok(()), &b"p"[..]));
        second.path = b"e".into();
        found.tree.insert(1, second);
        assert!(history.judge_usable(100, &found).is_err_and(|why| why.contains("second name")));
    }
}
