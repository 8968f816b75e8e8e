//! Order `sync`: what reaches the device, in which rounds, before an operation returns.

mod recorded;

use myriad_device::Event;
use myriad_engine::{Cred, OpenOptions, Order, RenameMode, Session, SetAttr, SyncMode, XattrMode};
use myriad_sim::rng::Rng;
use myriad_trials::setup::Setup;
use recorded::{Volume, kinds, lose_power_beside};

const BLOCK: usize = 4096;

fn setup(mode: SyncMode) -> Setup {
    let mut setup = recorded::setup(Order::Sync, BLOCK as u32, 16 << 20);
    setup.options.sync_mode = mode;
    setup
}

/// The rounds among these events, each a flush with what was written before it: kinds of blocks, and data.
fn rounds(events: &[Event]) -> Vec<Vec<&'static str>> {
    let mut rounds = Vec::new();
    let mut round = Vec::new();
    for event in events {
        match event {
            Event::Write { bytes, .. } => {
                round.extend(kinds(bytes, BLOCK));
            }
            Event::Flush => {
                round.sort_unstable();
                rounds.push(std::mem::take(&mut round));
            }
            Event::Discard { .. } => {}
        }
    }
    assert!(round.is_empty(), "not flushed: {round:?}");
    rounds
}

const BITS: &str = "bitmap of blocks";
const INODE_BITS: &str = "bitmap of inodes";
const INODES: &str = "inode table";
const NAMES: &str = "entries of a linear directory";

impl Volume {
    /// The rounds of an operation.
    fn rounds(&self, work: impl FnOnce(&Session)) -> Vec<Vec<&'static str>> {
        self.device.take();
        work(&self.session);
        rounds(&self.device.take())
    }
}

fn replace(session: &Session, source: &str, target: &str) {
    session.rename(source, target, RenameMode::Replace).unwrap();
}

/// Each write of an operation before that which depends on it; and nothing is written that nobody was promised: no counts, no bits of
/// what was given back, no data of files.
#[test]
fn rounds_of_each_operation() {
    let volume = Volume::new(&setup(SyncMode::Metadata));
    let session = &volume.session;
    session.mkdir("d", 0o755).unwrap();
    session.create("first", 0o644).unwrap();
    session.create("d/first", 0o644).unwrap();
    volume.fs.sync().unwrap();

    let rounds = volume.rounds(|session| session.create("a", 0o644).map(drop).unwrap());
    assert_eq!(rounds, [vec![INODE_BITS], vec![INODES], vec![NAMES]], "create");
    let rounds = volume.rounds(|session| session.link("a", "b").unwrap());
    assert_eq!(rounds, [vec![INODES], vec![NAMES]], "link");
    let rounds = volume.rounds(|session| session.unlink("b").unwrap());
    assert_eq!(rounds, [vec![NAMES], vec![INODES]], "unlink of one name of two");
    let rounds = volume.rounds(|session| replace(session, "a", "c"));
    // One more link; the new name; the old one gone; one link less. In one block the names go together with what they wait for.
    assert_eq!(rounds, [vec![INODES], vec![NAMES], vec![NAMES], vec![INODES]], "rename");
    let rounds = volume.rounds(|session| session.unlink("c").unwrap());
    assert_eq!(rounds, [vec![NAMES], vec![INODES]], "unlink of the only name");
    let rounds = volume.rounds(|session| session.create("a", 0o644).map(drop).unwrap());
    assert_eq!(rounds, [vec![INODES], vec![NAMES]], "create in the slot that the device never heard was free");
    let rounds = volume.rounds(|session| session.mkdir("e", 0o755).map(drop).unwrap());
    assert_eq!(rounds, [vec![INODE_BITS, INODES], vec![INODES], vec![NAMES]], "mkdir");
    let rounds = volume.rounds(|session| session.rmdir("e").unwrap());
    assert_eq!(rounds, [vec![NAMES], vec![INODES]], "rmdir");
    let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let rounds = volume.rounds(|session| session.set_attr("a", chmod).map(drop).unwrap());
    assert_eq!(rounds, [[INODES]], "chmod");
    let rounds = volume.rounds(|session| session.set_xattr("a", b"user.x", b"1", XattrMode::Set).unwrap());
    assert_eq!(rounds.last().unwrap(), &[INODES], "the attributes lie there before the inode says so: {rounds:?}");
    let rounds = volume.rounds(|session| session.symlink(b"a", "s").map(drop).unwrap());
    assert_eq!(rounds.last().unwrap(), &[NAMES], "symlink: {rounds:?}");
    // Nothing has changed, so nothing is written.
    let rounds = volume.rounds(|session| assert!(session.mkdir("d", 0o755).is_err()));
    assert_eq!(rounds, [[""; 0]; 0], "refused");
    let rounds = volume.rounds(|session| session.stat("a").map(drop).unwrap());
    assert_eq!(rounds, [[""; 0]; 0], "stat");
}

