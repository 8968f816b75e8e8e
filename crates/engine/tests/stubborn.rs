//! Something that cannot be written or freed: nobody else is kept waiting for it, and nothing is lost.

use myriad_check::{Options, check};
use myriad_device::{BlockDevice, FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_engine::{
    AllocateMode, Allocation, Cred, DirHash, Errno, Error, Fs, MkfsOptions, MountOptions, OpenOptions, Order,
    RenameMode, Session, XattrMode,
};
use myriad_format::btree::NodeHeader;
use myriad_format::choices::Inodes;
use myriad_format::inode::RawInode;
use myriad_format::superblock::Superblock;
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use myriad_format::{BlockHeader, BlockKind, FsBlock, Ino, header};
use std::sync::Arc;

const BLOCK: u64 = 4096;
const WRITE: OpenOptions = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };

fn open(device: &Arc<MemoryDevice>) -> Fs {
    let options = MountOptions { background: false, commit_interval_ms: 0, ..MountOptions::default() };
    Fs::open_device(device.clone(), None, options).unwrap()
}

/// A volume with a file of many extents, closed.
fn with_pieces() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions { seed: Some(7), ..MkfsOptions::default() }).unwrap();
    let fs = open(&device);
    let file = fs.session(Cred::root()).open("pieces", WRITE).unwrap();
    for piece in 0..600 {
        file.write_at(&[1; BLOCK as usize], 2 * piece * BLOCK).unwrap();
    }
    drop(file);
    fs.close().unwrap();
    device
}

/// Scratches the leaves of the tree that maps the file.
fn scratch_leaves(device: &MemoryDevice) {
    let mut bytes = vec![0; BLOCK as usize];
    let mut scratched = 0;
    for offset in (0..device.size()).step_by(BLOCK as usize) {
        device.read(offset, &mut bytes).unwrap();
        let block = BlockHeader::read(&bytes);
        let is_node = block.magic.get() == BlockKind::ExtentTree.magic() && block.address.get() == offset / BLOCK;
        if is_node && NodeHeader::read(&bytes).level == 0 {
            bytes[BLOCK as usize - 1] ^= 1;
            device.write(offset, &bytes).unwrap();
            scratched += 1;
        }
    }
    assert!(scratched > 1);
}

fn names(device: &Arc<MemoryDevice>) -> Vec<String> {
    let fs = open(device);
    let session = fs.session(Cred::root());
    session.read_dir("/").unwrap().map(|entry| String::from_utf8(entry.unwrap().name.to_vec()).unwrap()).collect()
}

/// As long as one file could not be flushed, nothing that anybody did was committed, not even when the volume was closed.
#[test]
fn a_file_that_cannot_be_flushed_keeps_no_others_from_the_log() {
    for how in ["sync", "close", "drop"] {
        let device = with_pieces();
        scratch_leaves(&device);
        let fs = open(&device);
        let session = fs.session(Cred::root());
        let file = session.open("pieces", WRITE).unwrap();
        file.write_at(&[2; 4 * BLOCK as usize], 0).unwrap();
        drop(file);
        session.create("other", 0o600).unwrap();
        drop(session);
        let mut image = None;
        match how {
            "sync" => {
                assert!(fs.sync().is_err(), "the file is told of");
                image = Some(Arc::new(device.clone_image()));
            }
            "close" => assert!(fs.close().is_err()),
            _ => drop(fs),
        }
        assert!(names(&image.unwrap_or(device)).contains(&"other".to_owned()), "{how}");
    }
}

