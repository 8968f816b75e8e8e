//! The verb `myriad bench`.

use crate::compare::commands::{read_rows, tar_rows};
use crate::compare::{self, Contestant};
use crate::interrupt;
use crate::mount_floor::MountFloor;
use crate::numbers::{parse_count, parse_some};
use crate::provenance::Provenance;
use crate::provider::{self, Provider, VolumeOptions};
use crate::recovery::Recovery;
use crate::report::{self, Column, Record};
use crate::runner::{RunOptions, Sample};
use crate::schedule::{self, Selected};
use crate::targets::Durability;
use crate::workloads::dir::{Dir, UnlinkOrder};
use crate::workloads::file::Files;
use crate::workloads::folder::Folder;
use crate::workloads::names::NameStyle;
use crate::workloads::tree::Tree;
use crate::workloads::{self, Workload};
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use myriad_engine::options::parse_size;
use myriad_engine::{Discard, MkfsOptions, MountOptions, Order};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// Measure volumes, directories and databases side by side.
///
/// A TARGET is an image (made fresh, worked on in this process), a directory (through system calls), `direct:DIRECTORY`
/// (the same, reads and writes inside files with direct I/O), or `sqlite:PATH` (a row a file). Words after an image say how its volume is
/// made and opened, so that variants are measured in turn: `a.img b.img,order=none c.img,data-checksums,placement=rotor`.
#[derive(Debug, Args)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Many entries in one directory: create, stat, list, rename, unlink
    Dir(Direct<DirOptions>),
    /// A tree of directories with files: create, walk, stat by path, remove
    Tree(Direct<TreeOptions>),
    /// Many small files; a big file, sequentially and at random
    File(Direct<FileOptions>),
    /// A mail folder: numbered messages made, packed (numbered anew), removed
    Folder(Direct<FolderOptions>),
    /// Kernel file systems on loop devices, a volume and SQLite, interleaved, with ratios
    Compare(Box<Compare>),
    /// Requests of a mounted volume beside those of a FUSE server that does nothing, with ratios (as root)
    Mount(MountFloor),
    /// Opening and checking a volume whose log is full, for more and more files
    Recovery(Recovery),
}

#[derive(Debug, Args, Serialize)]
struct Direct<T: Args> {
    /// IMAGE, IMAGE,OPTION=CHOICE,..., DIRECTORY, direct:DIRECTORY or sqlite:PATH
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    workload: T,
    #[command(flatten)]
    common: Common,
    /// Replace image or database files that exist
    #[arg(long)]
    force: bool,
    /// Leave image and database files behind
    #[arg(long)]
    keep: bool,
}

#[derive(Clone, Debug, Args, Serialize)]
struct Common {
    /// Runs of each target, interleaved; of fewer than 6 no interval is known
    #[arg(long, visible_alias = "rounds", value_name = "N", default_value = "6", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Threads, each in directories of its own
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Order of writes of volumes
    #[arg(long, value_enum, default_value = "log")]
    order: OrderChoice,
    /// What is durable when: at the end of a phase, each operation, or every N operations
    #[arg(long, value_name = "end|each|N", default_value = "end", value_parser = parse_durability)]
    sync: Durability,
    /// What names look like
    #[arg(long, value_enum, default_value = "numeric")]
    names: NameStyle,
    /// Drop caches before each phase that reads
    #[arg(long)]
    cold: bool,
    /// Memory for cached blocks, of volumes and of SQLite [default: a quarter of memory, at most 4G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cachesize: Option<u64>,
    /// Size of images
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = parse_size)]
    image_size: u64,
    /// Random stats of each kind, per thread [default: as many as entries, at least 100k, at most 1M]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    lookups: Option<u64>,
    /// Paths given to a target at once in stat_many
    #[arg(long, value_name = "N", default_value = "256", value_parser = parse_some)]
    batch: u64,
    /// Only these phases, and what they build on
    #[arg(long, value_name = "PHASE,...", value_delimiter = ',')]
    phases: Vec<String>,
    /// Everything random follows from it
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// One JSON line per target, workload and run, with every sample
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum OrderChoice {
    Log,
    None,
}

#[derive(Clone, Debug, Args, Serialize)]
struct DirOptions {
    /// Entries in each directory
    #[arg(long, value_name = "N", default_value = "100k", value_parser = parse_some)]
    entries: u64,
    /// Directories, per thread
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_some)]
    dirs: u64,
    /// In which order entries are removed
    #[arg(long, value_enum, default_value = "random")]
    unlink: UnlinkOrder,
}

