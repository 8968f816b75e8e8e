//! Where serving threads run: beside who asks.
//!
//! A request is two wake-ups, of a serving thread and of its caller. Across processors, each costs what it takes to leave
//! an idle state: often several times the request. The scheduler prefers an idle processor for whoever wakes up, and so
//! carries caller and server apart again and again. Two things together keep them on one processor:
//!
//! - the serving thread is bound to its caller's processor;
//! - it has the policy SCHED_IDLE. A processor that runs nothing else counts as idle to the scheduler, so a caller that is
//!   woken there stays there. It takes over at once; the server goes on when its caller sleeps, most often because the
//!   next request is there.
//!
//! The price: such a thread waits while others want its processor. So it is *placed* only while requests come one after
//! the other, and a watch looks every two milliseconds whether it gets on; if not, it is an ordinary thread again, and
//! stays one for a while ([`Judge`]). Changing back takes CAP_SYS_NICE: without it, nothing of this is done.
//!
//! Where idle processors halt, a wake-up takes 40 to 60 us across processors and 2 us on one; the volume needs one. Unpacking the
//! kernel source by tar took 14 s without this and 6 to 9 s with it, its removal 3.5 s and 1.2 to 1.5 s. Binding without the
//! policy gains nothing: the caller, woken while the server still runs, is moved to another processor. Keeping processors from
//! idling (`/dev/cpu_dma_latency`) is as fast, but for the whole machine, and costs its power. A scheduler that keeps both on one
//! processor by itself, or a FUSE that says which processor to serve on, would undo this.

use super::device::Device;
use parking_lot::{Condvar, Mutex};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the watch looks, while requests come.
const TICK: Duration = Duration::from_millis(2);
/// Requests in a tick from which on callers spend their time waiting for us.
const BUSY: u64 = 16;
/// Ticks without a request after which nobody is watched.
const QUIET: u32 = 10;
/// Ticks after which a thread that stands still is taken to be waited for.
const STANDS: u32 = 3;
/// A placement that lasts so long was worth it.
const WORTH: Duration = Duration::from_millis(20);
/// How long threads stay ordinary after a placement that did not work out, and at most if it never does.
const PAUSE_MIN: Duration = Duration::from_millis(4);
const PAUSE_MAX: Duration = Duration::from_millis(1600);
/// Threads that are asked in one tick whether they could run: it takes a few microseconds each.
const ASKED: usize = 16;
/// A serving thread wakes the watch by every so many requests.
const WAKE_EVERY: u64 = 32;

/// In a seat that no thread has. To the scheduler's calls it would be whoever calls.
const NOBODY: i32 = 0;

/// What a serving thread shows to the watch. Only that thread writes.
#[derive(Default)]
struct Seat {
    thread: AtomicI32,
    /// Requests begun and requests answered, together: odd while one is in work.
    steps: AtomicU64,
    /// Thread that asked last.
    caller: AtomicU32,
    /// How often that was another one than before.
    changes: AtomicU64,
}

/// How threads share requests.
pub enum Sharing {
    /// All take from one queue, which is read by this descriptor. Placed, the first serves alone, bound to its caller's
    /// processor.
    One(Device),
    /// Each so many have a queue of their own, and are bound to its processor.
    Queues(usize),
}

/// The serving threads of a transport, and the watch over them.
pub struct Placement {
    seats: Vec<Seat>,
    sharing: Sharing,
    enabled: bool,
    /// Only the first thread is to take requests.
    alone: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    /// The watch is to be woken when requests come.
    asleep: AtomicBool,
}

#[derive(Default)]
struct State {
    ended: bool,
    woken: bool,
}

/// The watch, until it is dropped.
pub struct Watch {
    placement: Arc<Placement>,
    thread: Option<JoinHandle<()>>,
}

