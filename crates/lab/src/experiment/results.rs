//! The file of samples: a line of JSON each, after one with what all have in common (docs/lab.md).
//!
//! A name that ends in `.zst` says that the file is compressed. While a run lasts each cell is a frame of its own, so that a file which
//! is cut short loses the last cell and nothing else; when the run ends they become one frame, a tenth as large.

use super::factors::Absent;
use super::twins::Twin;
use crate::slowdown::Slowed;
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Of the file's shape. A field that is added does not change it.
pub const SCHEMA: u32 = 1;

/// What all samples of a file have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub scale: f64,
    /// Of the whole; a sample's own is this plus its run.
    pub base_seed: u64,
    pub commit: String,
    /// A hash of the program; old files do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// What the folder of the images lies on: type and source of its mount; old files do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    pub machine: Machine,
    pub suites: Vec<String>,
    pub targets: Vec<String>,
    /// Factors, as they were asked for, and choices that all combinations share.
    pub asked: Vec<String>,
    /// What this build does not have, and combinations that it refuses.
    pub absent: Vec<Absent>,
    /// Targets that this machine does not have, with the reason.
    pub left_out: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub kernel: String,
    pub cpu: String,
    pub cores: u64,
    pub memory_bytes: u64,
}

/// What the device was asked; `None`: nobody counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceUse {
    pub reads: Option<u64>,
    pub writes: Option<u64>,
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
    pub flushes: Option<u64>,
    /// Blocks of 4 KiB between the end of each request and the start of the next.
    pub seek_blocks: Option<u64>,
}

/// A sample: one phase of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub schema: u32,
    pub suite: String,
    pub workload: String,
    pub phase: String,
    pub target: String,
    pub factors: BTreeMap<String, String>,
    pub options: BTreeMap<String, String>,
    pub seed: u64,
    pub run: u32,
    pub order: u64,
    pub count: u64,
    /// Of file content, moved by the operations.
    pub bytes: u64,
    /// With the sync after the phase.
    pub seconds: Option<f64>,
    /// `wall`, `modelled` or `none`.
    pub clock: String,
    pub device: DeviceUse,
    /// Blocks of the cache that the operations looked at.
    pub blocks_touched: Option<u64>,
    /// Of the seconds those that the processor of a modelled machine took; some of them hide behind the drive's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_seconds: Option<f64>,
    /// Memory that was available when the cell began, where it was limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    /// UTC, when the cell began.
    pub started: String,
    pub size: Option<u64>,
    /// Of a program of somebody else's: what it says itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolSays>,
    /// Of a target that runs against itself: which of the two, or the one that was slowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin: Option<Twin>,
    /// Where a slowdown was planted: what it came to in this phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowed: Option<Slowed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSays {
    /// By its own clock; null: the lab's counts.
    pub seconds: Option<f64>,
    /// As it prints it, in its own unit; null: it prints none for what was this short.
    pub rate: Option<f64>,
}

/// Clocks of samples.
pub const WALL: &str = "wall";
pub const MODELLED: &str = "modelled";

/// The first line.
#[derive(Serialize, Deserialize)]
pub(super) struct HeaderLine {
    pub schema: u32,
    pub header: Header,
}

/// Which cell a line is of: its place in the random order says it all, for the order follows from what the header says.
pub type Done = BTreeMap<u64, Vec<Line>>;

/// A file that samples are added to.
pub struct ResultFile {
    file: std::fs::File,
    path: PathBuf,
    is_packed: bool,
}

/// For frames that soon become one: speed counts.
const LEVEL_RUNNING: i32 = 3;
/// For the file that is kept. Higher levels gain nothing here.
const LEVEL_KEPT: i32 = 19;

fn is_packed(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "zst")
}

/// The text of all frames up to the first that is not whole.
fn unpacked(mut rest: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    while !rest.is_empty() {
        let mut frame = Vec::new();
        let Ok(decoder) = zstd::Decoder::with_buffer(&mut rest) else { break };
        if decoder.single_frame().read_to_end(&mut frame).is_err() {
            break;
        }
        text.extend(frame);
    }
    text
}

