//! What the threads of a meeting do: volume, number of threads and steps, all from one seed.

use super::FILES;
use crate::setup::Setup;
use crate::table::Row;
use myriad_engine::schedule::Turns;
use myriad_engine::{AllocateMode, Allocation, Discard, Order, SyncMode};
use myriad_sim::rng::Rng;

/// The largest file, in blocks. More than twice what one transaction of a flush takes with the smallest cache.
pub(super) const BLOCKS_MAX: u64 = 300;
const STEPS: usize = 50;

/// What a seed decides besides the steps.
pub(super) struct Shape {
    pub setup: Setup,
    pub threads: usize,
    pub turns: Turns,
    /// Files with a name are open for one step at a time, as a mount opens them for one request.
    pub brief: bool,
    /// Steps of the rarer kinds are among the others.
    pub is_wide: bool,
    /// All write side by side in one file as well: bytes of a stripe.
    pub stripe: Option<u64>,
    /// The last thread has no files of its own, and syncs all the time what the others do.
    pub has_syncer: bool,
}

impl Shape {
    pub fn of(row: Row, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut setup = Setup::of(row, *rng.pick(&[512, 1024, 4096]), 48 << 20);
        setup.ag_size = Some(8 << 20);
        setup.data_checksums = rng.percent(60) && row.has_checksums();
        // The fewest frames that a cache has.
        setup.options.cache_size = 1 << 20;
        if seed % 2 == 0 {
            (setup.options.discard, setup.options.discard_piece) = (Discard::Always, 1);
        }
        let threads = 2 + rng.index(3);
        let one_in = *rng.pick(&[4, 32, 128, 256, 512, 1024]);
        let turns = Turns { seed: rng.next_u64(), one_in };
        let (brief, is_wide) = (rng.percent(60), rng.percent(60));
        if is_wide && rng.percent(25) {
            setup.options.allocation = Allocation::AtWrite;
        }
        if rng.percent(40) {
            setup.hold_back([3000, 2000, 1000]);
        }
        if row.order == Order::Sync && rng.percent(50) {
            setup.options.sync_mode = SyncMode::All;
        }
        // By numbers of their own: what a seed decides besides stays as it was.
        let mut rng = Rng::new(seed ^ 0x1a_9e5);
        if row.order == Order::Log {
            // The first is little more than the least log: it laps every few commits.
            let log_size = *rng.pick(&[160 << 10, 1 << 20, 4 << 20]);
            setup.log_size = Some(log_size);
            setup.log_device_size = rng.percent(30).then_some(log_size);
        }
        let block = u64::from(setup.block_size);
        let stripes = [block / 2, block, 5 * block / 2, 16 * block, 81 * block + 100];
        let stripe = rng.percent(50).then(|| *rng.pick(&stripes));
        let has_syncer = rng.percent(30);
        Self { setup, threads, turns, brief, is_wide, stripe, has_syncer }
    }
}

/// One step of a thread; `file` is one of its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Do {
    /// Makes the file anew; what it was before is removed.
    Make {
        file: usize,
        named: bool,
    },
    Write {
        file: usize,
        offset: u64,
        len: usize,
    },
    /// Every other block, so many, from `block` on.
    Scatter {
        file: usize,
        block: u64,
        count: u64,
    },
    Truncate {
        file: usize,
        size: u64,
    },
    Punch {
        file: usize,
        offset: u64,
        len: u64,
    },
    /// To another name in its directory or in the common one, or over another of the thread's files.
    Rename {
        file: usize,
        over: Option<usize>,
        common: bool,
    },
    /// Gives a file without a name one.
    Link {
        file: usize,
    },
    Unlink {
        file: usize,
    },
    Close {
        file: usize,
    },
    Fsync {
        file: usize,
    },
    Sync,
    /// Everything home, and out of the cache.
    Settle,
    /// Opens a file of another thread, and perhaps reads there: a reader waits for a flush, who only opens and closes does not.
    Visit {
        thread: usize,
        file: usize,
        reads: Option<u64>,
    },
    Leave,
    /// Looks for a name that a thread, perhaps this one, may make soon, or has made.
    Seek {
        thread: usize,
        common: bool,
        ahead: u32,
    },
    Look {
        file: usize,
    },
    /// What losing power here would leave.
    PowerCut,
    /// Makes the file anew, with a name and its content in one.
    Whole {
        file: usize,
        len: usize,
    },
    /// Writes through a handle of its own that is synced by each write, at an offset or at the end.
    WriteSynced {
        file: usize,
        offset: Option<u64>,
        len: usize,
    },
    /// Writes what need not stay in the cache.
    WritePassing {
        file: usize,
        offset: u64,
        len: usize,
    },
    Allocate {
        file: usize,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    },
    /// Cuts the file to nothing by opening it, and writes so much.
    Rewrite {
        file: usize,
        len: usize,
    },
    /// A second name, which goes again.
    Twice {
        file: usize,
    },
    /// Two of the thread's files exchange their names.
    Exchange {
        file: usize,
        other: usize,
    },
    /// Gives free space back to the host.
    Trim,
    /// Time goes on, and what is due is written.
    Due,
    /// Holds the state of this moment, until the thread's next one, when it is looked at.
    Moment,
    /// The host has no room for the next so many writes.
    Full {
        writes: u32,
    },
    /// After so many more writes and flushes all fail.
    Break {
        after: u32,
    },
    /// Syncs a file of another thread.
    SyncOther {
        thread: usize,
        file: usize,
    },
    /// Does something with so many stripes of the shared file, from one of the thread's on.
    Lane {
        how: How,
        first: u64,
        count: u64,
    },
    LaneSync,
    LaneLook,
    /// The first thread gives the shared file another name.
    LaneMove {
        over: bool,
    },
}

