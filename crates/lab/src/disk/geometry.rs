//! Where a sector lies, and when it passes the head.
//!
//! Sectors are numbered along a track, then the tracks of a cylinder head by head, then cylinder by cylinder from the outside. Outer
//! zones have more sectors on a track. Each track begins a little later in the turn than the one before it (skew), by as much as the
//! change of heads or cylinders takes, so that a long transfer goes on without waiting for a turn.

/// Bytes of a sector.
pub const SECTOR_BYTES: u64 = 512;

/// Added to every skew, so that a head that is ready at the last moment is ready.
const MARGIN_NS: u64 = 20_000;

#[derive(Clone, Debug)]
struct Zone {
    first_cylinder: u32,
    first_sector: u64,
    sectors_per_track: u32,
}

/// What a drive is made of. Times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Geometry {
    heads: u32,
    zones: Vec<Zone>,
    revolution_ns: u64,
    head_skew_ns: u64,
    cylinder_skew_ns: u64,
    sectors: u64,
}

/// A sector's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub cylinder: u32,
    pub head: u32,
    pub sector: u32,
    pub sectors_per_track: u32,
}

impl Geometry {
    /// Zones of as many cylinders each, with sectors a track that fall evenly from `outer` to `inner`.
    pub fn new(
        heads: u32,
        cylinders: u32,
        zones: u32,
        (outer, inner): (u32, u32),
        revolution_ns: u64,
        (head_switch_ns, cylinder_switch_ns): (u64, u64),
    ) -> Self {
        assert!(heads > 0 && zones > 1 && cylinders >= zones && outer >= inner && inner > 0, "a drive has tracks");
        let mut first_sector = 0;
        let zones: Vec<Zone> = (0..zones)
            .map(|zone| {
                let first_cylinder = cylinders * zone / zones;
                let next = cylinders * (zone + 1) / zones;
                let sectors_per_track = outer - (outer - inner) * zone / (zones - 1);
                let made = Zone { first_cylinder, first_sector, sectors_per_track };
                first_sector += u64::from(next - first_cylinder) * u64::from(heads) * u64::from(sectors_per_track);
                made
            })
            .collect();
        Self {
            heads,
            zones,
            revolution_ns,
            head_skew_ns: head_switch_ns + MARGIN_NS,
            cylinder_skew_ns: cylinder_switch_ns + MARGIN_NS,
            sectors: first_sector,
        }
    }

    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Of a sector; one past the end is the last.
    pub fn place(&self, sector: u64) -> Place {
        let sector = sector.min(self.sectors - 1);
        let index = self.zones.partition_point(|zone| zone.first_sector <= sector) - 1;
        let zone = &self.zones[index];
        let within = sector - zone.first_sector;
        let track = within / u64::from(zone.sectors_per_track);
        Place {
            cylinder: zone.first_cylinder + (track / u64::from(self.heads)) as u32,
            head: (track % u64::from(self.heads)) as u32,
            sector: (within % u64::from(zone.sectors_per_track)) as u32,
            sectors_per_track: zone.sectors_per_track,
        }
    }

    /// When in a turn the sector begins, in nanoseconds from its start.
    pub fn phase_ns(&self, place: Place) -> u64 {
        let cylinder_ns = u64::from(self.heads - 1) * self.head_skew_ns + self.cylinder_skew_ns;
        let skew = u64::from(place.cylinder) * cylinder_ns + u64::from(place.head) * self.head_skew_ns;
        (skew + self.sectors_ns(place.sector, place.sectors_per_track)) % self.revolution_ns
    }

    fn sectors_ns(&self, sectors: u32, sectors_per_track: u32) -> u64 {
        u64::from(sectors) * self.revolution_ns / u64::from(sectors_per_track)
    }

    /// How long `count` sectors from `first` pass under the heads, changes of track included.
    pub fn transfer_ns(&self, first: u64, count: u64) -> u64 {
        let (mut ns, mut sector, mut left) = (0, first, count);
        while left > 0 {
            let place = self.place(sector);
            let part = left.min(u64::from(place.sectors_per_track - place.sector));
            ns += self.sectors_ns(part as u32, place.sectors_per_track);
            (sector, left) = (sector + part, left - part);
            if left > 0 {
                ns += self.skew_after(place);
            }
        }
        ns
    }

    /// How many sectors from `first` have passed after `ns`, of at most `count`.
    pub fn transferred(&self, first: u64, count: u64, ns: u64) -> u64 {
        let (mut spent, mut done) = (0, 0);
        while done < count {
            let place = self.place(first + done);
            let part = (count - done).min(u64::from(place.sectors_per_track - place.sector));
            let part_ns = self.sectors_ns(part as u32, place.sectors_per_track);
            if spent + part_ns > ns {
                return done + (ns - spent) * u64::from(place.sectors_per_track) / self.revolution_ns;
            }
            done += part;
            spent += part_ns + self.skew_after(place);
            if spent > ns {
                break;
            }
        }
        done
    }

    fn skew_after(&self, place: Place) -> u64 {
        if place.head + 1 < self.heads { self.head_skew_ns } else { self.cylinder_skew_ns }
    }

    pub fn revolution_ns(&self) -> u64 {
        self.revolution_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Geometry {
        Geometry::new(2, 8, 2, (10, 6), 1_000_000, (80_000, 130_000))
    }

    #[test]
    fn sectors_are_numbered_track_by_track_from_the_outside() {
        let geometry = small();
        assert_eq!(geometry.sectors(), 4 * 2 * 10 + 4 * 2 * 6);
        let place = |sector| {
            let place = geometry.place(sector);
            (place.cylinder, place.head, place.sector, place.sectors_per_track)
        };
        assert_eq!(place(0), (0, 0, 0, 10));
        assert_eq!(place(13), (0, 1, 3, 10));
        assert_eq!(place(79), (3, 1, 9, 10));
        assert_eq!(place(80), (4, 0, 0, 6));
        assert_eq!(place(1000), (7, 1, 5, 6));
    }

    /// What a transfer takes is what lies between its first sector's passing and the next sector's, whole turns aside.
    #[test]
    fn a_transfer_ends_where_the_next_sector_begins() {
        let geometry = small();
        for first in 0..geometry.sectors() - 40 {
            for count in 1..40 {
                let end = geometry.phase_ns(geometry.place(first)) + geometry.transfer_ns(first, count);
                let next = geometry.phase_ns(geometry.place(first + count));
                let changes_track = geometry.place(first + count).sector == 0;
                let late = if changes_track { geometry.skew_after(geometry.place(first + count - 1)) } else { 0 };
                let distance =
                    (next + 2 * geometry.revolution_ns - end % geometry.revolution_ns - late) % geometry.revolution_ns;
                // Each part is rounded down to a nanosecond.
                assert!(distance < 20, "{first} {count}: {distance}");
            }
        }
    }

    #[test]
    fn what_has_passed_is_the_other_side_of_how_long_it_takes() {
        let geometry = small();
        for first in [0, 7, 55, 83] {
            for count in 1..40 {
                let ns = geometry.transfer_ns(first, count);
                assert_eq!(geometry.transferred(first, 1000, ns + 10), count, "{first}");
                assert_eq!(geometry.transferred(first, count - 1, u64::MAX / 4), count - 1);
                assert!(geometry.transferred(first, 1000, ns - 10) <= count);
            }
        }
    }
}
