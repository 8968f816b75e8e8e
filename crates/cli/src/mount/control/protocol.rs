//! What is said on the socket. Every message is one line: a JSON object with `myriad`, the version of the protocol.
//!
//!     {"myriad":1,"do":"status"}
//!     {"myriad":1,"ok":{"pid":4711,...}}
//!     {"myriad":1,"error":"..."}
//!
//! Bytes of a peer are never trusted: a line has a greatest length, and whatever is not a message is an error that says
//! what it is.

use crate::show::name::{hex, put};
use myriad_fuse::mounts::Entry;
use serde_json::{Map, Value, json};
use std::ffi::OsStr;
use std::io::{BufRead, Read};
use std::mem::discriminant;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const VERSION: u64 = 1;

/// Longest line that a daemon reads; requests are short.
pub const REQUEST_MAX: u64 = 4 << 10;
/// Longest line that a command reads.
pub const REPLY_MAX: u64 = 1 << 20;

/// In the answer to `Status`, beside what is in [`Status`]: whether the kernel still has the mount, as the daemon sees it.
pub const IS_MOUNTED: &str = "is_mounted";

/// The error of a daemon that has its greatest number of connections. It says so before it has read anything.
pub const CROWDED: &str = "too many commands ask at a time";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Who is there: `Status`.
    Status,
    /// Every counter of mount and volume.
    Stats,
    /// What `myriad info` shows.
    Info,
    /// Make everything durable.
    Sync,
    /// A line for each request of the kernel, until the connection ends.
    Log,
    /// A second reply once the volume is closed, or could not be.
    Watch,
    /// Look how the kernel has the mount since it was remounted.
    Remounted,
    /// Give free space back to the host: extents of at least so many bytes.
    Trim { minimum: u64 },
    /// Change options of the open volume, `NAME=VALUE` each, and say how all of them are then.
    Tune { settings: Vec<String> },
    /// Hold the state of the moment until the connection ends; before-images go to the file that comes with the request.
    Hold,
}

const NAMES: [(Request, &str); 10] = [
    (Request::Status, "status"),
    (Request::Stats, "stats"),
    (Request::Info, "info"),
    (Request::Sync, "sync"),
    (Request::Log, "log"),
    (Request::Watch, "watch"),
    (Request::Remounted, "remounted"),
    (Request::Trim { minimum: 0 }, "trim"),
    (Request::Tune { settings: Vec::new() }, "tune"),
    (Request::Hold, "hold"),
];

impl Request {
    pub fn line(self) -> String {
        let mut known = NAMES.into_iter();
        let is_this = |(known, _): &(Self, &str)| discriminant(known) == discriminant(&self);
        let (_, name) = known.find(is_this).expect("all are in the table");
        let mut request = json!({ "myriad": VERSION, "do": name });
        match self {
            Self::Trim { minimum } => request["minimum"] = minimum.into(),
            Self::Tune { settings } => request["settings"] = settings.into(),
            _ => {}
        }
        line(request)
    }

    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let object = object(line)?;
        let name = object.get("do").and_then(Value::as_str).ok_or("a request names what to do in `do`")?;
        let known = NAMES.into_iter().find(|(_, known)| *known == name).map(|(request, _)| request);
        match known.ok_or_else(|| format!("this daemon knows no request `{}`", name.escape_debug()))? {
            Self::Trim { .. } => {
                let minimum = object.get("minimum").and_then(Value::as_u64);
                Ok(Self::Trim { minimum: minimum.ok_or("a trim has the least length in `minimum`")? })
            }
            Self::Tune { .. } => {
                let settings = object.get("settings").and_then(Value::as_array);
                let settings =
                    settings.and_then(|texts| texts.iter().map(|text| Some(text.as_str()?.to_owned())).collect());
                Ok(Self::Tune { settings: settings.ok_or("a change of options has texts in `settings`")? })
            }
            request => Ok(request),
        }
    }
}

