//! Repair. Inodes and directory entries are the truth; everything else is derived from them and written anew.
//!
//! ```text
//! replay     the changes in the log go home; the log is made empty: from here on the device has everything
//! inodes     chunks are taken from the inode trees. Where a tree is damaged, or a part of the log is lost without which a
//!            tree may be too old to name all of them, the group is searched. Fields, attributes and extents that cannot be
//!            are dropped. If two inodes own a block, one that a tree names keeps it before one that a search found, and of
//!            two such the one written last; so also of two that trees name, if a part of the log is lost. But a block of
//!            entries or of a map that says whose it is stays that one's, and a directory takes none that does not say that it
//!            is its own. What only a search found has no set-id bits and no capabilities: a user may have written it.
//!            Nor has what lies in a torn block and no name vouches for; that takes blocks last, and a device is for user 0 alone
//! names      directories from the root down: entries that cannot be are dropped; types, tags and identities are put right
//! strays     inodes without a name: with links they go into /lost+found as #INO, as far as there is room, others are freed
//! derived    file maps that were damaged, directory indexes, link counts, inode trees, free space, headers, superblock
//! ```
//!
//! Invariants
//!   1. Entries of an `indexed` directory never move, so cookies and identities stay valid. Elsewhere identities do not say where an entry is,
//!      or are put right with it: a damaged `btree` is written anew, a name of a `linear` directory whose tag another one of its unit has
//!      goes to a new unit, and the slots of a `slots` directory whose map lacks blocks are numbered anew.
//!   2. No block is allocated before every inode's blocks are known.
//!   3. If power is lost at any point, the next repair can work on what is left. Inode blocks and entries are changed in place, and each sector of
//!      them is sound by itself. Trees and indexes are never needed to find them, but for
//!      one number: how many entry blocks a directory has made is in its index root, which stays until a new one is named, unless there is no other
//!      room. A group's old inode tree is there until the new one is. And the volume is marked as in use until all is durable.
//!      Only where no block is free is a file's map, or the tree of a directory's names, written over the old one: power lost before the inode
//!      names it costs the map, or the names.
//!   4. An inode in the block at hand names no block that is not durable, because the block at hand may be written at any time, before or after other
//!      writes since the last flush. Blocks that the inode named before it was changed are given to no other inode until the change is durable.
//!
//! A repair does not try two things. Where a tree of inodes was damaged, a search also brings back inodes that were
//! removed before; they get no block that another inode owns, but they cannot be told from the others. And file data is
//! not guessed at: contents that differ from their checksums are reported, and both stay as they are.

pub(crate) mod build;
pub(crate) mod pending;
pub(crate) mod room;
pub(crate) mod volume;

use crate::blocks::Blocks;
use crate::checksums;
use crate::exchange;
use crate::findings::number;
use crate::io::{LSN_BELIEVED, Reader};
use crate::look::{Outcome, Writer, look, probe_groups};
use crate::options::{CheckError, Options, Progress};
use crate::orphans;
use crate::replay::{Replay, emptied, replay};
use crate::report::Report;
use crate::superblock;
use build::flush;
use myriad_device::BlockDevice;
use myriad_format::superblock::{NO_MOUNT, OrphanHeader, Superblock, feature, state as volume_state};
use myriad_format::{AgNo, BlockKind, FsBlock, Geometry, Incompatible, Lsn, NameHasher, header, unit};
use myriad_log::{Applied, LogPlace};
use room::Room;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use volume::{Repair, in_use, write_superblock};
use zerocopy::IntoBytes;

