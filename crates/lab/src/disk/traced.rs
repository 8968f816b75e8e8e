//! A device that passes requests on to another one, keeps count of how far apart they lie, and can ask a model how long they take.

use super::{Model, Recorder, Request};
use myriad_device::{BlockDevice, ReadRequest, WriteRequest};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Default)]
struct State {
    model: Option<Box<dyn Model>>,
    recorder: Option<Recorder>,
    /// Where the last request ended.
    last_end: u64,
    seek_bytes: u64,
}

/// The device.
pub struct Traced<D> {
    inner: D,
    state: Arc<Mutex<State>>,
}

/// Reads what a [`Traced`] device counts, after the device itself has been handed over.
#[derive(Clone)]
pub struct Meter(Arc<Mutex<State>>);

impl Meter {
    /// Bytes between the end of each request and the start of the next, in the order in which they were asked.
    pub fn seek_bytes(&self) -> u64 {
        self.state().seek_bytes
    }

    /// What the model's clock says; `None` without one.
    pub fn modelled_ns(&self) -> Option<u64> {
        self.state().model.as_ref().map(|model| model.now_ns())
    }

    /// The host computed for so long.
    pub fn compute(&self, ns: u64) {
        let mut state = self.state();
        if let Some(model) = &mut state.model {
            model.compute(ns);
        }
        if let Some(recorder) = &state.recorder {
            recorder.compute(ns);
        }
    }

    /// What a recording has between these two is a phase.
    pub fn begin_phase(&self, name: &str) {
        if let Some(recorder) = &self.state().recorder {
            recorder.begin_phase(name);
        }
    }

    pub fn end_phase(&self) {
        if let Some(recorder) = &self.state().recorder {
            recorder.end_phase();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic with the lock held")
    }
}

impl<D: BlockDevice> Traced<D> {
    pub fn new(inner: D) -> Self {
        Self { inner, state: Arc::default() }
    }

    /// Asks `model` how long each request takes.
    pub fn with_model(self, model: Box<dyn Model>) -> Self {
        self.state().model = Some(model);
        self
    }

    /// Records what is asked.
    pub fn recorded_by(self, recorder: Option<Recorder>) -> Self {
        self.state().recorder = recorder;
        self
    }

    pub fn meter(&self) -> Meter {
        Meter(self.state.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic with the lock held")
    }

    /// Served one batch at a time: what a model says of requests whose order is left to chance, it could not say twice.
    fn served(&self, batch: &[Request], serve: impl FnOnce(&D) -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state();
        serve(&self.inner)?;
        for request in batch {
            state.seek_bytes += state.last_end.abs_diff(request.offset);
            state.last_end = request.end();
        }
        if let Some(model) = &mut state.model {
            model.serve(batch);
        }
        if let Some(recorder) = &state.recorder {
            recorder.serve(batch);
        }
        Ok(())
    }

    fn flushed(&self) {
        let mut state = self.state();
        if let Some(model) = &mut state.model {
            model.flush();
        }
        if let Some(recorder) = &state.recorder {
            recorder.flush();
        }
    }
}

impl<D: BlockDevice> BlockDevice for Traced<D> {
    myriad_device::pass_on!(inner: size, alignment, discard, discards, counters);

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.served(&[Request::read(offset, buf.len() as u64)], |inner| inner.read(offset, buf))
    }

    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.served(&[Request::write(offset, buf.len() as u64)], |inner| inner.write(offset, buf))
    }

    fn write_many(&self, writes: &[WriteRequest<'_>]) -> io::Result<()> {
        let batch: Vec<Request> =
            writes.iter().map(|request| Request::write(request.offset, request.len_bytes())).collect();
        self.served(&batch, |inner| inner.write_many(writes))
    }

    fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> io::Result<()> {
        let batch: Vec<Request> =
            reads.iter().map(|request| Request::read(request.offset, request.buf.len() as u64)).collect();
        self.served(&batch, |inner| inner.read_many(reads))
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()?;
        self.flushed();
        Ok(())
    }

    fn write_durable(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.served(&[Request::write(offset, buf.len() as u64)], |inner| inner.write_durable(offset, buf))?;
        self.flushed();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_device::MemoryDevice;

    #[test]
    fn bytes_pass_and_distances_are_counted() {
        let device = Traced::new(MemoryDevice::new(1 << 20));
        let meter = device.meter();
        device.write(4096, b"abc").unwrap();
        let mut buf = [0; 3];
        device.read(4096, &mut buf).unwrap();
        assert_eq!((&buf, meter.seek_bytes(), meter.modelled_ns()), (b"abc", 4096 + 3, None));
        let parts: [&[u8]; 1] = [b"x"];
        let writes = [WriteRequest { offset: 5000, parts: &parts }, WriteRequest { offset: 5001, parts: &parts }];
        device.write_many(&writes).unwrap();
        device.write_durable(5002, b"y").unwrap();
        assert_eq!(meter.seek_bytes(), 4099 + 901);
        assert_eq!((device.counters().writes, device.counters().flushes), (4, 1));
        assert!(device.write(1 << 20, b"z").is_err());
        assert_eq!(meter.seek_bytes(), 5000, "what failed was not served");
    }
}