/// A removed file whose map was damaged could not be freed, and the volume not be opened to be changed.
#[test]
fn an_orphan_that_cannot_be_freed_keeps_nobody_out() {
    let device = with_pieces();
    let fs = open(&device);
    let session = fs.session(Cred::root());
    let held = session.open("pieces", WRITE).unwrap();
    session.unlink("pieces").unwrap();
    fs.sync().unwrap();
    let image = Arc::new(device.clone_image());
    drop((held, session, fs));
    scratch_leaves(&image);
    for name in ["first", "second"] {
        let fs = open(&image);
        fs.session(Cred::root()).create(name, 0o600).unwrap();
        fs.close().unwrap();
    }
    assert_eq!(names(&image), ["first", "second"]);
    // For whoever repairs it, it is still there.
    let options = Options { repair: true, threads: 1, ..Options::default() };
    let report = check(image.clone(), None, &options).unwrap();
    assert!(report.finding_count > 0 && report.is_sound(), "{:#?}", report.remaining);
    assert_eq!(names(&image), ["first", "second"]);
}

/// A volume that had not been closed was opened with order none. What the log had as freed went to the trees before the log was
/// empty: with the power lost in between, it was laid over them and freed again.
#[test]
fn a_log_that_is_given_up_half_way_is_as_good_as_before() {
    let device = with_pieces();
    let fs = open(&device);
    let session = fs.session(Cred::root());
    for number in 0..20 {
        session.create(&format!("file {number}"), 0o600).unwrap();
    }
    fs.sync().unwrap();
    session.unlink("pieces").unwrap();
    session.unlink("file 3").unwrap();
    fs.sync().unwrap();
    let crashed = device.clone_image();
    drop((session, fs));
    let mut unchecked = 0;
    for nth in 1.. {
        let failing = Arc::new(FaultDevice::new(crashed.clone_image()));
        failing.fail(FaultOp::Write, nth, FaultSpan::Forever, Errno::IO.raw_os_error());
        let options = MountOptions { background: false, order: Some(Order::None), ..MountOptions::default() };
        let opened = Fs::open_device(failing.clone(), None, options);
        let is_last = opened.is_ok_and(|fs| fs.sync().is_ok());
        let image = Arc::new(failing.inner().clone_image());
        let options = MountOptions { background: false, ..MountOptions::default() };
        if matches!(Fs::open_device(Arc::new(image.clone_image()), None, options), Err(Error::Unchecked)) {
            // The log is given up: what has been done since promises nothing.
            let options = Options { repair: true, threads: 1, ..Options::default() };
            let report = check(image.clone(), None, &options).unwrap();
            assert!(report.is_sound(), "{nth}: {:#?}", report.remaining);
            unchecked += 1;
        }
        assert_eq!(names(&image).len(), 19, "write {nth}");
        let fs = open(&image);
        let session = fs.session(Cred::root());
        session.unlink("file 4").unwrap();
        session.create("new", 0o600).unwrap();
        drop(session);
        fs.close().unwrap();
        let report = check(image, None, &Options { threads: 1, ..Options::default() }).unwrap();
        // What was to be released may be in no tree, with the counts that go with it.
        let is_leak =
            |name: &str| matches!(name, "block-leaked" | "group-free-count" | "volume-count" | "region-summary");
        assert!(report.findings.iter().all(|finding| is_leak(finding.kind().name)), "{nth}: {:#?}", report.findings);
        if is_last {
            assert!(nth > 3 && (1..nth).contains(&unchecked), "{unchecked} of {nth}");
            break;
        }
    }
}

/// Scratches those blocks of a kind that `pick` chooses; how many it were.
fn scratch(device: &MemoryDevice, kind: BlockKind, mut pick: impl FnMut(FsBlock, &[u8]) -> bool) -> usize {
    let mut bytes = vec![0; BLOCK as usize];
    let mut scratched = 0;
    for number in 0..device.size() / BLOCK {
        device.read(number * BLOCK, &mut bytes).unwrap();
        if BlockKind::of(&bytes) == Some(kind) && pick(FsBlock(number), &bytes) {
            // Where a block of units has none of its checksums.
            bytes[BLOCK as usize - 9] ^= 1;
            bytes[BLOCK as usize / 2 + 24] ^= 1;
            device.write(number * BLOCK, &bytes).unwrap();
            scratched += 1;
        }
    }
    scratched
}

