//! One file's bytes, operation by operation, against what they must be: fsx's method, in process.
//!
//! A failure prints the operations before it and one line that replays the run. `MYRIAD_OPERATIONS` says how many, and
//! `MYRIAD_LONG=1` makes it 10^7, for each block size.

use myriad_engine::{AllocateMode, Allocation, Cred, Discard, Errno, Error, File, Fs, OpenOptions, Order};
use myriad_sim::pattern;
use myriad_sim::rng::{self, Rng};
use myriad_trials::setup::{Devices, Setup};
use myriad_trials::verdict::{catch, check_silent};
use std::collections::VecDeque;
use std::ops::Range;

/// The file's largest size, and the longest operation's, as fsx is run by `scripts/suites`.
const SIZE_MAX: u64 = 1 << 20;
const LENGTH_MAX: u64 = 64 << 10;
/// Operations of a run, on a volume of its own.
const RUN: usize = 20_000;
/// Operations between two readings of the whole file.
const WHOLE_EVERY: usize = 500;
/// Operations that a failure shows.
const SHOWN: usize = 30;

#[derive(Clone, Debug)]
enum Op {
    Read(Range<u64>),
    Write(Range<u64>),
    Append(u64),
    Truncate(u64),
    Allocate(AllocateMode, Range<u64>),
    /// Where data and holes are.
    Seek,
    Sync,
    Reopen,
    DropCaches,
    /// Closes the volume, checks it, and opens it again.
    Remount,
}

impl Op {
    fn draw(rng: &mut Rng, size: u64) -> Self {
        // Half of them at or before the end of the file; the others leave holes behind it.
        let bound = if rng.percent(50) { size.max(1) } else { SIZE_MAX };
        let start = rng.below(bound);
        let length = if rng.percent(50) { 1 + rng.below(LENGTH_MAX) } else { 1 + rng.below(9000) };
        // Blocks and pages begin at round numbers, and so do many programs' writes.
        let start = if rng.percent(30) { start & !4095 } else { start };
        let length = if rng.percent(30) { length.next_multiple_of(4096).min(LENGTH_MAX) } else { length };
        let range = start..(start + length).min(SIZE_MAX);
        match rng.below(1000) {
            0..300 => Self::Read(range),
            300..590 => Self::Write(range),
            590..620 => Self::Append(length.min(SIZE_MAX - size)),
            620..690 => Self::Truncate(start),
            690..730 => Self::Allocate(AllocateMode::Extend, range),
            730..770 => Self::Allocate(AllocateMode::KeepSize, range),
            770..830 => Self::Allocate(AllocateMode::Punch, range),
            830..860 => Self::Allocate(AllocateMode::Zero { keep_size: false }, range),
            860..890 => Self::Allocate(AllocateMode::Zero { keep_size: true }, range),
            890..920 => Self::Seek,
            920..970 => Self::Sync,
            970..988 => Self::Reopen,
            988..998 => Self::DropCaches,
            _ => Self::Remount,
        }
    }
}

/// The file, and what must be in it.
struct Exerciser {
    setup: Setup,
    devices: Devices,
    /// `None` only while the volume is closed.
    open: Option<(Fs, File)>,
    expected: Vec<u8>,
    /// The last write's number: its bytes tell of it.
    tag: u32,
}

type Outcome = Result<(), String>;

fn said(what: &str) -> impl Fn(Error) -> String {
    let what = what.to_owned();
    move |error| format!("{what}: {error}")
}

fn open_file(fs: &Fs) -> Result<File, String> {
    let session = fs.session(Cred::root());
    let options = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };
    session.open("file", options).map_err(said("open"))
}

impl Exerciser {
    fn new(setup: Setup) -> Result<Self, String> {
        let devices = setup.format_devices();
        let fs = setup.open(devices.clone()).map_err(said("opening the volume"))?;
        let file = open_file(&fs)?;
        Ok(Self { setup, devices, open: Some((fs, file)), expected: Vec::new(), tag: 0 })
    }

