//! `mkfs`: a new volume.

pub mod existing;

use crate::context::Context;
use crate::failure::{At, Failure, image_name};
use crate::mount::control;
use crate::show::{mode, owner, size};
use crate::verb::{Command, Example, Status};
use crate::verbs::info;
use crate::volume::place::is_same_file;
use crate::volume::{OpenArgs, device};
use anyhow::Result;
use existing::Existing;
use myriad_device::{Access, FileDevice};
use myriad_engine::{Fs, MkfsOptions, Order};
use myriad_format::choices::{
    self, Choices, Directory, Inodes, Lookup, Map as MapKind, PROFILES, Profile, SEAMS, Space,
};
use rustix::fs::{Mode, OFlags};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Mkfs {
    /// Image file or block device; a file that does not exist is made
    image: PathBuf,
    /// Size of the image file, which takes space only as it fills; without it the size that the file or device has
    #[arg(short, long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Choices at all seams under one name, as `mkfs --help` lists them
    #[arg(long, value_name = "NAME", value_parser = profile, default_value = "myriad")]
    profile: &'static Profile,
    /// How free blocks are recorded, if not as the profile has it
    #[arg(long, value_name = "CHOICE", value_parser = Space::parse)]
    space: Option<Space>,
    /// Where inodes lie, if not as the profile has it
    #[arg(long, value_name = "CHOICE", value_parser = Inodes::parse)]
    inodes: Option<Inodes>,
    /// How a block of a file is found, if not as the profile has it
    #[arg(long, value_name = "CHOICE", value_parser = MapKind::parse)]
    map: Option<MapKind>,
    /// How a directory lies on the device, if not as the profile has it
    #[arg(long, value_name = "CHOICE", value_parser = Directory::parse)]
    directory: Option<Directory>,
    /// How a path becomes an inode, if not as the profile has it
    #[arg(long, value_name = "CHOICE", value_parser = Lookup::parse)]
    lookup: Option<Lookup>,
    /// Size of a block: a power of two from 512 to 64K
    #[arg(short, long, value_name = "SIZE", value_parser = block_size, default_value = "4K")]
    block_size: u32,
    /// Size of an allocation group: a power of two; without it by the size of the volume, at most 1G
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    ag_size: Option<u64>,
    /// Size of a placement region: a power of two
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "32M")]
    region_size: u64,
    /// With inodes=static: one inode for that much of the volume; a power of two from 1K to 16M
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "8K")]
    bytes_per_inode: u64,
    /// Size of the log; 0: no log, which allows the order `none` only; without it by the size of the volume
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    log_size: Option<u64>,
    /// Keep the log on this device
    #[arg(long, value_name = "DEVICE")]
    log_device: Option<PathBuf>,
    /// Keep a checksum of each block of file data, compared whenever it is read from the device: damage is an error, never wrong
    /// bytes. What overwrites goes to new blocks then, also on a volume that is nearly full
    #[arg(long)]
    data_checksums: bool,
    /// Have the host give the image file all of its room now: a host that fills up later does not stop the volume
    #[arg(long)]
    preallocate: bool,
    /// Name of the volume, at most 63 bytes
    #[arg(short = 'L', long, default_value = "", hide_default_value = true, value_parser = label)]
    label: String,
    /// Order of writes that is used unless an opening says otherwise; without it the profile's
    #[arg(long, value_name = "ORDER", value_parser = order)]
    order: Option<choices::Order>,
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
        let existing = Existing::look(context, &self.image)?;
        // One that leads nowhere as yet is somebody's all the same.
        let is_link = self.image.is_symlink();
        let log =
            self.log_device.as_deref().map(|log| Existing::look(context, log).map(|found| (image_name(log), found)));
        match &existing {
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
            _ => self.refuse_to_overwrite(&name, &existing).map_err(|error| control::or_mounted(&self.image, error))?,
        }
        if let Some(log) = self.log_device.as_deref().filter(|log| is_same_file(log, &self.image)) {
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
        if let (Some(place), Some((_, Existing::Holds(_)))) = (&self.log_device, &log) {
            holders.push(place);
        }
        let mut erased = Vec::new();
        let make = || {
            for place in holders {
                erased.push((place, erase_marks(place)?));
            }
            Fs::format(&self.image, self.size, &options).at(&name)
        };
        if let Err(error) = make() {
            for (place, sectors) in erased {
                // A volume that is not made shall cost nothing. If not even that can be written, the first error says it all.
                let _ = FileDevice::open(place, Access::ReadWrite).map(|device| existing::restore(&device, &sectors));
            }
            let error = control::or_mounted(&self.image, error);
            if matches!(existing, Existing::Missing) && !is_link {
                // Made by us, and of no use to anybody. If it cannot be removed, the first error still says it all.
                let _ = std::fs::remove_file(&self.image);
            }
            return Err(self.too_large(&name, error));
        }
        let open = OpenArgs { log_device: self.log_device.clone(), ..OpenArgs::default() };
        let facts = info::Facts::read(&self.image, &open)?;
        if self.json {
            context.out().json(&facts.json())?;
        } else {
            context.note(&format!("{name}: {}", facts.summary()));
        }
        Ok(context.status())
    }
}