pub fn reply(result: Result<Value, String>) -> String {
    line(match result {
        Ok(value) => json!({ "myriad": VERSION, "ok": value }),
        Err(error) => json!({ "myriad": VERSION, "error": error }),
    })
}

/// The inner error is what the daemon says.
pub fn parse_reply(line: &[u8]) -> Result<Result<Value, String>, String> {
    let mut object = object(line)?;
    match (object.remove("ok"), object.remove("error")) {
        (Some(value), None) => Ok(Ok(value)),
        (None, Some(Value::String(error))) => Ok(Err(error)),
        _ => Err("neither an answer nor an error".into()),
    }
}

fn line(value: Value) -> String {
    format!("{value}\n")
}

fn object(line: &[u8]) -> Result<Map<String, Value>, String> {
    let value = serde_json::from_slice(line).map_err(|error| format!("not a line of JSON: {error}"))?;
    let Value::Object(object) = value else { return Err("not a JSON object".into()) };
    match object.get("myriad").map(Value::as_u64) {
        Some(Some(VERSION)) => Ok(object),
        Some(Some(version)) => Err(format!("version {version} of the protocol; this is version {VERSION}")),
        _ => Err("no version of the protocol in `myriad`".into()),
    }
}

/// Reads one line, without its end, of at most `max` bytes. An empty one is the end of the connection.
pub fn read_line(reader: &mut impl BufRead, max: u64) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    reader.take(max).read_until(b'\n', &mut line)?;
    match line.pop() {
        Some(b'\n') | None => Ok(line),
        Some(_) if line.len() as u64 + 1 == max => {
            Err(std::io::Error::new(std::io::ErrorKind::InvalidData, format!("a line of more than {max} bytes")))
        }
        Some(_) => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A daemon and what it has mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub pid: u32,
    pub image: PathBuf,
    /// Where in the image the volume begins.
    pub offset: u64,
    pub mount_point: PathBuf,
    /// Device number of the mount, `major:minor`: no other mount has it as long as this one is there.
    pub device: String,
    /// How the kernel names what is mounted.
    pub source: PathBuf,
    pub read_only: bool,
    /// Options by which the mount shows files otherwise than they are: `noxattr`, if some have attributes, `uid`, `gid` and `umask`.
    pub shows_otherwise: Vec<String>,
}

impl Status {
    /// Whether it is the daemon of this mount. One that is still closing its volume may have had the mount's number before.
    pub fn is_of(&self, mount: &Entry) -> bool {
        self.device == mount.device && self.source == mount.source
    }

    pub fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("pid".into(), self.pid.into());
        put(&mut object, "image", self.image.as_os_str().as_bytes());
        object.insert("offset".into(), self.offset.into());
        put(&mut object, "mount_point", self.mount_point.as_os_str().as_bytes());
        object.insert("device".into(), (&*self.device).into());
        put(&mut object, "source", self.source.as_os_str().as_bytes());
        object.insert("read_only".into(), self.read_only.into());
        object.insert("shows_otherwise".into(), self.shows_otherwise.clone().into());
        object.into()
    }

    /// `None` if it is not the status of a daemon.
    pub fn parse(value: &Value) -> Option<Self> {
        Some(Self {
            pid: value.get("pid")?.as_u64()?.try_into().ok()?,
            image: path(value, "image")?,
            offset: value.get("offset")?.as_u64()?,
            mount_point: path(value, "mount_point")?,
            device: value.get("device")?.as_str()?.to_owned(),
            source: path(value, "source")?,
            read_only: value.get("read_only")?.as_bool()?,
            // A daemon of an earlier build does not say so.
            shows_otherwise: value.get("shows_otherwise").map_or(Some(Vec::new()), texts)?,
        })
    }
}

fn texts(list: &Value) -> Option<Vec<String>> {
    list.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}

/// A path as `put` writes it.
fn path(value: &Value, key: &str) -> Option<PathBuf> {
    let text = value.get(key)?.as_str()?;
    let Some(digits) = value.get(format!("{key}_hex")) else { return Some(Path::new(OsStr::new(text)).into()) };
    let bytes: Option<Vec<u8>> = digits.as_str()?.as_bytes().chunks(2).map(byte).collect();
    Some(std::ffi::OsString::from_vec(bytes?).into())
}

