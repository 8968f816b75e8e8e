//! One process of a program: takes on its credentials, and then does the steps that it is told the numbers of.
//!
//! `begin SEED ACLS ACTORS COUNT DIRECTORY` makes a program, with everything of the last one closed; `step N` does step N and
//! answers what came of it, in one line. Equal answers are equal lines.

use crate::calls::{
    ACTORS, Call, Lacks, LockKind, MAPS, Profile, SLOTS, STAYING, STAYS, Step, Time, VOLATILE, program,
};
use crate::common::map::Map;
use crate::look;
use myriad_sim::{Errno, pattern};
use nix::libc;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self as unix, AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, XattrFlags};
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// What lines of a worker begin with, among those of the test harness.
pub const MARK: &str = "twin: ";

type Done = rustix::io::Result<String>;

/// The life of a worker.
pub fn run(index: usize) -> Result<(), String> {
    // What is planted is a program of the host, which not everybody may read.
    let planted = std::fs::read("/usr/bin/id").map_err(|error| format!("/usr/bin/id: {error}"))?;
    let mut worker = Worker { steps: Vec::new(), slots: Default::default(), maps: Default::default(), planted, index };
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let words: Vec<&str> = line.splitn(6, ' ').collect();
        let number = |word: &str| word.parse::<u64>().map_err(|error| format!("{line}: {error}"));
        let answer = match words[..] {
            ["begin", seed, acls, actors, count, directory] => {
                let actors = if actors == "roots" { crate::calls::ROOTS } else { crate::calls::ALL };
                let profile = Profile { actors, acls: acls == "true" };
                worker.begin(number(seed)?, profile, number(count)? as usize, Path::new(directory))?;
                "begun".to_owned()
            }
            ["step", step] => worker.step(number(step)? as usize),
            _ => return Err(format!("no such order: {line}")),
        };
        println!("{MARK}{answer}");
        io::stdout().flush().map_err(|error| error.to_string())?;
    }
    Ok(())
}

struct Open {
    file: OwnedFd,
    is_direct: bool,
    listing: Listing,
}

/// What was read of an open directory.
#[derive(Default)]
struct Listing {
    /// Staying names since the beginning.
    seen: Vec<String>,
    /// A place in the middle, and how many staying names came before it.
    place: Option<(u64, usize)>,
    /// Staying names that follow the place.
    rest: Option<Vec<String>>,
}

struct Worker {
    index: usize,
    steps: Vec<Step>,
    slots: [Option<Open>; SLOTS],
    maps: [Option<(Map, OwnedFd)>; MAPS],
    planted: Vec<u8>,
}

/// Takes on a process's credentials, for this thread and what it starts.
fn become_actor(index: usize) -> Result<(), String> {
    use rustix::thread::{self, CapabilitySet};
    let actor = &ACTORS[index];
    rustix::process::umask(Mode::from_raw_mode(actor.umask));
    let failed = |error: rustix::io::Errno| format!("{}: {error}", actor.name);
    let current = thread::capabilities(None).map_err(failed)?;
    if !current.effective.contains(CapabilitySet::DAC_OVERRIDE) {
        // Begun before, by an earlier program.
        return Ok(());
    }
    let groups: Vec<_> = actor.groups.iter().map(|&gid| unix::Gid::from_raw(gid)).collect();
    thread::set_thread_groups(&groups).map_err(failed)?;
    if let Some((uid, gid)) = actor.fsuid {
        nix::unistd::setfsgid(gid.into());
        nix::unistd::setfsuid(uid.into());
    }
    let (uid, gid) = (unix::Uid::from_raw(actor.uid), unix::Gid::from_raw(actor.gid));
    if actor.gid != 0 {
        thread::set_thread_res_gid(gid, gid, gid).map_err(failed)?;
    }
    if actor.uid != 0 {
        thread::set_thread_res_uid(uid, uid, uid).map_err(failed)?;
    }
    let dropped = match actor.lacks {
        Lacks::Nothing => return Ok(()),
        Lacks::Passing => CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH,
        Lacks::Everything => CapabilitySet::all(),
    };
    let mut sets = thread::capabilities(None).map_err(failed)?;
    for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
        set.remove(dropped);
    }
    thread::set_capabilities(None, sets).map_err(failed)
}

