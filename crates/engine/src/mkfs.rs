//! Making a volume.

use crate::edit::{BlockStore, NewBlock};
use crate::error::{Error, Result};
use crate::ops;
use crate::order::{self, Txn};
use crate::perm::NewInode;
use crate::random;
use crate::types::{Discard, MkfsOptions, MountOptions, Order};
use crate::volume::{Volume, log_open_error};
use myriad_device::{AlignedBuf, BlockDevice};
use myriad_format::bitmap::{self, UNIT_BITS};
use myriad_format::checksum::{ChecksumHeader, TABLE_BLOCKS_MAX};
use myriad_format::choices::{Inodes, Map, Space};
use myriad_format::group::FIXED_BLOCKS;
use myriad_format::inode::S_IFDIR;
use myriad_format::pointers::FRAGMENT_BITS_MAX;
use myriad_format::superblock::{
    BLOCK_COUNT_MIN, FORMAT_VERSION, Superblock, VERSION_UNFINISHED, feature, has_copy, placement,
};
use myriad_format::table::{BYTES_PER_INODE_UNIT, EVERY_MAX, EVERY_MIN};
use myriad_format::unit::UNIT_SIZE;
use myriad_format::{AG_COUNT_MAX, AgNo, BlockKind, FsBlock, Lsn, header};
use myriad_log::{LogPlace, RING_BYTES_MAX, RING_UNITS_MIN};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::little_endian::{I64, U32, U64};

/// Largest default log: what half a second reads.
const LOG_MAX: u64 = 128 << 20;
/// Smallest ring of a log, in its units: the changes of any one operation fit half of it, which is what one checkpoint
/// may take.
const LOG_UNITS_MIN: u64 = 32;
/// Largest default group.
const AG_MAX: u64 = 1 << 30;
/// Largest default group of a volume with inode tables, which plays the cylinder group: 8 to 44 MB in the volumes of 2001, and here as much
/// as leaves room for a log of some size in the first one.
const TABLE_AG_MAX: u64 = 128 << 20;
/// Bytes of a new inode chunk: eight blocks of 4 KiB.
const CHUNK_BYTES: u64 = 32 << 10;

/// A last group of fewer blocks is of no use, and stays out.
const LAST_GROUP_BLOCKS_MIN: u64 = 64;
/// Regions of a group. Their summaries share its header block, which has room for so many also if it has 512 bytes.
const REGIONS_MAX: u64 = 32;
/// Blocks of the first group that the log has to leave to the root directory and first files.
const BESIDE_LOG_BLOCKS: u64 = 40;

/// What `bytes_per_inode` may be.
const BYTES_PER_INODE: RangeInclusive<u64> =
    EVERY_MIN as u64 * BYTES_PER_INODE_UNIT..=EVERY_MAX as u64 * BYTES_PER_INODE_UNIT;

/// Largest group, in bytes, whose table of checksums is not too large.
fn table_max(block: u64) -> u64 {
    let checksums = (block - ChecksumHeader::SIZE as u64) / 4;
    let blocks = u64::from(TABLE_BLOCKS_MAX) * checksums;
    block << blocks.ilog2()
}

/// Largest group, in bytes, whose bitmaps are not too large. That of its blocks is the larger one.
fn bitmap_max(block: u64) -> u64 {
    let bits = block / UNIT_SIZE as u64 * u64::from(UNIT_BITS);
    block << (u64::from(bitmap::BLOCKS_MAX / 2) * bits).ilog2()
}

