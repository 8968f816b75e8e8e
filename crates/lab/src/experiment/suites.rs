//! Suites: which workloads, how large, and whose they are. At scale 1 each has the size that its paper gives.

use crate::tools::{self, Tool};
use crate::workloads::Workload;
use crate::workloads::bonnie::Bonnie;
use crate::workloads::clusters::Clusters;
use crate::workloads::file::Files;
use crate::workloads::folder::Folder;
use crate::workloads::links::Links;
use crate::workloads::names::NameStyle;
use crate::workloads::netnews::Netnews;
use crate::workloads::numbered::Numbered;
use crate::workloads::plan::Verb;
use crate::workloads::postmark::Postmark;
use crate::workloads::shape::{Shape, Sizes};
use crate::workloads::single::Single;
use crate::workloads::trees::{Draw, Named, Step, TreeWork};
use std::sync::Arc;

/// A factor for every count of a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale(pub f64);

impl Scale {
    /// `full`, scaled; at least `least`.
    pub fn at_least(self, full: u64, least: u64) -> u64 {
        ((full as f64 * self.0).round() as u64).max(least.min(full))
    }

    fn count(self, full: u64) -> u64 {
        self.at_least(full, 8)
    }

    /// Of several sizes: those that remain different.
    fn sizes(self, full: &[u64]) -> Vec<u64> {
        let mut sizes: Vec<u64> = full.iter().map(|&size| self.count(size)).collect();
        sizes.dedup();
        sizes
    }
}

/// Who makes the operations.
pub enum Work {
    /// A plan of ours, which any target can be asked for.
    Ours(Box<dyn Workload>),
    /// A program of somebody else's, for targets with a directory.
    Theirs(Box<dyn Tool>),
}

/// A workload of a suite.
pub struct Item {
    pub name: &'static str,
    pub work: Work,
    /// Where it is one point of a curve: the place on its axis.
    pub size: Option<u64>,
    /// Names that it has at once, at most.
    pub names: u64,
    /// Bytes of files that it has at once, at most, in whole blocks.
    pub bytes: u64,
}

/// A set of workloads that belong together.
pub struct Suite {
    pub name: &'static str,
    pub about: &'static str,
    /// Whose it is, and where.
    pub source: &'static str,
    /// Memory for cached blocks at scale 1, as the paper's machine had it.
    pub cache_bytes: u64,
    items: fn(Scale, u64) -> Vec<Item>,
}

impl Suite {
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::all().find(|suite| suite.name == name)
    }

    /// Those of the papers and of today, and benchmarks of others.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        SUITES.iter().chain(&TOOLS)
    }

    pub fn items(&self, scale: Scale, seed: u64) -> Vec<Item> {
        (self.items)(scale, seed)
    }

    /// In samples: each of `TOOLS` is part of the first.
    pub fn label(&self) -> &'static str {
        self.name.split('/').next().unwrap_or(self.name)
    }
}

fn item(workload: impl Workload + 'static, size: Option<u64>, names: u64, bytes: u64) -> Item {
    Item { name: workload.name(), work: Work::Ours(Box::new(workload)), size, names, bytes }
}

fn tree_item(name: &'static str, shape: Shape, copies: u64, accesses: u64, steps: Vec<Named>, seed: u64) -> Item {
    let builds = steps.iter().any(|named| named.step == Step::Build);
    let holds = steps.iter().all(|named| named.step != Step::UnpackHoles);
    let trees = copies * if builds { 2 } else { 1 };
    let names = trees * (shape.dir_count() + shape.files().len() as u64) + steps.len() as u64 * accesses;
    let bytes = if holds { trees * shape.block_bytes() } else { 0 };
    item(TreeWork { name, shape: Arc::new(shape), copies, steps, accesses, seed }, None, names, bytes)
}

/// Of source files: half are below 2.5 KB, the mean is some 6.
const SOURCES: Sizes = Sizes { mu: 7.8, sigma: 1.3, most: 1 << 20 };

fn dirhash(scale: Scale, seed: u64) -> Vec<Item> {
    let sizes = scale.sizes(&[10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000]);
    let single = |entries: u64| item(Single { entries, seed }, Some(entries), entries.max(2_000) + 1_000, 0);
    sizes.into_iter().map(single).collect()
}

fn lookup(scale: Scale, seed: u64) -> Vec<Item> {
    let sizes = scale.sizes(&[
        100, 500, 1_000, 10_000, 30_000, 50_000, 70_000, 90_000, 150_000, 250_000, 350_000, 450_000, 1_000_000,
    ]);
    let links = |entries: u64| {
        let links = Links { entries, links: 20_000, lookups: scale.at_least(20_000, 100), seed };
        item(links, Some(entries), entries + 10, 0)
    };
    sizes.into_iter().map(links).collect()
}

