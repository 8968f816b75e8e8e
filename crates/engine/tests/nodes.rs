//! What a mount needs of the engine: files held without names or handles, callers checked by somebody else.

use myriad_check::{Options as CheckOptions, check};
use myriad_device::{FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_engine::{
    AllocateMode, Clock, Cred, Errno, Error, File, Fs, Keeper, MkfsOptions, MountOptions, Node, OpenOptions, Order,
    RenameMode, SetAttr, SetTime,
};
use myriad_format::choices::PROFILES;
use std::collections::HashSet;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex};

/// Holds what it was told to, once, and remembers what it was asked to hold.
#[derive(Default)]
struct Known {
    nodes: Mutex<HashSet<Node>>,
    held: Mutex<Vec<Node>>,
    /// Told of as changed.
    changed: Mutex<Vec<Node>>,
}

impl Keeper for Known {
    fn hold(&self, node: Node) -> bool {
        let known = self.nodes.lock().unwrap().remove(&node);
        if known {
            self.held.lock().unwrap().push(node);
        }
        known
    }

    fn attributes_changed(&self, node: Node) {
        self.changed.lock().unwrap().push(node);
    }

    fn given_back(&self, _: Node) {}
}

fn volume() -> (Arc<MemoryDevice>, Fs, Arc<Known>) {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let fs = open(&device);
    let known = Arc::new(Known::default());
    fs.set_keeper(known.clone());
    (device, fs, known)
}

fn open(device: &Arc<MemoryDevice>) -> Fs {
    let options = MountOptions { background: false, commit_interval_ms: 0, ..MountOptions::default() };
    Fs::open_device(device.clone(), None, options).unwrap()
}

fn assert_sound(device: &Arc<MemoryDevice>) {
    let report = check(device.clone(), None, &CheckOptions::default()).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
}

#[test]
fn a_held_file_outlives_its_name_until_it_is_released() {
    let (device, fs, known) = volume();
    let session = fs.session(Cred::root());
    let root = session.root();
    for (victim, remove) in [("a", "unlink"), ("b", "rename"), ("c", "rmdir")] {
        let node = match remove {
            "rmdir" => session.mkdir(victim, 0o755).unwrap(),
            _ => session.create(victim, 0o644).unwrap(),
        };
        known.nodes.lock().unwrap().insert(node);
        if remove != "rmdir" {
            session.open_node(node, OpenOptions::READ_WRITE).unwrap().write_at(b"still here", 0).unwrap();
        }
        match remove {
            "unlink" => session.unlink_at(root, b"a").unwrap(),
            "rename" => {
                session.create("new", 0o644).unwrap();
                session.rename_at(root, b"new", root, b"b", RenameMode::Replace).unwrap();
            }
            _ => session.rmdir_at(root, b"c").unwrap(),
        }
        assert_eq!(known.held.lock().unwrap().pop(), Some(node));
        assert_eq!(session.stat_node(node).unwrap().nlink, 0);
        // Opened and closed, written and flushed, it is still held.
        if remove != "rmdir" {
            session.open_node(node, OpenOptions::READ_WRITE).unwrap().write_at(b"and", 6).unwrap();
            fs.sync().unwrap();
            let mut buf = [0; 10];
            assert_eq!(session.open_node(node, OpenOptions::READ_WRITE).unwrap().read_at(&mut buf, 0).unwrap(), 10);
            assert_eq!(&buf, b"still ande");
        }
        fs.release(node);
        assert_eq!(session.stat_node(node).unwrap_err().errno(), Errno::STALE);
    }
    drop(session);
    fs.close().unwrap();
    assert_sound(&device);
}

/// A mount reads and writes by handles that last for a request. If one was open when the name went, the keeper was not
/// asked, and the file went with that handle, though programs had it open.
#[test]
fn a_file_in_use_as_its_name_goes_is_held_beyond_that_use() {
    let (_, fs, known) = volume();
    let session = fs.session_checked(Cred::root());
    let node = session.create("file", 0o644).unwrap();
    known.nodes.lock().unwrap().insert(node);
    let file = session.open_node(node, OpenOptions::READ_WRITE).unwrap();
    file.write_at(b"content", 0).unwrap();
    session.unlink_at(session.root(), b"file").unwrap();
    drop(file);
    let mut bytes = [0; 7];
    assert_eq!(session.open_node(node, OpenOptions::READ).unwrap().read_at(&mut bytes, 0).unwrap(), 7);
    // Named and removed again, it is held as before.
    session.link_at(node, session.root(), b"file").unwrap();
    session.unlink_at(session.root(), b"file").unwrap();
    assert_eq!(session.stat_node(node).unwrap().nlink, 0);
    fs.release(node);
    assert_eq!(session.stat_node(node).unwrap_err().errno(), Errno::STALE);
}

