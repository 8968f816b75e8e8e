//! Seeded operations over a small name space, so that they meet.
//!
//! The generator looks at the model to aim at what exists; the list it leaves is plain data and is replayed, shrunk
//! and compared without it.

use crate::model::{Ino, Model, ROOT, attr_names};
use crate::op::*;
use crate::rng::Rng;

/// What kind of run is wanted.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Only user 0.
    pub root_only: bool,
    /// No `..` and no absolute links: the tree may be one directory of a larger one.
    pub confined: bool,
    /// Percent of steps that sync a file or all.
    pub sync_percent: u64,
    /// Percent of steps that write or truncate files.
    pub data_percent: u64,
    /// One in so many steps is a remount; 0: none.
    pub remount_every: u64,
    /// One in so many steps starts filling a big directory; 0: none.
    pub burst_every: u64,
    /// Entries of a burst are at most this.
    pub burst_max: u64,
    /// Inodes beyond which removing is preferred.
    pub inodes_max: usize,
    /// Largest ordinary offset of a write.
    pub offset_max: u64,
    /// Longest write.
    pub len_max: u64,
    /// Immutable and append-only flags.
    pub flags: bool,
    /// FIFOs, sockets and devices.
    pub special: bool,
    /// Enormous offsets and sizes.
    pub huge: bool,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            root_only: false,
            confined: false,
            sync_percent: 1,
            data_percent: 25,
            remount_every: 1500,
            burst_every: 1200,
            burst_max: 1500,
            inodes_max: 150,
            offset_max: 200_000,
            len_max: 20_000,
            flags: true,
            special: true,
            huge: true,
        }
    }
}

impl Profile {
    /// Short runs for crash tests: everything is small, syncs are frequent.
    pub fn crash() -> Self {
        Self {
            root_only: true,
            sync_percent: 10,
            data_percent: 40,
            remount_every: 0,
            burst_every: 150,
            burst_max: 80,
            inodes_max: 60,
            offset_max: 30_000,
            len_max: 9_000,
            huge: false,
            ..Self::default()
        }
    }
}

/// Many names in one directory, made and then removed.
#[derive(Clone, Debug)]
struct Burst {
    dir: PathBytes,
    made: u64,
    count: u64,
    removed: u64,
}

#[derive(Clone, Debug)]
pub struct Generator {
    rng: Rng,
    profile: Profile,
    burst: Option<Burst>,
    tag: u32,
    value: u32,
    steps: u64,
}

const NAMES: [&[u8]; 10] = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h i", b"\xff\x01", b"\xc3\xbc"];
const MODES: [u16; 14] =
    [0o644, 0o644, 0o755, 0o755, 0o777, 0o666, 0o600, 0o700, 0o4755, 0o2755, 0o1777, 0o2777, 0o050, 0];
const XATTRS: [&[u8]; 9] = [
    b"user.a",
    b"user.b",
    b"user.long name",
    b"trusted.a",
    b"security.a",
    attr_names::ACCESS_ACL,
    attr_names::DEFAULT_ACL,
    b"user.",
    b"other.a",
];
const DEPTH_MAX: usize = 5;

impl Generator {
    pub fn new(seed: u64, profile: Profile) -> Self {
        Self { rng: Rng::new(seed), profile, burst: None, tag: 0, value: 0, steps: 0 }
    }

    /// Highest write tag used so far.
    pub fn tag_max(&self) -> u32 {
        self.tag
    }

    /// The next step, given the model's state before it.
    pub fn next(&mut self, model: &Model) -> Step {
        self.steps += 1;
        if self.steps == 1 {
            return Step { cred: 0, op: Op::SetAttr { path: b"/".into(), change: Change::Mode(0o777) } };
        }
        if let Some(step) = self.burst_step() {
            return step;
        }
        let cred = if self.profile.root_only || self.rng.percent(50) { 0 } else { 1 + self.rng.index(3) };
        Step { cred, op: self.op(model) }
    }

    fn one_in(&mut self, every: u64) -> bool {
        every != 0 && self.rng.below(every) == 0
    }

