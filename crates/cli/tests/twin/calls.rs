//! Programs of system calls: what each step is, and a generator of them.
//!
//! A program depends on its seed alone. No step depends on an answer, so each process makes the whole program by itself and
//! is told numbers of steps, and a program from which steps were left out is a program, too.

use myriad_sim::rng::Rng;
use nix::libc;

/// One system call, or a few that belong together, by one process.
#[derive(Clone, Debug)]
pub struct Step {
    pub actor: usize,
    pub call: Call,
}

/// Who a process is.
#[derive(Clone, Copy, Debug)]
pub struct Actor {
    pub name: &'static str,
    pub uid: u32,
    pub gid: u32,
    pub groups: &'static [u32],
    pub umask: u32,
    /// User 0 that acts as this user and group in a file system's eyes, as file servers do.
    pub fsuid: Option<(u32, u32)>,
    /// User 0 without the capabilities to pass permission checks, or without any.
    pub lacks: Lacks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacks {
    Nothing,
    Passing,
    Everything,
}

const NOBODY: Actor =
    Actor { name: "root", uid: 0, gid: 0, groups: &[], umask: 0o022, fsuid: None, lacks: Lacks::Nothing };

pub const ACTORS: [Actor; 8] = [
    NOBODY,
    Actor { name: "anna", uid: 1000, gid: 1000, groups: &[100], umask: 0o002, ..NOBODY },
    Actor { name: "bert", uid: 1001, gid: 1001, groups: &[100, 200], umask: 0o077, ..NOBODY },
    Actor { name: "carl", uid: 1002, gid: 200, umask: 0, ..NOBODY },
    Actor { name: "anna again", uid: 1000, gid: 1000, groups: &[200], ..NOBODY },
    Actor { name: "root without CAP_DAC_OVERRIDE", lacks: Lacks::Passing, ..NOBODY },
    Actor { name: "root with fsuid 1000", groups: &[100], fsuid: Some((1000, 1000)), ..NOBODY },
    Actor { name: "root without capabilities", lacks: Lacks::Everything, ..NOBODY },
];

/// Those whom a mount without `allow_other` lets in.
pub const ROOTS: &[usize] = &[0, 5, 6, 7];
pub const ALL: &[usize] = &[0, 1, 2, 3, 4, 5, 6, 7];

/// Open files that a process may have at once.
pub const SLOTS: usize = 4;
/// The same of mappings.
pub const MAPS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    Posix,
    Ofd,
    Flock,
}

