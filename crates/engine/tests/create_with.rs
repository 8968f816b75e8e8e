//! Files made whole: the same as making, writing and setting attributes one after the other, but in one piece.

use myriad_check::{Options as CheckOptions, check};
use myriad_device::{BlockDevice, CrashImages, FaultDevice, FaultOp, FaultSpan, MemoryDevice, RecordingDevice};
use myriad_engine::{
    Clock, CreateWith, Cred, Errno, Error, Fs, MkfsOptions, MountOptions, Node, OpenOptions, Order, RenameMode,
    Session, SetAttr, SetTime, Stat, XattrMode,
};
use myriad_format::choices::{self, Choices, PROFILES};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

const S_IFIFO: u16 = 0o010000;
const S_IFCHR: u16 = 0o020000;
const S_IFDIR: u16 = 0o040000;
const S_IFREG: u16 = 0o100000;
const S_IFLNK: u16 = 0o120000;
/// user::rwx, user:7:r-x, group::r-x, mask::r-x, other::---
const ACL: &[u8] = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x05\0\x07\0\0\0\
    \x04\0\x05\0\xff\xff\xff\xff\x10\0\x05\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

fn options() -> MountOptions {
    MountOptions {
        background: false,
        commit_interval_ms: 0,
        cache_size: 16 << 20,
        clock: Clock::Manual(Arc::new(AtomicI64::new(1_700_000_000_000_000_000))),
        seed: Some(1),
        ..MountOptions::default()
    }
}

fn volume(size: u64) -> (Arc<MemoryDevice>, Fs) {
    let device = Arc::new(MemoryDevice::new(size));
    Fs::format_device(device.clone(), None, &MkfsOptions { seed: Some(1), ..MkfsOptions::default() }).unwrap();
    let fs = Fs::open_device(device.clone(), None, options()).unwrap();
    (device, fs)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + len) as u8).collect()
}

/// One after the other.
fn in_steps(session: &Session, parent: Node, name: &[u8], new: &CreateWith<'_>) -> Result<Stat, Error> {
    let made = match new.mode & 0o170000 {
        S_IFLNK => session.symlink_at(new.content, parent, name)?,
        _ => session.mknod_at(parent, name, new.mode, new.rdev)?,
    };
    let result = (|| {
        if new.mode & 0o170000 & !S_IFREG == 0 && !new.content.is_empty() {
            session.open_node(made.node(), OpenOptions::READ_WRITE)?.write_at(new.content, 0)?;
        }
        if new.attr == SetAttr::default() {
            session.stat_node(made.node())
        } else {
            session.set_attr_node(made.node(), new.attr)
        }
    })();
    if result.is_err() {
        session.unlink_at(parent, name)?;
    }
    result
}

fn content_of(session: &Session, stat: &Stat) -> Vec<u8> {
    match stat.mode & 0o170000 {
        S_IFLNK => session.readlink_node(stat.node()).unwrap(),
        S_IFREG => {
            let mut content = vec![0; stat.size as usize + 1];
            let count = session.open_node(stat.node(), OpenOptions::READ).unwrap().read_at(&mut content, 0).unwrap();
            content.truncate(count);
            content
        }
        _ => Vec::new(),
    }
}

