//! Extended attributes, and ACLs among them.

use super::Ops;
use crate::attr_list::{self, ACCESS_ACL, CAPABILITIES, DEFAULT_ACL, XattrOp};
use crate::counters::Count;
use crate::error::{Errno, Error, Result};
use crate::inode;
use crate::namei::Guarded;
use crate::order::Txn;
use crate::perm::acl::Acl;
use crate::planted::{Bug, planted};
use crate::types::{Node, XattrMode};
use crate::volume::{FramesWanted, Share, transact, transact_giving};
use crate::xattr;
use myriad_format::Ino;
use zerocopy::little_endian::{I64, U16};

/// What becomes of an attribute.
#[derive(Clone, Copy)]
struct Change<'a> {
    /// `None`: it goes.
    value: Option<&'a [u8]>,
    mode: XattrMode,
    /// What the value means, of an ACL.
    acl: Option<&'a Acl>,
    /// It follows from what its maker was allowed.
    is_allowed: bool,
}

impl Change<'_> {
    const REMOVAL: Self = Self { value: None, mode: XattrMode::Set, acl: None, is_allowed: false };
}

impl Ops<'_> {
    pub fn get_xattr(&self, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        self.volume.counters.bump(Count::xattr_gets);
        let look = self.volume.look();
        let ino = Ino(node.ino);
        let _lock = self.volume.lock_shared(ino);
        let raw = inode::read_node(&look, node)?;
        attr_list::check_xattr(self.cred, &Guarded::new(&look, ino, &raw)?.subject(), name, XattrOp::Get)?;
        let list = xattr::read(&look, ino, &raw)?;
        Ok(attr_list::get(ino, &list, name)?.ok_or(Errno::NODATA)?.to_vec())
    }

    pub fn list_xattr(&self, node: Node) -> Result<Vec<Vec<u8>>> {
        let look = self.volume.look();
        let ino = Ino(node.ino);
        let _lock = self.volume.lock_shared(ino);
        let raw = inode::read_node(&look, node)?;
        let list = xattr::read(&look, ino, &raw)?;
        attr_list::names(self.caller, ino, &list)
    }

    pub fn set_xattr(&self, node: Node, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let is_acl = name == ACCESS_ACL || name == DEFAULT_ACL;
        if is_acl {
            let parsed = Acl::parse(value);
            if parsed.is_err() && Acl::is_readable(value) {
                let look = self.volume.look();
                let _lock = self.volume.lock_shared(Ino(node.ino));
                let raw = inode::read_node(&look, node)?;
                let guarded = Guarded::new(&look, Ino(node.ino), &raw)?;
                attr_list::check_xattr(self.cred, &guarded.subject(), name, XattrOp::Set)?;
            }
            return match parsed? {
                Some(acl) => {
                    let value = acl.to_xattr();
                    self.change_xattr(node, name, Change { value: Some(&value), acl: Some(&acl), ..Change::REMOVAL })
                }
                None => self.change_xattr(node, name, Change::REMOVAL),
            };
        }
        self.change_xattr(node, name, Change { value: Some(value), mode, ..Change::REMOVAL })
    }

    pub fn remove_xattr(&self, node: Node, name: &[u8]) -> Result<()> {
        self.change_xattr(node, name, Change::REMOVAL)
    }

    /// Takes a file's capabilities away, for whoever changes its content: nobody, user 0 not excepted, has his own content run with
    /// them (file_remove_privs). Also of a file that may only be appended to.
    pub fn drop_capabilities(&self, node: Node) -> Result<()> {
        let ino = Ino(node.ino);
        let has_some = {
            let look = self.volume.look();
            if !xattr::has_some(&inode::read_node(&look, node)?) {
                return Ok(());
            }
            let _lock = self.volume.lock_shared(ino);
            xattr::has_capabilities(&look, ino, &inode::read_node(&look, node)?)
        };
        if !has_some {
            return Ok(());
        }
        match self.change_xattr(node, CAPABILITIES, Change { is_allowed: true, ..Change::REMOVAL }) {
            // Another write has done it.
            Err(Error::Refused(Errno::NODATA)) => Ok(()),
            done => done,
        }
    }

    fn change_xattr(&self, node: Node, name: &[u8], new: Change<'_>) -> Result<()> {
        let Change { value, mode, acl, is_allowed } = new;
        self.volume.counters.bump(Count::xattr_sets);
        let ino = Ino(node.ino);
        let is_acl = name == ACCESS_ACL || name == DEFAULT_ACL;
        // The new list is at most the old one and this value; a transaction reserves for both.
        let room = {
            let look = self.volume.look();
            let _lock = self.volume.lock_shared(ino);
            let raw = inode::read_node(&look, node)?;
            let added = value.map_or(0, |value| value.len() + name.len() + xattr::ENTRY_ROOM);
            xattr::blocks_for(self.volume.cache.block_size(), xattr::read(&look, ino, &raw)?.len() + added)
        };
        let share = if value.is_some() { Share::Common } else { Share::Last };
        let change = |txn: &mut Txn<'_>, wanted: &FramesWanted| {
            let _lock = self.volume.lock_exclusive(ino);
            let mut raw = inode::read_node(&txn.look, node)?;
            let guarded = Guarded::new(&txn.look, ino, &raw)?;
            let op = if value.is_some() { XattrOp::Set } else { XattrOp::Remove };
            if !is_allowed {
                attr_list::check_xattr(self.cred, &guarded.subject(), name, op)?;
            }
            let mut list = xattr::read(&txn.look, ino, &raw)?;
            let mut value = value.map(<[u8]>::to_vec);
            if let (Some(acl), true) = (acl, name == ACCESS_ACL) {
                let (mode, stored) = crate::perm::acl::mode_from_acl(self.caller, &guarded.subject(), acl);
                raw.mode = U16::new(mode);
                value = stored;
            }
            let removed = match &value {
                Some(value) => attr_list::set(ino, &mut list, name, value, mode),
                None => attr_list::remove(ino, &mut list, name),
            };
            match removed {
                // Removing an ACL that is not there succeeds; where none can be, it does not even touch the inode.
                Err(Error::Refused(Errno::NODATA)) if name == DEFAULT_ACL && !raw.is_dir() => return Ok(()),
                Err(Error::Refused(Errno::NODATA)) if is_acl => {}
                other => other?,
            }
            // Others may have added attributes since the room was measured.
            let need = xattr::blocks_for(self.volume.cache.block_size(), list.len());
            if need > room && !txn.try_reserve(need - room, share) {
                return Err(Errno::NOSPC.into());
            }
            txn.ask_frames(need as usize, wanted)?;
            xattr::write(txn, ino, &mut raw, &list)?;
            raw.ctime = I64::new(self.volume.now());
            inode::write(txn, ino, &raw)?;
            if is_acl && raw.is_dir() {
                self.paths_changed();
            }
            Ok(())
        };
        self.volume.with_frames(|wanted| match value {
            Some(_) => transact(self.volume, room, |txn| change(txn, wanted)),
            None => transact_giving(self.volume, room, |txn| change(txn, wanted)),
        })?;
        if planted(Bug::SyncXattrsForgotten) {
            return Ok(());
        }
        self.volume.before_return()
    }
}
