//! Batches -> archive, in PAX format.
//!
//! Every entry has an extended header: the time to the nanosecond needs one. Beside it the plain header says as much as
//! fits, so that programs that know only that read most of it. Holes are written as GNU tar 1.0 does, ACLs as star and
//! libarchive do, other attributes as `SCHILY.xattr`. Sockets have no place in an archive.

use super::header::{self, Block};
use super::{BLOCK, pax};
use crate::transfer::acl;
use crate::transfer::batch::{Batch, Body, Entry, Meta, PART_SIZE, Segment};
use crate::transfer::path;
use myriad_engine::FileType;
use myriad_format::xattr::AttrIter;
use std::io::{self, Write};

pub struct Writer<W> {
    output: W,
    /// Bytes that the entry in progress still needs, padding included.
    missing: u64,
    padding: u64,
    records: Vec<u8>,
    name: Vec<u8>,
    map: Vec<u8>,
}

/// Whether an archive can hold it.
pub fn takes(entry: &Entry) -> bool {
    entry.meta.file_type() != FileType::Socket
}

impl<W: Write> Writer<W> {
    pub fn new(output: W) -> Self {
        Self { output, missing: 0, padding: 0, records: Vec::new(), name: Vec::new(), map: Vec::new() }
    }

    /// `owner`: instead of the entry's own.
    pub fn entry(&mut self, batch: &Batch, entry: &Entry, owner: Option<(u32, u32)>) -> io::Result<()> {
        assert_eq!(self.missing, 0, "the entry before this one was finished");
        let meta = &entry.meta;
        self.name.clear();
        self.name.extend_from_slice(match batch.get(entry.path) {
            b"" => &b"."[..],
            path => path,
        });
        if meta.file_type() == FileType::Directory {
            self.name.push(b'/');
        }
        let (kind, link) = kind_and_link(batch, entry);
        let stored = self.lay_out(entry);

        let mut block = [0; BLOCK];
        self.records.clear();
        if !self.map.is_empty() {
            self.note_sparse(meta.size);
        }
        self.put_names(&mut block, link);
        self.put_numbers(&mut block, meta, stored, owner);
        self.put_times(&mut block, meta);
        put_device(&mut block, meta)?;
        // Of a second name, the attributes were told with the first.
        if kind != b'1' {
            self.push_attributes(batch.get(entry.xattrs));
        }
        self.extended()?;
        self.header(&mut block, kind)?;
        self.output.write_all(&self.map)?;
        self.missing = stored - self.map.len() as u64;
        self.padding = stored.next_multiple_of(BLOCK as u64) - stored;
        match &entry.body {
            Body::Whole(data) => self.data(batch.get(*data)),
            _ => self.pad_if_done(),
        }
    }

    /// Makes the map of a file with holes, an empty one for all others; how many bytes the archive stores of the entry, with the map.
    fn lay_out(&mut self, entry: &Entry) -> u64 {
        self.map.clear();
        match &entry.body {
            Body::Whole(data) => data.len() as u64,
            Body::Parts(segments) => {
                let data: u64 = segments.iter().map(|segment| segment.length).sum();
                if data < entry.meta.size {
                    put_map(&mut self.map, segments, entry.meta.size);
                }
                self.map.len() as u64 + data
            }
            _ => 0,
        }
    }

    /// Says in records that what is stored begins with a map. The plain header then has another name, as GNU tar gives it.
    fn note_sparse(&mut self, size: u64) {
        for (key, value) in [("major", "1"), ("minor", "0")] {
            pax::push(&mut self.records, format!("GNU.sparse.{key}").as_bytes(), value.as_bytes());
        }
        pax::push(&mut self.records, b"GNU.sparse.name", &self.name);
        pax::push(&mut self.records, b"GNU.sparse.realsize", size.to_string().as_bytes());
        let (directory, name) = path::split(&self.name);
        self.name = [directory, if directory.is_empty() { b"" } else { b"/" }, b"GNUSparseFile.0/", name].concat();
    }

