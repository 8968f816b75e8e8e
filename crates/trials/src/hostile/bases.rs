//! Sound volumes to start from: small, made by the engine, and between them with every structure that there is.

use crate::hostile::fields::fields_of;
use crate::hostile::log_image::LogImage;
use crate::hostile::{Field, Result};
use crate::setup::{Setup, repeatable};
use crate::table::{Promise, Row, orders};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{AllocateMode, Cred, File, Fs, MountOptions, OpenOptions, Order, Session, XattrMode};
use myriad_format::choices::{Choices, Directory, Inodes, Map, Space};
use myriad_format::superblock::Superblock;
use myriad_format::unit::{self, UNIT_SIZE};
use myriad_format::xattr::VALUE_MAX as XATTR_VALUE_MAX;
use myriad_format::{BlockHeader, BlockKind, FsBlock, Geometry};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// How a base volume is made.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub block_size: u32,
    pub size: u64,
    pub ag_blocks: u64,
    pub order: Order,
    /// Closed cleanly; otherwise the power is cut with a full log, orphans, or half of an unordered checkpoint.
    pub is_clean: bool,
    /// Names in the large directory, pieces of the fragmented file.
    pub names: usize,
    pub pieces: u64,
    /// How often it is drawn.
    pub weight: u64,
    pub data_checksums: bool,
    /// Blocks that make a block of a file, or a part of it; more than 1 only with maps by blocks.
    pub fragments: u32,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The shapes, for any choices. Large ones cost more to walk and are drawn less.
pub const SHAPES: &[Shape] = &[
    Shape {
        name: "512, log",
        block_size: 512,
        size: MIB,
        ag_blocks: 1024,
        order: Order::Log,
        is_clean: true,
        names: 50,
        pieces: 40,
        weight: 96,
        data_checksums: false,
        fragments: 1,
    },
    Shape {
        name: "512, power cut",
        block_size: 512,
        size: MIB,
        ag_blocks: 1024,
        order: Order::Log,
        is_clean: false,
        names: 40,
        pieces: 40,
        weight: 96,
        data_checksums: false,
        fragments: 1,
    },
    Shape {
        name: "512, no order, twelve groups",
        block_size: 512,
        size: 768 * KIB,
        ag_blocks: 128,
        order: Order::None,
        is_clean: true,
        names: 30,
        pieces: 40,
        weight: 48,
        data_checksums: false,
        fragments: 1,
    },
    Shape {
        name: "512, no order, power cut",
        block_size: 512,
        size: 512 * KIB,
        ag_blocks: 256,
        order: Order::None,
        is_clean: false,
        names: 30,
        pieces: 30,
        weight: 40,
        data_checksums: false,
        fragments: 1,
    },
    Shape {
        name: "1024, power cut",
        block_size: 1024,
        size: MIB,
        ag_blocks: 512,
        order: Order::Log,
        is_clean: false,
        names: 60,
        pieces: 60,
        weight: 40,
        data_checksums: false,
        fragments: 1,
    },
    Shape {
        name: "4096, log",
        block_size: 4096,
        size: MIB,
        ag_blocks: 128,
        order: Order::Log,
        is_clean: true,
        names: 100,
        pieces: 8,
        weight: 12,
        data_checksums: false,
        fragments: 1,
    },
    Shape {
        name: "4096, power cut",
        block_size: 4096,
        size: MIB,
        ag_blocks: 128,
        order: Order::Log,
        is_clean: false,
        names: 100,
        pieces: 8,
        weight: 12,
        data_checksums: false,
        fragments: 1,
    },
    Shape {
        name: "65536, log",
        block_size: 65536,
        size: 16 * MIB,
        ag_blocks: 128,
        order: Order::Log,
        is_clean: true,
        names: 110,
        pieces: 4,
        weight: 2,
        data_checksums: false,
        fragments: 1,
    },
    Shape {
        name: "512, deep trees",
        block_size: 512,
        size: 4 * MIB,
        ag_blocks: 4096,
        order: Order::Log,
        is_clean: true,
        names: 2600,
        pieces: 960,
        weight: 1,
        data_checksums: false,
        fragments: 1,
    },
    Shape {
        name: "1 KiB, checksums",
        block_size: 1024,
        size: 2 * MIB,
        ag_blocks: 1024,
        order: Order::Log,
        is_clean: true,
        names: 50,
        pieces: 40,
        weight: 64,
        data_checksums: true,
        fragments: 1,
    },
    Shape {
        name: "1 KiB, soft updates",
        block_size: 1024,
        size: 2 * MIB,
        ag_blocks: 1024,
        order: Order::Soft,
        is_clean: true,
        names: 50,
        pieces: 40,
        weight: 64,
        data_checksums: false,
        fragments: 1,
    },
    Shape {
        name: "1 KiB, each change at once",
        block_size: 1024,
        size: MIB,
        ag_blocks: 1024,
        order: Order::Sync,
        is_clean: true,
        names: 20,
        pieces: 40,
        weight: 16,
        data_checksums: false,
        fragments: 1,
    },
    Shape {
        name: "512, soft updates, power cut",
        block_size: 512,
        size: MIB,
        ag_blocks: 1024,
        order: Order::Soft,
        is_clean: false,
        names: 50,
        pieces: 40,
        weight: 64,
        data_checksums: false,
        fragments: 1,
    },
    Shape {
        name: "8 fragments of 512, log",
        block_size: 512,
        size: MIB,
        ag_blocks: 1024,
        order: Order::Log,
        is_clean: true,
        names: 50,
        pieces: 40,
        weight: 48,
        data_checksums: false,
        fragments: 8,
    },
    Shape {
        name: "8 fragments of 512, soft updates, power cut",
        block_size: 512,
        size: MIB,
        ag_blocks: 1024,
        order: Order::Soft,
        is_clean: false,
        names: 50,
        pieces: 40,
        weight: 48,
        data_checksums: false,
        fragments: 8,
    },
];

