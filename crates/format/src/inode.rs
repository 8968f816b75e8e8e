//! Inodes: 128-byte slots in inode blocks, blocks in chunks, chunks in the group's inode tree.

use crate::on_disk::on_disk;
use crate::{Corrupt, Ino};
use zerocopy::little_endian::{I64, U16, U32, U64};

on_disk! {
    /// Slot 0 of an inode block.
    /// Invariant: `free_count` is the number of bits set in `free_mask`.
    pub struct InodeBlockHeader: 128 {
        0 => header: crate::header::BlockHeader,
        48 => free_count: U16,
        /// Slots of the block, this one included.
        50 => slot_count: U16,
        52 => reserved: U32,
        /// Bit i set: slot i is free. Bit 0 is never set.
        56 => free_mask: [u8; 64],
        120 => reserved2: U64,
    }
}

on_disk! {
    /// An inode. The slot of one that is gone has mode and `generation` 0.
    pub struct RawInode: 128 {
        /// Type and permission bits as in stat(2); 0 when the inode is gone.
        0 => mode: U16,
        /// Further slots of the same block that hold the body, 0 to 7.
        2 => body_slots: u8,
        /// Low 4 bits: kind of fork (`fork`). High 4 bits: extents in the fork (kind `EXTENTS`).
        3 => fork_kind: u8,
        4 => flags: U32,
        8 => uid: U32,
        12 => gid: U32,
        16 => nlink: U32,
        /// Another one each time the slot is used again, and never 0.
        20 => generation: U32,
        /// Bytes of a file or link; of a directory: bytes of its live entries, so 0 means empty.
        24 => size: U64,
        /// Blocks allocated, 48 bits: data, extent tree, directory index, attribute blocks.
        32 => blocks: [u8; 6],
        /// First slot of the body, when `body_slots` is not 0.
        38 => body_first: U16,
        /// Times in nanoseconds since 1970.
        40 => mtime: I64,
        48 => ctime: I64,
        56 => atime: I64,
        64 => btime: I64,
        /// Identity: the directory of the name that creation or the last rename gave, and that name's hash. A further name
        /// does not change it, unless the file had none, or gets that very name again. Root: its own number and 0.
        72 => parent: U64,
        80 => name_hash: U64,
        /// Position in the directory, in units of 8 bytes, of the entry that the identity describes.
        88 => entry_position: U32,
        /// Reserved: reachability reference (direct lookup) or project id; 0.
        92 => project: U32,
        /// See `fork`. The last 8 bytes are the attribute root when `ATTR_BLOCKS` is set.
        96 => fork: [u8; 32],
    }
}

/// The first generation to be given at a time (nanoseconds since 1970), unless others were given ahead of it. It wraps around.
pub fn generation_at(time: i64) -> u32 {
    ((time >> 20) as u32).max(1)
}

/// What the 32 bytes of `RawInode::fork` hold: the codes. `crate::fork` has it as a typed value.
pub mod fork {
    /// Nothing (an empty file, FIFO or socket), or the device number in the first 8 bytes (device nodes).
    pub const NONE: u8 = 0;
    /// Up to two extents (one when the attribute root is there), sorted.
    pub const EXTENTS: u8 = 1;
    /// Root block of the extent tree (8 bytes), then its level (1 byte).
    pub const TREE: u8 = 2;
    /// The body holds the link's target or the directory's entries. Reserved for files: their bytes.
    pub const INLINE: u8 = 3;
    /// The fork itself holds the link's target, up to 32 bytes (24 when the attribute root is there).
    pub const SHORT_LINK: u8 = 4;
    /// Directory in blocks: index root (8 bytes; 0 for a single block without index), then one extent (16 bytes).
    pub const DIRECTORY: u8 = 5;
    /// Directory in blocks: index root (8 bytes), then root block of the extent tree (8 bytes) and its level (1 byte).
    pub const DIRECTORY_TREE: u8 = 6;
    /// The map is in the pointers behind the inode (`table`). A directory: index root (8 bytes; 0 without index).
    pub const BLOCKS: u8 = 7;
}

/// Bytes of the fork that are left beside an attribute root, which has its end.
pub const ROOM_BESIDE_ROOT: usize = 24;

/// Bits of `RawInode::flags`.
pub mod flag {
    /// May not be changed, renamed, linked or removed.
    pub const IMMUTABLE: u32 = 1 << 0;
    /// May only be appended to.
    pub const APPEND: u32 = 1 << 1;
    pub const NODUMP: u32 = 1 << 2;
    pub const NOATIME: u32 = 1 << 3;
    /// The fork's last 8 bytes are the attribute root: first block (low 48 bits), number of blocks (high 16).
    pub const ATTR_BLOCKS: u32 = 1 << 4;
    /// The body ends in an attribute list.
    pub const ATTR_BODY: u32 = 1 << 5;
    /// There is an access or default ACL among the attributes.
    pub const HAS_ACL: u32 = 1 << 6;
    /// Directory: two of its names share all 64 hash bits, so a hit must be confirmed by name.
    pub const HASH_TWINS: u32 = 1 << 7;
    pub const KNOWN: u32 = (1 << 8) - 1;
    /// Those that callers may see and set; the others describe the inode's layout.
    pub const USER: u32 = IMMUTABLE | APPEND | NODUMP | NOATIME;
}

