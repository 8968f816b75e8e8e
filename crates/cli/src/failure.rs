//! Errors as the user reads them: `PLACE: what; next step`, and the kind that decides the exit code.

use crate::interrupt::Interrupted;
use crate::show::name::Shown;
use crate::volume::wait;
use myriad_device::{Holder, OpenError};
use myriad_engine::{Errno, Error};
use serde_json::{Value, json};
use std::fmt::{self, Display};
use std::io;
use std::path::Path;

/// What an error means for the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Error,
    /// The command line asks for what makes no sense.
    Usage,
    /// By this signal.
    Interrupted(u8),
    /// The reader of standard output went away.
    Pipe,
}

impl Kind {
    /// What JSON calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Usage => "usage",
            Self::Interrupted(_) => "interrupted",
            Self::Pipe => "pipe",
        }
    }
}

/// An error with all that the message needs. Where there is no useful next step, `next` is empty.
#[derive(Debug)]
pub struct Failure {
    kind: Kind,
    place: String,
    what: String,
    next: String,
}

impl Failure {
    /// Something at `place` that cannot be done.
    pub fn new(place: impl Display, what: impl Into<String>, next: impl Into<String>) -> Self {
        Self { kind: Kind::Error, place: place.to_string(), what: what.into(), next: next.into() }
    }

    /// A command line that makes no sense.
    pub fn usage(place: impl Display, what: impl Into<String>, next: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, ..Self::new(place, what, next) }
    }

    /// Two operands of one run that would get the same name: the second one would destroy the first.
    pub fn just_made(source: impl Display, target: impl Display, first: impl Display) -> Self {
        let what = format!("will not replace {target}, which was just made from {first}");
        Self::new(source, what, "give it another name, or a run of its own")
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.what)?;
        if !self.next.is_empty() {
            write!(f, "; {}", self.next)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// An error that the user has been told of already, about another operand. It counts, but is not told again.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ToldBefore(pub String);

/// What ended the work on a volume, and what then kept it from being closed.
#[derive(Debug, thiserror::Error)]
#[error("{work:#}")]
pub struct NotClosed {
    pub work: anyhow::Error,
    pub closing: anyhow::Error,
}

/// How work on a volume went, once it was closed. What keeps a volume from being closed is told whatever came of the work; it takes the place of
/// an interruption, which says that all was closed.
pub fn and_closed<T>(work: anyhow::Result<T>, closed: anyhow::Result<()>) -> anyhow::Result<T> {
    match (work, closed) {
        (Ok(done), closed) => closed.map(|()| done),
        (Err(work), Ok(())) => Err(work),
        // Who waited for it was told to stop.
        (Err(work), Err(closing)) if matches!(kind(&closing), Kind::Interrupted(_)) => Err(work),
        (Err(work), Err(closing)) if matches!(kind(&work), Kind::Interrupted(_) | Kind::Pipe) => Err(closing),
        (Err(work), Err(closing)) if format!("{work:#}") == format!("{closing:#}") => Err(work),
        (Err(work), Err(closing)) => Err(NotClosed { work, closing }.into()),
    }
}

/// An error as programs read it: `{"error": {"place", "what", "next", "kind"}}`, each a string and there even if empty.
pub fn json(error: &anyhow::Error) -> Value {
    let said: Vec<String> = error.chain().map(ToString::to_string).collect();
    let failure = error.chain().enumerate().find_map(|(at, cause)| Some((at, failure_of(cause)?)));
    let (place, what, next) = match failure {
        // What stands before it says where, as its own place does.
        Some((at, failure)) => {
            let places = said[..at].iter().map(String::as_str).chain([failure.place.as_str()]);
            let places: Vec<&str> = places.filter(|place| !place.is_empty()).collect();
            (places.join(": "), failure.what.clone(), failure.next.clone())
        }
        None => (String::new(), said.join(": "), String::new()),
    };
    json!({ "error": { "place": place, "what": what, "next": next, "kind": kind(error).name() } })
}

/// The parts of a message; an error of the host may carry them.
fn failure_of<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a Failure> {
    let carried = || cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref();
    cause.downcast_ref().or_else(carried)
}

/// The exit kind of any error on its way out of `main`.
pub fn kind(error: &anyhow::Error) -> Kind {
    for cause in error.chain() {
        if let Some(both) = cause.downcast_ref::<NotClosed>() {
            return kind(&both.work);
        }
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return failure.kind;
        }
        if let Some(Interrupted(signal)) = cause.downcast_ref() {
            return Kind::Interrupted(*signal);
        }
        if cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            return Kind::Pipe;
        }
    }
    Kind::Error
}

