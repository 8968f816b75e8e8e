//! `security.capability`: what a program may do that its user may not (capabilities(7)). It goes with any change of content or owner.

use myriad_engine::{AllocateMode, Cred, Errno, Fs, Node, OpenOptions, Session, SetAttr, SetTime, XattrMode};

const CAPABILITIES: &[u8] = b"security.capability";
/// cap_net_raw, permitted.
const VALUE: &[u8] = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// chattr(1), `a`.
const APPEND: u32 = myriad_format::inode::flag::APPEND;

/// Makes a file with capabilities, changes it by what `change` does, and says whether it still has them.
fn keeps(owner: &Session, change: impl FnOnce(Node)) -> bool {
    owner.write("program", [7; 9000]).unwrap();
    let node = owner.stat("program").unwrap().node();
    owner.set_attr_node(node, SetAttr { mode: Some(0o777), ..SetAttr::default() }).unwrap();
    owner.set_xattr("program", b"user.note", b"stays", XattrMode::Set).unwrap();
    owner.set_xattr("program", CAPABILITIES, VALUE, XattrMode::Set).unwrap();
    change(node);
    assert_eq!(owner.get_xattr_node(node, b"user.note").unwrap(), b"stays");
    let has = match owner.get_xattr_node(node, CAPABILITIES) {
        Ok(value) => value == VALUE,
        Err(error) if error.errno() == Errno::NODATA => false,
        Err(error) => panic!("{error}"),
    };
    owner.set_attr_node(node, SetAttr { flags: Some(0), ..SetAttr::default() }).unwrap();
    owner.unlink("program").unwrap();
    has
}

#[test]
fn who_changes_content_or_owner_takes_them() {
    let fs = Fs::in_memory(64 << 20).unwrap();
    let root = fs.session(Cred::root());
    let user = fs.session(Cred { uid: 1000, gid: 1000, ..Cred::root() });
    for by in [&root, &user] {
        let open = |node| by.open_node(node, OpenOptions::READ_WRITE).unwrap();
        assert!(!keeps(&root, |node| assert_eq!(open(node).write_at(b"x", 3).unwrap(), 1)));
        assert!(!keeps(&root, |node| open(node).truncate(5).unwrap()));
        assert!(!keeps(&root, |node| open(node).allocate(AllocateMode::Punch, 0, 4096).unwrap()));
        assert!(!keeps(&root, |node| {
            by.open_node(node, OpenOptions { truncate: true, ..OpenOptions::READ_WRITE }).unwrap();
        }));
        assert!(!keeps(&root, |node| {
            by.set_attr_node(node, SetAttr { size: Some(9), ..SetAttr::default() }).unwrap();
        }));
        // Nobody who looks, and nobody who does nothing.
        assert!(keeps(&root, |node| assert_eq!(open(node).read_at(&mut [0; 9], 0).unwrap(), 9)));
        assert!(keeps(&root, |node| assert_eq!(open(node).write_at(b"", 3).unwrap(), 0)));
    }
    let given = |attr: SetAttr| {
        keeps(&root, |node| {
            root.set_attr_node(node, attr).unwrap();
        })
    };
    assert!(!given(SetAttr { uid: Some(1000), ..SetAttr::default() }));
    assert!(!given(SetAttr { gid: Some(0), mode: Some(0o755), ..SetAttr::default() }));
    assert!(given(SetAttr { mode: Some(0o700), ..SetAttr::default() }));
    assert!(given(SetAttr { mtime: Some(SetTime::At(5)), ..SetAttr::default() }));
}

/// A file that may only be appended to refuses changes of its attributes, but not this one.
#[test]
fn who_appends_takes_them_too() {
    let fs = Fs::in_memory(64 << 20).unwrap();
    let root = fs.session(Cred::root());
    assert!(!keeps(&root, |node| {
        root.set_attr_node(node, SetAttr { flags: Some(APPEND), ..SetAttr::default() }).unwrap();
        let file = root.open_node(node, OpenOptions { append: true, ..OpenOptions::default() }).unwrap();
        assert_eq!(file.write_at(b"more", 0).unwrap(), 4);
    }));
}

/// The kernel takes them itself, and may send what it has cached after the file was given new ones. A directory has none to take.
#[test]
fn what_a_kernel_has_checked_leaves_them() {
    let fs = Fs::in_memory(64 << 20).unwrap();
    let root = fs.session(Cred::root());
    let kernel = fs.session_checked(Cred::root());
    assert!(keeps(&root, |node| {
        assert_eq!(kernel.open_node(node, OpenOptions::READ_WRITE).unwrap().write_at(b"x", 3).unwrap(), 1);
    }));
    root.mkdir("d", 0o755).unwrap();
    root.set_xattr("d", CAPABILITIES, VALUE, XattrMode::Set).unwrap();
    root.set_attr_node(root.stat("d").unwrap().node(), SetAttr { uid: Some(1), ..SetAttr::default() }).unwrap();
    assert_eq!(root.get_xattr("d", CAPABILITIES).unwrap(), VALUE);
}
