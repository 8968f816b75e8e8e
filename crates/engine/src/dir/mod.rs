//! Directories: names, and the numbers of the inodes that they name.
//!
//! This is the door of a seam. A volume has one kind of directory (`Volume::choices`). Each kind is a folder here, and has the functions
//! below under the same names:
//!
//! | folder | a directory of it is |
//! |---|---|
//! | `indexed` | entries that never move, and an index from the hash of a name to its entry and inode |
//! | `linear` | entries one after the other in units of 512 bytes, searched from the front |
//! | `slots` | slots of one size in extents of eight blocks, which count their names: empty ones are passed over |
//! | `btree` | entries in the leaves of a B+ tree, in the order of the hash of their names |
//!
//! `dirhash` keeps hashes in memory over directories of the first two kinds. Where a directory has one, it answers instead of a search.
//!
//! What a caller may rely on, with every kind:
//!
//! 1. An operation looks at a directory once. [`search`] finds the inode of a name, and remembers where it saw room; [`prepare`]
//!    refuses, before the operation's first change, what cannot be done; [`insert`] then looks for nothing again.
//! 2. A [`Spot`] is the place of an entry, and only the kind itself reads it. It dies when an entry is inserted into its directory or
//!    removed from it; an operation that still needs it then gets it with [`again`]. (Entries of some kinds never move. Callers
//!    do not know that.)
//! 3. [`is_empty`] says whether a directory is empty. Its size does not: some kinds keep the space of entries that are gone.
//! 4. A cookie of [`list`] carries no state. An entry that is there throughout a listing is listed exactly once, whatever
//!    else comes and goes, and any entry can be the one to go on from. Cookies are below 2^62.
//! 5. The identity of an inode is its directory and the hash of its name. The position that goes with it is a hint, and 0
//!    where entries move.
//!
//! Callers hold the directory's inode lock: shared to look, exclusive to change. They pass a copy of its inode and write it back.

mod btree;
pub(crate) mod dirhash;
pub(crate) mod hints;
mod indexed;
mod linear;
mod place;
mod slots;
#[cfg(test)]
mod tests;

use crate::edit::{BlockStore, NewBlock, NodeSource};
use crate::error::{Error, Result};
use crate::inode;
use crate::map::{self, FILE_END, Mapping};
use crate::order::{Look, Txn};
use crate::placement;
use crate::planted::{Bug, planted};
use crate::types::FileType;
use crate::volume::Volume;
use myriad_format::choices::Directory;
use myriad_format::fork::Fork;
use myriad_format::inode::{RawInode, flag};
use myriad_format::{FileBlock, FsBlock, Ino};
use zerocopy::little_endian::U32;

/// Calls a function of the folder that has the volume's kind of directory.
macro_rules! of_kind {
    ($volume:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $volume.choices.directory {
            Directory::Indexed => indexed::$function($($argument),*),
            Directory::Linear => linear::$function($($argument),*),
            Directory::Slots => slots::$function($($argument),*),
            Directory::Tree => btree::$function($($argument),*),
            other => not_built(other),
        }
    };
}

fn not_built(kind: Directory) -> ! {
    unreachable!("a volume with directory={} is refused when it is opened", kind.name())
}

/// Where an operation takes the blocks of one inode from, and how many it has taken (negative: given back).
pub(crate) struct BlockSource {
    /// Blocks come from near here.
    pub goal: FsBlock,
    pub taken: i64,
}

impl BlockSource {
    pub fn new(goal: FsBlock) -> Self {
        Self { goal, taken: 0 }
    }

    pub fn allocate(&mut self, txn: &mut Txn<'_>) -> Result<FsBlock> {
        let volume = txn.volume();
        let (block, _) = volume.allocate_extent(txn, self.goal, 1, 1)?;
        self.taken += 1;
        Ok(block)
    }

    pub fn free(&mut self, txn: &mut Txn<'_>, block: FsBlock) {
        txn.forget(block);
        txn.block_free(block, 1);
        self.taken -= 1;
    }

