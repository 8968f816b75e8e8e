//! Katcher's Postmark, as Debian has it (1.53, which calls itself 1.51): the original of our own workload of that name.
//!
//! Its clock has whole seconds, so the lab's counts. It removes all files in the end: what it made and removed the kernel has counted.

use super::{Call, Ran, Said, Tool, Watching, as_told, number_after, subdirectory, utf8};
use anyhow::{Context, Result};
use std::path::Path;

#[derive(Clone, Debug)]
pub struct Postmark {
    pub files: u64,
    pub transactions: u64,
    pub seed: u64,
}

/// What it says of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    created: u64,
    created_first: u64,
    created_mixed: u64,
    read: u64,
    appended: u64,
    deleted: u64,
    deleted_last: u64,
    deleted_mixed: u64,
    bytes_read: u64,
    bytes_written: u64,
}

impl Counts {
    /// What was done in so many transactions, each a file read or added to and a file made or deleted. A file that has grown to the
    /// greatest size is not added to, which it does not count; few files are.
    fn transacted(&self, transactions: u64) -> Result<u64> {
        let looked_at = self.read + self.appended;
        if !(transactions - transactions.div_ceil(100)..=transactions).contains(&looked_at) {
            as_told("files read or added to", looked_at, transactions)?;
        }
        let changed = self.created_mixed + self.deleted_mixed;
        as_told("files made or deleted", changed, transactions)?;
        Ok(looked_at + changed)
    }
}

fn parse(output: &str) -> Result<Counts> {
    let part = |from: &str, to: &str| -> Result<&str> {
        let (_, rest) = output.split_once(from).with_context(|| format!("it does not say `{from}`"))?;
        Ok(rest.split_once(to).map_or(rest, |(part, _)| part))
    };
    let created = part("Files:", " read (")?;
    let deleted = part(" appended (", "Data:")?;
    // A number stands before what it counts.
    let before = |label: &str| -> Result<u64> {
        let line = output.lines().find(|line| line.contains(label));
        let word = line.and_then(|line| line.split_whitespace().next());
        word.and_then(|word| word.parse().ok()).with_context(|| format!("it does not say how many `{label}`"))
    };
    Ok(Counts {
        created: before(" created (")?,
        created_first: number_after(created, "Creation alone:")?,
        created_mixed: number_after(created, "Mixed with transactions:")?,
        read: before(" read (")?,
        appended: before(" appended (")?,
        deleted: before(" deleted (")?,
        deleted_last: number_after(deleted, "Deletion alone:")?,
        deleted_mixed: number_after(deleted, "Mixed with transactions:")?,
        bytes_read: bytes_before(output, "bytes read (")?,
        bytes_written: bytes_before(output, "bytes written (")?,
    })
}

/// As in `162.97 kilobytes read (`: two decimals of a unit.
fn bytes_before(output: &str, label: &str) -> Result<u64> {
    let read = || -> Option<u64> {
        let line = output.lines().find(|line| line.contains(label))?;
        let mut words = line.split_whitespace();
        let number: f64 = words.next()?.parse().ok()?;
        let unit = match words.next()? {
            "bytes" => 1.0,
            "kilobytes" => 1024.0,
            "megabytes" => 1024.0 * 1024.0,
            "gigabytes" => 1024.0 * 1024.0 * 1024.0,
            _ => return None,
        };
        Some((number * unit) as u64)
    };
    read().with_context(|| format!("it does not say how many `{label}`"))
}

impl Tool for Postmark {
    fn name(&self) -> &'static str {
        "postmark_tool"
    }

    fn program(&self) -> (&'static str, &'static str) {
        ("postmark", "postmark")
    }

    fn phases(&self) -> Vec<&'static str> {
        vec!["create", "transactions", "delete"]
    }

    fn calls(&self, directory: &Path, scratch: &Path) -> Result<Vec<Call>> {
        let place = subdirectory(directory, "postmark")?;
        let told = scratch.join("postmark.cfg");
        let text = format!(
            "set location {}\nset number {}\nset transactions {}\nset size 500 10000\nset seed {}\nrun\nquit\n",
            utf8(&place)?,
            self.files,
            self.transactions,
            // It takes a signed number of 32 bits.
            self.seed & 0x7fff_ffff
        );
        std::fs::write(&told, text).with_context(|| format!("writing {}", told.display()))?;
        Ok(vec![Call {
            arguments: vec![utf8(&told)?],
            place: Some(place),
            marks: &["Creating files...", "Performing transactions", "Deleting files..."],
            marks_in_output: true,
            watch: Watching::Here,
            ..Call::default()
        }])
    }

    fn judge(&self, _directory: &Path, ran: &[Ran]) -> Result<Vec<Said>> {
        let run = ran.first().context("no call")?;
        let counts = parse(&run.output)?;
        as_told("files at first", counts.created_first, self.files)?;
        let transacted = counts.transacted(self.transactions)?;
        as_told("files deleted", counts.deleted, counts.created)?;
        run.seen.check(counts.created, counts.deleted)?;
        // It does not say how many bytes are of which phase.
        Ok(vec![
            Said::counted(counts.created_first, 0),
            Said::counted(transacted, 0),
            Said::counted(counts.deleted_last, 0),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_printed_is_read() {
        let counts = parse(include_str!("../../tests/tools/postmark.txt")).unwrap();
        let expected = Counts {
            created: 77,
            created_first: 50,
            created_mixed: 27,
            read: 26,
            appended: 24,
            deleted: 77,
            deleted_last: 54,
            deleted_mixed: 23,
            bytes_read: 166_881,
            bytes_written: 485_713,
        };
        assert_eq!(counts, expected);
        assert_eq!(counts.transacted(50).unwrap(), 100);
        let refused = |counts: Counts| counts.transacted(50).unwrap_err().to_string();
        assert!(refused(Counts { appended: 22, ..counts }).contains("48 files read or added to"));
        assert!(refused(Counts { appended: 25, ..counts }).contains("51 files read or added to"));
        assert!(refused(Counts { deleted_mixed: 22, ..counts }).contains("49 files made or deleted"));
        // One file had grown to the greatest size.
        assert_eq!(Counts { appended: 23, ..counts }.transacted(50).unwrap(), 99);
        assert!(parse("PostMark v1.51 : 8/14/01\n").unwrap_err().to_string().contains("does not say"));
    }
}
