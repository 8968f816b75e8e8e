//! What a user may have written so that a repair takes it for a part of the volume: copies of a superblock, blocks of inodes.

use crate::common::{Builder, Image, SHAPE, Shape, VOLUME, Worn};
use crate::interrupted::{cut_each_flush, cut_each_write, inode_on, paths};
use crate::{TREES, mend, places, remaining};
use myriad_check::{CheckError, Options, Report, check};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_format::btree::NodeHeader;
use myriad_format::choices::Order;
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::group::GroupHeader;
use myriad_format::inode::{BodyHeader, ChunkRecord, InodeBlockHeader, RawInode, S_IFCHR, S_IFMT, S_IFREG, flag, fork};
use myriad_format::superblock::{Superblock, state};
use myriad_format::xattr::AttrHeader;
use myriad_format::{AgBlock, AgNo, BlockHeader, BlockKind, FileBlock, FsBlock, Ino, SLOT_SIZE, header};
use std::collections::BTreeSet;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A volume with a file of one user, which lies on block `place` too.
fn with_file_on(shape: Shape, place: FsBlock) -> Image {
    let mut builder = Builder::new(shape);
    let root = builder.root;
    let file = builder.file(root, b"planted", 0, &[500]);
    builder.file(root, b"other", 0, &[7]);
    let image = builder.finish();
    let start = places::first_extent(&image.inode(file));
    assert!((start.0..start.0 + 500).contains(&place.0), "the file begins at {start}");
    image
}

/// Writes to the first block of group 1 of `ag_blocks` blocks a copy of the superblock that tells of such groups, as a user can write it into a file, and
/// behind it a header of that group.
fn plant_superblock(image: &Image, volume: [u8; 16], ag_blocks: u32) -> FsBlock {
    let place = FsBlock(u64::from(ag_blocks));
    let mut block = image.read(FsBlock(0));
    let sb = Superblock::read_mut(&mut block);
    sb.header.volume = volume;
    sb.header.address.set(place.0);
    sb.ag_blocks.set(ag_blocks);
    sb.region_blocks.set(ag_blocks / 4);
    sb.ag_count.set(image.geometry.block_count.div_ceil(u64::from(ag_blocks)) as u32);
    sb.ag_high_water.set(2);
    sb.made_time.set(i64::MAX);
    header::seal_at(&mut block, &volume, place, 0);
    image.write(place, &block);
    assert_eq!(Superblock::decode(&block, place).map(|sb| sb.volume()), Ok(volume));
    let mut block = image.read(image.header_block(0));
    let head = GroupHeader::read_mut(&mut block);
    head.header.volume = volume;
    head.header.address.set(place.0 + 1);
    head.header.owner.set(1);
    head.ag.set(1);
    head.block_count.set(ag_blocks);
    header::seal_at(&mut block, &volume, FsBlock(place.0 + 1), 0);
    image.write(FsBlock(place.0 + 1), &block);
    place
}

fn wiped(image: &Image, blocks: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(image.device.clone_image());
    device.write(0, &vec![0; (blocks as usize) * image.geometry.block_size()]).unwrap();
    Arc::new(device.clone_image())
}

fn repair(device: &Arc<MemoryDevice>, superblock: Option<u64>) -> Result<Report, CheckError> {
    let options = Options { repair: true, superblock, threads: 1, now: 5, ..Options::default() };
    check(device.clone(), None, &options)
}

/// A volume of one group has no copy of its superblock. One sector of a user's file became its superblock, and groups, trees and copies as it told were
/// written over the files of all others.
#[test]
fn a_file_is_no_copy_of_the_superblock_of_one_group() {
    let shape = Shape { block_count: 1000, ag_used: 1, ..SHAPE };
    for volume in [*b"a user's own one", VOLUME] {
        let image = with_file_on(shape, FsBlock(512));
        plant_superblock(&image, volume, 512);
        for lost in [1, 2] {
            let device = wiped(&image, lost);
            let result = repair(&device, None);
            assert!(matches!(result, Err(CheckError::Unconfirmed(_))), "{lost} blocks lost: {result:?}");
            assert_eq!(device.counters().writes, 0, "{lost} blocks lost");
        }
    }
}

