//! The log as a mount would find it: granules to lay over blocks, and frees that are in no tree yet.

use crate::findings::number;
use crate::report::{Finding, Place};
use crate::run::CheckError;
use myriad_device::BlockDevice;
use myriad_format::superblock::{Superblock, seam};
use myriad_format::{FsBlock, Lsn};
use myriad_log::{LogError, LogPlace, Overlay, Reach};
use std::sync::Arc;

/// What replay yields.
pub(crate) struct Replay {
    /// `None`: the volume has no log.
    pub place: Option<LogPlace>,
    pub overlay: Option<Overlay>,
    /// The log could be read.
    pub is_readable: bool,
    /// Blocks freed by the last checkpoint and not yet in the trees.
    pub pending: Vec<(FsBlock, u32)>,
    /// LSN beyond all that the log holds.
    pub head: Lsn,
    /// Checkpoints that it holds.
    pub checkpoints: u64,
    /// What is wrong with the log.
    pub findings: Vec<Finding>,
}

impl Replay {
    /// There is a log, and nobody knows what it held.
    pub fn is_lost(&self) -> bool {
        self.place.is_some() && !self.is_readable
    }
}

/// Reads the log and changes nothing. A volume closed cleanly has everything home, and the engine does not replay its log;
/// but a copy of the superblock (`is_copy`) does not know how the volume was closed. `is_written`: somebody may be writing to
/// the log meanwhile.
pub(crate) fn replay(
    device: &Arc<dyn BlockDevice>,
    log_device: Option<&Arc<dyn BlockDevice>>,
    superblock: &Superblock,
    is_copy: bool,
    is_written: bool,
) -> Result<Replay, CheckError> {
    let geometry = superblock.geometry();
    let mut replay = Replay {
        place: None,
        overlay: None,
        is_readable: false,
        pending: Vec::new(),
        head: Lsn(0),
        checkpoints: 0,
        findings: Vec::new(),
    };
    if superblock.log_blocks.get() == 0 {
        return Ok(replay);
    }
    let device = if superblock.log_device == [0; 16] { device } else { log_device.ok_or(CheckError::NoLogDevice)? };
    let bytes = |blocks: u64| blocks.checked_mul(geometry.block_size() as u64);
    let (Some(start), Some(length)) = (bytes(superblock.log_start.get()), bytes(superblock.log_blocks.get())) else {
        return Err(CheckError::Log("the place of the log is impossible".to_owned()));
    };
    let place = LogPlace {
        device: device.clone(),
        start,
        length,
        block_size: geometry.block_size(),
        volume: superblock.volume(),
    };
    let is_needed = superblock.state.get() == seam::STATE_IN_USE || is_copy;
    let reach = if is_needed && !is_written { Reach::Ring } else { Reach::End };
    match myriad_log::recover(&place, reach) {
        Ok(recovered) => {
            replay.is_readable = true;
            replay.head = recovered.head;
            replay.checkpoints = recovered.checkpoints;
            replay.pending = recovered.pending;
            if !is_needed {
                replay.place = Some(place);
                return Ok(replay);
            }
            let outside = recovered.overlay.blocks().filter(|(block, _)| block.0 >= geometry.block_count).count();
            if outside > 0 {
                replay.findings.push(finding(format!("{outside} blocks of the log lie outside the volume")));
            }
            replay.overlay = Some(recovered.overlay);
        }
        Err(LogError::Corrupt(corrupt)) => replay.findings.push(finding(corrupt.to_string())),
        Err(LogError::Io { op, offset, source }) => return Err(CheckError::Io { op, offset, source }),
        // Not the log's contents but its place or the device's alignment: nothing that emptying it would put right.
        Err(error) => return Err(CheckError::Log(error.to_string())),
    }
    replay.place = Some(place);
    Ok(replay)
}

fn finding(message: String) -> Finding {
    Finding { number: number::LOG, place: Place::Log, message, file: None }
}