/// A metadata block of a base.
#[derive(Clone, Debug)]
pub struct Site {
    pub block: FsBlock,
    pub kind: BlockKind,
    pub fields: Vec<Field>,
}

/// A base volume, taken apart.
pub struct Base {
    pub choices: Choices,
    pub shape: Shape,
    pub geometry: Geometry,
    pub volume: [u8; 16],
    pub image: MemoryDevice,
    /// The same volume at an earlier time.
    pub earlier: MemoryDevice,
    pub sites: Vec<Site>,
    pub log: Option<LogImage>,
    /// Numbers of inodes in use, for pointers that lead somewhere.
    pub inos: Vec<u64>,
    /// Blocks of file data.
    pub data_blocks: Vec<u64>,
}

impl Base {
    pub fn block_size(&self) -> usize {
        self.geometry.block_size()
    }

    /// A block of the image.
    pub fn block(&self, block: FsBlock) -> Vec<u8> {
        let mut bytes = vec![0; self.block_size()];
        self.image.read(block.0 << self.geometry.block_bits, &mut bytes).expect("a block of the base");
        bytes
    }
}

/// How images are opened: with the smallest cache, and the same every time.
pub fn mount_options(read_only: bool) -> MountOptions {
    MountOptions { read_only, cache_size: 0, ..repeatable(Arc::new(AtomicI64::new(1_000_000_000))) }
}

fn write(session: &Session, path: &str, bytes: &[u8], offset: u64) -> Result<File> {
    let options = OpenOptions { read: true, write: true, create: true, mode: 0o640, ..OpenOptions::default() };
    let file = session.open(path, options)?;
    file.write_at(bytes, offset)?;
    Ok(file)
}

