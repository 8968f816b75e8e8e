//! Which processes use a mount.
//!
//! Nothing here touches a file below a mount point: that would hang where a server hangs.

use myriad_fuse::mounts::Entry;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    /// Asked of a mount that the table listed. In a chroot the table lacks the mount that programs are on, and there was none.
    #[test]
    fn this_process_uses_what_it_works_in_has_open_and_maps() {
        let this = Path::new("/proc/self");
        let none = Entry {
            id: u64::MAX,
            device: "4095:1".to_owned(),
            mount_point: "/no/such".into(),
            fs_type: String::new(),
            source: PathBuf::new(),
            options: Vec::new(),
        };
        assert!(!uses(this, &none));
        assert!(uses(this, &Entry { mount_point: std::env::current_dir().unwrap(), ..none.clone() }));
        let file = fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let about = fs::read_to_string(this.join("fdinfo").join(file.as_raw_fd().to_string())).unwrap();
        let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:")).unwrap().trim().parse().unwrap();
        assert!(uses(this, &Entry { id, ..none.clone() }));
        // The program itself is mapped. Not from its metadata: btrfs has other numbers there.
        let maps = fs::read_to_string(this.join("maps")).unwrap();
        let mapped = maps.lines().find(|line| line.contains(" /")).unwrap().split_whitespace().nth(3).unwrap();
        let (major, minor) = mapped.split_once(':').unwrap();
        let number = |text| u32::from_str_radix(text, 16).unwrap();
        let device = format!("{}:{}", number(major), number(minor));
        assert!(uses(this, &Entry { device, ..none }));
    }
}
