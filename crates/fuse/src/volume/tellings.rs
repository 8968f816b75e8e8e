//! Whom the kernel has lately told attributes, so that an answer that is overtaken does not stay.
//!
//! The kernel may take an answer that carries attributes after it has seen a later change of the same inode through: the
//! thread that asked need only be slow. Of changes whose answers carry attributes it knows the order. Of a change of a
//! directory's names, of extended attributes and of holes it does not: it forgets the attributes, then takes the old ones for
//! new, and keeps them for as long as it was allowed to. So whoever makes such a change sees here whether another
//! thread was told of the inode lately, and then has the kernel told that older answers do not count, before its own.
//!
//! The same goes for a WRITE that no program waits for: of the kernel's cache, or a direct one that is sent asynchronously. There the
//! thread that wrote may itself have asked meanwhile, so whichever thread was told counts as another one.
//!
//! One thread alone is never overtaken: it has taken an answer before it asks again. What is left is a moment in which the
//! kernel, taking new attributes, has called them valid and not yet stored them all.
//!
//! Rejected: short lifetimes (a GETATTR a second for each directory in use, and still wrong for a second), and a notification
//! with each such change (a write to /dev/fuse, a tenth of an unlink). Of 10^6 changes beside three threads that list, one in a
//! thousand stayed wrong before, and none does now. A kernel that numbered all changes would undo this.

use super::VolumeService;
use crate::request::{Operation, Request};
use crate::wire::WRITE_CACHE;
use rustix::fs::RenameFlags;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};

/// Inodes told apart, more or less.
const SLOTS: usize = 1 << 14;
/// Seconds after which an answer has been taken: no thread of a machine that works waits so long for its turn.
const TAKEN: u64 = 30;
/// For more than one thread.
const SEVERAL: u32 = u32::MAX;
/// No thread: whoever was told is another one.
const NOBODY: u32 = 0;
/// For more than one inode.
const ANY: u64 = 0xffff;

/// Threads that were told of inodes lately. Of each slot, from below: 32 bits of the thread, 16 of the inode's hash, 16 of the
/// time in seconds; 0 for nothing.
pub(super) struct Tellings(Box<[AtomicU64]>);

struct Place {
    slot: usize,
    tag: u64,
}

fn place(id: u64) -> Place {
    let hash = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Place { slot: (hash >> 50) as usize, tag: (hash >> 16 & 0xffff).min(ANY - 1) }
}

fn now() -> u64 {
    clock_gettime(ClockId::MonotonicCoarse).tv_sec as u64 & 0xffff
}

fn pack(pid: u32, tag: u64, time: u64) -> u64 {
    u64::from(pid) | tag << 32 | time << 48
}

/// What a slot holds, if that is not too long ago: thread and tag.
fn unpack(word: u64, now: u64) -> Option<(u32, u64)> {
    let age = now.wrapping_sub(word >> 48) & 0xffff;
    (word != 0 && age <= TAKEN).then_some((word as u32, word >> 32 & 0xffff))
}