    fn put_names(&mut self, block: &mut Block, link: &[u8]) {
        if !put_name(block, &self.name) {
            pax::push(&mut self.records, b"path", &self.name);
            put_short(&mut block[header::NAME], &self.name);
        }
        if link.len() > header::LINK.len() {
            pax::push(&mut self.records, b"linkpath", link);
        }
        put_short(&mut block[header::LINK], link);
    }

    fn put_numbers(&mut self, block: &mut Block, meta: &Meta, stored: u64, owner: Option<(u32, u32)>) {
        header::put_number(&mut block[header::MODE], (meta.mode & 0o7777).into());
        let (uid, gid) = owner.unwrap_or((meta.uid, meta.gid));
        for (range, key, number) in
            [(header::SIZE, "size", stored), (header::UID, "uid", uid.into()), (header::GID, "gid", gid.into())]
        {
            if !header::put_number(&mut block[range.clone()], number) {
                header::put_number(&mut block[range], 0);
                pax::push(&mut self.records, key.as_bytes(), number.to_string().as_bytes());
            }
        }
    }

    fn put_times(&mut self, block: &mut Block, meta: &Meta) {
        let seconds = u64::try_from(meta.mtime / 1_000_000_000).unwrap_or(0);
        if !header::put_number(&mut block[header::MTIME], seconds) {
            header::put_number(&mut block[header::MTIME], 0);
        }
        pax::push(&mut self.records, b"mtime", pax::time_text(meta.mtime).as_bytes());
        if let Some(atime) = meta.atime {
            pax::push(&mut self.records, b"atime", pax::time_text(atime).as_bytes());
        }
    }

    fn push_attributes(&mut self, xattrs: &[u8]) {
        for attribute in AttrIter::new(xattrs) {
            let (name, value) = attribute.expect("sources pack sound lists");
            match (name, acl::text(value)) {
                (acl::ACCESS, Some(text)) => pax::push(&mut self.records, b"SCHILY.acl.access", text.as_bytes()),
                (acl::DEFAULT, Some(text)) => pax::push(&mut self.records, b"SCHILY.acl.default", text.as_bytes()),
                // A key ends at the first `=`. GNU tar knows only the first of these, and libarchive believes the second.
                _ if name.contains(&b'=') || name.contains(&b'%') => {
                    pax::push(&mut self.records, &[pax::XATTR, &pax::key_encoded(name)].concat(), value);
                    let key = [pax::XATTR_ENCODED, &pax::percent_encoded(name)].concat();
                    pax::push(&mut self.records, &key, &pax::base64_encoded(value));
                }
                _ => pax::push(&mut self.records, &[pax::XATTR, name].concat(), value),
            }
        }
    }

    /// Further data of the entry, in order.
    pub fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(missing) = self.missing.checked_sub(bytes.len() as u64) else {
            return Err(io::Error::other("a file has more content than it said"));
        };
        self.output.write_all(bytes)?;
        self.missing = missing;
        self.pad_if_done()
    }

    /// The rest of the entry cannot be had. Its size is told already, so zeros take its place: some of them, and
    /// whether they were the last.
    pub fn spoil(&mut self) -> io::Result<bool> {
        let length = self.missing.min(PART_SIZE as u64);
        io::copy(&mut io::Read::take(io::repeat(0), length), &mut self.output)?;
        self.missing -= length;
        self.pad_if_done().map(|()| self.missing == 0)
    }

    /// The stream, without an end mark.
    pub fn into_output(self) -> W {
        self.output
    }

    /// Writes the end mark.
    pub fn finish(mut self) -> io::Result<W> {
        assert_eq!(self.missing, 0, "the last entry was finished");
        self.output.write_all(&[0; 2 * BLOCK])?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn pad_if_done(&mut self) -> io::Result<()> {
        if self.missing == 0 {
            self.output.write_all(&[0; BLOCK][..self.padding as usize])?;
            self.padding = 0;
        }
        Ok(())
    }

    /// Writes the records as an entry of their own.
    fn extended(&mut self) -> io::Result<()> {
        let mut block = [0; BLOCK];
        let (directory, name) = path::split(self.name.strip_suffix(b"/").unwrap_or(&self.name));
        put_short(&mut block[header::NAME], &[directory, b"/PaxHeaders/", name].concat());
        header::put_number(&mut block[header::MODE], 0o644);
        for range in [header::UID, header::GID, header::MTIME] {
            header::put_number(&mut block[range], 0);
        }
        if !header::put_number(&mut block[header::SIZE], self.records.len() as u64) {
            return Err(io::Error::other("attributes too long for an archive"));
        }
        self.header(&mut block, b'x')?;
        let padding = self.records.len().next_multiple_of(BLOCK) - self.records.len();
        self.output.write_all(&self.records)?;
        self.output.write_all(&[0; BLOCK][..padding])
    }

    fn header(&mut self, block: &mut Block, kind: u8) -> io::Result<()> {
        block[header::TYPE] = kind;
        block[header::MAGIC].copy_from_slice(b"ustar\x0000");
        header::seal(block);
        self.output.write_all(block)
    }
}

