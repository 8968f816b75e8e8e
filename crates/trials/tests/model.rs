//! The same operations on the engine and on `sim::Model`: same answers, same trees, and a checker with nothing to say. Each on volumes
//! of every row of the table of trials.
//!
//! A failure prints one line that replays it, and the fewest steps that still fail. `MYRIAD_CHOICES` restricts it to some rows,
//! `MYRIAD_SEED` to one seed; `MYRIAD_LONG=1` runs ten times as much.

use myriad_engine::{Cred, OpenOptions, RenameMode};
use myriad_sim::compare::{Differ, Rules};
use myriad_sim::generate::{Generator, Profile};
use myriad_sim::model::Model;
use myriad_sim::rng::{self, Rng};
use myriad_sim::shrink;
use myriad_trials::machine::{Engine, Way};
use myriad_trials::model::{Compared, RUN, VOLUME_SIZE, settled};
use myriad_trials::setup::{Setup, let_root_shrink};
use myriad_trials::table::{Promise, Row, asked};
use myriad_trials::verdict::{catch, check_silent};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// So many steps on volumes of the default, fewer on others: there may be many rows of these.
fn share(row: &Row, count: usize) -> usize {
    let count = if rng::is_long() { count * 10 } else { count };
    if row.is_default() || rng::is_long() { count } else { count / 6 }
}

/// Runs of `count` steps in all, from a seed of their own each: more of them where more is promised.
fn check(block_size: u32, way: Way, count: usize) {
    let first = rng::seed_or(u64::from(block_size));
    for row in asked() {
        let part = if Promise::of(row.order) == Promise::Prefix { 2 } else { 1 };
        let runs = (share(&row, count) * part / 3).div_ceil(RUN) as u64;
        let runs = if rng::number("MYRIAD_SEED").is_some() { 1 } else { runs };
        for seed in first..first + runs {
            let compared = Compared { row, block_size, way, seed };
            compared.run().unwrap_or_else(|message| panic!("{message}"));
        }
    }
}

/// Has a test on volumes of each row; what fails comes with the line that does it again on volumes of that row.
fn each(test: &str, work: impl Fn(&Row)) {
    for row in asked() {
        if let Err(failure) = catch_unwind(AssertUnwindSafe(|| work(&row))) {
            let name = row.name();
            println!("replay: MYRIAD_CHOICES={name} cargo test -p myriad-trials --test model {test} -- --nocapture");
            resume_unwind(failure);
        }
    }
}

// On volumes of the default: 110 000 operations in all.

#[test]
fn blocks_of_4096_by_path() {
    check(4096, Way::Path, 30_000);
}

#[test]
fn blocks_of_4096_by_node() {
    check(4096, Way::Mixed, 30_000);
}

#[test]
fn blocks_of_512() {
    check(512, Way::Mixed, 30_000);
}

#[test]
fn blocks_of_65536() {
    check(65536, Way::Mixed, 20_000);
}

const THREADS: usize = 4;

/// Threads in directories of their own, each with a model of its own.
#[test]
fn threads_in_their_own_directories() {
    each("threads_in_their_own_directories", in_their_own_directories);
}

fn in_their_own_directories(row: &Row) {
    let count = share(row, 5_000);
    let seed = rng::seed_or(77);
    let mut setup = Setup::of(*row, 4096, VOLUME_SIZE);
    setup.options.background = true;
    setup.options.commit_interval_ms = 5;
    let device = setup.format_devices();
    let fs = setup.open(device.clone()).unwrap();
    let root = fs.session(Cred::root());
    for thread in 0..THREADS {
        root.mkdir(&format!("t{thread}"), 0o755).unwrap();
    }
    let answers: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (setup, device, fs) = (setup.clone(), device.clone(), fs.clone());
                scope.spawn(move || {
                    let prefix = format!("t{thread}").into_bytes();
                    let engine = Engine::on(&setup, device, fs, Way::Mixed, &prefix);
                    catch(|| run_confined(engine, setup.rules(), seed + thread as u64, count))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("panics are caught")).collect()
    });
    for (thread, answer) in answers.into_iter().enumerate() {
        answer.unwrap_or_else(|message| panic!("thread {thread}, seed {seed}: {message}"));
    }
    drop(root);
    fs.close().unwrap();
    check_silent(&device).unwrap();
}

/// Whether a path can only mean the root.
fn is_root(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').all(|part| part.is_empty() || part == b"." || part == b"..")
}