#[derive(Clone, Debug, Args, Serialize)]
struct TreeOptions {
    /// Directories of the tree, per thread
    #[arg(long, value_name = "N", default_value = "1k", value_parser = parse_some)]
    tree_dirs: u64,
    /// Files in each
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_count)]
    tree_files: u64,
    /// Bytes of each file
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    tree_size: u64,
    /// Subdirectories of a directory
    #[arg(long, value_name = "N", default_value = "8", value_parser = parse_some)]
    fan: u64,
}

#[derive(Clone, Debug, Args, Serialize)]
struct FileOptions {
    /// Small files, per thread
    #[arg(long, value_name = "N", default_value = "20k", value_parser = parse_count)]
    files: u64,
    /// Small files have 0 to this many bytes
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = parse_size)]
    size_max: u64,
    /// The big file, per thread; 0: none
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    big: u64,
    /// Request sizes in the big file
    #[arg(long, value_name = "SIZE,...", default_value = "4K,64K,1M", value_delimiter = ',', value_parser = parse_size)]
    requests: Vec<u64>,
    /// Random requests of each kind, at most
    #[arg(long, value_name = "N", default_value = "16k", value_parser = parse_count)]
    random_requests: u64,
}

#[derive(Clone, Debug, Args, Serialize)]
struct FolderOptions {
    /// Messages in each thread's folder
    #[arg(long, value_name = "N", default_value = "33164", value_parser = parse_some)]
    messages: u64,
    /// Bytes of each message
    #[arg(long, value_name = "SIZE", default_value = "2K", value_parser = parse_size)]
    message_size: u64,
}

#[derive(Debug, Args, Serialize)]
struct Compare {
    /// What to compare; one named twice shows the noise
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ext4,xfs,btrfs,myriad,sqlite")]
    targets: Vec<Contestant>,
    /// What to run
    #[arg(long, value_enum, value_delimiter = ',', default_value = "dir,tree,file,meta")]
    workloads: Vec<WorkloadName>,
    /// No workloads, only rows of commands
    #[arg(long, conflicts_with = "workloads")]
    only_commands: bool,
    /// Rows that unpack this archive, then search, count, pack and remove the tree
    #[arg(long, value_name = "FILE")]
    tar: Option<PathBuf>,
    /// Rows of commands: a JSON array of {name, cold, ops, dir: {prepare, timed}, image: {prepare, timed}}
    #[arg(long, value_name = "FILE")]
    rows: Option<PathBuf>,
    /// Append every sample to this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Where images are made; its file system must allow direct I/O
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    folder: PathBuf,
    /// Leave images as holes instead of writing their blocks once beforehand
    #[arg(long)]
    sparse: bool,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    dir: DirOptions,
    #[command(flatten)]
    tree: TreeOptions,
    #[command(flatten)]
    file: FileOptions,
    #[command(flatten)]
    mail: FolderOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum WorkloadName {
    Dir,
    Tree,
    File,
    Folder,
    /// Space that metadata takes on a tree
    Meta,
}

impl Common {
    fn lookups(&self, entries: u64) -> u64 {
        self.lookups.unwrap_or(entries.clamp(100_000, 1_000_000))
    }

    fn batch(&self) -> usize {
        usize::try_from(self.batch).unwrap_or(usize::MAX).max(1)
    }

    fn cache_size(&self) -> u64 {
        self.cachesize.unwrap_or_else(myriad_engine::default_cache_size)
    }

    fn volume(&self) -> VolumeOptions {
        let order = match self.order {
            OrderChoice::Log => Order::Log,
            OrderChoice::None => Order::None,
        };
        VolumeOptions {
            size: Some(self.image_size),
            mkfs: MkfsOptions { order, seed: Some(self.seed), ..MkfsOptions::default() },
            mount: MountOptions {
                order: Some(order),
                cache_size: self.cache_size(),
                seed: Some(self.seed),
                // The kernel's file systems beside it discard nothing either, unless they are told to.
                discard: Discard::Never,
                ..MountOptions::default()
            },
        }
    }

