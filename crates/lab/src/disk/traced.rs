//! A device that passes requests on to another one, keeps count of how far apart they lie, and can ask a model how long they take.

use super::{Model, Request};
use myriad_device::{BlockDevice, ReadRequest, WriteRequest};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

/// What was asked of a device, for [`replay`]: a batch at a time, without the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Serve(Vec<Request>),
    Flush,
    /// The host computed for so many nanoseconds.
    Compute(u64),
}

impl Trace {
    pub fn serve(&mut self, batch: &[Request]) {
        self.steps.push(Step::Serve(batch.to_vec()));
    }

    pub fn flush(&mut self) {
        self.steps.push(Step::Flush);
    }

    pub fn compute(&mut self, ns: u64) {
        self.steps.push(Step::Compute(ns));
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

/// What a model takes for a trace, in nanoseconds.
pub fn replay(trace: &Trace, model: &mut dyn Model) -> u64 {
    let before = model.now_ns();
    for step in &trace.steps {
        match step {
            Step::Serve(batch) => model.serve(batch),
            Step::Flush => model.flush(),
            Step::Compute(ns) => model.compute(*ns),
        }
    }
    model.now_ns() - before
}

#[derive(Default)]
struct State {
    model: Option<Box<dyn Model>>,
    trace: Option<Trace>,
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
        if let Some(trace) = &mut state.trace {
            trace.compute(ns);
        }
    }

    /// What was asked since the recording began or was last taken; nothing if there is none.
    #[cfg(test)]
    fn take_trace(&self) -> Trace {
        self.state().trace.as_mut().map(std::mem::take).unwrap_or_default()
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

    /// Keeps what is asked.
    pub fn recording(self) -> Self {
        self.state().trace = Some(Trace::default());
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
        if let Some(trace) = &mut state.trace {
            trace.serve(batch);
        }
        Ok(())
    }

    fn flushed(&self) {
        let mut state = self.state();
        if let Some(model) = &mut state.model {
            model.flush();
        }
        if let Some(trace) = &mut state.trace {
            trace.flush();
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
    use crate::disk::Preset;
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

    /// One recording, and what each drive would have taken: the same as if it had been there.
    #[test]
    fn a_recording_replayed_takes_what_it_took() {
        let run = |device: &dyn BlockDevice, meter: &Meter| {
            let parts: [&[u8]; 1] = [&[7; 4096]];
            for place in [9_u64, 3, 200, 77, 78, 79] {
                device.write(place << 20, &[1; 8192]).unwrap();
                let writes =
                    [0, 40, 80].map(|more| WriteRequest { offset: (place << 20) + (more << 12), parts: &parts });
                device.write_many(&writes).unwrap();
                device.read((place << 20) + 4096, &mut [0; 4096]).unwrap();
                meter.compute(place * 1_000);
                device.flush().unwrap();
            }
        };
        let recorder = Traced::new(MemoryDevice::new(1 << 30)).recording();
        let meter = recorder.meter();
        run(&recorder, &meter);
        let trace = meter.take_trace();
        assert!(!trace.is_empty() && meter.take_trace().is_empty());
        for preset in &crate::disk::PRESETS {
            let device = Traced::new(MemoryDevice::new(1 << 30)).with_model(preset.model());
            let there = device.meter();
            run(&device, &there);
            let replayed = replay(&trace, preset.model().as_mut());
            assert_eq!(Some(replayed), there.modelled_ns(), "{}", preset.name);
            assert_eq!(replay(&trace, preset.model().as_mut()), replayed, "{}", preset.name);
        }
        let slow = replay(&trace, Preset::named("disk1996").unwrap().model().as_mut());
        let fast = replay(&trace, Preset::named("ssd").unwrap().model().as_mut());
        assert!(slow > 10 * fast, "{slow} {fast}");
    }
}
