//! Volumes whose blocks have fragments: how much room files take, how they grow, and what a full volume promises.

mod in_memory;

use in_memory::{CREATE, formatted, mount, open};
use myriad_device::{BlockDevice, DeviceCounters, MemoryDevice};
use myriad_engine::{AllocateMode, CreateWith, Cred, Errno, File, Fs, MkfsOptions, Order, XattrMode};
use myriad_format::choices::Profile;
use myriad_sim::rng::{self, Rng};
use myriad_trials::verdict::check_silent;
use std::sync::Arc;

const ORDERS: [Order; 4] = [Order::Log, Order::None, Order::Sync, Order::Soft];
/// A fragment, in the tests that say nothing else.
const FRAGMENT: u64 = 512;
const BLOCK: u64 = 8 * FRAGMENT;

fn mkfs(block_size: u32, fragments: u32, order: Order) -> MkfsOptions {
    let choices = Profile::parse("ffs").unwrap().choices;
    MkfsOptions { block_size, fragments, choices, order, ..MkfsOptions::default() }
}

/// Closes the volume, which must be sound then, and opens it again.
fn again(device: &Arc<MemoryDevice>, fs: Fs) -> Fs {
    fs.close().unwrap();
    check_silent(&device.clone().into()).unwrap();
    mount(device)
}

/// Fragments that a file takes once it has been flushed.
fn taken(file: &File) -> u64 {
    file.sync().unwrap();
    file.stat().unwrap().blocks * 512 / FRAGMENT
}

fn content(seed: u64, length: u64) -> Vec<u8> {
    (0..length).map(|at| (at / 3 + seed * 7) as u8 | 1).collect()
}

fn assert_holds(file: &File, expected: &[u8], what: &str) {
    let mut found = vec![0xee; expected.len() + 1];
    assert_eq!(file.read_at(&mut found, 0).unwrap(), expected.len(), "{what}");
    let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "{what}");
}

#[test]
fn a_small_file_takes_the_fragments_it_needs_and_a_large_one_whole_blocks() {
    for order in ORDERS {
        let (device, fs) = formatted(16 << 20, &mkfs(4096, 8, order));
        for (length, fragments) in [
            (1, 1),
            (FRAGMENT, 1),
            (FRAGMENT + 1, 2),
            (BLOCK, 8),
            (BLOCK + 1, 9),
            (12 * BLOCK - 1, 96),
            // Behind the direct pointers: a whole block, and one of pointers.
            (12 * BLOCK + 1, 96 + 8 + 1),
            (14 * BLOCK + 5, 96 + 24 + 1),
        ] {
            let file = open(&fs, &format!("of {length}"));
            file.write_at(&content(length, length), 0).unwrap();
            assert_eq!(taken(&file), fragments, "{length} bytes, {order:?}");
        }
        let fs = again(&device, fs);
        for length in [1, FRAGMENT + 1, BLOCK + 1, 12 * BLOCK + 1] {
            assert_holds(&open(&fs, &format!("of {length}")), &content(length, length), "after it was opened again");
        }
        again(&device, fs).close().unwrap();
    }
}

#[test]
fn a_file_grows_where_it_is_or_moves_and_shrinks_to_what_it_needs() {
    for order in ORDERS {
        let (device, fs) = formatted(16 << 20, &mkfs(4096, 8, order));
        // Two files that grow in turn: of the second one's growth some finds the first one in its way.
        let names = ["one", "two"];
        let mut lengths = [0, 0];
        for step in 1..40 {
            for (which, name) in names.into_iter().enumerate() {
                let file = open(&fs, name);
                let more = 100 + step * 31 % 700;
                let all = content(which as u64, lengths[which] + more);
                file.write_at(&all[lengths[which] as usize..], lengths[which]).unwrap();
                lengths[which] += more;
                assert_eq!(taken(&file), lengths[which].div_ceil(FRAGMENT), "{name} at {}", lengths[which]);
                assert_holds(&file, &all, name);
            }
        }
        for length in [9000, BLOCK + 1, BLOCK, 2000, FRAGMENT, 1, 0] {
            let file = open(&fs, "one");
            file.truncate(length).unwrap();
            assert_eq!(taken(&file), length.div_ceil(FRAGMENT), "cut to {length}");
            assert_holds(&file, &content(0, lengths[0])[..length as usize], "what is left");
        }
        // Cut, and longer again: what comes is zeros.
        let file = open(&fs, "two");
        file.truncate(1000).unwrap();
        file.truncate(9000).unwrap();
        let mut expected = content(1, 1000);
        expected.resize(9000, 0);
        assert_holds(&file, &expected, "longer again");
        drop(file);
        let fs = again(&device, fs);
        assert_holds(&open(&fs, "two"), &expected, "longer again, opened again");
        fs.close().unwrap();
    }
}

