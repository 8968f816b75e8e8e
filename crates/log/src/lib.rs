//! The log: append, anchor, replay. Knows blocks, granules and LSNs; has never heard of an inode.
//!
//! Words (layout: `myriad_format::log`)
//!   ring         the log without its two anchor units; LSN `l` lives at byte `l % capacity` of it
//!   checkpoint   header and body, padded to whole units; its *first unit* holds the header
//!   commit       the first unit is durable, and so is everything the caller ordered before it
//!   head         LSN of the next checkpoint; always the end of the last committed one
//!   last         LSN of the last committed checkpoint
//!   tail         LSN where replay starts. Three of them: *promised* (by [`Log::set_tail`]), *written* (in an anchor
//!                that may not be durable), *durable* (in an anchor that is). durable <= written <= promised <= last
//!   home         a block's own place on the volume
//!
//! ```text
//!     Checkpoint --seal--> Sealed --write_body--> (caller flushes) --write_commit--> durable: head and tail move
//!                            `----------------- write_all -------------------------^
//!     any error of the device: poisoned; every later call fails, only a new `open` knows what is on the disk
//! ```
//!
//! Invariants
//!   1. Checkpoints are written one at a time: none is sealed at LSN `h` and written before the one ending at `h` has
//!      committed. ([`Log::write_commit`] asserts it.)
//!   2. A write touches only bytes outside `[durable tail, head)`. So whatever else a crash loses, every checkpoint
//!      from the durable tail to `last` is whole on the disk.
//!   3. Everything logged before the promised tail is home and flushed. The caller's promise.
//!   4. The promised tail is the LSN of a committed checkpoint, so once an anchor has been rewritten there is always a
//!      valid checkpoint at the tail of either anchor that can win. (`open` verifies it: an anchor of sequence above 1
//!      with nothing at its tail is damage, not an empty log.)
//!   5. Anchor writes alternate, and never touch the anchor that holds the durable tail. In a log just formatted, and after
//!      `open` has found only one, both say the same (twins): either counts alone.
//!   6. When `open` returns, all it read is durable, and no header with LSN `head` is on the disk.
//!   7. No checkpoint takes more than half the ring, so a log whose tail follows its last checkpoint has room again.
//!
//! **A crash, write by write.** Let `t` be the durable tail, `t'` the promised one, C the checkpoint being written.
//!   - *Body written, in part or whole.* No header with C's LSN exists (6, or the ring held an older lap): replay ends
//!     before C. By 2 nothing it needs was touched.
//!   - *First unit written, body torn* (possible in `write_all`, where nothing orders the two). The body's checksum is
//!     in the header: replay ends before C. A torn first unit fails one of the two checksums as well.
//!   - *Both whole, flush not done.* Replay includes C. Allowed: it was in flight, and in `write_all` it depends on no
//!     other write; in the two-step form what it depends on was flushed before the first unit was written.
//!   - *Anchor torn.* The other anchor, or its twin, counts (5): replay from `t`. Those checkpoints are whole (2), for the space
//!     between `t` and `t'` is only given out once the flush after the anchor has returned.
//!   - *Anchor whole, C lost.* Replay from `t'` to `last`: `t' <= last` is committed (4), and what lay before was
//!     promised home and flushed *before* the anchor was written (3). The anchor's truth depends on nothing
//!     in its own batch; that is why it may share a batch, and a flush, with a commit record.
//!   - *Anchor lost, C whole.* Replay from `t` to C. Replaying more than needed is harmless: records are absolute
//!     contents applied in order, so the newest wins. But mind reuse: a freed metadata block may get new contents
//!     only once the *durable* tail ([`Log::tail`]) has passed its records or a revoke of it has committed.
//!
//! **Why a stale checkpoint is never believed.** Replay takes a header only at the LSN where the one before ended.
//!   - *Earlier lap:* same place, LSN smaller by a multiple of the capacity. Rejected by the LSN.
//!   - *Earlier torn attempt at the same LSN:* it never committed, yet has the right LSN and the right `previous_crc`,
//!     and only its body's checksum keeps it out. A later attempt that happens to write the missing sectors with the
//!     same bytes (tree nodes carry no time) and crashes before its own header would revive it; its fresh blocks and
//!     data are long gone. So `open` erases such a header durably before anything is written (6).
//!   - *Leftovers behind a rewritten, shorter attempt:* bytes of the old body. A body may hold bytes a user chose, even
//!     a forged header. But only headers begin a unit with their magic: what would, in a body, is escaped (`escape`).
//!   - *An earlier life of the volume's space:* other volume id. [`format()`] wants a new id, a `first_lsn` beyond all
//!     that was used, or a ring without its headers ([`erase`]).
//!   - *First one at the tail:* exempt from the chain, and safe by 4; in a log just formatted the place was zeroed.
//!
//! **Damage in the middle** of the log looks like its end. But checkpoints follow committed ones (1), so where a later
//! header lies in the ring, what is missing had committed: that is reported, not skipped ([`Reach::Ring`]). An earlier
//! lap's headers have smaller LSNs, a torn attempt has none behind it, and users cannot forge one, see above. What
//! cannot be told from the end is damage to the last checkpoint.
//!
//! **Damage to an anchor** costs nothing by itself: the other one leads to the same checkpoints, or to some before them, of
//! which the ring may have been reused. That is found as damage in the middle is, or as a tail without a checkpoint. What
//! the ring holds then, and if both anchors are lost, a [`search()`] tells; repair uses it, appending never does.
//!
//! Locking: none here; the engine holds the log in its commit lock. [`Log::write_body`] and the queries take `&self`.
//! Not here: the checksum of a block that is not made of units (the caller seals what [`Overlay::apply`] returns), whether a block
//! number lies on the volume (the caller checks), when to commit, when to move the tail.

#![forbid(unsafe_code)]

mod anchor;
mod append;
mod checkpoint;
mod overlay;
mod place;
mod recover;
mod search;
mod sectors;
#[cfg(test)]
mod tests;

pub use anchor::Emptied;
pub use append::{Log, emptied, erase, forget, format};
pub use checkpoint::{Checkpoint, Sealed};
pub use overlay::{Applied, Overlay};
pub use place::{LogError, LogPlace, POSITION_MAX, RING_BYTES_MAX, RING_UNITS_MIN};
pub use recover::{Reach, Recovered, damaged_anchor, recover};
pub use search::{Found, Home, search};
pub use sectors::{change_superblock, read_unit, write_units};
