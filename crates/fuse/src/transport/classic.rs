//! The classic transport: threads that read requests from /dev/fuse and write answers back.

use super::Transport;
use super::device::{BUFFER_SIZE, Device, Message};
use super::placement::{Placement, Sharing};
use crate::error::ServeError;
use crate::negotiate::REQUEST_MAX;
use crate::request::decode;
use crate::service::{Service, respond};
use crate::wire::{InHeader, OutHeader};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

const HEADER: usize = size_of::<OutHeader>();

/// Room for the answer to a request that is answered apart: it has no content.
const SMALL_ANSWER: usize = 4096;
/// Most threads that answer requests apart. None of them waits for a request that is queued here: they wait for such as the threads that serve
/// answer, or for a search.
const APART_MAX: usize = 16;

pub struct Classic {
    device: Arc<Device>,
    threads: usize,
    beside: bool,
}

impl Classic {
    /// `threads` of 0: as many as there are cores, so that all can be busy; two at least, so that a request that waits for
    /// the device does not hold up all others; 16 at most, for each has buffers of 2 MiB. `beside`: a single caller is
    /// served on its own processor.
    pub fn new(device: Device, threads: usize, beside: bool) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if threads == 0 { cores.clamp(2, 16) } else { threads };
        Self { device: Arc::new(device), threads, beside }
    }
}