/// With the header of the first group lost as well, the volume that said that it was made last was taken, or of one volume the copy at the lowest place.
#[test]
fn a_file_is_no_copy_of_the_superblock_of_several_groups() {
    for volume in [*b"a user's own one", VOLUME] {
        let image = with_file_on(SHAPE, FsBlock(512));
        let planted = plant_superblock(&image, volume, 512);
        let size = image.geometry.block_size() as u64;
        // The first group's header says which volume it is.
        let device = wiped(&image, 1);
        assert!(repair(&device, None).expect("a copy is vouched for").is_sound());
        assert_eq!(superblock(&device).ag_blocks.get(), SHAPE.ag_blocks);
        // Without it nothing does, and both are named.
        let device = wiped(&image, 2);
        let Err(CheckError::Unconfirmed(copies)) = repair(&device, None) else { panic!("it was repaired") };
        assert_eq!(device.counters().writes, 0);
        let real = u64::from(SHAPE.ag_blocks) * size;
        let at: Vec<u64> = copies.list.iter().map(|copy| copy.offset).collect();
        assert_eq!(at, [planted.0 * size, real], "{copies}");
        // The one that is named counts.
        let report = repair(&device, Some(real)).expect("its superblock is named");
        assert!(report.is_sound(), "{}", remaining(&report));
        assert_eq!(superblock(&device).ag_blocks.get(), SHAPE.ag_blocks);
        assert!(matches!(repair(&wiped(&image, 2), Some(real + size)), Err(CheckError::NoCopy(_))));
    }
}

fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = vec![0; Superblock::SIZE];
    device.read(0, &mut bytes).unwrap();
    *Superblock::read(&bytes)
}

/// Writes a block of inodes to a place, as a user can write it into a file that he then removes: one inode of his own, with the set-user-ID bit, on the
/// blocks of a victim.
fn plant_inode(image: &Image, victim: Ino, place: FsBlock, lsn: u64) -> Ino {
    let source = image.geometry.locate(victim).unwrap().0;
    places::plant_inodes(image, source, place, lsn);
    let mut raw = image.inode(victim);
    raw.uid.set(1000);
    raw.mode.set(0o104755);
    let mut bytes = image.read(place);
    let slot = 3;
    InodeBlockHeader::read_mut(&mut bytes).free_mask = [0xff; 64];
    InodeBlockHeader::read_mut(&mut bytes).free_mask[0] = !(1 << slot);
    bytes[slot * SLOT_SIZE..][..SLOT_SIZE].copy_from_slice(raw.as_bytes());
    header::seal(&mut bytes, lsn);
    image.write(place, &bytes);
    image.geometry.ino(place, slot as u32)
}

fn with_victim() -> (Image, Ino) {
    let mut builder = Builder::new(SHAPE);
    let root = builder.root;
    builder.file(root, b"before", 1, &[]);
    // More than one block of inodes.
    for number in 0..40 {
        builder.file(root, format!("{number}").as_bytes(), 1, &[]);
    }
    let victim = builder.file(root, b"victim", 1, &[9]);
    builder.node(victim).raw.mode.set(0o106711);
    (builder.finish(), victim)
}

/// A volume in use, of which the log is lost.
fn with_lost_log() -> (Image, Ino) {
    let (image, victim) = with_victim();
    image.change_superblock(|superblock| {
        superblock.state.set(state::IN_USE);
        superblock.last_order.set(Order::Log as u32);
    });
    let log = image.log_place();
    image.device.write(log.start, &[0xee; 1 << 14]).unwrap();
    (image, victim)
}

/// Blocks that a search finds are taken in the order in which they say they were written. One that said it was written last, though no log gets that far,
/// had the blocks of others.
#[test]
fn a_removed_file_is_no_block_of_inodes() {
    let (image, victim) = with_victim();
    let end = image.geometry.fs_block(AgNo(2), AgBlock(0));
    let place = places::free_block_before(&image, FsBlock(end.0 - 1));
    plant_inode(&image, victim, place, u64::MAX);
    image.smash(image.header_block(1));
    let report = mend(&image);
    assert!(report.is_sound(), "{}", remaining(&report));
    assert_eq!(image.inode(victim).block_total(), 9, "{:?}", report.actions);
    assert!(!report.actions.iter().any(|action| action.contains("moved")), "{:?}", report.actions);
}

/// No tree says that a block of inodes is one that only a search found. Its files came back with all rights that they said they had.
#[test]
fn what_a_search_finds_has_no_set_id_bits() {
    let (image, victim) = with_victim();
    image.smash(image.header_block(1));
    let report = mend(&image);
    assert!(report.is_sound(), "{}", remaining(&report));
    assert_eq!(image.inode(victim).mode.get(), 0o100711, "{:?}", report.actions);
    assert!(report.actions.iter().any(|action| action.contains("set-user-ID")), "{:?}", report.actions);
}

