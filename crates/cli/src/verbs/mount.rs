//! `mount`: volumes as directories of the host.

use crate::context::Context;
use crate::failure::{At, Failure, host_error, image_name};
use crate::mount::daemon::{self, Job};
use crate::mount::log::Level;
use crate::mount::options::{self, Settings};
use crate::mount::{control, detach, remount};
use crate::show::table;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::place::is_same_file;
use crate::volume::place::unreachable_name;
use anyhow::Result;
use myriad_fuse::mounts;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

pub const NAME: &str = "mount";

#[derive(clap::Args)]
pub struct Mount {
    /// Volume to mount
    #[arg(requires = "directory")]
    image: Option<PathBuf>,
    /// Directory to mount it on
    directory: Option<PathBuf>,
    /// Options, with commas between them; see below
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Mount read-only, as -o ro
    #[arg(short = 'r', long)]
    read_only: bool,
    /// Stay in the foreground; messages go to standard error
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Tell more
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Without IMAGE: print one JSON object a line
    #[arg(long, conflicts_with = "image")]
    json: bool,
    /// Mount for reading and writing, as -o rw
    #[arg(short = 'w', help_heading = FROM_MOUNT)]
    read_write: bool,
    /// Pass over options that are not known
    #[arg(short = 's', help_heading = FROM_MOUNT)]
    sloppy: bool,
    /// Look whether it could be mounted, and do not
    #[arg(long, help_heading = FROM_MOUNT)]
    fake: bool,
    /// Nothing: there is no table to leave alone
    #[arg(short = 'n', help_heading = FROM_MOUNT)]
    no_table: bool,
    /// Mount in another mount namespace
    #[arg(short = 'N', value_name = "FILE", help_heading = FROM_MOUNT)]
    namespace: Option<PathBuf>,
    /// Type of the file system
    #[arg(short = 't', value_name = "TYPE", help_heading = FROM_MOUNT, value_parser = ["myriad", "fuse", "fuse.myriad", "fuseblk", "fuseblk.myriad"])]
    file_system: Option<String>,
    /// The daemon of a command that waits for it
    #[arg(long, hide = true)]
    detached: bool,
}

const FROM_MOUNT: &str = "As mount(8) calls it";

