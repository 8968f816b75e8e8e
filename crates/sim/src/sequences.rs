//! Short sequences of operations over a small name space, exhaustively: what crash tests of other file systems found
//! most bugs with (Mohan et al., OSDI 2018).
//!
//! Bounds: the operations of [`OPERATIONS`] on the tree that [`prelude`] makes, and after each operation one of
//! [`PERSISTENCE`]. So there are `(OPERATIONS * PERSISTENCE)^n` sequences of n operations. A sequence is named by its
//! parts: `write-extend+fsync rename-replace+none`.

use crate::op::*;

/// How a sequence makes an operation durable before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    None,
    /// `fsync` of the file that the operation was about.
    Fsync,
    /// `fdatasync` of it.
    Fdatasync,
    /// `syncfs`.
    Sync,
}

/// All of them, with their names.
pub const PERSISTENCE: &[(&str, Persistence)] = &[
    ("none", Persistence::None),
    ("fsync", Persistence::Fsync),
    ("fdatasync", Persistence::Fdatasync),
    ("sync", Persistence::Sync),
];

/// An operation of the alphabet.
pub struct Operation {
    pub name: &'static str,
    /// What it takes, in order. Files are opened in `SLOT`; write tags are put in when a sequence is made.
    ops: fn() -> Vec<Op>,
    /// What a sync of the file opens if the operation left nothing in `SLOT`.
    about: &'static [u8],
}

const SLOT: usize = 0;
/// The slot that syncs use when the operation left no file open.
const SYNC_SLOT: usize = 1;

const READ_WRITE: OpenHow = OpenHow {
    read: true,
    write: true,
    append: false,
    truncate: false,
    create: false,
    exclusive: false,
    no_follow: false,
    sync: false,
    mode: 0o644,
};

/// Of one file: more than an inode's two extents in `a`, one block in `d/c`.
const A_LEN: usize = 5000;

fn open(path: &[u8]) -> Op {
    Op::Open { slot: SLOT, path: path.into(), how: READ_WRITE }
}

fn create(path: &[u8]) -> Op {
    Op::Open { slot: SLOT, path: path.into(), how: OpenHow { create: true, ..READ_WRITE } }
}

fn write(offset: u64, len: usize) -> Op {
    Op::Write { slot: SLOT, offset, len, tag: 0 }
}

fn allocate(how: AllocateHow, offset: u64, len: u64) -> Op {
    Op::Allocate { slot: SLOT, how, offset, len }
}

fn rename(source: &[u8], target: &[u8], how: RenameHow) -> Op {
    Op::Rename { source: source.into(), target: target.into(), how }
}

fn set_xattr(len: usize) -> Op {
    let value = crate::pattern::bytes(len as u32, 0, len);
    Op::SetXattr { path: b"a".into(), name: b"user.b".into(), value, how: XattrHow::Set }
}

fn set_attr(change: Change) -> Op {
    Op::SetAttr { path: b"a".into(), change }
}

macro_rules! operations {
    ($($name:literal $about:literal [$($op:expr),*];)*) => {
        /// The alphabet. `a` is a file with data and an attribute, `d` a directory with the file `c`, `r` an empty
        /// directory, `l` a second name of a file `k`; `b`, `e` and `d/b` do not exist.
        pub const OPERATIONS: &[Operation] = &[
            $(Operation { name: $name, about: $about, ops: || vec![$($op),*] },)*
        ];
    };
}