/// Where blocks of a kind lie.
fn blocks_of(device: &MemoryDevice, kind: BlockKind) -> Vec<FsBlock> {
    let mut found = Vec::new();
    scratch(&device.clone_image(), kind, |block, _| {
        found.push(block);
        false
    });
    found
}

/// A volume of 64 MiB, made with `options`, on which `fill` was done; closed.
fn made(options: &MkfsOptions, fill: impl FnOnce(&Session)) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions { seed: Some(7), ..options.clone() }).unwrap();
    let fs = open(&device);
    fill(&fs.session(Cred::root()));
    fs.close().unwrap();
    device
}

/// Profile `ffs`: maps of pointers, a table of inodes, bitmaps.
fn ffs() -> MkfsOptions {
    let choices = myriad_trials::table::select("profile=ffs").unwrap()[0].choices;
    MkfsOptions { choices, ..MkfsOptions::default() }
}

/// That a volume that was opened is as good as before but for what is damaged: others go on, now and after each opening.
fn goes_on(image: &Arc<MemoryDevice>, fs: Fs) {
    fs.session(Cred::root()).create("beside", 0o600).unwrap();
    fs.sync().unwrap();
    fs.session(Cred::root()).create("beside it", 0o600).unwrap();
    fs.sync().unwrap();
    fs.close().unwrap();
    for name in ["first", "second"] {
        let fs = open(image);
        fs.session(Cred::root()).create(name, 0o600).unwrap();
        fs.sync().unwrap();
        fs.close().unwrap();
    }
    for name in ["beside", "beside it", "first", "second"] {
        assert!(names(image).contains(&name.to_owned()), "{name}");
    }
}

fn is_sound_after_repair(image: &Arc<MemoryDevice>) {
    let options = Options { repair: true, threads: 1, ..Options::default() };
    let report = check(image.clone(), None, &options).unwrap();
    assert!(report.is_sound(), "{:#?}", report.remaining);
}

/// Scratches all leaves of the tree that maps the file but the first one.
fn scratch_later_leaves(device: &MemoryDevice) {
    let first_key = |bytes: &[u8]| u64::from_le_bytes(bytes[NodeHeader::SIZE..][..8].try_into().unwrap());
    let is_leaf = |bytes: &[u8]| NodeHeader::read(bytes).level == 0;
    let mut least = u64::MAX;
    scratch(device, BlockKind::ExtentTree, |_, bytes| {
        least = if is_leaf(bytes) { least.min(first_key(bytes)) } else { least };
        false
    });
    let later = scratch(device, BlockKind::ExtentTree, |_, bytes| is_leaf(bytes) && first_key(bytes) > least);
    assert!(later > 1);
}

/// Of a long append the second part was taken, and then could not be given blocks. It was answered as if the first part were all: whoever appended the rest
/// again had it twice. What is written at a place may be written there again.
#[test]
fn an_append_that_cannot_be_flushed_is_not_answered_as_a_shorter_one() {
    // Bytes that a long write takes at a time; and where in the file a block of pointers begins.
    const PART: u64 = 4 << 20;
    const DAMAGED: u64 = (12 + 3 * 8 * 62) * BLOCK;
    // Not of the choices of `ffs`: with those the whole map is looked at first, for what softdep may have left.
    let choices = myriad_trials::table::select("inodes=static,map=blockmap").unwrap()[0].choices;
    let made = made(&MkfsOptions { choices, ..MkfsOptions::default() }, |session| {
        let file = session.open("log", WRITE).unwrap();
        file.truncate(DAMAGED - PART).unwrap();
        file.allocate(AllocateMode::KeepSize, DAMAGED, BLOCK).unwrap();
    });
    // Of the two there are, the one with a pointer to a block that is unwritten.
    let leads_to_data = |bytes: &[u8]| {
        let mut pointers = bytes.chunks(UNIT_SIZE).flat_map(|unit| unit[UnitHeader::SIZE..].chunks(8));
        pointers.any(|pointer| pointer[7] & 0x80 != 0)
    };
    assert_eq!(scratch(&made, BlockKind::Pointers, |_, bytes| leads_to_data(bytes)), 1);
    for append in [true, false] {
        let options = MountOptions { background: false, allocation: Allocation::AtWrite, ..MountOptions::default() };
        let fs = Fs::open_device(Arc::new(made.clone_image()), None, options).unwrap();
        let file = fs.session(Cred::root()).open("log", OpenOptions { append, ..WRITE }).unwrap();
        let answer = file.write_at(&vec![7; 2 * PART as usize], DAMAGED - PART);
        assert_eq!((fs.shut_down_reason(), file.stat().unwrap().size), (None, DAMAGED + PART));
        match answer {
            Err(Error::Corrupt(_)) if append => {}
            Ok(written) if !append => assert_eq!(written as u64, PART),
            answer => panic!("append {append}: {answer:?}"),
        }
    }
}

