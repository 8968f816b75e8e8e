//! A volume with one of everything.

use super::builder::{Builder, SHAPE, Shape};
use super::image::Image;
use myriad_format::inode::flag;
use myriad_format::xattr::AttrBlockHeader;
use myriad_format::{BlockKind, FsBlock, Ino};

/// Handles into [`sample`]'s volume.
pub struct Sample {
    pub image: Image,
    pub small: Ino,
    pub tree: Ino,
    pub text: Ino,
    pub hard: Ino,
    pub sub: Ino,
    pub deep: Ino,
    pub single: Ino,
    pub big: Ino,
    pub attributes: Ino,
    pub chain: Ino,
    pub orphan: Ino,
    /// A file of `big`.
    pub leaf: Ino,
    /// Directories that hold [`TWINS`]: without an index, and with one.
    pub twins: Ino,
    pub many_twins: Ino,
}

/// Names that share all 64 bits of the builder's hash. Found by following the hash of sixteen letters that stand for its hexadecimal
/// digits, from one name to the next, until two paths met: 4,176,748,821 steps.
pub const TWINS: [&[u8]; 2] = [b"klfpgjlhpmnhbcjg", b"ndnfkpnnimbolfgh"];

/// A volume with one of everything.
pub fn sample(shape: Shape) -> Sample {
    sample_later(shape, |_| {})
}

/// The same after `more` has happened.
pub fn sample_later(shape: Shape, more: impl FnOnce(&mut Builder)) -> Sample {
    let mut b = Builder::new(shape);
    let root = b.root;
    let small = b.file(root, b"small", 0, &[3, 1]);
    let tree = b.file(root, b"tree", 1, &vec![2; if shape.block_size == 512 { 150 } else { 20 }]);
    let text = b.inline(root, b"text", 0o120777, b"where/the/link/leads, rather longer than thirty-two bytes");
    b.inline(root, b"link", 0o120777, b"small");
    b.inline(root, b"long", 0o120777, b"a/target/that/is/too/long/for/the/fork/and/lives/in/the/body");
    b.special(root, b"pipe", 0o010644);
    let sub = b.dir(root, b"sub", 1, b.small_body());
    let deep = b.dir(sub, b"deep", 0, b.small_body());
    let hard = b.file(sub, b"first", 0, &[]);
    b.link(deep, b"second", hard);
    b.free_entry(deep, 5);
    b.link(deep, b"third", hard);
    let single = b.dir(root, b"single", 0, 0);
    for index in 0..7 {
        b.file(single, format!("file {index}").as_bytes(), 1, &[1]);
    }
    let big = b.dir(root, b"big", 1, 0);
    let mut leaf = Ino(0);
    for index in 0..1300 {
        let name = format!("entry number {index}");
        if (300..500).contains(&index) || index % 11 == 0 {
            b.free_entry(big, name.len());
        } else if index % 200 == 7 {
            b.dir(big, name.as_bytes(), index % 2, 0);
        } else if index < 60 {
            leaf = b.file(big, name.as_bytes(), index % 2, &[]);
        } else {
            b.link(big, name.as_bytes(), hard);
        }
    }
    b.dir(root, b"empty", 0, 0);
    let attributes =
        b.with_body_attributes(root, b"attributes", &[(b"user.a", b"1"), (b"system.posix_acl_access", b"acl")]);
    let chain = b.file(root, b"chain", 0, &[1]);
    let value = vec![b'v'; shape.block_size * 2];
    b.chain_attributes(chain, &[(b"user.long", &value), (b"user.x", b"")]);
    let [twins, many_twins] = [(&b"twins"[..], 0), (b"many", 24)].map(|(name, others)| {
        let directory = b.dir(root, name, 1, 0);
        for (index, twin) in TWINS.into_iter().enumerate() {
            let file = b.inline(directory, twin, 0o120777, format!("twin {index}").as_bytes());
            assert_eq!(b.node(file).raw.parent.get(), directory.0);
        }
        for index in 0..others {
            b.link(directory, format!("{index:0200}").as_bytes(), hard);
        }
        let raw = &mut b.node(directory).raw;
        raw.flags.set(raw.flags.get() | flag::HASH_TWINS);
        directory
    });
    let orphan = b.orphan(1);
    // What happens later leaves these where they are.
    for ino in [sub, deep, single, big, twins, many_twins] {
        b.lay_out_directory(ino);
    }
    more(&mut b);
    let image = b.finish();
    Sample {
        image,
        small,
        tree,
        text,
        hard,
        sub,
        deep,
        single,
        big,
        attributes,
        chain,
        orphan,
        leaf,
        twins,
        many_twins,
    }
}

/// A file, called `file`, with a chain of three blocks of attributes: `user.0`, `user.1` and so on, and behind them, in the last block, an ACL if it
/// `has_acl`. The owning group has all rights. Also the blocks of the chain.
pub fn chain(has_acl: bool) -> (Image, Ino, Vec<FsBlock>) {
    let mut b = Builder::new(SHAPE);
    let root = b.root;
    let file = b.file(root, b"file", 0, &[1]);
    let names: Vec<String> = (0..30).map(|number| format!("user.{number}")).collect();
    let value = [b'v'; 300];
    let mut attributes: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_bytes(), &value[..])).collect();
    if has_acl {
        attributes.push((b"system.posix_acl_access", b"acl"));
    }
    b.chain_attributes(file, &attributes);
    let mode = &mut b.node(file).raw.mode;
    mode.set(mode.get() | 0o070);
    let image = b.finish();
    let mut blocks = image.blocks_of(BlockKind::Attributes, file.0);
    assert_eq!(blocks.len(), 3);
    blocks.sort_by_key(|&block| AttrBlockHeader::read(&image.read(block)).index.get());
    (image, file, blocks)
}