fn tar(scale: Scale, seed: u64) -> Vec<Item> {
    let shape = Shape::source(scale.count(1_000), scale.count(10_000), SOURCES, ".c", seed);
    let steps =
        vec![Named::new("unpack", Step::Unpack), Named::new("find", Step::Find), Named::new("remove", Step::Remove)];
    vec![tree_item("tar", shape, 1, 0, steps, seed)]
}

fn ports(scale: Scale, seed: u64) -> Vec<Item> {
    let shape = Shape::ports(scale.at_least(6_596, 20), scale.count(13_868), seed);
    vec![tree_item(
        "ports",
        shape,
        1,
        0,
        vec![Named::new("unpack", Step::Unpack), Named::new("remove", Step::Remove)],
        seed,
    )]
}

/// All names of a tree twice, and then all attributes; its directories are more than FFS kept in memory.
fn traverse(scale: Scale, seed: u64) -> Vec<Item> {
    let shape = Shape::source(scale.count(5_000), scale.count(40_000), SOURCES, ".c", seed);
    let steps = vec![
        Named::new("unpack", Step::UnpackHoles).unreported(),
        Named::new("find_first", Step::Find).cold(),
        Named::new("find_again", Step::Find),
        Named::new("stat_again", Step::Stat),
    ];
    vec![tree_item("traverse", shape, 1, 0, steps, seed)]
}

fn folder(scale: Scale, seed: u64) -> Vec<Item> {
    let messages = scale.count(33_164);
    vec![item(Folder { messages, size: 2 << 10, seed }, None, messages, messages << 12)]
}

fn postmark(scale: Scale, seed: u64) -> Vec<Item> {
    let sizes = scale.sizes(&[10_000, 20_000]);
    // A pool grows at random by little more than the square root of the transactions.
    let made = |files: u64| {
        let names = 2 * files + 100;
        item(Postmark { files, transactions: files, seed }, Some(files), names, names * 12_288)
    };
    sizes.into_iter().map(made).collect()
}

fn bonnie(scale: Scale, seed: u64) -> Vec<Item> {
    let files = scale.count(16 << 10);
    let bytes = scale.at_least(512 << 20, 1 << 20);
    vec![item(Bonnie { bytes, files, seeks: scale.count(8_000), seed }, None, files, bytes)]
}

fn andrew(scale: Scale, seed: u64) -> Vec<Item> {
    let sizes = Sizes { mu: 7.4, sigma: 0.9, most: 64 << 10 };
    let steps = vec![
        Named::new("mkdir", Step::Mkdirs),
        Named::new("copy", Step::Copy),
        Named::new("stat", Step::Stat),
        Named::new("grep", Step::Read),
        Named::new("compile", Step::Build),
        Named::new("remove", Step::Remove),
    ];
    vec![tree_item("andrew", Shape::source(5, 70, sizes, ".c", seed), scale.at_least(100, 2), 0, steps, seed)]
}

fn netnews(scale: Scale, seed: u64) -> Vec<Item> {
    let (groups, articles) = (scale.count(2_000), scale.count(50_000));
    vec![item(Netnews { groups, articles, seed }, None, 4 * groups + 2 * articles, articles << 13)]
}

fn build(scale: Scale, seed: u64) -> Vec<Item> {
    let shape = Shape::source(scale.count(5_000), scale.count(40_000), SOURCES, ".c", seed);
    let steps = vec![
        Named::new("checkout", Step::Unpack),
        Named::new("build", Step::Build),
        Named::new("grep", Step::Read),
        Named::new("remove_objects", Step::RemoveObjects),
    ];
    vec![tree_item("build", shape, 1, 0, steps, seed)]
}

