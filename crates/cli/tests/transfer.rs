//! `import`, `export`, `cp` and `verify`, from the command line to the volume and back.

use rustix::fs::{CWD, RenameFlags};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// A folder with an empty volume `v.img`.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        bench.myriad(&["mkfs", "--quiet", "--size", "256M", "v.img"], 0);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a verb, which must exit with `code`; everything it said.
    fn myriad(&self, arguments: &[&str], code: i32) -> String {
        let output = self.command(arguments).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        said
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_myriad"));
        command.args(arguments).current_dir(self.folder.path());
        command
    }

    fn shell(&self, script: &str) -> String {
        let script = format!("alias myriad='{}'\n{script}", env!("CARGO_BIN_EXE_myriad"));
        let output = Command::new("sh").args(["-ec", &script]).current_dir(self.folder.path()).output().unwrap();
        assert!(output.status.success(), "{script}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The volume is sound, whatever was done to it.
    fn check(&self) {
        self.myriad(&["fsck", "-n", "v.img"], 0);
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A tree with everything that this user can make.
const TREE: &str = r#"
    mkdir -p tree/sub/empty tree/many; cd tree
    echo hello > plain; ln plain sub/second; ln plain many/third; ln -s ../plain sub/link; ln -s nowhere dangling
    chmod 640 plain; chmod 1777 sub/empty; touch -d '2001-02-03 04:05:06.123456789' plain sub
    mkfifo fifo; : > nothing
    truncate -s 50M holes; printf data | dd of=holes bs=1 seek=20000000 conv=notrunc 2>/dev/null
    head -c 3000000 /dev/urandom > big
    printf x > "$(printf 'caf\351')"; printf x > "$(printf 'a\nb')"
    for i in $(seq 2000); do echo $i > many/$i; done
    setfattr -n user.key -v value plain 2>/dev/null || :
    setfacl -m u:1234:rw big 2>/dev/null || :
    setfacl -d -m u:1234:rwx sub 2>/dev/null || :
    touch -d '1999-09-09 09:09:09.9' many sub .
"#;

fn tree() -> Bench {
    let bench = Bench::new();
    bench.shell(TREE);
    if is_root() {
        bench.shell("mknod tree/device c 1 7; chown 1234:5678 tree/nothing; chmod 4755 tree/nothing");
    }
    bench
}

#[test]
fn a_directory_comes_back_as_it_went() {
    let bench = tree();
    bench.myriad(&["import", "tree", "v.img:/tree"], 0);
    assert!(bench.myriad(&["verify", "v.img:/tree", "tree"], 0).contains("no differences"));
    bench.check();
    bench.myriad(&["export", "v.img:/tree", "out"], 0);
    bench.myriad(&["verify", "v.img:/tree", "out"], 0);
    bench.shell("rm -f tree/fifo out/fifo tree/device out/device; diff -r --no-dereference tree out");
    let blocks = bench.shell("stat -c %b out/holes");
    assert!(blocks.trim().parse::<u64>().unwrap() < 1000, "the holes are filled: {blocks}");
    assert_eq!(bench.shell("stat -c %h out/plain").trim(), "3");
}

#[test]
fn archives_come_back_as_they_went() {
    let bench = tree();
    for (target, compressed) in
        [("a.tar", "cat"), ("a.tgz", "gzip -dc"), ("a.tar.zst", "zstd -dc"), ("a.tar.xz", "xz -dc")]
    {
        let program = compressed.split(' ').next().unwrap();
        if bench.shell(&format!("command -v {program} || :")).is_empty() {
            println!("skipped: {program} is missing");
            continue;
        }
        bench.shell("rm -f v.img; myriad mkfs -q --size 256M v.img");
        bench.myriad(&["import", "tree", "v.img:/tree"], 0);
        bench.myriad(&["export", "v.img:/tree", target], 0);
        bench.shell(&format!(
            "rm -rf out; mkdir out; {compressed} < {target} | tar -xp --xattrs --xattrs-include='*' --acls -C out"
        ));
        bench.myriad(&["verify", "v.img:/tree", "out"], 0);
        bench.myriad(&["import", target, "v.img:/again"], 0);
        bench.myriad(&["verify", "v.img:/again", "tree"], 0);
        bench.check();
    }
}

#[test]
fn a_pipe_carries_archives_both_ways() {
    let bench = tree();
    bench.shell(
        "tar -c --format=pax --sparse --xattrs --xattrs-include='*' --acls -C tree . | myriad import -q - v.img:/",
    );
    bench.myriad(&["verify", "v.img:/", "tree"], 0);
    bench.shell("mkdir out; myriad export -q v.img:/ - | tar -xp --xattrs --xattrs-include='*' --acls -C out");
    bench.myriad(&["verify", "v.img", "out"], 0);
    bench.check();
}

#[test]
fn verify_finds_every_kind_of_difference() {
    let changes: &[(&str, &str)] = &[
        ("echo jello > tree/plain", "plain: content: from byte 0"),
        ("printf x >> tree/big", "big: size"),
        ("chmod 600 tree/plain", "mode: 0640 in the volume, 0600 on the host"),
        ("touch -d @5 tree/nothing", "nothing: time"),
        ("rm tree/many/7", "many/7: only in the volume"),
        ("echo > tree/many/new", "many/new: only on the host"),
        ("ln -sf elsewhere tree/dangling", "dangling: target: nowhere in the volume, elsewhere on the host"),
        ("cp -p tree/plain p; mv p tree/many/third", "hard links"),
        ("rm tree/nothing; mkdir tree/nothing", "nothing: type: regular file in the volume, directory on the host"),
        (
            "printf X | dd of=tree/holes bs=1 seek=30000000 conv=notrunc 2>/dev/null",
            "holes: content: from byte 30000000",
        ),
    ];
    let bench = tree();
    bench.myriad(&["import", "-q", "tree", "v.img:/tree"], 0);
    for (change, expected) in changes {
        bench.shell("cp -a tree kept");
        bench.shell(change);
        let said = bench.myriad(&["verify", "--max", "1000", "v.img:/tree", "tree"], 1);
        assert!(said.contains(expected), "{change}: {said}");
        bench.shell("rm -rf tree; mv kept tree");
        bench.myriad(&["verify", "v.img:/tree", "tree"], 0);
    }
    let json = bench.myriad(&["verify", "-q", "--json", "v.img:/tree", "tree"], 0);
    let summary: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(summary["differences"], 0);
}

#[test]
fn what_is_there_stays_unless_told_otherwise() {
    let bench = Bench::new();
    bench.shell(
        "mkdir -p one/d two/d; echo old > one/d/f; echo kept > one/d/k; echo new > two/d/f; echo more > two/d/m
         touch -d @1000000 one/d/f",
    );
    bench.myriad(&["import", "one", "v.img:/x"], 0);
    let said = bench.myriad(&["import", "two", "v.img:/x"], 1);
    assert!(said.contains("v.img:/x/d/f: is there already; give --update, --replace or --skip-existing"), "{said}");
    let contents = |expected: &str| {
        let said = bench.shell("myriad cat v.img:/x/d/f v.img:/x/d/k v.img:/x/d/m");
        assert_eq!(said, expected);
    };
    contents("old\nkept\nmore\n");
    let json: serde_json::Value =
        serde_json::from_str(&bench.myriad(&["import", "-q", "--json", "--skip-existing", "two", "v.img:/x"], 0))
            .unwrap();
    assert_eq!([&json["errors"], &json["skipped"], &json["differing"]], [0, 2, 1]);
    contents("old\nkept\nmore\n");
    // Such as a copy that was cut short.
    let said = bench.myriad(&["import", "--skip-existing", "two", "v.img:/x"], 0);
    assert!(said.contains("2 there already, 1 of them unlike the source in type, size or time (first "), "{said}");
    let said = bench.myriad(&["import", "--skip-existing", "one", "v.img:/x"], 0);
    assert!(said.contains("2 there already") && !said.contains("unlike"), "{said}");
    // An archive may name a directory after what is in it: an old one was opened to others, and a new one is to get its mode all the same.
    bench.shell(
        "mkdir -p late/d late/n; touch late/d/g late/n/g late/z; chmod 777 late/d; chmod 750 late/n; myriad chmod 700 v.img:/x/d
         tar -C late --no-recursion -cf late.tar d/g n/g d n",
    );
    bench.myriad(&["import", "--skip-existing", "late.tar", "v.img:/x"], 0);
    assert_eq!(bench.shell("myriad stat -c %a v.img:/x/d v.img:/x/n"), "700\n750\n");
    bench.myriad(&["import", "--replace", "two", "v.img:/x"], 0);
    contents("new\nkept\nmore\n");
    assert!(!bench.shell("myriad find v.img:/").contains(".myriad-new"));
    // A file never takes the place of a directory, nor the other way round.
    bench.shell("mkdir three four; echo > three/d; mkdir four/d; mkdir four/d/f");
    assert!(bench.myriad(&["import", "--replace", "three", "v.img:/x"], 1).contains("is a directory"));
    assert!(bench.myriad(&["import", "--replace", "four", "v.img:/x"], 1).contains("is not a directory"));
    contents("new\nkept\nmore\n");
    bench.check();
}

#[test]
fn an_archive_stays_below_its_target() {
    let bench = Bench::new();
    bench.shell(
        "mkdir -p a/b; echo evil > evil; ln -s / a/root; mkdir a/sub; echo fine > a/sub/fine
         tar -cPf up.tar a/../evil ../$(basename $PWD)/evil
         tar -cf link.tar a/root; tar -rf link.tar --transform 's,evil,a/root/evil,' evil
         tar -rf link.tar a/sub",
    );
    bench.myriad(&["mkdir", "v.img:/in"], 0);
    let said = bench.myriad(&["import", "up.tar", "v.img:/in"], 1);
    assert!(said.contains("leads out of the target"), "{said}");
    let said = bench.myriad(&["import", "link.tar", "v.img:/in"], 1);
    assert!(said.contains("is there, and is not a directory"), "{said}");
    assert_eq!(bench.shell("myriad cat v.img:/in/a/sub/fine"), "fine\n");
    assert!(!bench.shell("myriad find v.img:/").contains("evil"));
    bench.check();
}

#[test]
fn archives_in_any_order_give_the_same_tree() {
    let bench = Bench::new();
    // A file before its directory, the directory again later, a file in it after that; and a hard link across.
    bench.shell(
        "mkdir -p t/d/e t/z; echo 1 > t/d/e/1; echo 2 > t/d/2; ln t/d/2 t/z/two
         touch -d @1000000 t/d/e/1 t/d/e; touch -d @2000000 t/d/2 t/d; touch -d @3000000 t/z; touch -d @4000000 t
         cd t; tar --format=pax --no-recursion -cf ../t.tar d/e/1 z d d/e . d/2 z/two",
    );
    bench.myriad(&["import", "t.tar", "v.img:/t"], 0);
    bench.myriad(&["verify", "v.img:/t", "t"], 0);
    bench.check();
}

#[test]
fn cp_goes_in_every_direction() {
    let bench = tree();
    bench.myriad(&["mkfs", "-q", "--size", "256M", "w.img"], 0);
    bench.myriad(&["cp", "-a", "tree", "v.img:/"], 0);
    bench.myriad(&["verify", "v.img:/tree", "tree"], 0);
    bench.myriad(&["cp", "-a", "v.img:/tree", "w.img:/copy"], 0);
    bench.myriad(&["verify", "w.img:/copy", "tree"], 0);
    bench.myriad(&["cp", "-a", "v.img:/tree", "v.img:/inside"], 0);
    bench.myriad(&["verify", "v.img:/inside", "tree"], 0);
    bench.myriad(&["cp", "-a", "w.img:/copy", "out"], 0);
    bench.myriad(&["verify", "v.img:/tree", "out"], 0);
    bench.check();
    bench.myriad(&["fsck", "-n", "w.img"], 0);

    bench.myriad(&["cp", "tree/plain", "v.img:/new"], 0);
    bench.myriad(&["cp", "v.img:/new", "v.img:/tree/sub/link", "w.img:/"], 0);
    assert_eq!(bench.shell("myriad cat w.img:/new w.img:/link"), "hello\nhello\n");
    bench.shell("echo other > other; myriad cp other v.img:/new; myriad cp -n tree/plain v.img:/new 2>/dev/null");
    assert_eq!(bench.shell("myriad cat v.img:/new"), "other\n");
    bench.myriad(&["cp", "v.img:/new", "back"], 0);
    assert_eq!(fs::read(bench.path("back")).unwrap(), b"other\n");

    for (arguments, expected) in [
        (&["cp", "tree", "v.img:/"][..], "is a directory; copy it with -r"),
        (&["cp", "-r", "v.img:/tree", "v.img:/tree/sub"], "one inside the other"),
        (&["cp", "v.img:/new", "v.img:/new"], "the same file"),
        (&["cp", "missing", "v.img:/"], "missing: No such file"),
        (&["cp", "v.img:/missing", "."], "v.img:/missing: No such file"),
    ] {
        let said = bench.myriad(arguments, 1);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    bench.myriad(&["cp", "tree/plain", "tree/big", "v.img:/new"], 2);
    bench.check();
}

#[test]
fn broken_archives_are_told_by_offset_and_leave_a_sound_volume() {
    let bench = tree();
    bench.shell(
        "tar -cf whole.tar tree; head -c 1000000 whole.tar > cut.tar; gzip -c whole.tar | head -c 100000 > cut.tgz",
    );
    let said = bench.myriad(&["import", "cut.tar", "v.img:/cut"], 1);
    assert!(said.contains("ends at byte 1000000, inside an entry"), "{said}");
    assert!(said.contains("importing stopped after"), "{said}");
    let said = bench.myriad(&["import", "cut.tgz", "v.img:/gz"], 1);
    assert!(said.contains("archive: reading at byte") || said.contains("inside an entry"), "{said}");
    let said = bench.myriad(&["import", "tree/big", "v.img:/big"], 1);
    assert!(said.contains("is not a tar archive"), "{said}");
    bench.check();
}

#[test]
fn an_interrupted_import_leaves_a_sound_volume_and_says_how_far_it_came() {
    let bench = tree();
    bench.shell("mkdir old; echo kept > old/f; myriad import -q old v.img:/tree; mkfifo pipe; tar -cf whole.tar tree");
    // The archive stops in the middle, but the pipe stays open: the import waits.
    let import = bench.command(&["import", "pipe", "v.img:/"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = fs::OpenOptions::new().write(true).open(bench.path("pipe")).unwrap();
    let archive = fs::read(bench.path("whole.tar")).unwrap();
    std::io::Write::write_all(&mut pipe, &archive[..archive.len() / 2]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let pid = rustix::process::Pid::from_child(&import);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = import.wait_with_output();
    drop(pipe);
    let output = output.unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted") && said.contains("imported"), "{said}");
    assert_eq!(bench.shell("myriad cat v.img:/tree/f"), "kept\n");
    bench.check();
    // What is missing comes with the second run.
    bench.myriad(&["import", "--skip-existing", "whole.tar", "v.img:/"], 0);
    bench.myriad(&["rm", "v.img:/tree/f"], 0);
    bench.myriad(&["verify", "--ignore", "mode,time,xattrs", "v.img:/tree", "tree"], 0);
}

/// Does `disturb` over and over in another thread, as long as `work` takes.
fn meanwhile<T>(disturb: impl Fn() + Sync, work: impl FnOnce() -> T) -> T {
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also if the work panics, for the other thread is waited for.
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                disturb();
            }
        });
        work()
    })
}

fn while_names_change_hands<T>(a: &Path, b: &Path, work: impl FnOnce() -> T) -> T {
    let exchange = || rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
    meanwhile(exchange, work)
}

/// Attributes came from a look at the name, content from what the name led to the moment after.
#[test]
fn content_and_attributes_are_one_files() {
    let bench = Bench::new();
    bench.shell("mkdir t; echo mine >t/a; echo secret >t/b; chmod 600 t/b");
    let (a, b) = (bench.path("t/a"), bench.path("t/b"));
    while_names_change_hands(&a, &b, || {
        for round in 0..60 {
            let into = format!("v.img:/{round}");
            bench.command(&["import", "-q", "t", &into]).output().unwrap();
        }
    });
    for round in 0..60 {
        for name in ["a", "b"] {
            let file = format!("v.img:/{round}/{name}");
            // What changed hands all the time may have been told of and left out.
            let cat = bench.command(&["cat", &file]).output().unwrap();
            if cat.status.success() {
                let listed = bench.myriad(&["ls", "-l", &file], 0);
                assert_eq!(cat.stdout == b"secret\n", listed.starts_with("-rw-------"), "{file}: {listed}");
            }
        }
    }
    bench.check();
}

/// A name that was another file's the next moment had claimed the first one: its other name came without content, and the file
/// was not imported at all.
#[test]
fn a_file_of_two_names_is_imported_though_one_of_them_changes_hands() {
    let bench = Bench::new();
    bench.shell("mkdir t; echo two >t/a; ln t/a t/z; echo one >t/b");
    let (a, b) = (bench.path("t/a"), bench.path("t/b"));
    let said: Vec<_> = while_names_change_hands(&a, &b, || {
        let imports = (0..60).map(|round| bench.command(&["import", "-q", "t", &format!("v.img:/{round}")]).output());
        imports.map(|output| said(&output.unwrap())).collect()
    });
    // A name that changed hands twice meanwhile may have been told of and left out.
    assert!(said.iter().all(|said| !said.contains("under the first of its names")), "{said:?}");
    for round in 0..60 {
        assert_eq!(bench.myriad(&["cat", &format!("v.img:/{round}/z")], 0), "two\n");
    }
    bench.check();
}

/// A file that was written to while it was read became a mixture, and nobody said so.
#[test]
fn files_that_change_while_they_are_read_are_told() {
    let bench = Bench::new();
    bench.shell("mkdir t; head -c 20000000 /dev/urandom >t/large; echo still >t/still");
    let file = fs::OpenOptions::new().write(true).open(bench.path("t/large")).unwrap();
    let write = || file.write_all_at(b"new", 10_000_000).unwrap();
    let output = meanwhile(write, || bench.command(&["import", "t", "v.img:/t"]).output().unwrap());
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("t/large: changed while it was read") && !said.contains("t/still"), "{said}");
    bench.myriad(&["import", "--replace", "t", "v.img:/t"], 0);
    bench.myriad(&["verify", "v.img:/t", "t"], 0);
    bench.check();
}

/// The name of a single file was told twice over, and that a file had changed was told of those too that were left as they were.
#[test]
fn files_that_change_are_told_by_their_path_and_only_if_they_are_taken() {
    let bench = Bench::new();
    bench.shell("mkdir t; head -c 20000000 /dev/urandom >t/log; myriad import -q t v.img:/old");
    let file = fs::OpenOptions::new().write(true).open(bench.path("t/log")).unwrap();
    let lines = [
        &["cp", "t/log", "v.img:/log"][..],
        &["cp", "-n", "t/log", "v.img:/old/log"],
        &["import", "--skip-existing", "t", "v.img:/old"],
    ];
    let write = || file.write_all_at(b"new", 10_000_000).unwrap();
    let [taken, left, skipped] = meanwhile(write, || lines.map(|line| said(&bench.command(line).output().unwrap())));
    assert!(taken.contains(": t/log: changed while it was read"), "{taken}");
    assert!(!left.contains("changed while"), "{left}");
    assert!(!skipped.contains("changed while"), "{skipped}");
    bench.check();
}

#[test]
fn a_full_volume_ends_the_import_and_stays_sound() {
    let bench = Bench::new();
    bench.shell("myriad mkfs -q --force --size 32M v.img; mkdir t; for i in 1 2 3 4 5 6; do head -c 8000000 /dev/urandom > t/$i; done");
    let said = bench.myriad(&["import", "t", "v.img:/t"], 1);
    assert!(said.contains("No space left"), "{said}");
    bench.check();
}

#[test]
fn exports_replace_nothing_unless_told() {
    let bench = Bench::new();
    bench.shell("mkdir t; echo new > t/f; myriad import -q t v.img:/t; echo old > a.tar; mkdir out; echo old > out/f");
    assert!(bench.myriad(&["export", "v.img:/t", "a.tar"], 1).contains("is there already"));
    assert!(bench.myriad(&["export", "v.img:/t", "out"], 1).contains("is there already"));
    assert_eq!(bench.shell("cat a.tar out/f"), "old\nold\n");
    bench.myriad(&["export", "--replace", "v.img:/t", "out"], 0);
    bench.myriad(&["export", "--replace", "v.img:/t", "a.tar"], 0);
    assert_eq!(bench.shell("cat out/f; tar -xOf a.tar f"), "new\nnew\n");
    // A link in the way is not followed.
    bench.shell("mkdir -p evil; rm -rf out; mkdir out; mkdir t/d; echo x > t/d/x; myriad import -q --replace t v.img:/t; ln -s ../evil out/d");
    assert!(bench.myriad(&["export", "v.img:/t", "out"], 1).contains("is not a directory"));
    assert!(fs::read_dir(bench.path("evil")).unwrap().next().is_none());
}

#[test]
fn files_nobody_may_read_are_counted() {
    if is_root() {
        return;
    }
    let bench = Bench::new();
    bench.shell("mkdir -p t/d; echo > t/f; echo > t/d/g; chmod 0 t/f t/d");
    assert!(bench.myriad(&["import", "t", "v.img:/t"], 1).contains("Permission denied"));
    let json = bench.myriad(&["import", "-q", "--json", "--skip-unreadable", "t", "v.img:/u"], 0);
    let summary: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(summary["unreadable"], 2);
    bench.myriad(&["verify", "--skip-unreadable", "v.img:/u", "t"], 0);
    bench.shell("chmod 700 t/f t/d");
}

/// A write that ran out of space half-way was taken for a whole one: the copy was cut short, and nobody said so.
#[test]
fn a_full_volume_takes_whole_files_or_says_so() {
    let bench = Bench { folder: tempfile::tempdir().unwrap() };
    bench.myriad(&["mkfs", "--quiet", "--size", "16M", "v.img"], 0);
    let said = |output: String, name: &str| {
        let expected = format!("v.img:/{name}: No space left on device: ");
        assert!(output.contains(&expected) && output.contains("are left in the volume; remove files"), "{output}");
    };
    fs::write(bench.path("large"), vec![7; 20 << 20]).unwrap();
    said(bench.myriad(&["cp", "large", "v.img:/large"], 1), "large");
    assert_eq!(bench.myriad(&["ls", "v.img"], 0), "");
    fs::create_dir(bench.path("many")).unwrap();
    for number in 100..200 {
        fs::write(bench.path(&format!("many/{number}")), vec![7; 201 << 10]).unwrap();
    }
    let output = bench.myriad(&["cp", "-r", "many", "v.img:/many"], 1);
    said(output.clone(), &output[output.find("many/").unwrap()..][..8]);
    let sizes = bench.myriad(&["find", "v.img:/many", "-type", "f", "--json"], 0);
    assert!(sizes.lines().count() > 20, "{sizes}");
    for line in sizes.lines() {
        assert!(line.contains("\"size\":205824"), "{line}");
    }
    bench.check();
}

/// The worker left the file in the middle, and what had been compared until then counted as all.
#[test]
fn an_interrupted_verify_finds_nothing_to_be_the_same() {
    let bench = Bench::new();
    bench.shell("mkdir t; truncate -s 1T t/huge; myriad import -q t v.img:/t");
    let verify = bench.command(&["verify", "v.img:/t", "t"]).stderr(Stdio::piped()).spawn().unwrap();
    // Until it has the file open, which takes long to compare.
    let files = || fs::read_dir(format!("/proc/{}/fd", verify.id())).unwrap();
    let is_open = |file: fs::DirEntry| fs::read_link(file.path()).is_ok_and(|path| path.ends_with("t/huge"));
    while !files().any(|file| is_open(file.unwrap())) {
        std::thread::yield_now();
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&verify), rustix::process::Signal::INT).unwrap();
    let output = verify.wait_with_output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted") && !said.contains("compared"), "{said}");
}

