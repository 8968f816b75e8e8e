//! Sound volumes are found sound; each kind of damage is found for what it is, and repair leaves nothing to find.

mod btree;
mod claims;
#[path = "../common/mod.rs"]
mod common;
mod directories;
mod every_kind;
mod files;
mod interrupted;
mod linear;
mod orphans;
mod places;
mod planted;
mod slots;
mod space;
mod strays;
mod units;

use common::{Builder, Image, SHAPE, SMALL, Sample, Shape, VOLUME, Worn, sample};
use myriad_check::{KINDS, Options, Report, check, number};
use myriad_format::choices::{Choices, Directory, Inodes, MYRIAD, Space};
use myriad_format::fork::AttributeRoot;
use myriad_format::xattr::AttrBlockHeader;
use myriad_format::{AgBlock, AgNo, BlockHeader, BlockKind, FsBlock, header};
use myriad_sim::rng;
use std::collections::BTreeSet;

fn look(image: &Image) -> Report {
    check(image.device.clone(), None, &Options::default()).expect("the volume can be checked")
}

fn text(report: &Report) -> String {
    let lines: Vec<String> = report.findings.iter().take(30).map(ToString::to_string).collect();
    format!("{} findings:\n{}", report.finding_count, lines.join("\n"))
}

#[test]
fn sound_volumes_are_silent() {
    let bare = Shape { log_blocks: 0, ..SHAPE };
    let one_region = Shape { region_blocks: 1024, ..SHAPE };
    let kinds = [LINEAR, LINEAR_SMALL, SLOTS, SLOTS_SMALL, TREES, TREES_SMALL].into_iter();
    for shape in [SHAPE, SMALL, bare, one_region].into_iter().flat_map(Shape::every_record).chain(kinds) {
        let sample = sample(shape);
        let report = look(&sample.image);
        assert!(report.finding_count == 0, "{:?} {}", shape.choices, text(&report));
        assert!(report.is_sound());
        assert!(report.totals.entries > 1000 && report.totals.orphans == 1, "{:?}", report.totals);
    }
}
/// A kind of damage and a number that must be among the findings.
pub struct Case {
    pub name: &'static str,
    pub expected: u32,
    pub damage: fn(&Sample),
}

/// Volumes of the same things, whose directories are of other kinds.
const LINEAR: Shape = Shape { choices: Choices { directory: Directory::Linear, ..MYRIAD.choices }, ..SHAPE };
const LINEAR_SMALL: Shape = Shape { choices: LINEAR.choices, ..SMALL };
const SLOTS: Shape = Shape { choices: Choices { directory: Directory::Slots, ..MYRIAD.choices }, ..SHAPE };
const SLOTS_SMALL: Shape = Shape { choices: SLOTS.choices, ..SMALL };

const TREES: Shape = Shape { choices: Choices { directory: Directory::Tree, ..MYRIAD.choices }, ..SHAPE };
const TREES_SMALL: Shape = Shape { choices: TREES.choices, ..SMALL };

/// Every case on volumes of a shape.
fn cases(shape: &Shape) -> Vec<&'static Case> {
    match shape.choices.directory {
        Directory::Linear => return linear::CASES.iter().collect(),
        Directory::Slots => return slots::CASES.iter().collect(),
        Directory::Tree => return btree::CASES.iter().collect(),
        _ => {}
    }
    let space = match shape.choices.space {
        Space::Trees => space::TREES,
        Space::Bitmap => units::BITMAPS,
    };
    let inodes: &[&[Case]] = match shape.choices.inodes {
        Inodes::Static => &[units::TABLES],
        _ => &[space::CHUNKS, files::CHUNKS, directories::CHUNKS],
    };
    let all = [space::CASES, files::CASES, directories::CASES, space].into_iter().chain(inodes.iter().copied());
    all.flatten().collect()
}

/// Both sizes of blocks, with each choice of what records free blocks and inodes, and each kind of directory.
fn shapes() -> impl Iterator<Item = Shape> {
    let kinds = [LINEAR, LINEAR_SMALL, SLOTS, SLOTS_SMALL, TREES, TREES_SMALL];
    [SHAPE, SMALL].into_iter().flat_map(Shape::every_record).chain(kinds)
}

/// What a shape is, for messages.
fn shown(shape: &Shape) -> String {
    let Choices { space, inodes, directory, .. } = shape.choices;
    let names = [space.name(), inodes.name(), directory.name()];
    format!("{}-byte blocks, {}", shape.block_size, names.join(", "))
}

