//! A disk in memory with a volatile cache of its own.

use super::Random;
use myriad_device::{BlockDevice, DeviceCounters, Discards};
use std::io;
use std::sync::{Arc, Mutex};

/// Memory with a volatile cache. After `fuse` more requests every request fails.
pub(super) struct Disk(Mutex<State>);

#[derive(Default)]
struct State {
    /// What reads see.
    bytes: Vec<u8>,
    /// What a power loss leaves for sure.
    durable: Vec<u8>,
    /// Writes since the last flush.
    volatile: Vec<(u64, Vec<u8>)>,
    fuse: Option<u64>,
    counters: DeviceCounters,
}

impl State {
    fn burn(&mut self) -> io::Result<()> {
        match &mut self.fuse {
            Some(0) => Err(io::Error::other("fuse")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Disk {
    pub(super) fn new(size: u64) -> Arc<Self> {
        let bytes = vec![0; size as usize];
        Arc::new(Self(Mutex::new(State { durable: bytes.clone(), bytes, ..State::default() })))
    }

    /// Power loss: of each write since the last flush an arbitrary subset of its sectors arrives, often all or none.
    pub(super) fn lose_power(&self, random: &mut Random) {
        let mut state = self.0.lock().unwrap();
        let state = &mut *state;
        let mood = random.below(4);
        for (offset, bytes) in state.volatile.drain(..) {
            let whole = random.one_in(2);
            for (sector, at) in bytes.chunks(512).zip((offset as usize..).step_by(512)) {
                let arrives = match mood {
                    0 => true,
                    1 => false,
                    2 => whole,
                    _ => random.one_in(2),
                };
                if arrives {
                    state.durable[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        state.bytes = state.durable.clone();
        state.fuse = None;
    }

    pub(super) fn set_fuse(&self, fuse: Option<u64>) {
        self.0.lock().unwrap().fuse = fuse;
    }

    /// Overwrites bytes behind the log's back.
    pub(super) fn poke(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.0.lock().unwrap();
        let range = offset as usize..offset as usize + bytes.len();
        state.bytes[range.clone()].copy_from_slice(bytes);
        state.durable[range].copy_from_slice(bytes);
    }

    /// Whether a power loss would lose nothing.
    pub(super) fn is_durable(&self) -> bool {
        self.0.lock().unwrap().volatile.is_empty()
    }

    pub(super) fn peek(&self, offset: u64, size: usize) -> Vec<u8> {
        self.0.lock().unwrap().bytes[offset as usize..][..size].to_vec()
    }
}

impl BlockDevice for Disk {
    fn size(&self) -> u64 {
        self.0.lock().unwrap().bytes.len() as u64
    }
    fn alignment(&self) -> usize {
        512
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        assert!(offset % 512 == 0 && buf.len() % 512 == 0);
        state.counters.reads += 1;
        state.counters.read_bytes += buf.len() as u64;
        buf.copy_from_slice(&state.bytes[offset as usize..][..buf.len()]);
        Ok(())
    }
    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        assert!(offset % 512 == 0 && buf.len() % 512 == 0);
        state.burn()?;
        state.counters.writes += 1;
        state.bytes[offset as usize..][..buf.len()].copy_from_slice(buf);
        state.volatile.push((offset, buf.to_vec()));
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let state = &mut *state;
        state.burn()?;
        state.counters.flushes += 1;
        for (offset, bytes) in state.volatile.drain(..) {
            state.durable[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn discards(&self) -> Discards {
        Discards::Never
    }
    fn counters(&self) -> DeviceCounters {
        self.0.lock().unwrap().counters
    }
}