/// Capabilities are such rights, too; other attributes stay.
#[test]
fn what_a_search_finds_has_no_capabilities() {
    let mut builder = Builder::new(SHAPE);
    let root = builder.root;
    let capability: (&[u8], &[u8]) = (b"security.capability", b"\x01");
    let body = builder.inode(1, 0o100755, 2);
    builder.link(root, b"body", body);
    builder.body_attributes(body, &[capability, (b"user.a", b"1")]);
    let chain = builder.file(root, b"chain", 1, &[1]);
    builder.chain_attributes(chain, &[(b"user.b", b"2"), capability]);
    let image = builder.finish();
    let able = |paths: &BTreeSet<String>| paths.iter().filter(|path| path.contains("capability")).count();
    assert_eq!(able(&paths(image.device.clone())), 2);
    image.smash(image.header_block(1));
    let report = mend(&image);
    assert!(report.is_sound(), "{}", remaining(&report));
    let left = paths(image.device.clone());
    assert_eq!(able(&left), 0, "{left:?}");
    assert!(left.contains("/body user.a=1") && left.contains("/chain user.b=2"), "{left:?}");
}

/// Blocks of a chunk that had not been initialised kept what a file had held there before. When a part of the log was lost, they counted as blocks that the
/// tree names.
#[test]
fn what_a_chunk_has_not_initialised_is_not_named() {
    let (image, victim) = with_lost_log();
    let block = image.geometry.locate(victim).unwrap().0;
    let chunk = image.geometry.locate(image.root).unwrap().0;
    // The root's chunk lies before the victim's, and all but its first block hold nothing yet.
    let place = FsBlock(chunk.0 + 2);
    assert!(place < block && image.read(place).iter().all(|&byte| byte == 0));
    let planted = plant_inode(&image, victim, place, 1 << 20);
    let report = mend(&image);
    assert!(report.is_sound(), "{}", remaining(&report));
    assert_eq!(image.inode(victim).block_total(), 9, "{:?}", report.actions);
    assert_eq!(image.inode(victim).mode.get(), 0o106711, "{:?}", report.actions);
    let bytes = image.read(place);
    let is_inodes = BlockHeader::read(&bytes).magic.get() == BlockKind::Inode.magic();
    assert!(!is_inodes || image.inode(planted).mode.get() & 0o6000 == 0, "{:?}", report.actions);
}

/// A repair after the loss of a log began with taking the headers of all groups away. Cut short, it left inodes that no tree named any more: the next one
/// took their rights, and those of blocks that it found elsewhere came first.
#[test]
fn a_repair_of_a_lost_log_that_is_cut_short_leaves_inodes_named() {
    let (image, victim) = with_lost_log();
    let mut cuts = 0;
    let mut judge = |device: Arc<dyn BlockDevice>, what: String| {
        cuts += 1;
        let options = Options { repair: true, now: 5, threads: 1, ..Options::default() };
        let report = check(device.clone(), None, &options).expect("the volume can be repaired");
        assert!(report.is_sound(), "{what}: {}", remaining(&report));
        let inode = inode_on(&image, &*device, victim);
        assert_eq!((inode.mode.get(), inode.block_total()), (0o106711, 9), "{what}: {:?}", report.actions);
    };
    cut_each_write(&image.device, &mut judge);
    cut_each_flush(&image.device, &mut judge);
    assert!(cuts > 30, "{cuts}");
}

/// The tree of inodes was older than what its blocks are used for: a file's block counted as a lost block of inodes, and was written over.
#[test]
fn what_an_old_tree_names_stays_its_owners() {
    let (image, victim) = with_lost_log();
    let ag = image.geometry.ag_of(image.geometry.locate(victim).unwrap().0);
    let data = places::first_extent(&image.inode(victim));
    let root = GroupHeader::read(&image.read(image.header_block(ag.0))).inode_root.get();
    let first = image.geometry.fs_block(ag, AgBlock(0)).0;
    image.change(image.geometry.fs_block(ag, AgBlock(root)), |bytes| {
        let record = ChunkRecord::read_mut(&mut bytes[NodeHeader::SIZE..]);
        let count = data.0 - first - record.start.get() + 1;
        assert!(count > u64::from(record.initialised) && count < 64, "the file lies behind the chunk");
        (record.count, record.initialised) = (count as u8, count as u8);
    });
    let content = image.read(data);
    let report = mend(&image);
    assert!(report.is_sound(), "{}", remaining(&report));
    let inode = image.inode(victim);
    assert_eq!((inode.mode.get(), inode.block_total()), (0o106711, 9), "{:?}", report.actions);
    assert!(image.read(data) == content, "{:?}", report.actions);
}

