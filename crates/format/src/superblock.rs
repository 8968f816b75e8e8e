//! The superblock: the first 512 bytes of the volume, copied to the start of some groups.
//!
//! How much memory an opening takes must not be the image's choice, so what a superblock may ask for is bounded: a volume has at
//! most 2^20 groups, for which an opening keeps 48 MiB. (Without the bound, a sparse image of 16 TiB with groups of 64 blocks
//! asked for 24 GiB.) The last group has at least 64 blocks, or its five fixed blocks would lie outside the volume. A log inside
//! the volume begins past the fixed blocks, and the last order is one that there is a log for. mkfs keeps to all of this; from 1
//! PiB on it takes larger groups. A superblock that comes out of the log is decoded in the same way, and must agree about the
//! volume's size. One size is left that an image chooses: recovery takes as much memory as the log's valid part, at most 4 GiB,
//! and that must be there in checkpoints whose checksums are right. Volumes of more than a million groups would need groups that
//! are loaded by page.

use crate::choices::{Choices, Directory, Inodes, Lookup, Map, Order, Seam, Space, VolumeKind};
use crate::group::RESERVE_MAX;
use crate::header;
use crate::kind::{BlockKind, SUPERBLOCK_SIZE};
use crate::on_disk::on_disk;
use crate::pointers::FRAGMENT_BITS_MAX;
use crate::{AgNo, Corrupt, FsBlock, Geometry, Incompatible, Lsn, address, bitmap, checksum, table};
use zerocopy::little_endian::{I64, U32, U64};

/// Version of the format this build writes.
pub const FORMAT_VERSION: u32 = 1;
/// The version while mkfs is under way: not a volume yet.
pub const VERSION_UNFINISHED: u32 = 0;

on_disk! {
    /// Block 0 of the volume. Its checksum covers its 512 bytes only, so that it can be read before the block size is
    /// known. Copies stand in block 0 of groups 1 and the powers of 3, 5 and 7; a copy's `address` is its own.
    pub struct Superblock: 512 {
        0 => header: crate::header::BlockHeader,
        48 => version: U32,
        /// log2 of the block size, 9 to 16.
        52 => block_bits: u8,
        /// Choices at the mkfs seams; codes in `choices`.
        53 => space: u8,
        54 => inodes: u8,
        55 => map: u8,
        56 => directory: u8,
        57 => lookup: u8,
        /// Orders of writes the volume has room for: bit 0 none, 1 sync, 2 softdep, 3 log.
        58 => orders: u8,
        59 => volume_kind: u8,
        /// Blocks per allocation group; a power of two.
        60 => ag_blocks: U32,
        /// Unknown compatible features may be ignored.
        64 => features_compatible: U64,
        /// Unknown read-only compatible features: open read-only.
        72 => features_read_only: U64,
        /// Unknown incompatible features: refuse to open.
        80 => features_incompatible: U64,
        88 => block_count: U64,
        96 => ag_count: U32,
        /// Blocks per placement region; a power of two, at most `ag_blocks`.
        100 => region_blocks: U32,
        /// Groups from this one on have never been used and hold nothing, not even a header.
        104 => ag_high_water: U32,
        /// 0 clean, 1 in use, 2 sealed.
        108 => state: U32,
        /// Secret key of the name hash.
        112 => hash_key: [u8; 16],
        /// First block of the log on its device, 0 on a device of its own; 0 blocks long when the volume has none.
        128 => log_start: U64,
        136 => log_blocks: U64,
        /// UUID of the log's own device; zero when the log lies in this volume.
        144 => log_device: [u8; 16],
        160 => root_ino: U64,
        /// First block of the orphan list, 0 for none.
        168 => orphan_root: U64,
        /// Free blocks of all groups, those above the high-water mark included.
        176 => free_blocks: U64,
        184 => inodes_used: U64,
        192 => directories: U64,
        /// Order in force when the volume was last written: bit number as in `orders`.
        200 => last_order: U32,
        /// Inode blocks in a new chunk, 1 to 64.
        204 => chunk_blocks: U32,
        /// Mount record of the last writer: machine id, boot id, process, random number, time (ns since 1970).
        208 => mount_machine: [u8; 16],
        224 => mount_boot: [u8; 16],
        240 => mount_pid: U32,
        244 => device_count: U32,
        248 => mount_nonce: U64,
        256 => mount_time: I64,
        264 => made_time: I64,
        /// UTF-8, padded with zeros.
        272 => label: [u8; 64],
        /// Internal inodes of later features: substitutions and reachability sets of direct lookup, quota. 0: none.
        336 => substitutions_ino: U64,
        344 => reachability_ino: U64,
        352 => quota_ino: U64,
        /// First block of the volume manager's device table, 0 for none.
        360 => device_table: U64,
        /// Generation from which the next opening goes on, unless the time is ahead of it.
        368 => next_generation: U32,
        /// Of a volume with inode tables: blocks of a group for which its table has one block. Else 0.
        372 => table_every: U32,
        /// Where new directories go unless an opening says so, see `placement`.
        376 => placement: u8,
        /// What a crash has left behind, see `leftovers`.
        377 => leftovers: u8,
        /// log2 of the fragments of a block, 0 to 3: a block of this volume is a fragment then.
        378 => fragment_bits: u8,
        379 => reserved: [u8; 5],
        /// Of the free blocks, those beside used ones in a block of fragments.
        384 => free_parts: U64,
        /// Two names that exchange what they name, see `exchange`; all zero but while they do.
        392 => exchange_source: crate::exchange::ExchangedName,
        432 => exchange_target: crate::exchange::ExchangedName,
        /// LSN at which the log ended when this was written, see [`Superblock::log_end`].
        472 => log_end: U64,
        480 => log_end_mount: U64,
        488 => reserved_end: [u8; 24],
    }
}

