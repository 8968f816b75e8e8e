//! Single requests whose answers were wrong, each with its story.

use super::VolumeService;
use super::raw::{entry, has_notification, make, notification, receive, send, serve};
use crate::negotiate::Agreement;
use crate::options::Options;
use crate::request::{Operation, Request};
use crate::transport::{Classic, Device, Transport};
use crate::wire::{
    CopyFileRangeIn, CopyFileRangeOut, CreateIn, FallocateIn, InHeader, MkdirIn, NOTIFY_INVAL_ENTRY,
    NOTIFY_INVAL_INODE, NotifyInvalEntryOut, NotifyInvalInodeOut, OpenIn, OpenOut, OutHeader, ROOT, ReadIn, SetAttrIn,
    SetXattrIn, WRITE_CACHE, WriteIn, WriteOut, fattr, opcode,
};
use myriad_device::{FaultDevice, FaultOp, FaultSpan, MemoryDevice, PausingDevice};
use myriad_engine::schedule::{self, Turns};
use myriad_engine::{Cred, Errno, Fs, MkfsOptions, MountOptions, Order};
use myriad_format::choices::Profile;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::io::{self, PipeReader, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

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

/// The next name that the kernel is told of, and the flags.
fn doubt(reader: &mut PipeReader) -> (String, u32) {
    let (code, body) = loop {
        let told = notification(reader);
        if told.0 != NOTIFY_INVAL_INODE {
            break told;
        }
    };
    let (head, rest) = NotifyInvalEntryOut::read_from_prefix(&body).unwrap();
    assert_eq!((code, head.parent, head.namelen as usize + 1), (NOTIFY_INVAL_ENTRY, ROOT, rest.len()));
    let (name, end) = rest.split_at(head.namelen as usize);
    assert_eq!(end, [0]);
    (String::from_utf8(name.to_vec()).unwrap(), head.flags)
}

/// A volume whose host can become full, with `sync`: what is told of names then.
fn serve_sync(agreement: Agreement) -> (Arc<FaultDevice<MemoryDevice>>, VolumeService, PipeReader) {
    serve_with(&["sync"], agreement)
}

/// The same with these words of mount(8).
fn serve_with(words: &[&str], agreement: Agreement) -> (Arc<FaultDevice<MemoryDevice>>, VolumeService, PipeReader) {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(32 << 20)));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let options = MountOptions { background: false, commit_interval_ms: 0, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    let kernel_options = words.iter().map(|&word| word.into()).collect();
    let options = Options { kernel_options, ..Options::default() };
    let (service, reader) = serve(fs, &options, agreement);
    (device, service, reader)
}