/// A keeper whose node is forgotten while it is being asked for it.
struct Forgetful {
    fs: Mutex<Option<Fs>>,
    forgetting: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Keeper for Forgetful {
    fn hold(&self, node: Node) -> bool {
        let fs = self.fs.lock().unwrap().clone().unwrap();
        let (done, wait) = std::sync::mpsc::channel();
        *self.forgetting.lock().unwrap() = Some(std::thread::spawn(move || {
            fs.release(node);
            let _ = done.send(());
        }));
        // It finds the file, and then waits for the inode, which is locked; or it finds nothing and is done.
        let _ = wait.recv_timeout(std::time::Duration::from_millis(200));
        true
    }

    fn attributes_changed(&self, _node: Node) {}

    fn given_back(&self, _node: Node) {}
}

/// The file was open only once the keeper had answered. Released before that, it was never released.
#[test]
fn a_file_forgotten_while_it_loses_its_name_is_gone() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let fs = open(&device);
    let keeper = Arc::new(Forgetful { fs: Mutex::new(Some(fs.clone())), forgetting: Mutex::new(None) });
    fs.set_keeper(keeper.clone());
    let session = fs.session(Cred::root());
    let node = session.create("file", 0o644).unwrap();
    session.unlink("file").unwrap();
    keeper.forgetting.lock().unwrap().take().unwrap().join().unwrap();
    keeper.fs.lock().unwrap().take();
    assert_eq!(session.stat_node(node).unwrap_err().errno(), Errno::STALE);
    drop(session);
    fs.close().unwrap();
    assert_sound(&device);
}

/// A keeper that does not hold a file leaves no trace of having been asked.
#[test]
fn a_file_that_nobody_holds_is_gone_with_its_name() {
    let (device, fs, known) = volume();
    let session = fs.session(Cred::root());
    for is_dirty in [false, true] {
        let node = session.create("file", 0o644).unwrap();
        if is_dirty {
            session.open_node(node, OpenOptions::READ_WRITE).unwrap().write_at(b"unflushed", 0).unwrap();
        }
        session.unlink("file").unwrap();
        assert_eq!(session.stat_node(node).unwrap_err().errno(), Errno::STALE);
    }
    assert!(known.held.lock().unwrap().is_empty());
    drop(session);
    fs.close().unwrap();
    assert_sound(&device);
}

#[test]
fn held_files_are_reclaimed_after_a_crash() {
    let (device, fs, known) = volume();
    let session = fs.session(Cred::root());
    let used = fs.statfs().unwrap().inodes_used;
    let node = session.create("gone", 0o644).unwrap();
    known.nodes.lock().unwrap().insert(node);
    session.unlink("gone").unwrap();
    let tmpfile = session.open_tmpfile_at(session.root(), 0o600).unwrap().hold();
    assert_eq!(session.stat_node(tmpfile).unwrap().nlink, 0);
    fs.sync().unwrap();
    let image = Arc::new(device.clone_image());
    let fs = open(&image);
    assert_eq!(fs.statfs().unwrap().inodes_used, used);
    fs.close().unwrap();
    assert_sound(&image);
}

#[test]
fn a_checked_session_is_refused_nothing_but_owns_what_it_makes() {
    let (_, fs, _) = volume();
    let owner = fs.session(Cred::root());
    owner.mkdir("closed", 0o700).unwrap();
    owner.create("closed/file", 0o6711).unwrap();
    let stranger = Cred { uid: 1000, gid: 1000, groups: vec![], umask: 0 };
    let refused = fs.session(stranger.clone());
    assert_eq!(refused.stat("closed/file").unwrap_err().errno(), Errno::ACCESS);
    let checked = fs.session_checked(stranger);
    let directory = checked.lookup(checked.root(), b"closed").unwrap().node();
    let made = checked.mknod_at(directory, b"made", 0o644, 0).unwrap();
    assert_eq!((made.uid, made.gid), (1000, 1000));
    // Set-id bits go with a stranger's write, whoever checked it.
    let file = checked.lookup(directory, b"file").unwrap();
    assert_eq!(file.mode & 0o7777, 0o6711);
    checked.open_node(file.node(), OpenOptions::READ_WRITE).unwrap().write_at(b"x", 0).unwrap();
    assert_eq!(checked.stat_node(file.node()).unwrap().mode & 0o7777, 0o711);
}

