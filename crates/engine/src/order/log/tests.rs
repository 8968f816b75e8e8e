use super::*;
use crate::types::MkfsOptions;
use crate::volume::testing;
use myriad_device::{BlockDevice, MemoryDevice, pass_on};
use myriad_format::BlockKind;
use myriad_format::choices::{Choices, Directory, Inodes, Space};
use myriad_format::superblock::state;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A device on which the next read of one block, once it has its bytes, takes long.
struct SlowRead {
    inner: MemoryDevice,
    offset: AtomicU64,
    has_read: AtomicBool,
    may_return: AtomicBool,
}

impl SlowRead {
    const NONE: u64 = u64::MAX;

    fn new(inner: MemoryDevice) -> Self {
        let flag = || AtomicBool::new(false);
        Self { inner, offset: AtomicU64::new(Self::NONE), has_read: flag(), may_return: flag() }
    }

    fn await_flag(flag: &AtomicBool, most: Duration) {
        let begun = Instant::now();
        while !flag.load(Ordering::Acquire) && begun.elapsed() < most {
            sleep(Duration::from_millis(1));
        }
    }
}

impl BlockDevice for SlowRead {
    pass_on!(inner: size, alignment, write, flush, discard, discards, counters);

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, buf)?;
        if self.offset.compare_exchange(offset, Self::NONE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.has_read.store(true, Ordering::Release);
            // Whoever waits for the reader would wait for ever.
            Self::await_flag(&self.may_return, Duration::from_millis(200));
        }
        Ok(())
    }
}

/// A device that lost power with changes of blocks of units that only its log has.
fn crashed() -> MemoryDevice {
    let choices =
        Choices { directory: Directory::Linear, space: Space::Bitmap, inodes: Inodes::Static, ..Choices::default() };
    let device = Arc::new(MemoryDevice::new(16 << 20));
    crate::mkfs::format(device.clone(), None, &MkfsOptions { choices, ..MkfsOptions::default() }).unwrap();
    let volume = testing::open(device.clone());
    volume.write_superblock(state::IN_USE).unwrap();
    for name in ["a", "b"] {
        testing::new_file(&volume, name.as_bytes());
        volume.commit_now().unwrap();
    }
    device.clone_image()
}

/// A block of units was written home past the cache and taken from the overlay, while another thread had read it as it was before and not yet
/// laid the log's changes over it. It found none any more, and what it had read looked sound: a single read had gone wrong before.
#[test]
fn who_reads_a_block_that_goes_home_past_the_cache_has_what_the_log_says() {
    let crashed = crashed();
    let (block, kind, sound) = {
        let volume = testing::open(Arc::new(crashed.clone_image()));
        let logged: Vec<FsBlock> = volume.cache.overlay.read().blocks().map(|(block, _)| block).collect();
        let look = volume.look();
        let changed = |block: FsBlock| {
            let mut home = vec![0; 4096];
            crashed.read(block.0 << 12, &mut home).unwrap();
            let kind = BlockKind::of(&home).filter(|kind| kind.is_of_units())?;
            let sound = volume.cache.get(block, kind).unwrap().read().to_vec();
            (sound != home).then_some((block, kind, sound))
        };
        let found = logged.into_iter().find_map(changed).unwrap();
        drop(look);
        found
    };
    for is_past_the_cache in [false, true] {
        let device = Arc::new(SlowRead::new(crashed.clone_image()));
        let volume = testing::open(device.clone());
        let cache = &volume.cache;
        let read = || {
            let _look = volume.look();
            let mut taken = Vec::new();
            while is_past_the_cache && cache.has_room() {
                taken.push(cache.take_private_inside().unwrap());
            }
            device.offset.store(block.0 << 12, Ordering::Release);
            let mut bytes = Vec::new();
            let read = cache.pass_over(block, 1, kind, &mut |_, found| {
                bytes = found.to_vec();
                Ok(true)
            });
            taken.into_iter().for_each(|index| cache.drop_private(index));
            read.map(|_| bytes)
        };
        let found = std::thread::scope(|scope| {
            let reader = scope.spawn(read);
            SlowRead::await_flag(&device.has_read, Duration::from_secs(60));
            volume.checkpointer.lock().write_damaged_home(&volume, vec![(block, Errno::IO.into())]).unwrap();
            device.may_return.store(true, Ordering::Release);
            reader.join().unwrap().unwrap()
        });
        assert!(found == sound, "past the cache: {is_past_the_cache}");
        let _look = volume.look();
        assert!(*cache.get(block, kind).unwrap().read() == sound[..]);
    }
}

/// Blocks went home with the position of the oldest checkpoint that had changed them. A search of a damaged log took that for how new they are, and laid
/// the older of two checkpoints over them again where the newer one was what could not be read.
#[test]
fn what_goes_home_is_newer_than_all_that_the_log_has_of_it() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let volume = testing::volume(device.clone());
    let head = || volume.checkpointer.lock().log.as_ref().unwrap().head();
    let mut last = head();
    for name in ["a", "b", "c"] {
        testing::new_file(&volume, name.as_bytes());
        last = head();
        volume.commit_now().unwrap();
    }
    volume.checkpointer.lock().bring_home(&volume).unwrap();
    let mut bytes = vec![0; 4096];
    let block = volume.block_of(volume.root);
    device.read(block.0 << 12, &mut bytes).unwrap();
    let home = Lsn(myriad_format::BlockHeader::read(&bytes).lsn.get());
    assert!(last < home && home <= head(), "{home:?} {last:?} {:?}", head());
}
