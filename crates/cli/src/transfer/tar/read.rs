//! Archive -> batches.
//!
//! What an archive says is never believed: names are taken apart and put together again without `.`, `..` and leading
//! slashes, sizes are checked before they are added, and headers that programs do not write in such lengths are refused.
//! An entry that makes no sense is a problem, told with its name and offset, and the rest goes on; where the stream
//! itself makes no sense, nothing after that can be trusted, and reading ends.

use super::header::{self, Block, Dialect};
use super::sparse::{self, Map};
use super::{BLOCK, pax};
use crate::failure::{Failure, host_error};
use crate::show::name::Shown;
use crate::transfer::acl;
use crate::transfer::batch::{
    BATCH_SIZE, Body, Entry, Gone, Meta, Outlet, PART_SIZE, Problem, Record, Segment, Span, WHOLE_MAX,
};
use crate::transfer::path::{self, PATH_MAX};
use myriad_engine::{FileType, Time};
use myriad_format::xattr::{self, AttrHeader};
use std::collections::{BTreeMap, HashSet};
use std::io::{BufReader, Read};
use std::mem;

/// Longest extended header of one entry: all attributes that a file can have, in their longest spelling.
/// A name of `%` alone is written twice, with three bytes for each.
const EXTENDED_MAX: u64 = 8 << 20;
/// Longest extended header for all entries. It is read again for each, so it must be short.
const GLOBAL_MAX: u64 = 64 << 10;

/// Reads an archive to its end.
pub fn read(input: impl Read, outlet: &mut Outlet) -> Result<(), Gone> {
    let input = Input { reader: BufReader::with_capacity(BATCH_SIZE, input), back: None };
    let (global, member, refused) = (Vec::new(), Member::default(), HashSet::new());
    let mut reader = Reader { input, offset: 0, outlet, global, member, refused };
    match reader.run() {
        Ok(()) => {}
        Err(Stop::Gone) => return Err(Gone),
        Err(Stop::Broken(error)) => outlet.push(Record::Broken(error))?,
    }
    outlet.flush()
}

/// Why reading ends before the archive does.
enum Stop {
    Gone,
    Broken(anyhow::Error),
}

impl From<Gone> for Stop {
    fn from(Gone: Gone) -> Self {
        Self::Gone
    }
}

/// Why an entry is left out.
struct Refusal(String);

impl<T: Into<String>> From<T> for Refusal {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

/// What headers before the entry's own said about it.
#[derive(Default)]
struct Member {
    /// Where the first of these headers began.
    offset: Option<u64>,
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<Time>,
    atime: Option<Time>,
    xattrs: Attributes,
    sparse: Sparse,
    is_extended: bool,
    /// Something in them makes no sense.
    refusal: Option<Refusal>,
}

/// Extended attributes by name. The last value that a name is given counts, also where two programs' records say the same.
#[derive(Default)]
struct Attributes {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Bytes that they take packed.
    length: usize,
}

impl Attributes {
    fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), Refusal> {
        if name.is_empty() || name.len() > xattr::NAME_MAX || name.contains(&0) {
            return Err("the name of an extended attribute is empty or too long".into());
        }
        let size = |value: &[u8]| AttrHeader::SIZE + name.len() + value.len();
        let length = self.length - self.values.get(name).map_or(0, |old| size(old)) + size(value);
        if value.len() > xattr::VALUE_MAX || length > xattr::LIST_MAX {
            return Err("an extended attribute of more than 64 KiB, or all of more than 1 MiB".into());
        }
        self.values.insert(name.to_vec(), value.to_vec());
        self.length = length;
        Ok(())
    }

    fn pack(&self) -> Vec<u8> {
        let mut list = Vec::with_capacity(self.length);
        self.values.iter().for_each(|(name, value)| xattr::push(&mut list, name, value));
        list
    }
}

#[derive(Default)]
struct Sparse {
    /// Version 1.0: the map is in front of the data.
    is_in_data: bool,
    is_sparse: bool,
    name: Option<Vec<u8>>,
    size: Option<u64>,
    map: Map,
}

/// An archive, of which a block can be put back.
struct Input<R> {
    reader: BufReader<R>,
    /// And how much of it was taken again.
    back: Option<(Block, usize)>,
}

