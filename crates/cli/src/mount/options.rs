//! The options after `-o`: those of the volume from the one table of the engine (`myriad_engine::options`), and those that only
//! concern the mount from the table here. From both come the parser, the help and the manual page.
//!
//! Words that libfuse or mount(8) have mean here what they mean there. One that the table does not know is refused by
//! name: a misspelt option that is passed over is found when it is too late.

use crate::show::option::about;
use crate::show::{mode, owner, size};
use myriad_engine::options::{self, Options, Row, TABLE, Value};
use myriad_engine::{AccessTimes, MkfsOptions, MountOptions};
use myriad_fuse::{KindChoice, TransportChoice};
use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Everything that `-o` says.
pub struct Settings {
    pub engine: MountOptions,
    pub fuse: myriad_fuse::Options,
    /// Where in the image the volume begins, and how many bytes it may take.
    pub offset: u64,
    pub size_limit: Option<u64>,
    /// Share of a processor that the background check may take, in percent.
    pub background_check: u32,
    /// Log requests from the beginning; stays in the foreground.
    pub debug: bool,
    /// Gets messages instead of the system's log.
    pub log_file: Option<PathBuf>,
}

type Apply = fn(&mut Settings, &str) -> Result<(), String>;

/// One word.
struct Word {
    name: &'static str,
    /// What stands behind the equals sign, if one may.
    value: Option<&'static str>,
    about: &'static str,
    apply: Apply,
}

/// Words for one purpose, under a heading.
struct Group {
    heading: &'static str,
    words: &'static [Word],
}

const fn word(name: &'static str, about: &'static str, apply: Apply) -> Word {
    Word { name, value: None, about, apply }
}

const fn valued(name: &'static str, value: &'static str, about: &'static str, apply: Apply) -> Word {
    Word { name, value: Some(value), about, apply }
}

/// A word that the kernel knows by the same name.
macro_rules! kernel {
    ($name:literal, $about:literal) => {
        word($name, $about, |settings, _| {
            settings.fuse.kernel_options.push($name.into());
            Ok(())
        })
    };
}

/// A word that stands for what happens in any case, or for somebody else to read.
const fn accepted(name: &'static str, about: &'static str) -> Word {
    word(name, about, |_, _| Ok(()))
}