/// Says where an error happened, in the words of this module.
pub trait At<T> {
    fn at(self, place: impl Display) -> anyhow::Result<T>;
}

impl<T> At<T> for myriad_engine::Result<T> {
    fn at(self, place: impl Display) -> anyhow::Result<T> {
        self.map_err(|error| explain(error, place.to_string()))
    }
}

impl<T> At<T> for io::Result<T> {
    fn at(self, place: impl Display) -> anyhow::Result<T> {
        self.map_err(|error| Failure::new(place, host_error(&error), host_next(&error)).into())
    }
}

/// An error of opening a device, which names it itself: the log's device has a name of its own.
pub fn of_open(error: OpenError) -> anyhow::Error {
    match error {
        OpenError::InUse(in_use) => {
            let next = match &in_use.holder {
                Some(Holder::Mount { .. }) => "unmount it first",
                Some(Holder::Loop { .. }) => "end what uses that, or detach it with losetup -d",
                _ => "wait until it is done with the volume, or unmount it",
            };
            let text = in_use.to_string();
            let what = text.strip_prefix(&format!("{}: ", in_use.path.display())).unwrap_or(&text).to_owned();
            Failure::new(image_name(&in_use.path), what, next).into()
        }
        OpenError::Unsuitable { path, reason } => {
            Failure::new(image_name(&path), reason, "give an image file or a block device").into()
        }
        OpenError::Io { path, source, .. } => {
            let next = missing_next(&path, &source).unwrap_or_else(|| host_next(&source).into());
            Failure::new(image_name(&path), host_error(&source), next).into()
        }
    }
}

fn explain(error: Error, place: String) -> anyhow::Error {
    let (what, next) = match error {
        // Nothing that opens a volume gives it to this module: `volume::device` knows more of it.
        Error::Open(open) => return of_open(*open),
        Error::Cancelled => return Interrupted::latest().into(),
        Error::Refused(Errno::NOENT) if has_wildcards(place.as_bytes()) => (errno_text(Errno::NOENT), PATTERN_NEXT),
        Error::Refused(Errno::NOTDIR) if place.ends_with('/') => (errno_text(Errno::NOTDIR), SLASH_NEXT),
        Error::Refused(errno) => (errno_text(errno), errno_next(errno)),
        Error::Io(failed) if is_refusal(&failed.source) => (host_error(&failed.source), host_next(&failed.source)),
        Error::Io(failed) => {
            let is_eio = failed.source.raw_os_error() == Some(Errno::IO.raw_os_error());
            let next = match failed.offset {
                None if !is_eio => host_next(&failed.source),
                _ => "the device is failing or full: see the host's log, and copy the image while it can be read",
            };
            (format!("{}: {}", failed.task(), host_error(&failed.source)), next)
        }
        Error::HostFull(source) => (
            format!("{HOST_FULL}: {}", host_error(&source)),
            match source.kind() {
                io::ErrorKind::FileTooLarge => "raise the limit of file sizes (ulimit -f) and try again; what was synced is safe",
                _ => "make room there and try again; what was synced is safe",
            },
        ),
        Error::Corrupt(corrupt) => (corrupt.to_string(), "run myriad fsck"),
        Error::Unchecked => (
            "not closed cleanly by a writer without a log (order=none) or by a repair, or found damaged while it was in use: it may not be sound"
                .into(),
            "run myriad fsck -p on it before it is changed, or open it read-only",
        ),
        Error::Damaged(damage) => (
            damage.to_string(),
            "restore the file from a copy, or write that block anew; myriad fsck --scrub lists all that is damaged",
        ),
        Error::Incompatible(incompatible) => (incompatible.to_string(), "use a newer myriad"),
        Error::Foreign => ("not a Myriad volume".into(), FOREIGN_NEXT),
        Error::Truncated(sizes) => (
            format!("the image is truncated: {} of {} bytes are there", sizes.found, sizes.needed),
            TRUNCATED_NEXT,
        ),
        Error::Sectors { block, sector } => (
            format!("its blocks have {block} bytes, and the device takes no less than {sector}"),
            SECTORS_NEXT,
        ),
        Error::Option(refused) => {
            let what = option_text(refused.option, &refused.reason);
            return Failure { kind: Kind::Usage, place, what, next: String::new() }.into();
        }
        Error::InUse(holder) => {
            let next = match wait::is_offered() {
                true => "wait until it is done with the volume (as --wait does), or unmount it",
                false => "wait until it is done with the volume, or unmount it",
            };
            (in_use_text(&holder, &place), next)
        }
        Error::Shutdown => {
            (Error::Shutdown.to_string(), "open it again: what was synced is there; see the host's log for the device's error")
        }
        Error::Closed => (Error::Closed.to_string(), "open the volume again"),
    };
    Failure::new(place, what, next).into()
}

