//! What threads do to each other: promises that one file's readers, or one name's makers, could break.

use myriad_device::MemoryDevice;
use myriad_engine::{
    AllocateMode, CreateWith, Cred, Errno, Error, File, Fs, MkfsOptions, MountOptions, OpenOptions, Order, Session,
    SetAttr,
};
use myriad_format::choices::PROFILES;
use myriad_trials::setup::Setup;
use myriad_trials::table::Row;
use myriad_trials::verdict::check_silent;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const WRITE: OpenOptions = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };

/// Flushes a file first, and leaves that to the next checkpoint.
const KEEP: AllocateMode = AllocateMode::KeepSize;

/// Small, and with checkpoints only when the test asks for them.
fn quiet() -> MountOptions {
    MountOptions { background: false, commit_interval_ms: 0, cache_size: 16 << 20, ..MountOptions::default() }
}

fn formatted(size: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(size));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    device
}

/// What power loss leaves when everything written so far has arrived.
fn after_power_loss(device: &Arc<MemoryDevice>) -> (Arc<MemoryDevice>, Fs) {
    let image = Arc::new(device.clone_image());
    let fs = Fs::open_device(image.clone(), None, quiet()).unwrap();
    (image, fs)
}

fn content(fs: &Fs, path: &str) -> Vec<u8> {
    let session = fs.session(Cred::root());
    let mut bytes = vec![0; session.stat(path).unwrap().size as usize];
    let file = session.open(path, OpenOptions { read: true, ..OpenOptions::default() }).unwrap();
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// A checkpoint flushed a file that had been cut to nothing and written again, but only if it got the file's data lock at
/// once: with a reader on the file, a crash left it empty.
#[test]
fn a_file_cut_and_written_again_is_whole_though_it_is_read() {
    let device = formatted(16 << 20);
    let fs = Fs::open_device(device.clone(), None, quiet()).unwrap();
    let session = fs.session(Cred::root());
    let file = session.open("file", WRITE).unwrap();
    let other = session.open("other", WRITE).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let reader = fs.session(Cred::root()).open("file", WRITE).unwrap();
                let mut buf = vec![0; 400 << 10];
                while !done.load(Ordering::Relaxed) {
                    reader.read_at(&mut buf, 0).unwrap();
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 1..=10_u8 {
                // More extents than the inode holds, so that cutting frees them at once.
                for i in 0..4 {
                    file.write_at(&[round; 4096], (200 + 2 * i) * 4096).unwrap();
                }
                fs.sync().unwrap();
                file.truncate(0).unwrap();
                let new = vec![round; 300 << 10];
                file.write_at(&new, 0).unwrap();
                other.write_at(&[round], 0).unwrap();
                // A checkpoint that nobody asked to flush the file.
                other.sync().unwrap();
                let (_, found) = after_power_loss(&device);
                assert!(content(&found, "file") == new, "round {round}: {} bytes", content(&found, "file").len());
            }
        }));
        done.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
    drop((file, other, session));
    fs.close().unwrap();
    check_silent(&device.into()).unwrap();
}

