//! On real files in a temporary folder, in every combination of direct I/O and backend that the host allows.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;

use parking_lot::RwLock;
use tempfile::TempDir;

use super::*;
use crate::{Holder, MemoryDevice};

const MIB: u64 = 1 << 20;

/// A child shares the locks of all tests from its fork until it ends or executes another program. So a test that
/// forks holds this for writing, and one that expects a lock to be free again holds it for reading.
static FORKING: RwLock<()> = RwLock::new(());

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn options(direct: DirectIo, backend: IoBackend) -> FileOptions {
    FileOptions { direct, backend, ..Default::default() }
}

/// Every combination, with a fresh image of `size` bytes each. On a host that refuses io_uring, both backends are the
/// threads.
fn in_every_mode(size: u64, test: impl Fn(&FileDevice)) {
    for direct in [DirectIo::Auto, DirectIo::Never] {
        for backend in [IoBackend::Auto, IoBackend::Threads] {
            let folder = folder();
            let device = FileDevice::create(folder.path().join("image"), size, &options(direct, backend)).unwrap();
            assert!(direct == DirectIo::Auto || !device.is_direct());
            assert!(backend == IoBackend::Auto || device.backend_name() == "threads");
            test(&device);
        }
    }
}

/// Bytes that differ from place to place and from seed to seed.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

fn read(device: &dyn BlockDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0xEE; len];
    device.read(offset, &mut buf).unwrap();
    buf
}

#[test]
fn single_requests_with_any_buffer() {
    in_every_mode(8 * MIB, |device| {
        assert_eq!(device.size(), 8 * MIB);
        assert_eq!(read(device, 8 * MIB - 4096, 4096), [0; 4096]);
        let bytes = pattern(1, 3 * MIB as usize + 4097);
        // An aligned buffer, one at an odd address, one that has to bounce in several pieces.
        for (offset, source) in [(0, &bytes[..4096]), (4096, &bytes[1..4097]), (MIB, &bytes[1..=3 * MIB as usize])] {
            device.write(offset, &AlignedBuf::from_slice(source)).unwrap();
            assert!(read(device, offset, source.len()) == source);
            device.write(offset, source).unwrap();
            let mut target = AlignedBuf::zeroed(source.len());
            device.read(offset, &mut target).unwrap();
            assert!(&target[..] == source);
        }
        device.flush().unwrap();
        let counters = device.counters();
        assert_eq!((counters.writes, counters.reads, counters.flushes), (6, 7, 1));
        assert_eq!(counters.written_bytes, 2 * (4096 + 4096 + 3 * MIB));
    });
}

/// Batches that a model in memory judges: many requests, long ones, odd parts, odd addresses.
#[test]
fn batches_do_what_the_model_does() {
    in_every_mode(32 * MIB, |device| {
        let model = MemoryDevice::new(32 * MIB);
        let bytes = pattern(2, 4 * MIB as usize);
        let mut parts: Vec<(u64, Vec<&[u8]>)> = Vec::new();
        // More than the queue holds, 16 KiB apart, in turn one aligned part, two odd ones and an empty one.
        for index in 0..200_u64 {
            let source = &bytes[index as usize * 97..][..8192];
            let split = match index % 3 {
                0 => vec![source],
                1 => vec![&source[..1000], &source[1000..]],
                _ => vec![&source[..0], &source[..4096], &source[..0], &source[4096..]],
            };
            parts.push((index * 16384, split));
        }
        // Split into transfers in the middle of parts.
        parts.push((8 * MIB, bytes[..3 * MIB as usize + 4096].chunks(700_001).collect()));
        // More parts than one system call takes.
        parts.push((16 * MIB, bytes[..40_960].chunks(10).collect()));
        parts.push((20 * MIB, bytes[..2 * MIB as usize].chunks(512).collect()));
        parts.push((0, vec![]));
        let writes: Vec<_> = parts.iter().map(|(offset, parts)| WriteRequest { offset: *offset, parts }).collect();
        device.write_many(&writes).unwrap();
        model.write_many(&writes).unwrap();
        assert!(read(device, 0, 32 << 20) == read(&model, 0, 32 << 20));

        let mut buffer = vec![0; 24 << 20];
        let mut rest = &mut buffer[1..];
        let mut reads = Vec::new();
        let mut offset = 0;
        for index in 0..150 {
            let len = if index == 70 { 5 << 20 } else { 4096 * (1 + index % 7) };
            let (head, tail) = rest.split_at_mut(len);
            reads.push(ReadRequest { offset, buf: head });
            rest = tail;
            offset += len as u64;
        }
        device.read_many(&mut reads).unwrap();
        for request in &reads {
            assert!(request.buf == read(&model, request.offset, request.buf.len()), "at {}", request.offset);
        }
        assert_eq!((device.counters().writes, device.counters().reads), (204, 151));
    });
}