fn byte(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok().filter(|byte| hex(&[*byte]).as_bytes() == digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_come_back_as_they_were() {
        let settings = vec!["label=a \"b\"\n".into(), "commit=1".into()];
        let further = [Request::Trim { minimum: u64::MAX }, Request::Tune { settings }];
        for request in NAMES.into_iter().map(|(request, _)| request).chain(further) {
            assert_eq!(Request::parse(request.clone().line().trim_end().as_bytes()), Ok(request));
        }
        for result in [Ok(json!({"a": 1})), Err("no\nnews".to_owned())] {
            let line = reply(result.clone());
            assert_eq!(line.matches('\n').count(), 1);
            assert_eq!(parse_reply(line.trim_end().as_bytes()), Ok(result));
        }
        for image in [&b"/a.img"[..], b"/caf\xe9"] {
            let status = Status {
                pid: 7,
                image: PathBuf::from(std::ffi::OsString::from_vec(image.into())),
                offset: 512,
                mount_point: "/mnt".into(),
                device: "0:45".into(),
                source: "/a.img".into(),
                read_only: true,
                shows_otherwise: vec!["umask".into()],
            };
            assert_eq!(Status::parse(&status.json()), Some(status));
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error() {
        for (line, said) in [
            (&b""[..], "not a line of JSON"),
            (b"\xff\xfe", "not a line of JSON"),
            (b"[1]", "not a JSON object"),
            (b"{}", "no version"),
            (b"{\"myriad\":\"1\"}", "no version"),
            (b"{\"myriad\":2,\"do\":\"status\"}", "version 2"),
            (b"{\"myriad\":1}", "names what to do"),
            (b"{\"myriad\":1,\"do\":7}", "names what to do"),
            (b"{\"myriad\":1,\"do\":\"trim\"}", "in `minimum`"),
            (b"{\"myriad\":1,\"do\":\"tune\"}", "in `settings`"),
            (b"{\"myriad\":1,\"do\":\"tune\",\"settings\":[1]}", "in `settings`"),
            (b"{\"myriad\":1,\"do\":\"for\\u0007mat\"}", "no request `for\\u{7}mat`"),
        ] {
            let error = Request::parse(line).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        // Deep nesting is refused by the parser, not by the stack.
        assert!(Request::parse(&[b'['; 4096]).unwrap_err().contains("recursion limit"));
        let valid = Request::Status.line().into_bytes();
        for index in 0..valid.len() {
            for byte in 0..=255 {
                let mut line = valid.clone();
                line[index] = byte;
                // Whatever it says; it comes back.
                let _ = Request::parse(&line);
                let _ = parse_reply(&line);
                let _ = Request::parse(&line[..index]);
            }
        }
    }

    #[test]
    fn lines_have_a_greatest_length() {
        let read = |bytes: &[u8], max| read_line(&mut &*bytes, max);
        assert_eq!(read(b"abc\nd", 4).unwrap(), b"abc");
        assert_eq!(read(b"", 4).unwrap(), b"");
        assert_eq!(read(b"abcd\n", 4).unwrap_err().to_string(), "a line of more than 4 bytes");
        assert_eq!(read(b"ab", 4).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_status_of_the_wrong_shape_is_none() {
        for value in [json!({}), json!({"pid": -1}), json!({"pid": 1, "image": "a", "offset": 0, "read_only": true})] {
            assert_eq!(Status::parse(&value), None);
        }
        let odd = json!({"pid": 1, "image": "a", "image_hex": "4", "offset": 0, "mount_point": "/",
                           "device": "0:1", "read_only": true});
        assert_eq!(Status::parse(&odd), None);
        let signed = json!({"pid": 1, "image": "a", "image_hex": "+4", "offset": 0, "mount_point": "/",
                           "device": "0:1", "read_only": true});
        assert_eq!(Status::parse(&signed), None);
    }
}
