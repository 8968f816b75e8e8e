//! Names that a directory takes from another one, or leaves to something else: they show whatever power loss leaves, as the one or as the other.

use super::recorded::{State, Volume, counter};
use super::setup;
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::schedule::{self, Turns};
use myriad_engine::{Cred, Error, Fs, MountOptions, OpenOptions, RenameMode, Session};
use myriad_format::superblock::Superblock;
use myriad_sim::rng::Rng;
use myriad_trials::setup::Devices;
use myriad_trials::verdict::repair;
use std::sync::Arc;

fn is_noted(state: &State) -> bool {
    let mut sector = [0; Superblock::SIZE];
    state.image.read(0, &mut sector).unwrap();
    Superblock::read(&sector).exchange().is_some()
}

/// A file in each of two directories, a file beside them, and an empty directory.
fn make(session: &Session) {
    for dir in ["d", "e", "d/below", "empty"] {
        session.mkdir(dir, 0o755).unwrap();
    }
    session.write("d/file", b"in d").unwrap();
    session.write("e/file", b"in e").unwrap();
    session.write("a", b"content of a").unwrap();
}

/// Does `work`, and looks in every state that power loss can leave of it whether these names are there: in a volume opened for writing, in one opened for
/// reading, and after a repair.
fn check_names(always: &[&str], work: impl Fn(&Session)) {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    make(&volume.session);
    let states = volume.states(&work);
    assert_eq!(counter(&volume.fs, "soft_forced"), 0);
    assert!(states.iter().any(is_noted), "something is noted");
    let look = |state: &State, fs: &Fs, how: &str| {
        let session = fs.session(Cred::root());
        for name in always {
            assert!(session.exists(name).unwrap(), "{}, {how}: {name}", state.what);
        }
    };
    for state in states.iter().filter(|state| is_noted(state)).chain(states.iter().step_by(5)) {
        state.check();
        look(state, &state.open(&setup).fs, "opened");
        let image = |state: &State| Arc::new(state.image.clone_image());
        let reader = MountOptions { read_only: true, ..setup.options.clone() };
        look(state, &Fs::open_device(image(state), None, reader).unwrap(), "opened for reading");
        let mended: Arc<MemoryDevice> = image(state);
        repair(&Devices::from(mended.clone() as Arc<dyn BlockDevice>)).unwrap();
        look(state, &setup.open(mended as Arc<dyn BlockDevice>).unwrap(), "repaired");
    }
}

fn rename(session: &Session, source: &str, target: &str, mode: RenameMode) {
    session.rename(source, target, mode).unwrap();
}

/// The name named its new directory while that said that it had its old name: nothing was found by it.
#[test]
fn a_name_that_a_directory_takes_from_an_empty_one_shows() {
    check_names(&["empty"], |session| rename(session, "d", "empty", RenameMode::Replace));
    check_names(&["d", "d/below"], |session| {
        rename(session, "e", "empty", RenameMode::Replace);
        rename(session, "empty", "d/below", RenameMode::Replace);
    });
}

/// The name named its old directory while that said that it had its new name.
#[test]
fn a_name_that_a_directory_leaves_to_a_whiteout_shows() {
    check_names(&["d"], |session| rename(session, "d", "new", RenameMode::Whiteout));
    check_names(&["d"], |session| rename(session, "d", "e/new", RenameMode::Whiteout));
    check_names(&["d"], |session| {
        rename(session, "d", "e/new", RenameMode::Whiteout);
        rename(session, "e/new", "e/newer", RenameMode::Replace);
        rename(session, "e", "f", RenameMode::Replace);
    });
}

/// One of two names that were exchanged changed again before they showed: what was left of the exchange was a rename, and took a name away.
#[test]
fn a_name_of_an_exchange_shows_after_a_rename_of_the_other() {
    check_names(&["d"], |session| {
        rename(session, "a", "d", RenameMode::Exchange);
        rename(session, "a", "f", RenameMode::Replace);
    });
    check_names(&["d"], |session| {
        rename(session, "d/below", "e", RenameMode::Exchange);
        rename(session, "e", "f", RenameMode::Replace);
    });
    check_names(&["e"], |session| {
        rename(session, "d", "e", RenameMode::Exchange);
        rename(session, "d", "f", RenameMode::Replace);
    });
}

/// Directories take and leave names while another thread makes everything durable. Nothing waits in a circle, and every state can be used.
#[test]
fn what_is_noted_does_not_wait_in_a_circle() {
    let setup = setup(1024, 8 << 20);
    for seed in 0..40 {
        let volume = Volume::new(&setup);
        let mut rng = Rng::new(seed);
        make(&volume.session);
        let states = volume.states(|session| {
            let change = || {
                for _ in 0..12 {
                    let all = ["d", "e", "empty", "d/below", "e/below", "d/f", "e/f", "f", "a", "d/a"];
                    let (a, b) = (*rng.pick(&all), *rng.pick(&all));
                    let done = match rng.below(6) {
                        0 => session.mkdir(a, 0o755).map(drop),
                        1 => session.rmdir(a),
                        2 => session.rename(a, b, RenameMode::Exchange),
                        3 => session.rename(a, b, RenameMode::Whiteout),
                        _ => session.rename(a, b, RenameMode::Replace),
                    };
                    assert!(matches!(done, Ok(()) | Err(Error::Refused(_))), "seed {seed}: {done:?}");
                }
            };
            let sync = || (0..3).for_each(|_| volume.fs.sync().unwrap());
            schedule::run(Turns { seed, one_in: 3 }, vec![Box::new(change), Box::new(sync)]);
        });
        assert_eq!(counter(&volume.fs, "soft_forced"), 0, "seed {seed}");
        for state in states.iter().step_by(31) {
            state.check();
            state.open(&setup);
        }
    }
}

/// A file whose content had been written over in place, and which a rename then put in the place of another one, showed there with what it had before
/// that: somebody synced a third file, which had its inode in the same block and its name in the same directory.
#[test]
fn a_file_takes_a_place_with_what_was_written_over_it() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.session.write("old", [b'o'; 1024]).unwrap();
    volume.session.write("new", [b'1'; 1024]).unwrap();
    volume.fs.sync().unwrap();
    let mut seen = [0; 2];
    let states = volume.states(|session| {
        let file = session.open("new", OpenOptions::READ_WRITE).unwrap();
        file.write_at(&[b'2'; 1024], 0).unwrap();
        session.rename("new", "old", RenameMode::Replace).unwrap();
        let third =
            session.open("third", OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE }).unwrap();
        third.sync().unwrap();
    });
    for state in states {
        let found = state.open(&setup).session.read("old").unwrap();
        let is_new = found == [b'2'; 1024];
        assert!(is_new || found == [b'o'; 1024], "{}: {:?}", state.what, found[0] as char);
        seen[usize::from(is_new)] += 1;
    }
    assert!(seen[0] > 0, "{seen:?}");
}