/// 100 GB of sizes, and no data: only metadata is asked for.
fn listrates(scale: Scale, seed: u64) -> Vec<Item> {
    let sizes = Sizes { mu: 7.48, sigma: 2.46, most: 64 << 30 };
    let shape = Shape::impressions(scale.at_least(253_089, 20), scale.at_least(2_555_453, 200), sizes, seed);
    let access = |draw, verb| Step::Access(draw, verb);
    let again = |draw, verb| Step::AccessAgain(draw, verb);
    let steps = vec![
        Named::new("tree", Step::UnpackHoles).unreported(),
        Named::new("stat_uniform_cold", access(Draw::Uniform, Verb::Stat)).cold(),
        Named::new("stat_uniform_hot", again(Draw::Uniform, Verb::Stat)),
        Named::new("stat_zipf_cold", access(Draw::Zipf, Verb::Stat)).cold(),
        Named::new("stat_zipf_hot", again(Draw::Zipf, Verb::Stat)),
        Named::new("utime_uniform_cold", access(Draw::Uniform, Verb::Utime)).cold(),
        Named::new("utime_uniform_hot", again(Draw::Uniform, Verb::Utime)),
        Named::new("utime_zipf_cold", access(Draw::Zipf, Verb::Utime)).cold(),
        Named::new("utime_zipf_hot", again(Draw::Zipf, Verb::Utime)),
        Named::new("create_uniform_cold", Step::CreateIn(Draw::Uniform)).cold(),
        Named::new("create_zipf_cold", Step::CreateIn(Draw::Zipf)).cold(),
    ];
    vec![tree_item("listrates", shape, 1, scale.at_least(20_000, 100), steps, seed)]
}

fn large_files(scale: Scale, seed: u64) -> Vec<Item> {
    let big = scale.at_least(1 << 30, 1 << 20) / 4096 * 4096;
    let files = Files {
        files: 0,
        size_max: 0,
        big,
        requests: vec![4096],
        random_requests_max: u64::MAX,
        names: NameStyle::Numeric,
        cold: true,
        seed,
    };
    vec![Item { name: "large_files", ..item(files, None, 10, big) }]
}

fn small_files(scale: Scale, _seed: u64) -> Vec<Item> {
    let files = scale.count(1_000);
    let scenario = |own_dirs, large_bytes: u64| {
        let clusters = Clusters { files, small_bytes: 4096, large_bytes, own_dirs };
        item(clusters, None, 3 * files, files * (4096 + large_bytes))
    };
    vec![scenario(true, 0), scenario(true, 4 << 20), scenario(false, 0), scenario(false, 4 << 20)]
}

fn simplefs(scale: Scale, _seed: u64) -> Vec<Item> {
    let files = scale.count(30_600);
    vec![item(Numbered { files }, None, files, 0)]
}

fn kernel(scale: Scale, seed: u64) -> Vec<Item> {
    let sizes = Sizes { mu: 8.6, sigma: 1.4, most: 4 << 20 };
    let shape = Shape::source(scale.count(5_300), scale.count(78_400), sizes, ".c", seed);
    let steps = vec![
        Named::new("unpack", Step::Unpack),
        Named::new("find", Step::Find).cold(),
        Named::new("du", Step::Stat).cold(),
        Named::new("grep", Step::Read).cold(),
        Named::new("remove", Step::Remove),
    ];
    vec![tree_item("kernel", shape, 1, 0, steps, seed)]
}

fn node_modules(scale: Scale, seed: u64) -> Vec<Item> {
    let sizes = Sizes { mu: 7.2, sigma: 1.5, most: 1 << 20 };
    let shape = Shape::impressions(scale.count(5_500), scale.count(45_000), sizes, seed);
    let steps = vec![
        Named::new("install", Step::Unpack),
        Named::new("stat", Step::Stat),
        Named::new("read", Step::ReadRandom),
        Named::new("remove", Step::Remove),
    ];
    vec![tree_item("node_modules", shape, 1, 0, steps, seed)]
}

fn training(scale: Scale, seed: u64) -> Vec<Item> {
    let sizes = Sizes { mu: 9.6, sigma: 0.6, most: 256 << 10 };
    let shape = Shape::source(scale.count(100), scale.count(50_000), sizes, ".jpg", seed);
    let steps = vec![
        Named::new("write", Step::Unpack),
        Named::new("epoch_cold", Step::ReadRandom).cold(),
        Named::new("epoch_warm", Step::ReadRandom),
    ];
    vec![tree_item("training", shape, 1, 0, steps, seed)]
}

/// Our own sizes, where a tool has a workload of ours beside it. Of more than a gigabyte Bonnie++ makes several files.
fn bonnie_tool(scale: Scale, seed: u64) -> Vec<Item> {
    let (mib, kibi_files) = (scale.at_least(512, 1).min(1024), scale.at_least(16, 1));
    let tool = tools::Bonnie { mib, kibi_files, seeks: scale.count(8_000), seed };
    vec![theirs(tool, None, (kibi_files << 10) + 10, mib << 20)]
}

fn postmark_tool(scale: Scale, seed: u64) -> Vec<Item> {
    let made = |files: u64| {
        let names = 2 * files + 100;
        theirs(tools::Postmark { files, transactions: files, seed }, Some(files), names, names * 12_288)
    };
    scale.sizes(&[10_000, 20_000]).into_iter().map(made).collect()
}

