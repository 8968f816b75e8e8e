//! What others may do with a file that has lost its last name while its last handle closes.

use super::*;
use myriad_device::MemoryDevice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn volume() -> (Fs, Session) {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
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
