//! What of a file shows before the rest: its size over blocks that it has given up, and attributes in several blocks.

use super::{FILLING, setup, with_full_groups};
use crate::recorded::Volume;
use myriad_engine::{OpenOptions, Session, XattrMode};

/// Cuts a file at a block, and has it grow by `more` bytes of `y` behind that, or of nothing.
fn cut_and_grow(session: &Session, cut: u64, size: u64, is_written: bool) {
    let file = session.open("f", OpenOptions::READ_WRITE).unwrap();
    file.truncate(cut).unwrap();
    if is_written {
        file.write_at(&vec![b'y'; (size - cut) as usize], cut).unwrap();
    } else {
        file.truncate(size).unwrap();
    }
}

/// A file was cut at a block and grew again, behind what its own inode points to. Its new size showed while its block of pointers still led to what
/// had been cut off: 1 KiB blocks, of which the inode has twelve pointers.
#[test]
fn what_was_cut_off_does_not_show_with_a_new_size() {
    let setup = setup(1024, 8 << 20);
    for (cut, size) in [(16 << 10, 22 << 10), (16 << 10, 19 << 10), (4 << 10, 22 << 10)] {
        for is_written in [false, true] {
            let volume = Volume::new(&setup);
            volume.session.write("f", vec![b'x'; 20 << 10]).unwrap();
            let mut found = [0; 2];
            for state in volume.states(|session| cut_and_grow(session, cut, size, is_written)) {
                state.check();
                let content = state.open(&setup).session.read("f").unwrap();
                if content.len() == 20 << 10 {
                    found[0] += 1;
                    continue;
                }
                found[1] += 1;
                let is_old = content[cut as usize..].contains(&b'x');
                assert!(!is_old, "cut at {cut}, then {size} bytes, {}: what was cut off shows", state.what);
            }
            assert!(found.iter().all(|&count| count > 0), "{found:?}");
        }
    }
}

/// The same, where the file has got attributes. They lie in a new block, so the first round hid them, and with them the pointers; another change of
/// the inode showed, and with it the size.
#[test]
fn a_new_size_waits_for_attributes_that_wait() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.session.write("f", [b'x'; 3 << 10]).unwrap();
    let states = volume.states(|session| {
        cut_and_grow(session, 0, 4 << 10, false);
        session.set_xattr("f", b"user.a", &[b'a'; 600], XattrMode::Set).unwrap();
        session.link("f", "second").unwrap();
    });
    for state in states {
        state.check();
        let content = state.open(&setup).session.read("f").unwrap();
        assert!(content.len() != 4 << 10 || !content.contains(&b'x'), "{}: old content", state.what);
    }
}

/// Attributes in several blocks are a chain, each block of which may lie anywhere. A round asked for the blocks behind the first one instead: at the end
/// of a group there are none, the attributes waited for ever, and the volume was shut down.
#[test]
fn attributes_of_several_blocks_show_wherever_they_lie() {
    let (setup, volume) = with_full_groups();
    let session = &volume.session;
    // The last blocks of the group were taken last.
    let size = |name: &String| session.stat(name).map_or(0, |found| found.size);
    let last = (0..FILLING).map(|i| format!("big{i}")).rfind(|name| size(name) > 0).unwrap();
    session.open(&last, OpenOptions::READ_WRITE).unwrap().truncate(size(&last) - (4 << 10)).unwrap();
    volume.fs.sync().unwrap();
    let value = [b'a'; 3 << 10];
    let set = |session: &Session| session.set_xattr("f", b"user.big", &value, XattrMode::Set).unwrap();
    for state in volume.states(set) {
        state.check();
        let found = state.open(&setup).session.get_xattr("f", b"user.big");
        assert!(found.is_err() || found.unwrap() == value, "{}", state.what);
    }
    assert_eq!(session.get_xattr("f", b"user.big").unwrap(), value);
}