/// With the host full, a name was made and could not be made durable: MKNOD found no space, was asked again, and answered that the name
/// was there already; an UNLINK, that it was not. And in each case the kernel went on with what it had known before, for a year: that the
/// file which had been made was missing, that the one which had been removed was there, and of one whose mode had changed, the old mode.
#[test]
fn a_change_that_the_host_has_no_room_for_is_told_as_that() {
    let (device, service, mut reader) = serve_sync(Agreement::default());
    make(&service, ROOT, "old").unwrap();
    // The attributes of the directory as well, before that or meanwhile.
    let doubted = |reader: &mut PipeReader, name: &str| assert_eq!(doubt(reader).0, name);
    let is_there = |name: &str| {
        let found = send(&service, 1, ROOT, Operation::Lookup { name: name.as_bytes() }).unwrap();
        entry(&found).nodeid != 0
    };
    device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
    assert_eq!(make(&service, ROOT, "new"), Err(Errno::NOSPC));
    doubted(&mut reader, "new");
    assert!(is_there("new"));
    assert_eq!(send(&service, 1, ROOT, Operation::Unlink { name: b"old" }), Err(Errno::NOSPC));
    doubted(&mut reader, "old");
    assert!(!is_there("old"));
    let rename = Operation::Rename { name: b"new", new_parent: ROOT, new_name: b"newer", flags: 0 };
    assert_eq!(send(&service, 1, ROOT, rename), Err(Errno::NOSPC));
    doubted(&mut reader, "new");
    doubted(&mut reader, "newer");
    let node = entry(&send(&service, 1, ROOT, Operation::Lookup { name: b"newer" }).unwrap()).nodeid;
    let args = SetAttrIn { valid: fattr::MODE, mode: 0o100_600, ..SetAttrIn::default() };
    assert_eq!(send(&service, 1, node, Operation::SetAttr(args)), Err(Errno::NOSPC));
    let (code, body) = notification(&mut reader);
    assert_eq!((code, &body[..8]), (NOTIFY_INVAL_INODE, &node.to_le_bytes()[..]));
    // A file that has lost one of its two names: the kernel took it for one that has both.
    device.clear();
    send(&service, 1, ROOT, Operation::Link { node, name: b"second" }).unwrap();
    device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
    assert_eq!(send(&service, 1, ROOT, Operation::Unlink { name: b"second" }), Err(Errno::NOSPC));
    let (code, body) = notification(&mut reader);
    assert_eq!((code, &body[..8]), (NOTIFY_INVAL_INODE, &node.to_le_bytes()[..]));
    doubted(&mut reader, "second");
    device.clear();
    // A refusal changes nothing.
    assert_eq!(make(&service, ROOT, "newer"), Err(Errno::EXIST));
    send(&service, 1, ROOT, Operation::FsyncDir).unwrap();
    drop(service);
    assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0, "nothing else was doubted");
}

/// The kernel dropped a name in doubt, and what was mounted below it went with that: of a directory that was still there. Now it looks the
/// name up. Kernels that cannot are told nothing of a name that may be such a directory's.
#[test]
fn a_directory_that_is_there_is_not_dropped() {
    const EXPIRE: u32 = 1;
    for expires_names in [true, false] {
        let (device, service, mut reader) = serve_sync(Agreement { expires_names, ..Agreement::default() });
        let args = MkdirIn { mode: 0o755, ..MkdirIn::default() };
        let rename = |name, new_name| {
            let rename = Operation::Rename { name, new_parent: ROOT, new_name, flags: 0 };
            assert_eq!(send(&service, 1, ROOT, rename), Err(Errno::NOSPC));
        };
        send(&service, 1, ROOT, Operation::MkDir { name: b"dir", args }).unwrap();
        make(&service, ROOT, "file").unwrap();
        device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
        let looked_up = if expires_names { EXPIRE } else { 0 };
        rename(b"dir", b"moved");
        if expires_names {
            assert_eq!(doubt(&mut reader), ("dir".into(), EXPIRE));
            assert_eq!(doubt(&mut reader), ("moved".into(), EXPIRE));
        }
        rename(b"file", b"other");
        assert_eq!(doubt(&mut reader), ("file".into(), looked_up));
        assert_eq!(doubt(&mut reader), ("other".into(), looked_up));
        // The kernel gives back what had a name that is gone.
        assert_eq!(send(&service, 1, ROOT, Operation::RmDir { name: b"moved" }), Err(Errno::NOSPC));
        assert_eq!(doubt(&mut reader), ("moved".into(), 0));
        assert_eq!(send(&service, 1, ROOT, Operation::MkDir { name: b"dir", args }), Err(Errno::NOSPC));
        assert_eq!(doubt(&mut reader), ("dir".into(), looked_up));
        device.clear();
    }
}