#[test]
fn threads_share_a_device() {
    in_every_mode(16 * MIB, |device| {
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                scope.spawn(move || {
                    let bytes = AlignedBuf::from_slice(&pattern(thread, 65_536));
                    let parts: [&[u8]; 1] = [&bytes];
                    for turn in 0..4 {
                        let writes: Vec<_> = (0..16)
                            .map(|index| WriteRequest { offset: thread * 4 * MIB + index * 65_536, parts: &parts })
                            .collect();
                        device.write_many(&writes).unwrap();
                        let mut buffers = vec![AlignedBuf::zeroed(65_536); 16];
                        let mut reads: Vec<_> = buffers
                            .iter_mut()
                            .zip(&writes)
                            .map(|(buf, write)| ReadRequest { offset: write.offset, buf })
                            .collect();
                        device.read_many(&mut reads).unwrap();
                        assert!(buffers.iter().all(|buffer| *buffer == bytes));
                        device.write_durable(thread * 4 * MIB + 2 * MIB + turn * 65_536, &bytes).unwrap();
                    }
                });
            }
        });
        assert_eq!(device.counters().writes, 4 * 4 * 17);
    });
}

#[test]
fn bad_ranges_are_refused_before_anything_is_done() {
    in_every_mode(MIB, |device| {
        let alignment = device.alignment();
        let mut buf = vec![1; 2 * alignment];
        let refused = |result: io::Result<()>| assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        for offset in [MIB, MIB - alignment as u64, u64::MAX - alignment as u64 + 1] {
            refused(device.read(offset, &mut buf));
            refused(device.write(offset, &buf));
            refused(device.write_durable(offset, &buf));
            refused(device.discard(offset, 2 * alignment as u64));
            refused(device.read_many(&mut [ReadRequest { offset, buf: &mut buf }]));
            let parts: [&[u8]; 1] = [&buf];
            let writes = [WriteRequest { offset: 0, parts: &parts }, WriteRequest { offset, parts: &parts }];
            refused(device.write_many(&writes));
        }
        if alignment > 1 {
            refused(device.read(1, &mut buf));
            refused(device.write(0, &buf[1..]));
        }
        device.read(MIB, &mut []).unwrap();
        device.write(MIB, &[]).unwrap();
        assert_eq!(read(device, 0, alignment), vec![0; alignment]);
    });
}

