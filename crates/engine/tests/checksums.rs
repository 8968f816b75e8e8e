//! Volumes with checksums of file data: what the device does not give back as it was written is an error, never bytes.

use myriad_check::{Options as CheckOptions, check};
use myriad_device::{BlockDevice, FaultDevice, FaultKind, FaultOp, FaultSpan, MemoryDevice};
use myriad_engine::{Allocation, Cred, Errno, Error, File, Fs, MkfsOptions, MountOptions, OpenOptions};
use std::sync::{Arc, Mutex};

const BLOCK: usize = 4096;

fn formatted(size: u64, mkfs: MkfsOptions) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(size));
    let mkfs = MkfsOptions { data_checksums: true, seed: Some(1), ..mkfs };
    Fs::format_device(device.clone(), None, &mkfs).unwrap();
    device
}

fn quiet() -> MountOptions {
    MountOptions { background: false, commit_interval_ms: 0, cache_size: 16 << 20, ..MountOptions::default() }
}

fn open(device: Arc<dyn BlockDevice>) -> Fs {
    Fs::open_device(device, None, quiet()).unwrap()
}

fn file(fs: &Fs, name: &str) -> File {
    let options = OpenOptions { read: true, write: true, create: true, mode: 0o644, ..OpenOptions::default() };
    fs.session(Cred::root()).open(name, options).unwrap()
}

fn count(fs: &Fs, name: &str) -> u64 {
    fs.counters().into_iter().find(|(counter, _)| *counter == name).unwrap().1
}

/// The check, all data included, has nothing to say.
fn assert_sound(device: Arc<dyn BlockDevice>) {
    let report = check(device, None, &CheckOptions { scrub: true, ..CheckOptions::default() }).unwrap();
    assert!(report.is_sound(), "{}", report.to_json());
    let scrub = report.scrub.unwrap();
    assert_eq!(scrub.compared_blocks, scrub.data_blocks);
}

/// Offset of the one block that begins with these bytes.
fn find(device: &MemoryDevice, bytes: &[u8]) -> u64 {
    let mut block = vec![0; BLOCK];
    let begins = |&offset: &u64| {
        device.read(offset, &mut block).unwrap();
        block.starts_with(bytes)
    };
    let found: Vec<u64> = (0..device.size()).step_by(BLOCK).filter(begins).collect();
    assert_eq!(found.len(), 1);
    found[0]
}

fn flip(device: &MemoryDevice, offset: u64) {
    let mut block = vec![0; BLOCK];
    device.read(offset, &mut block).unwrap();
    block[BLOCK - 1] ^= 0x10;
    device.write(offset, &block).unwrap();
}

#[test]
fn a_flipped_bit_is_an_error_of_its_block_alone() {
    let device = formatted(32 << 20, MkfsOptions::default());
    {
        let fs = open(device.clone());
        for block in 0..200_u32 {
            let bytes = [format!("block {block:4}").as_bytes(), &[7; BLOCK - 10]].concat();
            file(&fs, "letter").write_at(&bytes, u64::from(block) * BLOCK as u64).unwrap();
        }
        file(&fs, "letter").write_at(b"the last bytes", 200 * BLOCK as u64).unwrap();
        fs.close().unwrap();
    }
    assert_sound(device.clone());
    let damaged = find(&device, b"block    3");
    flip(&device, damaged);
    let fs = open(device.clone());
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    fs.on_damaged_data(move |damage| sink.lock().unwrap().push(damage));
    let letter = file(&fs, "letter");
    let mut buf = vec![0; BLOCK];
    for block in (0..200).filter(|&block| block != 3) {
        letter.read_at(&mut buf, block * BLOCK as u64).unwrap();
        assert!(buf.starts_with(format!("block {block:4}").as_bytes()));
    }
    assert_eq!(letter.read_at(&mut buf, 200 * BLOCK as u64).unwrap(), 14);
    let ino = letter.stat().unwrap().ino;
    // In pieces, straight into a long buffer, and before a part of the block is written.
    let mut long = vec![0; 200 * BLOCK];
    let mut refused =
        vec![letter.read_at(&mut buf, 3 * BLOCK as u64), letter.read_at(&mut buf[..10], 3 * BLOCK as u64 + 77)];
    refused.push(letter.read_at(&mut long, 0));
    refused.push(letter.read_at(&mut long, 77));
    refused.push(letter.write_at(b"a part of it", 3 * BLOCK as u64 + 100));
    for answer in refused {
        let Err(error @ Error::Damaged(damage)) = &answer else { panic!("{answer:?}") };
        assert_eq!(error.errno(), Errno::IO);
        assert_eq!((damage.ino.0, damage.offset, damage.block.0), (ino, 3 * BLOCK as u64, damaged / BLOCK as u64));
        assert!(error.to_string().contains("at byte 12288"), "{error}");
    }
    assert!(count(&fs, "data_checksum_errors") >= 5);
    assert_eq!(told.lock().unwrap().len() as u64, count(&fs, "data_checksum_errors"));
    assert!(told.lock().unwrap().iter().all(|damage| damage.ino.0 == ino && damage.offset == 3 * BLOCK as u64));
    // Whoever writes all of it needs nothing of what was there.
    letter.write_at(&[9; BLOCK], 3 * BLOCK as u64).unwrap();
    fs.sync().unwrap();
    letter.read_at(&mut long, 0).unwrap();
    assert!(long[3 * BLOCK..4 * BLOCK] == [9; BLOCK]);
    drop(letter);
    fs.close().unwrap();
    assert_sound(device);
}

