//! Looking at names and attributes beside somebody who is changing the volume.
//!
//! Under order `log` all metadata of the last committed state stays readable for as long as no further checkpoint commits: blocks go home
//! with what the log already says, and what an open epoch writes was free in that state (`docs/design/crash-safety.md`; the check looks
//! beside a writer for the same reason, `myriad_check::check_beside`). So what a verb found is of one state if the log ends
//! afterwards where it ended before. Until that is known nothing is printed; if it ends elsewhere, all that was found is forgotten, and
//! the verb looks again.
//!
//! Only for metadata: contents are overwritten in place, so verbs that read them are refused while somebody has the volume. And only
//! beside a mount of order `log`: other orders, a repair and mkfs change blocks of the last state, and nothing tells.
//!
//! As with `wait`, what was decided holds for the whole run, whatever the verb opens.

use super::{device, wait};
use crate::context::Context;
use crate::failure::{At, Kind, image_name, kind};
use crate::mount::control;
use anyhow::Result;
use myriad_device::{Access, BlockDevice, FileDevice, Holder, OpenError};
use myriad_engine::{Fs, MountOptions};
use myriad_format::Lsn;
use myriad_format::superblock::{NO_MOUNT, Superblock, state};
use myriad_log::{LogPlace, Reach};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Looks before a volume counts as too busy. While a large tree is brought in, a checkpoint commits every few hundred milliseconds.
const LOOKS_MAX: u32 = 8;
/// Between two looks: checkpoints come in bursts.
const PAUSE: Duration = Duration::from_millis(50);

thread_local! {
    /// Volumes may be opened beside a writer: what is found is not printed before it is known to be of one state.
    static IS_ALLOWED: Cell<bool> = const { Cell::new(false) };
    /// One that was opened so has changed.
    static HAS_MOVED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, which opens volumes in these images to look at them and prints what it finds; again if one of them changed meanwhile.
/// One that changes each time is in use, as without this.
pub fn look<'p>(
    context: &Context,
    images: impl IntoIterator<Item = &'p Path>,
    mut work: impl FnMut() -> Result<()>,
) -> Result<()> {
    if wait::is_asked() || !images.into_iter().any(is_being_changed) {
        return work();
    }
    for _ in 0..LOOKS_MAX {
        context.hold();
        IS_ALLOWED.set(true);
        HAS_MOVED.set(false);
        let result = work();
        IS_ALLOWED.set(false);
        let is_final = matches!(result.as_ref().map_err(kind), Err(Kind::Interrupted(_) | Kind::Pipe));
        if !HAS_MOVED.get() || is_final {
            context.release()?;
            return result;
        }
        context.forget();
        std::thread::sleep(PAUSE);
        context.check()?;
    }
    work()
}

/// Whether a process has a volume open for changes, and it is no daemon: what that has in memory is seen through its mount.
fn is_being_changed(image: &Path) -> bool {
    let is_held = || {
        let locked = FileDevice::open(image, Access::ReadOnly).and_then(|device| device.lock_shared());
        matches!(locked, Err(OpenError::InUse(in_use)) if !matches!(in_use.holder, Some(Holder::Mount { .. })))
    };
    !image.is_dir() && is_held() && control::of_image(image).is_ok_and(|daemons| daemons.is_empty())
}

pub fn is_allowed() -> bool {
    IS_ALLOWED.get()
}

/// A committed state: whose mount made it, and where its log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    mount: u64,
    head: Lsn,
}

/// Watches a volume that is open beside its writer. When this goes it compares.
pub struct Beside {
    device: Arc<FileDevice>,
    before: State,
}

impl Beside {
    /// Opens the volume in an image; `None` if nothing tells what its writer does, or it has just changed.
    pub fn open(image: &Path, options: &MountOptions) -> Result<Option<(Fs, Self)>> {
        let (device, _) = device::open_beside(image)?;
        let Some(before) = state_of(&device, &image_name(image)) else {
            HAS_MOVED.set(true);
            return Ok(None);
        };
        let beside = Self { device: Arc::clone(&device), before };
        let options = MountOptions { read_only: true, background: false, ..options.clone() };
        // What is wrong may come of a change, which is found as `beside` goes.
        let fs = Fs::open_device(device, None, options).at(image_name(image))?;
        Ok(Some((fs, beside)))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if state_of(&self.device, "").is_none_or(|after| after != self.before) {
            HAS_MOVED.set(true);
        }
    }
}

/// The last committed state, if the volume is mounted by somebody whose log, in the volume, tells of each change.
fn state_of(device: &Arc<FileDevice>, place: &str) -> Option<State> {
    let superblock: Superblock = device::superblock(&**device, place).ok()?;
    let mount = superblock.mount_nonce.get();
    let is_logged = superblock.is_logged() && superblock.log_blocks.get() > 0 && !superblock.has_external_log();
    if superblock.state.get() != state::IN_USE || mount == NO_MOUNT || !is_logged {
        return None;
    }
    let block_size = superblock.geometry().block_size();
    let log = LogPlace {
        device: Arc::clone(device) as Arc<dyn BlockDevice>,
        start: superblock.log_start.get() * block_size as u64,
        length: superblock.log_blocks.get() * block_size as u64,
        block_size,
        volume: superblock.volume(),
        known_end: Lsn(0),
    };
    let head = myriad_log::recover(&log, Reach::Written).ok()?.head;
    Some(State { mount, head })
}
