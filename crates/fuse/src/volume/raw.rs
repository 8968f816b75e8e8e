//! A server without a kernel, for tests: requests are made here, and what the kernel would be told of its own accord can be read.

use super::VolumeService;
use crate::answer::Answer;
use crate::kind::Kind;
use crate::negotiate::Agreement;
use crate::options::Options;
use crate::request::{Operation, Request};
use crate::service::Service;
use crate::transport::Device;
use crate::wire::{EntryOut, InHeader, MknodIn, OutHeader};
use myriad_engine::{Errno, Fs};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use std::io::{PipeReader, Read};
use zerocopy::FromBytes;

/// As mknod(2) has it.
pub const REGULAR: u32 = 0o100_644;

/// A server for a volume, and what it tells the kernel unasked.
pub fn serve(fs: Fs, options: &Options, agreement: Agreement) -> (VolumeService, PipeReader) {
    let (read, write) = std::io::pipe().unwrap();
    let notifier = Device::from(OwnedFd::from(write)).notifier().unwrap();
    let kind = Kind::Fuse { because: "there is no kernel".into() };
    (VolumeService::new(fs, options, agreement, notifier, kind, "none"), read)
}

/// Sends a request of user 0; the answer's bytes.
pub fn send(service: &VolumeService, pid: u32, nodeid: u64, operation: Operation<'_>) -> Result<Vec<u8>, Errno> {
    receive(service, &Request { header: InHeader { nodeid, pid, ..InHeader::default() }, operation })
}

pub fn receive(service: &VolumeService, request: &Request<'_>) -> Result<Vec<u8>, Errno> {
    let mut out = vec![0; 128 << 10];
    let answer = service.answer(request, &mut out);
    if service.waits_for_answers() {
        service.answered(request.header.unique);
    }
    match answer {
        Answer::Bytes(len) => {
            out.truncate(len);
            Ok(out)
        }
        Answer::Error(errno) => Err(errno),
        Answer::Nothing => Ok(Vec::new()),
    }
}

/// An answer that names an inode.
pub fn entry(answer: &[u8]) -> EntryOut {
    EntryOut::read_from_prefix(answer).expect("the answer names an inode").0
}

/// Makes a file; its node.
pub fn make(service: &VolumeService, parent: u64, name: &str) -> Result<u64, Errno> {
    let args = MknodIn { mode: REGULAR, ..MknodIn::default() };
    send(service, 1, parent, Operation::MkNod { name: name.as_bytes(), args }).map(|made| entry(&made).nodeid)
}

/// Whether the kernel was told something by now.
pub fn has_notification(reader: &PipeReader) -> bool {
    poll(&mut [PollFd::new(reader, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

/// The next message that the kernel gets unasked: what it is, and its body.
pub fn notification(reader: &mut PipeReader) -> (i32, Vec<u8>) {
    // A minute after which none comes any more, on however slow a machine.
    let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
    let told = poll(&mut [PollFd::new(reader, PollFlags::IN)], Some(&minute));
    assert_eq!(told, Ok(1), "the kernel was told nothing");
    let mut header = [0; size_of::<OutHeader>()];
    reader.read_exact(&mut header).unwrap();
    let (header, _) = OutHeader::read_from_prefix(&header).unwrap();
    let mut body = vec![0; header.len as usize - size_of::<OutHeader>()];
    reader.read_exact(&mut body).unwrap();
    (header.error, body)
}
