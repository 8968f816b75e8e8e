//! A volume filled to its last block by several threads at once, emptied, and filled again: space runs out at the
//! operation that asks for it, and never in the middle of one, which would shut the volume down.

use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{
    AllocateMode, CreateWith, Cred, Errno, Error, Fs, MkfsOptions, MountOptions, OpenOptions, Order, RenameMode,
    Result, Session, SetAttr,
};
use myriad_sim::rng::{self, Rng};
use myriad_trials::setup::{Devices, Setup};
use myriad_trials::verdict::check_silent;
use std::sync::Arc;

const WRITE: OpenOptions = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };

/// One step of a thread: whatever may take or give space.
fn step(session: &Session, rng: &mut Rng, top: &str, block: u64) -> Result<()> {
    let name = |rng: &mut Rng| format!("{top}/d{}/file-{}", rng.below(4), rng.below(40));
    let path = name(rng);
    match rng.below(20) {
        0..5 => {
            let length = rng.below(12 * block) as usize;
            session.open(&path, WRITE)?.write_at(&vec![7; length], rng.below(4) * block).map(|_| ())
        }
        5 => {
            let content = vec![5; rng.below(20 * block) as usize];
            let (dir, name) = path.rsplit_once('/').expect("two directories and a name");
            let new = CreateWith { mode: 0o644, content: &content, ..CreateWith::default() };
            session.create_with(session.resolve(dir)?, name.as_bytes(), &new).map(|_| ())
        }
        6 => session.mkdir(&format!("{path}.dir"), 0o755).map(|_| ()),
        7 => session.symlink(&vec![b't'; 1 + rng.below(3000) as usize], &path).map(|_| ()),
        8 => session.set_xattr(&path, b"user.large", &vec![1; rng.below(6000) as usize], Default::default()),
        9 => session.remove_xattr(&path, b"user.large"),
        10 => {
            let offset = rng.below(16) * block;
            session.open(&path, WRITE)?.allocate(AllocateMode::Extend, offset, (1 + rng.below(8)) * block)
        }
        11..13 => {
            let offset = rng.below(16) * block;
            session.open(&path, WRITE)?.allocate(AllocateMode::Punch, offset, (1 + rng.below(2)) * block)
        }
        13 => session.open(&path, WRITE)?.truncate(rng.below(8) * block + 1),
        14 => session.rename(&path, &name(rng), RenameMode::Replace),
        15 => session.link(&path, &name(rng)),
        16 => session.unlink(&path),
        17 => session.set_attr(&path, SetAttr { mode: Some(0o600), ..SetAttr::default() }).map(|_| ()),
        // Every other block: an extent each.
        18 => {
            let file = session.open(&path, WRITE)?;
            (0..rng.below(30)).try_for_each(|i| file.write_at(&[3; 100], i * 2 * block).map(|_| ()))
        }
        _ => session.open(&path, WRITE)?.sync(),
    }
}

fn may_be_refused(error: &Error) -> bool {
    let expected = [
        Errno::NOSPC,
        Errno::NOENT,
        Errno::EXIST,
        Errno::ISDIR,
        Errno::LOOP,
        Errno::NODATA,
        Errno::NOTEMPTY,
        Errno::NAMETOOLONG,
    ];
    matches!(error, Error::Refused(errno) if expected.contains(errno))
}

/// Steps until space has run out often enough; how often it did.
fn fill(fs: &Fs, top: &str, seed: u64, steps: u64, block: u64) -> std::result::Result<u64, String> {
    let session = fs.session(Cred::root());
    let mut rng = Rng::new(seed);
    let mut full = 0;
    for number in 0..steps {
        match step(&session, &mut rng, top, block) {
            Ok(()) => {}
            Err(Error::Refused(Errno::NOSPC)) => full += 1,
            Err(error) if may_be_refused(&error) => {}
            Err(error) => return Err(format!("{top}, step {number}: {error}; {:?}", fs.shut_down_reason())),
        }
    }
    Ok(full)
}

