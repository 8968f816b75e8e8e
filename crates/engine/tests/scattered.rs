//! Space that is freed in many pieces, and space that is found in many pieces.

use myriad_check::{Options, check};
use myriad_device::MemoryDevice;
use myriad_engine::options::{self, Options as Choices};
use myriad_engine::schedule::{self, Turns};
use myriad_engine::{AllocateMode, Cred, Fs, MkfsOptions, MountOptions, OpenOptions};
use std::sync::Arc;

const WRITE: OpenOptions = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };

fn volume(size: u64, mkfs: MkfsOptions) -> (Arc<MemoryDevice>, Fs) {
    let device = Arc::new(MemoryDevice::new(size));
    Fs::format_device(device.clone(), None, &MkfsOptions { seed: Some(7), ..mkfs }).unwrap();
    let fs = open(&device);
    (device, fs)
}

fn open(device: &Arc<MemoryDevice>) -> Fs {
    let options = MountOptions { background: false, commit_interval_ms: 0, ..MountOptions::default() };
    Fs::open_device(device.clone(), None, options).unwrap()
}

fn check_silent(device: &Arc<MemoryDevice>) {
    let report = check(device.clone(), None, &Options { threads: 1, ..Options::default() }).unwrap();
    assert!(report.is_sound(), "{:#?}", report.findings);
}

/// Files that are flushed at the same time each changed as many leaves of their maps as one transaction may, and what they came to was known only once they
/// had ended: together it was more than a checkpoint takes, and the volume was shut down.
#[test]
fn what_is_flushed_together_fits_the_log() {
    const BLOCK: u64 = 512;
    const LEAVES: u64 = 140;
    /// Extents of a leaf that was filled from the left.
    const IN_LEAF: u64 = 26;
    for seed in 2..4 {
        let mkfs = MkfsOptions { block_size: 512, log_size: Some(34 * 4096), ..MkfsOptions::default() };
        let (device, fs) = volume(32 << 20, mkfs);
        let session = fs.session(Cred::root());
        let place = |piece: u64| 4 * piece * BLOCK;
        let hole = |leaf: u64| place(leaf * IN_LEAF) + 2 * BLOCK;
        let files: Vec<_> = (0..4).map(|i| session.open(&format!("file {i}"), WRITE).unwrap()).collect();
        for piece in 0..LEAVES * IN_LEAF {
            files.iter().for_each(|file| file.allocate(AllocateMode::Extend, place(piece), BLOCK).unwrap());
        }
        fs.sync().unwrap();
        for file in &files {
            (0..LEAVES).for_each(|leaf| assert_eq!(file.write_at(&[7; BLOCK as usize], hole(leaf)).unwrap(), 512));
        }
        let sync = |file| -> Box<dyn FnOnce() + Send> {
            let file: &myriad_engine::File = file;
            Box::new(|| file.sync().unwrap_or_else(|error| panic!("seed {seed}: {error}")))
        };
        schedule::run(Turns { seed, one_in: 2 }, files.iter().map(sync).collect());
        let mut bytes = [0; BLOCK as usize];
        for file in &files {
            for leaf in 0..LEAVES {
                assert_eq!(file.read_at(&mut bytes, hole(leaf)).unwrap(), bytes.len());
                assert!(bytes == [7; BLOCK as usize], "seed {seed}, leaf {leaf}");
            }
        }
        drop((files, session));
        fs.close().unwrap();
        check_silent(&device);
    }
}

/// What an epoch had freed went to the free-space trees in the next one, all of it: scattered over many leaves it was more
/// than a checkpoint may take, the volume was shut down, and again at each opening.
#[test]
fn many_pieces_freed_at_once_reach_the_trees_in_several_checkpoints() {
    const BLOCK: u64 = 512;
    const GONE: u64 = 600;
    let mkfs = MkfsOptions { block_size: 512, log_size: Some(34 * 4096), ..MkfsOptions::default() };
    let (device, fs) = volume(32 << 20, mkfs);
    let session = fs.session(Cred::root());
    // Every other block is to become a hole, and of 32 holes one later than the others: a leaf or two for each.
    let [kept, holes, gone] = ["kept", "holes", "gone"].map(|name| session.open(name, WRITE).unwrap());
    for piece in 0..32 * GONE {
        let place = 2 * piece * BLOCK;
        kept.allocate(AllocateMode::Extend, place, BLOCK).unwrap();
        let other = if piece % 32 == 31 { &gone } else { &holes };
        other.allocate(AllocateMode::Extend, place, BLOCK).unwrap();
    }
    drop((kept, holes, gone));
    session.unlink("holes").unwrap();
    fs.sync().unwrap();
    fs.drop_caches().unwrap();
    let free = fs.statfs().unwrap().free_blocks;
    session.unlink("gone").unwrap();
    fs.sync().unwrap();
    assert!(fs.statfs().unwrap().free_blocks >= free + GONE);
    // Not all of them are there yet. The next opening goes on from where this one was.
    let cut = Arc::new(device.clone_image());
    drop(session);
    fs.close().unwrap();
    check_silent(&device);
    check_silent(&cut);
    let fs = open(&cut);
    assert!(fs.statfs().unwrap().free_blocks >= free + GONE);
    fs.session(Cred::root()).create("new", 0o600).unwrap();
    fs.close().unwrap();
    check_silent(&cut);
}

