//! Recorded requests, and what other devices would have taken for them.
//!
//! `lab run --trace` records what the device of each cell is asked; `lab replay` asks models of devices how long that takes. So a
//! run on today's device shows what its mechanisms would have been worth in seconds on another one.
//!
//! Invariants
//!   1. The requests stay those that were made. A slower device would have had others where a clock decides, as in writes after some
//!      seconds.
//!   2. The processor of a modelled machine is charged by what the engine counts, which only a run on that machine records. So a
//!      machine is asked for recordings of its own alone, and other devices take no processor's time from one.

use super::cells::Cell;
use super::results::{Header, HeaderLine, Line, MODELLED, SCHEMA};
use super::suites::{Item, Suite};
use crate::disk::trace::{self, Step};
use crate::disk::{Model, PRESETS, Preset, Recorder, Request};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What to do about a recording that is not whole.
const AGAIN: &str = "run it again with --resume, or name the other recordings";
/// How the names of recordings end.
const EXTENSION: &str = "trace.zst";

/// Begins the recording of a cell, in a file of the folder that is named after it.
pub(super) fn record(
    folder: &Path,
    replaces: bool,
    cell: &Cell,
    (suite, item): &(&Suite, Item),
    header: &Header,
) -> Result<Recorder> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let size = item.size.map(|size| format!("-{size}")).unwrap_or_default();
    let name = format!("{:05}-{}-{}{size}-{}", cell.order, suite.label(), item.name, cell.place.name());
    let path = folder.join(format!("{}.{EXTENSION}", name.replace('/', "-")));
    let recorder = Recorder::create(&path, replaces).with_context(|| format!("making {}", path.display()))?;
    recorder.json(&serde_json::to_string(&HeaderLine { schema: SCHEMA, header: header.clone() })?);
    Ok(recorder)
}

/// The devices that can be asked for any recording: those without a processor that is charged.
pub(super) fn devices() -> Vec<&'static Preset> {
    PRESETS.iter().filter(|preset| preset.host.is_none()).collect()
}

/// Ends a recording with the samples of its cell.
pub(super) fn finish(recorder: &Recorder, lines: &[Line]) -> Result<()> {
    for line in lines {
        recorder.json(&serde_json::to_string(line)?);
    }
    recorder.finish().context("writing the recording")
}

/// The recordings that these are, or that lie in them.
pub(super) fn recordings(places: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for place in places {
        if !place.is_dir() {
            all.push(place.clone());
            continue;
        }
        let entries = std::fs::read_dir(place).with_context(|| format!("reading {}", place.display()))?;
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
        let before = all.len();
        all.extend(paths.into_iter().filter(|path| path.to_string_lossy().ends_with(EXTENSION)));
        ensure!(
            all.len() > before,
            "{} has no recordings (*.{EXTENSION}); lab run --trace makes them",
            place.display()
        );
        all[before..].sort();
    }
    Ok(all)
}

/// The samples of a recording, on each of these devices instead of its own.
pub(super) fn replay(path: &Path, devices: &[&'static Preset]) -> Result<(Header, Vec<Line>)> {
    let replayed = || -> Result<(Header, Vec<Line>)> {
        let mut clocks: Vec<Clock> = devices.iter().map(|&preset| Clock::new(preset)).collect();
        let (mut header, mut lines) = (None, Vec::new());
        for step in trace::read(path)? {
            match step? {
                Step::Json(text) if header.is_none() => header = Some(header_of(&text)?),
                Step::Json(text) => lines.push(serde_json::from_str::<Line>(&text).context("a sample")?),
                step => clocks.iter_mut().try_for_each(|clock| clock.pass(&step))?,
            }
        }
        let header = header.context("it does not say what was run")?;
        ensure!(!lines.is_empty(), "it has no samples: the run was ended in this cell; {AGAIN}");
        let mut replayed = Vec::new();
        for clock in &clocks {
            for line in &lines {
                ensure!(
                    clock.preset.host.is_none() || clock.preset.name == line.target,
                    "it was made on {}, without the processor's time of {}; record a run on that with lab run --target",
                    line.target,
                    clock.preset.name
                );
                replayed.push(clock.sample(line)?);
            }
        }
        let targets = devices.iter().map(|preset| preset.name.to_owned()).collect();
        Ok((Header { targets, ..header }, replayed))
    };
    // A recording that is cut short ends in the middle of its compression.
    let is_cut = |error: &anyhow::Error| {
        let io = error.downcast_ref::<std::io::Error>();
        io.is_some_and(|error| error.kind() == std::io::ErrorKind::UnexpectedEof)
    };
    replayed()
        .map_err(|error| if is_cut(&error) { error.context(format!("it ends too soon; {AGAIN}")) } else { error })
        .with_context(|| path.display().to_string())
}

fn header_of(text: &str) -> Result<Header> {
    let line: HeaderLine = serde_json::from_str(text).context("its first line")?;
    ensure!(line.schema == SCHEMA, "it has schema {}, not {SCHEMA}", line.schema);
    Ok(line.header)
}

/// A device that is asked again.
struct Clock {
    preset: &'static Preset,
    model: Box<dyn Model>,
    /// The phase that has begun, and when.
    phase: Option<(String, u64)>,
    /// Nanoseconds of each phase.
    phases: BTreeMap<String, u64>,
}

impl Clock {
    fn new(preset: &'static Preset) -> Self {
        Self { preset, model: preset.model(), phase: None, phases: BTreeMap::new() }
    }

    fn pass(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Serve(batch) => {
                batch.iter().try_for_each(|request| self.check(request))?;
                self.model.serve(batch);
            }
            Step::Flush => self.model.flush(),
            Step::Compute(ns) if self.preset.host.is_some() => self.model.compute(*ns),
            Step::Compute(_) => {}
            Step::Begin(name) => self.phase = Some((name.clone(), self.model.now_ns())),
            Step::End => {
                let (name, began) = self.phase.take().context("a phase ends that has not begun")?;
                self.phases.insert(name, self.model.now_ns() - began);
            }
            Step::Json(text) => bail!("`{text}` is no request"),
        }
        Ok(())
    }

    fn check(&self, request: &Request) -> Result<()> {
        let Preset { name, volume_bytes, .. } = self.preset;
        ensure!(
            request.end() <= *volume_bytes,
            "it asks for byte {}, and {name} has {volume_bytes}; record a volume that fits, with a smaller --scale or on {name} itself",
            request.end()
        );
        Ok(())
    }

    fn sample(&self, line: &Line) -> Result<Line> {
        let ns = self.phases.get(&line.phase).with_context(|| format!("it has no phase `{}`", line.phase))?;
        Ok(Line {
            target: self.preset.name.to_owned(),
            seconds: Some(*ns as f64 / 1e9),
            clock: MODELLED.to_owned(),
            processor_seconds: None,
            available_bytes: None,
            ..line.clone()
        })
    }
}
