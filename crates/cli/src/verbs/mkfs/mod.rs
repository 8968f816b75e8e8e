//! `mkfs`: a new volume.

pub mod existing;
mod options;

use crate::context::Context;
use crate::failure::{At, Failure, image_name};
use crate::mount::control;
use crate::show::{mode, owner, size};
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::verbs::info;
use crate::volume::place::is_same_file;
use crate::volume::{OpenArgs, device, signatures};
use anyhow::Result;
use existing::Existing;
use myriad_device::{Access, FileDevice};
use myriad_engine::{Fs, MkfsOptions};
use myriad_format::choices::{PROFILES, Profile, SEAMS};
use myriad_format::superblock::BLOCK_COUNT_MIN;
use options::Made;
use rustix::fs::{Mode, OFlags};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Mkfs {
    /// Image file or block device; a file that does not exist is made
    image: PathBuf,
    /// Size of the image file, which takes space only as it fills; without it the size that the file or device has
    #[arg(short, long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    #[command(flatten)]
    made: Made,
    /// Owner of the root directory by name or number; without it the user who runs the command
    #[arg(long, value_name = "USER[:GROUP]", value_parser = owner::parse)]
    root_owner: Option<(u32, u32)>,
    /// Permission bits of the root directory
    #[arg(long, value_name = "MODE", value_parser = mode::parse, default_value = "0755")]
    root_mode: u16,
    /// Take the volume's identity and its hash key from this number: volumes for tests, which anyone may guess
    #[arg(long, hide_short_help = true)]
    seed: Option<u64>,
    /// Overwrite what is there
    #[arg(short = 'f', long, visible_short_alias = 'F')]
    force: bool,
    /// Print what was made as one JSON object
    #[arg(long)]
    json: bool,
}

impl Command for Mkfs {
    const NAME: &'static str = "mkfs";
    const ABOUT: &'static str = "Make a volume in an image file or on a block device";
    const DETAILS: &'static str = "What is there is not overwritten without --force: a volume, another file system, a file that holds \
        anything but zeros. A volume that is in use is not overwritten at all. Called as mkfs.myriad it does the same.";
    const MORE: fn() -> String = seams;
    const EXAMPLES: &'static [Example] = &[
        (
            "myriad mkfs vol.img --size 16T",
            "makes a volume of 16 TiB; the file starts out nearly empty and grows with what is in it",
        ),
        ("myriad mkfs archive.img --size 1T --data-checksums", "makes a volume that never hands out damaged data"),
        ("mkfs.myriad -L spool /dev/sdb1", "makes a volume on a block device"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let name = image_name(&self.image);
        let options = self.options()?;
        self.check_size(&name)?;
        let existing = Existing::look(context, &self.image)?;
        self.make(context, &existing, &options)
    }
}

/// Cache in which a new volume is looked at: it has few blocks yet, and a host that has memory for making it has as much again.
const FACTS_CACHE: u64 = 8 << 20;