impl Transport for Classic {
    fn run(self: Box<Self>, service: Arc<dyn Service>) -> Result<(), ServeError> {
        let sharing = Sharing::One(self.device.try_clone().map_err(ServeError::Device)?);
        let placement = Placement::new(self.threads, sharing, self.beside);
        let apart = Arc::new(Apart::default());
        let mut workers = Vec::new();
        for i in 1..self.threads {
            let worker = self.device.clone_channel().and_then(|device| {
                let (service, placement, apart) = (Arc::clone(&service), Arc::clone(&placement), Arc::clone(&apart));
                let name = format!("myriad-fuse-{i}");
                let device = Arc::new(device);
                std::thread::Builder::new().name(name).spawn(move || serve(&device, &service, &placement, &apart, i))
            });
            match worker {
                Ok(worker) => workers.push(worker),
                // Fewer threads do, if one does.
                Err(_) => break,
            }
        }
        let watch = placement.watch();
        let mut result = serve(&self.device, &service, &placement, &apart, 0);
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
fn serve(
    device: &Arc<Device>,
    service: &Arc<dyn Service>,
    placement: &Placement,
    apart: &Arc<Apart>,
    seat: usize,
) -> io::Result<()> {
    let mut worker = Worker::new();
    placement.take_seat(seat);
    loop {
        placement.wait_for_turn(seat);
        let message = worker.receive(device)?;
        match message {
            Message::Bytes(len) if service.answers_apart(opcode(&worker.request)) => {
                apart.add(device, service, &worker.request[..len]);
            }
            Message::Bytes(len) => {
                placement.begin(seat, caller(&worker.request));
                worker.answer(device, &**service, len);
                placement.end(seat);
            }
            Message::Nothing => {}
            Message::Gone => return Ok(()),
        }
    }
}

/// Requests that are answered by threads of their own, which may wait for what others serve, or for long.
#[derive(Default)]
struct Apart(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// Each with the descriptor that it came by. There are no more than callers, who wait.
    requests: VecDeque<(Arc<Device>, Vec<u8>)>,
    /// They end when nothing waits.
    threads: usize,
}

impl Apart {
    fn add(self: &Arc<Self>, device: &Arc<Device>, service: &Arc<dyn Service>, request: &[u8]) {
        let mut waiting = self.0.lock();
        waiting.requests.push_back((Arc::clone(device), request.to_vec()));
        if waiting.threads == APART_MAX {
            return;
        }
        let (apart, service) = (Arc::clone(self), Arc::clone(service));
        if std::thread::Builder::new().name("myriad-waiting".into()).spawn(move || apart.serve(&*service)).is_ok() {
            waiting.threads += 1;
        } else if waiting.threads == 0 {
            // Better refused than a mount that stands still.
            waiting.requests.pop_back();
            drop(waiting);
            refuse(device, request, Errno::AGAIN);
        }
    }

    /// Answers what waits, until nothing does.
    fn serve(&self, service: &dyn Service) {
        while let Some((device, request)) = self.next() {
            let len = request.len();
            Worker { request, answer: vec![0; HEADER + SMALL_ANSWER] }.answer(&device, service, len);
        }
    }

    fn next(&self) -> Option<(Arc<Device>, Vec<u8>)> {
        let mut waiting = self.0.lock();
        let next = waiting.requests.pop_front();
        // Under the lock, so that what comes next finds a thread or begins one.
        waiting.threads -= usize::from(next.is_none());
        next
    }
}

/// Answers a request with an error, as far as the kernel takes it.
fn refuse(device: &Device, request: &[u8], error: Errno) {
    if let Ok((header, _)) = InHeader::read_from_prefix(request) {
        let answer = OutHeader { len: HEADER as u32, error: -error.raw_os_error(), unique: header.unique };
        let _ = device.send(answer.as_bytes());
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

    /// Answers the next request; what came of reading it.
    pub fn serve_one(&mut self, device: &Device, service: &dyn Service) -> io::Result<Message> {
        let message = self.receive(device)?;
        if let Message::Bytes(len) = message {
            self.answer(device, service, len);
        }
        Ok(message)
    }

    fn receive(&mut self, device: &Device) -> io::Result<Message> {
        device.receive(&mut self.request)
    }

    /// Answers the request that was received. An answer that the kernel does not take, as for want of memory, is the end of that request and
    /// not of the mount: if the mount is lost, the next message tells.
    fn answer(&mut self, device: &Device, service: &dyn Service, len: usize) {
        let (head, body) = self.answer.split_at_mut(HEADER);
        let (request, dialect) = (&self.request[..len], service.dialect());
        if let Some((header, len)) = respond(service, decode(request, dialect), body) {
            head.copy_from_slice(header.as_bytes());
            if device.send(&self.answer[..HEADER + len]).is_err() {
                if let (0, Ok(request)) = (header.error, decode(request, dialect)) {
                    service.not_taken(&request, &self.answer[HEADER..HEADER + len]);
                }
                // Unless the kernel has given it up by itself, with the same error.
                refuse(device, request, Errno::IO);
            }
            if service.waits_for_answers() {
                service.answered(header.unique);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Answer;
    use crate::request::Request;
    use crate::stats::Recorder;
    use crate::wire::opcode;
    use parking_lot::Condvar;
    use rustix::fd::OwnedFd;
    use std::collections::HashSet;
    use std::io::Read;
    use std::time::Duration;

    /// Answers nobody until it is told to.
    #[derive(Default)]
    struct Gate {
        state: Mutex<(usize, bool)>,
        changed: Condvar,
        recorder: Recorder,
    }

    impl Service for Gate {
        fn answer(&self, _: &Request<'_>, _: &mut [u8]) -> Answer {
            let mut state = self.state.lock();
            state.0 += 1;
            self.changed.notify_all();
            self.changed.wait_while(&mut state, |(_, is_open)| !*is_open);
            Answer::Bytes(0)
        }

        fn panicked(&self) {}

        fn recorder(&self) -> &Recorder {
            &self.recorder
        }
    }

    fn lookup(unique: u64) -> Vec<u8> {
        const NAME: &[u8] = b"name\0";
        let len = (size_of::<InHeader>() + NAME.len()) as u32;
        let header = InHeader { len, opcode: opcode::LOOKUP, unique, ..InHeader::default() };
        [header.as_bytes(), NAME].concat()
    }

    /// Each request that waits for the kernel had a thread and a descriptor of its own. With a thousand of them the descriptors were used
    /// up, which ended the threads that serve, and the mount with them.
    #[test]
    fn requests_that_wait_take_no_descriptors_and_few_threads() {
        const REQUESTS: usize = 100;
        let (mut read, write) = io::pipe().unwrap();
        let device = Arc::new(Device::from(OwnedFd::from(write)));
        let (gate, apart) = (Arc::new(Gate::default()), Arc::new(Apart::default()));
        let service: Arc<dyn Service> = gate.clone();
        for unique in 0..REQUESTS as u64 {
            apart.add(&device, &service, &lookup(unique));
        }
        assert_eq!(apart.0.lock().threads, APART_MAX);
        {
            let mut state = gate.state.lock();
            gate.changed.wait_while(&mut state, |(begun, _)| *begun < APART_MAX);
            // More would have come by then.
            gate.changed.wait_for(&mut state, Duration::from_millis(20));
            assert_eq!(state.0, APART_MAX);
            state.1 = true;
            gate.changed.notify_all();
        }
        let mut answers = [0; REQUESTS * HEADER];
        read.read_exact(&mut answers).unwrap();
        let unique = |answer: &[u8]| OutHeader::read_from_bytes(answer).unwrap().unique;
        let answered: HashSet<u64> = answers.chunks(HEADER).map(unique).collect();
        assert_eq!(answered.len(), REQUESTS);
        while apart.0.lock().threads > 0 {
            std::thread::yield_now();
        }
        // There is no other descriptor of the pipe's end.
        drop(device);
        assert_eq!(read.read(&mut [0]).unwrap(), 0);
    }

    /// An answer that could not be sent ended the thread that served, and with the last of them the mount.
    #[test]
    fn an_answer_that_is_not_taken_is_the_end_of_one_request() {
        let (read, _write) = io::pipe().unwrap();
        let gate = Gate::default();
        gate.state.lock().1 = true;
        let request = lookup(7);
        let len = request.len();
        // Nothing can be written there.
        let device = Device::from(OwnedFd::from(read));
        Worker { request, answer: vec![0; HEADER + SMALL_ANSWER] }.answer(&device, &gate, len);
        assert_eq!(gate.state.lock().0, 1);
    }
}
