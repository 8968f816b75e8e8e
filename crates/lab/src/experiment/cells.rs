//! What runs, and in which order.

use super::factors::{Absent, Factor, combinations};
use super::places::Place;
use super::twins::Twin;
use crate::disk::Traced;
use crate::targets::Target;
use crate::targets::in_process::InProcess;
use crate::workloads::random::Random;
use myriad_device::MemoryDevice;
use myriad_engine::options::Options;

/// A setting of all factors.
#[derive(Clone, Debug)]
pub struct Combination {
    /// Names and choices, in the order of the factors.
    pub factors: Vec<(&'static str, String)>,
    pub options: Options,
}

/// One workload on one target with one combination, once, or once for each twin.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub item: usize,
    pub place: Place,
    /// `None`: the target has no options of ours.
    pub combination: Option<usize>,
    pub run: u32,
    /// `None`: it has no twins.
    pub twin: Option<Twin>,
    /// Place in the random order, from 0.
    pub order: usize,
}

/// All combinations that make a volume, and those that the engine refuses, with its reason.
pub fn usable(factors: &[Factor], base: &Options) -> (Vec<Combination>, Vec<Absent>) {
    let (mut usable, mut refused) = (Vec::new(), Vec::new());
    for settings in combinations(factors) {
        let mut options = base.clone();
        // A profile is a set of others: what is said of those counts, whatever the order in which it was said.
        let profiles = settings.iter().filter(|(row, _)| row.name == "profile");
        let others = settings.iter().filter(|(row, _)| row.name != "profile");
        profiles.chain(others).for_each(|(row, value)| row.set(&mut options, value.clone()));
        let named: Vec<(&'static str, String)> =
            settings.iter().map(|(row, value)| (row.name, value.to_string())).collect();
        let mut mount = options.mount.clone();
        mount.background = false;
        let device = Traced::new(MemoryDevice::new(TRIAL_BYTES));
        match InProcess::make_on(device, None, &options.mkfs, mount).and_then(|volume| Box::new(volume).close()) {
            Ok(()) => usable.push(Combination { factors: named, options }),
            Err(error) => {
                let words: Vec<String> = named.iter().map(|(name, choice)| format!("{name}={choice}")).collect();
                refused.push(Absent { factor: words.join(","), why: format!("{error:#}") });
            }
        }
    }
    (usable, refused)
}

/// Of a volume that only shows whether its options go together.
const TRIAL_BYTES: u64 = 1 << 30;

/// Every cell once in every run; the runs one after the other, the cells of each in a random order of its own. Twins run one after the other,
/// in a random order too: what disturbs the machine for a while disturbs them alike, and none is always the first.
pub fn cells(
    items: usize,
    places: &[Place],
    combinations: usize,
    runs: u32,
    twins: &[Option<Twin>],
    seed: u64,
) -> Vec<Cell> {
    let mut all = Vec::new();
    for run in 0..runs {
        let mut cells = Vec::new();
        for item in 0..items {
            for &place in places {
                let settings = if place.is_ours() { (0..combinations).map(Some).collect() } else { vec![None] };
                let cell = |combination| Cell { item, place, combination, run, twin: None, order: 0 };
                cells.extend(settings.into_iter().map(cell));
            }
        }
        Random::stream(seed, "cells", run as usize).shuffle(&mut cells);
        let mut random = Random::stream(seed, "twins", run as usize);
        all.extend(cells.into_iter().flat_map(|cell| {
            let mut twins = twins.to_vec();
            random.shuffle(&mut twins);
            twins.into_iter().map(move |twin| Cell { twin, ..cell })
        }));
    }
    all.iter_mut().enumerate().for_each(|(order, cell)| cell.order = order);
    all
}

#[cfg(test)]
mod tests {
    use super::super::factors::factors;
    use super::*;

    #[test]
    fn every_cell_is_there_once_a_run_in_an_order_of_its_own() {
        let places = [Place::Process, Place::Sqlite];
        let all = cells(3, &places, 4, 2, &[None], 9);
        assert_eq!(all.len(), 2 * 3 * (4 + 1));
        let key = |cell: &Cell| (cell.item, cell.place.name(), cell.combination);
        let (first, second) = all.split_at(15);
        let mut seen: Vec<_> = first.iter().map(key).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 15);
        assert!(first.iter().all(|cell| cell.run == 0) && second.iter().all(|cell| cell.run == 1));
        assert_ne!(first.iter().map(key).collect::<Vec<_>>(), second.iter().map(key).collect::<Vec<_>>());
        let again = cells(3, &places, 4, 2, &[None], 9);
        assert!(all.iter().map(key).eq(again.iter().map(key)));
        assert!(all.iter().enumerate().all(|(order, cell)| cell.order == order));
    }

    /// Twins change nothing of the order of the others, stand side by side, and each is the first now and then.
    #[test]
    fn twins_stand_side_by_side_in_a_random_order() {
        let places = [Place::Process, Place::Sqlite];
        let twins = Twin::of(true, true);
        let all = cells(3, &places, 4, 2, &twins, 9);
        let alone = cells(3, &places, 4, 2, &[None], 9);
        assert_eq!(all.len(), 3 * alone.len());
        let key = |cell: &Cell| (cell.item, cell.place.name(), cell.combination, cell.run);
        for (group, one) in all.chunks(3).zip(&alone) {
            assert!(group.iter().all(|cell| key(cell) == key(one)));
            let mut there: Vec<Option<Twin>> = group.iter().map(|cell| cell.twin).collect();
            there.sort();
            assert_eq!(there, twins);
        }
        for twin in twins {
            let first = all.chunks(3).filter(|group| group[0].twin == twin).count();
            assert!((3..=20).contains(&first), "{twin:?} is the first of {first} of 30");
        }
        assert!(all.iter().enumerate().all(|(order, cell)| cell.order == order));
    }

    /// The engine's own reason is kept: a soft update needs what one sector can hold.
    #[test]
    fn combinations_that_no_volume_has_are_refused_with_the_reason() {
        let (found, absent) = factors(&["order=log/softdep".into(), "profile=myriad/ffs".into()]).unwrap();
        assert!(absent.is_empty(), "{absent:?}");
        let (usable, refused) = usable(&found, &Options::default());
        assert!(usable.iter().any(|one| one.factors == [("order", "softdep".into()), ("profile", "ffs".into())]));
        assert!(refused.iter().any(|absent| absent.factor == "order=softdep,profile=myriad" && !absent.why.is_empty()));
        assert_eq!(usable.len() + refused.len(), 4);
    }
}
