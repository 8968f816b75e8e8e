//! What may stand where something else was meant.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

pub struct Kind {
    pub operand: OsString,
    /// The file of the host that it leads to, which nothing may change: a volume, or what is left of one.
    pub precious: Option<&'static str>,
    /// What is read from it as a file of the host.
    pub content: Option<Vec<u8>>,
    /// Where content lands that goes to it.
    pub lands: Lands,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lands {
    /// Under its own name, or that of the file in it if it is a directory.
    There,
    /// Under another name.
    At(&'static str),
    /// At the other end of the pipe `fifo`.
    Pipe,
    Stdout,
    /// Nowhere: `/dev/null`.
    Nowhere,
}

/// What comes out of standard input and of the pipe.
pub const PIPED: &[u8] = b"what came through the pipe\n";

/// A name that no file system takes.
pub fn long_name() -> String {
    "x".repeat(300)
}

/// `hosts`: with a read-only file system of the host, and a full one.
pub fn all(hosts: bool) -> Vec<Kind> {
    let plain = |operand: &str| Kind { operand: operand.into(), precious: None, content: None, lands: Lands::There };
    let volume = |operand: &str, precious: &'static str| Kind { precious: Some(precious), ..plain(operand) };
    let content = |operand: &str, content: &[u8]| Kind { content: Some(content.to_vec()), ..plain(operand) };
    let mut kinds = vec![
        volume("w.img", "w.img"),
        volume("used.img", "used.img"),
        volume("read.img", "read.img"),
        volume("trunc.img", "trunc.img"),
        volume("damaged.img", "damaged.img"),
        volume("lost.img", "lost.img"),
        volume("full.img", "full.img"),
        volume("ext.img", "ext.img"),
        volume("log.dev", "log.dev"),
        volume("to-w", "w.img"),
        volume("to-used", "used.img"),
        volume("v.img:", "v.img"),
        volume("v.img:x", "v.img"),
        volume("w.img/x", "w.img"),
        Kind { content: Some(b"host\n".to_vec()), ..plain("h2.txt") },
        Kind { content: Some(b"host\n".to_vec()), lands: Lands::At("h2.txt"), ..plain("to-h2") },
        content("empty", b""),
        plain("dir"),
        plain("dir/"),
        plain("h2.txt/"),
        plain("none"),
        plain("none/"),
        plain("none/x"),
        plain("dangling"),
        plain("circle"),
        plain("sock"),
        plain(""),
        plain(":"),
        plain(":/"),
        plain("."),
        plain("/proc/self/mem"),
        plain(&long_name()),
        Kind { content: Some(PIPED.to_vec()), lands: Lands::Pipe, ..plain("fifo") },
        Kind { content: Some(PIPED.to_vec()), lands: Lands::Stdout, ..plain("-") },
        Kind { lands: Lands::Nowhere, ..content("/dev/stdin", PIPED) },
        Kind { lands: Lands::Stdout, ..plain("/dev/stdout") },
        Kind { content: Some(Vec::new()), lands: Lands::Nowhere, ..plain("/dev/null") },
        plain("/dev/full"),
        plain("v.img:/"),
        content("v.img:/f", b"file\n"),
        plain("v.img:/f/"),
        plain("v.img:/d"),
        plain("v.img:/none"),
        plain("v.img:/none/"),
        plain("v.img:/none/x"),
        Kind { content: Some(b"file\n".to_vec()), lands: Lands::At("v.img:/f"), ..plain("v.img:/link") },
        plain("v.img:/dangling"),
        plain("v.img:/fifo"),
        plain(&format!("v.img:/{}", long_name())),
        plain("used.img:/f"),
        plain("full.img:/x"),
        plain("trunc.img:/f"),
        plain("none.img:/f"),
        plain("dir:/f"),
        plain("h2.txt:/f"),
        plain("empty:/f"),
        plain(":/f"),
        Kind { lands: Lands::At("w.img:/f"), ..content("to-w:/f", b"file\n") },
    ];
    if hosts {
        kinds.extend([
            volume("ro/s.img", "ro/s.img"),
            volume("no-room/s.img", "no-room/s.img"),
            content("ro/h.txt", b"host\n"),
            plain("ro"),
            plain("ro/new"),
            plain("no-room"),
            plain("no-room/new"),
            content("ro/s.img:/f", b"file\n"),
            content("no-room/s.img:/f", b"file\n"),
            plain("ro/s.img:/new"),
            plain("no-room/s.img:/new"),
        ]);
    }
    kinds.push(Kind { operand: OsString::from_vec(b"caf\xe9".to_vec()), ..plain("") });
    kinds
}

/// How a message writes an operand, but for quotes around it.
pub fn shown(operand: &OsStr) -> String {
    match operand.as_bytes() {
        b"" => "''".into(),
        bytes => bytes.utf8_chunks().fold(String::new(), |mut shown, chunk| {
            shown += chunk.valid();
            chunk.invalid().iter().for_each(|byte| shown += &format!("\\{byte:03o}"));
            shown
        }),
    }
}
