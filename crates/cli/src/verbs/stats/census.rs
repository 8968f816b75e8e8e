//! A census of a volume that is not mounted: what it holds, by kind, and what it costs to hold it.

use super::Stats;
use crate::context::Context;
use crate::failure::At;
use crate::show::name::put;
use crate::show::statfs::put_statfs;
use crate::show::{mode, size, stat, table};
use crate::status::Status;
use crate::volume::{Access, Volume};
use anyhow::Result;
use myriad_engine::{FileType, StatFs};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;

impl Stats {
    pub(super) fn census(&self, context: &Context) -> Result<Status> {
        let volume = Volume::open(&self.target, Access::Read, &self.open.mount_options())?;
        let tally = Tally::of(context, &volume)?;
        let statfs = volume.fs().statfs().at(volume.name())?;
        let info = volume.fs().info();
        let log = if info.log_external { 0 } else { info.log_size };
        let counters = if self.counters { volume.fs().counters() } else { Vec::new() };
        volume.close()?;
        let figures = Figures::new(&tally, &statfs, log);
        let mut out = context.out();
        if self.json {
            let mut object = Map::new();
            put(&mut object, "image", self.target.as_os_str().as_bytes());
            put_statfs(&mut object, &statfs);
            let by_type =
                tally.counts.iter().map(|(kind, count)| (mode::name(*kind).replace(' ', "_"), Value::from(*count)));
            object.insert("by_type".into(), Map::from_iter(by_type).into());
            for (key, value) in [
                ("content", tally.content),
                ("allocated", tally.allocated),
                ("log", log),
                ("metadata", figures.metadata),
            ] {
                object.insert(key.into(), value.into());
            }
            object.insert("metadata_per_file".into(), ((figures.metadata_per_file * 10.0).round() / 10.0).into());
            if self.counters {
                let counters = counters.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value)));
                object.insert("counters".into(), Map::from_iter(counters).into());
            }
            out.json(&object.into())?;
            return Ok(context.status());
        }
        let mut facts: Vec<(&str, String)> = tally
            .counts
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| (mode::name(*kind), count.to_string()))
            .collect();
        facts.extend([
            ("content", size::exact(tally.content)),
            ("allocated to files", size::exact(tally.allocated)),
            ("log", size::exact(log)),
            ("metadata", size::exact(figures.metadata)),
            ("metadata per file", format!("{:.1} bytes", figures.metadata_per_file)),
            ("free", size::exact(figures.free)),
        ]);
        table::facts(&mut out, &facts)?;
        if self.counters {
            let rows = counters.iter().map(|(name, value)| vec![(*name).to_owned(), value.to_string()]).collect();
            table::columns(&mut out, &["Counter", "Value"], |column| column == 0, rows)?;
        }
        Ok(context.status())
    }
}

/// What the walk saw.
struct Tally {
    counts: Vec<(FileType, u64)>,
    /// Bytes that files hold, and bytes they take.
    content: u64,
    allocated: u64,
}

impl Tally {
    fn of(context: &Context, volume: &Volume) -> Result<Self> {
        let progress = context.progress("files");
        let mut tally = Self {
            counts: (0..16).filter_map(FileType::from_code).map(|kind| (kind, 0)).collect(),
            content: 0,
            allocated: 0,
        };
        let mut seen = HashSet::new();
        let total = volume.fs().statfs().at(volume.name())?.inodes_used;
        let root = volume.root();
        for (entry, done) in volume.session().walk("/").at(volume.name())?.zip(0_u64..) {
            if done % 1024 == 0 {
                context.check()?;
                progress.set_of(done, total);
            }
            let stat = root.step(entry)?.stat;
            let kind = stat.file_type();
            // A file with several names is one file.
            if kind != FileType::Directory && stat.nlink > 1 && !seen.insert(stat.ino) {
                continue;
            }
            let count = tally.counts.iter_mut().find(|(known, _)| *known == kind).expect("all types are in the list");
            count.1 += 1;
            if kind != FileType::Directory {
                tally.content = tally.content.saturating_add(stat.size);
                tally.allocated = tally.allocated.saturating_add(stat::allocated(&stat));
            }
        }
        Ok(tally)
    }
}

struct Figures {
    metadata: u64,
    metadata_per_file: f64,
    free: u64,
}

impl Figures {
    fn new(tally: &Tally, statfs: &StatFs, log: u64) -> Self {
        let unit = u64::from(statfs.block_size);
        let used = (statfs.blocks - statfs.free_blocks) * unit;
        let metadata = used.saturating_sub(tally.allocated).saturating_sub(log);
        let metadata_per_file = metadata as f64 / statfs.inodes_used.max(1) as f64;
        Self { metadata, metadata_per_file, free: statfs.free_blocks * unit }
    }
}