fn run_confined(mut engine: Engine, rules: Rules, seed: u64, count: usize) -> Result<(), String> {
    let profile = Profile { confined: true, remount_every: 0, huge: false, ..Profile::default() };
    let mut generator = Generator::new(seed, profile);
    let mut model = Model::new(0);
    // The clock is shared, so times mean nothing here.
    let mut differ = Differ::new(Rules { times: false, ..rules });
    for index in 0..count {
        let step = generator.next(&model);
        let at = |message: String| format!("step {index}:\n{}{message}", shrink::show(std::slice::from_ref(&step)));
        let got = engine.run(&step, 0).map_err(|error| at(error.to_string()))?;
        let expected = model.apply(&step);
        // The model's root is a directory like others here, which refuses for other reasons.
        let names_root = step.op.paths().iter().any(|path| is_root(path));
        let busy = expected == Err(myriad_sim::errno::Errno::BUSY);
        let root_refuses = (names_root || busy) && expected.is_err() && got.is_err();
        if !root_refuses {
            differ.answer(&model, &step, &expected, &got).map_err(at)?;
        }
        if index % 1000 == 999 {
            let tree = engine.tree().map_err(|error| at(error.to_string()))?;
            differ.tree(&model, &tree).map_err(at)?;
        }
    }
    Ok(())
}

/// Threads in one directory: what each did alone is there at the end, and of what all try one succeeds.
#[test]
fn threads_in_one_directory() {
    each("threads_in_one_directory", in_one_directory);
}

fn in_one_directory(row: &Row) {
    let seed = rng::seed_or(5);
    let count = share(row, 2_000);
    let setup = {
        let mut setup = Setup::of(*row, 4096, VOLUME_SIZE);
        setup.options.background = true;
        setup.options.commit_interval_ms = 5;
        setup
    };
    let device = setup.format_devices();
    let fs = setup.open(device.clone()).unwrap();
    let root = fs.session(Cred::root());
    let fresh = {
        let_root_shrink(&fs).unwrap();
        fs.sync().unwrap();
        fs.sync().unwrap();
        fs.statfs().unwrap()
    };
    root.mkdir("d", 0o755).unwrap();
    root.create("d/shared", 0o644).unwrap();
    let outcomes: Vec<(BTreeSet<Vec<u8>>, usize, usize)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let session = fs.session(Cred::root());
                scope.spawn(move || {
                    let mut rng = Rng::new(seed + thread as u64);
                    let (mut mine, mut won, mut links) = (BTreeSet::new(), 0, 0);
                    for index in 0..count {
                        let name = format!("d/t{thread}-{}", rng.below(300));
                        let is_there = mine.contains(name.as_bytes());
                        match rng.below(5) {
                            0 | 1 => {
                                let made = session.create(&name, 0o644);
                                assert_eq!(made.is_ok(), !is_there, "create {name}: {made:?}");
                                mine.insert(name.into_bytes());
                            }
                            2 => {
                                let gone = session.unlink(&name);
                                assert_eq!(gone.is_ok(), is_there, "unlink {name}: {gone:?}");
                                mine.remove(name.as_bytes());
                            }
                            3 => {
                                let target = format!("d/t{thread}-{}", rng.below(300));
                                let moved = session.rename(&name, &target, RenameMode::Replace);
                                assert_eq!(moved.is_ok(), is_there, "rename {name} {target}: {moved:?}");
                                if is_there {
                                    mine.remove(name.as_bytes());
                                    mine.insert(target.into_bytes());
                                }
                            }
                            _ => {
                                let name = format!("d/l{thread}-{index}");
                                session.link("d/shared", &name).unwrap();
                                mine.insert(name.into_bytes());
                                links += 1;
                            }
                        }
                        won += usize::from(session.create(&format!("d/all-{index}"), 0o644).is_ok());
                        let options = OpenOptions { write: true, append: true, ..OpenOptions::default() };
                        if index % 16 == 0 {
                            let file = session.open("d/shared", options).unwrap();
                            assert_eq!(file.write_at(&[thread as u8 + 1; 7], 0).unwrap(), 7);
                        }
                    }
                    (mine, won, links)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread's own assertion")).collect()
    });
    let won: usize = outcomes.iter().map(|outcome| outcome.1).sum();
    assert_eq!(won, count, "each contested name was made by one thread");
    let links: usize = outcomes.iter().map(|outcome| outcome.2).sum();
    let shared = root.stat("d/shared").unwrap();
    assert_eq!(shared.nlink as usize, 1 + links);
    assert_eq!(shared.size, (THREADS * count.div_ceil(16) * 7) as u64);
    let mut expected: BTreeSet<Vec<u8>> = outcomes.into_iter().flat_map(|outcome| outcome.0).collect();
    expected.extend((0..count).map(|index| format!("d/all-{index}").into_bytes()));
    expected.insert(b"d/shared".into());
    let entries: Vec<_> = root.read_dir("d").unwrap().map(|entry| entry.unwrap()).collect();
    let found: BTreeSet<Vec<u8>> = entries.iter().map(|entry| [b"d/", &entry.name[..]].concat()).collect();
    assert_eq!(entries.len(), found.len(), "no name twice");
    assert_eq!(found, expected);
    // Appends do not tear.
    let file = root.open("d/shared", OpenOptions { read: true, ..OpenOptions::default() }).unwrap();
    let mut bytes = vec![0; shared.size as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    assert!(bytes.chunks(7).all(|record| record.iter().all(|&byte| byte == record[0] && byte != 0)));
    drop(file);
    root.remove_tree("d", &mut |_| true).unwrap();
    let_root_shrink(&fs).unwrap();
    fs.sync().unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap(), fresh);
    drop(root);
    fs.close().unwrap();
    check_silent(&device).unwrap();
}

