//! Inode tables and their bitmaps (`inodes=static`).
//!
//! The mode of an inode says whether it is in use, and the bitmap has to say the same, so the bitmap can always be
//! derived from the table. A torn unit costs its two inodes; the bitmap's bits for these two are compared with nothing.
//!
//! A table is initialised from its first block on, and the group's header counts how many blocks are. That count can be
//! lost, or older than the table: after a crash under an order that does not order the two. Then the table itself shows
//! how far it goes. Under an order that goes by rounds the count is never older than what it announces, and a repair believes it: blocks behind it may
//! have been filled, and what their inodes lead to not yet. A unit behind the initialised part was never written, and the bytes in its place belonged to
//! another volume, so it fails its checksum.

mod check;
mod repair;

pub(super) use check::{check_group, read_block};