impl Mkfs {
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
        let profile = self.profile;
        let choices = Choices {
            space: self.space.unwrap_or(profile.choices.space),
            inodes: self.inodes.unwrap_or(profile.choices.inodes),
            map: self.map.unwrap_or(profile.choices.map),
            directory: self.directory.unwrap_or(profile.choices.directory),
            lookup: self.lookup.unwrap_or(profile.choices.lookup),
            volume: profile.choices.volume,
        };
        let order = self.order.unwrap_or(profile.order);
        let refused = |what: String| Failure::usage(image_name(&self.image), what, "nothing was changed");
        choices.check_order(order).map_err(|reason| refused(reason.to_string()))?;
        let order = Order::parse(order.choice().name).map_err(refused)?;
        let caller = || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (root_uid, root_gid) = self.root_owner.unwrap_or_else(caller);
        Ok(MkfsOptions {
            choices,
            block_size: self.block_size,
            ag_size: self.ag_size,
            region_size: self.region_size,
            bytes_per_inode: self.bytes_per_inode,
            log_size: self.log_size,
            log_device: self.log_device.clone(),
            data_checksums: self.data_checksums,
            preallocate: self.preallocate,
            label: self.label.clone(),
            order,
            seed: self.seed,
            root_uid,
            root_gid,
            root_mode: self.root_mode,
            ..MkfsOptions::default()
        })
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
fn erase_marks(place: &Path) -> Result<existing::Sectors> {
    let erase = || -> Result<_> {
        let device = FileDevice::open(place, Access::ReadWrite).map_err(device::explain_open)?;
        device.lock_exclusive().map_err(device::explain_open)?;
        existing::erase_marks(&device).at(image_name(place))
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

fn profile(text: &str) -> Result<&'static Profile, String> {
    Profile::parse(text)
}

/// Any order that has a name: whether it is safe with the rest is asked before whether this build has it.
fn order(text: &str) -> Result<choices::Order, String> {
    choices::Order::named(text).ok_or_else(|| choices::Order::parse(text).expect_err("it has no such name"))
}

fn block_size(text: &str) -> Result<u32, String> {
    let bytes = size::parse(text)?;
    let is_possible = bytes.is_power_of_two() && (512..=65536).contains(&bytes);
    if is_possible { Ok(bytes as u32) } else { Err("a block size is a power of two from 512 to 64K".into()) }
}

fn label(text: &str) -> Result<String, String> {
    if text.len() > 63 {
        Err(format!("a label has at most 63 bytes, this one {}", text.len()))
    } else {
        Ok(text.into())
    }
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
