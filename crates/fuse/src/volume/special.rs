//! The hidden directory `.myriad` in the root: statistics of the mount as files.
//!
//! It is listed nowhere and found by its name alone. A file's content is made when its name is looked up, as a node of
//! its own: two readers may see two contents, but nobody sees one change under them, and the kernel's cache of it is
//! always right. Nothing can be made, changed or removed here.

use super::VolumeService;
use crate::answer::{Answer, put};
use crate::request::{Operation, Request};
use crate::stats::Stats;
use crate::wire::{Attr, AttrOut, DirentHeader, EntryOut, OpenOut, Statx, StatxOut, padded};
use myriad_engine::{Errno, FileType, Fs};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub const DIRECTORY: &[u8] = b".myriad";
const FILES: [&str; 2] = ["stats", "counters"];

/// Makes the content of a file.
type Make = Box<dyn Fn(&Stats, &Fs) -> String + Send + Sync>;

/// Node numbers from here on are ours; inodes have smaller ones, for they are positions on a device.
const FIRST: u64 = 1 << 63;

/// The contents that the kernel knows, by node number; the directory is `FIRST`.
pub struct Special {
    next: AtomicU64,
    contents: Mutex<Contents>,
    /// Further files, of who mounted.
    added: RwLock<Vec<(&'static str, Make)>>,
}

impl Default for Special {
    fn default() -> Self {
        Self { next: AtomicU64::new(FIRST + 1), contents: Mutex::default(), added: RwLock::default() }
    }
}

struct Content {
    text: Vec<u8>,
    time: std::time::Duration,
    /// Who looked it up.
    uid: u32,
}

/// Bytes of contents that are kept. Whoever may look names up has as many made as he likes, and keeps the kernel from
/// forgetting them by having them open.
const KEPT_MAX: usize = 4 << 20;

/// Contents in the order of their making. When they are too much, the oldest goes of the user who has most: to read what is left
/// of it fails, and others keep theirs.
#[derive(Default)]
struct Contents {
    by_id: BTreeMap<u64, Arc<Content>>,
    len: usize,
}

impl Contents {
    fn insert(&mut self, id: u64, content: Arc<Content>) {
        self.len += content.text.len();
        self.by_id.insert(id, content);
        while self.len > KEPT_MAX && self.by_id.len() > 1 {
            let mut of_users: HashMap<u32, usize> = HashMap::new();
            for content in self.by_id.values() {
                *of_users.entry(content.uid).or_default() += content.text.len();
            }
            let most = of_users.into_iter().max_by_key(|(_, len)| *len).map(|(uid, _)| uid);
            let oldest = self.by_id.iter().find(|(_, content)| Some(content.uid) == most).map(|(id, _)| *id);
            self.remove(oldest.unwrap_or(id));
        }
    }

    fn remove(&mut self, id: u64) {
        if let Some(content) = self.by_id.remove(&id) {
            self.len -= content.text.len();
        }
    }
}

impl Special {
    pub fn is_one(id: u64) -> bool {
        id >= FIRST
    }

    /// A lookup in the root: answered if the name is ours.
    pub fn lookup(&self, service: &VolumeService, name: &[u8], out: &mut [u8]) -> Option<usize> {
        if name != DIRECTORY {
            return None;
        }
        // Never kept: it costs nothing to ask again, and lookups are not counted for it.
        put(out, &EntryOut { nodeid: FIRST, attr: attr(service, FIRST, None), ..EntryOut::default() }).ok()
    }

    pub fn add(&self, name: &'static str, make: Make) {
        self.added.write().push((name, make));
    }

    /// The kernel knows a content no more. It is told of each once, so one FORGET is all.
    pub fn forget(&self, id: u64, _lookups: u64) {
        self.contents.lock().remove(id);
    }

    fn make(&self, service: &VolumeService, uid: u32, name: &[u8]) -> Option<(u64, Arc<Content>)> {
        let text = match name {
            b"stats" => service.stats().to_text(),
            b"counters" => {
                let mut text = String::new();
                for (name, value) in service.fs.counters() {
                    let _ = writeln!(text, "{name} {value}");
                }
                text
            }
            _ => {
                let added = self.added.read();
                let (_, make) = added.iter().find(|(added, _)| added.as_bytes() == name)?;
                make(&service.stats(), &service.fs)
            }
        };
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let content = Arc::new(Content { text: text.into_bytes(), time, uid });
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.contents.lock().insert(id, Arc::clone(&content));
        Some((id, content))
    }