on_disk! {
    /// A block of the orphan list: inodes that wait to be freed, without a name and open or being freed in pieces; or with
    /// a name, and blocks past their size by a change that was not finished. The next opening for changes frees the former,
    /// and of the latter what lies past their size. Inode numbers (8 bytes each) follow the header.
    pub struct OrphanHeader: 64 {
        0 => header: crate::header::BlockHeader,
        48 => count: U32,
        52 => reserved: U32,
        /// Next block of the list, 0 for none.
        56 => next: U64,
    }
}

const _: () = assert!(Superblock::SIZE == SUPERBLOCK_SIZE, "its checksum covers it");

/// Codes of a volume's state.
pub mod state {
    pub const CLEAN: u32 = 0;
    pub const IN_USE: u32 = 1;
    pub const SEALED: u32 = 2;
}

/// What a crash has left behind on a volume of order `sync` or `softdep`. Bits.
pub mod leftovers {
    /// Blocks and inodes may be in use for nothing, and links counted that no name has. Nothing else is wrong.
    pub const MAY_BE: u8 = 1 << 0;
    /// A background check found something else: a check must look before the volume is changed again.
    pub const NEEDS_CHECK: u8 = 1 << 1;
    /// Directories may have a second name in what could not be read when such names were looked for.
    pub const SECOND_NAMES: u8 = 1 << 2;
}

/// Codes of where new directories go.
pub mod placement {
    /// Near their parents (dirpref).
    pub const NEAR: u8 = 0;
    /// Each to another part of the volume (rotor).
    pub const SPREAD: u8 = 1;
}

