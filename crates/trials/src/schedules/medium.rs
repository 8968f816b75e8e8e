//! What the volume of a meeting lies on.

use crate::setup::Devices;
use myriad_device::{BlockDevice, DeviceCounters, Discards, MemoryDevice, OverlayDevice, WriteRequest};
use myriad_engine::Errno;
use myriad_engine::schedule;
use myriad_sim::rng::Rng;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What a medium writes whole or not at all.
const SECTOR_SIZE: usize = 512;

/// A device never fails of which [`Host::left`] says so many requests.
const NEVER: u32 = u32::MAX;

/// The host of all devices of a volume.
pub(super) struct Host {
    /// Writes to come for which the host has no room, and how many there were.
    refused: AtomicU32,
    pub refusals: AtomicU64,
    /// Writes and flushes that still succeed before all fail.
    left: AtomicU32,
}

impl Host {
    pub fn refuse(&self, writes: u32) {
        self.refused.store(writes, Ordering::Relaxed);
    }

    pub fn break_after(&self, requests: u32) {
        self.left.store(requests, Ordering::Relaxed);
    }

    /// Whether no write and no flush succeeds any more.
    pub fn is_broken(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    /// From now on there is room, and nothing will break that has not.
    pub fn calm(&self) {
        self.refused.store(0, Ordering::Relaxed);
        if !self.is_broken() {
            self.break_after(NEVER);
        }
    }

    fn works(&self) -> io::Result<()> {
        let less = |left: u32| if left == NEVER { Some(NEVER) } else { left.checked_sub(1) };
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => Ok(()),
            Err(_) => Err(Errno::IO.into()),
        }
    }

    fn has_room(&self) -> io::Result<()> {
        self.works()?;
        let taken = self.refused.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if taken.is_err() {
            return Ok(());
        }
        self.refusals.fetch_add(1, Ordering::Relaxed);
        Err(Errno::NOSPC.into())
    }
}

/// A request that no flush has covered yet.
enum Unflushed {
    Written { offset: u64, bytes: Vec<u8> },
    Discarded { offset: u64, length: u64 },
}

/// What of a device's unflushed requests has arrived when power is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrived {
    All,
    None,
    /// Any of them, and of some only the first sectors.
    Some,
}

/// A device that knows what it had at its last flush and what came since, and at each request of which another thread may go on.
pub(super) struct Medium {
    inner: OverlayDevice,
    durable: Mutex<OverlayDevice>,
    unflushed: Mutex<Vec<Unflushed>>,
    host: Arc<Host>,
}

impl Medium {
    fn new(base: MemoryDevice, host: &Arc<Host>) -> Self {
        let inner = OverlayDevice::new(Arc::new(base));
        let durable = Mutex::new(inner.fork());
        Self { inner, durable, unflushed: Mutex::default(), host: host.clone() }
    }

    fn note(&self, request: Unflushed) {
        self.unflushed.lock().expect("no panic under it").push(request);
    }

    fn has_unflushed(&self) -> bool {
        !self.unflushed.lock().expect("no panic under it").is_empty()
    }

    fn after(&self, arrived: Arrived, rng: &mut Rng) -> OverlayDevice {
        let flushed = || self.durable.lock().expect("no panic under it").fork();
        match arrived {
            Arrived::All => self.inner.fork(),
            Arrived::None => flushed(),
            Arrived::Some => {
                let device = flushed();
                for request in self.unflushed.lock().expect("no panic under it").iter() {
                    if rng.percent(50) {
                        apply(&device, request, rng);
                    }
                }
                device
            }
        }
    }
}

/// Has a request arrive that was not flushed: as a whole, or its first sectors.
fn apply(device: &OverlayDevice, request: &Unflushed, rng: &mut Rng) {
    let done = match request {
        Unflushed::Written { offset, bytes } => {
            let most = bytes.len() / SECTOR_SIZE;
            let sectors = if rng.percent(70) { most } else { rng.index(most + 1) };
            if sectors == 0 { Ok(()) } else { device.write(*offset, &bytes[..sectors * SECTOR_SIZE]) }
        }
        Unflushed::Discarded { offset, length } => device.discard(*offset, *length),
    };
    done.expect("it was done before");
}

impl BlockDevice for Medium {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn alignment(&self) -> usize {
        self.inner.alignment()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        schedule::pause();
        self.inner.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        schedule::pause();
        self.host.has_room()?;
        self.inner.write(offset, buf)?;
        self.note(Unflushed::Written { offset, bytes: buf.to_vec() });
        Ok(())
    }
    fn write_many(&self, writes: &[WriteRequest<'_>]) -> io::Result<()> {
        schedule::pause();
        self.host.has_room()?;
        self.inner.write_many(writes)?;
        for write in writes {
            self.note(Unflushed::Written { offset: write.offset, bytes: write.parts.concat() });
        }
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        schedule::pause();
        self.host.works()?;
        self.inner.flush()?;
        *self.durable.lock().expect("no panic under it") = self.inner.fork();
        self.unflushed.lock().expect("no panic under it").clear();
        Ok(())
    }
    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        schedule::pause();
        self.inner.discard(offset, length)?;
        self.note(Unflushed::Discarded { offset, length });
        Ok(())
    }
    fn discards(&self) -> Discards {
        self.inner.discards()
    }
    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

/// The devices of a meeting's volume.
pub(super) struct Media {
    main: Arc<Medium>,
    /// The log's own, if it has one.
    log: Option<Arc<Medium>>,
    pub host: Arc<Host>,
}

impl Media {
    pub fn new((main, log): (MemoryDevice, Option<MemoryDevice>)) -> Self {
        let (refused, refusals, left) = (AtomicU32::new(0), AtomicU64::new(0), AtomicU32::new(NEVER));
        let host = Arc::new(Host { refused, refusals, left });
        let main = Arc::new(Medium::new(main, &host));
        Self { main, log: log.map(|log| Arc::new(Medium::new(log, &host))), host }
    }

    pub fn devices(&self) -> Devices {
        Devices { main: self.main.clone(), log: self.log.clone().map(|log| log as Arc<dyn BlockDevice>) }
    }

    fn after(&self, main: Arrived, log: Arrived, rng: &mut Rng) -> Devices {
        let device =
            |medium: &Medium, arrived, rng: &mut Rng| -> Arc<dyn BlockDevice> { Arc::new(medium.after(arrived, rng)) };
        let log = self.log.as_ref().map(|medium| device(medium, log, rng));
        Devices { main: device(&self.main, main, rng), log }
    }

    /// All that was written.
    pub fn written(&self) -> Devices {
        self.after(Arrived::All, Arrived::All, &mut Rng::new(0))
    }

    /// What losing power now may leave, each with what that is.
    pub fn after_power_cut(&self, rng: &mut Rng) -> Vec<(Devices, String)> {
        let unflushed = self.main.has_unflushed() || self.log.as_ref().is_some_and(|log| log.has_unflushed());
        let mut states = vec![(Arrived::All, Arrived::All)];
        if unflushed {
            states.extend([(Arrived::None, Arrived::None), (Arrived::Some, Arrived::Some)]);
        }
        if unflushed && self.log.is_some() {
            states.extend([(Arrived::All, Arrived::None), (Arrived::None, Arrived::All)]);
        }
        let of = |(main, log): (Arrived, Arrived)| {
            let log_part = if self.log.is_some() { format!(", of the log's: {log:?}") } else { String::new() };
            (self.after(main, log, rng), format!("of what was not flushed: {main:?}{log_part}"))
        };
        states.into_iter().map(of).collect()
    }
}