/// Every kind of file, directory and attribute.
fn fill(shape: &Shape, session: &Session, fs: &Fs) -> Result<()> {
    let block = u64::from(shape.block_size);
    session.mkdir("inline", 0o755)?;
    for name in 0..3 {
        session.create(&format!("inline/name {name}"), 0o644)?;
    }
    session.mkdir("block", 0o2775)?;
    for name in 0..8 {
        session.create(&format!("block/a somewhat longer name, number {name}"), 0o644)?;
    }
    session.mkdir("large", 0o755)?;
    session.create("many links", 0o644)?;
    for name in 0..shape.names {
        let path = format!("large/a name that takes its room {name}");
        match name % 16 {
            0 => drop(session.mkdir(&path, 0o700)?),
            1 => drop(session.symlink(b"../many links", &path)?),
            2 | 3 => drop(session.create(&path, 0o644)?),
            _ => session.link("many links", &path)?,
        }
    }
    // Holes among the entries, so that there is a list of blocks with room.
    for name in (5..shape.names).step_by(9) {
        let path = format!("large/a name that takes its room {name}");
        if session.lstat(&path).is_ok_and(|stat| !stat.is_dir()) {
            session.unlink(&path)?;
        }
    }
    session.mkdir("empty", 0o755)?;
    session.mkdir("a", 0o755)?;
    session.mkdir("a/b", 0o755)?;
    session.mkdir("a/b/c", 0o755)?;
    write(session, "a/b/c/text", b"some text\n", 0)?;
    write(session, "two extents", &vec![b'x'; block as usize * 2], block * 4)?;
    write(session, "two extents", b"y", 0)?;
    let pieces = write(session, "pieces", b"", 0)?;
    for piece in 0..shape.pieces {
        pieces.write_at(&[piece as u8; 100], piece * 2 * block)?;
        if piece % 16 == 15 {
            pieces.sync()?;
        }
    }
    // Single free blocks, so that the free-space trees get a level.
    for piece in (0..shape.pieces / 12).map(|piece| piece * 2) {
        pieces.allocate(AllocateMode::Punch, piece * 2 * block, block)?;
    }
    let unwritten = write(session, "unwritten", b"head", 0)?;
    unwritten.allocate(AllocateMode::Extend, 0, 6 * block)?;
    unwritten.allocate(AllocateMode::KeepSize, 8 * block, 2 * block)?;
    drop((pieces, unwritten));
    write(session, "sparse", b"far", (1 << 40).min(fs.file_size_max() - 3))?;
    session.symlink(b"a/b", "short link")?;
    session.symlink(&[b'l'; 200], "link in the body")?;
    session.symlink(&[b"../"[..].repeat(500), b"x".to_vec()].concat(), "link in blocks")?;
    session.symlink(b"circle", "circle")?;
    session.mknod("fifo", 0o010600, 0)?;
    session.mknod("socket", 0o140600, 0)?;
    session.mknod("device", 0o060600, 0x801)?;
    session.create("attributes", 0o644)?;
    session.set_xattr("attributes", b"user.small", b"value", XattrMode::Set)?;
    session.set_xattr("attributes", b"trusted.other", b"", XattrMode::Set)?;
    let acl = acl();
    session.set_xattr("a", b"system.posix_acl_default", &acl, XattrMode::Set)?;
    session.set_xattr("inline/name 0", b"system.posix_acl_access", &acl, XattrMode::Set)?;
    session.create("a/inherits", 0o640)?;
    let long = vec![b'v'; (block as usize * 3).min(XATTR_VALUE_MAX - 100)];
    session.set_xattr("many links", b"user.long", &long, XattrMode::Set)?;
    session.set_xattr("empty", b"user.on a directory", &long[..(block as usize).min(60_000)], XattrMode::Set)?;
    fs.sync()
}

/// An ACL with a named user and a mask, as setxattr(2) takes it.
fn acl() -> Vec<u8> {
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1_u16, 6_u16, u32::MAX), (2, 7, 1000), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)]
    {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&perm.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    acl
}