/// Looks, repairs if anything was found, and looks again. A scrub comes last: repair changes no file's contents, and the
/// second look tells whose they are.
pub(crate) fn repair(
    device: &Arc<dyn BlockDevice>,
    log_device: Option<&Arc<dyn BlockDevice>>,
    options: &Options<'_>,
) -> Result<Report, CheckError> {
    // Another look follows where contents are to be accepted.
    let end = if options.accept_contents { 0.85 } else { 1.0 };
    let without_data = Options { scrub: false, ..options.clone() };
    // Nothing is written before all that may refuse a repair has been asked.
    let finished = exchange::finished(device);
    let Outcome { mut report, superblock, lsn_max, contested, .. } =
        in_part(&without_data, 0.0, 0.5, |options| look(&finished, log_device, options, Writer::Nobody))?;
    let unknown = superblock.features_read_only.get() & !feature::READ_ONLY_KNOWN;
    if unknown != 0 {
        return Err(Incompatible::Features { bits: unknown }.into());
    }
    // A sound volume is left alone, even if its log holds changes: replaying them is the next mount's, under a second.
    if report.finding_count == 0 {
        if !options.scrub {
            report.actions = vouch(device, log_device, lsn_max, options)?;
            return Ok(report);
        }
        let mut scrubbed = in_part(options, 0.5, end, |options| look(&finished, log_device, options, Writer::Nobody))?;
        if !options.accept_contents || scrubbed.wrong_data.is_empty() {
            scrubbed.report.actions = vouch(device, log_device, lsn_max, options)?;
            return Ok(scrubbed.report);
        }
        report = scrubbed.report;
        // The table goes home by other hands than the log's: nothing may be left in it that could be laid over, and a log keeps its
        // last checkpoint when a volume is closed.
        report.actions = in_part(options, end, 0.9, |options| {
            Repair::run(device, log_device, (superblock, lsn_max, contested), options)
        })?;
        return in_part(options, 0.9, 1.0, |options| {
            accepted(device, log_device, options, report, &scrubbed.wrong_data)
        });
    }
    if options.leave_unreadable && (report.unreadable_blocks > 0 || report.log_loss.is_some()) {
        return Ok(report);
    }
    report.actions = in_part(options, 0.5, 0.7, |options| {
        Repair::run(device, log_device, (superblock, lsn_max, contested), options)
    })?;
    let after = in_part(options, 0.7, end, |options| look_again(device, log_device, options))?;
    if options.accept_contents && !after.wrong_data.is_empty() {
        let told = after.report.findings.into_iter().filter(|finding| finding.number == number::DATA_CHECKSUM);
        report.findings.extend(told);
        report.finding_count += after.wrong_data.len() as u64;
        report.data_count += after.wrong_data.len() as u64;
        return in_part(options, end, 1.0, |options| accepted(device, log_device, options, report, &after.wrong_data));
    }
    Ok(repaired(report, after.report))
}

/// Lets a volume that was found sound be changed again, if how it was left forbids that; what was done.
fn vouch(
    device: &Arc<dyn BlockDevice>,
    log_device: Option<&Arc<dyn BlockDevice>>,
    lsn_max: Lsn,
    options: &Options<'_>,
) -> Result<Vec<String>, CheckError> {
    exchange::finish(&**device)?;
    let (found, damage) = superblock::find(&**device, options.superblock)?;
    let replayed = replay(device, log_device, &found, damage.is_some(), false)?;
    let has_log = replayed.checkpoints > 0;
    let mut superblock = with_changes(&found, &replayed);
    let needs_check = superblock.needs_check(has_log);
    if damage.is_some() || !needs_check && (superblock.leftovers == 0 || superblock.state.get() != volume_state::CLEAN)
    {
        return Ok(Vec::new());
    }
    if has_log {
        // A repair that had just begun, or a check that was asked for: what the log has goes home by a repair that ends.
        return Repair::run(device, log_device, (superblock, lsn_max, Blocks::new()), options);
    }
    // What was looked at may sit in a volatile cache, if its writer died and not the machine.
    flush(device)?;
    superblock.state.set(volume_state::CLEAN);
    superblock.leftovers = 0;
    let reader = Reader::new(device.clone(), None, superblock.geometry(), superblock.volume());
    write_superblock(&reader, superblock, AgNo(0))?;
    flush(device)?;
    let found = if needs_check {
        "though the volume was not closed cleanly; it may be changed again"
    } else {
        "a crash has left nothing behind"
    };
    Ok(vec![format!("nothing is wrong, {found}")])
}

