//! Completion of paths inside volumes, as the shells' scripts ask for it and as bash has it.

mod common;

use common::mount::MountPlace;
use common::{Place, put};
use myriad_engine::{Fs, MountOptions};
use std::process::Command;

fn furnish(place: &Place) {
    place.change(|session| {
        session.mkdir("/usr", 0o755).unwrap();
        session.mkdir("/usr/share", 0o755).unwrap();
        session.symlink(b"usr", "/usl").unwrap();
        for name in ["/use", "/other", "/.hidden", "/usr/two words", "/usr/it's", "/usr/l\nine"] {
            put(session, name, b"x");
        }
    });
}

/// What a word may become.
fn paths(place: &Place, word: &str) -> Vec<String> {
    let answer = place.run(&["completions", "--paths", word]).ok();
    answer.lines().into_iter().map(str::to_owned).collect()
}

fn check_paths(place: &Place) {
    for (word, expected) in [
        ("vol.img:/us", &["vol.img:/use", "vol.img:/usl/", "vol.img:/usr/"][..]),
        ("vol.img:/.h", &["vol.img:/.hidden"]),
        ("vol.img:/usr/", &["vol.img:/usr/it's", "vol.img:/usr/share/", "vol.img:/usr/two words"]),
        ("vol.img:/usl/s", &["vol.img:/usl/share/"]),
        ("./vol.img:/o", &["./vol.img:/other"]),
        ("vol.img:/none", &[]),
        ("vol.img:/none/x", &[]),
        ("vol.img:/use/x", &[]),
        ("none.img:/x", &[]),
        ("vol.img", &[]),
        ("-", &[]),
        ("--help:/", &[]),
        ("", &[]),
    ] {
        assert_eq!(paths(place, word), expected, "{word}");
    }
}

#[test]
fn paths_in_a_volume_are_completed() {
    let place = Place::with_volume(16 << 20);
    furnish(&place);
    check_paths(&place);
    place.write("garbage", &[7; 100_000]);
    assert!(Command::new("mkfifo").arg(place.path("fifo")).status().unwrap().success());
    for word in ["garbage:/", "fifo:/x", "/dev/zero:/x", ".:/x"] {
        assert_eq!(paths(&place, word), [""; 0], "{word}");
    }
    let fs = Fs::open(&place.path("vol.img"), MountOptions::default()).unwrap();
    assert_eq!(paths(&place, "vol.img:/us"), [""; 0], "somebody has it in use");
    fs.close().unwrap();
    assert_eq!(paths(&place, "vol.img:/oth"), ["vol.img:/other"]);
}

#[test]
fn paths_in_a_mounted_volume_are_completed() {
    let Some(place) = MountPlace::with_volume(16 << 20) else { return };
    furnish(&place);
    place.mount("");
    check_paths(&place);
    assert_eq!(paths(&place, "mnt:/oth"), ["mnt:/other"]);
    place.umount();
}

/// Has bash complete the end of a line: what the last word, of those that bash splits the line into, is replaced by.
fn bash(place: &Place, line: &str, settings: &str) -> Vec<String> {
    let script = format!(
        r#"PATH=$1:$PATH; source <(myriad completions bash); {settings}
        COMP_LINE=$2 COMP_POINT=${{#2}} COMP_WORDS=(myriad ls "${{2##* }}") COMP_CWORD=2 COMPREPLY=()
        complete -p myriad >&2
        _myriad_in_volumes myriad "${{2##* }}" ls
        [ ${{#COMPREPLY[@]}} -eq 0 ] || printf '%s\n' "${{COMPREPLY[@]}}""#
    );
    let program = std::path::Path::new(common::PROGRAM).parent().unwrap().to_str().unwrap();
    let answer = common::answer(place.command("bash", &["-c", &script, "bash", program, line]).spawn().unwrap());
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.err.contains("-F _myriad_in_volumes"), "{answer:?}");
    answer.lines().into_iter().map(str::to_owned).collect()
}

#[test]
fn bash_completes_paths_in_volumes() {
    if Command::new("bash").arg("--version").output().is_err() {
        return println!("skipped: bash is missing");
    }
    let place = Place::with_volume(16 << 20);
    furnish(&place);
    // Bash splits words at colons, and replaces what is behind the last one.
    assert_eq!(bash(&place, "myriad ls vol.img:/us", ""), ["/use", "/usl/", "/usr/"]);
    assert_eq!(bash(&place, "myriad ls -l vol.img:/usr/t", ""), ["/usr/two\\ words"]);
    assert_eq!(bash(&place, "myriad ls vol.img:/usr/two\\ w", ""), ["/usr/two\\ words"]);
    assert_eq!(bash(&place, "myriad ls vol.img:/usr/i", ""), ["/usr/it\\'s"]);
    assert_eq!(bash(&place, "myriad ls vol.img:/nothing", ""), [""; 0]);
    let no_colon = "COMP_WORDBREAKS=${COMP_WORDBREAKS//:/}";
    assert_eq!(bash(&place, "myriad ls vol.img:/oth", no_colon), ["vol.img:/other"]);
    // The rest is the generated script's.
    assert!(bash(&place, "myriad ls --al", "").contains(&"--all".to_owned()));
}