/// With `sync` a file that was cut by being opened was not made durable: after a crash it had its old content again, of which the program
/// knew that it was gone.
#[test]
fn a_file_that_was_cut_by_its_opening_is_durable() {
    const FLAGS: u32 = OFlags::WRONLY.union(OFlags::TRUNC).bits();
    let (device, service, _reader) = serve_sync(Agreement { atomic_truncate: true, ..Agreement::default() });
    let file = make(&service, ROOT, "file").unwrap();
    let write = Operation::Write { args: write_in(0, b"content", 0), data: b"content" };
    send(&service, 1, file, write).unwrap();
    send(&service, 1, file, Operation::Fsync).unwrap();
    let open = || send(&service, 1, file, Operation::Open(OpenIn { flags: FLAGS, open_flags: 0 }));
    device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
    assert_eq!(open(), Err(Errno::NOSPC), "it cannot be made durable");
    device.clear();
    open().unwrap();
    assert!(device.struck() > 0);
}

/// A program opened a file with O_SYNC. What it wrote was durable when the call returned; what it copied there inside the kernel, or the space that it
/// asked for, was not.
#[test]
fn what_is_changed_through_a_synchronous_opening_is_durable() {
    let (device, service, _reader) = serve_with(&[], Agreement { atomic_truncate: true, ..Agreement::default() });
    let [source, target] = ["source", "target"].map(|name| {
        let node = make(&service, ROOT, name).unwrap();
        let write = Operation::Write { args: write_in(0, b"content", 0), data: b"content" };
        send(&service, 1, node, write).unwrap();
        send(&service, 1, node, Operation::Fsync).unwrap();
        node
    });
    for (flags, expected) in
        [(OFlags::empty(), Ok(())), (OFlags::DSYNC, Err(Errno::NOSPC)), (OFlags::SYNC, Err(Errno::NOSPC))]
    {
        let args = OpenIn { flags: (OFlags::RDWR | flags).bits(), open_flags: 0 };
        let opened = send(&service, 1, target, Operation::Open(args)).unwrap();
        let fh = OpenOut::read_from_prefix(&opened).unwrap().0.fh;
        device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
        let args = CopyFileRangeIn { nodeid_out: target, fh_out: fh, len: 7, ..CopyFileRangeIn::default() };
        let copied = send(&service, 1, source, Operation::CopyFileRange { args, wide: true });
        assert_eq!(copied.map(drop), expected, "a copy, {flags:?}");
        let args = FallocateIn { fh, length: 8192, ..FallocateIn::default() };
        assert_eq!(send(&service, 1, target, Operation::Fallocate(args)).map(drop), expected, "space, {flags:?}");
        device.clear();
    }
}

/// CREATE found a file that had appeared by another of its directory's names, and opened it for whoever asked, though
/// the engine was to check.
#[test]
fn a_file_that_is_there_already_is_opened_for_who_may() {
    let options = Options { default_permissions: false, ..Options::default() };
    let agreement = Agreement { atomic_truncate: true, ..Agreement::default() };
    let (service, _reader) = serve(Fs::in_memory(32 << 20).unwrap(), &options, agreement);
    let set = |node, mode, uid| {
        let args = SetAttrIn { valid: fattr::MODE | fattr::UID, mode, uid, ..SetAttrIn::default() };
        send(&service, 1, node, Operation::SetAttr(args)).unwrap();
    };
    let file = make(&service, ROOT, "file").unwrap();
    let write = Operation::Write { args: write_in(0, b"content", 0), data: b"content" };
    send(&service, 1, file, write).unwrap();
    set(file, 0o400, 1000);
    set(ROOT, 0o777, 0);
    let create = |uid, flags: OFlags| {
        let header = InHeader { nodeid: ROOT, uid, gid: uid, ..InHeader::default() };
        let flags = (flags | OFlags::CREATE).bits();
        let args = CreateIn { flags, mode: 0o100_644, ..CreateIn::default() };
        receive(&service, &Request { header, operation: Operation::Create { name: b"file", args } })
            .map(|made| entry(&made).attr.size)
    };
    assert_eq!(create(1001, OFlags::RDONLY), Err(Errno::ACCESS));
    assert_eq!(create(1000, OFlags::WRONLY | OFlags::TRUNC), Err(Errno::ACCESS));
    assert_eq!(create(1000, OFlags::RDONLY), Ok(7));
    assert_eq!(create(0, OFlags::WRONLY | OFlags::TRUNC), Ok(0));
}

