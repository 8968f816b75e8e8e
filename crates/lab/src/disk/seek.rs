//! How long the arm takes: a curve through what makers publish.

/// Time of a seek by its distance in cylinders: in proportion to the square root over short distances, where the arm only speeds up and
/// brakes, and linear over long ones, where it coasts (Ruemmler and Wilkes, "An introduction to disk drive modeling", 1994).
///
/// Makers publish three points: one track, the average, and the full stroke. The average is over all pairs of cylinders (IBM's
/// specifications give the formula), so the bend of the curve, at a third of the stroke, is put where that average comes out.
#[derive(Clone, Debug)]
pub struct SeekCurve {
    single_ns: f64,
    bend_ns: f64,
    full_ns: f64,
    bend: f64,
    longest: f64,
}

impl SeekCurve {
    pub fn new(single_us: u32, average_us: u32, full_us: u32, cylinders: u32) -> Self {
        assert!(cylinders > 9 && single_us <= average_us && average_us <= full_us, "a drive has a stroke");
        let longest = f64::from(cylinders - 1);
        let with_bend = |bend_ns| Self {
            single_ns: f64::from(single_us) * 1e3,
            bend_ns,
            full_ns: f64::from(full_us) * 1e3,
            bend: longest / 3.0,
            longest,
        };
        // The average is linear in the height of the bend: two heights give the third.
        let wanted = f64::from(average_us) * 1e3;
        let (low, high) = (wanted * 0.8, wanted * 1.2);
        let (at_low, at_high) = (with_bend(low).average_ns(), with_bend(high).average_ns());
        with_bend(low + (wanted - at_low) / (at_high - at_low) * (high - low))
    }

    pub fn ns(&self, cylinders: u32) -> u64 {
        if cylinders == 0 { 0 } else { self.at(f64::from(cylinders)) as u64 }
    }

    fn at(&self, distance: f64) -> f64 {
        if distance <= self.bend {
            let rise = (self.bend_ns - self.single_ns) / (self.bend.sqrt() - 1.0);
            self.single_ns + rise * (distance.sqrt() - 1.0)
        } else {
            self.bend_ns + (self.full_ns - self.bend_ns) * (distance - self.bend) / (self.longest - self.bend)
        }
    }

    /// Over all pairs of different cylinders: a distance `n` of `max` occurs `max + 1 - n` times.
    pub fn average_ns(&self) -> f64 {
        let max = self.longest as u32;
        let sum: f64 = (1..=max).map(|n| f64::from(max + 1 - n) * self.at(f64::from(n))).sum();
        sum / (f64::from(max) * (f64::from(max) + 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_goes_through_what_is_published() {
        let curve = SeekCurve::new(1_200, 8_500, 14_700, 27_724);
        assert_eq!((curve.ns(0), curve.ns(1)), (0, 1_200_000));
        assert!(curve.ns(27_723).abs_diff(14_700_000) < 10, "{}", curve.ns(27_723));
        assert!((curve.average_ns() / 8_500_000.0 - 1.0).abs() < 1e-6, "{}", curve.average_ns());
        let times: Vec<u64> = (0..27_724).map(|distance| curve.ns(distance)).collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "a longer way never takes less");
    }
}
