//! What the kernel has mounted (/proc/self/mountinfo).
//!
//! Nothing here touches a file below a mount point: that would hang where a server hangs.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Types under which volumes are mounted: the second one where the kernel passes more on ([`crate::Kind`]).
pub const FS_TYPE: &str = "fuse.myriad";
pub const FS_TYPE_BLOCK: &str = "fuseblk.myriad";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As `fdinfo` of open files names it.
    pub id: u64,
    /// `major:minor`
    pub device: String,
    pub mount_point: PathBuf,
    pub fs_type: String,
    pub source: PathBuf,
    /// Of the mount, then of its file system: `ro` of either makes it read-only.
    pub options: Vec<String>,
}

impl Entry {
    pub fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE || self.is_block()
    }

    pub fn is_block(&self) -> bool {
        self.fs_type == FS_TYPE_BLOCK
    }

    pub fn is_read_only(&self) -> bool {
        self.options.iter().any(|option| option == "ro")
    }

    /// `36 35 98:0 /root /mount/point rw,noatime shared:1 - fuse.myriad /a.img rw,user_id=0`
    fn parse(line: &[u8]) -> Option<Self> {
        // A path of the host need not be UTF-8, but it has no spaces: those are escaped.
        let mut fields = line.split(|&byte| byte == b' ');
        let text = |field: &[u8]| std::str::from_utf8(field).ok().map(ToOwned::to_owned);
        let id = text(fields.next()?)?.parse().ok()?;
        let device = text(fields.nth(1)?)?;
        let mount_point = unescape(fields.nth(1)?);
        let of_mount = text(fields.next()?)?;
        fields.find(|&field| field == b"-")?;
        let (fs_type, source) = (text(fields.next()?)?, unescape(fields.next()?));
        let of_system = String::from_utf8_lossy(fields.next()?);
        let options = of_mount.split(',').chain(of_system.split(',')).map(str::to_owned).collect();
        Some(Self { id, device, mount_point, fs_type, source, options })
    }
}

/// Spaces, tabs, newlines and backslashes are written in octal.
fn unescape(mut field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    while let Some((&first, rest)) = field.split_first() {
        let code = rest.get(..3).filter(|_| first == b'\\').and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                field = &rest[3..];
            }
            None => {
                plain.push(first);
                field = rest;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

/// All mounts, the oldest first.
pub fn mounts() -> std::io::Result<Vec<Entry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|&byte| byte == b'\n').filter_map(Entry::parse).collect())
}

/// What is mounted at a directory; of several mounts on top of each other the one that is seen.
pub fn mounted_at(mount_point: &Path) -> std::io::Result<Option<Entry>> {
    Ok(mounts()?.into_iter().rfind(|entry| entry.mount_point == mount_point))
}

/// The mount with a device number and a source; a volume that is bound to several places is the oldest one's. The number alone does
/// not say which: once a mount is gone, the kernel gives its number to the next one, while its daemon may still be closing the volume.
pub fn of(device: &str, source: &Path) -> std::io::Result<Option<Entry>> {
    Ok(mounts()?.into_iter().find(|entry| entry.is_ours() && entry.device == device && entry.source == source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_tables_are_unescaped() {
        assert_eq!(unescape(br"/a\040b\134\011"), Path::new("/a b\\\t"));
        assert_eq!(unescape(br"/a\04"), Path::new(r"/a\04"));
        assert_eq!(unescape(br"\999\040"), Path::new(r"\999 "));
        assert!(mounted_at(Path::new("/proc")).unwrap().is_some());
        assert_eq!(mounted_at(Path::new("/no/such/mount")).unwrap(), None);
    }

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let line =
            "118 29 0:45 / /mnt/a\\040b\\134 rw,nosuid shared:7 master:1 - fuse.myriad /x\\011y.img rw,user_id=0";
        let entry = Entry::parse(line.as_bytes()).unwrap();
        assert_eq!((entry.id, &*entry.device), (118, "0:45"));
        assert_eq!(entry.mount_point, Path::new("/mnt/a b\\"));
        assert_eq!((entry.source.as_path(), entry.is_ours()), (Path::new("/x\ty.img"), true));
        assert_eq!(entry.options, ["rw", "nosuid", "rw", "user_id=0"]);
        assert!(!entry.is_read_only() && !entry.is_block());
        for (fs_type, ours, block) in
            [("fuseblk.myriad", true, true), ("fuse.myriads", false, false), ("fuse", false, false)]
        {
            let entry = Entry::parse(line.replace("fuse.myriad", fs_type).as_bytes()).unwrap();
            assert_eq!((entry.is_ours(), entry.is_block()), (ours, block), "{fs_type}");
        }
        let read_only = line.replace(" rw,user_id", " ro,user_id");
        assert!(Entry::parse(read_only.as_bytes()).unwrap().is_read_only());
        for line in ["", " - ", "1 2 3", "x 29 0:45 / /mnt rw - ext4 /dev/a rw", "1 2 0:1 / /m rw -"] {
            assert_eq!(Entry::parse(line.as_bytes()), None, "{line}");
        }
    }
}