impl Mkfs {
    /// Makes the volume where `existing` was found.
    fn make(&self, context: &Context, existing: &Existing, options: &MkfsOptions) -> Result<Status> {
        let name = image_name(&self.image);
        let log = self
            .made
            .0
            .log_device
            .as_deref()
            .map(|log| Existing::look(context, log).map(|found| (image_name(log), found)));
        match existing {
            Existing::Missing if self.size.is_none() => {
                return Err(Failure::usage(
                    name,
                    "does not exist yet",
                    "say how large to make it with --size, as in --size 1G",
                )
                .into());
            }
            Existing::Blank { size: 0 } if self.size.is_none() => {
                return Err(Failure::usage(
                    name,
                    "an empty file",
                    "say how large to make it with --size, as in --size 1G",
                )
                .into());
            }
            _ => self.refuse_to_overwrite(&name, existing).map_err(|error| control::or_mounted(&self.image, error))?,
        }
        if let Some(log) = self.made.0.log_device.as_deref().filter(|log| is_same_file(log, &self.image)) {
            let next = "give another device, or leave out --log-device: the log is then in the volume";
            return Err(Failure::usage(image_name(log), "cannot be both volume and log", next).into());
        }
        let log = log.transpose()?;
        if let Some((log, found)) = &log {
            self.refuse_to_overwrite(log, found)?;
        }
        // A file that is given a size is emptied anyway.
        let is_emptied = self.size.is_some() && std::fs::metadata(&self.image).is_ok_and(|found| found.is_file());
        let mut holders = Vec::new();
        if matches!(existing, Existing::Holds(_)) && !is_emptied {
            holders.push(&self.image);
        }
        if let (Some(place), Some((_, Existing::Holds(_)))) = (&self.made.0.log_device, &log) {
            holders.push(place);
        }
        let mut erased = Vec::new();
        let make = || {
            for place in holders {
                erased.push((place, erase_marks(place)?));
            }
            let explain = |error| device::explain_opening(error, name.clone());
            let prepared = Fs::prepare(&self.image, self.size, options).map_err(explain)?;
            self.refuse_to_overwrite(&name, &existing.look_again(&self.image, prepared.is_new())?)?;
            if let (Some(place), Some((name, found))) = (&self.made.0.log_device, &log) {
                self.refuse_to_overwrite(name, &found.look_again(place, false)?)?;
            }
            prepared.make().map_err(explain)
        };
        if let Err(error) = make() {
            for (place, sectors) in erased {
                // A volume that is not made shall cost nothing, unless somebody else has the place by now. If not even that can be written,
                // the first error says it all.
                if let Ok(device) = FileDevice::open(place, Access::ReadWrite)
                    && device.lock_exclusive().is_ok()
                {
                    let _ = signatures::restore(&device, &sectors);
                }
            }
            return Err(self.too_large(&name, control::or_mounted(&self.image, error)));
        }
        let log_device = self.made.0.log_device.clone();
        let open = OpenArgs { log_device, cache_size: Some(FACTS_CACHE), ..OpenArgs::default() };
        let facts = info::Facts::read(&self.image, &open)?;
        if self.json {
            context.out().json(&facts.json())?;
        } else {
            context.note(&format!("{name}: {}", facts.summary()));
        }
        Ok(context.status())
    }

    /// Refuses a size that holds no volume.
    fn check_size(&self, name: &str) -> Result<()> {
        let least = BLOCK_COUNT_MIN * u64::from(self.made.0.block_size);
        match self.size.filter(|&size| size < least) {
            Some(size) => {
                let what = format!("option --size: {size} bytes hold no volume; the least is {}", size::exact(least));
                Err(Failure::usage(name, what, "write a number and K, M, G or T, as in 64M").into())
            }
            None => Ok(()),
        }
    }

    /// An error of a file that is larger than the host's file system can hold says how large one may be.
    fn too_large(&self, name: &str, error: anyhow::Error) -> anyhow::Error {
        let told = error.to_string();
        let is_candidate = ["File too large", "larger than a file can be"].iter().any(|text| told.contains(text));
        match largest_file(&self.image).filter(|_| is_candidate) {
            Some(largest) if self.size.is_some_and(|size| size > largest) => {
                let what = format!("a file on that file system has {} at most", size::exact(largest));
                Failure::new(name, what, "give a smaller --size, or a place on another file system").into()
            }
            _ => error,
        }
    }

    fn options(&self) -> Result<MkfsOptions> {
        let made = &self.made.0;
        made.choices
            .check_order(made.order)
            .map_err(|reason| Failure::usage(image_name(&self.image), reason.to_string(), "nothing was changed"))?;
        let caller = || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (root_uid, root_gid) = self.root_owner.unwrap_or_else(caller);
        Ok(MkfsOptions { seed: self.seed, root_uid, root_gid, root_mode: self.root_mode, ..made.clone() })
    }

    fn refuse_to_overwrite(&self, name: &str, existing: &Existing) -> Result<()> {
        match existing {
            Existing::Holds(what) if !self.force => {
                Err(Failure::new(name, format!("holds {what}"), "--force overwrites it; nothing was changed").into())
            }
            _ => Ok(()),
        }
    }
}

