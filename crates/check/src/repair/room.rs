//! Which blocks there are to take. A group is looked through when it is first asked for; from then on the count of its free blocks follows what is taken
//! and given back, and its runs are looked for again only where something was given back: a repair takes as often as there is something to write.

use crate::blocks::Blocks;
use myriad_format::{AgBlock, AgNo, FsBlock, Geometry};
use std::cmp::Reverse;

/// Of a group's blocks a sixteenth stays for its own trees as long as another group has more; then less and less.
const KEPT_SHIFT: u32 = 4;
const KEPT_SHIFT_MAX: u32 = 32;

/// Length and start of a free run; of two as long the first is the greater one.
type Run = (u64, Reverse<u64>);

pub(crate) struct Room {
    /// How many blocks are free in the first groups: in those that were looked through.
    free: Vec<u64>,
    /// What these can spare in all.
    spare: u64,
    /// Free runs of one group, ascending.
    runs: Option<(AgNo, Vec<Run>)>,
    /// Groups before it can spare nothing, if this part of a group (a power of two) is kept.
    group: u32,
    kept_shift: u32,
    /// What each group keeps in any case.
    least: Vec<u64>,
    #[cfg(test)]
    looks: u32,
}

impl Room {
    pub(crate) fn new() -> Self {
        Self {
            free: Vec::new(),
            spare: 0,
            runs: None,
            group: 0,
            kept_shift: KEPT_SHIFT,
            least: Vec::new(),
            #[cfg(test)]
            looks: 0,
        }
    }

    /// The first group that has more than it keeps, of so many.
    pub(crate) fn spare_group(&mut self, groups: u32, blocks: &Blocks, geometry: &Geometry) -> Option<AgNo> {
        while self.group < groups {
            let ag = AgNo(self.group);
            self.look_until(ag, blocks, geometry);
            let least = self.least.get(ag.0 as usize).copied().unwrap_or(0);
            if self.free[ag.0 as usize] > kept(geometry, ag, self.kept_shift).max(least) {
                return Some(ag);
            }
            self.group += 1;
        }
        None
    }

    /// From now on groups keep so many blocks in any case: nothing is worth more than what they are kept for.
    pub(crate) fn keep_in_any_case(&mut self, least: Vec<u64>) {
        self.least = least;
        self.group = 0;
    }

    /// From now on all groups keep less than they did; false if that is nothing already.
    pub(crate) fn keep_less(&mut self) -> bool {
        if self.kept_shift >= KEPT_SHIFT_MAX {
            return false;
        }
        self.kept_shift += 4;
        self.group = 0;
        true
    }

    /// Whether so many groups can spare so many blocks besides what is kept for their own trees.
    pub(crate) fn can_spare(&mut self, count: u64, groups: u32, blocks: &Blocks, geometry: &Geometry) -> bool {
        while self.spare < count && (self.free.len() as u32) < groups {
            self.look_until(AgNo(self.free.len() as u32), blocks, geometry);
        }
        self.kept_shift == KEPT_SHIFT && self.spare >= count
    }

    /// Takes a block of a group, from the longest run that was free when it was looked through.
    pub(crate) fn take_in(&mut self, ag: AgNo, blocks: &Blocks, geometry: &Geometry) -> Option<FsBlock> {
        if self.runs.as_ref().is_none_or(|(of, _)| *of != ag) {
            self.runs = Some((ag, self.look(ag, blocks, geometry)));
        }
        let (_, runs) = self.runs.as_mut()?;
        while let Some((length, Reverse(start))) = runs.pop() {
            // All of it before the next longest run is begun.
            if length > 1 {
                runs.push((length - 1, Reverse(start + 1)));
            }
            let block = FsBlock(start);
            if blocks.first_in(block, 1).is_none() {
                blocks.claim(block, 1);
                self.count(ag, geometry, |free| free.saturating_sub(1));
                return Some(block);
            }
        }
        self.count(ag, geometry, |_| 0);
        None
    }

    /// Blocks that were given back were claimed again, so many of a group.
    pub(crate) fn claimed(&mut self, ag: AgNo, count: u64, geometry: &Geometry) {
        self.count(ag, geometry, |free| free.saturating_sub(count));
    }

    /// So many blocks of a group were given back: it may have some to spare again.
    pub(crate) fn released(&mut self, ag: AgNo, count: u64, geometry: &Geometry) {
        self.count(ag, geometry, |free| free + count);
        self.runs.take_if(|(of, _)| *of == ag);
        self.group = self.group.min(ag.0);
        self.kept_shift = KEPT_SHIFT;
    }

    /// Changes how many blocks of a group are free, if that is known.
    fn count(&mut self, ag: AgNo, geometry: &Geometry, f: impl FnOnce(u64) -> u64) {
        let Some(free) = self.free.get_mut(ag.0 as usize) else { return };
        let kept = kept(geometry, ag, KEPT_SHIFT);
        self.spare -= free.saturating_sub(kept);
        *free = f(*free);
        self.spare += free.saturating_sub(kept);
    }

