//! Notices that the kernel has a mount otherwise than before.
//!
//! mount(2) with MS_REMOUNT tells the server nothing, and not everybody remounts by [`crate::remount`]. The table of mounts
//! can be polled; a thread does so for as long as a mount is served.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io;
use std::thread::JoinHandle;

/// The thread, until it is dropped.
pub struct Watch {
    /// Closed, it ends the thread.
    end: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Calls `changed` after each change of the table, of whichever mount.
    pub fn begin(changed: impl Fn() + Send + 'static) -> io::Result<Self> {
        let table = File::open("/proc/self/mountinfo")?;
        let (ended, end) = pipe_with(PipeFlags::CLOEXEC)?;
        let watch = move || {
            loop {
                let mut polled = [PollFd::new(&table, PollFlags::PRI), PollFd::new(&ended, PollFlags::empty())];
                match poll(&mut polled, None) {
                    Ok(_) if !polled[1].revents().is_empty() => return,
                    Ok(_) => changed(),
                    Err(Errno::INTR) => {}
                    Err(_) => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("myriad-mounts".into()).spawn(watch)?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // What it panicked of it has said.
            let _ = thread.join();
        }
    }
}