/// Where the kernel opens by itself it does not say when an unnamed file is released, and each stayed counted as open for writing.
#[test]
fn openings_are_counted_where_their_ends_are_told() {
    for no_open in [true, false] {
        let agreement = Agreement { no_open, ..Agreement::default() };
        let (service, _reader) = serve(Fs::in_memory(32 << 20).unwrap(), &Options::default(), agreement);
        let args = CreateIn { flags: OFlags::RDWR.bits(), mode: 0o100_600, ..CreateIn::default() };
        let made = entry(&send(&service, 1, ROOT, Operation::TmpFile(args)).unwrap());
        assert_eq!(service.writers.any(made.nodeid), !no_open);
    }
}

/// The next bytes of a file that the kernel is told of: node, offset, length.
fn doubted_bytes(reader: &mut PipeReader) -> (u64, i64, i64) {
    loop {
        let (code, body) = notification(reader);
        let (told, _) = NotifyInvalInodeOut::read_from_prefix(&body).unwrap();
        assert_eq!(code, NOTIFY_INVAL_INODE);
        // Not only its attributes.
        if told.off >= 0 {
            return (told.ino, told.off, told.len);
        }
    }
}

/// Bytes were copied, made a hole or zeros, or cut off, and the host had no room to make that durable. The kernel drops
/// the pages that it has of them only if the answer is no error: programs went on reading what had been there before.
#[test]
fn content_that_the_host_has_no_room_for_is_read_anew() {
    const PUNCH: u32 = 3;
    const ZERO: u32 = 16;
    let (device, service, mut reader) = serve_sync(Agreement::default());
    let [source, target] = [("source", b's'), ("target", b't')].map(|(name, byte)| {
        let (node, data) = (make(&service, ROOT, name).unwrap(), [byte; 5 * 4096]);
        send(&service, 1, node, Operation::Write { args: write_in(0, &data, 0), data: &data }).unwrap();
        send(&service, 1, node, Operation::Fsync).unwrap();
        node
    });
    device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
    let args = CopyFileRangeIn { nodeid_out: target, off_out: 4096, len: 4096, ..CopyFileRangeIn::default() };
    assert_eq!(send(&service, 1, source, Operation::CopyFileRange { args, wide: true }), Err(Errno::NOSPC));
    assert_eq!(doubted_bytes(&mut reader), (target, 4096, 4096));
    for (mode, block) in [(PUNCH, 2), (ZERO, 3)] {
        let args = FallocateIn { mode, offset: block * 4096, length: 4096, ..FallocateIn::default() };
        assert_eq!(send(&service, 1, target, Operation::Fallocate(args)), Err(Errno::NOSPC));
        assert_eq!(doubted_bytes(&mut reader), (target, args.offset as i64, 4096));
    }
    let args = SetAttrIn { valid: fattr::SIZE | fattr::FH, size: 4 * 4096 + 1, ..SetAttrIn::default() };
    assert_eq!(send(&service, 1, target, Operation::SetAttr(args)), Err(Errno::NOSPC));
    let (node, offset, to_the_end) = doubted_bytes(&mut reader);
    assert_eq!((node, offset, to_the_end), (target, 4 * 4096 + 1, 0));
    let args = ReadIn { size: 5 * 4096, ..ReadIn::default() };
    let mut found = send(&service, 1, target, Operation::Read(args)).unwrap();
    assert_eq!(found.len(), 4 * 4096 + 1);
    found.pop();
    let expected = [b't', b's', 0, 0].map(|byte| [byte; 4096]).concat();
    assert!(found == expected, "it is done, though it is not durable");
}

