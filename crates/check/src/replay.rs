//! The log as an opening would find it: granules to lay over blocks, and freed extents that are in no record of free space yet.

use crate::findings::number;
use crate::io::Reader;
use crate::options::CheckError;
use crate::report::{Finding, LogLoss, Place};
use myriad_device::BlockDevice;
use myriad_format::superblock::{Superblock, state};
use myriad_format::{BlockHeader, BlockKind, Corrupt, FsBlock, Geometry, Lsn, header};
use myriad_log::{Emptied, Home, LogError, LogPlace, Overlay, Reach};
use std::sync::Arc;

/// What replay yields.
pub(crate) struct Replay {
    /// `None`: the volume has no log.
    pub place: Option<LogPlace>,
    pub overlay: Option<Overlay>,
    /// The log could be read from an anchor to its end.
    pub is_readable: bool,
    /// Blocks freed by the last checkpoint and not yet in the trees.
    pub pending: Vec<(FsBlock, u32)>,
    /// LSN beyond all that the log holds.
    pub head: Lsn,
    /// Checkpoints that it holds.
    pub checkpoints: u64,
    /// What is wrong with the log.
    pub findings: Vec<Finding>,
    /// It is of another state of the volume, or its end is lost.
    pub is_anothers: bool,
    /// A repair that did not end was emptying the log: all that it held is home.
    pub is_emptied: bool,
    /// What became of a log that cannot be read and was needed.
    pub loss: Option<LogLoss>,
}

impl Replay {
    /// Of a volume without a log, or whose log does not count.
    pub fn nothing() -> Self {
        Self {
            place: None,
            overlay: None,
            is_readable: false,
            pending: Vec::new(),
            head: Lsn(0),
            checkpoints: 0,
            findings: Vec::new(),
            is_anothers: false,
            is_emptied: false,
            loss: None,
        }
    }

    /// LSN at which a new log begins; 0 of a volume that has none.
    pub fn first(&self, geometry: &Geometry) -> Lsn {
        let unit = myriad_format::log::unit(geometry.block_size()) as u64;
        Lsn(self.place.as_ref().map_or(0, |_| self.head.0.next_multiple_of(unit)))
    }

    /// There is a log, and it cannot be read as it should be: how many groups there are, nobody may know.
    pub fn is_damaged(&self) -> bool {
        self.place.is_some() && !self.is_readable
    }

    /// There is a log, and nothing in its place is of this volume.
    pub fn is_foreign(&self) -> bool {
        self.is_damaged() && self.checkpoints == 0 && !self.is_emptied
    }
}

/// Reads the log and changes nothing. A volume closed cleanly has everything home, and the engine does not replay its log;
/// but a copy of the superblock (`is_copy`) does not know how the volume was closed. `is_written`: somebody may be writing to
/// the log meanwhile.
pub(crate) fn replay(
    device: &Arc<dyn BlockDevice>,
    log_device: Option<&Arc<dyn BlockDevice>>,
    superblock: &Superblock,
    is_copy: bool,
    is_written: bool,
) -> Result<Replay, CheckError> {
    let geometry = superblock.geometry();
    let mut replay = Replay::nothing();
    if superblock.log_blocks.get() == 0 {
        return Ok(replay);
    }
    let log_device = if superblock.has_external_log() { log_device.ok_or(CheckError::NoLogDevice)? } else { device };
    let bytes = |blocks: u64| blocks.checked_mul(geometry.block_size() as u64);
    let (Some(start), Some(length)) = (bytes(superblock.log_start.get()), bytes(superblock.log_blocks.get())) else {
        return Err(CheckError::Log("the place of the log is impossible".to_owned()));
    };
    let place = LogPlace {
        device: log_device.clone(),
        start,
        length,
        block_size: geometry.block_size(),
        volume: superblock.volume(),
        known_end: superblock.log_end(),
    };
    let is_needed = superblock.state.get() == state::IN_USE || is_copy;
    let reach = match (is_written, is_needed) {
        (true, _) => Reach::Written,
        (false, true) => Reach::Ring,
        (false, false) => Reach::End,
    };
    let outside_of = |overlay: &Overlay| {
        let outside = overlay.blocks().filter(|(block, _)| block.0 >= geometry.block_count).count();
        (outside > 0).then(|| finding(format!("{outside} blocks of the log lie outside the volume")))
    };
    match myriad_log::recover(&place, reach) {
        Ok(recovered) => {
            replay.is_readable = true;
            replay.head = recovered.head;
            replay.checkpoints = recovered.checkpoints;
            if let Some(what) = myriad_log::damaged_anchor(&place).filter(|_| !is_written) {
                replay.findings.push(finding(format!("one of its two anchors is {what}; the other one counts")));
            }
            if is_needed {
                replay.findings.extend(outside_of(&recovered.overlay));
                replay.overlay = Some(recovered.overlay);
                replay.pending = recovered.pending;
            }
        }
        Err(LogError::Io { op, offset, source }) if is_written => return Err(CheckError::Io { op, offset, source }),
        Err(error @ (LogError::Corrupt(_) | LogError::Io { .. })) => {
            // An order without a log has brought everything home itself, and what lies in the ring is older.
            let counts = is_needed && !is_written && superblock.is_logged();
            if let Some(emptied) = myriad_log::emptied(&place).filter(|_| !is_written) {
                let what = "a repair that did not end was emptying it; what had been found in it is home";
                replay.findings.push(finding(what.to_owned()));
                replay.is_emptied = true;
                replay.loss = loss_of(emptied).filter(|_| counts);
            } else {
                replay.is_anothers = matches!(error, LogError::Corrupt(Corrupt::LogEnd { .. }));
                replay.findings.push(finding(error.to_string()));
            }
            if counts && !replay.is_emptied {
                search(&mut replay, device, superblock, &place);
                replay.findings.extend(replay.overlay.as_ref().and_then(outside_of));
            }
        }
        // Not the log's contents but its place or the device's alignment: nothing that emptying it would put right.
        Err(error) => return Err(CheckError::Log(error.to_string())),
    }
    replay.place = Some(place);
    Ok(replay)
}

