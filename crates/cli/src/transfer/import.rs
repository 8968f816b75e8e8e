//! `import`: a tree of the host, or an archive, into a volume.

use super::batch::Feed;
use super::delete::Deletion;
use super::dry::Dry;
use super::existing::{self, Look, Rules};
use super::host_target::{self, HostTarget, open_directory};
use super::host_tree::Mounts;
use super::run::{self, Options, Tally};
use super::target::Keep;
use super::volume_target::{self, VolumeTarget};
use super::writer::Writer;
use super::{
    ExistingArgs, PATTERNS, ReportArgs, SelectArgs, archive, host, host_tree, owner_or_source, parse_owner, session,
    summarize, tell_made, tell_path, top, top_mounted,
};
use crate::context::Context;
use crate::failure::{At, Failure, and_closed, image_name};
use crate::show::name::join;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, ChangeArgs, Opened, Place, meant};
use anyhow::Result;
use rustix::fs::{AtFlags, CWD};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args)]
pub struct Import {
    /// Directory whose content to import, tar archive (plain, gzip, zstd or xz), or `-` for an archive on standard input
    source: PathBuf,
    /// Directory that gets it; made if it is missing
    #[arg(value_name = "IMAGE:/path", value_parser = volume::place())]
    target: Place,
    /// Give all files to this owner instead of their own
    #[arg(long, value_name = "USER[:GROUP]", value_parser = parse_owner)]
    owner: Option<(u32, u32)>,
    /// Leave out what is mounted inside the source; the directory that it is mounted on comes empty
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// With --update, of a directory: remove what is in the target and not in the source
    #[arg(long, requires = "update")]
    delete: bool,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    existing: ExistingArgs,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    change: ChangeArgs,
}

/// What there is to import.
enum Source {
    Directory,
    /// Its name for messages, and its size, if that is known.
    Archive(Box<dyn std::io::Read + Send>, String, Option<u64>),
}

/// A pipe or device, opened by whoever reads it first: that waits until somebody writes to a pipe.
struct Late {
    path: PathBuf,
    file: Option<File>,
}

impl Read for Late {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.file.is_none() {
            self.file = Some(File::open(&self.path)?);
        }
        self.file.as_mut().map_or(Ok(0), |file| file.read(buffer))
    }
}

impl Command for Import {
    const NAME: &'static str = "import";
    const ABOUT: &'static str = "Bring a directory or a tar archive into a volume";
    const DETAILS: &'static str = "Keeps owners, modes, times to the nanosecond, symbolic and hard links, extended attributes, \
        ACLs, device nodes, FIFOs and holes. A directory that is there keeps its files and gets what is new; a file that \
        is there is refused unless you say otherwise. Nothing in an archive can get out of the target directory. An \
        interrupted import leaves the files that are whole, and says how far it came.\n\n\
        With --update --delete, a directory of the volume becomes as the source is. What is excluded, or cannot be read in the \
        source, is not deleted.";
    const MORE: fn() -> String = || PATTERNS.into();
    const EXAMPLES: &'static [Example] = &[
        ("myriad import /usr/share vol.img:/share", "imports a directory"),
        ("curl -s https://example.org/linux.tar.xz | myriad import - vol.img:/", "imports an archive from a pipe"),
        ("myriad import --replace site.tar.zst vol.img:/www", "brings a tree up to date with an archive"),
        (
            "myriad import -n --update --delete --exclude '*.o' src vol.img:/src",
            "prints what would have to be done to make a tree as a directory is, object files aside",
        ),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let source = self.source()?;
        let access = if self.select.dry_run { Access::Read } else { Access::Change };
        let volume = Opened::open(&self.target.image, access, &self.change.mount_options())?;
        let start = Instant::now();
        let result = self.transfer(context, &volume, source);
        let closed = volume.close();
        let (mut tally, result) = match result {
            Ok(done) => done,
            Err(error) => return and_closed(Err(error), closed),
        };
        // Only now is it all durable.
        tally.elapsed = start.elapsed();
        if closed.is_err() {
            // What of it is durable only the volume knows.
            tally.forget_done();
        }
        tally.tell_stops(context, closed.as_ref().err());
        summarize(context, Self::NAME, self.select.done("imported", self.existing), &tally, self.report.json)?;
        and_closed(result, closed)?;
        Ok(context.status())
    }
}

