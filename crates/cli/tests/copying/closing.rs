//! `cp` to a file system that says only when a file is closed that there was no room for it, as one of a server's (NFS, with a quota) may.
//!
//! Its server is here: FUSE with a FLUSH that fails, and of all else as little as a copy asks for.

use crate::common::mount::MountPlace;
use crate::common::put;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::collections::HashSet;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// By the kernel's numbers.
mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const UNLINK: u32 = 10;
    pub const OPEN: u32 = 14;
    pub const WRITE: u32 = 16;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const RELEASEDIR: u32 = 29;
    pub const CREATE: u32 = 35;
    pub const BATCH_FORGET: u32 = 42;
}

const HEADER: usize = 40;
const MAX_WRITE: u32 = 64 << 10;
const ROOT: u64 = 1;
const FILE: u64 = 2;
const ENOENT: i32 = 2;
const ENOSPC: i32 = 28;
const ENOSYS: i32 = 38;

/// Names that were made and not removed: all of one file.
type Names = Arc<Mutex<HashSet<Vec<u8>>>>;

/// Served until it goes, and the mount with it.
struct Served {
    names: Names,
    mount_point: PathBuf,
    server: Option<JoinHandle<()>>,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = unmount(&self.mount_point, UnmountFlags::DETACH);
        let ended = self.server.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the server fails");
    }
}

/// Mounts it.
fn serve(mount_point: PathBuf) -> Served {
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = CString::new(options).unwrap();
    mount("full", &mount_point, "fuse", MountFlags::NOSUID | MountFlags::NODEV, Some(&*options)).unwrap();
    let names = Names::default();
    let served = Arc::clone(&names);
    let server = std::thread::spawn(move || {
        let mut request = vec![0; HEADER + 4096 + MAX_WRITE as usize];
        while let Ok(length) = (&device).read(&mut request) {
            let Some(answer) = answer(&request[..length], &mut served.lock().unwrap()) else { continue };
            // Whoever asked may have been interrupted.
            let _ = (&device).write(&answer);
        }
    });
    Served { names, mount_point, server: Some(server) }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn answer(request: &[u8], names: &mut HashSet<Vec<u8>>) -> Option<Vec<u8>> {
    let body = &request[HEADER..];
    let name = |from: usize| body[from..].split(|&byte| byte == 0).next().unwrap().to_vec();
    let answer = match u32_at(request, 4) {
        opcode::FORGET | opcode::BATCH_FORGET => return None,
        // Version 7.31, no flags, one page ahead.
        opcode::INIT => Ok(numbers(&[7, 31, 4096, 0, 0, MAX_WRITE, 1], 64)),
        opcode::LOOKUP if !names.contains(&name(0)) => Err(ENOENT),
        opcode::LOOKUP => Ok(entry()),
        opcode::GETATTR | opcode::SETATTR => Ok([vec![0; 16], attributes(request[16] as u64)].concat()),
        opcode::CREATE => {
            names.insert(name(16));
            Ok([entry(), vec![0; 16]].concat())
        }
        opcode::UNLINK => {
            names.remove(&name(0));
            Ok(Vec::new())
        }
        opcode::OPEN | opcode::OPENDIR => Ok(vec![0; 16]),
        opcode::WRITE => Ok(numbers(&[u32_at(body, 16)], 8)),
        opcode::FLUSH => Err(ENOSPC),
        opcode::RELEASE | opcode::RELEASEDIR | opcode::FSYNC => Ok(Vec::new()),
        _ => Err(ENOSYS),
    };
    let (error, answer) = answer.map_or_else(|errno| (-errno, Vec::new()), |answer| (0, answer));
    let length = (16 + answer.len()) as u32;
    Some([&length.to_ne_bytes()[..], &error.to_ne_bytes(), &request[8..16], &answer].concat())
}

/// Numbers of 32 bits, and zeros up to `size` bytes.
fn numbers(numbers: &[u32], size: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    bytes.resize(size, 0);
    bytes
}

fn entry() -> Vec<u8> {
    let node = [FILE.to_ne_bytes(), 1_u64.to_ne_bytes()].concat();
    [node, vec![0; 24], attributes(FILE)].concat()
}

fn attributes(ino: u64) -> Vec<u8> {
    let mode: u32 = if ino == ROOT { 0o4_0755 } else { 0o10_0600 };
    // Behind sizes and times.
    let rest = numbers(&[mode, 1, 0, 0, 0, 4096, 0], 28);
    [ino.to_ne_bytes().to_vec(), vec![0; 52], rest].concat()
}

/// It exited with 0, and the files had nothing in them.
#[test]
fn a_copy_that_fails_when_it_is_closed_is_none() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only user 0 may mount a file system of this test's");
        return;
    }
    let Some(place) = MountPlace::with_volume(16 << 20) else { return };
    place.change(|session| {
        put(session, "/small", b"a few bytes");
        put(session, "/large", &vec![7; 3 << 20]);
    });
    let served = serve(place.path("mnt"));
    for options in ["", "-a", "--parents"] {
        let line = format!("cp --json {options} vol.img:/small vol.img:/large mnt");
        let answer = place
            .line(&line)
            .expect(1, &[r#"mnt/small","what":"No space left on device"#, r#"mnt/large","what":"No space"#]);
        assert_eq!(answer.json()["files"], 0, "{answer:?}");
        let names = served.names.lock().unwrap();
        assert!(names.is_empty(), "{line}: {names:?}");
    }
}