    fn op(&mut self, model: &Model) -> Op {
        if self.one_in(self.profile.remount_every) {
            return Op::Remount;
        }
        if self.one_in(self.profile.burst_every) {
            self.start_burst(model);
        }
        let draw = self.rng.below(100);
        let (sync, data) = (self.profile.sync_percent, self.profile.data_percent);
        if draw < sync {
            return if self.rng.percent(25) { Op::Sync } else { self.fsync(model) };
        }
        if draw < sync + data {
            return self.data_op(model);
        }
        if model.inode_count() > self.profile.inodes_max && self.rng.percent(70) {
            return self.remove(model);
        }
        match self.rng.below(100) {
            0..10 => Op::Create { path: self.new_path(model), mode: self.mode() },
            10..19 => {
                // Mostly open to all, so that the other users get anywhere.
                let mode = if self.rng.percent(70) { 0o777 } else { self.mode() };
                Op::Mkdir { path: self.new_path(model), mode }
            }
            19..22 if self.profile.special => {
                let kind = *self.rng.pick(&[Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::BlockDevice, Kind::File]);
                let path = self.new_path(model);
                // Major 120 is for local use and belongs to no driver, should a host ever open one.
                Op::Mknod {
                    path,
                    kind,
                    mode: self.mode(),
                    rdev: if self.rng.percent(20) { 0 } else { 0x7800 + self.rng.below(256) },
                }
            }
            19..27 => Op::Symlink { target: self.target(model), path: self.new_path(model) },
            27..34 => Op::Link { source: self.path(model), target: self.new_path(model) },
            34..50 => self.rename(model),
            50..60 => self.remove(model),
            60..66 => self.inspect(model),
            66..74 => {
                let path = self.path(model);
                let change = self.change(model, &path);
                Op::SetAttr { path, change }
            }
            74..82 => self.xattr(model),
            82..92 => self.open(model),
            92..94 => {
                let slot = self.rng.index(SLOTS);
                Op::OpenTmpfile { slot, path: self.directory_path(model), mode: self.mode() }
            }
            94..96 => Op::LinkFile { slot: self.slot(model), path: self.new_path(model) },
            _ => Op::Close { slot: self.slot(model) },
        }
    }

    fn inspect(&mut self, model: &Model) -> Op {
        let path = self.path(model);
        match self.rng.below(6) {
            0 => Op::Stat { path, follow: true },
            1 => Op::Stat { path, follow: false },
            2 => {
                let is_link = |path: &PathBytes| model.find_link(path).is_some();
                let path = (0..8).map(|_| self.path(model)).find(is_link).unwrap_or(path);
                Op::Readlink { path }
            }
            3 => Op::ReadDir { path },
            4 => Op::ReadDir { path: self.directory_path(model) },
            _ => Op::Access { path, mask: self.rng.below(8) as u8 },
        }
    }

    fn rename(&mut self, model: &Model) -> Op {
        let how = match self.rng.below(10) {
            0 => RenameHow::NoReplace,
            1 => RenameHow::Exchange,
            2 if self.profile.special && self.rng.percent(70) => RenameHow::Whiteout,
            2 if self.profile.special => RenameHow::NoReplaceWhiteout,
            _ => RenameHow::Replace,
        };
        let source = self.path(model);
        let meets = how == RenameHow::Exchange || self.rng.percent(40);
        let target = if meets { self.path(model) } else { self.new_path(model) };
        Op::Rename { source, target, how }
    }

    fn remove(&mut self, model: &Model) -> Op {
        let (path, is_dir) = self.existing(model);
        // Now and then with the wrong call.
        let rmdir = is_dir != self.rng.percent(10);
        let path = self.decorate(path);
        if rmdir { Op::Rmdir { path } } else { Op::Unlink { path } }
    }

    fn mode(&mut self) -> u16 {
        *self.rng.pick(&MODES)
    }

