//! link: a further name for a file.

use super::leftovers::make_way;
use super::{Ops, touch_dir};
use crate::counters::Count;
use crate::dir::{self, NewEntry};
use crate::error::{Errno, Result};
use crate::inode;
use crate::namei::Guarded;
use crate::order::Txn;
use crate::perm;
use crate::planted::{Bug, planted};
use crate::types::{LinkRules, Node, Stat, check_name};
use crate::volume::{OPERATION_BLOCKS, Reason, transact};
use myriad_format::Ino;
use myriad_format::inode::{NLINK_MAX, RawInode};
use zerocopy::little_endian::{I64, U32, U64};

impl Ops<'_> {
    /// Gives `node` the name `name` in `to`, where `rules` allow it.
    pub fn link(&self, node: Node, to: Node, name: &[u8], rules: LinkRules) -> Result<Stat> {
        self.volume.counters.bump(Count::links);
        let name = self.name(name);
        let (ino, parent) = (Ino(node.ino), Ino(to.ino));
        make_way(self.volume, to, name)?;
        let attempt = |txn: &mut Txn<'_>, is_settled: bool| {
            let volume = self.volume;
            let _locks = volume.lock_two(parent, ino);
            let mut dir = RawInode::zeroed();
            let guarded = self.directory(&txn.look, to, &mut dir)?;
            check_name(name.bytes)?;
            let search = dir::search(&txn.look, parent, &dir, name)?;
            if search.hit.is_some() {
                return Err(Errno::EXIST.into());
            }
            let mut raw = inode::read_node(&txn.look, node)?;
            if rules.protected {
                perm::check_protected_link(self.cred, &Guarded::new(&txn.look, ino, &raw)?.subject())?;
            }
            perm::may_access(self.cred, &guarded.subject(), perm::WRITE | perm::EXECUTE)?;
            perm::check_link(&Guarded::new(&txn.look, ino, &raw)?.subject())?;
            if raw.is_dir() {
                return Err(Errno::PERM.into());
            }
            if raw.nlink.get() == 0 && !rules.unnamed {
                return Err(Errno::NOENT.into());
            }
            if inode::is_gone(volume, ino, &raw) {
                return Err(Errno::STALE.into());
            }
            if raw.nlink.get() >= NLINK_MAX {
                return Err(Errno::MLINK.into());
            }
            if !is_settled && dir::is_held(&txn.look, parent, name, &search)? {
                return Ok(None);
            }
            let file_type = (raw.mode.get() >> 12) as u8;
            let room = dir::prepare(&txn.look, parent, &dir, name, search)?;
            let position = dir::insert(txn, parent, &mut dir, NewEntry { name, ino, file_type }, &room)?;
            dir::trim(txn, parent, &mut dir, &room)?;
            if raw.nlink.get() == 0 {
                raw.parent = U64::new(parent.0);
                raw.name_hash = U64::new(name.hash);
                raw.entry_position = U32::new(position);
                volume.orphans.settle(ino, Reason::Nameless);
            } else if raw.parent.get() == parent.0 && [name.hash, !name.hash].contains(&raw.name_hash.get()) {
                // The name of its identity, which it had lost (`drop_link`), is given to it again, elsewhere in the directory.
                raw.name_hash = U64::new(name.hash);
                raw.entry_position = U32::new(position);
            }
            let now = volume.now();
            raw.nlink = U32::new(raw.nlink.get() + u32::from(!planted(Bug::WrongLinkCount)));
            raw.ctime = I64::new(now);
            inode::write(txn, ino, &raw)?;
            touch_dir(&mut dir, now);
            inode::write(txn, parent, &dir)?;
            Ok(Some(self.stat_of(&txn.look, ino, &raw)))
        };
        let linked = self
            .volume
            .once_settled(|is_settled| transact(self.volume, OPERATION_BLOCKS, |txn| attempt(txn, is_settled)))?;
        self.volume.before_return()?;
        Ok(linked)
    }
}
