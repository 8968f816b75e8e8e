//! Damage to directories, their indexes, and attributes.

use crate::Case;
use crate::places::*;
use myriad_check::number as n;
use myriad_format::dir::{
    EntryBlockHeader, EntryHeader, IndexHeader, IndexRecord, LIST_END, OVERFLOWED, encode_pointer, pointer,
};
use myriad_format::extent::RawExtent;
use myriad_format::inode::flag;
use myriad_format::xattr::{AttrBlockHeader, AttrHeader};
use myriad_format::{BlockKind, SLOT_SIZE};

pub const CASES: &[Case] = &[
    // Directories.
    Case {
        name: "dangling entry",
        expected: n::NO_INODE,
        damage: |s| change_entry(s, s.single, |head, _| head.ino.set(head.ino.get() + 4000)),
    },
    Case {
        name: "entry type",
        expected: n::ENTRY_TYPE,
        damage: |s| change_entry(s, s.big, |head, _| head.file_type = 2),
    },
    Case {
        name: "entry tag",
        expected: n::ENTRY_TAG,
        damage: |s| change_entry(s, s.single, |head, _| head.tag.set(1)),
    },
    Case {
        name: "entry with a slash",
        expected: n::DIR_ENTRY,
        damage: |s| change_entry(s, s.single, |_, name| name[0] = b'/'),
    },
    Case {
        name: "entry without a name",
        expected: n::DIR_ENTRY,
        damage: |s| change_entry(s, s.single, |head, _| head.name_len = 0),
    },
    Case {
        name: "entry too long",
        expected: n::DIR_ENTRY,
        damage: |s| change_entry(s, s.big, |head, _| head.length.set(0xfff8)),
    },
    Case {
        name: "entry of no length",
        expected: n::DIR_ENTRY,
        damage: |s| change_entry(s, s.big, |head, _| head.length.set(0)),
    },
    Case {
        name: "entry twice",
        expected: n::ENTRY_TWICE,
        damage: |s| {
            s.image.change(entry_block(s, s.single), |bytes| {
                let length = usize::from(EntryHeader::read(&bytes[64..]).length.get());
                bytes.copy_within(64..64 + length, 64 + length);
            })
        },
    },
    Case {
        name: "tail of an entry block",
        expected: n::ENTRY_BLOCK,
        damage: |s| s.image.change(entry_block(s, s.big), |bytes| EntryBlockHeader::read_mut(bytes).tail.set(70000)),
    },
    Case {
        name: "live bytes of an entry block",
        expected: n::ENTRY_BLOCK,
        damage: |s| s.image.change(entry_block(s, s.big), |bytes| EntryBlockHeader::read_mut(bytes).live.set(0)),
    },
    Case {
        name: "size of a directory",
        expected: n::INODE_SIZE,
        damage: |s| s.image.change_inode(s.big, |raw| raw.size.set(24)),
    },
    Case {
        name: "list of room broken",
        expected: n::ROOM_LIST,
        damage: |s| s.image.change(index_root(s, s.big), |bytes| IndexHeader::read_mut(bytes).room_head.set(4000)),
    },
    Case {
        name: "list of room forgotten",
        expected: n::ROOM_LIST,
        damage: |s| s.image.change(index_root(s, s.big), |bytes| IndexHeader::read_mut(bytes).room_head.set(LIST_END)),
    },
    Case {
        name: "list of room in a circle",
        expected: n::ROOM_LIST,
        damage: |s| s.image.change(entry_block(s, s.big), |bytes| EntryBlockHeader::read_mut(bytes).next_room.set(1)),
    },
    Case {
        name: "directory twice",
        expected: n::DIRECTORY_TWICE,
        damage: |s| {
            let (deep, kind) = (s.deep, 4);
            s.image.change(entry_block(s, s.single), |bytes| {
                let head = EntryHeader::read_mut(&mut bytes[64..]);
                head.ino.set(deep.0);
                head.file_type = kind;
            });
        },
    },
    // Index.
    Case {
        name: "index record lost",
        expected: n::INDEX_MISSING,
        damage: |s| {
            let leaf = index_leaf(s);
            let at = record_at(s, leaf).unwrap();
            s.image.change(leaf, |bytes| {
                let record = IndexRecord::read_mut(&mut bytes[at..]);
                record.ino.set(record.ino.get() & OVERFLOWED);
            });
        },
    },
    Case {
        name: "index record stale",
        expected: n::INDEX_STALE,
        damage: |s| {
            let leaf = index_leaf(s);
            let at = record_at(s, leaf).unwrap();
            s.image.change(leaf, |bytes| IndexRecord::read_mut(&mut bytes[at..]).position.set(77));
        },
    },
    Case {
        name: "index record misplaced",
        expected: n::INDEX_PLACE,
        damage: |s| {
            let leaf = index_leaf(s);
            let at = record_at(s, leaf).unwrap();
            s.image.change(leaf, |bytes| {
                let record = IndexRecord::read_mut(&mut bytes[at..]);
                record.tag.set(record.tag.get() ^ 1);
            });
        },
    },
    Case {
        name: "index leaf depth low",
        expected: n::INDEX_SHAPE,
        damage: |s| {
            s.image.change(index_leaf(s), |bytes| {
                let head = IndexHeader::read_mut(bytes);
                head.depth -= 1;
            })
        },
    },
    Case {
        name: "index leaf depth high",
        expected: n::INDEX_SHAPE,
        damage: |s| s.image.change(index_leaf(s), |bytes| IndexHeader::read_mut(bytes).depth = 31),
    },
    Case {
        name: "index leaf of another level",
        expected: n::DIR_INDEX,
        damage: |s| s.image.change(index_leaf(s), |bytes| IndexHeader::read_mut(bytes).level = 1),
    },
    Case {
        name: "index depth",
        expected: n::INDEX_SHAPE,
        damage: |s| s.image.change(index_root(s, s.big), |bytes| IndexHeader::read_mut(bytes).depth = 31),
    },
    Case {
        name: "index pointer twice",
        expected: n::BLOCK_TWICE,
        damage: |s| {
            s.image.change(index_root(s, s.big), |bytes| {
                let first = pointer(bytes, 0);
                let (at, encoded) = encode_pointer(1, first);
                bytes[at..at + 6].copy_from_slice(&encoded);
            })
        },
    },
    Case {
        name: "index pointer outside",
        expected: n::BLOCK_VIRGIN,
        damage: |s| {
            s.image.change(index_root(s, s.big), |bytes| {
                let (at, encoded) = encode_pointer(1, (1 << 48) - 1);
                bytes[at..at + 6].copy_from_slice(&encoded);
            })
        },
    },
    Case {
        name: "index pointer to itself",
        expected: n::BLOCK_TWICE,
        damage: |s| {
            let root = index_root(s, s.big);
            s.image.change(root, |bytes| {
                let (at, encoded) = encode_pointer(1, root.0);
                bytes[at..at + 6].copy_from_slice(&encoded);
            });
        },
    },
    Case {
        name: "index without its second pointer",
        expected: n::INDEX_SHAPE,
        damage: |s| {
            s.image.change(index_root(s, s.big), |bytes| {
                let (at, encoded) = encode_pointer(1, 0);
                assert_ne!(bytes[at..at + 6], encoded);
                bytes[at..at + 6].copy_from_slice(&encoded);
            })
        },
    },
    Case {
        name: "index without its first pointer",
        expected: n::INDEX_SHAPE,
        damage: |s| s.image.change(index_root(s, s.big), |bytes| bytes[64..70].fill(0)),
    },
    Case {
        name: "entry blocks said to be fewer",
        expected: n::INDEX_STALE,
        damage: |s| s.image.change(index_root(s, s.big), |bytes| IndexHeader::read_mut(bytes).entry_blocks.set(1)),
    },
    Case {
        name: "entry blocks said to be none",
        expected: n::INDEX_SHAPE,
        damage: |s| s.image.change(index_root(s, s.big), |bytes| IndexHeader::read_mut(bytes).entry_blocks.set(0)),
    },
    Case {
        name: "entry blocks said to be more",
        expected: n::INDEX_SHAPE,
        damage: |s| {
            s.image.change(index_root(s, s.big), |bytes| IndexHeader::read_mut(bytes).entry_blocks.set(100_000))
        },
    },
    Case {
        name: "hole among the entry blocks",
        expected: n::INDEX_SHAPE,
        damage: |s| {
            change_node(s, BlockKind::ExtentTree, s.big.0, |head, body| {
                let count = usize::from(head.count.get());
                body.copy_within(32..count * 16, 16);
                head.count.set(head.count.get() - 1);
            })
        },
    },
    Case {
        name: "attribute without a namespace",
        expected: n::ATTRIBUTES,
        damage: |s| {
            // Behind the list's one header, whose last byte is the name's length.
            let blocks = s.image.blocks_of(BlockKind::Attributes, s.chain.0);
            s.image.change(blocks[0], |bytes| bytes[AttrBlockHeader::SIZE + AttrHeader::SIZE] ^= 0x20);
        },
    },
    Case {
        name: "ACL flag",
        expected: n::ATTRIBUTE_FLAG,
        damage: |s| s.image.change_inode(s.attributes, |raw| raw.flags.set(raw.flags.get() & !flag::HAS_ACL)),
    },
    Case {
        name: "attribute chain in a circle",
        expected: n::BLOCK_TWICE,
        damage: |s| {
            let blocks = s.image.blocks_of(BlockKind::Attributes, s.chain.0);
            s.image.change(blocks[1], |bytes| AttrBlockHeader::read_mut(bytes).next.set(blocks[0].0));
        },
    },
    Case {
        name: "attribute chain out of order",
        expected: n::ATTRIBUTES,
        damage: |s| {
            let blocks = s.image.blocks_of(BlockKind::Attributes, s.chain.0);
            s.image.change(blocks[1], |bytes| AttrBlockHeader::read_mut(bytes).index.set(7));
        },
    },
    Case {
        name: "attribute block too long",
        expected: n::ATTRIBUTES,
        damage: |s| {
            let blocks = s.image.blocks_of(BlockKind::Attributes, s.chain.0);
            s.image.change(blocks[0], |bytes| AttrBlockHeader::read_mut(bytes).length.set(1 << 20));
        },
    },
    Case {
        name: "entry block of a file",
        expected: n::BLOCK_TWICE,
        damage: |s| give_to_file(s, entry_block(s, s.single)),
    },
    Case { name: "index root of a file", expected: n::BLOCK_TWICE, damage: |s| give_to_file(s, index_root(s, s.big)) },
    Case {
        name: "entry block twice",
        expected: n::BLOCK_TWICE,
        damage: |s| {
            change_node(s, BlockKind::ExtentTree, s.big.0, |_, bytes| {
                let (first, second) = bytes.split_at_mut(16);
                let [first, second] = [RawExtent::read_mut(first), RawExtent::read_mut(second)];
                // The start of the second one becomes that of the first.
                second.word0.set(second.word0.get() & !0x3ff | first.word0.get() & 0x3ff);
                let low = (1 << 27) - 1;
                second.word1.set(first.word1.get() & !low | second.word1.get() & low);
            });
        },
    },
    Case {
        name: "twins without a flag",
        expected: n::TWINS,
        damage: |s| s.image.change_inode(s.twins, |raw| raw.flags.set(raw.flags.get() & !flag::HASH_TWINS)),
    },
    Case {
        name: "twins without a flag, beside an index",
        expected: n::TWINS,
        damage: |s| s.image.change_inode(s.many_twins, |raw| raw.flags.set(raw.flags.get() & !flag::HASH_TWINS)),
    },
];

