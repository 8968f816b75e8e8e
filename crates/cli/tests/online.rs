//! A mounted volume checked while it is used: nothing found that is not there, all that is, and nothing left behind.

mod common;

use common::mount::{MountPlace, Signal, is_alive, kill, wait_until};
use common::{PROGRAM, Place, answer, put};
use myriad_format::{BlockHeader, BlockKind};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const VOLUME: u64 = 64 << 20;

/// Changes below `top`, one after the other, until told to stop. Later rounds meet what earlier ones left.
fn work(top: &Path, stop: &AtomicBool, changes: &AtomicU64) {
    for round in 0.. {
        let directory = top.join(format!("d{}", round % 5));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        for number in 0..100 {
            if stop.load(Relaxed) {
                return;
            }
            let path = directory.join(format!("file {number}"));
            fs::write(&path, vec![7; number * 300 % 9000]).unwrap();
            if number % 3 == 0 {
                fs::rename(&path, directory.join(format!("renamed {number}"))).unwrap();
            }
            changes.fetch_add(1, Relaxed);
        }
    }
}

#[test]
fn a_busy_mount_is_sound_at_every_moment() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut during = 0;
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (stop, changes, top) = (&stop, &changes, place.mounted(&format!("t{thread}")));
            scope.spawn(move || work(&top, stop, changes));
        }
        // Whoever fails must not leave the others running.
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut last = 0;
            for round in 0..6 {
                let enough = changes.load(Relaxed) + 50;
                wait_until("changes", || changes.load(Relaxed) >= enough);
                let before = changes.load(Relaxed);
                let target = if round % 2 == 0 { "mnt" } else { "vol.img" };
                let report = place.line(&format!("fsck --json --online {target}"));
                let report = report.expect(0, &["vol.img: mounted on", "checking its state of"]).json();
                during += changes.load(Relaxed) - before;
                assert_eq!((&report["sound"], &report["finding_count"]), (&true.into(), &0.into()));
                let position = report["moment"]["log_position"].as_u64().unwrap();
                assert!(position > last, "each check is of a moment of its own");
                last = position;
            }
        }));
        stop.store(true, Relaxed);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(during > 0, "nothing was changed during the checks");
    place.umount();
    place.assert_sound();
}

/// A volume of soft updates whose daemon is killed in the middle of work is mounted again at once; what is in use for nothing is given back
/// beside the next one's work, and the check finds nothing after it.
#[test]
fn what_a_killed_daemon_left_is_given_back() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.line("mkfs --force --profile ffs --size 64M vol.img").expect(0, &[]);
    for round in 0..4 {
        let log = format!("log{round}");
        place.mount(&format!("-o commit=0.05,background_check=100,logfile={}", place.path(&log).display()));
        let told = || fs::read_to_string(place.path(&log)).unwrap().contains("the crash had left");
        let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (stop, changes, top) = (&stop, &changes, place.mounted(&format!("t{thread}")));
                // It ends where the daemon does.
                scope.spawn(move || std::panic::catch_unwind(|| work(&top, stop, changes)));
            }
            if round > 0 {
                wait_until("the background check", told);
            }
            let enough = changes.load(Relaxed) + 300;
            wait_until("changes", || changes.load(Relaxed) >= enough);
            kill(place.daemon(), Signal::KILL);
            stop.store(true, Relaxed);
        });
        place.line("umount mnt").expect(0, &[]);
    }
    place.mount("-o background_check=100,logfile=log");
    wait_until("the background check", || {
        fs::read_to_string(place.path("log")).unwrap().contains("the crash had left")
    });
    place.line("fsck --online mnt").expect(0, &["sound"]);
    place.umount();
    place.assert_sound();
}

/// A check that came right after another was refused: the daemon still held the other's moment.
#[test]
fn checks_follow_each_other() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    for _ in 0..20 {
        place.line("fsck --online mnt").expect(0, &["sound"]);
    }
    place.umount();
}

/// Blocks of a kind that `wanted` takes, by their headers; some may be left from before, and free.
fn find_blocks(image: &File, wanted: impl Fn(BlockKind, u64) -> bool) -> Vec<u64> {
    let mut block = [0; 4096];
    let mut is_wanted = |number: &u64| {
        image.read_exact_at(&mut block, number * 4096).unwrap();
        let header = BlockHeader::read(&block);
        BlockKind::from_magic(header.magic.get()).is_some_and(|kind| wanted(kind, header.owner.get()))
    };
    (1..VOLUME / 4096).filter(|number| is_wanted(number)).collect()
}