const GROUPS: &[Group] = &[
    Group {
        heading: VOLUME,
        words: &[
            word("ro", "mount read-only; any number may", |s, _| read_only(s, true)),
            word("rw", "mount for reading and writing, the default", |s, _| read_only(s, false)),
            valued("offset", "BYTES", "where in the image the volume begins", |s, v| {
                set(&mut s.offset, size::parse(v))
            }),
            valued(
                "sizelimit",
                "BYTES",
                "how many bytes of the image are the volume's; without it all from its offset",
                |s, v| set(&mut s.size_limit, size::parse(v).map(Some)),
            ),
        ],
    },
    Group {
        heading: "Mount",
        words: &[
            word("allow_other", "other users may use the mount", |s, _| put(&mut s.fuse.allow_other, true)),
            word("default_permissions", "the kernel checks permissions, the default", |s, _| {
                put(&mut s.fuse.default_permissions, true)
            }),
            word(
                "nodefault_permissions",
                "the daemon checks permissions, and is asked for every name; pipes, sockets and devices are open to everybody",
                |s, _| put(&mut s.fuse.default_permissions, false),
            ),
            word(
                "unchecked",
                "nobody checks permissions: for a mount that only processes of user 0 with all their rights use",
                |s, _| put(&mut s.fuse.unchecked, true),
            ),
            valued("uid", "USER", "show all files as this user's", |s, v| {
                set(&mut s.fuse.uid, owner::parse_user(v).map(Some))
            }),
            valued("gid", "GROUP", "show all files as this group's", |s, v| {
                set(&mut s.fuse.gid, owner::parse_group(v).map(Some))
            }),
            valued("umask", "MODE", "show all files with permissions 777 but for these, octal", |s, v| {
                set(&mut s.fuse.umask, mode::parse(v).map(Some))
            }),
            valued(
                "entry_timeout",
                "SECONDS",
                "how long the kernel may use a name without asking; without it for ever",
                |s, v| set(&mut s.fuse.entry_timeout, seconds(v)),
            ),
            valued("attr_timeout", "SECONDS", "the same for attributes", |s, v| {
                set(&mut s.fuse.attr_timeout, seconds(v))
            }),
            valued(
                "kind",
                "TYPE",
                "as which type the kernel has it: fuse, or fuseblk, with which sync(2) and umount(2) wait for the volume; without it \
                 fuseblk where root mounts and has loop devices",
                |s, v| set(&mut s.fuse.kind, v.parse::<KindChoice>()),
            ),
            valued("transport", "HOW", "how requests come from the kernel: auto, classic or ring", |s, v| {
                set(&mut s.fuse.transport, v.parse::<TransportChoice>())
            }),
            valued("max_threads", "COUNT", "threads of the classic transport; without it by the processors", |s, v| {
                set(&mut s.fuse.threads, count(v))
            }),
            word("beside", "the daemon runs on the caller's processor, the default where it may", |s, _| {
                put(&mut s.fuse.beside, true)
            }),
            word("nobeside", "the daemon runs wherever the scheduler puts it", |s, _| put(&mut s.fuse.beside, false)),
            valued(
                "max_readahead",
                "SIZE",
                "the most that the kernel reads ahead, where root mounts; without it 4M",
                |s, v| set(&mut s.fuse.max_readahead, size::parse(v)),
            ),
            valued(
                "background_check",
                "PERCENT",
                "after a crash under order sync or softdep, the share of a processor for the search for what is in use for nothing; 0 for no \
                 search; without it 25",
                |s, v| set(&mut s.background_check, percent(v)),
            ),
            word("noopen", "the kernel opens files without asking, the default", |s, _| put(&mut s.fuse.no_open, true)),
            word("open", "the daemon is asked at each open, and knows which files may show their holes", |s, _| {
                put(&mut s.fuse.no_open, false)
            }),
            word("xattr", "extended attributes, the default", |s, _| put(&mut s.fuse.no_xattr, false)),
            word("noxattr", "no extended attributes: fewer requests", |s, _| put(&mut s.fuse.no_xattr, true)),
            word(
                "acl",
                "access control lists, the default where the root's owner mounts without allow_other, and where there are some",
                |s, _| put(&mut s.fuse.acl, Some(true)),
            ),
            word(
                "noacl",
                "none on a volume that holds none: fewer requests by who is not the owner of what he uses",
                |s, _| put(&mut s.fuse.acl, Some(false)),
            ),
            word(
                "writeback",
                "the kernel gathers writes and sends them at close: faster, but a full volume shows only then; not with the ring",
                |s, _| put(&mut s.fuse.writeback, true),
            ),
            word("nowriteback", "each write is sent at once, the default", |s, _| put(&mut s.fuse.writeback, false)),
            word(
                "stats",
                "the root has a hidden directory .myriad: figures of the mount as text, JSON and for Prometheus",
                |s, _| put(&mut s.fuse.stats_dir, true),
            ),
            word("nostats", "no such directory", |s, _| put(&mut s.fuse.stats_dir, false)),
            word("direct_io", "the kernel keeps no file data", |s, _| put(&mut s.fuse.direct_io, true)),
            word("debug", "stay in the foreground and log every request", |s, _| put(&mut s.debug, true)),
            valued("logfile", "FILE", "messages go there instead of the system's log", |s, v| {
                put(&mut s.log_file, Some(v.into()))
            }),
            valued("fsname", "NAME", "name of the volume in /proc/mounts; without it the image", |s, v| {
                put(&mut s.fuse.source, v.into())
            }),
        ],
    },
    Group {
        heading: "Kernel",
        words: &[
            kernel!("nosuid", "set-user-ID has no effect, the default: an image may be a stranger's"),
            kernel!("suid", "set-user-ID has effect, the default by mount(8) for root"),
            kernel!("nodev", "device nodes have no effect, the default"),
            kernel!("dev", "device nodes have effect, the default by mount(8) for root"),
            kernel!("noexec", "nothing can be executed"),
            kernel!("exec", "programs can be executed, the default"),
            kernel!("sync", "every change is durable when it returns"),
            kernel!("async", "the opposite of sync, the default"),
            kernel!("dirsync", "every change of a name is durable when it returns; not by a remount"),
            accepted(
                "remount",
                "changes a mount that is there: ro, rw, and the words under this heading; only root may",
            ),
        ],
    },
    Group {
        heading: FOR_OTHERS,
        words: &[
            accepted("defaults", "what is the default in any case"),
            accepted("nofail", "starting up goes on if the mount fails"),
            accepted("_netdev", "mounted once the network is there"),
            accepted("auto", "mounted by mount -a"),
            accepted("noauto", "not mounted by mount -a"),
            accepted("nouser", "only root may mount it"),
            accepted("owner", "the owner of the device may mount it"),
            accepted("group", "the group of the device may mount it"),
            accepted("users", "all users may mount and unmount it"),
            Word { name: "user", value: Some("[USER]"), about: "users may mount it", apply: |_, _| Ok(()) },
            Word { name: "comment", value: Some("TEXT"), about: "a remark", apply: |_, _| Ok(()) },
        ],
    },
];

