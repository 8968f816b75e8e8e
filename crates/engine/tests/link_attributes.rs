//! Attributes of symbolic links, whose targets lie where an attribute root would.

use myriad_engine::Cred;
use myriad_trials::setup::{Devices, Setup};
use myriad_trials::verdict::check_silent;
use std::sync::Arc;

/// ENOSPC, on an empty volume: the target had to leave the fork, and the block of the inode had no room for a body.
#[test]
fn a_link_gets_a_large_attribute_though_the_block_of_its_inode_is_full() {
    for (block_size, data_checksums) in [(512, false), (4096, false), (4096, true), (16384, true)] {
        let mut setup = Setup::new(block_size, 64 << 20);
        setup.data_checksums = data_checksums;
        let device = Devices::from(Arc::new(setup.format()));
        let fs = setup.open(device.clone()).unwrap();
        let session = fs.session(Cred::root());
        // The inodes of a block or two.
        let links = i32::try_from(block_size / 128 + 8).unwrap();
        let target = |i: i32| [&vec![b't'; 22 + i as usize % 8][..], format!("{i:03}").as_bytes()].concat();
        let value = |i: i32| vec![i as u8; 600];
        for i in 0..links {
            session.symlink(&target(i), &format!("{i}")).unwrap();
        }
        for i in 0..links {
            let node = session.lstat(&format!("{i}")).unwrap().node();
            session.set_xattr_node(node, b"trusted.large", &value(i), Default::default()).unwrap();
        }
        fs.drop_caches().unwrap();
        for i in 0..links {
            let node = session.lstat(&format!("{i}")).unwrap().node();
            assert_eq!(session.readlink(&format!("{i}")).unwrap(), target(i));
            assert_eq!(session.get_xattr_node(node, b"trusted.large").unwrap(), value(i));
        }
        fs.sync().unwrap();
        check_silent(&device).unwrap();
        for i in 0..links {
            session.unlink(&format!("{i}")).unwrap();
        }
        drop(session);
        fs.close().unwrap();
        check_silent(&device).unwrap();
    }
}
