//! The paths in a volume that a word on the command line may become.
//!
//! The user is typing: whatever is wrong, nothing is said, and what takes too long is given up.

use crate::show::name::{join, needs_quotes};
use crate::volume::{Access, Opened, Place};
use myriad_engine::MountOptions;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// Longer than most volumes take to open, and not as long as it takes to lose patience.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the word may become, directories with a slash at their end. A volume that does not answer, because of a stuck mount or a
/// slow disk, is left to a thread that ends with the process.
pub fn complete(word: OsString) -> Vec<Vec<u8>> {
    let (sender, receiver) = channel();
    let look = move || {
        // Nobody waits any more.
        let _ = sender.send(candidates(&word).unwrap_or_default());
    };
    match thread::Builder::new().spawn(look) {
        Ok(_) => receiver.recv_timeout(PATIENCE).unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

fn candidates(word: &OsString) -> Option<Vec<Vec<u8>>> {
    let place = Place::parse(word).ok()?;
    let bytes = word.as_bytes();
    let start = bytes.iter().rposition(|&byte| byte == b'/')? + 1;
    let (above, begun) = bytes.split_at(start);
    let directory = &place.path[..place.path.len() - begun.len()];
    let volume = Opened::open(&place.image, Access::Read, &MountOptions::default()).ok()?;
    let names = volume.tree().names(directory).ok()?.filter_map(Result::ok);
    // Names that begin with a dot are shown when they are asked for; a script reads lines, and a terminal shows them.
    let is_asked = |name: &Vec<u8>| {
        name.starts_with(begun) && (begun.starts_with(b".") || !name.starts_with(b".")) && !needs_quotes(name)
    };
    let mut found: Vec<Vec<u8>> = names
        .filter(is_asked)
        .map(|name| {
            let is_directory = volume.tree().stat(&join(directory, &name)).is_ok_and(|stat| stat.is_dir());
            [above, &name, if is_directory { b"/" } else { b"" }].concat()
        })
        .collect();
    found.sort();
    volume.close().ok()?;
    Some(found)
}