/// The rows of the engine's table follow there.
const VOLUME: &str = "Volume";
const FOR_OTHERS: &str = "Read by mount(8) and systemd in fstab, without effect here";

/// Options whose names begin so are for others to read.
const FOREIGN: [&str; 2] = ["x-", "X-"];

fn set<T, E: ToString>(field: &mut T, value: Result<T, E>) -> Result<(), String> {
    *field = value.map_err(|error| error.to_string())?;
    Ok(())
}

fn put<T>(field: &mut T, value: T) -> Result<(), String> {
    *field = value;
    Ok(())
}

fn read_only(settings: &mut Settings, read_only: bool) -> Result<(), String> {
    settings.engine.read_only = read_only;
    settings.fuse.read_only = read_only;
    Ok(())
}

/// Sets an option of the engine's table.
fn set_row(settings: &mut Settings, row: &Row, value: Value) {
    let mut all = Options { mkfs: MkfsOptions::default(), mount: settings.engine.clone() };
    row.set(&mut all, value);
    settings.engine = all.mount;
    // The kernel is told for /proc/mounts alone: the engine writes them.
    let shown = &mut settings.fuse.kernel_options;
    match row.name {
        "atime" => {
            shown.retain(|option| !matches!(&**option, "noatime" | "strictatime"));
            match settings.engine.atime {
                AccessTimes::Never => shown.push("noatime".into()),
                AccessTimes::Relative => {}
                AccessTimes::Strict => shown.push("strictatime".into()),
            }
        }
        "diratime" => shown.push(if settings.engine.dir_atime { "diratime" } else { "nodiratime" }.into()),
        _ => {}
    }
}

fn seconds(value: &str) -> Result<Duration, String> {
    let seconds = value.parse().ok().filter(|seconds: &f64| (0.0..=1e9).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("`{value}` is not a number of seconds"))
}

fn percent(value: &str) -> Result<u32, String> {
    let percent = value.strip_suffix('%').unwrap_or(value).parse().ok().filter(|percent| *percent <= 100);
    percent.ok_or_else(|| format!("`{value}` is no percentage from 0 to 100"))
}

fn count(value: &str) -> Result<usize, String> {
    let count = value.parse().ok().filter(|count| (1..=1024).contains(count));
    count.ok_or_else(|| format!("`{value}` is not a number from 1 to 1024"))
}

impl Settings {
    /// As without any `-o`; `source` is how /proc/mounts is to show the image.
    pub fn new(source: OsString) -> Self {
        Self {
            engine: MountOptions::default(),
            // So that /proc/mounts says what is true.
            fuse: myriad_fuse::Options {
                source,
                kernel_options: vec!["noatime".into()],
                ..myriad_fuse::Options::default()
            },
            offset: 0,
            size_limit: None,
            background_check: 25,
            debug: false,
            log_file: None,
        }
    }

    /// Reads what stands behind one `-o`: words with commas between them; of two that contradict each other the later
    /// one counts. With `sloppy`, words that are not known are handed to `unknown` instead of being refused.
    pub fn read(&mut self, text: &str, sloppy: bool, mut unknown: impl FnMut(&str)) -> Result<(), String> {
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            if FOREIGN.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            }
            let Some(word) = words().find(|word| word.name == name) else {
                let meant =
                    |name: Option<&str>| name.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
                match options::read(option) {
                    Some(Ok((row, value))) if row.when.at_mount() => set_row(self, row, value),
                    Some(Ok((row, _))) => {
                        let is_at_mount = |name: &&str| options::row(name).is_some_and(|row| row.when.at_mount());
                        let meant = meant(options::beginning(name, options::names().filter(is_at_mount)));
                        let (row, when) = (row.name, row.when.name());
                        return Err(format!("option `{name}`: {row} is set by {when}, not by mount{meant}"));
                    }
                    Some(Err(reason)) => return Err(format!("option `{name}`: {reason}")),
                    None if sloppy => unknown(option),
                    None => {
                        let known = words().map(|word| word.name).chain(options::names());
                        return Err(format!("unknown option `{name}`{}", meant(options::nearest(name, known))));
                    }
                }
                continue;
            };
            let value = match (word.value, value) {
                (Some(_), Some(value)) => value,
                (Some(optional), None) if optional.starts_with('[') => "",
                (Some(wanted), None) => return Err(format!("option `{name}`: it needs a value: {name}={wanted}")),
                (None, Some(_)) => return Err(format!("option `{name}`: it takes no value")),
                (None, None) => "",
            };
            (word.apply)(self, value).map_err(|reason| format!("option `{name}`: {reason}"))?;
        }
        Ok(())
    }
}