/// One leaf of a file's map that could not be read: whoever removed the file had the volume shut down, and so had every opening after
/// that, which was to free the rest of the file.
#[test]
fn a_file_of_which_only_a_part_can_be_freed_is_removed() {
    let device = with_pieces();
    scratch_later_leaves(&device);
    let fs = open(&device);
    fs.session(Cred::root()).unlink("pieces").unwrap();
    goes_on(&device, fs);
    assert!(!names(&device).contains(&"pieces".to_owned()));
    is_sound_after_repair(&device);
}

#[test]
fn a_file_of_which_only_a_part_can_be_cut_has_its_new_size() {
    for size in [0, 2 * BLOCK] {
        let device = with_pieces();
        scratch_later_leaves(&device);
        let fs = open(&device);
        let file = fs.session(Cred::root()).open("pieces", OpenOptions::READ_WRITE).unwrap();
        file.truncate(size).unwrap();
        assert_eq!(file.stat().unwrap().size, size);
        drop(file);
        goes_on(&device, fs);
        is_sound_after_repair(&device);
    }
}

/// The same with a map of pointers.
#[test]
fn a_map_of_pointers_of_which_only_a_part_can_be_freed_is_no_end() {
    let device = made(&ffs(), |session| {
        session.write("long", vec![1; 1200 * BLOCK as usize]).unwrap();
        session.write("short", vec![1; 40 * BLOCK as usize]).unwrap();
    });
    let blocks = blocks_of(&device, BlockKind::Pointers);
    assert!(blocks.len() > 3);
    for bad in blocks {
        for is_cut in [false, true] {
            let image = Arc::new(device.clone_image());
            assert_eq!(scratch(&image, BlockKind::Pointers, |block, _| block == bad), 1);
            let fs = open(&image);
            let session = fs.session(Cred::root());
            for name in ["long", "short"] {
                if is_cut {
                    let file = session.open(name, OpenOptions::READ_WRITE).unwrap();
                    let _ = file.truncate(BLOCK);
                } else {
                    session.unlink(name).unwrap();
                }
            }
            drop(session);
            goes_on(&image, fs);
            is_sound_after_repair(&image);
        }
    }
}

/// The chain of attributes was read when the file's blocks had been freed already.
#[test]
fn a_file_whose_attributes_cannot_be_read_is_removed() {
    let device = made(&MkfsOptions::default(), |session| {
        for name in ["gone", "replaced"] {
            session.write(name, b"content").unwrap();
            session.set_xattr(name, b"user.long", &[7; 6000], XattrMode::default()).unwrap();
        }
        session.create("new", 0o600).unwrap();
    });
    assert!(scratch(&device, BlockKind::Attributes, |_, _| true) > 1);
    let fs = open(&device);
    let session = fs.session(Cred::root());
    session.unlink("gone").unwrap();
    session.rename("new", "replaced", RenameMode::default()).unwrap();
    drop(session);
    goes_on(&device, fs);
    let mut left = names(&device);
    left.sort();
    assert_eq!(left, ["beside", "beside it", "first", "replaced", "second"]);
    is_sound_after_repair(&device);
}

