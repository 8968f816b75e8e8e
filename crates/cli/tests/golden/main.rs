//! Volumes as an earlier build has made them, kept as files: each must open, be sound, hold what it held, and take changes, for as long
//! as there are volumes of its version. `MYRIAD_GOLDEN=make` makes those that are missing, with the build of that day; one that is there
//! is never made anew.

#[path = "../common/mod.rs"]
mod common;

use common::Place;
use myriad_device::{BlockDevice, CrashImages, Event, MemoryDevice, RecordingDevice};
use myriad_engine::{
    AllocateMode, Clock, Cred, Fs, MkfsOptions, MountOptions, OpenOptions, Order, RenameMode, Session, SetAttr,
};
use myriad_format::choices::{Directory, Profile};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
const WRITE: OpenOptions = OpenOptions { create: true, mode: 0o640, ..OpenOptions::READ_WRITE };

struct Golden {
    name: &'static str,
    options: MkfsOptions,
    left: Left,
    /// The file of its inventory, which all volumes share that hold the same.
    text: &'static str,
}

/// How a volume was left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Closed,
    /// Its log is to be replayed.
    WithLog,
    /// Power was lost in the middle of a sync: what is left over is in use for nothing.
    WithLeftovers,
}

fn all() -> Vec<Golden> {
    let clock = || Clock::Manual(Arc::new(AtomicI64::new(1_700_000_000_000_000_000)));
    let options = |block_size| MkfsOptions { block_size, seed: Some(1), clock: clock(), ..MkfsOptions::default() };
    let small = |block_size| MkfsOptions { log_size: Some(256 << 10), ..options(block_size) };
    let checked = |block_size| MkfsOptions { data_checksums: true, label: "golden".into(), ..small(block_size) };
    let none = MkfsOptions { order: Order::None, log_size: Some(0), ..options(1024) };
    let of = |name, order| {
        let choices = Profile::parse(name).expect("a profile of the table").choices;
        let log_size = if order == Order::Log { Some(256 << 10) } else { Some(0) };
        MkfsOptions { choices, order, log_size, ..options(4096) }
    };
    let ffs = || of("ffs", Order::Soft);
    let fragments = MkfsOptions { fragments: 8, ..ffs() };
    let golden = |name, options, left, text| Golden { name, options, left, text };
    use Left::{Closed, WithLeftovers, WithLog};
    vec![
        golden("v1-default", options(4096), Closed, "v1"),
        golden("v1-blocks-512-checksums", checked(512), Closed, "v1"),
        golden("v1-blocks-64k", MkfsOptions { log_size: Some(4 << 20), ..options(65536) }, Closed, "v1"),
        golden("v1-order-none", none, Closed, "v1"),
        golden("v1-log-to-replay", small(4096), WithLog, "v1"),
        golden("v1-checksums-log-to-replay", checked(4096), WithLog, "v1"),
        golden("v1-xfs", of("xfs", Order::Log), Closed, "v1"),
        golden("v1-simplefs", of("simplefs", Order::None), Closed, "v1"),
        golden("v1-ffs", ffs(), Closed, "v1"),
        golden("v1-ffs-fragments", fragments, Closed, "v1"),
        golden("v1-ffs-leftovers", ffs(), WithLeftovers, "v1-ffs-leftovers"),
    ]
}

impl Golden {
    /// The volume holds what the text says.
    #[track_caller]
    fn compare(&self, expected: &str, found: &str) {
        let is_default = self.options.choices.directory == Directory::Indexed;
        let plain = |text: &str| if is_default { text.to_owned() } else { of_any_directories(text) };
        let (expected, found) = (plain(expected), plain(found));
        assert!(found == expected, "{}: {}", self.name, first_difference(&expected, &found));
    }
}

/// A text without what kinds of directories differ in: their sizes, and the order in which they list.
fn of_any_directories(text: &str) -> String {
    let plain = |line: &str| {
        let fields: Vec<&str> = line.splitn(5, ' ').collect();
        // Of the types of file, only this one has five digits of which the first is a 4.
        if fields[0].len() == 5 && fields[0].starts_with('4') {
            format!("{} {} {} - {}\n", fields[0], fields[1], fields[2], fields[4])
        } else {
            format!("{line}\n")
        }
    };
    let mut lines: Vec<String> = text.lines().map(plain).collect();
    lines.sort();
    lines.concat()
}

