//! What FORMAT.md says of bits inside fields, against values worked out from its text by other means. Engine and check decode
//! by the same code, so a change of that code would show nowhere else.

use myriad_format::choices::{Choices, Order};
use myriad_format::dir::{encode_pointer, home_line};
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::inode::{flag, fork};
use myriad_format::slots::{DirExtent, SlotBlockHeader, SlotHeader, SlotLayout, tag_of};
use myriad_format::superblock::{FORMAT_VERSION, has_copy, state};
use myriad_format::{AgNo, BlockKind, FileBlock, FsBlock, Geometry, Ino, NameHasher, dir, header, log, xattr};
use zerocopy::{FromBytes, IntoBytes};

fn geometry(block_bits: u32, has_checksums: bool) -> Geometry {
    Geometry {
        block_bits,
        ag_bits: 18,
        region_bits: 13,
        ag_count: 1 << 20,
        block_count: 1 << 38,
        chunk_blocks: 8,
        has_checksums,
        bodies_follow: true,
        has_bitmap: false,
        table_every: 0,
        map: myriad_format::choices::Map::Extents,
        fragment_bits: 0,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// By an implementation of SipHash that gives the authors' vector for SipHash-2-4.
#[test]
fn names_hash_by_siphash_1_3() {
    let hasher = NameHasher::new(std::array::from_fn(|i| i as u8));
    let counted: Vec<u8> = (0..15).collect();
    for (name, hash) in [
        (&b""[..], 0xabac_0158_050f_c4dc),
        (b"a", 0x1c26_97ab_786a_6237),
        (b"name", 0x8f99_65e4_dbbc_66ed),
        (&counted, 0xd320_d86d_2a51_9956),
        (&[b'x'; 255], 0xbb27_6283_ed8f_14f9),
    ] {
        assert_eq!(hasher.hash(name), hash, "{name:?}");
    }
}

#[test]
fn a_block_is_sealed_by_crc32c() {
    let sealed = |kind: BlockKind, size: usize, at: usize| {
        let mut block = vec![0; size];
        header::init(&mut block, kind, std::array::from_fn(|i| i as u8), 0x1122, FsBlock(0x3344));
        block[100] = 0xab;
        block[at] |= 7 * u8::from(at >= 512);
        header::seal(&mut block, 0x5566);
        hex(&block[..48])
    };
    let rest = "000102030405060708090a0b0c0d0e0f2211000000000000443300000000000066550000000000 00".replace(' ', "");
    assert_eq!(sealed(BlockKind::DirEntries, 512, 0), format!("4d594445{}{rest}", "960486fc"));
    // Of a superblock only the first 512 bytes.
    assert_eq!(sealed(BlockKind::Superblock, 4096, 600), format!("4d595342{}{rest}", "8d1af215"));
}

#[test]
fn extents_are_two_words() {
    let geometry = Geometry { block_count: 1 << 40, ..geometry(12, false) };
    let far = FsBlock(5 << 37 | 0x0123_4567);
    for (extent, bytes) in [
        (
            Extent { file_block: FileBlock(0x12_3456_789a), start: far, length: 77, unwritten: true },
            "0568e259d1480000a10900382b1a0900",
        ),
        (
            Extent { file_block: FileBlock(0), start: FsBlock(1000), length: 1, unwritten: false },
            "0000000000000000200000401f000000",
        ),
    ] {
        let raw = extent.encode();
        assert_eq!(hex(raw.as_bytes()), bytes);
        let raw = RawExtent::read_from_bytes(raw.as_bytes()).unwrap();
        assert_eq!(Extent::decode(&raw, &geometry, Ino(1)), Ok(extent));
    }
}

#[test]
fn directories_and_their_indexes() {
    for (tag, of_7, of_63) in [(1, 4, 38), (2, 1, 14), (3, 5, 53), (0xdead_beef, 4, 38), (0xffff_ffff, 2, 24)] {
        assert_eq!((home_line(tag, 7), home_line(tag, 63)), (of_7, of_63), "{tag:#x}");
    }
    assert_eq!([1, 8, 9, 255].map(dir::entry_size), [24, 24, 32, 272]);
    assert_eq!([512, 4096, 65536].map(dir::leaf_lines), [7, 63, 1023]);
    assert_eq!(encode_pointer(3, 0x1234_5678_9abc), (64 + 18, [0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12]));
}

/// A block of 1024 bytes: three slots, of which the first and the third are in use.
#[test]
fn slots_of_a_directory() {
    let layout = SlotLayout::new(1024);
    let mut block = vec![0; 1024];
    layout.init(&mut block, [0; 16], 0x1122, FsBlock(0x3344));
    assert_eq!(hex(&block[48..56 + 13]), format!("{}03{}", "00".repeat(16), "00".repeat(4)));
    for (slot, run, ino, name) in [(0, 2, 0x0102_0304_0506, &b"a"[..]), (2, 1, 0x99, b"foo")] {
        let at = layout.offset(slot);
        let head = SlotHeader::read_mut(&mut block[at..]);
        head.ino.set(ino);
        head.run = run;
        head.name_len = name.len() as u8;
        head.file_type = 8;
        head.tag.set(tag_of(0x1c26_97ab_786a_6237));
        block[at + SlotHeader::SIZE..][..name.len()].copy_from_slice(name);
    }
    SlotBlockHeader::read_mut(&mut block).names.set(2);
    assert_eq!(hex(&block[48..56]), "0200000000000000");
    assert_eq!(hex(&block[56..56 + 15]), "060504030201000002010837626100");
    assert_eq!(hex(&block[56 + 268..56 + 268 + 15]), "00".repeat(15));
    assert_eq!(hex(&block[56 + 2 * 268..56 + 2 * 268 + 17]), "9900000000000000010308376266 6f6f00".replace(' ', ""));
    let mut record = DirExtent::zeroed();
    (record.names, record.used) = (0x0102.into(), 0x83);
    assert_eq!(hex(record.as_bytes()), "02018300");
    // Two spans of blocks of 512 bytes: 114 extents of 8 blocks behind a block of records.
    let layout = SlotLayout::new(512);
    assert_eq!((layout.slots, layout.extents, layout.span_blocks()), (1, 114, 913));
    assert_eq!((layout.file_block(0), layout.file_block(911), layout.file_block(912)), (1, 912, 914));
    assert_eq!(layout.record_of(115), (913, 56 + 4));
    let [large, largest] = [4096, 65536].map(SlotLayout::new);
    assert_eq!((large.slots, large.extents, largest.slots, largest.extents), (15, 1010, 244, 16370));
}

/// A leaf with one entry and an inner node with one child, byte for byte.
#[test]
fn nodes_of_directory_trees() {
    use myriad_format::dir_tree::{
        DirNodeHeader, DirTreeChild, DirTreeEntry, key, leaf_room, offset_at, tree_entry_size,
    };
    let mut leaf = vec![0; 512];
    let head = DirNodeHeader::read_mut(&mut leaf);
    head.count.set(1);
    head.heap.set(512 - 19);
    head.live.set(19);
    leaf[64..66].copy_from_slice(&493_u16.to_le_bytes());
    let entry = DirTreeEntry::read_mut(&mut leaf[493..]);
    entry.ino.set(0x1122_3344);
    entry.number.set(5);
    entry.name_len = 3;
    entry.file_type = 8;
    entry.tag.set(0xdead_beef);
    leaf[509..].copy_from_slice(b"foo");
    assert_eq!(hex(&leaf[48..68]), "00000100ed0100001300000000000000ed010000");
    assert_eq!(hex(&leaf[493..]), "443322110000000005000308efbeadde666f6f");
    assert_eq!((offset_at(&leaf, 0), tree_entry_size(3), leaf_room(512)), (493, 19, 448));
    assert_eq!(key(0xdead_beef, 5), 0xdead_beef_0005);
    let mut child = [0; DirTreeChild::SIZE];
    let record = DirTreeChild::read_mut(&mut child);
    record.key.set(key(0xdead_beef, 5));
    record.child.set(7);
    assert_eq!(hex(&child), "0500efbeadde000007000000");
}

#[test]
fn numbers() {
    assert_eq!(geometry(12, false).ino(FsBlock(0x1234), 5), Ino(0x1234 << 5 | 5));
    assert_eq!(geometry(9, false).ino(FsBlock(0x1234), 3), Ino(0x1234 << 2 | 3));
    // 1008 checksums in a block of 4 KiB, after the five fixed blocks of the group.
    assert_eq!(geometry(12, true).checksum_of(FsBlock((3 << 18) + 5000)), (FsBlock((3 << 18) + 5 + 4), 968));
    let copies: Vec<u32> = (0..400).filter(|&ag| has_copy(AgNo(ag))).collect();
    assert_eq!(copies, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125, 243, 343]);
    let mut list = Vec::new();
    xattr::push(&mut list, b"user.a", b"xyz");
    assert_eq!(hex(&list), "0300000006757365722e6178797a");
    assert_eq!([512, 4096, 65536].map(log::unit), [4096, 4096, 65536]);
}

#[test]
fn codes() {
    assert_eq!(FORMAT_VERSION, 1);
    assert_eq!(Choices::default().all().map(|(_, choice)| choice.code), [2, 2, 2, 4, 1, 1]);
    assert_eq!([Order::None as u8, Order::Log as u8], [0, 3]);
    assert_eq!([state::CLEAN, state::IN_USE, state::SEALED], [0, 1, 2]);
    let forks = [
        fork::NONE,
        fork::EXTENTS,
        fork::TREE,
        fork::INLINE,
        fork::SHORT_LINK,
        fork::DIRECTORY,
        fork::DIRECTORY_TREE,
        fork::BLOCKS,
    ];
    assert_eq!(forks, [0, 1, 2, 3, 4, 5, 6, 7]);
    let flags = [
        flag::IMMUTABLE,
        flag::APPEND,
        flag::NODUMP,
        flag::NOATIME,
        flag::ATTR_BLOCKS,
        flag::ATTR_BODY,
        flag::HAS_ACL,
        flag::HASH_TWINS,
    ];
    assert_eq!(flags, std::array::from_fn(|bit| 1 << bit));
}

/// The table of magics in the document.
#[test]
fn magics() {
    let document = include_str!("../../../docs/FORMAT.md");
    let said: Vec<(u32, &str)> = document
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `MY")?.split(" | ");
            let magic = format!("MY{}", cells.next()?.trim_end_matches('`'));
            Some((u32::from_le_bytes(magic.as_bytes().try_into().ok()?), cells.next()?))
        })
        .collect();
    let declared: Vec<(u32, &str)> = BlockKind::ALL.iter().map(|kind| (kind.magic(), kind.name())).collect();
    assert_eq!(said, declared);
    let indexes: Vec<u32> = BlockKind::ALL.iter().map(|kind| kind.index()).collect();
    assert_eq!(indexes, Vec::from_iter(0..said.len() as u32));
}
