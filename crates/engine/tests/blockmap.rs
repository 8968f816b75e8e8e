//! Volumes whose files are mapped by block pointers (`map=blockmap`): what differs from extents is where pointers lie, how many blocks they take,
//! and that files end where pointers do.

mod in_memory;

use in_memory::{formatted, mount, open};
use myriad_device::MemoryDevice;
use myriad_engine::{AllocateMode, CreateWith, Cred, Errno, File, Fs, MkfsOptions, MountOptions, Order, Result};
use myriad_format::choices::{Choices, Directory, Inodes, Map, Space};
use myriad_sim::rng::{self, Rng};
use myriad_trials::verdict::check_silent;
use std::sync::Arc;

fn mkfs(block_size: u32, data_checksums: bool, space: Space) -> MkfsOptions {
    let choices = Choices { space, inodes: Inodes::Static, map: Map::Blocks, ..Choices::default() };
    MkfsOptions { block_size, data_checksums, choices, ..MkfsOptions::default() }
}

fn free_blocks(fs: &Fs) -> u64 {
    fs.sync().unwrap();
    fs.statfs().unwrap().free_blocks
}

/// Closes the volume, which must be sound then.
fn close(device: &Arc<MemoryDevice>, fs: Fs) {
    fs.close().unwrap();
    check_silent(&device.clone().into()).unwrap();
}

/// A place near the beginning, where pointers of another kind begin, or anywhere.
fn somewhere(rng: &mut Rng, mkfs: &MkfsOptions, span: u64) -> u64 {
    let block = u64::from(mkfs.block_size);
    let n = block / u64::from(mkfs.fragments) / 512 * 62;
    let block_of_border = *rng.pick(&[0, 12, 12 + n, 12 + n + n * n]);
    let at = if rng.percent(70) { block_of_border * block + rng.below(20 * block) } else { rng.below(span) };
    let back = rng.below(4 * block);
    at.saturating_sub(back) % span
}

/// What is written, cut, punched and reserved anywhere in a file is there, and all blocks come back when it goes.
fn exercise(mkfs: &MkfsOptions, seed: u64) {
    let mut rng = Rng::new(seed);
    let block = u64::from(mkfs.block_size);
    let span = 6 << 20;
    let (device, mut fs) = formatted(64 << 20, mkfs);
    // The root's first entry block stays.
    drop(open(&fs, "other"));
    let before = free_blocks(&fs);
    let mut file = open(&fs, "file");
    let mut expected: Vec<u8> = Vec::new();
    let grow = |expected: &mut Vec<u8>, size: u64| expected.resize(expected.len().max(size as usize), 0);
    for step in 0..600 {
        let start = somewhere(&mut rng, mkfs, span);
        let most = if rng.percent(20) { 200 } else { 6 };
        let length = 1 + rng.below(most * block);
        let end = (start + length).min(span);
        match rng.below(12) {
            0..4 => {
                let bytes: Vec<u8> = (start..end).map(|at| (at / 7 + step) as u8 | 1).collect();
                assert_eq!(file.write_at(&bytes, start).unwrap(), bytes.len());
                grow(&mut expected, end);
                expected[start as usize..end as usize].copy_from_slice(&bytes);
            }
            4 => {
                file.truncate(start).unwrap();
                expected.resize(start as usize, 0);
            }
            5 => {
                file.allocate(AllocateMode::Extend, start, end - start).unwrap();
                grow(&mut expected, end);
            }
            6 => file.allocate(AllocateMode::KeepSize, start, end - start).unwrap(),
            7..9 => {
                let zero = rng.percent(30);
                let mode = if zero { AllocateMode::Zero { keep_size: true } } else { AllocateMode::Punch };
                file.allocate(mode, start, end - start).unwrap();
                let end = (end as usize).min(expected.len());
                expected[(start as usize).min(end)..end].fill(0);
            }
            9 => file.sync().unwrap(),
            10 => fs.drop_caches().unwrap(),
            _ if rng.percent(20) => {
                drop(file);
                close(&device, fs);
                fs = mount(&device);
                file = open(&fs, "file");
            }
            _ => {}
        }
        if step % 20 == 0 {
            let mut found = vec![0xee; span as usize];
            let count = file.read_at(&mut found, 0).unwrap();
            assert_eq!(count, expected.len(), "seed {seed}, step {step}");
            let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
            assert_eq!(wrong, None, "seed {seed}, step {step}");
        }
    }
    drop(file);
    close(&device, fs);
    let fs = mount(&device);
    fs.session(Cred::root()).unlink("file").unwrap();
    close(&device, fs);
    let fs = mount(&device);
    assert_eq!(free_blocks(&fs), before, "seed {seed}: blocks of a file that is gone");
}