/// Erases what would make a new volume look like something else, unless somebody uses it.
fn erase_marks(place: &Path) -> Result<signatures::Sectors> {
    let erase = || -> Result<_> {
        let device = FileDevice::open(place, Access::ReadWrite).map_err(device::explain_open)?;
        device.lock_exclusive().map_err(device::explain_open)?;
        signatures::erase_marks(&device).at(image_name(place))
    };
    erase().map_err(|error| control::or_mounted(place, error))
}

/// What this build has at each seam, from the one table.
fn seams() -> String {
    let mut text = "What can be chosen of how a volume lies on the device, in this build:\n".to_owned();
    for seam in SEAMS {
        let built = seam.choices.iter().filter(|choice| choice.is_built);
        let list: Vec<String> = built.map(|choice| format!("{} ({})", choice.name, choice.about)).collect();
        text += &format!("  {}: {}\n", seam.name, list.join("; "));
    }
    let profiles = PROFILES.iter().filter(|profile| Profile::parse(profile.name).is_ok());
    let list: Vec<String> = profiles.map(|profile| format!("{} ({})", profile.name, profile.about)).collect();
    text + &format!("  profile: {}\nOther choices of the papers are refused by their names.", list.join("; "))
}

/// How large a file can be where `image` is to be: found by making one without a name, which takes no space.
fn largest_file(image: &Path) -> Option<u64> {
    let directory = image.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(directory, flags, Mode::from_raw_mode(0o600)).ok()?;
    let (mut possible, mut impossible) = (0, i64::MAX as u64);
    while impossible - possible > 1 {
        let size = possible + (impossible - possible) / 2;
        match rustix::fs::ftruncate(&file, size) {
            Ok(()) => possible = size,
            Err(rustix::io::Errno::FBIG | rustix::io::Errno::INVAL) => impossible = size,
            Err(_) => return None,
        }
    }
    Some(possible)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use myriad_device::FileOptions;
    use std::fs;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        mkfs: Mkfs,
    }

    /// Runs mkfs on a file, with `meanwhile` between the first look at it and its work; what is said if it fails.
    fn make(image: &Path, meanwhile: impl FnOnce()) -> Result<(), String> {
        let words = ["mkfs", image.to_str().unwrap(), "--size", "16M", "--json"];
        let mkfs = Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).mkfs;
        let (context, options) = (Context::new(true), mkfs.options().unwrap());
        let existing = Existing::look(&context, image).unwrap();
        meanwhile();
        mkfs.make(&context, &existing, &options).map(drop).map_err(|error| error.to_string())
    }

    /// Two programs make a file of one name: the one that comes second removed the first one's, which it had found missing, or overwrote
    /// it, which it had found blank.
    #[test]
    fn what_was_made_after_the_look_stays() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let mut held = None;
        let said = make(&image, || held = Some(FileDevice::create(&image, 4 << 20, &FileOptions::default()).unwrap()));
        assert!(said.unwrap_err().contains("in use"));
        drop(held);
        assert_eq!(fs::metadata(&image).unwrap().len(), 4 << 20, "it is another program's");

        fs::remove_file(&image).unwrap();
        let said = make(&image, || fs::write(&image, b"a copy").unwrap()).unwrap_err();
        assert!(said.contains("somebody else"), "{said}");
        assert_eq!(fs::read(&image).unwrap(), b"a copy");

        for is_blank in [false, true] {
            fs::remove_file(&image).unwrap();
            if is_blank {
                fs::write(&image, []).unwrap();
            }
            let other = MkfsOptions { label: "first".into(), ..MkfsOptions::default() };
            let said = make(&image, || Fs::format(&image, Some(8 << 20), &other).unwrap()).unwrap_err();
            assert!(said.contains("holds a Myriad volume, label first"), "{said}");
            Fs::open(&image, myriad_engine::MountOptions::default()).unwrap().close().unwrap();
            assert_eq!(fs::metadata(&image).unwrap().len(), 8 << 20);
        }
    }
}
