//! Bodies whose bytes, which are users', look like inodes: engine and check agree on which slots hold inodes, and are right.

use myriad_check::{CheckError, Options, check};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{
    Clock, Cred, Errno, Error, FileType, Fs, MkfsOptions, MountOptions, Node, RenameMode, Session, XattrMode,
};
use myriad_format::inode::{RawInode, S_IFREG};
use myriad_format::superblock::{Superblock, feature};
use myriad_format::xattr::AttrHeader;
use myriad_format::{FsBlock, SLOT_SIZE, header};
use myriad_sim::rng::{self, Rng};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The attribute whose value lies in the body.
const NAME: &[u8] = b"user.a";
/// Bytes of a body without data that lie before the value of its first attribute.
const BEFORE_VALUE: usize = 8 + AttrHeader::SIZE + NAME.len();

fn options() -> MountOptions {
    MountOptions {
        cache_size: 32 << 20,
        commit_interval_ms: 0,
        seed: Some(1),
        background: false,
        clock: Clock::Manual(Arc::default()),
        ..MountOptions::default()
    }
}

fn make(block_size: u32) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let options = MkfsOptions { block_size, seed: Some(7), ..MkfsOptions::default() };
    Fs::format_device(device.clone(), None, &options).expect("mkfs");
    device
}

/// A volume as earlier builds made it: a body may lie anywhere in its block.
fn of_earlier_build(block_size: u32) -> Arc<MemoryDevice> {
    let device = make(block_size);
    let mut block = vec![0; Superblock::SIZE];
    device.read(0, &mut block).unwrap();
    let superblock = Superblock::read_mut(&mut block);
    let features = superblock.features_read_only.get();
    assert!(features & feature::READ_ONLY_BODIES_FOLLOW != 0);
    superblock.features_read_only.set(features & !feature::READ_ONLY_BODIES_FOLLOW);
    let volume = superblock.header.volume;
    header::reseal(&mut block, &volume, FsBlock(0));
    device.write(0, &block).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>) -> Fs {
    Fs::open_device(device.clone(), None, options()).expect("the volume opens")
}

#[track_caller]
fn assert_sound(device: &Arc<MemoryDevice>, inodes: usize) {
    let report = check(device.clone(), None, &Options::default()).expect("a check");
    assert_eq!(report.finding_count, 0, "{:#?}", report.findings);
    assert_eq!(report.totals.inodes, inodes as u64);
}

/// What looks like an inode with this body.
fn imitation(first: u16, count: u8) -> [u8; SLOT_SIZE] {
    let mut bytes = [0; SLOT_SIZE];
    let raw = RawInode::read_mut(&mut bytes);
    raw.mode.set(S_IFREG | 0o644);
    raw.nlink.set(1);
    raw.generation.set(77);
    raw.body_slots = count;
    raw.body_first.set(first);
    bytes
}

/// A value with which a body without data fills its slots: these are the later ones.
fn value_of(slots: &[[u8; SLOT_SIZE]]) -> Vec<u8> {
    let mut value = vec![0; SLOT_SIZE - BEFORE_VALUE];
    value.extend_from_slice(slots.as_flattened());
    value
}

/// The numbers of all inodes that have names.
fn named(session: &Session, path: &str, found: &mut BTreeSet<u64>) {
    found.insert(session.lstat(path).expect("stat").ino);
    for entry in session.read_dir(path).expect("read_dir") {
        let entry = entry.expect("an entry");
        if entry.name == b"." || entry.name == b".." {
            continue;
        }
        found.insert(entry.ino);
        if entry.file_type == FileType::Directory {
            named(
                session,
                &format!(
                    "{}/{}",
                    path.trim_end_matches('/'),
                    String::from_utf8(entry.name).expect("directories have plain names")
                ),
                found,
            );
        }
    }
}

/// Asks for each slot of all blocks with named inodes by its number; how many inodes there are.
#[track_caller]
fn assert_numbers(session: &Session, block_size: u32) -> usize {
    let mut found = BTreeSet::new();
    named(session, "/", &mut found);
    let slots = u64::from(block_size) / SLOT_SIZE as u64;
    let blocks: BTreeSet<u64> = found.iter().map(|ino| ino / slots).collect();
    for block in blocks {
        for ino in block * slots + 1..(block + 1) * slots {
            match session.node(ino) {
                Ok(node) => assert!(found.contains(&ino), "{node:?} is in slot {} and has no name", ino % slots),
                Err(Error::Refused(Errno::STALE)) => assert!(!found.contains(&ino), "slot {} is lost", ino % slots),
                Err(error) => panic!("inode {ino}: {error}"),
            }
        }
    }
    found.len()
}

