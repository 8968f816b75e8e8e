//! `truncate`: sizes of files.

use crate::change::{Changes, JsonArgs, TellArgs};
use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::size;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, ChangeArgs, OpenWrite, Place, Reference, Volumes};
use anyhow::Result;
use myriad_engine::{Errno, Error};

#[derive(clap::Args)]
pub struct Truncate {
    /// The size: 64M; or + more, - less, < at most, > at least, / rounded down and % rounded up to a multiple
    #[arg(short, long, value_name = "[+-<>/%]SIZE", allow_hyphen_values = true, value_parser = SizeChange::parse,
        required_unless_present = "reference")]
    size: Option<SizeChange>,
    /// The size of this file, IMAGE:/path or a file of the host; with --size, which is then relative, from that
    #[arg(short, long, value_name = "FILE", value_parser = volume::reference())]
    reference: Option<Reference>,
    /// Make no files
    #[arg(short = 'c', long)]
    no_create: bool,
    #[command(flatten)]
    json: JsonArgs,
    /// Files whose sizes to set
    #[arg(required = true, value_name = "IMAGE:/path", value_parser = volume::place())]
    files: Vec<Place>,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SizeChange {
    how: How,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    To,
    More,
    Less,
    AtMost,
    AtLeast,
    RoundDown,
    RoundUp,
}

impl SizeChange {
    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim_start();
        let how = match text.as_bytes().first() {
            Some(b'+') => How::More,
            Some(b'-') => How::Less,
            Some(b'<') => How::AtMost,
            Some(b'>') => How::AtLeast,
            Some(b'/') => How::RoundDown,
            Some(b'%') => How::RoundUp,
            _ => How::To,
        };
        let bytes = size::parse(if how == How::To { text } else { &text[1..] })?;
        if bytes == 0 && matches!(how, How::RoundDown | How::RoundUp) {
            return Err("there are no multiples of nothing".into());
        }
        Ok(Self { how, bytes })
    }

    /// `None` if it would be more than can be told.
    fn apply(self, size: u64) -> Option<u64> {
        let Self { how, bytes } = self;
        match how {
            How::To => Some(bytes),
            How::More => size.checked_add(bytes),
            How::Less => Some(size.saturating_sub(bytes)),
            How::AtMost => Some(size.min(bytes)),
            How::AtLeast => Some(size.max(bytes)),
            How::RoundDown => Some(size / bytes * bytes),
            How::RoundUp => size.checked_next_multiple_of(bytes),
        }
    }
}

impl Command for Truncate {
    const NAME: &'static str = "truncate";
    const ABOUT: &'static str = "Make files shorter or longer";
    const DETAILS: &'static str = "What is past the new size is gone; a file that becomes longer gets a hole, which reads as zeros and takes no space. \
        A file that is missing is made, without -c. One that is a volume itself is not made shorter.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad truncate -s 0 vol.img:/log", "empties a file"),
        ("myriad truncate -s 10G vol.img:/disk", "makes a file of 10 GiB that takes no space yet"),
        ("myriad truncate -s %4K vol.img:/data", "rounds the size of a file up"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let size = self.size.unwrap_or(SizeChange { how: How::AtLeast, bytes: 0 });
        if self.reference.is_some() && size.how == How::To {
            let next = "write it with one of + - < > / %, or leave one of the two out";
            return Err(Failure::usage("", "with --reference a size must be relative", next).into());
        }
        let changes = Changes::new(context, Self::NAME, TellArgs { json: self.json, verbose: false });
        let result = Volumes::new(Access::Change, self.change.mount_options()).finish(|volumes| {
            let base = match &self.reference {
                Some(reference) => Some(reference.stat(volumes, true)?.size),
                None => None,
            };
            for file in &self.files {
                context.check()?;
                context.tolerate(self.truncate(&changes, volumes, file, base, size))?;
            }
            Ok(())
        });
        changes.finish(result)
    }
}

impl Truncate {
    fn truncate(
        &self,
        changes: &Changes<'_>,
        volumes: &mut Volumes,
        place: &Place,
        base: Option<u64>,
        size: SizeChange,
    ) -> Result<()> {
        let volume = volumes.get(&place.image)?;
        let file = match volume
            .tree()
            .open_write(&place.path, OpenWrite { create: !self.no_create, ..OpenWrite::default() })
        {
            Err(Error::Refused(Errno::NOENT)) if self.no_create => return Ok(()),
            file => file.at(place)?,
        };
        let before = file.stat().at(place)?.size;
        let too_large = || Failure::new(place, "the size would be more than a file can have", "choose a smaller one");
        let after = size.apply(base.unwrap_or(before)).ok_or_else(too_large)?;
        if after < before {
            volume.check_cut(place)?;
        }
        file.set_size(after).at(place)?;
        changes.tell(place, "size", String::new, |fields| {
            fields.insert("size".into(), after.into());
            fields.insert("size_before".into(), before.into());
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_relative_as_with_truncate() {
        for (text, before, after) in [
            ("64K", 7, Some(65536)),
            ("+3", 7, Some(10)),
            ("-8", 7, Some(0)),
            ("<5", 7, Some(5)),
            (">5", 7, Some(7)),
            ("/4", 7, Some(4)),
            ("%4", 7, Some(8)),
            ("%4", 8, Some(8)),
            ("+1", u64::MAX, None),
            ("%2", u64::MAX, None),
        ] {
            assert_eq!(SizeChange::parse(text).unwrap().apply(before), after, "{text}");
        }
        assert!(SizeChange::parse("%0").is_err() && SizeChange::parse("+").is_err() && SizeChange::parse("").is_err());
    }
}