    /// Adds what was taken to the inode's count of blocks.
    pub fn settle(self, raw: &mut RawInode) {
        raw.add_blocks(self.taken);
    }
}

/// Nodes of the extent tree, which `map::extents` counts itself.
impl NodeSource<Txn<'_>> for BlockSource {
    fn allocate(&mut self, store: &mut Txn<'_>) -> Result<NewBlock> {
        let volume = store.volume();
        Ok(NewBlock::free(volume.allocate_extent(store, self.goal, 1, 1)?.0))
    }

    fn free(&mut self, store: &mut Txn<'_>, block: FsBlock) -> Result<()> {
        store.block_free(block, 1);
        Ok(())
    }
}

/// A name's hash: all 64 bits, and the 32 that directories store.
#[derive(Clone, Copy)]
pub(crate) struct Name<'a> {
    pub bytes: &'a [u8],
    pub hash: u64,
}

impl Name<'_> {
    pub fn tag(&self) -> u32 {
        self.hash as u32
    }
}

/// Where an entry lies, until an entry is inserted into its directory or removed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    at: u64,
    /// Kind `indexed`: the leaf of the index that has the entry's record, where the search came by it; else [`FsBlock::NONE`].
    leaf: FsBlock,
}

impl Spot {
    fn new(at: u64) -> Self {
        Self { at, leaf: FsBlock::NONE }
    }
}

/// A name found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    pub ino: Ino,
    pub spot: Spot,
    /// For the identity of an inode that gets this name.
    pub position: u32,
}

/// A name found to be read, with its inode where the search has read that anyway.
pub(crate) struct Found {
    pub ino: Ino,
    pub raw: Option<RawInode>,
}

/// Whether a name that a search did not find cannot be added yet: its entry has gone, but the device may still show it, and the order
/// of writes wants that to end first. A search notes entries that have gone; whether one still has to be there the order knows.
pub(crate) fn is_held(look: &Look<'_>, dir: Ino, name: Name<'_>, search: &Search) -> Result<bool> {
    Ok(matches!(&search.seen, Seen::Linear(seen) if seen.is_held) && look.holds_name(dir, name.tag())?)
}

/// What a search for a change found out.
pub(crate) struct Search {
    pub hit: Option<Hit>,
    /// What another name of this directory with the same 64-bit hash names.
    twin: Option<Ino>,
    seen: Seen,
}

/// What a search that did not find its name saw on the way of room for it.
enum Seen {
    Indexed(indexed::Seen),
    Linear(linear::Seen),
    Slots(slots::Seen),
    Tree(btree::Seen),
}

/// Where a new name goes. It dies with the directory's next change.
pub(crate) struct Room {
    twin: Option<Ino>,
    place: Place,
}

enum Place {
    Indexed(indexed::Room),
    Linear(linear::Room),
    Slots(slots::Room),
    Tree(btree::Room),
}

/// What a new entry says.
#[derive(Clone, Copy)]
pub(crate) struct NewEntry<'a> {
    pub name: Name<'a>,
    pub ino: Ino,
    pub file_type: u8,
}

/// One entry of a listing.
pub(crate) struct Listed<'a> {
    pub name: &'a [u8],
    pub ino: Ino,
    pub file_type: FileType,
    /// Where to go on after this entry.
    pub cookie: u64,
}

/// Where to look for what a name may name, without a lock: for batches, which load many of these before they look.
#[derive(Clone, Copy)]
pub(crate) struct Probe {
    pub block: FsBlock,
    /// In the block.
    pub offset: usize,
}

