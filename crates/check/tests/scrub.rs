//! Scrub: what it reads, whom it names, and that it changes nothing.

use myriad_check::{FileRange, Finding, Options, Report, check, number};
use myriad_device::{BlockDevice, DeviceCounters, MemoryDevice};
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, OpenOptions, Session};
use std::io;
use std::sync::{Arc, Mutex};

const SIZE: u64 = 64 << 20;
const BLOCK: u64 = 4096;

/// A device with blocks that cannot be read.
struct Scratched {
    inner: Arc<MemoryDevice>,
    /// Offsets of bad blocks.
    bad: Vec<u64>,
    /// Bytes read so far, by offset and length.
    reads: Mutex<Vec<(u64, u64)>>,
}

impl BlockDevice for Scratched {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset + buf.len() as u64;
        if self.bad.iter().any(|&bad| bad < end && bad + BLOCK > offset) {
            return Err(io::Error::other("scratched"));
        }
        self.reads.lock().unwrap().push((offset, buf.len() as u64));
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write(offset, buf)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.inner.discard(offset, length)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

fn make() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let options = MkfsOptions { ag_size: Some(16 << 20), seed: Some(7), ..MkfsOptions::default() };
    Fs::format_device(device.clone(), None, &options).unwrap();
    device
}

fn change(device: &Arc<MemoryDevice>, f: impl FnOnce(&Session)) {
    let options = MountOptions { background: false, cache_size: 16 << 20, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    f(&fs.session(Cred::root()));
    fs.close().unwrap();
}

fn put(session: &Session, path: &str, bytes: &[u8]) {
    let options = OpenOptions { write: true, create: true, mode: 0o644, ..OpenOptions::default() };
    let file = session.open(path, options).unwrap();
    assert_eq!(file.write_at(bytes, 0).unwrap(), bytes.len());
}

/// Offsets on the device of all blocks that begin with `pattern`.
fn find(device: &MemoryDevice, pattern: &[u8]) -> Vec<u64> {
    let mut block = vec![0; BLOCK as usize];
    let begins = |&offset: &u64| {
        device.read(offset, &mut block).unwrap();
        block.starts_with(pattern)
    };
    (0..SIZE).step_by(BLOCK as usize).filter(begins).collect()
}

fn scrub(device: Arc<dyn BlockDevice>, repair: bool) -> Report {
    check(device, None, &Options { scrub: true, repair, ..Options::default() }).unwrap()
}

fn range(path: &str, offset: u64, length: u64) -> Option<FileRange> {
    Some(FileRange { path: Some(path.into()), offset, length })
}

fn files(findings: &[Finding]) -> Vec<(u32, Option<FileRange>)> {
    findings.iter().map(|finding| (finding.number, finding.file.clone())).collect()
}

#[test]
fn every_block_of_data_is_read_once_and_in_order() {
    let device = make();
    change(&device, |session| {
        for name in 0..200 {
            put(session, &format!("/{name}"), &vec![b'a'; 3 * BLOCK as usize]);
        }
        put(session, "/large", &vec![b'b'; 5 << 20]);
        session.symlink("x".repeat(2000).as_bytes(), "/link").unwrap();
    });
    let mut data: Vec<u64> = find(&device, b"aaaa");
    data.extend(find(&device, b"bbbb"));
    data.extend(find(&device, b"xxxx"));
    data.sort_unstable();
    let scratched = Arc::new(Scratched { inner: device, bad: Vec::new(), reads: Mutex::default() });
    let plain = check(scratched.clone(), None, &Options { threads: 1, ..Options::default() }).unwrap();
    assert_eq!((plain.finding_count, plain.scrub), (0, None));
    let metadata = std::mem::take(&mut *scratched.reads.lock().unwrap()).len();
    let options = Options { scrub: true, threads: 1, ..Options::default() };
    let report = check(scratched.clone(), None, &options).unwrap();
    assert!(report.is_sound(), "{}", report.to_json());
    let scrubbed = report.scrub.unwrap();
    assert_eq!((scrubbed.data_blocks, scrubbed.damaged_blocks), (data.len() as u64, 0));
    let reads = scratched.reads.lock().unwrap();
    let blocks: Vec<u64> = reads[metadata..]
        .iter()
        .flat_map(|&(offset, length)| (offset..offset + length).step_by(BLOCK as usize))
        .collect();
    assert_eq!(blocks, data);
    assert!(reads.len() - metadata < 20, "long requests: {}", reads.len() - metadata);
}

#[test]
fn what_cannot_be_read_is_named_by_path_and_bytes() {
    let device = make();
    change(&device, |session| {
        session.mkdir("/d", 0o755).unwrap();
        session.mkdir("/d/deeper", 0o755).unwrap();
        // So many that the directory lies in blocks of its own.
        for name in 0..300 {
            put(session, &format!("/d/deeper/a name that takes some room {name}"), b"");
        }
        put(session, "/d/deeper/one", &[vec![b'1'; BLOCK as usize], vec![b'2'; 3 * BLOCK as usize]].concat());
        put(session, "/d/two", b"under its second name");
        session.link("/d/two", "/d/deeper/again").unwrap();
        session.unlink("/d/deeper/again").unwrap();
        put(session, "/sound", &vec![b's'; 9 * BLOCK as usize]);
    });
    let mut bad = find(&device, b"2222");
    bad.pop();
    bad.extend(find(&device, b"under its"));
    let before = device.clone_image();
    let scratched = Arc::new(Scratched { inner: device.clone(), bad, reads: Mutex::default() });
    let expected = [
        (number::DATA_UNREADABLE, range("/d/deeper/one", 4096, 8192)),
        (number::DATA_UNREADABLE, range("/d/two", 0, 4096)),
    ];
    for repair in [false, true] {
        let report = scrub(scratched.clone(), repair);
        let mut found = files(&report.findings);
        found.sort_by(|a, b| a.1.cmp(&b.1));
        assert_eq!(found, expected, "{}", report.to_json());
        assert_eq!((report.repaired, report.is_sound(), report.scrub.unwrap().damaged_blocks), (false, false, 3));
        assert!(report.findings[0].message.contains("scratched"));
    }
    let bytes = |device: &MemoryDevice| {
        let mut bytes = vec![0; SIZE as usize];
        device.read(0, &mut bytes).unwrap();
        bytes
    };
    assert!(bytes(&device) == bytes(&before), "nothing is written for damaged contents");
}

#[test]
fn a_scrub_can_be_cancelled() {
    let device = make();
    change(&device, |session| put(session, "/large", &vec![7; 8 << 20]));
    let progress = |progress: myriad_check::Progress| progress.phase != "data";
    let options = Options { scrub: true, progress: Some(&progress), ..Options::default() };
    assert!(matches!(check(device, None, &options), Err(myriad_check::CheckError::Cancelled)));
}