#[test]
fn damage_below_a_live_mount_is_found_and_named() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    let directory = place.change(|session| {
        session.mkdir("/quiet", 0o755).unwrap();
        for number in 0..300 {
            put(session, format!("/quiet/{number}"), b"x");
        }
        session.stat("/quiet").unwrap().ino
    });
    let image = File::options().read(true).write(true).open(place.path("vol.img")).unwrap();
    let blocks = [
        ("directory", find_blocks(&image, |kind, owner| kind == BlockKind::DirEntries && owner == directory)),
        ("free-space", find_blocks(&image, |kind, _| kind == BlockKind::FreeByLength)),
        ("inode", find_blocks(&image, |kind, _| kind == BlockKind::Inode)),
    ];
    place.mount("");
    place.line("fsck --online mnt").expect(0, &["sound: 300 files"]);
    let damage = |blocks: &[u64]| {
        for block in blocks {
            let mut byte = [0];
            image.read_exact_at(&mut byte, block * 4096 + 2000).unwrap();
            image.write_all_at(&[byte[0] ^ 1], block * 4096 + 2000).unwrap();
        }
        image.sync_data().unwrap();
    };
    for (what, blocks) in blocks {
        damage(&blocks);
        let found = place.line("fsck --online mnt").expect(4, &["finding", "unmount it first"]);
        let named = |block: &u64| found.text().contains(&format!("block {block}: checksum"));
        assert!(blocks.iter().any(named), "{what} {blocks:?}: {found:?}");
        let report = place.line("fsck --online --json vol.img").expect(4, &[]).json();
        assert_eq!(report["sound"], false);
        damage(&blocks);
        place.line("fsck --online mnt").expect(0, &["sound"]);
    }
    place.umount();
    place.assert_sound();
}

/// A volume with checksums of file data: files that stay, beside which [`work`] and [`overwrite`] go on.
fn with_checksums() -> Option<MountPlace> {
    let place = MountPlace::with_volume(VOLUME)?;
    place.line("mkfs --quiet --force --data-checksums vol.img").ok();
    place.change(|session| {
        session.mkdir("/quiet", 0o755).unwrap();
        for number in 0..200 {
            put(session, format!("/quiet/{number}"), format!("quiet {number:03}").repeat(900).as_bytes());
        }
    });
    place.mount("");
    Some(place)
}

/// Writes over, cuts and extends the same files, until told to stop.
fn overwrite(top: &Path, stop: &AtomicBool, changes: &AtomicU64) {
    fs::create_dir_all(top).unwrap();
    let open = |number: u64| {
        File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(top.join(format!("{}", number % 20)))
            .unwrap()
    };
    for round in 0_u64.. {
        if stop.load(Relaxed) {
            return;
        }
        let file = open(round);
        file.write_all_at(&vec![round as u8; 20_000], round * 7919 % 100_000).unwrap();
        if round % 5 == 0 {
            file.set_len(round * 104_729 % 50_000).unwrap();
        }
        if round % 3 == 0 {
            file.sync_data().unwrap();
        }
        changes.fetch_add(1, Relaxed);
    }
}

/// Runs `checks` while files of the mount are made, removed and written over. It gets a function that waits for changes.
fn under_load(place: &MountPlace, checks: impl FnOnce(&dyn Fn())) {
    let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (name, run) in [("made", work as fn(&Path, &AtomicBool, &AtomicU64)), ("written", overwrite)] {
            let (stop, changes, top) = (&stop, &changes, place.mounted(name));
            scope.spawn(move || run(&top, stop, changes));
        }
        let wait = || {
            let enough = changes.load(Relaxed) + 100;
            wait_until("changes", || changes.load(Relaxed) >= enough);
        };
        // Whoever fails must not leave the others running.
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| checks(&wait)));
        stop.store(true, Relaxed);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn contents_are_compared_while_they_are_written_over() {
    let Some(place) = with_checksums() else { return };
    let image = File::options().read(true).write(true).open(place.path("vol.img")).unwrap();
    let mut block = [0; 4096];
    let mut is_wanted = |number: &u64| {
        image.read_exact_at(&mut block, number * 4096).unwrap();
        block.starts_with(b"quiet 117quiet 117")
    };
    let wanted = (1..VOLUME / 4096).find(&mut is_wanted).expect("the file's first block");
    let damage = || {
        let mut byte = [0];
        image.read_exact_at(&mut byte, wanted * 4096 + 100).unwrap();
        image.write_all_at(&[byte[0] ^ 2], wanted * 4096 + 100).unwrap();
        image.sync_data().unwrap();
    };
    under_load(&place, |wait| {
        for round in 0..6 {
            wait();
            let report = place.line("fsck --json --online --scrub mnt").expect(0, &[]).json();
            assert_eq!(report["sound"], true, "round {round}");
            let number = |name: &str| report["scrub"][name].as_u64().unwrap();
            assert_eq!(number("data_blocks"), number("compared_blocks") + number("freed_blocks"));
            assert!(number("compared_blocks") >= 400, "at least what stays: {report}");
        }
        damage();
        wait();
        let answer = place.line("fsck --online --scrub mnt");
        let said = ["file data read", "; 1 damaged", "1 finding of damaged contents; restore those files"];
        let answer = answer.expect(4, &said);
        assert!(!answer.err.contains("unmount it first"), "{answer:?}");
        let expected = "/quiet/117: bytes 0 to 4095: the contents are not what was written: their checksum is wrong \
                        [data-checksum 180]";
        assert_eq!(answer.lines(), [expected]);
        damage();
        place.line("fsck --online --scrub mnt").expect(0, &["0 damaged", "sound"]);
    });
    place.umount();
    place.line("fsck -n --scrub vol.img").expect(0, &["all compared with their checksums; 0 damaged"]);
}

