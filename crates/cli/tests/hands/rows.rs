//! Every verb, with one operand missing: `@` where something is read or looked at, `#` where something is made or changed.

/// Where the content of a single file goes that a row copies, so that it can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// None is copied, or much else too.
    Other,
    /// Of the operand, to this place.
    To(&'static str),
    /// Of this file of the host, which goes to the operand.
    From(&'static str),
}

pub struct Row {
    pub line: &'static str,
    /// What a run that succeeds may change or remove of what is there, beside a plain file that it is to replace.
    pub may: &'static [&'static str],
    pub content: Content,
}

/// A run that fails may have done the rest of what it was to do.
pub const THE_REST: &str = "+";

const fn row(line: &'static str, may: &'static [&'static str]) -> Row {
    Row { line, may, content: Content::Other }
}

const fn copy(line: &'static str, may: &'static [&'static str], content: Content) -> Row {
    Row { line, may, content }
}

/// The first word is the verb.
pub const ROWS: &[Row] = &[
    copy("cp @ v.img:/new", &[], Content::To("v.img:/new")),
    copy("cp h.txt #", &["#"], Content::From("h.txt")),
    copy("cp @ out.txt", &[], Content::To("out.txt")),
    copy("cp @ v.img:/into/", &[], Content::Other),
    copy("cp h.txt #:/x", &[], Content::Other),
    copy("cp @:/f out.txt", &[], Content::Other),
    row("cp v.img:/f #", &["#"]),
    row("cp -r dir #", &[THE_REST]),
    row("cp -a v.img:/d #", &[THE_REST]),
    row("cp -r @ v.img:/new", &[THE_REST]),
    row("cp -a @ out", &[THE_REST]),
    row("cp -T h.txt #", &["#"]),
    row("cp -n h.txt #", &[]),
    row("cp @ #", &["#"]),
    row("cp h.txt dir/g #", &["#/h.txt", "#/g", THE_REST]),
    row("cp @ h.txt dir2", &[THE_REST]),
    row("cp -uv h.txt #", &["#"]),
    row("cp -f -t # h.txt", &["#/h.txt"]),
    row("cp -rL @ v.img:/new", &[THE_REST]),
    row("cp -P @ v.img:/new", &[]),
    row("cp -i h.txt #", &[]),
    row("mv @ v.img:/new", &["@"]),
    row("mv v.img:/f #", &["v.img:/f", "#"]),
    row("mv @:/f #:/new", &["@:/f"]),
    row("mv -n v.img:/f #", &["v.img:/f"]),
    row("mv --exchange v.img:/f #", &["v.img:/f", "#"]),
    row("rm #", &["#"]),
    row("rm -rf #", &["#"]),
    row("rm #:/f", &["#:/f"]),
    row("mkdir #", &[]),
    row("mkdir -p #", &[]),
    row("mkdir -p #:/new/more", &[]),
    row("ln @ v.img:/new", &["@"]),
    row("ln v.img:/f #", &["v.img:/f"]),
    row("ln -s v.img:/f #", &[]),
    row("ln -s x #:/new", &[]),
    row("ln -sfn x #", &["#"]),
    row("ln -f v.img:/f #", &["#"]),
    row("ln -sr @ v.img:/new", &[]),
    row("mv -t # v.img:/f", &["v.img:/f", "#"]),
    row("mv -b v.img:/f #", &["v.img:/f", "#"]),
    row("rm -rv #", &["#"]),
    row("rm -ri #", &[]),
    row("touch #", &["#"]),
    row("touch -r @ v.img:/new", &[]),
    row("chmod 700 #", &["#"]),
    row("chmod -R go= #", &["#"]),
    row("chmod --reference=@ v.img:/f", &["v.img:/f"]),
    row("chown 7 #", &["#"]),
    row("chown -R 7:8 #", &["#"]),
    row("chgrp 7 #", &["#"]),
    row("truncate -s 3 #", &["#"]),
    row("truncate -r @ v.img:/new", &[]),
    row("tee #", &["#", THE_REST]),
    row("tee -a #", &["#", THE_REST]),
    row("sync @", &[]),
    row("import @ v.img:/new", &[THE_REST]),
    row("import dir #", &["#/", THE_REST]),
    row("import dir #:/new", &[THE_REST]),
    row("import --replace dir #", &["#/", THE_REST]),
    row("import -n dir #", &[]),
    row("import --update --delete dir #:/d", &["#:/d", THE_REST]),
    row("import --update @ v.img:/d", &[THE_REST]),
    row("export -n v.img:/ #", &[]),
    row("export --update v.img:/d #", &["#/", THE_REST]),
    row("export @ out", &[THE_REST]),
    row("export @:/ out", &[THE_REST]),
    row("export v.img:/ #", &["#/", THE_REST]),
    row("export --replace v.img:/d #", &["#/", THE_REST]),
    row("export --tar v.img:/ #", &[]),
    row("export --tar --replace v.img:/ #", &["#"]),
    row("export --tar --skip-existing v.img:/ #", &[]),
    row("verify @ dir", &[]),
    row("verify v.img:/d @", &[]),
    row("ls @", &[]),
    row("ls --wait=0 @", &[]),
    row("ls -R @:/", &[]),
    row("cat @", &[]),
    row("cat @:/f", &[]),
    row("find @", &[]),
    row("du @", &[]),
    row("df @", &[]),
    row("stat @", &[]),
    row("tree @", &[]),
    row("readlink -f @", &[]),
    row("stats --once @", &[]),
    row("info @", &[]),
    row("trim #", &["#"]),
    row("tune #", &[]),
    row("tune # label=x", &["#"]),
    row("debug @ superblock", &[]),
    row("debug @ log", &[]),
    row("mkfs #", &["#"]),
    row("mkfs --size 4M #", &["#"]),
    row("mkfs --size 4M new.img --log-device #", &["#"]),
    row("fsck -n @", &[]),
    row("fsck -p #", &["#"]),
    row("fsck -y #", &["#"]),
    row("fsck -y ext.img --log-device #", &[]),
    row("fsck -y --new-log ext.img --log-device #", &[]),
    row("mount @ none-such", &[]),
    row("mount used.img @", &[]),
    row("umount @", &[]),
    row("bench dir # --entries 8 --runs 1 --lookups 8 --image-size 16M", &["#"]),
    row("bench dir sqlite:# --entries 8 --runs 1 --lookups 8", &["#"]),
    row("lab run folder --scale 0.001 --runs 1 --sparse --out #", &["#"]),
    row("lab run folder --scale 0.001 --runs 1 --sparse --target sqlite --folder @", &[]),
    row("completions @", &[]),
    row("man #", &["#/", THE_REST]),
];
