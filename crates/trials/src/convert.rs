//! `sim`'s plain data as the engine's, and back.

use myriad_engine as engine;
use myriad_sim::op::*;

pub fn to_engine(cred: &Cred) -> engine::Cred {
    engine::Cred { uid: cred.uid, gid: cred.gid, groups: cred.groups.clone(), umask: cred.umask }
}

pub(crate) fn stat_of(stat: &engine::Stat) -> Stat {
    Stat {
        ino: stat.ino,
        kind: Kind::from_mode(stat.mode).expect("a known type"),
        mode: stat.mode & 0o7777,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        size: stat.size,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
        btime: stat.btime,
        flags: stat.flags,
    }
}

pub(crate) fn kind_of(kind: engine::FileType) -> Kind {
    Kind::from_mode(kind.mode_bits()).expect("a known type")
}

pub(crate) fn set_time(set: SetTime) -> engine::SetTime {
    match set {
        SetTime::Now => engine::SetTime::Now,
        SetTime::At(time) => engine::SetTime::At(time),
    }
}

pub(crate) fn set_attr(change: Change) -> engine::SetAttr {
    let none = engine::SetAttr::default();
    match change {
        Change::Mode(mode) => engine::SetAttr { mode: Some(mode), ..none },
        Change::Owner { uid, gid } => engine::SetAttr { uid, gid, ..none },
        Change::Size(size) => engine::SetAttr { size: Some(size), ..none },
        Change::Times { atime, mtime } => {
            engine::SetAttr { atime: atime.map(set_time), mtime: mtime.map(set_time), ..none }
        }
        Change::Flags(flags) => engine::SetAttr { flags: Some(flags), ..none },
    }
}

pub(crate) fn xattr_mode(how: XattrHow) -> engine::XattrMode {
    match how {
        XattrHow::Set => engine::XattrMode::Set,
        XattrHow::Create => engine::XattrMode::Create,
        XattrHow::Replace => engine::XattrMode::Replace,
    }
}

pub(crate) fn rename_mode(how: RenameHow) -> engine::RenameMode {
    match how {
        RenameHow::Replace => engine::RenameMode::Replace,
        RenameHow::NoReplace => engine::RenameMode::NoReplace,
        RenameHow::Exchange => engine::RenameMode::Exchange,
        RenameHow::Whiteout => engine::RenameMode::Whiteout,
        RenameHow::NoReplaceWhiteout => engine::RenameMode::NoReplaceWhiteout,
    }
}

pub(crate) fn allocate_mode(how: AllocateHow) -> engine::AllocateMode {
    match how {
        AllocateHow::Extend => engine::AllocateMode::Extend,
        AllocateHow::KeepSize => engine::AllocateMode::KeepSize,
        AllocateHow::Punch => engine::AllocateMode::Punch,
        AllocateHow::Zero { keep_size } => engine::AllocateMode::Zero { keep_size },
    }
}

pub(crate) fn open_options(how: &OpenHow) -> engine::OpenOptions {
    engine::OpenOptions {
        read: how.read,
        write: how.write,
        append: how.append,
        truncate: how.truncate,
        create: how.create,
        exclusive: how.exclusive,
        no_follow: how.no_follow,
        sync: how.sync,
        // Makes no difference to any answer, so anything may decide it.
        dont_cache: how.mode & 0o100 != 0,
        no_atime: false,
        mode: how.mode,
    }
}

pub(crate) fn entry_of(entry: engine::DirEntry) -> Entry {
    Entry { name: entry.name, ino: entry.ino, kind: kind_of(entry.file_type) }
}
