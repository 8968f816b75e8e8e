//! `myriad bench compare`: kernel file systems, a Myriad volume and SQLite beside each other on one host file system, one
//! folder, one size, runs interleaved.

pub mod commands;
pub mod kernel;

use crate::provenance::Provenance;
use crate::provider::{ImageProvider, Provider, SqliteProvider, VolumeOptions};
use crate::report::{Column, Record, ResultFile};
use crate::runner::{RunOptions, Sample};
use crate::schedule::{self, Selected};
use anyhow::{Context, Result, ensure};
use commands::Row;
use kernel::{KernelProvider, Kind};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// What can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Contestant {
    Ext4,
    Xfs,
    Btrfs,
    Myriad,
    Sqlite,
}

impl Contestant {
    fn kind(self) -> Option<Kind> {
        match self {
            Self::Ext4 => Some(Kind::Ext4),
            Self::Xfs => Some(Kind::Xfs),
            Self::Btrfs => Some(Kind::Btrfs),
            Self::Myriad | Self::Sqlite => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Myriad => "myriad",
            Self::Sqlite => "sqlite",
            other => other.kind().expect("a kernel file system").name(),
        }
    }
}

pub struct Plan {
    pub contestants: Vec<Contestant>,
    pub workloads: Vec<Selected>,
    pub rows: Vec<Row>,
    pub tar: Option<PathBuf>,
    pub image_bytes: u64,
    /// Leave images as holes; otherwise their blocks are written once before the first round, so that no run pays for the
    /// host's allocation.
    pub sparse: bool,
    /// Where the temporary folder goes.
    pub folder: PathBuf,
    pub rounds: u32,
    /// Inodes that the workloads need at most.
    pub inodes: u64,
    pub volume: VolumeOptions,
    pub run: RunOptions,
    pub out: Option<PathBuf>,
    /// No progress, no word about who is left out (the outcome has it).
    pub quiet: bool,
    /// Goes into each record.
    pub options: serde_json::Value,
}

/// What came of it.
pub struct Outcome {
    pub records: Vec<Record>,
    pub columns: Vec<Column>,
    /// Contestants left out, with the reason.
    pub skipped: Vec<(String, String)>,
}

impl Outcome {
    pub fn samples(&self) -> Vec<Sample> {
        self.records.iter().flat_map(|record| record.samples.clone()).collect()
    }
}

/// Runs the comparison. On a thread of its own, because that thread leaves for a mount namespace of its own.
pub fn run(plan: &Plan) -> Result<Outcome> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| run_here(plan));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn run_here(plan: &Plan) -> Result<Outcome> {
    let mut skipped = Vec::new();
    let mut contestants = Vec::new();
    for &contestant in &plan.contestants {
        match contestant.kind().and_then(|kind| kind.missing(plan.image_bytes)) {
            Some(reason) => {
                if !plan.quiet {
                    eprintln!("{} is left out: {reason}", contestant.name());
                }
                skipped.push((contestant.name().to_owned(), reason));
            }
            None => contestants.push(contestant),
        }
    }
    ensure!(!contestants.is_empty(), "there is nothing left to compare");
    if contestants.iter().any(|contestant| contestant.kind().is_some()) {
        kernel::enter_mount_namespace()?;
    }
    // Opened first: a path that cannot be written should not cost an hour.
    let mut out = plan.out.as_deref().map(ResultFile::append_to).transpose()?;
    let folder = tempfile::Builder::new().prefix("myriad-compare-").tempdir_in(&plan.folder);
    let folder = folder.with_context(|| format!("making a folder in {}", plan.folder.display()))?;
    ensure_room(folder.path(), contestants.len(), plan.image_bytes, "--image-size or --folder")?;

    let mut providers = Vec::new();
    for (index, &contestant) in contestants.iter().enumerate() {
        providers.push(make_provider(plan, folder.path(), contestant, label(&contestants, index))?);
    }
    let columns = providers.iter().map(|provider| Column { label: provider.label().to_owned(), side: provider.side() });
    let columns: Vec<Column> = columns.collect();
    let provenance = Provenance::now();
    let mut records = Vec::new();
    let mut done = |samples: Vec<Sample>| -> Result<()> {
        let record =
            Record { provenance: provenance.clone(), seed: plan.run.seed, options: plan.options.clone(), samples };
        if let Some(out) = &mut out {
            out.push(&record)?;
        }
        records.push(record);
        Ok(())
    };
    let passes = plan.workloads.len() + usize::from(!plan.rows.is_empty());
    let bar = schedule::progress(passes as u64 * providers.len() as u64 * u64::from(plan.rounds), plan.quiet);
    for round in 0..plan.rounds {
        schedule::round(&mut providers, &plan.workloads, plan.run, round, &bar, &mut done)?;
        if !plan.rows.is_empty() {
            command_round(plan, &mut providers, round, &bar, &mut done)?;
        }
    }
    bar.finish_and_clear();
    drop(providers);
    folder.close().context("removing the temporary folder")?;
    Ok(Outcome { records, columns, skipped })
}