impl Placement {
    pub fn new(threads: usize, sharing: Sharing, wanted: bool) -> Arc<Self> {
        Arc::new(Self {
            seats: (0..threads).map(|_| Seat::default()).collect(),
            sharing,
            enabled: wanted && is_permitted(),
            alone: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
            asleep: AtomicBool::new(false),
        })
    }

    /// Watches the threads from now on.
    pub fn watch(self: &Arc<Self>) -> Watch {
        let thread = self.enabled.then(|| {
            let placement = Arc::clone(self);
            std::thread::Builder::new().name("myriad-watch".into()).spawn(move || placement.run())
        });
        // Without a watch nobody is ever placed.
        Watch { placement: Arc::clone(self), thread: thread.and_then(Result::ok) }
    }

    /// The calling thread serves from now on, as number `seat`.
    pub fn take_seat(&self, seat: usize) {
        self.seats[seat].thread.store(rustix::thread::gettid().as_raw_pid(), Ordering::Relaxed);
        if self.enabled {
            keep_io_priority();
        }
    }

    /// The thread serves no more.
    pub fn leave_seat(&self, seat: usize) {
        let _state = self.state.lock();
        self.seats[seat].thread.store(NOBODY, Ordering::Relaxed);
    }

    /// Placed, the first thread serves alone.
    fn is_alone(&self) -> bool {
        matches!(self.sharing, Sharing::One(_))
    }

    /// Waits while this thread is not to take requests.
    pub fn wait_for_turn(&self, seat: usize) {
        if seat != 0 && self.alone.load(Ordering::Relaxed) {
            let mut state = self.state.lock();
            while self.alone.load(Ordering::Relaxed) && !state.ended {
                self.changed.wait(&mut state);
            }
        }
    }

