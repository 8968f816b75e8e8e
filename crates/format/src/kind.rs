//! The kinds of metadata blocks, by the magic number that each begins with.

/// Bytes of the superblock: less than a block where blocks are larger, for it is read before their size is known.
pub(crate) const SUPERBLOCK_SIZE: usize = 512;

/// What a metadata block holds; the value is the magic number (four ASCII letters).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum BlockKind {
    Superblock = u32::from_le_bytes(*b"MYSB"),
    Group = u32::from_le_bytes(*b"MYAG"),
    FreeByStart = u32::from_le_bytes(*b"MYFS"),
    FreeByLength = u32::from_le_bytes(*b"MYFL"),
    InodeTree = u32::from_le_bytes(*b"MYIT"),
    Inode = u32::from_le_bytes(*b"MYIB"),
    ExtentTree = u32::from_le_bytes(*b"MYEX"),
    DirEntries = u32::from_le_bytes(*b"MYDE"),
    DirIndex = u32::from_le_bytes(*b"MYDI"),
    Attributes = u32::from_le_bytes(*b"MYAT"),
    Orphans = u32::from_le_bytes(*b"MYOR"),
    Checksums = u32::from_le_bytes(*b"MYCS"),
    DirSlots = u32::from_le_bytes(*b"MYDS"),
    DirExtents = u32::from_le_bytes(*b"MYDX"),
    DirTree = u32::from_le_bytes(*b"MYDT"),
    BlockBitmap = u32::from_le_bytes(*b"MYUB"),
    InodeBitmap = u32::from_le_bytes(*b"MYUF"),
    InodeTable = u32::from_le_bytes(*b"MYUI"),
    Pointers = u32::from_le_bytes(*b"MYUP"),
    LinearEntries = u32::from_le_bytes(*b"MYUD"),
}

impl BlockKind {
    pub const ALL: [Self; 20] = [
        Self::Superblock,
        Self::Group,
        Self::FreeByStart,
        Self::FreeByLength,
        Self::InodeTree,
        Self::Inode,
        Self::ExtentTree,
        Self::DirEntries,
        Self::DirIndex,
        Self::Attributes,
        Self::Orphans,
        Self::Checksums,
        Self::DirSlots,
        Self::DirExtents,
        Self::DirTree,
        Self::BlockBitmap,
        Self::InodeBitmap,
        Self::InodeTable,
        Self::Pointers,
        Self::LinearEntries,
    ];

    pub fn magic(self) -> u32 {
        self as u32
    }

    pub fn from_magic(magic: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.magic() == magic)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::Group => "group header",
            Self::FreeByStart => "free-space tree by start",
            Self::FreeByLength => "free-space tree by length",
            Self::InodeTree => "inode tree",
            Self::Inode => "inode block",
            Self::ExtentTree => "extent tree",
            Self::DirEntries => "directory entries",
            Self::DirIndex => "directory index",
            Self::Attributes => "extended attributes",
            Self::Orphans => "orphan list",
            Self::Checksums => "checksums of file data",
            Self::DirSlots => "directory slots",
            Self::DirExtents => "directory extents",
            Self::BlockBitmap => "bitmap of blocks",
            Self::InodeBitmap => "bitmap of inodes",
            Self::InodeTable => "inode table",
            Self::Pointers => "block pointers",
            Self::LinearEntries => "entries of a linear directory",
            Self::DirTree => "directory tree",
        }
    }

    /// Its place in [`Self::ALL`].
    #[inline]
    pub const fn index(self) -> u32 {
        match self {
            Self::Superblock => 0,
            Self::Group => 1,
            Self::FreeByStart => 2,
            Self::FreeByLength => 3,
            Self::InodeTree => 4,
            Self::Inode => 5,
            Self::ExtentTree => 6,
            Self::DirEntries => 7,
            Self::DirIndex => 8,
            Self::Attributes => 9,
            Self::Orphans => 10,
            Self::Checksums => 11,
            Self::DirSlots => 12,
            Self::DirExtents => 13,
            Self::DirTree => 14,
            Self::BlockBitmap => 15,
            Self::InodeBitmap => 16,
            Self::InodeTable => 17,
            Self::Pointers => 18,
            Self::LinearEntries => 19,
        }
    }

    /// Whether a walk through a tree of files reads many blocks of this kind: inodes, and what names them.
    pub fn is_of_a_walk(self) -> bool {
        matches!(
            self,
            Self::Inode
                | Self::InodeTable
                | Self::DirEntries
                | Self::LinearEntries
                | Self::DirSlots
                | Self::DirExtents
                | Self::DirTree
        )
    }

    /// Whether a block of this kind is made of units (`unit`), and has no block header (`header`).
    pub fn is_of_units(self) -> bool {
        is_of_units(self.magic())
    }

    /// The kind of a metadata block, by its first bytes.
    pub fn of(block: &[u8]) -> Option<Self> {
        Self::from_magic(magic_of(block))
    }

    /// Bytes of a block of this kind that its checksum covers.
    pub fn checked_len(self, block_size: usize) -> usize {
        if self == Self::Superblock { SUPERBLOCK_SIZE } else { block_size }
    }
}

/// The magic numbers of all kinds of units, and of no other kind, begin with these three letters.
const UNITS_MAGIC: u32 = u32::from_le_bytes(*b"MYU\0");
const UNITS_MASK: u32 = 0x00ff_ffff;

/// The magic number at the start of a metadata block, whether it begins with a header or with a unit.
pub(crate) fn magic_of(block: &[u8]) -> u32 {
    u32::from_le_bytes(block[..4].try_into().expect("four bytes"))
}

/// Whether this is the magic number of a kind of units.
pub(crate) fn is_of_units(magic: u32) -> bool {
    magic & UNITS_MASK == UNITS_MAGIC
}
