//! One look at a volume from end to end, pass by pass. It changes nothing.

use crate::blocks::Blocks;
use crate::context::{Context, Sink, counted_anew, in_parallel};
use crate::directory::{Dir, Directories, Names};
use crate::findings::number;
use crate::inodes::{self, GroupFacts};
use crate::io::{Reader, read_at};
use crate::links::{check_links, check_tree};
use crate::needed::NeededParts;
use crate::options::{CheckError, Options};
use crate::orphans::Orphans;
use crate::replay::{Replay, replay};
use crate::report::{Place, Report, Scrub, Totals};
use crate::scrub::scrub;
use crate::slots::{body_parts, inode_at, inodes_of};
use crate::space::Counted;
use crate::table::{Part, SlotTable, Span};
use crate::{checksums, space, superblock};
use myriad_device::{BlockDevice, Moment};
use myriad_format::superblock::{Superblock, feature, leftovers};
use myriad_format::{AgBlock, AgNo, Corrupt, FsBlock, Ino, Lsn, NameHasher};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// What a look at the volume gave.
pub(crate) struct Outcome {
    pub report: Report,
    /// Blocks of data whose checksum is wrong, if they were looked at.
    pub wrong_data: Vec<FsBlock>,
    pub superblock: Superblock,
    /// Newest LSN in the header of a block of metadata.
    pub lsn_max: Lsn,
    /// Blocks among which are all that have several owners.
    pub contested: Blocks,
}

/// Who changes a volume while it is looked at.
#[derive(Clone, Copy)]
pub(crate) enum Writer<'a> {
    Nobody,
    /// Somebody may, and the look counts only if he has not.
    Somebody,
    /// Somebody does, and the devices are views of this.
    Holds(&'a Moment),
}

/// Looks and changes nothing.
pub(crate) fn look(
    device: &Arc<dyn BlockDevice>,
    log_device: Option<&Arc<dyn BlockDevice>>,
    options: &Options<'_>,
    writer: Writer<'_>,
) -> Result<Outcome, CheckError> {
    let start = Instant::now();
    let (on_disk, damage) = superblock::find(&**device, options.superblock)?;
    let geometry = on_disk.geometry();
    // Of the ring, a moment has what replay reads.
    let is_written = !matches!(writer, Writer::Nobody);
    let is_log_elsewhere = on_disk.has_external_log() && log_device.is_none();
    let replay = match writer {
        // It was emptied before anything was changed without it.
        Writer::Holds(_) if is_log_elsewhere && !on_disk.is_logged() => Replay::nothing(),
        // Whatever order the superblock at home names: that of the moment may be in the log alone. One that is not used is empty.
        _ => replay(device, log_device, &on_disk, damage.is_some(), is_written)?,
    };
    let (is_log_damaged, log_loss) = (replay.is_damaged(), replay.loss);
    let log_blocks = replay.overlay.as_ref().map_or(0, |overlay| overlay.len() as u64);
    let reader = Reader::new(device.clone(), replay.overlay, geometry, on_disk.volume());
    let (superblock, overlaid) = overlaid_superblock(&reader, &on_disk, damage.is_some());
    let mut ag_used = superblock.ag_high_water.get();
    if damage.is_some() || is_log_damaged {
        // A copy's high-water mark may be old, and that of before a lost log, too.
        ag_used = probe_groups(&reader, ag_used);
    }
    let context = Context {
        reader,
        choices: superblock.choices()?,
        hasher: NameHasher::new(superblock.hash_key),
        superblock,
        geometry,
        ag_used,
        blocks: Blocks::new(),
        contested: Blocks::new(),
        fixed: Mutex::new(HashSet::new()),
        sink: Sink::new(options.findings_max),
        leftovers: options.leftovers.then(Mutex::default),
        unreadable: AtomicU64::new(0),
        threads: options.threads.max(1),
        progress: options.progress,
        cancelled: AtomicBool::new(false),
        features: AtomicU64::new(0),
        entries: AtomicU64::new(0),
        data: options.scrub.then(Blocks::new),
        data_blocks: AtomicU64::new(0),
        moment: if let Writer::Holds(moment) = writer { Some(moment) } else { None },
        needed_parts: NeededParts::new(&geometry, ag_used),
        past_end: Mutex::default(),
        slots_held: AtomicU64::new(0),
        slots_max: options.slots_max,
    };
    for finding in replay.findings {
        context.sink.add(finding);
    }
    if let Some(damage) = &damage {
        let is_read = read_at(&**device, 0, &mut vec![0; Superblock::SIZE]).is_ok();
        context.unreadable.fetch_add(u64::from(!is_read), Relaxed);
        context.report(number::SUPERBLOCK, Place::Volume, format!("{damage}; a copy was used"));
    }
    if matches!(writer, Writer::Nobody) && damage.is_none() && context.superblock.exchange().is_some() {
        let what = "notes an exchange of two names that cannot be, or cannot be read";
        context.report(number::SUPERBLOCK, Place::Volume, what.to_owned());
    }
    if let Err(why) = overlaid {
        context.report(number::SUPERBLOCK, Place::Volume, format!("after replay of the log: {why}"));
    }
    let Passed { mut totals, scrub, wrong_data } = passes(&context, &replay.pending, damage.is_some())?;
    totals.log_blocks = log_blocks;
    let superblock = context.superblock;
    let unreadable_blocks = context.unreadable.into_inner();
    let lsn_max = context.reader.lsn_max();
    let (damage_count, data_count) = (context.sink.damage_count(), context.sink.data_count());
    let (findings, finding_count) = context.sink.take();
    let left = context.leftovers.map(|all| all.into_inner().unwrap_or_else(PoisonError::into_inner));
    let seconds = start.elapsed().as_secs_f64();
    Ok(Outcome {
        report: Report {
            findings,
            finding_count,
            damage_count,
            data_count,
            leftovers: left.unwrap_or_default(),
            unreadable_blocks,
            totals,
            scrub,
            log_loss,
            was_asked_for: superblock.leftovers & leftovers::NEEDS_CHECK != 0,
            seconds,
            ..Report::default()
        },
        lsn_max,
        wrong_data,
        superblock,
        contested: context.contested,
    })
}