fn run(test: &str, block_size: u32, size: u64, threads: u64, background: bool) {
    let seed = rng::seed_or(u64::from(block_size));
    let replay = rng::replay_line("myriad-engine", &format!("full::{test}"), seed, "");
    let (rounds, steps) = if rng::is_long() { (20, 3000) } else { (4, 800) };
    let mut setup = Setup::new(block_size, size);
    setup.options.background = background;
    setup.options.commit_interval_ms = if background { 20 } else { 0 };
    setup.options.cache_size = 16 << 20;
    let device = Devices::from(Arc::new(setup.format()));
    let fs = setup.open(device.clone()).unwrap();
    let session = fs.session(Cred::root());
    let settled = || {
        // Inodes, their chunks, and the nodes that listed these go one after the other.
        for _ in 0..4 {
            fs.sync().unwrap();
        }
        let now = fs.statfs().unwrap();
        (now.free_blocks, now.inodes_used, now.directories)
    };
    let fresh = settled();
    let mut full = 0;
    for round in 0..rounds {
        for thread in 0..threads {
            session.mkdir(&format!("t{thread}"), 0o755).unwrap();
            for dir in 0..4 {
                session.mkdir(&format!("t{thread}/d{dir}"), 0o755).unwrap();
            }
        }
        // Most of it is taken at once, so that what the threads do happens at the end of the space.
        let ballast = session.open("ballast", WRITE).unwrap();
        let mut left = threads * (20 + Rng::new(seed + round).below(80));
        loop {
            let most = fs.statfs().unwrap().free_blocks.saturating_sub(left) * u64::from(block_size);
            match ballast.allocate(AllocateMode::Extend, 0, most.max(1)) {
                Ok(()) => break,
                // The group's own reserves are not to be had.
                Err(Error::Refused(Errno::NOSPC)) => left += 16,
                Err(error) => panic!("{error}\n{replay}"),
            }
        }
        drop(ballast);
        std::thread::scope(|scope| {
            let fs = &fs;
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    let seed = seed ^ (round * threads + thread) << 20;
                    scope.spawn(move || fill(fs, &format!("t{thread}"), seed, steps, u64::from(block_size)))
                })
                .collect();
            for worker in workers {
                full += worker.join().unwrap().unwrap_or_else(|message| panic!("{message}\n{replay}"));
            }
        });
        session.unlink("ballast").unwrap();
        for thread in 0..threads {
            let removed = session.remove_tree(&format!("t{thread}"), &mut |_| true);
            removed.unwrap_or_else(|error| panic!("removing: {error}; {:?}\n{replay}", fs.shut_down_reason()));
        }
        assert_eq!(settled(), fresh, "the volume is empty again\n{replay}");
    }
    assert!(full > 0, "space never ran out: the test tests nothing\n{replay}");
    drop(session);
    fs.close().unwrap();
    check_silent(&device).unwrap_or_else(|message| panic!("{message}\n{replay}"));
}

#[test]
fn threads_fill_small_blocks() {
    run("threads_fill_small_blocks", 512, 2 << 20, 6, true);
}

#[test]
fn threads_fill_small_blocks_without_background() {
    run("threads_fill_small_blocks_without_background", 512, 1 << 20, 4, false);
}

#[test]
fn threads_fill_a_volume() {
    run("threads_fill_a_volume", 4096, 16 << 20, 8, true);
}

#[test]
fn threads_fill_a_volume_without_background() {
    run("threads_fill_a_volume_without_background", 4096, 16 << 20, 4, false);
}

#[test]
fn threads_fill_large_blocks() {
    run("threads_fill_large_blocks", 65536, 64 << 20, 4, true);
}