/// Who may write a file may cut it, and may not set its times to what he likes: it was cut, and then he was refused.
#[test]
fn who_may_not_change_all_attributes_changes_none() {
    let (_, fs, _) = volume();
    let root = fs.session(Cred { umask: 0, ..Cred::root() });
    let node = root.mknod("/file", 0o100_666, 0).unwrap();
    root.open_node(node, OpenOptions::READ_WRITE).unwrap().write_at(b"content", 0).unwrap();
    let other = fs.session(Cred { uid: 1000, gid: 1000, groups: Vec::new(), umask: 0 });
    let file = other.open_node(node, OpenOptions::READ_WRITE).unwrap();
    for rest in [
        SetAttr { mtime: Some(SetTime::At(5)), ..SetAttr::default() },
        SetAttr { mode: Some(0o600), ..SetAttr::default() },
        SetAttr { uid: Some(1000), ..SetAttr::default() },
    ] {
        let attr = SetAttr { size: Some(3), ..rest };
        for answer in [other.set_attr_node(node, attr), file.set_attr(attr)] {
            assert!(matches!(answer, Err(Error::Refused(Errno::PERM))), "{answer:?}");
            assert_eq!(root.stat_node(node).unwrap().size, 7);
        }
    }
    let now = SetAttr { size: Some(3), atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
    assert_eq!(other.set_attr_node(node, now).unwrap().size, 3);
    assert_eq!(file.set_attr(SetAttr { size: Some(2), ..now }).unwrap().size, 2);
}

#[test]
fn blocks_of_unflushed_data_are_told() {
    let (_, fs, _) = volume();
    let session = fs.session(Cred::root());
    let node = session.create("file", 0o644).unwrap();
    let file = session.open_node(node, OpenOptions::READ_WRITE).unwrap();
    file.write_at(&[1; 20000], 0).unwrap();
    let blocks = || {
        let stat = file.stat().unwrap();
        (stat.blocks, fs.are_blocks_estimated(&stat))
    };
    assert_eq!(blocks(), (40, false), "all its data is new");
    fs.sync().unwrap();
    assert_eq!(blocks(), (40, false));
    // Over blocks that are there, and then over none.
    file.write_at(&[2; 8192], 0).unwrap();
    assert_eq!(blocks(), (40, true));
    file.truncate(0).unwrap();
    file.write_at(&[3; 5000], 0).unwrap();
    assert_eq!(file.stat().unwrap().blocks, 16);
}

/// The block that a removed directory's inode was in is given back. The device still has it as it was: read from there
/// again, the directory would be back, with names of inodes that others have by now, and removing one would free it.
#[test]
fn what_is_gone_does_not_come_back_with_its_block() {
    let (device, fs, _) = volume();
    let session = fs.session(Cred::root());
    // In a group of their own, and in blocks of their own.
    let directories: Vec<Node> = (0..40).map(|i| session.mkdir(&format!("directory {i}"), 0o755).unwrap()).collect();
    for directory in &directories {
        for file in 0..40 {
            session.mknod_at(*directory, format!("file {file}").as_bytes(), 0o644, 0).unwrap();
        }
    }
    // Home, as the log alone would not be read again.
    fs.drop_caches().unwrap();
    for i in 0..40 {
        session.remove_tree(&format!("directory {i}"), &mut |_| true).unwrap();
    }
    for _ in 0..3 {
        fs.sync().unwrap();
    }
    let stale = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Refused(Errno::STALE))), "{result:?}");
    for directory in directories {
        stale(session.stat_node(directory).map(drop));
        stale(session.read_dir_at(directory, 0, 10).map(drop));
        stale(session.lookup(directory, b"file 1").map(drop));
        stale(session.unlink_at(directory, b"file 1"));
        stale(session.mkdir_at(directory, b"new", 0o755).map(drop));
        stale(session.node(directory.ino()).map(drop));
    }
    drop(session);
    fs.close().unwrap();
    assert_sound(&device);
}