fn mode_of(mode: u32) -> Mode {
    Mode::from_raw_mode(mode)
}

fn ok(_: ()) -> String {
    "ok".to_owned()
}

/// An answer's errno as the standard library has it.
fn errno(error: &io::Error) -> rustix::io::Errno {
    error.raw_os_error().map_or(rustix::io::Errno::IO, rustix::io::Errno::from_raw_os_error)
}

fn nix_errno(error: nix::Error) -> rustix::io::Errno {
    rustix::io::Errno::from_raw_os_error(error as i32)
}

fn times(atime: Time, mtime: Time) -> unix::Timestamps {
    let of = |time| match time {
        Time::Omit => unix::Timespec { tv_sec: 0, tv_nsec: unix::UTIME_OMIT },
        Time::Now => unix::Timespec { tv_sec: 0, tv_nsec: unix::UTIME_NOW },
        Time::At(seconds, nanoseconds) => unix::Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    };
    unix::Timestamps { last_access: of(atime), last_modification: of(mtime) }
}

fn ids(uid: Option<u32>, gid: Option<u32>) -> (Option<unix::Uid>, Option<unix::Gid>) {
    (uid.map(unix::Uid::from_raw), gid.map(unix::Gid::from_raw))
}

/// Direct I/O is for whole sectors, in memory and on disk.
const DIRECT: usize = 4096;

impl Worker {
    fn begin(&mut self, seed: u64, profile: Profile, count: usize, directory: &Path) -> Result<(), String> {
        self.slots = Default::default();
        self.maps = Default::default();
        self.steps = program(seed, profile, count);
        std::env::set_current_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        become_actor(self.index)
    }

    fn step(&mut self, index: usize) -> String {
        let call = self.steps[index].call.clone();
        match self.call(call) {
            Ok(answer) => answer,
            Err(error) => format!("{:?}", Errno(error.raw_os_error())),
        }
    }

    fn slot(&self, slot: usize) -> rustix::io::Result<&Open> {
        self.slots[slot].as_ref().ok_or(rustix::io::Errno::BADF)
    }

    fn file(&self, slot: usize) -> rustix::io::Result<&OwnedFd> {
        self.slot(slot).map(|open| &open.file)
    }

    fn put(&mut self, slot: usize, file: OwnedFd, flags: OFlags) {
        self.slots[slot] = Some(Open { file, is_direct: flags.contains(OFlags::DIRECT), listing: Listing::default() });
    }