#[test]
fn a_file_is_what_was_written_wherever_its_pointers_lie() {
    let count = rng::number("MYRIAD_RUNS").unwrap_or(3);
    for seed in rng::seed_or(1)..rng::seed_or(1) + count {
        for checksums in [false, true] {
            exercise(&mkfs(512, checksums, Space::Trees), seed);
            exercise(&mkfs(1024, checksums, Space::Bitmap), seed);
            exercise(&mkfs(4096, checksums, Space::Bitmap), seed);
        }
    }
}

#[test]
fn a_file_of_fragments_is_what_was_written() {
    let count = rng::number("MYRIAD_RUNS").unwrap_or(3);
    for seed in rng::seed_or(1)..rng::seed_or(1) + count {
        for (block_size, fragments) in [(4096, 8), (4096, 4), (1024, 2), (16384, 8)] {
            exercise(&MkfsOptions { fragments, ..mkfs(block_size, false, Space::Bitmap) }, seed);
        }
    }
}

#[test]
fn files_end_where_pointers_do() {
    let (_device, fs) = formatted(16 << 20, &mkfs(512, false, Space::Bitmap));
    let file = open(&fs, "file");
    let end = (12 + 62 + 62 * 62 + 62 * 62 * 62) * 512;
    let refused = |result: Result<()>| assert_eq!(result.unwrap_err().errno(), Errno::FBIG);
    refused(file.truncate(end + 1));
    refused(file.write_at(b"x", end).map(drop));
    refused(file.allocate(AllocateMode::Extend, end - 5, 6));
    // What reaches over it is written up to it.
    assert_eq!(file.write_at(b"0123456789", end - 4).unwrap(), 4);
    assert_eq!(file.stat().unwrap().size, end);
    file.sync().unwrap();
    // The block, and three of pointers.
    assert_eq!(file.stat().unwrap().blocks, 4);
    let mut found = [0; 8];
    assert_eq!(file.read_at(&mut found, end - 8).unwrap(), 8);
    assert_eq!(&found, b"\0\0\0\x000123");
    assert_eq!(file.seek_data(0).unwrap(), end - 512);
    file.truncate(0).unwrap();
    file.sync().unwrap();
    assert_eq!(file.stat().unwrap().blocks, 0);
}

/// Each page away from all others takes up to three blocks of pointers. They are promised when it is written: a flush is never
/// refused, on a volume filled to the last block.
#[test]
fn scattered_writes_have_room_for_their_pointers() {
    for (checksums, seed) in [(false, 1), (true, 2), (false, 3)] {
        let mut rng = Rng::new(seed);
        let (device, fs) = formatted(8 << 20, &mkfs(512, checksums, Space::Bitmap));
        let end = (12 + 62 + 62 * 62 + 62 * 62 * 62) * 512;
        let mut refusals = 0;
        let files: Vec<File> = (0..6).map(|round| open(&fs, &format!("file {round}"))).collect();
        for (round, file) in files.into_iter().enumerate() {
            let mut written = Vec::new();
            for step in 0..6000 {
                let at = rng.below(end / 512) * 512;
                match file.write_at(&[7; 512], at) {
                    Ok(_) => written.push(at),
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::NOSPC, "{error}");
                        refusals += 1;
                    }
                }
                if rng.below(2000) == 0 && !written.is_empty() {
                    // That flushes what is dirty: seldom.
                    let around = rng.pick(&written) / (62 * 512) * (62 * 512);
                    let length = rng.below(62) * 512 + 1;
                    file.allocate(AllocateMode::Punch, around, length).unwrap();
                }
                if step % 5000 == 4999 || refusals % 40 == 39 {
                    refusals += u32::from(refusals % 40 == 39);
                    file.sync().unwrap();
                }
            }
            drop(file);
            if round % 2 == 1 {
                fs.session(Cred::root()).unlink(&format!("file {round}")).unwrap();
            }
        }
        assert!(refusals > 100, "{refusals}");
        close(&device, fs);
        mount(&device).close().unwrap();
    }
}

