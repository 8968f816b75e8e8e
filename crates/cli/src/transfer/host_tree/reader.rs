//! The threads that read, one file after the other.

use super::super::batch::{
    Body, Entry, Gone, LinkKey, Meta, Outlet, PART_SIZE, Problem, Record, Segment, Span, WHOLE_MAX, Wanted,
};
use super::super::host::{self, Named, Xattrs};
use super::{
    Claims, Directory, LeftOut, Mounts, Options, STREAM_SIZE, entry, hidden, open_directory, problem, rest_of_stream,
    stream,
};
use crate::failure::Failure;
use crate::show::name::{Shown, join};
use myriad_engine::Errno;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

pub struct Reader {
    /// Where the tree is, for messages.
    pub place: Arc<[u8]>,
    left_out: Option<LeftOut>,
    /// That of the only file system whose files are taken: of our own. Elsewhere the files of one file system may differ in this number, as those
    /// of overlayfs do.
    device: Option<u64>,
    /// Files have what they say that they have.
    is_ours: bool,
    links: bool,
    wanted: Option<Wanted>,
    claims: Arc<Claims>,
    xattrs: Xattrs,
    /// What a file without a size is tried with.
    probe: Vec<u8>,
    /// Of the file in hand, in the order of the whole.
    pub position: (u64, usize),
}

impl Reader {
    pub fn new(place: &Arc<[u8]>, options: &Options, claims: &Arc<Claims>) -> Self {
        Self {
            place: Arc::clone(place),
            left_out: options.left_out,
            device: options.device.filter(|_| options.mounts == Mounts::Foreign),
            is_ours: options.device.is_some(),
            links: options.links,
            wanted: options.wanted.clone(),
            claims: Arc::clone(claims),
            xattrs: Xattrs::default(),
            probe: Vec::new(),
            position: (0, 0),
        }
    }

    pub fn directory(&mut self, directory: &Directory, outlet: &mut Outlet) -> Result<(), Gone> {
        let start = outlet.batch.bytes.len();
        let result = rustix::fs::fstat(&directory.fd).and_then(|stat| {
            self.xattrs.read(&Named::Open(directory.fd.as_fd()), &mut outlet.batch.bytes)?;
            host::meta(&stat).ok_or(Errno::INVAL)
        });
        match result {
            Ok(meta) => {
                let xattrs = outlet.batch.since(start);
                let path = outlet.batch.add(&directory.path);
                outlet.push(Record::Entry(Entry { path, meta, xattrs, link: None, body: Body::None }))
            }
            Err(errno) => outlet.push(Record::Problem(problem(&self.place, &directory.path, errno))),
        }
    }

    /// The file `name`, which is not a directory. `is_root`: it is all there is, and has no path of its own.
    pub fn name(&mut self, directory: &Directory, name: &[u8], is_root: bool, outlet: &mut Outlet) -> Result<(), Gone> {
        let mark = outlet.batch.bytes.len();
        // The path goes first into the arena, and stays there if the rest fails.
        if !is_root {
            outlet.batch.add(&directory.path);
            if !directory.path.is_empty() {
                outlet.batch.add(b"/");
            }
            outlet.batch.add(name);
        }
        let path = outlet.batch.since(mark);
        // For messages.
        let whole_path = || if is_root { Vec::new() } else { join(&directory.path, name) };
        let opened = match self.open(directory, name, &whole_path, outlet) {
            // The name was another file's the next moment: that one it is.
            Err(Errno::STALE) => self.open(directory, name, &whole_path, outlet),
            opened => opened,
        };
        self.push(opened, path, &whole_path, outlet)
    }

    /// The file at `real`, which a symbolic link at `path` leads to.
    pub fn linked(&mut self, path: &[u8], real: &Path, outlet: &mut Outlet) -> Result<(), Gone> {
        let mark = outlet.batch.bytes.len();
        outlet.batch.add(path);
        let span = outlet.batch.since(mark);
        let whole_path = || path.to_vec();
        let (parent, name) = (real.parent().unwrap_or(Path::new("/")), real.file_name().unwrap_or_default());
        let opened = open_directory(CWD, parent.as_os_str().as_bytes(), OFlags::empty())
            .and_then(|fd| self.open(&Directory { fd, path: Vec::new() }, name.as_bytes(), &whole_path, outlet));
        self.push(opened, span, &whole_path, outlet)
    }