#[derive(Clone, Debug)]
pub enum Call {
    Open {
        slot: usize,
        path: &'static str,
        flags: i32,
        mode: u32,
    },
    OpenUnnamed {
        slot: usize,
        path: &'static str,
        flags: i32,
        mode: u32,
    },
    LinkOpen {
        slot: usize,
        path: &'static str,
    },
    Close {
        slot: usize,
    },
    Read {
        slot: usize,
        at: Option<u64>,
        len: usize,
    },
    Write {
        slot: usize,
        at: Option<u64>,
        len: usize,
        tag: u32,
    },
    Seek {
        slot: usize,
        to: i64,
        whence: u8,
    },
    /// After an fsync, where data and holes are.
    Extents {
        slot: usize,
    },
    /// All data, read as those read who pass over holes.
    CopyByHoles {
        path: &'static str,
    },
    Ftruncate {
        slot: usize,
        size: u64,
    },
    Truncate {
        path: &'static str,
        size: u64,
    },
    Allocate {
        slot: usize,
        mode: u32,
        at: u64,
        len: u64,
    },
    CopyRange {
        from: usize,
        from_at: u64,
        to: usize,
        to_at: u64,
        len: usize,
    },
    Fsync {
        slot: usize,
        data_only: bool,
    },
    Map {
        map: usize,
        slot: usize,
        len: usize,
    },
    Store {
        map: usize,
        at: usize,
        len: usize,
        tag: u32,
    },
    Load {
        map: usize,
        at: usize,
        len: usize,
    },
    SyncMap {
        map: usize,
    },
    Unmap {
        map: usize,
    },
    Rename {
        from: &'static str,
        to: &'static str,
        flags: u32,
    },
    Link {
        from: &'static str,
        to: &'static str,
        follow: bool,
    },
    Symlink {
        target: &'static str,
        path: &'static str,
    },
    Readlink {
        path: &'static str,
    },
    Unlink {
        path: &'static str,
    },
    Rmdir {
        path: &'static str,
    },
    Mkdir {
        path: &'static str,
        mode: u32,
    },
    Mknod {
        path: &'static str,
        kind: u32,
        mode: u32,
        rdev: u64,
    },
    Chmod {
        path: &'static str,
        mode: u32,
    },
    Fchmod {
        slot: usize,
        mode: u32,
    },
    Chown {
        path: &'static str,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    },
    Fchown {
        slot: usize,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Times {
        path: &'static str,
        atime: Time,
        mtime: Time,
        follow: bool,
    },
    FileTimes {
        slot: usize,
        atime: Time,
        mtime: Time,
    },
    SetAttribute {
        path: &'static str,
        name: &'static str,
        len: usize,
        how: u32,
        tag: u8,
    },
    GetAttribute {
        path: &'static str,
        name: &'static str,
    },
    ListAttributes {
        path: &'static str,
    },
    RemoveAttribute {
        path: &'static str,
        name: &'static str,
    },
    SetAcl {
        path: &'static str,
        is_default: bool,
        entries: usize,
    },
    RemoveAcl {
        path: &'static str,
        is_default: bool,
    },
    SetFlags {
        path: &'static str,
        flags: u32,
    },
    Lock {
        slot: usize,
        kind: LockKind,
        what: i32,
        at: i64,
        len: i64,
    },
    Stat {
        path: &'static str,
        follow: bool,
    },
    /// The mode alone, for which the kernel may have no need to ask, though it would for the rest.
    Mode {
        path: &'static str,
    },
    Fstat {
        slot: usize,
    },
    Access {
        path: &'static str,
        mask: u32,
        effective: bool,
    },
    List {
        path: &'static str,
    },
    /// Reads so many entries of an open directory, and remembers the place before them.
    ListSome {
        slot: usize,
        count: usize,
    },
    /// Reads on to the end: of names that nobody makes or removes, each was listed once since the beginning.
    ListRest {
        slot: usize,
    },
    /// Goes back to the place remembered: what follows is what followed then.
    ListAgain {
        slot: usize,
    },
    /// A program put into a file, by whoever may.
    Plant {
        path: &'static str,
        is_script: bool,
    },
    Execute {
        path: &'static str,
    },
    Umask {
        mask: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    Omit,
    Now,
    At(i64, u32),
}

/// Names in a program's directory. Files and directories take turns at most of them.
const FILES: &[&str] = &["f", "g", "d/f", "d/g", "e/f", "t/f", "t/g", "f", "d/f"];
const DIRECTORIES: &[&str] = &["d", "e", "t", "d/sub", "e/sub", ".", "many"];
const LINKS: &[&str] = &["l", "d/l", "t/l"];
const ODD: &[&str] = &["no/such", "f/below", "d/", "f/", "", "d/../f", "l/f", "e/sub/deep", "./e/./f", "d//g"];
/// Names of 255 bytes, which is the most, and of one more.
const LONGEST: &str = concat!(
    "n23456789012345678901234567890123456789012345678901234567890123",
    "n23456789012345678901234567890123456789012345678901234567890123",
    "n23456789012345678901234567890123456789012345678901234567890123",
    "n23456789012345678901234567890123456789012345678901234567890123"
);
const TOO_LONG: &str = concat!(
    "n234567890123456789012345678901234567890123456789012345678901234",
    "n234567890123456789012345678901234567890123456789012345678901234",
    "n234567890123456789012345678901234567890123456789012345678901234",
    "n234567890123456789012345678901234567890123456789012345678901234"
);
const ATTRIBUTES: &[&str] = &[
    "user.a",
    "user.b",
    "user.a",
    "trusted.t",
    "security.other",
    "security.capability",
    "user.",
    "nonsense",
    "none.x",
];

/// Files of the directory `many` that stay for as long as it does.
pub const STAYING: usize = 40;
/// What names of those begin with.
pub const STAYS: &str = "stays";
pub const VOLATILE: &[&str] = &["many/a", "many/b", "many/c", "many/d"];

/// Every path that the observer looks at.
pub fn observed() -> Vec<&'static str> {
    let mut paths: Vec<&str> = [FILES, DIRECTORIES, LINKS, &["e/sub/deep", LONGEST], VOLATILE].concat();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// What programs of a set of options consist of.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    pub actors: &'static [usize],
    pub acls: bool,
}

struct Generator {
    rng: Rng,
    profile: Profile,
    /// What each process may have in its slots: the flags of the last attempt.
    open: [[Option<i32>; SLOTS]; ACTORS.len()],
    /// A theme: the kinds of calls that a stretch of the program prefers, and paths it prefers.
    theme: Theme,
    favourite: &'static str,
    actors: Vec<usize>,
    steps: Vec<Step>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Theme {
    Data,
    Names,
    Attributes,
    Everything,
}

/// The program of a seed.
pub fn program(seed: u64, profile: Profile, count: usize) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    let mut generator = Generator {
        theme: Theme::Everything,
        favourite: "f",
        open: [[None; SLOTS]; ACTORS.len()],
        actors: profile.actors.to_vec(),
        rng: rng.split(),
        profile,
        steps: Vec::new(),
    };
    generator.begin();
    while generator.steps.len() < count {
        if generator.steps.len() % 40 == 0 {
            generator.turn();
        }
        generator.step();
    }
    generator.steps.truncate(count);
    generator.steps
}

impl Generator {
    fn by(&mut self, actor: usize, call: Call) {
        self.steps.push(Step { actor, call });
    }

    /// A few directories and files, so that there is something to work on.
    fn begin(&mut self) {
        for (path, mode) in [("d", 0o777), ("e", 0o777), ("t", 0o777)] {
            self.by(0, Call::Mkdir { path, mode });
        }
        for (path, mode) in [("d", 0o777), ("e", 0o2777), ("t", 0o1777), ("many", 0o777)] {
            self.by(0, Call::Chmod { path, mode });
        }
        let actors = self.profile.actors;
        for path in ["f", "g", "d/f", "t/f"] {
            let actor = *self.rng.pick(actors);
            self.by(actor, Call::Mknod { path, kind: libc::S_IFREG, mode: 0o666, rdev: 0 });
        }
    }

    fn turn(&mut self) {
        let rng = &mut self.rng;
        self.theme = *rng.pick(&[Theme::Data, Theme::Names, Theme::Attributes, Theme::Everything, Theme::Data]);
        self.favourite = *rng.pick(FILES);
        let all = self.profile.actors;
        // Few processes meet more often.
        let count = 1 + rng.index(4);
        self.actors = (0..count).map(|_| *rng.pick(all)).collect();
    }

    /// A file that changes its owner's rights while somebody has it open: few programs would come upon all of these in
    /// this order.
    fn set_id(&mut self) {
        let path = self.file();
        let (owner, writer) = (*self.rng.pick(self.profile.actors), *self.rng.pick(self.profile.actors));
        let (slot, mode, tag) =
            (self.rng.index(SLOTS), *self.rng.pick(&[0o6777, 0o4777, 0o2777, 0o6711, 0o2767]), self.tag());
        let direct = if self.rng.percent(30) { libc::O_DIRECT } else { 0 };
        let flags = libc::O_WRONLY | libc::O_APPEND | direct;
        self.by(owner, Call::Plant { path, is_script: false });
        self.open[writer][slot] = Some(flags);
        self.by(writer, Call::Open { slot, path, flags, mode: 0 });
        if self.rng.percent(50) {
            self.by(writer, Call::Write { slot, at: None, len: 10, tag });
        }
        self.by(owner, Call::Chmod { path, mode });
        let change = match self.rng.below(4) {
            0 => Call::Ftruncate { slot, size: 100_000 },
            1 => Call::Truncate { path, size: 100_000 },
            _ => Call::Write { slot, at: None, len: 10, tag: tag + 1 },
        };
        self.by(writer, change);
        let looks = *self.rng.pick(&[owner, writer]);
        self.by(looks, Call::Mode { path });
        let who = *self.rng.pick(self.profile.actors);
        self.by(who, Call::Execute { path });
    }

    fn step(&mut self) {
        if self.rng.percent(1) {
            return self.set_id();
        }
        let theme = match self.theme {
            Theme::Everything => *self.rng.pick(&[Theme::Data, Theme::Names, Theme::Attributes]),
            theme if self.rng.percent(80) => theme,
            _ => Theme::Attributes,
        };
        let actor = *self.rng.pick(&self.actors.clone());
        let call = match theme {
            Theme::Data => self.data(actor),
            Theme::Names => self.names(actor),
            Theme::Attributes | Theme::Everything => self.attributes(actor),
        };
        if let Call::Open { slot, flags, .. } | Call::OpenUnnamed { slot, flags, .. } = call {
            self.open[actor][slot] = Some(flags);
        }
        self.by(actor, call);
    }

    fn file(&mut self) -> &'static str {
        match self.rng.below(100) {
            0..50 => self.favourite,
            50..92 => self.rng.pick::<&str>(FILES),
            92..95 => self.rng.pick::<&str>(LINKS),
            95..97 => self.rng.pick::<&str>(DIRECTORIES),
            _ => self.rng.pick::<&str>(ODD),
        }
    }

    fn path(&mut self) -> &'static str {
        match self.rng.below(100) {
            0..25 => self.favourite,
            25..60 => self.rng.pick::<&str>(FILES),
            60..78 => self.rng.pick::<&str>(DIRECTORIES),
            78..86 => self.rng.pick::<&str>(LINKS),
            86..90 => self.rng.pick::<&str>(VOLATILE),
            90..91 => self.rng.pick::<&str>(&[LONGEST, TOO_LONG]),
            _ => self.rng.pick::<&str>(ODD),
        }
    }