    fn call(&mut self, call: Call) -> Done {
        Ok(match call {
            Call::Open { slot, path, flags, mode } => {
                self.slots[slot] = None;
                let flags = OFlags::from_bits_retain(flags as u32) | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = unix::open(path, flags, mode_of(mode))?;
                let stat = unix::fstat(&file)?;
                let kind = unix::FileType::from_raw_mode(stat.st_mode);
                // Of pipes and devices it is enough that they can be opened.
                if matches!(kind, unix::FileType::RegularFile | unix::FileType::Directory) {
                    self.put(slot, file, flags);
                }
                format!("opened {}", look::attributes(&stat))
            }
            Call::OpenUnnamed { slot, path, flags, mode } => {
                self.slots[slot] = None;
                let flags = OFlags::from_bits_retain(flags as u32) | OFlags::TMPFILE | OFlags::CLOEXEC;
                let file = unix::open(path, flags, mode_of(mode))?;
                let stat = unix::fstat(&file)?;
                self.put(slot, file, flags);
                format!("opened {}", look::attributes(&stat))
            }
            Call::LinkOpen { slot, path } => {
                use std::os::fd::AsRawFd;
                // By /proc, for which no capability is needed.
                let from = format!("/proc/thread-self/fd/{}", self.file(slot)?.as_raw_fd());
                ok(unix::linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
            }
            Call::Close { slot } => self.slots[slot].take().map_or("nothing", |_| "closed").to_owned(),
            Call::Read { slot, at, len } => self.read(slot, at, len)?,
            Call::Write { slot, at, len, tag } => self.write(slot, at, len, tag)?,
            Call::Seek { slot, to, whence } => {
                let file = self.file(slot)?;
                // Where a directory's entries are is each file system's affair.
                if look::is_directory(file)? {
                    return Ok("a directory".to_owned());
                }
                let to = match whence {
                    0 => unix::SeekFrom::Start(to.max(0) as u64),
                    1 => unix::SeekFrom::Current(to),
                    _ => unix::SeekFrom::End(to),
                };
                format!("at {}", unix::seek(file, to)?)
            }
            Call::Extents { slot } => {
                let file = self.file(slot)?;
                if look::is_directory(file)? {
                    return Ok("a directory".to_owned());
                }
                unix::fsync(file)?;
                look::extents(file)?
            }
            Call::CopyByHoles { path } => {
                let file = unix::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
                if unix::FileType::from_raw_mode(unix::fstat(&file)?.st_mode) != unix::FileType::RegularFile {
                    return Ok("no file".to_owned());
                }
                look::by_holes(&file)?
            }
            Call::Ftruncate { slot, size } => ok(unix::ftruncate(self.file(slot)?, size)?),
            Call::Truncate { path, size } => nix::unistd::truncate(path, size as i64).map(ok).map_err(nix_errno)?,
            Call::Allocate { slot, mode, at, len } => {
                ok(unix::fallocate(self.file(slot)?, FallocateFlags::from_bits_retain(mode), at, len)?)
            }
            Call::CopyRange { from, from_at, to, to_at, len } => {
                let (mut from_at, mut to_at) = (from_at, to_at);
                let (from, to) = (self.slot(from)?, self.slot(to)?);
                if from.is_direct || to.is_direct {
                    return Ok("not aligned".to_owned());
                }
                let (from, to) = (&from.file, &to.file);
                let count = unix::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len)?;
                format!("copied {count}")
            }
            Call::Fsync { slot, data_only } => {
                let file = self.file(slot)?;
                if data_only {
                    unix::fdatasync(file)?
                } else {
                    unix::fsync(file)?
                }
                ok(())
            }
            Call::Map { map, slot, len } => {
                self.maps[map] = None;
                let file = self.file(slot)?;
                let made = Map::new(file, len)?;
                self.maps[map] = Some((made, rustix::io::dup(file)?));
                "mapped".to_owned()
            }
            Call::Store { map, at, len, tag } => self.with_map(map, at, len, |map, at, len| {
                map.write(at, &pattern::bytes(tag, at as u64, len));
                format!("stored {len}")
            })?,
            Call::Load { map, at, len } => self.with_map(map, at, len, |map, at, len| {
                let mut describe = look::Describe::default();
                describe.add(at as u64, &map.read(at, len));
                describe.finish()
            })?,
            Call::SyncMap { map } => match &self.maps[map] {
                Some((map, _)) => ok(map.sync()?),
                None => "no mapping".to_owned(),
            },
            Call::Unmap { map } => self.maps[map].take().map_or("no mapping", |_| "unmapped").to_owned(),
            Call::Rename { from, to, flags } => {
                ok(unix::renameat_with(CWD, from, CWD, to, RenameFlags::from_bits_retain(flags))?)
            }
            Call::Link { from, to, follow } => {
                let flags = if follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
                ok(unix::linkat(CWD, from, CWD, to, flags)?)
            }
            Call::Symlink { target, path } => ok(unix::symlink(target, path)?),
            Call::Readlink { path } => format!("{:?}", unix::readlink(path, Vec::new())?),
            Call::Unlink { path } => ok(unix::unlink(path)?),
            Call::Rmdir { path } => ok(unix::rmdir(path)?),
            Call::Mkdir { path, mode } => {
                unix::mkdir(path, mode_of(mode))?;
                look::attributes(&unix::lstat(path)?)
            }
            Call::Mknod { path, kind, mode, rdev } => {
                unix::mknodat(CWD, path, unix::FileType::from_raw_mode(kind), mode_of(mode), rdev)?;
                look::attributes(&unix::lstat(path)?)
            }
            Call::Chmod { path, mode } => ok(unix::chmod(path, mode_of(mode))?),
            Call::Fchmod { slot, mode } => ok(unix::fchmod(self.file(slot)?, mode_of(mode))?),
            Call::Chown { path, uid, gid, follow } => {
                let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
                let (uid, gid) = ids(uid, gid);
                ok(unix::chownat(CWD, path, uid, gid, flags)?)
            }
            Call::Fchown { slot, uid, gid } => {
                let (uid, gid) = ids(uid, gid);
                ok(unix::fchown(self.file(slot)?, uid, gid)?)
            }
            Call::Times { path, atime, mtime, follow } => {
                let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
                ok(unix::utimensat(CWD, path, &times(atime, mtime), flags)?)
            }
            Call::FileTimes { slot, atime, mtime } => ok(unix::futimens(self.file(slot)?, &times(atime, mtime))?),
            Call::SetAttribute { path, name, len, how, tag } => {
                let value = if name == "security.capability" { capability(tag) } else { vec![tag; len] };
                ok(unix::lsetxattr(path, name, &value, XattrFlags::from_bits_retain(how))?)
            }
            Call::GetAttribute { path, name } => look::attribute(path, name)?,
            Call::ListAttributes { path } => format!("{:?}", look::attribute_names(path)?),
            Call::RemoveAttribute { path, name } => ok(unix::lremovexattr(path, name)?),
            Call::SetAcl { path, is_default, entries } => {
                ok(unix::setxattr(path, acl_name(is_default), &acl(entries), XattrFlags::empty())?)
            }
            Call::RemoveAcl { path, is_default } => ok(unix::removexattr(path, acl_name(is_default))?),
            Call::SetFlags { path, flags } => {
                let file = unix::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
                // The same question asked of a device means something else.
                let kind = unix::FileType::from_raw_mode(unix::fstat(&file)?.st_mode);
                if !matches!(kind, unix::FileType::RegularFile | unix::FileType::Directory) {
                    return Ok("no file".to_owned());
                }
                let theirs = unix::ioctl_getflags(&file)?;
                // File systems have flags of their own, some of which no library knows.
                let wanted = IFlags::from_bits_retain((theirs.bits() & !look::FLAGS.bits()) | flags);
                ok(unix::ioctl_setflags(&file, wanted)?)
            }
            Call::Lock { slot, kind, what, at, len } => self.lock(slot, kind, what, at, len)?,
            Call::Stat { path, follow } => {
                look::attributes(&if follow { unix::stat(path)? } else { unix::lstat(path)? })
            }
            Call::Mode { path } => {
                let stat = unix::statx(CWD, path, AtFlags::empty(), unix::StatxFlags::MODE)?;
                format!("{:o}", stat.stx_mode)
            }
            Call::Fstat { slot } => look::attributes(&unix::fstat(self.file(slot)?)?),
            Call::Access { path, mask, effective } => {
                let flags = if effective { AtFlags::EACCESS } else { AtFlags::empty() };
                ok(unix::accessat(CWD, path, unix::Access::from_bits_retain(mask), flags)?)
            }
            Call::List { path } => look::list(path)?,
            Call::ListSome { slot, count } => {
                let open = self.slots[slot].as_mut().ok_or(rustix::io::Errno::BADF)?;
                let place = unix::tell(&open.file)?;
                if place == 0 {
                    open.listing = Listing::default();
                }
                let before = open.listing.seen.len();
                open.listing.place = Some((place, before));
                open.listing.rest = None;
                read_names(&open.file, count, &mut open.listing.seen)?;
                "read".to_owned()
            }
            Call::ListRest { slot } => {
                let open = self.slots[slot].as_mut().ok_or(rustix::io::Errno::BADF)?;
                if unix::tell(&open.file)? == 0 {
                    open.listing = Listing::default();
                }
                let listing = &mut open.listing;
                let before = listing.seen.len();
                read_names(&open.file, usize::MAX, &mut listing.seen)?;
                listing.rest = listing.place.map(|(_, from)| listing.seen[from.min(before)..].to_vec());
                let mut names = listing.seen.clone();
                names.sort();
                format!("{names:?}")
            }
            Call::ListAgain { slot } => {
                let open = self.slots[slot].as_mut().ok_or(rustix::io::Errno::BADF)?;
                let (Some((place, from)), Some(rest)) = (open.listing.place, &open.listing.rest) else {
                    return Ok("no place".to_owned());
                };
                unix::seek(&open.file, unix::SeekFrom::Start(place))?;
                let mut again = Vec::new();
                read_names(&open.file, usize::MAX, &mut again)?;
                let (mut before, mut after) = (rest.clone(), again.clone());
                before.sort();
                after.sort();
                open.listing.seen.truncate(from);
                open.listing.seen.extend(again);
                if before == after { "the same".to_owned() } else { format!("{before:?} then, {after:?} now") }
            }
            Call::Plant { path, is_script } => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let file = unix::open(path, flags, mode_of(0o755))?;
                if unix::FileType::from_raw_mode(unix::fstat(&file)?.st_mode) != unix::FileType::RegularFile {
                    return Ok("no file".to_owned());
                }
                let bytes = if is_script { &b"#!/usr/bin/id\n"[..] } else { &self.planted };
                let mut file = std::fs::File::from(file);
                file.write_all(bytes).map(ok).map_err(|error| errno(&error))?
            }
            Call::Execute { path } => self.execute(path)?,
            Call::Umask { mask } => {
                rustix::process::umask(mode_of(mask));
                "ok".to_owned()
            }
        })
    }

    fn read(&self, slot: usize, at: Option<u64>, len: usize) -> Done {
        let open = self.slot(slot)?;
        // Where a directory's entries are is each file system's affair, and may be too far to read from.
        let at = if look::is_directory(&open.file)? { Some(0) } else { at };
        let (at, len) = if open.is_direct { aligned(at, len) } else { (at, len) };
        if open.is_direct && at.is_none() && !unix::tell(&open.file)?.is_multiple_of(DIRECT as u64) {
            return Ok("not aligned".to_owned());
        }
        let mut buffer = vec![0; len + DIRECT];
        let from = buffer.as_ptr().align_offset(DIRECT);
        let bytes = &mut buffer[from..from + len];
        let count = match at {
            Some(at) => rustix::io::pread(&open.file, &mut *bytes, at)?,
            None => rustix::io::read(&open.file, &mut *bytes)?,
        };
        let mut describe = look::Describe::default();
        // Where no place is given, the words are taken as they come.
        describe.add(at.unwrap_or(0), &bytes[..count]);
        Ok(describe.finish())
    }

    fn write(&self, slot: usize, at: Option<u64>, len: usize, tag: u32) -> Done {
        let open = self.slot(slot)?;
        let (at, len) = if open.is_direct { aligned(at, len) } else { (at, len) };
        if open.is_direct {
            let is_append = unix::fcntl_getfl(&open.file)?.contains(OFlags::APPEND);
            let place = if is_append { unix::fstat(&open.file)?.st_size as u64 } else { unix::tell(&open.file)? };
            if (at.is_none() || is_append) && !place.is_multiple_of(DIRECT as u64) {
                return Ok("not aligned".to_owned());
            }
        }
        let mut buffer = vec![0; len + DIRECT];
        let from = buffer.as_ptr().align_offset(DIRECT);
        let bytes = &mut buffer[from..from + len];
        bytes.copy_from_slice(&pattern::bytes(tag, at.unwrap_or(0), len));
        let count = match at {
            Some(at) => rustix::io::pwrite(&open.file, bytes, at)?,
            None => rustix::io::write(&open.file, bytes)?,
        };
        Ok(format!("wrote {count}"))
    }

    /// The part of a mapping that the file has pages for.
    fn with_map(&self, map: usize, at: usize, len: usize, work: impl FnOnce(&Map, usize, usize) -> String) -> Done {
        let Some((map, file)) = &self.maps[map] else { return Ok("no mapping".to_owned()) };
        let size = usize::try_from(unix::fstat(file)?.st_size).unwrap_or(0);
        let end = size.next_multiple_of(rustix::param::page_size()).min(map.len());
        if at >= end {
            return Ok("beyond".to_owned());
        }
        Ok(work(map, at, len.min(end - at)))
    }

    fn lock(&self, slot: usize, kind: LockKind, what: i32, at: i64, len: i64) -> Done {
        use nix::fcntl::{FcntlArg, fcntl};
        let file = self.file(slot)?;
        let mut range = libc::flock { l_type: what as i16, l_whence: 0, l_start: at, l_len: len, l_pid: 0 };
        let answer = match kind {
            LockKind::Flock => {
                let operation = match what {
                    libc::F_RDLCK => unix::FlockOperation::NonBlockingLockShared,
                    libc::F_WRLCK => unix::FlockOperation::NonBlockingLockExclusive,
                    _ => unix::FlockOperation::NonBlockingUnlock,
                };
                unix::flock(file, operation)
            }
            LockKind::Posix => fcntl(file, FcntlArg::F_SETLK(&range)).map(drop).map_err(nix_errno),
            LockKind::Ofd => fcntl(file, FcntlArg::F_OFD_SETLK(&range)).map(drop).map_err(nix_errno),
        };
        match answer {
            Ok(()) => Ok("ok".to_owned()),
            // Who is in the way, but for whom: processes have numbers of their own.
            Err(error) if kind == LockKind::Posix && what != libc::F_UNLCK => {
                fcntl(file, FcntlArg::F_GETLK(&mut range)).map_err(nix_errno)?;
                let libc::flock { l_type, l_start, l_len, .. } = range;
                Ok(format!("{:?}: {l_type} from {l_start}, {l_len}", Errno(error.raw_os_error())))
            }
            Err(error) => Err(error),
        }
    }

    fn execute(&self, path: &str) -> Done {
        let mut command = Command::new(Path::new(".").join(path));
        let command = command.stdin(Stdio::null()).stderr(Stdio::null()).env_clear().env("LC_ALL", "C");
        let output = command.output().map_err(|error| errno(&error))?;
        let said = String::from_utf8_lossy(&output.stdout);
        Ok(format!("{}: {}", output.status, said.trim_end()))
    }
}

