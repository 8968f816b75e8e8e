//! Order `softdep`: what waits is bounded in memory, and nobody waits for ever.

mod recorded;

use myriad_engine::{Cred, Errno, Error, Fs, MountOptions, OpenOptions, Order, options};
use myriad_sim::rng::{self, Rng};
use myriad_trials::setup::{Devices, Setup};
use myriad_trials::verdict::check_silent;
use recorded::counter;
use std::sync::Arc;

const BLOCK: u64 = 4096;
/// The least that the option takes.
const LIMIT: u64 = 64 << 10;
/// What one operation adds at most here: some words of a few blocks.
const OPERATION: u64 = 8 << 10;

fn setup() -> Setup {
    let mut setup = recorded::setup(Order::Soft, BLOCK as u32, 64 << 20);
    setup.options.cache_size = 32 << 20;
    setup.options.softdep_memory = Some(LIMIT);
    setup
}

/// Makes, writes, links, moves and removes files in directories of its own; refused is nothing.
fn work(fs: &Fs, thread: u64, count: usize) {
    let session = fs.session(Cred::root());
    let mut rng = Rng::new(rng::seed_or(1) + thread);
    let mut files: Vec<String> = Vec::new();
    for number in 0..count {
        let dir = format!("t{thread}-{}", rng.below(100));
        match session.mkdir(&dir, 0o755) {
            Ok(_) | Err(Error::Refused(Errno::EXIST)) => {}
            Err(error) => panic!("mkdir {dir}: {error}"),
        }
        let path = format!("{dir}/{number}");
        let size = if rng.percent(30) { rng.index(3 * BLOCK as usize) } else { 0 };
        session.write(&path, vec![number as u8; size]).unwrap();
        files.push(path);
        if rng.percent(20) {
            let old = files[rng.index(files.len())].clone();
            session.link(&old, &format!("{dir}/link{number}")).unwrap();
        }
        if files.len() > 300 || rng.percent(30) {
            session.unlink(&files.swap_remove(rng.index(files.len()))).unwrap();
        }
    }
}

/// On one thread, which writes by itself what there is too much of.
#[test]
fn memory_is_bounded_on_one_thread() {
    for delays in [None, Some(30_000)] {
        let mut setup = setup();
        if let Some(delay) = delays {
            setup.hold_back([delay; 3]);
        }
        let device = Devices::from(Arc::new(setup.format()));
        let fs = setup.open(device.clone()).unwrap();
        work(&fs, 0, 3000);
        let (peak, sheds) = (counter(&fs, "soft_held_peak"), counter(&fs, "soft_sheds"));
        println!("delays {delays:?}: peak {peak}, sheds {sheds}, stalls {}", counter(&fs, "soft_stalls"));
        // Half of the limit is where it begins to write.
        assert!(peak <= LIMIT / 2 + OPERATION, "{peak} bytes");
        assert!(peak > LIMIT / 4 && sheds > 0, "{peak} bytes, {sheds} sheds");
        fs.close().unwrap();
        check_silent(&device).unwrap();
    }
}

/// Threads that are faster than the background, which is woken, and in the end wait for it.
#[test]
fn memory_is_bounded_beside_the_background() {
    const THREADS: u64 = 4;
    let mut setup = setup();
    setup.options.background = true;
    setup.hold_back([30_000, 29_000, 28_000]);
    let device = Devices::from(Arc::new(setup.format()));
    let fs = setup.open(device.clone()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let fs = fs.clone();
            scope.spawn(move || work(&fs, thread, 1000));
        }
    });
    let (peak, stalls) = (counter(&fs, "soft_held_peak"), counter(&fs, "soft_stalls"));
    println!("peak {peak}, sheds {}, stalls {stalls}", counter(&fs, "soft_sheds"));
    assert!(peak <= LIMIT + THREADS * OPERATION, "{peak} bytes");
    assert!(counter(&fs, "soft_sheds") > 0);
    fs.close().unwrap();
    check_silent(&device).unwrap();
}

/// What is oldest is written first; what has just come stays.
#[test]
fn the_oldest_goes_first() {
    let mut setup = setup();
    setup.hold_back([0; 3]);
    let time = setup.time.clone();
    let device = Arc::new(setup.format());
    let fs = setup.open(device.clone()).unwrap();
    let session = fs.session(Cred::root());
    (0..200).for_each(|dir| session.mkdir(&format!("d{dir}"), 0o755).map(drop).unwrap());
    fs.sync().unwrap();
    let sheds = counter(&fs, "soft_sheds");
    let mut made = 0;
    while counter(&fs, "soft_sheds") == sheds {
        assert!(made < 200, "nothing was written");
        time.store(1_000_000_000 * (made + 1), std::sync::atomic::Ordering::Relaxed);
        session.create(&format!("d{made}/f"), 0o644).unwrap();
        made += 1;
    }
    let after =
        Fs::open_device(Arc::new(device.clone_image()), None, MountOptions { softdep_memory: None, ..setup.options })
            .unwrap();
    let session = after.session(Cred::root());
    let lasts: Vec<bool> = (0..made).map(|dir| session.exists(&format!("d{dir}/f")).unwrap()).collect();
    let count = lasts.iter().filter(|lasts| **lasts).count();
    println!("{count} of {made} last");
    assert!(lasts[..count].iter().all(|lasts| *lasts), "{lasts:?}");
    assert!(count > 0 && count < made as usize, "{count} of {made}");
}

/// The limit changes while the volume is open; other orders refuse it.
#[test]
fn the_limit_of_the_moment_holds() {
    let setup = Setup { options: MountOptions { softdep_memory: None, ..setup().options }, ..setup() };
    let fs = setup.open(Arc::new(setup.format())).unwrap();
    work(&fs, 0, 500);
    assert_eq!(counter(&fs, "soft_sheds"), 0);
    fs.tune(&options::read_for_tune(["softdep_maxmem=64K"]).unwrap()).unwrap();
    work(&fs, 1, 500);
    assert!(counter(&fs, "soft_sheds") > 0);

    let setup = recorded::setup(Order::Sync, BLOCK as u32, 16 << 20);
    let options = MountOptions { softdep_memory: Some(LIMIT), ..setup.options.clone() };
    let refused = Fs::open_device(Arc::new(setup.format()), None, options).map(drop);
    assert!(matches!(&refused, Err(Error::Option(bad)) if bad.option == "softdep_maxmem"), "{refused:?}");
}

/// A file that is held open and written while the limit is tiny, and synced all the time: nobody waits for himself.
#[test]
fn whoever_holds_a_file_does_not_wait_for_himself() {
    let setup = setup();
    let fs = setup.open(Arc::new(setup.format())).unwrap();
    let session = fs.session(Cred::root());
    let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    let file = session.open("file", options).unwrap();
    for number in 0..2000_u64 {
        file.write_at(&[1; 100], number % 300 * 37 * BLOCK).unwrap();
        session.write(&format!("f{number}"), [2; 5000]).unwrap();
        if number % 50 == 0 {
            file.sync().unwrap();
        }
    }
    assert!(counter(&fs, "soft_held_peak") <= LIMIT / 2 + OPERATION);
}
