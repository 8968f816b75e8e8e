//! Runs by name: the report of a failure says which run does it again, and on which volumes.
//!
//! | name | run |
//! |---|---|
//! | `amount/class/shape/rest` | power cuts: `crash::classes` |
//! | `held/seed/kind/number` | a checkpoint held at its request of this number: `paused` |
//! | `fault/seed` | every fault of a run |
//! | `full/filling/threads` | a volume filled and emptied |
//! | `meeting/seed` | threads that meet in the same files: `schedules` |
//! | `model/blocks/way/seed` | operations whose answers are the model's: `model` |
//! | `damage/number`, `damage/torn/kind` | a field at a limit, a block torn or gone: `damage` |

use crate::crash::campaign::Campaign;
use crate::crash::classes::RunId;
use crate::damage::Damage;
use crate::fault::campaign::{Counts, inject};
use crate::full::Fill;
use crate::model::Compared;
use crate::paused::Hold;
use crate::schedules::Meeting;
use crate::table::Row;
use std::sync::atomic::AtomicU64;

/// Does the run of this name on volumes of this row again and answers its failures; `None` if there is no such run.
pub fn replay(row: Row, name: &str) -> Option<Vec<String>> {
    if let Some(run) = RunId::named(row, name) {
        return Some(Campaign::default().run(&[run], 1, || false, |_| {}));
    }
    if let Some(hold) = Hold::named(row, name) {
        return Some(hold.run().err().into_iter().collect());
    }
    if let Some(fill) = Fill::named(row, name) {
        return Some(fill.run().err().into_iter().collect());
    }
    if let Some(meeting) = Meeting::named(row, name) {
        return Some(meeting.run(&AtomicU64::new(0)).err().into_iter().collect());
    }
    if let Some(model) = Compared::named(row, name) {
        return Some(model.run().err().into_iter().collect());
    }
    if let Some(damage) = Damage::named(row, name) {
        return Some(damage.run().err().into_iter().collect());
    }
    let seed = name.strip_prefix("fault/")?.parse().ok()?;
    Some(inject(row, &Counts::default(), &[seed], 1, || false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::classes::{Amount, Class, runs};
    use crate::full::Filling;
    use myriad_engine::Order;

    /// The names of full volumes and of held checkpoints were those of no run.
    #[test]
    fn every_name_is_that_of_a_run() {
        // Nobody fills it.
        let row = Row::default();
        let fill = Fill { row, filling: Filling::LongLinks, threads: 0 };
        let failure = fill.run().unwrap_err();
        assert!(
            failure.ends_with("\nreplay: scripts/reliability --choices order=log --replay full/long-links/0"),
            "{failure}"
        );
        assert_eq!(replay(row, "full/long-links/0"), Some(vec![failure]));
        assert_eq!(replay(row, "held/1/flush/1"), Some(Vec::new()));
        assert_eq!(replay(row, &runs(row, Class::One, Amount::Short)[0].name()), Some(Vec::new()));
        assert_eq!(replay(row, "meeting/1"), Some(Vec::new()));
        assert_eq!(replay(row, "damage/0"), Some(Vec::new()));
        for name in
            ["", "full/data", "meeting/x", "held/1/read/1", "fault/x", "one/inside/create+none", "model/512/x/1"]
        {
            assert_eq!(replay(row, name), None, "{name}");
        }
        // Of a volume without a log nobody expects what these look for.
        let unordered = Row { order: Order::None, ..row };
        for name in ["held/1/flush/1", "ci/one/inside/create+none"] {
            assert_eq!(replay(unordered, name), None, "{name}");
        }
        assert_eq!(replay(unordered, "meeting/1"), Some(Vec::new()));
    }
}