impl Import {
    /// What there is, before a volume is opened for it.
    fn source(&self) -> Result<Source> {
        let is_stdin = self.source == Path::new("-");
        let name = if is_stdin { "standard input".to_owned() } else { image_name(&self.source) };
        let metadata = match std::fs::metadata(&self.source) {
            _ if is_stdin => None,
            Err(_) if meant::volume_without_slash(self.source.as_os_str().as_bytes()).is_some() => {
                let next = format!("copy it with myriad cp -r {name} {}", self.target);
                return Err(Failure::usage(name, "is in a volume, and import brings in files of the host", next).into());
            }
            found => Some(found.at(&name)?),
        };
        if metadata.as_ref().is_some_and(std::fs::Metadata::is_dir) {
            return Ok(Source::Directory);
        }
        for (is_asked, option, why) in [
            (self.delete, "--delete", "what it has shows only when all of it was read"),
            (self.one_file_system, "--one-file-system", "nothing is mounted in it"),
        ] {
            if is_asked {
                let what = format!("{option} is for directories, and an archive is none: {why}");
                return Err(Failure::usage(name, what, "unpack it, or leave the option out").into());
            }
        }
        let Some(metadata) = metadata else { return Ok(Source::Archive(Box::new(std::io::stdin()), name, None)) };
        if !metadata.is_file() {
            let late = Late { path: self.source.clone(), file: None };
            return Ok(Source::Archive(Box::new(late), name, None));
        }
        let file = File::open(&self.source).at(&name)?;
        Ok(Source::Archive(Box::new(file), name, Some(metadata.len())))
    }

    /// `image`: that of the volume which it goes to.
    fn feed(&self, context: &Context, source: Source, image: &Path, keep: Keep, look: Look) -> Result<Feed> {
        let excludes = self.select.excludes();
        match source {
            Source::Archive(input, name, size) => {
                let mut feed = archive::read(input, name, size, size.is_none());
                feed.excludes = excludes;
                Ok(feed)
            }
            Source::Directory => {
                let image = rustix::fs::stat(image).ok();
                let left_out = image.map(|stat| (host::link_key(&stat), "the image that it would be imported into"));
                let wanted = existing::wanted(self.existing.existing(), keep, look);
                let options = host_tree::Options {
                    mounts: if self.one_file_system { Mounts::Empty } else { Mounts::Enter },
                    follow: true,
                    links: true,
                    count: context.shows_progress(),
                    left_out,
                    excludes,
                    wanted: self.select.wanted().or(wanted),
                    ..Default::default()
                };
                host_tree::read(&self.source, options)
            }
        }
    }

    /// Refuses to import a directory of a mount into itself: it would grow for ever. With --delete, also to import one into a directory
    /// above it: what is imported would itself be removed.
    fn check_apart(&self, volume: &Opened) -> Result<()> {
        let Opened::Mounted(mounted) = volume else { return Ok(()) };
        let (dir, base) = top_mounted(&mounted.files, &self.target)?;
        let target = base.map_or(dir.clone(), |base| dir.join(OsStr::from_bytes(&base)));
        // Standard input and archives are no directories.
        let Some(from) = self.source.canonicalize().ok().filter(|from| from.is_dir()) else { return Ok(()) };
        let is_deleted =
            |below: &Path| self.delete && !self.select.excludes().covers(below.as_os_str().as_bytes(), true);
        let place = match from.strip_prefix(&target) {
            _ if target.starts_with(&from) => "inside",
            Ok(below) if is_deleted(below) => "above",
            _ => return Ok(()),
        };
        let what = format!("is {place} {}, the directory to import", image_name(&self.source));
        Err(Failure::new(&self.target, what, "choose another target").into())
    }

