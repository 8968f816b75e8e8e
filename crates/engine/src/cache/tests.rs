use super::data::PASSING_MIN;
use super::*;
use crate::error::Errno;
use myriad_device::{FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_format::header;

fn cache() -> Cache {
    cache_on(Arc::new(MemoryDevice::new(16 << 20)))
}

fn cache_on(device: Arc<dyn BlockDevice>) -> Cache {
    Cache::new(1 << 20, 12, false, device, [0; 16], Overlay::default(), Arc::new(Counters::new())).unwrap()
}

/// A cache over a device that has a sound block of this kind as block 9, and the bytes of that.
fn cache_over(kind: BlockKind) -> (Cache, Vec<u8>) {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let mut bytes = vec![0; 4096];
    header::init(&mut bytes, kind, [0; 16], 5, FsBlock(9));
    header::seal(&mut bytes, 0);
    device.write(9 << 12, &bytes).unwrap();
    (cache_on(device), bytes)
}

/// Every third miss near a bad sector read all that lies around it in vain, however long the medium tried.
#[test]
fn a_bad_sector_is_read_ahead_over_once() {
    const MISSES: u64 = 12;
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(16 << 20)));
    let cache = cache_on(device.clone());
    let _inside = cache.gate.enter(0);
    device.fail(FaultOp::Read, 1, FaultSpan::Forever, Errno::IO.raw_os_error());
    let before = device.seen(FaultOp::Read);
    // Backwards, which is no walk.
    for i in 0..MISSES {
        assert!(cache.get(FsBlock(95 - i), BlockKind::DirIndex).is_err());
    }
    assert_eq!(device.seen(FaultOp::Read) - before, MISSES + 1);
}

/// A cache that was too small for what it had read ahead began to read ahead again after a sweep that found nothing to evict.
#[test]
fn a_sweep_that_evicts_nothing_does_not_say_that_reading_ahead_is_of_use() {
    let cache = cache();
    let is_used = || !cache.ahead_is_unused.load(Ordering::Relaxed);
    cache.judge_ahead(100, 50);
    assert!(!is_used());
    assert_eq!(cache.sweep(Sweep::ForRoom), 0);
    assert!(!is_used());
    cache.judge_ahead(100, 10);
    assert!(is_used());
    cache.judge_ahead(100, 50);
    cache.sweep(Sweep::Everything);
    assert!(is_used(), "nothing is left that was read ahead");
}

fn page(cache: &Cache, byte: u8) -> u32 {
    let frame = cache.take_private().unwrap();
    cache.arena.write(frame).fill(byte);
    frame
}

/// A block mapped in one epoch and overwritten in the next, before the first epoch's checkpoint wrote it: the first
/// commit referred to a block that was never written, and a crash showed what the medium had held before.
#[test]
fn data_promised_to_a_commit_is_written_though_it_changes_again() {
    let cache = cache();
    let _inside = cache.gate.enter(0);
    let first = cache.publish(page(&cache, 1), FsBlock(100), false, 1);
    let second = cache.publish(page(&cache, 2), FsBlock(100), false, 1);
    assert_eq!(first, second, "one frame, on both lists");
    let flags = || cache.arena.header(first).flags.load(Ordering::Relaxed);
    assert_ne!(flags() & flag::DATA_DIRTY, 0);
    assert_eq!(cache.arena.read(first)[0], 2);
    // The writer begins, the data changes once more, the write ends: it is still to be written.
    cache.arena.header(first).flags.fetch_and(!flag::CHANGED_AGAIN, Ordering::Relaxed);
    cache.publish(page(&cache, 3), FsBlock(100), false, 1);
    cache.written(100, first);
    assert_ne!(flags() & flag::DATA_DIRTY, 0);
    cache.arena.header(first).flags.fetch_and(!flag::CHANGED_AGAIN, Ordering::Relaxed);
    cache.written(100, first);
    assert_eq!(flags() & flag::DATA_DIRTY, 0);
}

