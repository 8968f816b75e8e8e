//! The classic transport: threads that read requests from /dev/fuse and write answers back.

use super::Transport;
use super::device::{BUFFER_SIZE, Device, Message};
use super::placement::{Placement, Sharing};
use crate::error::ServeError;
use crate::negotiate::REQUEST_MAX;
use crate::request::decode;
use crate::service::{Service, respond};
use crate::wire::{InHeader, OutHeader};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

const HEADER: usize = size_of::<OutHeader>();

/// Room for the answer to a request that is answered apart: it has no content.
const SMALL_ANSWER: usize = 4096;

pub struct Classic {
    device: Device,
    threads: usize,
    beside: bool,
}

impl Classic {
    /// `threads` of 0: as many as there are cores, so that all can be busy; two at least, so that a request that waits for
    /// the device does not hold up all others; 16 at most, for each has buffers of 2 MiB. `beside`: a single caller is
    /// served on its own processor.
    pub fn new(device: Device, threads: usize, beside: bool) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { device, threads: if threads == 0 { cores.clamp(2, 16) } else { threads }, beside }
    }
}

impl Transport for Classic {
    fn run(self: Box<Self>, service: Arc<dyn Service>) -> Result<(), ServeError> {
        let sharing = Sharing::One(self.device.try_clone().map_err(ServeError::Device)?);
        let placement = Placement::new(self.threads, sharing, self.beside);
        let mut workers = Vec::new();
        for i in 1..self.threads {
            let worker = self.device.clone_channel().and_then(|device| {
                let (service, placement) = (Arc::clone(&service), Arc::clone(&placement));
                let name = format!("myriad-fuse-{i}");
                std::thread::Builder::new().name(name).spawn(move || serve(&device, &service, &placement, i))
            });
            match worker {
                Ok(worker) => workers.push(worker),
                // Fewer threads do, if one does.
                Err(_) => break,
            }
        }
        let watch = placement.watch();
        let mut result = serve(&self.device, &service, &placement, 0);
        // Who waits for its turn sees that the mount is gone.
        drop(watch);
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

/// Answers requests one after the other, until the mount is gone.
fn serve(device: &Device, service: &Arc<dyn Service>, placement: &Placement, seat: usize) -> io::Result<()> {
    let mut worker = Worker::new();
    placement.take_seat(seat);
    loop {
        placement.wait_for_turn(seat);
        let message = worker.receive(device)?;
        match message {
            Message::Bytes(len) if service.waits_for_kernel(opcode(&worker.request)) => {
                answer_apart(device, service, &worker.request[..len])?;
            }
            Message::Bytes(len) => {
                placement.begin(seat, caller(&worker.request));
                worker.answer(device, &**service, len)?;
                placement.end(seat);
            }
            Message::Nothing => {}
            Message::Gone => return Ok(()),
        }
    }
}

/// Has a request answered by a thread of its own, which may wait for what others serve.
fn answer_apart(device: &Device, service: &Arc<dyn Service>, request: &[u8]) -> io::Result<()> {
    let mut worker = Worker { request: request.to_vec(), answer: vec![0; HEADER + SMALL_ANSWER] };
    let (answered, service) = (device.try_clone()?, Arc::clone(service));
    let serve = move || {
        // An error is the mount's end, which the serving threads see.
        let len = worker.request.len();
        let _ = worker.answer(&answered, &*service, len);
    };
    if std::thread::Builder::new().name("myriad-waiting".into()).spawn(serve).is_ok() {
        return Ok(());
    }
    // Better refused than a mount that stands still.
    let Ok((header, _)) = InHeader::read_from_prefix(request) else { return Ok(()) };
    let error = -Errno::AGAIN.raw_os_error();
    device.send(OutHeader { len: HEADER as u32, error, unique: header.unique }.as_bytes())
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

    /// Answers the next request; what came of reading it.
    pub fn serve_one(&mut self, device: &Device, service: &dyn Service) -> io::Result<Message> {
        let message = self.receive(device)?;
        if let Message::Bytes(len) = message {
            self.answer(device, service, len)?;
        }
        Ok(message)
    }

    fn receive(&mut self, device: &Device) -> io::Result<Message> {
        device.receive(&mut self.request)
    }

    /// Answers the request that was received.
    fn answer(&mut self, device: &Device, service: &dyn Service, len: usize) -> io::Result<()> {
        let (head, body) = self.answer.split_at_mut(HEADER);
        if let Some((header, len)) = respond(service, decode(&self.request[..len]), body) {
            head.copy_from_slice(header.as_bytes());
            device.send(&self.answer[..HEADER + len])?;
            if service.waits_for_answers() {
                service.answered(header.unique);
            }
        }
        Ok(())
    }
}

/// What a request is; 0, which none is, if it is none.
fn opcode(request: &[u8]) -> u32 {
    InHeader::read_from_prefix(request).map_or(0, |(header, _)| header.opcode)
}

/// The thread that a request came from.
fn caller(request: &[u8]) -> u32 {
    InHeader::read_from_prefix(request).map_or(0, |(header, _)| header.pid)
}
