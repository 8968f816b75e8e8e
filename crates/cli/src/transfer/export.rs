//! `export`: a tree of a volume, into a directory of the host or an archive.

use super::archive::{ArchiveSink, Listing};
use super::batch::{Feed, Wanted};
use super::compress::Compression;
use super::destination::Destination;
use super::dry::Dry;
use super::existing::{self, Existing, Rules};
use super::host_target::{self, HostTarget, open_directory};
use super::host_tree::Mounts;
use super::run::{self, Options, Tally};
use super::target::{Keep, Target};
use super::writer::Writer;
use super::{
    ExistingArgs, PATTERNS, ReportArgs, SelectArgs, host, host_tree, owner_or_source, parse_owner, session, summarize,
    tell_made, volume_tree,
};
use crate::context::Context;
use crate::failure::{At, Failure, and_closed, host_error, image_name};
use crate::show::name::join;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, OpenArgs, Opened, Place};
use anyhow::Result;
use rustix::fs::{AtFlags, CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{BufWriter, ErrorKind, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Large enough that a pipe or a file is written in few calls.
const BUFFER_SIZE: usize = 256 << 10;

/// Ends of names of archives that are not written.
const FOREIGN: &[&str] = &[
    ".zip",
    ".7z",
    ".rar",
    ".cpio",
    ".iso",
    ".tar.bz2",
    ".tbz",
    ".tbz2",
    ".tar.lz",
    ".tar.lz4",
    ".tar.lzma",
    ".tar.br",
    ".tar.z",
    ".gz",
    ".bz2",
    ".xz",
    ".zst",
    ".squashfs",
    ".deb",
    ".jar",
];

#[derive(clap::Args)]
pub struct Export {
    /// Directory to export
    #[arg(value_name = "IMAGE[:/path]", value_parser = volume::place_or_root())]
    source: Place,
    /// Directory that gets its content, archive (by its name: .tar, .tar.gz, .tgz, .tar.zst, .tar.xz), or `-` for an
    /// archive on standard output
    target: PathBuf,
    /// Write an archive, whatever the target's name
    #[arg(long)]
    tar: bool,
    /// Compress the archive so, whatever its name
    #[arg(long, value_enum, value_name = "HOW")]
    compress: Option<Compression>,
    /// Give all files to this owner instead of their own; a directory of the host gets owners only from root
    #[arg(long, value_name = "USER[:GROUP]", value_parser = parse_owner)]
    owner: Option<(u32, u32)>,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    existing: ExistingArgs,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    open: OpenArgs,
}

impl Command for Export {
    const NAME: &'static str = "export";
    const ABOUT: &'static str = "Bring a directory of a volume to the host, or into a tar archive";
    const DETAILS: &'static str = "Keeps what import keeps; archives are written in the PAX format, which GNU tar, libarchive and \
        Python read. An archive takes its place under its name only when it is whole, and that of another one only if nothing failed. Without root, files on the host \
        belong to you and are never set-user-ID.";
    const MORE: fn() -> String = || PATTERNS.into();
    const EXAMPLES: &'static [Example] = &[
        ("myriad export vol.img:/share /srv/share", "exports to a directory"),
        ("myriad export vol.img backup.tar.zst", "exports a whole volume to an archive"),
        ("myriad export --update vol.img:/share /srv/share", "brings a directory up to date"),
        ("myriad export --exclude '*.log' --exclude /tmp/ vol.img all.tar.xz", "leaves files out"),
        ("myriad export vol.img:/www - | ssh host tar -x -C /srv", "exports to another host"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let volume = Opened::open(&self.source.image, Access::Read, &self.open.mount_options())?;
        let result = self.transfer(context, &volume);
        let closed = volume.close();
        let (tally, result) = match result {
            Ok(done) => done,
            Err(error) => return and_closed(Err(error), closed),
        };
        tally.tell_stops(context, None);
        // Standard output may be the archive.
        let json = self.report.json && !self.is_stdout();
        summarize(context, Self::NAME, self.select.done("exported", self.existing), &tally, json)?;
        and_closed(result, closed)?;
        Ok(context.status())
    }
}

impl Export {
    fn is_stdout(&self) -> bool {
        self.target == Path::new("-")
    }

    fn options<'a>(&self, tell: run::Tell<'a>) -> Options<'a> {
        let tell = self.select.tells(self.report).then_some(tell);
        Options { skip_unreadable: self.report.skip_unreadable, doing: "exporting", has_any_times: false, tell }
    }

    /// What looks like an archive of a kind that is not written would become a directory of that name.
    fn check_name(&self) -> Result<()> {
        let name = self.target.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        match FOREIGN.iter().find(|suffix| name.ends_with(**suffix)) {
            Some(suffix) if !self.target.is_dir() => {
                let what = format!("archives ending in {suffix} are not written here");
                let next = "name one .tar, .tar.gz (.tgz), .tar.zst (.tzst) or .tar.xz (.txz), make a directory of that name \
                    first, or give --tar";
                Err(Failure::usage(image_name(&self.target), what, next).into())
            }
            _ => Ok(()),
        }
    }

    fn transfer(&self, context: &Context, volume: &Opened) -> Result<(Tally, Result<()>)> {
        let stat = volume.tree().stat(&self.source.path).at(&self.source)?;
        if !stat.is_dir() {
            return Err(Failure::new(&self.source, "is not a directory", "copy a single file with myriad cp").into());
        }
        let by_name = Compression::of_archive(&self.target).filter(|_| !self.target.is_dir());
        if self.is_stdout() || self.tar || self.compress.is_some() || by_name.is_some() {
            if self.existing.existing() == Existing::Differing {
                let next = "give --replace, or the name of a directory";
                let what = "an archive is written anew or not at all, and --update is for directories";
                return Err(Failure::usage(image_name(&self.target), what, next).into());
            }
            let compression = self.compress.or(by_name).unwrap_or(Compression::None);
            return if self.is_stdout() {
                self.to_stdout(context, volume, compression)
            } else {
                self.to_archive(context, volume, compression)
            };
        }
        self.check_name()?;
        self.to_directory(context, volume)
    }

    fn to_stdout(&self, context: &Context, volume: &Opened, compression: Compression) -> Result<(Tally, Result<()>)> {
        if self.select.dry_run {
            return self.list(context, volume);
        }
        let stdout = std::io::stdout();
        if stdout.is_terminal() {
            return Err(Failure::usage("-", "an archive is nothing for a terminal", "redirect standard output").into());
        }
        let feed = self.feed_of_archive(context, volume)?;
        let output = BufWriter::with_capacity(BUFFER_SIZE, stdout.lock());
        self.archive(context, feed, output, compression, "standard output".into())
            .map(|(tally, result, _)| (tally, result))
    }

    fn to_archive(&self, context: &Context, volume: &Opened, compression: Compression) -> Result<(Tally, Result<()>)> {
        let place = image_name(&self.target);
        let metadata = self.target.symlink_metadata();
        let is_file = std::fs::metadata(&self.target).is_ok_and(|found| found.is_file() || found.is_dir());
        if metadata.is_ok() && is_file {
            match self.existing.existing() {
                Existing::Refuse => {
                    let next = "give --replace or --skip-existing, or choose another name";
                    return Err(Failure::new(place, "is there already", next).into());
                }
                Existing::Skip => return Ok((Tally { skipped: 1, is_complete: true, ..Tally::default() }, Ok(()))),
                _ => {}
            }
        }
        if self.select.dry_run {
            self.existing.guard().check(&self.target)?;
            return self.list(context, volume);
        }
        let target = match Destination::find(context, &self.target, self.existing.guard())? {
            // A device or a pipe has no other name to be written under.
            Destination::Stream(file) => {
                let feed = self.feed_of_archive(context, volume)?;
                let output = BufWriter::with_capacity(BUFFER_SIZE, file);
                let (tally, result, _) = self.archive(context, feed, output, compression, place)?;
                return Ok((tally, result));
            }
            Destination::Name(directory, name) => directory.join(OsStr::from_bytes(&name)),
        };
        self.check_apart(volume, &target)?;
        let feed = self.feed_of_archive(context, volume)?;
        let mut temporary = target.clone().into_os_string();
        temporary.push(format!(".myriad-new-{}", std::process::id()));
        // What takes the place of a file is for those only who had that one, and at no moment for others.
        let old = target.symlink_metadata().ok().filter(Metadata::is_file);
        let mut options = OpenOptions::new();
        if old.is_some() {
            options.mode(0o600);
        }
        let file = options.write(true).create_new(true).open(&temporary).at(&place)?;
        let temporary = Temporary(temporary.into());
        let output = BufWriter::with_capacity(BUFFER_SIZE, file);
        let (mut tally, mut result, output) = self.archive(context, feed, output, compression, place.clone())?;
        // Of a damaged volume some files are better than none, but not better than an archive that has them all.
        let is_kept = metadata.is_ok() && tally.errors > 0;
        if is_kept && result.is_ok() {
            let what = "stays as it is: what was to replace it is not whole";
            context.report(&Failure::new(&place, what, "see the errors above, or give another name").into());
        }
        if let (Ok(()), Some(output), false) = (&result, output, is_kept) {
            let finished = output.into_inner().map_err(std::io::IntoInnerError::into_error);
            let finished = finished.and_then(|file: File| {
                old.as_ref().map_or(Ok(()), |old| give_rights(&file, old))?;
                file.sync_all()
            });
            // Again: while it was made, somebody may have begun to use what is there.
            result = finished.at(&place).and_then(|()| self.existing.guard().check(&target));
            let replaces = metadata.is_ok() || !matches!(self.existing.existing(), Existing::Refuse | Existing::Skip);
            result = result.and_then(|()| match replaces {
                true => std::fs::rename(&temporary.0, &target).at(&place),
                false => give_new_name(&temporary.0, &target, &place),
            });
        }
        if result.is_err() || is_kept {
            tally.forget_done();
        }
        Ok((tally, result))
    }

    fn archive<W: Write>(
        &self,
        context: &Context,
        feed: Feed,
        output: W,
        compression: Compression,
        place: String,
    ) -> Result<(Tally, Result<()>, Option<W>)> {
        let owner = Some(owner_or_source(self.owner));
        let mut sink = ArchiveSink::new(output, compression, owner, place.clone()).at(place)?;
        let is_stdout = self.is_stdout();
        let tell: run::Tell<'_> = &|path, entry, outcome, _| tell_made(context, path, entry, outcome, is_stdout);
        let (mut tally, result) = run::run(context, feed, &mut sink, self.options(tell));
        tally.leave_out(sink.left_out);
        Ok((tally, result, sink.into_output()))
    }

    /// What comes into an archive. To be had before there is one: of what is refused here, no archive is begun, and no compressed stream ended
    /// as if it were whole.
    fn feed_of_archive(&self, context: &Context, volume: &Opened) -> Result<Feed> {
        self.feed(context, volume, Keep::all(Some(owner_or_source(self.owner))), None)
    }

    /// What an archive would hold, without one.
    fn list(&self, context: &Context, volume: &Opened) -> Result<(Tally, Result<()>)> {
        let mut sink = Listing::default();
        let feed = self.feed_of_archive(context, volume)?;
        let tell: run::Tell<'_> = &|path, entry, outcome, _| tell_made(context, path, entry, outcome, false);
        let (mut tally, result) = run::run(context, feed, &mut sink, self.options(tell));
        tally.leave_out(sink.left_out);
        Ok((tally, result))
    }

    fn feed(&self, context: &Context, volume: &Opened, keep: Keep, wanted: Option<Wanted>) -> Result<Feed> {
        let count = context.shows_progress();
        let (excludes, wanted) = (self.select.excludes(), self.select.wanted().or(wanted));
        match volume {
            Opened::Here(volume) => {
                let options = volume_tree::Options { links: true, count, excludes, wanted, ..Default::default() };
                let node = volume.session().resolve(&self.source.path).at(&self.source)?;
                Ok(volume_tree::read(|| session(volume), node, self.source.clone(), options))
            }
            Opened::Mounted(mounted) => {
                keep.check_mount(&mounted.daemon.status)?;
                let path = mounted.files.host_path(&self.source.path, true).at(&self.source)?;
                // An archive that goes to standard output may end up in the tree.
                let stdout = rustix::fs::fstat(rustix::stdio::stdout()).ok().filter(|_| self.is_stdout());
                let left_out = stdout.map(|stat| (host::link_key(&stat), "the archive that it would be exported to"));
                let options = host_tree::Options {
                    mounts: Mounts::Foreign,
                    device: Some(mounted.files.device().at(&self.source)?),
                    follow: true,
                    links: true,
                    count,
                    left_out,
                    excludes,
                    wanted,
                    ..Default::default()
                };
                host_tree::read(&path, options)
            }
        }
    }

    /// Refuses to export a directory of a mount into itself: it would grow for ever.
    fn check_apart(&self, volume: &Opened, target: &Path) -> Result<()> {
        let Opened::Mounted(mounted) = volume else { return Ok(()) };
        let from = mounted.files.host_path(&self.source.path, true).at(&self.source)?;
        let absolute = std::path::absolute(target).at(image_name(target))?;
        let real = absolute.canonicalize().or_else(|_| absolute.parent().unwrap_or(Path::new("/")).canonicalize());
        if real.is_ok_and(|real| real.starts_with(&from)) {
            let what = format!("is inside {}, the directory to export", self.source);
            return Err(Failure::new(image_name(&self.target), what, "choose another target").into());
        }
        Ok(())
    }

    fn to_directory(&self, context: &Context, volume: &Opened) -> Result<(Tally, Result<()>)> {
        self.check_apart(volume, &self.target)?;
        let owner = (rustix::process::geteuid().is_root() || self.owner.is_some()).then(|| owner_or_source(self.owner));
        let keep = Keep::all(owner);
        let path = self.target.as_os_str().as_bytes().to_vec();
        let stat = move |below: &[u8]| rustix::fs::statat(CWD, join(&path, below), AtFlags::SYMLINK_NOFOLLOW);
        let look = move |below: &[u8]| host_target::found(&stat(below).ok()?).ok();
        let wanted = existing::wanted(self.existing.existing(), keep, Box::new(look));
        let tell: run::Tell<'_> = &|path, entry, outcome, _| tell_made(context, path, entry, outcome, false);
        let rules = Rules { is_dry: self.select.dry_run, ..self.existing.existing().into() };
        let target = || HostTarget::new(self.target.as_os_str().as_bytes().to_vec(), self.existing.guard());
        if self.select.dry_run {
            let top = if self.target.exists() { Some(open_directory(&self.target, None)?) } else { None };
            let target = Dry { target: target(), clears_way: false };
            let mut writer = Writer::new(target, top, None, keep, rules, false);
            return Ok(run::run(context, self.feed(context, volume, keep, wanted)?, &mut writer, self.options(tell)));
        }
        let is_new = match std::fs::create_dir(&self.target) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let next = "make the directory that it is to be in first";
                return Err(Failure::new(image_name(&self.target), host_error(&error), next).into());
            }
            other => other.at(image_name(&self.target)).map(|()| true)?,
        };
        let (top, target) = (open_directory(&self.target, None)?, target());
        if is_new {
            target.drop_acls(&top).at(image_name(&self.target))?;
        }
        let mut writer = Writer::new(target, Rc::clone(&top), None, keep, rules, false);
        let feed = self.feed(context, volume, keep, wanted)?;
        let (mut tally, result) = run::run(context, feed, &mut writer, self.options(tell));
        // Once for all, and not file by file; opened before the first write, the directory hears of all that failed.
        let result =
            result.and_then(|()| rustix::fs::syncfs(&top).map_err(std::io::Error::from).at(image_name(&self.target)));
        tally.is_complete &= result.is_ok();
        Ok((tally, result))
    }
}

