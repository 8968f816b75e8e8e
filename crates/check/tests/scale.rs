//! Time at a million inodes. Not part of the usual run: `cargo test -p myriad-check --release --test scale --
//! --ignored --nocapture`.

mod common;

use common::{Builder, SHAPE, Shape};
use myriad_check::{Options, check};
use std::time::Instant;

#[test]
#[ignore = "takes a minute"]
fn a_million_inodes() {
    let shape = Shape {
        block_size: 4096,
        ag_blocks: 1 << 16,
        region_blocks: 1 << 13,
        block_count: 4 << 16,
        ag_used: 4,
        log_blocks: 64,
        ..SHAPE
    };
    let mut b = Builder::new(shape);
    b.leaf_limit = 180;
    let root = b.root;
    for directory in 0..40_u32 {
        let parent = b.dir(root, format!("directory {directory}").as_bytes(), directory % 4, 0);
        for file in 0..25_000 {
            b.file(parent, format!("file number {file}").as_bytes(), directory % 4, &[]);
        }
    }
    let image = b.finish();
    for threads in [1, 2] {
        let start = Instant::now();
        let report = check(image.device.clone(), None, &Options { threads, ..Options::default() }).unwrap();
        assert_eq!(report.finding_count, 0, "{:?}", report.findings.first());
        println!("{threads} threads: {:?} for {} inodes", start.elapsed(), report.totals.inodes);
    }
    image.change_group(2, |head| head.free_blocks.set(1));
    let start = Instant::now();
    let report = check(image.device.clone(), None, &Options { repair: true, ..Options::default() }).unwrap();
    assert!(report.is_sound());
    println!("look, repair, look: {:?}", start.elapsed());
}
