//! What a check hands back.

use crate::findings::{Kind, kind, number};
use myriad_format::leftovers::Leftovers;
use myriad_format::{AgNo, FsBlock, Ino};
use std::fmt::{self, Write as _};

/// Where a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Volume,
    Log,
    Group(AgNo),
    Block(FsBlock),
    Inode(Ino),
    /// An entry of a directory, by its position (the readdir cookie).
    Entry {
        directory: Ino,
        position: u64,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume => f.write_str("volume"),
            Self::Log => f.write_str("log"),
            Self::Group(ag) => write!(f, "group {ag}"),
            Self::Block(block) => write!(f, "block {block}"),
            Self::Inode(ino) => write!(f, "inode {ino}"),
            Self::Entry { directory, position } => write!(f, "directory {directory} entry {position}"),
        }
    }
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileRange {
    /// From the root; `None` for a file that has no name any more.
    pub path: Option<Vec<u8>>,
    /// Offset and length in bytes.
    pub offset: u64,
    pub length: u64,
}

/// One thing wrong with the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Number of the kind, see [`crate::KINDS`].
    pub number: u32,
    pub place: Place,
    /// What is there and what should be.
    pub message: String,
    /// Whose contents are damaged, and where: of findings of a scrub only.
    pub file: Option<FileRange>,
    /// Power loss may leave it on a volume of order `softdep`, which can be used all the same: something is in use for nothing, or
    /// counted too high, or a directory has a second name that a rename had not taken away.
    pub is_leftover: bool,
}

impl Finding {
    pub fn kind(&self) -> &'static Kind {
        kind(self.number).expect("findings are raised with the table's constants")
    }

    /// Whether contents of files are damaged, and not what leads to them.
    pub fn is_of_data(&self) -> bool {
        matches!(self.number, number::DATA_CHECKSUM | number::DATA_UNREADABLE)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            None => write!(f, "{}", self.place)?,
            Some(FileRange { path, offset, length }) => {
                match path {
                    Some(path) => f.write_str(&String::from_utf8_lossy(path))?,
                    None => write!(f, "{}, without a name", self.place)?,
                }
                write!(f, ": bytes {offset} to {}", offset.saturating_add(length.saturating_sub(1)))?;
            }
        }
        write!(f, ": {} [{} {}]", self.message, self.kind().name, self.number)
    }
}

/// What a scrub read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrub {
    /// Blocks of file data.
    pub data_blocks: u64,
    /// Blocks among them that were compared with their checksums: none on a volume without.
    pub compared_blocks: u64,
    /// Blocks among them that cannot be read or are not what was written.
    pub damaged_blocks: u64,
    /// Blocks among them that files gave back before they were read, so that nothing can be said of them: of an online check
    /// only.
    pub freed_blocks: u64,
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub blocks: u64,
    pub free_blocks: u64,
    pub inodes: u64,
    pub directories: u64,
    pub entries: u64,
    pub orphans: u64,
    /// Blocks that the log still overlays.
    pub log_blocks: u64,
}

/// What became of a log that was needed and could not be read: what a search of its ring found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLoss {
    /// Checkpoints found.
    pub checkpoints: u64,
    /// Checkpoints that were needed, or may have been, and are damaged: at least so many.
    pub missing: u64,
    /// Time of the last one found, in nanoseconds since 1970.
    pub time: Option<i64>,
}

impl LogLoss {
    /// Whether changes that were synced are gone, as far as anybody can tell.
    pub fn is_loss(&self) -> bool {
        self.checkpoints == 0 || self.missing > 0
    }
}

impl fmt::Display for LogLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.checkpoints, self.missing) {
            (0, _) => f.write_str(
                "a search of it found no checkpoint: what was changed since the last ones went home is lost",
            ),
            (found, 0) => write!(f, "a search of it found {found} checkpoints, all that were needed"),
            (found, missing) => {
                write!(
                    f,
                    "a search of it found {found} checkpoints; {missing} or more are damaged, and what only they had is lost"
                )
            }
        }
    }
}

/// Result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was found, at most `Options::findings_max`.
    pub findings: Vec<Finding>,
    /// How many there were, those not kept included.
    pub finding_count: u64,
    /// Those of them that are no leftovers ([`Finding::is_leftover`]).
    pub damage_count: u64,
    /// Those of them that are about contents of files, which no repair changes unasked ([`Finding::is_of_data`]).
    pub data_count: u64,
    /// What power loss has left behind, if that was asked for.
    pub leftovers: Leftovers,
    /// Blocks of metadata that the device could not read.
    pub unreadable_blocks: u64,
    /// Whether repair wrote to the volume.
    pub repaired: bool,
    /// What repair did, a sentence each: what was moved to lost+found, dropped, made anew.
    pub actions: Vec<String>,
    /// What a second look found after repair: empty unless something cannot be repaired.
    pub remaining: Vec<Finding>,
    pub remaining_count: u64,
    /// Those of them that are about contents of files.
    pub remaining_data_count: u64,
    pub totals: Totals,
    /// What was read of the files' contents, if that was asked for.
    pub scrub: Option<Scrub>,
    /// What became of a log that was needed and could not be read.
    pub log_loss: Option<LogLoss>,
    /// A background check had asked for this one, at home or in the log: until a repair the volume is not opened for changes, sound or not.
    pub was_asked_for: bool,
    /// Time that the first look took.
    pub seconds: f64,
}

impl Report {
    /// Whether changes were lost with a damaged log, which no repair brings back.
    pub fn has_lost_changes(&self) -> bool {
        self.log_loss.is_some_and(|loss| loss.is_loss())
    }