    /// A slot of this process, more likely one that has something in it.
    fn slot(&mut self, actor: usize) -> usize {
        let used: Vec<usize> = (0..SLOTS).filter(|&slot| self.open[actor][slot].is_some()).collect();
        if used.is_empty() || self.rng.percent(3) { self.rng.index(SLOTS) } else { *self.rng.pick(&used) }
    }

    fn mode(&mut self) -> u32 {
        match self.rng.below(8) {
            0 => self.rng.below(0o10000) as u32,
            1 => self.rng.below(0o1000) as u32,
            _ => *self
                .rng
                .pick(&[0o666, 0o644, 0o600, 0o777, 0o755, 0o4755, 0o2755, 0o6777, 0o2745, 0o444, 0o4711, 0o711, 0]),
        }
    }

    fn offset(&mut self) -> u64 {
        let rng = &mut self.rng;
        match rng.below(10) {
            0..3 => rng.below(300),
            3..6 => rng.below(20) * 4096,
            6..8 => (rng.below(20) * 4096 + rng.below(16)).saturating_sub(8),
            8 => rng.below(80_000),
            _ => rng.below(3) * 1_000_000 + rng.below(5000),
        }
    }

    fn len(&mut self) -> usize {
        let rng = &mut self.rng;
        match rng.below(10) {
            0 => 0,
            1..4 => rng.index(300) + 1,
            4..7 => (rng.index(4) + 1) * 4096,
            7..9 => rng.index(20_000) + 1,
            _ => rng.index(200_000) + 1,
        }
    }

