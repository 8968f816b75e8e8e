//! The name cache: what it saves, and that it is never wrong, whatever comes and goes.

use myriad_device::MemoryDevice;
use myriad_engine::{Cred, Errno, Error, Fs, MkfsOptions, MountOptions, Node, RenameMode, Session, SetAttr};
use myriad_format::choices::{Choices, Directory};
use myriad_sim::rng::{self, Rng};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn options(absent_share: u64) -> MountOptions {
    MountOptions {
        cache_size: 16 << 20,
        background: false,
        name_cache_absent: absent_share,
        seed: Some(1),
        ..MountOptions::default()
    }
}

fn volume(directory: Directory, options: MountOptions) -> Fs {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let choices = Choices { directory, ..Choices::default() };
    Fs::format_device(device.clone(), None, &MkfsOptions { seed: Some(1), choices, ..MkfsOptions::default() }).unwrap();
    Fs::open_device(device, None, options).unwrap()
}

fn count(fs: &Fs, name: &str) -> u64 {
    fs.counters().iter().find(|(counter, _)| *counter == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// What `work` adds to a counter.
fn added(fs: &Fs, name: &str, work: impl FnOnce()) -> u64 {
    let before = count(fs, name);
    work();
    count(fs, name) - before
}

fn is_missing<T: std::fmt::Debug>(found: Result<T, Error>) -> bool {
    match found {
        Err(error) if error.errno() == Errno::NOENT => true,
        Ok(_) => false,
        Err(error) => panic!("{error}"),
    }
}

/// By path and by node, alone and with others.
fn is_absent(session: &Session, dir: Node, path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap();
    let found = [
        is_missing(session.lstat(path)),
        is_missing(session.lookup(dir, name.as_bytes())),
        is_missing(session.stat_many(&[path, path]).pop().unwrap()),
    ];
    assert!(found.iter().all(|absent| *absent == found[0]), "{path}: {found:?}");
    found[0]
}

#[test]
fn a_missing_name_is_searched_for_once() {
    let fs = volume(Directory::Indexed, options(16));
    let session = fs.session(Cred::root());
    let dir = session.mkdir("d", 0o755).unwrap();
    for i in 0..1000 {
        session.create(&format!("d/{i}"), 0o644).unwrap();
    }
    let look = || assert!(is_missing(session.lookup(dir, b"missing")));
    assert_eq!(added(&fs, "name_cache_misses", look), 1);
    let (mut hits, mut blocks) = (0, 0);
    let again = added(&fs, "name_cache_misses", || {
        hits = added(&fs, "name_cache_absent_hits", || blocks = added(&fs, "blocks_touched", look));
    });
    // The directory's inode is looked at for permission. With debug assertions the directory is searched all the same.
    let searched = if cfg!(debug_assertions) { 2 } else { 0 };
    assert_eq!((again, hits, blocks), (0, 1, 1 + searched));
    // By path nothing is looked at.
    assert!(is_missing(session.lstat("d/missing")));
    assert_eq!(added(&fs, "blocks_touched", || assert!(is_missing(session.lstat("d/missing")))), 0);
}

#[test]
fn a_share_of_0_and_no_name_cache_remember_no_missing_name() {
    let off = MountOptions { name_cache: false, ..options(16) };
    for options in [options(0), off] {
        let fs = volume(Directory::Indexed, options);
        let session = fs.session(Cred::root());
        session.mkdir("d", 0o755).unwrap();
        let hits = added(&fs, "name_cache_absent_hits", || {
            for _ in 0..3 {
                assert!(is_missing(session.lstat("d/missing")));
            }
        });
        assert_eq!(hits, 0);
    }
}

/// However many missing names are asked for, no more than their share are remembered, and the names that are there stay known.
#[test]
fn missing_names_have_their_share_and_no_more() {
    for share in [1, 16, 100] {
        let fs = volume(Directory::Indexed, options(share));
        let session = fs.session(Cred::root());
        let dir = session.mkdir("d", 0o755).unwrap();
        // 16 MiB in blocks of 4 KiB, less what the cache takes for itself; a power of two, at most the next.
        let names = 4096_u64;
        let missing: Vec<String> = (0..2 * names).map(|i| format!("missing{i}")).collect();
        let known: Vec<String> = (0..100).map(|i| format!("{i}")).collect();
        for name in &known {
            session.create(&format!("d/{name}"), 0o644).unwrap();
        }
        let seek = |names: &[String]| {
            for name in names {
                let _ = session.lookup(dir, name.as_bytes());
            }
        };
        seek(&known);
        seek(&missing);
        // Backwards, so that none is driven out by one asked for before it.
        let latest: Vec<String> = missing.iter().rev().take(names as usize).cloned().collect();
        let remembered = added(&fs, "name_cache_absent_hits", || seek(&latest));
        let most = 1 << (names / share).ilog2();
        assert!(remembered <= most && remembered >= most / 4, "1 in {share}: {remembered} of {most}");
        assert!(added(&fs, "name_cache_hits", || seek(&known)) >= 95);
    }
}

/// Dropping the caches drops both sorts of names: what is looked up next is searched for, and then known again.
#[test]
fn dropped_caches_know_no_names() {
    let fs = volume(Directory::Indexed, options(1));
    let session = fs.session(Cred::root());
    let dir = session.mkdir("d", 0o755).unwrap();
    let known: Vec<String> = (0..100).map(|i| format!("{i}")).collect();
    for name in &known {
        session.create(&format!("d/{name}"), 0o644).unwrap();
    }
    let seek = || {
        for name in &known {
            session.lookup(dir, name.as_bytes()).unwrap();
            assert!(is_missing(session.lookup(dir, format!("no {name}").as_bytes())));
        }
    };
    seek();
    assert!(added(&fs, "name_cache_hits", seek) >= 90);
    fs.drop_caches().unwrap();
    assert_eq!(added(&fs, "name_cache_absent_hits", || assert_eq!(added(&fs, "name_cache_hits", seek), 0)), 0);
    assert!(added(&fs, "name_cache_absent_hits", || assert!(added(&fs, "name_cache_hits", seek) >= 90)) >= 90);
}

/// Each way in which a name comes to be, after it was looked for.
#[test]
fn what_was_missing_is_there_once_it_is_made() {
    for directory in [Directory::Indexed, Directory::Linear, Directory::Tree, Directory::Slots] {
        let fs = volume(directory, options(1));
        let session = fs.session(Cred::root());
        let dir = session.mkdir("d", 0o755).unwrap();
        let source = session.create("source", 0o644).unwrap();
        session.mkdir("sourcedir", 0o755).unwrap();
        for i in 0..300 {
            session.create(&format!("d/filler{i}"), 0o644).unwrap();
        }
        type Way<'a> = (&'a str, &'a dyn Fn(&str));
        let ways: [Way<'_>; 9] = [
            ("create", &|path| _ = session.create(path, 0o644).unwrap()),
            ("write", &|path| session.write(path, "content").unwrap()),
            ("mkdir", &|path| _ = session.mkdir(path, 0o755).unwrap()),
            ("symlink", &|path| _ = session.symlink(b"target", path).unwrap()),
            ("mknod", &|path| _ = session.mknod(path, 0o010_644, 0).unwrap()),
            ("link", &|path| session.link("source", path).unwrap()),
            ("link_at", &|path| {
                let name = path.rsplit('/').next().unwrap();
                _ = session.link_at(source, dir, name.as_bytes()).unwrap();
            }),
            ("rename", &|path| {
                session.create("d/from", 0o644).unwrap();
                session.rename("d/from", path, RenameMode::NoReplace).unwrap();
            }),
            ("rename from elsewhere", &|path| {
                session.create("from", 0o644).unwrap();
                session.rename("from", path, RenameMode::Replace).unwrap();
            }),
        ];
        for (i, (way, make)) in ways.into_iter().enumerate() {
            let path = format!("d/name{i}");
            // Looked for at each level of what is remembered: not at all, once, again.
            assert!(is_absent(&session, dir, &path) && is_absent(&session, dir, &path), "{directory:?} {way}");
            make(&path);
            assert!(!is_absent(&session, dir, &path), "{directory:?}: missing after {way}");
            assert!(!is_absent(&session, dir, &path), "{directory:?}: missing after {way}");
            // And back again.
            session.rename(&path, "gone", RenameMode::Replace).unwrap();
            assert!(is_absent(&session, dir, &path), "{directory:?} {way}");
            session.unlink("gone").or_else(|_| session.rmdir("gone")).unwrap();
        }
    }
}

/// A directory's number goes to another one, and a path leads to another directory: what was missing there is nobody else's.
#[test]
fn a_missing_name_is_missing_in_its_directory_only() {
    let fs = volume(Directory::Indexed, options(1));
    let session = fs.session(Cred::root());
    let asked = |path: &str| is_missing(session.lstat(path));
    let old = session.mkdir("d", 0o755).unwrap();
    assert!(asked("d/x") && asked("d/x"));
    session.rmdir("d").unwrap();
    let new = session.mkdir("d", 0o755).unwrap();
    assert_eq!(old.ino(), new.ino(), "the test is about a number that is used again");
    assert!(asked("d/x"));
    session.create("d/x", 0o644).unwrap();
    assert!(!asked("d/x"));
    // A file in its place.
    session.unlink("d/x").unwrap();
    assert!(asked("d/x"));
    session.rmdir("d").unwrap();
    session.create("d", 0o644).unwrap();
    assert_eq!(session.lstat("d/x").unwrap_err().errno(), Errno::NOTDIR);
    // Another directory at the path.
    session.mkdir("a", 0o755).unwrap();
    session.mkdir("b", 0o755).unwrap();
    session.create("b/x", 0o644).unwrap();
    assert!(asked("a/x") && !asked("b/x"));
    session.rename("a", "b", RenameMode::Exchange).unwrap();
    assert!(!asked("a/x") && asked("b/x"));
}

/// Who may not search a directory learns nothing of what is missing there.
#[test]
fn permission_comes_before_what_is_remembered() {
    let fs = volume(Directory::Indexed, options(1));
    let root = fs.session(Cred::root());
    root.mkdir("d", 0o755).unwrap();
    let user = fs.session(Cred { uid: 1000, gid: 1000, ..Cred::root() });
    for session in [&root, &user] {
        assert!(is_missing(session.lstat("d/x")) && is_missing(session.lstat("d/x")));
    }
    root.set_attr("d", SetAttr { mode: Some(0o700), ..SetAttr::default() }).unwrap();
    assert!(is_missing(root.lstat("d/x")));
    assert_eq!(user.lstat("d/x").unwrap_err().errno(), Errno::ACCESS);
}

/// A random run of one thread, with a set of names beside: each answer is that of the set.
#[test]
fn answers_are_those_of_a_set() {
    let seeds = rng::seed_or(1);
    let runs = if rng::is_long() { 2000 } else { 60 };
    for seed in seeds..seeds + runs {
        let mut rng = Rng::new(seed);
        let directory = *rng.pick(&[Directory::Indexed, Directory::Linear, Directory::Tree, Directory::Slots]);
        let mut options = options(*rng.pick(&[1, 16, 1000]));
        options.dirhash.is_on = rng.percent(50).then(|| rng.percent(50));
        let fs = volume(directory, options);
        let session = fs.session(Cred::root());
        let dir = session.mkdir("d", 0o755).unwrap();
        let mut names = BTreeSet::new();
        for _ in 0..400 {
            let name = rng.below(40);
            let path = format!("d/{name}");
            match rng.below(10) {
                0..2 if !names.contains(&name) => {
                    session.create(&path, 0o644).unwrap();
                    names.insert(name);
                }
                2..4 if names.remove(&name) => session.unlink(&path).unwrap(),
                4 if names.contains(&name) => {
                    let target = rng.below(40);
                    session.rename(&path, &format!("d/{target}"), RenameMode::Replace).unwrap();
                    if target != name {
                        names.remove(&name);
                        names.insert(target);
                    }
                }
                _ => assert_eq!(is_absent(&session, dir, &path), !names.contains(&name), "{path}, MYRIAD_SEED={seed}"),
            }
        }
    }
}

/// Threads ask for names while others make and remove them. Each name has one owner, who counts on before each change and behind it:
/// 0, it is missing; 1, it is being made; 2, it is there; 3, it is being removed; and so on. Whoever asked while the count stayed at
/// an even number must have been told what that says.
#[test]
fn threads_that_ask_are_told_what_is_there() {
    const NAMES: usize = 8;
    let rounds = if rng::is_long() { 200_000 } else { 4000 };
    let fs = volume(Directory::Indexed, options(1));
    let dir = fs.session(Cred::root()).mkdir("d", 0o755).unwrap();
    let counts: Vec<AtomicU64> = (0..NAMES).map(|_| AtomicU64::new(0)).collect();
    let (over, judged) = (AtomicU64::new(0), AtomicU64::new(0));
    let (fs, counts, over, judged) = (&fs, &counts, &over, &judged);
    std::thread::scope(|scope| {
        for owner in 0..2 {
            scope.spawn(move || {
                let session = fs.session(Cred::root());
                for round in 0..rounds {
                    let name = round % (NAMES / 2) * 2 + owner;
                    let (path, count) = (format!("d/{name}"), &counts[name]);
                    if count.fetch_add(1, Ordering::SeqCst) % 4 == 0 {
                        session.create(&path, 0o644).unwrap();
                    } else {
                        session.unlink(&path).unwrap();
                    }
                    let now = count.fetch_add(1, Ordering::SeqCst) + 1;
                    assert_eq!(session.exists(&path).unwrap(), now % 4 == 2, "{path}, by its owner");
                }
                over.fetch_add(1, Ordering::SeqCst);
            });
        }
        for reader in 0..2 {
            scope.spawn(move || {
                let session = fs.session(Cred::root());
                let mut rng = Rng::new(reader);
                while over.load(Ordering::SeqCst) < 2 {
                    let name = rng.index(NAMES);
                    let before = counts[name].load(Ordering::SeqCst);
                    let is_there = if rng.percent(50) {
                        session.exists(&format!("d/{name}")).unwrap()
                    } else {
                        !is_missing(session.lookup(dir, name.to_string().as_bytes()))
                    };
                    if before % 2 == 0 && counts[name].load(Ordering::SeqCst) == before {
                        assert_eq!(is_there, before % 4 == 2, "name {name} at {before}");
                        judged.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(judged.load(Ordering::Relaxed) > 0);
}