#[test]
fn a_file_that_shrank_is_an_error_not_a_hang() {
    in_every_mode(4 * MIB, |device| {
        device.target.file.set_len(MIB + 5000).unwrap();
        let mut buffers = vec![AlignedBuf::zeroed(8192); 100];
        let mut reads: Vec<_> = buffers
            .iter_mut()
            .enumerate()
            .map(|(index, buf)| ReadRequest { offset: MIB / 2 + index as u64 * 8192, buf })
            .collect();
        assert_eq!(device.read_many(&mut reads).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let error = device.read(MIB, &mut buffers[0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        // The rings and threads go on working.
        let mut reads: Vec<_> = buffers.iter_mut().map(|buf| ReadRequest { offset: 0, buf }).collect();
        device.read_many(&mut reads).unwrap();
    });
}

/// A host that takes O_DIRECT and then refuses the I/O: here, because we claim that odd addresses are fine.
#[test]
fn direct_io_that_is_refused_later_falls_back() {
    for backend in [IoBackend::Auto, IoBackend::Threads] {
        for batched in [false, true] {
            let folder = folder();
            let path = folder.path().join("image");
            let mut device = FileDevice::create(&path, MIB, &options(DirectIo::Auto, backend)).unwrap();
            if !device.is_direct() {
                return;
            }
            device.target.memory_alignment = 1;
            // Some hosts (tmpfs) mean it. A read would not tell: of a hole, no host looks at the address.
            let odd = AlignedBuf::zeroed(4097);
            let refuses = rustix::io::pwrite(&device.target.file, &odd[1..], 0) == Err(Errno::INVAL);
            let bytes = AlignedBuf::from_slice(&pattern(3, 8193));
            let parts: [&[u8]; 1] = [&bytes[1..]];
            let offsets = (0..100).map(|index| index * 8192);
            if batched {
                let writes: Vec<_> = offsets.clone().map(|offset| WriteRequest { offset, parts: &parts }).collect();
                device.write_many(&writes).unwrap();
            } else {
                offsets.clone().for_each(|offset| device.write(offset, parts[0]).unwrap());
            }
            assert_eq!(device.is_direct(), !refuses);
            for offset in offsets {
                assert!(read(&device, offset, 8192) == parts[0], "at {offset}");
            }
        }
    }
}

#[test]
fn a_durable_write_after_a_flush_needs_no_other() {
    in_every_mode(MIB, |device| {
        let block = AlignedBuf::from_slice(&[7; 4096]);
        // What a predecessor wrote counts as not flushed.
        assert!(!device.all_flushed());
        device.write_durable(0, &block).unwrap();
        assert!(device.all_flushed());
        device.write_durable(4096, &block).unwrap();
        assert!(device.all_flushed());
        device.write(8192, &block).unwrap();
        assert!(!device.all_flushed());
        device.flush().unwrap();
        assert!(device.all_flushed());
        device.discard(0, 4096).unwrap();
        assert!(!device.all_flushed());
        device.write_durable(12_288, &block[..]).unwrap();
        assert!(device.all_flushed());
        assert_eq!(read(device, 4096, 12_288), [7; 12_288]);
        let counters = device.counters();
        assert_eq!((counters.writes, counters.flushes, counters.discards), (4, 4, 1));
    });
}

#[test]
fn a_failed_flush_is_final() {
    in_every_mode(MIB, |device| {
        device.flush().unwrap();
        *device.flush_failed.lock() = true;
        assert!(device.flush().is_err());
        assert!(device.write_durable(0, &[0; 4096]).is_err());
        device.write(0, &[0; 4096]).unwrap();
        assert!(device.write_durable(0, &[0; 4096]).is_err());
        read(device, 0, 4096);
    });
}

#[test]
fn discard_gives_blocks_back() {
    in_every_mode(4 * MIB, |device| {
        device.write(0, &pattern(4, 2 << 20)).unwrap();
        device.flush().unwrap();
        let allocated = || device.target.file.metadata().unwrap().blocks() * 512;
        let before = allocated();
        assert!(before >= 2 * MIB);
        device.discard(MIB + 100, MIB - 100).unwrap();
        assert!(allocated() <= before - MIB + 8192, "{before} bytes, then {}", allocated());
        assert_eq!(device.target.file.metadata().unwrap().len(), 4 * MIB);
        assert_eq!(read(device, 0, 1 << 20), &pattern(4, 2 << 20)[..1 << 20]);
        assert_eq!(read(device, MIB + 8192, 4096), [0; 4096]);
    });
}

/// A sparse image wants its discards always; one that somebody allocated in full, only if it is asked.
#[test]
fn holes_say_that_discards_are_wanted() {
    let folder = folder();
    let path = folder.path().join("image");
    let device = FileDevice::create(&path, 4 * MIB, &FileOptions::default()).unwrap();
    assert_eq!(device.discards(), Discards::Always);
    drop(device);
    let image = File::options().write(true).open(&path).unwrap();
    rustix::fs::fallocate(&image, FallocateFlags::empty(), 0, 4 * MIB).unwrap();
    let open = || FileDevice::open(&path, Access::ReadWrite).unwrap();
    assert_eq!(open().discards(), Discards::OnRequest);
    open().discard(MIB, MIB).unwrap();
    assert_eq!(open().discards(), Discards::Always);
}

#[test]
fn read_only_refuses_changes() {
    let folder = folder();
    let path = folder.path().join("image");
    drop(FileDevice::create(&path, MIB, &FileOptions::default()).unwrap());
    let device = FileDevice::open(&path, Access::ReadOnly).unwrap();
    for result in [device.write(0, &[0; 4096]), device.write_durable(0, &[0; 4096]), device.discard(0, 4096)] {
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    }
    device.flush().unwrap();
    assert!(matches!(device.lock_exclusive(), Err(OpenError::Unsuitable { .. })));
}

#[test]
fn what_cannot_be_a_device_is_refused_by_name() {
    let folder = folder();
    let path = folder.path().join("image");
    let check = |result: Result<FileDevice, OpenError>, expected: &str| {
        let message = result.err().expect("refused").to_string();
        assert!(message.contains(expected), "{message}");
    };
    check(FileDevice::open(&path, Access::ReadOnly), "image: cannot open: No such file");
    check(FileDevice::open(folder.path(), Access::ReadOnly), "neither a regular file nor a block device");
    check(FileDevice::open("/dev/null", Access::ReadWrite), "neither a regular file nor a block device");
    check(FileDevice::create("/dev/null", 1, &FileOptions::default()), "neither a regular file nor a block device");
    check(FileDevice::create(&path, u64::MAX, &FileOptions::default()), "larger than a file can be");
    assert!(!path.exists());
    std::fs::write(&path, [0; 5000]).unwrap();
    let at = |offset, length| FileOptions { offset, length, ..Default::default() };
    check(FileDevice::open_with(&path, Access::ReadOnly, &at(5001, None)), "offset 5001 lies past the end");
    check(FileDevice::open_with(&path, Access::ReadOnly, &at(0, Some(5001))), "5001 bytes wanted");
    check(FileDevice::open_with(&path, Access::ReadOnly, &at(4096, Some(u64::MAX))), "904 bytes there");
    let odd = FileOptions { direct: DirectIo::Require, ..at(1, None) };
    check(FileDevice::open_with(&path, Access::ReadOnly, &odd), "does not allow direct I/O");
}

#[test]
fn sizes_are_whole_sectors() {
    let folder = folder();
    let path = folder.path().join("image");
    std::fs::write(&path, [1; 5000]).unwrap();
    let device = FileDevice::open(&path, Access::ReadOnly).unwrap();
    assert_eq!(device.size(), 5000 / device.alignment() as u64 * device.alignment() as u64);
    let never = options(DirectIo::Never, IoBackend::Auto);
    let device = FileDevice::open_with(&path, Access::ReadOnly, &never).unwrap();
    assert_eq!((device.size(), device.alignment()), (5000, 1));
    assert_eq!(read(&device, 4999, 1), [1]);
    std::fs::write(&path, []).unwrap();
    assert_eq!(FileDevice::open(&path, Access::ReadWrite).unwrap().size(), 0);
}

#[test]
fn an_offset_moves_the_device() {
    let folder = folder();
    let path = folder.path().join("image");
    std::fs::write(&path, vec![1; 3 << 20]).unwrap();
    let device = FileDevice::create(&path, MIB, &FileOptions { offset: MIB, ..Default::default() }).unwrap();
    device.write(0, &[2; 4096]).unwrap();
    let parts: [&[u8]; 1] = [&[3; 4096]];
    let writes = [WriteRequest { offset: 4096, parts: &parts }, WriteRequest { offset: MIB - 4096, parts: &parts }];
    device.write_many(&writes).unwrap();
    device.discard(4096, 4096).unwrap();
    drop(device);
    let file = std::fs::read(&path).unwrap();
    assert_eq!(file.len(), 2 << 20);
    let at = |offset: usize| file[(1 << 20) + offset];
    assert_eq!((file[(1 << 20) - 1], at(0), at(4096), at(8192), at((1 << 20) - 1)), (1, 2, 0, 0, 3));
}

#[test]
fn create_spares_what_exists_or_is_in_use() {
    let _no_fork = FORKING.read();
    let folder = folder();
    let path = folder.path().join("image");
    let exclusive = FileOptions { exclusive: true, ..Default::default() };
    let device = FileDevice::create(&path, MIB, &exclusive).unwrap();
    device.write(0, &[9; 4096]).unwrap();
    let error = FileDevice::create(&path, MIB, &exclusive).err().unwrap();
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::AlreadyExists);
    let error = FileDevice::create(&path, 2 * MIB, &FileOptions::default()).err().unwrap();
    assert!(matches!(error, OpenError::InUse(_)), "{error}");
    assert_eq!((path.metadata().unwrap().len(), read(&device, 0, 4096)), (MIB, vec![9; 4096]));
    drop(device);
    let device = FileDevice::create(&path, 2 * MIB, &FileOptions::default()).unwrap();
    assert_eq!((device.size(), read(&device, 0, 4096)), (2 * MIB, vec![0; 4096]));
    assert_eq!(path.metadata().unwrap().blocks(), 0);
}

/// A file was emptied before it was clear that it can have its new size.
#[test]
fn a_claim_changes_nothing() {
    let folder = folder();
    let path = folder.path().join("image");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let is_whole = || std::fs::read(&path).unwrap() == vec![7; 1 << 20];
    for size in [MIB / 2, MIB, 3 * MIB] {
        let claim = FileDevice::claim(&path, size, &FileOptions::default()).unwrap();
        assert_eq!(claim.device().size(), size);
        assert!(FileDevice::open(&path, Access::ReadWrite).unwrap().lock_exclusive().is_err(), "it holds the lock");
        drop(claim);
        assert!(is_whole(), "{size}");
    }
    let new = folder.path().join("new");
    drop(FileDevice::claim(&new, MIB, &FileOptions::default()).unwrap());
    assert!(!new.exists(), "there was none before");
    // More than any file system has; 512 bytes short of what a file can have.
    assert!(FileDevice::create(&path, i64::MAX as u64 & !511, &FileOptions::default()).is_err());
    assert!(is_whole());
}

#[test]
fn one_writer_or_many_readers() {
    let _no_fork = FORKING.read();
    let folder = folder();
    let path = folder.path().join("image");
    let writer = FileDevice::create(&path, MIB, &FileOptions::default()).unwrap();
    writer.unlock().unwrap();
    let open = |access| FileDevice::open(&path, access).unwrap();
    let (reader, second, rival) = (open(Access::ReadOnly), open(Access::ReadOnly), open(Access::ReadWrite));
    let holder = |result: Result<(), OpenError>| match result {
        Err(OpenError::InUse(in_use)) => in_use.holder,
        other => panic!("{other:?}"),
    };

    writer.lock_exclusive().unwrap();
    writer.lock_exclusive().unwrap();
    for refused in [rival.lock_exclusive(), rival.lock_shared(), reader.lock_shared()] {
        let Some(Holder::Process { pid, command: Some(_) }) = holder(refused) else { panic!() };
        assert_eq!(pid, writer.owner_pid());
    }
    writer.lock_shared().unwrap();
    reader.lock_shared().unwrap();
    second.lock_shared().unwrap();
    assert!(holder(writer.lock_exclusive()).is_some());
    drop((reader, second));
    writer.lock_exclusive().unwrap();
    // Closing another descriptor of the file must not release the lock, as it would a POSIX one.
    drop(open(Access::ReadWrite));
    assert!(holder(rival.lock_exclusive()).is_some());
    drop(writer);
    rival.lock_exclusive().unwrap();
}

#[test]
fn volumes_side_by_side_do_not_exclude_each_other() {
    let folder = folder();
    let path = folder.path().join("image");
    std::fs::write(&path, vec![0; 2 << 20]).unwrap();
    let part = |offset, length| {
        let options = FileOptions { offset, length: Some(length), ..Default::default() };
        FileDevice::open_with(&path, Access::ReadWrite, &options).unwrap()
    };
    let (first, second, both) = (part(0, MIB), part(MIB, MIB), part(0, 2 * MIB));
    first.lock_exclusive().unwrap();
    second.lock_exclusive().unwrap();
    assert!(both.lock_exclusive().is_err());
}

/// Making an image shorter cuts off all that lies behind it, so that must be nobody's.
#[test]
fn a_claim_spares_a_volume_behind_it() {
    let _no_fork = FORKING.read();
    let folder = folder();
    let path = folder.path().join("image");
    std::fs::write(&path, vec![7; 2 << 20]).unwrap();
    let options = FileOptions { offset: MIB, length: Some(MIB), ..Default::default() };
    let behind = FileDevice::open_with(&path, Access::ReadWrite, &options).unwrap();
    behind.lock_exclusive().unwrap();
    let error = FileDevice::claim(&path, MIB / 2, &FileOptions::default()).err().expect("it is in use");
    assert!(matches!(error, OpenError::InUse(_)), "{error}");
    assert!(std::fs::read(&path).unwrap() == vec![7; 2 << 20]);
    behind.unlock().unwrap();
    // Once it has been emptied, the bytes behind the device are free for others; so they are if it was not.
    let device = FileDevice::create(&path, MIB / 2, &FileOptions::default()).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(2 << 20).unwrap();
    behind.lock_exclusive().unwrap();
    behind.unlock().unwrap();
    drop(device);
    drop(FileDevice::claim(&path, MIB / 2, &FileOptions::default()).unwrap());
    behind.lock_exclusive().unwrap();
}

/// Not a test of its own: the other process of the next one.
#[test]
fn helper_that_holds_a_lock() {
    let Some(path) = std::env::var_os("MYRIAD_TEST_LOCK") else { return };
    let device = FileDevice::open(path, Access::ReadWrite).unwrap();
    device.lock_shared().unwrap();
    print!("\nlocked\n");
    io::stdout().flush().unwrap();
    let _ = io::stdin().read(&mut [0]);
}

#[test]
fn the_holder_in_another_process_is_named_and_its_death_releases() {
    let _fork = FORKING.write();
    let folder = folder();
    let path = folder.path().join("image");
    let device = FileDevice::create(&path, MIB, &FileOptions::default()).unwrap();
    // A reader that wants to become the writer must be told of the other reader, not of itself.
    device.lock_shared().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "file::tests::helper_that_holds_a_lock"])
        .env("MYRIAD_TEST_LOCK", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while line != "locked\n" {
        line.clear();
        assert_ne!(io::BufRead::read_line(&mut output, &mut line).unwrap(), 0, "helper ended early");
    }
    match device.lock_exclusive() {
        Err(OpenError::InUse(in_use)) => {
            assert_eq!(in_use.pid(), Some(child.id()));
            let message = in_use.to_string();
            assert!(message.contains(&format!("in use by process {}", child.id())), "{message}");
        }
        other => panic!("{other:?}"),
    }
    child.kill().unwrap();
    child.wait().unwrap();
    device.lock_exclusive().unwrap();
}

#[test]
#[allow(unsafe_code)]
fn a_forked_child_is_refused_and_may_drop_the_device() {
    let _fork = FORKING.write();
    in_every_mode(MIB, |device| {
        // The pool's threads and a ring exist before the fork.
        let mut buffers = vec![AlignedBuf::zeroed(4096); 8];
        let mut batch: Vec<_> = buffers.iter_mut().map(|buf| ReadRequest { offset: 0, buf }).collect();
        device.read_many(&mut batch).unwrap();
        // SAFETY: the child runs only the code below, which takes no lock that another thread could have held but
        // the allocator's, which the C library makes usable in a child.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let forked = |result: io::Result<()>| {
                result.is_err_and(|error| error.get_ref().is_some_and(|inner| inner.is::<ForkedChild>()))
            };
            let refused = forked(device.read(0, &mut [0; 4096]))
                && forked(device.write(0, &[1; 4096]))
                && forked(device.read_many(&mut batch))
                && forked(device.flush())
                && forked(device.discard(0, 4096))
                && device.unlock().is_err();
            // SAFETY: nobody uses the device after this; the child ends on the next line.
            drop(unsafe { std::ptr::read(device) });
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(if refused { 0 } else { 1 }) }
        }
        let mut status = -1;
        // SAFETY: `child` is a child of this process; the status goes to a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        device.read_many(&mut batch).unwrap();
        device.write(0, &[1; 4096]).unwrap();
    });
}

