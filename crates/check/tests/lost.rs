//! What is left when a block of primary data is gone, of inodes or of names: everything else, by its name or, where that was
//! lost, under lost+found by its number, with its contents and all that was below it.

use myriad_check::{Options, check};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, OpenOptions, Session};
use myriad_format::dir::{ENTRIES_OFFSET, EntryBlockHeader, EntryHeader};
use myriad_format::superblock::Superblock;
use myriad_format::{BlockHeader, BlockKind, FsBlock, Ino};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A file or directory by one of its names.
struct Node {
    ino: u64,
    /// `None` of a directory.
    contents: Option<Vec<u8>>,
}

type Tree = BTreeMap<String, Node>;

fn open(device: &Arc<MemoryDevice>) -> Fs {
    let options =
        MountOptions { cache_size: 32 << 20, commit_interval_ms: 0, background: false, ..MountOptions::default() };
    Fs::open_device(device.clone(), None, options).expect("the volume opens")
}

fn contents(session: &Session, path: &str) -> Vec<u8> {
    let file = session.open(path, OpenOptions { read: true, ..OpenOptions::default() }).expect("open");
    let mut bytes = vec![0; file.stat().expect("stat").size as usize];
    let length = file.read_at(&mut bytes, 0).expect("read");
    assert_eq!(length, bytes.len(), "{path}");
    bytes
}

/// Small and large directories three deep, with files in the inode, in blocks and in many pieces, and with second names.
fn volume(block_size: u32) -> (Arc<MemoryDevice>, Tree) {
    let device = Arc::new(MemoryDevice::new(24 << 20));
    let mkfs = MkfsOptions { block_size, ag_size: Some(8 << 20), seed: Some(7), ..MkfsOptions::default() };
    Fs::format_device(device.clone(), None, &mkfs).expect("mkfs");
    let fs = open(&device);
    let session = fs.session(Cred::root());
    let mut paths = Vec::new();
    let mut number = 0_usize;
    for top in ["/one", "/two", "/three"] {
        for directory in [top.to_owned(), format!("{top}/below"), format!("{top}/below/deep")] {
            session.mkdir(&*directory, 0o755).expect("mkdir");
            let files = if directory.ends_with("two/below") { 150 } else { 5 };
            for file in 0..files {
                let path = format!("{directory}/a file with number {file}");
                number += 1;
                let bytes: Vec<u8> = (0..number * 37 % 5000).map(|at| (at * number % 251) as u8).collect();
                let options = OpenOptions { write: true, create: true, mode: 0o644, ..OpenOptions::default() };
                let handle = session.open(&*path, options).expect("create");
                // Every eighth in pieces with holes between.
                let step = if number % 8 == 0 { 3 * block_size as u64 } else { 1000 };
                for (piece, bytes) in bytes.chunks(1000).enumerate() {
                    handle.write_at(bytes, piece as u64 * step).expect("write");
                }
                paths.push(path);
            }
            paths.push(directory);
        }
    }
    for file in 0..3 {
        let path = format!("/second name {file}");
        session.link(&*format!("/two/below/a file with number {file}"), &*path).expect("link");
        paths.push(path);
    }
    let tree = paths.into_iter().map(|path| {
        let stat = session.lstat(&*path).expect("stat");
        let contents = (!stat.is_dir()).then(|| contents(&session, &path));
        (path, Node { ino: stat.ino, contents })
    });
    let tree = tree.collect();
    drop(session);
    fs.close().expect("close");
    (device, tree)
}

/// Where all is to be found, if these inodes are lost, and these names of a directory: path, inode.
fn expected(
    tree: &Tree,
    root: u64,
    is_lost: &dyn Fn(u64) -> bool,
    names: &BTreeSet<(u64, String)>,
) -> Vec<(String, u64)> {
    let mut directories = BTreeMap::from([("", (root, (!is_lost(root)).then(String::new)))]);
    let mut files: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut places = Vec::new();
    // A directory comes before what is in it.
    for (path, node) in tree {
        let (above, name) = path.rsplit_once('/').expect("an absolute path");
        let (above_ino, above_place) = &directories[above];
        let has_name = !names.contains(&(*above_ino, name.to_owned()));
        let place = above_place.as_ref().filter(|_| has_name).map(|above| format!("{above}/{name}"));
        if node.contents.is_some() {
            files.entry(node.ino).or_default().extend(place);
        } else if is_lost(node.ino) {
            directories.insert(path, (node.ino, None));
        } else {
            let place = place.unwrap_or_else(|| format!("/lost+found/#{}", node.ino));
            places.push((place.clone(), node.ino));
            directories.insert(path, (node.ino, Some(place)));
        }
    }
    for (ino, mut names) in files.into_iter().filter(|(ino, _)| !is_lost(*ino)) {
        if names.is_empty() {
            names.push(format!("/lost+found/#{ino}"));
        }
        places.extend(names.into_iter().map(|name| (name, ino)));
    }
    places
}

