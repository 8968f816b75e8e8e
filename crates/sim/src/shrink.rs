//! The fewest steps that still fail.

use crate::op::Step;

/// Minimises `steps` under `fails` by delta debugging (Zeller and Hildebrandt 2002): leaves out halves, then quarters,
/// down to single steps. `fails` must hold for `steps`; it is called at most `runs_max` times.
pub fn shrink<T: Clone>(steps: &[T], runs_max: usize, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut best = steps.to_vec();
    let mut runs = 0;
    let mut size = best.len().div_ceil(2);
    while size > 0 {
        let before = best.len();
        // From the end: later steps depend on earlier ones, not the other way round.
        let mut end = best.len();
        while end > 0 {
            let start = end.saturating_sub(size);
            let mut shorter = best.clone();
            shorter.drain(start..end);
            if runs == runs_max {
                return best;
            }
            runs += 1;
            if fails(&shorter) {
                best = shorter;
            }
            end = start;
        }
        size = match size {
            1 if best.len() == before => 0,
            1 => 1,
            _ => size.div_ceil(2),
        };
    }
    best
}

/// Steps as lines for a failure report.
pub fn show(steps: &[Step]) -> String {
    steps.iter().map(|step| format!("    user {} {:?}\n", step.cred, Shown(&step.op))).collect()
}

/// `Debug` of an operation, with paths as text.
struct Shown<'a>(&'a crate::op::Op);

impl std::fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Byte vectors print as `[97, 98]`; turn those runs into text.
        let plain = format!("{:?}", self.0);
        let mut rest = plain.as_str();
        while let Some(start) = rest.find('[') {
            let Some(len) = rest[start..].find(']') else { break };
            f.write_str(&rest[..start])?;
            let inside = &rest[start + 1..start + len];
            let bytes: Option<Vec<u8>> =
                inside.split(", ").filter(|part| !part.is_empty()).map(|part| part.parse().ok()).collect();
            match bytes {
                Some(bytes) => write!(f, "\"{}\"", bytes.escape_ascii())?,
                None => write!(f, "[{inside}]")?,
            }
            rest = &rest[start + len + 1..];
        }
        f.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;

    #[test]
    fn finds_the_two_steps_that_matter() {
        let steps: Vec<Step> = (0..100).map(|slot| Step { cred: 0, op: Op::Close { slot } }).collect();
        let has = |steps: &[Step], wanted| steps.iter().any(|step| step.op == Op::Close { slot: wanted });
        let small = shrink(&steps, 10_000, |steps| has(steps, 13) && has(steps, 77));
        assert_eq!(small.len(), 2);
        assert!(has(&small, 13) && has(&small, 77));
    }

    #[test]
    fn shows_paths_as_text() {
        let step = Step { cred: 1, op: Op::Unlink { path: b"a/\xff".into() } };
        assert_eq!(show(&[step]), "    user 1 Unlink { path: \"a/\\xff\" }\n");
    }
}
