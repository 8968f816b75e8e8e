//! The processes of one side, and the orders that they take.

use crate::CHILD_INDEX;
use crate::calls::{ACTORS, Profile};
use crate::common::child;
use crate::worker::MARK;
use std::io::Write;
use std::path::Path;
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// A call that takes so long has stopped.
const HANG: Duration = Duration::from_secs(300);

/// A process that does steps when it is told to.
pub struct Process {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Process {
    pub fn start(actor: usize) -> Result<Self, String> {
        let (child, orders, answers) = child::start(MARK, |command| {
            command.env(CHILD_INDEX, actor.to_string());
        })?;
        Ok(Self { child, orders, answers })
    }

    pub fn order(&mut self, order: &str) -> Result<(), String> {
        writeln!(self.orders, "{order}").map_err(|error| format!("a process takes no orders: {error}"))
    }

    pub fn answer(&mut self) -> Result<String, String> {
        self.answers.recv_timeout(HANG).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("a process has not answered for {} s", HANG.as_secs()),
            RecvTimeoutError::Disconnected => "a process has died".to_owned(),
        })
    }

    pub fn begin(&mut self, seed: u64, profile: Profile, count: usize, directory: &Path) -> Result<(), String> {
        let actors = if profile.actors.len() == ACTORS.len() { "all" } else { "roots" };
        self.order(&format!("begin {seed} {} {actors} {count} {}", profile.acls, directory.display()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Its descriptors keep the mount.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