/// Puts `text` into the file as one frame, at once or not at all.
fn replace_packed(path: &Path, text: &[u8]) -> Result<()> {
    let replace = || -> std::io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&zstd::bulk::compress(text, LEVEL_KEPT)?)?;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(path.metadata()?.permissions().mode()))?;
        file.persist(path).map(drop).map_err(|error| error.error)
    };
    replace().with_context(|| format!("writing {}", path.display()))
}

impl ResultFile {
    /// A new file, which must not be there.
    pub fn create(path: &Path, header: &Header) -> Result<Self> {
        let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
        let file =
            file.with_context(|| format!("making {} (--resume goes on with one that is there)", path.display()))?;
        let mut made = Self { file, path: path.to_owned(), is_packed: is_packed(path) };
        made.push(&HeaderLine { schema: SCHEMA, header: header.clone() })?;
        Ok(made)
    }

    /// One that is there, to go on with: the cells in it that are whole. `expected` says how many samples a cell has; what the last one
    /// lacks, because somebody stopped the program in the middle of writing it, is cut off with the rest of that cell.
    pub fn resume(path: &Path, header: &Header, expected: impl Fn(u64) -> Option<usize>) -> Result<(Self, Done)> {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path);
        let mut file = file.with_context(|| format!("opening {}", path.display()))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(|| format!("reading {}", path.display()))?;
        let is_packed = is_packed(path);
        let bytes = if is_packed { unpacked(&bytes) } else { bytes };
        let text = String::from_utf8(bytes).with_context(|| format!("{} is not a file of samples", path.display()))?;
        let mut lines = text.split_inclusive('\n');
        let first = lines.next().unwrap_or_default();
        let there = serde_json::from_str::<HeaderLine>(first)
            .with_context(|| format!("{} does not begin like a file of samples", path.display()))?;
        ensure!(there.schema == SCHEMA, "{} has schema {}, not {SCHEMA}", path.display(), there.schema);
        if let Some(difference) = difference(&there.header, header) {
            bail!("{} holds samples of another experiment: {difference}", path.display());
        }
        let (mut done, mut end) = (Done::new(), first.len());
        let mut cell: Vec<Line> = Vec::new();
        let mut cell_bytes = 0;
        for text in lines {
            let Ok(line) = serde_json::from_str::<Line>(text) else { break };
            if !text.ends_with('\n') {
                break;
            }
            if cell.first().is_some_and(|first| first.order != line.order) {
                bail!("{}: cell {} lacks samples in the middle of the file", path.display(), cell[0].order);
            }
            cell_bytes += text.len();
            let order = line.order;
            cell.push(line);
            let Some(expected) = expected(order) else {
                bail!("{}: it has samples of cell {order}, which only more --runs have", path.display());
            };
            if expected == cell.len() {
                done.insert(order, std::mem::take(&mut cell));
                end += std::mem::take(&mut cell_bytes);
            }
        }
        if is_packed {
            replace_packed(path, &text.as_bytes()[..end])?;
            file = std::fs::OpenOptions::new().write(true).open(path)?;
        } else {
            file.set_len(end as u64)?;
        }
        file.seek(SeekFrom::End(0))?;
        Ok((Self { file, path: path.to_owned(), is_packed }, done))
    }

    /// Nothing is added any more.
    pub fn finish(self) -> Result<()> {
        if self.is_packed {
            let bytes = std::fs::read(&self.path).with_context(|| format!("reading {}", self.path.display()))?;
            replace_packed(&self.path, &unpacked(&bytes))?;
        }
        Ok(())
    }

    /// Adds the samples of a cell, all or, but for a crash of the machine, none.
    pub fn add(&mut self, lines: &[Line]) -> Result<()> {
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, line)?;
            text.push(b'\n');
        }
        self.write(&text)
    }

    fn push(&mut self, value: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec(value)?;
        text.push(b'\n');
        self.write(&text)
    }

    fn write(&mut self, text: &[u8]) -> Result<()> {
        let mut write = || -> std::io::Result<()> {
            match self.is_packed {
                true => self.file.write_all(&zstd::bulk::compress(text, LEVEL_RUNNING)?),
                false => self.file.write_all(text),
            }
        };
        write().with_context(|| format!("writing {}", self.path.display()))
    }
}