fn command_round(
    plan: &Plan,
    providers: &mut [Box<dyn Provider>],
    round: u32,
    bar: &indicatif::ProgressBar,
    done: &mut dyn FnMut(Vec<Sample>) -> Result<()>,
) -> Result<()> {
    for index in schedule::order(providers.len(), round, plan.run.seed) {
        crate::interrupt::check()?;
        let provider = &mut providers[index];
        let label = provider.label().to_owned();
        bar.set_message(format!("round {}: commands on {label}", round + 1));
        bar.tick();
        if let Some(place) = provider.place().with_context(|| format!("making {label}"))? {
            let mut samples = Vec::new();
            commands::run_rows(&plan.rows, &place, plan.tar.as_deref(), (&label, round), &mut |sample| {
                samples.push(sample);
                Ok(())
            })?;
            if let Some(target) = place.target {
                target.close().with_context(|| format!("closing {label}"))?;
            }
            done(samples)?;
        }
        bar.inc(1);
    }
    Ok(())
}

/// A contestant named twice shows the noise: A against A.
fn label(contestants: &[Contestant], index: usize) -> String {
    let name = contestants[index].name();
    match contestants[..index].iter().filter(|&&earlier| earlier == contestants[index]).count() {
        0 => name.to_owned(),
        earlier => format!("{name}#{}", earlier + 1),
    }
}

fn make_provider(plan: &Plan, folder: &Path, contestant: Contestant, label: String) -> Result<Box<dyn Provider>> {
    let image = folder.join(format!("{label}.img"));
    if contestant == Contestant::Sqlite {
        let database = folder.join(format!("{label}.db"));
        let cache_size = plan.volume.mount.cache_size;
        let provider = SqliteProvider::new(label, &database, plan.run.durability, cache_size, false, false)?;
        return Ok(Box::new(provider));
    }
    make_image(&image, plan.image_bytes, plan.sparse)?;
    Ok(match contestant.kind() {
        Some(kind) => {
            let point = folder.join(&label);
            Box::new(KernelProvider::new(label, kind, &image, &point, plan.inodes)?)
        }
        None => Box::new(ImageProvider::existing(label, &image, plan.volume.clone())),
    })
}

/// A new file of so many bytes, written or all a hole.
pub(crate) fn make_image(path: &Path, bytes: u64, sparse: bool) -> Result<()> {
    let write = || -> Result<()> {
        let mut file = std::fs::File::create_new(path)?;
        file.set_len(bytes)?;
        if !sparse {
            let zeros = vec![0; 4 << 20];
            let mut left = bytes;
            while left > 0 {
                crate::interrupt::check()?;
                let part = left.min(zeros.len() as u64);
                file.write_all(&zeros[..part as usize])?;
                left -= part;
            }
        }
        kernel::settle_image(path)
    };
    write().with_context(|| format!("making {}", path.display()))
}

/// Fails unless the file system of `folder` has room for so many images; `remedy` is what helps.
pub(crate) fn ensure_room(folder: &Path, images: usize, image_bytes: u64, remedy: &str) -> Result<()> {
    let statfs = rustix::fs::statvfs(folder)?;
    let free = statfs.f_bavail * statfs.f_frsize;
    let needed = image_bytes * images as u64;
    ensure!(
        free >= needed,
        "{} has {} MiB free, and {images} images of {} MiB need {}; {remedy}",
        folder.parent().unwrap_or(folder).display(),
        free >> 20,
        image_bytes >> 20,
        needed >> 20,
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_contestants_are_numbered() {
        let contestants = [Contestant::Ext4, Contestant::Myriad, Contestant::Ext4, Contestant::Ext4];
        let labels: Vec<String> = (0..4).map(|index| label(&contestants, index)).collect();
        assert_eq!(labels, ["ext4", "myriad", "ext4#2", "ext4#3"]);
    }

    #[test]
    fn images_are_whole_or_holes() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let blocks = |name: &str, sparse| {
            let path = folder.path().join(name);
            make_image(&path, 5 << 20, sparse).unwrap();
            let metadata = path.metadata().unwrap();
            assert_eq!(metadata.len(), 5 << 20);
            metadata.blocks()
        };
        assert!(blocks("sparse", true) < 100);
        assert!(blocks("whole", false) >= (5 << 20) / 512);
    }
}
