//! `du` beside du(1). How much space a file takes is each file system's own, and du(1) before coreutils 9.2 counts what
//! directories hold as apparent size: so most rows count files, or are about files alone.

use super::{Bench, Row, row, sorted};

const ROWS: &[Row] = &[
    sorted("du --inodes @"),
    sorted("du --inodes -a @"),
    row("du --inodes -s @ @/many"),
    sorted("du --inodes -d 1 @"),
    sorted("du --inodes --max-depth=0 @"),
    sorted("du --inodes -l @"),
    sorted("du --inodes -S @"),
    sorted("du --inodes -c @/sub @/many"),
    sorted("du --inodes -sc @/sub @/many"),
    sorted("du --inodes -x @/sub"),
    sorted("du --inodes -a -t 2 @"),
    sorted("du --inodes -t -5 @"),
    sorted("du --inodes -a --exclude=*.o @"),
    sorted("du --inodes -a --exclude=deep @"),
    sorted("du --inodes -a --exclude=sub/deep --exclude=a* @"),
    sorted("du --inodes --exclude=deep @/sub/deep"),
    sorted("du --inodes -0 @/many"),
    row("du -b @/big @/a.c @/hole @/hello.txt"),
    row("du -b @/hello.txt @/sub/hard @/big"),
    row("du -lb @/hello.txt @/sub/hard"),
    row("du --apparent-size @/big @/a.c"),
    row("du --apparent-size -h @/big @/a.c @/hole"),
    row("du -bh @/big @/hole"),
    row("du --apparent-size --si @/big @/hole"),
    row("du --apparent-size -k @/big @/a.c"),
    row("du --apparent-size -m @/big @/hole"),
    row("du --apparent-size -BM @/big @/hole"),
    row("du --apparent-size -B 1000 @/big @/hole"),
    row("du --apparent-size --block-size=KB @/big @/hole"),
    row("du --apparent-size -hk @/big"),
    row("du --apparent-size -kh @/big"),
    row("du -b -t 1000 @/big @/a.c @/hole"),
    row("du -b -t -1K @/big @/a.c @/hole"),
    row("du -b --time @/big @/a.c"),
    row("du -b --time=atime @/big @/a.c"),
    row("du -b --time --time-style=full-iso @/big @/a.c"),
    row("du -b --time --time-style=iso @/big @/a.c"),
    row("du -b --time --time-style=+%%s @/big @/a.c"),
    sorted("du --inodes --time --time-style=+%%s @/many"),
    row("du -bc @/big @/a.c"),
    row("du -b @/none @/big"),
];

#[test]
fn du_counts_what_du_counts() {
    Bench::new().compare(ROWS, |_, out| out);
}

#[test]
fn space_is_added_up_and_wrong_uses_are_told() {
    let bench = Bench::new();
    let place = &bench.place;
    place.line("mkfs b.img --size 64M -q").ok();
    place.line("cp vol.img:/t/big b.img:/big -q").ok();
    assert_eq!(place.line("du -sb vol.img:/t/big b.img").ok().text(), "300000\tvol.img:/t/big\n300000\tb.img:/\n");
    assert_eq!(place.line("du -sb b.img:/").ok().text(), "300000\tb.img:/\n");
    let json = place.line("du -sc --json --time vol.img:/t/many").ok();
    let lines: Vec<serde_json::Value> =
        json.lines().iter().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!((&lines[0]["path"], &lines[0]["files"]), (&"/t/many".into(), &7.into()));
    assert_eq!((&lines[1]["total"], &lines[1]["files"]), (&true.into(), &7.into()));
    assert!(lines[0]["newest_ns"].is_i64());
    // Of the same files in two volumes, each is counted, whatever its inode number.
    place.line("cp -a vol.img:/t b.img:/t -q").ok();
    let total = place.line("du --inodes -sc vol.img:/t b.img:/t").ok();
    let counts: Vec<u64> = total.lines().iter().map(|line| line.split('\t').next().unwrap().parse().unwrap()).collect();
    assert_eq!((counts[0], counts[2]), (counts[1], counts[0] + counts[1]), "{total:?}");
    for (line, said) in [
        ("du -s -d 1 vol.img", "cannot be used with"),
        ("du -s -a vol.img", "cannot be used with"),
        ("du -d x vol.img", "invalid"),
        ("du -t x vol.img", "is not a size"),
        ("du -B 0 vol.img", "is no unit"),
        ("du --time=never vol.img", "possible values"),
    ] {
        place.line(line).expect(2, &[said]);
    }
}