fn fs_mark(scale: Scale, _seed: u64) -> Vec<Item> {
    let tool = tools::FsMark { files: scale.count(10_000), synced: scale.count(1_000) };
    let names = tool.files + tool.synced + 10;
    vec![theirs(tool, None, names, names * 4096)]
}

fn fio(scale: Scale, seed: u64) -> Vec<Item> {
    let bytes = scale.at_least(512, 1) << 20;
    vec![theirs(tools::Fio { bytes, requests: scale.count(8_000), seed }, None, 10, bytes)]
}

/// A minute; its first samples of throughput come after a second.
fn dbench(scale: Scale, _seed: u64) -> Vec<Item> {
    vec![theirs(tools::Dbench { seconds: scale.at_least(60, 2) }, None, 1_000, 256 << 20)]
}

fn all_tools(scale: Scale, seed: u64) -> Vec<Item> {
    let each = [bonnie_tool, postmark_tool, fs_mark, fio, dbench];
    each.into_iter().flat_map(|items| items(scale, seed)).collect()
}

fn theirs(tool: impl Tool + 'static, size: Option<u64>, names: u64, bytes: u64) -> Item {
    Item { name: tool.name(), work: Work::Theirs(Box::new(tool)), size, names, bytes }
}

const MIB: u64 = 1 << 20;

/// FFSOPT's machine had 256 MB, and FreeBSD gave most of it to cached blocks.
const FFSOPT: u64 = 128 * MIB;

pub static SUITES: [Suite; 18] = [
    Suite {
        name: "dirhash",
        about: "one directory of 10 to 100,000 files: create, stat in order, at random, of absent names, remove",
        source: "Dowse and Malone 2002, Figures 2 to 6",
        cache_bytes: FFSOPT,
        items: dirhash,
    },
    Suite {
        name: "lookup",
        about: "random lookups among 100 to 1,000,000 hard links in one directory",
        source: "Sweeney and others 1996, Figure 4",
        cache_bytes: 12 * MIB,
        items: lookup,
    },
    Suite {
        name: "tar",
        about: "a source tree of 10,000 files unpacked, searched, removed",
        source: "Dowse and Malone 2002, 4.2 (X11)",
        cache_bytes: FFSOPT,
        items: tar,
    },
    Suite {
        name: "ports",
        about: "a tree of 6,596 directories and 13,868 small files unpacked and removed",
        source: "Orlov 2001",
        cache_bytes: 45 * MIB,
        items: ports,
    },
    Suite {
        name: "traverse",
        about: "a tree of 5,000 directories and 40,000 files, gone through again and again",
        source: "Dowse and Malone 2002, 2.3",
        cache_bytes: FFSOPT,
        items: traverse,
    },
    Suite {
        name: "folder",
        about: "a mail folder of 33,164 messages made, packed, removed",
        source: "Dowse and Malone 2002, 4.2 (MH)",
        cache_bytes: FFSOPT,
        items: folder,
    },
    Suite {
        name: "postmark",
        about: "pools of 10,000 and 20,000 files made, transactions, removal",
        source: "Dowse and Malone 2002, 4.2; Katcher 1997",
        cache_bytes: FFSOPT,
        items: postmark,
    },
    Suite {
        name: "bonnie",
        about: "a large file by blocks; 16,384 empty files in order and at random",
        source: "Dowse and Malone 2002, 4.2; Bonnie++ 1.01",
        cache_bytes: FFSOPT,
        items: bonnie,
    },
    Suite {
        name: "andrew",
        about: "a hundred copies of a small source tree: made, copied, stat, read, compiled, removed",
        source: "Dowse and Malone 2002, 4.2",
        cache_bytes: FFSOPT,
        items: andrew,
    },
    Suite {
        name: "netnews",
        about: "a news spool of 2,000 groups: 50,000 articles come in, cross-posted by links, and expire",
        source: "Dowse and Malone 2002, 4.2",
        cache_bytes: FFSOPT,
        items: netnews,
    },
    Suite {
        name: "build",
        about: "40,000 sources checked out, built, searched, the objects removed; compiling itself costs nothing here",
        source: "Dowse and Malone 2002, Table 1",
        cache_bytes: FFSOPT,
        items: build,
    },
    Suite {
        name: "listrates",
        about: "2,555,453 files in 253,089 directories: stat, utime, create at random, by Zipf's law and uniformly, cold and hot",
        source: "Lensing and others 2013, 3.1",
        cache_bytes: 512 * MIB,
        items: listrates,
    },
    Suite {
        name: "large_files",
        about: "a file of 1 GB in requests of 4 KB, in order and at random",
        source: "Lensing and others 2013, 3.2.1 (IOR)",
        cache_bytes: 512 * MIB,
        items: large_files,
    },
    Suite {
        name: "small_files",
        about: "1,000 files of 4 KB alone or between files of 4 MB, in one directory or each in its own",
        source: "Lensing and others 2013, 3.2.2",
        cache_bytes: 512 * MIB,
        items: small_files,
    },
    Suite {
        name: "simplefs",
        about: "30,600 numbered files made, listed, replaced, removed",
        source: "simplefs 2025",
        cache_bytes: FFSOPT,
        items: simplefs,
    },
    Suite {
        name: "kernel",
        about: "a tree as large as a kernel's source, unpacked, searched, read, removed",
        source: "today",
        cache_bytes: 512 * MIB,
        items: kernel,
    },
    Suite {
        name: "node_modules",
        about: "45,000 small files of packages installed, stat, read, removed",
        source: "today",
        cache_bytes: 512 * MIB,
        items: node_modules,
    },
    Suite {
        name: "training",
        about: "50,000 images of some 18 KB, read in random order",
        source: "today",
        cache_bytes: 512 * MIB,
        items: training,
    },
];