#[test]
fn each_kind_of_damage_is_found() {
    let mut failed = Vec::new();
    for shape in shapes() {
        for case in cases(&shape) {
            let sample = sample(shape);
            (case.damage)(&sample);
            let report = look(&sample.image);
            if !report.findings.iter().any(|finding| finding.number == case.expected) {
                let place = format!("{} ({})", case.name, shown(&shape));
                failed.push(format!("{place}: {} expected; {}", case.expected, text(&report)));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Where the slots of all groups are not held at once, each group's names are looked for in a round of their own. That finds the
/// same.
#[test]
fn groups_by_themselves_show_what_all_do() {
    let untouched = ("nothing", None);
    let mut failed = Vec::new();
    let tables = |shape: Shape| shape.with(Space::Bitmap, Inodes::Static);
    for shape in [SHAPE, SMALL, tables(SHAPE), tables(SMALL), LINEAR, SLOTS, TREES] {
        let mut how_often = BTreeSet::new();
        let cases = cases(&shape).into_iter().map(|case| (case.name, Some(case.damage)));
        for (name, damage) in cases.chain([untouched]) {
            let sample = sample(shape);
            if let Some(damage) = damage {
                damage(&sample);
            }
            let look = |slots_max, threads| {
                let options = Options { slots_max, threads, findings_max: usize::MAX, ..Options::default() };
                let device = Worn::new(sample.image.device.clone(), Vec::new());
                let report = check(device.clone(), None, &options).expect("the volume can be checked");
                let lines: BTreeSet<String> = report.findings.iter().map(ToString::to_string).collect();
                let reads = device.reads.lock().unwrap().len();
                ((lines, report.finding_count, report.totals), reads)
            };
            let (all, _) = look(Options::default().slots_max, 1);
            // The slots of both groups, of one, of none: each time what is not held is read again.
            for (slots_max, threads) in [(400, 1), (250, 1), (150, 2), (100, 1), (0, 1), (0, 2)] {
                let (parts, reads) = look(slots_max, threads);
                if damage.is_none() {
                    how_often.insert(reads);
                }
                if parts != all {
                    let differing: Vec<&String> = parts.0.symmetric_difference(&all.0).take(9).collect();
                    failed.push(format!("{name}, {}, {slots_max} slots: {differing:#?}", shown(&shape)));
                }
            }
        }
        assert!(how_often.len() >= 3, "all, a part and none were held: {how_often:?}");
    }
    assert!(failed.is_empty(), "{} failed\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn each_kind_of_finding_has_a_case() {
    // Those of devices, logs and contents are in media.rs, crash.rs and scrub.rs.
    let others =
        [number::LOG, number::UNREADABLE, number::CHECKSUM_TABLE, number::DATA_CHECKSUM, number::DATA_UNREADABLE];
    for kind in KINDS {
        let has_case = shapes().any(|shape| cases(&shape).iter().any(|case| case.expected == kind.number));
        assert_ne!(has_case, others.contains(&kind.number), "{}", kind.name);
    }
}

fn mend(image: &Image) -> Report {
    let options = Options { repair: true, now: 5, ..Options::default() };
    check(image.device.clone(), None, &options).expect("the volume can be repaired")
}

fn remaining(report: &Report) -> String {
    let lines: Vec<String> = report.remaining.iter().take(20).map(ToString::to_string).collect();
    format!("{} remaining:\n{}\nactions:\n{}", report.remaining_count, lines.join("\n"), report.actions.join("\n"))
}

#[test]
fn each_kind_of_damage_is_repaired() {
    let mut failed = Vec::new();
    for shape in shapes().chain(Shape { log_blocks: 0, ..SHAPE }.every_record()) {
        for case in cases(&shape) {
            let sample = sample(shape);
            (case.damage)(&sample);
            let place = format!("{} ({})", case.name, shown(&shape));
            let report = match check(sample.image.device.clone(), None, &Options { repair: true, ..Options::default() })
            {
                Ok(report) => report,
                Err(error) => {
                    failed.push(format!("{place}: {error}"));
                    continue;
                }
            };
            if !report.repaired || !report.is_sound() {
                failed.push(format!("{place}: {}", remaining(&report)));
            } else if look(&sample.image).finding_count != 0 {
                failed.push(format!("{place}: the second run is not silent"));
            }
        }
    }
    assert!(failed.is_empty(), "{} failed\n{}", failed.len(), failed.join("\n"));
}

/// What damage to what is derived must not cost: any name.
#[test]
fn damage_to_derived_structures_loses_no_name() {
    const DERIVED: &[&str] = &[
        "torn group header",
        "torn inode tree",
        "torn tree by start",
        "torn tree by length",
        "torn index leaf",
        "torn index root",
        "all of a group's fixed blocks zero",
        "torn superblock",
        "superblock zero",
        "stale high-water mark",
        "trees differ",
        "chunk masks",
        "link count high",
        "link count low",
        "parent of a directory",
        "index depth",
        "torn orphan list",
        "size of a directory",
        "list of room in a circle",
        "free count of an inode block",
        "torn bitmap of blocks",
        "bitmap of blocks gone",
        "torn bitmap of inodes",
        "inodes in use called free",
        "fewer blocks of a table",
        "header of a group with a table gone",
        "torn block of extents",
        "run that leads past a name",
        "names of an extent",
        "names of a block of slots",
        "more extents than are mapped",
        "size of a directory of slots",
        "torn root of a directory tree",
        "child twice",
        "key of a child",
        "size behind what is mapped",
    ];
    let mut tried = BTreeSet::new();
    for shape in shapes() {
        for case in cases(&shape).into_iter().filter(|case| DERIVED.contains(&case.name)) {
            let name = case.name;
            tried.insert(name);
            let sample = sample(shape);
            let before = look(&sample.image).totals;
            (case.damage)(&sample);
            let after = mend(&sample.image);
            let shown = shown(&shape);
            assert!(after.is_sound(), "{name}, {shown}");
            assert_eq!(after.totals.entries, before.entries, "{name}, {shown}: {}", after.actions.join("\n"));
            assert_eq!(after.totals.directories, before.directories, "{name}, {shown}");
        }
    }
    assert_eq!(tried.len(), DERIVED.len(), "{tried:?}");
}

/// Where a group's tree of inodes is damaged, a search also finds blocks of inodes that are long gone. What they say they
/// own is somebody else's by now.
#[test]
fn inodes_that_are_gone_take_nothing_from_others() {
    for shape in [SHAPE, SMALL] {
        let sample = sample(shape);
        let image = &sample.image;
        let block = places::inode_block(&sample, sample.small);
        let ag = image.geometry.ag_of(block);
        let free = places::free_block_before(image, block);
        let mut bytes = image.read(block);
        header::seal(&mut bytes, 7 << 20);
        image.write(block, &bytes);
        // The same inodes, as they lay there before.
        places::plant_inodes(image, block, free, 5 << 20);
        image.smash(places::node_of(&sample, BlockKind::InodeTree, u64::from(ag.0)));
        let before = image.inode(sample.small).fork;
        let report = mend(image);
        assert!(report.is_sound(), "{}", remaining(&report));
        assert!(report.actions.iter().any(|action| action.contains("searched group")), "{:?}", report.actions);
        assert_eq!(image.inode(sample.small).fork, before, "{}", report.actions.join("\n"));
    }
}

/// A block of inodes that a tree names was taken after those that a search found, if a repair before had torn it.
#[test]
fn what_a_tree_names_goes_before_what_is_found() {
    for shape in [SHAPE, SMALL] {
        let sample = sample(shape);
        let image = &sample.image;
        let block = places::inode_block(&sample, sample.small);
        let first = image.geometry.fs_block(AgNo(1), AgBlock(0));
        let last = first.offset_by(u64::from(image.geometry.blocks_in(AgNo(1)) - 1));
        let free = places::free_block_before(image, last);
        places::plant_inodes(image, block, free, 7 << 20);
        // Found, because the group's header is lost; and torn.
        image.smash(image.header_block(1));
        let mut bytes = image.read(block);
        let head = BlockHeader::read_mut(&mut bytes);
        head.crc.set(head.crc.get() ^ 1);
        image.write(block, &bytes);
        let before = image.inode(sample.small).fork;
        let report = mend(image);
        assert!(report.is_sound(), "{}", remaining(&report));
        let has = |what: &str| report.actions.iter().any(|action| action.contains(what));
        assert!(has("searched group 1") && has("was torn"), "{:?}", report.actions);
        assert_eq!(image.inode(sample.small).fork, before, "{}", report.actions.join("\n"));
    }
}

#[test]
fn a_sound_volume_is_not_written() {
    let sample = sample(SHAPE);
    let before = sample.image.device.clone_image();
    let report = mend(&sample.image);
    assert!(!report.repaired && report.is_sound());
    let mut bytes = [vec![0; 1 << 20], vec![0; 1 << 20]];
    use myriad_device::BlockDevice;
    for offset in (0..before.size()).step_by(1 << 20) {
        let len = (before.size() - offset).min(1 << 20) as usize;
        before.read(offset, &mut bytes[0][..len]).unwrap();
        sample.image.device.read(offset, &mut bytes[1][..len]).unwrap();
        assert!(bytes[0][..len] == bytes[1][..len]);
    }
}

/// A new log begins beyond every LSN that a block has. One block said that it had one which no log can reach: the repair made the ring
/// zeros, could not make a log there, and failed the same way each time after.
#[test]
fn an_lsn_that_no_log_reaches_does_not_count() {
    for lsn in [(1 << 62) - 1, 1 << 62, 1 << 63, u64::MAX] {
        let sample = sample(SHAPE);
        let image = &sample.image;
        let block = image.header_block(1);
        let mut bytes = image.read(block);
        header::seal_at(&mut bytes, &VOLUME, block, lsn);
        image.write(block, &bytes);
        // Both anchors.
        let log = image.log_place();
        log.device.write(log.start, &vec![0; 4 * log.block_size]).unwrap();
        let report = mend(image);
        assert!(report.is_sound(), "{lsn}: {}", remaining(&report));
    }
}

/// An inode counts at most 65,535 blocks of attributes. Of more, all but the last of them empty, a repair kept each and counted what 16 bits
/// have of that: the next one began with the same.
#[test]
fn more_blocks_of_attributes_than_an_inode_counts_are_cut() {
    const COUNT: u64 = 70_000;
    let shape = Shape { ag_blocks: 1 << 17, region_blocks: 1 << 12, block_count: 1 << 17, ag_used: 1, ..SMALL };
    let mut builder = Builder::new(shape);
    let root = builder.root;
    let file = builder.file(root, b"file", 0, &[]);
    builder.chain_attributes(file, &[(b"user.a", b"value")]);
    let image = builder.finish();
    let own = image.blocks_of(BlockKind::Attributes, file.0)[0];
    let list = image.read(own);
    // Nobody's.
    let first = image.geometry.block_count - COUNT;
    for number in 0..COUNT {
        let block = FsBlock(first + number);
        let mut bytes = vec![0; shape.block_size];
        header::init(&mut bytes, BlockKind::Attributes, VOLUME, file.0, block);
        if number == COUNT - 1 {
            bytes[BlockHeader::SIZE..].copy_from_slice(&list[BlockHeader::SIZE..]);
        }
        let head = AttrBlockHeader::read_mut(&mut bytes);
        head.index.set(number as u32);
        head.next.set(if number == COUNT - 1 { 0 } else { block.0 + 1 });
        header::seal(&mut bytes, 0);
        image.write(block, &bytes);
    }
    image.change_inode(file, |raw| {
        raw.set_attribute_root(Some(AttributeRoot { block: FsBlock(first), count: COUNT as u16 }));
    });
    let report = mend(&image);
    assert!(report.is_sound(), "{}", remaining(&report));
}

/// A hostile or broken image gives findings or an error: never a panic, never a hang. Repaired, it is sound.
#[test]
fn any_damage_is_survived_and_repaired() {
    let seeds = rng::number("MYRIAD_SEED").map_or(0..300, |seed| seed..seed + 1);
    let tables = |shape: Shape| shape.with(Space::Bitmap, Inodes::Static);
    let images = [SHAPE, SMALL, tables(SHAPE), tables(SMALL), LINEAR, SLOTS, TREES].map(sample);
    let metadata: Vec<Vec<FsBlock>> = images.iter().map(|sample| metadata_blocks(&sample.image)).collect();
    for seed in seeds {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let which = random(images.len());
        let source = &images[which].image;
        let image = Image { device: std::sync::Arc::new(source.device.clone_image()), ..*source };
        for _ in 0..1 + random(12) {
            let block = metadata[which][random(metadata[which].len())];
            let mut bytes = image.read(block);
            let reseal = random(3) > 0;
            match random(4) {
                0 => {
                    let other = metadata[which][random(metadata[which].len())];
                    bytes = image.read(other);
                }
                1 => {
                    let sector = random(bytes.len() / 512);
                    bytes[512 * sector..][..512].fill(0);
                }
                _ => {
                    for _ in 0..1 + random(8) {
                        let at = if reseal { 48 } else { 0 };
                        let at = at + random(bytes.len() - at);
                        bytes[at] = [0, 0xff, bytes[at] ^ 1 << random(8), random(256) as u8][random(4)];
                    }
                }
            }
            if reseal {
                header::seal_at(&mut bytes, &VOLUME, block, 0);
            }
            image.write(block, &bytes);
        }
        println!("seed {seed}");
        let report = check(image.device.clone(), None, &Options { repair: true, ..Options::default() });
        match report {
            Ok(report) => assert!(report.is_sound(), "seed {seed}: {}", remaining(&report)),
            Err(error) => println!("seed {seed}: {error}"),
        }
    }
}

/// Every block with one of our magics.
fn metadata_blocks(image: &Image) -> Vec<FsBlock> {
    let all = (0..image.geometry.block_count).map(FsBlock);
    all.filter(|&block| {
        let bytes = image.read(block);
        BlockKind::from_magic(u32::from_le_bytes(bytes[..4].try_into().unwrap())).is_some()
    })
    .collect()
}