/// Does a part of the whole, whose progress goes from one fraction to another.
fn in_part<T>(options: &Options<'_>, from: f64, to: f64, run: impl FnOnce(&Options<'_>) -> T) -> T {
    let progress = |part: Progress| {
        let fraction = from + (to - from) * part.fraction;
        options.progress.is_none_or(|progress| progress(Progress { fraction, ..part }))
    };
    run(&Options { progress: Some(&progress), ..options.clone() })
}

/// A look at what a repair has left.
fn look_again(
    device: &Arc<dyn BlockDevice>,
    log_device: Option<&Arc<dyn BlockDevice>>,
    options: &Options<'_>,
) -> Result<Outcome, CheckError> {
    look(device, log_device, options, Writer::Nobody).map_err(|error| match error {
        CheckError::Cancelled => CheckError::Unverified,
        error => error,
    })
}

/// A report completed by a look after the repair.
fn repaired(before: Report, after: Report) -> Report {
    Report {
        repaired: true,
        remaining: after.findings,
        remaining_count: after.finding_count,
        remaining_data_count: after.data_count,
        totals: after.totals,
        scrub: after.scrub,
        ..before
    }
}

/// Takes wrong contents as they are, and looks once more.
fn accepted(
    device: &Arc<dyn BlockDevice>,
    log_device: Option<&Arc<dyn BlockDevice>>,
    options: &Options<'_>,
    mut report: Report,
    blocks: &[FsBlock],
) -> Result<Report, CheckError> {
    let (superblock, _) = superblock::find(&**device, options.superblock)?;
    let reader = Reader::new(device.clone(), None, superblock.geometry(), superblock.volume());
    write_superblock(&reader, in_use(superblock), AgNo(0))?;
    flush(device)?;
    checksums::accept(&reader, blocks)?;
    write_superblock(&reader, superblock, AgNo(0))?;
    flush(device)?;
    report.actions.push(format!("blocks of data taken as they are, as was asked for: {}", blocks.len()));
    Ok(repaired(report, look_again(device, log_device, options)?.report))
}

