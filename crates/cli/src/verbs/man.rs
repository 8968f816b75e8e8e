//! `man`: the manual pages, from the same table as parser and help.

use crate::context::Context;
use crate::failure::{At, image_name};
use crate::status::Status;
use crate::verb::{self, Example, Verb};
use crate::volume::Guard;
use anyhow::Result;
use clap::builder::Resettable;
use clap_mangen::Man as Page;
use clap_mangen::roff::{Roff, bold, roman};
use std::io;
use std::path::{Path, PathBuf};

/// Pages under the names that mount(8)'s family calls, and the page that they are.
const ALIASES: [(&str, &str); 8] = [
    ("mkfs.myriad.8", "man1/myriad-mkfs.1"),
    ("fsck.myriad.8", "man1/myriad-fsck.1"),
    ("mount.myriad.8", "man1/myriad-mount.1"),
    ("mount.fuse.myriad.8", "man1/myriad-mount.1"),
    ("mount.fuseblk.myriad.8", "man1/myriad-mount.1"),
    ("umount.myriad.8", "man1/myriad-umount.1"),
    ("umount.fuse.myriad.8", "man1/myriad-umount.1"),
    ("umount.fuseblk.myriad.8", "man1/myriad-umount.1"),
];

/// What stands at the foot of a page.
const SOURCE: &str = concat!("myriad ", env!("CARGO_PKG_VERSION"));

const JSON: &str = "With --json, verbs print one object, or one object a line where there may be many. Names are strings. One that is \
    not UTF-8 appears with replacement characters, and beside it a field with _hex after its name holds its exact bytes in \
    hexadecimal. Sizes are bytes, times nanoseconds since 1970. Verbs that change files print an object with a field change \
    for each file, and one without that sums up. Errors are objects on standard error: error holds place, what, next and kind.";

#[derive(clap::Args)]
pub struct Man {
    /// Directory for the pages; made if it does not exist
    directory: PathBuf,
}

impl Man {
    /// Writes the pages of the command as a whole, whose parser is given, and of these verbs.
    pub fn write_pages(&self, context: &Context, verbs: &[Verb], parser: &clap::Command) -> Result<Status> {
        make_directory(&self.directory).at(image_name(&self.directory))?;
        self.write("myriad.1", &main_page(verbs, parser)?)?;
        let mut count = 1 + ALIASES.len();
        for verb in verbs {
            self.write(&format!("myriad-{}.1", verb.name), &verb_page(verb)?)?;
            for part in verb.parser().get_subcommands() {
                self.write(&format!("myriad-{}-{}.1", verb.name, part.get_name()), &part_page(verb, part)?)?;
                count += 1;
            }
            count += 1;
        }
        for (alias, page) in ALIASES {
            self.write(alias, format!(".so {page}\n").as_bytes())?;
        }
        context.note(&format!("{count} pages in {}", image_name(&self.directory)));
        Ok(Status::OK)
    }

    fn write(&self, name: &str, page: &[u8]) -> Result<()> {
        let path: &Path = &self.directory.join(name);
        Guard::Always.check(path)?;
        std::fs::write(path, page)
            .inspect_err(|_| {
                // A part of a page is none.
                if path.symlink_metadata().is_ok_and(|found| found.is_file()) {
                    let _ = std::fs::remove_file(path);
                }
            })
            .at(image_name(path))
    }
}

/// Makes a directory and those above it that are missing: all of them or none.
fn make_directory(path: &Path) -> io::Result<()> {
    let missing = path.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists());
    let made = missing.last().map(Path::to_owned);
    let result = std::fs::create_dir_all(path);
    if let (Err(_), Some(first)) = (&result, made) {
        // From the innermost outwards; what somebody else has put something into stays.
        for above in path.ancestors().skip_while(|above| !above.exists()).take_while(|above| above.starts_with(&first))
        {
            let _ = std::fs::remove_dir(above);
        }
    }
    result
}

fn main_page(verbs: &[Verb], parser: &clap::Command) -> Result<Vec<u8>> {
    let parser = parser.clone().after_long_help(Resettable::Reset);
    let page = Page::new(parser).source(SOURCE);
    let mut bytes = Vec::new();
    page.render(&mut bytes)?;
    section(&mut bytes, "JSON", |roff| {
        roff.text([roman(JSON)]);
    })?;
    exit_status(&mut bytes, verb::EXIT_STATUS)?;
    examples(&mut bytes, verbs.iter().filter_map(|verb| verb.examples.first()))?;
    Ok(bytes)
}

fn verb_page(verb: &Verb) -> Result<Vec<u8>> {
    let name = format!("myriad-{}", verb.name);
    let usage = format!("myriad {}", verb.name);
    // The examples have a section of their own.
    let page = Page::new(verb.parser().after_long_help(Resettable::Reset).name(name).bin_name(usage)).source(SOURCE);
    let mut bytes = Vec::new();
    page.render(&mut bytes)?;
    exit_status(&mut bytes, verb.exit)?;
    examples(&mut bytes, verb.examples.iter())?;
    section(&mut bytes, "SEE ALSO", |roff| {
        roff.text([bold("myriad"), roman("(1)")]);
    })?;
    Ok(bytes)
}

/// A page for what follows the verb, as in `bench dir`.
fn part_page(verb: &Verb, part: &clap::Command) -> Result<Vec<u8>> {
    let name = format!("myriad-{}-{}", verb.name, part.get_name());
    let usage = format!("myriad {} {}", verb.name, part.get_name());
    let mut bytes = Vec::new();
    let part = part.clone().after_long_help(Resettable::Reset);
    Page::new(part.name(name).bin_name(usage)).source(SOURCE).render(&mut bytes)?;
    exit_status(&mut bytes, verb.exit)?;
    section(&mut bytes, "SEE ALSO", |roff| {
        roff.text([bold(format!("myriad-{}", verb.name)), roman("(1)")]);
    })?;
    Ok(bytes)
}

fn exit_status(page: &mut Vec<u8>, codes: &[(u8, &str)]) -> Result<()> {
    section(page, "EXIT STATUS", |roff| {
        for (code, meaning) in codes {
            roff.control("TP", []).text([bold(code.to_string())]).text([roman(*meaning)]);
        }
    })
}

fn examples<'a>(page: &mut Vec<u8>, examples: impl Iterator<Item = &'a Example>) -> Result<()> {
    section(page, "EXAMPLES", |roff| {
        for (line, does) in examples {
            roff.control("TP", []).text([bold(*line)]).text([roman(*does)]);
        }
    })
}

fn section(page: &mut Vec<u8>, title: &str, fill: impl FnOnce(&mut Roff)) -> Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    fill(&mut roff);
    Ok(roff.to_writer(page)?)
}
