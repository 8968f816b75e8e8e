//! A server that does nothing: a tree in memory, and answers as short as they can be.
//!
//! What a mount of it costs is what FUSE costs on this machine with our transport and our choices of what is asked of the
//! kernel. A volume is measured against it, request by request (`myriad bench mount`).

use crate::answer::{Answer, put};
use crate::error::{MountError, ServeError};
use crate::negotiate::Agreement;
use crate::options::Options;
use crate::request::{Operation, Request};
use crate::service::Service;
use crate::stats::{Recorder, Stats};
use crate::transport::Transport;
use crate::wire::{Attr, AttrOut, DirentHeader, EntryOut, KStatFs, OpenOut, ROOT, WriteOut, fattr, fopen, padded};
use crate::{Connection, MountPoint, Served};
use myriad_engine::Errno;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;

const S_IFDIR: u32 = 0o4_0000;

struct Node {
    attr: Attr,
    /// A directory's names by the place they are listed at, and the place of each.
    entries: BTreeMap<u64, (Box<[u8]>, u64)>,
    places: HashMap<Box<[u8]>, u64>,
    next_place: u64,
    lookups: u64,
}

struct Tree {
    nodes: HashMap<u64, Node>,
    next_id: u64,
}

struct Null {
    tree: Mutex<Tree>,
    agreement: Agreement,
    timeout_secs: u64,
    recorder: Recorder,
}

impl Tree {
    fn new() -> Self {
        let mut tree = Self { nodes: HashMap::new(), next_id: ROOT };
        tree.make(S_IFDIR | 0o755, 0, 0);
        tree
    }

    fn make(&mut self, mode: u32, uid: u32, gid: u32) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let nlink = if mode & S_IFDIR != 0 { 2 } else { 1 };
        let attr = Attr { ino: id, mode, nlink, uid, gid, blksize: 4096, ..Attr::default() };
        let node = Node { attr, entries: BTreeMap::new(), places: HashMap::new(), next_place: 1, lookups: 0 };
        self.nodes.insert(id, node);
        id
    }

    fn node(&mut self, id: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&id).ok_or(Errno::STALE)
    }

    fn enter(&mut self, parent: u64, name: &[u8], id: u64) -> Result<(), Errno> {
        let parent = self.node(parent)?;
        if parent.places.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let place = parent.next_place;
        parent.next_place += 1;
        parent.entries.insert(place, (name.into(), id));
        parent.places.insert(name.into(), place);
        Ok(())
    }

    fn find(&mut self, parent: u64, name: &[u8]) -> Result<Option<u64>, Errno> {
        let parent = self.node(parent)?;
        Ok(parent.places.get(name).map(|place| parent.entries[place].1))
    }

    fn remove(&mut self, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        let parent = self.node(parent)?;
        let place = parent.places.remove(name).ok_or(Errno::NOENT)?;
        let (_, id) = parent.entries.remove(&place).ok_or(Errno::NOENT)?;
        Ok(id)
    }

    /// One name less.
    fn drop_name(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.attr.nlink = if node.attr.mode & S_IFDIR != 0 { 0 } else { node.attr.nlink.saturating_sub(1) };
            if node.attr.nlink == 0 && node.lookups == 0 {
                self.nodes.remove(&id);
            }
        }
    }

    fn forget(&mut self, id: u64, lookups: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.attr.nlink == 0 && node.lookups == 0 {
                self.nodes.remove(&id);
            }
        }
    }
}

impl Null {
    fn entry(&self, tree: &mut Tree, id: u64) -> Result<EntryOut, Errno> {
        let node = tree.node(id)?;
        node.lookups += 1;
        let (entry_valid, attr_valid) = (self.timeout_secs, self.timeout_secs);
        Ok(EntryOut { nodeid: id, generation: 1, entry_valid, attr_valid, attr: node.attr, ..EntryOut::default() })
    }

    fn tell(&self, tree: &mut Tree, id: u64, out: &mut [u8]) -> Result<usize, Errno> {
        put(out, &self.entry(tree, id)?)
    }