/// As above, after the volume has been opened anew: who comes with a number, as an NFS client does, was given the inode
/// that the device had kept of it.
#[test]
fn what_is_gone_does_not_come_back_with_the_next_opening() {
    let (device, fs, _) = volume();
    let session = fs.session(Cred::root());
    let nodes: Vec<Node> = (0..500).map(|i| session.mknod(&format!("file {i}"), 0o644, 0).unwrap()).collect();
    // Home.
    fs.drop_caches().unwrap();
    for i in 0..500 {
        session.unlink(&format!("file {i}")).unwrap();
    }
    for _ in 0..3 {
        fs.sync().unwrap();
    }
    drop(session);
    fs.close().unwrap();
    let fs = Fs::open_device(device, None, MountOptions::default()).unwrap();
    let session = fs.session(Cred::root());
    for node in nodes {
        let found = session.node(node.ino());
        assert!(matches!(found, Err(Error::Refused(Errno::STALE))), "{found:?}");
    }
    assert_eq!(session.node(session.root().ino()).unwrap(), session.root());
}

/// A listing's attributes are those of its names: not of a file that was given the number since, and also those of a file
/// whose first name is gone.
#[test]
fn attributes_of_a_listing_are_those_of_its_names() {
    let (_, fs, _) = volume();
    let session = fs.session(Cred::root());
    let directory = session.mkdir("directory", 0o755).unwrap();
    for name in ["gone", "first", "kept"] {
        session.mknod_at(directory, name.as_bytes(), 0o644, 0).unwrap();
    }
    session.link("directory/first", "directory/second").unwrap();
    session.unlink("directory/first").unwrap();
    let entries = session.read_dir_at(directory, 0, 10).unwrap();
    let told = || -> Vec<Option<u64>> {
        session
            .stat_entries(directory, &entries, |_| true)
            .iter()
            .map(|stat| stat.as_ref().map(|stat| stat.ino))
            .collect()
    };
    let numbers: Vec<_> = entries.iter().map(|entry| Some(entry.ino)).collect();
    assert_eq!(told(), numbers);
    let gone = entries.iter().position(|entry| entry.name == b"gone").unwrap();
    session.unlink("directory/gone").unwrap();
    let reused = (0..100).map(|i| session.create(&format!("directory/new {i}"), 0o644).unwrap());
    let reused: Vec<_> = reused.filter(|node| node.ino() == entries[gone].ino).collect();
    assert_eq!(reused.len(), 1, "the number is used again");
    session.link_at(reused[0], directory, b"one more name").unwrap();
    let mut now = numbers;
    now[gone] = None;
    assert_eq!(told(), now);
}

/// A name that is gone is not told of by the identity of a file that it was one of the names of: the file is there, under the others. Nor is another
/// file that has the name now.
#[test]
fn attributes_of_a_listing_are_of_no_name_that_is_gone() {
    let (_, fs, _) = volume();
    let session = fs.session(Cred::root());
    let directory = session.mkdir("directory", 0o755).unwrap();
    session.create("other", 0o644).unwrap();
    for name in ["removed", "replaced", "made anew"] {
        session.mknod_at(directory, name.as_bytes(), 0o644, 0).unwrap();
        session.link(&format!("directory/{name}"), &format!("one more of {name}")).unwrap();
    }
    session.create("directory/moved", 0o644).unwrap();
    session.create("directory/replaced without another name", 0o644).unwrap();
    let entries = session.read_dir_at(directory, 0, 10).unwrap();
    let told = || -> Vec<_> {
        session.stat_entries(directory, &entries, |_| true).into_iter().map(|stat| stat.map(|stat| stat.ino)).collect()
    };
    assert_eq!(told(), entries.iter().map(|entry| Some(entry.ino)).collect::<Vec<_>>());
    for name in ["removed", "made anew"] {
        session.unlink(&format!("directory/{name}")).unwrap();
    }
    session.create("directory/made anew", 0o644).unwrap();
    session.rename("other", "directory/replaced", RenameMode::Replace).unwrap();
    session.rename("directory/moved", "directory/replaced without another name", RenameMode::Replace).unwrap();
    assert_eq!(told(), [None; 5]);
    // By its name each is what it is now.
    let ino = |path: &str| session.stat(path).unwrap().ino;
    assert_eq!(session.stat("directory/removed").map(drop).unwrap_err().errno(), Errno::NOENT);
    assert_ne!(ino("directory/made anew"), ino("one more of made anew"));
    // A name that its file has got back.
    session.link("one more of removed", "directory/removed").unwrap();
    let removed = entries.iter().position(|entry| entry.name == b"removed").unwrap();
    assert_eq!(told()[removed], Some(entries[removed].ino));
}

