//! Source: a tree of a volume. As with the host's, one thread walks and several read, because a volume that was just opened
//! has nothing in memory: small files are then a wait for the device each, and waits overlap.

use super::batch::{
    BATCH_SIZE, Body, Entry, Feed, Gauge, Gone, LinkKey, Meta, Outlet, PART_SIZE, Problem, Record, Segment, Slots,
    WHOLE_MAX, Wanted,
};
use super::exclude::Excludes;
use crate::failure::{At, Failure};
use crate::show::name::join;
use crate::volume::Place;
use myriad_engine::{Errno, Error, File, FileType, Node, OpenOptions, Session, Stat, WalkEntry};
use myriad_format::xattr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

/// Files of one job.
const JOB_ITEMS: usize = 64;
/// Requests for small files that are at the device at a time. Measured on a virtual disk of 0.1 ms: 8 are five times as
/// fast as one, more bring nothing that two processors could use.
const READERS: usize = 8;
/// Names that are counted at a time.
const COUNTED: usize = 1024;
/// Unit of `Stat::blocks`.
const BLOCK_UNIT: u64 = 512;

pub fn meta(stat: &Stat) -> Meta {
    let Stat { mode, uid, gid, rdev, size, mtime, atime, .. } = *stat;
    Meta { mode, uid, gid, rdev, size, mtime, atime: Some(atime) }
}

/// Where the data of a file is.
pub fn segments(file: &File, size: u64) -> Result<Vec<Segment>, Error> {
    let mut segments = Vec::new();
    let mut offset = 0;
    while offset < size {
        let start = match file.seek_data(offset) {
            Ok(start) if start < size => start,
            Ok(_) | Err(Error::Refused(Errno::NXIO)) => break,
            Err(error) => return Err(error),
        };
        let end = file.seek_hole(start)?.clamp(start + 1, size);
        segments.push(Segment { offset: start, length: end - start });
        offset = end;
    }
    Ok(segments)
}

/// Extended attributes of a file, appended to `list`.
pub fn xattrs(session: &Session, node: Node, list: &mut Vec<u8>) -> Result<(), Error> {
    for name in session.list_xattr_node(node)? {
        let value = session.get_xattr_node(node, &name)?;
        xattr::push(list, &name, &value);
    }
    Ok(())
}

/// How a tree is read.
#[derive(Clone, Default)]
pub struct Options {
    /// Take what the symbolic links below the beginning refer to.
    pub follow_all: bool,
    /// Files that are names of one inode come as such.
    pub links: bool,
    /// Count the entries ahead of the work, so that progress can tell the time left.
    pub count: bool,
    pub excludes: Excludes,
    /// Whose content is read; `None`: all.
    pub wanted: Option<Wanted>,
}

/// Starts to read the file `node`, with all below it; `place` is one of its paths. `session` opens a session for each
/// thread.
pub fn read(session: impl Fn() -> Session, node: Node, place: Place, options: Options) -> Feed {
    let (slots, mut feed) = Feed::new();
    let (jobs, received) = sync_channel(READERS);
    let received = Arc::new(Mutex::new(received));
    for _ in 0..READERS {
        let received = Arc::clone(&received);
        let (links, wanted) = (options.links, options.wanted.clone());
        let reader = Reader { session: session(), place: place.clone(), links, wanted };
        feed.spawn(move || reader.run(&received));
    }
    if options.count {
        let (session, gauge) = (session(), Arc::clone(&feed.count));
        feed.spawn(move || count_below(&session, node, &gauge));
    }
    let (follow_all, excludes) = (options.follow_all, options.excludes);
    let mut walker = Walker { session: session(), place, follow_all, excludes, slots, jobs, job: None };
    feed.spawn(move || {
        // The sink has gone: nobody is left to tell.
        let _ = walker.walk(node).and_then(|()| walker.send());
    });
    feed
}

