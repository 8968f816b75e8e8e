//! Each kind of request, by the system calls that send it.

mod common;

use common::mounted;
use std::fs;

#[test]
fn files_are_made_written_and_read() {
    skip_without_mounts!();
    let mount = mounted();
    fs::create_dir(mount.path("dir")).unwrap();
    fs::write(mount.path("dir/file"), b"content").unwrap();
    assert_eq!(fs::read(mount.path("dir/file")).unwrap(), b"content");
    println!("{}", mount.handle().stats().to_text());
    mount.unmount();
}
