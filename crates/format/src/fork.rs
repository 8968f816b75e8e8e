//! The 32 bytes of an inode's fork as a typed value, and the root of its attributes beside it.
//!
//! Everybody who wants to know what a fork holds decodes it here, and everybody who changes one encodes it here: no byte of it is counted
//! anywhere else. What lies behind the fork, such as a tree, is checked by whoever follows it; here only what the fork itself can
//! say wrong is damage.

use crate::extent::RawExtent;
use crate::inode::{ROOM_BESIDE_ROOT, RawInode, S_IFBLK, S_IFCHR, flag, fork};
use crate::{Corrupt, FsBlock, Ino};
use zerocopy::IntoBytes;

/// Bytes of the index root, at the start of a directory's fork.
const INDEX: usize = 8;

/// What a fork holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// Nothing: an empty file or directory, a FIFO, a socket.
    None,
    /// A device's number.
    Device(u64),
    /// The map of a file or link.
    Extents(InlineExtents),
    /// The map of a file or link.
    Tree(TreeRoot),
    /// The content is in the body.
    Inline,
    /// The target of a link.
    ShortLink(ShortTarget),
    /// A directory in blocks. The index root is `NONE` for a single block without index; the extent is missing if no entry block is left.
    Directory { index: FsBlock, extent: Option<RawExtent> },
    /// A directory in blocks.
    DirectoryTree { index: FsBlock, tree: TreeRoot },
    /// The map is in the pointers behind the inode. The index root is `NONE` of what is no directory, or has no index.
    Blocks { index: FsBlock },
}

/// Root of an extent tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeRoot {
    pub block: FsBlock,
    pub level: u8,
}

/// Up to two extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineExtents {
    extents: [RawExtent; Self::MAX],
    count: u8,
}

impl InlineExtents {
    pub const MAX: usize = 2;

    /// `None` if there are more than a fork can hold.
    pub fn new(list: &[RawExtent]) -> Option<Self> {
        let mut extents = [RawExtent::zeroed(); Self::MAX];
        extents.get_mut(..list.len())?.copy_from_slice(list);
        Some(Self { extents, count: list.len() as u8 })
    }

    pub fn list(&self) -> &[RawExtent] {
        &self.extents[..usize::from(self.count)]
    }
}

/// A link's target of up to 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortTarget {
    bytes: [u8; 32],
    length: u8,
}

impl ShortTarget {
    /// `None` if it is longer than the room that the inode's fork has.
    pub fn new(target: &[u8], room: usize) -> Option<Self> {
        if target.len() > room {
            return None;
        }
        let mut bytes = [0; 32];
        bytes[..target.len()].copy_from_slice(target);
        Some(Self { bytes, length: target.len() as u8 })
    }

    pub fn target(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Where the chain of an inode's attribute blocks begins, and how many they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeRoot {
    pub block: FsBlock,
    pub count: u16,
}

impl Fork {
    /// What the fork of `inode` holds.
    pub fn decode(inode: &RawInode, ino: Ino) -> Result<Self, Corrupt> {
        let bad = |field, value| Err(Corrupt::Inode { ino, field, value });
        let block = |at: usize| FsBlock(word(&inode.fork, at));
        let tree = |at: usize| TreeRoot { block: block(at), level: inode.fork[at + 8] };
        let is_device = matches!(inode.file_type(), S_IFCHR | S_IFBLK);
        Ok(match inode.fork_code() {
            fork::NONE if is_device => Self::Device(word(&inode.fork, 0)),
            fork::NONE => Self::None,
            fork::EXTENTS => {
                let mut list = [RawExtent::zeroed(); InlineExtents::MAX];
                let count = inode.inline_extent_count();
                if count > list.len() || count * RawExtent::SIZE > inode.fork_room() {
                    return bad("fork_kind", u64::from(inode.fork_kind));
                }
                for (index, extent) in list[..count].iter_mut().enumerate() {
                    *extent = *RawExtent::read(&inode.fork[index * RawExtent::SIZE..]);
                }
                Self::Extents(InlineExtents { extents: list, count: count as u8 })
            }
            fork::TREE => Self::Tree(tree(0)),
            fork::INLINE => Self::Inline,
            fork::SHORT_LINK => {
                let size = inode.size.get();
                if size > inode.fork_room() as u64 {
                    return bad("size", size);
                }
                let room = inode.fork_room();
                Self::ShortLink(ShortTarget::new(&inode.fork[..size as usize], room).expect("it is not longer"))
            }
            fork::DIRECTORY => {
                let bytes = &inode.fork[INDEX..INDEX + RawExtent::SIZE];
                let extent = bytes.iter().any(|&byte| byte != 0).then(|| *RawExtent::read(bytes));
                Self::Directory { index: block(0), extent }
            }
            fork::DIRECTORY_TREE => Self::DirectoryTree { index: block(0), tree: tree(INDEX) },
            fork::BLOCKS => Self::Blocks { index: block(0) },
            _ => return bad("fork_kind", u64::from(inode.fork_kind)),
        })
    }