/// A file of many extents, more of them by writes to places apart, and no space: whatever a write was promised, its flush
/// finds. `unwritten`: the space was reserved for the file before.
fn scatter(test: &str, checksums: bool, unwritten: bool) {
    const BLOCK: u64 = 512;
    let seed = rng::seed_or(1);
    let replay = rng::replay_line("myriad-engine", &format!("full::{test}"), seed, "");
    let mut rng = Rng::new(seed);
    let mut setup = Setup::new(BLOCK as u32, 40 << 20);
    setup.data_checksums = checksums;
    setup.options.cache_size = 32 << 20;
    let device = Devices::from(Arc::new(setup.format()));
    let fs = setup.open(device.clone()).unwrap();
    let session = fs.session(Cred::root());
    let file = session.open("file", WRITE).unwrap();
    let blocks = 48_000_u64;
    let mut places: Vec<u64> = if unwritten {
        file.allocate(AllocateMode::Extend, 0, blocks * BLOCK).unwrap();
        (0..blocks / 2).map(|at| at * 2 + 1).collect()
    } else {
        // Leaves that are filled from the left are nearly full: three more extents, and one is split.
        for at in 0..blocks / 2 {
            file.write_at(&[1; 100], at * 2 * BLOCK).unwrap();
        }
        (0..blocks / 52).flat_map(|leaf| [1, 3, 5].map(|at| leaf * 52 + at)).collect()
    };
    fs.sync().unwrap();
    // To the last block, then a few less.
    let ballast = session.open("ballast", WRITE).unwrap();
    let mut size = 0;
    while let Ok(1..) = ballast.write_at(&[2; 64 << 10], size) {
        size = ballast.stat().unwrap().size;
    }
    fs.sync().unwrap();
    if !unwritten {
        ballast.truncate(size - 2700 * BLOCK).unwrap();
        fs.sync().unwrap();
    }
    if unwritten {
        (1..places.len()).rev().for_each(|at| places.swap(at, rng.index(at + 1)));
    }
    let mut written = Vec::new();
    for place in places {
        match file.write_at(&[3; 512], place * BLOCK) {
            Ok(_) => written.push(place),
            Err(Error::Refused(Errno::NOSPC)) => break,
            Err(error) => panic!("{error}; {:?}\n{replay}", fs.shut_down_reason()),
        }
        if unwritten && written.len() % 200 == 0 {
            fs.sync().unwrap_or_else(|error| panic!("{error}; {:?}\n{replay}", fs.shut_down_reason()));
        }
    }
    assert!(written.len() > 300, "{} writes were accepted\n{replay}", written.len());
    fs.sync().unwrap_or_else(|error| panic!("{error}; {:?}\n{replay}", fs.shut_down_reason()));
    for place in written {
        let mut bytes = [0; 512];
        file.read_at(&mut bytes, place * BLOCK).unwrap();
        assert!(bytes == [3; 512], "block {place}\n{replay}");
    }
    // And there is still room to make room.
    drop((file, ballast));
    session.unlink("file").unwrap_or_else(|error| panic!("{error}; {:?}\n{replay}", fs.shut_down_reason()));
    session.unlink("ballast").unwrap();
    drop(session);
    fs.close().unwrap();
    check_silent(&device).unwrap_or_else(|message| panic!("{message}\n{replay}"));
}

#[test]
fn scattered_writes_have_room_for_their_map() {
    scatter("scattered_writes_have_room_for_their_map", false, false);
}

#[test]
fn scattered_writes_with_checksums_have_room_for_their_map() {
    scatter("scattered_writes_with_checksums_have_room_for_their_map", true, false);
}

#[test]
fn scattered_writes_into_reserved_space_have_room_for_their_map() {
    scatter("scattered_writes_into_reserved_space_have_room_for_their_map", false, true);
}

#[test]
fn scattered_writes_into_reserved_space_with_checksums_have_room_for_their_map() {
    scatter("scattered_writes_into_reserved_space_with_checksums_have_room_for_their_map", true, true);
}