impl<'a> Repair<'a> {
    /// Replays the log, makes it empty, and gets ready. A look gave the superblock, the newest LSN that a block has,
    /// and blocks of several owners.
    fn start(
        device: &Arc<dyn BlockDevice>,
        log_device: Option<&Arc<dyn BlockDevice>>,
        (superblock, lsn_max, contested): (Superblock, Lsn, Blocks),
        options: &Options<'a>,
    ) -> Result<Self, CheckError> {
        let geometry = superblock.geometry();
        let mut actions = Vec::new();
        // What is read of the log may sit in a volatile cache, if its writer died and not the machine. Before it goes home
        // it must be where it will be found again.
        for device in [Some(device), log_device].into_iter().flatten() {
            flush(device)?;
        }
        let (home, damage) = superblock::find(&**device, options.superblock)?;
        let is_copy = damage.is_some();
        // A log of another state has another superblock, which would vouch for it.
        let known = Superblock {
            mount_nonce: home.mount_nonce,
            log_end: home.log_end,
            log_end_mount: home.log_end_mount,
            ..superblock
        };
        let mut replayed = replay(device, log_device, &known, is_copy, false)?;
        let is_log_damaged = replayed.is_damaged();
        if replayed.is_anothers && superblock.has_external_log() && !options.new_log {
            return Err(CheckError::OtherLog);
        }
        if replayed.is_foreign() && superblock.has_external_log() && !options.new_log {
            return Err(CheckError::ForeignLog);
        }
        exchange::finish(&**device)?;
        if home.log_end().0 <= LSN_BELIEVED {
            replayed.head = replayed.head.max(home.log_end());
        }
        if is_log_damaged {
            // The new log begins beyond every LSN that a block has, known to the old one or not.
            replayed.head = replayed.head.max(Lsn(lsn_max.0 + 1));
        }
        let mut reader = Reader::new(device.clone(), None, geometry, superblock.volume());
        let partial = bring_home(&mut reader, is_copy, &replayed, &mut actions)?;
        let (mut superblock, is_old) = match superblock::find(&**device, options.superblock) {
            // What the log says of the volume's size must be what the look at it believed.
            Ok((found, damage)) if superblock::describes_same(&found, &superblock) && found.geometry() == geometry => {
                let newest = if damage.is_some() { with_changes(&found, &replayed) } else { found };
                (newest, damage.is_some())
            }
            _ => (superblock, true),
        };
        // What it notes of an exchange has been done, or cannot be.
        superblock.set_exchange(None);
        let mut ag_used = superblock.ag_high_water.get();
        // Under the log the mark is as durable as what it announces, and a header above it is an uncommitted one: but not
        // the mark of a copy, or of before a log that is lost.
        if is_copy || is_old || is_log_damaged || !superblock.is_logged() {
            ag_used = probe_groups(&reader, ag_used);
        }
        let was_clean = !is_copy && !is_old && superblock.state.get() == volume_state::CLEAN;
        let is_loss = replayed.loss.is_some_and(|loss| loss.is_loss());
        let mut repair = Self {
            reader: Arc::new(reader),
            hasher: NameHasher::new(superblock.hash_key),
            choices: superblock.choices()?,
            superblock,
            geometry,
            ag_used,
            blocks: Blocks::new(),
            contested,
            shared: RefCell::default(),
            chunks: BTreeMap::new(),
            tables: BTreeMap::new(),
            are_trees_old: false,
            unmade_log: None,
            log_begins: replayed.first(&geometry),
            torn: BTreeSet::new(),
            doubted: BTreeSet::new(),
            inode_trees: BTreeSet::new(),
            items: Vec::new(),
            maps: BTreeMap::new(),
            roots: BTreeMap::new(),
            made: BTreeMap::new(),
            beyond: BTreeMap::new(),
            suspects: Vec::new(),
            orphans: BTreeSet::new(),
            changed: Vec::new(),
            left: Vec::new(),
            at_hand: None,
            progress: options.progress,
            told: 0.0,
            directories: 0,
            visited: 0,
            are_homes_known: false,
            room: Room::new(),
            taken: None,
            now: options.now,
            features: 0,
            actions,
            data: Blocks::new(),
            unvouched: Blocks::new(),
        };
        for ag in 0..repair.ag_used {
            repair.claim_fixed(AgNo(ag));
        }
        if !superblock.has_external_log() && superblock.log_blocks.get() > 0 {
            repair.blocks.claim(FsBlock(superblock.log_start.get()), superblock.log_blocks.get());
        }
        // A repair that was cut short may have made tables longer, and counts that at its end.
        let is_repairs = superblock.state.get() == volume_state::IN_USE && superblock.mount_nonce.get() == NO_MOUNT;
        if superblock.order().goes_by_rounds() && !is_copy && !is_old && !is_repairs {
            // Before anything says that this repair has begun: the next one could not tell.
            repair.believe_table_marks()?;
        }
        // A log that counts for nothing, since the volume was closed, must not begin to. One that counts knows which groups
        // there are, and so must the superblock before it goes.
        if was_clean {
            repair.unmade_log = empty_log(&geometry, replayed, &mut repair.actions)?;
            repair.mark_in_use()?;
        } else {
            repair.mark_in_use()?;
            bring_partial_home(&repair.reader, partial)?;
            repair.unmade_log = empty_log(&geometry, replayed, &mut repair.actions)?;
            if is_loss {
                repair.distrust();
            }
        }
        Ok(repair)
    }

