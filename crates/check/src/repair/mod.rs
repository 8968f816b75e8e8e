//! Repair. Inodes and directory entries are the truth; everything else is derived from them and written anew.
//!
//! ```text
//! replay     what the log holds goes home; the log is made empty        from here on the device is all there is
//! inodes     chunks from the inode trees, and by a search of the group where its tree is damaged or a part of the log is
//!            lost, without which a tree may be too old to name them all; each inode's fields,
//!            attributes and extents: what is impossible goes, of two owners of a block the first one stays: one that a
//!            tree names before one that a search found, and of those the one written last
//! names      directories from the root down: entries that cannot be go, types, tags and identities are put right
//! strays     inodes nobody names: into /lost+found as #INO if they have links, else they are freed
//! derived    file maps that were damaged, directory indexes, link counts, inode trees, free space, headers, superblock
//! ```
//!
//! Invariants
//!   1. An entry never moves: cookies and identities stay valid.
//!   2. No block is allocated before every inode's blocks are known.
//!   3. Power lost at any point leaves a volume that the next repair can work on: inode blocks and entries are changed in
//!      place, sector by sector sound; trees and indexes are never needed to find them, and a group's old inode tree is
//!      there until the new one is; and until all is durable, the volume is marked as in use.
//!   4. An inode in the block at hand names no block that is not durable: it may be written at any time, before or after
//!      what was written since the last flush. What it named before it was changed is nobody else's until that is durable.
//!
//! What it does not try: to tell inodes that were gone before a tree of inodes was damaged from others (a search brings
//! them back, without blocks that anybody else has), or to guess at file data: contents that differ from their checksums are reported and stay as they are, and so do the checksums.

mod build;
mod chunks;
mod groups;
mod inodes;
mod names;
mod pointers;
mod table;
mod tables;

use crate::blocks::Blocks;
use crate::findings::number;
use crate::io::{Reader, lay_over_units};
use crate::look::{Outcome, Writer, look, probe_groups};
use crate::options::{CheckError, Options, Progress};
use crate::replay::{Replay, replay};
use crate::report::Report;
use crate::superblock;
use build::{flush, write};
use myriad_device::BlockDevice;
use myriad_format::choices::Choices;
use myriad_format::inode::RawInode;
use myriad_format::superblock::{NO_MOUNT, OrphanHeader, Superblock, feature, state as volume_state};
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, Geometry, Incompatible, Ino, Lsn, NameHasher, header};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
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
    let Outcome { mut report, superblock, lsn_max, .. } =
        in_part(&without_data, 0.0, 0.5, |options| look(device, log_device, options, Writer::Nobody))?;
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
        let mut scrubbed = in_part(options, 0.5, end, |options| look(device, log_device, options, Writer::Nobody))?;
        if !options.accept_contents || scrubbed.wrong_data.is_empty() {
            scrubbed.report.actions = vouch(device, log_device, lsn_max, options)?;
            return Ok(scrubbed.report);
        }
        report = scrubbed.report;
        // The table goes home by other hands than the log's: nothing may be left in it that could be laid over, and a log keeps its
        // last checkpoint when a volume is closed.
        report.actions =
            in_part(options, end, 0.9, |options| Repair::run(device, log_device, (superblock, lsn_max), options))?;
        return in_part(options, 0.9, 1.0, |options| {
            accepted(device, log_device, options, report, &scrubbed.wrong_data)
        });
    }
    if options.leave_unreadable && (report.unreadable_blocks > 0 || report.log_loss.is_some()) {
        return Ok(report);
    }
    report.actions =
        in_part(options, 0.5, 0.7, |options| Repair::run(device, log_device, (superblock, lsn_max), options))?;
    let after = in_part(options, 0.7, end, |options| look_again(device, log_device, options))?;
    if options.accept_contents && !after.wrong_data.is_empty() {
        let told = after.report.findings.into_iter().filter(|finding| finding.number == number::DATA_CHECKSUM);
        report.findings.extend(told);
        report.finding_count += after.wrong_data.len() as u64;
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
    let (mut superblock, damage) = superblock::find(&**device)?;
    let has_log = replay(device, log_device, &superblock, damage.is_some(), false)?.checkpoints > 0;
    if damage.is_some() || !superblock.needs_check(has_log) {
        return Ok(Vec::new());
    }
    if has_log {
        // A repair that had just begun: what the log has goes home by one that ends.
        return Repair::run(device, log_device, (superblock, lsn_max), options);
    }
    // What was looked at may sit in a volatile cache, if its writer died and not the machine.
    flush(device)?;
    superblock.state.set(volume_state::CLEAN);
    let reader = Reader::new(device.clone(), None, superblock.geometry(), superblock.volume());
    write_superblock(&reader, superblock, AgNo(0))?;
    flush(device)?;
    Ok(vec!["nothing is wrong, though the volume was not closed cleanly; it may be changed again".to_owned()])
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
    let (superblock, _) = superblock::find(&**device)?;
    let reader = Reader::new(device.clone(), None, superblock.geometry(), superblock.volume());
    write_superblock(&reader, in_use(superblock), AgNo(0))?;
    flush(device)?;
    tables::accept(&reader, blocks)?;
    write_superblock(&reader, superblock, AgNo(0))?;
    flush(device)?;
    report.actions.push(format!("blocks of data taken as they are, as was asked for: {}", blocks.len()));
    Ok(repaired(report, look_again(device, log_device, options)?.report))
}

