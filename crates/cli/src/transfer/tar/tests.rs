//! Archives of other programs are read, ours are read by them, and hostile ones end in an error that says where.

use super::header::{self, put_number, seal};
use super::{BLOCK, Writer, pax};
use crate::transfer::acl;
use crate::transfer::batch::{Batch, Body, Entry, Feed, Meta, Next, Record, Segment};
use myriad_engine::FileType;
use myriad_format::xattr::AttrIter;
use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;
use std::process::Command;

/// An entry as a test looks at it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    meta: Meta,
    xattrs: Vec<(String, Vec<u8>)>,
    /// Target of a symbolic or hard link.
    link: Option<Vec<u8>>,
    /// Content, holes as zeros, and how many bytes of it were data.
    content: Vec<u8>,
    stored: u64,
}

/// All entries by path, and all that went wrong.
fn read(archive: &[u8]) -> (BTreeMap<Vec<u8>, Seen>, Vec<String>) {
    let archive = archive.to_vec();
    let (slots, mut feed) = Feed::new();
    let mut outlet = slots.open().unwrap();
    drop(slots);
    feed.spawn(move || super::read(Cursor::new(archive), &mut outlet).unwrap());
    let (mut seen, mut errors) = (BTreeMap::new(), Vec::new());
    let mut last = Vec::new();
    loop {
        let batch = match feed.next() {
            Next::Batch(batch) => batch,
            Next::Waiting => continue,
            Next::End => break,
        };
        for record in &batch.records {
            match record {
                Record::Entry(entry) => {
                    last = batch.get(entry.path).to_vec();
                    let xattrs = AttrIter::new(batch.get(entry.xattrs)).map(Result::unwrap);
                    let mut new = Seen {
                        meta: entry.meta,
                        xattrs: xattrs
                            .map(|(name, value)| (String::from_utf8(name.into()).unwrap(), value.into()))
                            .collect(),
                        link: None,
                        content: Vec::new(),
                        stored: 0,
                    };
                    match &entry.body {
                        Body::None => {}
                        Body::Unread => panic!("all of an archive is read"),
                        Body::Symlink(link) | Body::HardLink(link) => new.link = Some(batch.get(*link).to_vec()),
                        Body::Whole(data) => {
                            new.content = batch.get(*data).to_vec();
                            new.stored = data.len() as u64;
                        }
                        Body::Parts(_) => new.content = vec![0; usize::try_from(entry.meta.size).unwrap().min(1 << 30)],
                    }
                    seen.insert(last.clone(), new);
                }
                Record::Data { offset, bytes } => {
                    let file: &mut Seen = seen.get_mut(&last).unwrap();
                    file.content[*offset as usize..][..bytes.len()].copy_from_slice(batch.get(*bytes));
                    file.stored += bytes.len() as u64;
                }
                Record::End => {}
                Record::Spoiled(problem) | Record::Changed(problem) | Record::Problem(problem) => {
                    errors.push(problem.error.to_string())
                }
                Record::Broken(error) => errors.push(error.to_string()),
            }
        }
        feed.recycle(batch);
    }
    feed.finish();
    (seen, errors)
}