/// What the passes gave, findings apart.
struct Passed {
    totals: Totals,
    scrub: Option<Scrub>,
    wrong_data: Vec<FsBlock>,
}

/// The superblock as replay leaves it. Unless a copy stands in for it, the log may hold its newest counts.
fn overlaid_superblock(reader: &Reader, on_disk: &Superblock, is_copy: bool) -> (Superblock, Result<(), String>) {
    let mut buf = reader.new_buffer();
    if is_copy || !reader.read_raw(FsBlock(0), &mut buf).unwrap_or(false) {
        return (*on_disk, Ok(()));
    }
    myriad_format::header::seal_at(&mut buf, &reader.volume, FsBlock(0), 0);
    match Superblock::decode(&buf, FsBlock(0)) {
        Ok(superblock)
            if superblock::describes_same(on_disk, &superblock) && superblock.geometry() == on_disk.geometry() =>
        {
            (superblock, Ok(()))
        }
        Ok(_) => (*on_disk, Err("it describes another volume".to_owned())),
        Err(error) => (*on_disk, Err(error.to_string())),
    }
}

/// Groups in use: at least `from`, and up to the last one beyond that has a sound header.
pub(crate) fn probe_groups(reader: &Reader, from: u32) -> u32 {
    let mut buf = reader.new_buffer();
    let mut has_header = |ag: u32| {
        let block = reader.geometry.fs_block(AgNo(ag), AgBlock(myriad_format::group::HEADER_BLOCK));
        reader.read(block, myriad_format::BlockKind::Group, u64::from(ag), &mut buf).is_ok()
    };
    (from..reader.geometry.ag_count).rev().find(|&ag| has_header(ag)).map_or(from, |last| last + 1)
}