/// Something of everything that a volume can hold.
fn furnish(session: &Session) -> myriad_engine::Result<()> {
    session.mkdir("/many", 0o755)?;
    for i in 0..600 {
        session.open(&format!("/many/message {i}"), WRITE)?.write_at(format!("{i}\n").repeat(i % 9).as_bytes(), 0)?;
    }
    for i in (0..600).step_by(3) {
        session.unlink(&format!("/many/message {i}"))?;
    }
    session.mkdir("/a", 0o2775)?;
    session.mkdir("/a/b", 0o700)?;
    let large: Vec<u8> = (0..300_000_u32).map(|i| (i / 7) as u8).collect();
    session.open("/a/large", WRITE)?.write_at(&large, 0)?;
    let sparse = session.open("/a/sparse", WRITE)?;
    for i in 0..40 {
        sparse.write_at(b"island", i * 200_000)?;
    }
    sparse.truncate(9_000_000)?;
    session.open("/a/reserved", WRITE)?.allocate(AllocateMode::Extend, 0, 200_000)?;
    session.link("/a/large", "/a/b/second name")?;
    session.symlink(b"../large", "/a/b/link")?;
    session.symlink(&[b'x'; 900], "/a/b/long link")?;
    session.mknod("/a/pipe", 0o010_600, 0)?;
    session.mknod("/a/device", 0o020_666, 0x0103)?;
    session.set_xattr("/a/large", b"user.small", b"value", Default::default())?;
    session.set_xattr("/a/b", b"user.large", &[b'v'; 3000], Default::default())?;
    session.set_attr("/a/large", SetAttr { uid: Some(1000), gid: Some(100), ..SetAttr::default() })?;
    session.open(&format!("/a/{}", "n".repeat(255)), WRITE)?.write_at(b"longest name", 0)?;
    session.open(&b"/a/caf\xe9"[..], WRITE)?.write_at(b"not UTF-8", 0)?;
    Ok(())
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a: the hash must be the same for ever.
fn fnv(hash: &mut u64, bytes: &[u8]) {
    for &byte in bytes {
        *hash = (*hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
}

/// All that a volume holds, as text: what differs shows in a line.
fn inventory(session: &Session) -> String {
    let mut text = String::new();
    for step in session.walk("/").expect("walk") {
        let entry = step.unwrap_or_else(|failed| panic!("{:?}: {}", failed.path, failed.error));
        let (stat, node) = (entry.stat, entry.stat.node());
        let mut content = FNV_BASIS;
        match stat.mode & 0o170_000 {
            0o100_000 => {
                let mut bytes = vec![0; stat.size as usize];
                let file = session.open_node(node, OpenOptions::READ).expect("open");
                assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
                fnv(&mut content, &bytes);
            }
            0o120_000 => fnv(&mut content, &session.readlink_node(node).expect("readlink")),
            _ => {}
        }
        for name in session.list_xattr_node(node).expect("attributes") {
            fnv(&mut content, &name);
            fnv(&mut content, &session.get_xattr_node(node, &name).expect("attribute"));
        }
        writeln!(
            text,
            "{:o} {} {}:{} {} {} {:016x} {}",
            stat.mode,
            stat.nlink,
            stat.uid,
            stat.gid,
            stat.size,
            stat.mtime,
            content,
            String::from_utf8_lossy(&entry.path)
        )
        .expect("text");
    }
    text
}

/// Changes of each kind that soft updates make durable in several rounds.
fn change(session: &Session) -> myriad_engine::Result<()> {
    session.mkdir("/late", 0o755)?;
    for i in 0..5 {
        session.open(&format!("/late/file {i}"), WRITE)?.write_at(&[i; 10_000], 0)?;
    }
    session.link("/a/large", "/late/large")?;
    session.unlink("/many/message 2")?;
    session.unlink("/a/reserved")?;
    session.rename("/many/message 1", "/many/moved", RenameMode::Replace)?;
    session.rename("/a/b", "/b", RenameMode::Replace)?;
    Ok(())
}

/// The volume as it is when power is lost after the second round of making `change` durable.
fn lose_power(device: &RecordingDevice<MemoryDevice>, fs: &Fs, session: &Session) -> MemoryDevice {
    let base = Arc::new(device.inner().clone_image());
    device.take();
    change(session).expect("there is room");
    fs.sync().expect("sync");
    let events = device.take();
    let mut flushes = events.iter().enumerate().filter(|(_, event)| **event == Event::Flush);
    let (second, _) = flushes.nth(1).expect("more rounds than two");
    let left = CrashImages::new(base, events).prefix(second + 1).expect("a state of the trace");
    MemoryDevice::from_bytes(&bytes_of(&left))
}

fn make(golden: &Golden, image: &Path, text: &Path) {
    let device = Arc::new(RecordingDevice::new(MemoryDevice::new(96 << 20)));
    Fs::format_device(device.clone(), None, &golden.options).expect("format");
    let options = || MountOptions {
        background: false,
        seed: Some(1),
        clock: golden.options.clock.clone(),
        ..MountOptions::default()
    };
    let fs = Fs::open_device(device.clone(), None, options()).expect("open");
    let session = fs.session(Cred { umask: 0, ..Cred::root() });
    furnish(&session).expect("there is room");
    fs.sync().expect("sync");
    let lost = match golden.left {
        Left::Closed => None,
        Left::WithLog => Some(device.inner().clone_image()),
        Left::WithLeftovers => Some(lose_power(&device, &fs, &session)),
    };
    drop(session);
    fs.close().expect("close");
    let left = lost.unwrap_or_else(|| device.inner().clone_image());
    let fs = Fs::open_device(Arc::new(left.clone_image()), None, options()).expect("open again");
    let found = inventory(&fs.session(Cred::root()));
    fs.close().expect("close again");
    if text.exists() {
        golden.compare(&std::fs::read_to_string(text).expect("read"), &found);
    } else {
        std::fs::write(text, found).expect("write");
    }
    std::fs::write(image, zstd::encode_all(&bytes_of(&left)[..], 19).expect("compress")).expect("write");
}

fn bytes_of(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read(0, &mut bytes).expect("read");
    bytes
}

/// The volume says what it was left with, and is sound but for that.
fn check_as_left(place: &Place, golden: &Golden) {
    match golden.left {
        Left::Closed | Left::WithLog => drop(place.line("fsck -n vol.img").expect(0, &["sound"])),
        Left::WithLeftovers => {
            let said = place.line("fsck -n vol.img").expect(4, &["all of them what a crash may leave"]);
            for found in ["[block-leaked 103]", "[inode-bitmap 126]", "[link-count 140]", "[directory-named-twice 144]"]
            {
                assert!(said.text().contains(found), "{found}: {}", said.text());
            }
        }
    }
}

#[test]
fn volumes_of_earlier_builds_are_as_they_were() {
    for golden in all() {
        let folder = Path::new(FOLDER);
        let (image, text) =
            (folder.join(format!("{}.img.zst", golden.name)), folder.join(format!("{}.txt", golden.text)));
        if std::env::var("MYRIAD_GOLDEN").is_ok_and(|wish| wish == "make") && !image.exists() {
            make(&golden, &image, &text);
        }
        let packed = std::fs::read(&image).unwrap_or_else(|error| panic!("{}: {error}", image.display()));
        let place = Place::new();
        place.write("vol.img", &zstd::decode_all(&packed[..]).expect("it is whole"));
        check_as_left(&place, &golden);
        let expected = std::fs::read_to_string(&text).expect("its inventory");
        let found = place.change(inventory);
        golden.compare(&expected, &found);
        if golden.left == Left::WithLeftovers {
            place.line("fsck -p vol.img").expect(1, &["all repaired"]);
        }
        place.assert_sound();
        // It goes on as a volume of today.
        let after = place.change(|session| {
            session.remove_tree("/many", &mut |_| true).expect("remove");
            session.open("/a/sparse", WRITE).and_then(|file| file.write_at(&[1; 50_000], 100_000)).expect("write");
            session.mkdir("/new", 0o755).expect("make");
            inventory(session)
        });
        place.assert_sound();
        assert_eq!(place.change(inventory), after, "{}", golden.name);
    }
}

fn first_difference(expected: &str, found: &str) -> String {
    let pairs = expected.lines().map(Some).chain(std::iter::repeat(None));
    let found = found.lines().map(Some).chain(std::iter::repeat(None));
    let differs = pairs.zip(found).take(1 << 20).find(|(expected, found)| expected != found);
    format!("{differs:?}")
}
