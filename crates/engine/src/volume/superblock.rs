//! What the superblock says of an open volume: whether it is in use, which mount has it, which features and leftovers it has.

use super::{Volume, transact};
use crate::counters::Count;
use crate::edit::BlockStore;
use crate::error::Result;
use crate::order::Look;
use crate::types::Order;
use myriad_device::AlignedBuf;
use myriad_format::superblock::{NO_MOUNT, Superblock, feature, leftovers, state};
use myriad_format::{BlockKind, FsBlock, Lsn, header};
use std::mem::offset_of;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use zerocopy::little_endian::{I64, U32, U64};

impl Volume {
    /// Writes the superblock in place, with this state and mount record, durably.
    pub fn write_superblock(&self, state: u32) -> Result<()> {
        let look = Look::enter(self);
        let before;
        let mut image = AlignedBuf::zeroed(self.cache.block_size());
        let frame = self.cache.get(FsBlock(0), BlockKind::Superblock)?;
        {
            let mut bytes = frame.write();
            let raw = Superblock::read_mut(&mut bytes);
            before = raw.state;
            if raw.state.get() == state::IN_USE && raw.order().goes_by_rounds() {
                // Whether it is this opening or an earlier one that did not end cleanly.
                let found = if state == state::IN_USE { leftovers::MAY_BE } else { 0 };
                self.leftovers.fetch_or(found, Ordering::Relaxed);
            }
            raw.leftovers = self.leftovers.load(Ordering::Relaxed);
            raw.state = U32::new(state);
            if state == state::IN_USE {
                raw.mount_machine = machine_id();
                raw.mount_boot = boot_id();
                raw.mount_pid = U32::new(std::process::id());
                // Another number than the last mount's; with a seed the same in every run.
                raw.mount_nonce = U64::new(match self.options.seed {
                    Some(seed) => raw.mount_nonce.get().wrapping_add(seed | 1),
                    None => rand_seed(raw).max(NO_MOUNT + 1),
                });
                raw.mount_time = I64::new(self.now());
                // Before anything goes home out of order: who looks beside this mount, or after it died, must not take the
                // volume for one under the log. The other way round it is for the first commit to say, and for the opening to write once more.
                if self.order != Order::Log {
                    raw.last_order = U32::new(self.order as u32);
                }
            }
            raw.set_log_end(Lsn(self.log_end.load(Ordering::Relaxed)));
            image.copy_from_slice(&bytes);
        }
        drop(look);
        header::seal(&mut image, 0);
        self.device.write_durable(0, &image).map_err(|source| {
            let _look = Look::enter(self);
            if let Ok(frame) = self.cache.get(FsBlock(0), BlockKind::Superblock) {
                // What goes into the log with the next change of the superblock must not say what is not so.
                Superblock::read_mut(&mut frame.write()).state = before;
            }
            self.write_error(0, source)
        })
    }

    /// Whether a check of the whole volume was asked for and has not been made.
    pub fn is_check_asked_for(&self) -> bool {
        self.leftovers.load(Ordering::Relaxed) & leftovers::NEEDS_CHECK != 0
    }

    /// Whether a crash may have left something behind that nobody has given back.
    pub fn has_leftovers(&self) -> bool {
        self.leftovers.load(Ordering::Relaxed) != 0
    }

    /// Something is left behind that nobody has. That lasts with the next superblock.
    pub fn note_leftovers(&self) {
        self.left_behind.fetch_add(1, Ordering::SeqCst);
        self.leftovers.fetch_or(leftovers::MAY_BE, Ordering::SeqCst);
    }

    /// The slot of an inode that is gone stays taken, and is nobody's, until a check gives it back.
    pub fn note_stranded_inode(&self) {
        self.note_leftovers();
        self.counters.bump(Count::inodes_stranded);
    }

    /// Whether all second names of directories have been found. That lasts with the next superblock.
    pub fn note_second_names(&self, all_found: bool) {
        if all_found {
            self.leftovers.fetch_and(!leftovers::SECOND_NAMES, Ordering::Relaxed);
        } else {
            self.leftovers.fetch_or(leftovers::MAY_BE | leftovers::SECOND_NAMES, Ordering::Relaxed);
        }
    }

    /// Whether what could not be read may have an entry of a directory that is gone. Its number is nobody's then: in another's hands the entry would be
    /// a name of that one, which has no link for it.
    pub fn may_have_unread_names(&self) -> bool {
        self.leftovers.load(Ordering::Relaxed) & leftovers::SECOND_NAMES != 0
    }

    /// Notes durably that a check must look at the volume before another opening changes it.
    pub fn ask_for_check(&self) -> Result<()> {
        self.leftovers.fetch_or(leftovers::MAY_BE | leftovers::NEEDS_CHECK, Ordering::Relaxed);
        self.write_leftovers()
    }

    /// Notes durably that nothing is left behind of what there was when `left_behind` was read. What has been left since stays noted, and so does that somebody
    /// has asked for a check, until one has looked.
    pub fn nothing_is_left(&self, left_behind: u64) -> Result<()> {
        let without = |bits: u8| (bits & leftovers::NEEDS_CHECK == 0).then_some(bits & !leftovers::MAY_BE);
        let _ = self.leftovers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, without);
        // After that: who counts up before has it noted here, and who does later notes it himself.
        if self.left_behind.load(Ordering::SeqCst) != left_behind {
            self.leftovers.fetch_or(leftovers::MAY_BE, Ordering::SeqCst);
        }
        self.write_leftovers()
    }

    fn write_leftovers(&self) -> Result<()> {
        // Without a change of its own the next commit may have nothing to do.
        transact(self, 0, |txn| {
            txn.change(FsBlock(0), BlockKind::Superblock, |edit| {
                // Under the latch: of several who write them at a time, the last one writes those of all.
                edit.put(offset_of!(Superblock, leftovers), &[self.leftovers.load(Ordering::Relaxed)]);
            })
        })?;
        self.commit_now()
    }

    /// Notes that the volume has attributes (and ACLs): a mount may then no longer answer "none" unasked.
    pub fn note_features(&self, acl: bool) {
        self.note_bits(feature::COMPATIBLE_XATTR | if acl { feature::COMPATIBLE_ACL } else { 0 });
    }

    /// Notes that some file is immutable or append-only: a mount must then see who opens it.
    pub fn note_flagged(&self) {
        self.note_bits(feature::COMPATIBLE_FLAGGED);
    }

    fn note_bits(&self, bits: u64) {
        if self.features.load(Ordering::Relaxed) & bits != bits {
            self.features.fetch_or(bits, Ordering::Relaxed);
        }
    }
}

fn id_from(path: &str) -> [u8; 16] {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (pair[0] << 4 | pair[1]) as u8;
    }
    id
}

fn machine_id() -> [u8; 16] {
    // Neither changes while the process lives, and reading them takes as long as the rest of a small volume's opening.
    static ID: OnceLock<[u8; 16]> = OnceLock::new();
    *ID.get_or_init(|| id_from("/etc/machine-id"))
}

fn boot_id() -> [u8; 16] {
    static ID: OnceLock<[u8; 16]> = OnceLock::new();
    *ID.get_or_init(|| id_from("/proc/sys/kernel/random/boot_id"))
}

/// A number that differs from one mount to the next.
pub(super) fn rand_seed(superblock: &Superblock) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write(&superblock.header.volume);
    hasher.finish()
}