/// Whether a word stands for something that the daemon or the engine does from the mount's beginning.
pub fn is_ours_to_carry_out(name: &str) -> bool {
    let group = GROUPS.iter().find(|group| group.words.iter().any(|word| word.name == name));
    group.map_or_else(|| options::names().any(|known| known == name), |group| group.heading != FOR_OTHERS)
        && name != "remount"
}

/// Whether it only concerns the mount: each mount says so for itself.
pub fn is_of_the_mount(name: &str) -> bool {
    words().any(|word| word.name == name)
}

fn words() -> impl Iterator<Item = &'static Word> {
    GROUPS.iter().flat_map(|group| group.words)
}

/// Both tables as help and manual page show them.
pub fn help() -> String {
    let mut text = String::from("Options for -o, with commas between them:\n");
    let line = |text: &mut String, name: &str, about: &str| {
        writeln!(text, "  {name:<24} {about}").expect("a string takes everything");
    };
    for group in GROUPS {
        writeln!(text, "\n{}:", group.heading).expect("a string takes everything");
        for word in group.words {
            let name = match word.value {
                Some(value) if value.starts_with('[') => format!("{}[={}]", word.name, &value[1..value.len() - 1]),
                Some(value) => format!("{}={value}", word.name),
                None => word.name.to_owned(),
            };
            line(&mut text, &name, word.about);
        }
        for row in TABLE.iter().filter(|row| group.heading == VOLUME && row.when.at_mount()) {
            let tune = if row.when.by_tune() { "; myriad tune changes it" } else { "" };
            let (name, default) = (format!("{}={}", row.name, row.values.hint()), row.default());
            line(&mut text, &name, &format!("{}; without it {default}{tune}", about(row)));
            for word in row.words {
                line(&mut text, word.word, &format!("{} ({}={})", word.about, row.name, word.value));
            }
        }
    }
    text.push_str("\nOptions that begin with x- or X- (as x-systemd.automount) are for others to read, and accepted.");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_engine::{Allocation, DirPrefRule, Discard, Order, PlacementPolicy};

    fn read(text: &str) -> Result<Settings, String> {
        let mut settings = Settings::new("vol.img".into());
        settings.read(text, false, |_| unreachable!("nothing is passed over"))?;
        Ok(settings)
    }

    #[track_caller]
    fn refused(text: &str, expected: &str) {
        let error = read(text).err().expect("it is refused");
        assert_eq!(error, expected);
    }

    #[test]
    fn every_seam_has_its_word() {
        let settings = read(
            "ro,order=none,logdev=/dev/log,commit=0.5,cachesize=64M,placement=rotor,dirprefrule=9.3,avgfilesize=1M,avgfpdir=5,alloc=write,discard,discard_piece=1M,nonamecache,relatime,\
             nodiratime,offset=1M,sizelimit=2G,allow_other,nodefault_permissions,uid=7,gid=8,umask=022,entry_timeout=1,attr_timeout=2.5,\
             kind=fuseblk,transport=classic,max_threads=3,nobeside,open,noxattr,acl,nostats,writeback,direct_io,fsname=x,logfile=/l,\
             nosuid,sync",
        )
        .unwrap();
        let engine = &settings.engine;
        assert!(engine.read_only && engine.discard == Discard::Always && !engine.dir_atime && !engine.name_cache);
        assert_eq!(
            (engine.order, engine.placement, engine.allocation, engine.atime),
            (Some(Order::None), Some(PlacementPolicy::Rotor), Allocation::AtWrite, AccessTimes::Relative)
        );
        let dirpref = engine.dirpref;
        assert_eq!(
            (dirpref.rule, dirpref.average_file_size, dirpref.average_files_per_dir),
            (DirPrefRule::FreeBsd9, 1 << 20, 5)
        );
        assert_eq!((engine.commit_interval_ms, engine.cache_size, engine.discard_piece), (500, 64 << 20, 1 << 20));
        assert_eq!(engine.log_device.as_deref(), Some("/dev/log".as_ref()));
        assert_eq!((settings.offset, settings.size_limit), (1 << 20, Some(2 << 30)));
        let fuse = &settings.fuse;
        assert!(
            fuse.read_only
                && fuse.allow_other
                && fuse.acl == Some(true)
                && fuse.writeback
                && fuse.direct_io
                && fuse.no_xattr
        );
        assert!(!fuse.default_permissions && !fuse.no_open && !fuse.beside && !fuse.stats_dir);
        assert_eq!((fuse.uid, fuse.gid, fuse.umask), (Some(7), Some(8), Some(0o22)));
        assert_eq!((fuse.threads, &*fuse.source), (3, "x".as_ref()));
        assert_eq!((fuse.entry_timeout.as_millis(), fuse.attr_timeout.as_millis()), (1000, 2500));
        assert_eq!((fuse.transport, fuse.kind), (TransportChoice::Classic, KindChoice::FuseBlk));
        assert_eq!(fuse.kernel_options, ["nodiratime", "nosuid", "sync"]);
    }

    #[test]
    fn the_later_of_two_words_counts() {
        let settings = read("ro,rw,nosuid,suid,noatime,relatime,sync,async,discard,nodiscard").unwrap();
        assert!(!settings.engine.read_only && !settings.fuse.read_only && settings.engine.discard == Discard::Never);
        assert_eq!(settings.engine.atime, AccessTimes::Relative);
        // The kernel's are handed on in their order, and it is the same there.
        assert_eq!(settings.fuse.kernel_options, ["nosuid", "suid", "sync", "async"]);
        for (text, atime, shown) in [
            ("", AccessTimes::Never, "noatime"),
            ("relatime,strictatime", AccessTimes::Strict, "strictatime"),
            ("strictatime,noatime", AccessTimes::Never, "noatime"),
        ] {
            let settings = read(text).unwrap();
            assert_eq!(
                (settings.engine.atime, settings.fuse.kernel_options),
                (atime, vec![shown.to_owned()]),
                "{text}"
            );
        }
    }

    #[test]
    fn what_fstab_needs_is_accepted() {
        read("defaults,nofail,_netdev,noauto,auto,user,user=joe,users,owner,group,nouser,comment=a b,x-systemd.automount,x-gvfs-hide,,")
            .unwrap();
    }

    #[test]
    fn mistakes_are_told_by_name() {
        refused("ro,cachsize=1G", "unknown option `cachsize`; did you mean `cachesize`?");
        refused("allowother", "unknown option `allowother`; did you mean `allow_other`?");
        refused(
            "log-device=/dev/log",
            "option `log-device`: log-device is set by mkfs, not by mount; did you mean `logdev`?",
        );
        refused("blksize=4096", "unknown option `blksize`");
        refused("cachesize", "option `cachesize`: it needs a value: cachesize=SIZE");
        refused("ro=1", "option `ro`: it takes no value");
        refused("order=fast", "option `order`: `fast` is no choice of order; this build has: none, sync, softdep, log");
        refused("commit=-1", "option `commit`: `-1` is not a number of seconds from 0 to 1000000000");
        refused("placement=far", "option `placement`: `far` is none of dirpref, rotor");
        refused("block-size=4K", "option `block-size`: block-size is set by mkfs, not by mount");
        refused("inodes=static", "option `inodes`: inodes is set by mkfs, not by mount");
        refused("directory=linear", "option `directory`: directory is set by mkfs, not by mount");
        refused("entry_timeout=-1", "option `entry_timeout`: `-1` is not a number of seconds");
        refused("kind=block", "option `kind`: block is none of auto, fuse, fuseblk");
        refused("umask=8", "option `umask`: `8` is not a mode; write it in octal, as in 0755");
        refused("commit=NaN", "option `commit`: `NaN` is not a number of seconds from 0 to 1000000000");
        refused("max_threads=0", "option `max_threads`: `0` is not a number from 1 to 1024");
    }

    #[test]
    fn sloppy_passes_over_what_it_does_not_know() {
        let mut passed = Vec::new();
        let mut settings = Settings::new("vol.img".into());
        settings.read("ro,quota=5,exec", true, |option| passed.push(option.to_owned())).unwrap();
        assert!(settings.engine.read_only);
        assert_eq!(passed, ["quota=5"]);
    }

    #[test]
    fn names_are_there_once_and_in_the_help() {
        // A word of the engine's table may have the name of its option, as `discard`.
        let rows = TABLE.iter().filter(|row| row.when.at_mount());
        let mut names: Vec<&str> = words().map(|word| word.name).chain(rows.clone().map(|row| row.name)).collect();
        let help = help();
        for name in names.iter().chain(rows.flat_map(|row| row.words).map(|word| &word.word)) {
            assert!(help.contains(&format!("  {name}")), "{name}");
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
