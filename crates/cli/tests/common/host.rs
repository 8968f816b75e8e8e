//! Devices of the host that a test borrows, and programs that it asks for them.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::Command;

/// Runs a program on a path; what it said, or why it failed.
pub fn command(program: &str, arguments: &[&str], path: &Path) -> Result<String, String> {
    let said = Command::new(program).args(arguments).arg(path).output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if said.status.success() { Ok(text(&said.stdout)) } else { Err(text(&said.stderr)) }
}

/// A loop device, until it is dropped.
pub struct Loop(pub String);

impl Loop {
    /// On a new file of so many bytes; `None`, and a line that says why, where there is none to be had.
    pub fn new(backing: &Path, size: u64) -> Option<Self> {
        File::create(backing).and_then(|file| file.set_len(size)).unwrap();
        Self::over(backing)
    }

    /// As [`Self::new`], on a file that is there.
    pub fn over(backing: &Path) -> Option<Self> {
        Self::with_sectors(backing, 512)
    }

    /// As [`Self::over`], with sectors of so many bytes.
    pub fn with_sectors(backing: &Path, bytes: u32) -> Option<Self> {
        let device = command("losetup", &["--find", "--show", "--sector-size", &bytes.to_string()], backing);
        device.map_err(|error| println!("skipped: no loop device can be had: {error}")).ok().map(Self)
    }

    /// Gives it back; it must have been there until now.
    pub fn detach(self) {
        // Not once more: somebody else may have it by then.
        assert!(ManuallyDrop::new(self).end());
    }

    fn end(&self) -> bool {
        Command::new("losetup").args(["-d", &self.0]).status().is_ok_and(|status| status.success())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.end();
    }
}
