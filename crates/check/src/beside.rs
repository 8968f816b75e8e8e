//! A look at a volume that another process has open for changes.
//!
//! Under order `log`, the last committed state stays readable on the device until the next checkpoint commits: changes
//! of the open epoch do not go home, the blocks it allocates were free in the committed state, and blocks that go home
//! in between get what the log already says (`docs/design/crash-safety.md`). So if the end of the log is the same after
//! the look as before, the look has seen one state, the committed one. If the end has moved, the look mixed two states:
//! it is thrown away, and made again.
//!
//! Under another order blocks change at any time, and nothing shows that. The superblock has named the order since the
//! volume was opened, so an empty log under `log` is one whose first checkpoint is yet to come: all blocks are home,
//! and stay as they are until then. Nor does anything show that a repair is at work; a repair says in the mount record
//! that there is no mount.
//!
//! What else could have been: a writer that stops for the check stops for minutes at ten million files. A check inside
//! the process that holds the volume would read through the engine's cache, and be no second opinion. If the volume
//! commits during each of `LOOKS_MAX` looks, the check says that it is too busy; `fsck --online` checks volumes that a
//! daemon has mounted (`online`).

use crate::look::{Writer, look};
use crate::options::{CheckError, Options};
use crate::replay::replay;
use crate::report::Report;
use crate::superblock;
use myriad_device::BlockDevice;
use myriad_format::Lsn;
use myriad_format::superblock::{NO_MOUNT, state};
use std::sync::Arc;

/// Looks made before a volume counts as too busy.
const LOOKS_MAX: u32 = 3;

/// A committed state: whose mount made it, and where its log ends.
#[derive(PartialEq, Eq)]
struct State {
    mount: (u32, u64),
    head: Lsn,
}

/// Looks at a volume beside its writer, and writes nothing. `None`: it changed during every look, or is not of a kind
/// that can be looked at while it is in use.
pub fn check_beside(
    device: &Arc<dyn BlockDevice>,
    log_device: Option<&Arc<dyn BlockDevice>>,
    options: &Options<'_>,
) -> Result<Option<Report>, CheckError> {
    for _ in 0..LOOKS_MAX {
        let Some(before) = state(device, log_device, options)? else { return Ok(None) };
        let looked = look(device, log_device, options, Writer::Somebody);
        if let Err(CheckError::Cancelled) = looked {
            return Err(CheckError::Cancelled);
        }
        // Whatever went wrong in between may come of the change.
        if state(device, log_device, options)?.is_some_and(|after| after == before) {
            return looked.map(|outcome| Some(outcome.report));
        }
    }
    Ok(None)
}

fn state(
    device: &Arc<dyn BlockDevice>,
    log_device: Option<&Arc<dyn BlockDevice>>,
    options: &Options<'_>,
) -> Result<Option<State>, CheckError> {
    let (superblock, damage) = superblock::find(&**device, options.superblock)?;
    let replay = replay(device, log_device, &superblock, damage.is_some(), true)?;
    let mount = (superblock.state.get(), superblock.mount_nonce.get());
    // Closed cleanly in the meantime: everything is home, and the log is not needed to know it.
    let is_closed = superblock.state.get() != state::IN_USE;
    let is_logged = replay.checkpoints > 0 || superblock.is_logged();
    let is_mount = superblock.mount_nonce.get() != NO_MOUNT;
    let is_known = match damage {
        None => is_closed || is_mount && is_logged,
        // A copy does not know who has the volume.
        Some(_) => replay.checkpoints > 0,
    };
    let is_known = is_known && replay.is_readable;
    Ok(is_known.then_some(State { mount, head: replay.head }))
}
