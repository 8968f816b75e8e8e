//! Wheeler's fs_mark 3.3: files of 4 KiB made, without a sync, and then fewer with an fsync each.

use super::{Call, Held, Ran, Said, Tool, as_shown, as_told, subdirectory, utf8};
use anyhow::{Context, Result};
use std::path::Path;

#[derive(Clone, Debug)]
pub struct FsMark {
    pub files: u64,
    /// With a sync each.
    pub synced: u64,
}

const FILE_BYTES: u64 = 4096;
const FOLDERS: [&str; 2] = ["plain", "synced"];

/// The last line of its table: files, their size, files a second.
fn parse(output: &str) -> Result<(u64, u64, f64)> {
    let read = || -> Option<(u64, u64, f64)> {
        let mut lines = output.lines().skip_while(|line| !line.starts_with("FSUse%"));
        let row = lines.nth(1)?;
        let words: Vec<&str> = row.split_whitespace().collect();
        Some((words.get(1)?.parse().ok()?, words.get(2)?.parse().ok()?, words.get(3)?.parse().ok()?))
    };
    read().context("there is no table with files and files a second in what it wrote")
}

impl Tool for FsMark {
    fn name(&self) -> &'static str {
        "fs_mark"
    }

    fn program(&self) -> (&'static str, &'static str) {
        ("fs_mark", "fsmark")
    }

    fn phases(&self) -> Vec<&'static str> {
        vec!["create", "create_synced"]
    }

    fn calls(&self, directory: &Path, scratch: &Path) -> Result<Vec<Call>> {
        let call = |name: &str, files: u64, sync: &str| -> Result<Call> {
            let place = Some(subdirectory(directory, name)?);
            let (files, size) = (files.to_string(), FILE_BYTES.to_string());
            let log = utf8(&scratch.join("fs_log.txt"))?;
            // It would use a thread a file system, and remove the files.
            // A path of more than some hundred bytes is refused: it works where it is.
            let words = ["-d", ".", "-n", &files, "-s", &size, "-t", "1", "-k", "-S", sync, "-l", &log];
            Ok(Call { arguments: words.map(str::to_owned).to_vec(), place, ..Call::default() })
        };
        Ok(vec![call(FOLDERS[0], self.files, "0")?, call(FOLDERS[1], self.synced, "1")?])
    }

    fn judge(&self, directory: &Path, ran: &[Ran]) -> Result<Vec<Said>> {
        let calls = FOLDERS.iter().zip([self.files, self.synced]).zip(ran);
        let judge = |((folder, told), ran): ((&&str, u64), &Ran)| {
            let (files, size, rate) = parse(&ran.output)?;
            as_told("files", files, told)?;
            as_told("bytes a file", size, FILE_BYTES)?;
            let held = Held::below(&directory.join(folder))?;
            as_shown("files", files, held.names)?;
            as_shown("bytes", files * size, held.bytes)?;
            let seconds = Some(files as f64 / rate).filter(|seconds| seconds.is_finite());
            Ok(Said { count: files, bytes: files * size, seconds, rate: Some(rate) })
        };
        calls.map(judge).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_printed_is_read() {
        assert_eq!(parse(include_str!("../../tests/tools/fs_mark.txt")).unwrap(), (10, 4096, 56_497.2));
        assert!(parse("#  fs_mark  -d  x\n").unwrap_err().to_string().contains("no table"));
    }
}