    /// Puts it into `inode`, in place of what its fork holds. The attribute root stays.
    pub fn encode(&self, inode: &mut RawInode) {
        let room = inode.fork_room();
        inode.fork[..room].fill(0);
        let mut put = |at: usize, bytes: &[u8]| inode.fork[at..at + bytes.len()].copy_from_slice(bytes);
        let (kind, count) = match self {
            Self::None => (fork::NONE, 0),
            Self::Device(number) => {
                put(0, &number.to_le_bytes());
                (fork::NONE, 0)
            }
            Self::Extents(inline) => {
                put(0, inline.list().as_bytes());
                (fork::EXTENTS, inline.list().len())
            }
            Self::Tree(tree) => {
                put(0, &tree.bytes());
                (fork::TREE, 0)
            }
            Self::Inline => (fork::INLINE, 0),
            Self::ShortLink(target) => {
                put(0, target.target());
                (fork::SHORT_LINK, 0)
            }
            Self::Directory { index, extent } => {
                put(0, &index.0.to_le_bytes());
                if let Some(extent) = extent {
                    put(INDEX, extent.as_bytes());
                }
                (fork::DIRECTORY, 0)
            }
            Self::DirectoryTree { index, tree } => {
                put(0, &index.0.to_le_bytes());
                put(INDEX, &tree.bytes());
                (fork::DIRECTORY_TREE, 0)
            }
            Self::Blocks { index } => {
                put(0, &index.0.to_le_bytes());
                (fork::BLOCKS, 0)
            }
        };
        inode.set_fork(kind, count);
    }
}

impl TreeRoot {
    fn bytes(&self) -> [u8; 9] {
        let mut bytes = [0; 9];
        bytes[..8].copy_from_slice(&self.block.0.to_le_bytes());
        bytes[8] = self.level;
        bytes
    }
}

impl RawInode {
    /// Whether its fork says where blocks of a file, a link or a directory lie.
    #[inline]
    pub fn has_map(&self) -> bool {
        matches!(self.fork_code(), fork::EXTENTS | fork::TREE | fork::DIRECTORY | fork::DIRECTORY_TREE | fork::BLOCKS)
    }

    /// Whether it is a directory whose entries lie in blocks.
    #[inline]
    pub fn is_dir_in_blocks(&self) -> bool {
        match self.fork_code() {
            fork::DIRECTORY | fork::DIRECTORY_TREE => true,
            fork::BLOCKS => self.is_dir(),
            _ => false,
        }
    }

    /// The index root of a directory in blocks; `None` of one without, and of everything else.
    #[inline]
    pub fn index_root(&self) -> Option<FsBlock> {
        let root = FsBlock(word(&self.fork, 0));
        (self.is_dir_in_blocks() && !root.is_none()).then_some(root)
    }

    /// Sets the index root of a directory in blocks; `NONE`: it has none.
    #[inline]
    pub fn set_index_root(&mut self, root: FsBlock) {
        debug_assert!(self.is_dir_in_blocks());
        self.fork[..INDEX].copy_from_slice(&root.0.to_le_bytes());
    }

    /// The attribute root, of an inode that has one.
    pub fn attribute_root(&self) -> Option<AttributeRoot> {
        let word = word(&self.fork, ROOM_BESIDE_ROOT);
        let root = AttributeRoot { block: FsBlock(word & ((1 << 48) - 1)), count: (word >> 48) as u16 };
        self.has_flag(flag::ATTR_BLOCKS).then_some(root)
    }

    /// Sets the attribute root and its flag; `None` takes both away. Whoever sets the first one has made room for it.
    pub fn set_attribute_root(&mut self, root: Option<AttributeRoot>) {
        if root.is_none() && !self.has_flag(flag::ATTR_BLOCKS) {
            return;
        }
        let word = root.map_or(0, |root| root.block.0 | u64::from(root.count) << 48);
        self.fork[ROOM_BESIDE_ROOT..].copy_from_slice(&word.to_le_bytes());
        let flags = self.flags.get() & !flag::ATTR_BLOCKS;
        self.flags.set(if root.is_some() { flags | flag::ATTR_BLOCKS } else { flags });
    }