/// Feature bits. Numbers are never reused.
pub mod feature {
    /// Compatible: some file has extended attributes (without it, a mount may answer "none" unasked).
    pub const COMPATIBLE_XATTR: u64 = 1 << 0;
    /// Compatible: some file has a POSIX ACL.
    pub const COMPATIBLE_ACL: u64 = 1 << 1;
    /// Compatible: some file has been immutable or append-only (a mount may not open files unasked). Volumes on which earlier
    /// versions flagged files may lack it.
    pub const COMPATIBLE_FLAGGED: u64 = 1 << 2;
    pub const COMPATIBLE_KNOWN: u64 = COMPATIBLE_XATTR | COMPATIBLE_ACL | COMPATIBLE_FLAGGED;
    /// Read-only compatible: file data has checksums, in a table at the start of each group.
    pub const READ_ONLY_DATA_CHECKSUMS: u64 = 1 << 0;
    /// Read-only compatible: in blocks of chunks each body lies behind its inode, so that which slots hold inodes can be told. Volumes of
    /// earlier builds lack it.
    pub const READ_ONLY_BODIES_FOLLOW: u64 = 1 << 1;
    pub const READ_ONLY_KNOWN: u64 = READ_ONLY_DATA_CHECKSUMS | READ_ONLY_BODIES_FOLLOW;
    /// Incompatible: pointers of files lead to runs of fragments.
    pub const INCOMPATIBLE_FRAGMENTS: u64 = 1 << 0;
    pub const INCOMPATIBLE_KNOWN: u64 = INCOMPATIBLE_FRAGMENTS;
}

/// `mount_nonce` of a volume that is in use by a repair, or that nobody has opened yet.
pub const NO_MOUNT: u64 = 0;
/// Smallest volume, in blocks: fixed blocks, a log and some room.
pub const BLOCK_COUNT_MIN: u64 = 128;

fn bad(field: &'static str, value: u64) -> Result<(), SuperblockError> {
    Err(Corrupt::Superblock { field, value }.into())
}

impl Superblock {
    /// Decodes the first 512 bytes of a device, or of a copy expected at `address`.
    pub fn decode(bytes: &[u8], address: FsBlock) -> Result<Self, SuperblockError> {
        let raw = Self::read(bytes);
        if raw.header.magic.get() != BlockKind::Superblock.magic() {
            return Err(SuperblockError::Foreign);
        }
        header::verify(&bytes[..Self::SIZE], BlockKind::Superblock, &raw.header.volume, address)?;
        if raw.version.get() == VERSION_UNFINISHED {
            return Err(SuperblockError::Foreign);
        }
        raw.check()?;
        Ok(*raw)
    }

    /// Where the log ended when this was written; 0: not known. Builds that know nothing of this leave the number as it is, and raise that of the mount.
    pub fn log_end(&self) -> Lsn {
        if self.log_end_mount == self.mount_nonce { Lsn(self.log_end.get()) } else { Lsn(0) }
    }

    /// Notes where the log ends, for the mount that is noted.
    pub fn set_log_end(&mut self, end: Lsn) {
        self.log_end.set(end.0);
        self.log_end_mount = self.mount_nonce;
    }

    /// Whether what changed the volume last had a log.
    pub fn is_logged(&self) -> bool {
        self.order() == Order::Log
    }

    fn check(&self) -> Result<(), SuperblockError> {
        if self.version.get() != FORMAT_VERSION {
            return Err(Incompatible::Version { found: self.version.get(), known: FORMAT_VERSION }.into());
        }
        let unknown = self.features_incompatible.get() & !feature::INCOMPATIBLE_KNOWN;
        if unknown != 0 {
            return Err(Incompatible::Features { bits: unknown }.into());
        }
        self.choices()?;
        self.check_shape()?;
        self.check_fixed_places()?;
        if !(1..=64).contains(&self.chunk_blocks.get()) {
            return bad("chunk_blocks", u64::from(self.chunk_blocks.get()));
        }
        if self.state.get() > state::SEALED {
            return bad("state", u64::from(self.state.get()));
        }
        self.check_log()?;
        self.check_order()?;
        if self.geometry().locate(crate::Ino(self.root_ino.get())).is_none() {
            return bad("root_ino", self.root_ino.get());
        }
        Ok(())
    }

