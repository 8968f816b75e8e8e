//! `info`: what a volume is and what state it is in.

use crate::context::Context;
use crate::failure::{At, image_name};
use crate::mount::control::{self, Request};
use crate::mount::stats::kind_text;
use crate::show::name::{count, hex, put, uuid};
use crate::show::statfs::put_statfs;
use crate::show::{size, table, time};
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{OpenArgs, device};
use anyhow::Result;
use myriad_device::{Access, FileDevice};
use myriad_engine::options::{Options, TABLE, When};
use myriad_engine::{Fs, MountOptions, StatFs, VolumeInfo};
use myriad_format::superblock::{Superblock, feature, state};
use myriad_fuse::{Handle, Kind};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(clap::Args)]
pub struct Info {
    /// Volume to look at
    image: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    open: OpenArgs,
}

impl Command for Info {
    const NAME: &'static str = "info";
    const ABOUT: &'static str = "Show what a volume is: identity, features, geometry, state, usage, log";
    const DETAILS: &'static str = "Nothing is written. Of a mounted volume the daemon is asked; one that somebody else has open for changes is \
        refused, naming them.";
    const EXAMPLES: &'static [Example] =
        &[("myriad info vol.img", "shows a volume"), ("myriad info --json vol.img | jq -r .uuid", "prints its UUID")];

    fn run(self, context: &Context) -> Result<Status> {
        let (json, lines) = match control::mount_of(&self.image)? {
            Some(daemon) => {
                let mut answer = daemon.ask(Request::Info)?;
                (answer["json"].take(), serde_json::from_value(answer["lines"].take()).unwrap_or_default())
            }
            None => {
                let facts = Facts::read(&self.image, &self.open)?;
                (facts.json(), facts.lines())
            }
        };
        let mut out = context.out();
        if self.json {
            out.json(&json)?
        } else {
            table::facts(&mut out, &lines)?
        }
        Ok(context.status())
    }
}

/// Everything that `info` shows.
pub struct Facts {
    image: PathBuf,
    superblock: Superblock,
    volume: VolumeInfo,
    usage: StatFs,
    mounted: Option<Mounted>,
}

/// How a volume is mounted.
struct Mounted {
    on: PathBuf,
    kind: Kind,
    /// Those of its options that differ from the default.
    options: Vec<(&'static str, String)>,
}

/// The options of an opening that differ from the default.
fn differing(fs: &Fs) -> Vec<(&'static str, String)> {
    let (now, default) = (fs.options(), Options::default());
    let of_mount = TABLE.iter().filter(|row| matches!(row.when, When::Mount | When::Live));
    let differ = of_mount.filter(|row| row.get(&now) != row.get(&default));
    differ.map(|row| (row.name, row.get(&now).to_string())).collect()
}

impl Facts {
    /// Reads superblock and usage under one lock.
    pub fn read(image: &Path, open: &OpenArgs) -> Result<Self> {
        let name = image_name(image);
        let device = device::open(image, Access::ReadOnly)?;
        let superblock = device::superblock(&*device, &name)?;
        let log = open.log_device.as_deref().map(|log| device::open(log, Access::ReadOnly)).transpose()?;
        let options = MountOptions { read_only: true, background: false, ..open.mount_options() };
        let fs = Fs::open_device(device, log.map(|log| log as Arc<_>), options).at(&name)?;
        let (volume, usage) = (fs.info(), fs.statfs().at(&name)?);
        fs.close().at(&name)?;
        Ok(Self { image: image.to_owned(), superblock, volume, usage, mounted: None })
    }

    /// Of a volume that this process has mounted.
    pub fn of_mounted(image: &Path, device: &FileDevice, mount: &Handle) -> Result<Self> {
        let name = image_name(image);
        let superblock = device::superblock(device, &name)?;
        let (volume, usage) = (mount.fs().info(), mount.fs().statfs().at(name)?);
        let mounted = Some(Mounted {
            on: mount.mount_point().to_owned(),
            kind: mount.kind().clone(),
            options: differing(mount.fs()),
        });
        Ok(Self { image: image.to_owned(), superblock, volume, usage, mounted })
    }