    /// The number of a device node; 0 of what is none.
    #[inline(always)]
    pub fn device_number(&self) -> u64 {
        if matches!(self.file_type(), S_IFCHR | S_IFBLK) { word(&self.fork, 0) } else { 0 }
    }
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileBlock;
    use crate::extent::Extent;
    use crate::inode::{S_IFDIR, S_IFLNK, S_IFREG};

    fn inode(mode: u16, attributes: bool) -> RawInode {
        let mut inode = RawInode::zeroed();
        inode.mode.set(mode);
        inode.set_attribute_root(attributes.then_some(AttributeRoot { block: FsBlock(77), count: 3 }));
        inode
    }

    #[test]
    fn every_kind_comes_back_as_it_went_and_leaves_the_attribute_root() {
        let extent =
            |at| Extent { file_block: FileBlock(at), start: FsBlock(500 + at), length: 7, unwritten: false }.encode();
        let index = FsBlock(0x1234_5678_9abc);
        let tree = TreeRoot { block: FsBlock(0xfe_dcba), level: 3 };
        let target = ShortTarget::new(b"somewhere/else", 24).unwrap();
        let forks = [
            (S_IFREG, Fork::None),
            (S_IFCHR, Fork::Device(0x0102_0304_0506)),
            (S_IFREG, Fork::Extents(InlineExtents::new(&[extent(1)]).unwrap())),
            (S_IFREG, Fork::Tree(tree)),
            (S_IFLNK, Fork::Inline),
            (S_IFLNK, Fork::ShortLink(target)),
            (S_IFDIR, Fork::Directory { index: FsBlock::NONE, extent: Some(extent(0)) }),
            (S_IFDIR, Fork::Directory { index, extent: None }),
            (S_IFDIR, Fork::DirectoryTree { index, tree }),
            (S_IFDIR, Fork::Blocks { index }),
            (S_IFREG, Fork::Blocks { index: FsBlock::NONE }),
        ];
        for attributes in [false, true] {
            for (mode, fork) in forks {
                let mut raw = inode(mode, attributes);
                let root = raw.attribute_root();
                raw.fork[..24].fill(0xff);
                raw.size.set(target.target().len() as u64);
                fork.encode(&mut raw);
                assert_eq!(Fork::decode(&raw, Ino(9)), Ok(fork));
                assert_eq!(raw.attribute_root(), root);
                assert_eq!(root.is_some(), attributes);
            }
        }
        let two = Fork::Extents(InlineExtents::new(&[extent(1), extent(90)]).unwrap());
        let mut raw = inode(S_IFREG, false);
        two.encode(&mut raw);
        assert_eq!(Fork::decode(&raw, Ino(9)), Ok(two));
        // The second of them lies where the attribute root would.
        raw.flags.set(flag::ATTR_BLOCKS);
        assert!(Fork::decode(&raw, Ino(9)).is_err());
    }

    #[test]
    fn what_a_fork_can_say_wrong_is_damage() {
        let mut raw = inode(S_IFREG, false);
        for kind in 8..16 {
            raw.fork_kind = kind;
            assert!(matches!(Fork::decode(&raw, Ino(9)), Err(Corrupt::Inode { field: "fork_kind", .. })), "{kind}");
        }
        for count in 3..16 {
            raw.fork_kind = fork::EXTENTS | count << 4;
            assert!(Fork::decode(&raw, Ino(9)).is_err(), "{count} extents");
        }
        let mut link = inode(S_IFLNK, false);
        link.set_fork(fork::SHORT_LINK, 0);
        link.size.set(33);
        assert!(matches!(Fork::decode(&link, Ino(9)), Err(Corrupt::Inode { field: "size", .. })));
        assert_eq!(InlineExtents::new(&[RawExtent::zeroed(); 3]), None);
        assert_eq!(ShortTarget::new(&[1; 25], 24), None);
    }

    #[test]
    fn an_index_root_is_a_directory_s_alone() {
        let mut raw = inode(S_IFREG, false);
        Fork::Tree(TreeRoot { block: FsBlock(12), level: 0 }).encode(&mut raw);
        assert_eq!(raw.index_root(), None);
        let mut dir = inode(S_IFDIR, true);
        Fork::Blocks { index: FsBlock::NONE }.encode(&mut dir);
        assert_eq!(dir.index_root(), None);
        dir.set_index_root(FsBlock(5));
        assert_eq!(dir.index_root(), Some(FsBlock(5)));
        assert_eq!(Fork::decode(&dir, Ino(9)), Ok(Fork::Blocks { index: FsBlock(5) }));
    }
}