/// Programs of others, all and each. `all` does not name them: they want a target with a directory, and a clock.
static TOOLS: [Suite; 6] = [
    Suite {
        name: "tools",
        about: "benchmarks of others, packaged by Debian, on targets with a directory: all of the following",
        source: "Debian 12",
        cache_bytes: FFSOPT,
        items: all_tools,
    },
    Suite {
        name: "tools/bonnie++",
        about: "a large file by blocks; multiples of 1,024 empty files in order and at random",
        source: "Coker, Bonnie++ 2.00a",
        cache_bytes: FFSOPT,
        items: bonnie_tool,
    },
    Suite {
        name: "tools/postmark",
        about: "pools of 10,000 and 20,000 files made, transactions, removal",
        source: "Katcher, Postmark 1.5",
        cache_bytes: FFSOPT,
        items: postmark_tool,
    },
    Suite {
        name: "tools/fs_mark",
        about: "10,000 files of 4 KiB made, then 1,000 with an fsync each",
        source: "Wheeler, fs_mark 3.3",
        cache_bytes: FFSOPT,
        items: fs_mark,
    },
    Suite {
        name: "tools/fio",
        about: "a file of 512 MiB by requests of 8 KiB, in order and at random",
        source: "Axboe, fio 3.33",
        cache_bytes: FFSOPT,
        items: fio,
    },
    Suite {
        name: "tools/dbench",
        about: "what a file server's client asks, for a minute",
        source: "Tridgell, dbench 4",
        cache_bytes: FFSOPT,
        items: dbench,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The papers' counts at scale 1, where a paper gives them.
    #[test]
    fn scale_one_is_the_papers() {
        let ops = |suite: &str, phase: &str| -> Vec<u64> {
            let items = Suite::named(suite).unwrap().items(Scale(1.0), 1);
            let plan = |item: &Item| {
                let Work::Ours(workload) = &item.work else { panic!("{} is a program", item.name) };
                let phases = workload.phases();
                let phase = phases.iter().find(|found| found.name == phase).unwrap();
                workload.plan(phase, 0).ops()
            };
            items.iter().map(plan).collect()
        };
        assert_eq!(ops("ports", "unpack"), [6_596 + 13_868]);
        assert_eq!(ops("folder", "create"), [33_164]);
        assert_eq!(ops("postmark", "create"), [10_000, 20_000]);
        assert_eq!(ops("simplefs", "create"), [30_600]);
        assert_eq!(ops("lookup", "link")[12], 1_000_000);
        assert_eq!(ops("small_files", "read"), [1_000; 4]);
        assert_eq!(ops("andrew", "copy"), [7_000]);
        assert_eq!(ops("dirhash", "create").last(), Some(&100_000));
    }

    #[test]
    fn every_suite_has_work_at_any_scale() {
        for suite in &SUITES {
            for scale in [Scale(0.0), Scale(0.001), Scale(0.01)] {
                let items = suite.items(scale, 3);
                assert!(!items.is_empty(), "{}", suite.name);
                for item in items {
                    let Work::Ours(workload) = &item.work else { panic!("{} is a program", item.name) };
                    for phase in workload.phases() {
                        let plan = workload.plan(&phase, 0);
                        assert!(plan.ops() > 0, "{} {} does nothing", item.name, phase.name);
                        assert_eq!(plan, workload.plan(&phase, 0), "{} {}", item.name, phase.name);
                    }
                }
            }
        }
    }
}
