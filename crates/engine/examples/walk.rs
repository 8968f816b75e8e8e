//! Lists the files of a volume with their sizes.
//!
//! ```text
//! cargo run -p myriad-engine --example walk -- IMAGE [PATH]
//! ```

use myriad_engine::{Cred, FileType, Fs, MountOptions, Session};
use std::io::{self, Write};
use std::path::Path;

fn main() -> io::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let Some(image) = arguments.next() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "usage: walk IMAGE [PATH]"));
    };
    let path = arguments.next().unwrap_or_else(|| "/".into());
    // To look only: any number of programs may, at the same time.
    let fs = Fs::open(image.as_ref(), MountOptions { read_only: true, ..MountOptions::default() })?;
    list(&fs.session(Cred::root()), path.as_ref(), &mut io::stdout().lock())
}

/// Lists what lies at and below `path`.
pub fn list(session: &Session, path: &Path, out: &mut dyn Write) -> io::Result<()> {
    let (mut directories, mut files, mut others, mut bytes) = (0, 0, 0, 0);
    for entry in session.walk(path)? {
        let entry = match entry {
            Ok(entry) => entry,
            // What is damaged is named, and the rest of the tree follows.
            Err(error) => {
                writeln!(out, "{error}")?;
                continue;
            }
        };
        match entry.stat.file_type() {
            FileType::Directory => directories += 1,
            FileType::File => {
                files += 1;
                bytes += entry.stat.size;
                writeln!(out, "{:8}  {}", entry.stat.size, String::from_utf8_lossy(&entry.path))?;
            }
            _ => others += 1,
        }
    }
    let end = |count| if count == 1 { "" } else { "s" };
    writeln!(out, "{directories} directories, {files} file{}, {others} other{}; {bytes} bytes", end(files), end(others))
}
