//! Scrub: what it reads, whom it names, and that it changes nothing.

mod common;

use common::Worn;
use myriad_check::{FileRange, Finding, Options, Report, check, number};
use myriad_device::{BlockDevice, Event, MemoryDevice, RecordingDevice};
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, OpenOptions, Session};
use myriad_format::checksum;
use myriad_format::choices::{Choices, Directory, MYRIAD};
use myriad_format::superblock::{Superblock, state};
use std::sync::Arc;

const SIZE: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;

fn make(data_checksums: bool) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let options = MkfsOptions { ag_size: Some(16 << 20), data_checksums, seed: Some(7), ..MkfsOptions::default() };
    Fs::format_device(device.clone(), None, &options).unwrap();
    device
}

fn change(device: &Arc<MemoryDevice>, f: impl FnOnce(&Session)) {
    let options = MountOptions { background: false, cache_size: 16 << 20, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    f(&fs.session(Cred::root()));
    fs.close().unwrap();
}

fn put(session: &Session, path: &str, bytes: &[u8]) {
    let options = OpenOptions { write: true, create: true, mode: 0o644, ..OpenOptions::default() };
    let file = session.open(path, options).unwrap();
    assert_eq!(file.write_at(bytes, 0).unwrap(), bytes.len());
}

/// Offsets on the device of all blocks that begin with `pattern`.
fn find(device: &MemoryDevice, pattern: &[u8]) -> Vec<u64> {
    let mut block = vec![0; BLOCK as usize];
    let begins = |&offset: &u64| {
        device.read(offset, &mut block).unwrap();
        block.starts_with(pattern)
    };
    (0..SIZE).step_by(BLOCK as usize).filter(begins).collect()
}

fn scrub(device: Arc<dyn BlockDevice>, repair: bool) -> Report {
    check(device, None, &Options { scrub: true, repair, ..Options::default() }).unwrap()
}

fn range(path: &str, offset: u64, length: u64) -> Option<FileRange> {
    Some(FileRange { path: Some(path.into()), offset, length })
}

fn files(findings: &[Finding]) -> Vec<(u32, Option<FileRange>)> {
    findings.iter().map(|finding| (finding.number, finding.file.clone())).collect()
}

#[test]
fn every_block_of_data_is_read_once_and_in_order() {
    let device = make(false);
    change(&device, |session| {
        for name in 0..200 {
            put(session, &format!("/{name}"), &vec![b'a'; 3 * BLOCK as usize]);
        }
        put(session, "/large", &vec![b'b'; 5 << 20]);
        session.symlink("x".repeat(2000).as_bytes(), "/link").unwrap();
    });
    let mut data: Vec<u64> = find(&device, b"aaaa");
    data.extend(find(&device, b"bbbb"));
    data.extend(find(&device, b"xxxx"));
    data.sort_unstable();
    let scratched = Worn::new(device, Vec::new());
    let plain = check(scratched.clone(), None, &Options { threads: 1, ..Options::default() }).unwrap();
    assert_eq!((plain.finding_count, plain.scrub), (0, None));
    let metadata = std::mem::take(&mut *scratched.reads.lock().unwrap()).len();
    let options = Options { scrub: true, threads: 1, ..Options::default() };
    let report = check(scratched.clone(), None, &options).unwrap();
    assert!(report.is_sound(), "{}", report.to_json());
    let scrubbed = report.scrub.unwrap();
    assert_eq!((scrubbed.data_blocks, scrubbed.compared_blocks, scrubbed.damaged_blocks), (data.len() as u64, 0, 0));
    let reads = scratched.reads.lock().unwrap();
    let blocks: Vec<u64> = reads[metadata..]
        .iter()
        .flat_map(|&(offset, length)| (offset..offset + length).step_by(BLOCK as usize))
        .collect();
    assert_eq!(blocks, data);
    assert!(reads.len() - metadata < 20, "long requests: {}", reads.len() - metadata);
}

#[test]
fn what_cannot_be_read_is_named_by_path_and_bytes() {
    let device = make(false);
    change(&device, |session| {
        session.mkdir("/d", 0o755).unwrap();
        session.mkdir("/d/deeper", 0o755).unwrap();
        // So many that the directory lies in blocks of its own.
        for name in 0..300 {
            put(session, &format!("/d/deeper/a name that takes some room {name}"), b"");
        }
        put(session, "/d/deeper/one", &[vec![b'1'; BLOCK as usize], vec![b'2'; 3 * BLOCK as usize]].concat());
        put(session, "/d/two", b"under its second name");
        session.link("/d/two", "/d/deeper/again").unwrap();
        session.unlink("/d/deeper/again").unwrap();
        put(session, "/sound", &vec![b's'; 9 * BLOCK as usize]);
    });
    let mut bad = find(&device, b"2222");
    bad.pop();
    bad.extend(find(&device, b"under its"));
    let before = device.clone_image();
    let scratched = Worn::new(device.clone(), bad.into_iter().map(|at| at..at + BLOCK).collect());
    let expected = [
        (number::DATA_UNREADABLE, range("/d/deeper/one", 4096, 8192)),
        (number::DATA_UNREADABLE, range("/d/two", 0, 4096)),
    ];
    for repair in [false, true] {
        let report = scrub(scratched.clone(), repair);
        let mut found = files(&report.findings);
        found.sort_by(|a, b| a.1.cmp(&b.1));
        assert_eq!(found, expected, "{}", report.to_json());
        assert_eq!((report.repaired, report.is_sound(), report.scrub.unwrap().damaged_blocks), (false, false, 3));
        assert!(report.findings[0].message.contains("scratched"));
    }
    let bytes = |device: &MemoryDevice| {
        let mut bytes = vec![0; SIZE as usize];
        device.read(0, &mut bytes).unwrap();
        bytes
    };
    assert!(bytes(&device) == bytes(&before), "nothing is written for damaged contents");
}

/// A directory without an index was gone through once for each damaged file that it names, also for files whose findings were not kept.
#[test]
fn a_directory_is_gone_through_once_for_all_its_damaged_files() {
    let extra = |files: usize, findings_max: usize| {
        let device = Arc::new(MemoryDevice::new(SIZE));
        let choices = Choices { directory: Directory::Linear, ..MYRIAD.choices };
        Fs::format_device(device.clone(), None, &MkfsOptions { choices, ..MkfsOptions::default() }).unwrap();
        change(&device, |session| {
            session.mkdir("/d", 0o755).unwrap();
            for number in 0..files {
                put(session, &format!("/d/{number:0230}"), b"to be lost");
            }
        });
        let places: Vec<_> = find(&device, b"to be lost").into_iter().map(|at| at..at + BLOCK).collect();
        assert_eq!(places.len(), files);
        let [sound, damaged] = [Vec::new(), places].map(|bad| {
            let worn = Worn::new(device.clone(), bad);
            let options = Options { scrub: true, threads: 1, findings_max, ..Options::default() };
            let report = check(worn.clone(), None, &options).unwrap();
            for Finding { file, .. } in &report.findings {
                let path = file.as_ref().unwrap().path.as_ref().unwrap();
                assert!(path.starts_with(b"/d/0000") && path.len() == 233, "{}", path.escape_ascii());
            }
            worn.reads.lock().unwrap().len()
        });
        damaged - sound
    };
    let (some, more, few) = (extra(40, 1000), extra(320, 1000), extra(320, 2));
    assert!(more < 12 * some, "{some} reads for 40 files, {more} for 320");
    assert!(few < more / 2, "{few} reads for 2 paths, {more} for 320");
}

#[test]
fn a_scrub_can_be_cancelled() {
    let device = make(false);
    change(&device, |session| put(session, "/large", &vec![7; 8 << 20]));
    let progress = |progress: myriad_check::Progress| progress.phase != "data";
    let options = Options { scrub: true, progress: Some(&progress), ..Options::default() };
    assert!(matches!(check(device, None, &options), Err(myriad_check::CheckError::Cancelled)));
}

fn flip(device: &MemoryDevice, offset: u64, byte: usize) {
    let mut block = vec![0; BLOCK as usize];
    device.read(offset, &mut block).unwrap();
    block[byte] ^= 1;
    device.write(offset, &block).unwrap();
}

/// A volume with checksums, and a file of which some blocks are damaged: the second and third, and the last, past its end.
fn damaged() -> Arc<MemoryDevice> {
    let device = make(true);
    change(&device, |session| {
        session.mkdir("/d", 0o755).unwrap();
        for (name, size) in [("sound", 40), ("before", 3), ("after", 1)] {
            put(session, &format!("/d/{name}"), &vec![b's'; size * BLOCK as usize]);
        }
        let parts = [b"0000", b"1111", b"2222", b"3333"].map(|byte| byte.repeat(BLOCK as usize / 4));
        put(session, "/d/letter", &[parts.concat(), b"the end".to_vec()].concat());
    });
    flip(&device, find(&device, b"1111")[0], 5);
    flip(&device, find(&device, b"2222")[0], 4095);
    flip(&device, find(&device, b"the end")[0], 100);
    device
}

fn damaged_ranges() -> Vec<(u32, Option<FileRange>)> {
    [(4096, 8192), (16384, 4096)].map(|(at, length)| (number::DATA_CHECKSUM, range("/d/letter", at, length))).to_vec()
}

#[test]
fn contents_that_differ_from_their_checksums_are_named_and_left_alone() {
    let device = damaged();
    let before = device.clone_image();
    let plain = check(device.clone(), None, &Options::default()).unwrap();
    assert!(plain.is_sound(), "without a scrub nobody knows: {}", plain.to_json());
    for repair in [false, true] {
        let report = scrub(device.clone(), repair);
        assert_eq!(files(&report.findings), damaged_ranges());
        assert_eq!((report.repaired, report.is_sound()), (false, false));
        let scrubbed = report.scrub.unwrap();
        assert_eq!((scrubbed.damaged_blocks, scrubbed.compared_blocks), (3, scrubbed.data_blocks));
    }
    let mut bytes = [vec![0; SIZE as usize], vec![0; SIZE as usize]];
    device.read(0, &mut bytes[0]).unwrap();
    before.read(0, &mut bytes[1]).unwrap();
    assert!(bytes[0] == bytes[1], "neither data nor checksums are changed unasked");
}

/// Structural damage elsewhere is repaired; the contents are still told of, and still refused by the engine.
#[test]
fn a_repair_does_not_bless_damaged_contents() {
    let device = damaged();
    let block = find(&device, b"MYAG")[1];
    flip(&device, block, 77);
    let report = scrub(device.clone(), true);
    assert!(report.repaired);
    assert!(report.findings.iter().all(|finding| finding.file.is_none()), "{}", report.to_json());
    assert_eq!(files(&report.remaining), damaged_ranges());
    change(&device, |session| {
        let file = session.open("/d/letter", OpenOptions { read: true, ..OpenOptions::default() }).unwrap();
        let mut buf = vec![0; BLOCK as usize];
        file.read_at(&mut buf, 0).unwrap();
        assert_eq!(file.read_at(&mut buf, BLOCK).unwrap_err().errno(), myriad_engine::Errno::IO);
    });
}

#[test]
fn contents_are_taken_as_they_are_when_that_is_asked_for() {
    let accept = Options { repair: true, scrub: true, accept_contents: true, ..Options::default() };
    let cut = || {
        // Power is lost with the log full: the table must not be laid over again.
        let device = damaged();
        let options = MountOptions { background: false, cache_size: 16 << 20, ..MountOptions::default() };
        let fs = Fs::open_device(device.clone(), None, options).unwrap();
        put(&fs.session(Cred::root()), "/d/new", b"written since");
        fs.sync().unwrap();
        Arc::new(device.clone_image())
    };
    for device in [damaged(), cut()] {
        let report = check(device.clone(), None, &accept).unwrap();
        assert!(report.repaired && report.is_sound(), "{}", report.to_json());
        assert_eq!(files(&report.findings), damaged_ranges());
        assert!(report.actions.iter().any(|action| action == "blocks of data taken as they are, as was asked for: 3"));
        assert!(scrub(device.clone(), false).is_sound());
        change(&device, |session| {
            let file = session.open("/d/letter", OpenOptions { read: true, ..OpenOptions::default() }).unwrap();
            let mut buf = vec![0; BLOCK as usize];
            assert_eq!(file.read_at(&mut buf, BLOCK).unwrap(), BLOCK as usize);
            assert_eq!((buf[4], buf[5]), (b'1', b'1' ^ 1));
        });
    }
}

/// Tables were written while the volume said that it was closed cleanly: a look beside it counted, and after a power cut
/// nobody looked again.
#[test]
fn contents_are_taken_while_the_volume_is_in_use() {
    let accept = Options { repair: true, scrub: true, accept_contents: true, ..Options::default() };
    let device = Arc::new(RecordingDevice::new(damaged().clone_image()));
    check(device.clone(), None, &accept).unwrap();
    let (mut state, mut tables) = (state::CLEAN, 0);
    for event in device.take() {
        match event {
            Event::Write { offset: 0, bytes } => state = Superblock::read(&bytes).state.get(),
            Event::Write { bytes, .. } if bytes.starts_with(b"MYCS") => {
                assert_eq!(state, state::IN_USE);
                tables += 1;
            }
            _ => {}
        }
    }
    assert_eq!(state, state::CLEAN);
    assert!(tables > 0);
}

/// Of a table that is torn, the checksums that can be read still speak for the data; what none speaks for is told.
#[test]
fn a_damaged_table_is_written_anew_and_says_what_nothing_vouches_for() {
    let device = make(true);
    change(&device, |session| put(session, "/letter", &vec![b'l'; 20 * BLOCK as usize]));
    // A checksum that is not zero, of the third block or so of the file.
    let table = find(&device, b"MYCS")[0];
    let mut block = vec![0; BLOCK as usize];
    device.read(table, &mut block).unwrap();
    let first = (64..block.len()).step_by(4).find(|&at| block[at..at + 4] != [0; 4]).unwrap();
    flip(&device, table, first + 8);
    let plain = check(device.clone(), None, &Options::default()).unwrap();
    assert_eq!(plain.findings.iter().map(|finding| finding.number).collect::<Vec<_>>(), [number::BLOCK_CRC]);
    let options = MountOptions { background: false, cache_size: 16 << 20, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    let letter =
        fs.session(Cred::root()).open("/letter", OpenOptions { read: true, ..OpenOptions::default() }).unwrap();
    let refused = letter.read_at(&mut block, 0).unwrap_err();
    assert_eq!(refused.errno(), myriad_engine::Errno::UCLEAN, "a table that cannot be believed vouches for nothing");
    drop(letter);
    fs.close().unwrap();
    let report = scrub(device.clone(), true);
    assert!(report.repaired && report.is_sound(), "{}", report.to_json());
    let told = |text: &str| report.actions.iter().any(|action| action.contains(text));
    assert!(told("that agree with what was left: 19, that were taken as they are: 1"), "{:?}", report.actions);
    assert!(told(": its checksums were lost; blocks of data taken as they are: 1"), "{:?}", report.actions);
    assert!(scrub(device, false).is_sound());
}

#[test]
fn a_table_that_was_never_made_is_found_missing_and_made() {
    let device = make(true);
    change(&device, |session| put(session, "/letter", &vec![b'l'; 20 * BLOCK as usize]));
    // The header of group 0, whose bytes 104 to 111 say what was made.
    let mut block = vec![0; BLOCK as usize];
    device.read(BLOCK, &mut block).unwrap();
    assert_ne!(block[104..112], [0; 8]);
    block[104..112].fill(0);
    myriad_format::header::seal(&mut block, 0);
    device.write(BLOCK, &block).unwrap();
    let plain = check(device.clone(), None, &Options::default()).unwrap();
    assert_eq!(plain.findings.iter().map(|finding| finding.number).collect::<Vec<_>>(), [number::CHECKSUM_TABLE]);
    let report = scrub(device.clone(), true);
    assert!(report.repaired && report.is_sound(), "{}", report.to_json());
}

/// A sector of a table's block could not be read: none of the block's checksums counted, and whatever the data was, it was taken as it is.
#[test]
fn an_unreadable_sector_of_a_table_costs_the_checksums_in_it() {
    let device = make(true);
    change(&device, |session| put(session, "/letter", &vec![b'l'; 20 * BLOCK as usize]));
    let table = find(&device, b"MYCS")[0];
    let mut block = vec![0; BLOCK as usize];
    device.read(table, &mut block).unwrap();
    let first = (64..block.len()).step_by(4).find(|&at| block[at..at + 4] != [0; 4]).unwrap() as u64;
    // A sector without any of these.
    let bad = table + if first < 2048 { BLOCK - 512 } else { 512 };
    let sector = bad..bad + 512;
    let worn = Worn::new(device, vec![sector]);
    let report = check(worn, None, &Options { repair: true, scrub: true, ..Options::default() }).unwrap();
    assert!(report.repaired && report.is_sound(), "{}", report.to_json());
    let told = |text: &str| report.actions.iter().any(|action| action.contains(text));
    assert!(told("that agree with what was left: 20, that were taken as they are: 0"), "{:?}", report.actions);
}

/// As [`an_unreadable_sector_of_a_table_costs_the_checksums_in_it`], with a block of data that was damaged: the checksum that says so could be read, and
/// was replaced by that of what was there.
#[test]
fn damaged_contents_are_not_taken_for_a_sector_beside_their_checksum() {
    let device = make(true);
    let parts: Vec<u8> = (b'a'..b'u').flat_map(|byte| [byte; BLOCK as usize]).collect();
    change(&device, |session| put(session, "/letter", &parts));
    let table = find(&device, b"MYCS")[0];
    let mut block = vec![0; BLOCK as usize];
    device.read(table, &mut block).unwrap();
    let first = (64..block.len()).step_by(4).find(|&at| block[at..at + 4] != [0; 4]).unwrap() as u64;
    flip(&device, find(&device, b"cccc")[0], 77);
    // A sector without any of the file's checksums, and the one that has the first of them.
    let (beside, with) = (if first < 2048 { BLOCK - 512 } else { 512 }, first / 512 * 512);
    assert!(first + 20 * 4 <= with + 512, "all of them lie in one sector");
    for (sector, is_kept) in [(beside, true), (with, false)] {
        let bad = table + sector..table + sector + 512;
        let worn = Worn::new(Arc::new(device.clone_image()), vec![bad]);
        let report = check(worn, None, &Options { repair: true, scrub: true, ..Options::default() }).unwrap();
        assert!(report.repaired, "{}", report.to_json());
        let expected = is_kept.then(|| (number::DATA_CHECKSUM, range("/letter", 2 * BLOCK, BLOCK)));
        assert_eq!(files(&report.remaining), Vec::from_iter(expected), "{:?}", report.actions);
        let told = if is_kept {
            "agree with what was left: 19, that were taken as they are: 0, that differ from what was left: 1"
        } else {
            "that were taken as they are: 20"
        };
        assert!(report.actions.iter().any(|action| action.contains(told)), "{:?}", report.actions);
    }
}

/// A block of a table with a sector that cannot be read was written anew in one piece. Power lost half way left that sector readable and the block torn:
/// the next repair believed none of its checksums, and took damaged data as it was.
#[test]
fn a_table_torn_as_it_is_mended_speaks_for_the_data() {
    let device = make(true);
    let contents: Vec<Vec<u8>> = (1..=300_u32).map(|number| number.to_le_bytes().repeat(BLOCK as usize / 4)).collect();
    change(&device, |session| put(session, "/letter", &contents.concat()));
    let table = find(&device, b"MYCS")[0];
    let mut block = vec![0; BLOCK as usize];
    device.read(table, &mut block).unwrap();
    let place = |number: usize| {
        let sum = checksum::of(&contents[number]).to_le_bytes();
        block.chunks(4).position(|stored| stored == sum).expect("all of the file lies in one group") as u64 * 4
    };
    let sector = |number| table + place(number) / SECTOR * SECTOR;
    // The checksum that tells of the first one can be read; that of the last one cannot, so the sector will hold another.
    let bad = sector(299)..sector(299) + SECTOR;
    assert_ne!(sector(0), bad.start);
    for number in [0, 299] {
        flip(&device, find(&device, &contents[number])[0], 77);
    }
    let worn = Worn::new(Arc::new(device.clone_image()), vec![bad.clone()]);
    let recorder = Arc::new(RecordingDevice::new(Arc::into_inner(worn).expect("nobody else has it")));
    scrub(recorder.clone(), true);
    let (image, mut is_bad, mut cuts) = (device.clone_image(), true, 0);
    let is_told = |image: &MemoryDevice, is_bad: bool| {
        let bad = if is_bad { vec![bad.clone()] } else { Vec::new() };
        let report = scrub(Worn::new(Arc::new(image.clone_image()), bad), true);
        // What a sound table tells is among the findings.
        let told = [files(&report.findings), files(&report.remaining)].concat();
        assert!(told.contains(&(number::DATA_CHECKSUM, range("/letter", 0, BLOCK))), "{:?}", report.actions);
    };
    for event in recorder.take() {
        let Event::Write { offset, bytes } = event else { continue };
        let is_of_table = |at: u64| (table..table + BLOCK).contains(&at);
        for (at, part) in (offset..).step_by(SECTOR as usize).zip(bytes.chunks(SECTOR as usize)) {
            if is_of_table(at) {
                // Of this write, only that sector arrives.
                let torn = image.clone_image();
                torn.write(at, part).unwrap();
                is_told(&torn, is_bad && at != bad.start);
                cuts += 1;
            }
        }
        image.write(offset, &bytes).unwrap();
        is_bad &= !(offset..offset + bytes.len() as u64).contains(&bad.start);
    }
    assert!(cuts >= 8 && !is_bad, "{cuts}");
}