    /// Whether the volume is sound now.
    pub fn is_sound(&self) -> bool {
        if self.repaired { self.remaining_count == 0 } else { self.finding_count == 0 }
    }

    /// Whether the volume can be used as it is: it is sound, or what was found is no more than power loss leaves on a volume of order
    /// `softdep`.
    pub fn is_usable(&self) -> bool {
        self.is_sound() || self.damage_count == 0
    }

    /// Seconds for each million of files, directories included; `None` for too few files to say.
    pub fn seconds_per_million(&self) -> Option<f64> {
        (self.totals.inodes >= 10_000).then(|| self.seconds * 1e6 / self.totals.inodes as f64)
    }

    /// The report as one JSON object. Written by hand: five shapes of fields do not carry a dependency.
    pub fn to_json(&self) -> String {
        let mut out = String::from("{");
        let _ = write!(out, "\"sound\":{},\"repaired\":{},", self.is_sound(), self.repaired);
        let _ = write!(out, "\"unreadable_blocks\":{},", self.unreadable_blocks);
        let _ = write!(out, "\"finding_count\":{},\"findings\":", self.finding_count);
        json_findings(&mut out, &self.findings);
        let _ = write!(out, ",\"remaining_count\":{},\"remaining\":", self.remaining_count);
        json_findings(&mut out, &self.remaining);
        out.push_str(",\"actions\":[");
        for (index, action) in self.actions.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            json_string(&mut out, action);
        }
        let Totals { blocks, free_blocks, inodes, directories, entries, orphans, log_blocks } = self.totals;
        let _ = write!(
            out,
            "],\"totals\":{{\"blocks\":{blocks},\"free_blocks\":{free_blocks},\"inodes\":{inodes},\"directories\":{directories},\
             \"entries\":{entries},\"orphans\":{orphans},\"log_blocks\":{log_blocks}}},"
        );
        match self.scrub {
            None => out.push_str("\"scrub\":null,"),
            Some(Scrub { data_blocks, compared_blocks, damaged_blocks, freed_blocks }) => {
                let _ = write!(
                    out,
                    "\"scrub\":{{\"data_blocks\":{data_blocks},\"compared_blocks\":{compared_blocks},\
                     \"damaged_blocks\":{damaged_blocks},\"freed_blocks\":{freed_blocks}}},"
                );
            }
        }
        match self.log_loss {
            None => out.push_str("\"log_loss\":null,"),
            Some(loss @ LogLoss { checkpoints, missing, .. }) => {
                let _ = write!(
                    out,
                    "\"log_loss\":{{\"is_loss\":{},\"checkpoints\":{checkpoints},\"missing\":{missing}}},",
                    loss.is_loss()
                );
            }
        }
        let _ = write!(out, "\"seconds\":{:.3}}}", self.seconds);
        out
    }
}

fn json_findings(out: &mut String, findings: &[Finding]) {
    out.push('[');
    for (index, finding) in findings.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        let kind = finding.kind();
        let _ =
            write!(out, "{{\"number\":{},\"name\":\"{}\",\"can_repair\":{},", kind.number, kind.name, kind.can_repair);
        out.push_str("\"place\":");
        json_string(out, &finding.place.to_string());
        out.push_str(",\"message\":");
        json_string(out, &finding.message);
        if let Some(FileRange { path, offset, length }) = &finding.file {
            if let Some(path) = path {
                out.push_str(",\"path\":");
                json_string(out, &String::from_utf8_lossy(path));
                if std::str::from_utf8(path).is_err() {
                    out.push_str(",\"path_hex\":\"");
                    path.iter().for_each(|byte| _ = write!(out, "{byte:02x}"));
                    out.push('"');
                }
            }
            let _ = write!(out, ",\"offset\":{offset},\"length\":{length}");
        }
        out.push('}');
    }
    out.push(']');
}

fn json_string(out: &mut String, text: &str) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if (control as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", control as u32);
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_escapes() {
        let finding = Finding {
            number: 12,
            place: Place::Inode(Ino(7)),
            message: "a\"b\\\n".to_owned(),
            file: None,
            is_leftover: false,
        };
        let report = Report { findings: vec![finding], finding_count: 1, ..Report::default() };
        let json = report.to_json();
        assert!(
            json.starts_with("{\"sound\":false,\"repaired\":false,\"unreadable_blocks\":0,\"finding_count\":1,\"findings\":[{\"number\":12,")
        );
        assert!(json.contains(r#""message":"a\"b\\\u000a""#), "{json}");
        assert!(json.ends_with("\"log_blocks\":0},\"scrub\":null,\"log_loss\":null,\"seconds\":0.000}"));
    }

    #[test]
    fn a_damaged_file_is_named_with_its_bytes() {
        let file = Some(FileRange { path: Some(b"/d/\xff".to_vec()), offset: 4096, length: 8192 });
        let message = "unread".to_owned();
        let finding = Finding { number: 181, place: Place::Inode(Ino(7)), message, file, is_leftover: false };
        assert_eq!(finding.to_string(), "/d/\u{fffd}: bytes 4096 to 12287: unread [data-unreadable 181]");
        // In a file whose map says that it has blocks past the largest offset.
        let file = Some(FileRange { path: None, offset: u64::MAX, length: 4096 });
        let last = Finding { file, ..finding.clone() };
        assert!(last.to_string().contains(&format!("bytes {0} to {0}: ", u64::MAX)), "{last}");
        let report = Report { findings: vec![finding], finding_count: 1, ..Report::default() };
        let expected = "\"path\":\"/d/\u{fffd}\",\"path_hex\":\"2f642fff\",\"offset\":4096,\"length\":8192}";
        assert!(report.to_json().contains(expected), "{}", report.to_json());
    }
}
