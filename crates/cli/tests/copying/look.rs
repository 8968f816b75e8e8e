//! A tree of the host, as far as copies are to be alike.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Times before this were set by the setup; later ones are those of the run.
const NOW: i64 = 1_700_000_000;

/// A file: what it is, and everything about it that a copy may keep.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub path: PathBuf,
    pub what: String,
}

pub fn look(top: &Path) -> Vec<Seen> {
    let mut paths = vec![PathBuf::new()];
    let mut at = 0;
    while at < paths.len() {
        let path = paths[at].clone();
        at += 1;
        if top.join(&path).symlink_metadata().is_ok_and(|found| found.is_dir()) {
            paths.extend(fs::read_dir(top.join(&path)).unwrap().map(|entry| path.join(entry.unwrap().file_name())));
        }
    }
    paths.sort();
    // Of several names of one file, the others.
    let mut first: HashMap<u64, PathBuf> = HashMap::new();
    let seen = paths.into_iter().map(|path| {
        let found = top.join(&path).symlink_metadata().unwrap();
        let kind = found.file_type();
        let mut what = format!("{:o} {}:{}", found.mode(), found.uid(), found.gid());
        if found.mtime() < NOW && !path.as_os_str().is_empty() {
            what += &format!(" {}.{}", found.mtime(), found.mtime_nsec());
        }
        if kind.is_symlink() {
            what += &format!(" -> {}", fs::read_link(top.join(&path)).unwrap().display());
        } else if kind.is_file() {
            what += &format!(" {:?}", String::from_utf8_lossy(&fs::read(top.join(&path)).unwrap()));
            let name = first.entry(found.ino()).or_insert_with(|| path.clone());
            if *name != path {
                what += &format!(" = {}", name.display());
            }
        }
        Seen { path, what }
    });
    seen.collect()
}

pub fn compare(expected: &[Seen], found: &[Seen]) -> Vec<String> {
    let missing = expected.iter().filter(|file| !found.contains(file)).map(|file| format!("cp made {file:?}"));
    let other = found.iter().filter(|file| !expected.contains(file)).map(|file| format!("we made {file:?}"));
    missing.chain(other).collect()
}