#[test]
fn holes_are_whole_blocks_and_what_nobody_wrote_is_zeros() {
    let (device, fs) = formatted(16 << 20, &mkfs(4096, 8, Order::Soft));
    let file = open(&fs, "sparse");
    // A fragment in the middle of a block that has others behind it, and one behind the direct pointers.
    let far = 20 * BLOCK + 3 * FRAGMENT;
    file.write_at(&[7; 512], far).unwrap();
    file.write_at(&[8; 512], 2 * BLOCK + 5 * FRAGMENT).unwrap();
    assert_eq!(taken(&file), 8 + 8 + 1);
    let mut expected = vec![0; far as usize + 512];
    expected[far as usize..].fill(7);
    expected[(2 * BLOCK + 5 * FRAGMENT) as usize..][..512].fill(8);
    assert_holds(&file, &expected, "sparse");
    // What is punched before the end of a run reads as zeros, and stays.
    file.write_at(&content(3, 3 * BLOCK), 0).unwrap();
    expected[..3 * BLOCK as usize].copy_from_slice(&content(3, 3 * BLOCK));
    assert_eq!(taken(&file), 24 + 8 + 1);
    file.allocate(AllocateMode::Punch, FRAGMENT, 6 * FRAGMENT).unwrap();
    expected[512..7 * 512].fill(0);
    assert_eq!(taken(&file), 24 + 8 + 1);
    assert_holds(&file, &expected, "a part of a block punched");
    file.allocate(AllocateMode::Punch, 100, 2 * BLOCK).unwrap();
    expected[100..2 * BLOCK as usize + 100].fill(0);
    assert_eq!(taken(&file), 1 + 8 + 8 + 1, "the end of a run went, and a whole block");
    assert_holds(&file, &expected, "a block punched");
    drop(file);
    let fs = again(&device, fs);
    assert_holds(&open(&fs, "sparse"), &expected, "opened again");
    fs.close().unwrap();
}

/// What is reserved is as long as was asked for, takes the place of a run that cannot grow where it is, and keeps its content.
#[test]
fn space_reserved_behind_a_short_run_moves_it_with_its_content() {
    let (device, fs) = formatted(16 << 20, &mkfs(4096, 8, Order::Soft));
    let files: Vec<File> = (0..6).map(|number| open(&fs, &format!("file {number}"))).collect();
    for (number, file) in files.iter().enumerate() {
        file.write_at(&content(number as u64, 700), 0).unwrap();
        assert_eq!(taken(file), 2);
    }
    for (number, file) in files.iter().enumerate() {
        let (length, fragments) = if number % 2 == 0 { (7 * FRAGMENT, 7) } else { (3 * BLOCK + 5, 25) };
        file.allocate(AllocateMode::KeepSize, 600, length - 600).unwrap();
        assert_eq!(taken(file), fragments, "file {number}");
        assert_holds(file, &content(number as u64, 700), "reserved behind it");
    }
    drop(files);
    let fs = again(&device, fs);
    for number in 0..6 {
        assert_holds(&open(&fs, &format!("file {number}")), &content(number, 700), "opened again");
    }
    fs.close().unwrap();
}

/// Files of all lengths until there is no room, some removed, again and again: what a write was promised has its place at the flush, whatever parts
/// of blocks are free.
#[test]
fn a_full_volume_refuses_before_it_changes_anything() {
    for seed in rng::seed_or(1)..rng::seed_or(1) + rng::number("MYRIAD_RUNS").unwrap_or(2) {
        for order in ORDERS {
            let mut rng = Rng::new(seed);
            let small = MkfsOptions { bytes_per_inode: 1024, ..mkfs(4096, 8, order) };
            let (device, mut fs) = formatted(4 << 20, &small);
            let mut lengths: Vec<(u64, u64)> = Vec::new();
            let mut refusals = 0;
            for number in 0..1500_u64 {
                let session = fs.session(Cred::root());
                let length = if rng.percent(10) { rng.below(20 * BLOCK) } else { rng.below(2 * BLOCK) } + 1;
                match session.open(&format!("{number}"), CREATE) {
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::NOSPC, "{error}");
                        refusals += 1;
                    }
                    Ok(file) => {
                        let done = match file.write_at(&content(number, length), 0) {
                            Ok(done) => done as u64,
                            Err(error) => {
                                assert_eq!(error.errno(), Errno::NOSPC, "{error}");
                                refusals += 1;
                                0
                            }
                        };
                        // What was accepted is never refused later.
                        if rng.percent(30) {
                            file.sync().unwrap();
                        }
                        lengths.push((number, done));
                    }
                }
                if refusals % 10 == 9 {
                    refusals += 1;
                    for _ in 0..lengths.len() / 4 {
                        let (gone, _) = lengths.swap_remove(rng.below(lengths.len() as u64) as usize);
                        session.unlink(&format!("{gone}")).unwrap();
                    }
                }
                drop(session);
                if number % 500 == 499 {
                    fs = again(&device, fs);
                }
            }
            assert!(refusals > 5, "seed {seed}, {order:?}: {refusals}");
            for (number, length) in lengths {
                assert_holds(&open(&fs, &format!("{number}")), &content(number, length), &format!("file {number}"));
            }
            again(&device, fs).close().unwrap();
        }
    }
}