    /// A request of thread `caller` (0: of nobody in particular) has come.
    pub fn begin(&self, seat: usize, caller: u32) {
        let seat = &self.seats[seat];
        if caller != 0 && seat.caller.load(Ordering::Relaxed) != caller {
            seat.caller.store(caller, Ordering::Relaxed);
            seat.changes.store(seat.changes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        let steps = seat.steps.load(Ordering::Relaxed) | 1;
        seat.steps.store(steps, Ordering::Relaxed);
        if (steps / 2) % WAKE_EVERY == 0 && self.asleep.load(Ordering::Relaxed) {
            self.state.lock().woken = true;
            self.changed.notify_all();
        }
    }

    /// It is answered.
    pub fn end(&self, seat: usize) {
        let steps = &self.seats[seat].steps;
        steps.store((steps.load(Ordering::Relaxed) | 1) + 1, Ordering::Relaxed);
    }

    fn run(&self) {
        let usual = sched_getaffinity(None).ok();
        let mut judge = Judge::new(Instant::now());
        let mut seen: Vec<Seen> = self.seats.iter().map(Seen::of).collect();
        let mut processor = None;
        let turns = self.seats.len().div_ceil(ASKED);
        let mut turn = 0;
        while self.pause(judge.is_quiet()) {
            turn = (turn + 1) % turns;
            let tick = self.look(&mut seen, |i| i % turns == turn, judge.placed);
            match judge.tick(Instant::now(), &tick, self.is_alone()) {
                Some(Change::Place) => self.place(),
                Some(Change::Calm) => {
                    processor = None;
                    self.calm(usual.as_ref());
                }
                None => {}
            }
            if judge.placed
                && self.is_alone()
                && let Some(wanted) = processor_of(self.seats[0].caller.load(Ordering::Relaxed))
                && usual.is_some_and(|usual| usual.is_set(wanted))
                && processor != Some(wanted)
            {
                processor = Some(wanted);
                let mut only = CpuSet::new();
                only.set(wanted);
                self.bind(&only);
            }
        }
        self.calm(usual.as_ref());
    }

    /// What has happened since `seen`. Of threads that have finished nothing, those that `asked` says are asked why.
    fn look(&self, seen: &mut [Seen], asked: impl Fn(usize) -> bool, placed: bool) -> Tick {
        let mut tick = Tick::default();
        let (group, count) = match self.sharing {
            // The others wait for their turn.
            Sharing::One(_) if placed => (1, 1),
            Sharing::One(_) => (self.seats.len(), self.seats.len()),
            Sharing::Queues(threads) => (threads, self.seats.len()),
        };
        for start in (0..count).step_by(group) {
            let mut part = Tick::default();
            let mut stands = false;
            for (i, seen) in seen.iter_mut().enumerate().skip(start).take(group) {
                let before = std::mem::replace(seen, Seen::of(&self.seats[i]));
                if part.add(&before, seen) || !asked(i) {
                    continue;
                }
                let in_work = seen.steps & 1 == 1;
                match is_runnable(self.seats[i].thread.load(Ordering::Relaxed)) {
                    true if in_work => part.starved = true,
                    true => stands = true,
                    false => part.blocked |= in_work,
                }
            }
            // Between two requests: somebody may wait, or its caller may just be busy.
            if stands && part.requests == 0 {
                match &self.sharing {
                    Sharing::One(device) => part.starved |= device.has_message(),
                    Sharing::Queues(_) => part.stands = true,
                }
            }
            tick.merge(&part);
        }
        tick
    }

    /// Waits for the next tick, or for requests if none came lately. False at the end.
    fn pause(&self, quiet: bool) -> bool {
        let mut state = self.state.lock();
        if quiet {
            state.woken = false;
            self.asleep.store(true, Ordering::Relaxed);
            while !state.ended && !state.woken {
                self.changed.wait(&mut state);
            }
            self.asleep.store(false, Ordering::Relaxed);
        }
        let until = Instant::now() + TICK;
        while !state.ended && !self.changed.wait_until(&mut state, until).timed_out() {}
        !state.ended
    }

    fn place(&self) {
        // Nobody leaves a seat meanwhile: a thread's number may be another program's after that.
        let _state = self.state.lock();
        self.alone.store(self.is_alone(), Ordering::Relaxed);
        let placed = if self.is_alone() { &self.seats[..1] } else { &self.seats[..] };
        for thread in placed.iter().map(|seat| seat.thread.load(Ordering::Relaxed)).filter(|&thread| thread != NOBODY) {
            set_policy(thread, libc::SCHED_IDLE);
        }
    }

    /// Makes all threads ordinary: those that io_uring made for a placed thread have its policy.
    fn calm(&self, usual: Option<&CpuSet>) {
        for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            if let Some(thread) = thread.file_name().to_str().and_then(|name| name.parse().ok())
                && policy(thread) == libc::SCHED_IDLE
            {
                set_policy(thread, libc::SCHED_OTHER);
            }
        }
        if self.is_alone() {
            if let Some(usual) = usual {
                self.bind(usual);
            }
            let _state = self.state.lock();
            self.alone.store(false, Ordering::Relaxed);
            self.changed.notify_all();
        }
    }

    /// Binds the first thread.
    fn bind(&self, processors: &CpuSet) {
        if let Some(thread) = Pid::from_raw(self.seats[0].thread.load(Ordering::Relaxed)) {
            // A processor that has gone meanwhile: the thread stays where it is.
            let _ = sched_setaffinity(Some(thread), processors);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.placement.state.lock().ended = true;
        self.placement.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It holds nothing that a panic of it would spoil.
            let _ = thread.join();
        }
    }
}

/// A seat at one moment.
struct Seen {
    steps: u64,
    caller: u32,
    changes: u64,
}

impl Seen {
    fn of(seat: &Seat) -> Self {
        Self {
            steps: seat.steps.load(Ordering::Relaxed),
            caller: seat.caller.load(Ordering::Relaxed),
            changes: seat.changes.load(Ordering::Relaxed),
        }
    }
}

/// What happened in one tick, of all threads or some.
#[derive(Default)]
struct Tick {
    requests: u64,
    /// A thread was in the same request all the time, waiting.
    blocked: bool,
    /// Somebody waited for a thread that could have run and did not.
    starved: bool,
    /// The same, if anybody waited.
    stands: bool,
    /// Who asked, and whether others did too.
    caller: u32,
    several: bool,
}

impl Tick {
    /// Counts what a thread did; false if that is nothing.
    fn add(&mut self, before: &Seen, now: &Seen) -> bool {
        if now.steps == before.steps {
            return false;
        }
        let requests = (now.steps - before.steps).div_ceil(2);
        let several = now.changes - before.changes > 1 + requests / 8;
        self.merge(&Tick { requests, several, caller: now.caller, ..Tick::default() });
        true
    }