    /// A file that is open, and is all there is. `is_file`: its size says how much there is to read.
    pub fn open_file(&mut self, file: OwnedFd, stat: &Stat, is_file: bool, outlet: &mut Outlet) -> Result<(), Gone> {
        if self.device.is_some_and(|device| device != stat.st_dev) {
            return self.push(Ok(Opened::Hidden), outlet.batch.since(outlet.batch.bytes.len()), &Vec::new, outlet);
        }
        if !is_file || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            let Some(meta) = host::meta(stat) else {
                return outlet.push(Record::Problem(problem(&self.place, b"", Errno::INVAL)));
            };
            let mode = meta.mode & 0o777 | myriad_engine::FileType::File.mode_bits();
            return stream(&file, Meta { mode, rdev: 0, size: 0, ..meta }, &self.place, outlet);
        }
        let path = outlet.batch.since(outlet.batch.bytes.len());
        let opened = match self.left_out {
            Some((key, _)) if key == host::link_key(stat) => Ok(Opened::LeftOut),
            _ => self.content(file, stat, &Vec::new, outlet),
        };
        self.push(opened, path, &Vec::new, outlet)
    }

    /// Hands on a file that was opened, and its content.
    fn push(
        &mut self,
        opened: Result<Opened, Errno>,
        path: Span,
        whole_path: &dyn Fn() -> Vec<u8>,
        outlet: &mut Outlet,
    ) -> Result<(), Gone> {
        match opened {
            Ok(Opened::Done(mut entry)) => {
                entry.path = path;
                outlet.push(Record::Entry(entry))
            }
            Ok(Opened::Changed(mut entry)) => {
                entry.path = path;
                outlet.push(Record::Entry(entry))?;
                outlet.push(Record::Changed(self.changed(&whole_path())))
            }
            Ok(Opened::Parts(mut entry, file, segments, before)) => {
                entry.path = path;
                outlet.push(Record::Entry(entry))?;
                match self.parts(&file, &segments, outlet)? {
                    Ok(()) if has_changed(&file, &before) => {
                        outlet.push(Record::End)?;
                        outlet.push(Record::Changed(self.changed(&whole_path())))
                    }
                    Ok(()) => outlet.push(Record::End),
                    Err(errno) => outlet.push(Record::Spoiled(problem(&self.place, &whole_path(), errno))),
                }
            }
            Ok(Opened::Stream(mut entry, file)) => {
                entry.path = path;
                outlet.push(Record::Entry(entry))?;
                rest_of_stream(&file, (&self.place, &whole_path()), outlet)
            }
            Ok(Opened::Hidden) => outlet.push(Record::Problem(hidden(&self.place, &whole_path()))),
            Ok(Opened::LeftOut) => {
                let place = Shown(&join(&self.place, &whole_path())).to_string();
                let what = format!("is {}; left out", self.left_out.map_or("", |(_, what)| what));
                outlet.push(Record::Problem(Problem::new(Failure::new(place, what, "").into())))
            }
            Err(errno) => outlet.push(Record::Problem(problem(&self.place, &whole_path(), errno))),
        }
    }

    fn changed(&self, path: &[u8]) -> Problem {
        let place = Shown(&join(&self.place, path)).to_string();
        let what = "changed while it was read; what was read may be older in one part than in another";
        Problem::new(Failure::new(place, what, "").into())
    }

    /// ESTALE: the name was given to another file between two calls.
    fn open(
        &mut self,
        directory: &Directory,
        name: &[u8],
        whole_path: &dyn Fn() -> Vec<u8>,
        outlet: &mut Outlet,
    ) -> Result<Opened, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        // Opening is the test for a regular file, too: device nodes must not be opened for a look, so ask first where
        // the type is not plain from the directory. `statat` costs less than the failed open.
        let stat = rustix::fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if self.device.is_some_and(|device| device != stat.st_dev) {
            return Ok(Opened::Hidden);
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return self.other(directory, name, &stat, outlet);
        }
        if self.left_out.is_some_and(|(key, _)| key == host::link_key(&stat)) {
            // It would be read while it is written, and grow by what is read.
            return Ok(Opened::LeftOut);
        }
        let file = match rustix::fs::openat(&directory.fd, name, flags | OFlags::NOATIME, Mode::empty()) {
            // Only the owner and root may ask not to be noted as a reader.
            Err(Errno::PERM) => rustix::fs::openat(&directory.fd, name, flags, Mode::empty())?,
            other => other?,
        };
        // Content and attributes are to be one file's: who swaps names must not get a secret file's content with his own
        // file's mode.
        let opened = rustix::fs::fstat(&file)?;
        if host::link_key(&opened) != host::link_key(&stat) {
            return Err(Errno::STALE);
        }
        self.content(file, &opened, whole_path, outlet)
    }

    /// What an open regular file holds.
    fn content(
        &mut self,
        file: OwnedFd,
        stat: &Stat,
        whole_path: &dyn Fn() -> Vec<u8>,
        outlet: &mut Outlet,
    ) -> Result<Opened, Errno> {
        let link = self.link(stat);
        // Not before the file is open: by a claim on what the name no longer leads to, all further names would come without
        // content.
        if let Some(key) = link
            && self.is_later_name(key)
        {
            let meta = host::meta(stat).ok_or(Errno::INVAL)?;
            // The sink knows the first name.
            let body = Body::HardLink(outlet.batch.since(outlet.batch.bytes.len()));
            return Ok(Opened::Done(entry(meta, link, body)));
        }
        let start = outlet.batch.bytes.len();
        self.xattrs.read(&Named::Open(file.as_fd()), &mut outlet.batch.bytes)?;
        let xattrs = outlet.batch.since(start);
        let mut meta = host::meta(stat).ok_or(Errno::INVAL)?;
        if self.wanted.as_ref().is_some_and(|wanted| !wanted(&whole_path(), &meta)) {
            let mut entry = entry(meta, link, Body::Unread);
            entry.xattrs = xattrs;
            return Ok(Opened::Done(entry));
        }
        if meta.size == 0 && !self.is_ours && self.has_more_than_it_says(&file)? {
            let mut entry = entry(meta, link, Body::Parts(Vec::new()));
            entry.xattrs = xattrs;
            return Ok(Opened::Stream(entry, file));
        }
        let segments = match host::may_have_holes(stat) {
            true => host::segments(&file, meta.size),
            false => vec![Segment { offset: 0, length: meta.size }],
        };
        let is_dense = matches!(segments[..], [Segment { offset: 0, length }] if length == meta.size);
        if meta.size > WHOLE_MAX || !is_dense {
            let mut entry = entry(meta, link, Body::Parts(segments.clone()));
            entry.xattrs = xattrs;
            return Ok(Opened::Parts(entry, file, segments, Box::new(*stat)));
        }
        let start = outlet.batch.bytes.len();
        outlet.batch.bytes.resize(start + meta.size as usize, 0);
        let mut end = start;
        // What was cut off meanwhile is cut off; what was appended is not there yet. Who asked where the data is has moved the descriptor.
        while end < outlet.batch.bytes.len() {
            match rustix::io::pread(&file, &mut outlet.batch.bytes[end..], (end - start) as u64) {
                Ok(0) => break,
                Ok(count) => end += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        outlet.batch.bytes.truncate(end);
        meta.size = (outlet.batch.bytes.len() - start) as u64;
        let mut entry = entry(meta, link, Body::Whole(outlet.batch.since(start)));
        entry.xattrs = xattrs;
        Ok(if has_changed(&file, stat) { Opened::Changed(entry) } else { Opened::Done(entry) })
    }

    /// Whether a file without a size has content all the same, as those of /proc have, and of file systems that make files as
    /// they are read. What was written to an ordinary one since it was opened is not there yet.
    fn has_more_than_it_says(&mut self, file: &OwnedFd) -> Result<bool, Errno> {
        self.probe.clear();
        self.probe.reserve(STREAM_SIZE);
        let found = loop {
            match rustix::io::pread(file, rustix::buffer::spare_capacity(&mut self.probe), 0) {
                Err(Errno::INTR) => {}
                // It can be read in order only, which is how a stream is read.
                Err(Errno::SPIPE) => return Ok(true),
                found => break found?,
            }
        };
        Ok(found > 0 && rustix::fs::fstat(file)?.st_size == 0)
    }

    /// Links, FIFOs, sockets and device nodes.
    fn other(&mut self, directory: &Directory, name: &[u8], stat: &Stat, outlet: &mut Outlet) -> Result<Opened, Errno> {
        let meta = host::meta(stat).ok_or(Errno::INVAL)?;
        let start = outlet.batch.bytes.len();
        self.xattrs.read(&Named::In(directory.fd.as_fd(), name), &mut outlet.batch.bytes)?;
        let xattrs = outlet.batch.since(start);
        let body = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&directory.fd, name, Vec::new())?;
                Body::Symlink(outlet.batch.add(target.to_bytes()))
            }
            // Became one since it was listed.
            FileType::Directory => return Err(Errno::ISDIR),
            _ => Body::None,
        };
        Ok(Opened::Done(Entry { xattrs, ..entry(meta, self.link(stat), body) }))
    }

    /// By which a further name of the file is known, if there are some and that matters.
    fn link(&self, stat: &Stat) -> Option<LinkKey> {
        (self.links && stat.st_nlink > 1).then(|| host::link_key(stat))
    }

    /// Whether a name in front of this one has been seen, which has the content. A reader ahead of us in time may be
    /// behind us in order: then the content comes with this name, and the sink drops the other one's.
    fn is_later_name(&self, key: LinkKey) -> bool {
        let mut claims = self.claims.lock().expect("nobody panics holding it");
        let first = claims.entry(key).or_insert(self.position);
        if *first < self.position {
            return true;
        }
        *first = self.position;
        false
    }

    fn parts(&self, file: &OwnedFd, segments: &[Segment], outlet: &mut Outlet) -> Result<Result<(), Errno>, Gone> {
        for segment in segments {
            let end = segment.offset + segment.length;
            let mut offset = segment.offset;
            while offset < end {
                let start = outlet.batch.bytes.len();
                let length = (end - offset).min(PART_SIZE as u64) as usize;
                outlet.batch.bytes.resize(start + length, 0);
                let result = rustix::io::pread(file, &mut outlet.batch.bytes[start..], offset);
                outlet.batch.bytes.truncate(start + result.unwrap_or(0));
                match result {
                    // It was cut off while we read.
                    Ok(0) => return Ok(Err(Errno::IO)),
                    Ok(_) => {
                        let bytes = outlet.batch.since(start);
                        outlet.push(Record::Data { offset, bytes })?;
                        offset += bytes.len() as u64;
                    }
                    Err(Errno::INTR) => {}
                    Err(errno) => return Ok(Err(errno)),
                }
            }
        }
        Ok(Ok(()))
    }
}

