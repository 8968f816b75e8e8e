//! Where on the host a single file goes that the user has named.
//!
//! As with cp(1), a symbolic link means what it leads to, and what is no regular file is written into and stays what it
//! is: a device, a pipe, whatever a descriptor of this process leads to. A regular file is replaced in one step, under
//! its own name, not under that of a link to it.

use crate::context::Context;
use crate::failure::{At, Failure, errno_text, image_name};
use crate::volume::place::unreachable_name;
use crate::volume::{Guard, meant};
use anyhow::Result;
use myriad_engine::Errno;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Links that are followed: as many as the kernel does.
const LINKS_MAX: u32 = 40;
/// `f_type` of a file system of processes, proc(5): its links lead to open files, not to names.
const PROC_MAGIC: u64 = 0x9fa0;
/// Between two looks whether somebody reads a pipe.
const PATIENCE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub enum Destination {
    /// A directory and a name in it: free, or that of a file to be replaced.
    Name(PathBuf, Vec<u8>),
    /// Open, to be written into; a file that a descriptor leads to, behind what it holds.
    Stream(File),
}

impl Destination {
    /// What a path means to whoever writes a file there; an error if nothing may be.
    pub fn find(context: &Context, named: &Path, guard: Guard) -> Result<Self> {
        let place = image_name(named);
        let mut path = named.to_owned();
        for _ in 0..LINKS_MAX {
            let found = match path.symlink_metadata() {
                Ok(found) => found,
                Err(error) if error.kind() == ErrorKind::NotFound && path == named => return Self::missing(named),
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(dangling(&place, &path)),
                Err(error) => return Err(unreachable_name(named, error)),
            };
            let file_type = found.file_type();
            if file_type.is_symlink() && is_of_a_process(&path).at(&place)? {
                return open(context, &path, &place, guard);
            } else if file_type.is_symlink() {
                let target = path.read_link().at(&place)?;
                path = path.parent().unwrap_or(Path::new("")).join(target);
            } else if file_type.is_file() || file_type.is_dir() {
                guard.check(&path).map_err(|error| if path == named { error } else { through(&place, &error) })?;
                return Self::name(&path);
            } else {
                return open(context, &path, &place, guard);
            }
        }
        Err(Failure::new(place, errno_text(Errno::LOOP), "the links lead in a circle").into())
    }

    /// The name itself, whatever it is: for what replaces a link. The directory of a name alone is the empty path.
    pub fn name(path: &Path) -> Result<Self> {
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => Ok(Self::Name(parent.to_owned(), name.as_bytes().to_vec())),
            _ => Err(Failure::new(image_name(path), "cannot be made anew", "name a file, or a directory").into()),
        }
    }

    fn missing(path: &Path) -> Result<Self> {
        let place = image_name(path);
        if path.as_os_str().is_empty() {
            return Err(Failure::new(place, errno_text(Errno::NOENT), "name a file, or a directory").into());
        }
        if path.as_os_str().as_bytes().ends_with(b"/") {
            let next = "make the directory first, or leave out the slash";
            return Err(Failure::new(place, "there is no such directory", next).into());
        }
        if let Some(image) = meant::volume_without_slash(path.as_os_str().as_bytes()) {
            let image = image_name(&image);
            let what = format!("is no place in the volume {image}, for want of a slash");
            return Err(Failure::usage(place, what, format!("write {image}:/, and the path behind that")).into());
        }
        Self::name(path)
    }
}

fn through(place: &str, error: &anyhow::Error) -> anyhow::Error {
    Failure::new(place, format!("leads to {error}"), "").into()
}

fn dangling(place: &str, path: &Path) -> anyhow::Error {
    let what = format!("a symbolic link that leads to {}, which does not exist", image_name(path));
    Failure::new(place, what, "remove the link, or name the file that it is to lead to").into()
}