/// Copies an archive through our writer.
fn rewrite(archive: &[u8]) -> Vec<u8> {
    let archive = archive.to_vec();
    let (slots, mut feed) = Feed::new();
    let mut outlet = slots.open().unwrap();
    drop(slots);
    feed.spawn(move || super::read(Cursor::new(archive), &mut outlet).unwrap());
    let mut writer = Writer::new(Vec::new());
    loop {
        match feed.next() {
            Next::Batch(batch) => {
                for record in &batch.records {
                    match record {
                        Record::Entry(entry) => writer.entry(&batch, entry, None).unwrap(),
                        Record::Data { bytes, .. } => writer.data(batch.get(*bytes)).unwrap(),
                        Record::End => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
            Next::Waiting => {}
            Next::End => return writer.finish().unwrap(),
        }
    }
}

/// Runs a shell script in a directory; `None` where a program it needs is missing.
fn shell(directory: &Path, script: &str) -> Option<Vec<u8>> {
    let output = Command::new("sh").args(["-ec", script]).current_dir(directory).output().unwrap();
    if output.status.code() == Some(127) {
        return None;
    }
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    Some(output.stdout)
}

/// A tree with everything that an archive can hold.
const TREE: &str = r#"
    mkdir -p tree/sub/empty; cd tree
    echo hello > plain; chmod 4751 plain; touch -d '2001-02-03 04:05:06.123456789' plain
    ln plain sub/second; ln -s ../plain sub/link; ln -s "$(printf '%0300d' 7)" sub/longlink
    mkfifo fifo
    truncate -s 5M holes; printf data | dd of=holes bs=1 seek=2000000 conv=notrunc 2>/dev/null
    truncate -s 300000 allhole
    head -c 700000 /dev/urandom > big
    : > nothing
    n=$(printf '%0200d' 1); mkdir -p $n/$n; echo deep > $n/$n/$n
    printf x > "$(printf 'caf\351')"; printf x > "$(printf 'a\nb')"
    touch -d '1960-01-01 00:00:00.5' old; touch -d '@99999999999' future 2>/dev/null || :
"#;

/// That the tree came whole.
fn check_tree(seen: &BTreeMap<Vec<u8>, Seen>, has_nanoseconds: bool) {
    let get = |path: &str| seen.get(path.as_bytes()).unwrap_or_else(|| panic!("no {path} in {:?}", seen.keys()));
    let plain = get("tree/plain");
    let (first, second) = match plain.link {
        None => (plain, get("tree/sub/second")),
        Some(_) => (get("tree/sub/second"), plain),
    };
    assert_eq!(first.content, b"hello\n");
    assert_eq!(first.meta.mode, 0o104751);
    assert!(second.link.as_ref().is_some_and(|link| link == b"tree/plain" || link == b"tree/sub/second"));
    assert_eq!(first.meta.mtime % 1_000_000_000, if has_nanoseconds { 123_456_789 } else { 0 });
    assert_eq!(get("tree/sub/link").link.as_deref(), Some(&b"../plain"[..]));
    assert_eq!(get("tree/sub/longlink").link.as_ref().map(Vec::len), Some(300));
    assert_eq!(get("tree/fifo").meta.file_type(), FileType::Fifo);
    assert!(get("tree/sub/empty").meta.file_type() == FileType::Directory);
    let holes = get("tree/holes");
    assert_eq!((holes.meta.size, &holes.content[2_000_000..2_000_004]), (5 << 20, &b"data"[..]));
    assert!(holes.stored < 100_000, "{} bytes stored", holes.stored);
    assert_eq!(holes.content.iter().filter(|&&byte| byte != 0).count(), 4);
    let allhole = get("tree/allhole");
    assert_eq!((allhole.meta.size, allhole.stored, allhole.content.len()), (300_000, 0, 300_000));
    assert_eq!((get("tree/big").stored, get("tree/nothing").meta.size), (700_000, 0));
    let name = format!("{:0200}", 1);
    assert_eq!(get(&format!("tree/{name}/{name}/{name}")).content, b"deep\n");
    assert!(seen.contains_key(&b"tree/caf\xe9"[..]) && seen.contains_key(&b"tree/a\nb"[..]));
    assert!(get("tree/old").meta.mtime < 0);
}

#[test]
fn archives_of_gnu_tar_are_read_in_all_formats_and_rewritten_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    shell(folder.path(), TREE).unwrap();
    for (options, has_nanoseconds) in [
        ("--format=pax --sparse", true),
        ("--format=pax --sparse --sparse-version=0.1", true),
        ("--format=pax --sparse --sparse-version=0.0", true),
        ("--format=gnu --sparse", false),
        ("--format=pax --sparse --sort=name", true),
    ] {
        let archive = shell(folder.path(), &format!("tar -cf - {options} tree")).unwrap();
        let (seen, errors) = read(&archive);
        assert_eq!(errors, [""; 0], "{options}");
        check_tree(&seen, has_nanoseconds);
        let (again, errors) = read(&rewrite(&archive));
        assert_eq!(errors, [""; 0], "{options}");
        assert_eq!(seen.len(), again.len());
        for (path, one) in &seen {
            assert!(Some(one) == again.get(path), "{options}: {}", path.escape_ascii());
        }
    }
}

#[test]
fn our_archives_are_read_by_gnu_tar_and_libarchive() {
    let folder = tempfile::tempdir().unwrap();
    shell(folder.path(), TREE).unwrap();
    let archive = shell(folder.path(), "tar -cf - --format=pax --sparse tree").unwrap();
    std::fs::write(folder.path().join("ours.tar"), rewrite(&archive)).unwrap();
    for program in ["tar --same-permissions", "bsdtar -p"] {
        let script =
            format!("rm -rf out; mkdir out; {program} -xf ours.tar -C out; diff -r --no-dereference tree out/tree");
        let Some(differences) = shell(folder.path(), &format!("rm -f tree/fifo; {script} || :")) else { continue };
        // `diff` cannot compare FIFOs, and tells so.
        let text = String::from_utf8_lossy(&differences).into_owned();
        assert!(text.lines().all(|line| line.contains("fifo")), "{program}: {text}");
        // Times before 1970 with a fraction are off by a second in libarchive: `old` is left out.
        let stat = "find . ! -type d ! -name fifo ! -name future ! -name old -printf '%P %m %s %n %y %T@ %l\\n' | sort";
        let ours = shell(&folder.path().join("out/tree"), stat).unwrap();
        let theirs = shell(&folder.path().join("tree"), stat).unwrap();
        assert!(ours == theirs, "{program}: {} | {}", ours.escape_ascii(), theirs.escape_ascii());
        let blocks = shell(folder.path(), "stat -c %b out/tree/holes").unwrap();
        let blocks: u64 = String::from_utf8(blocks).unwrap().trim().parse().unwrap();
        assert!(blocks < 1000, "{program} found no holes: {blocks} blocks");
    }
}

#[test]
fn attributes_and_acls_come_from_both_programs_and_go_back() {
    let folder = tempfile::tempdir().unwrap();
    let made = shell(
        folder.path(),
        "mkdir tree; echo x > tree/a; setfattr -n user.key -v 'a=b%' tree/a; setfacl -m u:1234:rw,g:7:r tree/a; \
         setfacl -d -m u:1234:rwx tree",
    );
    if made.is_none() {
        return;
    }
    for program in ["tar --format=pax --xattrs --xattrs-include='user.*' --acls", "bsdtar --format=pax --xattrs --acls"]
    {
        let Some(archive) = shell(folder.path(), &format!("{program} -cf - tree")) else { continue };
        for archive in [archive.clone(), rewrite(&archive)] {
            let (seen, errors) = read(&archive);
            assert_eq!(errors, [""; 0], "{program}");
            let find = |path: &str, name: &str| {
                let xattrs = &seen[path.as_bytes()].xattrs;
                xattrs
                    .iter()
                    .rfind(|(known, _)| known == name)
                    .unwrap_or_else(|| panic!("{program}: {xattrs:?}"))
                    .1
                    .clone()
            };
            assert_eq!(find("tree/a", "user.key"), b"a=b%");
            let acl = acl::text(&find("tree/a", "system.posix_acl_access")).unwrap();
            assert!(acl.contains("user:1234:rw-") && acl.contains("mask::rw-"), "{program}: {acl}");
            let acl = acl::text(&find("tree", "system.posix_acl_default")).unwrap();
            assert!(acl.contains("user:1234:rwx"), "{program}: {acl}");
        }
        std::fs::write(folder.path().join("ours.tar"), rewrite(&archive)).unwrap();
        let script = "rm -rf out; mkdir out; tar --xattrs --xattrs-include='*' --acls -xf ours.tar -C out; \
                      getfacl -nc out/tree/a; getfattr -n user.key out/tree/a";
        let output = String::from_utf8(shell(folder.path(), script).unwrap()).unwrap();
        assert!(output.contains("user:1234:rw-") && output.contains("a=b%"), "{program}: {output}");
    }
}

/// The name was taken to end at its first `=`.
#[test]
fn an_attribute_with_an_equals_sign_in_its_name_keeps_it() {
    let gnu = ("SCHILY.xattr.user.a%3Db%25", &b"c=d"[..]);
    let of_libarchive = ("LIBARCHIVE.xattr.user.a%3Db%25", &b"Yz1k"[..]);
    let archive = |records: &[(&str, &[u8])]| [&extended(records, &entry(b"x", b'0', 0))[..], &[0; 1024]].concat();
    let both = archive(&[gnu, of_libarchive]);
    // What GNU tar takes from ours.
    assert!(rewrite(&both).windows(gnu.0.len()).any(|part| part == gnu.0.as_bytes()));
    for archive in [archive(&[gnu]), archive(&[of_libarchive]), rewrite(&both), both] {
        let (seen, errors) = read(&archive);
        assert_eq!(errors, [""; 0]);
        assert_eq!(seen[&b"x"[..]].xattrs, [("user.a=b%".to_owned(), b"c=d".to_vec())]);
    }
}

/// An archive of our own was refused as hostile: each name has twice three bytes for one.
#[test]
fn the_longest_list_of_attributes_comes_back() {
    let mut list = Vec::new();
    for number in 0.. {
        let name = format!("user.{}{number:05}", "%".repeat(245));
        if list.len() + name.len() + 5 > myriad_format::xattr::LIST_MAX {
            break;
        }
        myriad_format::xattr::push(&mut list, name.as_bytes(), b"");
    }
    let (archive, _) = archive_of(&list, 0, b"");
    let (seen, errors) = read(&archive);
    assert_eq!(errors, [""; 0]);
    assert!(seen[&b"x"[..]].xattrs.len() > 4000);
}

/// A file that grew in front of the reader was a panic in the middle of a backup.
#[test]
fn more_content_than_was_said_is_an_error() {
    let (_, result) = archive_of(&[], 3, b"more");
    assert_eq!(result.unwrap_err().to_string(), "a file has more content than it said");
}

/// An archive of one file with these attributes, which said that it has so many bytes and has these.
fn archive_of(xattrs: &[u8], said: u64, content: &[u8]) -> (Vec<u8>, std::io::Result<()>) {
    let mut batch = Batch::default();
    let (path, xattrs) = (batch.add(b"x"), batch.add(xattrs));
    let mode = FileType::File.mode_bits() | 0o644;
    let meta = Meta { mode, uid: 0, gid: 0, rdev: 0, size: said, mtime: 0, atime: None };
    let body = Body::Parts(vec![Segment { offset: 0, length: said }]);
    let mut writer = Writer::new(Vec::new());
    writer.entry(&batch, &Entry { path, meta, xattrs, link: None, body }, None).unwrap();
    let result = writer.data(content);
    let finished = if result.is_ok() { writer.finish().unwrap() } else { Vec::new() };
    (finished, result)
}

#[test]
fn archives_of_the_oldest_kinds_are_read() {
    let folder = tempfile::tempdir().unwrap();
    shell(folder.path(), "mkdir -p d/e; echo x > d/f; ln d/f d/g; ln -s f d/l; touch -d @1000 d/f").unwrap();
    for format in ["v7", "ustar", "oldgnu"] {
        let archive = shell(folder.path(), &format!("tar -cf - --format={format} d")).unwrap();
        let (seen, errors) = read(&archive);
        assert_eq!(errors, [""; 0], "{format}");
        assert_eq!(seen.len(), 5, "{format}: {:?}", seen.keys());
        assert_eq!(seen[&b"d/e"[..]].meta.file_type(), FileType::Directory);
        assert_eq!(seen[&b"d/f"[..]].meta.mtime, 1_000_000_000_000);
    }
}

/// A header with a name, a type and a size, and no data.
fn entry(name: &[u8], kind: u8, size: u64) -> header::Block {
    let mut block = [0; BLOCK];
    block[..name.len()].copy_from_slice(name);
    for range in [header::MODE, header::UID, header::GID, header::MTIME] {
        put_number(&mut block[range], 0o644);
    }
    assert!(put_number(&mut block[header::SIZE], size));
    block[header::TYPE] = kind;
    block[header::MAGIC].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block
}

/// An extended header, and the entry it is about.
fn extended(records: &[(&str, &[u8])], file: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in records {
        pax::push(&mut bytes, key.as_bytes(), value);
    }
    let mut archive = entry(b"PaxHeaders/x", b'x', bytes.len() as u64).to_vec();
    archive.extend_from_slice(&bytes);
    archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    archive.extend_from_slice(file);
    archive
}

/// With a good file after it, and the end mark.
fn ended(bytes: &[u8]) -> Vec<u8> {
    [bytes, &entry(b"good", b'0', 3), &padded(b"yes"), &[0; 1024]].concat()
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut block = bytes.to_vec();
    block.resize(bytes.len().next_multiple_of(BLOCK), 0);
    block
}

#[test]
fn hostile_archives_end_in_errors_that_say_where() {
    let changed = |range: std::ops::Range<usize>, bytes: &[u8]| {
        let mut block = entry(b"f", b'0', 0);
        block[range.start..range.start + bytes.len()].copy_from_slice(bytes);
        seal(&mut block);
        block.to_vec()
    };
    let sparse = |map: &[u8], size: &[u8]| {
        extended(&[("GNU.sparse.map", map), ("GNU.sparse.size", size)], &entry(b"s", b'0', 0))
    };
    let in_data = |data: &[u8]| {
        let records: &[(&str, &[u8])] =
            &[("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"10")];
        [extended(records, &entry(b"s", b'0', data.len() as u64)), padded(data)].concat()
    };
    let good = entry(b"f", b'0', 0);
    // Name of the case, archive, what the error says, whether the file after it is still read.
    let cases: Vec<(&str, Vec<u8>, &str, bool)> = vec![
        ("empty", vec![], "is empty", false),
        ("text", vec![b'x'; 2000], "not a tar archive", false),
        ("short", vec![b'x'; 100], "is not a tar archive", false),
        ("up", ended(&entry(b"../up", b'0', 0)), "../up at byte 0: leads out", true),
        ("up inside", ended(&entry(b"a/../../up", b'0', 0)), "leads out", true),
        (
            "link up",
            ended(&{
                let mut block = entry(b"l", b'1', 0);
                block[header::LINK.start..][..9].copy_from_slice(b"../passwd");
                seal(&mut block);
                block
            }),
            "the name it links to leads out",
            true,
        ),
        ("empty name", ended(&entry(b"", b'0', 0)), "is empty", true),
        ("NUL in name", ended(&extended(&[("path", b"a\0b")], &good)), "holds a NUL", true),
        ("long component", ended(&extended(&[("path", &[b'n'; 256])], &good)), "more than 255", true),
        ("endless path", ended(&extended(&[("path", &b"a/".repeat(40_000))], &good)), "longer than 64 KiB", true),
        ("empty link", ended(&entry(b"l", b'2', 0)), "symbolic link", true),
        ("type", ended(&entry(b"t", b'!', 0)), "unknown type '!'", true),
        ("volume", ended(&entry(b"t", b'M', 0)), "another volume", true),
        (
            "checksum",
            ended(&{
                let mut block = good;
                block[0] ^= 1;
                [entry(b"first", b'0', 0), block].concat()
            }),
            "no header at byte 512",
            false,
        ),
        ("size text", ended(&changed(header::SIZE, b"zzz")), "header at byte 0 has a size", false),
        (
            "size negative",
            ended(&changed(header::SIZE, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")),
            "size",
            false,
        ),
        (
            "size huge",
            ended(&changed(header::SIZE, b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff")),
            "size|inside an entry",
            false,
        ),
        ("size pax", ended(&extended(&[("size", b"99999999999999999999")], &good)), "not a number", true),
        ("size pax big", ended(&extended(&[("size", b"9223372036854775807")], &good)), "size|inside an entry", false),
        ("cut data", entry(b"f", b'0', 1 << 30).to_vec(), "inside an entry", false),
        ("cut small", [&entry(b"f", b'0', 600)[..], &[1; 512]].concat(), "inside an entry", false),
        ("no end", good.to_vec(), "without its end mark", false),
        ("extended huge", entry(b"x", b'x', (8 << 30) - 1).to_vec(), "extended header of 8589934591 bytes", false),
        ("name huge", entry(b"x", b'L', 1 << 30).to_vec(), "extended header of", false),
        ("global huge", entry(b"x", b'g', 1 << 20).to_vec(), "extended header of", false),
        (
            "records",
            ended(&{
                let mut archive = entry(b"x", b'x', 9).to_vec();
                archive.extend_from_slice(&padded(b"99 path=a"));
                [archive, good.to_vec()].concat()
            }),
            "malformed extended",
            true,
        ),
        ("uid", ended(&extended(&[("uid", b"4294967295")], &good)), "user 4294967295", true),
        ("uid negative", ended(&changed(header::UID, b"\xff\xff\xff\xff\xff\xff\xff\xfe")), "user -2", true),
        ("mode", ended(&changed(header::MODE, b"99999999")), "mode in the header", true),
        ("time", ended(&extended(&[("mtime", b"soon")], &good)), "`soon` is not a time", true),
        ("xattr name", ended(&extended(&[("SCHILY.xattr.", b"x")], &good)), "extended attribute is empty", true),
        ("xattr value", ended(&extended(&[("SCHILY.xattr.user.x", &[0; 70_000])], &good)), "more than 64 KiB", true),
        ("xattr code", ended(&extended(&[("LIBARCHIVE.xattr.user.x", b"*")], &good)), "malformed value", true),
        ("acl", ended(&extended(&[("SCHILY.acl.access", b"user::rwq")], &good)), "ACL", true),
        ("map order", ended(&sparse(b"10,5,0,5", b"20")), "not in order", true),
        ("map overflow", ended(&sparse(b"18446744073709551615,2", b"20")), "not in order", true),
        ("map too far", ended(&sparse(b"0,0,30,0", b"20")), "does not fit|ok", true),
        ("map without data", ended(&sparse(b"0,10", b"20")), "does not fit", true),
        ("map of nothing", ended(&in_data(b"")), "does not end", true),
        ("map without end", ended(&in_data(&[b'1'; 512])), "not one", true),
        ("map of many", ended(&in_data(b"99999999\n")), "more than a million|does not end", true),
        ("map cut", ended(&in_data(&padded(b"5\n1\n"))), "not one|does not end", true),
        (
            "sparse directory",
            ended(&extended(&[("GNU.sparse.map", b"0,0"), ("GNU.sparse.size", b"1")], &entry(b"d", b'5', 0))),
            "holes in what",
            true,
        ),
        (
            "old map",
            ended(&{
                let mut block = entry(b"s", b'S', 0);
                block[386..398].copy_from_slice(b"77777777777\0");
                block[398..410].copy_from_slice(b"77777777777\0");
                seal(&mut block);
                block
            }),
            "does not fit",
            true,
        ),
        (
            "old map cut",
            {
                let mut block = entry(b"s", b'S', 0);
                block[482] = 1;
                seal(&mut block);
                block.to_vec()
            },
            "inside an entry",
            false,
        ),
    ];
    for (name, archive, expected, goes_on) in cases {
        let (seen, errors) = read(&archive);
        let is_told = |text: &str| expected.split('|').any(|part| text.contains(part) || part == "ok");
        assert!(
            errors.len() == 1 && is_told(&errors[0]) || expected.ends_with("|ok") && errors.is_empty(),
            "{name}: {errors:?}"
        );
        assert_eq!(seen.contains_key(&b"good"[..]), goes_on, "{name}: {errors:?}");
        assert!(seen.keys().all(|path| !path.starts_with(b"..") && !path.starts_with(b"/")), "{name}");
    }
}

#[test]
fn damage_anywhere_is_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    shell(folder.path(), "mkdir d; echo x > d/f; truncate -s 1M d/s; echo y >> d/s; ln d/f d/g; ln -s f d/l").unwrap();
    for options in ["--format=pax --sparse", "--format=gnu --sparse"] {
        let archive = shell(folder.path(), &format!("tar -cf - -b 1 {options} d")).unwrap();
        let mut state = 1_u64;
        for round in 0..3000 {
            let mut damaged = archive.clone();
            for _ in 0..=round % 4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % damaged.len();
                damaged[at] = (state >> 20) as u8;
                // Most damage would be stopped by the checksum: make it right again in half the cases.
                let block = at / BLOCK * BLOCK;
                if round % 2 == 0 && damaged[block + 257..block + 262] == *b"ustar" {
                    seal((&mut damaged[block..block + BLOCK]).try_into().unwrap());
                }
            }
            if round % 7 == 0 {
                damaged.truncate((state >> 40) as usize % archive.len());
            }
            read_only(&damaged);
        }
    }
}

/// Reads without keeping content, which damaged sizes may make huge.
fn read_only(archive: &[u8]) {
    let archive = archive.to_vec();
    let (slots, mut feed) = Feed::new();
    let mut outlet = slots.open().unwrap();
    drop(slots);
    feed.spawn(move || super::read(Cursor::new(archive), &mut outlet).unwrap());
    loop {
        match feed.next() {
            Next::Batch(batch) => feed.recycle(batch),
            Next::Waiting => {}
            Next::End => break,
        }
    }
    feed.finish();
}
