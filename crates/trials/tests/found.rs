//! Damage that once led engine or check astray: one test a story. Each fails on the commit before its fix.

use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{Cred, Errno, Error, Fs, OpenOptions, RenameMode};
use myriad_format::choices::{Choices, Directory};
use myriad_format::dir::EntryHeader;
use myriad_format::inode::{BLOCK_TOTAL_MAX, RawInode};
use myriad_format::superblock::Superblock;
use myriad_format::xattr::AttrBlockHeader;
use myriad_format::{BlockHeader, BlockKind, FsBlock, Ino, SLOT_SIZE, header};
use myriad_sim::rng::Rng;
use myriad_trials::hostile::bases::{Base, SHAPES, Shape, make, mount_options};
use myriad_trials::hostile::exercise::{Facts, Plan, examine};
use myriad_trials::hostile::log_image::LogImage;
use myriad_trials::hostile::{Field, fields_of};
use std::sync::Arc;

fn base(name: &str) -> Base {
    let shape: Shape = *SHAPES.iter().find(|shape| shape.name == name).expect("a shape of this name");
    make(Choices::default(), shape).expect("a sound base")
}

/// Does everything to an image that a run of mutants does, and expects no complaint.
fn judge(image: &MemoryDevice) -> Facts {
    let plan = Plan { change: true, check: true, repair: true };
    examine(image, plan, &mut Rng::new(1)).unwrap_or_else(|complaint| panic!("{complaint}"))
}

/// Rewrites the first block of `kind` in which `change` finds what it looks for, with its checksum made right.
fn change_block(base: &Base, kind: BlockKind, mut change: impl FnMut(FsBlock, &mut [u8]) -> bool) -> MemoryDevice {
    let image = base.image.clone_image();
    for site in base.sites.iter().filter(|site| site.kind == kind) {
        let mut bytes = base.block(site.block);
        if change(site.block, &mut bytes) {
            header::seal(&mut bytes, 0);
            image.write(site.block.0 << base.geometry.block_bits, &bytes).expect("inside the image");
            return image;
        }
    }
    panic!("no {} has what the test looks for", kind.name());
}

fn change_superblock(base: &Base, change: impl FnOnce(&mut Superblock)) -> MemoryDevice {
    let mut change = Some(change);
    change_block(base, BlockKind::Superblock, |block, bytes| {
        block.0 == 0 && change.take().map(|change| change(Superblock::read_mut(bytes))).is_some()
    })
}

/// The fields of a block with this name.
fn named(bytes: &[u8], name: &str) -> Vec<Field> {
    fields_of(bytes, Directory::Indexed).into_iter().filter(|field| field.name == name).collect()
}

/// Number of the inode that `path` names.
fn ino_of(image: &MemoryDevice, path: &str) -> Ino {
    let fs = Fs::open_device(Arc::new(image.clone_image()), None, mount_options(true)).expect("opens");
    Ino(fs.session(Cred::root()).lstat(path).expect("is there").ino)
}

/// Inode `ino` in the block at hand, if it lies there.
fn inode_in<'a>(base: &Base, block: FsBlock, bytes: &'a mut [u8], ino: Ino) -> Option<&'a mut RawInode> {
    let (home, slot) = base.geometry.locate(ino).expect("an inode of this volume");
    (home == block).then(|| RawInode::read_mut(&mut bytes[slot as usize * SLOT_SIZE..]))
}

/// An entry of a directory was made to name a directory above it. Walks went round for ever, their paths growing.
#[test]
fn directories_in_a_circle_end_a_walk() {
    let base = base("512, log");
    // Without an index, so that the entry alone decides.
    let later = ino_of(&base.image, "later");
    // Also where the entry says that it is a file: a listing with attributes believed it, and did not ask whose the name was.
    for (target, file_type) in ["/", "later", "a"].into_iter().flat_map(|target| [(target, 4), (target, 8)]) {
        let target = ino_of(&base.image, target);
        let image = change_block(&base, BlockKind::DirEntries, |_, bytes| {
            if BlockHeader::read(bytes).owner.get() != later.0 {
                return false;
            }
            let other = |field: &Field| ![0, target.0].contains(&field.get(bytes));
            let Some(field) = named(bytes, "ino").into_iter().find(other) else { return false };
            field.set(bytes, target.0);
            EntryHeader::read_mut(&mut bytes[field.at..]).file_type = file_type;
            true
        });
        assert!(judge(&image).errors > 0, "the engine has to say that something is wrong");
    }
}