/// The second of two files of one name took the place of the first.
#[test]
fn one_cp_does_not_replace_what_it_made() {
    let bench = Bench::new();
    bench.shell("mkdir a b out; echo 1 > a/x; echo 2 > b/x; mkdir a/d b/d; echo 1 > a/d/f; echo 2 > b/d/f");
    bench.myriad(&["mkdir", "v.img:/in"], 0);
    for (target, second) in [("v.img:/in", "v.img:/in/x"), ("out", "out/x")] {
        let said = bench.myriad(&["cp", "a/x", "b/x", target], 1);
        let expected = format!("b/x: will not replace {second}, which was just made from a/x");
        assert!(said.contains(&expected), "{said}");
        bench.myriad(&["cp", "-r", "a/d", "b/d", target], 1);
        // Another run may.
        bench.myriad(&["cp", "a/x", target], 0);
    }
    assert_eq!(bench.shell("myriad cat v.img:/in/x v.img:/in/d/f; cat out/x out/d/f"), "1\n1\n1\n1\n");
    bench.myriad(&["cp", "b/x", "v.img:/in"], 0);
    assert_eq!(bench.shell("myriad cat v.img:/in/x"), "2\n");
}

/// The rest of the file came as zeros, then the end mark: whoever reads the pipe took it for a whole archive.
#[test]
fn an_interrupted_archive_is_not_a_whole_one() {
    let bench = Bench::new();
    bench.shell("mkdir t; head -c 60000000 /dev/urandom > t/f; myriad import -q t v.img:/t");
    for compression in ["none", "gzip", "zstd"] {
        let arguments = ["export", "--compress", compression, "v.img:/t", "-"];
        let mut export = bench.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut pipe = export.stdout.take().unwrap();
        let mut archive = vec![0; 4 << 10];
        std::io::Read::read_exact(&mut pipe, &mut archive).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&export), rustix::process::Signal::INT).unwrap();
        std::io::Read::read_to_end(&mut pipe, &mut archive).unwrap();
        let output = export.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", said(&output));
        assert!(archive.len() < 50_000_000, "{compression}: the rest was made up");
        assert!(!archive.ends_with(&[0; 1024]), "{compression}: it has an end mark");
        fs::write(bench.path("cut"), &archive).unwrap();
        let said = bench.myriad(&["import", "cut", "v.img:/cut"], 1);
        assert!(said.contains("archive: "), "{compression}: {said}");
        let unpack = match compression {
            "none" => "tar -xOf cut",
            "gzip" => "gzip -t cut",
            _ => "zstd -qt cut",
        };
        bench.shell(&format!("if {unpack} > rest 2>&1; then exit 1; fi"));
    }
}

