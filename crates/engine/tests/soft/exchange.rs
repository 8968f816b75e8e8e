//! Two names that exchange what they name (RENAME_EXCHANGE): whatever power loss leaves, both are as they were or both as they are to be.

use super::recorded::{State, Volume, counter, names};
use super::setup;
use myriad_check::{Options, check};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{Error, Fs, MountOptions, RenameMode, Session};
use myriad_format::exchange::ExchangedName;
use myriad_format::superblock::Superblock;
use myriad_sim::rng::Rng;
use myriad_trials::setup::Devices;
use myriad_trials::verdict::repair;
use std::sync::Arc;

/// What is found at a path: the content of a file, the names in a directory.
fn found(session: &Session, path: &str) -> String {
    match session.read(path) {
        Ok(content) => String::from_utf8(content).unwrap(),
        Err(_) => names(session, path).join(" "),
    }
}

fn image(state: &State) -> Arc<MemoryDevice> {
    Arc::new(state.image.clone_image())
}

fn noted(state: &State) -> bool {
    let mut sector = [0; Superblock::SIZE];
    state.image.read(0, &mut sector).unwrap();
    Superblock::read(&sector).exchange().is_some()
}

/// Makes a tree, exchanges two names of it, and looks at them in every state that power loss can leave: in a volume opened for writing, in one opened for
/// reading, and after a repair.
fn check_exchange(make: impl Fn(&Session), one: &str, other: &str) {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    make(&volume.session);
    let before = [one, other].map(|path| found(&volume.session, path));
    let states = volume.states(|session| session.rename(one, other, RenameMode::Exchange).unwrap());
    assert_eq!(counter(&volume.fs, "soft_forced"), 0);
    let after = [one, other].map(|path| found(&volume.session, path));
    assert_eq!(after, [before[1].clone(), before[0].clone()]);
    let look = |state: &State, fs: &Fs, how: &str| {
        let session = fs.session(myriad_engine::Cred::root());
        let now = [one, other].map(|path| found(&session, path));
        assert!(now == before || now == after, "{}, {how}: {now:?}", state.what);
        now == after
    };
    let (mut as_before, mut as_after, mut under_way) = (0, 0, 0);
    for state in &states {
        state.check();
        let written = state.open(&setup);
        let is_after = look(state, &written.fs, "opened");
        let reader = MountOptions { read_only: true, ..setup.options.clone() };
        let read = Fs::open_device(image(state), None, reader).unwrap();
        assert_eq!(look(state, &read, "opened for reading"), is_after, "{}", state.what);
        let mended = image(state);
        repair(&Devices::from(mended.clone() as Arc<dyn BlockDevice>)).unwrap();
        let mended = setup.open(mended as Arc<dyn BlockDevice>).unwrap();
        assert_eq!(look(state, &mended, "repaired"), is_after, "{}", state.what);
        let count = if noted(state) {
            &mut under_way
        } else if is_after {
            &mut as_after
        } else {
            &mut as_before
        };
        *count += 1;
    }
    assert!(as_before > 0 && under_way > 0 && as_after > 0, "{as_before} {under_way} {as_after}");
}

#[test]
fn files_of_one_directory_exchange_their_names() {
    let make = |session: &Session| {
        session.write("a", b"content of a").unwrap();
        session.write("b", b"content of b").unwrap();
    };
    check_exchange(make, "a", "b");
}

#[test]
fn directories_exchange_their_names_and_parents() {
    let make = |session: &Session| {
        for dir in ["one", "other", "one/a", "other/b", "one/a/in-a", "other/b/in-b"] {
            session.mkdir(dir, 0o755).unwrap();
        }
    };
    check_exchange(make, "one/a", "other/b");
}

#[test]
fn a_file_and_a_directory_exchange_their_names() {
    let make = |session: &Session| {
        session.mkdir("one", 0o755).unwrap();
        session.mkdir("a", 0o755).unwrap();
        session.write("a/file", b"in a").unwrap();
        session.write("one/b", b"content of b").unwrap();
    };
    check_exchange(make, "a", "one/b");
}