enum Opened {
    Done(Entry),
    /// Done, and the file changed while its content was read.
    Changed(Entry),
    /// To be read part by part; the file's attributes before that.
    Parts(Entry, OwnedFd, Vec<Segment>, Box<Stat>),
    /// To be read until it ends.
    Stream(Entry, OwnedFd),
    /// The one that is left out.
    LeftOut,
    /// Something is mounted on it.
    Hidden,
}

/// Whether a file is no longer what it was, as far as anybody can tell: every change sets its change time.
fn has_changed(file: &OwnedFd, before: &Stat) -> bool {
    let version = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec, stat.st_size);
    rustix::fs::fstat(file).map_or(true, |after| version(&after) != version(before))
}

#[cfg(test)]
mod tests {
    use super::super::super::batch::{Feed, Next};
    use super::*;
    use std::io::Write;

    /// A file system that compresses, or counts no blocks at all, makes a file look as if it had holes. Asking where its data is moves the
    /// descriptor to the end, and reading from there gave an empty file.
    #[test]
    fn a_dense_file_with_too_few_blocks_is_read_from_its_beginning() {
        let bytes: Vec<u8> = (0..1000).map(|index| index as u8 | 1).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let mut stat = rustix::fs::fstat(&file).unwrap();
        stat.st_blocks = 0;
        let (slots, mut feed) = Feed::new();
        let mut outlet = slots.open().unwrap();
        let mut reader = Reader::new(&b"source"[..].into(), &Options::default(), &Arc::default());
        reader.open_file(file.into(), &stat, true, &mut outlet).unwrap();
        outlet.flush().unwrap();
        let Next::Batch(batch) = feed.next() else { panic!("the file is in a batch") };
        let [Record::Entry(Entry { meta, body: Body::Whole(content), .. })] = batch.records[..] else {
            panic!("{:?}", batch.records)
        };
        assert_eq!((meta.size, batch.get(content)), (1000, &bytes[..]));
    }
}
