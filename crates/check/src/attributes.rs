//! Extended attributes of an inode: the list in its body, the chain of blocks, and the flags that announce them.

use crate::context::Context;
use crate::findings::number;
use crate::report::Place;
use myriad_format::fork::AttributeRoot;
use myriad_format::inode::{RawInode, flag};
use myriad_format::superblock::feature;
use myriad_format::xattr::{AttrBlockHeader, AttrIter, LIST_MAX, has_namespace};
use myriad_format::{BlockKind, Corrupt, FsBlock, Ino};
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

/// Attributes that are ACLs.
pub(crate) const ACL_NAMES: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Checks the attributes of an inode; how many blocks they take.
pub(crate) fn check_attributes(context: &Context<'_>, ino: Ino, raw: &RawInode, in_body: &[u8]) -> u64 {
    let place = Place::Inode(ino);
    let bad = |field, value| {
        let corrupt = Corrupt::Attributes { ino, field, value };
        context.report(corrupt.number(), place, corrupt.to_string());
    };
    if raw.has_flag(flag::ATTR_BODY) == in_body.is_empty() {
        let message = format!("the body holds {} bytes of attributes, its flag says otherwise", in_body.len());
        context.report(number::ATTRIBUTE_FLAG, place, message);
    }
    if !in_body.is_empty() && raw.attribute_root().is_some() {
        context.report(
            number::ATTRIBUTES,
            place,
            "has attributes in its body, and others in blocks, which do not show",
        );
    }
    let mut chain = Vec::new();
    let mut blocks = 0;
    if let Some(AttributeRoot { block: mut next, count }) = raw.attribute_root() {
        let count = u64::from(count);
        let mut buf = context.reader.new_buffer();
        let room = buf.len() - AttrBlockHeader::SIZE;
        while next != FsBlock::NONE {
            // The claim below ends a chain that runs in a circle; the bound ends one that is merely too long.
            if chain.len() >= LIST_MAX || !context.claim(next, 1, place, "attributes") {
                break;
            }
            if let Err(damage) = context.reader.read(next, BlockKind::Attributes, ino.0, &mut buf) {
                context.damage(place, damage);
                break;
            }
            let header = AttrBlockHeader::read(&buf);
            let length = header.length.get() as usize;
            if u64::from(header.index.get()) != blocks {
                bad("index", u64::from(header.index.get()));
                break;
            }
            if length > room {
                bad("length", length as u64);
                break;
            }
            blocks += 1;
            chain.extend_from_slice(&buf[AttrBlockHeader::SIZE..][..length]);
            next = FsBlock(header.next.get());
        }
        if blocks != count {
            bad("block count", count);
        }
        if chain.len() > LIST_MAX {
            bad("list length", chain.len() as u64);
        }
    }
    let mut names: HashSet<&[u8]> = HashSet::new();
    let mut has_acl = false;
    for list in [in_body, &chain] {
        for attribute in AttrIter::new(list) {
            match attribute {
                Err(offset) => bad("offset", offset as u64),
                Ok((name, _)) => {
                    has_acl |= ACL_NAMES.contains(&name);
                    if !has_namespace(name) {
                        let message = format!("attribute {} has no namespace", name.escape_ascii());
                        context.report(number::ATTRIBUTES, place, message);
                    }
                    if !names.insert(name) {
                        context.report(
                            number::ATTRIBUTES,
                            place,
                            format!("attribute {} is there twice", name.escape_ascii()),
                        );
                    }
                }
            }
        }
    }
    let features = if names.is_empty() { 0 } else { feature::COMPATIBLE_XATTR }
        | if has_acl { feature::COMPATIBLE_ACL } else { 0 };
    context.features.fetch_or(features, Relaxed);
    if has_acl != raw.has_flag(flag::HAS_ACL) {
        let message = format!("{} ACL, its flag says otherwise", if has_acl { "has an" } else { "has no" });
        context.report(number::ATTRIBUTE_FLAG, place, message);
    }
    blocks
}