    /// Answers a request about one of ours; `None` for those that are the same for all nodes.
    pub fn answer(&self, service: &VolumeService, request: &Request<'_>, out: &mut [u8]) -> Option<Answer> {
        let id = request.header.nodeid;
        let content = self.contents.lock().by_id.get(&id).cloned();
        if id != FIRST && content.is_none() && !matches!(request.operation, Operation::Forget { .. }) {
            return Some(Answer::Error(Errno::STALE));
        }
        let reply = match &request.operation {
            Operation::Lookup { name } => match self.make(service, request.header.uid, name) {
                Some((id, content)) => {
                    put(out, &EntryOut { nodeid: id, attr: attr(service, id, Some(&content)), ..EntryOut::default() })
                }
                None => Err(Errno::NOENT),
            },
            Operation::GetAttr => {
                put(out, &AttrOut { attr: attr(service, id, content.as_deref()), ..AttrOut::default() })
            }
            Operation::OpenDir | Operation::Open(_) if service.opens_unasked() && content.is_some() => {
                Err(Errno::NOSYS)
            }
            Operation::OpenDir | Operation::Open(_) => put(out, &OpenOut::default()),
            Operation::Read(args) => {
                let text = content.as_ref().map_or(&[][..], |content| &content.text);
                let rest = text.get(usize::try_from(args.offset).unwrap_or(usize::MAX)..).unwrap_or_default();
                let len = rest.len().min(args.size as usize).min(out.len());
                out[..len].copy_from_slice(&rest[..len]);
                Ok(len)
            }
            Operation::ReadDir { args, plus } => self.list(args.offset, *plus, args.size as usize, out),
            Operation::Access { mask } if mask & 2 == 0 => Ok(0),
            Operation::GetXattr { .. } => Err(Errno::NODATA),
            Operation::ListXattr { .. } => Err(Errno::OPNOTSUPP),
            Operation::Statx { .. } => {
                let stat = Statx::from(&attr(service, id, content.as_deref()));
                put(out, &StatxOut { stat, ..StatxOut::default() })
            }
            Operation::Ioctl { .. } => Err(Errno::NOTTY),
            Operation::Forget { .. }
            | Operation::BatchForget { .. }
            | Operation::Release(_)
            | Operation::ReleaseDir
            | Operation::Flush
            | Operation::StatFs
            | Operation::Interrupt
            | Operation::Destroy => return None,
            _ => Err(Errno::PERM),
        };
        Some(reply.into())
    }

    /// Lists the files, all of them at once: they fit any buffer.
    fn list(&self, offset: u64, plus: bool, size: usize, out: &mut [u8]) -> Result<usize, Errno> {
        if offset > 0 {
            return Ok(0);
        }
        let mut len = 0;
        let room = out.len().min(size);
        let added = self.added.read();
        let names = [".", ".."].into_iter().chain(FILES).chain(added.iter().map(|(name, _)| *name));
        for (i, name) in names.enumerate() {
            let kind = if i < 2 { FileType::Directory } else { FileType::File };
            let entry_size = if plus { size_of::<EntryOut>() } else { 0 };
            let end = len + entry_size + padded(size_of::<DirentHeader>() + name.len());
            let place = out[..room].get_mut(len..end).ok_or(Errno::INVAL)?;
            place.fill(0);
            let mode = u32::from(kind.mode_bits());
            if plus {
                put(place, &EntryOut { attr: Attr { ino: FIRST, mode, ..Attr::default() }, ..EntryOut::default() })?;
            }
            let namelen = name.len() as u32;
            put(
                &mut place[entry_size..],
                &DirentHeader { ino: FIRST + i as u64, off: i as u64 + 1, namelen, kind: u32::from(kind.code()) },
            )?;
            place[entry_size + size_of::<DirentHeader>()..][..name.len()].copy_from_slice(name.as_bytes());
            len = end;
        }
        Ok(len)
    }
}

/// Attributes: world-readable, and the super-user's.
fn attr(service: &VolumeService, id: u64, content: Option<&Content>) -> Attr {
    let mode = match content {
        Some(_) => FileType::File.mode_bits() | 0o444,
        None => FileType::Directory.mode_bits() | 0o555,
    };
    let size = content.map_or(0, |content| content.text.len() as u64);
    let time = content.map_or_else(Default::default, |content| content.time);
    Attr {
        ino: id,
        size,
        blocks: size.div_ceil(512),
        atime: time.as_secs(),
        mtime: time.as_secs(),
        ctime: time.as_secs(),
        mode: u32::from(mode),
        nlink: if content.is_some() { 1 } else { 2 },
        uid: service.settings.uid.unwrap_or(0),
        gid: service.settings.gid.unwrap_or(0),
        blksize: 4096,
        ..Attr::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each lookup kept 100 KB for as long as the file was open: any user could have the daemon grow without bound.
    #[test]
    fn contents_have_a_bound_and_users_their_share() {
        let mut contents = Contents::default();
        let content = |uid, len| Arc::new(Content { text: vec![b'x'; len], time: std::time::Duration::ZERO, uid });
        contents.insert(1, content(7, 100_000));
        for id in 2..10_000 {
            contents.insert(id, content(1000, 100_000));
            let found: usize = contents.by_id.values().map(|content| content.text.len()).sum();
            assert!(contents.len == found && found <= KEPT_MAX, "{found} {}", contents.len);
        }
        assert!(contents.by_id.contains_key(&1), "the other's stays");
        assert!(contents.by_id.contains_key(&9_999) && !contents.by_id.contains_key(&9_900), "the oldest goes");
        for id in 1..10_000 {
            contents.remove(id);
        }
        assert_eq!((contents.len, contents.by_id.len()), (0, 0));
        // One alone is served, however large.
        contents.insert(10_000, content(1000, KEPT_MAX + 1));
        assert!(contents.by_id.contains_key(&10_000));
    }
}