/// A thread that looked at an inode by an old number found its block in the cache as file data that had been read, and was about to take that out. Meanwhile
/// another one wrote over the file, or the block became metadata anew: then this was taken out, and never written. An fsync of it said that all was well.
#[test]
#[cfg(debug_assertions)]
fn an_old_look_takes_nothing_that_is_still_to_be_written() {
    let block = FsBlock(100);
    for seed in 0..200 {
        for is_data in [true, false] {
            let cache = cache();
            cache.insert_data(block, &[1; 4096]);
            let look = || {
                let _inside = cache.gate.enter(0);
                assert!(cache.get(block, BlockKind::Inode).is_err() || !is_data);
            };
            let change = || {
                let _inside = cache.gate.enter(1);
                schedule::pause();
                if is_data {
                    cache.publish(page(&cache, 2), block, false, 1);
                } else {
                    let frame = cache.create(block, BlockKind::Inode).unwrap();
                    cache.arena.header(frame.index).flags.fetch_or(flag::FRESH | flag::LOADED, Ordering::Relaxed);
                }
            };
            schedule::run(schedule::Turns { seed, one_in: 1 }, vec![Box::new(look), Box::new(change)]);
            let found = cache.find(block).unwrap_or_else(|| panic!("seed {seed}: it is gone"));
            let unwritten = if is_data { flag::DATA_DIRTY } else { flag::FRESH };
            assert_ne!(cache.arena.header(found).flags.load(Ordering::Relaxed) & unwritten, 0, "seed {seed}");
        }
    }
}

/// Each page of a file written over again took new memory, until the cache had all that it may have.
#[test]
fn pages_written_over_again_lie_in_memory_used_before() {
    let cache = cache();
    let blocks = PASSING_MIN as u64;
    for round in 1..10 {
        for block in 0..blocks {
            let _inside = cache.gate.enter(0);
            let frame = cache.publish(page(&cache, round), FsBlock(block), false, u64::from(round));
            cache.written(block, frame);
        }
        cache.let_pass();
    }
    assert_eq!(cache.state.lock().unused, 2 * PASSING_MIN as u32);
    let _inside = cache.gate.enter(0);
    for block in 0..blocks {
        assert_eq!(cache.find_data(FsBlock(block)).unwrap().read()[0], 9);
    }
}

/// A long link's target was refused a frame while the reserve was full, in the middle of making the link: the volume
/// shut down for lack of memory that was there.
#[test]
fn the_reserve_is_for_who_is_inside() {
    let cache = cache();
    while cache.take_private().is_some() {}
    assert!(!cache.has_room());
    let _inside = cache.gate.enter(0);
    for _ in 0..cache.reserve {
        cache.take_private_inside().unwrap();
    }
    assert!(cache.take_private_inside().is_err());
}

#[test]
fn data_that_nobody_wants_to_keep_goes_once_it_is_written_unless_it_is_read() {
    let cache = cache();
    let blocks = 0..PASSING_MIN as u64;
    for block in blocks.clone() {
        let _inside = cache.gate.enter(0);
        let frame = cache.publish(page(&cache, block as u8), FsBlock(block), true, 1);
        // One is still to be written, one was read.
        if block != 5 {
            cache.written(block, frame);
        }
        assert_eq!(cache.find_data(FsBlock(7)).is_some(), block >= 7);
    }
    cache.let_pass();
    assert_eq!(cache.frame_count() - cache.free_frames(), blocks.end as usize, "too few to close the gate for");
    {
        let _inside = cache.gate.enter(0);
        let frame = cache.publish(page(&cache, 0), FsBlock(1000), true, 1);
        cache.written(1000, frame);
    }
    cache.let_pass();
    let _inside = cache.gate.enter(0);
    let left: Vec<u64> = (0..1001).filter(|&block| cache.find_data(FsBlock(block)).is_some()).collect();
    assert_eq!(left, [5, 7]);
    assert_eq!(cache.frame_count() - cache.free_frames(), 2);
}

