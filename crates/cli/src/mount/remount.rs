//! `mount -o remount`: how the kernel has a mount, changed. The daemon goes on as it began, but for `sync`.

use super::control::{self, Daemon, Request};
use super::options::{self, Settings};
use crate::context::Context;
use crate::failure::{At, Failure, image_name};
use anyhow::Result;
use myriad_fuse::{MountError, can_remount, mounts, real_path, remount};
use std::ffi::OsString;
use std::io;
use std::path::Path;

/// What the kernel shows of a mount, and mount(8) therefore hands back.
const SHOWN: [&str; 4] = ["user_id", "group_id", "max_read", "blksize"];
/// Shown as well, though they are words of ours.
const KEPT: [&str; 2] = ["allow_other", "default_permissions"];

/// Carried out by the kernel for what is written, and by the daemon for the rest.
const OF_BOTH: [&str; 2] = ["sync", "async"];

/// Whether options ask for it.
pub fn is_asked<'a>(options: impl IntoIterator<Item = &'a String>) -> bool {
    words(options).any(|word| word == "remount")
}

/// Changes the mount on a directory. `fake`: looks whether there is one, and does nothing.
pub fn run(context: &Context, directory: &Path, options: &[String], sloppy: bool, fake: bool) -> Result<()> {
    let mount_point = real_path(directory).at(image_name(directory))?;
    let mount = mounts::mounted_at(&mount_point).at("/proc/self/mountinfo")?.filter(mounts::Entry::is_ours);
    let Some(mount) = mount else {
        let next = "name a directory that a volume is mounted on";
        return Err(Failure::new(image_name(directory), "no Myriad volume is mounted there", next).into());
    };
    let daemon = control::of_mount(&mount)?;
    let (mut wanted, mut kept) = (Vec::new(), Vec::new());
    for word in words(options).filter(|word| !SHOWN.contains(&name_of(word))) {
        // Misspelt, it is as wrong as at the first time.
        let pass_over = |word: &str| context.note(&format!("myriad: option `{word}` is not known, and passed over"));
        Settings::new(OsString::new())
            .read(word, sloppy, pass_over)
            .map_err(|what| Failure::usage("mount", what, "myriad mount --help lists the options"))?;
        if can_remount(word) {
            wanted.push(word);
        } else if options::is_ours_to_carry_out(name_of(word))
            && !KEPT.contains(&word)
            && !mount.options.iter().any(|has| has == word)
        {
            kept.push(word);
        }
    }
    tell_kept(context, directory, daemon.as_ref(), &kept)?;
    if fake {
        return Ok(());
    }
    let is_for_writing = wanted.iter().rfind(|word| matches!(**word, "ro" | "rw")) == Some(&"rw");
    if is_for_writing && daemon.as_ref().is_some_and(|daemon| daemon.status.read_only) {
        let what = "its daemon has the volume open for reading only";
        return Err(Failure::new(image_name(directory), what, "unmount it and mount it again").into());
    }
    let concerns_daemon = wanted.iter().any(|word| OF_BOTH.contains(word));
    remount(&mount, wanted.into_iter()).map_err(|error| {
        let next = match &error {
            MountError::Remount { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => "only root may do that",
                io::ErrorKind::ResourceBusy => "close the files that are open for writing",
                _ => "see whether its daemon is alive",
            },
            _ => "",
        };
        Failure::new(image_name(directory), error.to_string(), next)
    })?;
    match daemon {
        Some(daemon) if concerns_daemon => {
            // It commits what it has first.
            daemon.ask_for_long(Request::Remounted, || context.check()).map(drop)
        }
        None if concerns_daemon => {
            context.note("myriad: the daemon is not found: names and attributes stay as durable as they were");
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Tells of options that no remount changes. One that asks for what is not so now is an error: mount(8) hands on what fstab has for the
/// mount, and that is mostly so already.
fn tell_kept(context: &Context, directory: &Path, daemon: Option<&Daemon>, kept: &[&str]) -> Result<()> {
    if kept.is_empty() {
        return Ok(());
    }
    let now = daemon.map(|daemon| daemon.ask(Request::Tune { settings: Vec::new() })).transpose()?;
    for word in kept {
        let what = format!("option `{word}` stays as it is");
        match (&now, myriad_engine::options::read(word).and_then(Result::ok)) {
            (Some(now), Some((row, value))) if now[row.name] == value.to_string() => {}
            (Some(_), Some((row, _))) => {
                let next = if row.when.by_tune() { "myriad tune changes it" } else { "mount the volume anew" };
                context.report(&Failure::new(image_name(directory), what, next).into());
            }
            _ => context.note(&format!("myriad: {what} until the volume is mounted anew")),
        }
    }
    Ok(())
}

fn words<'a>(options: impl IntoIterator<Item = &'a String>) -> impl Iterator<Item = &'a str> {
    options.into_iter().flat_map(|text| text.split(',')).filter(|word| !word.is_empty())
}

fn name_of(word: &str) -> &str {
    word.split_once('=').map_or(word, |(name, _)| name)
}
