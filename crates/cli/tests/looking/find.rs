//! `find` beside find(1).

use super::common::mount::{Signal, kill, wait_until};
use super::{Bench, Row, other, other_sorted, row, sorted};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

const ROWS: &[Row] = &[
    sorted("find @"),
    sorted("find @ -print"),
    sorted("find @/sub @/many"),
    sorted("find @/ -maxdepth 1"),
    sorted("find @ -print0"),
    sorted("find @ -name *.o"),
    sorted("find @ -iname Z*"),
    sorted("find @ -name [a-c]*"),
    sorted("find @ -name .*"),
    sorted("find @ -name *[[:digit:]]"),
    sorted("find @ -name [![:lower:]]*"),
    sorted("find @ -name new*"),
    sorted("find @ -not -name *e*"),
    sorted("find @ ! -name *e* -type f"),
    sorted("find @ -regex .*/\\(one\\|two\\)\\(\\.o\\)?"),
    sorted("find @ -regex .*e+.*[0-9]"),
    sorted("find @ -iregex .*UPPER"),
    sorted("find @ -regextype posix-extended -regex .*/(one|two)(\\.o)?"),
    sorted("find @ -regextype posix-extended -regex .*/[a-f]{1,4}[0-9]*"),
    sorted("find @ -regextype posix-basic -regex .*/\\(one\\|two\\).*"),
    sorted("find @ -regex .*\\\\.*"),
    sorted("find @ -regex one"),
    sorted("find @ -regextype perl"),
    sorted("find @ -regex \\(x"),
    sorted("find @ -type d"),
    sorted("find @ -type f,l"),
    sorted("find @ -type p"),
    sorted("find @ -type l -o -name *.c"),
    sorted("find @ -type f -a ( -name *.o -or -name *.c )"),
    sorted("find @ -type f -name *.o -o -type d -name sub -print"),
    sorted("find @ -type d , -name *.o -print"),
    sorted("find @ -xtype l"),
    sorted("find @ -xtype d"),
    sorted("find @ -lname *one"),
    sorted("find @ -ilname *HELLO*"),
    sorted("find -L @ -xtype l"),
    sorted("find -L @ -type l"),
    sorted("find -L @ -type f -name one"),
    sorted("find -L @ -lname *"),
    sorted("find -P @/link-dir"),
    sorted("find -H @/link-dir"),
    sorted("find @/link-dir -follow"),
    sorted("find -L -P @/link-dir"),
    sorted("find @ -size +1k -type f"),
    sorted("find @ -size -2 -type f"),
    sorted("find @ -size 1024c"),
    sorted("find @ -size 512w"),
    sorted("find @ -size -1M -type f"),
    sorted("find @ -empty"),
    sorted("find @ -empty -type d"),
    sorted("find @ -mtime -3"),
    sorted("find @ -mtime +3"),
    sorted("find @ -mtime 2"),
    sorted("find @ -mmin -4000"),
    sorted("find @ -mmin +4000.5"),
    sorted("find @ -atime +100 -type f"),
    sorted("find @ -ctime -1"),
    sorted("find @ -cmin +60"),
    other_sorted("find @ -newer vol.img:/t/a.c -type f -name a*", "find t -newer t/a.c -type f -name a*"),
    other_sorted("find @ -newer t/a.c -type f -name s*", "find t -newer t/a.c -type f -name s*"),
    sorted("find @ -newer t/hello.txt"),
    sorted("find @ -newermt 2005-06-01"),
    sorted("find @ -newermt 2005-06-01%12:30:00 -type f"),
    sorted("find @ ! -newermt @1100000000"),
    sorted("find @ -newermt 2%days%ago"),
    sorted("find @ -anewer t/hello.txt -type f"),
    sorted("find @ -newermm t/hello.txt -type f"),
    sorted("find @ -neweram t/big -type f"),
    sorted("find @ -newerat 2004-01-01 -type f"),
    sorted("find @ -newerct 2004-01-01 -type f"),
    sorted("find @ -newermx t/hello.txt"),
    sorted("find @ -perm 755"),
    sorted("find @ -perm -111"),
    sorted("find @ -perm /6000"),
    sorted("find @ -perm -u+x,g+x"),
    sorted("find @ -perm u=rw,g=r,o=r"),
    sorted("find @ -perm /a+x -type f"),
    sorted("find @ -perm -o+w"),
    sorted("find @ -perm +t -o -perm -1000"),
    sorted("find @ -perm /000 -type p"),
    sorted("find @ -user root -type d"),
    sorted("find @ -user 1"),
    sorted("find @ -group 2"),
    sorted("find @ -uid +5"),
    sorted("find @ -gid -3 -gid +1"),
    sorted("find @ -nouser"),
    sorted("find @ -nogroup"),
    sorted("find @ -links +1 -type f"),
    sorted("find @ -links 1 -name h*"),
    other("find @ -samefile vol.img:/t/hello.txt -name h*d", "find t -samefile t/hello.txt -name h*d"),
    sorted("find @ -maxdepth 2 -mindepth 1 -name *e*"),
    sorted("find @ -mindepth 3"),
    sorted("find @ -maxdepth 0"),
    sorted("find @ -depth -name *e*"),
    row("find @/sub/deep -depth"),
    row("find @/sub/deep -d -mindepth 1"),
    sorted("find @ -name sub -prune -o -print"),
    sorted("find @ -name sub -prune"),
    sorted("find @ -depth -name sub -prune -o -name *.o -print"),
    sorted("find @ -path *sub/d* -prune -o -type f -print"),
    sorted("find @ -name sub -prune , -name *.o"),
    sorted("find @ -false"),
    sorted("find @ -true -name hole"),
    row("find @/hello.txt @/big -quit"),
    row("find @/hello.txt @/big -print -quit"),
    sorted("find @ -xdev -noleaf -name big"),
    sorted("find @ -executable -type f"),
    sorted("find @ -printf %%p\\n"),
    sorted("find @ -mindepth 1 -printf [%%P]%%f|%%h|%%H|%%d\\n"),
    sorted("find @ -type f -printf %%s:%%m:%%M:%%n:%%u:%%U:%%g:%%G\\n"),
    sorted("find @ -printf %%y%%Y:%%l:%%f\\0"),
    sorted(
        "find @ -printf %%T@|%%t|%%TY-%%Tm-%%Td%%T+|%%TT|%%TS|%%Tj|%%TA|%%Ta|%%Tb|%%TD|%%TF|%%TH|%%TI|%%Tp|%%Ts|%%Tc|%%Tx|%%TX|%%Tr\\n",
    ),
    sorted("find @ -type f -printf %%A@|%%AY|%%a\\n"),
    sorted("find @ -type f -printf %%10s|%%-10s|%%05d|%%5f|%%.2f|%%#m|%%5d|\\t\\101\\\\%%%%\\n"),
    row("find @/big -printf a\\cb -print"),
    row("find @/big -printf abc"),
    row("find @/fifo @/hole -printf %%s%%y\\n"),
    row("find @/none @/big"),
    sorted("find @ -maxdepth 1 -exec echo x{}y ;"),
    sorted("find @ -name *.o -exec false ; -print"),
    sorted("find @ -name *.o -exec true ; -print"),
    sorted("find @ -name *.o ! -exec false {} ; -print"),
    row("find @/big @/a.c -exec echo {} +"),
    row("find @/big @/a.c -exec echo {} + -exec echo second {} +"),
    row("find @/big @/a.c -exec false {} +"),
    row("find @/big -ok echo {} ;"),
    row("find @ ("),
    row("find @ ( )"),
    row("find @ -name"),
    row("find @ -o -name x"),
    row("find @ -name x -o"),
    row("find @ !"),
    row("find @ -bogus"),
    row("find @ -exec rm"),
    row("find @ -exec rm {} x +"),
    row("find @ -newer none"),
    row("find @ -newermt bogus"),
    row("find @ -type q"),
    row("find @ -perm u+q"),
    row("find @ -size x"),
    row("find @ -maxdepth x"),
    row("find @ -user no-such-user"),
    row("find @ -delete -prune"),
];

