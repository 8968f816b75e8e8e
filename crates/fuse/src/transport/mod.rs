//! How requests come from the kernel and answers go back.
//!
//! A transport runs a [`Service`] until the mount is gone. It knows messages, threads and wake-ups; what a message means
//! is the service's affair.

mod classic;
mod device;
mod placement;
mod ring;

pub use classic::Classic;
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