/// Looks a name up, to read.
pub(crate) fn lookup(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Option<Found>> {
    of_kind!(look.volume, lookup(look, dir, raw, name))
}

/// Looks a name up, to change: exact, by the entry itself.
#[inline]
pub(crate) fn search(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Search> {
    of_kind!(look.volume, search(look, dir, raw, name))
}

/// Where the name of an inode lies that its identity says: the unit of its directory. An entry never leaves its unit, so one look there tells later whether
/// the inode still has the name. Asked of volumes that soft updates are for, whose directories are linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnName {
    unit: u64,
}

impl OwnName {
    /// That of the inode that gets the name of an entry.
    pub fn of_hit(hit: &Hit) -> Self {
        Self { unit: linear::unit_of_spot(hit.spot) }
    }

    /// That of the inode whose new name goes there.
    pub fn of_room(room: &Room) -> Self {
        match &room.place {
            Place::Linear(room) => Self { unit: room.unit() },
            _ => unreachable!("soft updates need linear directories"),
        }
    }
}

/// The name of an inode that its identity says; `None` if it has no such name. The directory of that is locked.
pub(crate) fn own_name(look: &Look<'_>, ino: Ino, raw: &RawInode) -> Result<Option<OwnName>> {
    assert_eq!(look.volume.choices.directory, Directory::Linear, "soft updates need linear directories");
    let hash = raw.name_hash.get();
    let unit = in_own_directory(look, raw, |dir, parent| linear::unit_of_name(look, dir, parent, hash, ino))?;
    Ok(unit.map(|unit| OwnName { unit }))
}

/// Block and byte of the entry of that name, if it lies where it did. Reads one block of the directory.
pub(crate) fn place_of(look: &Look<'_>, ino: Ino, raw: &RawInode, name: OwnName) -> Result<Option<(FsBlock, usize)>> {
    let (hash, units) = (raw.name_hash.get(), name.unit..name.unit + 1);
    in_own_directory(look, raw, |dir, parent| linear::place_of(look, dir, parent, hash, ino, units))
}

/// The same wherever it lies. As [`own_name`], but asks no hash in memory: a hash that is made meanwhile asks what soft updates hold, and while a round is
/// judged they cannot answer.
pub(crate) fn place_of_own_name(look: &Look<'_>, ino: Ino, raw: &RawInode) -> Result<Option<(FsBlock, usize)>> {
    let hash = raw.name_hash.get();
    in_own_directory(look, raw, |dir, parent| linear::place_of(look, dir, parent, hash, ino, 0..u64::MAX))
}

/// Looks in the directory that an identity says. It may be no directory any more, or damaged: then nothing is there.
fn in_own_directory<T>(
    look: &Look<'_>,
    raw: &RawInode,
    f: impl FnOnce(Ino, &RawInode) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let dir = Ino(raw.parent.get());
    let found = inode::read(look, dir).and_then(|parent| if parent.is_dir() { f(dir, &parent) } else { Ok(None) });
    match found {
        Err(Error::Corrupt(_) | Error::Io(_)) => Ok(None),
        found => found,
    }
}

/// Where a name that a search did not find goes; refuses it if there is no room. To be asked before an operation's first change.
#[inline]
pub(crate) fn prepare(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>, search: Search) -> Result<Room> {
    assert!(search.hit.is_none(), "a name is inserted once");
    let Search { twin, seen, .. } = search;
    Ok(Room { twin, place: of_kind!(look.volume, prepare(look, dir, raw, name, seen))? })
}

/// Adds an entry where [`prepare`] found room, of which nothing has changed since; returns its position, for the identity of
/// what it names. Changes `raw`. Refuses nothing.
#[inline]
pub(crate) fn insert(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, entry: NewEntry<'_>, room: &Room) -> Result<u32> {
    // First: whoever sees the entry without a lock, and asks again, must not be told that it is not there.
    if !planted(Bug::AbsentStays) {
        txn.volume().names.appears(dir, entry.name.hash);
    }
    if let Some(twin) = room.twin {
        // From here on names of this directory are not remembered by their hashes, and this one was.
        raw.flags = U32::new(raw.flags.get() | flag::HASH_TWINS);
        txn.volume().names.forget(dir, entry.name.hash, twin);
    }
    of_kind!(txn.volume(), insert(txn, dir, raw, &entry, &room.place))
}

/// Drops what a directory has no use for, once a name was added where there was this room. Not to be called in a rename, as
/// FFS never does: between its new name and its old one it relies on places that it has found. A removal from a `linear` directory with
/// a hash in memory drops empty units at the end as well, also in a rename. There it comes last, when the new name is in.
#[inline]
pub(crate) fn trim(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, room: &Room) -> Result<()> {
    of_kind!(txn.volume(), trim(txn, dir, raw, &room.place))
}

/// The entry of a hit once more, after entries were inserted into the directory or removed from it. It is there still.
pub(crate) fn again(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>, hit: Hit) -> Result<Hit> {
    of_kind!(look.volume, again(look, dir, raw, name, hit))
}

/// Removes an entry. Changes `raw`. If the directory is empty then and has many blocks, it may be put on the list of orphans,
/// and the caller has them given up after the transaction ([`has_idle_blocks`]).
pub(crate) fn remove(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, name: Name<'_>, hit: Hit) -> Result<()> {
    of_kind!(txn.volume(), remove(txn, dir, raw, name, hit))
}

/// Reads what [`remove`] has to read, and refuses a directory from which the entry cannot be removed: to be asked by an operation that changes
/// something before. Others learn it from [`remove`].
pub(crate) fn read_ahead_of_remove(look: &Look<'_>, dir: Ino, raw: &RawInode, hit: Hit) -> Result<()> {
    of_kind!(look.volume, read_ahead_of_remove(look, dir, raw, hit))
}

/// Makes an entry name another inode. It stays where it is.
pub(crate) fn replace(
    txn: &mut Txn<'_>,
    dir: Ino,
    raw: &RawInode,
    name: Name<'_>,
    hit: Hit,
    ino: Ino,
    file_type: u8,
) -> Result<()> {
    of_kind!(txn.volume(), replace(txn, dir, raw, name, hit, ino, file_type))
}

/// Whether a directory has no entries.
pub(crate) fn is_empty(look: &Look<'_>, dir: Ino, raw: &RawInode) -> Result<bool> {
    of_kind!(look.volume, is_empty(look, dir, raw))
}

/// Whether the blocks of a directory are too many to be given up in one transaction.
pub(crate) fn is_large(volume: &Volume, raw: &RawInode) -> bool {
    of_kind!(volume, is_large(raw))
}

/// Whether a directory has blocks that it is to give up, for its last entry has gone.
pub(crate) fn has_idle_blocks(volume: &Volume, raw: &RawInode) -> bool {
    of_kind!(volume, has_idle_blocks(raw))
}

/// Has a directory whose last entry has gone, and which has a name, give up as many blocks as are good for one transaction;
/// or, if it got entries meanwhile, put what it kept in order, from `listed` on, which begins with 0. True when nothing is
/// left to do. Changes `raw`.
pub(crate) fn give_up_emptied(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, listed: &mut u32) -> Result<bool> {
    txn.volume().dir_hashes.forget(dir);
    of_kind!(txn.volume(), give_up_emptied(txn, dir, raw, listed))
}

/// Has a directory that goes itself, and has no entries, give up as many blocks as are good for one transaction. True, with nothing
/// changed, when [`clear`] may do the rest, of which all is read that it reads. Changes `raw`. What it refuses, it refuses before its first change.
pub(crate) fn give_up_part(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode) -> Result<bool> {
    txn.volume().dir_hashes.forget(dir);
    let is_rest = of_kind!(txn.volume(), give_up_part(txn, dir, raw))?;
    if is_rest {
        read_ahead_of_clear(&txn.look, dir, raw)?;
    }
    Ok(is_rest)
}

/// Reads what [`clear`] has to read: to be asked by whoever changes something before.
pub(crate) fn read_ahead_of_clear(look: &Look<'_>, dir: Ino, raw: &RawInode) -> Result<()> {
    if !is_in_blocks(raw) {
        return Ok(());
    }
    if look.volume.choices.directory == Directory::Indexed {
        indexed::read_index(look, dir, raw)?;
    }
    map::read_ahead(&mut &*look, raw, dir, FileBlock(0))
}

/// Frees all blocks of a directory without entries; it is as new. What it refuses, it refuses before its first change.
pub(crate) fn clear(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode) -> Result<()> {
    txn.volume().dir_hashes.forget(dir);
    read_ahead_of_clear(&txn.look, dir, raw)?;
    of_kind!(txn.volume(), clear(txn, dir, raw))?;
    Fork::None.encode(raw);
    raw.flags = U32::new(raw.flags.get() & !flag::HASH_TWINS);
    Ok(())
}

/// Calls `f` with the entries from `cookie` on, in the order of their cookies, until it returns false or some blocks are
/// through: then the cookie to go on from, in another look.
pub(crate) fn list(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    cookie: u64,
    f: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<Option<u64>> {
    of_kind!(look.volume, list(look, dir, raw, cookie, f))
}

/// Where [`guess`] will look for a name, if there is a place where a guess costs less than a lookup.
pub(crate) fn probe(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Option<Probe>> {
    of_kind!(look.volume, probe(look, dir, raw, name))
}

/// What a name may name, which the inode's identity confirms.
pub(crate) fn guess(look: &Look<'_>, dir: Ino, probe: Probe, name: Name<'_>) -> Result<Option<Ino>> {
    of_kind!(look.volume, guess(look, dir, probe, name))
}

/// Adds to `blocks` where a listing will begin: up to `max` blocks that lie in one run.
pub(crate) fn first_blocks(look: &Look<'_>, dir: Ino, raw: &RawInode, max: u64, blocks: &mut Vec<FsBlock>) {
    if is_in_blocks(raw)
        && let Ok(Mapping::Mapped(extent)) = map::lookup(&mut &*look, raw, dir, FileBlock(0))
    {
        blocks.extend((0..max.min(u64::from(extent.length))).map(|block| extent.start.offset_by(block)));
    }
}

/// Whether a directory has blocks, whatever maps them.
fn is_in_blocks(raw: &RawInode) -> bool {
    raw.is_dir_in_blocks()
}

/// Whether a directory may have so many blocks: no more than its volume. Pointers that meet in a few blocks could make a search, or a listing, of ages.
fn may_have_blocks(look: &Look<'_>, blocks: u64) -> bool {
    blocks <= look.volume.geometry.block_count
}

/// Unmaps and frees the blocks of a directory from a file block on. What it refuses, it refuses before its first change.
fn free_blocks(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    dir: Ino,
    raw: &mut RawInode,
    from: FileBlock,
) -> Result<()> {
    map::read_ahead(txn, raw, dir, from)?;
    txn.volume().last_blocks.forget(dir);
    let mut extents = Vec::new();
    map::remove_all(txn, source, raw, dir, from..FILE_END, &mut extents)?;
    for (start, length) in extents {
        for i in 0..u64::from(length) {
            txn.forget(start.offset_by(i));
        }
        txn.block_free(start, length);
    }
    Ok(())
}

/// As [`free_blocks`], by whoever takes no blocks besides.
fn cut(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, from: FileBlock) -> Result<()> {
    let mut source = BlockSource::new(placement::beside(txn.volume(), dir));
    free_blocks(txn, &mut source, dir, raw, from)?;
    source.settle(raw);
    Ok(())
}

/// Whether a name may be shown: one like `../x` would lead whoever copies a tree out of it.
fn is_shown(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|&byte| byte == b'/' || byte == 0)
}

/// The type that an entry says its inode has.
fn type_of(code: u8, bad: impl FnOnce(u64) -> Error) -> Result<FileType> {
    FileType::from_code(code).ok_or_else(|| bad(u64::from(code)))
}