/// Whether the blocks of such a volume can have fragments.
fn check_fragments(options: &MkfsOptions) -> Result<()> {
    let count = options.fragments;
    let refused = |reason: &str| Err(Error::bad_option("fragments", reason));
    if !count.is_power_of_two() || count > 1 << FRAGMENT_BITS_MAX {
        return refused(&format!("{count} is none of 1, 2, 4, 8"));
    }
    options.choices.check_built()?;
    options.choices.check_together()?;
    if count == 1 {
        return Ok(());
    }
    if options.choices.map != Map::Blocks {
        return refused("only pointers lead to fragments: they want map=blockmap, which profile ffs has");
    }
    if options.choices.space != Space::Bitmap {
        return refused("which fragments of a block are free is looked up in a bitmap: they want space=bitmap");
    }
    if options.data_checksums {
        return refused(
            "data with checksums is never overwritten where it is, and a fragment is moved with its whole block only: leave out data-checksums",
        );
    }
    if options.block_size / count < 512 {
        let least = 512 * count;
        return refused(&format!("a fragment has at least 512 bytes: use blocks of at least {least}"));
    }
    Ok(())
}

/// Whether a device takes requests of so many bytes: of a block, or of what the log is written in.
pub(crate) fn takes(device: &dyn BlockDevice, unit: u64) -> Result<bool> {
    device.take_units(unit as usize).map_err(|source| Error::host("use the host's cache for the device", source))
}

/// The superblock that the options ask for; an error for what is impossible. It changes nothing.
pub(crate) fn plan(
    device: &dyn BlockDevice,
    external_log: Option<&dyn BlockDevice>,
    options: &MkfsOptions,
) -> Result<Superblock> {
    let whole = u64::from(options.block_size);
    if !options.block_size.is_power_of_two() || !(512..=65536).contains(&whole) {
        return Err(Error::bad_option("block-size", format!("{whole} is not a power of two from 512 to 65536")));
    }
    check_fragments(options)?;
    let block = whole / u64::from(options.fragments);
    if !takes(device, block)? {
        let needed = device.alignment();
        return Err(Error::bad_option(
            "block-size",
            format!("the device's sectors are {needed} bytes; use at least that"),
        ));
    }
    if options.label.len() > 63 {
        return Err(Error::bad_option("label", "longer than 63 bytes"));
    }
    let has_table = options.choices.inodes == Inodes::Static;
    if !options.bytes_per_inode.is_power_of_two() || !BYTES_PER_INODE.contains(&options.bytes_per_inode) {
        let why = format!("{} is not a power of two from 1 KiB to 16 MiB", options.bytes_per_inode);
        return Err(Error::bad_option("bytes-per-inode", why));
    }
    let mut blocks = device.size() / block;
    if blocks < BLOCK_COUNT_MIN {
        let least = BLOCK_COUNT_MIN * block;
        return Err(Error::bad_option("size", format!("{} bytes hold no volume; the least is {least}", device.size())));
    }
    if blocks >= 1 << 47 {
        return Err(Error::bad_option("size", "more than 2^47 blocks; use larger blocks"));
    }
    let ag_size = group_bytes(options, device.size(), block)?;
    let ag_blocks = ag_size / block;
    let rest = blocks % ag_blocks;
    if blocks > ag_blocks && rest > 0 && rest < LAST_GROUP_BLOCKS_MIN {
        blocks -= rest;
    }
    if !options.region_size.is_power_of_two() || options.region_size < block {
        return Err(Error::bad_option(
            "region-size",
            format!("{} is not a power of two of at least a block", options.region_size),
        ));
    }
    // The inodes of a table lie together: the group is the region.
    let region_size = if has_table { ag_size } else { options.region_size.min(ag_size).max(ag_size / REGIONS_MAX) };

    let first_ag = blocks.min(ag_blocks);
    let log_bytes = log_bytes(options, external_log, block, blocks, first_ag)?;
    let log_blocks = log_bytes / block;

    let mut sb = Superblock::zeroed();
    let [uuid, key, log_uuid] = random::ids(options.seed)?;
    sb.header.volume = uuid;
    sb.version = U32::new(VERSION_UNFINISHED);
    sb.block_bits = block.trailing_zeros() as u8;
    sb.fragment_bits = options.fragments.trailing_zeros() as u8;
    let fragments = if options.fragments > 1 { feature::INCOMPATIBLE_FRAGMENTS } else { 0 };
    sb.features_incompatible = U64::new(fragments);
    sb.set_choices(&options.choices);
    order::check(options.order, &options.choices, options.data_checksums)?;
    sb.orders = possible_orders(options, log_bytes > 0);
    sb.ag_blocks = U32::new(ag_blocks as u32);
    sb.block_count = U64::new(blocks);
    sb.ag_count = U32::new(blocks.div_ceil(ag_blocks) as u32);
    sb.region_blocks = U32::new((region_size / block) as u32);
    sb.ag_high_water = U32::new(1);
    if has_table {
        sb.table_every = U32::new((options.bytes_per_inode / BYTES_PER_INODE_UNIT) as u32);
    }
    let checksums = if options.data_checksums { feature::READ_ONLY_DATA_CHECKSUMS } else { 0 };
    let bodies_follow = if has_table { 0 } else { feature::READ_ONLY_BODIES_FOLLOW };
    sb.features_read_only = U64::new(checksums | bodies_follow);
    let log_start = u64::from(sb.geometry().first_data_block(AgNo(0)));
    if external_log.is_none() && log_start + log_blocks + BESIDE_LOG_BLOCKS > first_ag {
        return Err(Error::bad_option("log-size", "the log leaves no room in the first group"));
    }
    sb.hash_key = key;
    if external_log.is_some() {
        sb.log_device = log_uuid;
        sb.log_blocks = U64::new(log_blocks);
    } else if log_blocks > 0 {
        sb.log_start = U64::new(log_start);
        sb.log_blocks = U64::new(log_blocks);
    }
    sb.last_order = U32::new(options.order as u32);
    sb.chunk_blocks = U32::new((CHUNK_BYTES / block).clamp(1, 64) as u32);
    sb.device_count = U32::new(1);
    sb.placement = if options.spreads_directories { placement::SPREAD } else { placement::NEAR };
    sb.label[..options.label.len()].copy_from_slice(options.label.as_bytes());
    Ok(sb)
}