/// Counts a file and all below it, by names alone. What cannot be read is told by the walk.
fn count_below(session: &Session, top: Node, gauge: &Gauge) {
    let mut total = 1;
    let mut stack = vec![top];
    // With more than there are, damage leads us in circles.
    let mut directories_left = session.fs().statfs().map_or(0, |totals| totals.directories + 1);
    while let Some(directory) = stack.pop() {
        let mut cookie = 0;
        if directories_left == 0 {
            return;
        }
        directories_left -= 1;
        // All read before we had counted: no need any more.
        while gauge.done() != u64::MAX
            && let Ok(entries) = session.read_dir_at(directory, cookie, COUNTED)
            && let Some(last) = entries.last()
        {
            cookie = last.cookie;
            total += entries.len() as u64;
            let directories = entries.iter().filter(|entry| entry.file_type == FileType::Directory);
            stack.extend(directories.filter_map(|entry| Some(session.lookup(directory, &entry.name).ok()?.node())));
        }
    }
    gauge.set_total(total);
}

enum Item {
    File(WalkEntry),
    Problem(anyhow::Error),
    Broken(anyhow::Error),
}

struct Job {
    outlet: Outlet,
    items: Vec<Item>,
    /// Bytes of small files among them.
    size: u64,
}

struct Walker {
    session: Session,
    place: Place,
    follow_all: bool,
    excludes: Excludes,
    slots: Slots,
    jobs: SyncSender<Job>,
    job: Option<Job>,
}

impl Walker {
    fn walk(&mut self, node: Node) -> Result<(), Gone> {
        match self.session.stat_node(node).at(&self.place) {
            Ok(stat) if !stat.is_dir() => return self.push(Item::File(WalkEntry { path: Vec::new(), stat })),
            Ok(_) => {}
            Err(error) => return self.push(Item::Broken(error)),
        }
        if self.follow_all {
            return self.walk_following(node);
        }
        // A link that led to the directory is followed again.
        let walk = match self.session.walk(&join(&self.place.path, b".")).at(&self.place) {
            Ok(walk) => walk,
            Err(error) => return self.push(Item::Broken(error)),
        };
        for step in walk {
            let (path, is_directory) = match &step {
                Ok(entry) => (&entry.path, entry.stat.is_dir()),
                Err(error) => (&error.path, true),
            };
            if self.excludes.covers(path, is_directory) {
                continue;
            }
            // After an error the walk goes on, or ends, as the damage allows.
            self.push(self.place.step(step).map_or_else(Item::Problem, Item::File))?;
        }
        Ok(())
    }

    /// The same, with what symbolic links lead to in their place.
    fn walk_following(&mut self, top: Node) -> Result<(), Gone> {
        // Directories that are still to be walked, with all that they are in.
        let mut stack = vec![(top, Vec::new(), Vec::new())];
        while let Some((node, path, mut above)) = stack.pop() {
            match self.session.stat_node(node) {
                Ok(stat) => self.push(Item::File(WalkEntry { path: path.clone(), stat }))?,
                Err(error) => {
                    let place = self.place.below(&path);
                    self.push(Item::Problem(Err::<(), _>(error).at(place).expect_err("an error stays one")))?;
                    continue;
                }
            }
            above.push(node);
            let mut below = Vec::new();
            let mut cookie = 0;
            loop {
                let entries = match self.session.read_dir_at(node, cookie, COUNTED).at(self.place.below(&path)) {
                    Ok(entries) => entries,
                    Err(error) => {
                        self.push(Item::Problem(error))?;
                        break;
                    }
                };
                let Some(last) = entries.last() else { break };
                cookie = last.cookie;
                for entry in &entries {
                    below.extend(self.step_following(node, join(&path, &entry.name), &entry.name, &above)?);
                }
            }
            stack.extend(below.into_iter().rev().map(|(node, path)| (node, path, above.clone())));
        }
        Ok(())
    }

