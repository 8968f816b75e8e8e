//! The second opinion: random cases of every rule in `perm` and `attr_list`, answered by us and by the kernel these
//! tests run on, on a disk file system and on tmpfs.
//!
//! Needs user 0 and a file system with ACLs; says so and passes otherwise. Each case makes its own file as user 0, then
//! one thread takes on the caller's credentials (they are a thread's own in Linux) and does the operation.

use super::acl::{Acl, chmod_acl, mode_from_acl, value_from_text};
use super::*;
use crate::attr_list::{ACCESS_ACL, DEFAULT_ACL, XattrOp, check_xattr};
use myriad_format::inode::{S_IFIFO, S_IFREG, flag};
use rustix::fs::{
    self, Access, AtFlags, CWD, IFlags, Mode, OFlags, StatVfsMountFlags, Timespec, Timestamps, XattrFlags,
};
use rustix::thread::{UnshareFlags, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::path::{Path, PathBuf};

/// xorshift64*: enough to pick cases, the same in every run.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn mode(&mut self) -> u16 {
        // Plain random bits, but set-id bits and all-or-nothing classes often enough.
        match self.below(4) {
            0 => self.pick(&[0o644, 0o600, 0o755, 0o777, 0o1777, 0o2755, 0o4755, 0o6745, 0o2775]),
            _ => self.below(0o10000) as u16,
        }
    }

    fn uid(&mut self) -> u32 {
        self.pick(&[0, 1000, 1001, 1002])
    }

    fn gid(&mut self) -> u32 {
        self.pick(&[0, 2000, 2001, 2002])
    }

    fn cred(&mut self) -> Cred {
        let groups = (0..self.below(3)).map(|_| self.gid()).collect();
        let umask = self.pick(&[0, 0o022, 0o027, 0o077, 0o222]);
        Cred { uid: self.uid(), gid: self.gid(), groups, umask }
    }

    fn perm(&mut self) -> String {
        let bits = self.below(8);
        ["r", "w", "x"].iter().zip([4, 2, 1]).map(|(c, bit)| if bits & bit != 0 { *c } else { "-" }).collect()
    }

    /// A valid ACL, with or without a mask.
    fn acl(&mut self) -> String {
        let mut text = format!("u::{}", self.perm());
        let users = self.below(3);
        for _ in 0..users {
            text += &format!(" u:{}:{}", self.uid(), self.perm());
        }
        text += &format!(" g::{}", self.perm());
        let groups = self.below(3);
        for _ in 0..groups {
            text += &format!(" g:{}:{}", self.gid(), self.perm());
        }
        if users + groups > 0 || self.one_in(3) {
            text += &format!(" m::{}", self.perm());
        }
        text + &format!(" o::{}", self.perm())
    }
}

/// Runs `f` with the credentials of `cred`.
fn as_user<T: Send>(cred: &Cred, f: impl FnOnce() -> T + Send) -> T {
    let run = || {
        let gid = Some(fs::Gid::from_raw(cred.gid));
        let uid = Some(fs::Uid::from_raw(cred.uid));
        let groups: Vec<_> = cred.groups.iter().map(|&gid| fs::Gid::from_raw(gid)).collect();
        // The umask is shared by threads until one asks for its own. (Deprecated for what it does with other flags.)
        #[allow(deprecated)]
        rustix::thread::unshare(UnshareFlags::FS).unwrap();
        rustix::process::umask(Mode::from_raw_mode(cred.umask.into()));
        set_thread_groups(&groups).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        f()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Everything about an inode that permission depends on, as we model it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    mode: u16,
    uid: u32,
    gid: u32,
    flags: u32,
    access_acl: Option<Vec<u8>>,
    default_acl: Option<Vec<u8>>,
}

impl State {
    fn subject(&self) -> Subject<'_> {
        let Self { mode, uid, gid, flags, .. } = *self;
        Subject { mode, uid, gid, flags, access_acl: self.access_acl.as_deref() }
    }
}

