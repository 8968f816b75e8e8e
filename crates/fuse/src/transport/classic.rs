//! The classic transport: threads that read requests from /dev/fuse and write answers back.

use super::Transport;
use super::device::{BUFFER_SIZE, Device, Message};
use crate::error::ServeError;
use crate::negotiate::REQUEST_MAX;
use crate::request::decode;
use crate::service::{Service, respond};
use crate::wire::OutHeader;
use std::io;
use std::sync::Arc;
use zerocopy::IntoBytes;

const HEADER: usize = size_of::<OutHeader>();

pub struct Classic {
    device: Device,
    threads: usize,
}

impl Classic {
    /// `threads` of 0: as many as there are cores, so that all can be busy; two at least, so that a request that waits for
    /// the device does not hold up all others; 16 at most, for each has buffers of 2 MiB.
    pub fn new(device: Device, threads: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { device, threads: if threads == 0 { cores.clamp(2, 16) } else { threads } }
    }
}

impl Transport for Classic {
    fn run(self: Box<Self>, service: Arc<dyn Service>) -> Result<(), ServeError> {
        let mut workers = Vec::new();
        for i in 1..self.threads {
            let worker = self.device.clone_channel().and_then(|device| {
                let service = Arc::clone(&service);
                let name = format!("myriad-fuse-{i}");
                std::thread::Builder::new().name(name).spawn(move || Worker::new().serve(&device, &*service))
            });
            match worker {
                Ok(worker) => workers.push(worker),
                // Fewer threads do, if one does.
                Err(_) => break,
            }
        }
        let mut result = Worker::new().serve(&self.device, &*service);
        for worker in workers {
            let ended = worker.join().unwrap_or_else(|_| Err(io::Error::other("a serving thread panicked")));
            result = result.and(ended);
        }
        result.map_err(ServeError::Device)
    }

    fn name(&self) -> &'static str {
        "classic"
    }
}

/// Buffers for one request at a time, and its answer.
pub struct Worker {
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Worker {
    pub fn new() -> Self {
        Self { request: vec![0; BUFFER_SIZE], answer: vec![0; HEADER + REQUEST_MAX] }
    }

    /// Answers requests one after the other, until the mount is gone.
    pub fn serve(&mut self, device: &Device, service: &dyn Service) -> io::Result<()> {
        while !matches!(self.serve_one(device, service)?, Message::Gone) {}
        Ok(())
    }

    /// Answers the next request; what came of reading it.
    pub fn serve_one(&mut self, device: &Device, service: &dyn Service) -> io::Result<Message> {
        let message = device.receive(&mut self.request)?;
        if let Message::Bytes(len) = message {
            let (head, body) = self.answer.split_at_mut(HEADER);
            if let Some((header, len)) = respond(service, decode(&self.request[..len]), body) {
                head.copy_from_slice(header.as_bytes());
                device.send(&self.answer[..HEADER + len])?;
            }
        }
        Ok(message)
    }
}
