//! What no name leads to: it comes back under lost+found, whatever it was, and all below it.

use crate::common::{Builder, SHAPE, SMALL, Shape, Worn};
use crate::{LINEAR, LINEAR_SMALL, mend, remaining, text};
use myriad_check::{Options, check, number};
use myriad_format::dir::EntryHeader;
use myriad_format::{BlockKind, Ino};

fn strays(shape: Shape, build: impl FnOnce(&mut Builder)) -> (u64, Vec<String>) {
    let mut builder = Builder::new(shape);
    build(&mut builder);
    let image = builder.finish();
    let device = Worn::new(image.device.clone(), Vec::new());
    let options = Options { repair: true, now: 5, threads: 1, ..Options::default() };
    let report = check(device.clone(), None, &options).expect("the volume can be repaired");
    assert!(report.is_sound(), "{}", remaining(&report));
    (device.reads.lock().unwrap().len() as u64, report.actions)
}

/// Directories that name each other, and nobody else them: for each pair all that were left were looked into, of 50 000 pairs
/// billions of times.
#[test]
fn circles_cost_what_they_hold() {
    for shape in [SHAPE, SMALL] {
        let reads = |pairs: u64| {
            let (reads, actions) = strays(shape, |builder| {
                for _ in 0..pairs {
                    let [one, two]: [Ino; 2] =
                        std::array::from_fn(|_| builder.inode(0, 0o040755, builder.small_body()));
                    builder.link(one, b"two", two);
                    builder.link(two, b"one", one);
                }
            });
            assert!(actions.contains(&format!("moved {pairs} inodes to /lost+found")), "{actions:?}");
            reads
        };
        let (some, more) = (reads(60), reads(240));
        assert!(more < 5 * some, "{some} reads for 60 pairs, {more} for 240");
    }
}

/// A directory below a circle, and a chain of directories that ends in one: what has a name keeps it.
#[test]
fn only_one_of_a_circle_moves() {
    for shape in [SHAPE, SMALL] {
        let (_, actions) = strays(shape, |builder| {
            let body = builder.small_body();
            let circle: [Ino; 3] = std::array::from_fn(|_| builder.inode(0, 0o040755, body));
            for (at, &directory) in circle.iter().enumerate() {
                builder.link(directory, b"next", circle[(at + 1) % 3]);
            }
            builder.dir(circle[2], b"below", 0, body);
            let top = builder.inode(1, 0o040755, body);
            let middle = builder.dir(top, b"middle", 0, body);
            builder.dir(middle, b"bottom", 0, body);
        });
        assert!(actions.contains(&"moved 2 inodes to /lost+found".to_owned()), "{actions:?}");
    }
}

/// `mv P/A/D B/D; mv P/A B/D/A`, cut off by a power loss: two directories with second names, each in the other one. Where these came first they were
/// taken for the directories' own, which made a circle and damage.
#[test]
fn second_names_make_no_circle() {
    for shape in [LINEAR, LINEAR_SMALL] {
        let mut builder = Builder::new(shape);
        let [a, d, b, p]: [Ino; 4] = std::array::from_fn(|_| builder.inode(0, 0o040755, 0));
        let root = builder.root;
        builder.link(root, b"P", p);
        builder.link(root, b"B", b);
        // The last name is the one that the identity says.
        for (directory, name, ino) in [(a, b"D", d), (b, b"D", d), (d, b"A", a), (p, b"A", a)] {
            builder.link(directory, name, ino);
        }
        for ino in [a, d, b, p] {
            builder.node(ino).raw.nlink.set(3);
        }
        let image = builder.finish();
        for (threads, slots_max) in [(1, Options::default().slots_max), (1, 0), (2, Options::default().slots_max)] {
            let options = Options { threads, slots_max, ..Options::default() };
            let report = check(image.device.clone(), None, &options).expect("the volume can be checked");
            let found: Vec<_> = report.findings.iter().map(|found| (found.number, found.is_leftover)).collect();
            assert_eq!(found, [(number::DIRECTORY_TWICE, true); 2], "{}", text(&report));
        }
        let report = mend(&image);
        assert!(report.is_sound(), "{}", remaining(&report));
        assert_eq!(report.totals.directories, 5);
    }
}

/// Whatever came first was taken for one of a circle: without links it was freed, and what it held had no place any more.
#[test]
fn what_lies_below_a_circle_stays_there() {
    for shape in [SHAPE, SMALL] {
        for links in [0, 2] {
            let (_, actions) = strays(shape, |builder| {
                let body = builder.small_body();
                let below = builder.inode(0, 0o040755, body);
                let circle: [Ino; 2] = std::array::from_fn(|_| builder.inode(0, 0o040755, body));
                builder.link(circle[0], b"next", circle[1]);
                builder.link(circle[1], b"next", circle[0]);
                builder.link(circle[0], b"below", below);
                builder.file(below, b"file", 0, &[]);
                builder.node(below).raw.nlink.set(links);
            });
            assert!(actions.contains(&"moved 1 inodes to /lost+found".to_owned()), "{actions:?}");
        }
    }
}

