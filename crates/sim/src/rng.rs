//! A small deterministic generator (splitmix64), and how a run gets its seed.

/// Splitmix64: a counter through a mixing function, so every seed is a good one.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        crate::pattern::mix(self.state)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0);
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True in `percent` of 100 cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.index(of.len())]
    }

    /// A generator of its own, so that what one part draws does not move the others.
    pub fn split(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

/// `MYRIAD_SEED` (decimal or 0x hexadecimal), or else `default`: runs are the same every time unless told otherwise.
pub fn seed_or(default: u64) -> u64 {
    number("MYRIAD_SEED").unwrap_or(default)
}

/// Whether `MYRIAD_LONG=1` asks for the long forms.
pub fn is_long() -> bool {
    std::env::var("MYRIAD_LONG").is_ok_and(|value| value != "0" && !value.is_empty())
}

/// A number from the environment.
pub fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    Some(parsed.unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// The line that replays a failure.
pub fn replay_line(package: &str, test: &str, seed: u64, more: &str) -> String {
    let (file, name) = test.split_once("::").unwrap_or((test, ""));
    format!("replay: MYRIAD_SEED={seed} {more} cargo test -p {package} --test {file} {name} -- --nocapture")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers() {
        let draw = |seed| (0..8).map(|_| Rng::new(seed).next_u64()).collect::<Vec<_>>();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let mut rng = Rng::new(1);
        let counts = (0..10_000).fold([0; 10], |mut counts, _| {
            counts[rng.index(10)] += 1;
            counts
        });
        assert!(counts.iter().all(|&count| (850..1150).contains(&count)), "{counts:?}");
    }
}
