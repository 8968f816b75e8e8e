//! `import`: a tree of the host, or an archive, into a volume.

use super::batch::Feed;
use super::host_target::HostTarget;
use super::run::{self, Options, Tally};
use super::target::Keep;
use super::volume_target::VolumeTarget;
use super::writer::Writer;
use super::{
    ExistingArgs, ReportArgs, archive, host, host_tree, owner_or_source, parse_owner, session, summarize, top,
    top_mounted,
};
use crate::context::Context;
use crate::failure::{At, Failure, image_name};
use crate::verb::{Command, Example, Status};
use crate::volume::{self, Access, ChangeArgs, Opened, Place};
use anyhow::Result;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
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
    /// Leave out what is mounted inside the source
    #[arg(short = 'x', long)]
    one_file_system: bool,
    #[command(flatten)]
    existing: ExistingArgs,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Command for Import {
    const NAME: &'static str = "import";
    const ABOUT: &'static str = "Bring a directory or a tar archive into a volume";
    const DETAILS: &'static str = "Keeps owners, modes, times to the nanosecond, symbolic and hard links, extended attributes, \
        ACLs, device nodes, FIFOs and holes. A directory that is there keeps its files and gets what is new; a file that \
        is there is refused unless you say otherwise. Nothing in an archive can get out of the target directory. An \
        interrupted import leaves the files that are whole, and says how far it came.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad import /usr/share vol.img:/share", "imports a directory"),
        ("curl -s https://example.org/linux.tar.xz | myriad import - vol.img:/", "imports an archive from a pipe"),
        ("myriad import --replace site.tar.zst vol.img:/www", "brings a tree up to date with an archive"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let feed = self.feed(context)?;
        let volume = Opened::open(&self.target.image, Access::Change, &self.change.mount_options())?;
        let start = Instant::now();
        let result = self.transfer(context, &volume, feed);
        let closed = volume.close();
        let (mut tally, result) = result?;
        // Only now is it all durable.
        tally.elapsed = start.elapsed();
        tally.is_complete &= closed.is_ok();
        summarize(context, Self::NAME, "imported", &tally, self.report.json)?;
        result.and(closed)?;
        Ok(context.status())
    }
}

impl Import {
    fn feed(&self, context: &Context) -> Result<Feed> {
        if self.source == Path::new("-") {
            return Ok(archive::read(std::io::stdin(), "standard input".into(), None, true));
        }
        let metadata = std::fs::metadata(&self.source).at(image_name(&self.source))?;
        if metadata.is_dir() {
            let count = context.shows_progress();
            let image = rustix::fs::stat(&self.target.image).ok();
            let left_out = image.map(|stat| (host::link_key(&stat), "the image that it would be imported into"));
            let options = host_tree::Options { one_file_system: self.one_file_system, follow: true, count, left_out };
            return host_tree::read(&self.source, options);
        }
        let file = File::open(&self.source).at(image_name(&self.source))?;
        let size = metadata.is_file().then_some(metadata.len());
        Ok(archive::read(file, image_name(&self.source), size, size.is_none()))
    }

    /// Refuses to import a directory of a mount into itself: it would grow for ever.
    fn check_apart(&self, dir: &Path, base: Option<&[u8]>) -> Result<()> {
        let target = base.map_or(dir.to_owned(), |base| dir.join(OsStr::from_bytes(base)));
        // Standard input and archives are no directories.
        let is_inside = self.source.is_dir() && self.source.canonicalize().is_ok_and(|from| target.starts_with(from));
        if is_inside {
            let what = format!("is inside {}, the directory to import", image_name(&self.source));
            return Err(Failure::new(&self.target, what, "choose another target").into());
        }
        Ok(())
    }

    /// The inner result is that of the work, of which all else was told.
    fn transfer(&self, context: &Context, volume: &Opened, feed: Feed) -> Result<(Tally, Result<()>)> {
        let owner = owner_or_source(self.owner);
        let is_unordered = feed.is_unordered;
        let (existing, guard) = (self.existing.existing(), self.existing.guard());
        let options = Options { skip_unreadable: self.report.skip_unreadable, doing: "importing" };
        Ok(match volume {
            Opened::Here(volume) => {
                let top = top(&session(volume), &self.target)?;
                let target = VolumeTarget::new(session(volume), top.place, guard);
                let mut writer = Writer::new(target, top.dir, top.base, Keep::all(Some(owner)), existing, is_unordered);
                run::run(context, feed, &mut writer, options)
            }
            Opened::Mounted(mounted) => {
                let (dir, base) = top_mounted(&mounted.files, &self.target)?;
                self.check_apart(&dir, base.as_deref())?;
                let top = HostTarget::open(&dir).map_err(std::io::Error::from).at(image_name(&dir))?;
                // The kernel lets only root give files away.
                let is_allowed = rustix::process::geteuid().is_root() || self.owner.is_some();
                let target = HostTarget::new(dir.into_os_string().into_vec(), guard);
                let keep = Keep::all(is_allowed.then_some(owner));
                let mut writer = Writer::new(target, top, base, keep, existing, is_unordered);
                run::run(context, feed, &mut writer, options)
            }
        })
    }
}