/// A header of zeros was the end of the archive, and nobody said that more came after it.
#[test]
fn what_follows_the_end_of_an_archive_is_told() {
    let bench = Bench::new();
    bench.shell(
        "mkdir t; echo 1 > t/1; echo 2 > t/2; echo 3 > t/3; cd t; tar -b 1 -cf ../whole.tar 1 2 3; cd ..
         cp whole.tar zeroed.tar; dd if=/dev/zero of=zeroed.tar bs=512 seek=2 count=1 conv=notrunc 2>/dev/null
         cat whole.tar whole.tar > twice.tar; head -c 3584 whole.tar > short.tar",
    );
    let said = bench.myriad(&["import", "zeroed.tar", "v.img:/zeroed"], 1);
    assert!(said.contains("archive: a lone block of zeros at byte 1024, and data after it"), "{said}");
    assert_eq!(bench.shell("myriad cat v.img:/zeroed/1"), "1\n");
    let said = bench.myriad(&["import", "twice.tar", "v.img:/twice"], 1);
    assert!(said.contains("archive: has data after its end, which is at byte 3072"), "{said}");
    for archive in ["whole.tar", "short.tar"] {
        bench.myriad(&["import", archive, &format!("v.img:/{archive}")], 0);
    }
}

/// A hard link of an archive became a further name of whatever was at the name of its first one, where that was not taken.
#[test]
fn a_hard_link_of_an_archive_is_none_to_another_file() {
    let bench = Bench::new();
    bench.shell(
        "mkdir hl one; echo NEWER > hl/a; ln hl/a hl/b; ln hl/a hl/c; tar -cf hl.tar -C hl a b c; echo OLD > one/a
         touch -d @1000000 one/a; printf NEWER > one/large; truncate -s 1M one/large; ln one/large one/link
         tar -cf cut.tar -C one large link",
    );
    for (number, (options, code, said)) in [
        ("--exclude=a", 1, "is a further name of a, which is left out"),
        ("--skip-existing", 1, "another file has the first of its names"),
        ("", 1, "could not be had under the first of its names"),
        ("--replace", 0, ""),
    ]
    .into_iter()
    .enumerate()
    {
        let target = format!("v.img:/{number}");
        bench.myriad(&["import", "-q", "--exclude=l*", "one", &target], 0);
        let mut words = vec!["import", "hl.tar", &target];
        words.extend(Some(options).filter(|option| !option.is_empty()));
        let found = bench.myriad(&words, code);
        assert!(found.contains(said), "{options}: {found}");
        let files = bench.shell(&format!("myriad ls {target}; myriad cat {target}/a"));
        let expected = if code == 0 { "a\nb\nc\nNEWER\n" } else { "a\nOLD\n" };
        assert_eq!(files, expected, "{options}");
    }
    // One that was brought before is the file itself.
    let said = bench.myriad(&["import", "--skip-existing", "hl.tar", "v.img:/3"], 0);
    assert!(said.contains("3 there already"), "{said}");
    bench.shell("myriad rm v.img:/3/b; myriad import -q --skip-existing hl.tar v.img:/3");
    assert_eq!(bench.shell("myriad stat -c %h v.img:/3/b"), "3\n");
    bench.check();
}