/// Renames of directories across each other from several threads never make a circle or lose a directory.
#[test]
fn threads_moving_directories_make_no_circle() {
    each("threads_moving_directories_make_no_circle", moving_directories);
}

fn moving_directories(row: &Row) {
    const DIRS: u64 = 12;
    let seed = rng::seed_or(9);
    let count = share(row, 2_000);
    let setup = Setup::of(*row, 4096, VOLUME_SIZE);
    let device = setup.format_devices();
    let fs = setup.open(device.clone()).unwrap();
    let root = fs.session(Cred::root());
    for dir in 0..DIRS {
        root.mkdir(&format!("d{dir}"), 0o755).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let session = fs.session(Cred::root());
            scope.spawn(move || {
                let mut rng = Rng::new(seed + thread as u64);
                for _ in 0..count {
                    // Wherever it is now: found by walking down from the root.
                    let (moved, into) = (rng.below(DIRS), rng.below(DIRS + 1));
                    let Some(source) = place_of(&session, &format!("d{moved}")) else { continue };
                    let target = match into {
                        DIRS => format!("d{moved}"),
                        into => match place_of(&session, &format!("d{into}")) {
                            Some(place) => format!("{place}/d{moved}"),
                            None => continue,
                        },
                    };
                    // May be refused, for the place may have changed since; must not hang or harm.
                    let _ = session.rename(&source, &target, RenameMode::NoReplace);
                }
            });
        }
    });
    let mut names: Vec<Vec<u8>> = root
        .walk("/")
        .unwrap()
        .map(|entry| entry.unwrap().path)
        .filter(|path| !path.is_empty())
        .map(|path| path.rsplit(|&byte| byte == b'/').next().unwrap().to_vec())
        .collect();
    names.sort();
    let mut expected: Vec<Vec<u8>> = (0..DIRS).map(|dir| format!("d{dir}").into_bytes()).collect();
    expected.sort();
    assert_eq!(names, expected);
    drop(root);
    fs.close().unwrap();
    check_silent(&device).unwrap();
}

fn place_of(session: &myriad_engine::Session, name: &str) -> Option<String> {
    session.walk("/").ok()?.filter_map(Result::ok).find_map(|entry| {
        let path = String::from_utf8(entry.path).ok()?;
        (path.rsplit('/').next() == Some(name)).then_some(path)
    })
}

/// Out of space is said at the write, harms nothing, and removing makes room again.
#[test]
fn a_full_volume_works_on() {
    each("a_full_volume_works_on", a_full_one_works_on);
}

fn a_full_one_works_on(row: &Row) {
    for block_size in [512, 4096] {
        let setup = Setup::of(*row, block_size, 16 << 20);
        let device = setup.format_devices();
        let mut engine = Engine::open(&setup, device.clone(), Way::Path).unwrap();
        let fresh = settled(&engine).unwrap();
        let root = engine.root();
        let options = OpenOptions { read: true, write: true, create: true, mode: 0o644, ..OpenOptions::default() };
        let mut rng = Rng::new(11);
        let mut kept: Vec<(String, usize, u32)> = Vec::new();
        let mut refused = 0;
        for index in 0_u32..100_000 {
            let name = format!("f{index}");
            let len = 1 + rng.index(20_000);
            let written = root
                .open(&name, options)
                .and_then(|file| file.write_at(&myriad_sim::pattern::bytes(index + 1, 0, len), 0));
            match written {
                Ok(count) => kept.push((name, count, index + 1)),
                Err(error) => {
                    assert_eq!(error.errno(), myriad_engine::Errno::NOSPC, "{error}");
                    refused += 1;
                    // The name may be there, empty; a full volume still lets it go.
                    let _ = root.unlink(&name);
                    let (victim, ..) = kept.swap_remove(rng.index(kept.len()));
                    root.unlink(&victim).unwrap_or_else(|error| panic!("unlink on a full volume: {error}"));
                }
            }
            if refused == 50 {
                break;
            }
        }
        assert_eq!(refused, 50, "the volume was never full");
        engine.fs().sync().expect("what was accepted has its space");
        for (name, len, tag) in &kept {
            let file = root.open(name, OpenOptions { read: true, ..OpenOptions::default() }).unwrap();
            let mut bytes = vec![0; 30_000];
            let count = file.read_at(&mut bytes, 0).unwrap();
            assert_eq!(bytes[..count], myriad_sim::pattern::bytes(*tag, 0, *len), "{name}");
        }
        drop(root);
        engine.close().unwrap();
        check_silent(&device).unwrap();
        let mut engine = Engine::open(&setup, device.clone(), Way::Path).unwrap();
        let root = engine.root();
        for (name, ..) in &kept {
            root.unlink(name).unwrap();
        }
        drop(root);
        let left = settled(&engine).unwrap();
        assert_eq!((left.free_blocks, left.inodes_used), (fresh.free_blocks, fresh.inodes_used));
        engine.close().unwrap();
        check_silent(&device).unwrap();
    }
}
