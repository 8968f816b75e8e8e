//! The inodes that the kernel knows, and how often it was told of each.
//!
//! An inode number is its node number, but for the root, which the protocol wants to be 1; no inode has that number. An
//! entry lives from the first answer that names the inode to the FORGET that takes the last one back, and as long as it
//! does, the engine keeps the inode (`Keeper::hold`): so a file that the kernel has open is there, though nobody tells us of
//! opens, and a number never means another file while the kernel uses it.
//!
//! Lookups are counted and not opens, because a server that is told of opens makes open and close four times as slow, and a
//! handle of the engine for each inode that the kernel knows would take 300 bytes each, by the million. The price: each unlink
//! through a mount makes an orphan, which FORGET frees in a second transaction, a microsecond of work off the caller's path. The
//! orphan takes no log record, because only checkpoints write the list of orphans. A kernel that said at UNLINK whether the inode
//! is in use would undo this.
//!
//! Locking: a shard's lock is a leaf; the engine calls `hold` with an inode locked, and nothing is called with a shard
//! locked.

use crate::held::Held;
use crate::wire::ROOT;
use myriad_engine::Node;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SHARDS: usize = 64;
/// A shard with room for so few entries stays as it is.
const SHARD_MIN: usize = 64;

/// Inode numbers are positions on the device: one multiplication spreads them well enough.
#[derive(Default)]
struct InoHasher(u64);

impl Hasher for InoHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

#[derive(Clone, Copy)]
struct Known {
    lookups: u64,
    generation: u32,
    /// The engine counts this entry as an open handle: the file has no name any more.
    held: bool,
}

#[derive(Default)]
#[repr(align(64))]
struct Shard(Mutex<HashMap<u64, Known, BuildHasherDefault<InoHasher>>>);

pub struct Nodes {
    root: Node,
    shards: Box<[Shard]>,
    count: AtomicU64,
    held: Held,
    /// Inodes that have other attributes than the answer will say; of which the kernel is still to be told.
    changed: Mutex<Vec<u64>>,
    has_changed: AtomicBool,
}

impl Nodes {
    pub fn new(root: Node) -> Self {
        Self {
            root,
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            count: AtomicU64::new(0),
            held: Held::new(),
            changed: Mutex::default(),
            has_changed: AtomicBool::new(false),
        }
    }

    fn shard(&self, ino: u64) -> &Shard {
        // A directory's inodes are neighbours: they go to different shards.
        &self.shards[(ino % SHARDS as u64) as usize]
    }

    /// How the kernel calls an inode.
    pub fn id(&self, node: Node) -> u64 {
        if node.ino() == self.root.ino() { ROOT } else { node.ino() }
    }

    /// What the kernel calls `id`, if it was told of it.
    pub fn find(&self, id: u64) -> Option<Node> {
        if id == ROOT {
            return Some(self.root);
        }
        self.shard(id).0.lock().get(&id).map(|known| Node::from_parts(id, known.generation))
    }

    /// The kernel is told of an inode once more, by who has made it, or looked while the kernel kept its name as it is: the number is its own.
    pub fn learn(&self, node: Node) {
        self.suppose(node);
        if let Some(known) = self.shard(node.ino()).0.lock().get_mut(&node.ino()) {
            known.generation = node.generation();
        }
    }

    /// As [`Self::learn`], by who looked before, and has to look again: the number may have changed hands since. So what is known of it stays;
    /// the generation that it is known to have.
    pub fn suppose(&self, node: Node) -> u32 {
        if node.ino() == self.root.ino() {
            return node.generation();
        }
        match self.shard(node.ino()).0.lock().entry(node.ino()) {
            Entry::Occupied(mut known) => {
                known.get_mut().lookups += 1;
                known.get().generation
            }
            Entry::Vacant(vacant) => {
                vacant.insert(Known { lookups: 1, generation: node.generation(), held: false });
                self.count.fetch_add(1, Ordering::Relaxed);
                node.generation()
            }
        }
    }

    /// The number is the node's, where it was known with generation `known`. False if somebody knows better meanwhile.
    pub fn exchange(&self, node: Node, known: u32) -> bool {
        let mut shard = self.shard(node.ino()).0.lock();
        let found = shard.get_mut(&node.ino()).filter(|found| found.generation == known);
        found.map(|found| found.generation = node.generation()).is_some()
    }

    /// The kernel is told of a new file without a name, which the engine holds already.
    pub fn learn_held(&self, node: Node) {
        self.learn(node);
        if let Some(known) = self.shard(node.ino()).0.lock().get_mut(&node.ino()) {
            known.held = true;
            self.held.add();
        }
    }

