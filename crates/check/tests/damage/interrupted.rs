//! Repairs that power failed: at any write, and with any of the writes since the last flush lost.

use crate::common::{Builder, SHAPE, SMALL, Shape, sample};
use crate::{cases, remaining};
use myriad_check::{Options, check};
use myriad_device::{
    BlockDevice, CrashImages, Event, FaultDevice, FaultOp, FaultSpan, MemoryDevice, OverlayDevice, RecordingDevice,
};
use myriad_engine::{Cred, Fs, MountOptions, Session};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Entries, directories, inodes and blocks of contents after a repair.
fn held(device: Arc<dyn BlockDevice>) -> [u64; 4] {
    let options = Options { repair: true, scrub: true, now: 5, ..Options::default() };
    let report = check(device, None, &options).expect("the volume can be repaired");
    assert!(report.is_sound(), "{}", remaining(&report));
    let totals = report.totals;
    [totals.entries, totals.directories, totals.inodes, report.scrub.expect("asked for").data_blocks]
}

/// Power lost in a repair costs nothing that the repair would have kept: what is written in place can be found again, and
/// what is derived is durable before what it is derived from goes.
#[test]
fn a_repair_cut_short_costs_nothing() {
    let mut failed = Vec::new();
    let mut cuts = 0;
    for shape in [SHAPE, SMALL] {
        for case in cases() {
            let sample = sample(shape);
            (case.damage)(&sample);
            let clone = || Arc::new(sample.image.device.clone_image());
            let whole = held(clone());
            // Each of the first writes, then fewer.
            for nth in (1..).map(|cut: usize| if cut <= 12 { cut } else { 12 + (cut - 12) * (cut - 12) }) {
                let image = clone();
                let device = Arc::new(FaultDevice::new(Arc::clone(&image)));
                device.fail(FaultOp::Write, nth as u64, FaultSpan::Forever, 5);
                let options = Options { repair: true, now: 5, threads: 1, ..Options::default() };
                if check(device, None, &options).is_ok() {
                    break;
                }
                cuts += 1;
                let after = held(image);
                // A volume that looks whole again keeps its orphans for the engine.
                if after.iter().zip(whole).any(|(after, whole)| *after < whole) {
                    let place = format!("{} ({}-byte blocks), write {nth}", case.name, shape.block_size);
                    failed.push(format!("{place}: {after:?} instead of {whole:?}"));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} of {cuts} failed\n{}", failed.len(), failed.join("\n"));
    assert!(cuts > 1000, "{cuts}");
}

/// The magics of the blocks that were written, each once; one of a write of anything else, too.
fn kinds(events: &[Event]) -> BTreeSet<u32> {
    events.iter().map(kind).collect()
}

fn kind(event: &Event) -> u32 {
    match event {
        Event::Write { bytes, .. } => u32::from_le_bytes(bytes[..4].try_into().unwrap()),
        Event::Flush | Event::Discard { .. } => 0,
    }
}

/// Repairs, with a power cut before each flush and at the end: of what was written since the flush before, all blocks of one
/// kind are lost, or all of the others. Calls `judge` with what each cut leaves.
fn cut_each_flush(device: &MemoryDevice, mut judge: impl FnMut(OverlayDevice, String)) {
    let base = device.clone_image();
    let recorder = Arc::new(RecordingDevice::new(device.clone_image()));
    let options = Options { repair: true, now: 5, threads: 1, ..Options::default() };
    check(recorder.clone(), None, &options).expect("the volume can be repaired");
    let images = CrashImages::new(Arc::new(base), recorder.take());
    let ends = (0..images.point_max()).filter(|&at| images.trace()[at] == Event::Flush).chain([images.point_max()]);
    for end in ends.collect::<Vec<_>>() {
        let events = &images.trace()[images.unflushed(end)];
        for lost in kinds(events) {
            for is_kept in [false, true] {
                let keep = events.iter().map(|event| (kind(event) == lost) == is_kept);
                let image = images.subset(end, keep, None).unwrap();
                judge(image, format!("{lost:#x} {}, event {end}", if is_kept { "alone" } else { "lost" }));
            }
        }
    }
}

/// As [`a_repair_cut_short_costs_nothing`], with a device that keeps what it was given in a volatile cache.
#[test]
fn what_the_cache_of_the_device_loses_costs_nothing() {
    let mut failed = Vec::new();
    let mut cuts = 0;
    for shape in [SHAPE, SMALL] {
        for case in cases() {
            let sample = sample(shape);
            (case.damage)(&sample);
            let whole = held(Arc::new(sample.image.device.clone_image()));
            cut_each_flush(&sample.image.device, |image, what| {
                cuts += 1;
                let after = held(Arc::new(image));
                if after.iter().zip(whole).any(|(after, whole)| *after < whole) {
                    let place = format!("{} ({}-byte blocks), {what}", case.name, shape.block_size);
                    failed.push(format!("{place}: {after:?} instead of {whole:?}"));
                }
            });
        }
    }
    assert!(failed.is_empty(), "{} of {cuts} failed\n{}", failed.len(), failed.join("\n"));
    assert!(cuts > 1000, "{cuts}");
}

/// Every path below the root, as the engine lists it.
fn paths(device: Arc<dyn BlockDevice>) -> BTreeSet<String> {
    fn list(session: &Session, directory: &str, paths: &mut BTreeSet<String>) {
        for entry in session.read_dir(directory).expect("a directory") {
            let entry = entry.expect("an entry");
            let name = String::from_utf8(entry.name.clone()).expect("an ASCII name");
            if name != "." && name != ".." {
                let path = format!("{}/{name}", directory.trim_end_matches('/'));
                if session.lstat(&*path).expect("what has a name").is_dir() {
                    list(session, &path, paths);
                }
                paths.insert(path);
            }
        }
    }
    let options = MountOptions { read_only: true, background: false, cache_size: 32 << 20, ..MountOptions::default() };
    let fs = Fs::open_device(device, None, options).expect("a sound volume");
    let mut found = BTreeSet::new();
    list(&fs.session(Cred::root()), "/", &mut found);
    found
}

/// Builds a volume whose repair has to write a directory's names elsewhere, and wants each path to be there after each cut.
fn keeps_its_paths(shape: Shape, build: impl FnOnce(&mut Builder)) {
    let mut builder = Builder::new(shape);
    build(&mut builder);
    let image = builder.finish();
    let repaired = |device: Arc<dyn BlockDevice>| {
        held(device.clone());
        paths(device)
    };
    let whole = repaired(Arc::new(image.device.clone_image()));
    let mut cuts = 0;
    cut_each_flush(&image.device, |cut, what| {
        cuts += 1;
        let after = repaired(Arc::new(cut));
        let lost: Vec<&String> = whole.difference(&after).collect();
        assert!(lost.is_empty(), "{what}: lost {lost:?}, left {after:?}");
    });
    assert!(cuts > 10, "{cuts}");
}

/// A stray needed a lost+found, for which the root's names moved from its inode into a block; the inode could arrive without
/// it, and none of them was left.
#[test]
fn names_that_move_out_of_an_inode_are_durable_first() {
    for shape in [SHAPE, SMALL] {
        keeps_its_paths(shape, |builder| {
            let root = builder.root;
            for name in ["a", "b", "c"] {
                builder.dir(root, name.as_bytes(), 0, 0);
            }
            let stray = builder.inode(0, 0o100644, 0);
            builder.node(stray).raw.nlink.set(1);
        });
    }
}
