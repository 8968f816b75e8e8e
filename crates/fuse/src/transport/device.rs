//! /dev/fuse: one message a read, one answer a write.

use crate::negotiate::REQUEST_MAX;
use crate::wire::{
    EXPIRE_ONLY, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NotifyInvalEntryOut, NotifyInvalInodeOut, OutHeader,
};
use parking_lot::RwLock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use zerocopy::IntoBytes;

/// Room for the largest request: what the kernel asks for before it hands out any.
pub const BUFFER_SIZE: usize = REQUEST_MAX + 4096;

/// A descriptor of /dev/fuse that belongs to a mount.
pub struct Device {
    fd: OwnedFd,
}

/// What came of a read.
pub enum Message {
    /// A message of so many bytes.
    Bytes(usize),
    /// Nothing this time: ask again.
    Nothing,
    /// The mount is gone.
    Gone,
}

impl Device {
    /// A descriptor for a mount that is still to be made.
    pub fn open() -> io::Result<Self> {
        let fd = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { fd })
    }

    /// A further descriptor of the same mount, with a queue of its own for requests in work. The same descriptor again on kernels that
    /// cannot, and for who was given his by the helper and may not open the device himself.
    pub fn clone_channel(&self) -> io::Result<Self> {
        let further = Self::open().and_then(|further| {
            clone_onto(&further.fd, &self.fd)?;
            Ok(further)
        });
        further.or_else(|_| self.try_clone())
    }

    /// From now on, reading does not wait.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.fd, true)?)
    }

    /// From now on, reading waits.
    pub fn set_blocking(&self) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.fd, false)?)
    }

    /// Waits for a message.
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<Message> {
        match rustix::io::read(&self.fd, buf) {
            // A kernel never says so: nobody is at the other end.
            Ok(0) => Ok(Message::Gone),
            Ok(len) => Ok(Message::Bytes(len)),
            // The request was interrupted before we took it, or the kernel has given it up for want of memory.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN | Errno::NOMEM) => Ok(Message::Nothing),
            Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Message::Gone),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a message waits to be read.
    pub fn has_message(&self) -> bool {
        let mut polled = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().contains(PollFlags::IN)
    }

    /// The same descriptor again.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()? })
    }

    /// A second descriptor for messages of our own accord.
    pub fn notifier(&self) -> io::Result<Notifier> {
        Ok(Notifier { device: RwLock::new(Some(self.try_clone()?)) })
    }

    /// Sends an answer.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        match rustix::io::write(&self.fd, message) {
            Ok(_) => Ok(()),
            // Who asked was killed meanwhile, or the mount is gone, which the next read tells.
            Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Tells the kernel of what it did not see.
pub struct Notifier {
    /// `None` once nobody serves.
    device: RwLock<Option<Device>>,
}

impl Notifier {
    /// The attributes of an inode have changed by a request that the kernel thinks changes none.
    pub fn attributes_changed(&self, id: u64) {
        self.invalidate(&NotifyInvalInodeOut { ino: id, off: -1, len: 0 });
    }

    /// Has the kernel send what it holds of a file, and waits until all of it is answered: whoever calls must not be among
    /// those that serve. The kernel drops its pages of the file with that.
    pub fn write_back(&self, id: u64) {
        self.invalidate(&NotifyInvalInodeOut { ino: id, off: 0, len: 0 });
    }

    /// Has the kernel read these bytes of a file anew; a length of 0 is the rest of the file. It waits for each page that a request has until
    /// that is answered, and first sends what programs have stored there: whoever calls must not be among those that serve.
    pub fn content_changed(&self, id: u64, offset: u64, length: u64) {
        let [off, len] = [offset, length].map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        self.invalidate(&NotifyInvalInodeOut { ino: id, off, len });
    }

    /// Has the kernel look a name up before it trusts it again, or drop it (`drops`), and what is mounted below it. The kernel waits for the
    /// directory's lock, which any request about the directory may have until it is answered: the caller must not be among the
    /// threads that serve.
    pub fn name_changed(&self, parent: u64, name: &[u8], drops: bool) {
        let flags = if drops { 0 } else { EXPIRE_ONLY };
        let body = NotifyInvalEntryOut { parent, namelen: name.len() as u32, flags };
        self.notify(NOTIFY_INVAL_ENTRY, &[body.as_bytes(), name, &[0]].concat());
    }

    fn invalidate(&self, body: &NotifyInvalInodeOut) {
        self.notify(NOTIFY_INVAL_INODE, body.as_bytes());
    }

    fn notify(&self, code: i32, body: &[u8]) {
        let header = OutHeader { len: (size_of::<OutHeader>() + body.len()) as u32, error: code, unique: 0 };
        if let Some(device) = &*self.device.read() {
            // A kernel that does not have it has nothing to forget.
            let _ = device.send(&[header.as_bytes(), body].concat());
        }
    }

    /// Nobody serves any more: as long as a descriptor is left, those who wait for an answer go on waiting.
    pub fn end(&self) {
        *self.device.write() = None;
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

/// Makes `further`, just opened, a descriptor of the mount that `of` belongs to.
#[allow(unsafe_code, reason = "an ioctl that no crate wraps")]
fn clone_onto(further: &OwnedFd, of: &OwnedFd) -> rustix::io::Result<()> {
    use rustix::fd::AsRawFd;
    use rustix::ioctl::{Setter, ioctl, opcode};
    const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, a descriptor number, and writes nothing (linux/fuse.h).
    unsafe { ioctl(further, Setter::<CLONE, u32>::new(of.as_raw_fd() as u32)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The notifier's descriptor was there for as long as anybody had a handle of the mount.
    #[test]
    fn no_descriptor_is_left_when_serving_has_ended() {
        let (read, write) = io::pipe().unwrap();
        let device = Device::from(OwnedFd::from(write));
        let notifier = device.notifier().unwrap();
        drop(device);
        notifier.attributes_changed(7);
        let mut buf = [0; 256];
        assert!(rustix::io::read(&read, &mut buf).unwrap() > 0);
        notifier.end();
        notifier.attributes_changed(7);
        assert_eq!(rustix::io::read(&read, &mut buf).unwrap(), 0, "the last descriptor is closed");
    }
}
