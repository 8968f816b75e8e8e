//! The kinds of metadata blocks, by the magic number that each begins with.

/// Bytes of the superblock: less than a block where blocks are larger, for it is read before their size is known.
pub(crate) const SUPERBLOCK_SIZE: usize = 512;

macro_rules! kinds {
    ($($kind:ident = $magic:literal $name:literal;)*) => {
        /// What a metadata block holds; the value is the magic number (four ASCII letters).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum BlockKind {
            $($kind = u32::from_le_bytes(*$magic),)*
        }

        /// The same, numbered.
        #[repr(u32)]
        enum Number {
            $($kind,)*
        }

        impl BlockKind {
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$kind),*];

            /// Its place in [`Self::ALL`].
            #[inline]
            pub const fn index(self) -> u32 {
                match self {
                    $(Self::$kind => Number::$kind as u32,)*
                }
            }

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    Superblock = b"MYSB" "superblock";
    Group = b"MYAG" "group header";
    FreeByStart = b"MYFS" "free-space tree by start";
    FreeByLength = b"MYFL" "free-space tree by length";
    InodeTree = b"MYIT" "inode tree";
    Inode = b"MYIB" "inode block";
    ExtentTree = b"MYEX" "extent tree";
    DirEntries = b"MYDE" "directory entries";
    DirIndex = b"MYDI" "directory index";
    Attributes = b"MYAT" "extended attributes";
    Orphans = b"MYOR" "orphan list";
    Checksums = b"MYCS" "checksums of file data";
    DirSlots = b"MYDS" "directory slots";
    DirExtents = b"MYDX" "directory extents";
    DirTree = b"MYDT" "directory tree";
    BlockBitmap = b"MYUB" "bitmap of blocks";
    InodeBitmap = b"MYUF" "bitmap of inodes";
    InodeTable = b"MYUI" "inode table";
    Pointers = b"MYUP" "block pointers";
    LinearEntries = b"MYUD" "entries of a linear directory";
}

impl BlockKind {
    pub fn magic(self) -> u32 {
        self as u32
    }

    pub fn from_magic(magic: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.magic() == magic)
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

    /// Whether a block of this kind is a directory's own: entries, or what finds them. Maps are of the same kinds for directories and files.
    #[inline]
    pub const fn is_of_directory(self) -> bool {
        matches!(
            self,
            Self::DirEntries | Self::DirIndex | Self::DirSlots | Self::DirExtents | Self::DirTree | Self::LinearEntries
        )
    }

    /// Whether names looked up here and there lead to many blocks of this kind, which lie near each other.
    pub fn is_of_a_lookup(self) -> bool {
        matches!(self, Self::Inode | Self::InodeTable | Self::DirEntries | Self::DirIndex | Self::DirTree)
    }

    /// Whether a block of this kind is made of units (`unit`), and has no block header (`header`).
    #[inline]
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
#[inline]
pub(crate) fn magic_of(block: &[u8]) -> u32 {
    u32::from_le_bytes(block[..4].try_into().expect("four bytes"))
}

/// Whether this is the magic number of a kind of units.
pub(crate) fn is_of_units(magic: u32) -> bool {
    magic & UNITS_MASK == UNITS_MAGIC
}