impl Tellings {
    pub fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Attributes of an inode, read after this, are told to a thread.
    pub fn tell(&self, id: u64, pid: u32) {
        let Place { slot, tag } = place(id);
        let now = now();
        // A thread that the daemon cannot see, in a namespace of its own, has no number.
        let pid = if pid == 0 { SEVERAL } else { pid };
        let told = |word| match unpack(word, now) {
            None => pack(pid, tag, now),
            Some((before, about)) => {
                pack(if before == pid { pid } else { SEVERAL }, if about == tag { tag } else { ANY }, now)
            }
        };
        let _ = self.0[slot].fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| Some(told(word)));
    }

    /// A thread has changed an inode. Whether others may not have taken older attributes yet, which are to be outdated.
    fn change(&self, id: u64, pid: u32) -> bool {
        let Place { slot, tag } = place(id);
        let word = self.0[slot].load(Ordering::SeqCst);
        let Some((told, about)) = unpack(word, now()) else { return false };
        if told == pid || about != tag && about != ANY {
            return false;
        }
        if about == tag {
            // Who was told meanwhile asked before what is outdated now, or stays.
            let _ = self.0[slot].compare_exchange(word, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
        true
    }
}

impl VolumeService {
    /// Before a request is answered: what its answer will tell attributes of, as far as it names that itself.
    pub(super) fn note_telling(&self, request: &Request<'_>) {
        let header = &request.header;
        match &request.operation {
            Operation::GetAttr | Operation::Statx { .. } | Operation::SetAttr(_) => {
                self.tellings.tell(header.nodeid, header.pid);
            }
            Operation::Link { node, .. } => self.tellings.tell(*node, header.pid),
            _ => {}
        }
    }

    /// After a request was carried out, before its answer.
    pub(super) fn outdate_tellings(&self, request: &Request<'_>) {
        let header = &request.header;
        let changed_by = |id, pid| {
            if self.tellings.change(id, pid) {
                self.notifier.attributes_changed(id);
            }
        };
        let changed = |id| changed_by(id, header.pid);
        match &request.operation {
            Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. }
            | Operation::Create { .. }
            | Operation::Unlink { .. }
            | Operation::RmDir { .. }
            | Operation::SetXattr { .. }
            | Operation::RemoveXattr { .. }
            | Operation::Fallocate(_) => changed(header.nodeid),
            // Nobody knows which direct writes are asynchronous. With `writeback` size and times of a file are the kernel's own.
            Operation::Write { args, .. }
                if self.settings.direct_io || args.write_flags & WRITE_CACHE != 0 && !self.agreement.writeback =>
            {
                changed_by(header.nodeid, NOBODY);
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                changed(header.nodeid);
                changed(*new_parent);
                // Change times of what was moved; of an exchange both.
                let is_exchange = *flags & RenameFlags::EXCHANGE.bits() != 0;
                let exchanged = is_exchange.then_some((header.nodeid, name));
                for (parent, name) in [(*new_parent, new_name)].into_iter().chain(exchanged) {
                    let parent = self.node(parent).ok();
                    if let Some(stat) = parent.and_then(|parent| self.kernel.lookup(parent, name).ok()) {
                        changed(self.nodes.id(stat.node()));
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_those_told_lately() {
        let tellings = Tellings::new();
        assert!(!tellings.change(5, 1));
        tellings.tell(5, 1);
        assert!(!tellings.change(5, 1), "a thread is not overtaken by itself");
        assert!(!tellings.change(6, 2));
        assert!(tellings.change(5, 2));
        assert!(!tellings.change(5, 2), "that was taken care of");
        // Who was told last does not hide who was told before.
        tellings.tell(5, 2);
        tellings.tell(5, 1);
        assert!(tellings.change(5, 1));
        // Of two inodes in one slot, nobody knows which.
        let other = (6..).find(|id| place(*id).slot == place(5).slot && place(*id).tag != place(5).tag).unwrap();
        tellings.tell(5, 1);
        tellings.tell(other, 1);
        assert!(!tellings.change(5, 1) && !tellings.change(other, 1));
        assert!(tellings.change(5, 2) && tellings.change(other, 2) && tellings.change(5, 2));
        // Of a thread without a number nothing is known.
        tellings.tell(7, 0);
        assert!(tellings.change(7, 0));
    }

    #[test]
    fn what_is_long_ago_is_over() {
        let word = pack(7, 3, 65_530);
        assert_eq!(unpack(word, 65_530), Some((7, 3)));
        assert_eq!(unpack(word, (65_530 + TAKEN) & 0xffff), Some((7, 3)));
        assert_eq!(unpack(word, (65_530 + TAKEN + 1) & 0xffff), None);
        assert_eq!(unpack(0, 0), None);
    }
}