/// Files of one fragment each, until more are free in parts of blocks nowhere: the next one, and the next block of metadata, take the first fragment of a
/// block that is free as a whole.
#[test]
fn a_block_is_broken_where_no_part_is_free() {
    for order in ORDERS {
        let (device, fs) = formatted(8 << 20, &mkfs(4096, 8, order));
        let session = fs.session(Cred::root());
        // Those that `df` shows as free and not as available: the parts, and what is held back.
        let parts = || {
            fs.sync().unwrap();
            fs.statfs().unwrap().free_blocks % 8
        };
        let (mut broken_by_files, mut broken_by_attributes) = (0, 0);
        for number in 0..40 {
            let name = format!("{number}");
            let is_broken = parts() == 0;
            let free = fs.statfs().unwrap().free_blocks;
            let file = session.open(&name, CREATE).unwrap();
            if number % 2 == 0 {
                file.write_at(&content(number, 100), 0).unwrap();
                assert_eq!(taken(&file), 1, "{order:?}");
                broken_by_files += u32::from(is_broken);
            } else {
                session.set_xattr(&name, b"user.long", &[b'v'; 400], XattrMode::Set).unwrap();
                fs.sync().unwrap();
                broken_by_attributes += u32::from(is_broken);
            }
            assert!(fs.statfs().unwrap().free_blocks < free, "{order:?}, file {number}");
        }
        assert!(broken_by_files > 1 && broken_by_attributes > 1, "{order:?}: {broken_by_files} {broken_by_attributes}");
        drop(session);
        again(&device, fs).close().unwrap();
    }
}

/// What files of 700 bytes cost to make, and to make longer by 500 bytes three times: writes and bytes, of data and metadata (docs/design/fragments.md).
#[test]
fn small_files_cost_fewer_bytes_with_fragments() {
    let mut bytes = Vec::new();
    for (block_size, fragments) in [(4096, 1), (4096, 8), (512, 1)] {
        let (device, fs) = formatted(32 << 20, &mkfs(block_size, fragments, Order::Soft));
        fs.sync().unwrap();
        let files = (0..200).map(|number| {
            let file = open(&fs, &format!("{number}"));
            file.write_at(&content(number, 700), 0).unwrap();
            file
        });
        let start = device.counters();
        let files: Vec<File> = files.collect();
        fs.sync().unwrap();
        let made = device.counters();
        for step in 0..3 {
            for (number, file) in files.iter().enumerate() {
                file.write_at(&content(number as u64, 500), 700 + step * 500).unwrap();
            }
            fs.sync().unwrap();
        }
        let longer = device.counters();
        let since =
            |to: DeviceCounters, from: DeviceCounters| (to.writes - from.writes, to.written_bytes - from.written_bytes);
        let (make, grow) = (since(made, start), since(longer, made));
        println!("{block_size} / {fragments}: made {make:?}, longer {grow:?}");
        bytes.push((make.1, grow.1));
    }
    let [whole, with_fragments, small] = bytes[..] else { unreachable!("three kinds of volumes") };
    assert!(with_fragments.0 < whole.0 && with_fragments.1 < whole.1, "{bytes:?}");
    assert!(with_fragments.0 < 2 * small.0 && with_fragments.1 < 2 * small.1, "{bytes:?}");
}

/// A file that is made whole with its content has it, also where it lies behind pointers.
#[test]
fn a_file_made_with_its_content_has_it() {
    for (order, fragments) in ORDERS.into_iter().flat_map(|order| [(order, 1), (order, 8)]) {
        let (device, fs) = formatted(16 << 20, &mkfs(512 * fragments, fragments, order));
        for length in [1, 700, 5000, BLOCK, 13 * BLOCK + 5, 200_000] {
            let session = fs.session(Cred::root());
            let root = session.resolve("/").unwrap();
            let content = content(length, length);
            let new = CreateWith { mode: 0o644, content: &content, ..CreateWith::default() };
            session.create_with(root, format!("of {length}").as_bytes(), &new).unwrap();
        }
        let fs = again(&device, fs);
        for length in [1, 700, 5000, BLOCK, 13 * BLOCK + 5, 200_000] {
            assert_holds(
                &open(&fs, &format!("of {length}")),
                &content(length, length),
                &format!("{length}, {order:?}"),
            );
        }
        fs.close().unwrap();
    }
}

#[test]
fn what_cannot_have_fragments_is_refused_with_the_reason() {
    let refused = |mkfs: MkfsOptions, why: &str| {
        let error = Fs::format_device(Arc::new(MemoryDevice::new(16 << 20)), None, &mkfs).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(MkfsOptions { fragments: 8, ..MkfsOptions::default() }, "map=blockmap");
    refused(MkfsOptions { data_checksums: true, ..mkfs(4096, 8, Order::Log) }, "data-checksums");
    refused(mkfs(2048, 8, Order::Log), "at least 4096");
    refused(mkfs(4096, 3, Order::Log), "none of 1, 2, 4, 8");
    let mut trees = mkfs(4096, 8, Order::Log);
    trees.choices.space = myriad_format::choices::Space::Trees;
    refused(trees, "space=bitmap");
}