/// The type of an entry, and what it links to.
fn kind_and_link<'b>(batch: &'b Batch, entry: &Entry) -> (u8, &'b [u8]) {
    match &entry.body {
        Body::HardLink(target) => return (b'1', batch.get(*target)),
        Body::Symlink(target) => return (b'2', batch.get(*target)),
        _ => {}
    }
    let kind = match entry.meta.file_type() {
        FileType::CharDevice => b'3',
        FileType::BlockDevice => b'4',
        FileType::Directory => b'5',
        FileType::Fifo => b'6',
        FileType::File => b'0',
        FileType::Symlink | FileType::Socket => unreachable!("a link has its target, and `takes` told of sockets"),
    };
    (kind, b"")
}

fn put_device(block: &mut Block, meta: &Meta) -> io::Result<()> {
    if !matches!(meta.file_type(), FileType::CharDevice | FileType::BlockDevice) {
        return Ok(());
    }
    for (range, number) in
        [(header::MAJOR, rustix::fs::major(meta.rdev)), (header::MINOR, rustix::fs::minor(meta.rdev))]
    {
        if !header::put_number(&mut block[range], number.into()) {
            return Err(io::Error::other("a device number that no archive can hold"));
        }
    }
    Ok(())
}

/// Splits a name over the two fields that it has; `false` if it does not fit.
fn put_name(block: &mut Block, name: &[u8]) -> bool {
    if name.len() <= header::NAME.len() {
        put_short(&mut block[header::NAME], name);
        return true;
    }
    let is_split = |&slash: &usize| {
        let rest = name.len() - slash - 1;
        name[slash] == b'/' && slash > 0 && slash <= header::PREFIX.len() && rest > 0 && rest <= header::NAME.len()
    };
    let Some(slash) = (0..name.len()).find(is_split) else { return false };
    put_short(&mut block[header::PREFIX], &name[..slash]);
    put_short(&mut block[header::NAME], &name[slash + 1..]);
    true
}

/// As much as fits.
fn put_short(field: &mut [u8], text: &[u8]) {
    let length = text.len().min(field.len());
    field[..length].copy_from_slice(&text[..length]);
}

/// A map of version 1.0. It ends with an empty segment at the end of the file, as GNU tar's do.
fn put_map(map: &mut Vec<u8>, segments: &[Segment], size: u64) {
    let end = [Segment { offset: size, length: 0 }];
    let is_ended = segments.last().is_some_and(|last| last.offset + last.length == size);
    let end = if is_ended { &[][..] } else { &end[..] };
    let mut line = |number: u64| map.extend_from_slice(format!("{number}\n").as_bytes());
    line((segments.len() + end.len()) as u64);
    for segment in segments.iter().chain(end) {
        line(segment.offset);
        line(segment.length);
    }
    map.resize(map.len().next_multiple_of(BLOCK), 0);
}