/// An archive that is being made, under a name of its own, which goes unless the archive has got another one.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // What went wrong before says more than an error about this.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Gives a file a name that nobody had when it was begun. Who has got it meanwhile keeps it.
fn give_new_name(file: &Path, name: &Path, place: &str) -> Result<()> {
    let renamed = match renameat_with(CWD, file, CWD, name, RenameFlags::NOREPLACE) {
        // Not every file system can; a link is as careful, and not every one has links.
        Err(Errno::INVAL | Errno::NOSYS) => match std::fs::hard_link(file, name) {
            Ok(()) => std::fs::remove_file(file),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
            Err(_) => std::fs::rename(file, name),
        },
        renamed => renamed.map_err(Into::into),
    };
    match renamed {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let next = "give --replace, or choose another name";
            Err(Failure::new(place, "has come there while the archive was made", next).into())
        }
        renamed => renamed.at(place),
    }
}

/// Gives a file the owner and the mode of the one that it is to replace. Other users than root keep what they make, and then
/// the rights of a group that is not theirs to give are nobody's.
fn give_rights(file: &File, old: &Metadata) -> std::io::Result<()> {
    let new = file.metadata()?;
    let mut mode = old.mode() & 0o777;
    if rustix::process::geteuid().is_root() {
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            fchown(file, Some(old.uid()), Some(old.gid()))?;
        }
    } else if new.gid() != old.gid() && fchown(file, None, Some(old.gid())).is_err() {
        mode &= !0o070;
    }
    // A file system without modes refuses to change them.
    if new.mode() & 0o777 == mode { Ok(()) } else { file.set_permissions(Permissions::from_mode(mode)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive took the place of a file that had come under its name while it was made, though nobody had asked for that.
    #[test]
    fn what_has_come_meanwhile_stays() {
        let host = tempfile::tempdir().unwrap();
        let [made, name] = ["made", "name"].map(|file| host.path().join(file));
        std::fs::write(&made, "archive").unwrap();
        give_new_name(&made, &name, "name").unwrap();
        assert!(!made.exists());
        std::fs::write(&made, "later").unwrap();
        let refused = give_new_name(&made, &name, "name").unwrap_err().to_string();
        assert!(refused.contains("has come there while the archive was made"), "{refused}");
        assert_eq!(std::fs::read(&name).unwrap(), b"archive");
    }
}
