//! `ls` beside ls(1).

use super::{Bench, Row, other, row, sorted};

const ROWS: &[Row] = &[
    row("ls @"),
    row("ls -a @"),
    row("ls -A @"),
    row("ls -B @"),
    row("ls -I *.c -I link* @"),
    row("ls --hide=*.c -A @"),
    row("ls --hide=*.c @"),
    row("ls -r @"),
    row("ls -F @"),
    row("ls --classify=never @"),
    row("ls -p @"),
    row("ls --file-type @"),
    row("ls --indicator-style=slash @"),
    row("ls -S @/many @/hello.txt @/big"),
    row("ls --sort=size -r @/hello.txt @/big @/a.c"),
    row("ls -t @/hello.txt @/big @/a.c @/hole"),
    row("ls --sort=time @/sub"),
    row("ls --time=access -t @/many"),
    row("ls -u @/many"),
    row("ls -ut @/many"),
    // Each in its own order.
    sorted("ls -U @"),
    sorted("ls -f @"),
    sorted("ls --sort=none -A @"),
    row("ls -X @"),
    row("ls --sort=extension -r @/sub"),
    row("ls -v @/many"),
    row("ls --sort=version @"),
    row("ls --sort=width @"),
    row("ls --group-directories-first @"),
    row("ls -r --group-directories-first @"),
    row("ls -Q @"),
    row("ls -b @"),
    row("ls -QN @"),
    row("ls --format=single-column @/many"),
    row("ls --format=commas -w 30 @/many"),
    row("ls --format=long @/many"),
    row("ls -R @"),
    row("ls -R @/sub @/many @/a.c"),
    row("ls -LR @"),
    row("ls -LR @/sub @/link-dir"),
    row("ls -d @ @/sub"),
    row("ls -m -w 60 @"),
    row("ls -m @/many"),
    row("ls -m @/empty"),
    // Ours never puts tabs between columns.
    other("ls -C -w 60 @/sub", "ls -C -T 0 -w 60 @/sub"),
    other("ls -C -w 100 @/many", "ls -C -T 0 -w 100 @/many"),
    other("ls -x -w 40 @/many", "ls -x -T 0 -w 40 @/many"),
    other("ls -x -w 0 -F @/many", "ls -x -T 0 -w 0 -F @/many"),
    row("ls -L @/link @/broken @/link-dir"),
    row("ls -lH --time-style=+ @/link"),
    row("ls -F @/link-dir"),
    row("ls @/link-dir @/link"),
    row("ls -l @/big @/a.c @/hello.txt @/link @/broken @/fifo"),
    row("ls -l @/many"),
    row("ls -ln @/hole @/program @/link"),
    row("ls -lF @/link @/link-dir @/broken @/program @/fifo"),
    row("ls -lp @/link-dir @/link"),
    row("ls -lQ @/it's @/link"),
    row("ls -g @/big @/hole"),
    row("ls -o @/big @/hole"),
    row("ls -lG @/big @/hole"),
    row("ls -go @/big @/hole"),
    row("ls -lh @/big @/hole @/a.c"),
    row("ls -l --si @/big @/hole @/a.c"),
    row("ls -l --block-size=K @/big @/hole @/a.c"),
    row("ls -l --block-size=1000 @/big @/hole @/a.c"),
    row("ls --full-time @/big @/hole"),
    row("ls -l --time-style=full-iso @/big"),
    row("ls -l --time-style=long-iso @/big @/hole @/a.c"),
    row("ls -l --time-style=iso @/big @/hole @/a.c @/hello.txt"),
    row("ls -l --time-style=+%%Y/%%j%%%%T @/big"),
    row("ls -lu @/big @/hole"),
    row("ls -l --time=atime @/big @/hole"),
    row("ls -lut @/big @/hole @/a.c"),
    row("ls -l1 @/big"),
    other("ls -lC @/big", "ls -lC -T 0 @/big"),
    row("ls -xl @/big"),
    row("ls -s --block-size=G @/big @/hole"),
    row("ls --color=always @"),
    row("ls --color=auto @"),
    row("ls --color=always -F @/sub"),
    row("ls -l --color=always @/link @/broken @/program @/big @/b.tar.gz @/link-dir"),
    row("ls -d --color=always @/sticky @/open @/sub"),
    row("ls @/none @/a.c"),
];

