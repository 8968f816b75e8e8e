//! A list of orphans that cannot be believed. What it kept from showing does not show.

use crate::common::{Builder, Image, SHAPE, SMALL, Shape};
use crate::interrupted::{cut_each_flush, held, inode_on};
use crate::{look, mend, remaining, shown, text};
use myriad_check::{Options, check, number};
use myriad_device::BlockDevice;
use myriad_engine::{Cred, Fs, MountOptions, OpenOptions};
use myriad_format::choices::{Inodes, Order, Space};
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::superblock::{OrphanHeader, Superblock, state};
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, Ino};

/// A volume with a file whose cut to one byte was not finished, and one that has blocks past its end which were never written.
fn volume(shape: Shape) -> (Image, Ino, Ino) {
    let mut builder = Builder::new(shape);
    let root = builder.root;
    let [cut, ahead] = [b"cut".as_slice(), b"ahead"].map(|name| builder.file(root, name, 0, &[1, 200]));
    builder.orphans.push(cut);
    for ino in [cut, ahead] {
        builder.node(ino).raw.size.set(1);
    }
    let image = builder.finish();
    for (ino, unwritten) in [(cut, false), (ahead, true)] {
        let raw = image.inode(ino);
        let past = Extent::decode(RawExtent::read(&raw.fork[16..]), &image.geometry, ino).unwrap();
        let raw_past = Extent { unwritten, ..past }.encode();
        image.change_inode(ino, |raw| *RawExtent::read_mut(&mut raw.fork[16..]) = raw_past);
        for at in 0..200 {
            image.write(past.start.offset_by(at), &vec![0xee; shape.block_size]);
        }
    }
    (image, cut, ahead)
}