operations! {
    "create" b"b" [Op::Create { path: b"b".into(), mode: 0o644 }];
    "create-in-dir" b"d/b" [Op::Create { path: b"d/b".into(), mode: 0o644 }];
    "mkdir" b"e" [Op::Mkdir { path: b"e".into(), mode: 0o755 }];
    "mkdir-in-dir" b"d/e" [Op::Mkdir { path: b"d/e".into(), mode: 0o755 }];
    "rmdir" b"a" [Op::Rmdir { path: b"r".into() }];
    "symlink" b"a" [Op::Symlink { target: b"a".into(), path: b"b".into() }];
    "symlink-long" b"a" [Op::Symlink { target: vec![b'x'; 300], path: b"d/b".into() }];
    "mknod" b"a" [Op::Mknod { path: b"b".into(), kind: Kind::Fifo, mode: 0o600, rdev: 0 }];
    "link" b"a" [Op::Link { source: b"a".into(), target: b"b".into() }];
    "link-to-dir" b"a" [Op::Link { source: b"a".into(), target: b"d/b".into() }];
    "unlink" b"d" [Op::Unlink { path: b"a".into() }];
    "unlink-in-dir" b"d" [Op::Unlink { path: b"d/c".into() }];
    "unlink-one-of-two" b"k" [Op::Unlink { path: b"l".into() }];
    "unlink-open" b"a" [open(b"a"), Op::Unlink { path: b"a".into() }, write(0, 1500)];
    "rename" b"b" [rename(b"a", b"b", RenameHow::Replace)];
    "rename-to-dir" b"d/b" [rename(b"a", b"d/b", RenameHow::Replace)];
    "rename-replace" b"d/c" [rename(b"a", b"d/c", RenameHow::Replace)];
    "rename-replace-back" b"a" [rename(b"d/c", b"a", RenameHow::Replace)];
    "rename-over-link" b"l" [rename(b"a", b"l", RenameHow::Replace)];
    "rename-dir" b"e" [rename(b"d", b"e", RenameHow::Replace)];
    "rename-dir-replace" b"r" [rename(b"d", b"r", RenameHow::Replace)];
    "rename-dir-into" b"r/d/c" [rename(b"d", b"r/d", RenameHow::Replace)];
    "exchange" b"a" [rename(b"a", b"d/c", RenameHow::Exchange)];
    "exchange-dir" b"d" [rename(b"a", b"d", RenameHow::Exchange)];
    "whiteout" b"b" [rename(b"a", b"b", RenameHow::Whiteout)];
    "whiteout-dir" b"r/d" [rename(b"d", b"r/d", RenameHow::Whiteout)];
    "whiteout-dir-replace" b"r" [rename(b"d", b"r", RenameHow::Whiteout)];
    "exchange-then-rename" b"e" [rename(b"a", b"d", RenameHow::Exchange), rename(b"a", b"e", RenameHow::Replace)];
    "whiteout-replace" b"d/c" [rename(b"a", b"d/c", RenameHow::Whiteout)];
    "tmpfile" b"a" [Op::OpenTmpfile { slot: SLOT, path: b"/".into(), mode: 0o600 }, write(0, 3000)];
    "tmpfile-link" b"b" [
        Op::OpenTmpfile { slot: SLOT, path: b"d".into(), mode: 0o600 },
        write(0, 3000),
        Op::LinkFile { slot: SLOT, path: b"b".into() }
    ];
    "write-overwrite" b"a" [open(b"a"), write(300, 2000)];
    "write-extend" b"a" [open(b"a"), write(A_LEN as u64, 3000)];
    "write-past-hole" b"a" [open(b"a"), write(20_000, 1000)];
    "write-new" b"b" [create(b"b"), write(0, 4000)];
    "write-new-tiny" b"d/b" [create(b"d/b"), write(0, 20)];
    "write-sync" b"a" [
        Op::Open { slot: SLOT, path: b"a".into(), how: OpenHow { sync: true, ..READ_WRITE } },
        write(4000, 2500)
    ];
    "write-new-sync" b"b" [
        Op::Open { slot: SLOT, path: b"b".into(), how: OpenHow { create: true, sync: true, ..READ_WRITE } },
        write(0, 2500)
    ];
    "append" b"d/c" [
        Op::Open { slot: SLOT, path: b"d/c".into(), how: OpenHow { append: true, ..READ_WRITE } },
        write(0, 1200)
    ];
    "replace-by-rename" b"a" [create(b"b"), write(0, 2500), rename(b"b", b"a", RenameHow::Replace)];
    "truncate-to-zero" b"a" [open(b"a"), Op::Truncate { slot: SLOT, size: 0 }];
    "truncate-and-write" b"a" [
        Op::Open { slot: SLOT, path: b"a".into(), how: OpenHow { truncate: true, ..READ_WRITE } },
        write(0, 2500)
    ];
    "truncate-shorter" b"a" [open(b"a"), Op::Truncate { slot: SLOT, size: 1700 }];
    "truncate-longer" b"a" [open(b"a"), Op::Truncate { slot: SLOT, size: 9000 }];
    "punch" b"a" [open(b"a"), allocate(AllocateHow::Punch, 1024, 2048)];
    "punch-inside" b"a" [open(b"a"), allocate(AllocateHow::Punch, 1500, 100)];
    "zero-range" b"a" [open(b"a"), allocate(AllocateHow::Zero { keep_size: false }, 500, 8000)];
    "allocate" b"a" [open(b"a"), allocate(AllocateHow::Extend, 4000, 9000)];
    "allocate-keep-size" b"a" [open(b"a"), allocate(AllocateHow::KeepSize, 6000, 9000)];
    "set-xattr" b"a" [set_xattr(30)];
    "set-xattr-long" b"a" [set_xattr(700)];
    "remove-xattr" b"a" [Op::RemoveXattr { path: b"a".into(), name: b"user.a".into() }];
    "chmod" b"a" [set_attr(Change::Mode(0o600))];
    "chown" b"a" [set_attr(Change::Owner { uid: Some(1000), gid: None })];
}

