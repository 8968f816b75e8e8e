//! Which data of a file a checkpoint makes durable while another thread holds the file's data lock.

use super::*;
use crate::cache::{Sweep, flag};
use crate::error::{Errno, Error};
use crate::ops::Ops;
use crate::order::Cost;
use crate::schedule;
use crate::session::Fs;
use crate::types::{AllocateMode, Cred, LinkRules, MkfsOptions, MountOptions, OpenOptions, Order};
use crate::volume::{Volume, testing};
use myriad_check::{Options as CheckOptions, check};
use myriad_device::{BlockDevice, FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_format::choices::Profile;
use myriad_format::superblock::state;
use myriad_format::{Corrupt, FileBlock};

fn open(volume: &Volume, name: &str) -> Arc<OpenFile> {
    testing::new_file(volume, name.as_bytes())
}

fn put(volume: &Volume, file: &Arc<OpenFile>, bytes: &[u8], offset: u64) {
    assert_eq!(write(volume, &Cred::root(), file, bytes, offset, false, false).unwrap(), bytes.len());
}

/// What a file holds after power loss, if all that was written has arrived.
fn after_power_loss(device: &MemoryDevice, name: &str) -> Vec<u8> {
    let options = MountOptions { background: false, cache_size: 8 << 20, ..MountOptions::default() };
    let fs = Fs::open_device(Arc::new(device.clone_image()), None, options).unwrap();
    let file = fs.session(Cred::root()).open(name, OpenOptions { read: true, ..OpenOptions::default() }).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// A file of every other block up to 1200, so that its map has several leaves; of that nothing is in memory.
fn scattered(device: Arc<dyn BlockDevice>) -> (Volume, Arc<OpenFile>) {
    let volume = testing::volume(device);
    let file = open(&volume, "file");
    for i in 0..600 {
        put(&volume, &file, &[1; 4096], 2 * i * 4096);
    }
    flush(&volume, &file).unwrap();
    out_of_memory(&volume);
    (volume, file)
}

/// Whoever wants frames has idle files flushed. Their flushes came one after the other and nobody looked whether there were frames
/// left for the next: the 250 pages of `idle` wanted as many leaves of its map, and the reserve was used up in the middle of a change.
#[test]
fn who_has_idle_files_flushed_for_frames_leaves_some() {
    const BLOCK: u64 = 512;
    /// More than a leaf has.
    const APART: u64 = 2 * 32;
    let device = Arc::new(MemoryDevice::new(64 << 20));
    crate::mkfs::format(device.clone(), None, &MkfsOptions { block_size: 512, ..MkfsOptions::default() }).unwrap();
    let volume = testing::open_with(device, 0);
    assert_eq!(volume.cache.frame_count(), 1024);
    let [idle, large] = ["idle", "large"].map(|name| open(&volume, name));
    for i in 0..250 * APART / 2 {
        put(&volume, &idle, &[1; BLOCK as usize], 2 * i * BLOCK);
    }
    flush(&volume, &idle).unwrap();
    out_of_memory(&volume);
    for i in 0..250 {
        put(&volume, &idle, &[2; BLOCK as usize], (i * APART + 1) * BLOCK);
    }
    assert_eq!(idle.data.read().pages.len(), 250, "nobody had it flushed");
    let written = write(&volume, &Cred::root(), &large, &[3; 1 << 20], 0, false, false).unwrap();
    volume.check_running().unwrap();
    let bytes = content(&volume, &idle);
    for (block, bytes) in bytes.chunks(BLOCK as usize).enumerate() {
        let expected = if block % 2 == 0 { 1 } else { 2 * u8::from(block as u64 % APART == 1) };
        assert!(bytes.iter().all(|&byte| byte == expected), "block {block}");
    }
    assert!(content(&volume, &large) == vec![3; written]);
    flush_all(&volume).unwrap();
    volume.commit_now().unwrap();
}

/// Brings everything home, and lets go of it.
fn out_of_memory(volume: &Volume) {
    volume.checkpointer.lock().settle(volume).unwrap();
    volume.cache.sweep(Sweep::Everything);
}

fn close(volume: &Volume, file: &Arc<OpenFile>) {
    file.opens.fetch_sub(1, Ordering::AcqRel);
    volume.files.forget_if_idle(file, volume.epoch.current());
}

/// What happens between writing a file and writing it again.
enum Step {
    Flush,
    Commit,
    Cut,
    Put,
}

/// Cuts a file to nothing, writes it again, and makes a checkpoint while another thread has the file's data lock: by
/// one handle, and as a mount does it, which opens and closes for each request.
fn cut_and_write_under_a_reader(extents: u64, steps: &[Step]) {
    for one_handle in [true, false] {
        cut_and_write(extents, steps, one_handle);
    }
}

fn cut_and_write(extents: u64, steps: &[Step], one_handle: bool) {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let volume = testing::volume(device.clone());
    volume.write_superblock(state::IN_USE).unwrap();
    let mut file = open(&volume, "file");
    for i in 0..extents {
        put(&volume, &file, &[1; 4096], 2 * i * 4096);
    }
    let mut new = Vec::new();
    for step in steps.iter().chain(&[Step::Put, Step::Put]) {
        if !one_handle {
            close(&volume, &file);
            file = volume.files.open(file.ino, file.generation);
        }
        match step {
            Step::Flush => flush(&volume, &file).unwrap(),
            Step::Commit => volume.commit_now().unwrap(),
            Step::Cut => truncate(&volume, &Cred::root(), &file, 0).unwrap(),
            Step::Put => {
                put(&volume, &file, b"new content ", new.len() as u64);
                new.extend_from_slice(b"new content ");
            }
        }
    }
    let (held, release) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _reading = file.data.read();
            held.wait();
            release.wait();
        });
        held.wait();
        let committed = volume.commit_now();
        release.wait();
        committed.unwrap();
    });
    let found = after_power_loss(&device, "file");
    let old = found.len() as u64 == (2 * extents - 1) * 4096;
    assert!(old || found == new, "neither old nor new: {} bytes, one handle: {one_handle}", found.len());
}