    fn bytes(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(u64::from(self.usage.block_size))
    }

    fn state(&self) -> &'static str {
        if self.mounted.is_some() {
            return "mounted";
        }
        match self.superblock.state.get() {
            state::CLEAN | state::IN_USE if self.volume.is_check_asked_for => "damaged",
            state::CLEAN if self.superblock.leftovers != 0 => "leftovers",
            state::CLEAN => "clean",
            state::SEALED => "sealed",
            _ => "in_use",
        }
    }

    /// One line, for mkfs.
    pub fn summary(&self) -> String {
        let volume = &self.volume;
        format!(
            "volume {} of {}: {} blocks of {} bytes in {} groups, log {}",
            uuid(&volume.uuid),
            size::human(self.bytes(volume.block_count)),
            volume.block_count,
            volume.block_size,
            volume.ag_count,
            if volume.log_size == 0 { "none".into() } else { size::human(volume.log_size) },
        )
    }

    fn features(&self) -> Vec<String> {
        let raw = &self.superblock;
        let known = [
            (feature::COMPATIBLE_XATTR, "xattr"),
            (feature::COMPATIBLE_ACL, "acl"),
            (feature::COMPATIBLE_FLAGGED, "flagged"),
        ];
        let compatible = raw.features_compatible.get();
        let mut names: Vec<String> =
            known.iter().filter(|(bit, _)| compatible & bit != 0).map(|(_, name)| (*name).into()).collect();
        if raw.features_read_only.get() & feature::READ_ONLY_DATA_CHECKSUMS != 0 {
            names.push("data_checksums".into());
        }
        if raw.features_incompatible.get() & feature::INCOMPATIBLE_FRAGMENTS != 0 {
            names.push("fragments".into());
        }
        for (word, bits, known) in [
            ("compatible", compatible, feature::COMPATIBLE_KNOWN),
            ("read-only", raw.features_read_only.get(), feature::READ_ONLY_KNOWN),
            ("incompatible", raw.features_incompatible.get(), feature::INCOMPATIBLE_KNOWN),
        ] {
            names.extend((0..64).filter(|bit| bits & !known & (1 << bit) != 0).map(|bit| format!("{word}-{bit}")));
        }
        names
    }

    fn choices(&self) -> Vec<(&'static str, &'static str)> {
        // What no build knows is no volume to it, and has no facts.
        let known = self.superblock.choices().map(|choices| choices.all().to_vec()).unwrap_or_default();
        known.into_iter().map(|(seam, choice)| (seam, choice.name)).collect()
    }

    pub fn json(&self) -> Value {
        let (raw, volume) = (&self.superblock, &self.volume);
        let mut object = Map::new();
        put(&mut object, "image", self.image.as_os_str().as_bytes());
        let facts = json!({
            "uuid": uuid(&volume.uuid),
            "label": volume.label,
            "format_version": raw.version.get(),
            "features": self.features(),
            "state": self.state(),
            "recovered": volume.recovered,
            "block_count": volume.block_count,
            "fragments": 1 << raw.fragment_bits,
            "ag_size": volume.ag_size,
            "ag_count": volume.ag_count,
            "ag_high_water": raw.ag_high_water.get(),
            "region_size": volume.region_size,
            "log_size": volume.log_size,
            "log_external": volume.log_external,
            "order": self.volume.order.name(),
            "made_ns": volume.made,
            "last_writer": {
                "machine": hex(&raw.mount_machine), "boot": hex(&raw.mount_boot),
                "pid": raw.mount_pid.get(), "time_ns": raw.mount_time.get(),
            },
        });
        let Value::Object(facts) = facts else { unreachable!("written as an object above") };
        object.extend(facts);
        if let Some(Mounted { kind, options, .. }) = &self.mounted {
            let options = options.iter().map(|(name, value)| ((*name).to_owned(), Value::from(value.clone())));
            object.insert("options".into(), options.collect::<Map<_, _>>().into());
            object.insert("kind".into(), kind.name().into());
            object.insert("why_no_sync".into(), kind.why_no_sync().into());
        }
        object.extend(self.choices().into_iter().map(|(name, choice)| (name.to_owned(), choice.into())));
        put_statfs(&mut object, &self.usage);
        object.into()
    }