/// The first thing in which two experiments differ.
fn difference(there: &Header, here: &Header) -> Option<String> {
    let value = |header| serde_json::to_value(header).expect("a header is JSON");
    let (there, here) = (value(there), value(here));
    let fields = here.as_object().expect("a header is an object");
    let (name, other) = fields.iter().find(|(name, value)| there.get(name.as_str()) != Some(value))?;
    Some(match there.get(name.as_str()) {
        Some(value) => format!("its {name} is {value}, here it is {other}"),
        None => format!("it does not say its {name}, here it is {other}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            scale: 0.25,
            base_seed: 1,
            commit: "abc".into(),
            program: Some("0123456789abcdef".into()),
            folder: Some("ext4 on /dev/vda".into()),
            machine: Machine { kernel: "Linux 6".into(), cpu: "x".into(), cores: 2, memory_bytes: 1 << 30 },
            suites: vec!["tar".into()],
            targets: vec!["process".into()],
            asked: vec![],
            absent: vec![],
            left_out: BTreeMap::new(),
        }
    }

    fn line(order: u64, phase: &str) -> Line {
        Line {
            schema: SCHEMA,
            suite: "tar".into(),
            workload: "tar".into(),
            phase: phase.into(),
            target: "process".into(),
            factors: [("placement".to_owned(), "rotor".to_owned())].into(),
            options: [("placement".to_owned(), "rotor".to_owned())].into(),
            seed: 1,
            run: 0,
            order,
            count: 7,
            bytes: 0,
            seconds: Some(0.5),
            clock: "wall".into(),
            device: DeviceUse { reads: Some(3), ..DeviceUse::default() },
            blocks_touched: None,
            processor_seconds: None,
            available_bytes: None,
            started: "2026-01-01T00:00:00Z".into(),
            size: None,
            tool: None,
            twin: None,
            slowed: None,
        }
    }

    /// The shape that results have: a change here breaks what reads them.
    #[test]
    fn a_line_as_json() {
        let expected = serde_json::json!({
            "schema": 1, "suite": "tar", "workload": "tar", "phase": "find", "target": "process",
            "factors": {"placement": "rotor"}, "options": {"placement": "rotor"}, "seed": 1, "run": 0, "order": 4,
            "count": 7, "bytes": 0, "seconds": 0.5, "clock": "wall",
            "device": {"reads": 3, "writes": null, "read_bytes": null, "written_bytes": null, "flushes": null,
                "seek_blocks": null},
            "blocks_touched": null, "started": "2026-01-01T00:00:00Z", "size": null
        });
        assert_eq!(serde_json::to_value(line(4, "find")).unwrap(), expected);
    }

    /// A file may end anywhere: the cells before the cut are kept, and nothing of the one that was cut.
    #[test]
    fn a_file_cut_anywhere_keeps_whole_cells() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("samples.jsonl");
        let mut file = ResultFile::create(&path, &header()).unwrap();
        assert!(ResultFile::create(&path, &header()).is_err());
        for order in [2, 0, 1] {
            file.add(&[line(order, "unpack"), line(order, "remove")]).unwrap();
        }
        let whole = std::fs::read(&path).unwrap();
        let lines: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] == b'\n').map(|at| at + 1).collect();
        for cut in lines[0]..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (mut resumed, done) = ResultFile::resume(&path, &header(), |_| Some(2)).unwrap();
            let expected = (lines.iter().filter(|&&end| end <= cut).count() - 1) / 2;
            assert_eq!(done.len(), expected, "cut at {cut}");
            resumed.add(&[line(9, "unpack"), line(9, "remove")]).unwrap();
            let (_, done) = ResultFile::resume(&path, &header(), |_| Some(2)).unwrap();
            assert_eq!((done.len(), done.contains_key(&9)), (expected + 1, true), "cut at {cut}");
        }
    }

    /// The same for frames, wherever the cut is; and what is kept in the end is one frame with the same lines.
    #[test]
    fn a_compressed_file_cut_anywhere_keeps_whole_cells() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("samples.jsonl.zst");
        let mut file = ResultFile::create(&path, &header()).unwrap();
        let mut ends = vec![path.metadata().unwrap().len()];
        for order in [2, 0, 1] {
            file.add(&[line(order, "unpack"), line(order, "remove")]).unwrap();
            ends.push(path.metadata().unwrap().len());
        }
        let whole = std::fs::read(&path).unwrap();
        for cut in (ends[0]..=ends[3]).filter(|cut| cut % 5 == 0 || ends.contains(cut)) {
            std::fs::write(&path, &whole[..usize::try_from(cut).unwrap()]).unwrap();
            let (mut resumed, done) = ResultFile::resume(&path, &header(), |_| Some(2)).unwrap();
            let expected = ends.iter().filter(|&&end| end <= cut).count() - 1;
            assert_eq!(done.len(), expected, "cut at {cut}");
            resumed.add(&[line(9, "unpack"), line(9, "remove")]).unwrap();
            resumed.finish().unwrap();
            let (_, done) = ResultFile::resume(&path, &header(), |_| Some(2)).unwrap();
            assert_eq!((done.len(), done.contains_key(&9)), (expected + 1, true), "cut at {cut}");
        }
        let kept = std::fs::read(&path).unwrap();
        assert!(kept.len() < whole.len(), "{} bytes, {} before", kept.len(), whole.len());
        let text = String::from_utf8(zstd::decode_all(&kept[..]).unwrap()).unwrap();
        assert_eq!(text.lines().count(), 1 + 2 * 4);
        assert!(ResultFile::resume(&path, &Header { scale: 1.0, ..header() }, |_| Some(2)).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), kept, "samples of another experiment are left alone");
    }

    /// A file from before the header had these fields says neither which program took its samples, nor where.
    #[test]
    fn a_file_that_does_not_say_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("samples.jsonl");
        ResultFile::create(&path, &Header { program: None, folder: None, ..header() }).unwrap();
        let refused = ResultFile::resume(&path, &header(), |_| Some(1)).map(drop).unwrap_err().to_string();
        assert!(refused.contains("it does not say its "), "{refused}");
    }

    /// With fewer --runs the file was said to lack samples in the middle, which it did not.
    #[test]
    fn fewer_runs_are_refused_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("samples.jsonl");
        let mut file = ResultFile::create(&path, &header()).unwrap();
        for order in 0..4 {
            file.add(&[line(order, "unpack"), line(order, "remove")]).unwrap();
        }
        let whole = std::fs::read(&path).unwrap();
        let refused = ResultFile::resume(&path, &header(), |order| (order < 2).then_some(2)).map(drop);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("more --runs"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), whole, "what is refused is left alone");
    }

    #[test]
    fn samples_of_another_experiment_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("samples.jsonl");
        ResultFile::create(&path, &header()).unwrap();
        let refused =
            |header: &Header| ResultFile::resume(&path, header, |_| Some(1)).map(drop).unwrap_err().to_string();
        let said = refused(&Header { base_seed: 2, ..header() });
        assert!(said.ends_with("its base_seed is 1, here it is 2"), "{said}");
        // Another program of the same commit, and another disk: their samples were taken for repetitions.
        let said = refused(&Header { program: Some("other".into()), ..header() });
        assert!(said.ends_with("its program is \"0123456789abcdef\", here it is \"other\""), "{said}");
        let said = refused(&Header { folder: Some("tmpfs on tmpfs".into()), ..header() });
        assert!(said.ends_with("its folder is \"ext4 on /dev/vda\", here it is \"tmpfs on tmpfs\""), "{said}");
        std::fs::write(&path, "not samples\n").unwrap();
        assert!(ResultFile::resume(&path, &header(), |_| Some(1)).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"not samples\n", "what is no file of samples is left alone");
    }
}