/// A checkpoint flushed such files itself, but passed over those whose data lock was taken: with a reader on the file,
/// power loss left it empty.
#[test]
fn a_file_cut_at_once_and_written_again_is_never_empty() {
    cut_and_write_under_a_reader(4, &[Step::Flush, Step::Commit, Step::Cut]);
    cut_and_write_under_a_reader(4, &[Step::Flush, Step::Commit, Step::Cut, Step::Commit]);
}

#[test]
fn a_file_cut_late_and_written_again_is_never_empty() {
    cut_and_write_under_a_reader(1, &[Step::Flush, Step::Commit, Step::Cut]);
    cut_and_write_under_a_reader(1, &[Step::Flush, Step::Commit, Step::Cut, Step::Commit]);
}

#[test]
fn a_file_whose_late_cut_was_flushed_is_never_empty_once_written() {
    cut_and_write_under_a_reader(1, &[Step::Flush, Step::Commit, Step::Cut, Step::Flush]);
    cut_and_write_under_a_reader(1, &[Step::Flush, Step::Commit, Step::Cut, Step::Flush, Step::Commit]);
}

/// The flush that brings the new content brings the cut with it: what is written until that is durable must not stay
/// behind.
#[test]
fn a_file_whose_late_cut_was_flushed_with_new_content_has_all_of_it() {
    cut_and_write_under_a_reader(1, &[Step::Flush, Step::Commit, Step::Cut, Step::Put, Step::Flush]);
    cut_and_write_under_a_reader(4, &[Step::Flush, Step::Commit, Step::Cut, Step::Put, Step::Flush]);
}

#[test]
fn a_file_cut_at_once_and_flushed_is_never_empty_once_written() {
    cut_and_write_under_a_reader(4, &[Step::Flush, Step::Commit, Step::Cut, Step::Flush]);
    cut_and_write_under_a_reader(4, &[Step::Flush, Step::Commit, Step::Cut, Step::Flush, Step::Commit]);
}

/// A host without room kept a write from flushing what it had taken, and the write said that all was well. The next checkpoint for which
/// there was room showed the cut: after power loss the old content was gone, and so was the new.
#[test]
#[cfg(debug_assertions)]
fn a_file_cut_at_once_is_not_written_again_while_the_host_is_full() {
    // A checkpoint, for which there is no room, is due before the write begins, or once it has begun.
    for is_late in [false, true] {
        let memory = Arc::new(MemoryDevice::new(16 << 20));
        let device = Arc::new(FaultDevice::new(memory.clone()));
        let volume = testing::volume(device.clone());
        volume.write_superblock(state::IN_USE).unwrap();
        let file = open(&volume, "file");
        for i in 0..4 {
            put(&volume, &file, &[1; 4096], 2 * i * 4096);
        }
        flush(&volume, &file).unwrap();
        volume.commit_now().unwrap();
        truncate(&volume, &Cred::root(), &file, 0).unwrap();
        let mut written = Ok(0);
        let mut rewrite = || written = write(&volume, &Cred::root(), &file, &[2; 5000], 0, false, false);
        let fill = || {
            volume.epoch.cost.add(&Cost { log_bytes: u64::MAX / 4, ..Cost::default() });
            device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
        };
        if is_late {
            schedule::run(schedule::Turns { seed: 1, one_in: 1 }, vec![Box::new(rewrite), Box::new(fill)]);
        } else {
            fill();
            rewrite();
        }
        assert!(matches!(written, Err(Error::HostFull(_))), "late: {is_late}, {written:?}");
        // What is refused before it begins is not in the file.
        assert_eq!(file.data.read().pages.len(), if is_late { 2 } else { 0 });
        device.clear();
        // Somebody else's.
        volume.commit_now().unwrap();
        let found = after_power_loss(&memory, "file");
        assert!(found.is_empty() || found.len() == 7 * 4096, "{} bytes", found.len());
        put(&volume, &file, b"new", 0);
        volume.commit_now().unwrap();
        assert!(after_power_loss(&memory, "file").starts_with(b"new"));
    }
}

