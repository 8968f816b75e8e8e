//! What programs have stored in a file before it became immutable or append-only, and the kernel has not sent yet.
//!
//! ext4 and XFS write such data out before they set the flag. The kernel does not do that for us, and the IOCTL that sets the flag cannot
//! wait for it: all threads that serve could wait like that, and nobody would be left to answer the WRITEs. So the server opens the file for
//! writing before it sets the flag, and keeps that opening. A WRITE of the kernel's cache, which the flag forbids, goes through it. Once the
//! IOCTL is answered, the thread of `doubts` has the kernel send what it holds of the file, and then the opening ends.
//!
//! ```text
//! program   stores in a mapping    chattr +i                                      unmaps the file
//! server                           opens the file, sets the flag, answers
//! thread                                                  has the kernel send it .. WRITE goes through the opening .. closes it
//! ```
//!
//! What a program stores in the same mapping after that is refused when the kernel sends it. Until then it is taken, too, because nobody can
//! tell it from what was stored before. What a program writes without the cache is refused from the first.
//!
//! Rejected: to let every WRITE of the cache through, because programs that opened the file before could go on for as long as they liked.
//! A kernel that sent its pages before it asked for the flag would undo this.

use super::attributes::{APPEND_ONLY, SUPER_USERS};
use super::doubts::Doubt;
use super::{VolumeService, errno};
use crate::wire::InHeader;
use myriad_engine::{Errno, File, FileType, OpenOptions, Stat};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// A file as it was opened before it got a flag.
pub(super) struct Opened {
    pub file: File,
    /// Since before anything was stored that is still to be sent.
    pub is_append_only: bool,
    /// Which of all openings this is.
    number: u64,
}

/// Openings by node.
#[derive(Default)]
pub(super) struct Settling(Mutex<State>);

#[derive(Default)]
struct State {
    opened: HashMap<u64, Arc<Opened>>,
    last_number: u64,
}

impl Settling {
    /// A file will get a flag; the number of the opening, to end it by.
    fn begin(&self, id: u64, file: File, is_append_only: bool) -> u64 {
        let mut state = self.0.lock();
        state.last_number += 1;
        let number = state.last_number;
        // What was stored before an earlier flag may not be sent yet.
        let is_append_only = is_append_only && state.opened.get(&id).is_none_or(|earlier| earlier.is_append_only);
        let earlier = state.opened.insert(id, Arc::new(Opened { file, is_append_only, number }));
        drop(state);
        // Closing a file may free it.
        drop(earlier);
        number
    }

    pub fn find(&self, id: u64) -> Option<Arc<Opened>> {
        self.0.lock().opened.get(&id).map(Arc::clone)
    }

    /// The kernel has sent what it held of a file. If that has got another flag meanwhile, the opening is not the same.
    pub fn end(&self, id: u64, number: u64) {
        let mut state = self.0.lock();
        let is_same = state.opened.get(&id).is_some_and(|opened| opened.number == number);
        let ended = if is_same { state.opened.remove(&id) } else { None };
        drop(state);
        drop(ended);
    }

    /// The kernel is gone, and sends nothing any more.
    pub fn end_all(&self) {
        let all = std::mem::take(&mut self.0.lock().opened);
        drop(all);
    }
}

impl VolumeService {
    /// A file is about to get these flags. If one of them is new and refuses writing, opens the file before; what to have settled once the
    /// request is answered.
    pub(super) fn begin_settling(&self, header: &InHeader, stat: &Stat, flags: u32) -> Result<Option<Doubt>, Errno> {
        let is_new = flags & !stat.flags & SUPER_USERS != 0;
        let is_all_sent = self.agreement.knows_writers() && !self.writers.any(header.nodeid);
        if stat.file_type() != FileType::File || !is_new || is_all_sent {
            return Ok(None);
        }
        let node = stat.node();
        // As in a WRITE.
        let kills_set_id = self.is_shown_otherwise();
        let session = self.writer(header, kills_set_id, kills_set_id && self.group_matters(node)?);
        let options = OpenOptions { write: true, append: true, dont_cache: true, ..OpenOptions::default() };
        match session.open_node(node, options) {
            Ok(file) => {
                let number = self.settling.begin(header.nodeid, file, stat.flags & APPEND_ONLY != 0);
                Ok(Some(Doubt::Flagged { node: header.nodeid, opening: number }))
            }
            // It is immutable, and so what was stored has been sent, or an earlier opening is there for it.
            Err(error) if error.errno() == Errno::PERM => Ok(None),
            Err(error) => Err(errno(error)),
        }
    }
}