impl<R: Read> Read for Input<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some((block, taken)) = &mut self.back else { return self.reader.read(buffer) };
        let count = buffer.len().min(BLOCK - *taken);
        buffer[..count].copy_from_slice(&block[*taken..][..count]);
        *taken += count;
        if *taken == BLOCK {
            self.back = None;
        }
        Ok(count)
    }
}

struct Reader<'a, R> {
    input: Input<R>,
    /// Bytes taken from the archive, decompressed.
    offset: u64,
    outlet: &'a mut Outlet,
    /// Records of the last header for all entries.
    global: Vec<u8>,
    member: Member,
    /// Paths of entries that were refused. What the target has there is another file, which gets no further names.
    refused: HashSet<Vec<u8>>,
}

impl<R: Read> Reader<'_, R> {
    fn run(&mut self) -> Result<(), Stop> {
        loop {
            let offset = self.offset;
            let Some(block) = self.block()? else {
                if offset == 0 {
                    return Err(broken("archive", "is empty", "give a tar archive"));
                }
                let what = format!("ends at byte {offset} without its end mark");
                let next = "it may have been cut short: compare it with its origin";
                self.outlet.push(Record::Problem(Problem::new(Failure::new("archive", what, next).into())))?;
                return Ok(());
            };
            if block == [0; BLOCK] {
                return self.end(offset);
            }
            if !header::is_sound(&block) {
                if offset == 0 {
                    return Err(not_one(&block));
                }
                let what = format!("no header at byte {offset}, where one must be");
                return Err(broken("archive", &what, "compare it with its origin"));
            }
            self.member.offset.get_or_insert(offset);
            match block[header::TYPE] {
                b'x' | b'X' => {
                    let records = self.extension(&block, EXTENDED_MAX)?;
                    self.member.is_extended = true;
                    self.apply(&records);
                }
                b'g' => self.global = self.extension(&block, GLOBAL_MAX)?,
                b'L' => self.member.path = Some(self.long_name(&block)?),
                b'K' => self.member.link = Some(self.long_name(&block)?),
                _ => self.entry(&block)?,
            }
        }
    }

    /// A block of zeros has been read, the first of two that are the end mark; some programs write only one. A header
    /// that was lost to zeros looks the same, and so does an archive with another one appended: what follows is told.
    fn end(&mut self, offset: u64) -> Result<(), Stop> {
        let (mut taken, mut is_lone) = (0, false);
        // To its end in any case, so that the program at the other end of a pipe can write it all.
        let mut rest = [0; 16 << 10];
        let mut is_empty = true;
        loop {
            match self.input.read(&mut rest) {
                Ok(0) => break,
                Ok(count) => {
                    let first_data = rest[..count].iter().position(|&byte| byte != 0);
                    is_lone |= is_empty && first_data.is_some_and(|at| taken + at < BLOCK);
                    is_empty &= first_data.is_none();
                    taken += count;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.unreadable(&error)),
            }
        }
        let what = match (is_lone, is_empty) {
            (_, true) => return Ok(()),
            (true, false) => format!("a lone block of zeros at byte {offset}, and data after it that is not read"),
            (false, false) => format!("has data after its end, which is at byte {offset}, that is not read"),
        };
        let next = "if it is several archives in one, import each; else compare it with its origin";
        self.outlet.push(Record::Problem(Problem::new(Failure::new("archive", what, next).into())))?;
        Ok(())
    }

    fn unreadable(&self, error: &std::io::Error) -> Stop {
        let next = "the archive is damaged or cannot be read: compare it with its origin";
        broken("archive", &format!("reading at byte {}: {}", self.offset, host_error(error)), next)
    }

    fn cut(&self) -> Stop {
        let what = format!("ends at byte {}, inside an entry", self.offset);
        broken("archive", &what, "it was cut short: compare it with its origin")
    }

    /// The next block; `None` at the end.
    fn block(&mut self) -> Result<Option<Block>, Stop> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.input.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) if self.offset == 0 => return Err(not_one(&block)),
                Ok(0) => return Err(self.cut()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.unreadable(&error)),
            }
        }
        self.offset += BLOCK as u64;
        Ok(Some(block))
    }

    /// The block after this one, without taking it.
    fn peek(&mut self) -> Result<Option<Block>, Stop> {
        let block = self.block()?;
        if let Some(block) = block {
            self.offset -= BLOCK as u64;
            self.input.back = Some((block, 0));
        }
        Ok(block)
    }

    /// Appends `length` bytes of the archive to `bytes`.
    fn append(&mut self, length: u64, bytes: &mut Vec<u8>) -> Result<(), Stop> {
        // With the room in which `read_to_end` looks whether there is more, so that it need not grow the arena for it.
        bytes.reserve(length as usize + 64);
        let count = self.input.by_ref().take(length).read_to_end(bytes).map_err(|error| self.unreadable(&error))?;
        self.offset += count as u64;
        if (count as u64) < length { Err(self.cut()) } else { Ok(()) }
    }

    /// Skips to the next block.
    fn pad(&mut self) -> Result<(), Stop> {
        let padding = self.offset.next_multiple_of(BLOCK as u64) - self.offset;
        self.skip(padding)
    }

    fn skip(&mut self, length: u64) -> Result<(), Stop> {
        let mut rest = self.input.by_ref().take(length);
        let count = std::io::copy(&mut rest, &mut std::io::sink()).map_err(|error| self.unreadable(&error))?;
        self.offset += count;
        if count < length { Err(self.cut()) } else { Ok(()) }
    }

    /// Content of a header that is longer than a block.
    fn extension(&mut self, block: &Block, max: u64) -> Result<Vec<u8>, Stop> {
        let offset = self.offset - BLOCK as u64;
        let size = match header::number(&block[header::SIZE]).and_then(|size| u64::try_from(size).ok()) {
            Some(size) if size <= max => size,
            Some(size) => {
                let what =
                    format!("extended header of {size} bytes at byte {offset}; the most that makes sense is {max}");
                return Err(broken("archive", &what, "this archive is damaged or hostile"));
            }
            None => return Err(bad_size(offset)),
        };
        let mut bytes = Vec::new();
        self.append(size, &mut bytes)?;
        self.pad()?;
        Ok(bytes)
    }

    fn long_name(&mut self, block: &Block) -> Result<Vec<u8>, Stop> {
        let mut name = self.extension(block, PATH_MAX as u64 + 1)?;
        name.truncate(header::text(&name).len());
        Ok(name)
    }

    /// Takes in the records of an extended header.
    fn apply(&mut self, records: &[u8]) {
        for record in pax::Records::new(records) {
            let result = record.map_err(Refusal::from).and_then(|(key, value)| self.member.set(key, value));
            if let Err(refusal) = result {
                self.member.refusal.get_or_insert(refusal);
            }
        }
    }

    /// An entry's own header has been read: its data comes next.
    fn entry(&mut self, block: &Block) -> Result<(), Stop> {
        if !self.global.is_empty() {
            // What is said of all gives way to what is said of one.
            let mut member = mem::take(&mut self.member);
            let global = mem::take(&mut self.global);
            self.apply(&global);
            self.global = global;
            mem::swap(&mut self.member, &mut member);
            self.member.fill_in(member);
        }
        let mut member = mem::take(&mut self.member);
        let offset = member.offset.unwrap_or(self.offset - BLOCK as u64);
        let in_header = header::number(&block[header::SIZE]).and_then(|size| u64::try_from(size).ok());
        let Some(stored) = member.size.or(in_header).filter(|&size| size <= i64::MAX as u64) else {
            return Err(bad_size(offset));
        };
        let data = if self.has_data(block, stored, member.is_extended)? { stored } else { 0 };
        let end = (self.offset.checked_add(data)).and_then(|end| end.checked_next_multiple_of(BLOCK as u64));
        let end = end.ok_or_else(|| bad_size(offset))?;
        // A map of holes may be in further blocks, before the data that `data` counts.
        let end = match block[header::TYPE] {
            b'S' => end.saturating_add(self.old_map(block, &mut member)?),
            _ => end,
        };
        let name = member.path(block);
        match self.deliver(block, &name, member, data) {
            Ok(()) if self.refused.is_empty() => {}
            // An archive may have several entries of one path, of which the last one counts.
            Ok(()) => {
                if let Ok(path) = path::clean(&name) {
                    self.refused.remove(&path);
                }
            }
            Err(Trouble::Stop(stop)) => return Err(stop),
            Err(Trouble::Refusal(Refusal(what))) => {
                self.refused.extend(path::clean(&name));
                let place = format!("archive: entry {} at byte {offset}", Shown(&name[..name.len().min(1000)]));
                self.outlet.push(Record::Problem(Problem::new(Failure::new(place, what, "").into())))?;
            }
        }
        self.skip(end.saturating_sub(self.offset))
    }

    /// Whether `size` bytes follow. Of links and directories some programs give a size without data, others with.
    fn has_data(&mut self, block: &Block, size: u64, is_extended: bool) -> Result<bool, Stop> {
        match block[header::TYPE] {
            b'2'..=b'4' | b'6' => Ok(false),
            b'1' | b'5' if size > 0 => {
                if is_extended && block[header::TYPE] == b'1' {
                    return Ok(true);
                }
                Ok(self.peek()?.is_some_and(|next| next != [0; BLOCK] && !header::is_sound(&next)))
            }
            _ => Ok(size > 0),
        }
    }

    /// Reads the map of an old GNU sparse file; the bytes it took after the header.
    fn old_map(&mut self, block: &Block, member: &mut Member) -> Result<u64, Stop> {
        let (entries, mut goes_on, size) = sparse::old_header(block);
        let mut result = member.sparse.map.push_header(entries);
        let mut taken = 0;
        while goes_on {
            let Some(extension) = self.block()? else { return Err(self.cut()) };
            taken += BLOCK as u64;
            let (entries, more) = sparse::old_extension(&extension);
            result = result.and_then(|()| member.sparse.map.push_header(entries));
            goes_on = more;
        }
        member.sparse.is_sparse = true;
        member.sparse.size = size;
        if let Err(what) = result {
            member.refusal.get_or_insert(what.into());
        }
        Ok(taken)
    }

    /// Sends an entry on. The caller skips what is left of its data.
    fn deliver(&mut self, block: &Block, name: &[u8], mut member: Member, mut stored: u64) -> Result<(), Trouble> {
        if let Some(refusal) = member.refusal.take() {
            return Err(refusal.into());
        }
        let mut kind = block[header::TYPE];
        // Old archives know directories by a slash only.
        if matches!(kind, b'0' | 0) && name.ends_with(b"/") {
            kind = b'5';
        }
        let file_type = match kind {
            b'0' | 0 | b'7' | b'S' | b'1' => FileType::File,
            b'2' => FileType::Symlink,
            b'3' => FileType::CharDevice,
            b'4' => FileType::BlockDevice,
            b'5' | b'D' => FileType::Directory,
            b'6' => FileType::Fifo,
            // The label of a volume names no file.
            b'V' => return Ok(()),
            b'M' => return Err("continues a file of another volume of the archive; join the volumes first".into()),
            other => return Err(format!("is of the unknown type {:?}", char::from(other)).into()),
        };
        let path = path::clean(name)?;
        let mut meta = member.meta(block, file_type)?;
        let link = member.link.take().unwrap_or_else(|| header::text(&block[header::LINK]).to_vec());
        let mut segments = None;
        if member.sparse.is_sparse {
            if file_type != FileType::File || kind == b'1' {
                return Err("holes in what is no regular file".into());
            }
            let before = self.offset;
            if member.sparse.is_in_data {
                self.map_in_data(&mut member.sparse.map, stored)?;
            }
            stored -= self.offset - before;
            meta.size = member.sparse.size.ok_or("a sparse file without its size")?;
            segments = Some(mem::take(&mut member.sparse.map).finish(meta.size, stored)?);
        } else if file_type == FileType::File && kind != b'1' {
            meta.size = stored;
        }

        let batch = &mut self.outlet.batch;
        let path = batch.add(&path);
        let xattrs = batch.add(&member.xattrs.pack());
        let mut entry = Entry { path, meta, xattrs, link: None, body: Body::None };
        entry.body = match kind {
            b'1' => {
                let source = path::clean(&link).map_err(|what| format!("the name it links to {what}"))?;
                if self.refused.contains(&source) {
                    return Err(format!("is a further name of {}, which cannot be had", Shown(&source)).into());
                }
                Body::HardLink(batch.add(&source))
            }
            b'2' if link.is_empty() || link.len() > PATH_MAX || link.contains(&0) => {
                return Err("a symbolic link to what cannot be a path".into());
            }
            b'2' => Body::Symlink(batch.add(&link)),
            _ if file_type != FileType::File => Body::None,
            _ if segments.is_none() && stored <= WHOLE_MAX => Body::Whole(self.data(stored)?),
            _ => Body::Parts(segments.unwrap_or_else(|| vec![Segment { offset: 0, length: stored }])),
        };
        let parts = match &entry.body {
            Body::Parts(parts) => Some(parts.clone()),
            _ => None,
        };
        self.outlet.push(Record::Entry(entry))?;
        for part in parts.iter().flatten() {
            let mut done = 0;
            while done < part.length {
                let length = (part.length - done).min(PART_SIZE as u64);
                let bytes = self.data(length)?;
                self.outlet.push(Record::Data { offset: part.offset + done, bytes })?;
                done += length;
            }
        }
        if parts.is_some() {
            self.outlet.push(Record::End)?;
        }
        Ok(())
    }

    /// Reads `length` bytes into the batch.
    fn data(&mut self, length: u64) -> Result<Span, Stop> {
        let mut bytes = mem::take(&mut self.outlet.batch.bytes);
        let start = bytes.len();
        let result = self.append(length, &mut bytes);
        self.outlet.batch.bytes = bytes;
        result.map(|()| self.outlet.batch.since(start))
    }

    /// Reads a map of version 1.0: decimal numbers, a line each, how many pairs first; then padding.
    fn map_in_data(&mut self, map: &mut Map, stored: u64) -> Result<(), Trouble> {
        let end = self.offset + stored;
        let mut left = None;
        let mut number = Vec::new();
        while left != Some(0) {
            if end - self.offset < BLOCK as u64 {
                return Err("the map of a sparse file does not end".into());
            }
            let Some(block) = self.block()? else { return Err(self.cut().into()) };
            for &byte in &block {
                if byte != b'\n' {
                    number.push(byte);
                    if number.len() > 20 {
                        return Err("a number in the map of a sparse file is not one".into());
                    }
                    continue;
                }
                let value = pax::number(&number).ok_or("a number in the map of a sparse file is not one")?;
                number.clear();
                left = match left {
                    None if value > sparse::SEGMENTS_MAX as u64 => {
                        return Err("more than a million pieces in one sparse file".into());
                    }
                    None => Some(value * 2),
                    Some(left) => {
                        map.push(value)?;
                        Some(left - 1)
                    }
                };
                if left == Some(0) {
                    break;
                }
            }
        }
        Ok(())
    }
}