#[test]
fn it_is_making_writing_and_setting_attributes() {
    let twins = [volume(256 << 20), volume(256 << 20)];
    let long = vec![b'l'; 3000];
    let contents: Vec<(u16, Vec<u8>)> = [0, 1, 511, 4096, 4097, 70_000, 1 << 20, (1 << 20) + 5]
        .map(|len| (S_IFREG, bytes(len)))
        .into_iter()
        .chain([(0, bytes(10)), (S_IFLNK, b"target".to_vec()), (S_IFLNK, long), (S_IFIFO, Vec::new())])
        .chain([(S_IFCHR, Vec::new()), (S_IFIFO, b"no".to_vec()), (S_IFDIR, Vec::new()), (S_IFLNK, Vec::new())])
        .collect();
    let at = |time| Some(SetTime::At(time));
    let attrs = [
        SetAttr::default(),
        SetAttr { mode: Some(0o6711), ..SetAttr::default() },
        SetAttr { atime: at(5), mtime: at(-7), ..SetAttr::default() },
        SetAttr { uid: Some(1000), gid: Some(100), mode: Some(0o2640), mtime: at(9), ..SetAttr::default() },
        SetAttr { gid: Some(4242), ..SetAttr::default() },
        SetAttr { flags: Some(1 << 31), ..SetAttr::default() },
    ];
    let user = Cred { uid: 1000, gid: 1000, groups: vec![100], umask: 0o027 };
    let mut seen = [0; 2];
    for (_, fs) in &twins {
        let root = fs.session(Cred { umask: 0, ..Cred::root() });
        for (name, mode) in [("plain", 0o777), ("setgid", 0o2777), ("acl", 0o777), ("closed", 0o755)] {
            root.mkdir(name, mode).unwrap();
        }
        root.set_attr("setgid", SetAttr { gid: Some(77), mode: Some(0o2777), ..SetAttr::default() }).unwrap();
        root.set_xattr("acl", b"system.posix_acl_default", ACL, XattrMode::Set).unwrap();
    }
    for cred in [Cred::root(), user] {
        let sessions = twins.each_ref().map(|(_, fs)| fs.session(cred.clone()));
        for directory in ["plain", "setgid", "acl", "closed"] {
            for (i, (kind, content)) in contents.iter().enumerate() {
                for (j, attr) in attrs.iter().enumerate() {
                    let name = format!("{}-{i}-{j}", cred.uid);
                    let dont_cache = j % 2 == 0;
                    let new = CreateWith { mode: kind | 0o4666, rdev: 0x103, content, attr: *attr, dont_cache };
                    let parents = sessions.each_ref().map(|session| session.resolve(directory).unwrap());
                    let at_once = sessions[0].create_with(parents[0], name.as_bytes(), &new);
                    let stepwise = match kind & 0o170000 {
                        S_IFIFO if !content.is_empty() => Err(Errno::INVAL.into()),
                        _ => in_steps(&sessions[1], parents[1], name.as_bytes(), &new),
                    };
                    let what = format!("{directory}/{name}: {kind:o} {} bytes, {attr:?}", content.len());
                    match (at_once, stepwise) {
                        (Ok(at_once), Ok(stepwise)) => {
                            let roots = twins.each_ref().map(|(_, fs)| fs.session(Cred::root()));
                            for (_, fs) in &twins {
                                // Blocks are given by then.
                                fs.sync().unwrap();
                            }
                            let shown = |session: &Session, node: Node| {
                                let stat = session.stat_node(node).unwrap();
                                let names = session.list_xattr_node(node).unwrap();
                                let value = |name: Vec<u8>| (session.get_xattr_node(node, &name).unwrap(), name);
                                let attributes: Vec<_> = names.into_iter().map(value).collect();
                                assert!(content_of(session, &stat) == *content, "{what}");
                                (Stat { ino: 0, generation: 0, ..stat }, attributes)
                            };
                            assert_eq!(shown(&roots[0], at_once.node()), shown(&roots[1], stepwise.node()), "{what}");
                            assert_eq!(at_once.size, content.len() as u64, "{what}");
                            seen[0] += 1;
                        }
                        (Err(at_once), Err(stepwise)) => {
                            assert_eq!(at_once.errno(), stepwise.errno(), "{what}");
                            assert!(sessions[0].lookup(parents[0], name.as_bytes()).is_err(), "{what}: left behind");
                            seen[1] += 1;
                        }
                        (at_once, stepwise) => panic!("{what}: {at_once:?} at once, {stepwise:?} in steps"),
                    }
                }
            }
        }
    }
    assert!(seen.iter().all(|&count| count > 100), "both outcomes: {seen:?}");
    for (device, fs) in twins {
        fs.close().unwrap();
        let report = check(device, None, &CheckOptions::default()).unwrap();
        assert!(report.is_sound(), "{:?}", report.findings);
    }
}

#[test]
fn what_is_refused_takes_nothing() {
    let (device, fs) = volume(8 << 20);
    let session = fs.session(Cred::root());
    let root = session.root();
    let content = bytes(600_000);
    let new = CreateWith { mode: 0o644, content: &content, ..CreateWith::default() };
    let mut made = 0;
    let error = loop {
        match session.create_with(root, format!("f{made}").as_bytes(), &new) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), Errno::NOSPC);
    assert!(made > 2, "{made}");
    fs.sync().unwrap();
    let before = fs.statfs().unwrap();
    // More often than the cache has frames for.
    for _ in 0..40 {
        assert_eq!(session.create_with(root, b"more", &new).unwrap_err().errno(), Errno::NOSPC);
    }
    assert_eq!(format!("{:?}", fs.statfs().unwrap()), format!("{before:?}"));
    session.unlink("f0").unwrap();
    fs.sync().unwrap();
    for _ in 0..40 {
        assert_eq!(session.create_with(root, b"f1", &new).unwrap_err().errno(), Errno::EXIST);
    }
    session.create_with(root, b"more", &new).unwrap();
    drop(session);
    fs.close().unwrap();
    assert!(check(device, None, &CheckOptions::default()).unwrap().is_sound());
}

