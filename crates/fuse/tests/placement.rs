//! Serving threads beside their callers: they give way to whoever wants their processor only while requests come, and
//! never for long.

mod common;

use common::mounted_with;
use myriad_fuse::{Options, TransportChoice};
use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Threads of this process whose policy is SCHED_IDLE, by proc(5).
fn placed() -> usize {
    let is_idle = |task: &std::io::Result<fs::DirEntry>| {
        let stat = fs::read_to_string(task.as_ref().unwrap().path().join("stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_ascii_whitespace().nth(38) == Some("5")
    };
    fs::read_dir("/proc/self/task").unwrap().filter(is_idle).count()
}

/// Sends a request for each name that is asked for the first time.
fn ask(missing: impl Fn(u64) -> PathBuf, until: impl Fn(u64) -> bool) {
    let mut i = 0;
    while !until(i) {
        assert!(!missing(i).exists());
        i += 1;
    }
}

/// One at a time: threads of one mount are not told from those of another here.
#[test]
fn beside_callers_while_they_ask() {
    skip_without_mounts!();
    let capabilities = rustix::thread::capabilities(None).unwrap().effective;
    if !capabilities.contains(rustix::thread::CapabilitySet::SYS_NICE) {
        println!("skipped: the capability CAP_SYS_NICE is missing");
        return;
    }
    serve_beside(TransportChoice::Classic);
    serve_beside(TransportChoice::Auto);
}

fn serve_beside(transport: TransportChoice) {
    let mount = mounted_with(Options { transport, ..Options::default() });
    let all_ordinary = || {
        (0..2000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            placed() == 0
        })
    };
    // Alone: it is placed, and then not any more.
    let was_placed = Cell::new(false);
    let look = |i: u64| {
        // By the time it is asked for again it may be gone.
        was_placed.set(i % 64 == 0 && placed() > 0);
        was_placed.get() || i == 1_000_000
    };
    ask(|i| mount.path(&format!("alone{i}")), look);
    assert!(all_ordinary());
    // Others want all processors all the time: every request is answered all the same.
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 * std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        ask(|i| mount.path(&format!("crowded{i}")), |i| i == 3000);
        end.store(true, Ordering::Relaxed);
    });
    assert!(all_ordinary());
    assert!(was_placed.get());
    mount.unmount();
}