    /// Hands out a file, or what a link leads to, unless that is a directory to be walked, which is answered.
    fn step_following(
        &mut self,
        directory: Node,
        path: Vec<u8>,
        name: &[u8],
        above: &[Node],
    ) -> Result<Option<(Node, Vec<u8>)>, Gone> {
        let place = self.place.below(&path);
        let found = self.session.lookup(directory, name).and_then(|stat| match stat.file_type() {
            FileType::Symlink if !self.excludes.has(&path, false) => self.session.stat(&place.path),
            _ => Ok(stat),
        });
        if self.excludes.has(&path, found.as_ref().is_ok_and(Stat::is_dir)) {
            return Ok(None);
        }
        match found {
            Ok(stat) if stat.is_dir() && above.contains(&stat.node()) => {
                let what = "leads back to a directory that it is in; left out";
                self.push(Item::Problem(Failure::new(place, what, "").into()))?;
            }
            Ok(stat) if stat.is_dir() => return Ok(Some((stat.node(), path))),
            Ok(stat) => self.push(Item::File(WalkEntry { path, stat }))?,
            Err(Error::Refused(Errno::NOENT)) => {
                let what = "is a symbolic link that leads to nothing";
                self.push(Item::Problem(Failure::new(place, what, "copy it with -P").into()))?;
            }
            Err(error) => self.push(Item::Problem(Err::<(), _>(error).at(place).expect_err("an error stays one")))?,
        }
        Ok(None)
    }