    fn merge(&mut self, other: &Tick) {
        self.requests += other.requests;
        self.blocked |= other.blocked;
        self.starved |= other.starved;
        self.stands |= other.stands;
        if other.caller != 0 {
            self.several |= other.several || self.caller != 0 && self.caller != other.caller;
            self.caller = other.caller;
        }
    }
}

/// Decides when threads are placed.
struct Judge {
    placed: bool,
    since: Instant,
    not_before: Instant,
    pause: Duration,
    quiet: u32,
    stands: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    Place,
    Calm,
}

impl Judge {
    fn new(now: Instant) -> Self {
        Self { placed: false, since: now, not_before: now, pause: PAUSE_MIN, quiet: QUIET, stands: 0 }
    }

    /// No request came for a while, and nobody is placed.
    fn is_quiet(&self) -> bool {
        self.quiet >= QUIET
    }

    /// `alone`: one thread would serve all, which does for one caller.
    fn tick(&mut self, now: Instant, tick: &Tick, alone: bool) -> Option<Change> {
        self.quiet = if tick.requests == 0 { self.quiet.saturating_add(1) } else { 0 };
        self.stands = if tick.stands { self.stands + 1 } else { 0 };
        let crowded = alone && tick.several;
        if self.placed {
            let failed = tick.starved || tick.blocked || crowded || self.stands == STANDS;
            if !failed && !self.is_quiet() {
                return None;
            }
            self.placed = false;
            if failed {
                let worked_out = now - self.since >= WORTH.max(self.pause);
                self.pause = if worked_out { PAUSE_MIN } else { (self.pause * 2).min(PAUSE_MAX) };
                self.not_before = now + self.pause;
            }
            return Some(Change::Calm);
        }
        if tick.requests < BUSY || crowded || tick.blocked || now < self.not_before {
            return None;
        }
        self.placed = true;
        self.stands = 0;
        self.since = now;
        Some(Change::Place)
    }
}

/// Whether a thread can be placed and made ordinary again. Tried by a thread that may be lost to it.
fn is_permitted() -> bool {
    if policy(0) != libc::SCHED_OTHER {
        // Whoever started us wants something else.
        return false;
    }
    let there_and_back = || set_policy(0, libc::SCHED_IDLE) && set_policy(0, libc::SCHED_OTHER);
    std::thread::spawn(there_and_back).join().unwrap_or(false)
}

/// Of a thread, or of the calling one (0). By number, and so is the next one: musl has functions of these names that do nothing.
#[allow(unsafe_code, reason = "a system call that no crate of ours wraps")]
fn policy(thread: i32) -> i32 {
    // SAFETY: takes a number and touches no memory.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) as i32 }
}

#[allow(unsafe_code, reason = "a system call that no crate of ours wraps")]
fn set_policy(thread: i32, policy: i32) -> bool {
    // All that the kernel's `struct sched_param` has.
    let priority: libc::c_int = 0;
    // SAFETY: reads `priority`, which outlives the call.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const priority) == 0 }
}

/// Gives the calling thread the usual I/O priority by name: else it follows the policy, down to "when nobody else".
#[allow(unsafe_code, reason = "a system call that no crate wraps")]
fn keep_io_priority() {
    const WHO_PROCESS: libc::c_long = 1;
    const BEST_EFFORT_4: libc::c_long = 2 << 13 | 4;
    // SAFETY: takes numbers and touches no memory. On a kernel without it there are no I/O priorities.
    unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0 as libc::c_long, BEST_EFFORT_4) };
}