fn aligned(at: Option<u64>, len: usize) -> (Option<u64>, usize) {
    (at.map(|at| at & !(DIRECT as u64 - 1)), len.next_multiple_of(DIRECT))
}

/// Reads up to `count` entries, and keeps the staying names.
fn read_names(directory: impl AsFd, count: usize, names: &mut Vec<String>) -> rustix::io::Result<()> {
    // Room for two entries: the kernel goes on behind the last that was taken.
    let mut buffer = Vec::with_capacity(64);
    let mut left = count;
    while left > 0 {
        let mut entries = unix::RawDir::new(&directory, buffer.spare_capacity_mut());
        let mut is_end = true;
        while let Some(entry) = entries.next() {
            is_end = false;
            let entry = entry?;
            left = left.saturating_sub(1);
            let name = entry.file_name().to_string_lossy();
            if name.starts_with(STAYS) {
                names.push(name.into_owned());
            }
            if entries.is_buffer_empty() {
                break;
            }
        }
        if is_end {
            break;
        }
    }
    Ok(())
}

fn acl_name(is_default: bool) -> &'static str {
    if is_default { "system.posix_acl_default" } else { "system.posix_acl_access" }
}

/// An ACL as the kernel takes it, from six bits and their neighbours: some are minimal, some have a mask.
fn acl(number: usize) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let bits = |by: usize| ((number >> by) ^ (number * 5)) as u16 & 7;
    let mut entries = vec![(0x01_u16, bits(0), NONE)];
    if number & 1 != 0 {
        entries.push((0x02, bits(1), 1001));
    }
    entries.push((0x04, bits(2), NONE));
    if number & 2 != 0 {
        entries.push((0x08, bits(3), 100));
    }
    if number & 3 != 0 {
        entries.push((0x10, bits(1) | 4, NONE));
    }
    entries.push((0x20, bits(4), NONE));
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// A file capability as the kernel takes it.
fn capability(tag: u8) -> Vec<u8> {
    const VERSION_2: u32 = 0x0200_0000;
    let permitted = 1 << (tag % 30);
    [VERSION_2, permitted, 0, 0, 0].iter().flat_map(|word: &u32| word.to_le_bytes()).collect()
}

/// The directory `many` as a program begins with it.
pub fn populate(directory: &Path) -> io::Result<()> {
    let many = directory.join("many");
    std::fs::create_dir(&many)?;
    for number in 0..STAYING {
        std::fs::write(many.join(format!("{STAYS}{number:02}")), [])?;
    }
    VOLATILE[..2].iter().try_for_each(|name| std::fs::write(directory.join(name), []))
}
