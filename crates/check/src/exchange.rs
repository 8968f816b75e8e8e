//! An exchange of two names that a crash cut short, on a volume without a log: the superblock notes it, and whoever comes next does the rest.

use crate::options::CheckError;
use crate::superblock;
use myriad_device::{BlockDevice, OverlayDevice};
use myriad_log::{LogError, finish_exchange};
use std::sync::Arc;

/// The device with such an exchange done: a repair does it there, and a check in memory. A note that cannot be right stays.
pub(crate) fn finished(device: Arc<dyn BlockDevice>, is_repaired: bool) -> Result<Arc<dyn BlockDevice>, CheckError> {
    let Ok((mut superblock, None)) = superblock::find(&*device) else { return Ok(device) };
    if superblock.exchange().is_none() {
        return Ok(device);
    }
    let device: Arc<dyn BlockDevice> = if is_repaired { device } else { Arc::new(OverlayDevice::new(device)) };
    match finish_exchange(&*device, &mut superblock) {
        Ok(()) | Err(LogError::Corrupt(_)) => Ok(device),
        Err(LogError::Io { op, offset, source }) => Err(CheckError::Io { op, offset, source }),
        Err(error) => Err(CheckError::Log(error.to_string())),
    }
}
