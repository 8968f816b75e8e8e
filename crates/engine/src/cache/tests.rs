use super::data::PASSING_MIN;
use super::*;
use myriad_device::MemoryDevice;

fn cache() -> Cache {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    Cache::new(1 << 20, 12, false, device, [0; 16], Overlay::default(), Arc::new(Counters::new())).unwrap()
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
    cache.sweep(false);
    cache.state.lock().hand = 0;
    let _inside = cache.gate.enter(0);
    for block in 1..=blocks {
        if let Some(frame) = cache.find_data(FsBlock(block * 37)) {
            assert_ne!(block % 3, 1);
            assert_eq!(frame.read()[0], block as u8);
        }
    }
    drop(_inside);
    cache.sweep(true);
    assert_eq!(cache.free_frames(), cache.frame_count());
    assert!(cache.table.iter().all(|entry| entry.load(Ordering::Relaxed) == 0));
}

/// Who reads ahead looks at a file's map without a lock, and may take a block for data that is metadata by now.
#[test]
fn what_was_read_as_data_is_no_evidence() {
    use myriad_format::header;
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let mut bytes = vec![0; 4096];
    header::init(&mut bytes, BlockKind::Attributes, [0; 16], 5, FsBlock(9));
    header::seal(&mut bytes, 0);
    device.write(9 << 12, &bytes).unwrap();
    let cache = Cache::new(1 << 20, 12, false, device, [0; 16], Overlay::default(), Arc::new(Counters::new())).unwrap();
    let _inside = cache.gate.enter(0);
    cache.insert_data(FsBlock(9), &[7; 4096]);
    assert!(cache.get(FsBlock(9), BlockKind::Attributes).unwrap().read()[..] == bytes[..]);
    // What is to be written there is.
    cache.publish(page(&cache, 1), FsBlock(10), false, 1);
    assert!(matches!(cache.get(FsBlock(10), BlockKind::Attributes), Err(Error::Corrupt(_))));
}

/// A block of inodes that were given back became metadata for a while, and was freed before any of that was written: the
/// device still has the inodes.
#[test]
fn what_the_device_never_heard_of_is_not_read_from_it() {
    use myriad_format::header;
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let mut bytes = vec![0; 4096];
    header::init(&mut bytes, BlockKind::Inode, [0; 16], 5, FsBlock(9));
    header::seal(&mut bytes, 0);
    device.write(9 << 12, &bytes).unwrap();
    let cache = Cache::new(1 << 20, 12, false, device, [0; 16], Overlay::default(), Arc::new(Counters::new())).unwrap();
    {
        let _inside = cache.gate.enter(0);
        cache.get(FsBlock(9), BlockKind::Inode).unwrap();
        cache.kill(FsBlock(9));
        cache.bar(FsBlock(9));
        let frame = cache.create(FsBlock(9), BlockKind::Attributes).unwrap();
        cache.arena.header(frame.index).flags.fetch_or(flag::LOADED | flag::FRESH, Ordering::Relaxed);
        cache.kill(FsBlock(9));
    }
    cache.sweep(true);
    let _inside = cache.gate.enter(0);
    assert!(matches!(cache.get(FsBlock(9), BlockKind::Inode), Err(Error::Corrupt(_))));
}