/// An inode that was found.
#[derive(Clone, Copy)]
struct Item {
    ino: Ino,
    /// Names found; of a directory: subdirectories found.
    names: u32,
    file_type: u8,
    state: u8,
}

/// Bits of `Item::state`.
mod state {
    /// A directory that a name leads to, or a file with a name.
    pub const NAMED: u8 = 1;
    /// A directory whose entries have been read.
    pub const VISITED: u8 = 2;
    /// Its link count on disk was 0.
    pub const NO_LINKS: u8 = 4;
    /// Freed: no inode any more.
    pub const GONE: u8 = 8;
}

/// Most sentences about what was done.
const ACTIONS_MAX: usize = 1000;

struct Repair<'a> {
    reader: Arc<Reader>,
    superblock: Superblock,
    choices: Choices,
    geometry: Geometry,
    hasher: NameHasher,
    ag_used: u32,
    blocks: Blocks,
    /// Inode chunks: first block, number of blocks (all initialised) and of those beyond that hold nothing yet.
    chunks: BTreeMap<FsBlock, Chunk>,
    /// How many blocks of each group's inode table are initialised.
    tables: BTreeMap<AgNo, u32>,
    /// A part of the log is lost: trees of inodes lack what only it had.
    are_trees_old: bool,
    /// Nodes of the inode trees that were found, which are nobody else's.
    inode_trees: BTreeSet<FsBlock>,
    /// Ascending by number.
    items: Vec<Item>,
    /// File maps to be written anew.
    maps: BTreeMap<Ino, inodes::Salvaged>,
    /// Inodes in the list of orphans: those with a name may have blocks past their size that are to go.
    orphans: BTreeSet<Ino>,
    /// Directories whose new maps and indexes are not named yet.
    changed: Vec<names::Changed>,
    /// Start and length of what no inode names any more, once the directories are changed and the block at hand is durable.
    left: Vec<(FsBlock, u64)>,
    /// The inode block at hand.
    at_hand: Option<(FsBlock, Vec<u8>, bool)>,
    /// The free run that blocks are taken from: start and length.
    free_run: (u64, u64),
    /// Groups before it can spare nothing, if this part of a group (a power of two) is kept.
    spare_group: u32,
    kept_shift: u32,
    now: i64,
    has_xattr: bool,
    has_acl: bool,
    actions: Vec<String>,
    progress: Option<&'a (dyn Fn(Progress) -> bool + Sync)>,
    /// What was told of it last.
    told: f64,
    /// How many directories there are, and how many have been visited.
    directories: u64,
    visited: u64,
    /// Blocks of file data, and those among them that no checksum vouches for: on a volume with checksums.
    data: Blocks,
    unvouched: Blocks,
}

/// Of a group's blocks a sixteenth stays for its own trees as long as another group has more; then less and less.
const KEPT_SHIFT: u32 = 4;
const KEPT_SHIFT_MAX: u32 = 32;

/// What is free in a group.
struct Room {
    free: u64,
    /// Start and length.
    longest: (u64, u64),
}