/// What FFS calls a normal mount writes data later; with syncmode=all it is there when the write returns, before the pointer that leads to
/// it.
#[test]
fn data_is_written_later_or_at_once() {
    for mode in [SyncMode::Metadata, SyncMode::All] {
        let volume = Volume::new(&setup(mode));
        volume.session.create("before", 0o644).unwrap();
        let file =
            volume.session.open("f", OpenOptions { write: true, create: true, ..OpenOptions::default() }).unwrap();
        volume.fs.sync().unwrap();
        let rounds = volume.rounds(|_| assert_eq!(file.write_at(&[7; 2 * BLOCK], 0).unwrap(), 2 * BLOCK));
        match mode {
            SyncMode::Metadata => assert_eq!(rounds, [[""; 0]; 0]),
            SyncMode::All => assert_eq!(rounds, [vec![BITS, "data", "data"], vec![INODES]]),
        }
        let rounds = volume.rounds(|_| file.truncate(BLOCK as u64).unwrap());
        assert_eq!(rounds.is_empty(), mode == SyncMode::Metadata, "{rounds:?}");
        let rounds = volume.rounds(|session| session.create("other", 0o644).map(drop).unwrap());
        assert!(!rounds.iter().flatten().any(|kind| *kind == "data"), "{rounds:?}");
    }
}

/// The mode changes while the volume is open.
#[test]
fn the_mode_is_changed_on_an_open_volume() {
    let volume = Volume::new(&setup(SyncMode::Metadata));
    let file = volume.session.open("f", OpenOptions { write: true, create: true, ..OpenOptions::default() }).unwrap();
    let write = |tag: u8| volume.rounds(|_| assert_eq!(file.write_at(&[tag; BLOCK], 0).unwrap(), BLOCK)).len();
    assert_eq!(write(1), 0);
    let change = myriad_engine::options::read_for_tune(["syncmode=all"]).unwrap();
    volume.fs.tune(&change).unwrap();
    assert!(write(2) > 0);
}

/// A rename of a thread: events when it began and when it had been answered, and the name that the thread's file has since.
type Answer = (usize, usize, String);

/// Threads drive rounds for one another. Whatever an operation of any of them had changed when it returned is there, wherever the power is
/// lost after that.
#[test]
fn what_threads_were_answered_is_there() {
    lose_power_beside(setup(SyncMode::Metadata), (5, 60), move_about, |answers, point, state, after| {
        let exists = |answer: &Answer| after.session.exists(&answer.2).unwrap();
        for answers in answers {
            let count = answers.iter().filter(|(_, end, _)| *end <= point).count();
            let Some(last) = count.checked_sub(1).map(|last| &answers[last]) else { continue };
            let next = answers.get(count).filter(|(begin, ..)| *begin < point);
            assert!(exists(last) || next.is_some_and(&exists), "{}: {last:?} is lost", state.what);
            let before = count.checked_sub(2).map(|before| &answers[before]);
            assert!(!before.is_some_and(exists), "{}: {before:?} is there again", state.what);
        }
    });
}

/// Has a thread move one file from name to name, among other changes.
fn move_about(volume: &Volume, thread: u64) -> Vec<Answer> {
    let session = volume.fs.session(Cred::root());
    let mut rng = Rng::new(thread);
    let mut dir = || format!("d{}", rng.below(3));
    let mut answers: Vec<Answer> = Vec::new();
    for number in 0..40 {
        let name = format!("{}/t{thread}-{number}", dir());
        let begin = volume.device.event_count();
        match answers.last() {
            None => session.write(&name, b"content").unwrap(),
            Some((.., last)) => replace(&session, last, &name),
        }
        answers.push((begin, volume.device.event_count(), name.clone()));
        let other = format!("{}/o{thread}", dir());
        session.mkdir(&other, 0o755).unwrap();
        session.link(&name, &format!("{other}/l")).unwrap();
        session.unlink(&format!("{other}/l")).unwrap();
        session.rmdir(&other).unwrap();
    }
    answers
}