/// Growing a file clears what its last block holds past the end. Of a block that was reserved and never written that is
/// nothing, but it was refused for lack of room to say that it is written.
#[test]
fn a_file_with_reserved_blocks_grows_on_a_full_volume() {
    for checksums in [false, true] {
        let device = Arc::new(MemoryDevice::new(8 << 20));
        let mkfs = MkfsOptions { data_checksums: checksums, ..MkfsOptions::default() };
        Fs::format_device(device.clone(), None, &mkfs).unwrap();
        let options = MountOptions { background: false, cache_size: 8 << 20, ..MountOptions::default() };
        let fs = Fs::open_device(device, None, options).unwrap();
        let session = fs.session(Cred::root());
        let create = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };
        // As many as use up what is held back, too.
        let files: Vec<_> = (0..400).map(|i| session.open(&format!("file {i}"), create).unwrap()).collect();
        for file in &files {
            file.allocate(AllocateMode::Extend, 0, 700).unwrap();
        }
        let filler = session.open("filler", create).unwrap();
        let mut end = 0;
        while let Ok(length) = filler.write_at(&[1; 4096], end) {
            end += length as u64;
        }
        for (i, file) in files.iter().enumerate() {
            file.truncate(9000).unwrap_or_else(|error| panic!("file {i}: {error}"));
            let mut bytes = vec![1; 9000];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 9000);
            assert!(bytes == [0; 9000]);
        }
        fs.sync().unwrap();
    }
}