/// Entries of files that were cut stay for a checkpoint; of those that stay empty, some.
#[test]
fn entries_of_files_that_were_cut_go_in_the_end() {
    let volume = testing::volume(Arc::new(MemoryDevice::new(64 << 20)));
    let files = BARE_MAX + 10;
    let entries = || volume.files.shards.iter().map(|shard| shard.files.lock().len()).sum::<usize>();
    let mut nodes = Vec::new();
    for i in 0..files {
        let file = open(&volume, &format!("file {i}"));
        put(&volume, &file, b"old", 0);
        flush(&volume, &file).unwrap();
        truncate(&volume, &Cred::root(), &file, 0).unwrap();
        flush(&volume, &file).unwrap();
        close(&volume, &file);
        nodes.push((file.ino, file.generation));
    }
    assert_eq!(entries(), files);
    volume.commit_now().unwrap();
    assert_eq!(entries(), BARE_MAX);
    for (ino, generation) in nodes {
        let file = volume.files.open(ino, generation);
        put(&volume, &file, b"new", 0);
        flush(&volume, &file).unwrap();
        close(&volume, &file);
    }
    assert_eq!(entries(), BARE_MAX);
    volume.commit_now().unwrap();
    assert_eq!((entries(), volume.files.cut.lock().len()), (0, 0));
}

#[test]
fn a_file_cut_before_it_was_ever_flushed_is_never_empty_once_written() {
    cut_and_write_under_a_reader(1, &[Step::Cut]);
    cut_and_write_under_a_reader(4, &[Step::Commit, Step::Cut, Step::Commit]);
}

/// A read that failed in the middle of a flush left some pages published and still on the file's list: giving them up
/// later would have handed out frames that were other blocks' content by then.
#[test]
fn after_a_flush_that_failed_the_pages_are_the_files_own() {
    let mut failures = 0;
    for nth in 1.. {
        let device = Arc::new(FaultDevice::new(MemoryDevice::new(16 << 20)));
        let (volume, file) = scattered(device.clone());
        let places = [1, 601, 1197];
        for block in places {
            put(&volume, &file, &[2; 4096], block * 4096);
        }
        device.fail(FaultOp::Read, nth, FaultSpan::Once, 5);
        let flushed = flush(&volume, &file);
        let pages = file.data.read().pages.clone();
        if flushed.is_ok() {
            assert!(pages.is_empty());
            break;
        }
        failures += 1;
        assert_eq!(pages.keys().copied().collect::<Vec<_>>(), places);
        for frame in pages.values() {
            let flags = volume.cache.arena.header(*frame).flags.load(Ordering::Relaxed);
            assert_ne!(flags & flag::PRIVATE, 0, "read {nth}");
        }
        // Reads go on, with what was written.
        for block in places {
            let mut buf = [0; 4096];
            assert_eq!(read(&volume, &file, &mut buf, block * 4096, true).unwrap(), 4096);
            assert!(buf == [2; 4096]);
        }
    }
    assert!(failures > 4, "the map was to be read in pieces: {failures}");
}

/// The files to be flushed were taken off the list first: whoever synced while somebody else was flushing found nothing
/// to do, and returned before they were flushed.
#[test]
fn all_is_flushed_though_another_is_flushing() {
    let volume = testing::volume(Arc::new(MemoryDevice::new(32 << 20)));
    let files: Vec<_> = (0..20).map(|i| open(&volume, &format!("file {i}"))).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                flush_all(&volume).unwrap();
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..500_u64 {
                for file in &files {
                    put(&volume, file, &[round as u8; 100], round * 100);
                }
                flush_all(&volume).unwrap();
                let ahead = files.iter().filter(|file| file.ahead.load(Ordering::Acquire)).count();
                assert_eq!(ahead, 0, "files that are not flushed, in round {round}");
            }
        }));
        done.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
}