/// Extents of a leaf were out of order. The search for the extent after a hole found one before it, and reading the
/// file never came further.
#[test]
fn unsorted_extents_are_damage() {
    let base = base("512, log");
    for at in [2, 4, 9, 20] {
        let image = change_block(&base, BlockKind::ExtentTree, |_, bytes| {
            let fields = named(bytes, "extent file block");
            fields.get(at).map(|field| field.set(bytes, 2)).is_some()
        });
        judge(&image);
    }
}

/// A flush that met damage half-way had given its first pages away already. The next flush gave them away again and
/// waited for itself.
#[test]
fn a_flush_that_fails_can_fail_again() {
    let base = base("512, log");
    let leaf = |bytes: &[u8]| named(bytes, "extent file block");
    let mut reached = 0;
    let image = change_block(&base, BlockKind::ExtentTree, |_, bytes| {
        let Some(field) = leaf(bytes).get(12).copied() else { return false };
        reached = field.get(bytes);
        named(bytes, "extent start")[12].set(bytes, 0);
        true
    });
    let fs = Fs::open_device(Arc::new(image), None, mount_options(false)).expect("opens");
    let session = fs.session(Cred::root());
    let file = session.open("pieces", OpenOptions { write: true, ..OpenOptions::default() }).expect("opens");
    for block in [0, reached] {
        file.write_at(&[1; 512], block * 512).expect("whole blocks are not looked for");
    }
    assert!(matches!(fs.sync(), Err(Error::Corrupt(_))), "the damage is met");
    assert!(fs.sync().is_err());
    assert!(fs.drop_caches().is_err());
}

/// A name with a slash in it led a copy of the tree out of the tree.
#[test]
fn names_that_are_none_are_not_shown() {
    let base = base("512, log");
    for name in [b'/', 0] {
        let image = change_block(&base, BlockKind::DirEntries, |_, bytes| {
            let Some(field) = named(bytes, "name").first().copied() else { return false };
            field.set(bytes, u64::from(name));
            true
        });
        let fs = Fs::open_device(Arc::new(image.clone_image()), None, mount_options(true)).expect("opens");
        let shown = fs.session(Cred::root()).walk("/").expect("the root is sound");
        let (good, bad): (Vec<_>, Vec<_>) = shown.partition(Result::is_ok);
        assert!(good.iter().flatten().all(|entry| !entry.path.contains(&0)));
        assert!(bad.iter().flatten().count() == 0 && bad.len() == 1);
        judge(&image);
    }
}

/// A free entry had a name's length. The engine refused the block, the check saw nothing wrong with it.
#[test]
fn free_entries_have_no_name() {
    let base = base("512, log");
    let image = change_block(&base, BlockKind::DirEntries, |_, bytes| {
        let free = named(bytes, "ino").into_iter().find(|field| field.get(bytes) == 0);
        free.map(|field| EntryHeader::read_mut(&mut bytes[field.at..]).name_len = 200).is_some()
    });
    judge(&image);
}

/// Repair took the blocks of a symbolic link whose target could not be read any more, and left a link without target,
/// which is no inode.
#[test]
fn a_link_that_lost_its_target_is_gone_after_repair() {
    let base = base("512, log");
    let link = ino_of(&base.image, "link in blocks");
    let image = change_block(&base, BlockKind::Inode, |block, bytes| {
        let Some(raw) = inode_in(&base, block, bytes, link) else { return false };
        raw.fork[8..16].fill(0);
        true
    });
    assert!(judge(&image).repaired);
}