impl Command for Mount {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "Mount a volume on a directory";
    const DETAILS: &'static str = "Returns when the mount is live; a daemon serves it until it is unmounted. Without arguments, \
        shows what is mounted. One volume is mounted for changes once; read-only mounts may be many. The verbs go on to \
        work on a mounted volume, through the mount and with what it has not written yet: then the kernel checks your \
        permissions, and their own options for opening play no part. mkfs, debug, verify and an fsck that may repair are \
        refused; fsck -n and fsck --online look beside the daemon.\n\n\
        In fstab the type is fuse.myriad: /srv/mail.img /srv/mail fuse.myriad allow_other,nofail 0 0\n\n\
        SIGTERM, SIGINT and SIGHUP unmount and close the volume: while files are open the mount goes out of sight, and the \
        daemon with the last of them; a further signal tries again. A mount whose daemon was killed answers with errors; mounting on its \
        directory again replaces it. Messages go to the system's log.\n\n\
        Where root mounts and there are loop devices, the type in /proc/mounts is fuseblk.myriad: sync(1) and syncfs(2) make the \
        volume durable (since Linux 6.18), and umount(2) returns when the image is closed. Otherwise it is fuse.myriad, of which \
        Linux passes neither on; an fsync of its root (sync /mnt) makes everything durable, and so does the daemon every few \
        seconds (commit=). myriad info says which it is, and why; kind= chooses.\n\n\
        As a helper of mount(8) for root, set-id bits and device nodes have effect as for other file systems; by this command \
        they have none unless suid and dev say so.\n\n\
        -o remount changes how the kernel has a mount (ro, rw, noexec ...), as mount(8) calls it: what was written is durable \
        when a mount has become read-only. The daemon goes on as it began, but for sync: what it was told otherwise stays, and to ask for something else is an error.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad mount vol.img /mnt", "mounts a volume"),
        ("myriad mount -f -v -o ro,allow_other vol.img /mnt", "mounts it read-only for all users, and stays"),
        (
            "sudo mount -t fuse.myriad -o cachesize=1G /srv/vol.img /srv/vol",
            "does it as mount(8) does all file systems",
        ),
        ("sudo mount -o remount,ro /srv/vol", "makes it read-only where it is"),
        ("myriad mount", "shows what is mounted"),
    ];
    const MORE: fn() -> String = options::help;

    fn run(self, context: &Context) -> Result<Status> {
        let (Some(given), Some(directory)) = (&self.image, &self.directory) else { return self.list(context) };
        if let Some(namespace) = self.namespace.as_ref().filter(|_| !self.detached) {
            let file = File::open(namespace).at(image_name(namespace))?;
            let entered = move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Mount));
            entered.map_err(io::Error::from).at(image_name(namespace))?;
        }
        if remount::is_asked(&self.options) {
            let mut options = self.options.clone();
            options.extend(self.read_only.then(|| "ro".to_owned()));
            options.extend(self.read_write.then(|| "rw".to_owned()));
            remount::run(context, directory, &options, self.sloppy, self.fake)?;
            return Ok(context.status());
        }
        let image = std::path::absolute(given).at(image_name(given))?;
        let mut settings = Settings::new(image.clone().into_os_string());
        for text in &self.options {
            let pass_over =
                |option: &str| context.note(&format!("myriad: option `{option}` is not known, and passed over"));
            settings
                .read(text, self.sloppy, pass_over)
                .map_err(|what| Failure::usage("mount", what, "myriad mount --help lists the options"))?;
        }
        if self.read_only || self.read_write {
            let word = if self.read_only { "ro" } else { "rw" };
            settings.read(word, false, |_| {}).expect("the table has both words");
        }
        for path in [&mut settings.engine.log_device, &mut settings.log_file].into_iter().flatten() {
            *path = std::path::absolute(&*path).at(image_name(path))?;
        }
        std::fs::metadata(&image).map_err(|error| unreachable_name(given, error))?;
        let mount_point = myriad_fuse::clear_mount_point(directory).map_err(|error| {
            let is_missing = error.kind() == std::io::ErrorKind::NotFound;
            let missing = || Failure::new(image_name(directory), host_error(&error), "make it with mkdir").into();
            if is_missing {
                missing()
            } else {
                Err::<(), _>(error).at(image_name(directory)).expect_err("made from an error")
            }
        })?;
        if !mount_point.is_dir() {
            return Err(Failure::new(image_name(directory), "not a directory", "name one to mount on").into());
        }
        check_free(&image, &mount_point)?;
        if self.fake {
            return Ok(Status::OK);
        }
        if !self.foreground && !settings.debug && !self.detached {
            let started = detach::start(self.as_daemon(), context)?;
            let Err(code) = started else {
                // Not before the kernel and the daemon have agreed on how to talk is it live.
                return match rustix::fs::statfs(&mount_point) {
                    Ok(_) => Ok(Status::OK),
                    Err(errno) => {
                        let what = format!("the daemon ended as it began: {errno}");
                        Err(Failure::new(image_name(&mount_point), what, "see the host's log, or mount with -f").into())
                    }
                };
            };
            // It has said why itself.
            return Ok(Status(code));
        }
        let is_detached = self.detached;
        if is_detached {
            detach::leave_session()?;
        }
        let least = match (context.is_quiet(), self.verbose || is_detached) {
            (true, _) => Level::Error,
            (_, true) => Level::Info,
            _ => Level::Warning,
        };
        daemon::run(Job { image, mount_point, settings, is_detached, least })?;
        Ok(Status::OK)
    }
}

impl Mount {
    /// The command line of this command's daemon. It is in the right namespace already.
    fn as_daemon(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![NAME.into(), "--detached".into()];
        for (flag, is_set) in [("-r", self.read_only), ("-w", self.read_write), ("-s", self.sloppy)] {
            arguments.extend(is_set.then(|| flag.into()));
        }
        for options in &self.options {
            arguments.extend(["-o".into(), options.into()]);
        }
        arguments.push("--".into());
        arguments.extend([&self.image, &self.directory].into_iter().flatten().map(Into::into));
        arguments
    }

