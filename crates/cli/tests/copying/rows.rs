//! Command lines of cp(1), in a folder with sources `s` and a target `t`.

pub struct Row {
    pub line: &'static str,
    /// What is typed.
    pub answers: &'static str,
    /// cp(1) prints a file before it finds that it cannot make it. Here a file is printed once it is made.
    pub is_untold: bool,
    /// For another user than root it is different on purpose: no set-user-ID file comes to the host, and a file that may not be
    /// written is written anew all the same, and keeps its mode.
    pub is_for_root: bool,
    /// For source and target in one volume only.
    pub is_inside: bool,
}

const fn row(line: &'static str) -> Row {
    Row { line, answers: "", is_untold: false, is_for_root: false, is_inside: false }
}

const fn untold(line: &'static str) -> Row {
    Row { is_untold: true, ..row(line) }
}

const fn by_root(line: &'static str) -> Row {
    Row { is_for_root: true, ..row(line) }
}

const fn asked(line: &'static str, answers: &'static str) -> Row {
    Row { answers, ..row(line) }
}

const fn inside(row: Row) -> Row {
    Row { is_inside: true, ..row }
}

pub const SETUP: &str = r#"
    umask 022
    mkdir -p s/d/e s/hard s/odd s/links t/d t/full/x
    echo a > s/a; echo b > s/b; echo old > s/old; echo new > s/new
    echo c > s/d/c; echo f > s/d/e/f; chmod 750 s/d/e
    echo run > s/run; chmod 755 s/run; echo own > s/own; chmod 640 s/own; echo suid > s/suid; chmod 4755 s/suid
    echo h > s/hard/h; ln s/hard/h s/hard/i; mkdir s/hard/k; ln s/hard/h s/hard/k/l
    echo 1 > "s/odd/x y"; echo 2 > "s/odd/it's"; echo 3 > "s/odd/$(printf 'n\nl')"; echo 4 > 's/odd/it'"'"'s $5'
    ln -s a s/link; ln -s d s/dlink; ln -s none s/dangling
    ln -s ../a s/links/a; ln -s ../d s/links/d; echo p > s/links/plain
    mkfifo s/fifo; mkdir -p t/shared/d; chmod 2775 t/shared; chmod 755 t/shared/d
    echo ta > t/a; echo tb > t/b; chmod 600 t/b; echo told > t/old; echo tnew > t/new; echo tc > t/d/c; echo z > t/d/z
    chmod 700 t/d; echo target > t/target; ln -s target t/tolink; ln -s none t/dangling; ln -s d t/todir
    echo kept > t/kept; echo 3 > 't/kept.~3~'; echo x > 't/kept.~9'; echo locked > t/locked; chmod 400 t/locked; mkfifo t/pipe
    if [ "$(id -u)" = 0 ]; then chown 12:34 t/b s/own s/suid; chmod 4755 s/suid; chmod 640 s/own
        chgrp 77 t/shared; chmod 2775 t/shared; fi
    find s t -exec touch -h -d '2010-01-01 00:00:00.5' {} +
    touch -d '2005-01-01' s/old t/new; touch -d '2015-01-01' s/new t/old
"#;

