//! `stat` beside stat(1).

use super::{Bench, Place, Row, row};
use myriad_engine::OpenOptions;

const ROWS: &[Row] = &[
    row("stat -c %%n @/a.c @/big"),
    row("stat --format=%%n:%%s @/a.c @/hole"),
    row("stat -c %%a|%%A|%%f|%%F @/a.c @/big @/fifo @/link @/sub @/sticky @/empty-file @/no-end"),
    // Where stat(1) says UNKNOWN, ours says the number again: so not of `hole`.
    row("stat -c %%u|%%U|%%g|%%G @/a.c @/program"),
    row("stat -c %%h|%%s|%%B @/a.c @/hello.txt @/fifo"),
    row("stat -c %%N @/a.c @/link @/it's @/with%space @/quo\"te @/größe @/back\\slash @/* @/chain"),
    row("stat -L -c %%N|%%F @/link @/chain @/link-dir"),
    row("stat -c %%y|%%Y|%%.3Y|%%.Y|%%.0Y|%%.12Y @/a.c @/big @/link"),
    row("stat -c %%x|%%X|%%.1X @/a.c @/big @/hole"),
    row("stat -c %%t|%%T|%%r|%%R|%%Hr|%%Lr @/a.c @/fifo"),
    row("stat -c %%10s|%%-10s|%%010s|%%+s|%%#a|%%8a|%%08a|%%#f|%%-20U|%%.3U @/a.c"),
    row("stat --printf=%%n\\t%%s\\n\\x41\\101 @/a.c @/big"),
    row("stat --printf %%s @/a.c"),
    row("stat -c %%s%%%%\\n @/a.c"),
    row("stat -f -c %%n|%%l @/a.c"),
    row("stat -c %%s @/none @/a.c"),
    row("stat -L -c %%s @/broken"),
];

#[test]
fn stat_shows_what_stat_shows() {
    Bench::new().compare(ROWS, |_, out| out);
}

#[test]
fn terse_lines_have_the_fields_of_stat() {
    let bench = Bench::new();
    let (ours, theirs) = (bench.ours("stat -t @/a.c").ok(), bench.theirs("stat -t @/a.c").ok());
    let ours: Vec<&str> = ours.text().split_whitespace().collect();
    let theirs: Vec<&str> = theirs.text().split_whitespace().collect();
    assert_eq!(ours.len(), theirs.len());
    // Size, mode, owner, group, links, device numbers, times read and changed; the rest is the host's own.
    for field in [1, 3, 4, 5, 8, 9, 10, 11, 12] {
        assert_eq!(ours[field], theirs[field], "field {field}");
    }
    assert_eq!(ours[0], "vol.img:/t/a.c");
}

#[test]
fn volumes_and_wrong_formats() {
    let bench = Bench::new();
    let shown = bench.place.line("stat -f vol.img").ok();
    assert!(
        shown.text().starts_with("  File: vol.img:/\n    Namelen: 255     Type: myriad\nBlock size: 4096\n"),
        "{shown:?}"
    );
    let shown = bench.place.line("stat vol.img:/t/link").ok();
    assert!(shown.text().starts_with("  File: vol.img:/t/link -> hello.txt\n"), "{shown:?}");
    assert_eq!(bench.place.line("stat -f -c %T:%S:%l vol.img").ok().text(), "myriad:4096:255\n");
    assert_eq!(bench.place.line("stat -f --json vol.img").ok().json()["name_max"], 255);
    assert_eq!(bench.place.line("stat -c %m:%o:%d vol.img:/t").ok().text(), "vol.img:4096:0\n");
    for (line, said) in [
        ("stat -c %q vol.img", "myriad: stat: `%q` is no directive; the manual page lists them"),
        ("stat -f -c %u vol.img", "`%u` is no directive"),
        ("stat --printf %99999s vol.img", "a width of more than 4096"),
        ("stat -c % vol.img", "the format ends within a directive"),
    ] {
        bench.place.line(line).expect(2, &[said]);
    }
}

/// What is kept for the volume's own growth, and for what is promised already, was shown as available.
#[test]
fn what_is_available_is_less_than_what_is_free() {
    let place = Place::with_volume(8 << 20);
    place.change(|session| {
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = session.open("/large", options).unwrap();
        let mut size = 0;
        while let Ok(count) = file.write_at(&[7; 4096], size) {
            size += count as u64;
        }
    });
    let told = place.line("stat -f --json vol.img").ok().json();
    let blocks = |key: &str| told[key].as_u64().unwrap() / told["block_size"].as_u64().unwrap();
    let (available, free) = (blocks("available"), blocks("size") - blocks("used"));
    assert!(available < free, "{told}");
    assert_eq!(place.line("stat -f -c %a:%f vol.img").ok().text(), format!("{available}:{free}\n"));
    let text = place.line("stat -f vol.img").ok();
    assert!(text.text().contains(&format!(" Free: {free:<10} Available: {available}\n")), "{text:?}");
}