fn passes(context: &Context<'_>, pending: &[(FsBlock, u32)], is_copy: bool) -> Result<Passed, CheckError> {
    let superblock = &context.superblock;
    let geometry = &context.geometry;
    if !superblock.has_external_log() && superblock.log_blocks.get() > 0 {
        context.claim(FsBlock(superblock.log_start.get()), superblock.log_blocks.get(), Place::Log, "log");
    }
    let mut pending_blocks = 0;
    for &(start, length) in pending {
        if context.claim(start, u64::from(length), Place::Log, "pending free") {
            pending_blocks += u64::from(length);
        }
    }

    // Only groups with a sound header are remembered: a giant of empty groups costs time, not memory.
    let ag_used = context.ag_used;
    let facts: Mutex<BTreeMap<u32, GroupFacts>> = Mutex::new(BTreeMap::new());
    let done = AtomicU64::new(0);
    in_parallel(context.threads, u64::from(ag_used), |ag| {
        let group = inodes::check_group(context, AgNo(ag as u32));
        if group.header.is_some() {
            facts.lock().unwrap_or_else(PoisonError::into_inner).insert(ag as u32, group);
        }
        let done = done.fetch_add(1, Relaxed) + 1;
        context.tick("inodes", done, u64::from(ag_used), 0.0, 0.5)
    });
    if context.cancelled.load(Relaxed) {
        return Err(CheckError::Cancelled);
    }
    let mut facts = facts.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut inos = Vec::with_capacity(facts.values().map(|group| group.directory_inos.len()).sum());
    facts.values_mut().for_each(|group| inos.append(&mut std::mem::take(&mut group.directory_inos)));
    let directories = Directories::new(inos);
    let orphans = compare_names(context, &mut facts, &directories)?;

    let (free, parts) = (AtomicU64::new(pending_blocks), AtomicU64::new(0));
    let done = AtomicU64::new(0);
    let groups: Vec<(AgNo, &GroupFacts)> = facts.iter().map(|(&ag, facts)| (AgNo(ag), facts)).collect();
    in_parallel(context.threads, groups.len() as u64, |index| {
        let (ag, facts) = groups[index as usize];
        let counted = space::check_group(context, ag, facts);
        free.fetch_add(counted.blocks, Relaxed);
        parts.fetch_add(counted.parts, Relaxed);
        if let Some((header, _)) = &facts.header {
            checksums::check_group(context, ag, header);
        }
        let done = done.fetch_add(1, Relaxed) + 1;
        context.tick("space", done, groups.len() as u64, 0.9, 1.0)
    });
    if context.cancelled.load(Relaxed) {
        return Err(CheckError::Cancelled);
    }
    let virgin = virgin_blocks(context);
    let free_blocks = free.into_inner() + virgin.blocks;
    let free_parts = parts.into_inner() + virgin.parts;
    let totals = Totals {
        blocks: geometry.block_count,
        free_blocks,
        inodes: facts.values().map(|group| group.inodes_used).sum(),
        directories: directories.inos.len() as u64,
        entries: context.entries.load(Relaxed),
        orphans,
        log_blocks: 0,
    };
    check_volume(context, &totals, free_parts, is_copy);
    let (scrub, wrong_data) = context
        .data
        .is_some()
        .then(|| {
            let runs: Vec<_> = facts.values().flat_map(|group| &group.runs).copied().collect();
            scrub(context, &runs, &directories)
        })
        .unzip();
    if context.cancelled.load(Relaxed) {
        return Err(CheckError::Cancelled);
    }
    Ok(Passed { totals, scrub, wrong_data: wrong_data.unwrap_or_default() })
}

/// Free blocks of the groups that were never used.
fn virgin_blocks(context: &Context<'_>) -> Counted {
    let geometry = &context.geometry;
    (context.ag_used..geometry.ag_count).map(AgNo).fold(Counted::default(), |all, ag| Counted {
        blocks: all.blocks + u64::from(geometry.usable_blocks_in(ag)),
        parts: all.parts + u64::from(geometry.usable_parts_in(ag)),
    })
}

/// Passes "names" and "links", for one part of the inodes after the other; how many inodes the list of orphans names.
fn compare_names(
    context: &Context<'_>,
    facts: &mut BTreeMap<u32, GroupFacts>,
    directories: &Directories,
) -> Result<u64, CheckError> {
    let mut held = Vec::new();
    // Groups whose slots are not at hand, in parts that can be.
    let mut rest: Vec<BTreeSet<AgNo>> = Vec::new();
    let mut room = 0;
    for (&ag, group) in facts.iter_mut() {
        match group.spans.take() {
            Some(spans) => held.extend(spans),
            None => {
                let slots = group.slot_count(context);
                if slots > room || rest.is_empty() {
                    rest.push(BTreeSet::new());
                    room = context.slots_max;
                }
                room = room.saturating_sub(slots);
                rest.last_mut().expect("just made").insert(AgNo(ag));
            }
        }
    }
    let orphans = Orphans::read(context);
    let rounds = rest.len() as u64 + 1;
    let first = SlotTable::new(&context.geometry, Part::AllBut(rest.iter().flatten().copied().collect()), held);
    let left_out = Mutex::default();
    let mut round = 0;
    let mut compare = |slots: SlotTable<'_>| {
        orphans.check(context, &slots);
        let names = Names { context, slots: &slots, directories, has_more: rounds > 1, left_out: &left_out };
        check_names(&names, (round, rounds));
        if context.cancelled.load(Relaxed) {
            return Err(CheckError::Cancelled);
        }
        check_links(context, &slots, directories);
        round += 1;
        Ok(())
    };
    compare(first)?;
    for groups in rest {
        let used = groups.iter().flat_map(|ag| &facts[&ag.0].runs).filter(|run| run.is_used);
        let runs: Vec<_> = used.copied().collect();
        let spans: Vec<OnceLock<Span>> = runs.iter().map(|_| OnceLock::new()).collect();
        in_parallel(context.threads, runs.len() as u64, |index| {
            let index = index as usize;
            _ = spans[index].set(inodes::read_span(context, runs[index]));
            // The names of this part are still to come.
            context.tick("names", 0, 1, 0.5, 0.9)
        });
        if context.cancelled.load(Relaxed) {
            return Err(CheckError::Cancelled);
        }
        let spans = spans.into_iter().filter_map(OnceLock::into_inner).collect();
        compare(SlotTable::new(&context.geometry, Part::Only(groups), spans))?;
    }
    check_tree(context, directories);
    Ok(orphans.count)
}