/// A mount opens a file and closes it for each request. What a cut had left was remembered with the open file, so after
/// the first write nobody knew that more would have to be flushed, and a crash left that write alone.
#[test]
fn a_file_cut_and_written_again_is_whole_though_no_handle_is_kept() {
    for extents in [1, 4] {
        let device = formatted(16 << 20);
        let fs = Fs::open_device(device.clone(), None, quiet()).unwrap();
        let session = fs.session(Cred::root());
        let other = session.open("other", WRITE).unwrap();
        let file = session.open("file", WRITE).unwrap();
        for i in 0..extents {
            file.write_at(&[1; 4096], 2 * i * 4096).unwrap();
        }
        let node = file.node();
        drop(file);
        fs.sync().unwrap();
        for round in 0..3 {
            let old = content(&after_power_loss(&device).1, "file");
            session.set_attr_node(node, SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
            for part in 0..3 {
                let opened = session.open_node(node, OpenOptions::READ_WRITE).unwrap();
                opened.write_at(&[10 * round + part as u8; 100 << 10], part * (100 << 10)).unwrap();
                drop(opened);
                if (round, part) == (1, 1) {
                    session.open_node(node, OpenOptions::READ_WRITE).unwrap().allocate(KEEP, 0, 4096).unwrap();
                }
            }
            let new = content(&fs, "file");
            other.write_at(&[round], 0).unwrap();
            // A checkpoint that nobody asked to flush the file.
            other.sync().unwrap();
            let found = content(&after_power_loss(&device).1, "file");
            assert!(found == old || found == new, "{extents} extents, round {round}: {} bytes", found.len());
        }
    }
}

/// Files without a name, closed by one thread while another opens them, names them, or opens what has their numbers by
/// now: they were marked as gone though somebody had got hold of them, and what he wrote vanished without an error; one
/// was freed before its maker had opened it; and one that got the number of another that was just freed was taken off the
/// list of orphans in its place, and stayed for ever.
#[test]
fn files_without_a_name_are_gone_or_whole() {
    let device = formatted(64 << 20);
    let fs = Fs::open_device(device.clone(), None, quiet()).unwrap();
    let used = fs.statfs().unwrap().inodes_used;
    let known = Mutex::new(None);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let session = fs.session(Cred::root());
                for _ in 0..100_000 {
                    let file = session.open_tmpfile("/", 0o600).unwrap();
                    file.write_at(&[1; 5000], 0).unwrap();
                    *known.lock().unwrap() = Some(file.node());
                    drop(file);
                }
            }));
            done.store(true, Ordering::Relaxed);
            outcome.unwrap();
        });
        let session = fs.session_checked(Cred::root());
        for round in 0.. {
            if done.load(Ordering::Relaxed) {
                break;
            }
            let Some(node) = *known.lock().unwrap() else { continue };
            let wait_for_its_maker = || {
                while *known.lock().unwrap() == Some(node) && !done.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            };
            let mut bytes = [0; 5000];
            let result = match round % 3 {
                0 => session.link_at(node, session.root(), b"name").and_then(|_| {
                    wait_for_its_maker();
                    let file = session.open_node(node, OpenOptions::READ)?;
                    assert_eq!(file.read_at(&mut bytes, 0)?, 5000, "round {round}");
                    assert!(bytes == [1; 5000], "round {round}");
                    session.unlink_at(session.root(), b"name")
                }),
                1 => session.open_node(node, OpenOptions::READ_WRITE).and_then(|file| {
                    wait_for_its_maker();
                    file.write_at(&[2; 100], 100)?;
                    file.sync()?;
                    assert_eq!(file.read_at(&mut bytes, 0)?, 5000, "round {round}");
                    assert!(bytes[100..200] == [2; 100] && bytes[200..] == [1; 4800], "round {round}");
                    Ok(())
                }),
                // Perhaps another one, which its maker has not even got yet.
                _ => session.node(node.ino()).and_then(|node| session.open_node(node, OpenOptions::READ)).map(drop),
            };
            let is_expected = matches!(result, Ok(()) | Err(Error::Refused(Errno::STALE)));
            assert!(is_expected, "round {round}: {result:?}");
        }
    });
    assert_eq!(fs.statfs().unwrap().inodes_used, used);
    fs.close().unwrap();
    check_silent(&device.into()).unwrap();
}

/// Reading a long link's target from the device entered the gate a second time: with a checkpoint in between, both
/// waited for each other for ever.
#[test]
fn long_links_are_read_while_checkpoints_are_made() {
    let device = formatted(64 << 20);
    let fs = Fs::open_device(device.clone(), None, quiet()).unwrap();
    let session = fs.session(Cred::root());
    let target = vec![b't'; 4000];
    for i in 0..50 {
        session.symlink(&target, &format!("link{i}")).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fs.drop_caches().unwrap();
            }
        });
        for _ in 0..20 {
            for i in 0..50 {
                assert!(session.readlink(&format!("link{i}")).unwrap() == target);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// The inode of a file made with its content was there before that content was: who guessed its number, as batches of
/// stats do, could read what its blocks had held before.
#[test]
fn a_file_made_with_its_content_never_shows_that_of_others() {
    const NAMES: usize = 3;
    let device = formatted(64 << 20);
    let fs = Fs::open_device(device.clone(), None, quiet()).unwrap();
    let done = AtomicBool::new(false);
    let names: Vec<String> = (0..NAMES).map(|i| format!("file {i}")).collect();
    let session = fs.session(Cred::root());
    // An index to guess by.
    for i in 0..1000 {
        session.mknod(&format!("other {i}"), 0o644, 0).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let session = fs.session(Cred::root());
                for round in 0..3000 {
                    let i = round % NAMES;
                    let content = [i as u8 + 1; 800_000];
                    let new = CreateWith { mode: 0o100_644, content: &content, ..CreateWith::default() };
                    session.create_with(session.root(), names[i].as_bytes(), &new).unwrap();
                    session.unlink(&names[i]).unwrap();
                }
            }));
            done.store(true, Ordering::Relaxed);
            outcome.unwrap();
        });
        let mut seen = 0;
        while !done.load(Ordering::Relaxed) {
            for (i, name) in names.iter().enumerate() {
                let node = session.stat_many(&[name]).remove(0).map(|stat| stat.node());
                let Ok(file) = node.and_then(|node| session.open_node(node, OpenOptions::READ)) else { continue };
                let mut bytes = [0; 4096];
                match file.read_at(&mut bytes, 795_000) {
                    Ok(length) => assert!(length == bytes.len() && bytes == [i as u8 + 1; 4096], "{i}: {}", bytes[0]),
                    Err(error) => assert_eq!(error.errno(), Errno::STALE, "{i}"),
                }
                seen += 1;
            }
        }
        println!("{seen} times opened");
    });
    drop(session);
    fs.close().unwrap();
    check_silent(&device.into()).unwrap();
}