#[derive(Clone, Copy)]
struct Chunk {
    count: u32,
    initialised: u32,
    /// By a tree; else a search found it.
    is_named: bool,
}

impl Chunk {
    /// Those of its blocks that hold inodes.
    fn blocks(self, start: FsBlock) -> impl Iterator<Item = FsBlock> {
        (0..u64::from(self.initialised)).map(move |at| start.offset_by(at))
    }
}

impl<'a> Repair<'a> {
    /// Replays the log, makes it empty, and gets ready. A look gave the superblock, and the newest LSN that a block has.
    fn start(
        device: &Arc<dyn BlockDevice>,
        log_device: Option<&Arc<dyn BlockDevice>>,
        (superblock, lsn_max): (Superblock, Lsn),
        options: &Options<'a>,
    ) -> Result<Self, CheckError> {
        let geometry = superblock.geometry();
        let mut actions = Vec::new();
        // What is read of the log may sit in a volatile cache, if its writer died and not the machine. Before it goes home
        // it must be where it will be found again.
        for device in [Some(device), log_device].into_iter().flatten() {
            flush(device)?;
        }
        let is_copy = superblock::find(&**device)?.1.is_some();
        let mut replayed = replay(device, log_device, &superblock, is_copy, false)?;
        let is_log_damaged = replayed.is_damaged();
        if replayed.is_foreign() && superblock.log_device != [0; 16] && !options.new_log {
            return Err(CheckError::ForeignLog);
        }
        if is_log_damaged {
            // The new log begins beyond every LSN that a block has, known to the old one or not.
            replayed.head = replayed.head.max(Lsn(lsn_max.0 + 1));
        }
        bring_home(device, &superblock, &replayed, &mut actions)?;
        let reader = Reader::new(device.clone(), None, geometry, superblock.volume());
        let (superblock, is_old) = match superblock::find(&**device) {
            // What the log says of the volume's size must be what the look at it believed.
            Ok((found, damage)) if superblock::describes_same(&found, &superblock) && found.geometry() == geometry => {
                (found, damage.is_some())
            }
            _ => (superblock, true),
        };
        let mut ag_used = superblock.ag_high_water.get();
        // Under the log the mark is as durable as what it announces, and a header above it is an uncommitted one: but not
        // the mark of a copy, or of before a log that is lost.
        if is_copy || is_old || is_log_damaged || !superblock.is_logged() {
            ag_used = probe_groups(&reader, ag_used);
        }
        let was_clean = !is_copy && !is_old && superblock.state.get() == volume_state::CLEAN;
        let mut repair = Self {
            reader: Arc::new(reader),
            hasher: NameHasher::new(superblock.hash_key),
            choices: superblock.choices()?,
            superblock,
            geometry,
            ag_used,
            blocks: Blocks::new(),
            chunks: BTreeMap::new(),
            tables: BTreeMap::new(),
            are_trees_old: false,
            inode_trees: BTreeSet::new(),
            items: Vec::new(),
            maps: BTreeMap::new(),
            orphans: BTreeSet::new(),
            changed: Vec::new(),
            left: Vec::new(),
            at_hand: None,
            progress: options.progress,
            told: 0.0,
            directories: 0,
            visited: 0,
            free_run: (0, 0),
            spare_group: 0,
            kept_shift: KEPT_SHIFT,
            now: options.now,
            has_xattr: false,
            has_acl: false,
            actions,
            data: Blocks::new(),
            unvouched: Blocks::new(),
        };
        for ag in 0..repair.ag_used {
            repair.claim_fixed(AgNo(ag));
        }
        if superblock.log_device == [0; 16] && superblock.log_blocks.get() > 0 {
            repair.blocks.claim(FsBlock(superblock.log_start.get()), superblock.log_blocks.get());
        }
        // A log that counts for nothing, since the volume was closed, must not begin to. One that counts knows which groups
        // there are, and so must the superblock before it goes.
        if was_clean {
            empty_log(&geometry, replayed, &mut repair.actions)?;
            repair.mark_in_use()?;
        } else {
            repair.mark_in_use()?;
            if replayed.loss.is_some_and(|loss| loss.is_loss()) {
                // While the log still tells that it lacks something.
                repair.distrust()?;
            }
            empty_log(&geometry, replayed, &mut repair.actions)?;
        }
        Ok(repair)
    }