    fn run_options(&self) -> RunOptions {
        RunOptions { threads: usize::from(self.threads), durability: self.sync, seed: self.seed, slowdown: None }
    }
}

impl Bench {
    /// Runs it and writes what came of it to `out`. A signal ends it with [`interrupt::Interrupted`], after cleaning up.
    pub fn run(mut self, out: &mut dyn Write, quiet: bool) -> Result<()> {
        interrupt::watch()?;
        self.state_defaults();
        let outcome = match &self.what {
            What::Dir(direct) => run_direct(direct, out, quiet),
            What::Tree(direct) => run_direct(direct, out, quiet),
            What::File(direct) => run_direct(direct, out, quiet),
            What::Folder(direct) => run_direct(direct, out, quiet),
            What::Compare(compare) => run_compare(compare, out, quiet),
            What::Mount(mount) => mount.run(out, quiet),
            What::Recovery(recovery) => recovery.run(out, quiet),
        };
        // A program we started got the signal too, and its failure came first.
        outcome.map_err(|error| interrupt::check().err().unwrap_or(error))
    }

    /// Fills in what depends on the machine, so that each record states it.
    fn state_defaults(&mut self) {
        let common = match &mut self.what {
            What::Dir(direct) => &mut direct.common,
            What::Tree(direct) => &mut direct.common,
            What::File(direct) => &mut direct.common,
            What::Folder(direct) => &mut direct.common,
            What::Compare(compare) => &mut compare.common,
            What::Mount(_) | What::Recovery(_) => return,
        };
        common.cachesize = Some(common.cache_size());
    }
}

/// Options that make a workload.
trait Make {
    fn make(&self, common: &Common) -> Result<Box<dyn Workload>>;
    /// Files and directories at most.
    fn inodes(&self, common: &Common) -> u64;
}

/// Names of a thread at most: more than any volume holds, and few enough to be reckoned with.
const NAMES_MOST: u64 = 1 << 48;

/// How many names there are in all, if they can be.
fn names_of(what: &str, factors: &[u64]) -> Result<u64> {
    let product = factors.iter().try_fold(1_u64, |product, &factor| product.checked_mul(factor));
    product.filter(|&names| names <= NAMES_MOST).with_context(|| format!("{what}: these are more than 2^48 names"))
}

impl Make for DirOptions {
    fn make(&self, common: &Common) -> Result<Box<dyn Workload>> {
        let names = names_of("--entries times --dirs", &[self.entries, self.dirs])?;
        Ok(Box::new(Dir {
            entries: self.entries,
            dirs: self.dirs,
            lookups: common.lookups(names),
            batch: common.batch(),
            names: common.names,
            unlink_order: self.unlink,
            cold: common.cold,
            seed: common.seed,
        }))
    }

    fn inodes(&self, common: &Common) -> u64 {
        u64::from(common.threads) * self.dirs * (self.entries + 1)
    }
}

impl TreeOptions {
    fn tree(&self, common: &Common, meta: bool) -> Result<Tree> {
        // A chain of directories this long would have paths that no system call takes.
        ensure!(self.fan > 1 || self.tree_dirs <= 64, "--fan 1 makes one chain: at most 64 --tree-dirs");
        let names = names_of("--tree-dirs times --tree-files", &[self.tree_dirs, self.tree_files])?;
        Ok(Tree {
            dirs: self.tree_dirs,
            files: self.tree_files,
            size: self.tree_size,
            fan: self.fan,
            lookups: common.lookups(names),
            batch: common.batch(),
            names: common.names,
            cold: common.cold,
            threads: usize::from(common.threads),
            seed: common.seed,
            meta,
        })
    }
}

impl Make for TreeOptions {
    fn make(&self, common: &Common) -> Result<Box<dyn Workload>> {
        Ok(Box::new(self.tree(common, false)?))
    }

    fn inodes(&self, common: &Common) -> u64 {
        u64::from(common.threads) * self.tree_dirs * (self.tree_files + 1)
    }
}

impl Make for FileOptions {
    fn make(&self, common: &Common) -> Result<Box<dyn Workload>> {
        ensure!(self.requests.iter().all(|&request| request > 0), "--requests are at least one byte");
        names_of("--files", &[self.files])?;
        Ok(Box::new(Files {
            files: self.files,
            size_max: self.size_max,
            big: self.big,
            requests: self.requests.clone(),
            random_requests_max: self.random_requests,
            names: common.names,
            cold: common.cold,
            seed: common.seed,
        }))
    }

    fn inodes(&self, common: &Common) -> u64 {
        u64::from(common.threads) * (self.files + self.files / 1000 + 8)
    }
}

impl Make for FolderOptions {
    fn make(&self, common: &Common) -> Result<Box<dyn Workload>> {
        names_of("--messages", &[self.messages])?;
        Ok(Box::new(Folder { messages: self.messages, size: self.message_size, seed: common.seed }))
    }