    fn look_until(&mut self, ag: AgNo, blocks: &Blocks, geometry: &Geometry) {
        while self.free.len() <= ag.0 as usize {
            let next = AgNo(self.free.len() as u32);
            let free = self.look(next, blocks, geometry).iter().map(|run| run.0).sum();
            self.free.push(0);
            self.count(next, geometry, |_| free);
        }
    }

    fn look(&mut self, ag: AgNo, blocks: &Blocks, geometry: &Geometry) -> Vec<Run> {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let mut runs = Vec::new();
        let start = geometry.fs_block(ag, AgBlock(0));
        blocks.for_each_gap(start, u64::from(geometry.blocks_in(ag)), |start, length| {
            runs.push((length, Reverse(start.0)));
            true
        });
        runs.sort_unstable();
        runs
    }
}

/// What a group keeps.
fn kept(geometry: &Geometry, ag: AgNo, shift: u32) -> u64 {
    u64::from(geometry.blocks_in(ag)) >> shift
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP_BLOCKS: u64 = 1 << 12;

    fn geometry(groups: u64) -> Geometry {
        Geometry {
            block_bits: 12,
            ag_bits: GROUP_BLOCKS.trailing_zeros(),
            region_bits: 8,
            ag_count: groups as u32,
            block_count: groups * GROUP_BLOCKS,
            chunk_blocks: 4,
            has_checksums: false,
            bodies_follow: true,
            has_bitmap: false,
            table_every: 0,
            map: myriad_format::choices::MYRIAD.choices.map,
            fragment_bits: 0,
        }
    }

    /// Every other block of a group was free: the group was looked through for each that was taken.
    #[test]
    fn a_group_is_not_looked_through_for_each_block() {
        let (geometry, blocks) = (geometry(1), Blocks::new());
        (0..GROUP_BLOCKS).step_by(2).for_each(|at| _ = blocks.claim(FsBlock(at), 1));
        let mut room = Room::new();
        let taken: Vec<FsBlock> = std::iter::from_fn(|| room.take_in(AgNo(0), &blocks, &geometry)).collect();
        assert!(taken.is_sorted() && taken.len() as u64 == GROUP_BLOCKS / 2, "{}", taken.len());
        assert_eq!(blocks.count_in(FsBlock(0), GROUP_BLOCKS), GROUP_BLOCKS);
        assert_eq!(room.looks, 1);
    }

    /// Where the first groups had hardly anything to spare all groups were looked through for each thing to be written.
    #[test]
    fn groups_are_not_looked_through_for_each_question() {
        let (geometry, blocks) = (geometry(9), Blocks::new());
        let kept = GROUP_BLOCKS >> KEPT_SHIFT;
        // Each can spare ten blocks.
        (0..9).for_each(|ag| _ = blocks.claim(FsBlock(ag * GROUP_BLOCKS), GROUP_BLOCKS - kept - 10));
        let mut room = Room::new();
        for _ in 0..30 {
            let ag = room.spare_group(9, &blocks, &geometry).unwrap();
            room.take_in(ag, &blocks, &geometry).unwrap();
            assert!(room.can_spare(60, 9, &blocks, &geometry) && !room.can_spare(90, 9, &blocks, &geometry));
        }
        assert!(!room.can_spare(61, 9, &blocks, &geometry), "the last three groups have given ten blocks each");
        assert!(room.looks <= 9 + 3, "{}", room.looks);
    }

    /// What is given back is found, and what somebody else has taken meanwhile is not.
    #[test]
    fn counts_and_runs_follow_the_blocks() {
        let (geometry, blocks) = (geometry(2), Blocks::new());
        blocks.claim(FsBlock(0), 2 * GROUP_BLOCKS);
        let give = |room: &mut Room, start: u64, length: u64| {
            let count = blocks.release(FsBlock(start), length);
            room.released(geometry.ag_of(FsBlock(start)), count, &geometry);
        };
        let mut room = Room::new();
        assert_eq!(room.spare_group(2, &blocks, &geometry), None);
        while room.keep_less() {}
        assert_eq!(room.spare_group(2, &blocks, &geometry), None);
        give(&mut room, GROUP_BLOCKS + 7, 2);
        give(&mut room, GROUP_BLOCKS + 7, 2);
        assert!(!room.can_spare(1, 2, &blocks, &geometry));
        assert_eq!(room.spare_group(2, &blocks, &geometry), None, "it keeps more");
        while room.keep_less() {}
        assert_eq!(room.spare_group(2, &blocks, &geometry), Some(AgNo(1)));
        assert_eq!(room.take_in(AgNo(1), &blocks, &geometry), Some(FsBlock(GROUP_BLOCKS + 7)));
        give(&mut room, 50, 3);
        assert_eq!(room.take_in(AgNo(0), &blocks, &geometry), Some(FsBlock(50)));
        blocks.claim(FsBlock(51), 1);
        assert_eq!(room.take_in(AgNo(0), &blocks, &geometry), Some(FsBlock(52)));
        assert_eq!(room.take_in(AgNo(0), &blocks, &geometry), None);
        assert_eq!(room.take_in(AgNo(1), &blocks, &geometry), Some(FsBlock(GROUP_BLOCKS + 8)));
        while room.keep_less() {}
        assert_eq!(room.spare_group(2, &blocks, &geometry), None);
    }
}