/// What is done with a stripe.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    Write { passing: bool, synced: bool },
    Allocate(AllocateMode),
}

/// A step, and the thread that does it.
#[derive(Clone, Debug)]
pub(super) struct Timed {
    pub thread: usize,
    pub what: Do,
}

pub(super) fn script(seed: u64, shape: &Shape) -> Vec<Timed> {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let block = u64::from(shape.setup.block_size);
    // Of some seeds, the steps are mostly those that make flushes of several parts, and what comes between these.
    let is_dense = rng.percent(50);
    let mut steps = Vec::new();
    for thread in 0..shape.threads {
        for file in 0..FILES {
            steps.push(Timed { thread, what: Do::Make { file, named: file > 0 } });
        }
        for _ in 0..STEPS {
            let file = rng.index(FILES);
            let end = BLOCKS_MAX * block;
            if shape.is_wide && rng.percent(30) {
                steps.push(Timed { thread, what: rarer(&mut rng, file, end) });
                continue;
            }
            let what = match rng.below(100) {
                kind if is_dense && kind < 60 => match kind % 10 {
                    0 => Do::Make { file, named: rng.percent(50) },
                    1..4 => Do::Write { file, offset: rng.below(end / 4), len: (end / 2) as usize },
                    4..6 => Do::Sync,
                    6 => Do::Link { file },
                    _ => {
                        let thread = (thread + 1 + rng.index(shape.threads - 1)) % shape.threads;
                        Do::Visit { thread, file, reads: None }
                    }
                },
                0..8 => Do::Make { file, named: rng.percent(60) },
                8..26 => {
                    let offset = rng.below(end);
                    let most = if rng.percent(50) { end - offset } else { (4 * block).min(end - offset) };
                    Do::Write { file, offset, len: 1 + rng.below(most) as usize }
                }
                26..36 => Do::Scatter { file, block: rng.below(BLOCKS_MAX / 2), count: 1 + rng.below(BLOCKS_MAX / 4) },
                36..41 => Do::Truncate { file, size: if rng.percent(30) { 0 } else { rng.below(end) } },
                41..44 => Do::Punch { file, offset: rng.below(end), len: 1 + rng.below(end / 2) },
                44..50 => {
                    let over = rng.percent(40).then(|| rng.index(FILES)).filter(|&over| over != file);
                    Do::Rename { file, over, common: rng.percent(40) }
                }
                50..55 => Do::Link { file },
                55..57 => Do::Unlink { file },
                57..60 => Do::Close { file },
                60..67 => Do::Fsync { file },
                67..73 => Do::Sync,
                73..75 => Do::Settle,
                75..87 => {
                    let thread = (thread + 1 + rng.index(shape.threads - 1)) % shape.threads;
                    Do::Visit { thread, file, reads: rng.percent(40).then(|| rng.below(end)) }
                }
                87..93 => Do::Leave,
                93..97 => Do::Look { file },
                _ => Do::PowerCut,
            };
            steps.push(Timed { thread, what });
        }
    }
    // Names are sought in between, by numbers of their own: what a seed decides besides stays as it was.
    let mut rng = Rng::new(seed ^ 0xab5e_47ed);
    let mut sought = Vec::with_capacity(2 * steps.len());
    for step in steps {
        if rng.percent(40) {
            let what =
                Do::Seek { thread: rng.index(shape.threads), common: rng.percent(30), ahead: rng.below(4) as u32 };
            sought.push(Timed { thread: step.thread, what });
        }
        sought.push(step);
    }
    side_by_side(seed, shape, exchanging(seed, sought))
}