#[test]
fn ls_shows_what_ls_shows() {
    Bench::new().compare(ROWS, |_, out| out);
}

#[test]
fn a_terminal_without_colours_gets_none() {
    let bench = Bench::new();
    for (name, value, has_colors) in [
        ("TERM", "dumb", false),
        ("TERM", "", false),
        ("TERM", "con80x25", true),
        ("TERM", "screen.xterm-256color", true),
        ("COLORTERM", "truecolor", true),
    ] {
        let run = |program: &str, line: &str, place| {
            let mut command = bench.place.command(program, &super::words(line, place));
            command.env_remove("TERM").env_remove("COLORTERM").env_remove("LS_COLORS").env("LC_ALL", "C.UTF-8");
            super::answer(command.env(name, value).spawn().expect("start")).ok().out
        };
        let ours = run(super::PROGRAM, "ls --color=always @/sub", "vol.img:/t");
        let theirs = run("ls", "--color=always @/sub", "t");
        assert_eq!(ours.escape_ascii().to_string(), theirs.escape_ascii().to_string(), "{name}={value}");
        assert_eq!(ours.contains(&b'\x1b'), has_colors, "{name}={value}");
    }
}

#[test]
fn colours_are_those_of_the_environment() {
    let bench = Bench::new();
    let colors = "di=7:*.c=01;31:*.GZ=35:ln=target:ex=0:sg=0:or=9:mi=5:su=00";
    let run = |program: &str, line: &str, place| {
        let words = super::words(line, place);
        let mut command = bench.place.command(program, &words);
        super::answer(command.env("LC_ALL", "C.UTF-8").env("LS_COLORS", colors).spawn().expect("start")).ok().out
    };
    for line in ["ls --color=always @", "ls -l --color=always --time-style=+ @/link @/broken @/link-dir @/b.tar.gz"] {
        let ours = super::seen(super::By::Order, &run(super::PROGRAM, line, "vol.img:/t"));
        let theirs = run("ls", line.strip_prefix("ls ").expect("a line of ls"), "t");
        assert_eq!(ours.escape_ascii().to_string(), theirs.escape_ascii().to_string(), "{line}");
    }
}

/// What is printed names the image too, so that it can be copied into another command.
#[test]
fn paths_name_the_image() {
    let bench = Bench::new();
    bench.place.line("mkfs b.img --size 64M -q").ok();
    bench.place.line("mkdir vol.img:/d b.img:/d b.img:/d/e").ok();
    bench.place.line("cp vol.img:/t/a.c b.img:/f -q").ok();
    let shown = bench.place.line("ls -R vol.img:/d b.img:/d b.img:/f").ok();
    assert_eq!(shown.text(), "b.img:/f\n\nb.img:/d:\ne\n\nb.img:/d/e:\n\nvol.img:/d:\n");
    let shown = bench.place.line("ls vol.img:/d vol.img:/t/many/file1").ok();
    assert_eq!(shown.text(), "vol.img:/t/many/file1\n\nvol.img:/d:\n");
    let shown = bench.place.line("ls -d b.img:/d b.img").ok();
    assert_eq!(shown.text(), "b.img:/\nb.img:/d\n");
    let shown = bench.place.line("ls -dQ b.img:/d").ok();
    assert_eq!(shown.text(), "\"b.img:/d\"\n");
    assert_eq!(bench.place.line("ls -R b.img").ok().text(), "b.img:/:\nd\nf\n\nb.img:/d:\ne\n\nb.img:/d/e:\n");
}

#[test]
fn what_ls_does_not_know_is_refused() {
    let bench = Bench::new();
    for (line, said) in [
        ("ls --sort=bogus vol.img", "[possible values: name, none, size, time, extension, version, width]"),
        ("ls --time=bogus vol.img", "possible values"),
        ("ls --time-style=bogus vol.img", "`bogus` is no style; write full-iso"),
        ("ls --time-style=+%! vol.img", "is no format of a time"),
        ("ls --color=blue vol.img", "possible values"),
        ("ls --block-size=0 vol.img", "is no unit"),
        ("ls -w x vol.img", "invalid"),
    ] {
        bench.place.line(line).expect(2, &[said]);
    }
}
