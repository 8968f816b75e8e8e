//! How requests come from the kernel and answers go back.
//!
//! A transport runs a [`Service`] until the mount is gone. It knows messages, threads and wake-ups; what a message means
//! is the service's affair.
//!
//! Unless asked otherwise, a mount takes the ring wherever the kernel offers it. Over the work that users do (a tree unpacked,
//! searched, read and removed, Postmark, a mail folder) it takes 0.75 to 1.0 of the classic transport's time in ten phases, and
//! 1.14 in unpacking (docs/performance.md). By single requests on one processor the ring's floor is higher, by up to a quarter;
//! with client and server on any processor, as mounts have them, it is lower in seven of eleven. Measuring at each mount instead
//! would take a tenth of a second on a machine that may be busy with something else just then. On a kernel on which
//! `scripts/mounted --options transport=ring` loses to `classic`, the choice would change.

mod classic;
mod device;
mod placement;
mod ring;

pub use classic::{Classic, Worker};
pub use device::{BUFFER_SIZE, Device, Message, Notifier};
pub use ring::{Queues, Uring};

use crate::error::ServeError;
use crate::service::Service;
use std::sync::Arc;

pub trait Transport: Send {
    /// Answers requests until the mount is gone.
    fn run(self: Box<Self>, service: Arc<dyn Service>) -> Result<(), ServeError>;

    fn name(&self) -> &'static str;
}