    fn list(&self, context: &Context) -> Result<Status> {
        let (mut rows, mut answering) = (Vec::new(), Vec::new());
        for daemon in control::all() {
            let Some(mut daemon) = context.tolerated(daemon)? else { continue };
            let Some(mount) = daemon.mount()? else { continue };
            answering.push(mount.device.clone());
            let status = &mut daemon.status;
            // The kernel may have been told so since.
            status.read_only |= mount.is_read_only();
            if self.json {
                context.out().json(&status.json())?;
                continue;
            }
            let how = if status.read_only { "ro" } else { "rw" };
            let offset = if status.offset > 0 { format!(" at {}", status.offset) } else { String::new() };
            rows.push(vec![
                format!("{}{offset}", image_name(&status.image)),
                image_name(&status.mount_point),
                how.into(),
                status.pid.to_string(),
            ]);
        }
        // For programs only those that there is something to say of.
        for mount in if self.json { Vec::new() } else { control::dead(&answering)? } {
            let place = image_name(&mount.mount_point);
            let next = format!("unmount it with myriad umount {place}, or mount the volume there again");
            context.note(&format!("myriad: {place}: its daemon was killed; {next}"));
            rows.push(vec![image_name(&mount.source), place, "dead".into(), "-".into()]);
        }
        if !rows.is_empty() {
            table::columns(&mut context.out(), &["Volume", "Directory", "", "Process"], |column| column < 3, rows)?;
        }
        Ok(context.status())
    }
}

/// Refuses to hide one of our mounts below another.
fn check_free(image: &Path, mount_point: &Path) -> Result<()> {
    let mount = mounts::mounted_at(mount_point).at("/proc/self/mountinfo")?;
    let Some(mount) = mount.filter(mounts::Entry::is_ours) else { return Ok(()) };
    let place = image_name(mount_point);
    let daemon = control::of_mount(&mount)?;
    let who = daemon.map_or(String::new(), |daemon| format!(" by process {}", daemon.status.pid));
    let unmount = format!("unmount it with myriad umount {place}");
    if is_same_file(image, &mount.source) {
        return Err(Failure::new(image_name(image), format!("mounted on {place}{who}"), unmount).into());
    }
    let what = format!("{} is mounted there{who}", image_name(&mount.source));
    Err(Failure::new(&place, what, format!("name another directory, or {unmount}")).into())
}

/// mount(8) calls its helpers with short options that mean something else here: -f is "fake", and letters may be
/// joined. And where root mounts by it, set-id bits and device nodes have effect unless an option says otherwise, as for every
/// other file system; for users that are let to by fstab it says so itself.
pub fn from_mount(arguments: Vec<OsString>, is_root: bool) -> Vec<OsString> {
    let mut translated = Vec::with_capacity(arguments.len());
    let mut arguments = arguments.into_iter();
    translated.extend(arguments.next());
    let options = arguments.as_slice().windows(2).filter(|pair| pair[0] == "-o").map(|pair| pair[1].to_string_lossy());
    // What a remount does not speak of stays.
    if is_root && !remount::is_asked(&options.map(Into::into).collect::<Vec<String>>()) {
        translated.extend(["-o", "suid,dev"].map(Into::into));
    }
    for argument in arguments {
        match argument.to_str().and_then(|text| text.strip_prefix('-')) {
            Some(letters) if !letters.is_empty() && letters.bytes().all(|letter| b"sfnvrw".contains(&letter)) => {
                translated.extend(letters.chars().map(|letter| match letter {
                    'f' => OsString::from("--fake"),
                    letter => format!("-{letter}").into(),
                }));
            }
            _ => translated.push(argument),
        }
    }
    translated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_of_mount_are_understood() {
        let given = ["mount.myriad", "/a.img", "/mnt", "-sfv", "-o", "ro", "-n", "-t", "fuse.myriad"];
        let expected = ["mount.myriad", "/a.img", "/mnt", "-s", "--fake", "-v", "-o", "ro", "-n", "-t", "fuse.myriad"];
        let given: Vec<OsString> = given.map(OsString::from).into();
        assert_eq!(from_mount(given.clone(), false), expected);
        let by_root = from_mount(given, true);
        assert_eq!(by_root[..3], ["mount.myriad", "-o", "suid,dev"]);
        assert_eq!(by_root[3..], expected[1..]);
    }

    /// It would take back what the mount was made with.
    #[test]
    fn a_remount_by_root_says_no_more_than_it_was_told() {
        let given = ["mount.myriad", "/a.img", "/mnt", "-o", "rw,remount,ro"].map(OsString::from);
        assert_eq!(from_mount(given.clone().into(), true), given);
    }
}
