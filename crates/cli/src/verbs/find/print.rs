//! What `find` prints: places, objects, lines by a format, lines as `ls -dils` has them.

use super::found::Found;
use super::test::Stamp;
use crate::failure::At;
use crate::output::Output;
use crate::show::directive::{Directive, Format, Letter, Value};
use crate::show::name::{escaped, put};
use crate::show::owner::Owners;
use crate::show::{mode, stat, time};
use crate::volume::{Opened, Place};
use anyhow::Result;
use myriad_engine::{Errno, Error, FileType, Time};
use serde_json::Map;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// Digits of a second's fraction, as find(1) has them.
const FRACTION_DIGITS: usize = 10;

/// Reads the format of `-printf`.
pub fn format(text: &[u8]) -> Result<Format, String> {
    let letter = |c: char| match c {
        'a' | 'b' | 'c' | 'd' | 'D' | 'f' | 'F' | 'g' | 'G' | 'h' | 'H' | 'i' | 'k' | 'l' | 'm' | 'M' | 'n' | 'p'
        | 'P' | 's' | 'S' | 't' | 'u' | 'U' | 'y' | 'Y' => Letter::Alone,
        'A' | 'B' | 'C' | 'T' => Letter::WithNext,
        _ => Letter::Unknown,
    };
    Format::parse(text, true, letter, |pair| {
        let mut letters = pair.chars();
        let (Some('A' | 'B' | 'C' | 'T'), Some(directive)) = (letters.next(), letters.next()) else { return false };
        stamp_text(0, directive).is_some()
    })
}

/// A time by the letter after `%T`.
fn stamp_text(at: Time, directive: char) -> Option<String> {
    let fraction = || {
        let seconds = time::seconds(at.rem_euclid(60_000_000_000), FRACTION_DIGITS);
        format!("{seconds:0>width$}", width = FRACTION_DIGITS + 3)
    };
    match directive {
        '@' => Some(time::seconds(at, FRACTION_DIGITS)),
        'S' => Some(fraction()),
        'T' | 'X' => Some(format!("{}:{}", time::field(at, 'R')?, fraction())),
        '+' => Some(format!("{}+{}:{}", time::field(at, 'F')?, time::field(at, 'R')?, fraction())),
        letter if letter.is_ascii_alphabetic() => time::field(at, letter),
        _ => None,
    }
}

/// As ctime(3), with the fraction of the second.
fn long_time(at: Time) -> String {
    let date = time::format(at, "%a %b %e");
    let year = time::format(at, "%Y");
    format!("{date} {} {year}", stamp_text(at, 'T').unwrap_or_default())
}

/// What the directives of `-printf` stand for.
pub fn value(directive: &Directive, found: &Found, volume: &Opened, owners: &mut Owners) -> Result<Value> {
    let stat = found.stat;
    let mut letters = directive.letters.chars();
    let (first, second) = (letters.next().unwrap_or('p'), letters.next());
    if let Some(second) = second {
        let stamp = match first {
            'A' => Stamp::Access,
            'B' => Stamp::Birth,
            'C' => Stamp::Change,
            _ => Stamp::Modify,
        };
        let text = stamp_text(stamp.of(stat), second).unwrap_or_default();
        return Ok(if second == '@' { Value::Digits(text) } else { Value::text(text) });
    }
    Ok(match first {
        'a' => Value::text(long_time(stat.atime)),
        'b' => Value::Number(stat.blocks),
        'c' => Value::text(long_time(stat.ctime)),
        'd' => Value::Number(found.depth as u64),
        'D' => Value::Number(0),
        'f' => Value::Text(found.name().to_vec()),
        'F' => Value::text("myriad"),
        'g' => Value::text(owners.group(stat.gid)),
        'G' => Value::Number(stat.gid.into()),
        'h' => Value::Text(directory_of(found)),
        'H' => Value::Text(found.start.bytes()),
        'i' => Value::Number(stat.ino),
        'k' => Value::Number(stat.blocks.div_ceil(2)),
        'l' if stat.file_type() == FileType::Symlink => {
            Value::Text(volume.tree().readlink(&found.path).at(found.place())?)
        }
        'l' => Value::Text(Vec::new()),
        'm' => Value::Octal((stat.mode & 0o7777).into()),
        'M' => Value::text(mode::string(stat.file_type(), stat.mode)),
        'n' => Value::Number(stat.nlink.into()),
        'P' => Value::Text(found.below.to_vec()),
        's' => Value::Number(stat.size),
        'S' => Value::text(density(stat.size, stat::allocated(stat))),
        't' => Value::text(long_time(stat.mtime)),
        'u' => Value::text(owners.user(stat.uid)),
        'U' => Value::Number(stat.uid.into()),
        'y' => Value::text(mode::letter(stat.file_type())),
        // As find(1): a link that leads nowhere, in a circle, or where nobody can say.
        'Y' => Value::text(match found.target_type(volume) {
            Ok(target) => target.map_or('N', mode::letter),
            Err(Error::Refused(Errno::LOOP)) => 'L',
            Err(_) => '?',
        }),
        _ => Value::Text(found.bytes()),
    })
}

/// How much of a file's size is stored.
fn density(size: u64, allocated: u64) -> String {
    match size {
        0 => "1".into(),
        size => {
            let ratio = format!("{:.6}", allocated as f64 / size as f64);
            ratio.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

/// `IMAGE:/directory` of a file.
fn directory_of(found: &Found) -> Vec<u8> {
    let path = &found.path;
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let slash = path[..end].iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    let path = if slash == 0 { b"/".to_vec() } else { path[..slash].to_vec() };
    Place { path, ..found.start.clone() }.bytes()
}

/// A line of `-ls`.
pub fn ls(out: &mut Output, found: &Found, volume: &Opened, owners: &mut Owners, now: Time) -> Result<()> {
    let stat = found.stat;
    let is_plain = |c: char| c == ' ' || c == '"';
    let size = match stat::device(stat) {
        Some((major, minor)) => format!("{major}, {minor:>3}"),
        None => stat.size.to_string(),
    };
    let user = owners.user(stat.uid).to_owned();
    write!(
        out,
        "{:>9} {:>6} {} {:>3} {:<8} {:<8} {size:>8} {} {}",
        stat.ino,
        stat.blocks.div_ceil(2),
        mode::string(stat.file_type(), stat.mode),
        stat.nlink,
        user,
        owners.group(stat.gid),
        time::Style::default().show(stat.mtime, now),
        escaped(&found.bytes(), is_plain),
    )?;
    if stat.file_type() == FileType::Symlink {
        let target = volume.tree().readlink(&found.path).at(found.place())?;
        write!(out, " -> {}", escaped(&target, is_plain))?;
    }
    Ok(writeln!(out)?)
}

/// An object with all attributes.
pub fn json(out: &mut Output, found: &Found, volume: &Opened) -> Result<()> {
    let mut object = Map::new();
    put(&mut object, "path", &found.path);
    put(&mut object, "image", found.start.image.as_os_str().as_bytes());
    stat::put(&mut object, found.stat);
    if found.stat.file_type() == FileType::Symlink {
        let target = volume.tree().readlink(&found.path).at(found.place())?;
        put(&mut object, "target", &target);
    }
    Ok(out.json(&object.into())?)
}
