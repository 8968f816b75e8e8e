//! Two names that change what they name with each other (RENAME_EXCHANGE).
//!
//! Name `x` names `a` and is to name `b`, name `y` the other way round. Neither entry can show its new inode before the other one does: what it names
//! until then would have no name. So both show in one round, after a note in the superblock, which is one sector:
//!
//! ```text
//! 1   links      one more of each, as of all whose names change; the parents, if directories move
//! 2   note       the two entries, and what they are to name                        } one round, behind the closed gate
//!     entries    both names, and the identities of directories among what they name } with a flush after each of the three
//!     note       taken away                                                        }
//! 3   links      as many as there are names
//! ```
//!
//! Power lost before the note leaves both names as they were. After it, the next opening does what the note says (`myriad_format::exchange::plan`), so both
//! names are as they are to be, whichever of the sectors of the round have arrived.
//!
//! Invariants
//!   1. At most one exchange waits. The next one first makes everything durable, and so does a rename that takes a directory to another parent: the tree
//!      does not change its shape while an exchange waits, nor has it since what lasts was last all there was ([`Soft::shapes`]). So no
//!      directory above the two names waits for the exchange.
//!   2. If one of the entries has changed again since, what is left is a rename, and goes by the rules of `judge` alone.
//!   3. Once the note is written, both entries are, before it is taken away. Their images are made before it, behind the gate that the round has closed. If
//!      the host has no room for one of these writes, the gate opens until the round is written again, and the images stay as they are.
//!   4. The note says where the entries lie, and whoever does what it says finds them there, whether or not the round has arrived. A name that is made
//!      may move an entry inside its unit: then a round first shows the entry in its new place, as it was, and the next one notes the exchange.

use super::judge::Judge;
use super::shadow::Shadow;
use super::{Due, Soft, State};
use crate::error::Result;
use crate::order::facts::{self, Fact};
use crate::types::Time;
use myriad_format::exchange::ExchangedName;
use myriad_format::unit::UNIT_SIZE;
use myriad_format::{BlockKind, Ino};
use std::sync::atomic::Ordering;
use zerocopy::little_endian::{U32, U64};

/// One of the two names: where it is, what it named, and what it names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchanged {
    pub dir: Ino,
    pub hash: u64,
    pub old: Ino,
    pub new: Ino,
}

/// Two names that exchange what they name, and wait to do so in what lasts.
pub(super) struct Exchange {
    names: [Exchanged; 2],
    since: Time,
}

impl Soft {
    /// Two names exchange what they name. Nobody changes the shape of the tree meanwhile.
    pub fn exchanged(&self, names: [Exchanged; 2], now: Time) {
        let mut state = self.state.lock();
        assert!(state.exchange.is_none(), "one exchange at a time");
        state.exchange = Some(Exchange { names, since: now });
    }

    /// Whether an exchange waits. The caller is inside the gate.
    pub fn has_exchange(&self) -> bool {
        self.state.lock().exchange.is_some()
    }

    /// Whether an exchange waits that is due as names are. What is due is written a part at a time, and no part shows both names.
    /// The caller has the checkpointer, as for [`Self::has_due`].
    pub fn has_due_exchange(&self, due: Due) -> bool {
        self.state.lock().exchange.as_ref().is_some_and(|exchange| due.is_name(exchange.since))
    }

    /// How often a directory has got another parent, or two names have been exchanged. Asked before everything is made durable, and after: if it is the
    /// same, the tree has the shape that lasts.
    pub fn shapes(&self) -> u64 {
        self.shapes.load(Ordering::Acquire)
    }

    /// The tree changes its shape. Callers hold the rename lock.
    pub fn reshaped(&self) {
        self.shapes.fetch_add(1, Ordering::AcqRel);
    }
}

impl Exchanged {
    /// Where the entry lies, and the inode that it names, if it differs from what lasts as the exchange has changed it. The gate is closed.
    fn find(&self, state: &State, judge: &Judge<'_>) -> Option<ExchangedName> {
        let blocks = state.directories.range((self.dir.0, 0)..=(self.dir.0, u64::MAX));
        blocks.filter_map(|&(_, block)| Some((block, state.shadows.get(&block)?))).find_map(|(block, shadow)| {
            let (at, file_type) = self.find_in(shadow, &judge.frame(shadow))?;
            Some(ExchangedName {
                block: U64::new(block),
                at: U32::new(at as u32),
                file_type,
                reserved: [0; 3],
                ino: U64::new(self.new.0),
                dir: U64::new(self.dir.0),
                hash: U64::new(self.hash),
            })
        })
    }

    fn find_in(&self, shadow: &Shadow, frame: &[u8]) -> Option<(usize, u8)> {
        let mut found = None;
        for number in shadow.changed_units(frame.len()) {
            let unit = &frame[number * UNIT_SIZE..][..UNIT_SIZE];
            let Some(lasting) = shadow.lasting_unit(number, unit) else { continue };
            facts::between(BlockKind::LinearEntries, Some(&lasting), unit, &mut |fact| {
                if let Fact::Entry { at: Some(at), tag, old: Some(old), new: Some(new) } = fact
                    && (tag, old.ino, new.ino) == (self.hash as u32, self.old, self.new)
                {
                    found = Some((number * UNIT_SIZE + at, new.file_type));
                }
            });
        }
        found
    }

    /// Whether the entry, as it was, lasts in the place where it lies now.
    fn is_in_place(&self, state: &State, judge: &Judge<'_>, name: &ExchangedName) -> bool {
        let shadow = &state.shadows[&name.block.get()];
        let at = name.at.get() as usize;
        let (number, within) = (at / UNIT_SIZE, at % UNIT_SIZE);
        let unit = shadow.lasting_unit(number, &judge.frame(shadow)[number * UNIT_SIZE..][..UNIT_SIZE]);
        unit.is_some_and(|unit| {
            facts::live(&unit)
                .any(|(entry, named)| (entry.at, entry.tag, named.ino) == (within, self.hash as u32, self.old))
        })
    }
}

/// The two entries of the exchange that waits; `None` if there is none, or what is left of it is none.
pub(super) fn waiting(state: &State, judge: &Judge<'_>) -> Option<[ExchangedName; 2]> {
    let [source, target] = state.exchange.as_ref()?.names;
    Some([source.find(state, judge)?, target.find(state, judge)?])
}

/// Those of them that may show in this round: both or none.
pub(super) fn ready(state: &State, judge: &Judge<'_>) -> Result<Option<[ExchangedName; 2]>> {
    let (Some(exchange), Some(names)) = (&state.exchange, waiting(state, judge)) else { return Ok(None) };
    let are_in_place =
        exchange.names.iter().zip(&names).all(|(exchanged, name)| exchanged.is_in_place(state, judge, name));
    let is_ready =
        are_in_place && judge.has_superblock() && judge.may_be_named(&names[0])? && judge.may_be_named(&names[1])?;
    Ok(is_ready.then_some(names))
}