/// As above, of a first name whose entry made no sense: the sink never hears of it.
#[test]
fn a_hard_link_to_an_entry_that_is_refused_is_none_to_another_file() {
    let bench = Bench::new();
    bench.shell("mkdir hl; echo NEWER > hl/a; ln hl/a hl/b; tar -b 1 -cf hl.tar -C hl a b; echo OLD > old");
    let mut archive = fs::read(bench.path("hl.tar")).unwrap();
    // Of a type that nobody knows; the sum of the header's bytes is in octal digits.
    archive[156] = b'Z';
    archive[148..156].fill(b' ');
    let sum: u32 = archive[..512].iter().map(|&byte| u32::from(byte)).sum();
    archive[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    fs::write(bench.path("hl.tar"), &archive).unwrap();
    bench.shell("myriad mkdir v.img:/t; myriad cp old v.img:/t/a");
    let said = bench.myriad(&["import", "hl.tar", "v.img:/t"], 1);
    assert!(said.contains("is of the unknown type") && said.contains("is a further name of a, which"), "{said}");
    assert_eq!(bench.shell("myriad ls v.img:/t"), "a\n");
}

/// The pipe was opened before anybody looked for signals, and opening it waits for somebody to write to it.
#[test]
fn an_import_that_waits_for_a_pipe_can_be_interrupted() {
    let bench = Bench::new();
    bench.shell("mkfifo pipe");
    let mut import = bench.command(&["import", "pipe", "v.img:/x"]).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    rustix::process::kill_process(rustix::process::Pid::from_child(&import), rustix::process::Signal::INT).unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while import.try_wait().unwrap().is_none() {
        if std::time::Instant::now() > end {
            import.kill().unwrap();
            import.wait().unwrap();
            panic!("it still waits");
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let output = import.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    bench.check();
    // One that somebody writes to is read, and one that may not be is named.
    bench.shell("mkdir t; echo x > t/f; tar -cf t.tar t; cat t.tar > pipe & myriad import -q pipe v.img:/x; wait");
    assert_eq!(bench.shell("myriad cat v.img:/x/t/f"), "x\n");
}

/// The error of a directory that was left was told of the next file, which was not made.
#[test]
fn a_directory_that_cannot_be_finished_costs_no_other_file() {
    use std::os::unix::process::CommandExt;
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    bench.shell(
        "mkdir -p t/a t/b; echo 1 > t/a/f; echo 2 > t/b/f; chmod 755 . t t/a; chmod 700 t/b; myriad import -q t v.img:/t
         mkdir -p out/a; chmod 777 out out/a; chmod 666 v.img",
    );
    // The checkout may lie where other users may not go.
    bench.shell(concat!("cp ", env!("CARGO_BIN_EXE_myriad"), " program; chmod 755 program"));
    let mut command = Command::new(bench.path("program"));
    command.args(["export", "v.img:/t", "out"]).current_dir(bench.path(""));
    // Nobody may write there, but only what nobody makes is nobody's own.
    let output = command.uid(65534).gid(65534).output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("out/a: ") && !said.contains("out/b"), "{said}");
    assert_eq!(bench.shell("cat out/a/f out/b/f; stat -c %a out/b"), "1\n2\n700\n");
}

/// The image was read while it was written, and grew by itself.
#[test]
fn an_image_is_not_imported_into_itself() {
    let bench = Bench::new();
    bench.shell("mkdir t; echo 1 > t/f; ln v.img t/image");
    for source in ["t", "."] {
        let said = bench.myriad(&["import", source, "v.img:/in"], 1);
        assert!(said.contains("is the image that it would be imported into"), "{said}");
    }
    let found = bench.shell("myriad find v.img:/in; myriad cat v.img:/in/f v.img:/in/t/f");
    assert!(found.ends_with("1\n1\n") && !found.contains("image") && !found.contains("/v.img"), "{found}");
    bench.check();
}

/// Nobody heard of data that the host could not write any more, and a replacement could be empty after a power cut.
#[test]
fn an_export_is_durable() {
    let bench = Bench::new();
    bench.shell("mkdir t; echo 1 > t/small; head -c 1000000 /dev/urandom > t/large; myriad import -q t v.img:/t");
    let is_traced =
        Command::new("strace").args(["-o", "/dev/null", "true"]).status().is_ok_and(|status| status.success());
    if !is_traced {
        return;
    }
    let calls = |options: &str| {
        let script = format!(
            "strace -f -o calls -e trace=fsync,syncfs,renameat {} export -q {options} v.img:/t out
             grep -o 'fsync(\\|syncfs(\\|renameat(' calls || :",
            env!("CARGO_BIN_EXE_myriad")
        );
        bench.shell(&script)
    };
    let new = calls("");
    assert_eq!(new, "syncfs(\n", "one for all new files");
    let replaced = calls("--replace");
    assert_eq!(replaced, "fsync(\nrenameat(\nfsync(\nrenameat(\nsyncfs(\n");
}

/// The second name became a link to whatever had the first one's name.
#[test]
fn a_second_name_is_no_link_to_another_file() {
    let bench = Bench::new();
    // Files come before directories, so `a` is the first name.
    bench.shell("mkdir -p old t/d; echo old > old/a; myriad import -q old v.img:/t; echo new > t/a; ln t/a t/d/b");
    bench.shell("touch -d @1000000 t/a; cp -a t u");
    let said = bench.myriad(&["import", "--skip-existing", "t", "v.img:/t"], 1);
    assert!(said.contains("d/b: another file has the first of its names"), "{said}");
    assert_eq!(bench.shell("myriad cat v.img:/t/a; myriad find v.img:/t/d -name b"), "old\n");
    // What an earlier run has made gets its further names.
    bench.shell("rm u/d/b; myriad import -q u v.img:/u; ln u/a u/d/b");
    bench.myriad(&["import", "--skip-existing", "u", "v.img:/u"], 0);
    bench.myriad(&["verify", "--ignore", "time", "v.img:/u", "u"], 0);
}

/// A backup that was for its owner's eyes became everybody's to read, and root's.
#[test]
fn an_archive_keeps_the_rights_of_the_one_that_it_replaces() {
    let bench = Bench::new();
    bench.shell("umask 022; mkdir t; echo new > t/f; myriad import -q t v.img:/t");
    let mut owner = rustix::process::geteuid().as_raw();
    for name in ["a.tar", "a.tar.zst"] {
        bench.shell(&format!("umask 022; echo old > {name}; ln -s {name} link-{name}"));
        if is_root() {
            owner = 1234;
            bench.shell(&format!("chown {owner}:5678 {name}"));
        }
        let look = || bench.shell(&format!("stat -c '%a %u' {name}")).trim().to_owned();
        for (mode, target) in [("600", name.to_owned()), ("640", format!("link-{name}")), ("755", name.to_owned())] {
            bench.shell(&format!("chmod {mode} {name}"));
            bench.myriad(&["export", "--replace", "v.img:/t", &target], 0);
            assert_eq!(look(), format!("{mode} {owner}"), "{target}");
            assert!(bench.path(&format!("link-{name}")).is_symlink());
        }
        assert_eq!(bench.shell("ls | grep myriad-new || :"), "", "nothing is left beside it");
        bench.shell(&format!("umask 022; rm {name}; myriad export -q v.img:/t {name}"));
        assert!(look().starts_with("644 "), "a new one has the mode of any new file");
    }
}

/// Those of /proc, among others, say that they have no content, and were copied without.
#[test]
fn files_without_a_size_are_copied_with_their_content() {
    let bench = Bench::new();
    let expected = fs::read("/proc/version").unwrap();
    assert_eq!(fs::metadata("/proc/version").unwrap().len(), 0);
    let cat = |path: &str| bench.command(&["cat", path]).output().unwrap().stdout;
    for (line, path) in [
        ("cp /proc/version v.img:/plain", "v.img:/plain"),
        ("cp -a /proc/version v.img:/all", "v.img:/all"),
        ("cp -r /proc/sys/kernel/random v.img:/tree", ""),
        ("cp /proc/version -", ""),
    ] {
        let arguments: Vec<&str> = line.split(' ').collect();
        let said = bench.myriad(&arguments, 0);
        match path {
            "" => assert!(!line.ends_with('-') || said.as_bytes() == expected, "{said}"),
            path => assert!(cat(path) == expected, "{line}"),
        }
    }
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(cat("v.img:/tree/boot_id") == boot);
    bench.myriad(&["import", "-q", "/proc/sys/kernel/random", "v.img:/imported"], 0);
    assert!(cat("v.img:/imported/boot_id") == boot);
    let mode = |path: &str| bench.shell(&format!("myriad stat -c %a {path}"));
    assert_eq!((mode("v.img:/all"), mode("v.img:/imported/boot_id")), ("444\n".into(), "444\n".into()));
    // Larger than what is asked for at a time.
    if let Ok(large) = fs::read("/proc/kallsyms") {
        bench.myriad(&["cp", "-p", "/proc/kallsyms", "v.img:/large"], 0);
        assert!(cat("v.img:/large") == large);
    }
    bench.shell(": > nothing; myriad cp -a nothing v.img:/nothing");
    assert_eq!(bench.shell("myriad stat -c %s v.img:/nothing"), "0\n");
    bench.check();
}