/// What an exchange costs: it makes everything durable that was changed before, and the next sync notes it, shows both names, and takes the note away.
#[test]
fn an_exchange_costs_three_rounds_and_two_notes() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    for name in ["a", "b"] {
        volume.session.write(name, name.as_bytes()).unwrap();
    }
    volume.fs.sync().unwrap();
    volume.device.take();
    volume.session.rename("a", "b", RenameMode::Exchange).unwrap();
    assert_eq!(volume.traffic().0.values().sum::<usize>(), 0, "nothing was to be made durable before it");
    let rounds = counter(&volume.fs, "soft_rounds");
    volume.fs.sync().unwrap();
    let (blocks, flushes) = volume.traffic();
    assert_eq!(counter(&volume.fs, "soft_rounds") - rounds, 3);
    // Links one more; the names; links as they are. Each round has a flush, and each note.
    println!("{blocks:?}");
    assert_eq!((blocks["superblock"], blocks["entries of a linear directory"], flushes), (2, 1, 5), "{blocks:?}");
}

/// With further names of both, no rule about lost files would notice that one of the two names is early.
#[test]
fn files_with_further_names_exchange_two_of_them() {
    let make = |session: &Session| {
        session.mkdir("one", 0o755).unwrap();
        for name in ["a", "b"] {
            session.write(name, format!("content of {name}").as_bytes()).unwrap();
            session.link(name, &format!("one/{name}")).unwrap();
        }
    };
    check_exchange(make, "a", "one/b");
}

/// What is done with the names, and with directories above and below them, before an exchange is durable, does not wait for it in a circle.
#[test]
fn an_exchange_goes_before_what_follows() {
    let mut setup = setup(1024, 8 << 20);
    setup.options.commit_interval_ms = 0;
    for seed in 0..60 {
        let volume = Volume::new(&setup);
        let (session, mut rng) = (&volume.session, Rng::new(seed));
        for dir in ["p", "q", "p/x", "q/y", "p/x/z"] {
            session.mkdir(dir, 0o755).unwrap();
        }
        let files = ["p/f", "q/g", "p/x/h", "f"];
        for name in files {
            session.write(name, name.as_bytes()).unwrap();
        }
        let states = volume.states(|session| {
            for _ in 0..6 {
                let all = ["p", "q", "p/x", "q/y", "p/x/z", "q/y/z", "p/f", "q/g", "p/x/h", "f", "w", "q/w", "p/x/w"];
                let (a, b) = (*rng.pick(&all), *rng.pick(&all));
                let done = match rng.below(5) {
                    0 => session.rename(a, b, RenameMode::NoReplace),
                    1 => session.link(a, b),
                    2 => session.rename(a, b, RenameMode::Replace),
                    _ => session.rename(a, b, RenameMode::Exchange),
                };
                assert!(matches!(done, Ok(()) | Err(Error::Refused(_))), "seed {seed}: {done:?}");
            }
        });
        assert_eq!(counter(&volume.fs, "soft_forced"), 0, "seed {seed}");
        for state in states.iter().step_by(7) {
            state.check();
            state.open(&setup);
        }
    }
}

/// A note that no engine wrote: nothing is changed by it, and a repair takes it away.
#[test]
fn a_note_that_cannot_be_is_damage() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.session.write("a", b"content").unwrap();
    volume.fs.close().unwrap();
    let device = Arc::new(volume.device.inner().clone_image());
    let mut sector = [0; Superblock::SIZE];
    device.read(0, &mut sector).unwrap();
    for (block, at, ino) in [(0, 0, 0), (u64::MAX, 0, 9), (5, 16, 9), (1 << 12, u32::MAX, 9), (4000, 16, u64::MAX)] {
        let mut name = ExchangedName::zeroed();
        (name.block, name.at, name.ino, name.dir) = (block.into(), at.into(), ino.into(), 1.into());
        let image = device.clone_image();
        Superblock::read_mut(&mut sector).set_exchange(Some([name, name]));
        myriad_format::header::seal(&mut sector, 0);
        image.write(0, &sector).unwrap();
        let image: Arc<dyn BlockDevice> = Arc::new(image);
        assert!(matches!(setup.open(image.clone()).err(), Some(Error::Corrupt(_))));
        let reader = MountOptions { read_only: true, ..setup.options.clone() };
        let read = Fs::open_device(image.clone(), None, reader).unwrap();
        assert_eq!(found(&read.session(myriad_engine::Cred::root()), "a"), "content");
        let report = check(image.clone(), None, &Options { threads: 1, ..Options::default() }).unwrap();
        assert!(report.damage_count > 0 && report.findings[0].message.contains("exchange"), "{:?}", report.findings);
        repair(&Devices::from(image.clone())).unwrap();
        assert_eq!(found(&setup.open(image).unwrap().session(myriad_engine::Cred::root()), "a"), "content");
    }
}