    /// Repairs; what was done.
    fn run(
        device: &Arc<dyn BlockDevice>,
        log_device: Option<&Arc<dyn BlockDevice>>,
        looked_at: (Superblock, Lsn, Blocks),
        options: &Options<'a>,
    ) -> Result<Vec<String>, CheckError> {
        let mut repair = Self::start(device, log_device, looked_at, options)?;
        repair.write_all()?;
        Ok(repair.actions)
    }

    fn write_all(&mut self) -> Result<(), CheckError> {
        let list = self.read_orphans();
        self.find_inodes()?;
        let list = list.into_iter().filter(|&block| self.blocks.claim(block, 1).is_none()).collect();
        self.write_maps()?;
        self.forget_orphans(list)?;
        self.walk_names()?;
        self.settle_links()?;
        debug_assert!(self.roots.is_empty(), "each directory was written anew, or went");
        self.settle()?;
        self.find_data()?;
        self.write_groups()?;
        if let Some(log) = self.unmade_log.take() {
            // With the marks goes what says that the old trees of inodes are not to be believed.
            self.flush()?;
            make_log(&log)?;
        }
        self.tell_unvouched()?;
        // Before anything says that the volume is whole.
        self.flush()?;
        self.write_superblocks()?;
        self.flush()
    }

    /// Reads the list of orphans, as far as it can be believed; the blocks it lies in.
    fn read_orphans(&mut self) -> BTreeSet<FsBlock> {
        let mut next = FsBlock(self.superblock.orphan_root.get());
        let mut buf = self.reader.new_buffer();
        let mut met = BTreeSet::new();
        while next != FsBlock::NONE {
            if !met.insert(next) {
                // It runs in a circle.
                break;
            }
            if self.reader.read(next, BlockKind::Orphans, 0, &mut buf).is_err() {
                met.remove(&next);
                break;
            }
            self.orphans.extend(orphans::numbers(&buf));
            next = FsBlock(OrphanHeader::read(&buf).next.get());
        }
        met
    }

    /// Says that there is no list of orphans, now that none of them has blocks past its end: those without a name are known by
    /// their link counts.
    fn forget_orphans(&mut self, list: Vec<FsBlock>) -> Result<(), CheckError> {
        if self.superblock.orphan_root.get() != 0 {
            self.superblock.orphan_root.set(0);
            self.mark_in_use()?;
        }
        self.release(list.into_iter().map(|block| (block, 1)));
        Ok(())
    }

    fn write_superblocks(&mut self) -> Result<(), CheckError> {
        let sb = &mut self.superblock;
        sb.ag_high_water.set(self.ag_used);
        if sb.state.get() == volume_state::IN_USE {
            sb.state.set(volume_state::CLEAN);
        }
        sb.leftovers = 0;
        sb.set_log_end(self.log_begins);
        sb.features_compatible.set(sb.features_compatible.get() | self.features);
        let sb = *sb;
        superblock::copies(self.geometry.ag_count)
            .chain([0])
            .try_for_each(|ag| write_superblock(&self.reader, sb, AgNo(ag)))
    }
}

/// A copy of the superblock with what the log has of the superblock itself, if together they describe the same volume.
fn with_changes(copy: &Superblock, replay: &Replay) -> Superblock {
    let mut buf = vec![0; copy.geometry().block_size()];
    buf[..Superblock::SIZE].copy_from_slice(copy.as_bytes());
    if replay.overlay.as_ref().and_then(|overlay| overlay.apply(FsBlock(0), &mut buf)).is_none() {
        return *copy;
    }
    Superblock::read_mut(&mut buf).header.address.set(0);
    header::reseal(&mut buf, &copy.volume(), FsBlock(0));
    Superblock::decode(&buf, FsBlock(0))
        .ok()
        .filter(|newest| superblock::describes_same(copy, newest) && newest.geometry() == copy.geometry())
        .unwrap_or(*copy)
}

