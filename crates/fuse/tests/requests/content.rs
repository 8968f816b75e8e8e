//! What files hold, and where it is written.

use super::{both, open, read_write};
use crate::common::{self, Mounted, mounted, mounted_with};
use crate::skip_without_mounts;
use myriad_engine::{MkfsOptions, MountOptions};
use myriad_fuse::Options;
use rustix::fs::{self as unix, FallocateFlags, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

#[test]
fn content() {
    skip_without_mounts!();
    both(|mount| {
        let path = mount.path("file");
        let mut file = File::from(open(&path, read_write()).unwrap());
        file.write_all(&[1; 100_000]).unwrap();
        file.write_all_at(b"far", 1 << 40).unwrap();
        assert_eq!(file.metadata().unwrap().size(), (1 << 40) + 3);
        let mut buf = [9; 8];
        file.read_exact_at(&mut buf, 99_996).unwrap();
        assert_eq!(buf, [1, 1, 1, 1, 0, 0, 0, 0]);
        // Of a file that is open for writing all is data (`held.rs`).
        assert_eq!(unix::seek(&file, unix::SeekFrom::Hole(0)), Ok((1 << 40) + 3));
        assert_eq!(unix::seek(&file, unix::SeekFrom::Data(200_000)), Ok(200_000));
        unix::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 50_000).unwrap();
        unix::fallocate(&file, FallocateFlags::ZERO_RANGE, 60_000, 10).unwrap();
        file.read_exact_at(&mut buf, 49_996).unwrap();
        assert_eq!(buf, [0, 0, 0, 0, 1, 1, 1, 1]);
        file.read_exact_at(&mut buf, 60_006).unwrap();
        assert_eq!(buf, [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(unix::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
        file.set_len(70_000).unwrap();
        unix::fallocate(&file, FallocateFlags::empty(), 70_000, 30_000).unwrap();
        file.seek(SeekFrom::Start(69_999)).unwrap();
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).unwrap();
        assert_eq!((rest.len(), rest[0], rest[1]), (30_001, 1, 0));
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        // Copied in the server.
        let mut copy = File::from(open(&mount.path("copy"), read_write()).unwrap());
        let copied = unix::copy_file_range(&file, Some(&mut 50_000), &copy, Some(&mut 10), 1 << 30).unwrap();
        assert_eq!(copied, 50_000);
        assert!(mount.requests("COPY_FILE_RANGE") + mount.requests("COPY_FILE_RANGE_64") > 0);
        let mut bytes = Vec::new();
        copy.read_to_end(&mut bytes).unwrap();
        assert_eq!((bytes.len(), &bytes[8..12]), (50_010, &[0, 0, 1, 1][..]));
        // Appending goes to the end, wherever others write.
        let append = File::from(open(&path, OFlags::WRONLY | OFlags::APPEND).unwrap());
        append.write_all_at(b"end", 5).unwrap();
        assert_eq!(file.metadata().unwrap().size(), 100_003);
        // Opening with truncation.
        drop(open(&path, OFlags::WRONLY | OFlags::TRUNC).unwrap());
        assert_eq!(file.metadata().unwrap().size(), 0);
        drop((file, copy, append));
        mount.unmount();
    });
}

#[test]
fn direct_io() {
    skip_without_mounts!();
    for direct_io in [false, true] {
        let mount = mounted_with(Options { direct_io, ..Options::default() });
        let flags = if direct_io { OFlags::empty() } else { OFlags::DIRECT };
        let path = mount.path("file");
        let file = File::from(open(&path, read_write() | flags).unwrap());
        let bytes: Vec<u8> = (0..1 << 20).map(|i| (i / 4096) as u8).collect();
        file.write_all_at(&bytes, 0).unwrap();
        let mut back = vec![0; bytes.len()];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == bytes);
        // 1 MiB at a time, and the buffer does not begin at a page.
        assert!(mount.requests("READ") <= 2, "{}", mount.requests("READ"));
        // Through the page cache it is the same file.
        let other = File::open(&path).unwrap();
        other.read_exact_at(&mut back[..10], 4091).unwrap();
        assert_eq!(back[..10], [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
        file.write_all_at(&[77; 4096], 4096).unwrap();
        other.read_exact_at(&mut back[..10], 4091).unwrap();
        assert_eq!(back[..10], [0, 0, 0, 0, 0, 77, 77, 77, 77, 77]);
        drop((file, other));
        mount.unmount();
    }
}

#[test]
fn synchronous_writes_are_durable_when_they_return() {
    skip_without_mounts!();
    for (flag, durable) in [(OFlags::SYNC, true), (OFlags::DSYNC, true), (OFlags::empty(), false)] {
        let mount = mounted();
        let file = File::from(open(&mount.path("file"), read_write() | flag).unwrap());
        file.write_all_at(b"synced", 0).unwrap();
        // What is on the device now, as after a loss of power.
        let copy = mount.image().with_file_name("copy");
        fs::copy(mount.image(), &copy).unwrap();
        let fs = myriad_engine::Fs::open(&copy, MountOptions::default()).unwrap();
        let found = fs.session(myriad_engine::Cred::root()).stat("file").map(|stat| stat.size).ok();
        assert_eq!(found, durable.then_some(6), "{flag:?}");
        drop(file);
        mount.unmount();
    }
}

#[test]
fn a_mapped_file_is_the_file() {
    skip_without_mounts!();
    both(|mount| {
        let path = mount.path("file");
        fs::write(&path, vec![b'.'; 10_000]).unwrap();
        // A program that maps: the linker's way, without unsafe code here.
        let script = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\nassert m[9999:]==b'.'\n\
            m[4094:4098]=b'abcd'\np=mmap.mmap(f.fileno(),0,mmap.MAP_PRIVATE)\np[0:1]=b'x'\nm.flush()\nm.close()\n";
        let run = std::process::Command::new("python3").arg("-c").arg(script).arg(&path).status();
        match run {
            Ok(status) => assert!(status.success()),
            Err(error) => {
                println!("skipped: python3: {error}");
                return;
            }
        }
        let bytes = fs::read(&path).unwrap();
        assert_eq!((bytes[0], &bytes[4092..4100]), (b'.', &b"..abcd.."[..]));
        let mount = mount.remount(Options::default());
        assert_eq!(fs::read(mount.path("file")).unwrap(), bytes);
    });
}

/// Cached or not, what one maps is what another reads.
#[test]
fn a_file_is_mapped_without_the_kernels_cache() {
    skip_without_mounts!();
    let mount = mounted_with(Options { direct_io: true, ..Options::default() });
    let path = mount.path("file");
    fs::write(&path, vec![b'.'; 10_000]).unwrap();
    let script = "import mmap,os,sys\nf=os.open(sys.argv[1],os.O_RDWR)\nm=mmap.mmap(f,0)\nassert m[9999:]==b'.'\n\
        m[4094:4098]=b'abcd'\nm.flush()\nassert os.pread(f,8,4092)==b'..abcd..'\n\
        os.pwrite(f,b'new',0)\nassert m[0:3]==b'new', m[0:3]\n";
    match std::process::Command::new("python3").arg("-c").arg(script).arg(&path).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => return println!("skipped: python3: {error}"),
    }
    let bytes = fs::read(&path).unwrap();
    assert_eq!((&bytes[..4], &bytes[4092..4100], bytes.len()), (&b"new."[..], &b"..abcd.."[..], 10_000));
    mount.unmount();
}

/// Pieces of a long direct write come at the same time, and each was put at the end that the file had when it came.
#[test]
fn what_is_appended_lies_where_the_kernel_has_it() {
    const LENGTH: usize = (1 << 20) + (64 << 10);
    skip_without_mounts!();
    let mount = mounted_with(Options { threads: 4, ..Options::default() });
    let path = mount.path("file");
    let append = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::DIRECT;
    let file = File::from(open(&path, append).unwrap());
    let mut buffer = myriad_device::AlignedBuf::zeroed(LENGTH);
    let rounds = 100;
    for round in 0..rounds {
        for (block, bytes) in buffer.chunks_exact_mut(4096).enumerate() {
            bytes[..8].copy_from_slice(&((round << 32 | block) as u64).to_le_bytes());
        }
        assert_eq!(rustix::io::write(&file, &buffer).unwrap(), LENGTH);
    }
    for round in 0..rounds {
        assert_eq!(rustix::io::pread(&file, &mut buffer[..], (round * LENGTH) as u64).unwrap(), LENGTH);
        for (block, bytes) in buffer.chunks_exact(4096).enumerate() {
            let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert_eq!(found, (round << 32 | block) as u64, "round {round}, block {block}");
        }
    }
    // Who appends may do without it for once (RWF_NOAPPEND, Linux 6.9).
    let once = rustix::io::ReadWriteFlags::from_bits_retain(0x20);
    buffer[..4096].fill(7);
    match rustix::io::pwritev2(&file, &[std::io::IoSlice::new(&buffer[..4096])], 4096, once) {
        Err(Errno::OPNOTSUPP) => println!("skipped: this kernel knows no RWF_NOAPPEND"),
        written => {
            assert_eq!(written.unwrap(), 4096);
            assert_eq!(rustix::io::pread(&file, &mut buffer[..4096], 4096).unwrap(), 4096);
            assert!(buffer[..4096] == [7; 4096]);
            assert_eq!(file.metadata().unwrap().len(), (rounds * LENGTH) as u64);
        }
    }
    drop(file);
    mount.unmount();
}

#[test]
fn small_blocks_and_writeback() {
    skip_without_mounts!();
    let mkfs = MkfsOptions { block_size: 512, ..MkfsOptions::default() };
    let options = Options { writeback: true, allow_other: true, ..Options::default() };
    let mount = Mounted::new(&mkfs, MountOptions::default(), options);
    let mut file = File::create(mount.path("file")).unwrap();
    for i in 0..2000 {
        writeln!(file, "line {i}").unwrap();
    }
    drop(file);
    assert!(mount.requests("WRITE") < 100, "the kernel gathers small writes");
    let mount = mount.remount(Options::default());
    let text = fs::read_to_string(mount.path("file")).unwrap();
    assert_eq!((text.lines().count(), text.lines().last()), (2000, Some("line 1999")));
}