    /// A directory, by random descent, and its depth.
    fn directory(&mut self, model: &Model) -> (PathBytes, Ino, usize) {
        let (mut path, mut dir, mut depth) = (Vec::new(), ROOT, 0);
        while depth < DEPTH_MAX && self.rng.percent(70) {
            let entries = model.inode(dir).entries().expect("a directory");
            let subdirs: Vec<_> = entries.iter().filter(|(_, ino)| model.inode(**ino).is_dir()).collect();
            if subdirs.is_empty() {
                break;
            }
            let (name, ino) = *self.rng.pick(&subdirs);
            path = crate::compare::join(&path, name);
            dir = *ino;
            depth += 1;
        }
        (path, dir, depth)
    }

    fn directory_path(&mut self, model: &Model) -> PathBytes {
        if self.rng.percent(10) {
            return self.path(model);
        }
        let (path, ..) = self.directory(model);
        if path.is_empty() { b"/".into() } else { self.decorate(path) }
    }

    /// A name that may or may not exist.
    fn name(&mut self) -> Vec<u8> {
        match self.rng.below(100) {
            0..3 => vec![b'L'; 255],
            3..5 => [vec![b'M'; 200], vec![b'0' + self.rng.below(10) as u8]].concat(),
            5 => vec![b'X'; 256],
            6..9 => format!("n{}", self.rng.below(40)).into_bytes(),
            _ => self.rng.pick(&NAMES).to_vec(),
        }
    }

    fn new_path(&mut self, model: &Model) -> PathBytes {
        let (path, ..) = self.directory(model);
        let name = self.name();
        let path = crate::compare::join(&path, &name);
        self.decorate(path)
    }

    /// A name that exists, if there is any, and whether it is a directory's.
    fn existing(&mut self, model: &Model) -> (PathBytes, bool) {
        let (path, dir, _) = self.directory(model);
        let entries = model.inode(dir).entries().expect("a directory");
        if entries.is_empty() {
            let is_root = path.is_empty();
            return (if is_root { b"a".to_vec() } else { path }, !is_root);
        }
        let (name, ino) = entries.iter().nth(self.rng.index(entries.len())).expect("in range");
        (crate::compare::join(&path, name), model.inode(*ino).is_dir())
    }

    /// Mostly a name that exists.
    fn path(&mut self, model: &Model) -> PathBytes {
        match self.rng.below(100) {
            0..12 => self.new_path(model),
            // Through a file, or below a link.
            12..16 => {
                let (path, _) = self.existing(model);
                crate::compare::join(&path, NAMES[self.rng.index(NAMES.len())])
            }
            16 => self.rng.pick(&[&b"/"[..], b".", b"./", b"//"]).to_vec(),
            17 if !self.profile.confined => b"..".into(),
            _ => {
                let (path, _) = self.existing(model);
                self.decorate(path)
            }
        }
    }

    /// Other ways to spell a path.
    fn decorate(&mut self, mut path: PathBytes) -> PathBytes {
        match self.rng.below(60) {
            0 => path.push(b'/'),
            1 => path.extend_from_slice(b"//"),
            2 => path.extend_from_slice(b"/."),
            3 if !self.profile.confined => path.extend_from_slice(b"/.."),
            4 => path = [b"./", &path[..]].concat(),
            5 => {
                let doubled = path.iter().flat_map(|&byte| if byte == b'/' { vec![byte; 2] } else { vec![byte] });
                path = doubled.collect();
            }
            6 if !self.profile.confined => path = [b"../", &path[..]].concat(),
            _ => {}
        }
        if self.rng.percent(40) {
            path.insert(0, b'/');
        }
        path
    }

    fn target(&mut self, model: &Model) -> Vec<u8> {
        match self.rng.below(20) {
            0 => Vec::new(),
            1 => [b"./".repeat(200), b"a".to_vec()].concat(),
            2 => self.name(),
            3 => b".".into(),
            4 if !self.profile.confined => b"..".into(),
            5 if !self.profile.confined => b"/".into(),
            6..12 => self.rng.pick(&NAMES).to_vec(),
            _ => {
                let (path, _) = self.existing(model);
                match self.profile.confined {
                    true => path.rsplit(|&byte| byte == b'/').next().expect("a name").to_vec(),
                    false => [b"/", &path[..]].concat(),
                }
            }
        }
    }