#[test]
fn evicted_blocks_leave_the_table_whole() {
    let cache = cache();
    let blocks = cache.frame_count() as u64 / 2;
    for block in 1..=blocks {
        let _inside = cache.gate.enter(0);
        cache.insert_data(FsBlock(block * 37), &[block as u8; 4096]);
    }
    {
        let _inside = cache.gate.enter(0);
        for block in (1..=blocks).step_by(3) {
            cache.kill(FsBlock(block * 37));
        }
    }
    // Dead frames go, and what is left is found behind the gaps they leave.
    cache.sweep(Sweep::ForRoom);
    cache.state.lock().hand = 0;
    let _inside = cache.gate.enter(0);
    for block in 1..=blocks {
        if let Some(frame) = cache.find_data(FsBlock(block * 37)) {
            assert_ne!(block % 3, 1);
            assert_eq!(frame.read()[0], block as u8);
        }
    }
    drop(_inside);
    cache.sweep(Sweep::Everything);
    assert_eq!(cache.free_frames(), cache.frame_count());
    assert!(cache.table.iter().all(|entry| entry.load(Ordering::Relaxed) == 0));
}

/// Who reads ahead looks at a file's map without a lock, and may take a block for data that is metadata by now.
#[test]
fn what_was_read_as_data_is_no_evidence() {
    let (cache, bytes) = cache_over(BlockKind::Attributes);
    let _inside = cache.gate.enter(0);
    cache.insert_data(FsBlock(9), &[7; 4096]);
    assert!(cache.get(FsBlock(9), BlockKind::Attributes).unwrap().read()[..] == bytes[..]);
    // What is to be written there is.
    cache.publish(page(&cache, 1), FsBlock(10), false, 1);
    assert!(matches!(cache.get(FsBlock(10), BlockKind::Attributes), Err(Error::Corrupt(_))));
}

/// A block of inodes that were given back became metadata for a while, and was freed before any of that was written home: the
/// device still has the inodes. Whether nothing of it was written yet, a checkpoint had taken it, or the log alone knew.
#[test]
fn what_the_device_never_heard_of_is_not_read_from_it() {
    for flags in [flag::FRESH, flag::DATA_DIRTY, 0] {
        let (cache, _) = cache_over(BlockKind::Inode);
        {
            let _inside = cache.gate.enter(0);
            cache.get(FsBlock(9), BlockKind::Inode).unwrap();
            cache.forget(FsBlock(9));
            let frame = cache.create(FsBlock(9), BlockKind::Attributes).unwrap();
            cache.arena.header(frame.index).flags.fetch_or(flag::LOADED | flags, Ordering::Relaxed);
            cache.forget(FsBlock(9));
        }
        cache.sweep(Sweep::Everything);
        let _inside = cache.gate.enter(0);
        assert!(matches!(cache.get(FsBlock(9), BlockKind::Inode), Err(Error::Corrupt(_))), "flags {flags:#x}");
    }
}

/// As above, where somebody looks for the block while it is forgotten, and waits for the frame that is being killed.
#[test]
fn who_meets_a_frame_that_is_killed_finds_the_block_barred() {
    for seed in 0..200 {
        let (cache, _) = cache_over(BlockKind::Inode);
        {
            let _inside = cache.gate.enter(0);
            let frame = cache.create(FsBlock(9), BlockKind::Attributes).unwrap();
            cache.arena.header(frame.index).flags.fetch_or(flag::LOADED | flag::FRESH, Ordering::Relaxed);
        }
        let look = || {
            let _inside = cache.gate.enter(0);
            let found = cache.get(FsBlock(9), BlockKind::Inode).map(|_| ());
            assert!(matches!(found, Err(Error::Corrupt(_))), "seed {seed}: inodes that were given back are there");
        };
        let forget = || {
            let _inside = cache.gate.enter(1);
            cache.forget(FsBlock(9));
        };
        schedule::run(schedule::Turns { seed, one_in: 1 }, vec![Box::new(look), Box::new(forget)]);
    }
}

