//! What operations on names cost: the blocks that each looks at, and what it asks of the device.
//!
//! ```text
//! cargo run --release -p myriad-engine --example costs -- ENTRIES [OPTION=VALUE,...] [--only OPERATION]
//! ```
//!
//! Makes a volume in memory with these options (of mkfs or of a mount) and in it one directory of so many empty files, and prints a
//! line for each of: `create`, all of them, with a sync at the end; `lookup`, of 1000 random names, warm; `absent`, of 1000 names that
//! are not there; `again`, of the same ones once more; `cold`, as lookup, each with nothing cached; `stat`, of 1000 that are there; `list`, all, with nothing cached; `unlink`,
//! all, in random order, with a sync at the end; `drain`, where all have been made once more: unlink in the order of a listing; `rename`,
//! where they have been made again: all, in random order, each to a name of the same length, with a sync at the end.
//! Counts are for one operation, for `list` for one entry; *compared* are the entries
//! whose names or tags a search of a linear directory or one of slots compared, or a hash's. Where the directory has a hash in memory, the last line says
//! how large it is.
//!
//! Nothing is timed and nothing is left to chance: two runs give the same counts. Run with `--only OPERATION` under a tool that
//! counts instructions, at two sizes, it says what one operation takes: the files are made first in any case. For valgrind it has
//! to be built with `--features rustix/use-libc-auxv` (docs/performance.md, "What the seams cost").

use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::options::{self, Options};
use myriad_engine::{Cred, Errno, Fs, MkfsOptions, MountOptions, Node, RenameMode, Session};
use std::error::Error;
use std::sync::Arc;

/// Operations of those that are not done with every name.
const SAMPLE: u64 = 1000;
/// What is reported of each.
const COLUMNS: [(&str, &str); 7] = [
    ("blocks_touched", "touched"),
    ("dir_tags_compared", "compared"),
    // With directory=slots: blocks that counts said are empty. Without the counts they would have been looked at as well.
    ("dir_blocks_skipped", "skipped"),
    ("device_reads", "reads"),
    ("device_read_bytes", "read B"),
    ("device_writes", "writes"),
    ("device_written_bytes", "written B"),
];

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

fn name(number: u64) -> Vec<u8> {
    format!("file{number:08}").into_bytes()
}

/// A volume and its directory.
struct Bench {
    fs: Fs,
    session: Session,
    dir: Node,
    entries: u64,
    only: Option<String>,
}

impl Bench {
    fn counts(&self) -> [u64; COLUMNS.len()] {
        let all = self.fs.counters();
        COLUMNS.map(|(column, _)| all.iter().find(|(name, _)| *name == column).map_or(0, |&(_, count)| count))
    }

    /// Runs what does an operation `times` times, and prints what one cost.
    fn measure(
        &self,
        operation: &str,
        times: u64,
        run: impl FnOnce() -> myriad_engine::Result<()>,
    ) -> myriad_engine::Result<()> {
        // Without the files there is nothing to do the others with.
        if operation != "create" && self.only.as_deref().is_some_and(|only| only != operation) {
            return Ok(());
        }
        let before = self.counts();
        run()?;
        let after = self.counts();
        print!("{operation:8} {:>9}", self.entries);
        for (after, before) in after.into_iter().zip(before) {
            print!(" {:>12.3}", (after - before) as f64 / times as f64);
        }
        println!();
        Ok(())
    }

