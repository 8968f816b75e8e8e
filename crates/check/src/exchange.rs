//! An exchange of two names that a crash cut short, on a volume without a log: the superblock notes it, and whoever
//! comes next does the rest.

use crate::options::CheckError;
use crate::superblock;
use myriad_device::{BlockDevice, OverlayDevice};
use myriad_format::exchange;
use myriad_log::LogError;
use std::sync::Arc;

/// The device with such an exchange done, in memory: what a look goes by. A note that cannot be right stays, and so
/// does one whose units cannot be read.
pub(crate) fn finished(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let is_noted = superblock::find(&**device, None).is_ok_and(|(superblock, _)| superblock.exchange().is_some());
    if !is_noted {
        return device.clone();
    }
    let overlay: Arc<dyn BlockDevice> = Arc::new(OverlayDevice::new(device.clone()));
    if matches!(do_noted(&*overlay), Ok(true)) { overlay } else { device.clone() }
}

/// Does such an exchange on the device, once nothing refuses that it is repaired. A note that cannot be right stays,
/// and so does one whose units cannot be read: a repair drops it.
pub(crate) fn finish(device: &dyn BlockDevice) -> Result<(), CheckError> {
    match do_noted(device) {
        Ok(_) | Err(LogError::Corrupt(_) | LogError::Io { op: "read", .. }) => Ok(()),
        Err(LogError::Io { op, offset, source }) => Err(CheckError::Io { op, offset, source }),
        Err(error) => Err(CheckError::Log(error.to_string())),
    }
}

/// Whether there was one. A note in a copy of the superblock counts for nothing.
fn do_noted(device: &dyn BlockDevice) -> Result<bool, LogError> {
    let Ok((superblock, None)) = superblock::find(device, None) else { return Ok(false) };
    let Some(names) = superblock.exchange() else { return Ok(false) };
    let (geometry, volume) = (superblock.geometry(), superblock.volume());
    let read_unit = |block, number| myriad_log::read_unit(device, &geometry, block, number);
    let units = exchange::plan(&names, &geometry, volume, read_unit)?;
    myriad_log::write_units(device, &geometry, &units)?;
    myriad_log::change_superblock(device, volume, |superblock| superblock.set_exchange(None))?;
    Ok(true)
}
