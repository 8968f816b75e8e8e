//! The API as the standard library's users meet it: paths of any kind, files as streams, errors as `io::Error`.

use myriad_engine::{AsPath, Cred, Errno, Error, File, Fs, MountOptions, OpenOptions, Session, SetAttr};
use std::borrow::Cow;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[path = "../examples/walk.rs"]
#[allow(dead_code, reason = "its main is for the command line")]
mod walk;

fn session() -> Session {
    Fs::in_memory(64 << 20).unwrap().session(Cred::root())
}

fn file(session: &Session, name: &str, content: &[u8]) -> File {
    session.write(name, content).unwrap();
    session.open(name, OpenOptions::READ_WRITE).unwrap()
}

fn rest(file: &mut File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_path_is_anything_that_names_a_file() {
    let session = session();
    session.write("d\u{fc}", "here").unwrap();
    let bytes = "d\u{fc}".as_bytes();
    let not_text = OsStr::from_bytes(b"\xff");
    session.write(not_text, "there").unwrap();
    fn read(session: &Session, path: &(impl AsPath + ?Sized)) -> Vec<u8> {
        session.read(path).unwrap()
    }
    for content in [
        read(&session, "d\u{fc}"),
        read(&session, &String::from("d\u{fc}")),
        read(&session, bytes),
        read(&session, &bytes.to_vec()),
        read(&session, b"d\xc3\xbc"),
        read(&session, Path::new("d\u{fc}")),
        read(&session, &PathBuf::from("/d\u{fc}")),
        read(&session, OsStr::new("d\u{fc}")),
        read(&session, &OsString::from("d\u{fc}")),
        read(&session, &Cow::Borrowed("d\u{fc}")),
        read(&session, &&"d\u{fc}"),
    ] {
        assert_eq!(content, b"here");
    }
    assert_eq!(session.read(Path::new(not_text)).unwrap(), b"there");
    assert_eq!(session.read(b"\xff").unwrap(), b"there");
}

#[test]
fn a_handle_reads_and_writes_from_its_own_position() {
    let session = session();
    let mut first = file(&session, "f", b"0123456789");
    let mut second = session.open("f", OpenOptions::READ).unwrap();
    let mut four = [0; 4];
    first.read_exact(&mut four).unwrap();
    assert_eq!(&four, b"0123");
    first.write_all(b"ab").unwrap();
    assert_eq!(first.stream_position().unwrap(), 6);
    // Neither another handle's position nor what is read and written elsewhere moves it.
    assert_eq!(rest(&mut second), "0123ab6789");
    first.read_at(&mut four, 0).unwrap();
    first.write_at(b"X", 0).unwrap();
    assert_eq!(rest(&mut first), "6789");
    assert_eq!(first.read(&mut four).unwrap(), 0);
    assert_eq!(second.seek(SeekFrom::End(-3)).unwrap(), 7);
    assert_eq!(second.seek(SeekFrom::Current(-6)).unwrap(), 1);
    assert_eq!(rest(&mut second), "123ab6789");
}

#[test]
fn seeking_past_the_end_leaves_a_hole_and_before_the_start_is_refused() {
    let session = session();
    let mut file = file(&session, "f", b"abc");
    assert_eq!(file.seek(SeekFrom::End(5)).unwrap(), 8);
    file.write_all(b"d").unwrap();
    assert_eq!(session.read("f").unwrap(), b"abc\0\0\0\0\0d");
    for target in [SeekFrom::Current(-10), SeekFrom::End(-10), SeekFrom::Start(1 << 63), SeekFrom::End(i64::MAX)] {
        let error = file.seek(target).unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::InvalidInput, Some(Errno::INVAL.raw_os_error())));
    }
    assert_eq!(file.stream_position().unwrap(), 9);
}

#[test]
fn what_is_opened_to_append_writes_at_the_end() {
    let session = session();
    session.write("log", "one ").unwrap();
    let mut log = session.open("log", OpenOptions { append: true, ..OpenOptions::READ }).unwrap();
    session.open("log", OpenOptions::READ_WRITE).unwrap().write_at(b"two ", 4).unwrap();
    log.write_all(b"three").unwrap();
    assert_eq!(log.stream_position().unwrap(), 13);
    log.rewind().unwrap();
    assert_eq!(rest(&mut log), "one two three");
}