/// What a repair that did not end had found.
fn loss_of(emptied: Emptied) -> Option<LogLoss> {
    let Emptied { found, missing, time } = emptied;
    let loss = LogLoss { checkpoints: found.into(), missing: missing.into(), time: (found > 0).then_some(time) };
    (emptied != Emptied::NOT_NEEDED).then_some(loss)
}

/// What the next repair is to know if this one does not end.
pub(crate) fn emptied(loss: Option<LogLoss>) -> Emptied {
    let Some(LogLoss { checkpoints, missing, time }) = loss else { return Emptied::NOT_NEEDED };
    let most = |count: u64| u32::try_from(count).unwrap_or(u32::MAX - 1);
    Emptied { found: most(checkpoints), missing: most(missing), time: time.unwrap_or(0) }
}

/// Searches the ring for what no anchor leads to.
fn search(replay: &mut Replay, volume: &Arc<dyn BlockDevice>, superblock: &Superblock, place: &LogPlace) {
    let geometry = superblock.geometry();
    let reader = Reader::new(volume.clone(), None, geometry, superblock.volume());
    let mut buf = reader.new_buffer();
    let found = myriad_log::search(place, |block| home_of(&reader, block, &mut buf));
    let mut loss = LogLoss { checkpoints: 0, missing: 0, time: None };
    match found {
        Ok(Some(found)) => {
            loss = LogLoss { checkpoints: found.checkpoints, missing: found.missing, time: Some(found.time) };
            replay.checkpoints = found.checkpoints;
            replay.head = found.head;
            replay.pending = found.pending;
            replay.overlay = Some(found.overlay);
        }
        Ok(None) => {}
        Err(error) => replay.findings.push(finding(error.to_string())),
    }
    replay.findings.push(finding(loss.to_string()));
    replay.loss = Some(loss);
}

/// What a block of metadata holds at home.
fn home_of(reader: &Reader, block: FsBlock, buf: &mut [u8]) -> Home {
    if reader.read_raw(block, buf).is_err() {
        return Home::Other;
    }
    let Some(kind) = BlockKind::of(buf) else { return Home::Other };
    if kind.is_of_units() {
        // They do not say as of when they are.
        return Home::Other;
    }
    let header = BlockHeader::read(buf);
    if header.volume != reader.volume || header.address.get() != block.0 {
        return Home::Other;
    }
    match header::verify(buf, kind, &reader.volume, block) {
        Ok(()) => Home::Sound(Lsn(header.lsn.get())),
        Err(_) => Home::Torn,
    }
}

fn finding(message: String) -> Finding {
    Finding { number: number::LOG, place: Place::Log, message, file: None, is_leftover: false }
}