/// A volume of several groups with a directory in each, in which there are files.
fn with_groups() -> Arc<MemoryDevice> {
    let options = MkfsOptions { ag_size: Some(16 << 20), spreads_directories: true, ..MkfsOptions::default() };
    made(&options, |session| {
        for dir in 0..8 {
            session.mkdir(&format!("{dir}"), 0o700).unwrap();
            session.mkdir(&format!("{dir}/empty"), 0o700).unwrap();
            for file in 0..4 {
                session.write(&format!("{dir}/{file}"), vec![1; 5 * BLOCK as usize]).unwrap();
            }
        }
    })
}

/// Removes much of what [`with_groups`] has; how much of it was refused.
fn remove_from_groups(fs: &Fs) -> usize {
    let session = fs.session(Cred::root());
    let mut refused = 0;
    for dir in 0..8 {
        for file in [0, 2] {
            refused += usize::from(session.unlink(&format!("{dir}/{file}")).is_err());
        }
        refused += usize::from(session.rmdir(&format!("{dir}/empty")).is_err());
    }
    refused
}

/// A group whose header cannot be read was found to be so when an inode in it was given back, or a block when the next checkpoint came.
#[test]
fn what_lies_in_a_group_that_cannot_be_read_is_removed() {
    for kind in [BlockKind::Group, BlockKind::FreeByStart, BlockKind::FreeByLength, BlockKind::InodeTree] {
        let device = with_groups();
        assert!(scratch(&device, kind, |block, _| block.0 >= (16 << 20) / BLOCK) > 1, "{kind:?}");
        let fs = open(&device);
        assert_eq!(remove_from_groups(&fs), 0, "{kind:?}");
        goes_on(&device, fs);
        is_sound_after_repair(&device);
    }
}

/// What the log has as freed is given to its groups by every opening.
#[test]
fn what_cannot_be_given_back_to_its_group_keeps_nobody_out() {
    for kind in [BlockKind::Group, BlockKind::FreeByStart, BlockKind::FreeByLength] {
        let device = with_groups();
        let fs = open(&device);
        assert_eq!(remove_from_groups(&fs), 0);
        fs.sync().unwrap();
        let image = Arc::new(device.clone_image());
        drop(fs);
        assert!(scratch(&image, kind, |block, _| block.0 >= (16 << 20) / BLOCK) > 1, "{kind:?}");
        let fs = open(&image);
        goes_on(&image, fs);
        is_sound_after_repair(&image);
    }
}

/// A new name met a block with room that could not be read after its inode had been allocated. It goes into a new block.
#[test]
fn a_block_with_room_that_cannot_be_read_is_passed_over() {
    let device = made(&MkfsOptions::default(), |session| {
        session.mkdir("d", 0o700).unwrap();
        (0..400).for_each(|i| _ = session.create(&format!("d/a name of some length {i}"), 0o600).unwrap());
        (0..400).step_by(2).for_each(|i| session.unlink(&format!("d/a name of some length {i}")).unwrap());
    });
    for bad in blocks_of(&device, BlockKind::DirEntries) {
        let image = Arc::new(device.clone_image());
        assert_eq!(scratch(&image, BlockKind::DirEntries, |block, _| block == bad), 1);
        let fs = open(&image);
        let session = fs.session(Cred::root());
        for i in 0..100 {
            let _ = session.create(&format!("d/{i} is a new name that is longer than those before it were"), 0o600);
        }
        drop(session);
        goes_on(&image, fs);
        is_sound_after_repair(&image);
    }
}

