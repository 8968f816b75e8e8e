//! What no name leads to: it comes back under lost+found, whatever it was, and all below it.

use crate::common::{Builder, SHAPE, SMALL, Shape, Worn};
use crate::remaining;
use myriad_check::{Options, check};
use myriad_format::Ino;

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
