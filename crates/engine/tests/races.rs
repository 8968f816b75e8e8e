//! Names that go, and come back as something else, while others use them: the answers are those of before or after,
//! nobody is told of damage that is none, and none is done.

use myriad_device::MemoryDevice;
use myriad_engine::{CreateWith, Cred, DirEntry, Errno, Error, File, Fs, MkfsOptions, MountOptions, OpenOptions};
use myriad_engine::{RenameMode, Session, SetAttr, XattrMode};
use myriad_sim::rng::{self, Rng};
use myriad_trials::verdict::check_silent;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const WRITE: OpenOptions = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };

/// A path of one to three short names, so that the same are met again and again.
fn path(rng: &mut Rng) -> String {
    let depth = 1 + rng.index(3);
    (0..depth).map(|level| format!("/{}{}", ["a", "b", "c"][level], rng.below(3))).collect()
}

/// What a path that changes meanwhile may answer.
fn of_a_path(error: &Error) -> bool {
    let Error::Refused(errno) = error else { return false };
    [Errno::NOENT, Errno::NOTDIR, Errno::EXIST, Errno::ISDIR, Errno::NOTEMPTY, Errno::LOOP, Errno::INVAL, Errno::PERM]
        .contains(errno)
}

fn change(session: &Session, rng: &mut Rng) -> Result<(), Error> {
    let path = path(rng);
    match rng.below(10) {
        0 | 1 => session.mkdir(&path, 0o755).map(drop),
        2 => session.open(&path, WRITE)?.write_at(&[7; 3000], 0).map(drop),
        3 => session.symlink(b"b1", &path).map(drop),
        4 => session.unlink(&path),
        5 => session.rmdir(&path),
        6 => session.rename(&path, &self::path(rng), *rng.pick(&[RenameMode::Replace, RenameMode::Exchange])),
        7 => session.link(&path, &self::path(rng)),
        8 => {
            let file = session.open(&path, WRITE)?;
            file.write_at(&[8; 3000], 0)?;
            session.unlink(&path)?;
            // Its number is another file's as soon as it is closed.
            file.stat().map(drop)
        }
        _ => session.remove_tree(&path, &mut |_| true).map(drop),
    }
}

fn look_by_path(session: &Session, rng: &mut Rng) -> Result<(), Error> {
    let path = path(rng);
    match rng.below(11) {
        0 => session.stat(&path).map(drop),
        1 => session.lstat(&path).map(drop),
        2 => session.stat_many(&[&path]).pop().expect("one").map(drop),
        3 => session.open(&path, OpenOptions::READ).map(drop),
        4 => session.read_dir(&path)?.try_for_each(|entry| entry.map(drop)),
        5 => session.walk(&path)?.try_for_each(|entry| entry.map(drop).map_err(Error::from)),
        6 => session.readlink(&path).map(drop),
        7 => session.access(&path, 4),
        8 => session.set_attr(&path, SetAttr { mode: Some(0o700), ..SetAttr::default() }).map(drop),
        9 => session.set_xattr(&path, b"user.a", b"value", XattrMode::Set),
        _ => session.list_xattr(&path).map(drop),
    }
}

/// Through nodes found a while ago.
fn look_by_node(session: &Session, rng: &mut Rng) -> Result<(), Error> {
    let directory = session.resolve(&path(rng))?;
    let entries = session.read_dir_at(directory, 0, 10)?;
    std::thread::yield_now();
    let name = entries.first().map_or(&b"b0"[..], |entry: &DirEntry| &entry.name);
    match rng.below(6) {
        0 => session.lookup(directory, name).map(drop),
        1 => session.read_dir_plus_at(directory, 0, 10).map(drop),
        2 => session.mkdir_at(directory, name, 0o755).map(drop),
        3 => session.unlink_at(directory, name),
        4 => session.rmdir_at(directory, name),
        _ => session.parent_of(directory).map(drop),
    }
}

/// Words of a file: its id, as often as it says. Whoever sees a file sees it whole.
fn content(id: u64) -> Vec<u8> {
    id.to_le_bytes().repeat(1 + (id % 3000) as usize)
}

