//! A recording of what a device was asked, so that any model can be asked afterwards how long it would have taken.
//!
//! A recording is text, compressed with zstd:
//!
//! ```text
//! {"schema":1,"header":{...}}   what was run, as in a file of samples
//! w 4096 8192 r 65536 512       requests in flight together: write or read, where they begin, how many bytes
//! f                             a flush
//! c 1200                        the host computed for so many nanoseconds
//! begin unpack                  a phase begins
//! end
//! {...}                         after all phases: a sample of each that is reported, as it was measured
//! ```

use super::Request;
use std::fmt::{Arguments, Write as _};
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// Writes a recording. Its clones write to the same one.
#[derive(Clone)]
pub struct Recorder(Arc<Mutex<Recording>>);

struct Recording {
    path: PathBuf,
    out: zstd::Encoder<'static, std::fs::File>,
    /// Told at the end: what is recorded must not fail because the recording does.
    failed: Option<io::Error>,
}

/// Speed counts: it runs while somebody measures.
const LEVEL: i32 = 1;

impl Recorder {
    /// Begins a recording in a file, which must not be there unless it `replaces` one.
    pub fn create(path: &Path, replaces: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).create_new(!replaces);
        let out = zstd::Encoder::new(options.open(path)?, LEVEL)?;
        Ok(Self(Arc::new(Mutex::new(Recording { path: path.to_owned(), out, failed: None }))))
    }

    pub(super) fn serve(&self, batch: &[Request]) {
        let mut line = String::new();
        for request in batch {
            let kind = if request.is_write { 'w' } else { 'r' };
            write!(line, "{kind} {} {} ", request.offset, request.length).expect("a String has room");
        }
        self.line(format_args!("{}", line.trim_end()));
    }

    pub(super) fn flush(&self) {
        self.line(format_args!("f"));
    }

    pub(super) fn compute(&self, ns: u64) {
        self.line(format_args!("c {ns}"));
    }

    pub fn begin_phase(&self, name: &str) {
        self.line(format_args!("begin {name}"));
    }

    pub fn end_phase(&self) {
        self.line(format_args!("end"));
    }

    /// A line of JSON: it begins with a brace.
    pub fn json(&self, line: &str) {
        self.line(format_args!("{line}"));
    }

    /// Nothing more is recorded. The first error that there was.
    pub fn finish(&self) -> io::Result<()> {
        let mut recording = self.recording();
        match recording.failed.take() {
            Some(error) => Err(error),
            None => recording.out.do_finish(),
        }
    }

    /// Takes the recording away: what was recorded came to nothing.
    pub fn abandon(&self) -> io::Result<()> {
        std::fs::remove_file(&self.recording().path)
    }

    fn line(&self, line: Arguments<'_>) {
        let mut recording = self.recording();
        if recording.failed.is_none() {
            recording.failed = writeln!(recording.out, "{line}").err();
        }
    }

    fn recording(&self) -> MutexGuard<'_, Recording> {
        self.0.lock().expect("no panic with the lock held")
    }
}

/// A line of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Serve(Vec<Request>),
    Flush,
    /// Nanoseconds.
    Compute(u64),
    Begin(String),
    End,
    Json(String),
}

impl Step {
    fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "r" | "w" => requests(line).map(Self::Serve),
            "f" => Some(Self::Flush),
            "c" => rest.parse().ok().map(Self::Compute),
            "begin" => Some(Self::Begin(rest.to_owned())),
            "end" => Some(Self::End),
            _ => line.starts_with('{').then(|| Self::Json(line.to_owned())),
        }
    }
}

fn requests(line: &str) -> Option<Vec<Request>> {
    let words: Vec<&str> = line.split(' ').collect();
    let request = |words: &[&str]| {
        let &[kind, offset, length] = words else { return None };
        let request = Request { is_write: kind == "w", offset: offset.parse().ok()?, length: length.parse().ok()? };
        let is_sound = matches!(kind, "r" | "w") && request.offset.checked_add(request.length).is_some();
        is_sound.then_some(request)
    };
    words.chunks(3).map(request).collect()
}

/// The lines of a recording, one at a time: it may be long. An error names the line.
pub fn read(path: &Path) -> io::Result<impl Iterator<Item = io::Result<Step>>> {
    let lines = BufReader::new(zstd::Decoder::new(std::fs::File::open(path)?)?).lines();
    Ok(lines.enumerate().map(|(index, line)| {
        let line = line?;
        Step::parse(&line).ok_or_else(|| {
            let shown: String = line.chars().take(40).collect();
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("line {}: `{shown}` is no line of a recording", index + 1),
            )
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.trace.zst");
        let recorder = Recorder::create(&path, false).unwrap();
        recorder.json("{}");
        recorder.begin_phase("find a file");
        let batch = [Request::write(4096, 512), Request::read(u64::MAX - 1, 1)];
        recorder.serve(&batch);
        recorder.compute(7);
        recorder.flush();
        recorder.end_phase();
        recorder.finish().unwrap();
        let steps: Vec<Step> = read(&path).unwrap().map(Result::unwrap).collect();
        let expected = [
            Step::Json("{}".into()),
            Step::Begin("find a file".into()),
            Step::Serve(batch.to_vec()),
            Step::Compute(7),
            Step::Flush,
            Step::End,
        ];
        assert_eq!(steps, expected);
        assert!(Recorder::create(&path, false).is_err(), "a recording is not written over");
        Recorder::create(&path, true).unwrap().abandon().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_recording_is_refused() {
        for line in ["", "x", "w", "w 1", "w 1 2 r", "w 1 2 x 3 4", "r -1 2", "c", "c x", "r 18446744073709551615 1"] {
            assert_eq!(Step::parse(line), None, "{line}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, zstd::bulk::compress(b"f\nnonsense\n", 1).unwrap()).unwrap();
        let error = read(&path).unwrap().nth(1).unwrap().unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("nonsense"), "{error}");
        std::fs::write(&path, "plain").unwrap();
        assert!(read(&path).is_err() || read(&path).unwrap().next().unwrap().is_err());
    }
}
