//! A hundred thousand hostile images, the same ones every time: `MYRIAD_SEED` draws others, `MYRIAD_LONG=1` makes it ten
//! million. One JSON line tells what was done.

use myriad_sim::rng;
use myriad_trials::hostile::{Config, bases, run};

#[global_allocator]
static MEMORY: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, usize::MAX);

/// Bases, images and engines of two threads hold some 30 MiB at a time; a size that a hostile image chose would be more.
const MEMORY_MAX: usize = 256 << 20;

#[test]
fn hostile_images_do_no_harm() {
    let seed = rng::seed_or(1);
    let config = if rng::is_long() {
        Config { seed, count: 10_000_000, ..Config::default() }
    } else {
        Config { seed, count: 100_000, check_every: 64, change_every: 64, repair_every: 128, ..Config::default() }
    };
    let bases = bases::all().expect("sound volumes to start from");
    let summary = run(&bases, &config);
    for failure in &summary.failures {
        println!("{failure}");
        println!(
            "replay: cargo run -p myriad-trials --bin hostile-images -- --seed {seed} --from {} --count 1 --verbose \
             --check-every {} --change-every {} --repair-every {}",
            failure.index, config.check_every, config.change_every, config.repair_every
        );
    }
    println!("{}", summary.to_json());
    assert_eq!(summary.failure_count, 0);
    assert_eq!(summary.images, config.count);
    // The reliability report adds it to its own.
    assert!(summary.cpu_seconds > 0.0 && summary.to_json().contains("\"cpu_seconds\":"));
    // What never opens tests nothing.
    assert!(summary.opened > summary.images / 2 && summary.repaired > 0 && summary.errors > 0);
    let most = MEMORY.max_allocated();
    assert!(most < MEMORY_MAX, "{most} bytes were allocated at once");
}