#[test]
fn without_checksums_contents_are_read() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    fs::write(place.mounted("file"), vec![1; 10_000]).unwrap();
    // A moment has the data that has its blocks.
    File::open(place.mounted("file")).unwrap().sync_all().unwrap();
    for options in ["", "-o ro"] {
        let said = ["3 blocks of file data read, the volume has no checksums of them", "; 0 damaged", "sound: 1 file"];
        place.line("fsck --online --scrub mnt").expect(0, &said);
        place.umount();
        place.mount(options);
    }
}

/// A check that has begun and is stopped in the middle; `None` if it was faster than we are.
fn begun(place: &Place) -> Option<(Child, BufReader<std::process::ChildStderr>)> {
    let mut child = place.command(PROGRAM, &["fsck", "--online", "mnt", "--threads", "1"]).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert!(line.contains("checking its state of"), "{line}");
    kill(child.id() as i32, Signal::STOP);
    let second = place.line("fsck --online mnt");
    if second.code == 0 {
        kill(child.id() as i32, Signal::CONT);
        child.wait().unwrap();
        return None;
    }
    second.expect(8, &["somebody else holds a moment of the volume"]);
    Some((child, told))
}

/// With so many files that a check takes a while.
fn large() -> Option<MountPlace> {
    let place = MountPlace::with_volume(VOLUME)?;
    place.change(|session| {
        for directory in 0..20 {
            session.mkdir(&*format!("/{directory}"), 0o755).unwrap();
            for number in 0..2000 {
                session.create(&*format!("/{directory}/{number}"), 0o644).unwrap();
            }
        }
    });
    place.mount("");
    Some(place)
}

#[test]
fn a_killed_check_holds_nothing_and_a_killed_daemon_says_nothing() {
    let Some(place) = large() else { return };
    let (mut child, _) = (0..50).find_map(|_| begun(&place)).expect("a check in the middle");
    fs::write(place.mounted("beside"), b"a check that stands still").unwrap();
    kill(child.id() as i32, Signal::KILL);
    child.wait().unwrap();
    wait_until("the next check may begin", || place.line("fsck --online mnt").code == 0);

    let (mut child, mut told) = (0..50).find_map(|_| begun(&place)).expect("a check in the middle");
    let daemon = place.daemon();
    kill(daemon, Signal::KILL);
    wait_until("the daemon is gone", || !is_alive(daemon));
    kill(child.id() as i32, Signal::CONT);
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(8), "{rest}");
    assert!(rest.contains("ended during the check"), "{rest}");
    place.assert_sound();
}

#[test]
fn what_cannot_be_checked_online_says_why() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    // Nobody changes it, so it is as after -n.
    place.line("fsck --online vol.img").expect(0, &["sound: 0 files"]);
    for (line, code, said) in [
        ("fsck --online mnt", 8, "mnt: not mounted; name the directory that a volume is mounted on, or its image"),
        ("fsck --online none", 8, "none: No such file"),
        ("fsck --online /proc", 8, "/proc: not a Myriad volume but proc is mounted there"),
        ("fsck --online -y vol.img", 16, "cannot be used with"),
        ("fsck --room 1M vol.img", 16, "--online"),
    ] {
        place.line(line).expect(code, &[said]);
    }
    place.mount("");
    fs::write(place.mounted("file"), b"x").unwrap();
    place.line("fsck --online --room 8K mnt").expect(8, &["more was written over than fits"]);
    place.line("fsck --online mnt").expect(0, &["sound: 1 file"]);
    place.umount();
    place.mount("-o ro");
    place.line("fsck --online mnt").expect(0, &["sound: 1 file"]);
    place.umount();
    place.mount("-o order=none");
    place.line("fsck --online mnt").expect(8, &["without an order of writes", "unmount the volume"]);
    place.umount();
    answer(place.command(PROGRAM, &["fsck", "--online", "vol.img"]).env("TMPDIR", "/none").spawn().unwrap())
        .expect(0, &["sound: 1 file"]);
    place.mount("-o order=log");
    let with_images_in = |directory: &Path| {
        answer(place.command(PROGRAM, &["fsck", "--online", "mnt"]).env("TMPDIR", directory).spawn().unwrap())
    };
    with_images_in("/none".as_ref()).expect(8, &["no file for before-images", "name another directory in TMPDIR"]);
    // A daemon that writes to its own mount would wait for itself.
    with_images_in(&place.path("mnt")).expect(8, &["lies on the volume itself; name another directory in TMPDIR"]);
    with_images_in(&place.path("")).expect(0, &["sound: 1 file"]);
}