pub const ROWS: &[Row] = &[
    row("-v s/a t/fresh"),
    row("-v s/a t"),
    row("-v s/a t/"),
    row("-v s/a s/b t"),
    row("-v s/a s/b t/d"),
    row("-v s/a t/a"),
    row("-v s/a t/b"),
    row("-v s/own t/b"),
    row("-v s/run t/fresh"),
    row("-v s/suid t/fresh"),
    by_root("-pv s/suid t/fresh"),
    row("-v s/a t/todir"),
    row("-v s/a t/tolink"),
    untold("-v s/a t/dangling"),
    row("-v s/link t/fresh"),
    row("-v s/none t"),
    row("-v s/none s/a t"),
    row("-v s/d t"),
    row("-v s/d s/a t"),
    untold("-v s/a t/none/"),
    untold("-v s/a t/none/x"),
    row("-v s/a s/b t/a"),
    row("-v s/a s/b t/none"),
    row("-v s/a"),
    // Directories.
    row("-rv s/d t/fresh"),
    row("-rv s/d t"),
    row("-Rv s/d/ t"),
    row("-rv s/odd t"),
    row("-rv s/d t/a"),
    row("-rvT s/d t/d"),
    row("-rvT s/d t/fresh"),
    row("-vT s/a t/d"),
    row("-vT s/a t/b"),
    row("-rv s/d s/odd s/a t"),
    // Named by dots: its content, into the target itself.
    row("-rv s/d/. t/d"),
    row("-a s/d/. t"),
    row("-r s/. t"),
    row("-av s/d/./ t/fresh"),
    row("-rv s/links/. t"),
    row("-r s/odd/. s/d/e/. t"),
    row("-r s/d/.. t/full/x"),
    row("-rv s/d/e/.. t/fresh"),
    row("-rbv s/d/. t/d"),
    row("-rnv s/d/. t/d/."),
    row("-rvT s/d/. t/d"),
    row("-r s/d/. t/full/.."),
    row("-rT s/d t/d/."),
    row("-r s/d/. t/none/."),
    row("-rT s/a t/d/."),
    row("-rLv s/dlink/. t"),
    row("-rPv s/dlink/. t"),
    row("-rv s/none/. t"),
    row("-rv s/a/. t"),
    row("-v s/d/. t"),
    // What is kept.
    row("-av s/d t"),
    row("-av s/d t/fresh"),
    row("-aT s/d t/d"),
    row("-pv s/own t/fresh"),
    row("-p s/own t/b"),
    row("-rp s/d t"),
    row("--preserve s/own t/fresh"),
    row("--preserve=mode s/own t/fresh"),
    row("--preserve=mode s/own t/b"),
    row("--preserve=timestamps s/own t/fresh"),
    row("--preserve=ownership s/own t/fresh"),
    row("--preserve=mode,timestamps s/own t/fresh"),
    row("--preserve=all s/own t/fresh"),
    row("-r --preserve=timestamps s/d t"),
    row("-r --preserve=mode s/d t"),
    row("-p --no-preserve=mode s/run t/fresh"),
    row("-p --no-preserve=timestamps s/own t/fresh"),
    row("-p --no-preserve=mode,ownership s/own t/b"),
    row("--no-preserve=mode s/run t/fresh"),
    row("-r --no-preserve=mode s/d t/fresh"),
    row("--preserve=nonsense s/a t"),
    row("-rv s/hard t"),
    row("-av s/hard t"),
    row("-rdv s/hard t"),
    row("-r --preserve=links s/hard t"),
    row("-a --no-preserve=links s/hard t"),
    // Links.
    row("-Pv s/link t/fresh"),
    row("-dv s/link t"),
    row("-Pv s/dangling t/fresh"),
    row("-v s/dangling t/fresh"),
    row("-Lv s/link t/fresh"),
    row("-PLv s/link t/fresh"),
    row("-LPv s/link t/fresh"),
    row("-aLv s/link t/fresh"),
    row("-Lav s/link t/fresh"),
    row("-Pv s/a t/fresh"),
    row("-rv s/links t"),
    row("-rLv s/links t"),
    row("-rHv s/links t"),
    row("-rv s/dlink t"),
    row("-rHv s/dlink t"),
    row("-rLv s/dlink t/fresh"),
    row("-v s/dlink t"),
    row("-aLv s/links t"),
    row("-rPv s/dlink t"),
    row("-Pv s/link t/a"),
    row("-Pv s/link t/tolink"),
    // What is there.
    row("-nv s/a t"),
    row("-nv s/a s/run t"),
    row("-rnv s/d t"),
    row("-uv s/old t"),
    row("-uv s/new t"),
    row("-uv s/a t"),
    row("-uv s/old s/new s/run t"),
    row("-ruv s/d t"),
    row("-upv s/new t"),
    row("-nuv s/new t"),
    asked("-iv s/a t", "y\n"),
    asked("-iv s/a t", "n\n"),
    asked("-iv s/a s/b s/run t", "yes\nno\n"),
    asked("-iv s/a t", ""),
    asked("-iv s/run t", "n\n"),
    asked("-irv s/d t", "Y\n"),
    asked("-niv s/a t", "y\n"),
    asked("-inv s/a t", "y\n"),
    asked("-iuv s/old s/new t", "y\ny\n"),
    by_root("-fv s/a t/locked"),
    row("-fv s/a t/b"),
    row("-fnv s/a t/b"),
    row("--remove-destination -v s/a t/b"),
    row("--remove-destination -v s/a t/fresh"),
    row("--remove-destination -v s/a t/tolink"),
    row("--remove-destination -v s/a t/dangling"),
    row("--remove-destination -v s/a t/pipe"),
    row("--remove-destination -v s/a t"),
    // What is kept of what is replaced.
    row("-bv s/a t"),
    row("-bv s/a t/fresh"),
    row("-bv s/a t/b"),
    row("-bv s/own t/b"),
    row("-bpv s/own t/b"),
    row("-bv s/a t/kept"),
    row("-bv s/a t/tolink"),
    row("-bv s/a t/dangling"),
    row("-bv s/a t/pipe"),
    row("-bvT s/a t/d"),
    row("-bv s/none t/a"),
    row("-bPv s/link t/a"),
    row("-bPv s/link t/tolink"),
    row("-rbv s/d t"),
    row("-abv s/d t"),
    row("-bv s/a s/b s/run t"),
    row("--backup -v s/a t"),
    row("--backup=numbered -v s/a t"),
    row("--backup=numbered -v s/a t/kept"),
    row("--backup=existing -v s/a t/kept"),
    row("--backup=simple -v s/a t/kept"),
    row("--backup=none -v s/a t"),
    row("--backup=sometimes -v s/a t"),
    row("-S .old -v s/a t"),
    row("-b --suffix=.old -v s/a t"),
    row("-bnv s/a t"),
    row("-buv s/old s/new t"),
    asked("-biv s/a s/b t", "y\nn\n"),
    by_root("-bfv s/a t/locked"),
    row("-b --remove-destination -v s/a t"),
    // Links instead of copies.
    inside(row("-lv s/a t/fresh")),
    inside(row("-lv s/a s/b s/run t/d")),
    inside(untold("-lv s/a t")),
    inside(row("-lfv s/a t")),
    inside(row("-lnv s/a t")),
    inside(asked("-liv s/a t", "y\n")),
    inside(asked("-liv s/a t", "n\n")),
    inside(row("-lbv s/a t")),
    inside(row("-l --remove-destination -v s/a t")),
    inside(row("-lv s/a s/a")),
    inside(row("-lv s/hard/h s/hard/i")),
    inside(row("-lv s/d t/fresh")),
    inside(row("-rlv s/d t/fresh")),
    inside(untold("-rlv s/d t")),
    inside(row("-rlfv s/d t")),
    inside(row("-alv s/d t/fresh")),
    inside(row("-alv s/hard t")),
    inside(row("-rlv s/hard t")),
    inside(row("-lv s/link t/fresh")),
    inside(row("-lPv s/link t/fresh")),
    inside(row("-lv s/dangling t/fresh")),
    inside(row("-lPv s/dangling t/fresh")),
    inside(row("-rlPv s/links t")),
    inside(row("-rlv s/links t")),
    inside(row("-lv s/fifo t/fresh")),
    inside(row("-lfv s/a t/tolink")),
    inside(row("-lsv s/a t/fresh")),
    // With the directories above.
    row("--parents -v s/a t"),
    row("--parents -v s/d/e/f t"),
    row("--parents -v s/d/e/f s/d/c s/a t"),
    row("--parents s/d//e/./f t"),
    row("--parents -pv s/d/e/f t"),
    row("--parents -av s/d/e t"),
    row("--parents -rv s/d/e t/d"),
    row("--parents -v s/a t/fresh"),
    row("--parents -v s/a t/b"),
    row("--parents -v -t t/d s/hard/k/l s/hard/h"),
    row("--parents -vT s/a t"),
    row("--parents --preserve=mode s/d/e/f t"),
    row("--parents --no-preserve=mode s/d/e/f t"),
    inside(row("--parents -lv s/d/e/f t")),
    // Into a directory whose group is that of all that is made in it.
    row("-v s/a s/run s/own t/shared"),
    row("-v s/a t/shared/d"),
    row("-rv s/d s/odd s/links s/fifo t/shared"),
    row("-rv s/d t/shared/fresh"),
    row("-rvT s/d t/shared/d"),
    row("-rv s/d/. t/shared"),
    row("-rdv s/hard t/shared"),
    row("-av s/d t/shared"),
    row("-rpv s/d t/shared"),
    row("-r --preserve=mode s/d t/shared"),
    row("-r --preserve=timestamps s/d t/shared"),
    row("-r --no-preserve=mode s/d s/suid t/shared"),
    row("--parents -rv s/d/e t/shared"),
    row("--parents -v s/d/e/f t/shared"),
    inside(row("-rlv s/d t/shared")),
    // Where to.
    row("-v -t t s/a s/b"),
    row("-v s/a s/b -t t/d"),
    row("-v --target-directory=t/d s/a"),
    row("-v -t t/none s/a"),
    row("-v -t t/a s/b"),
    row("-v -t t/none s/a s/b"),
    row("-v -T s/a s/b t"),
    row("-v -T -t t s/a"),
    // What has no content, or none that ends.
    row("-av s/fifo t"),
    row("-rv s/fifo t/fresh"),
    row("-rxv s/d t"),
    row("--reflink=auto -v s/a t"),
    row("--reflink=never -rv s/d t"),
    row("--sparse=always -rv s/d t"),
    row("--sparse=never -av s/d t"),
    row("--sparse=auto -v s/a t"),
    row("--sparse=sometimes -v s/a t"),
];