/// No frame was free for a block that was to be made anew: it was barred no more, and still held on the device what it had been.
#[test]
fn a_block_that_finds_no_frame_stays_barred() {
    let (cache, _) = cache_over(BlockKind::Inode);
    let _inside = cache.gate.enter(0);
    cache.forget(FsBlock(9));
    let taken: Vec<u32> = std::iter::from_fn(|| cache.take_private_inside().ok()).collect();
    assert!(matches!(cache.create(FsBlock(9), BlockKind::Attributes), Err(Error::Refused(Errno::NOMEM))));
    taken.into_iter().for_each(|frame| cache.drop_private(frame));
    assert!(matches!(cache.get(FsBlock(9), BlockKind::Inode), Err(Error::Corrupt(_))));
}

/// A pool for directories in a cache whose gate nobody is in, and what a test does with it: blocks from 1000 on are its directories'.
struct Pooled(Cache);

impl Pooled {
    const LIMIT: usize = 64;

    fn new() -> Self {
        let cache = cache();
        cache.bound_directories(Some((Self::LIMIT << 12) as u64));
        Self(cache)
    }

    /// Reads or makes a block of a directory as an operation does, which sweeps first if it has to.
    fn bring_in(&self, block: u64) -> u32 {
        if !self.0.has_room() {
            self.0.sweep(Sweep::ForRoom);
        }
        self.bring_in_inside(block)
    }

    fn bring_in_inside(&self, block: u64) -> u32 {
        let _inside = self.0.gate.enter(0);
        let frame = self.0.create(FsBlock(1000 + block), BlockKind::LinearEntries).unwrap();
        self.0.arena.header(frame.index).flags.fetch_or(flag::LOADED, Ordering::Relaxed);
        frame.index
    }

    fn held(&self) -> usize {
        let held = self.0.state.lock().directories.count;
        assert_eq!(self.0.directory_bytes(), (held << 12) as u64);
        held
    }

    fn is_here(&self, block: u64) -> bool {
        let _inside = self.0.gate.enter(0);
        self.0.find(FsBlock(1000 + block)).is_some()
    }

    fn count(&self, name: &str) -> u64 {
        self.0.counters.snapshot().into_iter().find(|(known, _)| *known == name).unwrap().1
    }
}

#[test]
fn directories_stay_in_their_pool_and_others_out_of_it() {
    let pooled = Pooled::new();
    let cache = &pooled.0;
    for block in 0..100 {
        let _inside = cache.gate.enter(0);
        cache.insert_data(FsBlock(block), &[1; 4096]);
    }
    for block in 0..1000 {
        pooled.bring_in(block);
        assert!(pooled.held() <= Pooled::LIMIT, "block {block}");
    }
    assert!(pooled.held() > Pooled::LIMIT / 2);
    let evicted = 1000 - pooled.held() as u64;
    assert_eq!((pooled.count("dir_cache_over"), pooled.count("dir_cache_evictions")), (0, evicted));
    // By the clock: what is touched now is passed over once, and others go.
    let is_touched = |block: &u64| block.is_multiple_of(2);
    let here: Vec<u64> = (0..1000).filter(|&block| pooled.is_here(block)).collect();
    for &block in &here {
        let flags = &cache.arena.header(cache.find(FsBlock(1000 + block)).unwrap()).flags;
        let referenced = if is_touched(&block) { flag::REFERENCED } else { 0 };
        flags.store(flags.load(Ordering::Relaxed) & !flag::REFERENCED | referenced, Ordering::Relaxed);
    }
    (1000..1010).for_each(|block| _ = pooled.bring_in(block));
    let gone: Vec<u64> = here.iter().copied().filter(|&block| !pooled.is_here(block)).collect();
    assert!(!gone.is_empty() && !gone.iter().any(is_touched), "{gone:?}");
    let data = |cache: &Cache| (0..100).filter(|&block| cache.find_data(FsBlock(block)).is_some()).count();
    {
        let _inside = cache.gate.enter(0);
        assert_eq!(data(cache), 100, "directories took memory of others");
    }
    // Nor do others take memory of directories.
    let held = pooled.held();
    for block in 2000..2000 + 4 * cache.frame_count() as u64 {
        if !cache.has_room() {
            cache.sweep(Sweep::ForRoom);
        }
        let _inside = cache.gate.enter(0);
        cache.insert_data(FsBlock(block), &[2; 4096]);
    }
    assert_eq!(pooled.held(), held);
    let _inside = cache.gate.enter(0);
    assert_eq!(data(cache), 0);
}

