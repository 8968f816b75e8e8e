//! What holding a moment takes: a file for its before-images, and patience.

use crate::failure::{Failure, host_error, image_name};
use anyhow::Result;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// Moments that may be given up before the volume counts as too busy.
pub const MOMENTS_MAX: u32 = 3;

/// Of the file system that a file is on, as mountinfo has it.
pub fn device_number(file: &File) -> io::Result<String> {
    let device = file.metadata()?.dev();
    Ok(format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
}

/// A file without a name for before-images, on a disk rather than in memory. Its size is what the daemon may use of it.
/// `next`: what to do where none can be made.
pub fn file_for_images(room: u64, next: &str) -> Result<File> {
    let directory = std::env::var_os("TMPDIR").filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = directory.unwrap_or_else(|| "/var/tmp".into());
    let path = directory.join(format!("myriad-fsck-{}", std::process::id()));
    let make = || {
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        file.set_len(room)?;
        Ok::<_, io::Error>(file)
    };
    make().map_err(|error| {
        let what = format!("no file for before-images: {}", host_error(&error));
        Failure::new(image_name(&path), what, next).into()
    })
}
