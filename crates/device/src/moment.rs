//! A moment of a device, kept for a reader in another thread or process while blocks are written over.
//!
//! Before the writer writes over a block for the first time, it puts what the block holds, the *before-image*, into a file
//! that both have open. The reader reads the device, then looks into the file: an image counts instead of what was read.
//!
//! ```text
//! file      header: count, state, why        record 0: device, block, bytes        record 1 ...
//! writer    read block -> append image -> raise count -> write over block
//! reader    read block -> read count -> note records that are new -> image of the block, or else what was read
//! ```
//!
//! Not all blocks are worth an image: file data that was freed since is nobody's any more. Of such blocks the writer only
//! records that they were freed ([`BeforeImages::note_freed`]); the reader passes over them ([`Moment::freed_since`]).
//!
//! Invariants
//!   1. A block has at most one image: what it held at the moment. It is recorded as freed at most once.
//!   2. The count rises after the record is in the file and before the block is written over. So whoever has read anything
//!      newer from the device finds the record.
//!   3. The writer never waits for the reader. A file that is full, or fails, ends the moment (`give_up`): every later read
//!      of the reader fails, and what it has read so far counts only if it asks for the state at its end.
//!
//! Both are of one build: the file is nobody's format. Locking: the writer has none; of the reader's threads each looks into
//! the file by itself, and one notes what is new.
//! Not here: which blocks a reader will ask for, and so need an image.

use crate::block_set::BlockSet;
use crate::{BlockDevice, Discards};
use parking_lot::RwLock;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes before the first record.
const HEADER_SIZE: u64 = 4096;
/// Bytes before the image proper: device and block. For freed blocks: [`FREED`] and how many runs follow.
const HEAD_SIZE: usize = 16;
/// In the place of a device: the record has runs of blocks that were freed, start and length, and as many as fit a block.
const FREED: u64 = 2;
const RUN_SIZE: usize = 16;
/// Where the header tells why the moment was given up: length and text.
const REASON: u64 = 64;
const REASON_MAX: usize = 1024;
/// The third word of the header is the first two and this, so that a reader never believes half a header.
const MARK: u64 = 0x6d79_7269_6164_2332;

const HELD: u64 = 1;
const GIVEN_UP: u64 = 2;

/// Which of a volume's two devices a block is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    Volume = 0,
    /// A log on a device of its own.
    Log = 1,
}

/// The writer's end.
pub struct BeforeImages {
    file: File,
    block_size: usize,
    /// Size that the file may have.
    room: u64,
    /// Records written, and how many of them are images.
    count: u64,
    images: u64,
    kept: HashSet<(Part, u64)>,
    freed: BlockSet,
}