fn is_whole(file: &File) -> Result<(), String> {
    let size = file.stat().map_err(|error| error.to_string())?.size as usize;
    let mut bytes = vec![0; size];
    let read = file.read_at(&mut bytes, 0).map_err(|error| error.to_string())?;
    let id = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    if read == size && bytes == content(id) {
        return Ok(());
    }
    let other = bytes.chunks(8).position(|word| word != id.to_le_bytes());
    Err(format!("{read} of {size} bytes of file {id:#x}, which has {}; another word at {other:?}", content(id).len()))
}

/// Makes whole files under names that all share, takes them away, and writes to some that have lost their names.
fn supply(session: &Session, rng: &mut Rng, thread: u64, held: &mut Vec<File>) -> Result<(), Error> {
    let temporary = format!("new {thread}");
    let mut name = || format!("file {}", rng.below(6));
    let (name, other) = (name(), name());
    match rng.below(6) {
        0 => {
            let bytes = content(rng.next_u64() | 1);
            let new = CreateWith { mode: 0o644, content: &bytes, ..CreateWith::default() };
            session.create_with(session.root(), temporary.as_bytes(), &new)?;
            session.rename(&temporary, &name, RenameMode::Replace)
        }
        1 => {
            let bytes = content(rng.next_u64() | 1);
            let file = session.open(&temporary, WRITE)?;
            file.write_at(&bytes, 0)?;
            session.rename(&temporary, &name, RenameMode::Replace)?;
            held.push(file);
            Ok(())
        }
        2 => session.unlink(&name),
        3 => session.rename(&name, &other, *rng.pick(&[RenameMode::Replace, RenameMode::Exchange])),
        4 => session.link(&name, &other),
        _ => {
            if held.len() > 3 {
                let file = held.swap_remove(rng.index(held.len()));
                let mut word = [0; 8];
                file.read_at(&mut word, 0)?;
                file.write_at(&content(u64::from_le_bytes(word)), 0)?;
            }
            Ok(())
        }
    }
}

/// Runs `f` of each of four threads, with its number, many times, on a volume that must be sound in the end. What it
/// returns as an error is a failure.
fn together<T: Default>(f: impl Fn(u64, &Session, &mut Rng, &mut T) -> Result<(), String> + Sync) {
    let seed = rng::seed_or(1);
    let rounds = if rng::is_long() { 2_000_000 } else { 100_000 };
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let options = MountOptions { cache_size: 1 << 20, commit_interval_ms: 5, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (fs, failed, f) = (&fs, &failed, &f);
            scope.spawn(move || {
                let session = fs.session(Cred::root());
                let mut rng = Rng::new(seed.rotate_left(8) ^ thread);
                let mut state = T::default();
                for round in 0..rounds {
                    if failed.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Err(what) = f(thread, &session, &mut rng, &mut state) {
                        failed.store(true, Ordering::Relaxed);
                        panic!("seed {seed}, thread {thread}, round {round}: {what}");
                    }
                }
            });
        }
    });
    fs.close().unwrap();
    check_silent(&device.into()).unwrap();
}

#[test]
fn what_changes_meanwhile_is_found_as_it_was_or_as_it_is() {
    together(|thread, session, rng, (): &mut ()| {
        let result = match thread {
            0 | 1 => change(session, rng),
            2 => look_by_path(session, rng),
            _ => look_by_node(session, rng),
        };
        match result {
            Err(Error::Refused(Errno::STALE)) if thread == 3 => Ok(()),
            Err(error) if !of_a_path(&error) => Err(format!("{error:?}")),
            _ => Ok(()),
        }
    });
}

#[test]
fn files_are_whole_whatever_becomes_of_their_names() {
    together(|thread, session, rng, held: &mut Vec<File>| {
        if thread < 2 {
            let result = supply(session, rng, thread, held);
            return result.or_else(|error| if of_a_path(&error) { Ok(()) } else { Err(format!("{error:?}")) });
        }
        match session.open(&format!("file {}", rng.below(6)), OpenOptions::READ) {
            Ok(file) => {
                is_whole(&file)?;
                held.push(file);
            }
            Err(error) if of_a_path(&error) => {}
            Err(error) => return Err(format!("{error:?}")),
        }
        // It was replaced or removed since, perhaps.
        if held.len() > 3 { is_whole(&held.swap_remove(rng.index(held.len()))) } else { Ok(()) }
    });
}