/// File types in `mode`.
pub const S_IFMT: u16 = 0o170000;
pub const S_IFIFO: u16 = 0o010000;
pub const S_IFCHR: u16 = 0o020000;
pub const S_IFDIR: u16 = 0o040000;
pub const S_IFBLK: u16 = 0o060000;
pub const S_IFREG: u16 = 0o100000;
pub const S_IFLNK: u16 = 0o120000;
pub const S_IFSOCK: u16 = 0o140000;

/// Most further slots of an inode.
pub const BODY_SLOTS_MAX: usize = 7;
/// Longest target of a symbolic link, in bytes: a path with its final zero is 4096.
pub const TARGET_MAX: u64 = 4095;
/// Largest count of blocks that an inode can hold.
pub const BLOCK_TOTAL_MAX: u64 = (1 << 48) - 1;
/// Links to one inode that are allowed.
pub const NLINK_MAX: u32 = i32::MAX as u32;

on_disk! {
    /// Start of an inode's body: then `data_len` bytes of data, then `attr_len` bytes of attributes (see `xattr`).
    pub struct BodyHeader: 8 {
        0 => data_len: U16,
        2 => attr_len: U16,
        4 => reserved: U32,
    }
}

on_disk! {
    /// Record of the inode tree: a run of inode blocks. Blocks are initialised one after the other; those past
    /// `initialised` hold nothing yet, and their bits are 0 in both masks.
    pub struct ChunkRecord: 32 {
        /// First block, group-relative.
        0 => start: U64,
        /// Blocks of the chunk, 1 to 64.
        8 => count: u8,
        9 => initialised: u8,
        10 => reserved: U16,
        12 => reserved2: U32,
        /// Bit i set: initialised block i has a free slot.
        16 => free_mask: U64,
        /// Bit i set: block i has a used slot. A chunk without any is given back at the next checkpoint.
        24 => used_mask: U64,
    }
}

/// Kinds of forks as a set: bit k for kind k.
const fn kinds(list: &[u8]) -> u16 {
    let (mut set, mut at) = (0, 0);
    while at < list.len() {
        set |= 1 << list[at];
        at += 1;
    }
    set
}

impl RawInode {
    pub fn block_total(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes[..6].copy_from_slice(&self.blocks);
        u64::from_le_bytes(bytes)
    }

    pub fn set_block_total(&mut self, blocks: u64) {
        debug_assert!(blocks <= BLOCK_TOTAL_MAX);
        self.blocks.copy_from_slice(&blocks.to_le_bytes()[..6]);
    }

    /// Adds to the count of blocks, or takes away. A damaged count stays within what the field holds: it is wrong
    /// before and after, and keeps nobody from the file.
    pub fn add_blocks(&mut self, change: i64) {
        self.set_block_total(self.block_total().saturating_add_signed(change).min(BLOCK_TOTAL_MAX));
    }

    #[inline]
    pub fn fork_code(&self) -> u8 {
        self.fork_kind & 15
    }

    #[inline]
    pub fn inline_extent_count(&self) -> usize {
        usize::from(self.fork_kind >> 4)
    }

    pub fn set_fork(&mut self, kind: u8, extents: usize) {
        debug_assert!(kind < 16 && extents <= 2);
        self.fork_kind = kind | (extents as u8) << 4;
    }

    #[inline]
    pub fn has_flag(&self, flag: u32) -> bool {
        self.flags.get() & flag != 0
    }

    #[inline]
    pub fn file_type(&self) -> u16 {
        self.mode.get() & S_IFMT
    }

    #[inline]
    pub fn is_dir(&self) -> bool {
        self.file_type() == S_IFDIR
    }

    /// Bytes of the fork that data may use: all 32, or 24 when the attribute root is there.
    #[inline]
    pub fn fork_room(&self) -> usize {
        if self.has_flag(flag::ATTR_BLOCKS) { ROOM_BESIDE_ROOT } else { self.fork.len() }
    }

    /// Checks what the type of a used inode implies; what lies behind the fork is checked when it is followed.
    #[inline]
    pub fn check(&self, ino: Ino) -> Result<(), Corrupt> {
        let bad = |field, value| Err(Corrupt::Inode { ino, field, value });
        let allowed = match self.file_type() {
            S_IFREG => const { kinds(&[fork::NONE, fork::EXTENTS, fork::TREE, fork::BLOCKS]) },
            S_IFDIR => {
                const { kinds(&[fork::INLINE, fork::NONE, fork::DIRECTORY, fork::DIRECTORY_TREE, fork::BLOCKS]) }
            }
            S_IFLNK => const { kinds(&[fork::SHORT_LINK, fork::INLINE, fork::EXTENTS, fork::TREE, fork::BLOCKS]) },
            S_IFIFO | S_IFSOCK | S_IFCHR | S_IFBLK => const { kinds(&[fork::NONE]) },
            _ => return bad("mode", u64::from(self.mode.get())),
        };
        if allowed >> self.fork_code() & 1 == 0 {
            return bad("fork_kind", u64::from(self.fork_kind));
        }
        if usize::from(self.body_slots) > BODY_SLOTS_MAX {
            return bad("body_slots", u64::from(self.body_slots));
        }
        if self.inline_extent_count() * 16 > self.fork_room() {
            return bad("fork_kind", u64::from(self.fork_kind));
        }
        if self.flags.get() & !flag::KNOWN != 0 {
            return bad("flags", u64::from(self.flags.get()));
        }
        if self.size.get() > i64::MAX as u64 {
            return bad("size", self.size.get());
        }
        Ok(())
    }
}