    fn run(&self) -> myriad_engine::Result<()> {
        let (session, dir, entries) = (&self.session, self.dir, self.entries);
        let sample = SAMPLE.min(entries);
        self.measure("create", entries, || {
            (0..entries).try_for_each(|i| session.mknod_at(dir, &name(i), 0o100_644, 0).map(drop))?;
            self.fs.sync()
        })?;
        let mut random = Random(1);
        let mut names = || (0..sample).map(|_| name(random.below(entries))).collect::<Vec<_>>();
        let (warm, cold, known) = (names(), names(), names());
        self.measure("lookup", sample, || warm.iter().try_for_each(|name| session.lookup(dir, name).map(drop)))?;
        let ask = || {
            (entries..entries + sample).try_for_each(|i| match session.lookup(dir, &name(i)) {
                Err(error) if error.errno() == Errno::NOENT => Ok(()),
                other => other.map(drop),
            })
        };
        self.measure("absent", sample, ask)?;
        if self.only.as_deref() == Some("again") {
            ask()?;
        }
        self.measure("again", sample, ask)?;
        let levels = self.fs.levels();
        let size = session.stat_node(dir)?.size;
        self.measure("cold", sample, || {
            cold.iter().try_for_each(|name| {
                self.fs.drop_caches()?;
                session.lookup(dir, name).map(drop)
            })
        })?;
        let nodes: Vec<Node> =
            known.iter().map(|name| session.lookup(dir, name).map(|stat| stat.node())).collect::<Result<_, _>>()?;
        self.measure("stat", sample, || nodes.iter().try_for_each(|&node| session.stat_node(node).map(drop)))?;
        self.measure("list", entries, || {
            self.fs.drop_caches()?;
            let listed = session.read_dir_node(dir)?.try_fold(0, |sum, entry| entry.map(|_| sum + 1))?;
            assert_eq!(listed, entries, "every name is listed once");
            Ok(())
        })?;
        let mut order: Vec<u64> = (0..entries).collect();
        (1..order.len()).rev().for_each(|i| order.swap(i, random.below(i as u64 + 1) as usize));
        self.measure("unlink", entries, || {
            order.iter().try_for_each(|&i| session.unlink_at(dir, &name(i)))?;
            self.fs.sync()
        })?;
        if levels.dirhash_count > 0 {
            let used = levels.dirhash_used;
            println!("hash     {entries:>9} {used:>12} B, {:.3} for each of {size} B", used as f64 / size as f64);
        }
        let wants = |operation| self.only.as_deref().is_none_or(|only| only == operation);
        let make_all = || match &self.only {
            // They are there still.
            Some(_) => Ok(()),
            None => (0..entries).try_for_each(|i| session.mknod_at(dir, &name(i), 0o100_644, 0).map(drop)),
        };
        if wants("drain") {
            make_all()?;
            let listed = session.read_dir_node(dir)?.collect::<myriad_engine::Result<Vec<_>>>()?;
            self.measure("drain", entries, || {
                listed.iter().try_for_each(|entry| session.unlink_at(dir, &entry.name))?;
                self.fs.sync()
            })?;
        }
        if wants("rename") {
            make_all()?;
            self.measure("rename", entries, || {
                let rename = |&i: &u64| {
                    let new = format!("name{i:08}").into_bytes();
                    session.rename_at(dir, &name(i), dir, &new, RenameMode::Replace)
                };
                order.iter().try_for_each(rename)?;
                self.fs.sync()
            })?;
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: costs ENTRIES [OPTION=VALUE,...] [--only OPERATION]";
    let mut arguments = std::env::args().skip(1);
    let entries: u64 =
        arguments.next().and_then(|text| text.parse().ok()).filter(|&entries| entries > 0).ok_or(usage)?;
    let mut options = Options {
        mkfs: MkfsOptions { seed: Some(1), ..MkfsOptions::default() },
        mount: MountOptions { background: false, seed: Some(1), cache_size: 1 << 30, ..MountOptions::default() },
    };
    let mut only = None;
    while let Some(argument) = arguments.next() {
        if argument == "--only" {
            only = Some(arguments.next().ok_or(usage)?);
            continue;
        }
        for part in argument.split(',') {
            let (row, value) = options::read(part).ok_or_else(|| options::unknown(part))??;
            row.set(&mut options, value);
        }
    }
    // What is never written takes no memory.
    let device: Arc<dyn BlockDevice> =
        Arc::new(MemoryDevice::new((entries * 16_384).next_power_of_two().max(256 << 20)));
    Fs::format_device(device.clone(), None, &options.mkfs)?;
    let fs = Fs::open_device(device, None, options.mount)?;
    let session = fs.session(Cred::root());
    let dir = session.mkdir("d", 0o755)?;
    print!("{:8} {:>9}", "", "entries");
    COLUMNS.iter().for_each(|(_, column)| print!(" {column:>12}"));
    println!();
    Ok(Bench { fs, session, dir, entries, only }.run()?)
}