    fn tag(&self) -> u32 {
        self.steps.len() as u32 + 1
    }

    fn open(&mut self, actor: usize) -> Call {
        let path = self.file();
        let rng = &mut self.rng;
        let mut flags = *rng.pick(&[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR, libc::O_RDWR]);
        for (percent, flag) in [
            (45, libc::O_CREAT),
            (8, libc::O_EXCL),
            (15, libc::O_TRUNC),
            (15, libc::O_APPEND),
            (12, libc::O_DIRECT),
            (5, libc::O_SYNC),
            (4, libc::O_DSYNC),
            (5, libc::O_NOFOLLOW),
            (2, libc::O_DIRECTORY),
            (3, libc::O_NOATIME),
            (2, libc::O_PATH),
        ] {
            if rng.percent(percent) {
                flags |= flag;
            }
        }
        // What is made with O_CREAT and O_DIRECTORY depends on the kernel's version alone.
        if flags & libc::O_DIRECTORY != 0 {
            flags &= !libc::O_CREAT;
        }
        let slot = rng.index(SLOTS);
        let mode = self.mode();
        // Who is in the slot goes, whatever comes of this.
        self.open[actor][slot] = None;
        Call::Open { slot, path, flags, mode }
    }

    fn data(&mut self, actor: usize) -> Call {
        let slot = self.slot(actor);
        let is_empty = self.open[actor][slot].is_none();
        if is_empty || self.rng.percent(12) {
            return self.open(actor);
        }
        let (at, len, tag) = (self.offset(), self.len(), self.tag());
        let map = self.rng.index(MAPS);
        match self.rng.below(100) {
            0..18 => {
                let at = self.rng.percent(75).then_some(at);
                Call::Write { slot, at, len, tag }
            }
            18..30 => {
                let at = self.rng.percent(75).then_some(at);
                Call::Read { slot, at, len }
            }
            30..34 => Call::Ftruncate { slot, size: at },
            34..36 => Call::Truncate { path: self.file(), size: at },
            36..43 => {
                let mode = *self.rng.pick(&[
                    0,
                    0,
                    libc::FALLOC_FL_KEEP_SIZE,
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    libc::FALLOC_FL_ZERO_RANGE,
                    libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
                    libc::FALLOC_FL_PUNCH_HOLE,
                ]) as u32;
                Call::Allocate { slot, mode, at, len: len as u64 }
            }
            43..48 => Call::Extents { slot },
            48..53 => Call::CopyByHoles { path: self.file() },
            53..56 => {
                let (to, to_at) = (self.slot(actor), self.offset());
                Call::CopyRange { from: slot, from_at: at, to, to_at, len }
            }
            56..60 => Call::Fsync { slot, data_only: self.rng.percent(50) },
            60..65 => Call::Map { map, slot, len: (len / 4096 + 1) * 4096 },
            65..74 => Call::Store { map, at: (at % 70_000) as usize, len: len.min(9000), tag },
            74..80 => Call::Load { map, at: (at % 70_000) as usize, len: len.min(9000) },
            80..82 => Call::SyncMap { map },
            82..84 => Call::Unmap { map },
            84..86 => {
                let whence = self.rng.below(3) as u8;
                Call::Seek { slot, to: at as i64 - 200, whence }
            }
            86..88 => Call::Close { slot },
            88..92 => Call::Fstat { slot },
            92..95 => self.lock(slot),
            95..97 => Call::Fchmod { slot, mode: self.mode() },
            97..98 => Call::LinkOpen { slot, path: self.path() },
            _ => Call::Stat { path: self.file(), follow: true },
        }
    }

