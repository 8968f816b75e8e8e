//! Single requests whose answers were wrong, each with its story.

use super::raw::{entry, make, notification, send, serve};
use crate::negotiate::Agreement;
use crate::options::Options;
use crate::request::Operation;
use crate::wire::{
    NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NotifyInvalEntryOut, ROOT, ReadIn, SetAttrIn, WRITE_CACHE, WriteIn,
    WriteOut, fattr,
};
use myriad_device::{FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_engine::schedule::{self, Turns};
use myriad_engine::{Errno, Fs, MkfsOptions, MountOptions};
use std::io::Read;
use std::sync::Arc;
use zerocopy::FromBytes;

fn write_in(offset: u64, data: &[u8], write_flags: u32) -> WriteIn {
    WriteIn { offset, size: data.len() as u32, write_flags, ..WriteIn::default() }
}

/// On a volume that became full half-way through a WRITE, the server answered with the number of bytes that had found room. A program
/// that waits for its write sees that. But the kernel, when it sends the pages that a program has stored to or written with
/// `writeback`, looks at the error alone: it took all pages for written and dropped them. Neither msync(2) nor fsync(2) said so, and
/// the rest of the file read as zeros.
#[test]
fn what_the_kernel_sends_of_its_cache_is_written_whole_or_refused() {
    const PIECE: usize = 64 << 10;
    let (service, _reader) = serve(Fs::in_memory(32 << 20).unwrap(), &Options::default(), Agreement::default());
    let (filler, mapped) = (make(&service, ROOT, "filler").unwrap(), make(&service, ROOT, "mapped").unwrap());
    let fill = |offset, len| {
        let data = &[1; PIECE][..len];
        let args = write_in(offset, data, 0);
        send(&service, 1, filler, Operation::Write { args, data })
            .map(|answer| WriteOut::read_from_prefix(&answer).unwrap().0.size)
    };
    let mut size = 0;
    while let Ok(written) = fill(size, PIECE) {
        size += u64::from(written);
    }
    // Room for some of what comes next.
    let args = SetAttrIn { valid: fattr::SIZE | fattr::FH, size: size - 10 * 4096, ..SetAttrIn::default() };
    send(&service, 1, filler, Operation::SetAttr(args)).unwrap();
    service.fs.sync().unwrap();
    let data = vec![2; 2 * PIECE];
    let stored = |write_flags| {
        let args = write_in(0, &data, write_flags);
        let answer = send(&service, 1, mapped, Operation::Write { args, data: &data })?;
        Ok::<_, Errno>(WriteOut::read_from_prefix(&answer).unwrap().0.size as usize)
    };
    assert_eq!(stored(WRITE_CACHE), Err(Errno::NOSPC));
    let part = stored(0).unwrap();
    assert!(part > 0 && part < data.len(), "who waits is told how much was written: {part}");
}

/// With the host full, a name was made and could not be made durable: MKNOD found no space, was asked again, and answered that the name
/// was there already; an UNLINK, that it was not. And in each case the kernel went on with what it had known before, for a year: that the
/// file which had been made was missing, that the one which had been removed was there, and of one whose mode had changed, the old mode.
#[test]
fn a_change_that_the_host_has_no_room_for_is_told_as_that() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(32 << 20)));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let options = MountOptions { background: false, commit_interval_ms: 0, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    let options = Options { kernel_options: vec!["sync".into()], ..Options::default() };
    let (service, mut reader) = serve(fs, &options, Agreement::default());
    make(&service, ROOT, "old").unwrap();
    let mut doubted = |name: &str| {
        // The attributes of the directory as well, before that or meanwhile.
        let (code, body) = loop {
            let told = notification(&mut reader);
            if told.0 != NOTIFY_INVAL_INODE {
                break told;
            }
        };
        let (head, rest) = NotifyInvalEntryOut::read_from_prefix(&body).unwrap();
        assert_eq!((code, head.parent, head.namelen as usize), (NOTIFY_INVAL_ENTRY, ROOT, name.len()));
        assert_eq!(rest, [name.as_bytes(), &[0]].concat());
    };
    let is_there = |name: &str| {
        let found = send(&service, 1, ROOT, Operation::Lookup { name: name.as_bytes() }).unwrap();
        entry(&found).nodeid != 0
    };
    device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
    assert_eq!(make(&service, ROOT, "new"), Err(Errno::NOSPC));
    doubted("new");
    assert!(is_there("new"));
    assert_eq!(send(&service, 1, ROOT, Operation::Unlink { name: b"old" }), Err(Errno::NOSPC));
    doubted("old");
    assert!(!is_there("old"));
    let rename = Operation::Rename { name: b"new", new_parent: ROOT, new_name: b"newer", flags: 0 };
    assert_eq!(send(&service, 1, ROOT, rename), Err(Errno::NOSPC));
    doubted("new");
    doubted("newer");
    let node = entry(&send(&service, 1, ROOT, Operation::Lookup { name: b"newer" }).unwrap()).nodeid;
    let args = SetAttrIn { valid: fattr::MODE, mode: 0o100_600, ..SetAttrIn::default() };
    assert_eq!(send(&service, 1, node, Operation::SetAttr(args)), Err(Errno::NOSPC));
    let (code, body) = notification(&mut reader);
    assert_eq!((code, &body[..8]), (NOTIFY_INVAL_INODE, &node.to_le_bytes()[..]));
    device.clear();
    // A refusal changes nothing.
    assert_eq!(make(&service, ROOT, "newer"), Err(Errno::EXIST));
    send(&service, 1, ROOT, Operation::FsyncDir).unwrap();
    drop(service);
    assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0, "nothing else was doubted");
}

