//! Where things lie on the device.

use super::{Fs, Session};
use crate::error::{Errno, Result};
use crate::file::for_each_run;
use crate::map::{FILE_END, Mapping};
use crate::types::Node;
use myriad_format::{AgBlock, AgNo, FileBlock};
use std::ops::ControlFlow;

/// Blocks side by side on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRun {
    pub start: u64,
    pub length: u64,
}

impl Session {
    /// The blocks that hold the content of a file or the entries of a directory, in the order of the file. Content in the inode itself, blocks of
    /// the map, and data that has no blocks yet are not among them. For root only (EPERM), because the blocks of a file show when it
    /// is changed, also to users who may not read it.
    pub fn block_runs_at(&self, node: Node) -> Result<Vec<BlockRun>> {
        if !self.ops().cred.is_root() {
            return Err(Errno::PERM.into());
        }
        let mut runs = Vec::new();
        for_each_run(self.volume(), node, FileBlock(0)..FILE_END, |at, mapping| {
            if let Mapping::Mapped(extent) = mapping {
                let start = extent.start.offset_by(at.0 - extent.file_block.0).0;
                push(&mut runs, start, extent.end().0 - at.0);
            }
            ControlFlow::<()>::Continue(())
        })?;
        Ok(runs)
    }
}

impl Fs {
    /// The free blocks of the volume, in the order of the device. Blocks that were freed by what is not durable yet are not among
    /// them.
    pub fn free_runs(&self) -> Result<Vec<BlockRun>> {
        let volume = self.volume();
        let geometry = &volume.geometry;
        let mut runs = Vec::new();
        for ag in (0..geometry.ag_count).map(AgNo) {
            let mut at = AgBlock(geometry.first_data_block(ag));
            if ag.0 >= volume.high_water() {
                push(&mut runs, geometry.fs_block(ag, at).0, geometry.usable_blocks_in(ag).into());
                continue;
            }
            let look = volume.look();
            let mut group = volume.group(&look, ag)?;
            let space = group.as_mut().expect("just loaded");
            while let Some((start, length)) = space.free_after(&mut &look, at)? {
                push(&mut runs, geometry.fs_block(ag, start).0, length.into());
                at = AgBlock(start.0 + length);
            }
        }
        Ok(runs)
    }
}

fn push(runs: &mut Vec<BlockRun>, start: u64, length: u64) {
    match runs.last_mut() {
        Some(last) if last.start + last.length == start => last.length += length,
        _ if length > 0 => runs.push(BlockRun { start, length }),
        _ => {}
    }
}