    /// Sizes and counts of blocks, groups and inodes. What the other checks compute of them needs them sound.
    fn check_shape(&self) -> Result<(), SuperblockError> {
        let bits = u32::from(self.block_bits);
        if !(address::BLOCK_BITS_MIN..=address::BLOCK_BITS_MAX).contains(&bits) {
            return bad("block_bits", u64::from(bits));
        }
        let has_fragments = self.features_incompatible.get() & feature::INCOMPATIBLE_FRAGMENTS != 0;
        let may_have = self.map == Map::Blocks as u8
            && self.space == Space::Bitmap as u8
            && self.features_read_only.get() & feature::READ_ONLY_DATA_CHECKSUMS == 0;
        let most = if has_fragments && may_have { FRAGMENT_BITS_MAX.min(address::BLOCK_BITS_MAX - bits) } else { 0 };
        let fragment_bits = u32::from(self.fragment_bits);
        if fragment_bits > most || has_fragments && fragment_bits == 0 {
            return bad("fragment_bits", u64::from(fragment_bits));
        }
        let (ag, region) = (self.ag_blocks.get(), self.region_blocks.get());
        if !ag.is_power_of_two() || ag < address::AG_BLOCKS_MIN {
            return bad("ag_blocks", u64::from(ag));
        }
        if !region.is_power_of_two() || region > ag || ag / region > address::REGIONS_PER_AG_MAX {
            return bad("region_blocks", u64::from(region));
        }
        let blocks = self.block_count.get();
        // An inode number is a block and a slot; both must fit 63 bits, and an extent's start 47.
        if !(BLOCK_COUNT_MIN..1 << 47).contains(&blocks) {
            return bad("block_count", blocks);
        }
        // A last group that has no room for its fixed blocks would have them in the next volume.
        if blocks > u64::from(ag) && (1..u64::from(address::AG_BLOCKS_MIN)).contains(&(blocks % u64::from(ag))) {
            return bad("block_count", blocks);
        }
        if blocks.div_ceil(u64::from(ag)) != u64::from(self.ag_count.get())
            || self.ag_count.get() > address::AG_COUNT_MAX
        {
            return bad("ag_count", u64::from(self.ag_count.get()));
        }
        if self.ag_high_water.get() > self.ag_count.get() || self.ag_high_water.get() == 0 {
            return bad("ag_high_water", u64::from(self.ag_high_water.get()));
        }
        if self.geometry().table_every != 0 || self.inodes == Inodes::Static as u8 {
            let every = self.table_every.get();
            if !(table::EVERY_MIN..=table::EVERY_MAX).contains(&every) {
                return bad("table_every", u64::from(every));
            }
        }
        Ok(())
    }

    /// What lies at fixed places leaves room in every group, also in a last one that is short; and its bitmaps fit one transaction.
    fn check_fixed_places(&self) -> Result<(), SuperblockError> {
        let geometry = self.geometry();
        let ag_blocks = u64::from(self.ag_blocks.get());
        if geometry.checksum_blocks(AgNo(0)) > checksum::TABLE_BLOCKS_MAX {
            return bad("ag_blocks", ag_blocks);
        }
        // What follows multiplies them as 32 bits.
        let inodes = u64::from(geometry.table_blocks(AgNo(0))) * u64::from(geometry.table_inodes_per_block());
        if geometry.has_table() && inodes > u64::from(u32::MAX) {
            return bad("table_every", u64::from(self.table_every.get()));
        }
        for ag in [AgNo(0), AgNo(self.ag_count.get() - 1)] {
            if geometry.first_data_block(ag) + RESERVE_MAX as u32 > geometry.blocks_in(ag) {
                return bad("block_count", self.block_count.get());
            }
        }
        // A group is made in one transaction.
        if geometry.block_bitmap_blocks(AgNo(0)) + geometry.inode_bitmap_blocks(AgNo(0)) > bitmap::BLOCKS_MAX {
            return bad("ag_blocks", ag_blocks);
        }
        Ok(())
    }

    /// Whether the log, if there is one, lies on a device of its own.
    pub fn has_external_log(&self) -> bool {
        self.log_device != [0; 16]
    }