/// Through references, as of `std::fs::File`: each thread takes what follows, and none of it is read twice.
#[test]
fn threads_may_share_a_handle() {
    let session = session();
    let content: Vec<u8> = (0..40_000_u32).flat_map(u32::to_le_bytes).collect();
    let file = file(&session, "f", &content);
    let mut words: Vec<[u8; 4]> = std::thread::scope(|scope| {
        let read = || {
            let (mut words, mut word) = (Vec::new(), [0; 4]);
            while (&file).read(&mut word).unwrap() == 4 {
                words.push(word);
            }
            words
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(read)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    words.sort_by_key(|word| u32::from_le_bytes(*word));
    assert!(words.concat() == content);
}

#[test]
fn what_is_made_for_any_file_takes_ours() {
    let session = session();
    let mut host = tempfile::tempfile().unwrap();
    host.write_all(&[b'x'; 300_000]).unwrap();
    host.rewind().unwrap();
    let mut target = session.open("copy", OpenOptions { read: true, ..OpenOptions::CREATE }).unwrap();
    assert_eq!(io::copy(&mut host, &mut target).unwrap(), 300_000);
    target.rewind().unwrap();
    assert_eq!(BufReader::new(&target).bytes().filter(|byte| *byte.as_ref().unwrap() == b'x').count(), 300_000);
    // `FileExt` of Unix.
    let mut piece = [0; 10];
    target.read_exact_at(&mut piece, 299_990).unwrap();
    assert_eq!(target.read_exact_at(&mut piece, 299_991).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    target.write_all_at(b"yy", 299_999).unwrap();
    assert_eq!(target.stat().unwrap().size, 300_001);
}

#[test]
fn whole_files_in_one_call() {
    let session = session();
    let long: Vec<u8> = (0..5_000_000_u32).map(|i| (i % 251) as u8).collect();
    session.write("f", &long).unwrap();
    assert!(session.read("f").unwrap() == long);
    session.write("f", "short").unwrap();
    assert_eq!(session.read_to_string("f").unwrap(), "short");
    assert_eq!(session.stat("f").unwrap().mode & 0o777, 0o644);
    session.write("f", "").unwrap();
    assert_eq!(session.read("f").unwrap(), b"");
    session.write("f", b"\xff").unwrap();
    assert_eq!(session.read_to_string("f").unwrap_err().errno(), Errno::ILSEQ);
    assert_eq!(session.read("missing").unwrap_err().errno(), Errno::NOENT);
    assert_eq!(session.read("/").unwrap_err().errno(), Errno::ISDIR);
    assert_eq!(session.write("/", "").unwrap_err().errno(), Errno::ISDIR);
}

/// A full volume is told of, whatever part of the content it took.
#[test]
fn what_does_not_fit_is_an_error() {
    let session = Fs::in_memory(8 << 20).unwrap().session(Cred::root());
    let content = vec![1; 16 << 20];
    let mut file = session.open("g", OpenOptions::CREATE).unwrap();
    assert_eq!(session.write("f", &content).unwrap_err().errno(), Errno::NOSPC);
    assert_eq!(file.write_all(&content).unwrap_err().raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
}

#[test]
fn directories_with_all_above_them() {
    let session = session();
    for path in ["a/b/c", "a/b/c", "/x//y/", "a/./d/e", "a/b/../f/g", "/"] {
        session.create_dir_all(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(session.stat(path).unwrap().is_dir(), "{path}");
    }
    session.write("a/file", "").unwrap();
    for (path, errno) in [("a/file", Errno::EXIST), ("a/file/b/c", Errno::NOTDIR), ("", Errno::NOENT)] {
        assert_eq!(session.create_dir_all(path).unwrap_err().errno(), errno, "{path}");
    }
    session.symlink(b"nowhere", "dangling").unwrap();
    assert_eq!(session.create_dir_all("dangling/b").unwrap_err().errno(), Errno::NOENT);
    session.symlink(b"a", "link").unwrap();
    session.create_dir_all("link/h/i").unwrap();
    assert!(session.exists("a/h/i").unwrap());
}

/// A directory that was there was refused where nothing can be made, though nothing had to be.
#[test]
fn directories_that_are_there_are_found_on_a_full_volume() {
    let session = session();
    session.create_dir_all("a/b").unwrap();
    let _ = session.write("fill", vec![1; 64 << 20]);
    let full = (0..).find_map(|i| session.create(&format!("n{i}"), 0o644).err()).unwrap();
    assert_eq!(full.errno(), Errno::NOSPC);
    session.create_dir_all("a/b").unwrap();
    assert!(session.create_dir_all("a/c").is_err());
}

/// With a slash behind it, a file was removed, and of a link to a directory the link.
#[test]
fn a_tree_is_removed_by_a_path_that_names_it() {
    let session = session();
    session.create_dir_all("d/x").unwrap();
    session.symlink(b"d", "link").unwrap();
    session.write("file", "precious").unwrap();
    for path in ["file/", "link/"] {
        assert_eq!(session.remove_tree(path, &mut |_| true).unwrap_err().errno(), Errno::NOTDIR, "{path}");
    }
    assert_eq!(session.read("file").unwrap(), b"precious");
    assert!(session.lstat("link").is_ok());
    assert_eq!(session.remove_tree("d/", &mut |_| true).unwrap(), 2);
}

/// A write that was refused, because it began past the largest size, had taken the set-id bits away.
#[test]
fn a_write_that_is_refused_leaves_set_id_bits() {
    let session = session();
    session.set_attr("/", SetAttr { mode: Some(0o777), ..SetAttr::default() }).unwrap();
    let user = session.fs().session(Cred { uid: 1000, gid: 1000, ..Cred::root() });
    let file =
        user.open("file", OpenOptions { write: true, create: true, mode: 0o6755, ..OpenOptions::default() }).unwrap();
    assert_eq!(file.write_at(b"x", i64::MAX as u64).unwrap_err().errno(), Errno::FBIG);
    assert_eq!(user.stat("file").unwrap().mode & 0o7777, 0o6755);
    file.write_at(b"x", 0).unwrap();
    assert_eq!(user.stat("file").unwrap().mode & 0o7777, 0o755);
}

/// Who says which attributes are wanted may use the volume.
#[test]
fn what_is_wanted_is_asked_outside_of_the_volume() {
    let session = session();
    session.write("file", "content").unwrap();
    let entries = session.read_dir_at(session.root(), 0, 100).unwrap();
    let stats = session.stat_entries(session.root(), &entries, |_| session.fs().sync().is_ok());
    assert!(stats[0].as_ref().is_some_and(|stat| stat.size == 7));
}

#[test]
fn exists_tells_no_from_unknown() {
    let fs = Fs::in_memory(64 << 20).unwrap();
    let root = fs.session(Cred::root());
    root.mkdir("closed", 0o700).unwrap();
    root.write("closed/file", "").unwrap();
    root.symlink(b"nowhere", "dangling").unwrap();
    for (path, there) in [("closed/file", true), ("dangling", false), ("closed/file/x", false), ("no/where", false)] {
        assert_eq!(root.exists(path).unwrap(), there, "{path}");
    }
    let other = fs.session(Cred { uid: 1, gid: 1, groups: Vec::new(), umask: 0 });
    assert_eq!(other.exists("closed/file").unwrap_err().errno(), Errno::ACCESS);
}

#[test]
fn errors_become_those_of_the_standard_library() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("missing.img");
    let error = Fs::open(&image, MountOptions::default()).err().unwrap();
    assert_eq!(error.errno(), Errno::NOENT);
    let error = io::Error::from(error);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().starts_with(image.to_str().unwrap()), "{error}");
    assert!(error.get_ref().unwrap().downcast_ref::<Error>().is_some());
    let error = Fs::open(directory.path(), MountOptions::default()).err().unwrap();
    assert_eq!(io::Error::from(error).kind(), ErrorKind::InvalidInput);
    // What a system call would have said is said as it would have been.
    let error = io::Error::from(session().read("missing").unwrap_err());
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::NotFound, Some(Errno::NOENT.raw_os_error())));
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    let error = io::Error::from(Fs::open(&image, MountOptions::default()).err().unwrap());
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::InvalidInput, "not a Myriad volume".to_owned()));
    let device = Error::io("read", 7, io::Error::from(ErrorKind::StorageFull));
    let error = io::Error::from(device);
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(error.source().is_some() && error.to_string().contains("read at byte 7"), "{error}");
    let host = Error::host("random numbers", io::Error::other("none are left"));
    assert_eq!(host.to_string(), "random numbers: none are left", "at no byte of the device");
}

/// Each handle says what it was opened for.
#[test]
fn streams_keep_to_what_the_file_was_opened_for() {
    let session = session();
    let mut file = session.open("f", OpenOptions::CREATE).unwrap();
    assert_eq!(file.read(&mut [0]).unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()));
    let mut file = session.open("f", OpenOptions::READ).unwrap();
    assert_eq!(file.write(b"x").unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()));
}

#[test]
fn the_example_lists_a_volume() {
    let session = session();
    session.create_dir_all("a/b").unwrap();
    session.write("a/b/file", "12345").unwrap();
    session.symlink(b"b/file", "a/link").unwrap();
    let mut out = Vec::new();
    walk::list(&session, Path::new("a"), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text, "       5  b/file\n2 directories, 1 file, 1 other; 5 bytes\n");
}