/// The names in an entry block, with the directory.
fn names_in(block: &[u8]) -> BTreeSet<(u64, String)> {
    let owner = BlockHeader::read(block).owner.get();
    let (mut at, end) = (ENTRIES_OFFSET, EntryBlockHeader::read(block).tail.get() as usize);
    let mut names = BTreeSet::new();
    while at < end {
        let head = EntryHeader::read(&block[at..]);
        if head.ino.get() != 0 {
            let name = &block[at + EntryHeader::SIZE..][..usize::from(head.name_len)];
            names.insert((owner, String::from_utf8(name.to_vec()).expect("an ASCII name")));
        }
        at += usize::from(head.length.get());
    }
    names
}

#[test]
fn a_lost_block_costs_what_was_in_it() {
    for block_size in [512, 4096] {
        let (device, tree) = volume(block_size);
        let mut bytes = vec![0; block_size as usize];
        device.read(0, &mut bytes).unwrap();
        let superblock = *Superblock::read(&bytes);
        let geometry = superblock.geometry();
        let by_ino: BTreeMap<u64, &Node> = tree.values().map(|node| (node.ino, node)).collect();
        let mut moved = 0;
        let mut lost_blocks = [0, 0];
        for block in (0..geometry.block_count).map(FsBlock) {
            device.read(block.0 << geometry.block_bits, &mut bytes).unwrap();
            let header = BlockHeader::read(&bytes);
            let kind = BlockKind::from_magic(header.magic.get()).filter(|_| header.address.get() == block.0);
            let names = match kind {
                Some(BlockKind::Inode) => BTreeSet::new(),
                Some(BlockKind::DirEntries) => names_in(&bytes),
                _ => continue,
            };
            let is_lost = |ino: u64| kind == Some(BlockKind::Inode) && geometry.locate(Ino(ino)).unwrap().0 == block;
            let places = expected(&tree, superblock.root_ino.get(), &is_lost, &names);
            lost_blocks[usize::from(kind == Some(BlockKind::Inode))] += 1;
            for fill in [0, 0xa5] {
                let device = Arc::new(device.clone_image());
                device.write(block.0 << geometry.block_bits, &vec![fill; block_size as usize]).unwrap();
                let options = Options { repair: true, now: 5, ..Options::default() };
                let report = check(device.clone(), None, &options).expect("the volume can be repaired");
                let what = format!("{kind:?} block {block} of {block_size} bytes full of {fill:#x}");
                assert!(report.is_sound(), "{what}: {:?}\n{}", report.remaining, report.actions.join("\n"));
                let fs = open(&device);
                let session = fs.session(Cred::root());
                for (place, ino) in &places {
                    let stat = session.lstat(&**place);
                    let stat = stat.unwrap_or_else(|error| panic!("{what}: {place}: {error}: {:?}", report.actions));
                    assert_eq!(stat.ino, *ino, "{what}: {place}");
                    if let Some(before) = &by_ino[ino].contents {
                        assert!(contents(&session, place) == *before, "{what}: {place} has other contents");
                    }
                }
                let entries = session.read_dir("/lost+found").into_iter().flatten();
                let found = entries.filter(|entry| !entry.as_ref().expect("an entry").name.starts_with(b".")).count();
                let strays = places.iter().filter(|(place, _)| place.starts_with("/lost+found/#"));
                let strays = strays.filter(|(place, _)| place.matches('/').count() == 2).count();
                assert_eq!(found, strays, "{what}");
                moved += strays;
                drop(session);
                fs.close().expect("close");
            }
        }
        assert!(lost_blocks[0] >= 2 && lost_blocks[1] >= 5, "{lost_blocks:?} blocks of {block_size} bytes");
        assert!(moved > 100, "{moved} moved");
    }
}
