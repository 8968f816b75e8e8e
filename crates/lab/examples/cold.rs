//! What names looked up in no order read of a device, nothing cached, and how long modelled devices take for it.
//!
//! ```text
//! cargo run --release -p myriad-lab --example cold -- NAMES [DIRECTORIES] [OPTION=VALUE,...] [--links]
//! ```
//!
//! Makes that many directories (one, if nothing is said) of NAMES names each in a volume in memory: empty files, or with `--links` hard
//! links of a few, of which a lookup needs the directory's entry and not the inode. Then, beginning anew each time with nothing cached,
//! looks up 1, 3, 10, ... of all names, drawn by chance, and prints a line for each number: requests, blocks, the blocks of what was asked
//! for alone by kind (the first letters of a block say its kind, docs/FORMAT.md), and milliseconds on the devices of `myriad lab`.
//! Two runs print the same.

use myriad_device::{BlockDevice, MemoryDevice, pass_on};
use myriad_engine::options::{self, Options};
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, Node, Session};
use myriad_lab::disk::{Meter, Preset, Traced};
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex};

const MODELS: [&str; 3] = ["disk1996", "disk2001", "ssd"];
/// Of the disk of 1996, the smallest.
const VOLUME_BYTES: u64 = 2_000 << 20;
const BLOCK: usize = 4096;
/// Names of a file, with `--links`.
const LINKS: u64 = 10_000;

/// Counts single blocks that are read, by kind.
struct Kinds {
    inner: MemoryDevice,
    alone: Arc<Mutex<BTreeMap<[u8; 4], u64>>>,
}

impl BlockDevice for Kinds {
    pass_on!(inner: size, alignment, write, flush, discard, discards, counters);

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, buf)?;
        if buf.len() == BLOCK {
            *self
                .alone
                .lock()
                .expect("no panic with the lock held")
                .entry([buf[0], buf[1], buf[2], buf[3]])
                .or_default() += 1;
        }
        Ok(())
    }
}

fn name(number: u64) -> Vec<u8> {
    format!("file{number:08}").into_bytes()
}

/// A number from a number (splitmix64).
fn mixed(number: u64) -> u64 {
    let z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn fill(session: &Session, dir: Node, names: u64, are_links: bool) -> myriad_engine::Result<()> {
    let mut file = None;
    for i in 0..names {
        match file.filter(|_| are_links && i % LINKS > 0) {
            Some(file) => _ = session.link_at(file, dir, &name(i))?,
            None => file = Some(session.mknod_at(dir, &name(i), 0o100_644, 0)?.node()),
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: cold NAMES [DIRECTORIES] [OPTION=VALUE,...] [--links]";
    let mut options = Options {
        mkfs: MkfsOptions { seed: Some(1), ..MkfsOptions::default() },
        mount: MountOptions { background: false, seed: Some(1), cache_size: 1 << 30, ..MountOptions::default() },
    };
    let (mut numbers, mut are_links) = (Vec::new(), false);
    for argument in std::env::args().skip(1) {
        match argument.parse::<u64>() {
            Ok(number) => numbers.push(number),
            Err(_) if argument == "--links" => are_links = true,
            Err(_) => {
                for part in argument.split(',') {
                    let (row, value) = options::read(part).ok_or_else(|| options::unknown(part))??;
                    row.set(&mut options, value);
                }
            }
        }
    }
    let names = *numbers.first().filter(|&&names| names > 0).ok_or(usage)?;
    let directories = numbers.get(1).copied().unwrap_or(1).max(1);

    let alone = Arc::default();
    let mut meters: Vec<Meter> = Vec::new();
    let mut device: Arc<dyn BlockDevice> =
        Arc::new(Kinds { inner: MemoryDevice::new(VOLUME_BYTES), alone: Arc::clone(&alone) });
    for model in MODELS {
        let traced = Traced::new(device).with_model(Preset::named(model).expect("a model of the lab").model());
        meters.push(traced.meter());
        device = Arc::new(traced);
    }
    Fs::format_device(device.clone(), None, &options.mkfs)?;
    let fs = Fs::open_device(device.clone(), None, options.mount)?;
    let session = fs.session(Cred::root());
    let dirs: Vec<Node> = (0..directories)
        .map(|i| {
            let dir = session.mkdir(&format!("d{i}"), 0o755)?;
            fill(&session, dir, names, are_links).map(|()| dir)
        })
        .collect::<myriad_engine::Result<_>>()?;
    fs.sync()?;

    println!(
        "{:>8} {:>8} {:>8} {:>10} {:>10} {:>10}  alone",
        "lookups", "requests", "blocks", MODELS[0], MODELS[1], MODELS[2]
    );
    for lookups in [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000] {
        fs.drop_caches()?;
        alone.lock().expect("no panic with the lock held").clear();
        let clocks = || meters.iter().map(|meter| meter.modelled_ns().unwrap_or(0)).collect::<Vec<_>>();
        let (before, started) = (device.counters(), clocks());
        for nth in 1..=lookups {
            let drawn = mixed(nth << 20 | lookups);
            session.lookup(dirs[(drawn >> 32) as usize % dirs.len()], &name(drawn % (1 << 32) % names))?;
        }
        let (after, ended) = (device.counters(), clocks());
        print!(
            "{lookups:>8} {:>8} {:>8}",
            after.reads - before.reads,
            (after.read_bytes - before.read_bytes) / BLOCK as u64
        );
        ended.iter().zip(&started).for_each(|(ended, started)| print!(" {:>10.2}", (ended - started) as f64 / 1e6));
        for (kind, count) in alone.lock().expect("no panic with the lock held").iter() {
            print!("  {} {count}", String::from_utf8_lossy(kind));
        }
        println!();
    }
    Ok(())
}