/// With its hash in memory a name was found without the index, and its entry taken away before the index was looked at.
#[test]
fn an_index_that_cannot_be_read_is_met_before_a_name_is_taken_away() {
    let device = made(&MkfsOptions::default(), |session| {
        session.mkdir("d", 0o700).unwrap();
        (0..1000).for_each(|i| _ = session.create(&format!("d/a name of some length {i}"), 0o600).unwrap());
    });
    let blocks = blocks_of(&device, BlockKind::DirIndex);
    assert!(blocks.len() > 2);
    let mut refused = 0;
    for bad in blocks {
        let image = Arc::new(device.clone_image());
        assert_eq!(scratch(&image, BlockKind::DirIndex, |block, _| block == bad), 1);
        let dirhash = DirHash { is_on: Some(true), size_min: 0, ..DirHash::default() };
        let options = MountOptions { background: false, commit_interval_ms: 0, dirhash, ..MountOptions::default() };
        let fs = Fs::open_device(image.clone(), None, options).unwrap();
        let session = fs.session(Cred::root());
        for i in 0..20 {
            let name = format!("d/a name of some length {}", 2 * i);
            let is_refused = session.unlink(&name).is_err();
            refused += usize::from(is_refused);
            let other = format!("d/a name of some length {}", 2 * i + 1);
            let _ = session.rename(&other, "d/another", RenameMode::default());
        }
        drop(session);
        goes_on(&image, fs);
        is_sound_after_repair(&image);
    }
    assert!(refused > 0);
}

/// A table of inodes said that an inode was taken, and only then was the block read in which it lies.
#[test]
fn a_block_of_the_table_that_cannot_be_read_is_met_before_an_inode_is_taken() {
    let device = made(&ffs(), |session| {
        (0..60).for_each(|i| _ = session.create(&format!("{i}"), 0o600).unwrap());
        (1..60).step_by(2).for_each(|i| session.unlink(&format!("{i}")).unwrap());
    });
    let blocks = blocks_of(&device, BlockKind::InodeTable);
    assert!(blocks.len() > 2);
    for &bad in &blocks[1..] {
        let image = Arc::new(device.clone_image());
        assert_eq!(scratch(&image, BlockKind::InodeTable, |block, _| block == bad), 1);
        let fs = open(&image);
        let session = fs.session(Cred::root());
        let refused = (0..40).filter(|i| session.create(&format!("new {i}"), 0o600).is_err()).count();
        assert!(refused > 0);
        session.mkdir("0", 0o700).unwrap_err();
        drop(session);
        assert!(fs.sync().is_ok());
        fs.close().unwrap();
        assert!(names(&image).contains(&"new 0".to_owned()));
    }
}

/// Checksums of data were found to be unreadable when blocks for the data had been taken.
#[test]
fn checksums_that_cannot_be_read_are_met_before_space_is_taken() {
    // With more than one group, data goes to another one.
    for (ag_size, is_refused) in [(64 << 20, true), (16 << 20, false)] {
        let options = MkfsOptions { data_checksums: true, ag_size: Some(ag_size), ..MkfsOptions::default() };
        let device = made(&options, |session| session.write("old", vec![1; 3 * BLOCK as usize]).unwrap());
        assert!(scratch(&device, BlockKind::Checksums, |_, _| true) > 0);
        let fs = open(&device);
        let session = fs.session(Cred::root());
        let file = session.open("new", WRITE).unwrap();
        file.write_at(&[2; 4 * BLOCK as usize], 0).unwrap();
        assert_eq!(file.sync().is_err(), is_refused);
        session.create("beside", 0o600).unwrap();
        drop((file, session));
        assert_eq!(fs.close().is_err(), is_refused);
        assert!(names(&device).contains(&"beside".to_owned()));
        is_sound_after_repair(&device);
    }
}

/// An inode that says that it has no name, though it has one.
#[test]
fn a_name_of_an_inode_without_links_is_refused_before_anything_changes() {
    let device = made(&MkfsOptions::default(), |session| {
        session.create("odd", 0o600).unwrap();
        session.create("other", 0o600).unwrap();
    });
    let fs = open(&device);
    let ino = Ino(fs.session(Cred::root()).stat("odd").unwrap().ino);
    fs.close().unwrap();
    let mut bytes = vec![0; BLOCK as usize];
    device.read(0, &mut bytes).unwrap();
    let geometry = Superblock::read(&bytes).geometry();
    let (block, slot) = geometry.locate(ino).unwrap();
    device.read(block.0 * BLOCK, &mut bytes).unwrap();
    let lsn = BlockHeader::read(&bytes).lsn.get();
    RawInode::read_mut(&mut bytes[geometry.inode_offset(slot)..]).nlink.set(0);
    header::seal(&mut bytes, lsn);
    device.write(block.0 * BLOCK, &bytes).unwrap();
    let fs = open(&device);
    let session = fs.session(Cred::root());
    assert!(matches!(session.unlink("odd"), Err(Error::Corrupt(_))));
    assert!(matches!(session.rename("other", "odd", RenameMode::default()), Err(Error::Corrupt(_))));
    drop(session);
    goes_on(&device, fs);
    is_sound_after_repair(&device);
}

