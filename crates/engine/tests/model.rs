//! The same operations on the engine and on `sim::Model`: same answers, same trees, and a checker with nothing to say.
//!
//! A failure prints one line that replays it, and the fewest steps that still fail. `MYRIAD_SEED` replays,
//! `MYRIAD_LONG=1` runs ten times as much.

use myriad_engine::{Allocation, Cred, Discard, OpenOptions, PlacementPolicy, RenameMode, StatFs};
use myriad_format::choices::{Choices, Directory, MYRIAD};
use myriad_sim::compare::{Differ, Rules};
use myriad_sim::generate::{self, Generator, Profile};
use myriad_sim::model::Model;
use myriad_sim::op::*;
use myriad_sim::rng::{self, Rng};
use myriad_sim::shrink;
use myriad_trials::machine::{Engine, Way};
use myriad_trials::setup::{Devices, Setup};
use myriad_trials::verdict::{catch, check_silent, quietly};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Steps between two comparisons of the whole tree.
const TREE_EVERY: usize = 250;
const VOLUME_SIZE: u64 = 512 << 20;

/// Options of a run that its seed decides: what must make no difference.
fn vary(setup: &mut Setup, seed: u64) {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let options = &mut setup.options;
    options.allocation = *rng.pick(&[Allocation::Delayed, Allocation::AtWrite]);
    options.placement = *rng.pick(&[PlacementPolicy::DirPref, PlacementPolicy::Rotor]);
    options.name_cache = rng.percent(70);
    options.background = rng.percent(30);
    options.cache_size = *rng.pick(&[8 << 20, 64 << 20]);
    options.discard = if rng.percent(20) { Discard::Always } else { Discard::Never };
    options.discard_piece = 1;
    setup.data_checksums = rng.percent(40);
    setup.vary_log(&mut rng);
}

fn look_at_closed(devices: &Devices) {
    if let Err(message) = check_silent(devices) {
        panic!("after closing: {message}");
    }
}

/// Runs the steps on a fresh volume and on the model.
fn compare(setup: &Setup, way: Way, steps: &[Step]) -> Result<(), String> {
    catch(|| {
        let device = setup.format_devices();
        let mut engine = Engine::open(setup, device.clone(), way).map_err(|error| error.to_string())?;
        engine.on_remount = Some(look_at_closed);
        let fresh = settled(&engine)?;
        let mut model = engine.fresh_model().map_err(|error| error.to_string())?;
        let mut differ = Differ::new(setup.rules());
        for (index, step) in steps.iter().enumerate() {
            let at = |message: String| format!("step {index}:\n{}{message}", shrink::show(std::slice::from_ref(step)));
            let got = engine.run(step, model.next_clock()).map_err(|error| at(error.to_string()))?;
            let expected = model.apply(step);
            differ.answer(&model, step, &expected, &got).map_err(at)?;
            compare_named(&mut engine, &model, &mut differ, step).map_err(at)?;
            if index % TREE_EVERY == TREE_EVERY - 1 || index + 1 == steps.len() || step.op == Op::Remount {
                let tree = engine.tree().map_err(|error| at(error.to_string()))?;
                differ.tree(&model, &tree).map_err(at)?;
                engine.check_walk(&tree).map_err(at)?;
            }
        }
        remove_all(&mut engine, &model)?;
        let left = settled(&engine)?;
        if (left.free_blocks, left.inodes_used, left.directories)
            != (fresh.free_blocks, fresh.inodes_used, fresh.directories)
        {
            return Err(format!("a volume that is empty again is not as it was:\n{fresh:?}\n{left:?}"));
        }
        engine.close().map_err(|error| error.to_string())?;
        check_silent(&device)
    })
}

