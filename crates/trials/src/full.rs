//! Volumes filled to the last block by every kind of operation: out of space is said when the operation is asked for,
//! what was accepted is there and can be made durable, removing works, and all space comes back.

use crate::setup::{Setup, let_root_shrink, statfs_but_root};
use crate::table::{Promise, Row};
use crate::verdict::check_silent;
use myriad_engine::{Allocation, Cred, Errno, Error, File, Fs, OpenOptions, Result, Session, StatFs, XattrMode};
use myriad_format::choices::Directory;
use myriad_sim::pattern;

/// What a volume is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    Data,
    SmallFiles,
    Directories,
    Attributes,
    LongLinks,
    /// Long names in one directory: entry blocks and index.
    Names,
    /// Every other block of one file: extent tree.
    Fragments,
    /// Blocks promised to ranges nobody writes.
    Allocated,
}

impl Filling {
    pub const ALL: [Self; 8] = [
        Self::Data,
        Self::SmallFiles,
        Self::Directories,
        Self::Attributes,
        Self::LongLinks,
        Self::Names,
        Self::Fragments,
        Self::Allocated,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::SmallFiles => "small-files",
            Self::Directories => "directories",
            Self::Attributes => "attributes",
            Self::LongLinks => "long-links",
            Self::Names => "names",
            Self::Fragments => "fragments",
            Self::Allocated => "allocated",
        }
    }
}

/// A filling as the report has it. A failure has a name, and is not shrunk: what is done is no list of steps, but goes on
/// until there is no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    pub row: Row,
    pub filling: Filling,
    pub threads: usize,
}

impl Fill {
    pub fn name(&self) -> String {
        format!("full/{}/{}", self.filling.name(), self.threads)
    }

    pub fn named(row: Row, name: &str) -> Option<Self> {
        let (filling, threads) = name.strip_prefix("full/")?.split_once('/')?;
        let filling = Filling::ALL.into_iter().find(|known| known.name() == filling)?;
        Some(Self { row, filling, threads: threads.parse().ok()? })
    }

    /// Fills the volume, and says how many operations it accepted.
    pub fn run(&self) -> std::result::Result<u64, String> {
        let Self { row, filling, threads } = *self;
        fill(row, filling, Allocation::Delayed, 4096, threads).map_err(|message| {
            format!("full volume, {filling:?}, {threads} threads: {message}\n{}", row.replay_line(&self.name()))
        })
    }
}

const WRITE: OpenOptions = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };
/// Refusals in a row after which a volume counts as full.
const REFUSALS: u32 = 20;

/// One thread's part of the filling, in a directory of its own.
struct Filler {
    session: Session,
    filling: Filling,
    dir: String,
    file: Option<File>,
    /// What was accepted, each with its length and the tag of its bytes.
    files: Vec<(String, usize, u32)>,
    accepted: u64,
}

impl Filler {
    fn new(fs: &Fs, filling: Filling, dir: &str) -> Result<Self> {
        let session = fs.session(Cred::root());
        session.mkdir(dir, 0o755)?;
        let one_file = matches!(filling, Filling::Fragments | Filling::Allocated);
        let file = one_file.then(|| session.open(&format!("{dir}/one"), WRITE)).transpose()?;
        session.create(&format!("{dir}/named"), 0o644)?;
        Ok(Self { session, filling, dir: dir.into(), file, files: Vec::new(), accepted: 0 })
    }

    fn add(&mut self, number: u32) -> Result<()> {
        let path = format!("{}/{number}", self.dir);
        match self.filling {
            Filling::Data | Filling::SmallFiles => {
                let len = if self.filling == Filling::Data { 100_000 } else { 1 + number as usize % 900 };
                let file = self.session.open(&path, WRITE)?;
                let written = file.write_at(&pattern::bytes(number + 1, 0, len), 0);
                // Of a short or refused write, the file is there all the same.
                self.files.push((path, *written.as_ref().unwrap_or(&0), number + 1));
                written.map(drop)
            }
            Filling::Directories => self.session.mkdir(&path, 0o755).map(drop),
            Filling::Attributes => {
                self.session.create(&path, 0o644)?;
                self.session.set_xattr(&path, b"user.filling", &[7; 3000], XattrMode::Set)
            }
            Filling::LongLinks => self.session.symlink(&[b'x'; 4000], &path).map(drop),
            Filling::Names => {
                let long = format!("{}/{number:0>200}", self.dir);
                self.session.link(&format!("{}/named", self.dir), &long)
            }
            Filling::Fragments => {
                let file = self.file.as_ref().expect("one file");
                let offset = u64::from(number) * 2 * 4096;
                file.write_at(&pattern::bytes(1, offset, 100), offset).map(drop)
            }
            Filling::Allocated => {
                let file = self.file.as_ref().expect("one file");
                file.allocate(myriad_engine::AllocateMode::Extend, u64::from(number) * 5 * 4096, 4096)
            }
        }
    }

