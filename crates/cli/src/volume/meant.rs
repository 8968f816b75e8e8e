//! What may be meant by a path of the host: a place in a volume, with the colon left out, or below a mount point.

use super::recognise::is_volume;
use crate::failure::image_name;
use crate::mount::below;
use crate::show::name::Shown;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The volume that an argument begins with, if it names no file itself: a colon follows, but no slash.
pub fn volume_without_slash(argument: &[u8]) -> Option<PathBuf> {
    let colons = argument.iter().enumerate().filter(|(_, byte)| **byte == b':');
    let mut images = colons.map(|(at, _)| PathBuf::from(OsStr::from_bytes(&argument[..at])));
    images.find(|image| is_volume(image))
}

/// The place in a volume that is meant by an argument which leaves out the colon, or the slash after it.
pub fn meant(argument: &[u8]) -> Option<String> {
    let path = Path::new(OsStr::from_bytes(argument));
    let image = volume_without_slash(argument).or_else(|| {
        path.ancestors().find(|above| above.is_file()).filter(|above| is_volume(above)).map(Path::to_owned)
    })?;
    let rest = &argument[image.as_os_str().len()..];
    let rest = rest.strip_prefix(b":").unwrap_or(rest);
    let rest = rest.iter().position(|&byte| byte != b'/').map_or(&b""[..], |start| &rest[start..]);
    Some(format!("{}:/{}", image_name(&image), if rest.is_empty() { String::new() } else { Shown(rest).to_string() }))
}

/// The place in a volume that is meant by an argument which should name one: as `meant`, or by its path below a mount point.
pub fn meant_in(argument: &OsStr) -> Option<String> {
    meant(argument.as_bytes()).or_else(|| below_mount(Path::new(argument)))
}

/// The place in a mounted volume that a path of the host leads to; the last name need not exist, and is not followed as long as it
/// lies in a mount itself.
pub fn below_mount(path: &Path) -> Option<String> {
    let find = |path: &Path, skipped| {
        // A relative path's first name is in the current directory.
        let named = |above: &Path| if above.as_os_str().is_empty() { PathBuf::from(".") } else { above.to_owned() };
        let above = path.ancestors().skip(skipped).find(|above| named(above).is_dir())?;
        let (mount_point, below) = below::below_mount(&named(above))?;
        // Component by component: an empty rest is to add no slash.
        let below: PathBuf = below.components().chain(path.strip_prefix(above).ok()?.components()).collect();
        Some(format!("{}:/{}", image_name(&mount_point), in_volume(&below)))
    };
    match path.is_symlink() {
        true => find(path, 1).or_else(|| find(path, 0)),
        false => find(path, 0),
    }
}

fn in_volume(path: &Path) -> String {
    if path.as_os_str().is_empty() { String::new() } else { image_name(path) }
}