    /// As people read it.
    pub fn lines(&self) -> Vec<(Cow<'static, str>, String)> {
        let (raw, volume, usage) = (&self.superblock, &self.volume, &self.usage);
        let state = match (&self.mounted, raw.state.get()) {
            (Some(mounted), _) => format!("mounted on {}", image_name(&mounted.on)),
            (None, state::CLEAN | state::IN_USE) if volume.is_check_asked_for => {
                "a background check found damage: run myriad fsck -y before it is changed".to_owned()
            }
            (None, state::CLEAN) if raw.leftovers != 0 => {
                "clean, but for what an earlier crash may have left in use for nothing: a mount gives it back, or myriad fsck -p".to_owned()
            }
            (None, state::CLEAN) => "clean".into(),
            (None, state::SEALED) => "sealed: read-only for ever".into(),
            _ if raw.needs_check(volume.recovered) => {
                "not closed cleanly, and no log counts: run myriad fsck -p before it is changed".to_owned()
            }
            _ => "not closed cleanly: the next opening for changes recovers it".to_owned(),
        };
        let writer = match raw.mount_time.get() {
            0 => "none yet".into(),
            at => format!("process {}, {}", raw.mount_pid.get(), time::full(at)),
        };
        let log = match (volume.log_size, volume.log_external) {
            (0, _) => "none".into(),
            (bytes, false) => format!("{}, from block {}", size::exact(bytes), raw.log_start.get()),
            (bytes, true) => format!("{}, on a device of its own", size::exact(bytes)),
        };
        let features = self.features();
        let used = usage.blocks - usage.free_blocks;
        let of_a_file = match raw.fragment_bits {
            0 => String::new(),
            bits => format!(", fragments of blocks of {}", size::human(u64::from(volume.block_size) << bits)),
        };
        let lines = [
            ("Volume", uuid(&volume.uuid)),
            (
                "Label",
                if volume.label.is_empty() {
                    "none".into()
                } else {
                    crate::show::name::Shown(volume.label.as_bytes()).to_string()
                },
            ),
            ("Made", time::full(volume.made)),
            ("State", state),
            ("Last writer", writer),
            ("Format", format!("version {}", raw.version.get())),
            ("Features", if features.is_empty() { "none".into() } else { features.join(", ") }),
            (
                "Choices",
                self.choices().iter().map(|(name, choice)| format!("{name} {choice}")).collect::<Vec<_>>().join(", "),
            ),
            ("Size", size::exact(self.bytes(volume.block_count))),
            ("Blocks", format!("{} of {} bytes{of_a_file}", volume.block_count, volume.block_size)),
            (
                "Groups",
                format!(
                    "{} of {}, {} used so far",
                    volume.ag_count,
                    size::human(volume.ag_size),
                    raw.ag_high_water.get()
                ),
            ),
            ("Regions", format!("of {}", size::human(volume.region_size))),
            ("Log", log),
            ("Order", self.volume.order.name().into()),
            (
                "Space used",
                format!("{}, free {}", size::human(self.bytes(used)), size::human(self.bytes(usage.free_blocks))),
            ),
            (
                "Inodes",
                format!(
                    "{} used ({}), room for {}",
                    usage.inodes_used,
                    count(usage.directories, "directory"),
                    usage.inodes_free
                ),
            ),
        ];
        let mut lines: Vec<_> = lines.into_iter().map(|(name, value)| (name.into(), value)).collect();
        if let Some(Mounted { kind, options, .. }) = &self.mounted {
            let list: Vec<String> = options.iter().map(|(name, value)| format!("{name} {value}")).collect();
            lines.push(("Options".into(), if list.is_empty() { "all by default".into() } else { list.join(", ") }));
            let at = 1 + lines.iter().position(|(name, _)| name == "State").expect("it is above");
            lines.insert(at, ("Mounted as".into(), kind_text(kind.name(), kind.why_no_sync().as_deref())));
        }
        lines
    }
}
