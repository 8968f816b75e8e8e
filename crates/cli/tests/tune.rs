//! Options of a volume, shown and changed: on a volume that is mounted, and on one that is not.

mod common;

use common::Place;
use common::mount::{MountPlace, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

const VOLUME: u64 = 64 << 20;

/// What `tune --json` says of each option.
#[track_caller]
fn options(place: &Place, line: &str) -> BTreeMap<String, Value> {
    let answer = place.line(line).ok();
    let objects = answer.lines().into_iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    objects.map(|object| (object["name"].as_str().unwrap().to_owned(), object)).collect()
}

#[test]
fn a_volume_that_is_not_mounted_shows_what_it_keeps_and_takes_a_label() {
    let place = Place::new();
    place.line("mkfs --size 64M --block-size 1K --ag-size 16M --label old -q vol.img").ok();
    let shown = options(&place, "tune --json vol.img");
    for (name, value, set_by) in [
        ("block-size", Some("1K"), "mkfs"),
        ("ag-size", Some("16M"), "mkfs"),
        ("label", Some("old"), "mkfs, tune"),
        ("order", Some("log"), "mkfs, mount"),
        ("cachesize", None, "mount"),
        ("placement", None, "mount, tune"),
    ] {
        assert_eq!((shown[name]["value"].as_str(), shown[name]["set_by"].as_str()), (value, Some(set_by)), "{name}");
    }
    assert!(!shown.contains_key("preallocate"), "the volume does not know");
    let text = place.line("tune vol.img").ok();
    assert!(text.lines().iter().any(|line| line.split_whitespace().eq(["block-size", "1K", "4K", "mkfs"])), "{text:?}");

    let changed = options(&place, "tune --json vol.img label=new");
    assert_eq!(
        (changed.len(), &changed["label"]["before"], &changed["label"]["value"]),
        (1, &"old".into(), &"new".into())
    );
    assert_eq!(place.line("info --json vol.img").ok().json()["label"], "new");
    assert!(place.line("tune -q vol.img label=").ok().out.is_empty());
    assert_eq!(place.line("info --json vol.img").ok().json()["label"], "");
    place.assert_sound();
}

#[test]
fn what_cannot_change_is_refused_by_name_and_nothing_changes() {
    let place = Place::with_volume(VOLUME);
    let before = fs::read(place.path("vol.img")).unwrap();
    let long = format!("tune vol.img label={}", "x".repeat(64));
    for (line, said) in [
        ("tune vol.img directory=linear", "vol.img: directory is chosen by mkfs, and stays as long as the volume"),
        ("tune vol.img order=none", "order is chosen by each mount; unmount, and give it to mount: -o order=..."),
        ("tune vol.img label=x commit=1", "option `commit`: it holds for a mount, and the volume is not mounted"),
        ("tune vol.img allow_other", "option `allow_other`: each mount says it for itself"),
        ("tune vol.img comit=1", "option `comit`: there is no such option; did you mean `commit`?"),
        ("tune vol.img avgfpdir=-1", "option `avgfpdir`: `-1` is not a number from 0 to 1048576"),
        (&long, "option `label`: it has at most 63 bytes"),
    ] {
        place.line(line).expect(2, &[said]);
    }
    place.line("tune none.img label=x").expect(1, &["none.img: No such file or directory"]);
    place.write("file", &[1; 1 << 20]);
    place.line("tune file label=x").expect(1, &["file: not a Myriad volume"]);
    assert!(fs::read(place.path("vol.img")).unwrap() == before);
}

#[test]
fn a_mounted_volume_goes_by_what_it_is_told() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("-o commit=0,avgfpdir=7");
    let shown = options(&place, "tune --json mnt");
    assert_eq!((&shown["avgfpdir"]["value"], &shown["avgfpdir"]["default"]), (&"7".into(), &"64".into()));
    assert_eq!(place.line("info --json vol.img").ok().json()["options"]["commit"], "0");

    // Directories of one parent: near it, and then elsewhere. 32 inode slots a block of 4 KiB; a region is a group of 16 MiB.
    let region = |name: &str| fs::metadata(place.mounted(name)).unwrap().ino() / 32 / 4096;
    let regions = |prefix: &str| {
        let made = (0..4).map(|i| {
            let name = format!("top/{prefix}{i}");
            fs::create_dir(place.mounted(&name)).unwrap();
            region(&name)
        });
        made.collect::<std::collections::BTreeSet<_>>()
    };
    fs::create_dir(place.mounted("top")).unwrap();
    assert_eq!(regions("near"), [region("top")].into());
    let changed = options(&place, "tune --json mnt placement=rotor strictatime");
    assert_eq!((&changed["placement"]["before"], &changed["placement"]["value"]), (&"dirpref".into(), &"rotor".into()));
    assert_eq!(changed["atime"]["value"], "strict");
    assert!(regions("far").len() > 1);

    // The daemon has been waiting for a sync.
    let checkpoints = || place.line("stats --json mnt").ok().json()["counters"]["checkpoints"].as_u64().unwrap();
    place.line("sync mnt").ok();
    let before = checkpoints();
    fs::write(place.mounted("file"), b"x").unwrap();
    place.line("tune vol.img commit=0.05").ok();
    wait_until("a checkpoint", || checkpoints() > before);

    place.line("tune mnt label=mounted").ok();
    let info = place.line("info --json mnt").ok().json();
    assert_eq!(
        (&info["label"], &info["options"]["placement"], &info["options"]["commit"]),
        (&"mounted".into(), &"rotor".into(), &"0.05".into())
    );
    place.line("tune mnt commit=1 cachesize=1G").expect(2, &["cachesize is chosen by each mount"]);
    assert_eq!(options(&place, "tune --json mnt")["commit"]["value"], "0.05", "all or none");
    place.umount();
    assert_eq!(place.line("info --json vol.img").ok().json()["label"], "mounted");
    place.assert_sound();

    place.mount("-o ro");
    place.line("tune mnt commit=1").expect(1, &["open for reading only"]);
    place.umount();
}
