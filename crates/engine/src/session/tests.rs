//! What others may do with a file that has lost its last name while its last handle closes.

use super::*;
use myriad_device::{BlockDevice, FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn volume() -> (Fs, Session) {
    volume_on(Arc::new(MemoryDevice::new(16 << 20)), &MkfsOptions::default())
}

fn volume_on(device: Arc<dyn BlockDevice>, made: &MkfsOptions) -> (Fs, Session) {
    Fs::format_device(device.clone(), None, made).unwrap();
    let options = MountOptions { background: false, commit_interval_ms: 0, ..MountOptions::default() };
    let fs = Fs::open_device(device, None, options).unwrap();
    let session = fs.session(Cred::root());
    (fs, session)
}

/// Does `f` where the file's only handle has been closed, and the file is not freed yet.
fn while_it_closes(file: File, f: impl FnOnce()) {
    file.file.opens.fetch_sub(1, Ordering::AcqRel);
    f();
    file.file.opens.fetch_add(1, Ordering::AcqRel);
}

/// Who opened it lost what he wrote, without an error; who named it, what was written before.
#[test]
fn a_file_that_is_being_freed_is_neither_opened_nor_named() {
    let (fs, session) = volume();
    let used = fs.statfs().unwrap().inodes_used;
    let file = session.open_tmpfile("/", 0o600).unwrap();
    file.write_at(&[1; 5000], 0).unwrap();
    let node = file.node();
    while_it_closes(file, || {
        let stale = |result: Result<()>| assert!(matches!(result, Err(Error::Refused(Errno::STALE))), "{result:?}");
        stale(session.open_node(node, OpenOptions::READ_WRITE).map(drop));
        stale(session.set_attr_node(node, SetAttr { size: Some(7), ..SetAttr::default() }).map(drop));
        stale(fs.session_checked(Cred::root()).link_at(node, session.root(), b"name").map(drop));
    });
    assert_eq!(session.stat_node(node).unwrap_err().errno(), Errno::STALE);
    assert_eq!(fs.statfs().unwrap().inodes_used, used);
    assert_eq!(fs.volume().files.dirty_pages.load(Ordering::Relaxed), 0);
    assert!(fs.volume().files.find(Ino(node.ino())).is_none());
}

/// Whoever frees a file late may find another one under its number, which is somebody else's to free.
#[test]
fn only_the_orphan_that_was_meant_is_freed() {
    let (fs, session) = volume();
    let first = session.open_tmpfile("/", 0o600).unwrap().node();
    let file = session.open_tmpfile("/", 0o600).unwrap();
    let second = file.node();
    assert!(first.ino() == second.ino() && first.generation() != second.generation());
    while_it_closes(file, || {
        crate::ops::reclaim(fs.volume(), first).unwrap();
        assert_eq!(session.stat_node(second).unwrap().nlink, 0);
    });
    assert_eq!(session.stat_node(second).unwrap_err().errno(), Errno::STALE);
}

/// A file was closed for the last time while the host had no room. That it was still to be freed was forgotten until the volume was closed: a full
/// volume stayed full, whatever was synced.
#[test]
fn a_file_that_the_host_had_no_room_to_free_is_freed_later() {
    const PIECES: u64 = 1500;
    for by_sync in [true, false] {
        let device = Arc::new(FaultDevice::new(MemoryDevice::new(16 << 20)));
        let (fs, session) =
            volume_on(device.clone(), &MkfsOptions { log_size: Some(256 << 10), ..MkfsOptions::default() });
        let before = fs.statfs().unwrap();
        let file = session.open_tmpfile("/", 0o600).unwrap();
        for piece in 0..PIECES {
            file.write_at(&[1; 4096], 2 * piece * 4096).unwrap();
        }
        fs.sync().unwrap();
        // With a page that has no block yet.
        file.write_at(&[1; 4096], 4096).unwrap();
        device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
        let mut made = 0;
        let refused = loop {
            match session.open(&format!("{made}"), OpenOptions::CREATE) {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::HostFull(_)), "{refused}");
        drop(file);
        assert_eq!(fs.statfs().unwrap().inodes_used, before.inodes_used + made + 1, "nothing was put off");
        device.clear();
        let left = fs.statfs().unwrap().available_blocks;
        if by_sync {
            fs.sync().unwrap();
        } else {
            let filler = session.open("0", OpenOptions::READ_WRITE).unwrap();
            let mut end = 0;
            while let Ok(count) = filler.write_at(&[3; 4096], end) {
                end += count as u64;
            }
            // Some of it was freed before the host was asked for room.
            assert!(end / 4096 > left + PIECES / 3, "{} blocks, and there were {left}", end / 4096);
        }
        assert_eq!(fs.statfs().unwrap().inodes_used, before.inodes_used + made);
        assert_eq!(fs.volume().totals.reserved_blocks.load(Ordering::Relaxed), 0, "promises");
    }
}