/// The inode was read, then memory asked, which a flush in between had let go of: a file looked as it had been before it
/// was written.
#[test]
fn what_was_written_is_seen_while_it_is_flushed() {
    let volume = testing::volume(Arc::new(MemoryDevice::new(32 << 20)));
    let cred = Cred::root();
    let file = open(&volume, "file");
    let node = file.node();
    let written = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
                let root = crate::namei::root(&volume.look()).unwrap();
                while !done.load(Ordering::Relaxed) {
                    let least = written.load(Ordering::Acquire);
                    for stat in [ops.stat_node(node).unwrap(), ops.lookup(root, b"file").unwrap()] {
                        assert!(stat.size >= least, "{} bytes, {least} were written", stat.size);
                    }
                }
            });
        }
        for size in 1..=if myriad_sim::rng::is_long() { 1_000_000 } else { 30_000 } {
            put(&volume, &file, &[1], size - 1);
            written.store(size, Ordering::Release);
            flush(&volume, &file).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// A cut that cannot read the map changed the size all the same, and threw away what was not flushed; growing again
/// brought back what should have been cut.
#[test]
fn a_cut_that_fails_has_cut_nothing() {
    let mut failures = 0;
    // More reads than a cut takes.
    for (nth, size) in (1..=20).flat_map(|nth| [(nth, 100 * 4096 + 5), (nth, 0)]) {
        let device = Arc::new(FaultDevice::new(MemoryDevice::new(16 << 20)));
        let (volume, file) = scattered(device.clone());
        put(&volume, &file, &[2; 100], 500 * 4096);
        let old = content(&volume, &file);
        out_of_memory(&volume);
        device.fail(FaultOp::Read, nth, FaultSpan::Once, 5);
        let cut = truncate(&volume, &Cred::root(), &file, size);
        if cut.is_ok() {
            // It was over, or what could not be read with its neighbours was read alone.
            continue;
        }
        failures += 1;
        if volume.check_running().is_ok() {
            assert!(content(&volume, &file) == old, "read {nth}, to {size}");
            flush(&volume, &file).unwrap();
            assert!(content(&volume, &file) == old, "read {nth}, to {size}");
        }
    }
    assert!(failures > 3, "{failures}");
}

/// Cuts a file of 400 scattered blocks of 512 bytes to `left` bytes, while the `nth` read and all after it fail. `None` unless the file has its new size
/// and blocks behind it: the cut was refused, or ended in the middle of a change, or was done.
fn cut_in_part(
    device: &FaultDevice<Arc<MemoryDevice>>,
    volume: &Volume,
    left: usize,
    nth: u64,
) -> Option<Arc<OpenFile>> {
    let file = open(volume, "file");
    for i in 0..400 {
        put(volume, &file, &[1; 512], 2 * i * 512);
    }
    flush(volume, &file).unwrap();
    out_of_memory(volume);
    device.fail(FaultOp::Read, nth, FaultSpan::Forever, 5);
    let cut = truncate(volume, &Cred::root(), &file, left as u64);
    (cut.is_ok() && file.data.read().rest == Rest::Some).then_some(file)
}

/// Cuts to try, and reads to fail. Where a part begins with another leaf, it reads that before it changes anything.
fn cuts_and_reads() -> impl Iterator<Item = (usize, u64)> {
    (0..28).flat_map(|left| (1..=20).map(move |nth| (2 * left * 512 + 5, nth)))
}

/// A cut that frees more than one transaction can met an error at the beginning of one, the file having its new size: that shut the
/// volume down.
#[test]
fn a_cut_whose_rest_cannot_be_read_is_finished_later() {
    const BLOCK: usize = 512;
    let mut unfinished = 0;
    for (left, nth) in cuts_and_reads() {
        let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(16 << 20))));
        crate::mkfs::format(device.clone(), None, &MkfsOptions { block_size: 512, ..MkfsOptions::default() }).unwrap();
        let volume = testing::open(device.clone());
        let Some(file) = cut_in_part(&device, &volume, left, nth) else { continue };
        unfinished += 1;
        // It does not grow over what is left.
        assert!(truncate(&volume, &Cred::root(), &file, 700 * BLOCK as u64).is_err());
        volume.check_running().unwrap();
        device.clear();
        truncate(&volume, &Cred::root(), &file, 700 * BLOCK as u64).unwrap();
        let bytes = content(&volume, &file);
        assert!(bytes[left - 5..left] == [1; 5] && bytes[left..].iter().all(|&byte| byte == 0));
        flush(&volume, &file).unwrap();
        volume.commit_now().unwrap();
        assert!(volume.orphans.numbers().is_empty());
    }
    assert!(unfinished > 0);
}