/// An inode that is older than the tree leads to a block that the tree has kept for inodes since, and that holds some: it does not take their block from them.
#[test]
fn what_an_old_tree_has_kept_for_inodes_is_theirs() {
    let (image, victim) = with_lost_log();
    let place = FsBlock(image.geometry.locate(image.root).unwrap().0.0 + 2);
    let later = plant_inode(&image, victim, place, 1 << 20);
    image.change_inode(victim, |raw| {
        let old = Extent { file_block: FileBlock(0), start: place, length: 1, unwritten: false };
        *RawExtent::read_mut(&mut raw.fork) = old.encode();
    });
    let report = mend(&image);
    assert!(report.is_sound(), "{}", remaining(&report));
    assert_eq!(image.inode(victim).block_total(), 0, "{:?}", report.actions);
    assert_eq!(image.inode(later).block_total(), 9, "{:?}", report.actions);
}

/// A part of the log with the removal of a file is lost, and its block of inodes is the first: it took the blocks that another file has had since, which lost
/// what was synced. Which of the two is older their blocks say.
#[test]
fn what_was_written_last_has_its_blocks_after_the_loss_of_a_log() {
    let (image, victim) = with_lost_log();
    let block = image.geometry.locate(victim).unwrap().0;
    let old_block = FsBlock(block.0 - 1);
    let old = image.geometry.ino(old_block, 1);
    assert!(image.inode(old).mode.get() == 0o100644 && image.inode(old).block_total() == 0, "a file without blocks");
    let its = image.inode(victim);
    image.change_inode(old, |raw| {
        raw.fork = its.fork;
        raw.size = its.size;
        raw.set_fork(fork::EXTENTS, 1);
        raw.set_block_total(its.block_total());
    });
    for (block, lsn) in [(old_block, 4096), (block, 8192)] {
        let mut bytes = image.read(block);
        header::seal(&mut bytes, lsn);
        image.write(block, &bytes);
    }
    let content = image.read(places::first_extent(&its));
    let report = mend(&image);
    assert!(report.is_sound(), "{}", remaining(&report));
    assert_eq!(image.inode(victim).block_total(), 9, "{:?}", report.actions);
    assert!(image.read(places::first_extent(&its)) == content);
}

/// A file whose attribute looks like an inode where its body reaches the next sector: with set-user-ID bit and the blocks of `victim`, or a device. What
/// the file's own sector had is lost, or older than the body.
fn with_planted_inode(mode: u16) -> (Image, Ino, Ino, Ino) {
    const BODY_SLOTS: u32 = 4;
    let name = b"user.a";
    let mut builder = Builder::new(SHAPE);
    let root = builder.root;
    let slot_of = |builder: &Builder, ino| builder.geometry.locate(ino).unwrap().1;
    let mut last = builder.file(root, b"first", 0, &[]);
    while !(4..6).contains(&slot_of(&builder, last)) {
        last = builder.file(root, last.to_string().as_bytes(), 0, &[]);
    }
    let owner = builder.inode(0, 0o100644, BODY_SLOTS);
    builder.link(root, b"owner", owner);
    let victim = builder.file(root, b"victim", 0, &[3, 1]);
    let (block, slot) = builder.geometry.locate(owner).unwrap();
    assert!((5..7).contains(&slot) && builder.geometry.locate(victim).unwrap().0 == block);
    let mut planted = builder.node(victim).raw;
    planted.mode.set(mode);
    planted.parent.set(0);
    planted.name_hash.set(0);
    if mode & S_IFMT != S_IFREG {
        planted.set_fork(fork::NONE, 0);
        planted.size.set(0);
        planted.set_block_total(0);
    }
    let before = (8 - slot as usize - 1) * SLOT_SIZE - BodyHeader::SIZE - AttrHeader::SIZE - name.len();
    let value = [&vec![0; before], planted.as_bytes()].concat();
    builder.body_attributes(owner, &[(name, &value)]);
    let image = builder.finish();
    let planted = image.geometry.ino(block, 8);
    assert_eq!(image.inode(planted).mode.get(), mode, "it lies at the start of the third sector");
    (image, owner, planted, victim)
}