/// The superblock said that the last group has one block. Its fixed blocks lay outside the volume, and repair wrote there.
#[test]
fn a_group_without_room_for_its_fixed_blocks_is_refused() {
    let base = base("512, log");
    let image = change_superblock(&base, |superblock| {
        let blocks = u64::from(superblock.ag_blocks.get()) + 1;
        superblock.block_count.set(blocks);
        superblock.ag_high_water.set(2);
    });
    assert!(!judge(&image).opened);
}

/// A chain of attributes with an ACL in it was damaged behind the ACL. Repair dropped the chain and kept the flag.
#[test]
fn an_acl_lost_in_repair_takes_its_flag_along() {
    let base = base("512, log");
    let mut image = base.image.clone_image();
    {
        let device = Arc::new(image.clone_image());
        let fs = Fs::open_device(device.clone(), None, mount_options(false)).expect("opens");
        let session = fs.session(Cred::root());
        let acl = session.get_xattr("inline/name 0", b"system.posix_acl_access").expect("has one");
        let mode = myriad_engine::XattrMode::Set;
        session.set_xattr("many links", b"system.posix_acl_access", &acl, mode).expect("room for it");
        drop(session);
        fs.close().expect("closes");
        image = device.clone_image();
    }
    let owner = ino_of(&image, "many links");
    let mut damaged = false;
    for block in 0..base.geometry.block_count {
        let mut bytes = vec![0; 512];
        image.read(block * 512, &mut bytes).expect("inside the image");
        let head = *AttrBlockHeader::read(&bytes);
        let is_last = head.next.get() == 0 && head.length.get() > 0;
        if header::verify(&bytes, BlockKind::Attributes, &base.volume, FsBlock(block)).is_ok()
            && head.header.owner.get() == owner.0
            && is_last
        {
            AttrBlockHeader::read_mut(&mut bytes).length.set(head.length.get() + 7);
            header::seal(&mut bytes, 0);
            image.write(block * 512, &bytes).expect("inside the image");
            damaged = true;
        }
    }
    assert!(damaged);
    assert!(judge(&image).repaired);
}

/// The superblock said less blocks than the one in the log. Repair worked with the one and wrote the other.
#[test]
fn superblocks_that_differ_in_size_are_not_mixed() {
    let base = base("512, power cut");
    let image = change_superblock(&base, |superblock| {
        superblock.block_count.set(419);
        superblock.ag_count.set(1);
        superblock.ag_high_water.set(1);
    });
    judge(&image);
}

/// The log was said to lie a block further on, over the first block of an inode chunk. Repair gave the chunk up, and the
/// rest of its blocks to nobody; the inodes in them were lost.
#[test]
fn what_a_lost_chunk_leaves_is_found() {
    let base = base("1024, power cut");
    let image = change_superblock(&base, |superblock| superblock.log_start.set(superblock.log_start.get() + 1));
    assert!(judge(&image).repaired);
}

/// The live bytes of an entry block were more than the block has. Removing a name from it subtracted one from the other.
#[test]
fn an_entry_block_may_claim_any_live_bytes() {
    let base = base("512, power cut");
    let large = ino_of(&base.image, "large");
    let image = base.image.clone_image();
    for site in base.sites.iter().filter(|site| site.kind == BlockKind::DirEntries) {
        let mut bytes = base.block(site.block);
        if BlockHeader::read(&bytes).owner.get() == large.0 {
            named(&bytes, "live")[0].set(&mut bytes, 0x80_0180);
            header::seal(&mut bytes, 0);
            image.write(site.block.0 * 512, &bytes).expect("inside the image");
        }
    }
    let fs = Fs::open_device(Arc::new(image.clone_image()), None, mount_options(false)).expect("opens");
    // Whether they can be removed is another question.
    let _ = fs.session(Cred::root()).remove_tree("large", &mut |_| true);
    drop(fs);
    judge(&image);
}

/// A directory said that its entries were in its body, and that it had none. Repair read them from where the body had
/// been.
#[test]
fn a_directory_that_lost_its_body_is_empty() {
    let base = base("512, log");
    let inline = ino_of(&base.image, "a");
    let image = change_block(&base, BlockKind::Inode, |block, bytes| {
        inode_in(&base, block, bytes, inline).map(|raw| raw.body_slots = 0).is_some()
    });
    assert!(judge(&image).repaired);
}