impl BeforeImages {
    /// Begins a moment. The file's size is the room there is for images; what it holds is lost.
    pub fn new(file: File, block_size: usize) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() < HEADER_SIZE {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no file with room for before-images"));
        }
        let images = Self {
            file,
            block_size,
            room: metadata.len(),
            count: 0,
            images: 0,
            kept: HashSet::new(),
            freed: BlockSet::default(),
        };
        images.write_header(HELD)?;
        Ok(images)
    }

    /// Whether a block's image is kept already.
    pub fn has(&self, part: Part, block: u64) -> bool {
        self.kept.contains(&(part, block))
    }

    /// Keeps images of blocks that have none yet; `bytes` holds them one after the other. After an error the caller gives up.
    pub fn keep(&mut self, part: Part, blocks: &[u64], bytes: &[u8]) -> io::Result<()> {
        assert_eq!(bytes.len(), blocks.len() * self.block_size);
        let mut records = Vec::with_capacity(blocks.len() * self.record_size());
        for (&block, image) in blocks.iter().zip(bytes.chunks(self.block_size)) {
            let is_new = self.kept.insert((part, block));
            assert!(is_new, "a second image of a block would not be that of the moment");
            records.extend_from_slice(&(part as u64).to_le_bytes());
            records.extend_from_slice(&block.to_le_bytes());
            records.extend_from_slice(image);
        }
        self.append(&records)?;
        self.images += blocks.len() as u64;
        Ok(())
    }

    /// Records that runs of the volume's blocks (start and length) were freed: from here on they may become anything. After
    /// an error the caller gives up.
    pub fn note_freed(&mut self, runs: impl IntoIterator<Item = (u64, u64)>) -> io::Result<()> {
        let mut new = Vec::new();
        for (start, length) in runs {
            self.freed.insert(start, length, |start, length| new.push((start, length)));
        }
        let mut records = Vec::new();
        for runs in new.chunks(self.block_size / RUN_SIZE) {
            let end = records.len() + self.record_size();
            records.extend_from_slice(&FREED.to_le_bytes());
            records.extend_from_slice(&(runs.len() as u64).to_le_bytes());
            for (start, length) in runs {
                records.extend_from_slice(&start.to_le_bytes());
                records.extend_from_slice(&length.to_le_bytes());
            }
            records.resize(end, 0);
        }
        if records.is_empty() { Ok(()) } else { self.append(&records) }
    }

    fn record_size(&self) -> usize {
        HEAD_SIZE + self.block_size
    }

    fn append(&mut self, records: &[u8]) -> io::Result<()> {
        let size = self.record_size() as u64;
        let offset = HEADER_SIZE + self.count * size;
        if offset + records.len() as u64 > self.room {
            let what = format!("more was written over than fits {} MiB", self.room >> 20);
            return Err(io::Error::new(io::ErrorKind::StorageFull, what));
        }
        self.file.write_all_at(records, offset)?;
        self.count += records.len() as u64 / size;
        self.write_header(HELD)
    }

    /// Ends the moment for its reader, who is told why.
    pub fn give_up(self, why: &str) {
        let text = &why.as_bytes()[..why.len().min(REASON_MAX)];
        let reason = [&(text.len() as u64).to_le_bytes(), text].concat();
        let _ = self.file.write_all_at(&reason, REASON);
        if self.write_header(GIVEN_UP).is_err() {
            // From now on blocks are written over of which it has no image. A reader must not take it for whole.
            let _ = self.file.set_len(0);
        }
    }

    fn write_header(&self, state: u64) -> io::Result<()> {
        let words = [self.count, state, self.count ^ state ^ MARK];
        self.file.write_all_at(&words.map(u64::to_le_bytes).concat(), 0)
    }
}

/// The reader's end: the devices of a volume as they were.
pub struct Moment {
    images: Arc<Images>,
    volume: Arc<dyn BlockDevice>,
    log: Option<Arc<dyn BlockDevice>>,
}

impl Moment {
    /// From the file that the writer has begun a moment in, and the devices themselves.
    pub fn new(
        file: File,
        block_size: usize,
        volume: Arc<dyn BlockDevice>,
        log: Option<Arc<dyn BlockDevice>>,
    ) -> io::Result<Self> {
        let images = Images { file, block_size, index: RwLock::new(Index::default()) };
        images.read_header()?;
        Ok(Self { images: Arc::new(images), volume, log })
    }

    /// The volume's device at the moment. It cannot be written.
    pub fn volume(&self) -> Arc<dyn BlockDevice> {
        self.view(&self.volume, Part::Volume)
    }

    /// The log's own device at the moment, if it has one.
    pub fn log(&self) -> Option<Arc<dyn BlockDevice>> {
        self.log.as_ref().map(|log| self.view(log, Part::Log))
    }

    /// Why the writer gave the moment up; `None`: all that has been read is of the moment.
    pub fn given_up(&self) -> io::Result<Option<String>> {
        match self.images.read_header()? {
            (_, HELD) => Ok(None),
            _ => self.images.reason().map(Some),
        }
    }

    /// Blocks of the volume among `count` from `first` on that were freed since the moment. Asked after they were read: what
    /// was read of the others is what they held at the moment.
    pub fn freed_since(&self, first: u64, count: u64) -> io::Result<Vec<u64>> {
        self.images.refresh()?;
        let index = self.images.index.read();
        Ok((first..first + count).filter(|&block| index.freed.contains(block)).collect())
    }

    fn view(&self, base: &Arc<dyn BlockDevice>, part: Part) -> Arc<dyn BlockDevice> {
        Arc::new(View { images: Arc::clone(&self.images), base: Arc::clone(base), part })
    }
}

struct Images {
    file: File,
    block_size: usize,
    index: RwLock<Index>,
}

#[derive(Default)]
struct Index {
    /// Records that have been noted.
    count: u64,
    /// Number of the record with each block's image.
    numbers: HashMap<(Part, u64), u64>,
    freed: BlockSet,
}