/// A directory that may be listed and not searched told of sizes and owners, and a walk went down into what lay below it.
#[test]
fn attributes_of_a_listing_are_for_who_may_search() {
    let (_, fs, _) = volume();
    let owner = fs.session(Cred::root());
    owner.create_dir_all("list/below").unwrap();
    owner.write("list/below/deep", b"x").unwrap();
    owner.write("list/file", b"x").unwrap();
    owner.link("list/file", "list/other").unwrap();
    let dir = owner.stat("list").unwrap().node();
    let stranger = fs.session(Cred { uid: 1000, gid: 1000, groups: vec![], umask: 0 });
    for (mode, may_search) in [(0o755, true), (0o754, false)] {
        owner.set_attr_node(dir, SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
        let listed = stranger.read_dir_plus_at(dir, 0, 100).unwrap();
        assert_eq!(listed.len(), 3);
        assert!(listed.iter().all(|(_, stat)| stat.is_some() == may_search), "{mode:o}: {listed:?}");
        let entries: Vec<_> = listed.into_iter().map(|(entry, _)| entry).collect();
        let stats = stranger.stat_entries(dir, &entries, |_| true);
        assert!(stats.iter().all(|stat| stat.is_some() == may_search), "{mode:o}: {stats:?}");
        let walked: Vec<_> = stranger.walk("list").unwrap().collect();
        let refused =
            walked.iter().filter(|step| matches!(step, Err(step) if step.error.errno() == Errno::ACCESS)).count();
        assert_eq!((walked.len(), refused), if may_search { (5, 0) } else { (4, 3) }, "{mode:o}: {walked:?}");
        assert_eq!(owner.walk("list").unwrap().filter(Result::is_ok).count(), 5);
    }
}

/// An inode knows the place of its first name. Lost and given again, the name lay in another one, and check found fault
/// with that.
#[test]
fn a_first_name_given_again_is_where_the_inode_says() {
    let (device, fs, _) = volume();
    let session = fs.session(Cred::root());
    session.create("first", 0o644).unwrap();
    session.link("first", "second").unwrap();
    session.unlink("first").unwrap();
    session.create("n", 0o644).unwrap();
    session.link("second", "first").unwrap();
    drop(session);
    fs.close().unwrap();
    assert_sound(&device);
}

/// Generations began with the time at each opening: who makes files faster than a thousand a second gave some of them twice,
/// and an old node reached another file. The last opening's writer may have crashed.
#[test]
fn a_node_of_an_earlier_opening_reaches_no_other_file() {
    let mut device = Arc::new(MemoryDevice::new(64 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    // Time stands still.
    let clock = Clock::Manual(Arc::new(AtomicI64::new(1_700_000_000_000_000_000)));
    let open = |device: &Arc<MemoryDevice>| {
        let options = MountOptions { background: false, clock: clock.clone(), ..MountOptions::default() };
        Fs::open_device(device.clone(), None, options).unwrap()
    };
    let make = |fs: &Fs| -> Vec<Node> {
        let session = fs.session(Cred::root());
        (0..500).map(|i| session.mknod(&format!("{i}"), 0o644, 0).unwrap()).collect()
    };
    let fs = open(&device);
    let mut old = make(&fs);
    fs.close().unwrap();
    for crash in [false, true, false] {
        let fs = open(&device);
        for i in 0..500 {
            fs.session(Cred::root()).unlink(&format!("{i}")).unwrap();
        }
        let new = make(&fs);
        fs.sync().unwrap();
        let numbers: HashSet<u64> = old.iter().map(|node| node.ino()).collect();
        assert!(new.iter().any(|node| numbers.contains(&node.ino())), "no number is used again");
        for node in &old {
            assert!(!new.contains(node), "{node:?} is another file now");
            let found = fs.session(Cred::root()).stat_node(*node);
            assert!(matches!(found, Err(Error::Refused(Errno::STALE))), "{node:?}: {found:?}");
        }
        old.extend(new);
        let crashed = Arc::new(device.clone_image());
        fs.close().unwrap();
        if crash {
            device = crashed;
        }
    }
}

/// The generation to go on from goes into the superblock with inodes that were made, not because the time has gone on.
#[test]
fn opening_and_a_sync_log_nothing() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    // An hour after it was made.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let clock = Clock::Manual(Arc::new(AtomicI64::new(now.as_nanos() as i64 + 3_600_000_000_000)));
    let options = MountOptions { background: false, clock, ..MountOptions::default() };
    let fs = Fs::open_device(device, None, options).unwrap();
    let logged = || fs.counters().into_iter().find(|(name, _)| *name == "checkpoint_bytes").unwrap().1;
    fs.sync().unwrap();
    assert_eq!(logged(), 0);
    fs.session(Cred::root()).mkdir("directory", 0o755).unwrap();
    fs.sync().unwrap();
    assert!(logged() > 0);
}

/// Who remembers modes was not told of those that a write changes, and took them for what they had been.
#[test]
fn the_keeper_is_told_of_modes_that_change_by_themselves() {
    let (_, fs, known) = volume();
    let root = fs.session(Cred::root());
    let user = fs.session(Cred { uid: 7, gid: 7, groups: vec![], umask: 0 });
    let told = || std::mem::take(&mut *known.changed.lock().unwrap());
    for (mode, after) in [(0o6777, 0o777), (0o4766, 0o766), (0o2766, 0o766), (0o777, 0o777)] {
        let node = root.mknod("/file", 0o100_666, 0).unwrap();
        let chmod = || root.set_attr_node(node, SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
        chmod();
        root.open("/file", OpenOptions::READ_WRITE).unwrap().write_at(b"by user 0", 0).unwrap();
        assert_eq!((told(), root.stat_node(node).unwrap().mode & 0o7777), (vec![], mode));
        let changes: [fn(&File); 3] = [
            |file| assert_eq!(file.write_at(b"content", 0).unwrap(), 7),
            |file| file.truncate(3).unwrap(),
            |file| file.allocate(AllocateMode::Extend, 0, 10_000).unwrap(),
        ];
        for change in changes {
            chmod();
            change(&user.open("/file", OpenOptions::READ_WRITE).unwrap());
            let expected = if mode == after { vec![] } else { vec![node] };
            assert_eq!((told(), root.stat_node(node).unwrap().mode & 0o7777), (expected, after), "{mode:o}");
        }
        root.unlink("/file").unwrap();
    }
}

/// A name was removed or replaced, and the host had no room to make that durable (order `sync`). The error said to a mount's kernel that the
/// file had all its links. Its last name gone, the kernel kept the file, and the file its space.
#[test]
fn the_keeper_is_told_of_a_file_whose_name_went_when_that_could_not_be_made_durable() {
    let choices = PROFILES.iter().find(|profile| profile.name == "ffs").unwrap().choices;
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(64 << 20)));
    let mkfs = MkfsOptions { choices, order: Order::Sync, seed: Some(1), ..MkfsOptions::default() };
    Fs::format_device(device.clone(), None, &mkfs).unwrap();
    let options = MountOptions { background: false, commit_interval_ms: 0, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    let known = Arc::new(Known::default());
    fs.set_keeper(known.clone());
    let (session, told) = (fs.session(Cred::root()), || std::mem::take(&mut *known.changed.lock().unwrap()));
    let (root, file, other) =
        (session.root(), session.create("a", 0o644).unwrap(), session.create("b", 0o644).unwrap());
    for name in ["a2", "a3"] {
        session.link("a", name).unwrap();
    }
    let links = || session.stat_node(file).unwrap().nlink;
    session.unlink_at(root, b"a3").unwrap();
    assert_eq!((links(), told()), (2, vec![]), "nothing went wrong");

    device.fail(FaultOp::Write, 1, FaultSpan::Once, Errno::NOSPC.raw_os_error());
    assert!(matches!(session.unlink_at(root, b"a2"), Err(Error::HostFull(_))));
    assert_eq!((links(), told()), (1, vec![file]));

    device.fail(FaultOp::Write, 1, FaultSpan::Once, Errno::NOSPC.raw_os_error());
    let renamed = session.rename_at(root, b"b", root, b"a", RenameMode::Replace);
    assert!(matches!(renamed, Err(Error::HostFull(_))), "{renamed:?}");
    assert_eq!(told(), [other, file]);
    // A refusal changes nothing.
    assert_eq!(session.unlink_at(root, b"b").unwrap_err().errno(), Errno::NOENT);
    assert_eq!(told(), []);
    drop(session);
    fs.close().unwrap();
    let report = check(device, None, &CheckOptions::default()).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
}