    fn time(&mut self) -> SetTime {
        match self.rng.below(4) {
            0 => SetTime::Now,
            1 => SetTime::At(-(self.rng.below(1 << 60) as i64)),
            _ => SetTime::At(self.rng.below(1 << 61) as i64),
        }
    }

    /// What an open file may still do once it has become immutable is left open, so that does not happen here.
    fn change(&mut self, model: &Model, path: &[u8]) -> Change {
        let ino = model.find(path);
        let open = (0..SLOTS).any(|slot| model.handle(slot).is_some_and(|handle| Some(handle.ino) == ino));
        // NODUMP and NOATIME of a directory may or may not pass to new files.
        let is_file = ino.is_some_and(|ino| model.inode(ino).kind == Kind::File);
        if self.profile.flags && self.rng.percent(15) {
            let flags: &[u32] = match (open, is_file) {
                (true, _) => &[0],
                (false, true) => &[0, 0, 1, 2, 4, 8],
                (false, false) => &[0, 0, 1, 2],
            };
            return Change::Flags(*self.rng.pick(flags));
        }
        match self.plain_change(true) {
            // Closed directories keep the other users out of all below, so most are opened again.
            Change::Mode(_) if !is_file && self.rng.percent(60) => Change::Mode(0o777),
            change => change,
        }
    }

    fn plain_change(&mut self, sizes: bool) -> Change {
        let id = |rng: &mut Rng, ids: &[u32]| (!rng.percent(30)).then(|| *rng.pick(ids));
        match self.rng.below(10) {
            0..3 => Change::Mode(self.mode()),
            3..6 => {
                let uid = id(&mut self.rng, &[0, 1000, 1001, 1002]);
                let gid = id(&mut self.rng, &[0, 1000, 1001, 100, 200]);
                if uid.is_none() && gid.is_none() { Change::Mode(self.mode()) } else { Change::Owner { uid, gid } }
            }
            6..8 if sizes => Change::Size(self.size()),
            _ => {
                let (atime, mtime) = (self.time(), self.time());
                match self.rng.below(5) {
                    0 if atime != SetTime::Now => Change::Times { atime: Some(atime), mtime: None },
                    1 if mtime != SetTime::Now => Change::Times { atime: None, mtime: Some(mtime) },
                    2 => Change::Times { atime: Some(atime), mtime: Some(mtime) },
                    _ => Change::Times { atime: Some(SetTime::Now), mtime: Some(SetTime::Now) },
                }
            }
        }
    }

    fn acl_value(&mut self) -> Vec<u8> {
        use crate::model::acl::{AclEntry, Tag, encode};
        let perm = |rng: &mut Rng| *rng.pick(&[0, 4, 5, 6, 7, 7, 7, 1, 2]);
        let entry = |rng: &mut Rng, tag, id| AclEntry { tag, perm: perm(rng), id };
        let rng = &mut self.rng;
        let mut acl = vec![entry(rng, Tag::UserObj, u32::MAX)];
        for (tag, ids) in [(Tag::User, [1000, 1001, 1002]), (Tag::Group, [100, 200, 1000])] {
            if tag == Tag::Group {
                acl.push(entry(rng, Tag::GroupObj, u32::MAX));
            }
            for id in ids {
                if rng.percent(30) {
                    acl.push(entry(rng, tag, id));
                }
            }
        }
        // Without a mask beside named entries it is invalid: wanted now and then.
        if rng.percent(if acl.len() > 2 { 95 } else { 20 }) {
            acl.push(entry(rng, Tag::Mask, u32::MAX));
        }
        if !rng.percent(3) {
            acl.push(entry(rng, Tag::Other, u32::MAX));
        }
        encode(&acl)
    }