const FLAGS: [(u32, IFlags); 4] = [
    (flag::IMMUTABLE, IFlags::IMMUTABLE),
    (flag::APPEND, IFlags::APPEND),
    (flag::NODUMP, IFlags::NODUMP),
    (flag::NOATIME, IFlags::NOATIME),
];

fn host_flags(flags: u32) -> IFlags {
    FLAGS.into_iter().filter(|(ours, _)| flags & ours != 0).map(|(_, host)| host).collect()
}

fn text(name: &[u8]) -> &str {
    std::str::from_utf8(name).unwrap()
}

fn host_xattr(path: &Path, name: &[u8]) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    let length = fs::lgetxattr(path, text(name), &mut value[..]).ok()?;
    value.truncate(length);
    Some(value)
}

fn observe(path: &Path) -> State {
    let stat = fs::lstat(path).unwrap();
    let mode = stat.st_mode as u16;
    let mut flags = 0;
    if mode & S_IFMT == S_IFREG || mode & S_IFMT == S_IFDIR {
        let file = fs::open(path, OFlags::RDONLY, Mode::empty()).unwrap();
        // ext4 adds flags of its own, which the ioctl's caller passes back unchanged.
        let host = fs::ioctl_getflags(&file).unwrap_or(IFlags::empty());
        flags = FLAGS.into_iter().filter(|(_, f)| host.contains(*f)).map(|(ours, _)| ours).sum();
    }
    State {
        mode,
        uid: stat.st_uid,
        gid: stat.st_gid,
        flags,
        access_acl: host_xattr(path, ACCESS_ACL),
        default_acl: host_xattr(path, DEFAULT_ACL),
    }
}

fn set_flags(path: &Path, flags: u32) -> Result<(), Errno> {
    let file = fs::open(path, OFlags::RDONLY, Mode::empty())?;
    let others = fs::ioctl_getflags(&file)?.difference(host_flags(flag::USER));
    fs::ioctl_setflags(&file, others.union(host_flags(flags)))
}

fn set_acl(path: &Path, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    fs::lsetxattr(path, text(name), value, XattrFlags::empty())
}

/// A directory on a file system of the host, removed at the end.
struct Host {
    root: PathBuf,
    /// Whether inode flags work.
    flags: bool,
    /// Whether the mount lets anybody execute.
    executes: bool,
    count: u64,
}