    /// Adds until there is no space.
    fn fill(&mut self) -> std::result::Result<(), String> {
        let mut refusals = 0;
        for number in 0.. {
            match self.add(number) {
                Ok(()) => {
                    self.accepted += 1;
                    refusals = 0;
                }
                Err(Error::Refused(Errno::NOSPC)) => refusals += 1,
                Err(error) => return Err(format!("{:?} {number}: {error}", self.filling)),
            }
            if refusals == REFUSALS {
                break;
            }
        }
        Ok(())
    }

    fn verify(&self) -> std::result::Result<(), String> {
        for (path, len, tag) in &self.files {
            let file =
                self.session.open(path, OpenOptions { create: false, ..WRITE }).map_err(|error| error.to_string())?;
            let mut bytes = vec![0; len + 10];
            let count = file.read_at(&mut bytes, 0).map_err(|error| error.to_string())?;
            if bytes[..count] != pattern::bytes(*tag, 0, *len) {
                return Err(format!("{path}: {len} bytes were accepted and are not there"));
            }
        }
        Ok(())
    }
}

/// As the volume is once everything waiting is done.
fn settled(fs: &Fs) -> Result<StatFs> {
    let_root_shrink(fs)?;
    // What one checkpoint frees, the next puts into the trees; chunks go with the one after.
    for _ in 0..3 {
        fs.sync()?;
    }
    statfs_but_root(fs)
}

/// Fills a volume of this row by so many threads and empties it again. Answers how many operations were accepted.
pub fn fill(
    row: Row,
    filling: Filling,
    allocation: Allocation,
    block_size: u32,
    threads: usize,
) -> std::result::Result<u64, String> {
    // Less where each operation waits for the device, or looks at all names that are there.
    let is_searched = filling == Filling::Names && row.choices.directory == Directory::Linear;
    let is_slow = is_searched || Promise::of(row.order) == Promise::Returned;
    let size = if is_slow { 3 << 20 } else { 8 << 20 };
    let mut setup = Setup::of(row, block_size, size);
    setup.log_size = Some(512 << 10);
    // The volume is to be full, not the cache.
    setup.options.cache_size = 32 << 20;
    setup.options.allocation = allocation;
    setup.options.background = threads > 1;
    setup.options.commit_interval_ms = if threads > 1 { 5 } else { 0 };
    let devices = setup.format_devices();
    let say = |error: Error| error.to_string();
    let fs = setup.open(devices.clone()).map_err(say)?;
    let fresh = settled(&fs).map_err(say)?;
    let mut fillers = Vec::new();
    for thread in 0..threads {
        fillers.push(Filler::new(&fs, filling, &format!("t{thread}")).map_err(say)?);
    }
    let filled: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = fillers.iter_mut().map(|filler| scope.spawn(|| filler.fill())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a panic".into()))).collect()
    });
    filled.into_iter().collect::<std::result::Result<Vec<()>, String>>()?;
    fs.sync().map_err(|error| format!("what was accepted has its space, but: {error}"))?;
    fillers.iter().try_for_each(Filler::verify)?;
    let accepted = fillers.iter().map(|filler| filler.accepted).sum();
    if accepted < 20 {
        return Err(format!("only {accepted} were accepted"));
    }
    drop(fillers);
    fs.close().map_err(say)?;
    check_silent(&devices)?;

    // Emptied by whoever opens it next, while it is full.
    let fs = setup.open(devices.clone()).map_err(say)?;
    let root = fs.session(Cred::root());
    for thread in 0..threads {
        root.remove_tree(&format!("t{thread}"), &mut |_| true)
            .map_err(|error| format!("removing from a full volume: {error}"))?;
    }
    drop(root);
    let left = settled(&fs).map_err(say)?;
    if (left.free_blocks, left.inodes_used) != (fresh.free_blocks, fresh.inodes_used) {
        return Err(format!("space did not come back: {left:?}, fresh {fresh:?}"));
    }
    fs.close().map_err(say)?;
    check_silent(&devices)?;
    Ok(accepted)
}
