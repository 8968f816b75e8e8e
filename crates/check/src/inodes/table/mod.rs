//! Inode tables and their bitmaps (`inodes=static`).
//!
//! The mode of an inode says whether it is in use, and the bitmap has to say the same. So the bitmap can always be derived. A
//! unit that is torn costs its two inodes: what the bitmap says of them is compared with nothing.
//!
//! A table is initialised from its first block on, and the group's header counts how far. Where that count is lost, or older
//! than the table, as after a crash of an order that does not order it, the table itself says it: no unit past what was
//! initialised verifies, for such a unit was never written, and what lay in its place belonged to another volume.

mod check;
mod repair;

pub(super) use check::{check_group, read_block};