/// A part of a copy had been written when the host had no room for more. The answer said how much had been copied before that part, and
/// the kernel kept its pages of the part itself.
#[test]
fn a_copy_cut_short_says_how_much_is_there() {
    const COPIED: u64 = 4 << 20;
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(32 << 20)));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    // A cache so small that it is full of what waits for the device in the middle of the copy.
    let options =
        MountOptions { background: false, commit_interval_ms: 0, cache_size: 4 << 20, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    let (service, _reader) = serve(fs, &Options::default(), Agreement::default());
    let [source, target] = ["source", "target"].map(|name| make(&service, ROOT, name).unwrap());
    let args = SetAttrIn { valid: fattr::SIZE | fattr::FH, size: COPIED, ..SetAttrIn::default() };
    send(&service, 1, source, Operation::SetAttr(args)).unwrap();
    service.fs.sync().unwrap();
    device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
    let args = CopyFileRangeIn { nodeid_out: target, len: COPIED, ..CopyFileRangeIn::default() };
    let answer = send(&service, 1, source, Operation::CopyFileRange { args, wide: true }).unwrap();
    let copied = CopyFileRangeOut::read_from_prefix(&answer).unwrap().0.bytes_copied;
    assert!(copied > 0 && copied < COPIED, "{copied} bytes");
    let size = service.kernel.lookup(service.kernel.root(), b"target").unwrap().size;
    assert_eq!(size, copied);
}

/// Once a volume had been shut down, each request that would change something was refused, and the kernel told of a change that might be
/// done each time, by a thread each time.
#[test]
fn a_volume_that_was_shut_down_leaves_no_doubt() {
    let (_device, service, reader) = serve_sync(Agreement::default());
    make(&service, ROOT, "file").unwrap();
    service.fs.shut_down("for this test");
    assert_eq!(send(&service, 1, ROOT, Operation::Unlink { name: b"file" }), Err(Errno::IO));
    assert_eq!(make(&service, ROOT, "new"), Err(Errno::IO));
    assert!(!has_notification(&reader));
}

/// Whether it was the host that had no room was asked after the request, of the volume. Meanwhile another thread's sync
/// had found room: MKNOD was tried again, and answered that its own file was there already.
#[test]
fn a_host_that_has_room_again_is_not_asked_a_second_time() {
    for seed in 0..40 {
        let (device, service, _reader) = serve_sync(Agreement::default());
        let (is_full, has_ended) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
        let changes = Arc::new(AtomicU32::new(0));
        let told = (Arc::clone(&is_full), Arc::clone(&changes));
        service.fs.on_host_full(move |now| {
            told.0.store(now, Ordering::Relaxed);
            told.1.fetch_add(1, Ordering::Relaxed);
        });
        device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
        let (service, is_full, has_ended) = (&service, &is_full, &has_ended);
        schedule::run(
            Turns { seed, one_in: 2 },
            vec![
                Box::new(move || {
                    assert_eq!(make(service, ROOT, "new"), Err(Errno::NOSPC), "seed {seed}");
                    has_ended.store(true, Ordering::Relaxed);
                }),
                Box::new(move || {
                    while !is_full.load(Ordering::Relaxed) && !has_ended.load(Ordering::Relaxed) {
                        schedule::pause();
                    }
                    device.clear();
                    service.fs.sync().unwrap();
                }),
            ],
        );
        assert_eq!(changes.load(Ordering::Relaxed), 2, "it was full, and had room again");
    }
}