/// Files side by side in the root's block of inodes; the slots of those that are left, and their nodes.
fn files(session: &Session, count: u64, gone: std::ops::Range<u64>) -> Vec<(u64, Node)> {
    let nodes: Vec<Node> = (0..count).map(|i| session.create(&*format!("/f{i}"), 0o644).unwrap()).collect();
    gone.clone().for_each(|i| session.unlink(&*format!("/f{i}")).unwrap());
    nodes
        .into_iter()
        .enumerate()
        .filter(|(i, _)| !gone.contains(&(*i as u64)))
        .map(|(_, node)| (node.ino() % 32, node))
        .collect()
}

/// The first free slots lay before the inode, so its body did. An imitation in one of these slots, whose body was the inode's slot and the
/// two before it, made a ring with the inode, of which the check believed the imitation: a sound volume was damaged, and its repair
/// put the imitation in the place of the file.
#[test]
fn an_attribute_cannot_pass_for_an_inode() {
    let device = make(4096);
    let fs = open(&device);
    let session = fs.session(Cred::root());
    let left = files(&session, 10, 1..5);
    // Slot of f5; four slots before it are free.
    let (slot, node) = left[1];
    let slot = slot as u16;
    let value = value_of(&[imitation(slot - 2, 3), [0; SLOT_SIZE], [0; SLOT_SIZE]]);
    session.set_xattr("/f5", NAME, &value, XattrMode::Set).unwrap();
    let inodes = assert_numbers(&session, 4096);
    assert_eq!(session.node(node.ino()).unwrap(), node);
    fs.sync().unwrap();
    assert_sound(&Arc::new(device.clone_image()), inodes);
    fs.close().unwrap();
    assert_sound(&device, inodes);
    let report = check(device.clone(), None, &Options { repair: true, ..Options::default() }).unwrap();
    assert!(report.finding_count == 0 && report.actions.is_empty(), "{report:?}");
}

/// A lookup by number believed that the inodes behind a body were the body of what the body held.
#[test]
fn an_attribute_takes_no_inode_for_its_body() {
    for device in [make(4096), of_earlier_build(4096)] {
        let fs = open(&device);
        let session = fs.session(Cred::root());
        let left = files(&session, 10, 1..5);
        for i in 1..20 {
            session
                .set_xattr(
                    "/f0",
                    NAME,
                    &value_of(&[imitation(i, 3), imitation(i + 3, 7), imitation(i, 1)]),
                    XattrMode::Set,
                )
                .unwrap();
            let inodes = assert_numbers(&session, 4096);
            assert_eq!(inodes, left.len() + 1);
            fs.sync().unwrap();
            assert_sound(&Arc::new(device.clone_image()), inodes);
        }
        fs.close().unwrap();
    }
}

/// Where earlier builds let bodies lie anywhere, a ring can still be made: neither engine nor check believes any of it.
#[test]
fn a_ring_on_a_volume_of_an_earlier_build_is_not_believed() {
    let device = of_earlier_build(4096);
    let fs = open(&device);
    let session = fs.session(Cred::root());
    let left = files(&session, 10, 0..0);
    // A body of two slots behind those of all, the later one with a body's header that fits.
    session.set_xattr("/f8", NAME, &value_of(&[[0; SLOT_SIZE]]), XattrMode::Set).unwrap();
    let last = left[9].0 as u16;
    session.create("/ring", 0o644).unwrap();
    let (ring, header) = (last + 3, last + 2);
    session.set_xattr("/ring", NAME, &value_of(&[imitation(header, 2), [0; SLOT_SIZE]]), XattrMode::Set).unwrap();
    let ino = |slot: u16| left[0].1.ino() - left[0].0 + u64::from(slot);
    assert_eq!(session.lstat("/ring").unwrap().ino, ino(ring));
    assert!(
        left.iter().all(|&(_, node)| session.node(node.ino()).is_ok_and(|found| found == node)),
        "what is beside the ring"
    );
    fs.sync().unwrap();
    let image = Arc::new(device.clone_image());
    let report = check(image.clone(), None, &Options::default()).unwrap();
    let of_ring = |number: u64| {
        let is_told = |text: String| text.starts_with(&format!("inode {number}:")) && text.contains("cannot be told");
        report.findings.iter().any(|finding| is_told(finding.to_string()))
    };
    let in_ring: Vec<u64> = (1..32).map(ino).filter(|&number| of_ring(number)).collect();
    assert!(in_ring.len() == 2 && in_ring[0] == ino(ring), "{:#?}", report.findings);
    for number in in_ring {
        let found = session.node(number);
        assert!(matches!(found, Err(Error::Refused(Errno::STALE))), "{number}: {found:?}");
    }
    let refused = check(image, None, &Options { repair: true, ..Options::default() });
    assert!(matches!(refused, Err(CheckError::Repair(_))), "{refused:?}");
    // By its name it is there, and what it says is all it takes.
    session.remove_xattr("/ring", NAME).unwrap();
    let inodes = assert_numbers(&session, 4096);
    fs.close().unwrap();
    assert_sound(&device, inodes);
}