/// All of what one read asks for was looked up in the file's map in one stay inside the gate, where nothing is evicted: of a file with
/// more leaves than the cache has frames, a read of the whole got ENOMEM, each time.
#[test]
fn a_file_is_read_at_once_though_its_map_is_larger_than_the_cache() {
    const BLOCK: usize = 512;
    const PIECES: usize = 60_000;
    for data_checksums in [false, true] {
        let mkfs = MkfsOptions { block_size: 512, data_checksums, ..MkfsOptions::default() };
        let (device, fs) = volume(128 << 20, mkfs);
        let session = fs.session(Cred::root());
        let file = session.open("file", WRITE).unwrap();
        for piece in 0..PIECES {
            file.write_at(&[piece as u8; BLOCK], (2 * piece * BLOCK) as u64).unwrap();
        }
        drop((file, session));
        fs.close().unwrap();
        let options =
            MountOptions { background: false, commit_interval_ms: 0, cache_size: 1 << 20, ..MountOptions::default() };
        let fs = Fs::open_device(device.clone(), None, options).unwrap();
        let bytes = fs.session(Cred::root()).read("file").unwrap();
        assert_eq!(bytes.len(), (2 * PIECES - 1) * BLOCK);
        for (at, block) in bytes.chunks(BLOCK).enumerate() {
            let expected = if at % 2 == 0 { (at / 2) as u8 } else { 0 };
            assert!(block.iter().all(|&byte| byte == expected), "block {at}");
        }
        fs.close().unwrap();
    }
}

/// What was allocated was counted beside the promise for all of it: with more than one piece, half of what is free was all
/// that could be had.
#[test]
fn most_of_the_free_space_can_be_allocated_at_once() {
    let (device, fs) = volume(64 << 20, MkfsOptions { ag_size: Some(8 << 20), ..MkfsOptions::default() });
    let session = fs.session(Cred::root());
    let free = fs.statfs().unwrap().free_blocks;
    let most = free / 10 * 9;
    let file = session.open("large", WRITE).unwrap();
    file.allocate(AllocateMode::Extend, 0, most * 4096).unwrap();
    assert!(fs.statfs().unwrap().free_blocks <= free - most);
    file.truncate(0).unwrap();
    fs.sync().unwrap();
    // Of what was promised nothing is kept.
    file.allocate(AllocateMode::Zero { keep_size: false }, 0, most * 4096).unwrap();
    drop((file, session));
    fs.close().unwrap();
    check_silent(&device);
}

/// Files in many groups: what they gave back at once changed the headers and free space of all of them, which a small cache could not
/// hold, and the volume was shut down.
#[test]
fn blocks_of_many_groups_come_back_though_the_cache_is_small() {
    const FILES: usize = 1500;
    for chosen in
        ["profile=ffs,order=none", "profile=ffs,order=log", "profile=ffs,order=softdep", "order=log", "order=none"]
    {
        let mut all =
            Choices { mkfs: MkfsOptions { ag_size: Some(16 << 20), ..MkfsOptions::default() }, ..Choices::default() };
        for part in chosen.split(',').chain(["placement=rotor"]) {
            let (row, value) = options::read(part).unwrap().unwrap();
            row.set(&mut all, value);
        }
        let device = Arc::new(MemoryDevice::new(FILES as u64 * (16 << 20)));
        Fs::format_device(device.clone(), None, &MkfsOptions { seed: Some(7), ..all.mkfs }).unwrap();
        let mount = MountOptions { background: false, commit_interval_ms: 0, cache_size: 4 << 20, ..all.mount };
        let fs = Fs::open_device(device.clone(), None, mount).unwrap();
        let session = fs.session(Cred::root());
        // A directory a group.
        for i in 0..FILES {
            session.mkdir(&format!("d{i}"), 0o755).unwrap();
            session.open(&format!("d{i}/file"), WRITE).unwrap().write_at(&[1; 5000], 0).unwrap();
        }
        fs.sync().unwrap();
        let free = fs.statfs().unwrap().free_blocks;
        for i in 0..FILES {
            session.unlink(&format!("d{i}/file")).unwrap_or_else(|error| panic!("{chosen}, file {i}: {error}"));
            session.rmdir(&format!("d{i}")).unwrap();
        }
        fs.sync().unwrap_or_else(|error| panic!("{chosen}: {error}"));
        assert!(fs.statfs().unwrap().free_blocks >= free + 2 * FILES as u64, "{chosen}");
        drop(session);
        fs.close().unwrap_or_else(|error| panic!("{chosen}: {error}"));
        check_silent(&device);
    }
}