/// The rest of such a cut could not be freed by the next opening after a crash, either: something could not be read. The file stayed on the list of
/// orphans, which does not say why; when it grew, what had been cut off showed again.
#[test]
fn a_cut_whose_rest_the_next_opening_cannot_read_shows_nothing() {
    const BLOCK: usize = 512;
    let memory = Arc::new(MemoryDevice::new(16 << 20));
    crate::mkfs::format(memory.clone(), None, &MkfsOptions { block_size: 512, ..MkfsOptions::default() }).unwrap();
    let (mut unfinished, mut grown) = (0, 0);
    for (left, nth) in cuts_and_reads() {
        if unfinished == 3 {
            break;
        }
        let memory = Arc::new(memory.clone_image());
        let device = Arc::new(FaultDevice::new(memory.clone()));
        let volume = testing::open(device.clone());
        volume.write_superblock(state::IN_USE).unwrap();
        let Some(_file) = cut_in_part(&device, &volume, left, nth) else { continue };
        unfinished += 1;
        device.clear();
        volume.commit_now().unwrap();
        for nth in 1..40 {
            let device = Arc::new(FaultDevice::new(memory.clone_image()));
            device.fail(FaultOp::Read, nth, FaultSpan::Forever, 5);
            let options = MountOptions { background: false, cache_size: 8 << 20, ..MountOptions::default() };
            let opened = Fs::open_device(device.clone(), None, options);
            device.clear();
            let Ok(fs) = opened else { continue };
            grown += usize::from(!fs.volume().orphans.numbers().is_empty());
            let file = fs.session(Cred::root()).open("file", OpenOptions::READ_WRITE).unwrap();
            let mut bytes = vec![9; 700 * BLOCK];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), left);
            file.truncate(bytes.len() as u64).unwrap();
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
            assert!(bytes[left - 5..left] == [1; 5] && bytes[left..].iter().all(|&byte| byte == 0), "{left} {nth}");
            fs.sync().unwrap();
            assert!(fs.volume().orphans.numbers().is_empty());
        }
    }
    assert!(unfinished > 0 && grown > 0, "{unfinished} {grown}");
}

/// Zeroing a range frees its blocks and takes others: without room for all of them it had freed them first.
#[test]
fn a_range_that_there_is_no_room_to_zero_keeps_its_content() {
    let volume = testing::volume(Arc::new(MemoryDevice::new(16 << 20)));
    let file = open(&volume, "file");
    put(&volume, &file, &[1; 100 * 4096], 0);
    let refused = allocate(&volume, &Cred::root(), &file, AllocateMode::Zero { keep_size: false }, 5, 100 << 20);
    assert!(matches!(refused, Err(Error::Refused(Errno::NOSPC))), "{refused:?}");
    assert!(content(&volume, &file) == [1; 100 * 4096]);
    let free = volume.statfs().free_blocks;
    allocate(&volume, &Cred::root(), &file, AllocateMode::Zero { keep_size: true }, 5, 50 * 4096).unwrap();
    let new = content(&volume, &file);
    assert!(new[..5] == [1; 5] && new[5..5 + 50 * 4096].iter().all(|&byte| byte == 0));
    assert!(new[5 + 50 * 4096..] == [1; 50 * 4096 - 5]);
    assert!(volume.statfs().free_blocks >= free - 50);
}

fn content(volume: &Volume, file: &Arc<OpenFile>) -> Vec<u8> {
    let mut bytes = vec![0; file.data.read().size as usize];
    assert_eq!(read(volume, file, &mut bytes, 0, false).unwrap(), bytes.len());
    bytes
}

/// A file cut to nothing keeps its old content until the new one is flushed. Cut again, to less than was written since, the
/// old content was cut, too: power loss left a part of it, which is neither.
#[test]
fn a_second_cut_leaves_the_old_content_whole() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let volume = testing::volume(device.clone());
    volume.write_superblock(state::IN_USE).unwrap();
    let file = open(&volume, "file");
    put(&volume, &file, &[1; 40_000], 0);
    flush(&volume, &file).unwrap();
    volume.commit_now().unwrap();
    truncate(&volume, &Cred::root(), &file, 0).unwrap();
    put(&volume, &file, &[2; 40_960], 0);
    truncate(&volume, &Cred::root(), &file, 5000).unwrap();
    volume.commit_now().unwrap();
    assert!(after_power_loss(&device, "file") == [1; 40_000]);
    truncate(&volume, &Cred::root(), &file, 9000).unwrap();
    flush(&volume, &file).unwrap();
    volume.commit_now().unwrap();
    let new = after_power_loss(&device, "file");
    assert!(new[..5000] == [2; 5000] && new[5000..] == [0; 4000]);
}