fn step(op: Op) -> Step {
    Step { cred: 0, op }
}

/// The tree that sequences start from.
pub fn prelude() -> Vec<Step> {
    let ops = [
        create(b"a"),
        write(0, A_LEN),
        Op::SetXattr { path: b"a".into(), name: b"user.a".into(), value: vec![b'v'; 40], how: XattrHow::Set },
        Op::Mkdir { path: b"d".into(), mode: 0o755 },
        create(b"d/c"),
        write(0, 900),
        Op::Mkdir { path: b"r".into(), mode: 0o755 },
        Op::Create { path: b"k".into(), mode: 0o644 },
        Op::Link { source: b"k".into(), target: b"l".into() },
        Op::Close { slot: SLOT },
        Op::Sync,
    ];
    tagged(ops, 0).into_iter().map(step).collect()
}

/// Every write gets a tag of its own, so that its bytes say which it was.
fn tagged(ops: impl IntoIterator<Item = Op>, first: u32) -> Vec<Op> {
    let mut next = first;
    let mut ops: Vec<Op> = ops.into_iter().collect();
    for op in &mut ops {
        if let Op::Write { tag, .. } = op {
            next += 1;
            *tag = next;
        }
    }
    ops
}

/// One operation and how it is made durable: an index into [`OPERATIONS`] and one into [`PERSISTENCE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub operation: usize,
    pub persistence: usize,
}

impl Part {
    /// How many there are.
    pub const COUNT: usize = OPERATIONS.len() * PERSISTENCE.len();

    /// The part of this number, below [`Part::COUNT`].
    pub fn nth(number: usize) -> Self {
        Self { operation: number / PERSISTENCE.len(), persistence: number % PERSISTENCE.len() }
    }

    /// The part of this name: `operation+persistence`.
    pub fn named(name: &str) -> Option<Self> {
        let (operation, persistence) = name.split_once('+')?;
        Some(Self {
            operation: OPERATIONS.iter().position(|known| known.name == operation)?,
            persistence: PERSISTENCE.iter().position(|(known, _)| *known == persistence)?,
        })
    }

    pub fn name(self) -> String {
        format!("{}+{}", OPERATIONS[self.operation].name, PERSISTENCE[self.persistence].0)
    }
}

/// The steps of a sequence, to be run after [`prelude`].
pub fn steps(parts: &[Part]) -> Vec<Step> {
    const FIRST_TAG: u32 = 100;
    let mut ops = Vec::new();
    for part in parts {
        let operation = &OPERATIONS[part.operation];
        let own = (operation.ops)();
        let leaves_open = own.iter().any(|op| matches!(op, Op::Open { .. } | Op::OpenTmpfile { .. }));
        ops.extend(own);
        let sync = |ops: &mut Vec<Op>, data_only| {
            let slot = if leaves_open { SLOT } else { SYNC_SLOT };
            if !leaves_open {
                let how = OpenHow { write: false, ..READ_WRITE };
                ops.push(Op::Open { slot, path: operation.about.into(), how });
            }
            ops.push(Op::Fsync { slot, data_only });
        };
        match PERSISTENCE[part.persistence].1 {
            Persistence::None => {}
            Persistence::Fsync => sync(&mut ops, false),
            Persistence::Fdatasync => sync(&mut ops, true),
            Persistence::Sync => ops.push(Op::Sync),
        }
    }
    // What is still dirty goes to the device: a crash in the last flush has something to lose.
    ops.push(Op::Sync);
    tagged(ops, FIRST_TAG).into_iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    #[test]
    fn names_are_unique_and_name() {
        for number in 0..Part::COUNT {
            let part = Part::nth(number);
            assert_eq!(Part::named(&part.name()), Some(part));
        }
        assert_eq!(Part::named("create"), None);
    }

    /// On the prelude's tree each operation does what its name says; after another it may be refused.
    #[test]
    fn every_operation_succeeds_alone() {
        let mut fresh = Model::new(0);
        for step in prelude() {
            fresh.apply(&step).unwrap();
        }
        for number in 0..Part::COUNT {
            let mut model = fresh.clone();
            let part = Part::nth(number);
            for step in steps(&[part]) {
                let answer = model.apply(&step);
                assert!(answer.is_ok(), "{}: {step:?}: {answer:?}", part.name());
            }
        }
    }
}