    fn lock(&mut self, slot: usize) -> Call {
        let rng = &mut self.rng;
        let kind = *rng.pick(&[LockKind::Posix, LockKind::Posix, LockKind::Ofd, LockKind::Flock]);
        let what = *rng.pick(&[libc::F_RDLCK, libc::F_WRLCK, libc::F_WRLCK, libc::F_UNLCK]);
        let at = rng.below(8) as i64 * 10;
        let len = rng.below(4) as i64 * 15;
        Call::Lock { slot, kind, what, at, len }
    }

    fn names(&mut self, actor: usize) -> Call {
        let mode = self.mode();
        match self.rng.below(100) {
            0..12 => Call::Unlink { path: self.path() },
            12..30 => {
                let flags = *self.rng.pick(&[
                    0,
                    0,
                    0,
                    libc::RENAME_NOREPLACE,
                    libc::RENAME_EXCHANGE,
                    libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE,
                    libc::RENAME_WHITEOUT,
                ]);
                Call::Rename { from: self.path(), to: self.path(), flags }
            }
            30..40 => Call::Link { from: self.path(), to: self.path(), follow: self.rng.percent(20) },
            40..46 => {
                let target = *self.rng.pick(&["f", "../f", "d", "d/f", "no/such", "l", "sub", "f/"]);
                Call::Symlink {
                    target,
                    path: if self.rng.percent(70) { self.rng.pick::<&str>(LINKS) } else { self.path() },
                }
            }
            46..48 => Call::Readlink { path: self.path() },
            48..53 => {
                let path = if self.rng.percent(80) { self.rng.pick::<&str>(DIRECTORIES) } else { self.path() };
                Call::Rmdir { path }
            }
            53..60 => {
                let path = if self.rng.percent(80) { self.rng.pick::<&str>(DIRECTORIES) } else { self.path() };
                Call::Mkdir { path, mode }
            }
            60..65 => {
                let kind = *self.rng.pick(&[
                    libc::S_IFREG,
                    libc::S_IFREG,
                    libc::S_IFIFO,
                    libc::S_IFSOCK,
                    libc::S_IFCHR,
                    libc::S_IFBLK,
                ]);
                let rdev = *self.rng.pick(&[0x103, 0, 0x105]);
                Call::Mknod { path: self.path(), kind, mode, rdev }
            }
            65..75 => self.open(actor),
            75..79 => {
                let rng = &mut self.rng;
                let flags = *rng.pick(&[libc::O_RDWR, libc::O_WRONLY, libc::O_RDWR | libc::O_EXCL, libc::O_RDONLY]);
                let (slot, path) = (rng.index(SLOTS), *rng.pick(DIRECTORIES));
                Call::OpenUnnamed { slot, path, flags, mode }
            }
            79..84 => Call::LinkOpen { slot: self.slot(actor), path: self.path() },
            84..87 => {
                Call::List { path: if self.rng.percent(70) { self.rng.pick::<&str>(DIRECTORIES) } else { self.path() } }
            }
            87..89 => Call::Open {
                slot: 0,
                path: if self.rng.percent(50) { "many" } else { self.rng.pick::<&str>(DIRECTORIES) },
                flags: libc::O_RDONLY | libc::O_DIRECTORY,
                mode: 0,
            },
            89..93 => Call::ListSome { slot: 0, count: self.rng.index(20) + 1 },
            93..95 => Call::ListRest { slot: 0 },
            95..97 => Call::ListAgain { slot: 0 },
            97..98 => Call::Umask { mask: *self.rng.pick(&[0, 0o022, 0o077, 0o027, 0o007]) },
            _ => Call::Close { slot: self.slot(actor) },
        }
    }

