//! Bonnie++ 2.00a: the original of our own workload `bonnie`, whose phases have the same names.
//!
//! It prints a rate only for what took half a second, and no counts: the lab's clock counts, from what it writes as a phase begins. Its
//! large file is looked at as the phases begin, the kernel counts the bytes that it writes, and the files that it makes and removes are counted by the kernel. Tests by single
//! characters are left out, there is one seeker as in ours, and a tenth of its seeks write, which it counts with the seek. It reads its
//! file without dropping caches.

use super::{Call, Ran, Said, Tool, Watching, as_told, subdirectory, utf8};
use anyhow::{Context, Result, ensure};
use std::path::Path;

#[derive(Clone, Debug)]
pub struct Bonnie {
    /// Of the large file, in MiB, because that is its unit.
    pub mib: u64,
    /// In multiples of 1024, because that is its unit.
    pub kibi_files: u64,
    pub seeks: u64,
    pub seed: u64,
}

const CHUNK: u64 = 8192;
/// In the line that it prints for programs: name and place of what it was told, and of the phases' rates.
const MIB_AT: usize = 5;
const SEEKS_AT: usize = 7;
const FILES_AT: usize = 21;
const RATES_AT: [usize; 10] = [11, 13, 17, 19, 26, 28, 30, 32, 34, 36];
/// As far as the last of them.
const FIELDS_MIN: usize = 38;

#[derive(Clone, Debug, PartialEq)]
struct Printed {
    mib: u64,
    seeks: u64,
    kibi_files: u64,
    /// KiB or operations a second, where a phase took long enough.
    rates: [Option<f64>; 10],
}

fn parse(output: &str) -> Result<Printed> {
    let line = output.lines().rfind(|line| line.starts_with("1.98,")).context("there is no line of format 1.98")?;
    let fields: Vec<&str> = line.split(',').collect();
    ensure!(fields.len() >= FIELDS_MIN, "its line has {} fields", fields.len());
    let number = |at: usize| -> Result<u64> {
        let field = fields[at];
        let (digits, times) = match field.strip_suffix('G') {
            Some(digits) => (digits, 1024),
            None => (field.trim_end_matches('M'), 1),
        };
        let number: u64 = digits.parse().with_context(|| format!("field {at} of its line is `{field}`"))?;
        Ok(number * times)
    };
    Ok(Printed {
        mib: number(MIB_AT)?,
        seeks: number(SEEKS_AT)?,
        kibi_files: number(FILES_AT)?,
        rates: RATES_AT.map(|at| fields[at].parse().ok()),
    })
}

impl Tool for Bonnie {
    fn name(&self) -> &'static str {
        "bonnie++"
    }

    fn program(&self) -> (&'static str, &'static str) {
        ("bonnie++", "bonnie++")
    }

    fn phases(&self) -> Vec<&'static str> {
        vec![
            "write",
            "rewrite",
            "read",
            "seeks",
            "sequential_create",
            "sequential_stat",
            "sequential_delete",
            "random_create",
            "random_stat",
            "random_delete",
        ]
    }

    fn calls(&self, directory: &Path, _scratch: &Path) -> Result<Vec<Call>> {
        let sizes = format!("{}M:{CHUNK}:{}:1", self.mib, self.seeks);
        let (files, seed) = (self.kibi_files.to_string(), (self.seed & 0x7fff_ffff).to_string());
        let place = subdirectory(directory, "bonnie")?;
        let directory = utf8(&place)?;
        // -r 0: it does not compare with the machine's memory.
        let mut arguments =
            vec!["-d", &directory, "-s", &sizes, "-n", &files, "-r", "0", "-f", "-m", "lab", "-z", &seed];
        if rustix::process::geteuid().is_root() {
            arguments.extend(["-u", "root"]);
        }
        Ok(vec![Call {
            arguments: arguments.into_iter().map(str::to_owned).collect(),
            place: Some(place),
            marks: &[
                "Writing intelligently...",
                "Rewriting...",
                "Reading intelligently...",
                "start 'em...",
                "Create files in sequential order...",
                "Stat files in sequential order...",
                "Delete files in sequential order...",
                "Create files in random order...",
                "Stat files in random order...",
                "Delete files in random order...",
            ],
            watch: Watching::Below,
            look: true,
            ..Call::default()
        }])
    }

    fn judge(&self, _directory: &Path, ran: &[Ran]) -> Result<Vec<Said>> {
        let run = ran.first().context("no call")?;
        let printed = parse(&run.output)?;
        as_told("MiB", printed.mib, self.mib)?;
        as_told("seeks", printed.seeks, self.seeks)?;
        as_told("times 1024 files", printed.kibi_files, self.kibi_files)?;
        let (bytes, files) = (self.mib << 20, self.kibi_files << 10);
        // By its main process, and again by rewriting.
        ensure!(
            run.written.is_none_or(|written| written >= 2 * bytes),
            "it wrote {} bytes in all, not twice {bytes}: it did not do what it was asked",
            run.written.unwrap_or_default()
        );
        // As rewriting, reading and seeking began. A small file in memory may be gone before it is looked at.
        let looked = run.largest.get(1..4).context("its large file was not looked at")?;
        let there: Vec<_> = looked.iter().filter(|held| held.names > 0).collect();
        ensure!(
            run.written.is_some() || !there.is_empty(),
            "its large file was never seen: nothing says that it did what it was asked"
        );
        for held in there {
            held.check_whole(bytes)?;
        }
        run.seen.check(2 * files, 2 * files)?;
        let blocks = bytes / CHUNK;
        let counts = [(blocks, bytes), (2 * blocks, 2 * bytes), (blocks, bytes), (self.seeks, self.seeks * CHUNK)];
        let counts = counts.into_iter().chain([(files, 0); 6]);
        Ok(counts
            .zip(printed.rates)
            .map(|((count, bytes), rate)| Said { rate, ..Said::counted(count, bytes) })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_printed_is_read() {
        let printed = parse(include_str!("../../tests/tools/bonnie++.txt")).unwrap();
        assert_eq!((printed.mib, printed.seeks, printed.kibi_files), (1, 8, 1));
        assert_eq!(printed.rates, [None; 10]);
        // Of a run that was long enough for rates.
        let printed = parse(include_str!("../../tests/tools/bonnie++-long.txt")).unwrap();
        assert_eq!((printed.mib, printed.seeks, printed.kibi_files), (1024, 20_000, 64));
        let (write, rewrite) = (Some(766_526.0), Some(1_020_069.0));
        let files = [Some(24_211.0), None, Some(67_472.0), Some(1_526.0), None, Some(70_697.0)];
        assert_eq!(printed.rates[..4], [write, rewrite, None, None]);
        assert_eq!(printed.rates[4..], files);
        assert!(parse("1.98,2.00a,lab\n").unwrap_err().to_string().contains("fields"));
    }
}