#[test]
fn the_backend_can_be_chosen() {
    let folder = folder();
    let path = folder.path().join("image");
    let threads = FileDevice::create(&path, MIB, &options(DirectIo::Auto, IoBackend::Threads)).unwrap();
    assert_eq!(threads.backend_name(), "threads");
    match FileDevice::open_with(&path, Access::ReadOnly, &options(DirectIo::Auto, IoBackend::Uring)) {
        Ok(device) => assert_eq!(device.backend_name(), "io_uring"),
        Err(error) => assert!(error.to_string().contains("cannot use io_uring"), "{error}"),
    }
}

/// A loop device over an image: only where the tests run as root on a host with loop devices.
#[test]
fn block_devices() {
    let _fork = FORKING.write();
    let folder = folder();
    let image = folder.path().join("image");
    File::create(&image).unwrap().set_len(4 * MIB).unwrap();
    let attached = Command::new("losetup").args(["--find", "--show", "--sector-size", "4096"]).arg(&image).output();
    let Some(path) = attached.ok().filter(|output| output.status.success()) else {
        eprintln!("skipped: no loop device to be had");
        return;
    };
    let path = String::from_utf8(path.stdout).unwrap().trim().to_owned();
    let outcome = std::panic::catch_unwind(|| {
        let device = FileDevice::open(&path, Access::ReadWrite).unwrap();
        assert!(device.is_block_device());
        assert_eq!((device.size(), device.alignment()), (4 * MIB, 4096));
        let bytes = pattern(5, 2 << 20);
        device.write(MIB, &bytes).unwrap();
        device.write_durable(MIB, &bytes).unwrap();
        device.write_durable(MIB, &bytes).unwrap();
        assert!(read(&device, MIB, 2 << 20) == bytes);
        assert_eq!(device.discards(), Discards::OnRequest);
        device.discard(MIB, MIB).unwrap();
        assert_eq!(read(&device, MIB, 4096), [0; 4096]);
        assert!(device.write(512, &[0; 4096]).is_err());
        // The claim: what the kernel has mounted, or another writer holds, cannot be opened for writing.
        assert!(matches!(FileDevice::open(&path, Access::ReadWrite), Err(OpenError::InUse(_))));
        FileDevice::open(&path, Access::ReadOnly).unwrap();
        // It goes with the lock, though the device itself stays open.
        device.lock_exclusive().unwrap();
        device.unlock().unwrap();
        drop(FileDevice::open(&path, Access::ReadWrite).unwrap());
        assert!(read(&device, MIB + MIB, 4096) == bytes[1 << 20..][..4096]);
        drop(device);
        let device = FileDevice::create(&path, 2 * MIB, &FileOptions::default()).unwrap();
        assert_eq!(device.size(), 2 * MIB);
        drop(device);
        assert!(matches!(
            FileDevice::create(&path, 5 * MIB, &FileOptions::default()),
            Err(OpenError::Unsuitable { .. })
        ));
        let buffered = options(DirectIo::Never, IoBackend::Auto);
        assert_eq!(FileDevice::open_with(&path, Access::ReadOnly, &buffered).unwrap().alignment(), 4096);
    });
    assert!(Command::new("losetup").args(["--detach", &path]).status().unwrap().success());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn a_file_device_is_an_object() {
    let folder = folder();
    let device = FileDevice::create(folder.path().join("image"), MIB, &FileOptions::default()).unwrap();
    let shared: Arc<dyn BlockDevice> = Arc::new(device);
    let overlay = crate::OverlayDevice::new(Arc::clone(&shared));
    overlay.write(4096, &[5; 4096]).unwrap();
    assert_eq!((read(&overlay, 4096, 1 << 12), read(&shared, 4096, 1 << 12)), (vec![5; 4096], vec![0; 4096]));
}