    /// Repairs; what was done.
    fn run(
        device: &Arc<dyn BlockDevice>,
        log_device: Option<&Arc<dyn BlockDevice>>,
        looked_at: (Superblock, Lsn),
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
        self.settle()?;
        self.find_data()?;
        self.write_groups()?;
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
        while next != FsBlock::NONE && met.insert(next) {
            if self.reader.read(next, BlockKind::Orphans, 0, &mut buf).is_err() {
                met.remove(&next);
                break;
            }
            let header = *OrphanHeader::read(&buf);
            let list = buf[OrphanHeader::SIZE..].chunks_exact(8).take(header.count.get() as usize);
            self.orphans.extend(list.map(|ino| Ino(u64::from_le_bytes(ino.try_into().expect("eight bytes")))));
            next = FsBlock(header.next.get());
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

    fn flush(&self) -> Result<(), CheckError> {
        flush(self.reader.device())
    }

    /// Before the first change: a volume whose repair is cut short was not closed cleanly, whatever it was before, and has
    /// these groups. The copies stay as they are.
    fn mark_in_use(&self) -> Result<(), CheckError> {
        let mut sb = in_use(self.superblock);
        sb.ag_high_water.set(self.ag_used);
        write_superblock(&self.reader, sb, AgNo(0))?;
        self.flush()
    }

    /// Tells how far the repair is, a thousand times at most. It goes on whatever the answer is, to a volume that is whole: the
    /// look after it will ask again.
    fn tick(&mut self, phase: &'static str, done: u64, total: u64, from: f64, to: f64) {
        const STEP: f64 = 0.001;
        let part = done as f64 / total.max(1) as f64;
        let fraction = from + (to - from) * part.min(1.0);
        if let Some(progress) = self.progress
            && fraction >= self.told + STEP
        {
            self.told = fraction;
            progress(Progress { phase, fraction });
        }
    }

    fn act(&mut self, what: impl Into<String>) {
        if self.actions.len() < ACTIONS_MAX {
            self.actions.push(what.into());
        }
    }

    fn item(&mut self, ino: Ino) -> Option<&mut Item> {
        let index = self.items.binary_search_by_key(&ino, |item| item.ino).ok()?;
        Some(&mut self.items[index]).filter(|item| item.state & state::GONE == 0)
    }

    /// Takes one free block; in group `ag` only, if given.
    fn take(&mut self, ag: Option<AgNo>) -> Result<FsBlock, CheckError> {
        self.take_if_any(ag)?.ok_or_else(no_room)
    }

    /// Takes so many free blocks, or none if there are fewer.
    fn take_all(&mut self, count: usize) -> Result<Option<Vec<FsBlock>>, CheckError> {
        let mut blocks = Vec::with_capacity(count);
        while blocks.len() < count {
            let Some(block) = self.take_if_any(None)? else {
                self.release(blocks.into_iter().map(|block| (block, 1)));
                return Ok(None);
            };
            blocks.push(block);
        }
        Ok(Some(blocks))
    }

    fn take_if_any(&mut self, ag: Option<AgNo>) -> Result<Option<FsBlock>, CheckError> {
        loop {
            let (start, length) = self.free_run;
            let block = FsBlock(start);
            if length == 0 || ag.is_some_and(|ag| self.geometry.ag_of(block) != ag) {
                self.free_run = match ag {
                    Some(ag) => self.room_in(ag).longest,
                    None => self.spare_run()?,
                };
                if self.free_run.1 == 0 {
                    return Ok(None);
                }
                continue;
            }
            self.free_run = (start + 1, length - 1);
            if self.blocks.first_in(block, 1).is_none() {
                self.blocks.claim(block, 1);
                return Ok(Some(block));
            }
            self.free_run = (0, 0);
        }
    }

    /// A free run in a group that can spare it: its own trees are written last, from what is left in it.
    fn spare_run(&mut self) -> Result<(u64, u64), CheckError> {
        loop {
            while self.spare_group < self.ag_used {
                let ag = AgNo(self.spare_group);
                let kept = u64::from(self.geometry.blocks_in(ag)) >> self.kept_shift;
                let Room { free, longest: (start, length) } = self.room_in(ag);
                if free > kept {
                    return Ok((start, length.min(free - kept)));
                }
                self.spare_group += 1;
            }
            if !self.left.is_empty() {
                self.settle()?;
            } else if self.use_another_group()? {
                // Its blocks come next.
            } else if self.kept_shift < KEPT_SHIFT_MAX {
                // All groups again, for a part of what was kept.
                self.kept_shift += 4;
                self.spare_group = 0;
            } else {
                return Ok((0, 0));
            }
        }
    }

    /// Takes the first group into use that was never used, if there is one.
    fn use_another_group(&mut self) -> Result<bool, CheckError> {
        if self.ag_used == self.geometry.ag_count {
            return Ok(false);
        }
        let ag = AgNo(self.ag_used);
        self.ag_used += 1;
        self.claim_fixed(ag);
        if self.geometry.has_table() {
            self.tables.insert(ag, 0);
        }
        // Before anything lies in it: a repair cut short leaves a volume that knows of the group.
        self.mark_in_use()?;
        self.act(format!("took group {ag} into use"));
        Ok(true)
    }

    fn room_in(&self, ag: AgNo) -> Room {
        let mut room = Room { free: 0, longest: (0, 0) };
        let start = self.geometry.fs_block(ag, AgBlock(0));
        self.blocks.for_each_gap(start, u64::from(self.geometry.blocks_in(ag)), |start, length| {
            room.free += length;
            if length > room.longest.1 {
                room.longest = (start.0, length);
            }
            true
        });
        room
    }

    fn claim_fixed(&self, ag: AgNo) {
        let fixed = self.geometry.first_data_block(ag).min(self.geometry.blocks_in(ag));
        self.blocks.claim(self.geometry.fs_block(ag, AgBlock(0)), u64::from(fixed));
    }

    /// Changes an inode in its block, which stays at hand until another one is asked for.
    fn change_inode(&mut self, ino: Ino, f: impl FnOnce(&mut RawInode)) -> Result<(), CheckError> {
        let Some((block, slot)) = self.geometry.locate(ino) else { return Ok(()) };
        self.load_at_hand(block)?;
        if let Some((_, buf, dirty)) = &mut self.at_hand {
            let raw = RawInode::read_mut(&mut buf[self.geometry.inode_offset(slot)..]);
            let before = *raw;
            f(raw);
            *dirty |= *raw != before;
        }
        Ok(())
    }

    fn raw(&mut self, ino: Ino) -> Result<RawInode, CheckError> {
        let mut raw = RawInode::zeroed();
        self.change_inode(ino, |found| raw = *found)?;
        Ok(raw)
    }

    fn load_at_hand(&mut self, block: FsBlock) -> Result<(), CheckError> {
        if self.at_hand.as_ref().is_some_and(|(at, ..)| *at == block) {
            return Ok(());
        }
        self.store_at_hand()?;
        let mut buf = self.reader.new_buffer();
        self.reader
            .read_raw(block, &mut buf)
            .map_err(|damage| CheckError::Repair(format!("inode block {block} cannot be read again: {damage:?}")))?;
        self.at_hand = Some((block, buf, false));
        Ok(())
    }

    /// Makes all changes of inodes durable, and gives back what none of them names any more.
    fn settle(&mut self) -> Result<(), CheckError> {
        self.change_directories()?;
        self.store_at_hand()?;
        self.flush()?;
        let left = std::mem::take(&mut self.left);
        self.release(left);
        Ok(())
    }

    /// Gives blocks back: their groups may have some to spare again.
    fn release(&mut self, runs: impl IntoIterator<Item = (FsBlock, u64)>) {
        for (start, length) in runs {
            self.blocks.release(start, length);
            self.spare_group = self.spare_group.min(self.geometry.ag_of(start).0);
            self.kept_shift = KEPT_SHIFT;
        }
    }

    fn store_at_hand(&mut self) -> Result<(), CheckError> {
        if let Some((block, mut buf, true)) = self.at_hand.take() {
            write(&self.reader, block, &mut buf)?;
        }
        Ok(())
    }

    fn write_superblocks(&mut self) -> Result<(), CheckError> {
        let sb = &mut self.superblock;
        sb.ag_high_water.set(self.ag_used);
        if sb.state.get() == volume_state::IN_USE {
            sb.state.set(volume_state::CLEAN);
        }
        let (xattr, acl) = (self.has_xattr, self.has_acl);
        let known = if xattr { myriad_format::superblock::feature::COMPATIBLE_XATTR } else { 0 }
            | if acl { myriad_format::superblock::feature::COMPATIBLE_ACL } else { 0 };
        sb.features_compatible.set(sb.features_compatible.get() | known);
        let sb = *sb;
        superblock::copies(self.geometry.ag_count)
            .chain([0])
            .try_for_each(|ag| write_superblock(&self.reader, sb, AgNo(ag)))
    }
}

fn no_room() -> CheckError {
    CheckError::Repair("no free block is left for what has to be written anew".to_owned())
}

/// What says that a volume is being repaired: it was not closed cleanly, and nobody has it mounted.
fn in_use(mut sb: Superblock) -> Superblock {
    sb.state.set(volume_state::IN_USE);
    sb.mount_nonce.set(NO_MOUNT);
    sb
}

fn write_superblock(reader: &Reader, mut sb: Superblock, ag: AgNo) -> Result<(), CheckError> {
    let block = reader.geometry.fs_block(ag, AgBlock(0));
    sb.header.magic.set(BlockKind::Superblock.magic());
    sb.header.address.set(block.0);
    let mut buf = reader.new_buffer();
    buf[..Superblock::SIZE].copy_from_slice(sb.as_bytes());
    write(reader, block, &mut buf)
}

/// Writes home what the log holds.
fn bring_home(
    device: &Arc<dyn BlockDevice>,
    superblock: &Superblock,
    replay: &Replay,
    actions: &mut Vec<String>,
) -> Result<(), CheckError> {
    let Some(overlay) = &replay.overlay else { return Ok(()) };
    let geometry = superblock.geometry();
    let reader = Reader::new(device.clone(), None, geometry, superblock.volume());
    let mut buf = reader.new_buffer();
    let mut count = 0_u64;
    for (block, _) in overlay.blocks().filter(|(block, _)| block.0 < geometry.block_count) {
        if reader.read_raw(block, &mut buf).is_err() {
            buf.fill(0);
        }
        let mut home = buf.clone();
        overlay.apply(block, &mut buf);
        let kind = BlockKind::of(&buf).filter(|kind| kind.is_of_units());
        if let Some(kind) = kind {
            // A unit that was damaged before stays so, unless the log has all of it; others of its block do not suffer.
            if reader.read_raw(block, &mut home).is_err() {
                reader.read_each_sector(block, &mut home);
            }
            lay_over_units(overlay, &reader.volume, block, kind, &mut home);
            write_home(&reader, block, &home)?;
            count += 1;
            continue;
        }
        // Of a log that had to be searched a part may be found again, if power is lost while it is made empty: it must not be
        // laid over what is newer.
        let lsn = if replay.is_readable { header::BlockHeader::read(&buf).lsn.get() } else { replay.head.0 };
        header::seal_at(&mut buf, &reader.volume, block, lsn);
        write_home(&reader, block, &buf)?;
        count += 1;
    }
    flush(device)?;
    actions.push(format!("replayed {count} blocks from the log"));
    Ok(())
}

fn write_home(reader: &Reader, block: FsBlock, bytes: &[u8]) -> Result<(), CheckError> {
    let offset = block.0 << reader.geometry.block_bits;
    reader.write_raw(block, bytes).map_err(|source| CheckError::Io { op: "write", offset, source })
}

/// Makes the log empty: from here on nothing may be replayed over a repaired block.
fn empty_log(geometry: &Geometry, replay: Replay, actions: &mut Vec<String>) -> Result<(), CheckError> {
    let is_damaged = replay.is_damaged();
    let Some(place) = replay.place else { return Ok(()) };
    if is_damaged {
        // Nobody knows which LSNs were used, and a place that cannot be read may be as new once it is written: the ring must be
        // zeros. Not before it counts for nothing, or what is left of it half
        // way may look like the whole of a shorter one.
        myriad_log::forget(&place).map_err(|error| CheckError::Repair(error.to_string()))?;
        let zeros = vec![0; 1 << 16];
        let mut at = 0;
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
    let unit = myriad_format::log::unit(geometry.block_size()) as u64;
    let first = Lsn(replay.head.0.next_multiple_of(unit));
    myriad_log::format(&place, first).map_err(|error| CheckError::Repair(error.to_string()))
}