/// A program opened a file by a handle (open_by_handle_at(2)), of which the kernel knew nothing any more. Its LOOKUP had found the file and
/// not counted it yet when another program looked the file up, removed its last name, and the kernel forgot it: it was freed. But
/// a file of many extents is freed piece by piece, so the first LOOKUP still found the inode, and told the kernel of it as of a living
/// file. Whoever read it by that got ESTALE.
#[test]
fn a_file_that_is_being_freed_is_not_told_of() {
    let mut told = 0;
    for seed in 0..300 {
        let device = Arc::new(MemoryDevice::new(32 << 20));
        Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
        let options = MountOptions { background: false, commit_interval_ms: 0, ..MountOptions::default() };
        let fs = Fs::open_device(device, None, options).unwrap();
        let (service, _reader) = serve(fs, &Options::default(), Agreement::default());
        let file = make(&service, ROOT, "file").unwrap();
        for piece in 0..600 {
            let args = write_in(piece * 8192, b"x", 0);
            send(&service, 1, file, Operation::Write { args, data: b"x" }).unwrap();
        }
        send(&service, 1, file, Operation::Fsync).unwrap();
        send(&service, 1, file, Operation::Forget { lookups: 1 }).unwrap();
        let service = &service;
        schedule::run(
            Turns { seed, one_in: 3 },
            vec![
                Box::new(move || {
                    let Ok(found) = send(service, 1, file, Operation::Lookup { name: b"." }) else { return };
                    assert_eq!(entry(&found).nodeid, file);
                    let args = ReadIn { size: 1, ..ReadIn::default() };
                    assert_eq!(send(service, 1, file, Operation::Read(args)), Ok(b"x".to_vec()), "seed {seed}");
                }),
                Box::new(move || {
                    send(service, 2, ROOT, Operation::Lookup { name: b"file" }).unwrap();
                    send(service, 2, ROOT, Operation::Unlink { name: b"file" }).unwrap();
                    send(service, 2, file, Operation::Forget { lookups: 1 }).unwrap();
                }),
            ],
        );
        told += u64::from(service.nodes.count() > 0);
    }
    assert!(told > 0 || !cfg!(debug_assertions), "they never met");
}
