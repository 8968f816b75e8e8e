//! Mounts a volume through FUSE, with a transport of our own.
#![deny(unsafe_code)]

mod error;
mod options;
mod stats;

pub use error::{MountError, ServeError};
pub use options::{Options, TransportChoice};
pub use stats::{LATENCY_BUCKETS, RequestStats, Stats};

use myriad_engine::Fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Mounts a volume. Requests are answered once [`Mount::serve`] runs.
pub fn mount(fs: Fs, mount_point: &Path, options: Options) -> Result<Mount, MountError> {
    let _ = (fs, mount_point, options);
    Err(MountError::Device(io::ErrorKind::Unsupported.into()))
}

/// A mounted volume that is not served yet.
pub struct Mount {
    handle: Handle,
}

impl Mount {
    /// Answers requests until the mount is gone; then closes the volume.
    pub fn serve(self) -> Result<(), ServeError> {
        Ok(())
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

/// Speaks to a mount from other threads.
#[derive(Clone)]
pub struct Handle {
    fs: Fs,
    mount_point: PathBuf,
}

impl Handle {
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    pub fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Unmounts. `lazy`: at once, though files are open; they stay usable until they are closed.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        let _ = lazy;
        Ok(())
    }

    /// From now on, a line for every request; `None` ends it.
    pub fn set_request_log(&self, log: Option<Box<dyn Write + Send>>) {
        drop(log);
    }
}