impl Images {
    /// Count and state.
    fn read_header(&self) -> io::Result<(u64, u64)> {
        let mut bytes = [0; 24];
        // A header in the middle of being written is read again; it takes as long as copying 24 bytes.
        for _ in 0..1000 {
            self.file.read_exact_at(&mut bytes, 0)?;
            let word = |index: usize| u64::from_le_bytes(bytes[index * 8..][..8].try_into().expect("8 bytes"));
            let (count, state) = (word(0), word(1));
            if word(2) == count ^ state ^ MARK && matches!(state, HELD | GIVEN_UP) {
                return Ok((count, state));
            }
            std::thread::yield_now();
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "no before-images of a moment"))
    }

    fn reason(&self) -> io::Result<String> {
        let mut length = [0; 8];
        self.file.read_exact_at(&mut length, REASON)?;
        let mut text = vec![0; (u64::from_le_bytes(length) as usize).min(REASON_MAX)];
        self.file.read_exact_at(&mut text, REASON + 8)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn offset(&self, number: u64) -> u64 {
        HEADER_SIZE + number * (HEAD_SIZE + self.block_size) as u64
    }

    /// Notes records that are new since the last time.
    fn refresh(&self) -> io::Result<()> {
        let (count, state) = self.read_header()?;
        if state == GIVEN_UP {
            return Err(io::Error::other(format!("the moment is over: {}", self.reason()?)));
        }
        if self.index.read().count >= count {
            return Ok(());
        }
        let mut index = self.index.write();
        for number in index.count..count {
            let mut head = [0; HEAD_SIZE];
            self.file.read_exact_at(&mut head, self.offset(number))?;
            let word = |at: usize| u64::from_le_bytes(head[at..][..8].try_into().expect("8 bytes"));
            if word(0) == FREED {
                self.note_freed(&mut index.freed, number, word(8))?;
            } else {
                let part = if word(0) == Part::Log as u64 { Part::Log } else { Part::Volume };
                index.numbers.insert((part, word(8)), number);
            }
            index.count = number + 1;
        }
        Ok(())
    }

    fn note_freed(&self, freed: &mut BlockSet, number: u64, runs: u64) -> io::Result<()> {
        let mut bytes = vec![0; (runs as usize).min(self.block_size / RUN_SIZE) * RUN_SIZE];
        self.file.read_exact_at(&mut bytes, self.offset(number) + HEAD_SIZE as u64)?;
        for run in bytes.chunks(RUN_SIZE) {
            let word = |at: usize| u64::from_le_bytes(run[at..][..8].try_into().expect("8 bytes"));
            freed.insert(word(0), word(8), |_, _| ());
        }
        Ok(())
    }

    /// Lays images over bytes just read from `offset` of a device.
    fn lay_over(&self, part: Part, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.refresh()?;
        let size = self.block_size as u64;
        let end = offset + buf.len() as u64;
        let index = self.index.read();
        for block in offset / size..end.div_ceil(size) {
            let Some(&number) = index.numbers.get(&(part, block)) else { continue };
            let (from, to) = (offset.max(block * size), end.min((block + 1) * size));
            let image = &mut buf[(from - offset) as usize..(to - offset) as usize];
            self.file.read_exact_at(image, self.offset(number) + HEAD_SIZE as u64 + from % size)?;
        }
        Ok(())
    }
}

/// One device at the moment.
struct View {
    images: Arc<Images>,
    base: Arc<dyn BlockDevice>,
    part: Part,
}

impl View {
    fn refuse() -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "a moment that has passed cannot be changed"))
    }
}