/// The log was said to begin in the group's fixed blocks, or to be nowhere though it was in force.
#[test]
fn a_log_in_an_impossible_place_is_damage_of_the_superblock() {
    let base = base("512, power cut");
    for change in [|sb: &mut Superblock| sb.log_start.set(4), |sb: &mut Superblock| sb.log_blocks.set(0)] {
        let facts = judge(&change_superblock(&base, change));
        assert!(!facts.opened && facts.repaired, "the copy of the superblock is whole");
    }
}

/// A copy of the superblock in a group not used yet was damaged. The check looked at it only once the group was in use.
#[test]
fn copies_in_unused_groups_are_checked() {
    let base = base("512, no order, twelve groups");
    let last = base.sites.iter().rfind(|site| site.kind == BlockKind::Superblock).expect("copies");
    assert!(last.block.0 > 0);
    let image = base.image.clone_image();
    image.write(last.block.0 << base.geometry.block_bits, &[0; 100]).expect("inside the image");
    assert_eq!(judge(&image).findings, 1);
}

/// The extent tree of a directory was made empty. Repair made the directory empty, and gave the tree's root to nobody.
#[test]
fn an_empty_map_goes_with_its_tree() {
    let base = base("512, power cut");
    let large = ino_of(&base.image, "/");
    let image = change_block(&base, BlockKind::ExtentTree, |_, bytes| {
        let is_root = BlockHeader::read(bytes).owner.get() == large.0;
        if is_root {
            named(bytes, "count")[0].set(bytes, 0);
        }
        is_root
    });
    assert!(judge(&image).repaired);
}

/// A group header counted more inode blocks than a number holds. The next chunk made there was one too many.
#[test]
fn group_counts_do_not_overflow() {
    let base = base("512, no order, twelve groups");
    let image = base.image.clone_image();
    for site in base.sites.iter().filter(|site| site.kind == BlockKind::Group) {
        let mut bytes = base.block(site.block);
        named(&bytes, "inode_blocks")[0].set(&mut bytes, u64::from(u32::MAX));
        header::seal(&mut bytes, 0);
        image.write(site.block.0 * 512, &bytes).expect("inside the image");
    }
    let fs = Fs::open_device(Arc::new(image.clone_image()), None, mount_options(false)).expect("opens");
    let session = fs.session(Cred::root());
    assert!((0..200).any(|number| session.create(&format!("new {number}"), 0o600).is_err()));
    drop(session);
    drop(fs);
    judge(&image);
}

/// A directory with entries in its body was made a file. The format had room for files in bodies, the engine has none.
#[test]
fn files_do_not_lie_in_bodies() {
    let base = base("512, log");
    let inline = ino_of(&base.image, "inline");
    let image = change_block(&base, BlockKind::Inode, |block, bytes| {
        inode_in(&base, block, bytes, inline).map(|raw| raw.mode.set(0o100644)).is_some()
    });
    assert!(judge(&image).repaired);
}

/// Names that a listing shows and a lookup does not find were passed over as gone, and their directory listed from its
/// start again for ever.
#[test]
fn a_tree_with_names_that_only_a_listing_shows_is_given_up() {
    let base = base("512, log");
    let root = ino_of(&base.image, "/");
    let image = base.image.clone_image();
    for site in base.sites.iter().filter(|site| site.kind == BlockKind::DirEntries) {
        let mut bytes = base.block(site.block);
        if BlockHeader::read(&bytes).owner.get() == root.0 {
            continue;
        }
        for field in named(&bytes, "ino").into_iter().filter(|field| field.get(&bytes) != 0).collect::<Vec<_>>() {
            // Not what its hash in the index is made of.
            bytes[field.at + EntryHeader::SIZE] ^= 1;
        }
        header::seal(&mut bytes, 0);
        image.write(site.block.0 << base.geometry.block_bits, &bytes).expect("inside the image");
    }
    let fs = Fs::open_device(Arc::new(image), None, mount_options(false)).expect("opens");
    let session = fs.session(Cred::root());
    let directories: Vec<_> = session.read_dir("/").expect("is there").flatten().collect();
    let removed = |name: &[u8]| session.remove_tree(name, &mut |_| true);
    let given_up =
        directories.iter().filter(|entry| matches!(removed(&entry.name), Err(Error::Refused(Errno::NOTEMPTY))));
    assert!(given_up.count() > 0);
}