/// The processor that a thread ran on last.
fn processor_of(thread: u32) -> Option<usize> {
    stat_field(&std::fs::read(format!("/proc/{thread}/stat")).ok()?, 39)?.parse().ok()
}

/// Whether one of our threads runs or wants to.
fn is_runnable(thread: i32) -> bool {
    let path = format!("/proc/self/task/{thread}/stat");
    let state = |path: &Path| -> io::Result<bool> { Ok(stat_field(&std::fs::read(path)?, 3) == Some("R")) };
    state(Path::new(&path)).unwrap_or(false)
}

/// A field of /proc/PID/stat, numbered as in proc(5), from 3 on: the second may hold any characters.
fn stat_field(stat: &[u8], number: usize) -> Option<&str> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    std::str::from_utf8(&stat[end + 1..]).ok()?.split_ascii_whitespace().nth(number - 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY_TICK: Tick =
        Tick { requests: 100, blocked: false, starved: false, stands: false, caller: 7, several: false };

    fn placed() -> (Judge, Instant) {
        let now = Instant::now();
        let mut judge = Judge::new(now);
        assert_eq!(judge.tick(now, &BUSY_TICK, true), Some(Change::Place));
        (judge, now)
    }

    #[test]
    fn threads_are_placed_while_one_caller_asks_and_asks() {
        let now = Instant::now();
        let mut judge = Judge::new(now);
        assert!(judge.is_quiet());
        assert_eq!(judge.tick(now, &Tick { requests: BUSY - 1, ..BUSY_TICK }, true), None);
        assert_eq!(judge.tick(now, &Tick { several: true, ..BUSY_TICK }, true), None);
        assert_eq!(judge.tick(now, &Tick { blocked: true, ..BUSY_TICK }, true), None);
        assert_eq!(judge.tick(now, &BUSY_TICK, true), Some(Change::Place));
        assert_eq!(judge.tick(now, &Tick { requests: 1, ..BUSY_TICK }, true), None);
        // A thread for each processor serves any number of callers.
        assert_eq!(judge.tick(now, &Tick { several: true, ..BUSY_TICK }, false), None);
        assert_eq!(judge.tick(now, &Tick { several: true, ..BUSY_TICK }, true), Some(Change::Calm));
    }

    #[test]
    fn who_does_not_get_on_is_ordinary_again_and_longer_each_time() {
        let (mut judge, mut now) = placed();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            now += TICK;
            assert_eq!(judge.tick(now, &Tick { starved: true, requests: 0, ..BUSY_TICK }, true), Some(Change::Calm));
            let start = now;
            while judge.tick(now, &BUSY_TICK, true).is_none() {
                now += TICK;
            }
            pauses.push((now - start).as_millis());
        }
        assert_eq!(pauses, [8, 16, 32, 64, 128, 256, 512, 1024, 1600, 1600]);
        // It worked for longer than it was kept from it: all is forgiven.
        now += PAUSE_MAX;
        assert_eq!(judge.tick(now, &Tick { starved: true, ..BUSY_TICK }, true), Some(Change::Calm));
        assert_eq!(judge.not_before - now, PAUSE_MIN);
    }

    #[test]
    fn silence_ends_a_placement_without_a_pause() {
        let (mut judge, now) = placed();
        let silence = Tick { requests: 0, ..BUSY_TICK };
        for _ in 1..QUIET {
            assert_eq!(judge.tick(now, &silence, true), None);
        }
        assert_eq!(judge.tick(now, &silence, true), Some(Change::Calm));
        assert!(judge.is_quiet());
        assert_eq!(judge.tick(now, &BUSY_TICK, true), Some(Change::Place));
    }

    #[test]
    fn a_thread_may_stand_still_for_a_moment() {
        let (mut judge, now) = placed();
        let standing = Tick { stands: true, requests: 0, ..BUSY_TICK };
        for tick in [&standing, &standing, &BUSY_TICK, &standing, &standing] {
            assert_eq!(judge.tick(now, tick, false), None);
        }
        assert_eq!(judge.tick(now, &standing, false), Some(Change::Calm));
    }

    #[test]
    fn one_caller_is_told_from_several() {
        let seen = |steps, caller, changes| Seen { steps, caller, changes };
        let tick = |now: [Seen; 2]| {
            let mut tick = Tick::default();
            for (before, now) in [seen(4, 7, 1), seen(0, 0, 0)].iter().zip(&now) {
                assert_eq!(tick.add(before, now), before.steps != now.steps);
            }
            tick
        };
        let of_one = tick([seen(24, 7, 1), seen(21, 7, 1)]);
        assert_eq!((of_one.requests, of_one.several), (21, false));
        assert!(tick([seen(24, 7, 1), seen(21, 8, 1)]).several);
        assert!(tick([seen(24, 8, 6), seen(0, 0, 0)]).several);
        assert!(!tick([seen(24, 8, 2), seen(0, 0, 0)]).several);
    }

    /// A thread of the test sits in a seat, and does what the watch is to see.
    #[test]
    fn waiting_is_told_from_starving() {
        let placement = Placement::new(2, Sharing::Queues(2), false);
        let look = |seen: &mut [Seen]| placement.look(seen, |_| true, true);
        let mut seen: Vec<Seen> = placement.seats.iter().map(Seen::of).collect();
        // Both seats are this thread's, and it runs.
        placement.take_seat(0);
        placement.take_seat(1);
        placement.begin(0, 7);
        let tick = look(&mut seen);
        assert_eq!((tick.requests, tick.starved, tick.stands), (1, false, false), "one of the two got on");
        assert!(look(&mut seen).starved, "in a request, and it goes on with nothing");
        placement.end(0);
        look(&mut seen);
        let tick = look(&mut seen);
        assert!(tick.stands && !tick.starved && !tick.blocked, "between requests");
        let (start, end) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                placement.take_seat(0);
                placement.take_seat(1);
                placement.begin(1, 7);
                start.wait();
                end.wait();
            });
            start.wait();
            look(&mut seen);
            while !look(&mut seen).blocked {
                // Not asleep yet.
            }
            end.wait();
            sleeper.join().unwrap();
        });
    }

    #[test]
    fn only_who_sits_is_placed() {
        let placement = Placement::new(2, Sharing::Queues(2), false);
        let policies = std::thread::scope(|scope| {
            let sitting = scope.spawn(|| {
                placement.take_seat(0);
                placement.place();
                let placed = policy(0);
                placement.leave_seat(0);
                placed
            });
            // The thread is gone, and nobody has taken the other seat.
            let sat = sitting.join().unwrap();
            placement.place();
            (sat, policy(0))
        });
        assert_eq!(policies, (libc::SCHED_IDLE, libc::SCHED_OTHER));
    }

    #[test]
    fn the_kernel_s_line_about_a_thread_is_read() {
        let line = b"12 (a) R ) b) S 3 4";
        assert_eq!((stat_field(line, 3), stat_field(line, 4), stat_field(line, 6)), (Some("S"), Some("3"), None));
        assert_eq!(stat_field(b"", 3), None);
        let mut one = CpuSet::new();
        let here = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|&i| here.is_set(i)).unwrap();
        one.set(first);
        std::thread::spawn(move || {
            sched_setaffinity(None, &one).unwrap();
            let me = rustix::thread::gettid().as_raw_pid();
            assert_eq!(processor_of(me as u32), Some(first));
            assert!(is_runnable(me));
        })
        .join()
        .unwrap();
    }
}