/// What happens after the earlier state was kept: blocks change hands, orphans appear.
fn change(shape: &Shape, session: &Session, fs: &Fs) -> Result<Vec<File>> {
    let block = usize::try_from(shape.block_size).expect("a block size");
    session.remove_tree("block", &mut |_| true)?;
    session.mkdir("later", 0o755)?;
    for name in 0..12 {
        write(session, &format!("later/file {name}"), &vec![b'z'; block + 1], 0)?;
    }
    session.rename("a/b", "later/b", myriad_engine::RenameMode::Replace)?;
    session.rename("inline/name 1", "large/moved here", myriad_engine::RenameMode::Replace)?;
    session.remove_xattr("empty", b"user.on a directory")?;
    let mut held = Vec::new();
    for name in 0..3 {
        let path = format!("unnamed {name}");
        held.push(write(session, &path, &vec![b'o'; block * 2], 0)?);
        session.unlink(&path)?;
    }
    fs.sync()?;
    session.create("after the last sync but one", 0o600)?;
    fs.sync()?;
    Ok(held)
}

/// Makes a base.
pub fn make(choices: Choices, shape: Shape) -> Result<Base> {
    // Without bodies, each small directory and long link takes a block.
    let has_bodies =
        choices.inodes == Inodes::Dynamic && matches!(choices.directory, Directory::Indexed | Directory::Tree);
    let size = if has_bodies { shape.size } else { 2 * shape.size };
    let mut setup = Setup::of(Row { choices, order: shape.order, fragments: shape.fragments }, shape.block_size, size);
    let group = shape.ag_blocks * u64::from(shape.block_size);
    (setup.ag_size, setup.region_size) = (Some(group), Some(group / 4));
    // They have as many files as a volume of their size can be asked to hold.
    setup.bytes_per_inode = 2048;
    setup.log_size = Some(if shape.order == Order::Log { 34 * u64::from(shape.block_size).max(4096) } else { 0 });
    setup.data_checksums = shape.data_checksums;
    setup.options.cache_size = 16 << 20;
    let device = Arc::new(setup.format());
    setup.time.store(1_000_000, Ordering::Relaxed);
    let fs = setup.open(device.clone())?;
    let session = fs.session(Cred::root());
    fill(&shape, &session, &fs)?;
    // Home, so that the earlier state is one that blocks really had.
    fs.drop_caches()?;
    let earlier = device.clone_image();
    setup.time.store(2_000_000, Ordering::Relaxed);
    let held = change(&shape, &session, &fs)?;
    let cut = device.clone_image();
    drop((held, session));
    fs.close()?;
    let mut image = if shape.is_clean { device.clone_image() } else { cut };
    if !shape.is_clean && Promise::of(shape.order) == Promise::Repair {
        image = unordered(&earlier, &image, shape.block_size)?;
    }
    Ok(take_apart(choices, shape, image, earlier))
}

/// What an unordered crash may leave: of the blocks that differ each other one arrived.
fn unordered(earlier: &MemoryDevice, later: &MemoryDevice, block_size: u32) -> Result<MemoryDevice> {
    let image = later.clone_image();
    let (mut old, mut new) = (vec![0; block_size as usize], vec![0; block_size as usize]);
    let mut differing = 0;
    for offset in (u64::from(block_size)..later.size()).step_by(block_size as usize) {
        let io = |source| myriad_engine::Error::io("read", offset, source);
        earlier.read(offset, &mut old).map_err(io)?;
        later.read(offset, &mut new).map_err(io)?;
        differing += u64::from(old != new);
        if old != new && differing % 2 == 0 {
            image.write(offset, &old).map_err(io)?;
        }
    }
    Ok(image)
}