    fn fs(&self) -> &Fs {
        &self.open.as_ref().expect("the volume is open").0
    }

    fn file(&self) -> &File {
        &self.open.as_ref().expect("the volume is open").1
    }

    fn size(&self) -> u64 {
        self.expected.len() as u64
    }

    fn grow(&mut self, size: u64) {
        self.expected.resize(self.expected.len().max(size as usize), 0);
    }

    fn run(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Read(range) => self.compare(range.clone())?,
            Op::Write(range) => self.write(range.clone())?,
            Op::Append(length) => self.write(self.size()..self.size() + length)?,
            Op::Truncate(size) => {
                self.file().truncate(*size).map_err(said("truncate"))?;
                self.expected.resize(*size as usize, 0);
            }
            Op::Allocate(mode, range) => self.allocate(*mode, range.clone())?,
            Op::Seek => self.seek()?,
            Op::Sync => self.file().sync().map_err(said("sync"))?,
            Op::Reopen => {
                let (fs, file) = self.open.take().expect("the volume is open");
                drop(file);
                let file = open_file(&fs)?;
                self.open = Some((fs, file));
            }
            Op::DropCaches => self.fs().drop_caches().map_err(said("dropping caches"))?,
            Op::Remount => {
                self.close()?;
                let fs = self.setup.open(self.devices.clone()).map_err(said("opening the volume"))?;
                let file = open_file(&fs)?;
                self.open = Some((fs, file));
                self.compare(0..SIZE_MAX)?;
            }
        }
        let size = self.file().stat().map_err(said("stat"))?.size;
        if size == self.size() { Ok(()) } else { Err(format!("size {size} instead of {}", self.size())) }
    }

    fn write(&mut self, range: Range<u64>) -> Outcome {
        self.tag += 1;
        let bytes = pattern::bytes(self.tag, range.start, (range.end - range.start) as usize);
        let count = self.file().write_at(&bytes, range.start).map_err(said("write"))?;
        if count != bytes.len() {
            return Err(format!("{count} of {} bytes written", bytes.len()));
        }
        if !bytes.is_empty() {
            self.grow(range.end);
            self.expected[range.start as usize..range.end as usize].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn allocate(&mut self, mode: AllocateMode, range: Range<u64>) -> Outcome {
        self.file().allocate(mode, range.start, range.end - range.start).map_err(said("allocate"))?;
        if matches!(mode, AllocateMode::Extend | AllocateMode::Zero { keep_size: false }) {
            self.grow(range.end);
        }
        if matches!(mode, AllocateMode::Punch | AllocateMode::Zero { .. }) {
            let end = range.end.min(self.size());
            let start = range.start.min(end);
            self.expected[start as usize..end as usize].fill(0);
        }
        Ok(())
    }

    /// The file's bytes in a range, of which there are fewer at its end.
    fn compare(&self, range: Range<u64>) -> Outcome {
        let mut found = vec![0xee; (range.end - range.start) as usize];
        let count = self.file().read_at(&mut found, range.start).map_err(said("read"))?;
        let end = range.end.min(self.size());
        let expected = &self.expected[range.start.min(end) as usize..end as usize];
        if count != expected.len() {
            return Err(format!("{count} bytes read at {}, where {} are", range.start, expected.len()));
        }
        let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) else {
            return Ok(());
        };
        let place = range.start + at as u64;
        let word = (place & !7).saturating_sub(range.start) as usize;
        let whose = |bytes: &[u8]| match bytes.get(word..).and_then(|bytes| pattern::identify(bytes, self.tag)) {
            Some((tag, offset)) => format!("what write {tag} put at {offset}"),
            None => format!("{:02x?}", &bytes[at..bytes.len().min(at + 8)]),
        };
        Err(format!("byte {place} of {}: {} instead of {}", self.size(), whose(&found), whose(expected)))
    }

    /// Data and holes take turns and cover the file, and holes are zero.
    fn seek(&self) -> Outcome {
        let file = self.file();
        let mut at = 0;
        while at < self.size() {
            let data = match file.seek_data(at) {
                Ok(data) => data,
                Err(error) if error.errno() == Errno::NXIO => self.size(),
                Err(error) => return Err(format!("seek_data: {error}")),
            };
            if data < at || data > self.size() {
                return Err(format!("data at {data}, asked from {at} of {}", self.size()));
            }
            if let Some(lost) = self.expected[at as usize..data as usize].iter().position(|&byte| byte != 0) {
                return Err(format!("a hole from {at} to {data} although byte {} was written", at + lost as u64));
            }
            if data == self.size() {
                break;
            }
            at = file.seek_hole(data).map_err(said("seek_hole"))?;
            if at <= data || at > self.size() {
                return Err(format!("a hole at {at}, asked from {data} of {}, which is data", self.size()));
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Outcome {
        let (fs, file) = self.open.take().expect("the volume is open");
        drop(file);
        fs.close().map_err(said("closing the volume"))?;
        check_silent(&self.devices)
    }
}

/// One run on a volume of its own, whose options the seed decides.
fn exercise(block_size: u32, seed: u64, count: usize) -> Outcome {
    let mut rng = Rng::new(seed);
    let mut setup = Setup::new(block_size, 32 << 20);
    setup.data_checksums = rng.percent(40);
    setup.options.allocation = *rng.pick(&[Allocation::Delayed, Allocation::AtWrite]);
    setup.options.background = rng.percent(30);
    setup.options.cache_size = *rng.pick(&[4 << 20, 32 << 20]);
    setup.options.discard = if rng.percent(20) { Discard::Always } else { Discard::Never };
    setup.options.discard_piece = 1;
    // Drawn apart, so that a seed's operations stay what they are.
    let mut drawn = Rng::new(!seed);
    if drawn.percent(30) {
        setup.order = Order::None;
    }
    setup.vary_log(&mut drawn);
    let mut last = VecDeque::new();
    let outcome = catch(|| {
        let mut exerciser = Exerciser::new(setup)?;
        for index in 0..count {
            let op = Op::draw(&mut rng, exerciser.size());
            last.push_back(format!("\n  {index}: size {}, write {}, {op:?}", exerciser.size(), exerciser.tag + 1));
            if last.len() > SHOWN {
                last.pop_front();
            }
            exerciser.run(&op)?;
            if index % WHOLE_EVERY == WHOLE_EVERY - 1 {
                exerciser.compare(0..SIZE_MAX)?;
            }
        }
        exerciser.run(&Op::Remount)?;
        exerciser.close()
    });
    outcome.map_err(|message| format!("{message}\nafter{}", last.iter().map(String::as_str).collect::<String>()))
}

fn check(test: &str, block_size: u32) {
    let usual = if rng::is_long() { 10_000_000 } else { 2 * RUN as u64 };
    let count = rng::number("MYRIAD_OPERATIONS").unwrap_or(usual);
    let first = rng::seed_or(u64::from(block_size));
    let runs = if rng::number("MYRIAD_SEED").is_some() { 1 } else { count.div_ceil(RUN as u64) };
    for seed in first..first + runs {
        if let Err(message) = exercise(block_size, seed, RUN) {
            let replay = rng::replay_line("myriad-engine", &format!("one_file::{test}"), seed, "");
            panic!("{message}\n{replay}");
        }
    }
    println!("{} operations on blocks of {block_size}", runs * RUN as u64);
}

#[test]
fn blocks_of_512() {
    check("blocks_of_512", 512);
}

#[test]
fn blocks_of_4096() {
    check("blocks_of_4096", 4096);
}

#[test]
fn blocks_of_65536() {
    check("blocks_of_65536", 65536);
}