/// The memory that a file had been cut was dropped by what had been seen before: it had been cut again since. What was written then stayed in
/// memory, and power loss after the next checkpoint left the file empty.
#[test]
fn a_file_is_cut_again_while_an_earlier_cut_is_forgotten() {
    for seed in 0..300 {
        let device = Arc::new(MemoryDevice::new(4 << 20));
        let volume = testing::volume(device.clone());
        volume.write_superblock(state::IN_USE).unwrap();
        let files = ["a", "b", "c"].map(|name| open(&volume, name));
        for file in &files {
            put(&volume, file, &[1; 40_000], 0);
            flush(&volume, file).unwrap();
            truncate(&volume, &Cred::root(), file, 0).unwrap();
            put(&volume, file, &[2; 3000], 0);
            flush(&volume, file).unwrap();
            close(&volume, file);
        }
        let cut_again = || {
            for file in &files {
                let opened = || volume.files.open(file.ino, file.generation);
                let file = opened();
                truncate(&volume, &Cred::root(), &file, 0).unwrap();
                flush(&volume, &file).unwrap();
                close(&volume, &file);
                let file = opened();
                put(&volume, &file, &[3; 3000], 0);
                close(&volume, &file);
            }
        };
        let commit = || volume.commit_now().unwrap();
        schedule::run(schedule::Turns { seed, one_in: 6 }, vec![Box::new(commit), Box::new(cut_again)]);
        volume.commit_now().unwrap();
        for name in ["a", "b", "c"] {
            assert!(after_power_loss(&device, name) == [3; 3000], "{name}, seed {seed}");
        }
    }
}

/// Between two parts of its flush a file without a name is given one. That took it off the list of orphans, and after power loss what
/// the first part had mapped showed where the file grew.
#[test]
fn a_file_named_between_two_parts_of_its_flush() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let volume = testing::volume(device.clone());
    volume.write_superblock(state::IN_USE).unwrap();
    let cred = Cred::root();
    let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
    let root = crate::namei::root(&volume.look()).unwrap();
    let file = ops.make_tmpfile(root, 0o600).unwrap();
    for piece in 0..100 {
        put(&volume, &file, &[2; 4096], 2 * piece * 4096);
    }
    let part = delalloc::flush_pages(&volume, &file, &mut file.data.write(), &delalloc::Enter::Direct);
    assert!(matches!(part, Ok(delalloc::Flushed::Some)));
    ops.link(file.node(), root, b"named", LinkRules { unnamed: true, ..LinkRules::default() }).unwrap();
    volume.commit_now().unwrap();
    let options = MountOptions { background: false, cache_size: 8 << 20, ..MountOptions::default() };
    let fs = Fs::open_device(Arc::new(device.clone_image()), None, options).unwrap();
    let named = fs.session(Cred::root()).open("named", OpenOptions::READ_WRITE).unwrap();
    assert_eq!(named.stat().unwrap().size, 0);
    named.truncate(1 << 20).unwrap();
    let mut bytes = vec![9; 1 << 20];
    assert_eq!(named.read_at(&mut bytes, 0).unwrap(), bytes.len());
    assert!(bytes.iter().all(|&byte| byte == 0));
    // Its last part leaves it on the list for no reason.
    flush(&volume, &file).unwrap();
    assert!(volume.orphans.numbers().is_empty());
}

/// Makes the first part of a flush durable that takes several: of every other block past the size.
fn flush_in_part(volume: &Volume, file: &Arc<OpenFile>) {
    for piece in 1..100 {
        put(volume, file, &[2; 4096], 2 * piece * 4096);
    }
    let mut data = file.data.write();
    let part = delalloc::flush_pages(volume, file, &mut data, &delalloc::Enter::Direct);
    assert!(matches!(part, Ok(delalloc::Flushed::Some)) && data.pages.len() > 20);
    drop(data);
    volume.commit_now().unwrap();
}