impl Drop for Host {
    fn drop(&mut self) {
        // After a failed case, its files may still be immutable: a directory first, then what is in it.
        let mut left = vec![self.root.clone()];
        while let Some(path) = left.pop() {
            if self.flags && (path.is_dir() || path.is_file()) {
                let _ = set_flags(&path, 0);
            }
            left.extend(std::fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

impl Host {
    fn new(base: &Path, test: &str) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("not run as user 0".into());
        }
        let root = base.join(format!("myriad-perm-{test}-{}", std::process::id()));
        std::fs::create_dir(&root).map_err(|error| format!("{}: {error}", root.display()))?;
        fs::chmod(&root, Mode::from_raw_mode(0o755)).unwrap();
        let mut host = Self { root, flags: false, executes: false, count: 0 };
        let probe = host.make_file(S_IFREG, 0o644);
        set_acl(&probe, ACCESS_ACL, &value_from_text("u::rw- u:1:r-- g::r-- m::r-- o::---"))
            .map_err(|error| format!("no ACLs in {}: {error}", base.display()))?;
        // Containers may run as user 0 without its powers.
        fs::chown(&probe, Some(fs::Uid::from_raw(1)), None).map_err(|error| format!("chown: {error}"))?;
        host.flags = set_flags(&probe, flag::IMMUTABLE).is_ok();
        if host.flags {
            set_flags(&probe, 0).unwrap();
        }
        let mount = fs::statvfs(&host.root).unwrap().f_flag;
        host.executes = !mount.contains(StatVfsMountFlags::from_bits_retain(8)); // ST_NOEXEC
        Ok(host)
    }

    fn is_tmpfs(&self) -> bool {
        fs::statfs(&self.root).unwrap().f_type == 0x0102_1994
    }

    fn fresh(&mut self) -> PathBuf {
        self.count += 1;
        self.root.join(self.count.to_string())
    }

    fn make_file(&mut self, file_type: u16, mode: u16) -> PathBuf {
        let path = self.fresh();
        let kind = fs::FileType::from_raw_mode(file_type.into());
        match file_type {
            S_IFDIR => fs::mkdir(&path, Mode::empty()).unwrap(),
            S_IFLNK => fs::symlink("nowhere", &path).unwrap(),
            _ => fs::mknodat(CWD, &path, kind, Mode::empty(), 0).unwrap(),
        }
        if file_type != S_IFLNK {
            fs::chmod(&path, Mode::from_raw_mode(mode.into())).unwrap();
        }
        path
    }

    /// A file of a random kind, owner, mode, and so on; and what it is, read back from the host.
    fn make(&mut self, rng: &mut Rng, types: &[u16]) -> (PathBuf, State) {
        let file_type = rng.pick(types);
        let path = self.make_file(file_type, 0);
        let (uid, gid) = (Some(fs::Uid::from_raw(rng.uid())), Some(fs::Gid::from_raw(rng.gid())));
        fs::chownat(CWD, &path, uid, gid, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        if file_type != S_IFLNK {
            // Before the ACL half of the time, so that mask and mode come about both ways.
            let mode_first = rng.one_in(2);
            let mode = Mode::from_raw_mode(rng.mode().into());
            fs::chmod(&path, mode).unwrap();
            if rng.one_in(2) {
                set_acl(&path, ACCESS_ACL, &value_from_text(&rng.acl())).unwrap();
            }
            if !mode_first {
                fs::chmod(&path, mode).unwrap();
            }
        }
        if file_type == S_IFDIR && rng.one_in(2) {
            set_acl(&path, DEFAULT_ACL, &value_from_text(&rng.acl())).unwrap();
        }
        if self.flags && (file_type == S_IFREG || file_type == S_IFDIR) && rng.one_in(4) {
            let flags = rng.pick(&[flag::IMMUTABLE, flag::APPEND, flag::NODUMP, flag::IMMUTABLE | flag::NOATIME]);
            set_flags(&path, flags).unwrap();
        }
        let state = observe(&path);
        (path, state)
    }

    fn discard(&self, path: &Path) {
        let Ok(stat) = fs::lstat(path) else { return };
        let file_type = stat.st_mode as u16 & S_IFMT;
        if self.flags && (file_type == S_IFREG || file_type == S_IFDIR) {
            set_flags(path, 0).unwrap();
        }
        if file_type == S_IFDIR { std::fs::remove_dir_all(path).unwrap() } else { fs::unlink(path).unwrap() }
    }
}

/// Runs `case` many times on each file system there is.
fn on_hosts(test: &str, cases: u64, mut case: impl FnMut(&mut Host, &mut Rng)) {
    for base in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        match Host::new(&base, test) {
            Err(reason) => println!("skipped: {test} in {}: {reason}", base.display()),
            Ok(mut host) => {
                let mut rng = Rng(0x6d79_7269_6164);
                for _ in 0..cases {
                    case(&mut host, &mut rng);
                }
            }
        }
    }
}

/// One operation on a file: `host` does it as `cred`, `model` changes the state or refuses.
fn check_change(
    host: &Host,
    path: &Path,
    before: &State,
    cred: &Cred,
    what: &str,
    on_host: impl FnOnce() -> Result<(), Errno> + Send,
    model: impl FnOnce(&mut State) -> Result<(), Errno>,
) {
    let mut ours = before.clone();
    let our_answer = model(&mut ours);
    let answer = as_user(cred, on_host);
    let after = observe(path);
    let case = format!("{what} by {cred:?} of {before:?} in {}", host.root.display());
    assert_eq!(our_answer, answer, "ours, host's: {case}");
    assert_eq!(ours, after, "ours, host's: {case}");
}

#[test]
fn access_as_the_host() {
    on_hosts("access", 1500, |host, rng| {
        let (path, state) = host.make(rng, &[S_IFREG, S_IFREG, S_IFDIR, S_IFIFO]);
        let cred = rng.cred();
        let answers: Vec<_> =
            as_user(&cred, || (0..8).map(|mask| fs::access(&path, Access::from_bits_retain(mask))).collect());
        for (mask, answer) in answers.into_iter().enumerate() {
            let mask = mask as u8;
            if mask & EXECUTE != 0 && !host.executes && state.subject().is_regular() {
                continue;
            }
            assert_eq!(may_access(&cred, &state.subject(), mask), answer, "ours, host's: {mask} {cred:?} {state:?}");
        }
        host.discard(&path);
    });
}

#[test]
fn a_named_user_under_an_empty_mask_is_other() {
    // acl(5) would refuse; see `access_slow`.
    on_hosts("empty-mask", 1, |host, _| {
        let path = host.make_file(S_IFREG, 0);
        set_acl(&path, ACCESS_ACL, &value_from_text("u::rw- u:1000:r-- g::--- m::--- o::r--")).unwrap();
        let state = observe(&path);
        let cred = Cred { uid: 1000, gid: 1000, groups: Vec::new(), umask: 0 };
        let answer = as_user(&cred, || fs::access(&path, Access::READ_OK));
        assert_eq!(may_access(&cred, &state.subject(), READ), answer);
        assert_eq!(answer, Ok(()));
    });
}

#[test]
fn attribute_changes_as_the_host() {
    on_hosts("attributes", 4000, |host, rng| {
        let (path, before) = host.make(rng, &[S_IFREG, S_IFREG, S_IFDIR, S_IFIFO]);
        let path = path.as_path();
        // Owners are who the rules are about.
        let mut cred = rng.cred();
        if rng.one_in(2) {
            cred.uid = before.uid;
        }
        let cred = &cred;
        let by_fd = before.subject().is_regular() && !before.subject().has_flag(flag::IMMUTABLE | flag::APPEND);
        match rng.below(6) {
            0 => {
                let mode = rng.mode();
                let on_host = || fs::chmod(path, Mode::from_raw_mode(mode.into()));
                check_change(host, path, &before, cred, &format!("chmod {mode:o}"), on_host, |state| {
                    check_chmod(cred, &state.subject())?;
                    state.mode = mode_after_chmod(cred, &state.subject(), state.gid, mode);
                    if let Some(value) = &mut state.access_acl {
                        *value = chmod_acl(value, state.mode)?;
                    }
                    Ok(())
                });
            }
            1 => {
                let uid = if rng.one_in(2) { None } else { Some(rng.pick(&[before.uid, 1000])) };
                let gid = if rng.one_in(2) { None } else { Some(rng.gid()) };
                if host.is_tmpfs() && before.flags != 0 && uid.is_none() && gid.is_none() {
                    return host.discard(path); // we follow ext4, which is stricter
                }
                let on_host = || fs::chown(path, uid.map(fs::Uid::from_raw), gid.map(fs::Gid::from_raw));
                check_change(host, path, &before, cred, &format!("chown {uid:?} {gid:?}"), on_host, |state| {
                    check_chown(cred, &state.subject(), uid, gid)?;
                    state.mode = mode_after_chown(cred, &state.subject());
                    state.uid = uid.unwrap_or(state.uid);
                    state.gid = gid.unwrap_or(state.gid);
                    Ok(())
                });
            }
            2 if by_fd => {
                let file = fs::open(path, OFlags::WRONLY, Mode::empty()).unwrap();
                let on_host = || rustix::io::write(&file, b"x").map(|_| ());
                check_change(host, path, &before, cred, "write", on_host, |state| {
                    state.mode = mode_after_write(cred, &state.subject());
                    Ok(())
                });
            }
            2 | 3 if before.subject().is_regular() => {
                // open(2) with O_TRUNC is the path-based truncate: rustix has only the other one.
                let options = OpenOptions {
                    read: rng.one_in(2),
                    write: rng.one_in(2),
                    append: rng.one_in(3),
                    truncate: rng.one_in(2),
                    ..OpenOptions::default()
                };
                let writes = options.write || options.append;
                let options = OpenOptions { read: options.read || !writes, ..options };
                let mut flags = match (options.read, writes) {
                    (true, true) => OFlags::RDWR,
                    (false, _) => OFlags::WRONLY,
                    (true, false) => OFlags::RDONLY,
                };
                flags.set(OFlags::APPEND, options.append);
                flags.set(OFlags::TRUNC, options.truncate);
                let on_host = || fs::open(path, flags, Mode::empty()).map(drop);
                check_change(host, path, &before, cred, &format!("{options:?}"), on_host, |state| {
                    check_open(cred, &state.subject(), &options)?;
                    if options.truncate {
                        state.mode = mode_after_write(cred, &state.subject());
                    }
                    Ok(())
                });
            }
            4 if host.flags && (before.subject().is_regular() || before.subject().is_dir()) => {
                let flags = rng.below(16) as u32 & flag::USER;
                if host.is_tmpfs() && before.flags & flags & flag::IMMUTABLE != 0 {
                    return host.discard(path); // tmpfs lets an immutable file's other flags change; we follow ext4
                }
                let file = fs::open(path, OFlags::RDONLY, Mode::empty()).unwrap();
                let others = fs::ioctl_getflags(&file).unwrap().difference(host_flags(flag::USER));
                let on_host = || fs::ioctl_setflags(&file, others.union(host_flags(flags)));
                check_change(host, path, &before, cred, &format!("flags {flags:#x}"), on_host, |state| {
                    check_flags(cred, &state.subject(), flags)?;
                    state.flags = flags;
                    Ok(())
                });
            }
            _ => {
                let time =
                    |rng: &mut Rng| rng.pick(&[None, Some(SetTime::Now), Some(SetTime::Now), Some(SetTime::At(0))]);
                let (atime, mtime) = (time(rng), time(rng));
                let host_time = |time| Timespec {
                    tv_sec: 0,
                    tv_nsec: match time {
                        None => fs::UTIME_OMIT,
                        Some(SetTime::Now) => fs::UTIME_NOW,
                        Some(SetTime::At(_)) => 0,
                    },
                };
                let times = Timestamps { last_access: host_time(atime), last_modification: host_time(mtime) };
                let on_host = || fs::utimensat(CWD, path, &times, AtFlags::empty());
                check_change(host, path, &before, cred, &format!("times {atime:?} {mtime:?}"), on_host, |state| {
                    check_set_times(cred, &state.subject(), atime, mtime)
                });
            }
        }
        host.discard(path);
    });
}

#[test]
fn xattrs_as_the_host() {
    on_hosts("xattrs", 4000, |host, rng| {
        let (path, before) = host.make(rng, &[S_IFREG, S_IFREG, S_IFDIR, S_IFDIR, S_IFIFO, S_IFLNK]);
        let path = path.as_path();
        let mut cred = rng.cred();
        if rng.one_in(2) {
            cred.uid = before.uid;
        }
        let cred = &cred;
        let name: &[u8] =
            rng.pick(&[b"user.a", b"user.a", b"trusted.a", b"security.a", ACCESS_ACL, ACCESS_ACL, DEFAULT_ACL]);
        let is_acl = name == ACCESS_ACL || name == DEFAULT_ACL;
        if !is_acl && (name != b"user.a" || before.subject().is_regular() || before.subject().is_dir()) {
            // The attribute is there already, so that only permission decides. (tmpfs may know no user.* names.)
            let saved = before.flags;
            if saved != 0 {
                set_flags(path, 0).unwrap();
            }
            let made = fs::lsetxattr(path, text(name), b"1", XattrFlags::empty());
            if saved != 0 {
                set_flags(path, saved).unwrap();
            }
            if made == Err(Errno::OPNOTSUPP) {
                return host.discard(path);
            }
            made.unwrap();
        }
        let value = match (is_acl, rng.below(8)) {
            (false, _) => b"2".to_vec(),
            (true, 0) => value_from_text(""),
            (true, _) => value_from_text(&rng.acl()),
        };
        let op = rng.pick(&[XattrOp::Get, XattrOp::Set, XattrOp::Set, XattrOp::Remove]);
        let on_host = || match op {
            XattrOp::Get => fs::lgetxattr(path, text(name), &mut [0; 4096][..]).map(|_| ()),
            XattrOp::Set => fs::lsetxattr(path, text(name), &value, XattrFlags::empty()),
            XattrOp::Remove => fs::lremovexattr(path, text(name)),
        };
        let what = format!("{op:?} {} {}", text(name), value.escape_ascii());
        check_change(host, path, &before, cred, &what, on_host, |state| {
            let acl = if is_acl && op == XattrOp::Set { Acl::parse(&value)? } else { None };
            let op = if is_acl && op == XattrOp::Set && acl.is_none() { XattrOp::Remove } else { op };
            check_xattr(cred, &state.subject(), name, op)?;
            match (name, op) {
                (ACCESS_ACL, XattrOp::Get) => state.access_acl.as_ref().map(|_| ()).ok_or(Errno::NODATA)?,
                (DEFAULT_ACL, XattrOp::Get) => state.default_acl.as_ref().map(|_| ()).ok_or(Errno::NODATA)?,
                (ACCESS_ACL, XattrOp::Remove) => {
                    state.access_acl = None;
                    // tmpfs treats this as a change of mode; ext4, and we, leave the setgid bit alone.
                    if host.is_tmpfs() && !cred.is_root() && !cred.in_group(state.gid) {
                        state.mode &= !S_ISGID;
                    }
                }
                (DEFAULT_ACL, XattrOp::Remove) => state.default_acl = None,
                (ACCESS_ACL, XattrOp::Set) => {
                    (state.mode, state.access_acl) = mode_from_acl(cred, &state.subject(), &acl.unwrap());
                }
                (DEFAULT_ACL, XattrOp::Set) => state.default_acl = Some(acl.unwrap().to_xattr()),
                _ => {}
            }
            Ok(())
        });
        host.discard(path);
    });
}

#[test]
fn acl_validity_as_the_host() {
    on_hosts("validity", 3000, |host, rng| {
        let path = host.make_file(S_IFDIR, 0o755);
        let name = rng.pick(&[ACCESS_ACL, DEFAULT_ACL]);
        let mut value = value_from_text(&rng.acl());
        match rng.below(5) {
            0 => value.truncate(rng.below(value.len() as u64 + 1) as usize),
            1 => {
                let at = rng.below(value.len() as u64) as usize;
                value[at] = rng.pick(&[0, 1, 2, 4, 8, 16, 32, 255]);
            }
            2 => {
                // Drop, repeat or swap whole entries.
                let count = (value.len() as u64 - 4) / 8;
                let (a, b) = (rng.below(count) as usize * 8 + 4, rng.below(count) as usize * 8 + 4);
                match rng.below(3) {
                    0 => drop(value.drain(a..a + 8)),
                    1 => value.extend_from_within(a..a + 8),
                    _ => (0..8).for_each(|i| value.swap(a + i, b + i)),
                }
            }
            3 => {
                // An id of -1, wherever it falls.
                let at = rng.below((value.len() as u64 - 4) / 8) as usize * 8 + 8;
                value[at..at + 4].fill(255);
            }
            _ => {}
        }
        let before = observe(&path);
        let answer = set_acl(&path, name, &value);
        let parsed = Acl::parse(&value);
        assert_eq!(parsed.as_ref().map(|_| ()).map_err(|e| *e), answer, "ours, host's: {}", value.escape_ascii());
        let after = observe(&path);
        let root = Cred::root();
        let ours = match parsed {
            Err(_) | Ok(None) => before,
            Ok(Some(acl)) if name == ACCESS_ACL => {
                let (mode, access_acl) = mode_from_acl(&root, &before.subject(), &acl);
                State { mode, access_acl, ..before }
            }
            Ok(Some(acl)) => State { default_acl: Some(acl.to_xattr()), ..before },
        };
        assert_eq!(ours, after, "ours, host's: {}", value.escape_ascii());
        host.discard(&path);
    });
}

#[test]
fn new_inodes_as_the_host() {
    on_hosts("create", 3000, |host, rng| {
        let (dir, state) = host.make(rng, &[S_IFDIR]);
        let cred = rng.cred();
        let file_type = rng.pick(&[S_IFREG, S_IFREG, S_IFDIR, S_IFDIR, S_IFIFO, S_IFLNK]);
        let mode = rng.mode();
        let path = dir.join("new");
        let answer = as_user(&cred, || {
            let mode = Mode::from_raw_mode(mode.into());
            match file_type {
                S_IFREG => fs::open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, mode).map(drop),
                S_IFDIR => fs::mkdir(&path, mode),
                S_IFLNK => fs::symlink("nowhere", &path),
                _ => fs::mknodat(CWD, &path, fs::FileType::Fifo, mode, 0),
            }
        });
        // The path walk searches the directory before anything else is asked.
        let ours = may_access(&cred, &state.subject(), EXECUTE)
            .and_then(|()| may_access(&cred, &state.subject(), WRITE | EXECUTE))
            .and_then(|()| new_inode(&cred, &state.subject(), state.default_acl.as_deref(), file_type | mode));
        let case = format!("{file_type:o} {mode:o} by {cred:?} in {state:?}");
        assert_eq!(ours.as_ref().map(|_| ()).map_err(|e| *e), answer, "ours, host's: {case}");
        if let Ok(new) = ours {
            let NewInode { uid, gid, mode, access_acl, default_acl } = new;
            let mut after = observe(&path);
            after.flags = 0; // ext4 lets some be inherited
            assert_eq!(State { mode, uid, gid, flags: 0, access_acl, default_acl }, after, "ours, host's: {case}");
        }
        host.discard(&dir);
    });
}

#[test]
fn removal_and_links_as_the_host() {
    on_hosts("remove", 3000, |host, rng| {
        let (dir, _) = host.make(rng, &[S_IFDIR]);
        set_flags(&dir, 0).or(if host.flags { Err(Errno::IO) } else { Ok(()) }).unwrap();
        let (old, _) = host.make(rng, &[S_IFREG, S_IFDIR]);
        let victim = dir.join("victim");
        let victim_flags = observe(&old).flags;
        if victim_flags != 0 {
            set_flags(&old, 0).unwrap();
        }
        fs::rename(&old, &victim).unwrap();
        if victim_flags != 0 {
            set_flags(&victim, victim_flags).unwrap();
        }
        if host.flags && rng.one_in(6) {
            set_flags(&dir, rng.pick(&[flag::IMMUTABLE, flag::APPEND])).unwrap();
        }
        let dir_state = observe(&dir);
        let state = observe(&victim);
        let cred = rng.cred();
        let links = rng.one_in(4) && state.subject().is_regular();
        let (answer, ours) = if links {
            // Only user 0: others are subject to the sysctl fs.protected_hardlinks.
            let ours = may_access(&Cred::root(), &dir_state.subject(), WRITE | EXECUTE)
                .and_then(|()| check_link(&state.subject()));
            (fs::link(&victim, dir.join("link")), ours)
        } else {
            let answer =
                as_user(&cred, || if state.subject().is_dir() { fs::rmdir(&victim) } else { fs::unlink(&victim) });
            let ours = may_access(&cred, &dir_state.subject(), EXECUTE) // by the path walk
                .and_then(|()| may_delete(&cred, &dir_state.subject(), &state.subject()));
            (answer, ours)
        };
        assert_eq!(ours, answer, "ours, host's: link {links} by {cred:?} of {state:?} in {dir_state:?}");
        if victim.exists() && victim_flags != 0 {
            set_flags(&dir, 0).unwrap();
            set_flags(&victim, 0).unwrap();
        }
        host.discard(&dir);
    });
}
