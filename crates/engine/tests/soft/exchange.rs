//! Two names that exchange what they name (RENAME_EXCHANGE): whatever power loss leaves, both are as they were or both as they are to be.

use super::recorded::{self, State, Volume, counter, names, states};
use super::setup;
use super::worn::Worn;
use myriad_check::{CheckError, Options, check};
use myriad_device::{BlockDevice, FaultDevice, FaultOp, FaultSpan, MemoryDevice, RecordingDevice};
use myriad_engine::schedule::{self, Turns};
use myriad_engine::{Cred, Errno, Error, Fs, MountOptions, Order, RenameMode, Session};
use myriad_format::exchange::ExchangedName;
use myriad_format::superblock::{Superblock, leftovers};
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

fn superblock(device: &MemoryDevice) -> [u8; Superblock::SIZE] {
    let mut sector = [0; Superblock::SIZE];
    device.read(0, &mut sector).unwrap();
    sector
}

fn noted(state: &State) -> bool {
    Superblock::read(&superblock(&state.image)).exchange().is_some()
}

/// A volume cut short while two files exchanged their names, with the note and neither of the entries.
fn cut_short() -> MemoryDevice {
    let volume = Volume::new(&setup(1024, 8 << 20));
    volume.session.write("a", b"content of a").unwrap();
    volume.session.write("b", b"content of b").unwrap();
    let states = volume.states(|session| session.rename("a", "b", RenameMode::Exchange).unwrap());
    states.into_iter().find(noted).expect("a state under way").image
}

/// Changes the superblock by hand.
fn with_superblock(device: &MemoryDevice, change: impl FnOnce(&mut Superblock)) {
    let mut sector = superblock(device);
    change(Superblock::read_mut(&mut sector));
    myriad_format::header::seal(&mut sector, 0);
    device.write(0, &sector).unwrap();
}

fn all_of(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read(0, &mut bytes).unwrap();
    bytes
}

/// Makes a tree, exchanges two names of it, and looks at them in every state that power loss can leave: in a volume opened for writing, in one opened for
/// reading, and after a repair.
fn check_exchange(make: impl Fn(&Session), one: &str, other: &str) {
    check_exchange_and(make, one, other, |_| ());
}