    fn push(&mut self, item: Item) -> Result<(), Gone> {
        if self.job.is_none() {
            let outlet = self.slots.open()?;
            self.job = Some(Job { outlet, items: Vec::with_capacity(JOB_ITEMS), size: 0 });
        }
        let job = self.job.as_mut().expect("there is one now");
        if let Item::File(entry) = &item {
            job.size += entry.stat.size.min(WHOLE_MAX);
        }
        job.items.push(item);
        if job.items.len() == JOB_ITEMS || job.size >= BATCH_SIZE as u64 { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<(), Gone> {
        match self.job.take() {
            Some(job) => self.jobs.send(job).map_err(|_| Gone),
            None => Ok(()),
        }
    }
}

struct Reader {
    session: Session,
    place: Place,
    links: bool,
    wanted: Option<Wanted>,
}

impl Reader {
    fn run(&self, jobs: &Mutex<Receiver<Job>>) {
        loop {
            let Ok(mut job) = jobs.lock().expect("nobody panics holding it").recv() else { return };
            for item in job.items.drain(..) {
                let result = match item {
                    Item::File(entry) => self.file(&entry.path, &entry.stat, &mut job.outlet),
                    Item::Problem(error) => job.outlet.push(Record::Problem(Problem::new(error))),
                    Item::Broken(error) => job.outlet.push(Record::Broken(error)),
                };
                if result.is_err() {
                    return;
                }
            }
            if job.outlet.flush().is_err() {
                return;
            }
        }
    }

    fn file(&self, path: &[u8], stat: &Stat, outlet: &mut Outlet) -> Result<(), Gone> {
        let span = outlet.batch.add(path);
        match self.open(path, stat, outlet) {
            Ok((mut entry, None)) => {
                entry.path = span;
                outlet.push(Record::Entry(entry))
            }
            Ok((mut entry, Some((file, segments)))) => {
                entry.path = span;
                outlet.push(Record::Entry(entry))?;
                let end = match self.parts(&file, &segments, outlet)? {
                    Ok(()) => Record::End,
                    Err(error) => Record::Spoiled(self.problem(path, error)),
                };
                outlet.push(end)
            }
            Err(error) => outlet.push(Record::Problem(self.problem(path, error))),
        }
    }

    fn problem(&self, path: &[u8], error: Error) -> Problem {
        let place = Place { image: self.place.image.clone(), path: join(&self.place.path, path) };
        Problem::new(Err::<(), _>(error).at(place).expect_err("an error stays one"))
    }

    #[expect(clippy::type_complexity, reason = "an entry, and what is still to be read of it")]
    fn open(
        &self,
        path: &[u8],
        stat: &Stat,
        outlet: &mut Outlet,
    ) -> Result<(Entry, Option<(File, Vec<Segment>)>), Error> {
        let node = stat.node();
        let start = outlet.batch.bytes.len();
        xattrs(&self.session, node, &mut outlet.batch.bytes)?;
        let xattrs = outlet.batch.since(start);
        let is_directory = stat.is_dir();
        let link = (self.links && stat.nlink > 1 && !is_directory).then_some(LinkKey { device: 0, ino: stat.ino });
        let mut entry = Entry { path: Default::default(), meta: meta(stat), xattrs, link, body: Body::None };
        match stat.file_type() {
            FileType::Symlink => {
                let target = self.session.readlink_node(node)?;
                entry.body = Body::Symlink(outlet.batch.add(&target));
            }
            FileType::File if self.wanted.as_ref().is_some_and(|wanted| !wanted(path, &entry.meta)) => {
                entry.body = Body::Unread;
            }
            FileType::File if stat.size == 0 => entry.body = Body::Whole(outlet.batch.since(outlet.batch.bytes.len())),
            FileType::File => {
                let file = self.session.open_node(node, OpenOptions { dont_cache: true, ..OpenOptions::READ })?;
                // Small files have their content in the inode, and no blocks; that is no hole.
                let segments = match stat.blocks * BLOCK_UNIT < stat.size {
                    true => segments(&file, stat.size)?,
                    false => vec![Segment { offset: 0, length: stat.size }],
                };
                let is_dense = matches!(segments[..], [Segment { offset: 0, length }] if length == stat.size);
                if !is_dense || stat.size > WHOLE_MAX {
                    entry.body = Body::Parts(segments.clone());
                    return Ok((entry, Some((file, segments))));
                }
                let start = outlet.batch.bytes.len();
                outlet.batch.bytes.resize(start + stat.size as usize, 0);
                let count = file.read_at(&mut outlet.batch.bytes[start..], 0)?;
                outlet.batch.bytes.truncate(start + count);
                entry.meta.size = count as u64;
                entry.body = Body::Whole(outlet.batch.since(start));
            }
            _ => {}
        }
        Ok((entry, None))
    }

    fn parts(&self, file: &File, segments: &[Segment], outlet: &mut Outlet) -> Result<Result<(), Error>, Gone> {
        for segment in segments {
            let end = segment.offset + segment.length;
            let mut offset = segment.offset;
            while offset < end {
                let start = outlet.batch.bytes.len();
                let length = (end - offset).min(PART_SIZE as u64) as usize;
                outlet.batch.bytes.resize(start + length, 0);
                match file.read_at(&mut outlet.batch.bytes[start..], offset) {
                    Ok(count) if count == length => {}
                    // It was cut off while we read: by the same run, in the same volume.
                    Ok(_) => return Ok(Err(Error::Refused(Errno::IO))),
                    Err(error) => return Ok(Err(error)),
                }
                let bytes = outlet.batch.since(start);
                outlet.push(Record::Data { offset, bytes })?;
                offset += length as u64;
            }
        }
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch::Next;
    use super::*;
    use myriad_device::MemoryDevice;
    use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions};
    use std::time::{Duration, Instant};

    /// Nobody counted a volume's files, so that an export could not tell the time left.
    #[test]
    fn what_is_to_come_is_counted() {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
        let fs = Fs::open_device(device, None, MountOptions::default()).unwrap();
        let session = fs.session(Cred::root());
        for directory in 0..3 {
            session.mkdir(&format!("{directory}"), 0o755).unwrap();
            for file in 0..1500 {
                session.create(&format!("{directory}/{file}"), 0o644).unwrap();
            }
        }
        let root = session.resolve("/").unwrap();
        let place = Place { image: "vol.img".into(), path: b"/".into() };
        let options = Options { count: true, ..Options::default() };
        let mut feed = read(|| fs.session(Cred::root()), root, place, options);
        let mut read = 0;
        loop {
            match feed.next() {
                Next::Batch(batch) => {
                    read += batch.records.iter().filter(|record| matches!(record, Record::Entry(_))).count() as u64;
                }
                Next::Waiting => {}
                Next::End => break,
            }
        }
        let begun = Instant::now();
        while feed.count.total().is_none() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((feed.count.total(), read), (Some(1 + 3 + 3 * 1500), 1 + 3 + 3 * 1500));
        feed.finish();
    }
}