/// Of a flush in several parts the first had mapped pages past the size, which comes with the last. Power was lost in
/// between; when the file grew again, what had been written showed where zeros belong.
#[test]
fn a_flush_cut_short_leaves_nothing_past_the_end() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let volume = testing::volume(device.clone());
    volume.write_superblock(state::IN_USE).unwrap();
    let file = open(&volume, "file");
    put(&volume, &file, &[1; 700], 0);
    flush(&volume, &file).unwrap();
    flush_in_part(&volume, &file);
    let cut = Arc::new(device.clone_image());
    let silent = |device: &Arc<MemoryDevice>| {
        let report = check(device.clone(), None, &CheckOptions { threads: 1, ..CheckOptions::default() }).unwrap();
        assert!(report.is_sound(), "{:#?}", report.findings);
    };
    silent(&cut);
    // Whoever closes the file for the last time then, or the volume, frees nothing of it. The entry on the list was taken for an
    // orphan's, and what had been mapped was freed; the last part brought a size over holes, and a sync answered for it.
    file.opens.fetch_sub(1, Ordering::Relaxed);
    crate::ops::reclaim(&volume, file.node()).unwrap();
    crate::ops::reclaim_orphans(&volume).unwrap();
    file.opens.fetch_add(1, Ordering::Relaxed);
    let options = MountOptions { background: false, cache_size: 8 << 20, ..MountOptions::default() };
    let fs = Fs::open_device(cut.clone(), None, options.clone()).unwrap();
    let reopened = fs.session(Cred::root()).open("file", OpenOptions::READ_WRITE).unwrap();
    reopened.truncate(1 << 20).unwrap();
    let mut bytes = vec![9; 1 << 20];
    assert_eq!(reopened.read_at(&mut bytes, 0).unwrap(), bytes.len());
    assert!(bytes[..700] == [1; 700] && bytes[700..].iter().all(|&byte| byte == 0));
    drop(reopened);
    fs.close().unwrap();
    silent(&cut);

    // A repair before the next opening does as much.
    let damaged = Arc::new(device.clone_image());
    damaged.write(4096, &[0xee; 4096]).unwrap();
    let repair = CheckOptions { repair: true, threads: 1, ..CheckOptions::default() };
    let report = check(damaged.clone(), None, &repair).unwrap();
    assert!(report.repaired && report.is_sound(), "{:#?}", report.remaining);
    let fs = Fs::open_device(damaged, None, options).unwrap();
    assert_eq!(fs.session(Cred::root()).lstat("file").unwrap().blocks, 8);

    // With its last part nothing of it is left to do.
    flush(&volume, &file).unwrap();
    assert!(volume.orphans.numbers().is_empty());
    volume.commit_now().unwrap();
    let whole = after_power_loss(&device, "file");
    assert_eq!(whole.len(), 199 * 4096);
    assert!((1..100).all(|piece| whole[2 * piece * 4096..][..4096] == [2; 4096]));
}

/// As above, of a file for which blocks had been allocated behind its end, and synced: they were freed with what the flush had written.
#[test]
fn a_flush_cut_short_leaves_what_was_allocated() {
    const AHEAD: u64 = 1 << 20;
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let volume = testing::volume(device.clone());
    volume.write_superblock(state::IN_USE).unwrap();
    let file = open(&volume, "file");
    put(&volume, &file, &[1; 700], 0);
    flush(&volume, &file).unwrap();
    allocate(&volume, &Cred::root(), &file, AllocateMode::KeepSize, 4 << 20, AHEAD).unwrap();
    volume.commit_now().unwrap();
    flush_in_part(&volume, &file);
    let sectors = 8 + AHEAD / 512;
    let opened = Arc::new(device.clone_image());
    let repaired = Arc::new(device.clone_image());
    repaired.write(4096, &[0xee; 4096]).unwrap();
    let options = CheckOptions { repair: true, threads: 1, ..CheckOptions::default() };
    assert!(check(repaired.clone(), None, &options).unwrap().is_sound());
    for device in [opened, repaired] {
        let options = MountOptions { background: false, cache_size: 8 << 20, ..MountOptions::default() };
        let fs = Fs::open_device(device.clone(), None, options).unwrap();
        let session = fs.session(Cred::root());
        assert_eq!(session.lstat("file").unwrap().blocks, sectors);
        // It reads as zeros, and so does what the flush had written.
        let reopened = session.open("file", OpenOptions::READ_WRITE).unwrap();
        reopened.truncate((4 << 20) + AHEAD).unwrap();
        let mut bytes = vec![9; (4 << 20) + AHEAD as usize];
        assert_eq!(reopened.read_at(&mut bytes, 0).unwrap(), bytes.len());
        assert!(bytes[..700] == [1; 700] && bytes[700..].iter().all(|&byte| byte == 0));
        reopened.sync().unwrap();
        drop(reopened);
        assert_eq!(session.lstat("file").unwrap().blocks, sectors);
        drop(session);
        fs.close().unwrap();
        let report = check(device, None, &CheckOptions { threads: 1, ..CheckOptions::default() }).unwrap();
        assert!(report.is_sound(), "{:#?}", report.findings);
    }
}

/// What has a run moved goes on where it was. A run that stayed as it is would come back for ever.
#[test]
fn a_run_that_does_not_reach_after_its_move_is_damage() {
    let device = Arc::new(MemoryDevice::new(8 << 20));
    let choices = Profile::parse("ffs").unwrap().choices;
    let options = MkfsOptions { choices, block_size: 4096, fragments: 8, order: Order::Soft, ..MkfsOptions::default() };
    crate::mkfs::format(device.clone(), None, &options).unwrap();
    let volume = testing::open(device);
    let file = open(&volume, "file");
    put(&volume, &file, &[1; 700], 0);
    flush(&volume, &file).unwrap();
    let reaches = |at| fragments::check_reach(&volume, &file, FileBlock(at));
    reaches(1).unwrap();
    let error = reaches(2).unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt(found) if matches!(**found, Corrupt::Pointer { at: FileBlock(2), .. })),
        "{error}"
    );
    fragments::move_run(&volume, &file, &mut file.data.write(), FileBlock(5)).unwrap();
    reaches(5).unwrap();
    reaches(6).unwrap_err();
}