    fn make(&self, request: &Request<'_>, name: &[u8], mode: u32, out: &mut [u8]) -> Result<usize, Errno> {
        let header = &request.header;
        let mut tree = self.tree.lock();
        let id = tree.make(mode, header.uid, header.gid);
        if let Err(errno) = tree.enter(header.nodeid, name, id) {
            tree.nodes.remove(&id);
            return Err(errno);
        }
        self.tell(&mut tree, id, out)
    }

    fn attr_out(&self, attr: Attr) -> AttrOut {
        AttrOut { attr_valid: self.timeout_secs, attr_valid_nsec: 0, dummy: 0, attr }
    }

    fn list(&self, id: u64, offset: u64, plus: bool, out: &mut [u8]) -> Result<usize, Errno> {
        let mut tree = self.tree.lock();
        let listed: Vec<(u64, Box<[u8]>, u64)> = {
            // As many as could fit.
            let most = out.len() / padded(size_of::<DirentHeader>() + 1);
            let entries = tree.node(id)?.entries.range(offset + 1..).take(most);
            entries.map(|(&place, (name, child))| (place, name.clone(), *child)).collect()
        };
        let mut len = 0;
        for (place, name, child) in listed {
            let entry_size = if plus { size_of::<EntryOut>() } else { 0 };
            let size = entry_size + padded(size_of::<DirentHeader>() + name.len());
            if len + size > out.len() {
                break;
            }
            if plus {
                put(&mut out[len..], &self.entry(&mut tree, child)?)?;
            }
            let kind = tree.node(child)?.attr.mode >> 12;
            let header = DirentHeader { ino: child, off: place, namelen: name.len() as u32, kind };
            put(&mut out[len + entry_size..], &header)?;
            let at = len + entry_size + size_of::<DirentHeader>();
            out[at..at + name.len()].copy_from_slice(&name);
            out[at + name.len()..len + size].fill(0);
            len += size;
        }
        Ok(len)
    }

    fn set_attr(&self, id: u64, args: &crate::wire::SetAttrIn, out: &mut [u8]) -> Result<usize, Errno> {
        let mut tree = self.tree.lock();
        let attr = &mut tree.node(id)?.attr;
        if args.valid & fattr::MODE != 0 {
            attr.mode = attr.mode & !0o7777 | args.mode & 0o7777;
        }
        if args.valid & fattr::SIZE != 0 {
            attr.size = args.size;
        }
        put(out, &self.attr_out(*attr))
    }

    fn opened(&self) -> OpenOut {
        OpenOut { fh: 0, open_flags: fopen::KEEP_CACHE | fopen::NOFLUSH, backing_id: 0 }
    }