/// What the list is, and what makes it that.
type Loss = (&'static str, fn(&Image));

/// Ways in which the list is lost, or is older than the inodes.
const LOSSES: &[Loss] = &[
    ("torn", |image| image.smash(image.blocks_of(BlockKind::Orphans, 0)[0])),
    ("too long", |image| {
        image.change(image.blocks_of(BlockKind::Orphans, 0)[0], |bytes| {
            OrphanHeader::read_mut(bytes).count.set(1 << 20);
            bytes[OrphanHeader::SIZE..][..8].fill(0);
        });
    }),
    ("of a copy of the superblock", |image| {
        let copy = image.geometry.fs_block(AgNo(1), AgBlock(0));
        image.change(copy, |bytes| Superblock::read_mut(bytes).orphan_root.set(0));
        image.write(FsBlock(0), &vec![0; image.geometry.block_size()]);
    }),
    ("of before a lost log", |image| {
        image.change_superblock(|superblock| {
            superblock.orphan_root.set(0);
            superblock.state.set(state::IN_USE);
            superblock.last_order.set(Order::Log as u32);
        });
        let log = image.log_place();
        log.device.write(log.start, &vec![0; 2 * log.block_size.max(4096)]).unwrap();
    }),
    ("of before a crash without a log", |image| {
        image.change_superblock(|superblock| {
            superblock.orphan_root.set(0);
            superblock.state.set(state::IN_USE);
            superblock.last_order.set(Order::None as u32);
        });
    }),
];

/// The blocks past the end stayed the file's, and nothing remembered that they were to go: they showed what they held when the file grew.
#[test]
fn without_the_list_a_file_that_was_being_cut_is_cut() {
    for shape in [SHAPE, SMALL, SHAPE.with(Space::Bitmap, Inodes::Static)] {
        for (name, damage) in LOSSES {
            let (image, cut, ahead) = volume(shape);
            damage(&image);
            let report = mend(&image);
            let what = format!("{name}, {}", shown(&shape));
            assert!(report.repaired && report.is_sound(), "{what}: {}", remaining(&report));
            let after = look(&image);
            assert!(after.is_sound(), "{what}: {}", text(&after));
            let blocks = [cut, ahead].map(|ino| image.inode(ino).block_total());
            assert_eq!(blocks, [1, 201], "{what}: {:?}", report.actions);
            let options = MountOptions { background: false, cache_size: 16 << 20, ..MountOptions::default() };
            let fs = Fs::open_device(image.device.clone(), None, options).expect("a sound volume");
            for path in ["/cut", "/ahead"] {
                let file = fs.session(Cred::root()).open(path, OpenOptions::READ_WRITE).unwrap();
                let mut bytes = vec![1; 202 * shape.block_size];
                file.truncate(bytes.len() as u64).unwrap();
                assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
                assert!(bytes.iter().all(|&byte| byte == 0), "{what}: {path} shows what was cut off");
            }
            fs.close().unwrap();
        }
    }
}

/// Power was lost on a volume without a log while a file was cut in parts: its size had arrived, the list and what freed its blocks had not. The check
/// found nothing, the volume was taken for clean, and the old contents showed when the file grew.
#[test]
fn content_behind_an_end_that_no_list_names_is_found() {
    for shape in [SHAPE, SMALL, SHAPE.with(Space::Bitmap, Inodes::Static)] {
        let (image, cut, ahead) = volume(shape);
        let before = look(&image);
        assert!(before.finding_count == 0, "{}", text(&before));
        image.change(image.blocks_of(BlockKind::Orphans, 0)[0], |bytes| bytes[OrphanHeader::SIZE..][..8].fill(0));
        let what = shown(&shape);
        let report = look(&image);
        let expected = format!("inode {cut}: has content behind its end, and is not in the list of orphans");
        assert!(
            report.findings.iter().any(|found| found.to_string().starts_with(&expected)),
            "{what}: {}",
            text(&report)
        );
        let report = mend(&image);
        assert!(report.is_sound(), "{what}: {}", remaining(&report));
        assert_eq!([cut, ahead].map(|ino| image.inode(ino).block_total()), [1, 201], "{what}: {:?}", report.actions);
    }
}

/// As [`without_the_list_a_file_that_was_being_cut_is_cut`], where power is lost during the repair: the next one has a superblock and a log that look as
/// if they could be believed.
#[test]
fn a_repair_that_was_cut_short_had_no_list_either() {
    for (name, damage) in LOSSES {
        let (image, cut, ahead) = volume(SHAPE);
        damage(&image);
        let mut cuts = 0;
        cut_each_flush(&image.device, &mut |device, what| {
            cuts += 1;
            held(device.clone());
            let blocks = [cut, ahead].map(|ino| inode_on(&image, &*device, ino).block_total());
            // Nothing has been written, or a sector of it, after which the volume may look as if it were sound.
            let is_untouched = blocks[0] == 201 && what.ends_with("event 0");
            assert!(is_untouched || blocks == [1, 201], "{name}, {what}: {blocks:?}");
        });
        assert!(cuts > 10, "{name}: {cuts}");
    }
}

/// A size that cannot be says nothing of where a file ends.
#[test]
fn without_the_list_a_file_of_no_size_keeps_its_contents() {
    let (image, _, ahead) = volume(SHAPE);
    image.change_inode(ahead, |raw| {
        raw.size.set(u64::MAX);
        let past = RawExtent::read_mut(&mut raw.fork[16..]);
        *past = Extent { unwritten: false, ..Extent::decode(past, &image.geometry, ahead).unwrap() }.encode();
    });
    LOSSES[0].1(&image);
    let report = mend(&image);
    assert!(report.is_sound(), "{}", remaining(&report));
    let raw = image.inode(ahead);
    assert_eq!((raw.block_total(), raw.size.get()), (201, 202 * SHAPE.block_size as u64), "{:?}", report.actions);
}

/// A directory without links on the list is freed by the next opening, which does not look for names in it: what it named would have none.
#[test]
fn a_listed_directory_that_holds_names_gives_them_back() {
    for shape in [SHAPE, SMALL, SHAPE.with(Space::Bitmap, Inodes::Static)] {
        let mut builder = Builder::new(shape);
        let directory = builder.inode(0, 0o040755, builder.small_body());
        for name in [&b"one"[..], b"two"] {
            builder.file(directory, name, 0, &[1]);
        }
        builder.orphans.push(directory);
        let image = builder.finish();
        let what = shown(&shape);
        // Also where its slot is not at hand in the first round.
        for slots_max in [Options::default().slots_max, 0] {
            let options = Options { slots_max, ..Options::default() };
            let report = check(image.device.clone(), None, &options).expect("the volume can be checked");
            let found: Vec<_> = report.findings.iter().map(|found| (found.number, found.is_leftover)).collect();
            assert_eq!(found, [(number::ORPHAN, false)], "{what}: {}", text(&report));
        }
        let report = mend(&image);
        assert!(report.is_sound(), "{what}: {}", remaining(&report));
        assert!(report.actions.contains(&"moved 2 inodes to /lost+found".to_owned()), "{what}: {:?}", report.actions);
    }
}