    fn time(&mut self) -> Time {
        match self.rng.below(6) {
            0 => Time::Omit,
            1 | 2 => Time::Now,
            _ => *self.rng.pick(&[
                Time::At(0, 0),
                Time::At(1, 1),
                Time::At(999_999_999, 999_999_999),
                Time::At(-5, 500_000_000),
                Time::At(1 << 32, 7),
            ]),
        }
    }

    fn owner(&mut self) -> (Option<u32>, Option<u32>) {
        let rng = &mut self.rng;
        let uid = *rng.pick(&[None, None, Some(0), Some(1000), Some(1000), Some(1001), Some(1002)]);
        let gid = *rng.pick(&[None, Some(0), Some(100), Some(200), Some(1000), Some(1001)]);
        (uid, gid)
    }

    fn attributes(&mut self, actor: usize) -> Call {
        let path = self.path();
        let (mode, slot) = (self.mode(), self.slot(actor));
        match self.rng.below(100) {
            0..14 => Call::Chmod { path, mode },
            14..18 => Call::Fchmod { slot, mode },
            18..28 => {
                let (uid, gid) = self.owner();
                Call::Chown { path, uid, gid, follow: self.rng.percent(80) }
            }
            28..31 => {
                let (uid, gid) = self.owner();
                Call::Fchown { slot, uid, gid }
            }
            31..37 => {
                let (atime, mtime) = (self.time(), self.time());
                Call::Times { path, atime, mtime, follow: self.rng.percent(80) }
            }
            37..40 => {
                let (atime, mtime) = (self.time(), self.time());
                Call::FileTimes { slot, atime, mtime }
            }
            40..48 => {
                let name = self.rng.pick::<&str>(ATTRIBUTES);
                let len = *self.rng.pick(&[0, 1, 20, 20, 100, 300]);
                let how = *self.rng.pick(&[0, 0, 1, 2]);
                Call::SetAttribute { path, name, len, how, tag: self.tag() as u8 }
            }
            48..51 => Call::GetAttribute { path, name: self.rng.pick::<&str>(ATTRIBUTES) },
            51..53 => Call::ListAttributes { path },
            53..56 => Call::RemoveAttribute { path, name: self.rng.pick::<&str>(ATTRIBUTES) },
            56..64 if self.profile.acls => {
                let is_default = self.rng.percent(35);
                if self.rng.percent(80) {
                    Call::SetAcl { path, is_default, entries: self.rng.index(64) }
                } else {
                    Call::RemoveAcl { path, is_default }
                }
            }
            56..60 => Call::Write { slot, at: Some(0), len: 10, tag: self.tag() },
            60..64 => Call::Truncate { path, size: self.offset() },
            64..68 => {
                let flags = *self.rng.pick(&[0, 0, 0x10, 0x20, 0x40, 0x80, 0x30]);
                Call::SetFlags { path, flags }
            }
            68..80 => Call::Stat { path, follow: self.rng.percent(60) },
            80..82 => Call::Fstat { slot },
            82..84 => Call::Mode { path },
            84..89 => {
                let mask = self.rng.below(8) as u32;
                Call::Access { path, mask, effective: self.rng.percent(50) }
            }
            89..91 => Call::List { path },
            91..93 => Call::Plant { path: self.file(), is_script: self.rng.percent(40) },
            93..95 => Call::Execute { path: self.file() },
            95..96 => self.lock(slot),
            _ => self.open(actor),
        }
    }
}
