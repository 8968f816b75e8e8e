//! Which states of a trace are looked at.
//!
//! At each point all that was written so far may have arrived (a *prefix*: what killing the process leaves). Before each
//! flush the most is in flight, so there, and at the end, the other states are made; those at earlier points are among
//! them. A *subset*: some writes arrived, others not. *Torn*: of one write only sectors before or behind a tear.
//! *Scattered*: of each write any sectors. A discard counts as a write of zeros. With a log on its own device, subsets leave the two devices at points of
//! their own.

use super::trace::{Cursor, Part, Piece, Trace};
use myriad_device::Event;
use myriad_sim::rng::Rng;

/// How a state came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Prefix,
    Subset,
    Torn,
    Scattered,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Prefix, Self::Subset, Self::Torn, Self::Scattered];

    pub fn name(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::Subset => "subset",
            Self::Torn => "torn",
            Self::Scattered => "scattered",
        }
    }
}

/// Places where a discard may be torn, at most.
const DISCARD_TEARS: usize = 4;

/// How many states are made of what is in flight at one point.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Up to so many unflushed writes, every subset of them; beyond, each alone, all but each, and samples.
    pub all_up_to: usize,
    pub sampled: usize,
    /// Tears, each with and without the other writes; all if there are no more.
    pub tears: usize,
    pub scattered: usize,
}

/// The states to make at the cursor's point, most whole first.
pub fn states(trace: &Trace, cursor: &Cursor<'_>, bounds: &Bounds, rng: &mut Rng) -> Vec<(Kind, Vec<Piece>)> {
    let all = cursor.all();
    let mut states = vec![(Kind::Prefix, all.clone())];
    let next = trace.events.get(cursor.point());
    let most_in_flight = next.is_none_or(|next| next.event == Event::Flush);
    if all.is_empty() || !most_in_flight {
        return states;
    }
    subsets(&all, bounds, rng, &mut states);
    tears(trace, &all, bounds, rng, &mut states);
    for _ in 0..bounds.scattered {
        let scatter = |piece: &Piece| Piece { event: piece.event, part: Part::Scattered(rng.next_u64()) };
        states.push((Kind::Scattered, all.iter().map(scatter).collect()));
    }
    states
}

fn choose(all: &[Piece], keep: impl Fn(usize) -> bool) -> Vec<Piece> {
    all.iter().enumerate().filter(|(index, _)| keep(*index)).map(|(_, piece)| piece.clone()).collect()
}

fn subsets(all: &[Piece], bounds: &Bounds, rng: &mut Rng, states: &mut Vec<(Kind, Vec<Piece>)>) {
    let count = all.len();
    let mut add = |pieces| states.push((Kind::Subset, pieces));
    if count <= bounds.all_up_to {
        // The last mask is the prefix.
        (0..(1_u64 << count) - 1).for_each(|mask| add(choose(all, |index| mask >> index & 1 == 1)));
        return;
    }
    add(Vec::new());
    for one in 0..count.min(64) {
        // Of very many, some.
        let one = if count <= 64 { one } else { rng.index(count) };
        add(choose(all, |index| index == one));
        add(choose(all, |index| index != one));
    }
    for _ in 0..bounds.sampled {
        let keep: Vec<bool> = (0..count).map(|_| rng.percent(50)).collect();
        add(choose(all, |index| keep[index]));
    }
}

fn tears(trace: &Trace, all: &[Piece], bounds: &Bounds, rng: &mut Rng, states: &mut Vec<(Kind, Vec<Piece>)>) {
    let tears_of = |piece: &Piece| -> Vec<usize> {
        let places = 1..trace.sector_count(piece.event);
        match trace.events[piece.event].event {
            // One may be longer than all writes together, and would leave no tear to them.
            Event::Discard { .. } => places.clone().step_by(places.len().div_ceil(DISCARD_TEARS).max(1)).collect(),
            _ => places.collect(),
        }
    };
    let mut tears: Vec<(usize, usize)> = all
        .iter()
        .enumerate()
        .flat_map(|(index, piece)| tears_of(piece).into_iter().map(move |at| (index, at)))
        .collect();
    while tears.len() > bounds.tears {
        let one = rng.index(tears.len());
        tears.swap_remove(one);
    }
    for (torn, at) in tears {
        for part in [Part::Head(at), Part::Tail(at)] {
            // With all others, with those before it, and alone.
            for keep in [|_, _| true, |index, torn| index <= torn, |index, torn| index == torn] {
                let keep: fn(usize, usize) -> bool = keep;
                let mut pieces = choose(all, |index| keep(index, torn));
                let piece =
                    pieces.iter_mut().find(|piece| piece.event == all[torn].event).expect("the torn one is kept");
                piece.part = part.clone();
                states.push((Kind::Torn, pieces));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::trace::SECTOR;
    use myriad_device::{BlockDevice, MemoryDevice, RecordingDevice};
    use std::collections::HashMap;
    use std::sync::Arc;

    const ALL: Bounds = Bounds { all_up_to: 3, sampled: 5, tears: 100, scattered: 4 };

    /// So many writes of so many sectors, a flush, and the same again.
    fn planned(writes: usize, sectors: usize, bounds: Bounds) -> Vec<HashMap<Kind, usize>> {
        let device = RecordingDevice::new(MemoryDevice::new(1 << 20));
        let base: Arc<dyn BlockDevice> = Arc::new(device.inner().clone_image());
        for number in 0..2 * writes {
            device.write((number * sectors * SECTOR) as u64, &vec![1; sectors * SECTOR]).unwrap();
            if number % writes == writes - 1 {
                device.flush().unwrap();
            }
        }
        let trace = Trace::new(vec![base], vec![device.timed_snapshot()]);
        let (mut cursor, mut rng, mut planned) = (trace.cursor(), Rng::new(1), Vec::new());
        loop {
            let mut kinds = HashMap::new();
            for (kind, _) in states(&trace, &cursor, &bounds, &mut rng) {
                *kinds.entry(kind).or_default() += 1;
            }
            planned.push(kinds);
            if !cursor.advance().unwrap() {
                return planned;
            }
        }
    }

    #[test]
    fn all_states_of_few_writes() {
        let planned = planned(3, 4, ALL);
        assert_eq!(planned.len(), 9);
        for (point, kinds) in planned.iter().enumerate() {
            assert_eq!(kinds[&Kind::Prefix], 1);
            let before_flush = point % 4 == 3;
            // All subsets but the whole; three tears a write, of which either side arrives, with three choices of others.
            let expected = if before_flush { [7, 3 * 3 * 2 * 3, 4] } else { [0; 3] };
            let found = [Kind::Subset, Kind::Torn, Kind::Scattered].map(|kind| kinds.get(&kind).copied().unwrap_or(0));
            assert_eq!(found, expected, "point {point}");
        }
    }

    #[test]
    fn many_writes_are_sampled() {
        let kinds = &planned(10, 2, Bounds { tears: 6, ..ALL })[10];
        // None, each alone, all but each, and the samples.
        assert_eq!((kinds[&Kind::Subset], kinds[&Kind::Torn]), (1 + 2 * 10 + 5, 6 * 2 * 3));
    }
}