/// Writes home what the log holds. A superblock that is damaged there (`is_damaged`) stays so until it is marked as in use: the log has
/// parts of it only, and a checksum for the rest would make that a superblock to go by.
///
/// A sector that cannot be read, and of which the log has nothing, is left alone, so that nobody takes it for contents,
/// not even if power is lost. If the log has a part of it, the rest becomes zeros, and the reader remembers that these
/// are no contents. Such blocks are returned. They wait until only a repair may open the volume: an opening that
/// replays the log over them would make their checksums right.
fn bring_home(
    reader: &mut Reader,
    is_damaged: bool,
    replay: &Replay,
    actions: &mut Vec<String>,
) -> Result<Vec<Partial>, CheckError> {
    let mut partial = Vec::new();
    let Some(overlay) = &replay.overlay else { return Ok(partial) };
    let mut buf = reader.new_buffer();
    let mut count = 0_u64;
    let inside = u64::from(is_damaged)..reader.geometry.block_count;
    for (block, _) in overlay.blocks().filter(|(block, _)| inside.contains(&block.0)) {
        let missing = reader.read_with_gaps(block, &mut buf);
        let mut home = buf.clone();
        let Some(applied) = overlay.apply(block, &mut buf) else { continue };
        count += 1;
        if let Some(kind) = unit::kind_of(&reader.geometry, &reader.volume, block, &home, &buf) {
            // A unit that was damaged before stays so, unless the log has all of it; others of its block do not suffer.
            overlay.apply_to_units(block, kind, &reader.volume, &mut home);
            write_home(reader, block, &home, &[])?;
            continue;
        }
        if block.0 == 0 {
            keep_mark_of_repair(&home, &mut buf);
        }
        let gaps = gaps(reader, block, &home, &buf, &applied, missing);
        // Of a log that had to be searched a part may be found again, if power is lost while it is made empty: it must not be
        // laid over what is newer.
        let lsn = if replay.is_readable { header::BlockHeader::read(&buf).lsn.get() } else { replay.head.0 };
        header::seal_at(&mut buf, &reader.volume, block, lsn);
        if gaps.are_any() || is_marked(&home) && applied.mask != u64::MAX {
            mark(&mut buf);
        }
        if gaps.parts.is_empty() {
            write_home(reader, block, &buf, &gaps.sectors)?;
        } else {
            reader.lose(block, gaps.parts);
            partial.push(Partial { block, bytes: buf.clone(), left: gaps.sectors });
        }
    }
    flush(&**reader.device())?;
    actions.push(format!("replayed {count} blocks from the log"));
    Ok(partial)
}

/// The log may know the superblock as it was before an earlier repair, which power loss has ended, said that only a repair may open the volume. That
/// stays so.
fn keep_mark_of_repair(home: &[u8], block: &mut [u8]) {
    let was = Superblock::read(home);
    let is_of_repair = was.state.get() == volume_state::IN_USE && was.mount_nonce.get() == NO_MOUNT;
    if is_of_repair && BlockKind::of(home) == Some(BlockKind::Superblock) {
        Superblock::read_mut(block).mount_nonce.set(NO_MOUNT);
    }
}

/// A block of which the log has a part of a sector that cannot be read.
struct Partial {
    block: FsBlock,
    bytes: Vec<u8>,
    /// Sectors that are not to be written.
    left: Vec<Range<usize>>,
}

/// Writes these blocks home, as long as the log has them.
fn bring_partial_home(reader: &Reader, blocks: Vec<Partial>) -> Result<(), CheckError> {
    for Partial { block, bytes, left } in blocks {
        write_home(reader, block, &bytes, &left)?;
    }
    flush(&**reader.device())
}

/// What of a block neither the medium nor the log has.
#[derive(Default)]
struct Gaps {
    /// Sectors of which the log has nothing.
    sectors: Vec<Range<usize>>,
    /// Of other sectors, what it does not have.
    parts: Vec<Range<usize>>,
}

impl Gaps {
    fn are_any(&self) -> bool {
        !self.sectors.is_empty() || !self.parts.is_empty()
    }
}

