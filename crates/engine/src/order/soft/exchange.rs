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
//!   2. If one of the entries has changed again since, what is left is a rename, and goes by the rules of `judge`.
//!   3. Once the note is written, both entries are, before it is taken away. Their images are made before it, behind the gate that the round has closed. If
//!      the host has no room for one of these writes, the gate opens until the round is written again, and the images stay as they are.
//!   4. The note says where the entries lie, and whoever does what it says finds them there, whether or not the round has arrived. A name that is made
//!      may move an entry inside its unit: then a round first shows the entry in its new place, as it was, and the next one notes the exchange.
//!
//! # Names that a directory takes or leaves
//!
//! Example: rename directory `d` over the empty directory `e`. If the entry `e` reaches the disk before d's inode says its name is `e`, a crash leaves `e`
//! naming a directory that calls itself `d`, and lookup hides it. If d's inode goes first, the entry `d` is hidden in the same way. The same happens to a name
//! that a moved directory leaves to a whiteout, or to what was exchanged with it. So such an entry ([`Judge::needs_note`]) shows together with the identity,
//! and is noted meanwhile as an exchange is:
//!
//! ```text
//! taken    its new directory has another name that lasts   the entry, with the inode that it named; and what it is to name
//! left     its old directory lives on by another name      that other name, as it lasts, which has the directory say so; and what the entry is to name
//! ```
//!
//! Where both records are about one entry, the second one counts. A round notes one entry, and only a round of all that waits does. A rename that changes
//! the shape of the tree first makes everything durable while any waits ([`Soft::to_note`]), so no directory above the names waits for one of them.

use super::judge::Judge;
use super::shadow::{Change, Shadow};
use super::{Due, Soft, State};
use crate::dir::OwnName;
use crate::error::Result;
use crate::order::facts::{self, Fact, Named};
use crate::types::Time;
use myriad_format::exchange::ExchangedName;
use myriad_format::unit::UNIT_SIZE;
use myriad_format::{BlockKind, Geometry, Ino};
use std::collections::BTreeSet;
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

    /// Whether an exchange waits that is due as names are, or a name that was due is to be noted. What is due is written a part at a time, and no part notes
    /// anything. The caller has the checkpointer, as for [`Self::has_due`].
    pub fn has_due_exchange(&self, due: Due) -> bool {
        let state = self.state.lock();
        state.has_due_note || state.exchange.as_ref().is_some_and(|exchange| due.is_name(exchange.since))
    }

    /// How many renames there were, since everything was durable, that may leave a name which shows only with a note.
    pub fn to_note(&self) -> u64 {
        self.to_note.load(Ordering::Acquire)
    }

    /// There is one more. The caller is inside the gate.
    pub fn count_rename_to_note(&self) {
        self.to_note.fetch_add(1, Ordering::AcqRel);
    }

    /// A directory gets a name of its own, which lies there: kept from a rename on that leaves a name to be noted, until all names last. The caller is inside
    /// the gate.
    pub fn keep_home(&self, dir: Ino, name: OwnName, is_to_note: bool) {
        let mut homes = self.homes.lock();
        if is_to_note || homes.contains_key(&dir.0) {
            homes.insert(dir.0, name);
        }
    }

    /// Where the own name of a directory lies, if that was kept.
    pub(super) fn home_of(&self, dir: Ino) -> Option<OwnName> {
        self.homes.lock().get(&dir.0).copied()
    }

    /// All names last. The gate is closed.
    pub(super) fn all_names_last(&self) {
        self.to_note.store(0, Ordering::Release);
        self.homes.lock().clear();
        self.takers.lock().clear();
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
        lasts_there(state, judge, name, self.old)
    }
}

/// Whether in the place of a name an entry with its tag lasts that names this inode. It is there, or was changed there.
fn lasts_there(state: &State, judge: &Judge<'_>, name: &ExchangedName, ino: Ino) -> bool {
    let Some(shadow) = state.shadows.get(&name.block.get()) else { return true };
    let at = name.at.get() as usize;
    let (number, within) = (at / UNIT_SIZE, at % UNIT_SIZE);
    let unit = shadow.lasting_unit(number, &judge.frame(shadow)[number * UNIT_SIZE..][..UNIT_SIZE]);
    unit.is_some_and(|unit| {
        facts::live(&unit)
            .any(|(entry, named)| (entry.at, entry.tag, named.ino) == (within, name.hash.get() as u32, ino))
    })
}

/// A name that a directory takes or leaves, and that may show in this round: what is noted of it.
pub(super) fn taken(state: &State, judge: &Judge<'_>) -> Result<Option<[ExchangedName; 2]>> {
    if !judge.has_superblock() {
        return Ok(None);
    }
    for (block, shadow) in state.directories.iter().filter_map(|&(_, block)| Some((block, state.shadows.get(&block)?)))
    {
        for change in &shadow.changes {
            let (Some(old), Some(new)) = (change.named_before(), change.named_now()) else { continue };
            if judge.needs_note(old, new)?
                && let Some(names) = note_of(state, judge, (block, shadow), change, (old, new))?
            {
                return Ok(Some(names));
            }
        }
    }
    Ok(None)
}

/// What is noted of an entry of a block that names `new` in place of `old`; `None` if it may not show yet.
fn note_of(
    state: &State,
    judge: &Judge<'_>,
    (block, shadow): (u64, &Shadow),
    change: &Change,
    (old, new): (Named, Named),
) -> Result<Option<[ExchangedName; 2]>> {
    let dir = Ino(shadow.owner);
    let entry = Exchanged { dir, hash: change.tag.into(), old: old.ino, new: new.ino };
    let frame = judge.frame(shadow);
    let Some((at, _)) = entry.find_in(shadow, &frame) else { return Ok(None) };
    let hash = judge.hash_at(&frame, at);
    drop(frame);
    let of = |(block, at): (u64, usize), named: Named, (dir, hash): (Ino, u64)| ExchangedName {
        block: U64::new(block),
        at: U32::new(at as u32),
        file_type: named.file_type,
        reserved: [0; 3],
        ino: U64::new(named.ino.0),
        dir: U64::new(dir.0),
        hash: U64::new(hash),
    };
    let after = of((block, at), new, (dir, hash));
    let may_show = entry.is_in_place(state, judge, &after)
        && judge.is_at_home(new, dir, hash)?
        && judge.may_be_named(&after)?
        && judge.may_go(old, dir, change.tag)?;
    if !may_show {
        return Ok(None);
    }
    let before = if judge.is_moving(old)? {
        // By its other name, which is to last by now.
        let raw = judge.raw(old.ino)?;
        let Some((home, at)) = judge.home_of(old.ino, &raw)? else { return Ok(None) };
        let before = of((home.0, at), old, (Ino(raw.parent.get()), raw.name_hash.get()));
        if !lasts_there(state, judge, &before, old.ino) {
            return Ok(None);
        }
        before
    } else {
        // The second record is about the same entry. No type: nothing becomes of what it named.
        of((block, at), Named { ino: old.ino, file_type: 0 }, (dir, hash))
    };
    Ok(Some([before, after]))
}

/// The blocks that change with what a round notes: those of the entries, and of the inodes that they are to name.
pub(super) fn blocks_of(names: Option<&[ExchangedName; 2]>, geometry: &Geometry) -> BTreeSet<u64> {
    let inode = |name: &ExchangedName| Some(geometry.locate(Ino(name.ino.get()))?.0.0);
    names.into_iter().flatten().flat_map(|name| [Some(name.block.get()), inode(name)]).flatten().collect()
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