impl BlockDevice for View {
    crate::pass_on!(base: size, alignment, counters);

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.base.read(offset, buf)?;
        // Only now: an image that is missing here was not needed yet when the read began.
        self.images.lay_over(self.part, offset, buf)
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Self::refuse()
    }

    fn flush(&self) -> io::Result<()> {
        Self::refuse()
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Self::refuse()
    }

    fn discards(&self) -> Discards {
        Discards::Never
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    const BLOCK: usize = 512;

    fn file(blocks: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(HEADER_SIZE + blocks * (HEAD_SIZE + BLOCK) as u64).unwrap();
        file
    }

    fn block(byte: u8) -> Vec<u8> {
        vec![byte; BLOCK]
    }

    #[test]
    fn what_is_written_over_is_read_as_it_was() {
        let device = Arc::new(MemoryDevice::new(8 * BLOCK as u64));
        let log = Arc::new(MemoryDevice::new(8 * BLOCK as u64));
        for number in 0..8 {
            device.write(number * BLOCK as u64, &block(number as u8)).unwrap();
        }
        let file = file(4);
        let mut images = BeforeImages::new(file.try_clone().unwrap(), BLOCK).unwrap();
        let moment = Moment::new(file, BLOCK, device.clone(), Some(log.clone())).unwrap();
        let (volume, log_view) = (moment.volume(), moment.log().unwrap());
        images.keep(Part::Volume, &[2, 3], &[block(2), block(3)].concat()).unwrap();
        images.keep(Part::Log, &[3], &block(0)).unwrap();
        for number in 2..4 {
            device.write(number * BLOCK as u64, &block(99)).unwrap();
            log.write(number * BLOCK as u64, &block(77)).unwrap();
        }
        assert!(images.has(Part::Volume, 2) && !images.has(Part::Log, 2));
        assert_eq!(images.images, 3);
        // Whole, from within one block to within another, and inside one.
        for (from, to) in [(0, 8 * BLOCK), (BLOCK + 100, 3 * BLOCK + 50), (2 * BLOCK + 8, 2 * BLOCK + 16)] {
            let mut seen = vec![0; to - from];
            volume.read(from as u64, &mut seen).unwrap();
            let expected: Vec<u8> = (from..to).map(|at| (at / BLOCK) as u8).collect();
            assert!(seen == expected, "{from}..{to}");
        }
        let mut seen = vec![0; 8 * BLOCK];
        log_view.read(0, &mut seen).unwrap();
        assert!(seen.chunks(BLOCK).enumerate().all(|(number, bytes)| bytes == block(if number == 2 { 77 } else { 0 })));
        assert!(volume.write(0, &block(1)).is_err() && volume.flush().is_err() && volume.discard(0, 512).is_err());
        assert_eq!(moment.given_up().unwrap(), None);
    }

    #[test]
    fn what_was_freed_is_told_once_and_costs_no_image() {
        let device = Arc::new(MemoryDevice::new(8 * BLOCK as u64));
        // For an image and two records of freed runs, of which one holds 32.
        let file = file(3);
        let mut images = BeforeImages::new(file.try_clone().unwrap(), BLOCK).unwrap();
        let moment = Moment::new(file, BLOCK, device, None).unwrap();
        assert_eq!(moment.freed_since(0, 1000).unwrap(), []);
        images.note_freed((0..31).map(|number| (100 + number * 10, 2))).unwrap();
        images.keep(Part::Volume, &[3], &block(3)).unwrap();
        let expected: Vec<u64> = (0..31).flat_map(|number| [100 + number * 10, 101 + number * 10]).collect();
        assert_eq!(moment.freed_since(0, 1000).unwrap(), expected);
        // Used again and freed again, as often as it may be: the room is for 32 more runs, and these are 31 new ones.
        for _ in 0..100 {
            images.note_freed([(100, 302)]).unwrap();
        }
        assert_eq!(moment.freed_since(99, 5).unwrap(), [100, 101, 102, 103]);
        assert_eq!(moment.freed_since(401, 9).unwrap(), [401]);
        assert_eq!(images.images, 1);
        assert_eq!(images.note_freed([(5000, 1)]).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_full_file_ends_the_moment_and_says_so() {
        let device = Arc::new(MemoryDevice::new(8 * BLOCK as u64));
        let file = file(1);
        let mut images = BeforeImages::new(file.try_clone().unwrap(), BLOCK).unwrap();
        let moment = Moment::new(file, BLOCK, device, None).unwrap();
        images.keep(Part::Volume, &[0], &block(0)).unwrap();
        let error = images.keep(Part::Volume, &[1], &block(0)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        images.give_up(&error.to_string());
        let why = moment.given_up().unwrap().unwrap();
        assert!(why.contains("more was written over than fits"), "{why}");
        let error = moment.volume().read(0, &mut block(0)).unwrap_err();
        assert!(error.to_string().contains(&why), "{error}");
    }

    #[test]
    fn a_file_without_room_or_without_a_moment_is_refused() {
        let empty = tempfile::tempfile().unwrap();
        assert!(BeforeImages::new(empty.try_clone().unwrap(), BLOCK).is_err());
        empty.set_len(HEADER_SIZE).unwrap();
        assert!(Moment::new(empty, BLOCK, Arc::new(MemoryDevice::new(512)), None).is_err());
    }
}