/// Goes through all directories, in one of several rounds.
fn check_names(names: &Names<'_>, (round, rounds): (u64, u64)) {
    /// Directories of one unit of work: enough for neighbours to share an inode block, few enough to share out.
    const BATCH: u64 = 64;
    let context = names.context;
    let inos = &names.directories.inos;
    let batches = (inos.len() as u64).div_ceil(BATCH);
    let done = AtomicU64::new(0);
    in_parallel(context.threads, batches, |batch| {
        let mut buf = context.reader.new_buffer();
        let mut loaded = FsBlock::NONE;
        let mut bodies = Vec::new();
        let from = (batch * BATCH) as usize;
        for &ino in &inos[from..inos.len().min(from + BATCH as usize)] {
            // The pass over inodes found it, so it has a block.
            let Some((block, slot)) = context.geometry.locate(ino) else { continue };
            if block != loaded {
                if context.reader.read_inodes(block, &mut buf).is_err() {
                    loaded = FsBlock::NONE;
                    continue;
                }
                loaded = block;
                bodies = inodes_of(&context.geometry, &buf).inodes;
            }
            let Ok(at) = bodies.binary_search_by_key(&slot, |(slot, _)| *slot) else { continue };
            let raw = *inode_at(&context.geometry, &buf, slot);
            if raw.check(ino).is_err() || !raw.is_dir() {
                continue;
            }
            let (data, attributes) = body_parts(&buf, &bodies[at].1);
            if round == 0 {
                names.check_directory(Dir { ino, raw: &raw, body: data }, attributes);
            } else {
                names.check_part(Dir { ino, raw: &raw, body: data });
            }
        }
        let done = done.fetch_add(1, Relaxed) + 1;
        context.tick("names", round * batches + done, rounds * batches, 0.5, 0.9)
    });
}

fn check_volume(context: &Context<'_>, totals: &Totals, free_parts: u64, is_copy: bool) {
    let superblock = &context.superblock;
    if !is_copy {
        for (name, stored, found) in [
            ("free blocks", superblock.free_blocks.get(), totals.free_blocks),
            ("free fragments in partly used blocks", superblock.free_parts.get(), free_parts),
            ("inodes", superblock.inodes_used.get(), totals.inodes),
            ("directories", superblock.directories.get(), totals.directories),
        ] {
            if stored != found {
                let message = format!("{found} {name}, the superblock says {stored}");
                context.report_leftover(number::VOLUME_COUNTS, Place::Volume, message, counted_anew);
            }
        }
    }
    let unsaid = context.features.load(Relaxed) & !superblock.features_compatible.get();
    for (bit, name) in [(feature::COMPATIBLE_XATTR, "attributes"), (feature::COMPATIBLE_ACL, "ACLs")] {
        if unsaid & bit != 0 {
            let message = format!("there are {name}, the superblock says none");
            context.report(number::ATTRIBUTE_FLAG, Place::Volume, message);
        }
    }
    if unsaid & feature::COMPATIBLE_FLAGGED != 0 {
        // No damage: on a volume of former versions it may be missing. Until it is there, a mount does not see who opens these files.
        let message = "there are immutable or append-only files, the superblock says none";
        context.report_leftover(number::ATTRIBUTE_FLAG, Place::Volume, message, |all| all.others += 1);
    }
    if context.geometry.locate(Ino(superblock.root_ino.get())).is_none() {
        let corrupt = Corrupt::Superblock { field: "root_ino", value: superblock.root_ino.get() };
        context.report(number::SUPERBLOCK, Place::Volume, corrupt.to_string());
    }
    let mut buf = vec![0; context.reader.block_size().max(Superblock::SIZE)];
    // Copies are written with the volume, also into groups that nothing else has used.
    for ag in superblock::copies(context.geometry.ag_count) {
        let block = context.geometry.fs_block(AgNo(ag), AgBlock(0));
        let buf = &mut buf[..context.reader.block_size()];
        let overlaid = match context.reader.read_raw(block, buf) {
            Ok(overlaid) => overlaid,
            Err(damage) => {
                context.damage(Place::Block(block), damage);
                continue;
            }
        };
        if overlaid {
            // Of a damaged log it may be a block of any kind.
            myriad_format::header::seal_at(buf, &context.reader.volume, block, 0);
        }
        match Superblock::decode(buf, block) {
            Ok(copy) if superblock::describes_same(superblock, &copy) => {}
            Ok(_) => context.report(number::SUPERBLOCK_COPY, Place::Block(block), "the copy describes another volume"),
            Err(error) => context.report(number::SUPERBLOCK_COPY, Place::Block(block), error.to_string()),
        }
    }
}