/// A move that failed left word of itself in the file. The pages that it had made of the run were promised nothing, for the promise was
/// whoever's had asked for the move; yet the next flush moved the run, to a block that nobody had kept for it.
#[test]
fn a_run_whose_move_failed_stays_where_it_is() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(8 << 20)));
    let choices = Profile::parse("ffs").unwrap().choices;
    let options = MkfsOptions { choices, block_size: 4096, fragments: 8, order: Order::Soft, ..MkfsOptions::default() };
    crate::mkfs::format(device.clone(), None, &options).unwrap();
    let volume = testing::open(device.clone());
    let file = open(&volume, "file");
    put(&volume, &file, &[1; 700], 0);
    flush(&volume, &file).unwrap();
    volume.commit_now().unwrap();
    open(&volume, "other");
    // So much waits that the flush makes a checkpoint first, which the host has no room for.
    volume.epoch.cost.add(&Cost { log_bytes: u64::MAX / 4, ..Cost::default() });
    device.fail(FaultOp::Write, 1, FaultSpan::Once, Errno::NOSPC.raw_os_error());
    let moved = fragments::move_run(&volume, &file, &mut file.data.write(), FileBlock(5));
    assert!(matches!(moved, Err(Error::HostFull(_))), "{moved:?}");
    assert!(!file.data.read().pages.is_empty());
    flush(&volume, &file).unwrap();
    fragments::check_reach(&volume, &file, FileBlock(1)).unwrap();
    fragments::check_reach(&volume, &file, FileBlock(5)).unwrap_err();
}

/// After a checkpoint, a file that had been cut and filled was about to be forgotten, when somebody opened it, cut it again and closed it: it was forgotten
/// all the same. Whoever opened it next did not know that it had been cut, and a crash could show it empty.
#[test]
#[cfg(debug_assertions)]
fn a_file_that_is_cut_again_meanwhile_is_not_forgotten() {
    let close = |files: &OpenFiles, file: &Arc<OpenFile>, epoch| {
        file.opens.fetch_sub(1, Ordering::AcqRel);
        files.forget_if_idle(file, epoch);
    };
    for seed in 0..500 {
        let files = OpenFiles::new();
        let file = files.open(Ino(10), 1);
        file.note_cut(true);
        file.note_content(1, false);
        close(&files, &file, 1);
        let cut_again = || {
            let file = files.open(Ino(10), 1);
            file.note_cut(true);
            close(&files, &file, 2);
        };
        let turns = schedule::Turns { seed, one_in: 1 };
        schedule::run(turns, vec![Box::new(|| files.forget_cut(2)), Box::new(cut_again)]);
        let file = files.find(Ino(10)).unwrap_or_else(|| panic!("seed {seed}: nobody knows of the cut"));
        assert_eq!(file.cut.get(), Cut::Bare);
        assert_eq!(files.cut.lock().iter().filter(|listed| Arc::ptr_eq(listed, &file)).count(), 1, "seed {seed}");
    }
}

/// An fsync that made everything durable, for want of a way to its file, left files that had been cut and filled listed until the next sync.
#[test]
fn an_fsync_of_everything_forgets_files_that_were_cut() {
    let device = Arc::new(MemoryDevice::new(8 << 20));
    let choices = Profile::parse("ffs").unwrap().choices;
    let options = MkfsOptions { choices, order: Order::Soft, ..MkfsOptions::default() };
    crate::mkfs::format(device.clone(), None, &options).unwrap();
    let volume = testing::open(device);
    let ops = Ops { volume: &volume, cred: &Cred::root(), caller: &Cred::root() };
    let root = crate::namei::root(&volume.look()).unwrap();
    let [file, linked] = ["file", "linked"].map(|name| open(&volume, name));
    ops.link(linked.node(), root, b"second", LinkRules::default()).unwrap();
    volume.commit_now().unwrap();
    let epoch = volume.epoch.current();
    file.note_cut(true);
    file.note_content(epoch, false);
    file.opens.fetch_sub(1, Ordering::AcqRel);
    volume.files.forget_if_idle(&file, epoch);
    assert_eq!(volume.files.cut.lock().len(), 1);
    volume.commit_file(linked.ino).unwrap();
    assert_eq!(volume.files.cut.lock().len(), 0);
}