/// What a program stores through a mapping the kernel sends, also with `direct_io`. On a volume that became full half-way the file had new
/// content, and went on to be run with the capabilities of the old one.
#[test]
fn half_a_write_takes_capabilities_away() {
    const PIECE: usize = 64 << 10;
    let options = Options { direct_io: true, ..Options::default() };
    let (service, _reader) = serve(Fs::in_memory(32 << 20).unwrap(), &options, Agreement::default());
    let (filler, program) = (make(&service, ROOT, "filler").unwrap(), make(&service, ROOT, "program").unwrap());
    let name = b"security.capability";
    let args = SetXattrIn { size: 4, ..SetXattrIn::default() };
    send(&service, 1, program, Operation::SetXattr { name, value: b"cap!", args }).unwrap();
    let data = vec![1; 2 * PIECE];
    let mut size = 0;
    while let Ok(written) = send(&service, 1, filler, Operation::Write { args: write_in(size, &data, 0), data: &data })
    {
        size += u64::from(WriteOut::read_from_prefix(&written).unwrap().0.size);
    }
    let args = SetAttrIn { valid: fattr::SIZE | fattr::FH, size: size - 10 * 4096, ..SetAttrIn::default() };
    send(&service, 1, filler, Operation::SetAttr(args)).unwrap();
    service.fs.sync().unwrap();
    let write = Operation::Write { args: write_in(0, &data, WRITE_CACHE), data: &data };
    assert_eq!(send(&service, 1, program, write), Err(Errno::NOSPC));
    let read = send(&service, 1, program, Operation::Read(ReadIn { size: 1, ..ReadIn::default() }));
    assert_eq!(read, Ok(vec![1]), "a part was written");
    assert_eq!(send(&service, 1, program, Operation::GetXattr { name, size: 0 }), Err(Errno::NODATA));
}

/// Two writes found a file's capabilities, and both took them away: the second one was answered that there were none, though its bytes were
/// written.
#[test]
fn two_writes_take_capabilities_away_together() {
    let name = b"security.capability";
    for seed in 0..60 {
        let options = Options { direct_io: true, ..Options::default() };
        let (service, _reader) = serve(Fs::in_memory(32 << 20).unwrap(), &options, Agreement::default());
        let program = make(&service, ROOT, "program").unwrap();
        let args = SetXattrIn { size: 4, ..SetXattrIn::default() };
        send(&service, 1, program, Operation::SetXattr { name, value: b"cap!", args }).unwrap();
        let service = &service;
        let write = |pid: u32| {
            move || {
                let write = Operation::Write { args: write_in(u64::from(pid), b"x", 0), data: b"x" };
                assert_eq!(send(service, pid, program, write).map(drop), Ok(()), "seed {seed}");
            }
        };
        schedule::run(Turns { seed, one_in: 2 }, vec![Box::new(write(1)), Box::new(write(2))]);
        assert_eq!(send(service, 1, program, Operation::GetXattr { name, size: 0 }), Err(Errno::NODATA));
    }
}