/// Of a torn block of inodes, bytes that lay in a body became an inode with all rights that they claimed, and took the blocks of a file behind it.
#[test]
fn a_body_in_a_torn_block_has_no_rights() {
    for mode in [0o104755, 0o020666] {
        for is_worn in [true, false] {
            let (image, owner, planted, victim) = with_planted_inode(mode);
            let before = image.inode(victim).fork;
            let (block, slot) = image.geometry.locate(owner).unwrap();
            let sector = block.0 * SHAPE.block_size as u64 + 512;
            let mut bad = Vec::new();
            if is_worn {
                bad.push(sector..sector + 512);
            } else {
                let mut bytes = image.read(block);
                let raw = RawInode::read_mut(&mut bytes[slot as usize * SLOT_SIZE..]);
                raw.body_slots = 0;
                raw.body_first.set(0);
                raw.flags.set(raw.flags.get() & !flag::ATTR_BODY);
                image.write(block, &bytes);
            }
            let options = Options { repair: true, now: 5, threads: 1, ..Options::default() };
            let report = check(Worn::new(image.device.clone(), bad), None, &options).unwrap();
            let what = format!("{mode:o}, {is_worn}: {}", remaining(&report));
            assert!(report.is_sound(), "{what}");
            assert!(report.actions.iter().any(|action| action.contains("was torn")), "{what}");
            let mask = InodeBlockHeader::read(&image.read(block)).free_mask;
            let (mode, uid) = (image.inode(planted).mode.get(), image.inode(planted).uid.get());
            let is_open = mode & S_IFMT == S_IFCHR && (mode & !S_IFMT != 0 || uid != 0);
            let has_rights = mode & 0o6000 != 0 || is_open;
            assert!(mask[1] & 1 == 1 || !has_rights, "{mode:o}, {what}");
            assert_eq!(image.inode(victim).fork, before, "{what}");
            let paths = paths(image.device.clone());
            assert!(paths.contains("/victim"), "{paths:?}, {what}");
        }
    }
}

fn inode_block(image: &Image, ino: Ino) -> FsBlock {
    image.geometry.locate(ino).unwrap().0
}

/// Inodes of a torn block that have their names keep what they may do.
#[test]
fn inodes_of_a_torn_block_with_names_keep_their_rights() {
    let mut builder = Builder::new(SHAPE);
    let root = builder.root;
    let below = builder.dir(root, b"below", 0, builder.small_body());
    let file = builder.file(below, b"file", 0, &[1]);
    builder.node(file).raw.mode.set(0o104755);
    let pipe = builder.special(root, b"device", 0o020666);
    let image = builder.finish();
    let block = inode_block(&image, file);
    assert_eq!(inode_block(&image, root), block);
    image.smash(block);
    let report = mend(&image);
    let what = remaining(&report);
    assert!(report.is_sound(), "{what}");
    assert!(report.actions.iter().any(|action| action.contains("was torn")), "{what}");
    assert_eq!((image.inode(file).mode.get(), image.inode(pipe).mode.get()), (0o104755, 0o020666), "{what}");
}

/// The body of a directory in a torn block may hold what a user wrote there before. An entry without its tag got one, and named another's file.
#[test]
fn an_entry_in_a_torn_body_needs_its_tag() {
    for shape in [SHAPE, TREES] {
        let mut builder = Builder::new(shape);
        let root = builder.root;
        let below = builder.dir(root, b"below", 0, builder.small_body());
        let file = builder.file(root, b"file", 0, &[1]);
        builder.link(below, b"right", file);
        builder.link(below, b"wrong", file);
        builder.link(root, b"its own", file);
        let image = builder.finish();
        let block = inode_block(&image, below);
        let mut bytes = image.read(block);
        let at = bytes.windows(5).position(|name| name == b"wrong").unwrap();
        // The tag is right before the name in either kind.
        bytes[at - 4..at].fill(0);
        image.write(block, &bytes);
        let report = mend(&image);
        let what = remaining(&report);
        assert!(report.is_sound(), "{what}");
        let paths = paths(image.device.clone());
        assert!(paths.contains("/below/right") && !paths.contains("/below/wrong"), "{paths:?}, {what}");
    }
}
