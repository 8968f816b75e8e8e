//! Writes trees and directory indexes from nothing: what a sound volume can always derive from its records.

use crate::io::Reader;
use crate::options::CheckError;
use myriad_device::BlockDevice;
use myriad_format::btree::{ChildEntry, NodeHeader, TreeKind};
use myriad_format::{FsBlock, header};
use zerocopy::IntoBytes;

/// Where the next block comes from.
pub(crate) type Take<'a> = dyn FnMut() -> Result<FsBlock, CheckError> + 'a;

pub(crate) fn write(reader: &Reader, block: FsBlock, buf: &mut [u8]) -> Result<(), CheckError> {
    let offset = block.0 << reader.geometry.block_bits;
    reader.write(block, buf).map_err(|source| CheckError::Io { op: "write", offset, source })
}

/// What a write of several blocks ended in.
pub(crate) fn written(reader: &Reader, result: Result<(), (FsBlock, std::io::Error)>) -> Result<(), CheckError> {
    result.map_err(|(block, source)| CheckError::Io {
        op: "write",
        offset: block.0 << reader.geometry.block_bits,
        source,
    })
}

pub(crate) fn flush(device: &dyn BlockDevice) -> Result<(), CheckError> {
    device.flush().map_err(|source| CheckError::Io { op: "flush", offset: 0, source })
}

/// How full new nodes and leaves are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Three quarters, so that the first changes after a repair do not split them all.
    Ample,
    /// All of it, where there is no room for more nodes.
    Full,
}

impl Fill {
    pub(crate) fn of(self, max: usize) -> usize {
        match self {
            Self::Ample => (max * 3 / 4).max(2),
            Self::Full => max,
        }
    }
}

/// Nodes of each level of a tree of so many records, from the leaves up.
fn level_counts(kind: TreeKind, records: usize, block_size: usize, fill: Fill) -> impl Iterator<Item = usize> {
    let leaves = records.div_ceil(fill.of(kind.leaf_max(block_size))).max(1);
    let above = move |&nodes: &usize| (nodes > 1).then(|| nodes.div_ceil(fill.of(kind.inner_max(block_size))));
    std::iter::successors(Some(leaves), above)
}

/// Nodes that a tree of so many records takes.
pub(crate) fn node_count(kind: TreeKind, records: usize, block_size: usize, fill: Fill) -> usize {
    level_counts(kind, records, block_size, fill).sum()
}

/// Levels above the leaves of a tree of so many records.
pub(crate) fn level_of(kind: TreeKind, records: usize, block_size: usize, fill: Fill) -> usize {
    level_counts(kind, records, block_size, fill).count() - 1
}

/// Writes a tree of sorted records (packed, `kind.record_size` bytes each); its root and level.
pub(crate) fn write_tree(
    reader: &Reader,
    kind: TreeKind,
    owner: u64,
    records: &[u8],
    fill: Fill,
    take: &mut Take<'_>,
) -> Result<(FsBlock, u8), CheckError> {
    let mut items = records.to_vec();
    let mut size = kind.record_size;
    let mut root = FsBlock::NONE;
    let mut top = 0;
    for (level, nodes) in level_counts(kind, records.len() / size, reader.block_size(), fill).enumerate() {
        let count = items.len() / size;
        let mut above = Vec::new();
        for node in 0..nodes {
            let part = &items[count * node / nodes * size..count * (node + 1) / nodes * size];
            let block = take()?;
            let mut buf = reader.new_buffer();
            header::init(&mut buf, kind.block, reader.volume, owner, block);
            let head = NodeHeader::read_mut(&mut buf);
            head.level.set(level as u16);
            head.count.set((part.len() / size) as u16);
            buf[NodeHeader::SIZE..][..part.len()].copy_from_slice(part);
            write(reader, block, &mut buf)?;
            (root, top) = (block, level as u8);
            if nodes == 1 {
                break;
            }
            let word = u64::from_le_bytes(part[..8].try_into().expect("a record has eight bytes"));
            let mut entry = ChildEntry::zeroed();
            entry.key.set(if level == 0 { word >> kind.key_shift } else { word });
            entry.child.set(block.0);
            above.extend_from_slice(entry.as_bytes());
        }
        (items, size) = (above, ChildEntry::SIZE);
    }
    Ok((root, top))
}