/// Bytes of a group, in blocks of `block` bytes: what is asked for, if a volume of this size can have such groups, or what suits it.
fn group_bytes(options: &MkfsOptions, device_size: u64, block: u64) -> Result<u64> {
    let has_table = options.choices.inodes == Inodes::Static;
    let ag_size = match options.ag_size {
        Some(size) if !size.is_power_of_two() || size / block < 64 || size / block > 1 << 31 => {
            return Err(Error::bad_option("ag-size", format!("{size} is not a power of two of 64 to 2^31 blocks")));
        }
        Some(size) => size,
        // Eight groups or more, of 16 MiB to 1 GiB: enough for parallel work, few enough to keep their headers cached.
        None => {
            let most = if has_table { TABLE_AG_MAX } else { AG_MAX };
            let most = most.min(bitmap_max(block)).min(block << 31);
            (device_size / 8).next_power_of_two().clamp((16 << 20).min(most), most)
        }
    };
    if ag_size > bitmap_max(block) && (has_table || options.choices.space == Space::Bitmap) {
        let why = format!("groups of {ag_size} bytes want too large bitmaps; the most is {}", bitmap_max(block));
        return Err(Error::bad_option("ag-size", why));
    }
    let table_max = table_max(block);
    let ag_size = if options.data_checksums && options.ag_size.is_none() { ag_size.min(table_max) } else { ag_size };
    let least = (device_size / u64::from(AG_COUNT_MAX)).next_power_of_two();
    if options
        .ag_size
        .is_some_and(|size| size < least && (device_size / block).div_ceil(size / block) > u64::from(AG_COUNT_MAX))
    {
        return Err(Error::bad_option(
            "ag-size",
            format!("more than {AG_COUNT_MAX} groups; the least size is {least}"),
        ));
    }
    let ag_size = if options.ag_size.is_none() { ag_size.max(least) } else { ag_size };
    if options.data_checksums && ag_size > table_max {
        let why = format!("groups of {ag_size} bytes are too large; the most is {table_max}; or use larger blocks");
        return Err(Error::bad_option("data-checksums", why));
    }
    Ok(ag_size)
}

