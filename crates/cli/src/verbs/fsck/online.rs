//! `fsck --online`: a mounted volume, checked as it is at one moment while it goes on being changed.
//!
//! The daemon holds the moment for as long as our connection lasts: what it writes over goes, as it was, to a file of ours
//! (docs/decisions/0054-online-check-by-before-images.md). So it also ends when we are killed, and the moment does not
//! count if the daemon was, for then nobody has kept anything.

use crate::context::Context;
use crate::failure::{At, Failure, image_name};
use crate::mount::control::Daemon;
use crate::mount::moment::{MOMENTS_MAX, file_for_images};
use crate::show::time;
use crate::volume::device::{explain_open, intact_superblock};
use anyhow::Result;
use myriad_check::{Online, Report, check, check_moment};
use myriad_device::{Access, BlockDevice, FileDevice, FileOptions, Moment};
use serde_json::{Value, json};
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// A moment, for whoever wants to know which one was checked.
pub struct Checked {
    pub report: Report,
    /// Whether the volume has checksums of file data.
    pub has_checksums: bool,
    pub moment: Option<Value>,
}

/// Checks what a daemon has mounted. `room` is the most that before-images may take.
pub fn check_mounted(
    context: &Context,
    daemon: &Daemon,
    log: Option<Arc<dyn BlockDevice>>,
    room: u64,
    options: &myriad_check::Options<'_>,
    explain: impl Fn(myriad_check::CheckError) -> anyhow::Error,
) -> Result<Checked> {
    let status = &daemon.status;
    let name = image_name(&status.image);
    let offset = FileOptions { offset: status.offset, ..FileOptions::default() };
    let device = FileDevice::open_with(&status.image, Access::ReadOnly, &offset).map_err(explain_open)?;
    let has_checksums = intact_superblock(&device).is_some_and(|superblock| superblock.geometry().has_checksums);
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    if status.read_only {
        let report = check(device, log, options).map_err(explain)?;
        return Ok(Checked { report, has_checksums, moment: None });
    }
    let mut last = String::new();
    for _ in 0..MOMENTS_MAX {
        let file = file_for_images(room, "name another directory in TMPDIR, or less --room")?;
        let (value, mut connection) = daemon.hold(&file, || context.check())?;
        let number = |key: &str| value.get(key).and_then(Value::as_i64);
        let (Some(position), Some(time), Some(block_size)) =
            (number("log_position"), number("time"), number("block_size"))
        else {
            return Err(Failure::new(name, "an answer that is none", "use the version that mounted the volume").into());
        };
        let mounted = image_name(&status.mount_point);
        let moment = time::full(time);
        // Without a log there is no such position.
        let place = if position > 0 { format!(", log position {position}") } else { String::new() };
        context.note(&format!("{name}: mounted on {mounted}; checking its state of {moment}{place}"));
        let held = Moment::new(file, block_size as usize, Arc::clone(&device), log.clone()).at("before-images")?;
        let looked = check_moment(&held, options).map_err(&explain)?;
        if !is_open(&mut connection) {
            let what = format!("process {}, which had it mounted, ended during the check", status.pid);
            return Err(Failure::new(name, what, "run it again: mounted or not, it is another state now").into());
        }
        let_go(connection);
        match looked {
            Online::Checked(report) => {
                let moment = json!({ "log_position": position, "time": time });
                return Ok(Checked { report: *report, has_checksums, moment: Some(moment) });
            }
            Online::GivenUp(why) => {
                context.note(&format!("{name}: the moment is lost: {why}"));
                last = why;
            }
        }
    }
    let what = format!("{MOMENTS_MAX} moments were lost before they had been looked at; the last one: {last}");
    let hint = "give before-images more room with --room, or wait until it is less busy";
    Err(Failure::new(name, what, hint).into())
}

/// Ends the moment, and waits until the daemon has: whoever checks next would be refused, for somebody holds one.
fn let_go(mut connection: UnixStream) {
    /// The daemon may wait for a checkpoint.
    const PATIENCE: Duration = Duration::from_secs(60);
    let asked = connection.set_nonblocking(false).and_then(|()| connection.set_read_timeout(Some(PATIENCE)));
    if asked.and_then(|()| connection.shutdown(Shutdown::Write)).is_ok() {
        // Its end of the connection, or an error: either way there is no more to be done.
        let _ = connection.read(&mut [0]);
    }
}

/// Whether the daemon has kept its end open; it says nothing there.
fn is_open(connection: &mut UnixStream) -> bool {
    let told = connection.set_nonblocking(true).and_then(|()| connection.read(&mut [0]));
    matches!(told, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}