/// An inode counted as many blocks as the field can hold. The next one was one too many.
#[test]
fn block_counts_do_not_overflow() {
    let base = base("512, log");
    for path in ["later", "large", "pieces"] {
        let ino = ino_of(&base.image, path);
        let image = change_block(&base, BlockKind::Inode, |block, bytes| {
            inode_in(&base, block, bytes, ino).map(|raw| raw.set_block_total(BLOCK_TOTAL_MAX)).is_some()
        });
        let fs = Fs::open_device(Arc::new(image.clone_image()), None, mount_options(false)).expect("opens");
        let session = fs.session(Cred::root());
        let blocks = || session.lstat(path).expect("is there").blocks;
        let before = blocks();
        if path == "pieces" {
            let file = session.open(path, OpenOptions { write: true, ..OpenOptions::default() }).expect("opens");
            file.write_at(&[1; 4096], 1 << 20).expect("is stored");
        } else {
            for number in 0..200 {
                session.create(&format!("{path}/new {number}"), 0o600).expect("is made");
            }
        }
        fs.sync().expect("nothing of it needs the count");
        assert_eq!(blocks(), before, "{path}");
        drop(session);
        drop(fs);
        assert!(judge(&image).repaired);
    }
}

/// A directory counted as many links as the field can hold. The next directory in it was one too many.
#[test]
fn link_counts_of_directories_do_not_overflow() {
    let base = base("512, log");
    let later = ino_of(&base.image, "later");
    let image = change_block(&base, BlockKind::Inode, |block, bytes| {
        inode_in(&base, block, bytes, later).map(|raw| raw.nlink.set(u32::MAX)).is_some()
    });
    let fs = Fs::open_device(Arc::new(image.clone_image()), None, mount_options(false)).expect("opens");
    let session = fs.session(Cred::root());
    let too_many = |result: myriad_engine::Result<()>| {
        assert!(matches!(result, Err(Error::Refused(Errno::MLINK))), "{result:?}");
    };
    too_many(session.mkdir("later/new", 0o755).map(drop));
    too_many(session.rename("a", "later/a", RenameMode::Replace));
    session.create("later/file", 0o600).expect("a file adds no link to it");
    too_many(session.rename("a", "later/file", RenameMode::Exchange));
    session.rename("later/file", "file", RenameMode::Replace).expect("a file takes none away");
    drop(session);
    drop(fs);
    assert!(judge(&image).repaired);
}

/// The log's anchor had the last number that is believed. The next one was not believed any more.
#[test]
fn a_log_without_positions_left_takes_nothing() {
    let base = base("512, power cut");
    let mut log = LogImage::read(&base.image, Superblock::read(&base.block(FsBlock(0))));
    for slot in 0..2 {
        let field = log.anchor_fields(slot).into_iter().find(|field| field.name == "sequence").expect("has a number");
        if field.get(&log.bytes) > 0 {
            field.set(&mut log.bytes, (1 << 62) - slot as u64);
        }
    }
    log.seal();
    let image = base.image.clone_image();
    image.write(log.start, &log.bytes).expect("inside the image");
    let facts = judge(&image);
    assert!(facts.checked && facts.findings == 0);
    let fs = Fs::open_device(Arc::new(image), None, mount_options(false)).expect("opens");
    let session = fs.session(Cred::root());
    session.create("new", 0o600).expect("is in memory");
    assert!(matches!(fs.sync(), Err(Error::Corrupt(_))), "nothing more is promised");
    session.lstat("later").expect("is there");
}
