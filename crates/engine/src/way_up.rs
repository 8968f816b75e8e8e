//! The way from a directory up to the root, by the parents that the inodes say.
//!
//! A user can make a way as long as there are inodes, with each inode in a block of its own. So nobody walks one to its end inside the gate: each step may
//! wait for the device, and take a frame. Whoever walks leaves the gate after [`STEPS_AT_A_TIME`] steps, and goes on from where it was.

use crate::error::Result;
use crate::inode;
use crate::order::Look;
use crate::volume::Volume;
use myriad_format::{Corrupt, Ino};

/// Steps of one stay inside the gate: half of the frames that an operation may take unasked.
pub(crate) const STEPS_AT_A_TIME: usize = crate::cache::FRAMES_UNASKED / 2;

/// Somebody who walks up. A way that comes back to itself, which only damage can make, is an error after at most three times as many steps as it has
/// directories (Brent's way to find a ring).
pub(crate) struct WayUp {
    at: Ino,
    /// A directory that the way has passed, how many steps ago, and after how many the next one takes its place.
    mark: Ino,
    steps: u64,
    until: u64,
}

impl WayUp {
    pub fn from(directory: Ino) -> Self {
        Self { at: directory, mark: directory, steps: 0, until: 1 }
    }

    /// The directory that has been reached.
    pub fn at(&self) -> Ino {
        self.at
    }

    /// Goes to the parent.
    pub fn step(&mut self, look: &Look<'_>) -> Result<()> {
        let child = self.at;
        self.at = Ino(inode::read(look, child)?.parent.get());
        if self.at == self.mark {
            return Err(Corrupt::Inode { ino: child, field: "parent", value: self.at.0 }.into());
        }
        self.steps += 1;
        if self.steps == self.until {
            (self.mark, self.steps, self.until) = (self.at, 0, self.until * 2);
        }
        Ok(())
    }
}

/// Reads the inodes of all directories from `directory` up to the root into the cache, as far as it has room: so that whoever walks there behind the closed
/// gate waits for the device as little as can be. Outside the gate. Others may move directories meanwhile; then some of these were read in vain.
pub(crate) fn read_ahead(volume: &Volume, directory: Ino) -> Result<()> {
    let mut way = WayUp::from(directory);
    loop {
        let look = volume.look();
        for _ in 0..STEPS_AT_A_TIME {
            if way.at() == volume.root {
                return Ok(());
            }
            way.step(&look)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::testing;
    use crate::volume::transact;
    use myriad_device::MemoryDevice;
    use std::sync::Arc;
    use zerocopy::little_endian::U64;

    /// A walk went around a ring of parents as often as the superblock said that there were inodes.
    #[test]
    fn a_ring_of_parents_is_an_error_soon() {
        let volume = testing::volume(Arc::new(MemoryDevice::new(16 << 20)));
        let inos: Vec<Ino> = (0..100).map(|i| testing::new_file(&volume, format!("{i}").as_bytes()).ino).collect();
        // The way begins with 30 that are in no ring.
        let parent = |i: usize| if i == 99 { inos[30] } else { inos[i + 1] };
        for (i, &ino) in inos.iter().enumerate() {
            transact(&volume, 0, |txn| {
                let mut raw = inode::read(&txn.look, ino)?;
                raw.parent = U64::new(parent(i).0);
                inode::write(txn, ino, &raw)
            })
            .unwrap();
        }
        let look = volume.look();
        for start in [0, 29, 30, 99] {
            let mut way = WayUp::from(inos[start]);
            let steps = (0..1000).take_while(|_| way.step(&look).is_ok()).count();
            assert!((69..300).contains(&steps), "{steps} steps from {start}");
        }
    }
}
