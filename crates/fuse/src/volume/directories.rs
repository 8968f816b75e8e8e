//! Requests that list directories.
//!
//! The kernel's offset of an entry is the engine's cookie shifted by two, for "." and ".." come first and have none. A
//! cookie is a position that stays valid, so no state goes with an open directory.

use super::{Reply, VolumeService, errno};
use crate::answer::put;
use crate::wire::{Attr, DirentHeader, EntryOut, InHeader, OpenOut, ReadIn, padded};
use myriad_engine::{DirEntry, FileType, Node, OpenOptions};

/// Offsets of "." and "..".
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// Names longer than this on average leave room in the buffer, which the next request fills.
const NAME_GUESS: usize = 12;

impl VolumeService {
    pub(super) fn open_dir(&self, header: &InHeader, out: &mut [u8]) -> Reply {
        if !self.settings.default_permissions {
            let read = OpenOptions { read: true, ..OpenOptions::default() };
            self.session(header).open_node(self.node(header.nodeid)?, read).map_err(errno)?;
        }
        // Answered, though there is nothing to say: without it, the kernel would keep listings and, once it has dropped
        // the names they hold, look up each.
        put(out, &OpenOut::default())
    }

    pub(super) fn read_dir(&self, header: &InHeader, args: &ReadIn, plus: bool, out: &mut [u8]) -> Reply {
        let directory = self.node(header.nodeid)?;
        let room = out.len().min(args.size as usize);
        let mut list = Listing { out: &mut out[..room], len: 0, plus };
        for (offset, name) in [(DOT, &b"."[..]), (DOT_DOT, b"..")] {
            if args.offset < offset {
                let ino = if name == b"." { directory.ino() } else { self.parent_ino(directory) };
                // The kernel has both; they are only listed.
                if !list.add(&EntryOut::default(), ino, offset, FileType::Directory, name) {
                    return Ok(list.len);
                }
            }
        }
        if args.offset == 0 {
            self.callers.begins_listing(header.pid);
        }
        // Asked once: what is told of must be what was noted.
        let of_files = self.callers.wants_attributes(header.pid);
        let told_of = |entry: &DirEntry| plus && (entry.file_type == FileType::Directory || of_files);
        let mut cookie = args.offset.saturating_sub(DOT_DOT);
        loop {
            let most = list.room() / Listing::size(plus, NAME_GUESS);
            if most == 0 {
                return Ok(list.len);
            }
            let entries = match self.kernel.read_dir_at(directory, cookie, most) {
                // What was told of so far must arrive, or the kernel could not forget it; the next request meets the error.
                Err(_) if list.len > 0 => return Ok(list.len),
                entries => entries.map_err(errno)?,
            };
            if entries.is_empty() {
                return Ok(list.len);
            }
            let fitting = list.fitting(&entries);
            let listed = &entries[..fitting];
            if self.callers.walks(header.pid) {
                self.kernel.read_ahead_directories(listed);
            }
            if self.callers.wants_content(header.pid) {
                self.kernel.read_ahead_files(listed);
            }
            for entry in listed.iter().filter(|entry| told_of(entry)) {
                self.tellings.tell(entry.ino, header.pid);
            }
            let stats = self.kernel.stat_entries(directory, listed, told_of);
            let files = listed.iter().filter(|entry| entry.file_type != FileType::Directory);
            self.callers.told(header.pid, files.clone().count(), files.filter(|entry| told_of(entry)).count());
            for (entry, stat) in listed.iter().zip(stats) {
                let told = stat.map_or_else(EntryOut::default, |stat| self.entry(&stat));
                let added = list.add(&told, entry.ino, entry.cookie + DOT_DOT, entry.file_type, &entry.name);
                debug_assert!(added, "what fits was counted");
                if let Some(stat) = stat {
                    self.nodes.learn(stat.node());
                }
            }
            if fitting < entries.len() {
                return Ok(list.len);
            }
            cookie = entries.last().map_or(cookie, |entry| entry.cookie);
        }
    }

    /// For show: a directory that is gone has none.
    fn parent_ino(&self, directory: Node) -> u64 {
        self.kernel.parent_of(directory).map_or(directory.ino(), Node::ino)
    }
}

/// Entries on their way into an answer.
struct Listing<'a> {
    out: &'a mut [u8],
    len: usize,
    /// With attributes.
    plus: bool,
}

impl Listing<'_> {
    fn size(plus: bool, name_len: usize) -> usize {
        let entry = if plus { size_of::<EntryOut>() } else { 0 };
        entry + padded(size_of::<DirentHeader>() + name_len)
    }

    fn room(&self) -> usize {
        self.out.len() - self.len
    }

    /// How many of the entries there is room for.
    fn fitting(&self, entries: &[DirEntry]) -> usize {
        let mut room = self.room();
        let fits = |entry: &&DirEntry| match room.checked_sub(Self::size(self.plus, entry.name.len())) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        };
        entries.iter().take_while(fits).count()
    }

    /// Adds an entry; false if there is no room.
    fn add(&mut self, told: &EntryOut, ino: u64, offset: u64, file_type: FileType, name: &[u8]) -> bool {
        let size = Self::size(self.plus, name.len());
        if size > self.room() {
            return false;
        }
        let place = &mut self.out[self.len..self.len + size];
        let mut at = 0;
        if self.plus {
            // Type and number are read from here, even of a file that the kernel is not told of.
            let attr = if told.nodeid == 0 {
                Attr { ino, mode: u32::from(file_type.mode_bits()), ..Attr::default() }
            } else {
                told.attr
            };
            at = put(place, &EntryOut { attr, ..*told }).unwrap_or(0);
        }
        let kind = u32::from(file_type.code());
        let header = DirentHeader { ino, off: offset, namelen: name.len() as u32, kind };
        at += put(&mut place[at..], &header).unwrap_or(0);
        place[at..at + name.len()].copy_from_slice(name);
        place[at + name.len()..].fill(0);
        self.len += size;
        true
    }
}
