//! Fifty thousand hostile images of the default, fewer of other choices, the same ones every time: `MYRIAD_SEED` draws others, `MYRIAD_LONG=1` makes it ten
//! million. One JSON line tells what was done.

use myriad_format::choices::Choices;
use myriad_sim::rng;
use myriad_trials::hostile::{Config, bases, run};
use myriad_trials::table;

#[global_allocator]
static MEMORY: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, usize::MAX);

/// Bases, images and engines of two threads hold some 30 MiB at a time; a size that a hostile image chose would be more.
const MEMORY_MAX: usize = 256 << 20;

#[test]
fn hostile_images_do_no_harm() {
    let seed = rng::seed_or(1);
    for choices in table::sets(&table::asked()) {
        let name = table::name_of(&choices);
        let is_default = choices == Choices::default();
        let config = if rng::is_long() {
            Config { seed, count: if is_default { 10_000_000 } else { 1_000_000 }, ..Config::default() }
        } else {
            // There may be many sets of choices that are not the default's.
            let count = if is_default { 50_000 } else { 2_500 };
            Config { seed, count, check_every: 64, change_every: 64, repair_every: 128, ..Config::default() }
        };
        let bases = bases::all(&choices).expect("sound volumes to start from");
        let summary = run(&bases, &config);
        summary.failures.iter().for_each(|failure| println!("{failure}"));
        println!("{name}: {}", summary.to_json());
        assert_eq!(summary.failure_count, 0, "{name}");
        assert_eq!(summary.images, config.count, "{name}");
        // The reliability report adds it to its own.
        assert!(summary.cpu_seconds > 0.0 && summary.to_json().contains("\"cpu_seconds\":"));
        // What never opens tests nothing.
        assert!(summary.opened > summary.images / 2 && summary.repaired > 0 && summary.errors > 0, "{name}");
        let most = MEMORY.max_allocated();
        assert!(most < MEMORY_MAX, "{name}: {most} bytes were allocated at once");
    }
}
