//! A device without moving parts: each request takes as long wherever it goes, several are served at once, and all share one bandwidth.

use super::{Model, Request};

/// What such a device takes. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlatTimes {
    pub read_ns: u64,
    pub write_ns: u64,
    pub flush_ns: u64,
    pub read_bytes_per_second: u64,
    pub write_bytes_per_second: u64,
    /// Requests served side by side.
    pub lanes: usize,
}

pub struct Flat {
    times: FlatTimes,
    now_ns: u64,
}

impl Flat {
    pub fn new(times: FlatTimes) -> Self {
        assert!(times.lanes > 0, "some request is served");
        Self { times, now_ns: 0 }
    }
}

impl Model for Flat {
    fn serve(&mut self, batch: &[Request]) {
        let mut free_at = vec![0_u64; self.times.lanes.min(batch.len())];
        let mut moved_ns = 0;
        for request in batch {
            let (latency, bandwidth) = match request.is_write {
                true => (self.times.write_ns, self.times.write_bytes_per_second),
                false => (self.times.read_ns, self.times.read_bytes_per_second),
            };
            let transfer = (u128::from(request.length) * 1_000_000_000 / u128::from(bandwidth)) as u64;
            // The lane that is free first takes it; its data moves at the end, after all data before it.
            let lane = free_at.iter_mut().min().expect("at least one lane");
            moved_ns = (*lane + latency).max(moved_ns) + transfer;
            *lane = moved_ns;
        }
        self.now_ns += free_at.into_iter().max().unwrap_or(0);
    }

    fn flush(&mut self) {
        self.now_ns += self.times.flush_ns;
    }

    fn compute(&mut self, ns: u64) {
        self.now_ns += ns;
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: FlatTimes = FlatTimes {
        read_ns: 100,
        write_ns: 20,
        flush_ns: 500,
        read_bytes_per_second: 1_000_000_000,
        write_bytes_per_second: 500_000_000,
        lanes: 4,
    };

    fn taken(batches: &[&[Request]]) -> u64 {
        let mut flat = Flat::new(TIMES);
        batches.iter().for_each(|batch| flat.serve(batch));
        flat.now_ns()
    }

    #[test]
    fn requests_of_a_batch_are_served_side_by_side() {
        let read = Request::read(0, 10);
        assert_eq!(taken(&[&[read]]), 110);
        assert_eq!(taken(&[&[read], &[read]]), 220);
        assert_eq!(taken(&[&[read, read]]), 120);
        // The fifth waits for the first lane.
        assert_eq!(taken(&[&[read; 5]]), 110 + 110);
        assert_eq!(taken(&[&[Request::write(7, 10)]]), 40);
        let mut flat = Flat::new(TIMES);
        flat.serve(&[]);
        flat.flush();
        assert_eq!(flat.now_ns(), 500);
    }

    #[test]
    fn bandwidth_is_shared() {
        let big = Request::read(0, 1_000_000_000);
        assert_eq!(taken(&[&[big, big]]), 100 + 2_000_000_000);
    }
}