/// Bytes of the log, 0 for none: what is asked for, if there is room for it, or what suits the volume, of `blocks` blocks with so many in its
/// first group.
fn log_bytes(
    options: &MkfsOptions,
    external_log: Option<&dyn BlockDevice>,
    block: u64,
    blocks: u64,
    first_ag: u64,
) -> Result<u64> {
    let unit = myriad_format::log::unit(block as usize) as u64;
    let least = (2 + RING_UNITS_MIN.max(LOG_UNITS_MIN)) * unit;
    let bytes = match (external_log, options.log_size) {
        (Some(log), size) => {
            let bytes = size.unwrap_or(RING_BYTES_MAX).min(log.size());
            if bytes < least {
                return Err(Error::bad_option("log-device", format!("smaller than the least log, {least} bytes")));
            }
            if !takes(log, unit)? {
                let needed = log.alignment();
                return Err(Error::bad_option(
                    "block-size",
                    format!("the log's sectors are {needed} bytes; use at least that"),
                ));
            }
            bytes
        }
        (None, Some(0)) => 0,
        (None, Some(size)) => {
            if size < least {
                return Err(Error::bad_option(
                    "log-size",
                    format!("{size} bytes; the least is {least}, or 0 for no log"),
                ));
            }
            if size > first_ag * block / 2 {
                let most = first_ag * block / 2;
                return Err(Error::bad_option(
                    "log-size",
                    format!("{size} bytes; the most is half of the first group, {most}"),
                ));
            }
            size
        }
        (None, None) => (blocks * block / 16).clamp(64 * unit, LOG_MAX).min(first_ag * block / 3).max(least),
    };
    if bytes > RING_BYTES_MAX {
        return Err(Error::bad_option("log-size", format!("{bytes} bytes; the most is {RING_BYTES_MAX}")));
    }
    if options.order == Order::Log && bytes == 0 {
        return Err(Error::bad_option("order", "order=log needs a log; do not set its size to 0"));
    }
    Ok(bytes)
}

/// The orders that the volume has room for, a bit each.
fn possible_orders(options: &MkfsOptions, has_log: bool) -> u8 {
    let has_units = order::check(Order::Soft, &options.choices, options.data_checksums).is_ok();
    let orders = [(Order::None, true), (Order::Sync, has_units), (Order::Soft, has_units), (Order::Log, has_log)];
    orders.into_iter().fold(0, |bits, (order, is_possible)| bits | u8::from(is_possible) << order as u8)
}

/// Where the log of a volume lies, if it has one.
pub(crate) fn log_place(
    sb: &Superblock,
    device: &Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
) -> Result<Option<LogPlace>> {
    let block = 1_u64 << sb.block_bits;
    if sb.log_blocks.get() == 0 {
        return Ok(None);
    }
    let (device, start) = if !sb.has_external_log() {
        (device.clone(), sb.log_start.get() * block)
    } else {
        let log = external.ok_or_else(|| {
            Error::bad_option("log-device", "this volume keeps its log on a device of its own; name it")
        })?;
        (log.clone(), 0)
    };
    Ok(Some(LogPlace {
        device,
        start,
        length: sb.log_blocks.get() * block,
        block_size: block as usize,
        volume: sb.header.volume,
        known_end: sb.log_end(),
    }))
}

/// Makes a volume on a device.
pub(crate) fn format(
    device: Arc<dyn BlockDevice>,
    external_log: Option<Arc<dyn BlockDevice>>,
    options: &MkfsOptions,
) -> Result<()> {
    let sb = plan(&*device, external_log.as_deref(), options)?;
    make(device, external_log, sb, options)
}

