//! `df`: how full volumes are.

use crate::context::Context;
use crate::failure::image_name;
use crate::mount::control::{self, Request};
use crate::show::name::put;
use crate::show::size::{Unit, UnitArgs};
use crate::show::{size, statfs, table};
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, OpenArgs, Opened, Place};
use anyhow::Result;
use myriad_engine::StatFs;
use serde_json::Map;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[derive(clap::Args)]
// `-h` is human-readable here, as everywhere; help is `--help`.
#[command(disable_help_flag = true)]
pub struct Df {
    #[command(flatten)]
    units: UnitArgs,
    /// Print sizes as people read them, by powers of 1000
    #[arg(short = 'H', long, overrides_with_all = ["human_readable", "kib", "mib", "block_size"])]
    si: bool,
    /// Count inodes instead of space
    #[arg(short, long)]
    inodes: bool,
    /// Print the type too, which is myriad
    #[arg(short = 'T', long)]
    print_type: bool,
    /// Headings as POSIX has them
    #[arg(short = 'P', long)]
    portability: bool,
    /// Print the sum of all volumes too
    #[arg(long)]
    total: bool,
    /// Accepted: all volumes that are named, or mounted, are shown
    #[arg(short, long)]
    all: bool,
    /// Print these fields
    #[arg(long, value_name = "FIELDS", value_delimiter = ',', conflicts_with_all = ["inodes", "print_type", "portability"])]
    output: Vec<Field>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
    /// Volumes to look at, each named by itself or by a file in it; without any: those that are mounted
    #[arg(value_name = "IMAGE[:/path]", value_parser = volume::place_or_root())]
    places: Vec<Place>,
    #[command(flatten)]
    open: OpenArgs,
}

/// A column.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Source,
    Fstype,
    Itotal,
    Iused,
    Iavail,
    Ipcent,
    Size,
    Used,
    Avail,
    Pcent,
    Target,
}

impl Command for Df {
    const NAME: &'static str = "df";
    const ABOUT: &'static str = "Show how full volumes are";
    const DETAILS: &'static str = "Without -h, space is counted in KiB. Inodes are made as they are needed, so the free ones are \
        those that free space has room for.\n\n\
        Without an operand, all volumes are shown that are mounted and that you may ask about: your own, and for root everybody's.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad df -h vol.img", "shows space"),
        ("myriad df -h", "shows space of each volume that is mounted"),
        ("myriad df -i a.img b.img", "shows inodes of two volumes"),
        ("myriad df --total -BG --output=source,used,avail *.img", "shows two figures of each volume, and their sums"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let mut found = Vec::new();
        volume::look(context, self.places.iter().map(|place| &*place.image), || {
            found.clear();
            self.places.iter().try_for_each(|place| context.tolerate(self.measure(context, place, &mut found)))
        })?;
        if self.places.is_empty() {
            self.measure_mounted(context, &mut found)?;
        }
        if self.json || found.is_empty() {
            return Ok(context.status());
        }
        if self.total {
            found.push(Found::sum(&found));
        }
        let unit = self.units.unit(self.si);
        let fields = self.fields();
        let headings: Vec<String> = fields.iter().map(|field| self.heading(*field, unit.as_ref())).collect();
        let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
        let rows = found.iter().map(|found| fields.iter().map(|field| found.show(*field, unit.as_ref())).collect());
        let is_text = |column: usize| matches!(fields[column], Field::Source | Field::Fstype | Field::Target);
        table::columns(&mut context.out(), &headings, is_text, rows.collect())?;
        Ok(context.status())
    }
}

/// Figures of a volume, in bytes and numbers of inodes.
struct Found {
    name: String,
    /// Where it is mounted, if it is.
    mount_point: Option<String>,
    fstype: &'static str,
    size: u64,
    used: u64,
    free: u64,
    inodes_used: u64,
    inodes_free: u64,
}

impl Found {
    fn of(name: String, statfs: &StatFs) -> Self {
        let unit = u64::from(statfs.block_size);
        Self {
            name,
            mount_point: None,
            fstype: "myriad",
            size: statfs.blocks * unit,
            used: (statfs.blocks - statfs.free_blocks) * unit,
            free: statfs.available_blocks * unit,
            inodes_used: statfs.inodes_used,
            inodes_free: statfs.inodes_free,
        }
    }

    fn sum(all: &[Self]) -> Self {
        let sum = |figure: fn(&Self) -> u64| all.iter().map(figure).fold(0, u64::saturating_add);
        Self {
            name: "total".into(),
            mount_point: None,
            fstype: "-",
            size: sum(|found| found.size),
            used: sum(|found| found.used),
            free: sum(|found| found.free),
            inodes_used: sum(|found| found.inodes_used),
            inodes_free: sum(|found| found.inodes_free),
        }
    }