#[test]
fn a_damaged_target_of_a_link_is_an_error() {
    let device = formatted(32 << 20, MkfsOptions::default());
    let target = "target/".repeat(300);
    {
        let fs = open(device.clone());
        fs.session(Cred::root()).symlink(target.as_bytes(), "link").unwrap();
        fs.close().unwrap();
    }
    assert_sound(device.clone());
    assert_eq!(open(device.clone()).session(Cred::root()).readlink("link").unwrap(), target.as_bytes());
    flip(&device, find(&device, b"target/target/"));
    assert!(matches!(open(device).session(Cred::root()).readlink("link"), Err(Error::Damaged(_))));
}

/// Writes a file twice and another once, the second time on a device that does something else at its `nth` write.
fn overwrite_on_a_liar(kind: FaultKind, nth: u64) -> bool {
    const BLOCKS: usize = 12;
    let image = formatted(32 << 20, MkfsOptions { log_size: Some(1 << 20), ..MkfsOptions::default() });
    let device = Arc::new(FaultDevice::new(image.clone_image()));
    let content = |byte: u8| (0..BLOCKS).flat_map(|i| [byte + i as u8; BLOCK]).collect::<Vec<u8>>();
    {
        let fs = open(device.clone());
        file(&fs, "twice").write_at(&content(10), 0).unwrap();
        file(&fs, "other").write_at(&content(100), 0).unwrap();
        fs.sync().unwrap();
        device.inject(FaultOp::Write, nth, FaultSpan::Once, kind);
        file(&fs, "twice").write_at(&content(50), 0).unwrap();
        // What the device has lost it may show as a failure of its own, at closing too.
        let _ = fs.sync();
        let _ = fs.close();
    }
    let struck = device.struck() > 0;
    let Ok(fs) = Fs::open_device(device, None, quiet()) else { return struck };
    for (name, allowed) in [("twice", [10, 50]), ("other", [100, 100])] {
        let options = OpenOptions { read: true, ..OpenOptions::default() };
        let Ok(file) = fs.session(Cred::root()).open(name, options) else { continue };
        for block in 0..BLOCKS {
            let mut buf = vec![0xee; BLOCK];
            if let Ok(count) = file.read_at(&mut buf, (block * BLOCK) as u64) {
                let whole = allowed.iter().any(|&byte| buf == [byte + block as u8; BLOCK]);
                assert!(whole && count == BLOCK, "{kind:?} at write {nth}: {name} block {block}: {:?}", &buf[..8]);
            }
        }
    }
    struck
}

#[test]
fn what_a_lying_device_lost_or_misplaced_is_never_handed_out() {
    for kind in
        [FaultKind::Lost, FaultKind::Corrupted { sector: 0 }, FaultKind::Misdirected { bytes: 5 * BLOCK as u64 }]
    {
        let struck = (1..200).take_while(|&nth| overwrite_on_a_liar(kind, nth)).count();
        assert!(struck >= 5, "{kind:?}: {struck} writes");
    }
}