/// What is lost of a block that was read from home but for what is `missing`, and became `laid_over` by the log.
fn gaps(
    reader: &Reader,
    block: FsBlock,
    home: &[u8],
    laid_over: &[u8],
    applied: &Applied,
    missing: Vec<Range<usize>>,
) -> Gaps {
    let mut gaps = Gaps::default();
    let is_right = |kind| header::verify(home, kind, &reader.volume, block).is_ok();
    if missing.is_empty() || BlockKind::of(home).is_some_and(is_right) {
        // What is missing of a block that is right with zeros in its place held zeros.
        return gaps;
    }
    let size = laid_over.len();
    let checked = BlockKind::of(laid_over).map_or(size, |kind| kind.checked_len(size));
    for sector in missing.into_iter().filter(|sector| sector.start < checked) {
        let parts = applied.gaps(&sector, size);
        if parts.first() == Some(&sector) {
            gaps.sectors.push(sector);
        } else {
            gaps.parts.extend(parts);
        }
    }
    gaps
}

/// Makes the checksum of a block wrong that was sealed: it counts as torn, for zeros stand for some of it.
fn mark(block: &mut [u8]) {
    let head = header::BlockHeader::read_mut(block);
    head.crc.set(!head.crc.get());
}

/// Whether a block is as [`mark`] left it: by a repair that was cut short, and the log is still there.
fn is_marked(block: &[u8]) -> bool {
    let checked = BlockKind::of(block).map_or(block.len(), |kind| kind.checked_len(block.len()));
    header::BlockHeader::read(block).crc.get() == !header::checksum(&block[..checked])
}

fn write_home(reader: &Reader, block: FsBlock, bytes: &[u8], left: &[Range<usize>]) -> Result<(), CheckError> {
    let offset = block.0 << reader.geometry.block_bits;
    reader.write_sectors(block, bytes, left).map_err(|source| CheckError::Io { op: "write", offset, source })
}

/// A log that is empty and not made yet, and its first LSN.
type UnmadeLog = (LogPlace, Lsn);

/// Makes the log empty: from here on nothing may be replayed over a repaired block. One that could not be read gets its anchors later: until then marks in their
/// places say what was lost with it.
fn empty_log(geometry: &Geometry, replay: Replay, actions: &mut Vec<String>) -> Result<Option<UnmadeLog>, CheckError> {
    let is_damaged = replay.is_damaged();
    let first = replay.first(geometry);
    let Some(place) = replay.place else { return Ok(None) };
    let unit = myriad_format::log::unit(geometry.block_size()) as u64;
    if is_damaged {
        // Nobody knows which LSNs were used, and a place that cannot be read may be as new once it is written: the ring must be
        // zeros. Not before it counts for nothing, or what is left of it half way may look like the whole of a shorter one.
        myriad_log::forget(&place, emptied(replay.loss)).map_err(|error| CheckError::Repair(error.to_string()))?;
        let zeros = vec![0; 1 << 16];
        // The marks stay.
        let mut at = myriad_format::log::ANCHOR_UNITS * unit;
        while at < place.length {
            let part = (place.length - at).min(zeros.len() as u64);
            let offset = place.start + at;
            crate::io::write_at(&*place.device, offset, &zeros[..part as usize]).map_err(|source| CheckError::Io {
                op: "write",
                offset,
                source,
            })?;
            at += part;
        }
        actions.push(match replay.loss {
            Some(loss) if loss.is_loss() => format!("made the log empty; {loss}"),
            Some(_) => "made the log empty: all that it held is home".to_owned(),
            None => "made the log empty: the volume did not need it".to_owned(),
        });
    }
    if is_damaged {
        return Ok(Some((place, first)));
    }
    make_log(&(place, first)).map(|()| None)
}

fn make_log((place, first): &UnmadeLog) -> Result<(), CheckError> {
    myriad_log::format(place, *first).map_err(|error| CheckError::Repair(error.to_string()))
}
