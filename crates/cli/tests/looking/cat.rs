//! `cat` beside cat(1).

use super::{Bench, Row, row};

const ROWS: &[Row] = &[
    row("cat @/hello.txt @/a.c @/no-end @/control"),
    row("cat -n @/a.c @/no-end @/hello.txt"),
    row("cat -b @/a.c @/no-end @/hello.txt"),
    row("cat -nb @/a.c"),
    row("cat -s @/a.c @/control"),
    row("cat -sn @/a.c @/control @/a.c"),
    row("cat -E @/a.c @/control @/no-end"),
    row("cat -T @/a.c @/control"),
    row("cat -v @/control @/b.tar.gz"),
    row("cat -A @/a.c @/control @/no-end @/hello.txt"),
    row("cat -e @/control"),
    row("cat -t @/control"),
    row("cat -u @/hello.txt"),
    row("cat -bE @/a.c"),
    row("cat -nsA @/control @/control"),
    row("cat -n @/empty-file @/hole @/hello.txt"),
    row("cat -n @/none @/a.c"),
    row("cat -A @/sub"),
];

#[test]
fn cat_shows_what_cat_shows() {
    Bench::new().compare(ROWS, |_, out| out);
}