fn take_apart(choices: Choices, shape: Shape, image: MemoryDevice, earlier: MemoryDevice) -> Base {
    let mut first = vec![0; Superblock::SIZE];
    image.read(0, &mut first).expect("a superblock");
    let superblock = Superblock::decode(&first, FsBlock(0)).expect("the engine wrote it");
    let geometry = superblock.geometry();
    let log = (superblock.log_blocks.get() > 0).then(|| LogImage::read(&image, &superblock));
    let log_range = superblock.log_start.get()..superblock.log_start.get() + superblock.log_blocks.get();
    let mut base = Base {
        choices,
        shape,
        geometry,
        volume: superblock.volume(),
        image,
        earlier,
        sites: Vec::new(),
        log,
        inos: Vec::new(),
        data_blocks: Vec::new(),
    };
    for block in (0..geometry.block_count).filter(|block| !log_range.contains(block)).map(FsBlock) {
        let bytes = base.block(block);
        let Some(kind) = kind_of(&bytes, &base.volume, block) else {
            if bytes.iter().any(|&byte| byte != 0) {
                base.data_blocks.push(block.0);
            }
            continue;
        };
        if kind == BlockKind::Inode {
            let slots = geometry.slots_per_block();
            let is_used = |slot: &u32| bytes[*slot as usize * 128 + 1] & 0xf0 != 0;
            base.inos.extend((1..slots).filter(is_used).map(|slot| geometry.ino(block, slot).0));
        }
        base.sites.push(Site { block, kind, fields: fields_of(&bytes, choices.directory) });
    }
    // Inodes in blocks of another kind have no number that can be told from there.
    let known: BTreeSet<u64> = base.inos.iter().copied().collect();
    base.inos.extend(shown(&base).into_iter().filter(|ino| !known.contains(ino)));
    base
}

/// The kind of a metadata block of this volume; `None`: it is something else.
fn kind_of(bytes: &[u8], volume: &[u8; 16], block: FsBlock) -> Option<BlockKind> {
    let kind = BlockKind::of(bytes)?;
    let header = BlockHeader::read(bytes);
    let is_ours = if kind.is_of_units() {
        // The first unit speaks for all: later ones of a table may never have been written.
        unit::verify_one(&bytes[..UNIT_SIZE], kind, volume, block, 0).is_ok()
    } else {
        header.volume == *volume && header.address.get() == block.0
    };
    is_ours.then_some(kind)
}

/// Numbers of the inodes that a walk shows. A volume that nobody may open shows none.
fn shown(base: &Base) -> BTreeSet<u64> {
    let Ok(fs) = Fs::open_device(Arc::new(base.image.clone_image()), None, mount_options(true)) else {
        return BTreeSet::new();
    };
    let session = fs.session(Cred::root());
    let Ok(walk) = session.walk("/") else { return BTreeSet::new() };
    walk.filter_map(|entry| entry.ok()).map(|entry| entry.stat.ino).collect()
}

