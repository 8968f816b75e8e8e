//! A child forked by a process that has a volume open gets a clear error instead of a copy of the parent's cache. One test
//! alone, for fork(2) takes along whatever other threads hold.

use myriad_device::MemoryDevice;
use myriad_engine::{Cred, Errno, Error, Fs, MkfsOptions, MountOptions, OpenOptions, RenameMode, SetAttr, XattrMode};
use std::sync::Arc;

#[test]
fn a_forked_child_is_refused_and_the_parent_goes_on() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let options = MountOptions { background: false, cache_size: 8 << 20, ..MountOptions::default() };
    let fs = Fs::open_device(device, None, options).unwrap();
    let session = fs.session(Cred::root());
    let write = OpenOptions { read: true, write: true, create: true, mode: 0o644, ..OpenOptions::default() };
    let file = session.open("f", write).unwrap();
    file.write_at(b"parent", 0).unwrap();
    session.mkdir("dir", 0o755).unwrap();
    // SAFETY: the child calls what allocates, which the C library allows after fork, and leaves by _exit without running
    // destructors or the test harness.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let refused = |error: Error| matches!(&error, Error::InUse(said) if said.contains("a forked child")) as i32;
        let mut buf = [0; 6];
        let attr = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let answers = [
            file.read_at(&mut buf, 0).map_or_else(refused, |_| 0),
            file.write_at(b"child", 0).map_or_else(refused, |_| 0),
            file.truncate(0).map_or_else(refused, |_| 0),
            file.sync().map_or_else(refused, |_| 0),
            fs.sync().map_or_else(refused, |_| 0),
            session.mkdir("new", 0o755).map_or_else(refused, |_| 0),
            session.create("new", 0o644).map_or_else(refused, |_| 0),
            session.rename("f", "g", RenameMode::Replace).map_or_else(refused, |()| 0),
            session.link("f", "g").map_or_else(refused, |()| 0),
            session.unlink("f").map_or_else(refused, |()| 0),
            session.rmdir("dir").map_or_else(refused, |()| 0),
            session.set_attr_node(file.node(), attr).map_or_else(refused, |_| 0),
            session.set_xattr_node(file.node(), b"user.a", b"1", XattrMode::Set).map_or_else(refused, |()| 0),
            session.open("f", OpenOptions { truncate: true, ..write }).map_or_else(refused, |_| 0),
        ];
        drop(file);
        // SAFETY: ends the process, nothing else.
        unsafe { libc::_exit(answers.iter().sum()) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place for the answer, and the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status));
    assert_eq!(libc::WEXITSTATUS(status), 14, "so many of fourteen were refused");
    let mut buf = [0; 6];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 6);
    assert_eq!(&buf, b"parent");
    drop((file, session));
    assert!(fs.sync().is_ok() && fs.statfs().is_ok());
    assert_eq!(Error::in_use("").errno(), Errno::BUSY);
    fs.close().unwrap();
}
