//! What becomes of filled blocks (`judge::fill`) once their round has arrived.
//!
//! While the round was written, an operation may have freed a block that a new inode leads to, so that the round left it out: a block of a directory, of pointers or of
//! data. The inode's pointer is on the device all the same, behind a mark that does not show yet. So the filling of this group counts as not written: its blocks stay
//! new, and the next round writes them again before the mark may show.

use super::State;
use super::words::Words;
use myriad_format::{AgNo, BlockKind, FsBlock, Geometry, Ino};
use std::collections::HashSet;

impl State {
    /// Takes the fillings of the last round for not written from which blocks were freed meanwhile. The gate is closed, and nothing of that round has been looked at.
    pub(super) fn settle_filled(&mut self, geometry: &Geometry) {
        let filled: HashSet<u64> = std::mem::take(&mut self.filled).into_iter().collect();
        let broken: HashSet<AgNo> = self
            .freed
            .iter()
            .flat_map(|freed| freed.from.iter().map(move |block| (block, freed)))
            .filter(|(block, _)| filled.contains(block))
            .filter_map(|(&block, freed)| {
                let leads = self.shadows.get(&block)?.points_to(geometry, |block| freed.has(block));
                leads.then(|| self.group_of_filling(block, geometry))?
            })
            .collect();
        if broken.is_empty() {
            return;
        }
        for block in filled {
            if self.group_of_filling(block, geometry).is_some_and(|ag| broken.contains(&ag)) {
                self.with_shadow(block, |shadow| (shadow.is_new, shadow.lasting) = (true, Words::default()));
                self.make_stale(block);
            }
        }
    }

    /// The group by whose mark a filled block begins to last.
    fn group_of_filling(&self, block: u64, geometry: &Geometry) -> Option<AgNo> {
        let shadow = self.shadows.get(&block)?;
        let table = match shadow.kind {
            BlockKind::InodeTable => FsBlock(block),
            _ => geometry.locate(Ino(shadow.owner))?.0,
        };
        Some(geometry.ag_of(table))
    }
}
