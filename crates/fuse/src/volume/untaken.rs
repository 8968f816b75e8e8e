//! Answers that the kernel has not taken.
//!
//! An answer names inodes and openings, which are counted here and in the kernel: until FORGET and RELEASE give them back. If the kernel does not take
//! the answer, as for want of memory, it ends the request with EIO and counts nothing, and nothing would ever be given back: a file without a name
//! would stay until the mount ends. So what the answer would have told is taken back here. What the request has changed is doubtful to the kernel, as
//! after any request that was carried out and then failed (`doubts`).

use super::VolumeService;
use crate::request::{Operation, Request};
use crate::wire::{DirentHeader, EntryOut, OpenOut, padded};
use zerocopy::FromBytes;

impl VolumeService {
    /// The kernel does not know what an answer would have told it of.
    pub(super) fn take_back(&self, request: &Request<'_>, answer: &[u8]) {
        let opened = |id: u64, answer: &[u8]| {
            if let Ok((opened, _)) = OpenOut::read_from_prefix(answer) {
                self.writers.closed(id, opened.fh);
            }
        };
        match &request.operation {
            Operation::Open(_) => opened(request.header.nodeid, answer),
            Operation::Lookup { .. }
            | Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. } => self.forget_entry(answer),
            Operation::Create { .. } | Operation::TmpFile(_) => {
                if let Ok((entry, rest)) = EntryOut::read_from_prefix(answer) {
                    opened(entry.nodeid, rest);
                }
                self.forget_entry(answer);
            }
            Operation::ReadDir { plus: true, .. } => {
                let mut rest = answer;
                while let Some(size) = size_of_listed(rest) {
                    self.forget_entry(rest);
                    rest = rest.get(size..).unwrap_or_default();
                }
            }
            _ => {}
        }
    }

    /// Forgets the inode that is named at the front of `answer`, if there is one: of a missing name, and of one that is only listed, there is none.
    fn forget_entry(&self, answer: &[u8]) {
        if let Ok((entry, _)) = EntryOut::read_from_prefix(answer)
            && entry.nodeid != 0
        {
            self.forget(entry.nodeid, 1);
        }
    }
}

/// How long the first entry of a listing with attributes is.
fn size_of_listed(listing: &[u8]) -> Option<usize> {
    let (_, rest) = EntryOut::read_from_prefix(listing).ok()?;
    let (header, _) = DirentHeader::read_from_prefix(rest).ok()?;
    Some(size_of::<EntryOut>() + padded(size_of::<DirentHeader>() + header.namelen as usize))
}

#[cfg(test)]
mod tests {
    use super::super::raw::{entry, make, notification, send, serve};
    use super::*;
    use crate::negotiate::Agreement;
    use crate::options::Options;
    use crate::transport::{Device, Worker};
    use crate::wire::{CreateIn, InHeader, MkdirIn, MknodIn, NOTIFY_INVAL_ENTRY, OpenIn, ROOT, ReadIn, opcode};
    use myriad_engine::Fs;
    use rustix::fd::OwnedFd;
    use rustix::fs::OFlags;
    use std::io::Write;
    use zerocopy::IntoBytes;

    /// An answer that could not be sent had counted inodes and openings that the kernel never gave back: files without a name kept their space
    /// until the mount ended. And of a file that was made, the kernel went on saying that there was none.
    #[test]
    fn what_an_answer_told_is_taken_back_if_the_answer_is_not_taken() {
        let (service, mut reader) = serve(Fs::in_memory(16 << 20).unwrap(), &Options::default(), Agreement::default());
        let file = make(&service, ROOT, "file").unwrap();
        let args = MkdirIn { mode: 0o755, umask: 0 };
        let dir = entry(&send(&service, 1, ROOT, Operation::MkDir { name: b"dir", args }).unwrap()).nodeid;
        let (read, mut write) = std::io::pipe().unwrap();
        // Requests can be read there, and no answer be written.
        let device = Device::from(OwnedFd::from(read));
        let mut worker = Worker::new();
        let mut ask = |opcode, nodeid, parts: &[&[u8]]| {
            let body = parts.concat();
            let len = (size_of::<InHeader>() + body.len()) as u32;
            let header = InHeader { len, opcode, unique: 7, nodeid, ..InHeader::default() };
            write.write_all(&[header.as_bytes(), &body].concat()).unwrap();
            worker.serve_one(&device, &service).unwrap();
        };
        let flags = OFlags::RDWR.bits();
        let made = MknodIn { mode: 0o100_644, ..MknodIn::default() };
        let created = CreateIn { flags, mode: 0o100_644, ..CreateIn::default() };
        ask(opcode::LOOKUP, ROOT, &[b"file\0"]);
        ask(opcode::LOOKUP, ROOT, &[b"missing\0"]);
        ask(opcode::OPEN, file, &[OpenIn { flags, open_flags: 0 }.as_bytes()]);
        assert!(!service.writers.any(file));
        ask(opcode::MKNOD, ROOT, &[made.as_bytes(), b"made\0"]);
        ask(opcode::CREATE, ROOT, &[created.as_bytes(), b"created\0"]);
        ask(opcode::TMPFILE, ROOT, &[created.as_bytes(), b"\0"]);
        ask(opcode::READDIRPLUS, ROOT, &[ReadIn { size: 4096, ..ReadIn::default() }.as_bytes()]);
        assert_eq!(service.nodes.count(), 2, "only the first two are known");
        for node in [file, dir] {
            send(&service, 1, node, Operation::Forget { lookups: 1 }).unwrap();
        }
        assert_eq!(service.nodes.count(), 0, "and these once");
        let mut doubted = || loop {
            let (code, body) = notification(&mut reader);
            if code == NOTIFY_INVAL_ENTRY {
                return body;
            }
        };
        assert!(doubted().ends_with(b"made\0"));
        assert!(doubted().ends_with(b"created\0"));
    }
}