/// As [`check_exchange`]; something else is done before the exchange is durable.
fn check_exchange_and(make: impl Fn(&Session), one: &str, other: &str, then: impl Fn(&Session)) {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    make(&volume.session);
    let before = [one, other].map(|path| found(&volume.session, path));
    let states = volume.states(|session| {
        session.rename(one, other, RenameMode::Exchange).unwrap();
        then(session);
    });
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

/// A directory of one unit with names of which two go, with an `x` between them and no other room: a name of 80 characters makes `x` move.
fn make_room_beside_x(session: &Session) {
    session.mkdir("d", 0o755).unwrap();
    let gone = ["q", "r"].map(|name| format!("d/{}", name.repeat(40)));
    session.write("d/p", b"first").unwrap();
    session.write(&gone[0], b"going").unwrap();
    session.write("d/x", b"content of x").unwrap();
    session.write(&gone[1], b"going").unwrap();
    session.write("d/y", b"content of y").unwrap();
    session.write(&format!("d/{}", "t".repeat(255)), b"tail").unwrap();
    gone.iter().for_each(|path| session.unlink(path).unwrap());
}

fn make_x_move(session: &Session) {
    session.write(&format!("d/{}", "n".repeat(80)), b"new").unwrap();
    assert_eq!(session.stat("d").unwrap().size, 512);
}

/// A name that was made after the exchange moved one of the two entries inside its unit. The note said where the entry lay in memory, and on the device
/// it was elsewhere until the images of the same round had arrived: power lost before that left a volume that was refused for writing.
#[test]
fn an_entry_that_moves_is_noted_where_it_lasts() {
    check_exchange_and(make_room_beside_x, "d/x", "d/y", make_x_move);
}

/// The same with the names in two directories: the other entry arrived, and this one did not.
#[test]
fn an_entry_that_moves_waits_with_one_elsewhere() {
    let make = |session: &Session| {
        make_room_beside_x(session);
        session.mkdir("e", 0o755).unwrap();
        session.write("e/other", b"content of other").unwrap();
    };
    check_exchange_and(make, "d/x", "e/other", make_x_move);
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

/// While two names are exchanged, another thread saves one of them by a rename. Wherever they meet, no state has the one name as it was before the exchange
/// and the other as after it: both named the same file then.
#[test]
fn an_exchange_beside_a_save_is_whole() {
    let setup = setup(1024, 8 << 20);
    for seed in 0..40 {
        let volume = Volume::new(&setup);
        for name in ["x", "y"] {
            volume.session.write(name, name.as_bytes()).unwrap();
        }
        let states = volume.states(|session| {
            let exchange = || session.rename("x", "y", RenameMode::Exchange).unwrap();
            let save = || {
                let session = volume.fs.session(Cred::root());
                for nth in 0..4 {
                    session.write("saved", format!("save {nth}").as_bytes()).unwrap();
                    session.rename("saved", "x", RenameMode::Replace).unwrap();
                }
            };
            schedule::run(Turns { seed, one_in: 2 }, vec![Box::new(exchange), Box::new(save)]);
        });
        for state in states.iter().step_by(9) {
            let reader = MountOptions { read_only: true, ..setup.options.clone() };
            let read = Fs::open_device(image(state), None, reader).unwrap();
            let [x, y] = ["x", "y"].map(|path| found(&read.session(Cred::root()), path));
            assert!(x != y, "seed {seed}, {}: {x}", state.what);
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

/// The sector of an entry of the exchange cannot be read: who only reads, and the check, go on without; a repair drops the note.
#[test]
fn an_entry_that_cannot_be_read_keeps_nobody_out() {
    let setup = setup(1024, 8 << 20);
    let image = Arc::new(cut_short());
    let [name, _] = Superblock::read(&superblock(&image)).exchange().unwrap();
    let at = name.block.get() * 1024 + u64::from(name.at.get()) / 512 * 512;
    let sector = at..at + 512;
    let worn: Arc<dyn BlockDevice> = Worn::new(image.clone(), vec![sector]);
    let before = all_of(&image);
    let reader = MountOptions { read_only: true, ..setup.options.clone() };
    Fs::open_device(worn.clone(), None, reader).unwrap();
    let options = Options { threads: 1, ..Options::default() };
    let report = check(worn.clone(), None, &options).unwrap();
    assert!(report.unreadable_blocks > 0 && report.findings[0].message.contains("exchange"), "{:?}", report.findings);
    assert!(all_of(&image) == before);
    // What a repair drops for that reason, another cable may bring back.
    let left = Options { repair: true, leave_unreadable: true, ..options.clone() };
    assert!(!check(worn.clone(), None, &left).unwrap().repaired);
    assert!(all_of(&image) == before);
    let report = check(worn.clone(), None, &Options { repair: true, ..options }).unwrap();
    assert!(report.is_sound(), "{:?}", report.remaining);
    assert_eq!(Superblock::read(&superblock(&image)).exchange(), None);
    setup.open(worn).unwrap();
}

/// What refuses to write to a volume writes nothing of an exchange to it either.
#[test]
fn an_opening_that_is_refused_writes_nothing() {
    let setup = setup(1024, 8 << 20);
    let image = Arc::new(cut_short());
    let refused = |image: &Arc<MemoryDevice>, options: &MountOptions| {
        let before = all_of(image);
        let error = Fs::open_device(image.clone(), None, options.clone()).err().expect("it is refused");
        assert!(all_of(image) == before, "{error}");
        error
    };
    let unchecked = Arc::new(image.clone_image());
    with_superblock(&unchecked, |superblock| superblock.leftovers |= leftovers::NEEDS_CHECK);
    assert!(matches!(refused(&unchecked, &setup.options), Error::Unchecked));
    let foreign_delay = MountOptions { order: Some(Order::None), dir_delay_ms: Some(1), ..setup.options.clone() };
    assert!(matches!(refused(&image, &foreign_delay), Error::Option(_)));

    // A later version may know what this one must not write to.
    let later = Arc::new(image.clone_image());
    with_superblock(&later, |superblock| superblock.features_read_only = (1 << 63).into());
    let before = all_of(&later);
    let options = Options { threads: 1, repair: true, ..Options::default() };
    let result = check(later.clone(), None, &options);
    assert!(matches!(result, Err(CheckError::Incompatible(_))), "{result:?}");
    assert!(all_of(&later) == before);
    // It can be read, with the exchange done in memory.
    let read = Fs::open_device(later.clone(), None, setup.options.clone()).unwrap();
    assert_eq!(found(&read.session(Cred::root()), "a"), "content of b");
    drop(read);
    assert!(all_of(&later) == before);
}

/// Nothing but the note is wrong: a repair does what it says, on the device.
#[test]
fn a_repair_does_what_is_noted() {
    let image = Arc::new(cut_short());
    repair(&Devices::from(image.clone() as Arc<dyn BlockDevice>)).unwrap();
    assert_eq!(Superblock::read(&superblock(&image)).exchange(), None);
    let reader = MountOptions { read_only: true, ..setup(1024, 8 << 20).options };
    let read = Fs::open_device(image, None, reader).unwrap();
    assert_eq!(found(&read.session(Cred::root()), "a"), "content of b");
}

/// A superblock that was damaged on the device while the volume was open is not sealed with the damage in it.
#[test]
fn a_note_is_not_written_into_a_damaged_superblock() {
    for (damaged, is_other) in [(100, false), (300, false), (0, true)] {
        let setup = setup(1024, 8 << 20);
        let volume = Volume::new(&setup);
        volume.session.write("a", b"content of a").unwrap();
        volume.session.write("b", b"content of b").unwrap();
        volume.fs.sync().unwrap();
        volume.session.rename("a", "b", RenameMode::Exchange).unwrap();
        let device = volume.device.inner();
        if is_other {
            with_superblock(device, |superblock| superblock.header.volume[3] ^= 1);
        } else {
            let mut sector = superblock(device);
            sector[damaged] ^= 0x40;
            device.write(0, &sector).unwrap();
        }
        let before = superblock(device);
        let synced = volume.fs.sync();
        assert!(matches!(synced, Err(Error::Corrupt(_))), "byte {damaged}: {synced:?}");
        assert!(superblock(device) == before, "byte {damaged}");
    }
}

/// The host has no room in the middle of the exchange, and other operations go on until it has: they may free the block in which one of the entries lies.
/// Whenever power is lost, no name is as after the exchange while the other is as before. In order `sync` the rename itself meets the full host, and so
/// does what comes after it; what they have done is there.
#[test]
fn a_full_host_leaves_no_half_of_an_exchange() {
    let done = |result: Result<(), Error>| match result {
        Ok(()) | Err(Error::HostFull(_)) => {}
        Err(error) => panic!("{error}"),
    };
    let remove = |session: &Session| {
        done(session.unlink("y"));
        done(session.unlink("d/x"));
        done(session.rmdir("d"));
    };
    let move_away = |session: &Session| {
        done(session.rename("d/x", "z", RenameMode::Replace));
        done(session.rename("y", "w", RenameMode::Replace));
        done(session.write("d/new", b"new"));
    };
    for order in [Order::Soft, Order::Sync] {
        let removed = (1..).take_while(|&nth| full_within_exchange(order, "removed", nth, remove)).count();
        let moved = (1..).take_while(|&nth| full_within_exchange(order, "moved", nth, move_away)).count();
        assert!(removed >= 5 && moved >= 5, "{order:?}: {removed} and {moved} writes");
    }
}

/// As above, from the `nth` write on; false if there are not so many.
fn full_within_exchange(order: Order, what: &str, nth: u64, between: impl Fn(&Session)) -> bool {
    let setup = recorded::setup(order, 1024, 8 << 20);
    let device = Arc::new(FaultDevice::new(RecordingDevice::new(setup.format())));
    let fs = setup.open(device.clone()).unwrap();
    let session = fs.session(Cred::root());
    session.mkdir("d", 0o755).unwrap();
    session.write("d/x", b"a").unwrap();
    session.write("y", b"b").unwrap();
    fs.sync().unwrap();
    let base = device.inner().inner().clone_image();
    device.inner().take();
    device.fail(FaultOp::Write, nth, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
    match session.rename("d/x", "y", RenameMode::Exchange).and_then(|()| fs.sync()) {
        Ok(()) => return false,
        Err(error) => assert!(matches!(error, Error::HostFull(_)), "{order:?}, {what}, write {nth}: {error}"),
    }
    between(&session);
    device.clear();
    fs.sync().unwrap();
    for state in states(&base, &device.inner().take()) {
        let at = format!("{order:?}, {what}, write {nth}, {}", state.what);
        state.check();
        let after = state.open(&setup);
        let contents = ["d/x", "y", "z", "w"].map(|path| after.session.read(path).ok());
        let [x, y, ..] = &contents;
        assert!(x.is_none() || x != y, "{at}: {contents:?}");
        let is_lost = ["a", "b"].iter().any(|file| !contents.iter().flatten().any(|found| found == file.as_bytes()));
        assert!(what == "removed" || !is_lost, "{at}: {contents:?}");
    }
    true
}
