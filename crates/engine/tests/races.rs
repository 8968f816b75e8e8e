//! Names that go, and come back as something else, while others use them: the answers are those of before or after,
//! nobody is told of damage that is none, and none is done.

use myriad_device::MemoryDevice;
use myriad_engine::{Cred, DirEntry, Errno, Error, Fs, MkfsOptions, MountOptions, OpenOptions, RenameMode, Session};
use myriad_engine::{SetAttr, XattrMode};
use myriad_reliability::verdict::check_silent;
use myriad_sim::rng::{self, Rng};
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

#[test]
fn what_changes_meanwhile_is_found_as_it_was_or_as_it_is() {
    let seed = rng::seed_or(1);
    let rounds = if rng::is_long() { 2_000_000 } else { 200_000 };
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let options = MountOptions { cache_size: 1 << 20, commit_interval_ms: 5, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (fs, failed) = (&fs, &failed);
            scope.spawn(move || {
                let session = fs.session(Cred::root());
                let mut rng = Rng::new(seed.rotate_left(8) ^ thread);
                for round in 0..rounds {
                    if failed.load(Ordering::Relaxed) {
                        return;
                    }
                    let by_node = thread == 3;
                    let result = match thread {
                        0 | 1 => change(&session, &mut rng),
                        2 => look_by_path(&session, &mut rng),
                        _ => look_by_node(&session, &mut rng),
                    };
                    let Err(error) = result else { continue };
                    if !(of_a_path(&error) || by_node && matches!(error, Error::Refused(Errno::STALE))) {
                        failed.store(true, Ordering::Relaxed);
                        panic!("seed {seed}, thread {thread}, round {round}: {error:?}");
                    }
                }
            });
        }
    });
    fs.close().unwrap();
    check_silent(&device.into()).unwrap();
}
