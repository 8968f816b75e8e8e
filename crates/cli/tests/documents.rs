//! Help, manual pages and completions come from the one table, so each verb is in all of them.

mod common;

use common::Place;
use myriad_engine::options::{TABLE, When};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

fn verbs(place: &Place) -> Vec<String> {
    let help = place.line("--help").ok();
    let commands = help.text().split("Commands:").nth(1).expect("a list of verbs");
    let lines = commands.lines().skip(1).take_while(|line| !line.trim().is_empty());
    // Wrapped lines are indented further.
    let lines = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    lines.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn every_verb_has_help_a_page_and_completions() {
    let place = Place::new();
    place.line("man pages --quiet").ok();
    let bash = place.line("completions bash").ok();
    let verbs = verbs(&place);
    assert!(verbs.len() >= 22, "{verbs:?}");
    for verb in &verbs {
        let help = place.line(&format!("{verb} --help")).ok();
        assert!(help.text().contains("Examples:"), "{verb}");
        let page = String::from_utf8(common::bytes(&place.path(&format!("pages/myriad-{verb}.1")))).unwrap();
        for part in [".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SH \"EXIT STATUS\"", ".SH EXAMPLES"] {
            assert!(page.contains(part), "{verb} has no {part}:\n{page}");
        }
        assert!(
            bash.text().contains(&format!("myriad__{verb}")) || bash.text().contains(&format!("myriad,{verb}")),
            "{verb}"
        );
    }
    for page in ["myriad.1", "myriad-bench-dir.1", "myriad-debug-block.1", "mkfs.myriad.8", "fsck.myriad.8"] {
        assert!(place.path("pages").join(page).exists(), "{page}");
    }
    for shell in ["zsh", "fish"] {
        assert!(place.line(&format!("completions {shell}")).ok().text().contains("mkdir"));
    }
}

#[test]
fn fsck_documents_its_own_bits() {
    let place = Place::new();
    place.line("man pages -q").ok();
    let page = String::from_utf8(common::bytes(&place.path("pages/myriad-fsck.1"))).unwrap();
    for code in ["0", "1", "4", "8", "16", "32"] {
        assert!(page.contains(&format!("\\fB{code}\\fR")), "{code}\n{page}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_error_to_tell() {
    let place = Place::new();
    // Gone before the first byte, so that nothing depends on who is faster.
    let (gone, stdout) = UnixStream::pair().unwrap();
    drop(gone);
    let mut command = place.command(common::PROGRAM, &["completions", "bash"]);
    let answer = common::answer(command.stdout(OwnedFd::from(stdout)).spawn().unwrap());
    assert_eq!((answer.code, answer.err.as_str()), (141, ""));
}

#[test]
fn a_full_disk_behind_the_output_is_told() {
    let place = Place::new();
    let mut command = place.command(common::PROGRAM, &["completions", "bash"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let answer = common::answer(command.stdout(full).spawn().unwrap());
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.err.contains("No space left on device"), "{answer:?}");
}

/// `packaging/magic` says of a volume, by file(1), what `myriad info` says.
#[test]
fn file_knows_a_volume() {
    const MAGIC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/magic");
    let place = Place::new();
    for size in ["512", "4k", "64k"] {
        place.line(&format!("mkfs --force --quiet --size 16M --block-size {size} --label made-{size} vol.img")).ok();
        let info = place.line("info --json vol.img").ok().json();
        let output = match place.command("file", &["--brief", "--magic-file", MAGIC, "vol.img"]).output() {
            Ok(output) => output,
            Err(error) => return println!("skipped: file: {error}"),
        };
        let (uuid, bytes, blocks) = (info["uuid"].as_str().unwrap(), &info["block_size"], &info["block_count"]);
        let expected = format!(
            "Myriad volume version 1, UUID {uuid}, blocks of {bytes}, {blocks} blocks, label \"made-{size}\"\n"
        );
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }
}

/// docs/mounting.md has the table of options as it is.
#[test]
fn the_table_of_options_is_in_the_documents() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mounting.md");
    let document = std::fs::read_to_string(document).expect("docs/mounting.md");
    let mut table =
        String::from("| option | values | without it | set by | what it says | idea |\n|---|---|---|---|---|---|\n");
    for row in &TABLE {
        let values = match row.values.explained() {
            names if names.is_empty() => row.values.range(),
            names => names,
        };
        let default = row.default();
        let default = if default.is_empty() { "none" } else { &default };
        let (name, about, source) = (row.name, row.about, row.source);
        let set_by = if row.when == When::Once { "mkfs (not kept)" } else { row.when.name() };
        table += &format!("| `{name}` | {values} | {default} | {set_by} | {about} | {source} |\n");
    }
    assert!(document.contains(&table), "docs/mounting.md wants this table:\n\n{table}");
    for word in TABLE.iter().flat_map(|row| row.words) {
        assert!(document.contains(&format!("`{}`", word.word)), "docs/mounting.md does not tell of {}", word.word);
    }
}