/// A flush of many scattered blocks frees as many: in one transaction it did not fit the half of a small log.
#[test]
fn many_blocks_overwritten_at_once_fit_the_least_log() {
    let device = formatted(128 << 20, MkfsOptions { log_size: Some(140 << 10), ..MkfsOptions::default() });
    let fs = Fs::open_device(device.clone(), None, MountOptions { cache_size: 128 << 20, ..quiet() }).unwrap();
    let large = file(&fs, "large");
    large.write_at(&vec![1; 10_000 * BLOCK], 0).unwrap();
    fs.sync().unwrap();
    for block in (0..10_000).step_by(2) {
        large.write_at(&[2; BLOCK], block * BLOCK as u64).unwrap();
    }
    fs.sync().unwrap();
    let mut bytes = vec![0; 10_000 * BLOCK];
    large.read_at(&mut bytes, 0).unwrap();
    for (block, bytes) in bytes.chunks(BLOCK).enumerate() {
        assert!(bytes == [2 - (block % 2) as u8; BLOCK], "block {block}");
    }
    drop(large);
    fs.close().unwrap();
    assert_sound(device);
}

/// Overwriting takes new blocks before it gives back the old ones: on a full volume it is refused at the write, or done.
#[test]
fn overwriting_on_a_full_volume_is_refused_at_the_write_if_at_all() {
    let device = formatted(8 << 20, MkfsOptions { log_size: Some(256 << 10), ..MkfsOptions::default() });
    let fs = open(device.clone());
    let filler = file(&fs, "filler");
    let mut size = 0;
    while let Ok(count) = filler.write_at(&[1; BLOCK], size) {
        size += count as u64;
    }
    fs.sync().unwrap();
    let mut done = 0;
    for round in 2..5 {
        for block in 0..size / BLOCK as u64 {
            match filler.write_at(&[round; BLOCK], block * BLOCK as u64) {
                Ok(_) => done += 1,
                Err(error) => assert_eq!(error.errno(), Errno::NOSPC),
            }
        }
        fs.sync().unwrap();
    }
    // A file can be made shorter, and goes.
    filler.truncate(size / 2 + 100).unwrap();
    fs.sync().unwrap();
    assert!(filler.write_at(&[9; BLOCK], 0).is_ok(), "there is room again; {done} were overwritten before");
    drop(filler);
    fs.close().unwrap();
    assert_sound(device.clone());
    let fs = open(device);
    fs.session(Cred::root()).unlink("filler").unwrap();
    fs.close().unwrap();
}

#[test]
fn what_is_written_again_before_the_commit_stays_where_it_is() {
    let device = formatted(32 << 20, MkfsOptions::default());
    let options = MountOptions { allocation: Allocation::AtWrite, ..quiet() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    let log = file(&fs, "log");
    let write = |lines: std::ops::Range<u64>| lines.for_each(|line| _ = log.write_at(&[b'x'; 64], line * 64).unwrap());
    let allocated = || count(&fs, "blocks_allocated");
    let before = allocated();
    write(0..32);
    assert_eq!(allocated(), before + 1);
    fs.sync().unwrap();
    write(32..64);
    assert_eq!(allocated(), before + 2, "a committed block is not written over");
    drop(log);
    fs.close().unwrap();
    assert_sound(device);
}

#[test]
fn groups_are_cut_so_that_their_tables_stay_small() {
    let mkfs = |block_size, ag_size| MkfsOptions { block_size, ag_size, ..MkfsOptions::default() };
    let device = formatted(1 << 30, mkfs(512, None));
    assert_eq!(open(device.clone()).info().ag_size, 32 << 20);
    assert_sound(device);
    let device = Arc::new(MemoryDevice::new(1 << 30));
    let options = MkfsOptions { data_checksums: true, ..mkfs(512, Some(64 << 20)) };
    let refused = Fs::format_device(device, None, &options).unwrap_err().to_string();
    assert!(refused.starts_with("option data-checksums: groups of 67108864 bytes are too large"), "{refused}");
}