    /// A log on the volume itself lies in the first group.
    fn check_log(&self) -> Result<(), SuperblockError> {
        if self.has_external_log() || self.log_blocks.get() == 0 {
            return Ok(());
        }
        let (start, end) = (self.log_start.get(), self.log_start.get().checked_add(self.log_blocks.get()));
        let first_group = self.block_count.get().min(u64::from(self.ag_blocks.get()));
        let is_inside =
            start >= u64::from(self.geometry().first_data_block(AgNo(0))) && end.is_some_and(|end| end <= first_group);
        if is_inside { Ok(()) } else { bad("log_start", start) }
    }

    /// The order that changed the volume last.
    fn check_order(&self) -> Result<(), SuperblockError> {
        let order = self.last_order.get();
        match self.known_order() {
            // It was written by what knows more: what is promised of its state is not what another order would rely on.
            Some(order) if !order.choice().is_built => {
                return Err(Incompatible::NotBuilt { seam: Order::SEAM.name, choice: order.name() }.into());
            }
            None => return bad("last_order", u64::from(order)),
            Some(Order::Log) if self.log_blocks.get() == 0 => return bad("last_order", u64::from(order)),
            Some(order) if order.goes_by_rounds() && !self.can_have(order) => {
                return bad("last_order", order as u64);
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// The order that changed the volume last; decoding refuses what is none.
    pub fn order(&self) -> Order {
        self.known_order().unwrap_or(Order::None)
    }

    fn known_order(&self) -> Option<Order> {
        u8::try_from(self.last_order.get()).ok().and_then(Order::from_code)
    }

    /// Whether the volume is safe without a log in this order. A block and its checksum of data change together, which only a log makes one
    /// change.
    fn can_have(&self, order: Order) -> bool {
        let has_checksums = self.features_read_only.get() & feature::READ_ONLY_DATA_CHECKSUMS != 0;
        !has_checksums && self.choices().is_ok_and(|choices| choices.check_order(order).is_ok())
    }

    /// What was chosen at each seam when the volume was made; an error names the seam and the choice that is not in this build.
    pub fn choices(&self) -> Result<Choices, Incompatible> {
        fn known<T>(seam: &Seam, code: u8, choice: Option<T>) -> Result<T, Incompatible> {
            choice.ok_or(Incompatible::Seam { seam: seam.name, code })
        }
        let choices = Choices {
            space: known(&Space::SEAM, self.space, Space::from_code(self.space))?,
            inodes: known(&Inodes::SEAM, self.inodes, Inodes::from_code(self.inodes))?,
            map: known(&Map::SEAM, self.map, Map::from_code(self.map))?,
            directory: known(&Directory::SEAM, self.directory, Directory::from_code(self.directory))?,
            lookup: known(&Lookup::SEAM, self.lookup, Lookup::from_code(self.lookup))?,
            volume: known(&VolumeKind::SEAM, self.volume_kind, VolumeKind::from_code(self.volume_kind))?,
        };
        choices.check_built()?;
        choices.check_together()?;
        Ok(choices)
    }

    /// Notes what is chosen at each seam.
    pub fn set_choices(&mut self, choices: &Choices) {
        self.space = choices.space as u8;
        self.inodes = choices.inodes as u8;
        self.map = choices.map as u8;
        self.directory = choices.directory as u8;
        self.lookup = choices.lookup as u8;
        self.volume_kind = choices.volume as u8;
    }

    /// Valid after [`Superblock::decode`], which checked every field it uses.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            block_bits: u32::from(self.block_bits),
            ag_bits: self.ag_blocks.get().trailing_zeros(),
            region_bits: self.region_blocks.get().trailing_zeros(),
            ag_count: self.ag_count.get(),
            block_count: self.block_count.get(),
            chunk_blocks: self.chunk_blocks.get(),
            has_checksums: self.features_read_only.get() & feature::READ_ONLY_DATA_CHECKSUMS != 0,
            bodies_follow: self.features_read_only.get() & feature::READ_ONLY_BODIES_FOLLOW != 0,
            has_bitmap: self.space == Space::Bitmap as u8,
            table_every: if self.inodes == Inodes::Static as u8 { self.table_every.get() } else { 0 },
            map: if self.map == Map::Blocks as u8 { Map::Blocks } else { Map::Extents },
            fragment_bits: self.fragment_bits.into(),
        }
    }

    /// Whether the volume may hold any mixture of old and new blocks, so that it must be checked before it is changed: it was not
    /// closed cleanly, and what changed it did so without a log, or was a repair. `has_log`: its log has a checkpoint that counts. A
    /// log is emptied before anything is changed without it. Or a background check has found damage.
    pub fn needs_check(&self, has_log: bool) -> bool {
        if self.leftovers & leftovers::NEEDS_CHECK != 0 {
            return true;
        }
        let is_repair = self.mount_nonce.get() == NO_MOUNT;
        let is_unordered = self.last_order.get() == Order::None as u32 && !has_log;
        self.state.get() == state::IN_USE && (is_repair || is_unordered)
    }

    pub fn volume(&self) -> [u8; 16] {
        self.header.volume
    }
}

/// Whether group `ag` holds a copy of the superblock: 0 (the original), 1, and the powers of 3, 5 and 7.
pub fn has_copy(ag: AgNo) -> bool {
    let is_power = |base: u32| {
        let mut n = ag.0;
        while n > 1 && n % base == 0 {
            n /= base;
        }
        n == 1
    };
    ag.0 <= 1 || is_power(3) || is_power(5) || is_power(7)
}

/// Why a superblock was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    #[error("not a Myriad volume")]
    Foreign,
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    #[error(transparent)]
    Incompatible(#[from] Incompatible),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_few() {
        let with: Vec<u32> = (0..30).filter(|&ag| has_copy(AgNo(ag))).collect();
        assert_eq!(with, [0, 1, 3, 5, 7, 9, 25, 27]);
    }

