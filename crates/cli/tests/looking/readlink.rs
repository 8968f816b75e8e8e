//! `readlink` beside readlink(1). With -f and its like the host's answer is below the folder of the test, ours below the image.

use super::{Bench, Row, row};

const ROWS: &[Row] = &[
    row("readlink @/link"),
    row("readlink @/link @/broken @/sub/around"),
    row("readlink -n @/link"),
    row("readlink -z @/link @/chain"),
    row("readlink @/hello.txt"),
    row("readlink @/none"),
    row("readlink -s @/none @/link"),
    row("readlink -v @/link"),
    row("readlink -f @/link @/chain @/sub/around @/sub/up @/link-dir/../link"),
    row("readlink -f @/broken"),
    row("readlink -f @/none"),
    row("readlink -f @/none/more"),
    row("readlink -f @/hello.txt"),
    row("readlink -f @/hello.txt/more"),
    row("readlink -f @/loop"),
    row("readlink -f @/./sub//deep/.."),
    row("readlink -fn @/link"),
    row("readlink -fz @/link"),
    row("readlink -e @/link @/broken @/none @/sub"),
    row("readlink -m @/link @/broken @/none/more/../x @/hello.txt/more"),
    row("readlink -f -e @/broken"),
    row("readlink -e -m @/broken"),
];

#[test]
fn readlink_shows_what_readlink_shows() {
    let bench = Bench::new();
    let folder = bench.place.path("").canonicalize().expect("the folder of the test");
    let folder = [folder.as_os_str().to_str().expect("a path of text"), "/"].concat();
    let map = |_: &str, out: Vec<u8>| super::replace(&out, folder.as_bytes(), b"");
    bench.compare(ROWS, map);
    // readlink(1) takes a circle for a path there.
    bench.place.line("readlink -m vol.img:/t/loop/x").expect(1, &["Too many levels of symbolic links"]);
    let json = bench.place.line("readlink --json vol.img:/t/link").ok().json();
    assert_eq!((&json["path"], &json["target"]), (&"/t/link".into(), &"hello.txt".into()));
    let json = bench.place.line("readlink -e --json vol.img:/t/chain").ok().json();
    assert_eq!(json["resolved"], "/t/sub/one");
    bench.place.line("readlink vol.img:/t/a.c").expect(1, &["vol.img:/t/a.c: not a symbolic link; -f shows"]);
    assert_eq!(bench.place.line("readlink -q vol.img:/t/a.c").expect(1, &[]).err, "");
    let absolute = "/t/../../t/hello.txt";
    bench.place.run(&["ln", "-s", absolute, "vol.img:/t/sub/absolute"]).ok();
    let shown = bench.place.line("readlink -f vol.img:/t/sub/absolute").ok();
    assert_eq!(shown.text(), "vol.img:/t/hello.txt\n", "a link leads nowhere but into the volume");
}