/// What a file without a name had in memory could be flushed while its blocks were freed, in several transactions, to
/// where there was no room for it: the volume shut down.
#[test]
fn what_is_being_freed_is_not_flushed() {
    let device = formatted(16 << 20);
    let fs = Fs::open_device(device.clone(), None, quiet()).unwrap();
    let session = fs.session(Cred::root());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fs.sync().unwrap();
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..60 {
                let file = session.open("file", WRITE).unwrap();
                for i in 0..2400 {
                    file.write_at(&[1; 4096], 2 * i * 4096).unwrap();
                }
                fs.sync().unwrap();
                let filler = session.open("filler", WRITE).unwrap();
                let mut end = 0;
                while let Ok(written) = filler.write_at(&[3; 4096], end) {
                    end += written as u64;
                }
                drop(filler);
                session.unlink("file").unwrap();
                // Over what is mapped: promised nothing.
                for i in 0..400 {
                    file.write_at(&[2; 4096], 2 * i * 4096).unwrap();
                }
                drop(file);
                session.unlink("filler").unwrap();
                fs.sync().unwrap();
            }
        }));
        done.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
    drop(session);
    fs.close().unwrap();
    check_silent(&device.into()).unwrap();
}

/// A long write goes in parts, and each part of an append went where the end was by then: two of them interleaved.
#[test]
fn long_appends_come_one_after_the_other() {
    const LONG: usize = 9 << 20;
    const SHORT: usize = 1000;
    let device = formatted(256 << 20);
    let fs = Fs::open_device(device.clone(), None, MountOptions { cache_size: 64 << 20, ..quiet() }).unwrap();
    fs.session(Cred::root()).open("file", WRITE).unwrap();
    let barrier = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        for (thread, length) in [LONG, LONG, SHORT].into_iter().enumerate() {
            let (fs, barrier) = (&fs, &barrier);
            scope.spawn(move || {
                let options = OpenOptions { append: true, ..OpenOptions::READ_WRITE };
                let file = fs.session(Cred::root()).open("file", options).unwrap();
                let bytes = vec![thread as u8; length];
                barrier.wait();
                for _ in 0..LONG.div_ceil(length).min(200) {
                    assert_eq!(file.write_at(&bytes, 0).unwrap(), length);
                    std::thread::yield_now();
                }
            });
        }
    });
    let content = content(&fs, "file");
    assert_eq!(content.len(), 2 * LONG + 200 * SHORT);
    for run in content.chunk_by(|a, b| a == b) {
        assert!(if run[0] < 2 { run.len() == LONG } else { run.len() % SHORT == 0 }, "{} of {}", run.len(), run[0]);
    }
    fs.close().unwrap();
    check_silent(&device.into()).unwrap();
}

/// What a thread uses when it ends: a session, and a file that is still to be written.
struct AtTheEnd {
    session: Session,
    file: File,
}

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        self.file.write_at(b"the end", 0).unwrap();
        self.session.mkdir("dir/made", 0o755).unwrap();
        self.session.unlink("dir/old").unwrap();
        assert!(self.session.stat("dir/made").unwrap().is_dir());
        self.file.sync().unwrap();
    }
}

/// A thread's last file was dropped by a thread-local variable that went after the engine's own had gone, and the process aborted.
#[test]
fn a_thread_that_ends_may_still_use_the_volume() {
    thread_local! {
        static KEPT: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
    }
    let ffs = PROFILES.iter().find(|profile| profile.name == "ffs").expect("a profile of the table");
    for order in [Order::Log, Order::Soft, Order::Sync, Order::None] {
        let setup = Setup::of(Row { choices: ffs.choices, order, fragments: 1 }, 4096, 16 << 20);
        let device = Arc::new(setup.format());
        let fs = setup.open(device.clone()).unwrap();
        let ended = std::thread::spawn({
            let fs = fs.clone();
            move || {
                // What was first used last goes first.
                assert!(KEPT.take().is_none());
                let session = fs.session(Cred::root());
                session.mkdir("dir", 0o755).unwrap();
                session.open("dir/old", WRITE).unwrap();
                let file = session.open("file", WRITE).unwrap();
                KEPT.set(Some(AtTheEnd { session, file }));
            }
        });
        ended.join().unwrap();
        fs.close().unwrap();
        let fs = setup.open(device.clone()).unwrap();
        assert_eq!(content(&fs, "file"), b"the end");
        assert_eq!(fs.session(Cred::root()).read_dir("dir").unwrap().count(), 1);
        fs.close().unwrap();
        check_silent(&device.into()).unwrap();
    }
}