/// Bytes that look like inodes, in places that a slot begins at more often than chance has it.
fn hostile(rng: &mut Rng, slots: u64) -> Vec<u8> {
    let mut bytes = if rng.percent(70) { vec![0; SLOT_SIZE - BEFORE_VALUE] } else { vec![0; rng.index(SLOT_SIZE)] };
    for _ in 0..1 + rng.below(6) {
        let first = 1 + rng.below((slots - 1).min(40)) as u16;
        match rng.below(4) {
            0 => bytes.extend([0; SLOT_SIZE]),
            1 => bytes.extend(vec![rng.below(256) as u8; SLOT_SIZE]),
            _ => bytes.extend(imitation(first, 1 + rng.below(7) as u8)),
        }
    }
    bytes.truncate(1 + rng.index(490));
    bytes
}

/// The same as a name or a link's target.
fn as_name(bytes: &[u8], len: usize) -> Vec<u8> {
    let mut name: Vec<u8> = bytes.iter().map(|&byte| if matches!(byte, 0 | b'/') { 1 } else { byte }).collect();
    name.truncate(len);
    name.push(b'x');
    name
}

/// One change of files whose names are few, below directories whose names are plain.
fn step(session: &Session, rng: &mut Rng, slots: u64) {
    let dir = session.lookup(session.root(), format!("d{}", rng.below(5)).as_bytes()).expect("a directory").node();
    let file = |rng: &mut Rng| format!("/d{}/f{}", rng.below(5), rng.below(25));
    let path = file(rng);
    let bytes = hostile(rng, slots);
    // Refusals do not matter.
    match rng.below(12) {
        0 | 1 => drop(session.create(&*path, 0o644)),
        2 | 3 => drop(session.unlink(&*path)),
        4 => drop(session.symlink(&as_name(&bytes, 800), &*path)),
        5 => drop(session.rename(&*path, &*file(rng), RenameMode::Replace)),
        6 => drop(session.remove_xattr(&*path, NAME)),
        7 => drop(session.set_xattr(&*format!("/d{}", rng.below(5)), NAME, &bytes, XattrMode::Set)),
        8 => drop(session.mknod_at(dir, &as_name(&bytes, 1 + rng.index(250)), S_IFREG | 0o644, 0)),
        9 => {
            let entries = session.read_dir_at(dir, 0, 1000).expect("entries");
            if !entries.is_empty() {
                drop(session.unlink_at(dir, &rng.pick(&entries).name));
            }
        }
        _ => drop(session.set_xattr(&*path, NAME, &bytes, XattrMode::Set)),
    }
}

/// Names, links' targets and attributes that look like inodes, in bodies that come, grow and go: what the check and a lookup by number find
/// are the inodes that have names.
#[test]
fn whatever_bodies_hold_the_inodes_are_found() {
    let seed = rng::seed_or(1);
    let replay = rng::replay_line("myriad-check", "bodies::whatever_bodies_hold_the_inodes_are_found", seed, "");
    println!("{replay}");
    let mut rng = Rng::new(seed);
    let (rounds, steps) = if rng::is_long() { (100, 300) } else { (20, 200) };
    for block_size in [512, 1024, 4096, 65536] {
        let device = make(block_size);
        let fs = open(&device);
        let session = fs.session(Cred::root());
        for i in 0..5 {
            session.mkdir(&*format!("/d{i}"), 0o755).unwrap();
        }
        for _ in 0..rounds {
            (0..steps).for_each(|_| step(&session, &mut rng, u64::from(block_size) / SLOT_SIZE as u64));
            let inodes = assert_numbers(&session, block_size);
            fs.sync().unwrap();
            assert_sound(&Arc::new(device.clone_image()), inodes);
        }
        fs.close().unwrap();
    }
}