/// A base of each shape that these choices can have.
pub fn all(choices: &Choices) -> Result<Vec<Base>> {
    let orders: Vec<Order> = orders(choices).collect();
    let has_fragments = choices.map == Map::Blocks && choices.space == Space::Bitmap;
    let shapes = SHAPES.iter().filter(|shape| orders.contains(&shape.order) && (shape.fragments == 1 || has_fragments));
    shapes.map(|&shape| make(*choices, shape)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{name_of, rows, sets};
    use myriad_check::{Options, check};
    use myriad_format::inode::{RawInode, fork};

    /// Whether volumes of these choices have blocks of this kind.
    fn belongs(kind: BlockKind, choices: &Choices) -> bool {
        match kind {
            BlockKind::FreeByStart | BlockKind::FreeByLength => choices.space == Space::Trees,
            BlockKind::BlockBitmap => choices.space == Space::Bitmap,
            BlockKind::InodeTree | BlockKind::Inode => choices.inodes == Inodes::Dynamic,
            BlockKind::InodeBitmap | BlockKind::InodeTable => choices.inodes == Inodes::Static,
            BlockKind::ExtentTree => choices.map == Map::Extents,
            BlockKind::Pointers => choices.map == Map::Blocks,
            BlockKind::DirEntries | BlockKind::DirIndex => choices.directory == Directory::Indexed,
            BlockKind::LinearEntries => choices.directory == Directory::Linear,
            BlockKind::DirSlots | BlockKind::DirExtents => choices.directory == Directory::Slots,
            BlockKind::DirTree => choices.directory == Directory::Tree,
            _ => true,
        }
    }

    /// Bases of one set of choices: all sound, and with every kind of block that it has.
    fn sound(choices: &Choices) -> Vec<Base> {
        let name = name_of(choices);
        let bases = all(choices).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut kinds = BTreeSet::new();
        for base in &bases {
            let shape = base.shape;
            if shape.is_clean || Promise::of(shape.order) == Promise::Prefix {
                let options = Options { scrub: true, ..Options::default() };
                let report = check(Arc::new(base.image.clone_image()), None, &options).unwrap();
                assert_eq!(report.finding_count, 0, "{name}, {}: {:?}", shape.name, report.findings.first());
            }
            if matches!(Promise::of(shape.order), Promise::Usable | Promise::Returned) {
                let report = check(Arc::new(base.image.clone_image()), None, &Options::default()).unwrap();
                assert_eq!(report.damage_count, 0, "{name}, {}: {:?}", shape.name, report.findings.first());
            }
            let has_runs = base.sites.iter().any(|site| site.fields.iter().any(|field| field.name == "run, missing"));
            assert_eq!(has_runs, shape.fragments > 1, "{name}, {}: runs shorter than a block", shape.name);
            for site in &base.sites {
                kinds.insert(site.kind.name());
                let len = base.block_size();
                assert!(site.fields.iter().all(|field| field.at + 8 <= len + 8 - field.bits.div_ceil(8) as usize));
            }
        }
        let expected = BlockKind::ALL.into_iter().filter(|kind| belongs(*kind, choices));
        assert_eq!(kinds, expected.map(BlockKind::name).collect(), "{name}");
        bases
    }

    #[test]
    fn bases_are_sound_and_hold_every_structure() {
        for choices in sets(&rows()) {
            let bases = sound(&choices);
            if choices == Choices::default() {
                hold_every_form(&bases);
            }
        }
    }

    /// Forks and levels that the structures of the default can have.
    fn hold_every_form(bases: &[Base]) {
        let mut forks = BTreeSet::new();
        let mut levels = BTreeSet::new();
        for (base, site) in bases.iter().flat_map(|base| base.sites.iter().map(move |site| (base, site))) {
            let bytes = base.block(site.block);
            match site.kind {
                BlockKind::Inode => {
                    for slot in 1..bytes.len() / 128 {
                        let raw = RawInode::read(&bytes[slot * 128..]);
                        if raw.check(myriad_format::Ino(1)).is_ok() {
                            forks.insert((raw.file_type(), raw.fork_code()));
                        }
                    }
                }
                BlockKind::ExtentTree | BlockKind::FreeByStart => {
                    levels.insert((site.kind.name(), myriad_format::btree::NodeHeader::read(&bytes).level.get()));
                }
                BlockKind::DirIndex => {
                    let level = u16::from(myriad_format::dir::IndexHeader::read(&bytes).level);
                    levels.insert((site.kind.name(), level));
                }
                _ => {}
            }
        }
        for found in [
            (0o100000, fork::EXTENTS),
            (0o100000, fork::TREE),
            (0o100000, fork::NONE),
            (0o040000, fork::INLINE),
            (0o040000, fork::NONE),
            (0o040000, fork::DIRECTORY),
            (0o040000, fork::DIRECTORY_TREE),
            (0o120000, fork::SHORT_LINK),
            (0o120000, fork::INLINE),
            (0o120000, fork::EXTENTS),
            (0o060000, fork::NONE),
        ] {
            assert!(forks.contains(&found), "no inode of type {:#o} with fork {} in {forks:?}", found.0, found.1);
        }
        for found in [("extent tree", 1), ("extent tree", 2), ("directory index", 2), ("free-space tree by start", 1)] {
            assert!(levels.contains(&found), "no {} of level {} in {levels:?}", found.0, found.1);
        }
    }
}