    fn xattr(&mut self, model: &Model) -> Op {
        let path = self.path(model);
        let mut name = self.rng.pick(&XATTRS).to_vec();
        let draw = self.rng.below(10);
        let present: Vec<_> =
            model.find(&path).map(|ino| model.all_xattrs(ino).into_keys().collect()).unwrap_or_default();
        if draw < 5 && !present.is_empty() && self.rng.percent(70) {
            name = self.rng.pick(&present).clone();
        }
        match draw {
            0..2 => Op::GetXattr { path, name },
            2 => Op::ListXattr { path },
            3..5 => Op::RemoveXattr { path, name },
            _ => {
                let how = *self.rng.pick(&[XattrHow::Set, XattrHow::Set, XattrHow::Create, XattrHow::Replace]);
                let value = if name.starts_with(b"system.") {
                    self.acl_value()
                } else {
                    self.value += 1;
                    let len = *self.rng.pick(&[4, 10, 40, 200, 700]);
                    crate::pattern::bytes(self.value, 0, len)
                };
                Op::SetXattr { path, name, value, how }
            }
        }
    }

    fn open(&mut self, model: &Model) -> Op {
        let rng = &mut self.rng;
        let slot = rng.index(SLOTS);
        let access = rng.below(4);
        let write = access != 0;
        let how = OpenHow {
            read: access != 1,
            write,
            append: write && rng.percent(15),
            truncate: rng.percent(12),
            create: rng.percent(50),
            exclusive: rng.percent(15),
            no_follow: rng.percent(15),
            sync: rng.percent(3),
            mode: *rng.pick(&MODES),
        };
        let how = OpenHow { exclusive: how.exclusive && how.create, ..how };
        let path = if how.create && self.rng.percent(50) { self.new_path(model) } else { self.path(model) };
        Op::Open { slot, path, how }
    }

    /// Mostly one that is open.
    fn slot(&mut self, model: &Model) -> usize {
        let open: Vec<usize> = (0..SLOTS).filter(|&slot| model.handle(slot).is_some()).collect();
        if open.is_empty() || self.rng.percent(3) { self.rng.index(SLOTS) } else { *self.rng.pick(&open) }
    }

    fn fsync(&mut self, model: &Model) -> Op {
        Op::Fsync { slot: self.slot(model), data_only: self.rng.percent(25) }
    }

    fn size(&mut self) -> u64 {
        match self.rng.below(20) {
            0 if self.profile.huge => *self.rng.pick(&[i64::MAX as u64, 1 << 40, 1 << 62]),
            0..6 => 0,
            6..10 => self.rng.below(600),
            _ => self.rng.below(self.profile.offset_max),
        }
    }

    fn offset(&mut self) -> u64 {
        match self.rng.below(40) {
            0 if self.profile.huge => (1 << *self.rng.pick(&[31, 32, 40, 50])) + self.rng.below(10_000),
            0..12 => 0,
            12..20 => self.rng.below(8) * 4096,
            20..28 => self.rng.below(1000),
            _ => self.rng.below(self.profile.offset_max),
        }
    }

    fn len(&mut self) -> u64 {
        match self.rng.below(10) {
            0..3 => 1 + self.rng.below(100),
            3..6 => 512 * (1 + self.rng.below(16)),
            6 => self.rng.below(10),
            _ => self.rng.below(self.profile.len_max),
        }
    }

    fn data_op(&mut self, model: &Model) -> Op {
        let slot = self.slot(model);
        if model.handle(slot).is_none() {
            return self.open(model);
        }
        match self.rng.below(20) {
            0..10 => {
                self.tag += 1;
                let size = model.handle(slot).map_or(0, |handle| model.inode(handle.ino).size());
                let at_end = size < self.profile.offset_max && self.rng.percent(40);
                let offset = if at_end { size } else { self.offset() };
                Op::Write { slot, offset, len: self.len() as usize, tag: self.tag }
            }
            10..13 => Op::Read { slot, offset: self.offset(), len: self.len() as usize * 2 },
            13 => Op::Truncate { slot, size: self.size() },
            14..16 => {
                let how = *self.rng.pick(&[
                    AllocateHow::Extend,
                    AllocateHow::KeepSize,
                    AllocateHow::Punch,
                    AllocateHow::Punch,
                    AllocateHow::Zero { keep_size: false },
                    AllocateHow::Zero { keep_size: true },
                ]);
                Op::Allocate { slot, how, offset: self.offset(), len: self.len() }
            }
            // Seeking in directories is each file system's own affair.
            16..18 if model.handle(slot).is_some_and(|handle| model.inode(handle.ino).is_dir()) => {
                Op::HandleStat { slot }
            }
            16 => Op::SeekData { slot, offset: self.offset() },
            17 => Op::SeekHole { slot, offset: self.offset() },
            18 => Op::HandleStat { slot },
            _ => Op::HandleSetAttr { slot, change: self.plain_change(false) },
        }
    }