    fn inodes(&self, common: &Common) -> u64 {
        u64::from(common.threads) * (self.messages + 1)
    }
}

fn run_direct<T: Args + Make + Serialize>(direct: &Direct<T>, out: &mut dyn Write, quiet: bool) -> Result<()> {
    let common = &direct.common;
    let volume = common.volume();
    let mut providers: Vec<Box<dyn Provider>> = Vec::new();
    for target in &direct.targets {
        let repeated = providers.iter().any(|provider| provider.label() == target);
        ensure!(!repeated, "{target} is named twice; two directories or images show the noise as well");
        providers.push(provider::parse(target, &volume, common.sync, direct.force, direct.keep)?);
    }
    let workload = direct.workload.make(common)?;
    let phases = workloads::select(workload.phases(), &common.phases)?;
    let workloads = [Selected { workload, phases }];
    let columns: Vec<Column> =
        providers.iter().map(|provider| Column { label: provider.label().to_owned(), side: provider.side() }).collect();
    let provenance = Provenance::now();
    let options = serde_json::to_value(direct)?;
    let bar = schedule::progress(providers.len() as u64 * u64::from(common.runs), quiet);
    let mut samples: Vec<Sample> = Vec::new();
    for round in 0..common.runs {
        schedule::round(&mut providers, &workloads, common.run_options(), round, &bar, &mut |fresh| {
            if common.json {
                let (provenance, options) = (provenance.clone(), options.clone());
                let record = Record { provenance, seed: common.seed, options, samples: fresh };
                writeln!(out, "{}", serde_json::to_string(&record)?)?;
                // The next one may take an hour.
                out.flush()?;
            } else {
                samples.extend(fresh);
            }
            Ok(())
        })?;
    }
    bar.finish_and_clear();
    if !common.json {
        writeln!(out, "{}", headline(&provenance, common))?;
        writeln!(out, "{}", report::detail(&samples, &columns).trim_fmt())?;
    }
    Ok(())
}

fn run_compare(options: &Compare, out: &mut dyn Write, quiet: bool) -> Result<()> {
    let common = &options.common;
    let mut makers: Vec<(Box<dyn Workload>, u64)> = Vec::new();
    for name in if options.only_commands { &[][..] } else { &options.workloads } {
        makers.push(match name {
            WorkloadName::Dir => (options.dir.make(common)?, options.dir.inodes(common)),
            WorkloadName::Tree => (options.tree.make(common)?, options.tree.inodes(common)),
            WorkloadName::File => (options.file.make(common)?, options.file.inodes(common)),
            WorkloadName::Folder => (options.mail.make(common)?, options.mail.inodes(common)),
            WorkloadName::Meta => (Box::new(options.tree.tree(common, true)?), options.tree.inodes(common)),
        });
    }
    let mut rows = options.rows.as_deref().map(read_rows).transpose()?.unwrap_or_default();
    let tar = options.tar.as_deref().map(std::path::absolute).transpose()?;
    if let Some(tar) = &tar {
        rows.extend(tar_rows(tar)?);
    }
    let inodes = makers.iter().map(|maker| maker.1).max().unwrap_or(0);
    let inodes = inodes.max(rows.iter().map(|row| row.ops).max().unwrap_or(0));
    let plan = compare::Plan {
        contestants: options.targets.clone(),
        workloads: select_across(makers.into_iter().map(|maker| maker.0).collect(), &common.phases)?,
        rows,
        tar,
        image_bytes: common.image_size,
        sparse: options.sparse,
        folder: std::path::absolute(&options.folder)?,
        rounds: common.runs,
        // Room for the root, lost+found and the like.
        inodes: inodes + 1000,
        volume: common.volume(),
        run: common.run_options(),
        out: options.out.clone(),
        quiet,
        options: serde_json::to_value(options)?,
    };
    ensure!(!plan.workloads.is_empty() || !plan.rows.is_empty(), "no workload and no row to run");
    let outcome = compare::run(&plan)?;
    if common.json {
        for record in &outcome.records {
            writeln!(out, "{}", serde_json::to_string(record)?)?;
        }
        return Ok(());
    }
    let samples = outcome.samples();
    let provenance = outcome.records.first().map_or_else(Provenance::now, |record| record.provenance.clone());
    writeln!(out, "{}", headline(&provenance, common))?;
    for (name, reason) in &outcome.skipped {
        writeln!(out, "left out: {name}: {reason}")?;
    }
    writeln!(out, "{}", report::comparison(&samples, &outcome.columns, common.seed).trim_fmt())?;
    if let Some(table) = report::metadata(&samples, &outcome.columns) {
        writeln!(out, "\n{}", table.trim_fmt())?;
    }
    Ok(())
}

/// A phase wanted of several workloads need only exist in one; a workload without any is left out.
fn select_across(workloads: Vec<Box<dyn Workload>>, wanted: &[String]) -> Result<Vec<Selected>> {
    let all: Vec<workloads::Phase> = workloads.iter().flat_map(|workload| workload.phases()).collect();
    workloads::select(all, wanted)?;
    let mut selected = Vec::new();
    for workload in workloads {
        let phases = workload.phases();
        let known = |name: &&String| phases.iter().any(|phase| phase.reported && phase.name == **name);
        let mine: Vec<String> = wanted.iter().filter(known).cloned().collect();
        if wanted.is_empty() || !mine.is_empty() {
            selected.push(Selected { phases: workloads::select(phases, &mine)?, workload });
        }
    }
    Ok(selected)
}

/// What everyone needs to know to read the table below.
fn headline(provenance: &Provenance, common: &Common) -> String {
    let temperature = if common.cold { "cold" } else { "warm" };
    let sync = match common.sync {
        Durability::End => "end".to_owned(),
        Durability::Every(1) => "each".to_owned(),
        Durability::Every(ops) => format!("every {ops}"),
    };
    format!(
        "{}; {}; {} CPUs; commit {}\n{} runs, {} threads, seed {}, {temperature}, sync {sync}, cachesize {} MiB; \
         medians, final sync included",
        provenance.kernel,
        provenance.cpu,
        provenance.cpus,
        provenance.commit,
        common.runs,
        common.threads,
        common.seed,
        common.cache_size() >> 20,
    )
}

fn parse_durability(text: &str) -> Result<Durability, String> {
    match text {
        "end" => Ok(Durability::End),
        "each" => Ok(Durability::Every(1)),
        number => match number.parse() {
            Ok(ops) if ops > 0 => Ok(Durability::Every(ops)),
            _ => Err("end, each, or a number of operations".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    fn command() -> clap::Command {
        Bench::augment_args(clap::Command::new("bench"))
    }

    #[test]
    fn the_parser_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn durabilities() {
        assert_eq!(parse_durability("each"), Ok(Durability::Every(1)));
        assert_eq!(parse_durability("1000"), Ok(Durability::Every(1000)));
        assert!(parse_durability("0").is_err() && parse_durability("often").is_err());
    }

    /// They were multiplied without a look at the result.
    #[test]
    fn more_names_than_there_can_be_are_refused() {
        for (line, what) in [
            ("--entries 1e15 --dirs 1e15", "--entries times --dirs"),
            ("--tree-dirs 1e12 --tree-files 1e12", "--tree-dirs times --tree-files"),
            ("--files 18446744073709551615", "--files"),
            ("--messages 18446744073709551615", "--messages"),
        ] {
            let words = ["bench", "compare"].into_iter().chain(line.split(' '));
            let bench = command().try_get_matches_from(words).unwrap();
            let What::Compare(options) = Bench::from_arg_matches(&bench).unwrap().what else { panic!() };
            let common = &options.common;
            let made = [
                options.dir.make(common),
                options.tree.make(common),
                options.file.make(common),
                options.mail.make(common),
            ];
            let refused: Vec<String> =
                made.into_iter().filter_map(|made| made.err()).map(|why| why.to_string()).collect();
            assert_eq!(refused, [format!("{what}: these are more than 2^48 names")], "{line}");
        }
    }

    #[test]
    fn phases_are_selected_across_workloads() {
        let bench = command().try_get_matches_from(["bench", "compare", "--phases", "create,walk"]).unwrap();
        let What::Compare(options) = Bench::from_arg_matches(&bench).unwrap().what else { panic!() };
        let make = || {
            vec![
                options.dir.make(&options.common).unwrap(),
                options.file.make(&options.common).unwrap(),
                options.tree.make(&options.common).unwrap(),
            ]
        };
        let selected = select_across(make(), &options.common.phases).unwrap();
        let names: Vec<&str> = selected.iter().map(|selected| selected.workload.name()).collect();
        assert_eq!(names, ["dir", "tree"]);
        assert!(select_across(make(), &["nonsense".to_owned()]).is_err());
        assert_eq!(select_across(make(), &[]).unwrap().len(), 3);
    }
}
