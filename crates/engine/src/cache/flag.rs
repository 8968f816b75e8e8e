//! Bits of a frame's flags. The low 8 hold the kind: index in `BlockKind::ALL` plus 1, or `DATA`.

pub const KIND: u32 = 0xff;
pub const DATA: u32 = 0xff;
/// Touched since the clock's hand last passed.
pub const REFERENCED: u32 = 1 << 8;
/// Allocated in the open epoch: written home whole before the commit, not logged.
pub const FRESH: u32 = 1 << 9;
/// Failed to load, or forgotten; waits for the next sweep.
pub const DEAD: u32 = 1 << 10;
pub const LOADED: u32 = 1 << 11;
/// On the open epoch's list of changed frames.
pub const LISTED: u32 = 1 << 12;
/// On the checkpointer's list of frames not yet home.
pub const AWAY: u32 = 1 << 13;
/// File data to be written before the commit.
pub const DATA_DIRTY: u32 = 1 << 14;
/// Owned by one file's dirty data; not in the table.
pub const PRIVATE: u32 = 1 << 15;
/// File data changed again since its write began: it stays dirty when that write is done.
pub const CHANGED_AGAIN: u32 = 1 << 16;
/// File data that its writer will not read again: goes once it is written, unless somebody reads it first.
pub const PASSING: u32 = 1 << 17;
/// Read beside a block that was asked for. With [`REFERENCED`] it was asked for itself since, and stays so.
pub const AHEAD: u32 = 1 << 18;