/// A new name was to go into a directory whose map cannot be read at its end. That was met when the name's inode had been taken, and shut the volume down,
/// after each opening.
#[test]
fn a_map_of_a_directory_that_cannot_be_read_is_met_before_an_inode_is_taken() {
    for kind in ["indexed", "btree"] {
        let choices = myriad_trials::table::select(&format!("directory={kind}")).unwrap()[0].choices;
        let mut dir = 0;
        let device = made(&MkfsOptions { choices, ..MkfsOptions::default() }, |session| {
            dir = session.mkdir("d", 0o700).unwrap().ino();
            for i in 0..1500 {
                session.create(&format!("d/a name of some length {i}"), 0o600).unwrap();
                if i % 10 == 0 {
                    // So that the directory does not lie in one piece.
                    let file = session.open(&format!("{i}"), WRITE).unwrap();
                    file.allocate(AllocateMode::Extend, 0, 70 * BLOCK).unwrap();
                }
            }
        });
        let is_of_it = |_, bytes: &[u8]| BlockHeader::read(bytes).owner.get() == dir;
        assert!(scratch(&device, BlockKind::ExtentTree, is_of_it) > 0, "{kind}");
        let fs = open(&device);
        let session = fs.session(Cred::root());
        let refused = (0..300).filter(|i| session.create(&format!("d/new {i}"), 0o600).is_err()).count();
        assert!(refused > 0, "{kind}");
        drop(session);
        goes_on(&device, fs);
    }
}

/// Where a new directory would lie best was asked of a group whose header cannot be read: no directory could be made.
#[test]
fn a_group_that_cannot_be_read_is_no_place_for_a_directory() {
    let device = with_groups();
    assert!(scratch(&device, BlockKind::Group, |block, _| block.0 >= (16 << 20) / BLOCK) > 1);
    let fs = open(&device);
    let session = fs.session(Cred::root());
    (0..20).for_each(|i| _ = session.mkdir(&format!("new {i}"), 0o700).unwrap());
    drop(session);
    goes_on(&device, fs);
    is_sound_after_repair(&device);
}

/// The same was asked for a section of a file, in the middle of its flush, and shut the volume down.
#[test]
fn a_group_that_cannot_be_read_is_no_place_for_a_section() {
    let options = MkfsOptions { ag_size: Some(16 << 20), spreads_directories: true, ..ffs() };
    let device = made(&options, |session| {
        for dir in 0..8 {
            session.mkdir(&format!("{dir}"), 0o700).unwrap();
            session.write(&format!("{dir}/file"), vec![1; 5 * BLOCK as usize]).unwrap();
        }
    });
    assert!(scratch(&device, BlockKind::Group, |block, _| block.0 >= (16 << 20) / BLOCK) > 1);
    let fs = open(&device);
    fs.session(Cred::root()).write("of many sections", vec![1; 8 << 20]).unwrap();
    fs.sync().unwrap();
    goes_on(&device, fs);
    is_sound_after_repair(&device);
}

