//! What a user may have written so that a repair takes it for a part of the volume: copies of a superblock, blocks of inodes.

use crate::common::{Builder, Image, SHAPE, Shape, VOLUME};
use crate::{places, remaining};
use myriad_check::{CheckError, Options, Report, check};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_format::group::GroupHeader;
use myriad_format::superblock::Superblock;
use myriad_format::{FsBlock, header};
use std::sync::Arc;

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