/// The names of a change as both sides see them now, so that a wrong change is found at once.
fn compare_named(engine: &mut Engine, model: &Model, differ: &mut Differ, step: &Step) -> Result<(), String> {
    if !step.op.is_change() {
        return Ok(());
    }
    for path in step.op.paths() {
        let look = Step { cred: 0, op: Op::Stat { path: path.to_vec(), follow: false } };
        let expected = model.clone().apply(&look);
        let got = engine.run(&look, model.clock()).map_err(|error| error.to_string())?;
        differ.answer(model, &look, &expected, &got).map_err(|message| format!("afterwards, lstat: {message}"))?;
    }
    Ok(())
}

/// Totals once nothing is pending: freed blocks come back when the checkpoint that freed them is done. Directories that drop
/// what they have no use for when a name is added, some blocks at a time, have it added.
fn settled(engine: &Engine) -> Result<StatFs, String> {
    for _ in 0..20 {
        engine.root().create("settled", 0o644).map_err(|error| error.to_string())?;
        engine.root().unlink("settled").map_err(|error| error.to_string())?;
    }
    for _ in 0..2 {
        engine.fs().sync().map_err(|error| error.to_string())?;
    }
    engine.fs().statfs().map_err(|error| error.to_string())
}

/// Removes everything but the root, and what hangs on the root itself.
fn remove_all(engine: &mut Engine, model: &Model) -> Result<(), String> {
    let mut run = |op| match engine.run(&Step { cred: 0, op }, model.clock()) {
        Ok(Ok(_)) => Ok(()),
        other => Err(format!("removing everything: {other:?}")),
    };
    for slot in (0..SLOTS).filter(|&slot| model.handle(slot).is_some()) {
        run(Op::Close { slot })?;
    }
    let tree = model.names();
    for entry in tree.iter().filter(|entry| entry.stat.flags != 0) {
        let path = if entry.path.is_empty() { b"/".to_vec() } else { entry.path.clone() };
        run(Op::SetAttr { path, change: Change::Flags(0) })?;
    }
    for name in tree[0].xattrs.keys() {
        run(Op::RemoveXattr { path: b"/".into(), name: name.clone() })?;
    }
    let session = engine.root();
    for entry in tree.iter().filter(|entry| !entry.path.is_empty() && !entry.path.contains(&b'/')) {
        let removed = session.remove_tree(&entry.path, &mut |_| true).map_err(|error| error.to_string())?;
        let inside = |other: &&myriad_sim::compare::TreeEntry| {
            other.path == entry.path || other.path.starts_with(&[&entry.path[..], b"/"].concat())
        };
        let expected = tree.iter().filter(inside).count() as u64;
        if removed != expected {
            return Err(format!("remove_tree says {removed} of {expected}"));
        }
    }
    Ok(())
}

/// Runs of `count` steps in all, from a seed of their own each.
fn check(test: &str, block_size: u32, way: Way, count: usize) {
    check_with(test, block_size, way, count, Choices::default());
}

/// As [`check`], on volumes of these choices.
fn check_with(test: &str, block_size: u32, way: Way, count: usize, choices: Choices) {
    const RUN: usize = 5000;
    let count = if rng::is_long() { count * 10 } else { count };
    let first = rng::seed_or(u64::from(block_size));
    let runs = if rng::number("MYRIAD_SEED").is_some() { 1 } else { count.div_ceil(RUN) as u64 };
    for seed in first..first + runs {
        let mut setup = Setup::new(block_size, VOLUME_SIZE);
        vary(&mut setup, seed);
        setup.choices = choices;
        let (steps, _) = generate::run(seed, RUN, Profile::default());
        let Err(message) = compare(&setup, way, &steps) else { continue };
        let small = quietly(|| shrink::shrink(&steps, 600, |steps| compare(&setup, way, steps).is_err()));
        let last = quietly(|| compare(&setup, way, &small)).err().unwrap_or_default();
        panic!(
            "{message}\n{}\nshrunk to {} steps: {last}\n{}",
            rng::replay_line("myriad-engine", &format!("model::{test}"), seed, ""),
            small.len(),
            shrink::show(&small)
        );
    }
}

