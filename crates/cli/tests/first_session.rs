//! docs/first-session.md is a session: each of its commands prints what stands below it. `MYRIAD_RECORD=1` writes down anew what they
//! print.

mod common;

use common::Place;
use common::mount::MountPlace;
use std::path::Path;
use std::process::Command;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/first-session.md");

/// A part of the document: prose as it is, or a command with what it should print.
enum Part {
    Prose(String),
    Command { line: String, said: String },
}

fn parts(document: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut is_console = false;
    for line in document.lines() {
        let line = format!("{line}\n");
        match (is_console, line.strip_prefix("$ "), parts.last_mut()) {
            (true, Some(command), _) => {
                parts.push(Part::Command { line: command.trim_end().into(), said: String::new() });
            }
            (true, None, Some(Part::Command { said, .. })) if !line.starts_with("```") => said.push_str(&line),
            _ => {
                is_console = line.trim_end() == "```console";
                parts.push(Part::Prose(line));
            }
        }
    }
    parts
}

/// What a shell prints for a line, errors too.
fn run(place: &Place, line: &str) -> String {
    let program = Path::new(common::PROGRAM).parent().expect("a folder");
    let path = std::env::join_paths(
        [program.to_owned()].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    );
    let mut command: Command = place.command("sh", &["-c", &format!("exec 2>&1; {line}")]);
    command.env("PATH", path.expect("a path")).env("LC_ALL", "C");
    let answer = common::answer(command.spawn().expect("a shell"));
    String::from_utf8(answer.out).expect("text")
}

/// What changes from one run to the next, as a letter: identities, dates, times. Of free blocks the hundreds stay: which thread of
/// an import comes first decides whether a tree has a block more.
fn without_times(text: &str) -> String {
    let masked = text.split_inclusive(char::is_whitespace).map(|word| {
        let bare = word.trim_end();
        let space = &word[bare.len()..];
        let is_identity = bare.len() == 36 && bare.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
        let shown = if is_identity { "ID" } else { bare };
        format!("{shown}{space}")
    });
    let words: Vec<String> = masked.collect();
    let mut out = String::new();
    for (index, word) in words.iter().enumerate() {
        let next = words.get(index + 1).map_or("", |next| next.trim_end());
        let is_number = !word.is_empty() && word.trim_end().chars().all(|c| c.is_ascii_digit() || c == '.');
        let is_time = is_number && ["s", "s:", "s;", "s,", "ms"].contains(&next);
        let is_process = is_number && index > 0 && words[index - 1].trim_end() == "process";
        let is_free = is_number && next == "of" && words.get(index + 3).is_some_and(|word| word.starts_with("blocks"));
        if is_free {
            out.push_str(&word.trim_end()[..word.trim_end().len().saturating_sub(2)]);
            out.push_str("NN ");
        } else if is_time || is_process {
            out.push_str("N ");
        } else {
            out.push_str(word);
        }
    }
    out
}

#[test]
fn the_first_session_prints_what_is_written_down() {
    let document = std::fs::read_to_string(DOCUMENT).expect("docs/first-session.md");
    let (mountable, plain);
    let place: &Place = match MountPlace::with_volume(16 << 20) {
        Some(place) => {
            mountable = place;
            std::fs::remove_dir(mountable.path("mnt")).unwrap();
            &mountable
        }
        None => {
            plain = Place::new();
            &plain
        }
    };
    let can_mount = place.path("vol.img").exists();
    let (mut recorded, mut wrong, mut commands) = (String::new(), Vec::new(), 0);
    for part in parts(&document) {
        match part {
            Part::Prose(text) => recorded.push_str(&text),
            Part::Command { line, said }
                if !can_mount && ["mnt", "mount", "/mail/new"].iter().any(|word| line.contains(word)) =>
            {
                recorded.push_str(&format!("$ {line}\n{said}"));
            }
            Part::Command { line, said } => {
                commands += 1;
                let says = run(place, &line);
                if without_times(&says) != without_times(&said) {
                    wrong.push(format!("$ {line}\n{says}--- and not\n{said}"));
                }
                recorded.push_str(&format!("$ {line}\n{says}"));
            }
        }
    }
    assert!(commands > 20, "only {commands} commands");
    if std::env::var_os("MYRIAD_RECORD").is_some() {
        std::fs::write(DOCUMENT, recorded).expect("write it down");
    } else {
        assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    }
}