    fn dispatch(&self, request: &Request<'_>, out: &mut [u8]) -> Result<usize, Errno> {
        let id = request.header.nodeid;
        match &request.operation {
            Operation::Lookup { name } => {
                let mut tree = self.tree.lock();
                match tree.find(id, name)? {
                    Some(child) => self.tell(&mut tree, child, out),
                    None => put(out, &EntryOut { entry_valid: self.timeout_secs, ..EntryOut::default() }),
                }
            }
            Operation::GetAttr => put(out, &self.attr_out(self.tree.lock().node(id)?.attr)),
            Operation::SetAttr(args) => self.set_attr(id, args, out),
            Operation::MkNod { name, args } => self.make(request, name, args.mode, out),
            Operation::MkDir { name, args } => self.make(request, name, S_IFDIR | args.mode, out),
            Operation::Create { .. } if self.agreement.no_open => Err(Errno::NOSYS),
            Operation::Create { name, args } => {
                let entry = self.make(request, name, args.mode, out)?;
                Ok(entry + put(&mut out[entry..], &self.opened())?)
            }
            Operation::Unlink { name } | Operation::RmDir { name } => {
                let mut tree = self.tree.lock();
                let child = tree.remove(id, name)?;
                tree.drop_name(child);
                Ok(0)
            }
            Operation::Rename { name, new_parent, new_name, flags: 0 } => {
                let mut tree = self.tree.lock();
                let child = tree.remove(id, name)?;
                if let Ok(replaced) = tree.remove(*new_parent, new_name) {
                    tree.drop_name(replaced);
                }
                tree.enter(*new_parent, new_name, child).map(|()| 0)
            }
            Operation::Open(_) if self.agreement.no_open => Err(Errno::NOSYS),
            Operation::Open(_) => put(out, &self.opened()),
            Operation::OpenDir => put(out, &OpenOut::default()),
            Operation::Read(args) => {
                let size = self.tree.lock().node(id)?.attr.size;
                let len = size.saturating_sub(args.offset).min(u64::from(args.size)).min(out.len() as u64) as usize;
                out[..len].fill(0);
                Ok(len)
            }
            Operation::Write { args, data } => {
                let mut tree = self.tree.lock();
                let attr = &mut tree.node(id)?.attr;
                attr.size = attr.size.max(args.offset.saturating_add(data.len() as u64));
                put(out, &WriteOut { size: data.len() as u32, padding: 0 })
            }
            Operation::ReadDir { args, plus } => {
                let room = out.len().min(args.size as usize);
                self.list(id, args.offset, *plus, &mut out[..room])
            }
            Operation::StatFs => {
                let free = 1 << 30;
                put(
                    out,
                    &KStatFs {
                        blocks: free,
                        bfree: free,
                        bavail: free,
                        bsize: 4096,
                        namelen: 255,
                        ..KStatFs::default()
                    },
                )
            }
            Operation::GetXattr { .. } => Err(Errno::NODATA),
            Operation::Release(_)
            | Operation::ReleaseDir
            | Operation::Fsync
            | Operation::FsyncDir
            | Operation::SyncFs
            | Operation::Destroy => Ok(0),
            _ => Err(Errno::NOSYS),
        }
    }
}

impl Service for Null {
    fn answer(&self, request: &Request<'_>, out: &mut [u8]) -> Answer {
        match &request.operation {
            Operation::Forget { lookups } => self.tree.lock().forget(request.header.nodeid, *lookups),
            Operation::BatchForget { nodes } => {
                let mut tree = self.tree.lock();
                nodes.clone().for_each(|one| tree.forget(one.nodeid, one.nlookup));
            }
            _ => return self.dispatch(request, out).into(),
        }
        Answer::Nothing
    }

    fn panicked(&self) {}

    fn recorder(&self) -> &Recorder {
        &self.recorder
    }
}

/// Mounts a server that does nothing.
pub fn mount_null(mount_point: &Path, mut options: Options) -> Result<NullMount, MountError> {
    let log = options.request_log.take();
    let served = Served { has_acls: false, owns_root: true, may_wait_long: false };
    let Connection { mount_point, transport, agreement, .. } = Connection::new(mount_point, &options, served)?;
    let timeout_secs = options.entry_timeout.as_secs();
    let service = Null { tree: Mutex::new(Tree::new()), agreement, timeout_secs, recorder: Recorder::default() };
    service.recorder.set_log(log);
    let handle = NullHandle { service: Arc::new(service), mount_point: Arc::new(mount_point) };
    Ok(NullMount { transport, handle })
}

/// A mounted server that does nothing, not served yet.
pub struct NullMount {
    transport: Box<dyn Transport>,
    handle: NullHandle,
}

impl NullMount {
    /// Answers requests until the mount is gone.
    pub fn serve(self) -> Result<(), ServeError> {
        let served = self.transport.run(self.handle.service);
        if served.is_err() {
            self.handle.mount_point.abort();
        }
        served
    }

    pub fn handle(&self) -> NullHandle {
        self.handle.clone()
    }
}

/// Speaks to a mount from other threads.
#[derive(Clone)]
pub struct NullHandle {
    service: Arc<Null>,
    mount_point: Arc<MountPoint>,
}

impl NullHandle {
    pub fn stats(&self) -> Stats {
        self.service.recorder.snapshot()
    }

    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        self.mount_point.unmount(lazy)
    }
}
