//! Every finding the check can report: permanent number, name, sentence, and whether repair puts it right.

/// A kind of finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Permanent; never reused. Below 100: the number of a `myriad_format::Corrupt`, but for 18. Its 17 only the engine meets.
    pub number: u32,
    pub name: &'static str,
    pub sentence: &'static str,
    pub can_repair: bool,
}

macro_rules! kinds {
    ($($number:literal $constant:ident $name:literal $can_repair:literal $sentence:literal;)*) => {
        /// The numbers by name.
        pub mod number {
            $(#[doc = $sentence] pub const $constant: u32 = $number;)*
        }

        /// The table of findings, by ascending number.
        pub const KINDS: &[Kind] = &[
            $(Kind { number: $number, name: $name, sentence: $sentence, can_repair: $can_repair },)*
        ];
    };
}

kinds! {
    1 BLOCK_KIND "block-kind" true "A metadata block is not of the kind that its pointer promises.";
    2 BLOCK_CRC "block-checksum" true "The checksum of a metadata block is wrong: torn or damaged.";
    3 BLOCK_VOLUME "block-volume" true "A metadata block belongs to another volume or an earlier mkfs.";
    4 BLOCK_ADDRESS "block-address" true "A metadata block was written to the wrong place.";
    5 BLOCK_OWNER "block-owner" true "A metadata block belongs to another file or group.";
    6 SUPERBLOCK "superblock" true "The superblock is damaged; a copy was used.";
    7 GROUP "group-header" true "A field of a group header is impossible.";
    8 TREE_NODE "tree-node" true "A tree node is out of order or impossible.";
    9 INODE "inode" true "A field of an inode is impossible.";
    10 NO_INODE "dangling-entry" true "A directory entry names an inode that does not exist.";
    11 EXTENT "extent" true "An extent or a block pointer leads outside the data of a group, or has unknown flags.";
    12 DIR_ENTRY "directory-entry" true "A directory entry is impossible.";
    13 DIR_INDEX "directory-index" true "A block of a directory index is impossible.";
    14 ATTRIBUTES "attributes" true "A list of extended attributes is damaged.";
    15 ORPHANS "orphan-list" true "The list of orphans is damaged.";
    16 LOG "log" true "The log is damaged.";
    18 UNREADABLE "unreadable" false "The device cannot read a block.";
    101 SUPERBLOCK_COPY "superblock-copy" true "A copy of the superblock is damaged or describes another volume.";
    102 BLOCK_TWICE "block-owned-twice" true "A block has two owners.";
    103 BLOCK_LEAKED "block-leaked" true "Blocks are neither free nor in use.";
    104 BLOCK_VIRGIN "block-in-unused-group" true "A block in use lies in a group said to be never used, or outside its group.";
    111 SPACE_DIFFERS "free-trees-differ" true "The two free-space trees of a group do not hold the same extents.";
    112 SPACE_EXTENT "free-extent" true "A free extent is impossible, or touches its neighbour.";
    113 GROUP_FREE "group-free-count" true "A group's count of free blocks is wrong.";
    114 REGION "region-summary" true "The summary of a placement region is wrong.";
    116 GROUP_INODES "group-inode-count" true "A group's count of inode blocks, inodes or directories is wrong.";
    117 VOLUME_COUNTS "volume-count" true "A count in the superblock is wrong.";
    118 RESERVE "reserve" true "A group's reserve is impossible.";
    119 BLOCK_BITMAP "block-bitmap" true "The bitmap of a group's blocks calls a block free that never is, or does not exist.";
    120 CHUNK "inode-chunk" true "The record of an inode chunk is impossible or overlaps another.";
    121 CHUNK_MASK "inode-chunk-mask" true "The masks of an inode chunk do not describe its blocks.";
    122 SLOT_MAP "slot-map" true "The map of an inode block does not describe its slots.";
    123 SLOT_SHARED "slot-shared" true "The body of an inode lies outside its block or on another inode.";
    124 INODE_BLOCKS "inode-block-count" true "An inode's count of blocks is wrong.";
    125 INODE_SIZE "inode-size" true "An inode's size does not fit its contents.";
    126 INODE_BITMAP "inode-bitmap" true "The bitmap of a group's inodes does not say what its inode table says.";
    130 EXTENT_ORDER "extent-order" true "Extents of a file overlap or are out of order.";
    140 NLINK "link-count" true "An inode's link count differs from the names found.";
    141 UNREFERENCED "unreferenced" true "An inode is in use but nothing names it.";
    142 DISCONNECTED "disconnected" true "A directory cannot be reached from the root.";
    143 IDENTITY "identity" true "An inode's identity (parent, name, position) does not describe its entry.";
    144 DIRECTORY_TWICE "directory-named-twice" true "A directory has two names.";
    145 NAMELESS "nameless" true "An inode without links is not in the list of orphans.";
    146 ORPHAN "orphan" true "The list of orphans names an inode that is none.";
    147 ROOT "root" true "The root directory is lost.";
    150 ENTRY_TYPE "entry-type" true "A directory entry gives the wrong file type.";
    151 ENTRY_TWICE "name-twice" true "A directory holds a name twice.";
    152 ENTRY_TAG "entry-tag" true "The tag of a directory entry is not that of its name.";
    153 ENTRY_BLOCK "entry-block" true "The header of an entry block does not describe its entries.";
    154 UNIT_TAGS "unit-tags" true "Two names of a unit of a linear directory share their tag.";
    155 ROOM_LIST "room-list" true "A directory's list of blocks with room is broken.";
    156 INDEX_MISSING "index-missing" true "A directory entry is not in the index.";
    157 INDEX_STALE "index-stale" true "The index of a directory holds a record without an entry.";
    158 INDEX_PLACE "index-place" true "An index record lies where lookup does not find it.";
    159 INDEX_SHAPE "index-shape" true "The levels or depths of a directory index are wrong.";
    160 TWINS "hash-twins" true "Two names of a directory share their hash, and its flag does not say so.";
    161 SLOT_RUNS "slot-runs" true "The runs of a block of directory slots do not lead to the slots in use.";
    162 SLOT_COUNTS "slot-counts" true "The extents of a directory do not count the names in their slots.";
    170 ATTRIBUTE_FLAG "attribute-flag" true "A flag does not fit the attributes that are there.";
    171 CHECKSUM_TABLE "checksum-table" true "A part of a group's table of data checksums is missing.";
    180 DATA_CHECKSUM "data-checksum" false "Contents of a file are not what was written: their checksum is wrong.";
    181 DATA_UNREADABLE "data-unreadable" false "The device cannot read contents of a file.";
}

/// The kind with this number.
pub fn kind(number: u32) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.number == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique() {
        assert!(KINDS.windows(2).all(|pair| pair[0].number < pair[1].number));
        let mut names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KINDS.len());
    }
}