/// While there was plenty nobody asked how much an operation wants. With small blocks, a file of 1 MiB that is made in one go
/// wants a quarter of what was called plenty: when several did so at once, the last one ran out of space in the middle.
#[test]
fn large_requests_at_once_fit_or_are_refused() {
    let device = Arc::new(MemoryDevice::new(24 << 20));
    let mkfs = MkfsOptions { block_size: 512, ..MkfsOptions::default() };
    Fs::format_device(device.clone(), None, &mkfs).unwrap();
    let options = MountOptions { cache_size: 64 << 20, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    let content = vec![7; 1 << 20];
    for round in 0..3 {
        std::thread::scope(|scope| {
            let make = |thread: usize| {
                let session = fs.session(Cred::root());
                let root = session.resolve("/").unwrap();
                let whole = |file: u64| {
                    let new = CreateWith { mode: 0o644, content: &content, ..CreateWith::default() };
                    session.create_with(root, format!("{thread}-{file}").as_bytes(), &new).map(drop)
                };
                // Thirty of them make a list of nearly 1 MiB, which is written anew with each.
                let attribute = |number: u64| {
                    let file = format!("{thread}-{}", number / 30);
                    session.open(&file, WRITE)?;
                    session.set_xattr(
                        &file,
                        format!("user.{number}").as_bytes(),
                        &content[..32 << 10],
                        Default::default(),
                    )
                };
                let refused = (0..).find_map(|number| if thread < 6 { whole(number) } else { attribute(number) }.err());
                let refused = refused.expect("the volume is full some time");
                assert_eq!(refused.errno(), Errno::NOSPC, "round {round}: {refused}");
            };
            for thread in 0..8 {
                scope.spawn(move || make(thread));
            }
        });
        let session = fs.session(Cred::root());
        for entry in session.read_dir("/").unwrap() {
            session.unlink(&entry.unwrap().name).unwrap();
        }
        fs.sync().unwrap();
    }
    fs.close().unwrap();
    check_silent(&device.into()).unwrap();
}

/// Data with checksums looks for a long run first. Each group that had never been used was made for the look, also where groups
/// are too small to hold such a run: all of them in one transaction, which a small cache had no room for.
#[test]
fn groups_too_small_for_a_run_are_not_made_for_it() {
    let device = Arc::new(MemoryDevice::new(1 << 30));
    let mkfs = MkfsOptions { data_checksums: true, ag_size: Some(512 << 10), ..MkfsOptions::default() };
    Fs::format_device(device.clone(), None, &mkfs).unwrap();
    let options = MountOptions { background: false, cache_size: 16 << 20, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    let session = fs.session(Cred::root());
    let before = device.counters().written_bytes;
    let file = session.open("file", WRITE).unwrap();
    file.write_at(&vec![1; 1 << 20], 0).unwrap();
    file.sync().unwrap();
    drop((file, session));
    fs.close().unwrap();
    let written = device.counters().written_bytes - before;
    assert!(written < 3 << 20, "{written} bytes for one MiB");
    check_silent(&device.into()).unwrap();
}

/// Each checkpoint that finds another set of orphans writes their list anew, before the blocks of the old list are free. Nobody held
/// blocks back for a list that grows: on a full volume the files that somebody had open were unlinked until a checkpoint found
/// no room for their list, and that shut the volume down.
#[test]
fn a_long_list_of_orphans_fits_a_full_volume() {
    for (order, background) in [(Order::Log, false), (Order::Log, true), (Order::None, false)] {
        let mut setup = Setup::new(512, 2 << 20);
        setup.options.order = Some(order);
        setup.options.background = background;
        setup.options.cache_size = 16 << 20;
        let device = Devices::from(Arc::new(setup.format()));
        let fs = setup.open(device.clone()).unwrap();
        let session = fs.session(Cred::root());
        let name = |i: usize| format!("file {i}");
        let mut files = Vec::new();
        while let Ok(file) = session.open(&name(files.len()), WRITE)
            && files.len() < 3500
        {
            files.push(file);
        }
        let filler = session.open("file 0", WRITE).unwrap();
        let mut end = 0;
        while let Ok(1..) = filler.write_at(&[1; 512], end) {
            end += 512;
        }
        fs.sync().unwrap();
        let sync = |when: usize| {
            fs.sync().unwrap_or_else(|error| {
                panic!("order {order:?}, {when} unlinked: {error}; {:?}", fs.shut_down_reason())
            });
        };
        let mut unlinked = 0;
        for i in 1..files.len() {
            match session.unlink(&name(i)) {
                Ok(()) => unlinked += 1,
                Err(error) => assert_eq!(error.errno(), Errno::NOSPC, "{i}: {error}; {:?}", fs.shut_down_reason()),
            }
            if i % 50 == 0 {
                sync(unlinked);
            }
        }
        assert!(unlinked > 500, "{unlinked} of {} files were unlinked", files.len());
        // The list becomes shorter, and is written anew each time.
        while files.len() > 1 {
            files.truncate((files.len() - 1).saturating_sub(50).max(1));
            sync(unlinked);
        }
        drop((files, filler, session));
        fs.close().unwrap();
        check_silent(&device).unwrap();
    }
}

/// Who made what was there was told that the volume is full, or read-only, and not that it is there.
#[test]
fn a_name_that_is_there_is_so_on_a_full_volume_and_a_read_only_one() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(16 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let open = |read_only| {
        let options = MountOptions { background: false, read_only, ..MountOptions::default() };
        Fs::open_device(device.clone(), None, options).unwrap()
    };
    let fs = open(false);
    let session = fs.session(Cred::root());
    session.mkdir("there", 0o755).unwrap();
    let file = session.open("file", WRITE).unwrap();
    for part in [1 << 20, 4096] {
        while file.write_at(&vec![7; part], file.stat().unwrap().size).is_ok() && file.sync().is_ok() {}
    }
    let told = |session: &Session, name: &str| {
        let mkdir = session.mkdir(name, 0o755).map(drop).unwrap_err().errno();
        (mkdir, session.create(name, 0o644).map(drop).unwrap_err().errno())
    };
    assert_eq!(told(&session, "new"), (Errno::NOSPC, Errno::NOSPC));
    assert_eq!(told(&session, "there"), (Errno::EXIST, Errno::EXIST));
    drop((file, session));
    fs.close().unwrap();
    let fs = open(true);
    let session = fs.session(Cred::root());
    assert_eq!(told(&session, "new"), (Errno::ROFS, Errno::ROFS));
    assert_eq!(told(&session, "there"), (Errno::EXIST, Errno::EXIST));
}
