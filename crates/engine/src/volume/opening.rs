//! What an opening has to know before a volume is put together: whether it may be opened so, what its log says, and what its superblock notes.

use super::log_open_error;
use crate::error::{Error, Result};
use crate::order;
use crate::order::soft::Delays;
use crate::types::{MountOptions, Order};
use myriad_device::{BlockDevice, OverlayDevice};
use myriad_format::choices::Choices;
use myriad_format::exchange;
use myriad_format::superblock::{Superblock, state};
use myriad_format::{Corrupt, FsBlock};
use myriad_log::{Log, LogError, LogPlace, Overlay, Reach};
use std::sync::Arc;

/// What an opening finds in the log; nothing, if there is no log.
#[derive(Default)]
pub(super) struct RecoveredLog {
    /// The log, open for appending; `None` of a volume that is only read.
    pub log: Option<Log>,
    /// Extents that were free at the last checkpoint and are in no record of free space yet.
    pub pending: Vec<(FsBlock, u32)>,
    /// Changes of blocks that the blocks themselves do not have.
    pub overlay: Overlay,
    /// Whether the volume was not closed, and the log has checkpoints.
    pub recovered: bool,
}

/// Refuses what cannot be opened with these options, before anything of the volume is changed.
pub(super) fn check_opening(
    order: Order,
    choices: &Choices,
    log: Option<&LogPlace>,
    superblock: &Superblock,
    options: &MountOptions,
) -> Result<()> {
    order::check(order, choices, superblock.geometry().has_checksums)?;
    Delays::check(options, order)?;
    if order == Order::Log && log.is_none() {
        let built = Order::SEAM.choices.iter().filter(|choice| choice.is_built);
        let possible = built.filter(|choice| superblock.orders >> choice.code & 1 != 0);
        let names: Vec<&str> = possible.map(|choice| choice.name).collect();
        let reason = format!("this volume has no log; use order={}, or make it anew with a log", names.join(" or "));
        return Err(Error::bad_option("order", reason));
    }
    if !options.read_only && superblock.needs_check(true) {
        return Err(Error::Unchecked);
    }
    if !options.read_only && superblock.needs_check(false) {
        // What the log has, it had when nothing had been changed without it.
        let found = log.map(|place| myriad_log::recover(place, Reach::Ring)).transpose();
        if found.map_err(log_open_error)?.is_none_or(|found| found.checkpoints == 0) {
            return Err(Error::Unchecked);
        }
    }
    Ok(())
}

/// Does what a crash has left of an exchange of two names, and takes the note of it away. It writes, so it comes after all that refuses an opening. A reader
/// does it in memory, and passes over a note that cannot be right, or whose units cannot be read.
pub(super) fn finish_exchange(
    device: Arc<dyn BlockDevice>,
    superblock: &mut Superblock,
    read_only: bool,
) -> Result<Arc<dyn BlockDevice>> {
    let Some(names) = superblock.exchange() else { return Ok(device) };
    let (geometry, volume) = (superblock.geometry(), superblock.volume());
    let finish = |device: &dyn BlockDevice| {
        let read_unit = |block, number| myriad_log::read_unit(device, &geometry, block, number);
        let units = exchange::plan(&names, &geometry, volume, read_unit)?;
        myriad_log::write_units(device, &geometry, &units)?;
        myriad_log::change_superblock(device, volume, |superblock| superblock.set_exchange(None))
    };
    let changed: Arc<dyn BlockDevice> =
        if read_only { Arc::new(OverlayDevice::new(device.clone())) } else { device.clone() };
    match finish(&*changed) {
        Ok(()) => {
            superblock.set_exchange(None);
            Ok(changed)
        }
        Err(_) if read_only => Ok(device),
        Err(LogError::Io { op, offset, source }) => Err(Error::io(op, offset, source)),
        Err(error) => Err(log_open_error(error)),
    }
}

/// Reads the log that lies at `place`. Of a volume that may be written it is open for appending then, and what a torn attempt has
/// left of itself is erased.
pub(super) fn recover_log(place: Option<LogPlace>, superblock: &Superblock, read_only: bool) -> Result<RecoveredLog> {
    let Some(place) = place else { return Ok(RecoveredLog::default()) };
    // A volume closed cleanly has everything home; its log still shows the last checkpoint.
    let is_needed = superblock.state.get() == state::IN_USE;
    let reach = if is_needed { Reach::Ring } else { Reach::End };
    let (log, found) = if read_only {
        // Opening the log for appending would erase a torn attempt.
        (None, myriad_log::recover(&place, reach).map_err(log_open_error)?)
    } else {
        let (log, found) = Log::open(place, reach).map_err(log_open_error)?;
        (Some(log), found)
    };
    if !is_needed {
        // Closed cleanly, a volume has its free blocks in its groups. What the log names beside them is another state's: an older copy's, of a volume
        // that does not say where its log ends.
        return Ok(RecoveredLog { log, ..RecoveredLog::default() });
    }
    // The log knows blocks, but not the volume's size.
    let geometry = superblock.geometry();
    let outside = |&(start, length): &(FsBlock, u32)| !geometry.is_data_range(start, u64::from(length));
    if let Some((start, length)) = found.pending.iter().copied().find(|extent| outside(extent)) {
        let value = start.0.saturating_add(u64::from(length));
        return Err(Corrupt::Log { lsn: found.head, field: "pending free; its end", value }.into());
    }
    let recovered = found.checkpoints > 0;
    Ok(RecoveredLog { log, pending: found.pending, overlay: found.overlay, recovered })
}