/// Adds exchanges of names, by numbers of their own.
fn exchanging(seed: u64, sought: Vec<Timed>) -> Vec<Timed> {
    let mut rng = Rng::new(seed ^ 0xe8c4_a26e);
    let mut all = Vec::with_capacity(sought.len());
    for step in sought {
        let thread = step.thread;
        all.push(step);
        if rng.percent(4) {
            let (file, other) = (rng.index(FILES), rng.index(FILES));
            all.push(Timed { thread, what: Do::Exchange { file, other } });
        }
    }
    all
}

/// Adds what threads do to each other's files and to the shared one, by numbers of its own. One that syncs does nothing else.
fn side_by_side(seed: u64, shape: &Shape, steps: Vec<Timed>) -> Vec<Timed> {
    let mut rng = Rng::new(seed ^ 0x51de_b15e);
    let other_than = |rng: &mut Rng, thread| (thread + 1 + rng.index(shape.threads - 1)) % shape.threads;
    let mut all = Vec::with_capacity(2 * steps.len());
    for step in steps {
        let thread = step.thread;
        if shape.has_syncer && thread == shape.threads - 1 {
            let what = match rng.below(100) {
                0..30 => Do::Sync,
                30..40 => Do::Settle,
                40..45 => Do::Trim,
                45..50 => Do::Due,
                50..55 => Do::PowerCut,
                _ => Do::SyncOther { thread: other_than(&mut rng, thread), file: rng.index(FILES) },
            };
            all.push(Timed { thread, what });
            continue;
        }
        if rng.percent(8) {
            let what = Do::SyncOther { thread: other_than(&mut rng, thread), file: rng.index(FILES) };
            all.push(Timed { thread, what });
        }
        if let Some(stripe) = shape.stripe.filter(|_| rng.percent(40)) {
            all.push(Timed { thread, what: in_lane(&mut rng, thread, stripe / u64::from(shape.setup.block_size)) });
        }
        all.push(step);
    }
    // Of some seeds the device breaks in the middle of things.
    if rng.percent(15) {
        let at = all.len() / 3 + rng.index(all.len() / 2);
        let thread = all[at].thread;
        all.insert(at, Timed { thread, what: Do::Break { after: rng.below(40) as u32 } });
    }
    all
}

/// A step in the shared file, whose stripes have so many blocks.
fn in_lane(rng: &mut Rng, thread: usize, blocks: u64) -> Do {
    let (first, count) = (rng.below(BLOCKS_MAX), 1 + rng.below((40 / (blocks + 1)).max(1)));
    match rng.below(100) {
        0..40 => {
            let how = How::Write { passing: rng.percent(15), synced: rng.percent(10) };
            Do::Lane { how, first, count: if rng.percent(20) { 4 * count } else { count } }
        }
        40..60 => {
            let modes = [
                AllocateMode::Punch,
                AllocateMode::Punch,
                AllocateMode::Zero { keep_size: rng.percent(50) },
                AllocateMode::KeepSize,
                AllocateMode::Extend,
            ];
            Do::Lane { how: How::Allocate(*rng.pick(&modes)), first, count: count.min(4) }
        }
        60..80 => Do::LaneSync,
        80..92 => Do::LaneLook,
        _ if thread == 0 => Do::LaneMove { over: rng.percent(70) },
        _ => Do::PowerCut,
    }
}

/// A step of the kinds that only some seeds have. `end`: of the largest file, in bytes.
fn rarer(rng: &mut Rng, file: usize, end: u64) -> Do {
    let offset = rng.below(end);
    let len = 1 + rng.below(end - offset) as usize;
    match rng.below(20) {
        0..2 => Do::Whole { file, len: 1 + rng.below(end / 3) as usize },
        2..4 => Do::WriteSynced { file, offset: rng.percent(60).then_some(offset), len: len.min(end as usize / 4) },
        4..6 => Do::WritePassing { file, offset, len },
        6..10 => {
            let modes =
                [AllocateMode::Extend, AllocateMode::KeepSize, AllocateMode::Zero { keep_size: rng.percent(50) }];
            Do::Allocate { file, mode: *rng.pick(&modes), offset, len: len as u64 }
        }
        10..13 => Do::Rewrite { file, len: rng.below(end / 2) as usize },
        13..15 => Do::Twice { file },
        15 => Do::Trim,
        16 => Do::Due,
        17 => Do::Moment,
        _ => Do::Full { writes: 1 + rng.below(3) as u32 },
    }
}