    /// The inner result is that of the work, of which all else was told.
    fn transfer(&self, context: &Context, volume: &Opened, source: Source) -> Result<(Tally, Result<()>)> {
        self.check_apart(volume)?;
        let excludes = self.select.excludes();
        let tells = self.select.tells(self.report);
        let tell = |path: &[u8], is_directory: bool| tell_path(context, b"deleting ", path, is_directory, false);
        let device = self.one_file_system.then(|| std::fs::metadata(&self.source).map(|found| found.dev()));
        let deletion = Deletion {
            tree: volume.tree(),
            top: &self.target,
            source: &self.source,
            excludes: &excludes,
            device: device.transpose().at(image_name(&self.source))?,
            is_dry: self.select.dry_run,
            tell: if tells { Some(&tell) } else { None },
        };
        let (deleted, result) = if self.delete { deletion.run(context) } else { (0, Ok(())) };
        result?;
        let (mut tally, result) = self.bring(context, volume, source)?;
        tally.deleted = deleted;
        Ok((tally, result))
    }

    fn bring(&self, context: &Context, volume: &Opened, source: Source) -> Result<(Tally, Result<()>)> {
        let owner = owner_or_source(self.owner);
        let is_unordered = matches!(source, Source::Archive(..));
        let guard = self.existing.guard();
        let is_dry = self.select.dry_run;
        let rules = || Rules { is_dry, ..self.existing.existing().into() };
        let tell: run::Tell<'_> = &|path, entry, outcome, _| tell_made(context, path, entry, outcome, false);
        let options = Options {
            skip_unreadable: self.report.skip_unreadable,
            doing: "importing",
            has_any_times: true,
            tell: self.select.tells(self.report).then_some(tell),
        };
        let image = volume.image();
        Ok(match volume {
            Opened::Here(volume) => {
                let top = top(&session(volume), &self.target)?;
                let (looks, path) = (session(volume), join(&top.place.path, top.base.as_deref().unwrap_or_default()));
                let look = move |below: &[u8]| Some(volume_target::found(&looks.lstat(&join(&path, below)).ok()?));
                let keep = Keep::all(Some(owner));
                let feed = self.feed(context, source, image, keep, Box::new(look))?;
                let target = VolumeTarget::new(session(volume), top.place, guard);
                if is_dry {
                    let target = Dry { target, clears_way: self.delete };
                    let mut writer = Writer::new(target, Some(top.dir), top.base, keep, rules(), is_unordered);
                    run::run(context, feed, &mut writer, options)
                } else {
                    let mut writer = Writer::new(target, top.dir, top.base, keep, rules(), is_unordered);
                    run::run(context, feed, &mut writer, options)
                }
            }
            Opened::Mounted(mounted) => {
                let (dir, base) = top_mounted(&mounted.files, &self.target)?;
                let device = mounted.files.device().at(&self.target)?;
                let top = open_directory(&dir, Some(device))?;
                // The kernel lets only root give files away.
                let is_allowed = rustix::process::geteuid().is_root() || self.owner.is_some();
                let keep = Keep::all(is_allowed.then_some(owner));
                let path = join(dir.as_os_str().as_bytes(), base.as_deref().unwrap_or_default());
                let stat = move |below: &[u8]| rustix::fs::statat(CWD, join(&path, below), AtFlags::SYMLINK_NOFOLLOW);
                let look = move |below: &[u8]| host_target::found(&stat(below).ok()?).ok();
                let feed = self.feed(context, source, image, keep, Box::new(look))?;
                let target = HostTarget::of_mount(dir.into_os_string().into_vec(), guard, device);
                if is_dry {
                    let target = Dry { target, clears_way: self.delete };
                    let mut writer = Writer::new(target, Some(top), base, keep, rules(), is_unordered);
                    run::run(context, feed, &mut writer, options)
                } else {
                    let mut writer = Writer::new(target, top, base, keep, rules(), is_unordered);
                    run::run(context, feed, &mut writer, options)
                }
            }
        })
    }
}