    fn start_burst(&mut self, model: &Model) {
        let (dir, ..) = self.directory(model);
        let count = 4 + self.rng.below(1 + self.rng.clone().below(self.profile.burst_max));
        self.burst = Some(Burst { dir, made: 0, count, removed: 0 });
    }

    /// While a burst is on, nine steps in ten belong to it.
    fn burst_step(&mut self) -> Option<Step> {
        if self.rng.percent(10) {
            return None;
        }
        let burst = self.burst.as_mut()?;
        let name = |index: u64| {
            let name = format!("big{index:04}{}", "-".repeat((index * 7 % 23) as usize));
            crate::compare::join(&burst.dir, name.as_bytes())
        };
        let op = if burst.made < burst.count {
            burst.made += 1;
            let path = name(burst.made);
            match burst.made % 16 {
                0 => Op::Mkdir { path, mode: 0o755 },
                1 => Op::Symlink { target: b"a".into(), path },
                _ => Op::Create { path, mode: 0o644 },
            }
        } else if burst.removed < burst.count {
            burst.removed += 1;
            // Not in the order of making: a stride that visits all.
            let stride = [1, 7, 11, 13, 17, 19].into_iter().find(|stride| *stride != 1 && burst.count % stride != 0);
            let index = 1 + burst.removed * stride.unwrap_or(1) % burst.count;
            let path = name(index);
            if index % 16 == 0 { Op::Rmdir { path } } else { Op::Unlink { path } }
        } else {
            self.burst = None;
            return None;
        };
        Some(Step { cred: 0, op })
    }
}

/// A run of `count` steps, and the model after it.
pub fn run(seed: u64, count: usize, profile: Profile) -> (Vec<Step>, Model) {
    let mut generator = Generator::new(seed, profile);
    let mut model = Model::new(0);
    let steps = (0..count).map(|_| {
        let step = generator.next(&model);
        let _ = model.apply(&step);
        step
    });
    (steps.collect(), model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn kind(op: &Op) -> String {
        let text = format!("{op:?}");
        text.split([' ', '{']).next().unwrap_or_default().to_string()
    }

    #[test]
    fn every_operation_both_succeeds_and_fails() {
        let mut generator = Generator::new(1, Profile { burst_every: 5000, ..Profile::default() });
        let mut model = Model::new(0);
        let mut seen: BTreeMap<String, BTreeMap<String, u32>> = BTreeMap::new();
        for index in 0..60_000 {
            let step = generator.next(&model);
            let answer = model.apply(&step).map(|_| ()).map_or_else(|errno| format!("{errno:?}"), |()| "ok".into());
            *seen.entry(kind(&step.op)).or_default().entry(answer).or_default() += 1;
            if index % 500 == 0 {
                model.assert_sound();
            }
        }
        assert_eq!(seen.len(), 32, "{:?}", seen.keys());
        for (kind, answers) in &seen {
            assert!(answers.contains_key("ok"), "{kind}: {answers:?}");
            let infallible = ["Sync", "Remount", "Fsync", "HandleStat"].contains(&kind.as_str());
            assert!(infallible || answers.len() > 1, "{kind}: {answers:?}");
            let good = answers["ok"] * 100 / answers.values().sum::<u32>();
            assert!(good >= 5, "{kind} succeeds in {good} of 100: {answers:?}");
        }
    }

    #[test]
    fn same_seed_same_run() {
        let (a, model_a) = run(5, 3000, Profile::default());
        let (b, model_b) = run(5, 3000, Profile::default());
        assert_eq!(a, b);
        assert_eq!(model_a.tree(), model_b.tree());
        assert_ne!(a, run(6, 3000, Profile::default()).0);
    }
}