/// Somebody had moved a file into lost+found, or a repair had before, under the name of a stray one. The stray got the same name, and no later repair
/// ended that.
#[test]
fn a_stray_takes_no_name_that_is_taken() {
    for shape in [SHAPE, SMALL] {
        let mut builder = Builder::new(shape);
        let body = builder.small_body();
        let home = builder.lost_and_found(body);
        let stray = builder.inode(0, 0o100644, 0);
        let directory = builder.inode(1, 0o040755, body);
        for name in [format!("#{stray}"), format!("#{stray}.1"), format!("#{directory}")] {
            builder.file(home, name.as_bytes(), 0, &[]);
        }
        builder.node(stray).raw.nlink.set(1);
        builder.node(directory).raw.nlink.set(2);
        let image = builder.finish();
        let report = mend(&image);
        assert!(report.is_sound(), "{}", remaining(&report));
        assert!(report.actions.contains(&"moved 2 inodes to /lost+found".to_owned()), "{:?}", report.actions);
        let again = mend(&image);
        assert!(again.finding_count == 0 && again.actions.is_empty(), "{:?}: {:?}", again.findings, again.actions);
    }
}

/// Users had taken a thousand names for the directory of strays: the repair ended with an error, and so did each one after it, while the volume stayed
/// marked as under repair and could not be changed by anybody.
#[test]
fn however_many_names_are_taken_there_is_one_for_strays() {
    for shape in [SHAPE, SMALL] {
        let mut builder = Builder::new(shape);
        let root = builder.root;
        let file = builder.file(root, b"lost+found", 0, &[]);
        for number in 1..1000 {
            builder.link(root, format!("lost+found.{number}").as_bytes(), file);
        }
        let stray = builder.inode(0, 0o100644, 0);
        builder.node(stray).raw.nlink.set(1);
        let image = builder.finish();
        let report = mend(&image);
        assert!(report.is_sound(), "{}", remaining(&report));
        assert!(report.actions.contains(&"moved 1 inodes to /lost+found.1000".to_owned()), "{:?}", report.actions);
    }
}

/// A directory of that name was taken whoever had made it: files from below a directory that only its owner may search lay where everybody could read and
/// remove them.
#[test]
fn strays_go_where_only_root_may_go() {
    for shape in [SHAPE, SMALL] {
        for (owner, mode, is_fit) in [
            (0, 0o700, true),
            (0, 0o744, true),
            (1000, 0o777, false),
            (1000, 0o700, false),
            (0, 0o711, false),
            (0, 0o720, false),
        ] {
            let mut builder = Builder::new(shape);
            let (root, body) = (builder.root, builder.small_body());
            let home = builder.dir(root, b"lost+found", 0, body);
            let raw = &mut builder.node(home).raw;
            raw.uid.set(owner);
            raw.mode.set(0o040000 | mode);
            let stray = builder.inode(0, 0o100644, 0);
            builder.node(stray).raw.nlink.set(1);
            let image = builder.finish();
            let report = mend(&image);
            assert!(report.is_sound(), "{}", remaining(&report));
            let place = if is_fit { "/lost+found" } else { "/lost+found.1" };
            assert!(
                report.actions.contains(&format!("moved 1 inodes to {place}")),
                "{owner} {mode:o}: {:?}",
                report.actions
            );
        }
    }
}

/// What a torn block names lies below its directory, also if the directory is a stray one: it came to lie beside it.
#[test]
fn what_a_torn_stray_names_stays_below_it() {
    let mut builder = Builder::new(SHAPE);
    let below = builder.inode(0, 0o040755, 0);
    let top = builder.inode(1, 0o040755, 0);
    let gone = builder.inode(0, 0o100644, 0);
    builder.link(top, b"gone", gone);
    builder.link(top, b"below", below);
    let image = builder.finish();
    let block = image.blocks_of(BlockKind::DirEntries, top.0)[0];
    image.change(block, |bytes| EntryHeader::read_mut(&mut bytes[64..]).name_len = 0);
    image.smash(block);
    let report = mend(&image);
    assert!(report.is_sound(), "{}", remaining(&report));
    assert!(report.actions.contains(&"moved 2 inodes to /lost+found".to_owned()), "{:?}", report.actions);
}

/// Blocks that a file has reserved may hold what was there before, inodes for instance: a search took them from the file.
#[test]
fn what_a_named_file_has_is_not_searched() {
    for shape in [SHAPE, SMALL] {
        let mut builder = Builder::new(shape);
        let root = builder.root;
        let file = builder.inode(0, 0o100644, 0);
        builder.link(root, b"file", file);
        builder.fill(file, 1, &[9]);
        builder.file(root, b"other", 1, &[1]);
        let image = builder.finish();
        let source = image.geometry.locate(file).unwrap().0;
        let start = crate::places::first_extent(&image.inode(file));
        crate::places::plant_inodes(&image, source, start.offset_by(3), 7 << 20);
        image.smash(image.header_block(1));
        let report = mend(&image);
        assert!(report.is_sound(), "{}", remaining(&report));
        assert_eq!(image.inode(file).block_total(), 9, "{:?}", report.actions);
    }
}