/// What to do about a file of the host that is not there and cannot be made. `None`: it is there.
fn missing_next(path: &Path, error: &io::Error) -> Option<String> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = image_name(above);
    match error.kind() {
        io::ErrorKind::NotFound if !above.exists() => Some(format!("there is no directory {name}: make it first")),
        io::ErrorKind::PermissionDenied if above.exists() && matches!(path.try_exists(), Ok(false)) => {
            Some(format!("this needs permission to make files in {name}"))
        }
        _ => None,
    }
}

/// What is said of a host that has no room for what a volume writes.
const HOST_FULL: &str = "the file system of the host that holds the image has no room";
/// As a daemon says it (`Error::HostFull`).
const HOST_FULL_OF_DAEMON: &str = "the host's file system has no room for the image";

/// Whether an error is that one.
pub fn is_host_full(error: &anyhow::Error) -> bool {
    if let Some(NotClosed { work, closing }) = error.downcast_ref() {
        return is_host_full(work) || is_host_full(closing);
    }
    let says = |failure: &Failure| [HOST_FULL, HOST_FULL_OF_DAEMON].iter().any(|text| failure.what.starts_with(text));
    error.chain().any(|cause| cause.downcast_ref::<Failure>().is_some_and(says))
}

/// Whether a name looks like a pattern that a shell was to replace.
pub fn has_wildcards(name: &[u8]) -> bool {
    name.iter().any(|byte| b"*?[".contains(byte))
}

/// What to do about a name with wildcards, which the shell has not replaced by names.
const PATTERN_NEXT: &str = "the shell sees no names in a volume: myriad find -name lists those that match";

/// What to do about a name with a slash at its end that is none of a directory.
const SLASH_NEXT: &str = "a slash at the end asks for a directory: make it first, or leave the slash out";

/// What to do about an image that holds no volume, or no longer says that it does.
pub const FOREIGN_NEXT: &str =
    "check the name; if it was one, myriad fsck looks for a copy of its superblock; myriad mkfs makes a new one";

/// What to do about an image that ends before its volume does.
pub const TRUNCATED_NEXT: &str = "get a whole copy";

/// What to do about a volume on a device whose sectors are larger than its blocks.
pub const SECTORS_NEXT: &str = "copy it into a file, and name that";

/// What to do about a volume of which no superblock is left.
pub const SUPERBLOCK_NEXT: &str = "check the name; if it is one, its superblock is lost, and every copy of it (a volume of one \
    group has none): restore it from a backup";

/// The engine names an option as its field; here it is the option of the command line, or one of `-o` and `tune`.
fn option_text(option: &str, reason: &str) -> String {
    if myriad_engine::options::row(option).is_some_and(|row| !row.when.at_mkfs()) {
        return format!("option `{option}`: {reason}");
    }
    format!("option --{}: {reason}", option.replace('_', "-"))
}

/// Who says so may have named the image already.
fn in_use_text(text: &str, place: &str) -> String {
    text.strip_prefix(place).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(text).to_owned()
}

/// The host would not let us at the image: not a fault of the device.
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(
        error.kind(),
        NotFound | PermissionDenied | ReadOnlyFilesystem | IsADirectory | NotADirectory | AlreadyExists | StorageFull
    )
}

/// The host's words without its number.
pub fn host_error(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

pub fn host_next(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "check the name",
        io::ErrorKind::PermissionDenied => "this needs permission to read the image, and to write it for changes",
        io::ErrorKind::ReadOnlyFilesystem => "the image lies on a read-only file system: copy it to change it",
        io::ErrorKind::StorageFull => "the host's file system is full: make room there",
        io::ErrorKind::FileTooLarge => "the limit of file sizes (ulimit -f), or of the file system, is reached",
        io::ErrorKind::OutOfMemory => "give less memory to cached blocks (cachesize)",
        _ => "",
    }
}

pub fn errno_text(errno: Errno) -> String {
    host_error(&io::Error::from_raw_os_error(errno.raw_os_error()))
}

fn errno_next(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => "myriad ls shows what is there",
        Errno::EXIST => "choose another name, or remove what is there",
        Errno::NOTDIR => "where a directory is needed, there is something else",
        Errno::ISDIR => "name a file",
        Errno::NOTEMPTY => "myriad rm -r removes a directory and all below it",
        Errno::NOSPC => "the volume is full: remove files, or copy it to a larger one",
        Errno::ROFS => "the volume is sealed or was opened read-only",
        Errno::NAMETOOLONG => "a name has at most 255 bytes, and a path 4095",
        Errno::STALE => "somebody replaced or changed it meanwhile: run this again",
        Errno::XDEV => "something else is mounted there, or above it: unmount that first, or name another place",
        Errno::LOOP => "more than 40 symbolic links, or links that lead in a circle",
        Errno::PERM => {
            "the file is another user's, immutable or append-only, or of a kind for which this is not allowed"
        }
        _ => "",
    }
}