/// A long file that could not be finished was removed by its name, whoever had that by then.
#[test]
fn a_name_that_went_to_another_file_stays_with_it() {
    let (device, fs) = volume(64 << 20);
    let long = bytes(6 << 20);
    let (session, other) = (fs.session(Cred::root()), fs.session(Cred::root()));
    let root = session.root();
    for round in 0..20 {
        let name = format!("name {round}");
        let precious = session.create("precious", 0o644).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Only a name that is taken is taken over.
                while let Err(error) = other.rename("precious", &name, RenameMode::Exchange) {
                    assert_eq!(error.errno(), Errno::NOENT);
                    std::thread::yield_now();
                }
                other.unlink("precious").unwrap();
            });
            let new = CreateWith { mode: 0o644, content: &long, ..CreateWith::default() };
            match session.create_with(root, name.as_bytes(), &new) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.errno(), Errno::STALE, "{error:?}"),
            }
        });
        assert_eq!(session.stat(&name).unwrap().node(), precious, "round {round}");
        session.unlink(&name).unwrap();
    }
    drop((session, other));
    fs.close().unwrap();
    let report = check(device, None, &CheckOptions::default()).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
}

/// After every write, and with any one write since the last flush missing: a file is whole or absent, attributes and all.
#[test]
fn after_a_crash_a_file_is_whole_or_absent() {
    let formatted = MemoryDevice::new(24 << 20);
    let device = Arc::new(RecordingDevice::new(formatted));
    let mkfs = MkfsOptions { log_size: Some(1 << 20), seed: Some(3), ..MkfsOptions::default() };
    Fs::format_device(device.clone(), None, &mkfs).unwrap();
    device.take();
    let base = device.inner().clone_image();
    let fs = Fs::open_device(device.clone(), None, options()).unwrap();
    let session = fs.session(Cred::root());
    let attr = |i: u64| SetAttr {
        mode: Some(0o600 + i as u16 % 64),
        uid: Some(i as u32),
        mtime: Some(SetTime::At(i as i64)),
        ..SetAttr::default()
    };
    let content = |i: u64| bytes(i as usize * 2311 % 40_000);
    let count = 80_u64;
    let mut durable = Vec::new();
    for i in 0..count {
        let content = content(i);
        let dont_cache = i % 2 == 0;
        let new = CreateWith { mode: 0o644, content: &content, attr: attr(i), dont_cache, ..CreateWith::default() };
        session.create_with(session.root(), format!("f{i}").as_bytes(), &new).unwrap();
        if i % 3 == 0 {
            // Blocks that held something else before are the ones to watch.
            session.unlink(&format!("f{}", i / 2)).ok();
        }
        if i % 2 == 1 {
            fs.sync().unwrap();
            durable.push((device.event_count(), i));
        }
    }
    let images = CrashImages::new(Arc::new(base), device.snapshot());
    let judge = |point: usize, image: Arc<dyn BlockDevice>, what: &str| {
        let fs = Fs::open_device(image.clone(), None, options()).unwrap();
        let session = fs.session(Cred::root());
        let synced = durable.iter().rev().find(|&&(event, _)| event <= point).map(|&(_, i)| i);
        for i in 0..count {
            let Ok(stat) = session.stat(&format!("f{i}")) else {
                let removed = (i * 2..count).any(|later| later % 3 == 0 && later / 2 == i);
                assert!(removed || synced.is_none_or(|synced| synced < i), "{what}: f{i} is lost");
                continue;
            };
            let expected = attr(i);
            assert!(content_of(&session, &stat) == content(i), "{what}: f{i}");
            assert_eq!(Some(stat.mode & 0o7777), expected.mode, "{what}: f{i}");
            assert_eq!((Some(stat.uid), stat.mtime), (expected.uid, i as i64), "{what}: f{i}");
        }
        drop(session);
        fs.close().unwrap();
        let report = check(image, None, &CheckOptions::default()).unwrap();
        assert!(report.is_sound(), "{what}: {:?}", report.findings);
    };
    let mut cursor = images.cursor();
    let mut judged = 0;
    for point in 0..=images.point_max() {
        cursor.advance_to(point).unwrap();
        judge(point, Arc::new(cursor.image()), &format!("{point} writes"));
        let unflushed = cursor.unflushed();
        for lost in unflushed.clone() {
            let image = cursor.subset(unflushed.clone().map(|event| event != lost), None).unwrap();
            judge(point, Arc::new(image), &format!("{point} writes without {lost}"));
            judged += 1;
        }
    }
    assert!(judged > 100, "{judged} states with a write missing");
}