    fn show(&self, field: Field, unit: Option<&Unit>) -> String {
        let space = |bytes| unit.unwrap_or(&Unit::of(1024)).show(bytes);
        let count = |number| match unit {
            Some(unit @ (Unit::Human | Unit::Si)) => unit.show(number),
            _ => number.to_string(),
        };
        match field {
            Field::Source => self.name.clone(),
            Field::Fstype => self.fstype.into(),
            Field::Itotal => count(self.inodes_used.saturating_add(self.inodes_free)),
            Field::Iused => count(self.inodes_used),
            Field::Iavail => count(self.inodes_free),
            Field::Ipcent => percent(self.inodes_used, self.inodes_free),
            Field::Size => space(self.size),
            Field::Used => space(self.used),
            Field::Avail => space(self.free),
            Field::Pcent => percent(self.used, self.free),
            Field::Target => self.mount_point.clone().unwrap_or_else(|| "-".into()),
        }
    }
}

/// Rounded up, as df(1) does.
fn percent(used: u64, free: u64) -> String {
    let (used, all) = (u128::from(used), u128::from(used) + u128::from(free));
    format!("{}%", (used * 100).div_ceil(all.max(1)))
}

impl Df {
    fn fields(&self) -> Vec<Field> {
        if !self.output.is_empty() {
            return self.output.clone();
        }
        let figures = if self.inodes {
            [Field::Itotal, Field::Iused, Field::Iavail, Field::Ipcent]
        } else {
            [Field::Size, Field::Used, Field::Avail, Field::Pcent]
        };
        let kind = self.print_type.then_some(Field::Fstype);
        let target = self.places.is_empty().then_some(Field::Target);
        std::iter::once(Field::Source).chain(kind).chain(figures).chain(target).collect()
    }

    fn heading(&self, field: Field, unit: Option<&Unit>) -> String {
        let text = match field {
            Field::Source => "Volume",
            Field::Fstype => "Type",
            Field::Itotal => "Inodes",
            Field::Iused => "IUsed",
            Field::Iavail => "IFree",
            Field::Ipcent => "IUse%",
            Field::Used => "Used",
            Field::Pcent if self.portability => "Capacity",
            Field::Pcent => "Use%",
            Field::Target => "Mounted on",
            Field::Size => match unit {
                Some(Unit::Human | Unit::Si) => "Size",
                Some(Unit::Of { bytes, .. }) => return format!("{}-blocks", unit_name(*bytes, self.portability)),
                None => return format!("{}-blocks", unit_name(1024, self.portability)),
            },
            Field::Avail => match unit {
                Some(Unit::Human | Unit::Si) => "Avail",
                _ => "Available",
            },
        };
        text.into()
    }

    fn measure(&self, context: &Context, place: &Place, found: &mut Vec<Found>) -> Result<()> {
        let volume = Opened::open(&place.image, Access::Read, &self.open.mount_options())?;
        volume.lstat(place)?;
        let statfs = volume.statfs()?;
        let mount_point = match &volume {
            Opened::Here(_) => None,
            Opened::Mounted(mounted) => Some(mounted.daemon.status.mount_point.clone()),
        };
        volume.close()?;
        self.take(context, &place.image, mount_point.as_deref(), &statfs, found)
    }

    fn measure_mounted(&self, context: &Context, found: &mut Vec<Found>) -> Result<()> {
        let mut is_any = false;
        for daemon in control::all() {
            let Some(daemon) = context.tolerated(daemon)? else {
                is_any = true;
                continue;
            };
            if !daemon.is_mounted()? {
                continue;
            }
            is_any = true;
            let statfs = daemon.ask(Request::Stats).map(|stats| statfs::get_statfs(&stats));
            let status = &daemon.status;
            let result =
                statfs.and_then(|statfs| self.take(context, &status.image, Some(&status.mount_point), &statfs, found));
            context.tolerate(result)?;
        }
        if !is_any {
            context.note("myriad: no volume is mounted; name the image of one that is not");
        }
        Ok(())
    }

    fn take(
        &self,
        context: &Context,
        image: &Path,
        mount_point: Option<&Path>,
        statfs: &StatFs,
        found: &mut Vec<Found>,
    ) -> Result<()> {
        if self.json {
            let mut object = Map::new();
            put(&mut object, "image", image.as_os_str().as_bytes());
            // Of one that was named, the answer is the same mounted or not.
            if let Some(mount_point) = mount_point.filter(|_| self.places.is_empty()) {
                put(&mut object, "mount_point", mount_point.as_os_str().as_bytes());
            }
            statfs::put_statfs(&mut object, statfs);
            return Ok(context.out().json(&object.into())?);
        }
        found.push(Found { mount_point: mount_point.map(image_name), ..Found::of(image_name(image), statfs) });
        Ok(())
    }
}

/// `1K`, `2M`, `1000`; POSIX wants the bytes.
fn unit_name(bytes: u64, is_posix: bool) -> String {
    if !is_posix && bytes >= 1024 && bytes.trailing_zeros() >= 10 {
        size::human(bytes).replace(".0", "")
    } else {
        bytes.to_string()
    }
}