    /// A table of 2^32 inodes was one of none, or a panic.
    #[test]
    fn a_group_has_no_more_inodes_than_32_bits_count() {
        let check = |ag_blocks: u32, table_every: u32| {
            let mut superblock = <Superblock as zerocopy::FromZeros>::new_zeroed();
            superblock.block_bits = 16;
            superblock.set_choices(&Choices { space: Space::Bitmap, inodes: Inodes::Static, ..Choices::default() });
            superblock.ag_blocks.set(ag_blocks);
            superblock.region_blocks.set(ag_blocks);
            superblock.ag_count.set(1);
            superblock.block_count.set(ag_blocks.into());
            superblock.table_every.set(table_every);
            superblock.check_fixed_places()
        };
        assert_eq!(check(1 << 25, 128), Ok(()));
        // So many that their bitmap does not fit a transaction, then so many that they cannot be counted.
        for (ag_blocks, table_every, field) in [
            (1 << 25, 64, "ag_blocks"),
            (1 << 26, 5, "ag_blocks"),
            (1 << 26, 4, "table_every"),
            (1 << 27, 4, "table_every"),
            (1 << 31, 4, "table_every"),
        ] {
            let refused = check(ag_blocks, table_every);
            let Err(SuperblockError::Corrupt(Corrupt::Superblock { field: found, .. })) = refused else {
                panic!("{ag_blocks} {table_every}: {refused:?}");
            };
            assert_eq!(found, field, "{ag_blocks} {table_every}");
        }
    }

    #[test]
    fn foreign_bytes_are_called_foreign() {
        assert_eq!(Superblock::decode(&[0; 512], FsBlock(0)), Err(SuperblockError::Foreign));
    }

    #[test]
    fn a_superblock_of_another_build_names_what_is_missing() {
        let mut superblock = <Superblock as zerocopy::FromZeros>::new_zeroed();
        superblock.set_choices(&Choices::default());
        assert_eq!(superblock.choices().unwrap(), Choices::default());
        superblock.directory = Directory::Append as u8;
        let refused = superblock.choices().unwrap_err();
        assert_eq!(refused.to_string(), "the volume's choice directory=append is not in this build");
        superblock.directory = 99;
        assert!(matches!(superblock.choices(), Err(Incompatible::Seam { seam: "directory", code: 99 })));
    }
}
