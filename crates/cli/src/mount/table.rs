//! What the kernel has mounted (/proc/self/mountinfo), and which processes use a mount.
//!
//! Nothing here touches a file below a mount point: that would hang where a server hangs.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Type under which volumes are mounted.
pub const FS_TYPE: &str = "fuse.myriad";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    id: u64,
    /// `major:minor`
    pub device: String,
    pub mount_point: PathBuf,
    pub fs_type: String,
    pub source: PathBuf,
}

impl Entry {
    pub fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE
    }

    /// `36 35 98:0 /root /mount/point rw,noatime shared:1 - fuse.myriad /a.img rw,user_id=0`
    fn parse(line: &[u8]) -> Option<Self> {
        // A path of the host need not be UTF-8, but it has no spaces: those are escaped.
        let mut fields = line.split(|&byte| byte == b' ');
        let text = |field: &[u8]| std::str::from_utf8(field).ok().map(ToOwned::to_owned);
        let id = text(fields.next()?)?.parse().ok()?;
        let device = text(fields.nth(1)?)?;
        let mount_point = unescape(fields.nth(1)?);
        fields.find(|&field| field == b"-")?;
        Some(Self { id, device, mount_point, fs_type: text(fields.next()?)?, source: unescape(fields.next()?) })
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

/// The mount with a device number; a volume that is bound to several places is the oldest one's.
pub fn with_device(device: &str) -> std::io::Result<Option<Entry>> {
    Ok(mounts()?.into_iter().find(|entry| entry.is_ours() && entry.device == device))
}

/// A process that uses a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub pid: u32,
    pub command: String,
}

/// The processes that have files or directories of a mount open, mapped, or as their working directory, as far as this
/// user may see.
pub fn users(mount: &Entry) -> Vec<User> {
    let own = std::process::id();
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    let mut users: Vec<User> = pids
        .filter(|&pid| pid != own && uses(Path::new(&format!("/proc/{pid}")), mount))
        .map(|pid| {
            let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            User { pid, command: command.trim_end().to_owned() }
        })
        .collect();
    users.sort_by_key(|user| user.pid);
    users
}

fn uses(process: &Path, mount: &Entry) -> bool {
    let is_below =
        |link: &str| fs::read_link(process.join(link)).is_ok_and(|path| path.starts_with(&mount.mount_point));
    is_below("cwd") || is_below("root") || has_open(process, mount).unwrap_or(false) || maps(process, mount)
}

fn has_open(process: &Path, mount: &Entry) -> Option<bool> {
    let wanted = mount.id.to_string();
    let mut descriptors = fs::read_dir(process.join("fdinfo")).ok()?.flatten();
    Some(descriptors.any(|descriptor| {
        let info = fs::read_to_string(descriptor.path()).unwrap_or_default();
        info.lines().filter_map(|line| line.strip_prefix("mnt_id:")).any(|id| id.trim() == wanted)
    }))
}

/// `7f00-7f01 r--p 00000000 00:2d 12 /mnt/file`: device numbers are in hexadecimal here.
fn maps(process: &Path, mount: &Entry) -> bool {
    let Some((major, minor)) = mount.device.split_once(':') else { return false };
    let (Ok(major), Ok(minor)) = (major.parse::<u32>(), minor.parse::<u32>()) else { return false };
    let device = format!("{major:02x}:{minor:02x}");
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    maps.split(|&byte| byte == b'\n').any(|line| {
        line.split(|&byte| byte == b' ').filter(|field| !field.is_empty()).nth(3) == Some(device.as_bytes())
    })
}

/// `process 7 (cat), process 9 (bash)`, and how many more there are.
pub fn list_users(users: &[User]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<String> = users
        .iter()
        .take(SHOWN)
        .map(|user| {
            let command = crate::show::name::Shown(std::ffi::OsStr::new(&user.command).as_bytes()).to_string();
            format!("process {} ({command})", user.pid)
        })
        .collect();
    if users.len() > SHOWN {
        text.push(format!("{} more", users.len() - SHOWN));
    }
    text.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let line =
            "118 29 0:45 / /mnt/a\\040b\\134 rw,nosuid shared:7 master:1 - fuse.myriad /x\\011y.img rw,user_id=0";
        let entry = Entry::parse(line.as_bytes()).unwrap();
        assert_eq!((entry.id, &*entry.device), (118, "0:45"));
        assert_eq!(entry.mount_point, Path::new("/mnt/a b\\"));
        assert_eq!((entry.source.as_path(), entry.is_ours()), (Path::new("/x\ty.img"), true));
        for line in ["", " - ", "1 2 3", "x 29 0:45 / /mnt rw - ext4 /dev/a rw", "1 2 0:1 / /m rw -"] {
            assert_eq!(Entry::parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn this_process_uses_what_it_works_in() {
        let here = std::env::current_dir().unwrap();
        let mount = mounts().unwrap().into_iter().rfind(|entry| here.starts_with(&entry.mount_point)).unwrap();
        assert!(uses(Path::new("/proc/self"), &mount));
        let none = Entry { id: u64::MAX, device: "4095:1".into(), mount_point: "/no/such".into(), ..mount };
        assert!(!uses(Path::new("/proc/self"), &none));
    }
}