    /// What the engine counts as open for the kernel; who lets go of one says so here.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// The kernel takes back that many. The node if the engine must let go of it now.
    #[must_use = "the engine holds the node until it is released"]
    pub fn forget(&self, id: u64, lookups: u64) -> Option<Node> {
        let mut shard = self.shard(id).0.lock();
        let known = shard.get_mut(&id)?;
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 {
            return None;
        }
        let known = shard.remove(&id)?;
        // A walk of everything must not keep its memory when the kernel has forgotten it. Half of what stays is room, so
        // that the next time is a quarter of the entries away: what each costs is bounded.
        if shard.capacity() > SHARD_MIN && shard.len() < shard.capacity() / 8 {
            let wanted = shard.len() * 2;
            shard.shrink_to(wanted);
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        known.held.then(|| Node::from_parts(id, known.generation))
    }

    /// Forgets everything; those that the engine must let go of.
    #[must_use = "the engine holds the nodes until they are released"]
    pub fn forget_all(&self) -> Vec<Node> {
        let mut held = Vec::new();
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.0.lock());
            held.extend(
                nodes.iter().filter(|(_, known)| known.held).map(|(&ino, k)| Node::from_parts(ino, k.generation)),
            );
        }
        self.count.store(0, Ordering::Relaxed);
        held
    }

    /// Whether the engine counts a node as open for the kernel.
    pub fn holds(&self, node: Node) -> bool {
        let shard = self.shard(node.ino()).0.lock();
        shard.get(&node.ino()).is_some_and(|known| known.held && known.generation == node.generation())
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Tells of the inodes that have other attributes than the answer will say. Whoever comes meanwhile waits until that is done: one
    /// of them may be its own.
    pub fn tell_changed(&self, tell: impl Fn(u64)) {
        if self.has_changed.load(Ordering::Acquire) {
            let mut changed = self.changed.lock();
            changed.drain(..).for_each(tell);
            self.has_changed.store(false, Ordering::Release);
        }
    }
}

impl Nodes {
    /// As `Keeper::hold` says.
    pub fn hold(&self, node: Node) -> bool {
        let mut shard = self.shard(node.ino()).0.lock();
        let known = shard.get_mut(&node.ino()).filter(|known| known.generation == node.generation());
        let is_new = known.is_some_and(|known| !std::mem::replace(&mut known.held, true));
        if is_new {
            self.held.add();
        }
        is_new
    }

    /// As `Keeper::attributes_changed` says; the kernel is told before the request is answered that did it.
    pub fn attributes_changed(&self, node: Node) {
        let mut changed = self.changed.lock();
        changed.push(self.id(node));
        self.has_changed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shards never shrank: a mount kept the memory of the most inodes that its kernel had ever known.
    #[test]
    fn memory_comes_back_with_forgetting() {
        const COUNT: u64 = 200_000;
        let nodes = Nodes::new(Node::from_parts(u64::MAX, 1));
        let capacity = || nodes.shards.iter().map(|shard| shard.0.lock().capacity()).sum::<usize>();
        (2..=COUNT).for_each(|ino| nodes.learn(Node::from_parts(ino, 1)));
        assert!(capacity() >= COUNT as usize - 1);
        let mut shrunk = 0;
        for ino in (2..=COUNT).rev() {
            let before = capacity_of(&nodes, ino);
            assert_eq!(nodes.forget(ino, 1), None);
            shrunk += usize::from(capacity_of(&nodes, ino) < before);
            assert!(nodes.find(ino - 1).is_some(), "the others stay");
        }
        assert!(capacity() <= SHARDS * 2 * SHARD_MIN, "{}", capacity());
        assert!(shrunk <= SHARDS * 10, "each time the table is a quarter of what it was: {shrunk}");
    }

    fn capacity_of(nodes: &Nodes, ino: u64) -> usize {
        nodes.shard(ino).0.lock().capacity()
    }

    #[test]
    fn the_last_forget_releases_what_is_held() {
        let nodes = Nodes::new(Node::from_parts(100, 1));
        let (file, other) = (Node::from_parts(7, 3), Node::from_parts(8, 1));
        assert_eq!((nodes.id(nodes.root), nodes.find(ROOT)), (ROOT, Some(Node::from_parts(100, 1))));
        nodes.learn(file);
        nodes.learn(file);
        nodes.learn(other);
        assert_eq!((nodes.count(), nodes.find(7)), (2, Some(file)));
        assert!(nodes.hold(file) && !nodes.hold(Node::from_parts(7, 4)) && !nodes.hold(Node::from_parts(9, 1)));
        assert!(!nodes.hold(file), "held already");
        assert_eq!(nodes.forget(7, 1), None);
        assert_eq!(nodes.forget(8, 1), None);
        assert_eq!(nodes.forget(7, 1), Some(file));
        assert_eq!((nodes.forget(7, 1), nodes.find(7), nodes.count()), (None, None, 0));
        // Who looked before the number changed hands does not turn it back, however far apart the two files were made.
        for new in [5, 3 + (1 << 31) + 5, 2].map(|generation| Node::from_parts(7, generation)) {
            nodes.learn(new);
            assert_eq!(nodes.suppose(file), new.generation());
            assert_eq!((nodes.find(7), nodes.forget(7, 2)), (Some(new), None));
            // Who looked before was the first to say so, and does not take back what others know by now.
            assert_eq!((nodes.suppose(file), nodes.suppose(new)), (3, 3));
            assert!(nodes.exchange(new, 3) && !nodes.exchange(file, 3));
            assert_eq!((nodes.find(7), nodes.forget(7, 2)), (Some(new), None));
        }
        // More than was told is no reason to fall over.
        nodes.learn_held(other);
        assert_eq!(nodes.forget(8, u64::MAX), Some(other));
        nodes.learn_held(other);
        assert_eq!((nodes.forget_all(), nodes.count()), (vec![other], 0));
    }
}
