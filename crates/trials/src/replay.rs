//! Runs by name: the report of a failure says which run does it again.
//!
//! | name | run |
//! |---|---|
//! | `amount/class/shape/rest` | power cuts: `crash::classes` |
//! | `held/seed/kind/number` | a checkpoint held at its request of this number: `paused` |
//! | `fault/seed` | every fault of a run |
//! | `full/filling/threads` | a volume filled and emptied |
//! | `meeting/seed` | threads that meet in the same files: `schedules` |

use crate::crash::campaign::Campaign;
use crate::crash::classes::RunId;
use crate::fault::campaign::{Counts, inject};
use crate::full::Fill;
use crate::paused::Hold;
use crate::schedules::Meeting;
use std::sync::atomic::AtomicU64;

/// The line that says how to do the run of this name again.
pub fn line(name: &str) -> String {
    format!("replay: scripts/reliability --replay {name}")
}

/// Does the run of this name again and answers its failures; `None` if there is no such run.
pub fn replay(name: &str) -> Option<Vec<String>> {
    if let Some(run) = RunId::named(name) {
        return Some(Campaign::default().run(&[run], 1, || false));
    }
    if let Some(hold) = Hold::named(name) {
        return Some(hold.run().err().into_iter().collect());
    }
    if let Some(fill) = Fill::named(name) {
        return Some(fill.run().err().into_iter().collect());
    }
    if let Some(meeting) = Meeting::named(name) {
        return Some(meeting.run(&AtomicU64::new(0)).err().into_iter().collect());
    }
    let seed = name.strip_prefix("fault/")?.parse().ok()?;
    Some(inject(&Counts::default(), &[seed], 1, || false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::classes::{Amount, Class, runs};
    use crate::full::Filling;

    /// The names of full volumes and of held checkpoints were those of no run.
    #[test]
    fn every_name_is_that_of_a_run() {
        // Nobody fills it.
        let fill = Fill { filling: Filling::LongLinks, threads: 0 };
        let failure = fill.run().unwrap_err();
        assert!(failure.ends_with("\nreplay: scripts/reliability --replay full/long-links/0"), "{failure}");
        assert_eq!(replay("full/long-links/0"), Some(vec![failure]));
        assert_eq!(replay("held/1/flush/1"), Some(Vec::new()));
        assert_eq!(replay(&runs(Class::One, Amount::Short)[0].name()), Some(Vec::new()));
        assert_eq!(replay("meeting/1"), Some(Vec::new()));
        for name in ["", "full/data", "meeting/x", "held/1/read/1", "fault/x", "one/inside/create+none"] {
            assert_eq!(replay(name), None, "{name}");
        }
    }
}
