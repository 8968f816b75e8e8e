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

pub struct Classic {
    device: Device,
    threads: usize,
}

impl Classic {
    /// `threads` of 0: as many as there are cores.
    pub fn new(device: Device, threads: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { device, threads: if threads == 0 { cores } else { threads } }
    }
}

impl Transport for Classic {
    fn run(self: Box<Self>, service: Arc<dyn Service>) -> Result<(), ServeError> {
        let mut workers = Vec::new();
        for i in 1..self.threads {
            let worker = self.device.clone_channel().and_then(|device| {
                let service = Arc::clone(&service);
                let name = format!("myriad-fuse-{i}");
                std::thread::Builder::new().name(name).spawn(move || work(&device, &*service))
            });
            match worker {
                Ok(worker) => workers.push(worker),
                // Fewer threads do, if one does.
                Err(_) => break,
            }
        }
        let mut result = work(&self.device, &*service);
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

/// Answers requests one after the other.
fn work(device: &Device, service: &dyn Service) -> io::Result<()> {
    const HEADER: usize = size_of::<OutHeader>();
    let mut request = vec![0; BUFFER_SIZE];
    let mut answer = vec![0; HEADER + REQUEST_MAX];
    loop {
        let len = match device.receive(&mut request)? {
            Message::Bytes(len) => len,
            Message::Nothing => continue,
            Message::Gone => return Ok(()),
        };
        let (head, body) = answer.split_at_mut(HEADER);
        if let Some((header, len)) = respond(service, decode(&request[..len]), body) {
            head.copy_from_slice(header.as_bytes());
            device.send(&answer[..HEADER + len])?;
        }
    }
}