/// Makes the volume that was planned.
pub(crate) fn make(
    device: Arc<dyn BlockDevice>,
    external_log: Option<Arc<dyn BlockDevice>>,
    mut sb: Superblock,
    options: &MkfsOptions,
) -> Result<()> {
    let place = log_place(&sb, &device, external_log.as_ref())?;
    // Until the superblock is written whole, the last step, there is no volume: an interrupted mkfs leaves none.
    let block_size = sb.geometry().block_size();
    device.write_durable(0, &AlignedBuf::zeroed(block_size)).map_err(|source| Error::io("write", 0, source))?;
    if let Some(place) = &place {
        // The same seed gives the same UUID: a log of an earlier life of this place could go on where ours ends.
        if options.seed.is_some() {
            myriad_log::erase(place).map_err(log_open_error)?;
        }
        myriad_log::format(place, Lsn(0)).map_err(log_open_error)?;
    }

    let mount = MountOptions {
        order: Some(Order::None),
        cache_size: 8 << 20,
        background: false,
        discard: Discard::Never,
        clock: options.clock.clone(),
        seed: Some(options.seed.unwrap_or(1)),
        ..MountOptions::default()
    };
    let volume = Volume::assemble(device.clone(), None, sb, mount)?;
    let geometry = volume.geometry;
    let log_used: Vec<(u32, u32)> = if !sb.has_external_log() && sb.log_blocks.get() > 0 {
        vec![(sb.log_start.get() as u32, sb.log_blocks.get() as u32)]
    } else {
        Vec::new()
    };
    {
        let mut txn = Txn::enter(&volume);
        let result = {
            txn.init(NewBlock::free(FsBlock(0)), BlockKind::Superblock, 0, |edit| {
                let header = *myriad_format::BlockHeader::read(edit.bytes());
                sb.header = header;
                edit.put(0, zerocopy::IntoBytes::as_bytes(&sb));
            })?;
            volume.init_first_group(&mut txn, &log_used)
        };
        txn.finish(result)?;
    }
    for ag in 1..geometry.ag_count {
        let virgin = i64::from(geometry.usable_blocks_in(AgNo(ag)));
        let parts = i64::from(geometry.usable_parts_in(AgNo(ag)));
        volume.totals.free_blocks.fetch_add(virgin, Ordering::Relaxed);
        volume.totals.free_parts.fetch_add(parts, Ordering::Relaxed);
        volume.totals.ready_blocks.fetch_add(virgin - parts, Ordering::Relaxed);
    }
    let owner = NewInode {
        uid: options.root_uid,
        gid: options.root_gid,
        mode: S_IFDIR | options.root_mode & 0o7777,
        access_acl: None,
        default_acl: None,
    };
    let root = ops::new_node(&volume, FsBlock(u64::from(FIXED_BLOCKS)), &owner)?;
    {
        let mut txn = Txn::enter(&volume);
        let made = volume.now();
        let result = {
            txn.change(FsBlock(0), BlockKind::Superblock, |edit| {
                let raw = Superblock::read_mut(edit.range_mut(0, Superblock::SIZE));
                raw.root_ino = U64::new(root.0);
                raw.made_time = I64::new(made);
            })
        };
        txn.finish(result)?;
    }
    // The superblock goes home among the other blocks, but as that of a volume not finished yet. When all are there, it is
    // written by hand, with its version.
    volume.checkpointer.lock().settle(&volume)?;
    let mut image = AlignedBuf::zeroed(block_size);
    device.read(0, &mut image).map_err(|source| Error::io("read", 0, source))?;
    let order = U32::new(options.order as u32);
    Superblock::read_mut(&mut image).last_order = order;
    Superblock::read_mut(&mut image).version = U32::new(FORMAT_VERSION);
    for ag in (1..geometry.ag_count).map(AgNo).filter(|&ag| has_copy(ag)) {
        let at = geometry.fs_block(ag, myriad_format::AgBlock(0));
        let mut copy = image.clone();
        Superblock::read_mut(&mut copy).header.address = U64::new(at.0);
        header::seal(&mut copy, 0);
        let offset = at.0 << geometry.block_bits;
        device.write(offset, &copy).map_err(|source| Error::io("write", offset, source))?;
    }
    header::seal(&mut image, 0);
    device.write(0, &image).map_err(|source| Error::io("write", 0, source))?;
    device.flush().map_err(|source| Error::host("device flush", source))
}