/// Whether a link is one of those that lead to the open files of a process.
fn is_of_a_process(link: &Path) -> io::Result<bool> {
    let file = rustix::fs::open(link, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let is_of_proc = rustix::fs::fstatfs(&file)?.f_type as u64 == PROC_MAGIC;
    // Some, as `/proc/self` itself, lead to names like any other.
    Ok(is_of_proc && link.parent().is_some_and(|parent| parent.file_name().is_some_and(|name| name == "fd")))
}

/// Opens what is written into. A pipe is waited for until somebody reads it.
fn open(context: &Context, path: &Path, place: &str, guard: Guard) -> Result<Destination> {
    guard.check(path)?;
    // What others write there, before us and after, stays beside what we write.
    let own = match path.strip_prefix("/proc/self/fd").or_else(|_| path.strip_prefix("/dev/fd")) {
        Ok(number) if number == "1" => Some(rustix::stdio::stdout()),
        Ok(number) if number == "2" => Some(rustix::stdio::stderr()),
        _ => None,
    };
    if let Some(own) = own {
        return Ok(Destination::Stream(own.try_clone_to_owned().at(place)?.into()));
    }
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let is_file = path.is_file();
    let file = loop {
        match File::options().write(true).append(is_file).custom_flags(flags).open(path) {
            Err(error) if is_unread_pipe(path, &error) => {
                context.check()?;
                std::thread::sleep(PATIENCE);
            }
            opened => break opened.at(place)?,
        }
    };
    let flags = rustix::fs::fcntl_getfl(&file).map_err(io::Error::from).at(place)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK).map_err(io::Error::from).at(place)?;
    Ok(Destination::Stream(file))
}

fn is_unread_pipe(path: &Path, error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NXIO.raw_os_error())
        && path.metadata().is_ok_and(|found| found.file_type().is_fifo())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::symlink;

    #[test]
    fn a_path_means_what_it_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("d")).unwrap();
        for name in ["f", "d/g"] {
            std::fs::write(path(name), "x").unwrap();
        }
        symlink("d/g", path("link")).unwrap();
        symlink("../link", path("d/back")).unwrap();
        symlink("none", path("dangling")).unwrap();
        symlink("circle", path("circle")).unwrap();
        let context = Context::new(true);
        let find = |name: &str| match Destination::find(&context, &path(name), Guard::UnlessForced) {
            Ok(Destination::Name(directory, name)) => Ok(directory.join(String::from_utf8(name).unwrap())),
            Ok(Destination::Stream(_)) => Err("stream".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        assert_eq!(find("f"), Ok(path("f")));
        assert_eq!(find("new"), Ok(path("new")));
        for link in ["link", "d/back"] {
            assert_eq!(find(link).unwrap().canonicalize().unwrap(), path("d/g"), "{link}");
        }
        for (name, expected) in [
            ("none/", "there is no such directory"),
            ("f/", "Not a directory"),
            ("f/g", "Not a directory"),
            ("dangling", "which does not exist; remove the link"),
            ("circle", "in a circle"),
        ] {
            let said = find(name).unwrap_err();
            assert!(said.contains(expected), "{name}: {said}");
        }
        let said = Destination::find(&context, Path::new(""), Guard::Always).unwrap_err().to_string();
        assert!(said.starts_with("'': No such file"), "{said}");
        let Ok(Destination::Stream(mut null)) = Destination::find(&context, Path::new("/dev/null"), Guard::Always)
        else {
            panic!("a device is written into")
        };
        null.write_all(b"x").unwrap();
        let mut kept = File::create_new(path("kept")).unwrap();
        kept.write_all(b"first, ").unwrap();
        let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&kept));
        let found = Destination::find(&context, Path::new(&descriptor), Guard::Always).unwrap();
        let Destination::Stream(mut stream) = found else { panic!("a descriptor is written into") };
        stream.write_all(b"here").unwrap();
        let mut text = String::new();
        File::open(path("kept")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "first, here");
    }
}