/// The map of an inode in a table lies in its place there, which was emptied after the content had been mapped: `cp` and `import` of
/// any file with content lost it.
#[test]
fn content_is_there_on_every_map() {
    let blocks = Choices { map: choices::Map::Blocks, inodes: choices::Inodes::Static, ..Choices::default() };
    let sets = PROFILES.iter().map(|profile| profile.choices).filter(|choices| choices.check_built().is_ok());
    for choices in sets.chain([blocks]) {
        for block_size in [1024, 4096] {
            let device = Arc::new(MemoryDevice::new(64 << 20));
            let mkfs = MkfsOptions { choices, block_size, seed: Some(1), ..MkfsOptions::default() };
            Fs::format_device(device.clone(), None, &mkfs).unwrap();
            let fs = Fs::open_device(device.clone(), None, options()).unwrap();
            let lengths = [1, 4096, 4097, 12 * 1024 + 1, 70_000, 600_000];
            let session = fs.session(Cred::root());
            for (i, content) in lengths.map(bytes).into_iter().enumerate() {
                let new =
                    CreateWith { mode: 0o644, content: &content, dont_cache: i % 2 == 0, ..CreateWith::default() };
                session.create_with(session.root(), format!("{i}").as_bytes(), &new).unwrap();
                assert!(session.read(&format!("{i}")).unwrap() == content, "{choices:?}, {} bytes", content.len());
            }
            drop(session);
            fs.close().unwrap();
            let report = check(device.clone(), None, &CheckOptions::default()).unwrap();
            assert!(report.is_sound(), "{choices:?}: {:?}", report.findings);
            let session = Fs::open_device(device, None, options()).unwrap().session(Cred::root());
            for (i, content) in lengths.map(bytes).into_iter().enumerate() {
                assert!(
                    session.read(&format!("{i}")).unwrap() == content,
                    "{choices:?}, {} bytes, again",
                    content.len()
                );
            }
        }
    }
}

/// With order `sync` a file is there before it is durable. If the host had no room for that, the frames of its content were given back
/// though they were the cache's by then: the file's content was lost, and another file's pages were taken for it.
#[test]
fn a_file_that_the_host_has_no_room_for_keeps_its_content() {
    let choices = PROFILES.iter().find(|profile| profile.name == "ffs").unwrap().choices;
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(64 << 20)));
    let mkfs = MkfsOptions { choices, order: Order::Sync, seed: Some(1), ..MkfsOptions::default() };
    Fs::format_device(device.clone(), None, &mkfs).unwrap();
    let fs = Fs::open_device(device.clone(), None, options()).unwrap();
    let session = fs.session(Cred::root());
    let content = bytes(70_000);
    let new = CreateWith { mode: 0o644, content: &content, ..CreateWith::default() };
    device.fail(FaultOp::Write, 1, FaultSpan::Once, Errno::NOSPC.raw_os_error());
    let told = session.create_with(session.root(), b"first", &new);
    assert!(matches!(told, Err(Error::HostFull(_))), "{told:?}");
    session.write("second", vec![0x5a; 70_000]).unwrap();
    assert!(session.read("first").unwrap() == content);
    fs.sync().unwrap();
    fs.drop_caches().unwrap();
    assert!(session.read("first").unwrap() == content);
    drop(session);
    fs.close().unwrap();
    let report = check(device, None, &CheckOptions::default()).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
}

/// The file was made, and the commit that kept its data within bounds found no room on the host: the caller was told that nothing was made, and a second try
/// that there is such a file.
#[test]
fn what_was_made_is_made_though_the_host_is_full() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(256 << 20)));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let options = MountOptions { background: false, cache_size: 32 << 20, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    let session = fs.session(Cred::root());
    device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::NOSPC.raw_os_error());
    let new = CreateWith { mode: 0o644, content: &vec![1; 1 << 20], ..CreateWith::default() };
    let name = |i: u32| format!("file {i}");
    let refused = (0..100).find(|&i| session.create_with(session.root(), name(i).as_bytes(), &new).is_err());
    assert!(device.struck() > 0, "nothing was written");
    if let Some(refused) = refused {
        assert!(session.lstat(&name(refused)).is_err(), "{refused} was refused, and is there");
    }
    device.clear();
    let made = refused.unwrap_or(100);
    session.create_with(session.root(), b"later", &new).unwrap();
    fs.sync().unwrap();
    assert!((0..made).all(|i| session.lstat(&name(i)).unwrap().size == 1 << 20));
}
