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

/// At one request in so many power is lost in the middle of things.
const CUT_ONE_IN: usize = 200;

/// The host of a volume's devices.
pub(super) struct Host {
    /// Writes to come for which there is no room, and how many there were.
    refused: AtomicU32,
    pub refusals: AtomicU64,
    /// Writes and flushes that still succeed before all fail.
    left: AtomicU32,
}

impl Host {
    fn new() -> Self {
        Self { refused: AtomicU32::new(0), refusals: AtomicU64::new(0), left: AtomicU32::new(NEVER) }
    }

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
        self.refuse(0);
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

/// A disk that knows what it had at its last flush, and what came since.
struct Disk {
    inner: OverlayDevice,
    durable: Mutex<OverlayDevice>,
    unflushed: Mutex<Vec<Unflushed>>,
}

impl Disk {
    fn new(base: MemoryDevice) -> Self {
        let inner = OverlayDevice::new(Arc::new(base));
        let durable = Mutex::new(inner.fork());
        Self { inner, durable, unflushed: Mutex::default() }
    }

    fn note(&self, request: Unflushed) {
        self.unflushed.lock().expect("no panic under it").push(request);
    }

    fn has_unflushed(&self) -> bool {
        !self.unflushed.lock().expect("no panic under it").is_empty()
    }

    fn flush(&self) {
        *self.durable.lock().expect("no panic under it") = self.inner.fork();
        self.unflushed.lock().expect("no panic under it").clear();
    }

    fn after(&self, arrived: Arrived, rng: &mut Rng) -> Arc<dyn BlockDevice> {
        let flushed = || self.durable.lock().expect("no panic under it").fork();
        Arc::new(match arrived {
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
        })
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

/// Devices as losing power has left them, and what of the requests that were not flushed has arrived.
pub(super) type Cut = (Devices, String);

/// The disks of a meeting's volume: the first, and one for the log, if that has its own.
pub(super) struct Media {
    disks: Vec<Disk>,
    pub host: Host,
    /// Decides what arrives when power is lost, and when it is lost in the middle of things.
    rng: Mutex<Rng>,
    /// What that has left, and nobody has looked at.
    sudden: Mutex<Vec<Cut>>,
}

impl Media {
    pub fn new((main, log): (MemoryDevice, Option<MemoryDevice>), seed: u64) -> Arc<Self> {
        let disks = [Some(main), log].into_iter().flatten().map(Disk::new).collect();
        let (rng, sudden) = (Mutex::new(Rng::new(seed)), Mutex::default());
        Arc::new(Self { disks, host: Host::new(), rng, sudden })
    }

    pub fn devices(self: &Arc<Self>) -> Devices {
        let device = |disk| Arc::new(Medium { media: self.clone(), disk }) as Arc<dyn BlockDevice>;
        Devices { main: device(0), log: (self.disks.len() > 1).then(|| device(1)) }
    }

    fn after(&self, main: Arrived, log: Arrived, rng: &mut Rng) -> Devices {
        let main = self.disks[0].after(main, rng);
        Devices { main, log: self.disks.get(1).map(|disk| disk.after(log, rng)) }
    }

    /// All that was written.
    pub fn written(&self) -> Devices {
        self.after(Arrived::All, Arrived::All, &mut Rng::new(0))
    }

    /// What losing power now may leave.
    pub fn after_power_cut(&self) -> Vec<Cut> {
        let mut states = vec![(Arrived::All, Arrived::All)];
        if self.disks.iter().any(Disk::has_unflushed) {
            states.extend([(Arrived::None, Arrived::None), (Arrived::Some, Arrived::Some)]);
            if self.disks.len() > 1 {
                states.extend([(Arrived::All, Arrived::None), (Arrived::None, Arrived::All)]);
            }
        }
        let mut rng = self.rng.lock().expect("no panic under it");
        let of = |(main, log): (Arrived, Arrived)| {
            let log_part = if self.disks.len() > 1 { format!(", of the log's: {log:?}") } else { String::new() };
            (self.after(main, log, &mut rng), format!("of what was not flushed: {main:?}{log_part}"))
        };
        states.into_iter().map(of).collect()
    }

    /// What losing power in the middle of requests has left since the last call.
    pub fn take_sudden(&self) -> Vec<Cut> {
        std::mem::take(&mut self.sudden.lock().expect("no panic under it"))
    }

    fn may_lose_power(&self) {
        if self.rng.lock().expect("no panic under it").index(CUT_ONE_IN) == 0 {
            let mut cuts = self.after_power_cut();
            self.sudden.lock().expect("no panic under it").append(&mut cuts);
        }
    }
}

/// One of the disks, as the volume has it: at each of its requests another thread may go on, or power be lost.
struct Medium {
    media: Arc<Media>,
    disk: usize,
}

impl Medium {
    fn disk(&self) -> &Disk {
        &self.media.disks[self.disk]
    }
}

impl BlockDevice for Medium {
    fn size(&self) -> u64 {
        self.disk().inner.size()
    }
    fn alignment(&self) -> usize {
        self.disk().inner.alignment()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        schedule::pause();
        self.disk().inner.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        schedule::pause();
        self.media.may_lose_power();
        self.media.host.has_room()?;
        self.disk().inner.write(offset, buf)?;
        self.disk().note(Unflushed::Written { offset, bytes: buf.to_vec() });
        Ok(())
    }
    fn write_many(&self, writes: &[WriteRequest<'_>]) -> io::Result<()> {
        schedule::pause();
        self.media.may_lose_power();
        self.media.host.has_room()?;
        self.disk().inner.write_many(writes)?;
        for write in writes {
            self.disk().note(Unflushed::Written { offset: write.offset, bytes: write.parts.concat() });
        }
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        schedule::pause();
        self.media.may_lose_power();
        self.media.host.works()?;
        self.disk().inner.flush()?;
        self.disk().flush();
        Ok(())
    }
    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        schedule::pause();
        self.disk().inner.discard(offset, length)?;
        self.disk().note(Unflushed::Discarded { offset, length });
        Ok(())
    }
    fn discards(&self) -> Discards {
        self.disk().inner.discards()
    }
    fn counters(&self) -> DeviceCounters {
        self.disk().inner.counters()
    }
}