/// Blocks that may not leave are more than the pool may hold. Nobody waits for it: each comes in, is counted, and goes when it can.
#[test]
fn what_cannot_be_evicted_exceeds_the_pool_for_a_while() {
    let pooled = Pooled::new();
    let cache = &pooled.0;
    let changed: Vec<u32> = (0..200)
        .map(|block| {
            let index = pooled.bring_in(block);
            cache.arena.header(index).mask.store(1, Ordering::Relaxed);
            index
        })
        .collect();
    assert_eq!(pooled.held(), 200);
    assert_eq!(pooled.count("dir_cache_over"), 200 - Pooled::LIMIT as u64);
    // A sweep for each sixteenth of the pool that came in, and not for each block.
    let sweeps = pooled.count("cache_sweeps");
    assert!((10..=200 / (Pooled::LIMIT as u64 / 16)).contains(&sweeps), "{sweeps} sweeps");
    changed.iter().for_each(|&index| cache.arena.header(index).mask.store(0, Ordering::Relaxed));
    for block in 200..220 {
        pooled.bring_in(block);
    }
    assert!(pooled.held() <= Pooled::LIMIT, "{}", pooled.held());
    // As long as one operation is inside, nothing goes, and nothing that nobody waits for comes in.
    (300..400).for_each(|block| _ = pooled.bring_in_inside(block));
    assert!(pooled.held() > 100);
    let inside = cache.gate.enter(0);
    assert!(cache.insert_read(FsBlock(5000), kind_code(BlockKind::LinearEntries), &[0; 4096]).is_none());
    assert!(cache.insert_read(FsBlock(5000), kind_code(BlockKind::Inode), &[0; 4096]).is_some());
    drop(inside);
    pooled.bring_in(401);
    assert!(pooled.held() <= Pooled::LIMIT);
}

#[test]
fn a_pool_comes_and_goes_while_the_cache_is_in_use() {
    let pooled = Pooled::new();
    let cache = &pooled.0;
    cache.bound_directories(None);
    (0..200).for_each(|block| _ = pooled.bring_in(block));
    assert_eq!((pooled.held(), pooled.count("cache_sweeps")), (200, 0), "all of the cache is theirs");
    cache.bound_directories(Some((Pooled::LIMIT << 12) as u64));
    assert!(pooled.held() <= Pooled::LIMIT, "at once");
    // Whoever else takes a frame from its block, the pool knows no frame twice: it asserts that itself.
    let dead: Vec<u64> = (0..200).filter(|&block| pooled.is_here(block)).collect();
    for &block in &dead {
        let _inside = cache.gate.enter(0);
        cache.kill(FsBlock(1000 + block));
    }
    dead.iter().for_each(|&block| _ = pooled.bring_in_inside(block));
    assert_eq!(pooled.held(), 2 * dead.len(), "dead ones wait for a sweep");
    cache.sweep(Sweep::ForRoom);
    assert!(pooled.held() <= Pooled::LIMIT && dead.iter().any(|&block| pooled.is_here(block)));
    cache.sweep(Sweep::Everything);
    assert_eq!(pooled.held(), 0);
    // What is too little for one operation, or most of the cache, is not what somebody gets.
    for (asked, most) in [(0, 32), (u64::MAX, cache.frame_count() / 2)] {
        cache.bound_directories(Some(asked));
        (0..cache.frame_count() as u64 * 3 / 4).for_each(|block| _ = pooled.bring_in(block));
        assert!((most / 2..=most).contains(&pooled.held()), "{} of {most}", pooled.held());
    }
}