enum Trouble {
    Stop(Stop),
    Refusal(Refusal),
}

impl From<Gone> for Trouble {
    fn from(gone: Gone) -> Self {
        Self::Stop(gone.into())
    }
}

impl From<Stop> for Trouble {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

impl<T: Into<Refusal>> From<T> for Trouble {
    fn from(refusal: T) -> Self {
        Self::Refusal(refusal.into())
    }
}

/// Of a stream that begins with this.
fn not_one(block: &Block) -> Stop {
    match header::other_kind(block) {
        Some(kind) => {
            broken("archive", &format!("is {kind}, not a tar archive"), "unpack it, and import the directory")
        }
        None => {
            let next = "give an archive or a directory; a single file is copied with myriad cp";
            broken("archive", "is not a tar archive (plain, gzip, zstd or xz)", next)
        }
    }
}

fn broken(place: &str, what: &str, next: &str) -> Stop {
    Stop::Broken(Failure::new(place, what, next).into())
}

fn bad_size(offset: u64) -> Stop {
    broken("archive", &format!("the header at byte {offset} has a size that is not one"), "compare it with its origin")
}

impl Member {
    /// Takes in one record of an extended header. An empty value takes back what an earlier one said.
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Refusal> {
        if let Some(name) = key.strip_prefix(pax::XATTR) {
            return self.xattrs.set(&pax::key_decoded(name), value);
        }
        if let Some(name) = key.strip_prefix(pax::XATTR_ENCODED) {
            let name = pax::percent_decoded(name).ok_or("malformed name of an extended attribute")?;
            let value = pax::base64_decoded(value).ok_or("malformed value of an extended attribute")?;
            return self.xattrs.set(&name, &value);
        }
        let bytes = (!value.is_empty()).then(|| value.to_vec());
        let number = || match value {
            [] => Ok(None),
            value => pax::number(value)
                .map(Some)
                .ok_or_else(|| Refusal(format!("`{}` is not a number", value.escape_ascii()))),
        };
        let time = || match value {
            [] => Ok(None),
            value => {
                pax::time(value).map(Some).ok_or_else(|| Refusal(format!("`{}` is not a time", value.escape_ascii())))
            }
        };
        match key {
            b"path" => self.path = bytes,
            b"linkpath" => self.link = bytes,
            b"size" => self.size = number()?,
            b"uid" => self.uid = number()?,
            b"gid" => self.gid = number()?,
            b"mtime" => self.mtime = time()?,
            b"atime" => self.atime = time()?,
            b"SCHILY.acl.access" | b"SCHILY.acl.default" if bytes.is_some() => {
                let name = if key.ends_with(b"access") { acl::ACCESS } else { acl::DEFAULT };
                let binary =
                    acl::parse(value).ok_or("an ACL that is malformed, or names users this host does not know")?;
                self.xattrs.set(name, &binary)?;
            }
            b"RHT.security.selinux" if bytes.is_some() => self.xattrs.set(b"security.selinux", value)?,
            b"GNU.sparse.major" => {
                self.sparse.is_sparse = true;
                self.sparse.is_in_data = number()? == Some(1);
            }
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => {
                self.sparse.is_sparse = true;
                self.sparse.size = number()?;
            }
            b"GNU.sparse.name" => self.sparse.name = bytes,
            b"GNU.sparse.map" => {
                self.sparse.is_sparse = true;
                self.sparse.map = Map::default();
                if bytes.is_some() {
                    self.sparse.map.push_list(value)?;
                }
            }
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                self.sparse.is_sparse = true;
                self.sparse.map.push(number()?.ok_or("the map of a sparse file has an empty number")?)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes what a header for all says where none for this entry does.
    fn fill_in(&mut self, global: Self) {
        self.path = self.path.take().or(global.path);
        self.link = self.link.take().or(global.link);
        self.size = self.size.or(global.size);
        self.uid = self.uid.or(global.uid);
        self.gid = self.gid.or(global.gid);
        self.mtime = self.mtime.or(global.mtime);
        self.atime = self.atime.or(global.atime);
        self.refusal = self.refusal.take().or(global.refusal);
        for (name, value) in global.xattrs.values {
            self.xattrs.values.entry(name).or_insert(value);
        }
    }

    /// The entry's name, as the archive has it.
    fn path(&mut self, block: &Block) -> Vec<u8> {
        if let Some(path) = self.sparse.name.take().or_else(|| self.path.take()) {
            return path;
        }
        let name = header::text(&block[header::NAME]);
        let prefix = header::text(&block[header::PREFIX]);
        if header::dialect(block) == Dialect::Ustar && !prefix.is_empty() {
            return [prefix, b"/", name].concat();
        }
        name.to_vec()
    }

    fn meta(&self, block: &Block, file_type: FileType) -> Result<Meta, Refusal> {
        let field = |range, what: &str| {
            header::number(&block[range]).ok_or_else(|| Refusal(format!("its {what} in the header is not a number")))
        };
        let owner = |given: Option<u64>, range, what: &str| {
            let id = given.map_or_else(|| field(range, what), |id| Ok(id.into()))?;
            // The highest number means "no change" to chown(2).
            u32::try_from(id)
                .ok()
                .filter(|&id| id != u32::MAX)
                .ok_or_else(|| Refusal(format!("no file can have the {what} {id}")))
        };
        let rdev = if matches!(file_type, FileType::CharDevice | FileType::BlockDevice) {
            let part =
                |range, what| field(range, what).and_then(|id| u32::try_from(id).map_err(|_| Refusal::from(what)));
            rustix::fs::makedev(part(header::MAJOR, "major number")?, part(header::MINOR, "minor number")?)
        } else {
            0
        };
        let mtime = match self.mtime {
            Some(time) => time,
            None => pax::clamp(field(header::MTIME, "time")?.saturating_mul(1_000_000_000)),
        };
        let gnu_atime = &block[header::GNU_ATIME];
        let atime = self.atime.or_else(|| {
            let is_there = header::dialect(block) == Dialect::Gnu && gnu_atime[0] != 0;
            is_there
                .then(|| header::number(gnu_atime).map(|seconds| pax::clamp(seconds.saturating_mul(1_000_000_000))))?
        });
        let mode = field(header::MODE, "mode")? as u16 & 0o7777;
        Ok(Meta {
            mode: mode | file_type.mode_bits(),
            uid: owner(self.uid, header::UID, "user")?,
            gid: owner(self.gid, header::GID, "group")?,
            rdev,
            size: 0,
            mtime,
            atime,
        })
    }
}
