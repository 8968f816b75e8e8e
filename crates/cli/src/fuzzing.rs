//! Doors for the fuzz targets in `fuzz/`: parsers of what comes from elsewhere. Nothing else may use them.

use crate::show::mode_change::ModeChange;
use crate::show::{date, size};
use crate::transfer::batch::{Body, Feed, Next, Record};
use crate::transfer::{compress, path, tar};
use crate::verbs::{self, find};
use crate::volume::place::Place;
use std::ffi::{OsStr, OsString};
use std::io::Cursor;
use std::os::unix::ffi::OsStrExt;

/// Reads an archive to its end; the bytes that its entries hold. Paths that it hands on stay inside the target.
pub fn read_tar(archive: Vec<u8>) -> usize {
    let (slots, mut feed) = Feed::new();
    let Ok(mut outlet) = slots.open() else { return 0 };
    drop(slots);
    feed.spawn(move || {
        // The receiver leaves only after the end.
        let _ = tar::read(Cursor::new(archive), &mut outlet);
    });
    let mut bytes = 0;
    loop {
        let batch = match feed.next() {
            Next::Batch(batch) => batch,
            Next::Waiting => continue,
            Next::End => break,
        };
        for record in &batch.records {
            if let Record::Entry(entry) = record {
                let name = batch.get(entry.path);
                assert!(name.split(|&byte| byte == b'/').all(|part| part != b".."), "{}", name.escape_ascii());
                assert!(!name.starts_with(b"/") && !name.contains(&0), "{}", name.escape_ascii());
                if let Body::Whole(data) = &entry.body {
                    bytes += batch.get(*data).len();
                }
            }
        }
        feed.recycle(batch);
    }
    feed.finish();
    bytes
}

/// Opens a stream that may be compressed, and reads a MiB of it.
pub fn decompress(stream: Vec<u8>) -> u64 {
    let Ok(reader) = compress::decoder(Cursor::new(stream)) else { return 0 };
    // Damage ends it; so does the limit, for a few bytes may decompress to any number.
    std::io::copy(&mut std::io::Read::take(reader, 1 << 20), &mut std::io::sink()).unwrap_or(0)
}

/// Parses bytes as everything an argument may be.
pub fn parse_argument(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(value) = size::parse(text)
    {
        assert!(!size::human(value).is_empty());
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(change) = ModeChange::parse(text) {
            assert!([0, 0o644, 0o7777].iter().all(|&mode| change.apply(mode, true, 0o22) <= 0o7777));
        }
        for base in [i64::MIN, 0, i64::MAX] {
            let _ = (date::parse(text, base), date::parse_stamp(text, base));
        }
    }
    let _ = Place::parse(OsStr::from_bytes(bytes));
    let _ = Place::parse_or_root(OsStr::from_bytes(bytes));
    if let Ok(clean) = path::clean(bytes) {
        assert!(clean.split(|&byte| byte == b'/').all(|part| part != b".."));
    }
}

/// Parses a command line, without running it.
pub fn parse_command(arguments: &[&[u8]]) -> bool {
    let arguments: Vec<OsString> =
        [b"myriad".as_slice()].iter().chain(arguments).map(|bytes| OsStr::from_bytes(bytes).to_owned()).collect();
    let (name, arguments) = crate::called_as(arguments);
    let Ok(matches) = verbs::parser().bin_name(name).try_get_matches_from(&arguments) else { return false };
    match matches.subcommand() {
        Some((find::NAME, words)) => {
            let words = words.get_many::<OsString>("expression").unwrap_or_default().cloned().collect::<Vec<_>>();
            find::is_expression(&words)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the examples of all verbs, each with a few changes: none panics. The fuzz target does the same with more time.
    #[test]
    fn changed_command_lines_do_no_harm() {
        const ODD: [&[u8]; 12] = [
            b"",
            b"-",
            b"--",
            b"--help=",
            b"=",
            b":",
            b"../..",
            b"/",
            b"\xff\xfe",
            b"18446744073709551616",
            b"-0.5e9T",
            b"\n",
        ];
        let mut state = 20_261_123_u64;
        let mut below = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        let examples: Vec<Vec<Vec<u8>>> = crate::verbs::VERBS
            .iter()
            .flat_map(|verb| verb.examples)
            .map(|(line, _)| line.split_whitespace().skip(1).map(|word| word.as_bytes().to_vec()).collect())
            .collect();
        let mut accepted = 0;
        for _ in 0..4000 {
            let mut words = examples[below(examples.len())].clone();
            for _ in 0..1 + below(3) {
                let at = below(words.len() + 1);
                match below(5) {
                    0 => words.insert(at, ODD[below(ODD.len())].to_vec()),
                    1 if at < words.len() => drop(words.remove(at)),
                    2 if at < words.len() => words.insert(at, words[at].clone()),
                    3 if at < words.len() && !words[at].is_empty() => {
                        let byte = below(words[at].len());
                        words[at][byte] = 1 + below(255) as u8;
                    }
                    _ => words.insert(at, vec![b'9'; 1 + below(40)]),
                }
            }
            words.iter().for_each(|word| parse_argument(word));
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            accepted += usize::from(parse_command(&words));
        }
        assert!((100..3900).contains(&accepted), "{accepted} of 4000 are command lines");
    }

    #[test]
    fn the_doors_lead_somewhere() {
        assert!(parse_command(&[b"ls", b"vol.img:/"]));
        assert!(!parse_command(&[b"no such verb"]));
        assert!(parse_command(&[b"find", b"vol.img", b"-name", b"x"]) && !parse_command(&[b"find", b"vol.img", b"("]));
        parse_argument(b"64M");
        assert_eq!(read_tar(vec![0; 1024]), 0);
        assert_eq!(decompress(b"not compressed".to_vec()), 14);
    }
}