/// Of an order without a list on the device, an orphan that could not be freed was forgotten by a clean close: nobody looked for it any more.
#[test]
fn an_orphan_that_cannot_be_freed_is_left_for_the_next_check() {
    for order in [Order::Soft, Order::Sync] {
        let device = made(&MkfsOptions { order, ..ffs() }, |session| {
            session.write("long", vec![1; 1200 * BLOCK as usize]).unwrap();
        });
        for bad in blocks_of(&device, BlockKind::Pointers) {
            let image = Arc::new(device.clone_image());
            assert_eq!(scratch(&image, BlockKind::Pointers, |block, _| block == bad), 1);
            let fs = open(&image);
            assert!(!fs.has_leftovers());
            fs.session(Cred::root()).unlink("long").unwrap();
            fs.close().unwrap();
            assert!(open(&image).has_leftovers(), "{order:?}, {bad:?}");
        }
    }
}

/// The list of orphans that order none has written was free for others as soon as soft updates had begun, and the superblock still named it when power was
/// lost.
#[test]
fn a_list_of_another_order_is_free_when_nothing_names_it() {
    let device = made(&MkfsOptions { order: Order::None, log_size: Some(0), ..ffs() }, |session| {
        session.write("long", vec![1; 1200 * BLOCK as usize]).unwrap();
    });
    let bad = blocks_of(&device, BlockKind::Pointers)[0];
    assert_eq!(scratch(&device, BlockKind::Pointers, |block, _| block == bad), 1);
    let fs = open(&device);
    fs.session(Cred::root()).unlink("long").unwrap();
    fs.close().unwrap();
    let named = || {
        let mut bytes = vec![0; BLOCK as usize];
        device.read(0, &mut bytes).unwrap();
        Superblock::read(&bytes).orphan_root.get()
    };
    assert_ne!(named(), 0);
    let options = MountOptions { background: false, order: Some(Order::Soft), ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    assert_eq!(named(), 0);
    fs.close().unwrap();
}

/// A search of a large directory reads blocks past the cache where frames are few, and the change then reads one of them again. If that failed, it was
/// in the middle of an operation, which shut the volume down.
#[test]
fn a_block_that_cannot_be_read_again_is_met_before_anything_changes() {
    for kind in ["linear", "slots"] {
        let mut choices = myriad_trials::table::select(&format!("directory={kind}")).unwrap()[0].choices;
        choices.inodes = Inodes::Static;
        let options = MkfsOptions { choices, block_size: 512, seed: Some(7), ..MkfsOptions::default() };
        let device = Arc::new(MemoryDevice::new(64 << 20));
        Fs::format_device(device.clone(), None, &options).unwrap();
        let dirhash = DirHash { is_on: Some(false), ..DirHash::default() };
        let small = MountOptions { background: false, cache_size: 1, dirhash, ..MountOptions::default() };
        let fs = Fs::open_device(device.clone(), None, MountOptions { background: false, ..MountOptions::default() })
            .unwrap();
        let session = fs.session(Cred::root());
        session.mkdir("d", 0o700).unwrap();
        session.create("other", 0o600).unwrap();
        let name = |i: usize| format!("d/{i:0>200}");
        // More blocks than the smallest cache has frames.
        (0..3000).for_each(|i| _ = session.create(&name(i), 0o600).unwrap());
        drop(session);
        fs.close().unwrap();
        let mut struck = 0;
        for nth in 1.. {
            let failing = Arc::new(FaultDevice::new(device.clone_image()));
            let fs = Fs::open_device(failing.clone(), None, small.clone()).unwrap();
            failing.fail(FaultOp::Read, nth, FaultSpan::Once, Errno::IO.raw_os_error());
            let session = fs.session(Cred::root());
            let is_running = |what: &str| {
                let reason = fs.shut_down_reason();
                assert!(reason.is_none(), "{kind}, read {nth}, {what}: {reason:?}");
            };
            let _ = session.create("d/new", 0o600);
            is_running("create");
            let _ = session.rename(&name(2500), "moved", RenameMode::default());
            is_running("rename from there");
            let _ = session.rename("other", &name(2700), RenameMode::default());
            is_running("rename over a name");
            let _ = session.unlink(&name(2900));
            is_running("unlink");
            if failing.struck() == 0 {
                break;
            }
            struck += 1;
        }
        assert!(struck > 5, "{kind}: {struck}");
    }
}