/// To chunks of inodes, or where inodes have bodies.
pub const CHUNKS: &[Case] = &[
    Case {
        name: "inline entry damaged",
        expected: n::DIR_ENTRY,
        damage: |s| {
            let (block, _) = s.image.geometry.locate(s.sub).unwrap();
            let first = usize::from(s.image.inode(s.sub).body_first.get());
            s.image.change(block, |bytes| EntryHeader::read_mut(&mut bytes[first * SLOT_SIZE + 8..]).length.set(7));
        },
    },
    Case {
        name: "directories in a circle",
        expected: n::DISCONNECTED,
        damage: |s| {
            // The root's entry of "sub" goes to "empty"'s inode type... instead deep's first entry becomes "sub" itself.
            let (block, _) = s.image.geometry.locate(s.deep).unwrap();
            let first = usize::from(s.image.inode(s.deep).body_first.get());
            let sub = s.sub;
            s.image.change(block, |bytes| {
                let head = EntryHeader::read_mut(&mut bytes[first * SLOT_SIZE + 8..]);
                head.ino.set(sub.0);
                head.file_type = 4;
            });
            // ... and the root's own entry for it goes away.
            let root = s.image.inode(s.image.root);
            let (block, first, at) = locate_entry(s, s.image.root, &root, sub);
            s.image.change(block, |bytes| EntryHeader::read_mut(&mut bytes[first + at..]).ino.set(0));
        },
    },
    Case {
        name: "attribute list cut",
        expected: n::ATTRIBUTES,
        damage: |s| {
            let (block, _) = s.image.geometry.locate(s.attributes).unwrap();
            let first = usize::from(s.image.inode(s.attributes).body_first.get());
            s.image.change(block, |bytes| bytes[first * SLOT_SIZE + 2] -= 1);
        },
    },
    Case {
        name: "attribute flag",
        expected: n::ATTRIBUTE_FLAG,
        damage: |s| s.image.change_inode(s.attributes, |raw| raw.flags.set(raw.flags.get() & !flag::ATTR_BODY)),
    },
];