#[test]
fn find_finds_what_find_finds() {
    Bench::new().compare(ROWS, |_, out| out);
}

/// But for inode numbers, blocks, and the width of columns, which find(1) changes as it goes on. Names with letters beyond ASCII
/// are left out: ours are shown as they are.
#[test]
fn ls_lines_are_those_of_find() {
    let map = |_: &str, out: Vec<u8>| {
        let text = String::from_utf8(out).expect("these names are text");
        let lines = text.lines().map(|line| line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ") + "\n");
        lines.collect::<String>().into_bytes()
    };
    Bench::new().compare(&[sorted("find @ -not -type d -not -name gr* -ls")], map);
}

#[test]
fn delete_removes_what_passes_and_no_more() {
    let bench = Bench::new();
    for line in [
        "find @ -name *.o -delete",
        "find @/many -delete -print",
        "find @ -type l -delete",
        "find @ -type f ( -name *~ -o -empty ) -delete",
        // Not empty: told, and left.
        "find @ -name sub -delete",
        "find -L @/.dot -name inside -delete",
    ] {
        let (ours, theirs) = (bench.ours(line), bench.theirs(line));
        assert_eq!(
            (ours.code, ours.lines().len()),
            (theirs.code, theirs.lines().len()),
            "{line}\n{ours:?}\n{theirs:?}"
        );
        bench.compare(&[sorted("find @")], |_, out| out);
    }
    bench.place.line("find vol.img -delete").ok();
    assert_eq!(bench.place.line("find vol.img").ok().text(), "vol.img:/\n", "the root stays");
    bench.place.assert_sound();
}

/// The first line has more names than the pipe and both programs hold, so that the reader is at work before find could have
/// written all of them.
#[test]
fn what_find_prints_other_verbs_take() {
    let bench = Bench::new();
    let place = &bench.place;
    place.change(|session| {
        session.mkdir("/heap", 0o755).unwrap();
        for number in 0..12_000 {
            let name = format!("/heap/{number:0>60}");
            super::common::put(session, name, b"");
        }
    });
    let myriad = super::PROGRAM;
    for (line, left) in [
        (format!("{myriad} find vol.img:/heap -type f -name '*[0-7]' | xargs -n 1000 {myriad} rm"), 2400),
        (format!("{myriad} find vol.img:/heap -name '*08' -print0 | xargs -0 {myriad} rm"), 2280),
        (
            format!(
                "{myriad} find vol.img:/heap -name '*9' | while read f; do {myriad} rm \"$f\" < /dev/null; break; done"
            ),
            2279,
        ),
        (format!("{myriad} find vol.img:/heap -name '*18' -exec {myriad} rm {{}} +"), 2159),
        (format!("{myriad} find vol.img:/heap -name '*0028' -exec {myriad} rm {{}} ';'"), 2157),
        (format!("{myriad} find vol.img:/heap -type f | xargs {myriad} rm"), 0),
    ] {
        let ran = super::answer(place.command("sh", &["-c", &line]).spawn().expect("a shell"));
        let told: Vec<&str> = ran.err.lines().take(3).collect();
        assert_eq!((told, ran.code), (Vec::new(), 0), "{line}");
        assert_eq!(place.line("find vol.img:/heap -type f").ok().lines().len(), left, "{line}");
    }
    place.assert_sound();
}

/// A read that waits goes on when a signal comes: only a second one ended it.
#[test]
fn a_signal_ends_a_question() {
    let bench = Bench::new();
    let mut command = bench.place.command(super::PROGRAM, &["find", "vol.img:/t/a.c", "-ok", "false", "{}", ";"]);
    let mut find = command.stdin(Stdio::piped()).spawn().unwrap();
    // Nobody answers.
    let _answers = find.stdin.take().unwrap();
    let mut asked = Vec::new();
    BufReader::new(find.stderr.as_mut().unwrap()).read_until(b'?', &mut asked).unwrap();
    assert_eq!(String::from_utf8_lossy(&asked), "< false vol.img:/t/a.c > ?");
    kill(find.id() as i32, Signal::INT);
    wait_until("it ends", || find.try_wait().unwrap().is_some());
    super::answer(find).expect(130, &["interrupted"]);
    bench.place.assert_sound();
}

#[test]
fn several_images_are_named_and_wrong_uses_are_told() {
    let bench = Bench::new();
    let place = &bench.place;
    place.line("mkfs b.img --size 64M -q").ok();
    place.line("cp vol.img:/t/a.c b.img:/f -q").ok();
    assert_eq!(
        place.line("find b.img vol.img:/t/many/file1").ok().text(),
        "b.img:/\nb.img:/f\nvol.img:/t/many/file1\n"
    );
    let json = place.line("find b.img --json -type f").ok().json();
    assert_eq!((&json["path"], &json["image"], &json["size"]), (&"/f".into(), &"b.img".into(), &18.into()));
    for (line, code, said) in [
        ("find vol.img (", 2, "myriad: find: (: nothing follows it"),
        ("find vol.img -exec rm", 2, "myriad: find: -exec: the end of its command is missing; write ; after it"),
        (
            "find vol.img -newer none",
            1,
            "myriad: none: No such file or directory; give a file of the host, or IMAGE:/path",
        ),
        ("find vol.img -newer vol.img:/none", 1, "myriad: vol.img:/none: No such file or directory"),
        ("find vol.img -name x y", 2, "myriad: find: y: no part of an expression; write places before it"),
        ("find vol.img --json -print0", 2, "\"find: --json\""),
        ("find -name x", 2, "IMAGE"),
        // find(1) exits with 0 there.
        (
            "find vol.img -maxdepth 0 -exec none {} ;",
            1,
            "myriad: none: cannot be run: No such file or directory; check its name",
        ),
        ("find vol.img )", 2, "myriad: find: ): nothing stands before it"),
    ] {
        place.line(line).expect(code, &[said]);
    }
    assert!(Path::new(&place.path("vol.img")).exists());
}