/// A new file with its content is promised its pointers as well: the largest that is accepted has them.
#[test]
fn a_new_file_with_content_has_room_for_its_pointers() {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    Fs::format_device(device.clone(), None, &mkfs(512, false, Space::Trees)).unwrap();
    let options = MountOptions { background: false, cache_size: 64 << 20, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    let session = fs.session(Cred::root());
    let root = session.resolve("/").unwrap();
    let content: Vec<u8> = (0..30 << 20).map(|at: u32| (at % 251) as u8).collect();
    let mut length = content.len();
    loop {
        let new = CreateWith { mode: 0o644, content: &content[..length], ..CreateWith::default() };
        match session.create_with(root, b"large", &new) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.errno(), Errno::NOSPC, "{length} bytes: {error}"),
        }
        length -= 64 << 10;
    }
    assert!(length > 20 << 20, "{length}");
    drop(session);
    close(&device, fs);
    let fs = mount(&device);
    let mut found = vec![0; length + 1];
    assert_eq!(open(&fs, "large").read_at(&mut found, 0).unwrap(), length);
    assert!(found[..length] == content[..length]);
    fs.close().unwrap();
}

/// A file with more blocks of pointers than the cache has frames is read, changed and removed a part at a time. Every first read of it looked for what
/// power loss had left behind its end, in one stay inside the gate, and there were no frames for that.
#[test]
fn a_file_may_have_more_blocks_of_pointers_than_there_are_frames() {
    const SIZE: u64 = 48 << 20;
    let device = Arc::new(MemoryDevice::new(160 << 20));
    let mut mkfs = mkfs(512, false, Space::Bitmap);
    mkfs.choices.directory = Directory::Linear;
    mkfs.order = Order::Soft;
    Fs::format_device(device.clone(), None, &mkfs).unwrap();
    // The smallest cache there is.
    let again = || {
        let options =
            MountOptions { background: false, commit_interval_ms: 0, cache_size: 0, ..MountOptions::default() };
        Fs::open_device(device.clone(), None, options).unwrap()
    };
    let fs = again();
    // With the directory's own block.
    fs.session(Cred::root()).create("first", 0o644).unwrap();
    let free = free_blocks(&fs);
    for (name, mode) in [("behind", AllocateMode::KeepSize), ("inside", AllocateMode::Extend)] {
        fs.session(Cred::root()).create(name, 0o644).unwrap();
        open(&fs, name).allocate(mode, 0, SIZE).unwrap();
    }
    fs.close().unwrap();
    let fs = again();
    let mut byte = [1; 1];
    assert_eq!(open(&fs, "behind").read_at(&mut byte, 0).unwrap(), 0);
    fs.drop_caches().unwrap();
    assert_eq!(open(&fs, "inside").seek_data(0).unwrap_err().errno(), Errno::NXIO);
    fs.drop_caches().unwrap();
    open(&fs, "inside").allocate(AllocateMode::Extend, 0, SIZE).unwrap();
    fs.drop_caches().unwrap();
    let inside = fs.session(Cred::root()).resolve("inside").unwrap();
    let runs = fs.session(Cred::root()).block_runs_at(inside).unwrap();
    assert_eq!(runs.iter().map(|run| run.length).sum::<u64>(), SIZE / 512);
    fs.drop_caches().unwrap();
    for name in ["behind", "inside"] {
        let file = open(&fs, name);
        assert_eq!(file.write_at(&[7], 0).unwrap(), 1);
        file.sync().unwrap();
        fs.drop_caches().unwrap();
        assert_eq!(file.read_at(&mut byte, 0).unwrap(), 1);
        assert_eq!(byte, [7]);
    }
    fs.drop_caches().unwrap();
    open(&fs, "inside").allocate(AllocateMode::Punch, 1, SIZE).unwrap();
    open(&fs, "behind").truncate(3).unwrap();
    fs.drop_caches().unwrap();
    for name in ["behind", "inside"] {
        fs.session(Cred::root()).unlink(name).unwrap();
    }
    assert_eq!(free_blocks(&fs), free);
    close(&device, fs);
}
