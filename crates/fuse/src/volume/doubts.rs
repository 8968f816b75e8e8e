//! Names and attributes of which the kernel cannot know what became of them.
//!
//! A request that changes something may be done in memory and fail afterwards: the host has no room to make it durable (with `sync`, with
//! `dirsync`, or on a volume of order `sync`), a device fails, or the blocks of a removed file are damaged. Its caller is told so. But an
//! error says to the kernel that nothing has changed. It would go on to say that a file is there which was removed, that one is missing
//! which was made, or that a file has the mode that it had, for as long as it was allowed to remember: a year. So it is told to ask for
//! these names and attributes again.
//!
//! ```text
//! caller    mknod(2): the directory is locked ..                  .. ENOSPC, unlocked
//! server                      made; not durable; answers ENOSPC
//! thread                      has the kernel drop the name: waits for the lock ..    .. dropped
//! ```
//!
//! The kernel drops a name with its directory locked, as the request has it until it is answered. So a thread of its own waits for
//! that. There is one for each such request; they are rare, and none lives long. Attributes are dropped without a lock, by the thread
//! that answers.

use super::VolumeService;
use crate::request::{Operation, Request};
use myriad_engine::Errno;
use std::sync::Arc;

impl VolumeService {
    /// A request was answered with an error.
    pub(super) fn doubt(&self, request: &Request<'_>, error: Errno) {
        let may_be_done = match error {
            Errno::NOSPC => self.fs.is_host_full(),
            Errno::IO | Errno::UCLEAN => true,
            // A refusal comes before the first change.
            _ => false,
        };
        if !may_be_done {
            return;
        }
        for id in changed_by(request).into_iter().flatten() {
            self.notifier.attributes_changed(id);
        }
        let names = names_of(request);
        if names.is_empty() {
            return;
        }
        let notifier = Arc::clone(&self.notifier);
        let tell = move || names.iter().for_each(|(parent, name)| notifier.name_changed(*parent, name));
        // Without a thread the kernel goes on as it is: its caller was told of the error.
        let _ = std::thread::Builder::new().name("myriad-doubts".into()).spawn(tell);
    }
}

/// The nodes whose attributes a request changes.
fn changed_by(request: &Request<'_>) -> [Option<u64>; 2] {
    let node = Some(request.header.nodeid);
    match &request.operation {
        Operation::Rename { new_parent, .. } => [node, Some(*new_parent)],
        Operation::Link { node: linked, .. } => [node, Some(*linked)],
        Operation::CopyFileRange { args, .. } => [Some(args.nodeid_out), None],
        Operation::SetAttr(_)
        | Operation::SetXattr { .. }
        | Operation::RemoveXattr { .. }
        | Operation::Fallocate(_)
        | Operation::Ioctl { .. } => [node, None],
        _ if names_of(request).is_empty() => [None; 2],
        _ => [node, None],
    }
}

/// The names that a request changes, with the nodes of their directories.
fn names_of(request: &Request<'_>) -> Vec<(u64, Vec<u8>)> {
    let parent = request.header.nodeid;
    match &request.operation {
        Operation::MkNod { name, .. }
        | Operation::MkDir { name, .. }
        | Operation::Symlink { name, .. }
        | Operation::Link { name, .. }
        | Operation::Create { name, .. }
        | Operation::Unlink { name }
        | Operation::RmDir { name } => vec![(parent, name.to_vec())],
        Operation::Rename { name, new_parent, new_name, .. } => {
            vec![(parent, name.to_vec()), (*new_parent, new_name.to_vec())]
        }
        _ => Vec::new(),
    }
}
