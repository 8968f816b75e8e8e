//! Verbs that look at names and attributes work beside a process that is changing the volume; they show one committed state, or none.

mod common;

use common::{Place, put};
use myriad_engine::{Cred, Fs, MountOptions, RenameMode, Session};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const VOLUME: u64 = 64 << 20;

fn open(place: &Place) -> (Fs, Session) {
    let fs = Fs::open(&place.path("vol.img"), MountOptions { background: false, ..MountOptions::default() }).unwrap();
    let session = fs.session(Cred::root());
    (fs, session)
}

#[test]
fn what_was_committed_is_seen() {
    let place = Place::with_volume(VOLUME);
    place.line("mkfs -q --size 64M none.img --order none").ok();
    place.line("mkfs -q --size 64M other.img").ok();
    place.line("mkdir other.img:/there").ok();
    let (fs, session) = open(&place);
    session.mkdir("/d", 0o755).unwrap();
    put(&session, "/d/f", b"content");
    session.symlink(b"f", "/d/link").unwrap();
    fs.sync().unwrap();
    session.mkdir("/d/later", 0o755).unwrap();
    for (line, shown) in [
        ("ls vol.img:/d", "f\nlink\n"),
        ("ls other.img vol.img", "other.img:/:\nthere\n\nvol.img:/:\nd\n"),
        ("ls -R vol.img", "vol.img:/:\nd\n\nvol.img:/d:\nf\nlink\n"),
        ("find vol.img -type f", "vol.img:/d/f\n"),
        ("find vol.img -name *link -o -size +1k", "vol.img:/d/link\n"),
        ("stat -c %n:%s vol.img:/d/f", "vol.img:/d/f:7\n"),
        ("du --inodes vol.img", "3\tvol.img:/d\n4\tvol.img:/\n"),
        ("tree vol.img:/d", "vol.img:/d\n├── f\n└── link -> f\n\n1 directory, 2 files\n"),
        ("readlink vol.img:/d/link", "f\n"),
    ] {
        assert_eq!(place.line(line).ok().text(), shown, "{line}");
    }
    assert_eq!(place.line("df --json vol.img").ok().json()["inodes_used"], 4);
    // What is not there is told, once.
    let said = place.line("ls vol.img:/d/later vol.img:/d/f").expect(1, &["vol.img:/d/later: No such file"]);
    assert_eq!((said.text(), said.err.lines().count()), ("vol.img:/d/f\n", 1), "{said:?}");
    fs.sync().unwrap();
    assert_eq!(place.line("ls vol.img:/d").ok().text(), "f\nlater\nlink\n");
    // Contents are overwritten in place; and whoever changes something waits.
    for line in
        ["cat vol.img:/d/f", "cp vol.img:/d/f out", "export vol.img out", "find vol.img -delete", "rm vol.img:/d/f"]
    {
        place.line(line).expect(1, &["in use by process"]);
    }
    place.line("ls --wait=0.1 vol.img").expect(1, &["in use by process"]);
    session.mkdir("/last", 0o755).unwrap();
    drop(session);
    fs.close().unwrap();
    assert_eq!(place.line("ls vol.img").ok().text(), "d\nlast\n");
    // Without a log nothing tells whether it has changed.
    let fs = Fs::open(&place.path("none.img"), MountOptions::default()).unwrap();
    place.line("ls none.img").expect(1, &["in use by process"]);
    fs.close().unwrap();
}

/// Tells a thread to end when this goes.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Files move from one directory to the other, in order, while others look: what they see is after some number of moves.
#[test]
fn a_state_that_has_moved_is_not_shown() {
    const FILES: usize = 1500;
    /// As many different ones are looked for.
    const STATES: usize = 20;
    let place = Place::with_volume(VOLUME);
    let (fs, session) = open(&place);
    session.mkdir("/left", 0o755).unwrap();
    session.mkdir("/right", 0o755).unwrap();
    for number in 0..FILES {
        put(&session, format!("/left/{number:04}"), b"");
    }
    fs.sync().unwrap();
    let (is_over, start) = (AtomicBool::new(false), Instant::now());
    let (seen, refused) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut moved = 0;
            while !is_over.load(Ordering::Relaxed) {
                // Bursts with a checkpoint each, and rests in which a look can come to its end.
                for _ in 0..25 {
                    let (number, round) = (moved % FILES, moved / FILES);
                    let (from, to) = if round % 2 == 0 { ("left", "right") } else { ("right", "left") };
                    session
                        .rename(&format!("/{from}/{number:04}"), &format!("/{to}/{number:04}"), RenameMode::Replace)
                        .unwrap();
                    fs.sync().unwrap();
                    moved += 1;
                }
                std::thread::sleep(Duration::from_millis(60));
            }
        });
        // Also when this ends by a panic.
        let _guard = Over(&is_over);
        let (mut seen, mut refused) = (BTreeSet::new(), 0);
        while seen.len() < STATES && start.elapsed() < Duration::from_secs(60) {
            let answer = place.line("find vol.img -type f");
            if answer.code != 0 {
                answer.expect(1, &["in use by process"]);
                refused += 1;
                continue;
            }
            assert_eq!(answer.err, "");
            let lines = answer.lines();
            let side = |name: &str| -> BTreeSet<&str> {
                let prefix = format!("vol.img:/{name}/");
                lines.iter().filter_map(|line| line.strip_prefix(prefix.as_str())).collect()
            };
            let (left, right) = (side("left"), side("right"));
            assert_eq!((left.len() + right.len(), lines.len()), (FILES, FILES), "each is there, and once");
            // Files move in order, so all on one side come before all on the other.
            let ends = |side: &BTreeSet<&str>| {
                (side.first().map(|name| (*name).to_owned()), side.last().map(|name| (*name).to_owned()))
            };
            let ((left_first, left_last), (right_first, right_last)) = (ends(&left), ends(&right));
            assert!(left_last < right_first || right_last < left_first, "{left:?} {right:?}");
            seen.insert(left.len());
        }
        (seen, refused)
    });
    println!("{} states seen, refused {refused} times", seen.len());
    assert_eq!(seen.len(), STATES, "{seen:?}");
    drop(session);
    fs.close().unwrap();
    place.line("fsck -n vol.img").expect(0, &[]);
}