/// The kernel was told a file's attributes while it sent what a program had stored there, or while a direct write was under way that nobody
/// waited for. It took the answer in after that of the write, and showed the times of before for a year.
#[test]
fn attributes_told_beside_a_write_of_the_kernels_are_outdated() {
    for (direct_io, write_flags, pid) in [(false, WRITE_CACHE, 0), (true, 0, 7)] {
        let options = Options { direct_io, ..Options::default() };
        let (service, mut reader) = serve(Fs::in_memory(32 << 20).unwrap(), &options, Agreement::default());
        let file = make(&service, ROOT, "file").unwrap();
        let write = || {
            let write = Operation::Write { args: write_in(0, b"content", write_flags), data: b"content" };
            send(&service, pid, file, write).unwrap();
        };
        write();
        assert!(!has_notification(&reader), "nobody has asked");
        for (node, ask) in [
            (file, Operation::GetAttr),
            (file, Operation::Statx { mask: 0 }),
            (ROOT, Operation::Lookup { name: b"file" }),
        ] {
            send(&service, 7, node, ask).unwrap();
            assert!(!has_notification(&reader));
            write();
            let (code, body) = notification(&mut reader);
            let (told, _) = NotifyInvalInodeOut::read_from_prefix(&body).unwrap();
            assert_eq!((code, told.ino, told.off), (NOTIFY_INVAL_INODE, file, -1));
        }
    }
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

/// After a crash of order `softdep` each RMDIR waits until all directories were looked at, on a disk for minutes. Two of them kept both threads
/// of a mount waiting, and nobody took any request until then. Those waited, too, that had nothing to remove.
#[test]
fn requests_are_answered_while_directories_wait_to_be_removed() {
    let base = Arc::new(MemoryDevice::new(32 << 20));
    let choices = Profile::parse("ffs").unwrap().choices;
    let mkfs = MkfsOptions { choices, order: Order::Soft, ..MkfsOptions::default() };
    Fs::format_device(base.clone(), None, &mkfs).unwrap();
    let options = || MountOptions { background: false, commit_interval_ms: 0, ..MountOptions::default() };
    let before = Fs::open_device(base.clone(), None, options()).unwrap();
    let session = before.session(Cred::root());
    for name in ["first", "second", "third"] {
        session.mkdir(name, 0o755).unwrap();
    }
    // The search reads this one's content.
    for i in 0..100 {
        session.create(&format!("third/a file with a long name, number {i}"), 0o644).unwrap();
    }
    before.sync().unwrap();
    let device = Arc::new(PausingDevice::new(base.clone_image()));
    let fs = Fs::open_device(device.clone(), None, options()).unwrap();
    assert!(fs.may_have_second_names());
    let (service, _reader) = serve(fs, &Options::default(), Agreement::default());
    // They are in memory from here on.
    for name in [&b"first"[..], b"second"] {
        send(&service, 1, ROOT, Operation::Lookup { name }).unwrap();
    }
    let (kernel, server) = UnixDatagram::pair().unwrap();
    kernel.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let end = server.try_clone().unwrap();
    let classic = Classic::new(Device::from(OwnedFd::from(server)), 2, false);
    let serving = std::thread::spawn(move || Box::new(classic).run(Arc::new(service)));
    let ask = |unique, opcode, name: &[u8]| {
        let len = (size_of::<InHeader>() + name.len()) as u32;
        let header = InHeader { len, opcode, unique, nodeid: ROOT, ..InHeader::default() };
        kernel.send(&[header.as_bytes(), name].concat()).unwrap();
    };
    let answer = || {
        let mut answer = [0; 4096];
        kernel.recv(&mut answer)?;
        let (header, _) = OutHeader::read_from_prefix(&answer).unwrap();
        Ok::<_, io::Error>((header.unique, header.error))
    };
    // The search waits for its first read.
    device.pause_at(FaultOp::Read, 1);
    ask(1, opcode::RMDIR, b"first\0");
    ask(2, opcode::RMDIR, b"second\0");
    ask(3, opcode::LOOKUP, b"second\0");
    let looked_up = answer();
    ask(4, opcode::RMDIR, b"missing\0");
    let missing = answer();
    device.go_on();
    assert_eq!(looked_up.expect("nobody serves"), (3, 0));
    assert_eq!(missing.expect("it waits"), (4, -Errno::NOENT.raw_os_error()));
    let mut removed = [answer().unwrap(), answer().unwrap()];
    removed.sort();
    assert_eq!(removed, [(1, 0), (2, 0)]);
    end.shutdown(Shutdown::Read).unwrap();
    serving.join().unwrap().unwrap();
}

/// By a root with a generation, told to who looks for the directory above one that was opened by a file handle, kernels from 5.14 on took
/// the root they knew for gone, and each path through the mount was EIO.
#[test]
fn the_root_is_told_without_a_generation() {
    let (service, _reader) = serve(Fs::in_memory(32 << 20).unwrap(), &Options::default(), Agreement::default());
    let file = entry(&send(&service, 1, ROOT, Operation::Lookup { name: b"." }).unwrap());
    assert_eq!((file.nodeid, file.generation), (ROOT, 0));
    let args = MkdirIn { mode: 0o755, umask: 0 };
    let directory = entry(&send(&service, 1, ROOT, Operation::MkDir { name: b"d", args }).unwrap());
    assert_ne!(directory.generation, 0);
    let above = entry(&send(&service, 1, directory.nodeid, Operation::Lookup { name: b".." }).unwrap());
    assert_eq!((above.nodeid, above.generation), (ROOT, 0));
}