/// A path of the host as a message shows it.
pub fn image_name(image: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    match image.as_os_str().as_bytes() {
        b"" => "''".into(),
        name => Shown(name).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_place_what_and_next_step() {
        let full: myriad_engine::Result<()> = Err(Error::Refused(Errno::NOSPC));
        let error = full.at("a.img:/x").unwrap_err();
        assert_eq!(
            error.to_string(),
            "a.img:/x: No space left on device; the volume is full: remove files, or copy it to a larger one"
        );
        assert_eq!(kind(&error), Kind::Error);
    }

    #[test]
    fn kinds_are_found_below_context() {
        let pipe = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).context("writing");
        assert_eq!(kind(&pipe), Kind::Pipe);
        assert_eq!(kind(&Interrupted(15).into()), Kind::Interrupted(15));
        let option: myriad_engine::Result<()> = Err(Error::bad_option("block_size", "3 is no power of two"));
        let error = option.at("a.img").unwrap_err();
        assert_eq!(
            (kind(&error), error.to_string().as_str()),
            (Kind::Usage, "a.img: option --block-size: 3 is no power of two")
        );
        // Of `-o` and `tune` alone: there are no dashes to type.
        assert_eq!(option_text("softdep_maxmem", "too little"), "option `softdep_maxmem`: too little");
    }

    #[test]
    fn what_keeps_a_volume_from_being_closed_is_told() {
        let error = |what: &str| anyhow::Error::from(Failure::new("v.img", what, ""));
        let ended = |work: anyhow::Result<()>, closed| and_closed(work, closed).unwrap_err();
        let interrupted = || anyhow::Error::from(Interrupted(2));
        assert!(and_closed(Ok(1), Ok(())).is_ok_and(|done| done == 1));
        assert_eq!(ended(Ok(()), Err(error("full"))).to_string(), "v.img: full");
        assert_eq!(kind(&ended(Err(interrupted()), Ok(()))), Kind::Interrupted(2));
        // It would say that the volume was closed cleanly.
        assert_eq!(ended(Err(interrupted()), Err(error("full"))).to_string(), "v.img: full");
        assert_eq!(ended(Err(error("torn")), Err(interrupted())).to_string(), "v.img: torn");
        assert!(!ended(Err(error("full")), Err(error("full"))).is::<NotClosed>());
        let both = ended(Err(error("torn")), Err(error("full")));
        assert_eq!((both.to_string().as_str(), kind(&both)), ("v.img: torn", Kind::Error));
        assert_eq!(both.downcast_ref::<NotClosed>().map(|both| both.closing.to_string()).unwrap(), "v.img: full");
    }

    #[test]
    fn wildcards_are_explained() {
        let missing: myriad_engine::Result<()> = Err(Error::Refused(Errno::NOENT));
        let said = missing.at("a.img:/d/*.txt").unwrap_err().to_string();
        assert!(said.ends_with(
            "No such file or directory; the shell sees no names in a volume: myriad find -name lists those that match"
        ));
    }

    #[test]
    fn programs_read_the_parts_of_a_message() {
        let missing: myriad_engine::Result<()> = Err(Error::Refused(Errno::NOENT));
        let error = missing.at("a.img:/x").unwrap_err();
        let what = "No such file or directory";
        let expected = |place: &str| json!({ "error": { "place": place, "what": what, "next": "myriad ls shows what is there", "kind": "error" } });
        assert_eq!(json(&error), expected("a.img:/x"));
        assert_eq!(json(&error.context("tree.tar")), expected("tree.tar: a.img:/x"));
        let plain = anyhow::Error::from(io::Error::other("odd")).context("writing");
        let expected = json!({ "error": { "place": "", "what": "writing: odd", "next": "", "kind": "error" } });
        assert_eq!(json(&plain), expected);
        let usage = Failure::usage("", "two are needed", "see --help").into();
        assert_eq!(json(&usage)["error"]["kind"], "usage");
    }

    #[test]
    fn the_holder_is_named_once() {
        let in_use: myriad_engine::Result<()> = Err(Error::in_use("a.img: in use by process 7 (myriad)"));
        assert!(in_use.at("a.img").unwrap_err().to_string().starts_with("a.img: in use by process 7 (myriad); "));
    }
}