// 110 000 operations in all.

#[test]
fn blocks_of_4096_by_path() {
    check("blocks_of_4096_by_path", 4096, Way::Path, 30_000);
}

#[test]
fn blocks_of_4096_by_node() {
    check("blocks_of_4096_by_node", 4096, Way::Mixed, 30_000);
}

#[test]
fn blocks_of_512() {
    check("blocks_of_512", 512, Way::Mixed, 30_000);
}

#[test]
fn blocks_of_65536() {
    check("blocks_of_65536", 65536, Way::Mixed, 20_000);
}

const LINEAR: Choices = Choices { directory: Directory::Linear, ..MYRIAD.choices };

#[test]
fn linear_directories_in_blocks_of_4096() {
    check_with("linear_directories_in_blocks_of_4096", 4096, Way::Mixed, 30_000, LINEAR);
}

#[test]
fn linear_directories_in_blocks_of_512() {
    check_with("linear_directories_in_blocks_of_512", 512, Way::Path, 20_000, LINEAR);
}

const THREADS: usize = 4;

/// Threads in directories of their own, each with a model of its own.
#[test]
fn threads_in_their_own_directories() {
    let count = if rng::is_long() { 50_000 } else { 5_000 };
    let seed = rng::seed_or(77);
    let mut setup = Setup::new(4096, VOLUME_SIZE);
    setup.options.background = true;
    setup.options.commit_interval_ms = 5;
    let device = Devices::from(Arc::new(setup.format()));
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
                    catch(|| run_confined(engine, seed + thread as u64, count))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("panics are caught")).collect()
    });
    for (thread, answer) in answers.into_iter().enumerate() {
        let replay = rng::replay_line("myriad-engine", "model::threads_in_their_own_directories", seed, "");
        answer.unwrap_or_else(|message| panic!("thread {thread}: {message}\n{replay}"));
    }
    drop(root);
    fs.close().unwrap();
    check_silent(&device).unwrap();
}

/// Whether a path can only mean the root.
fn is_root(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').all(|part| part.is_empty() || part == b"." || part == b"..")
}

fn run_confined(mut engine: Engine, seed: u64, count: usize) -> Result<(), String> {
    let profile = Profile { confined: true, remount_every: 0, huge: false, ..Profile::default() };
    let mut generator = Generator::new(seed, profile);
    let mut model = Model::new(0);
    // The clock is shared, so times mean nothing here.
    let mut differ = Differ::new(Rules { times: false, ..Rules::from_env() });
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
    let count: usize = if rng::is_long() { 20_000 } else { 2_000 };
    let setup = {
        let mut setup = Setup::new(4096, VOLUME_SIZE);
        setup.options.background = true;
        setup.options.commit_interval_ms = 5;
        setup
    };
    let device = Devices::from(Arc::new(setup.format()));
    let fs = setup.open(device.clone()).unwrap();
    let root = fs.session(Cred::root());
    let fresh = {
        fs.sync().unwrap();
        fs.sync().unwrap();
        fs.statfs().unwrap()
    };
    root.mkdir("d", 0o755).unwrap();
    root.create("d/shared", 0o644).unwrap();
    let seed = rng::seed_or(5);
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
    const DIRS: u64 = 12;
    let count = if rng::is_long() { 20_000 } else { 2_000 };
    let setup = Setup::new(4096, VOLUME_SIZE);
    let device = Devices::from(Arc::new(setup.format()));
    let fs = setup.open(device.clone()).unwrap();
    let root = fs.session(Cred::root());
    for dir in 0..DIRS {
        root.mkdir(&format!("d{dir}"), 0o755).unwrap();
    }
    let seed = rng::seed_or(9);
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
    for block_size in [512, 4096] {
        let setup = Setup::new(block_size, 16 << 20);
        let device = Devices::from(Arc::new(setup.format()));
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
