//! INIT: what kernel and server agree on.

use crate::options::Options;
use crate::wire::{EXPIRE_ONLY_SINCE, InitIn, InitOut, MAJOR, MINOR, init};

/// Largest read or write request: longer ones gain nothing, shorter ones cost direct reads a quarter.
pub const REQUEST_MAX: usize = 1 << 20;

/// The same in pages. The kernel counts its own, which are larger than 4 KiB on some machines: told more than fit, it would ask
/// for more than an answer has room for, and take the short answer for the end of the file.
fn pages_max(page_size: usize) -> u16 {
    u16::try_from(REQUEST_MAX / page_size).unwrap_or(u16::MAX).max(1)
}

/// What a mount asks of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    pub no_open: bool,
    pub acl: bool,
    pub writeback: bool,
    /// Reads and writes never go through the kernel's cache.
    pub direct_io: bool,
    pub ring: bool,
}

impl Wishes {
    /// `owns_root`: who mounts owns the root, as it is shown.
    pub fn new(options: &Options, has_acls: bool, owns_root: bool, ring: bool) -> Self {
        // For each inode the kernel asks whether there is one when somebody else than its owner uses it, and for the root of
        // a mount, of which it keeps no answer, every time: who mounts for himself does not notice.
        let cost_little = owns_root && !options.allow_other;
        let acl_by_default = options.default_permissions && !options.unchecked && cost_little;
        Self {
            // The kernel opens by itself only what needs no answer to OPEN: direct I/O does, and permissions that it is
            // not to check.
            no_open: options.no_open && !options.direct_io && options.default_permissions,
            // With them the kernel checks permissions, whatever else was wanted.
            acl: (has_acls || options.acl.unwrap_or(acl_by_default)) && !options.no_xattr,
            writeback: options.writeback && !options.direct_io,
            direct_io: options.direct_io,
            ring,
        }
    }

    fn flags(self) -> u64 {
        let mut flags = init::ASYNC_READ
            | init::EXPORT_SUPPORT
            | init::BIG_WRITES
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::NO_OPEN_SUPPORT
            | init::PARALLEL_DIROPS
            | init::ABORT_ERROR
            | init::MAX_PAGES
            | init::CACHE_SYMLINKS
            | init::EXPLICIT_INVAL_DATA
            | init::HANDLE_KILLPRIV_V2
            | init::SETXATTR_EXT
            | init::INIT_EXT
            | init::DIRECT_IO_ALLOW_MMAP;
        if !self.no_open {
            // Without OPEN nobody would truncate.
            flags |= init::ATOMIC_O_TRUNC;
        }
        if self.acl {
            // A directory's default ACL may take the umask's place, and only the server knows it.
            flags |= init::POSIX_ACL | init::DONT_MASK;
        }
        if self.direct_io {
            // Of a direct write that it answers later the kernel does not drop what readers have brought into its cache
            // meanwhile: where there are such readers, it must wait for the answer.
            flags |= init::ASYNC_DIO;
        }
        if self.writeback {
            flags |= init::WRITEBACK_CACHE;
        }
        if self.ring {
            flags |= init::OVER_IO_URING;
        }
        flags
    }
}

/// What was agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    pub no_open: bool,
    pub acl: bool,
    pub ring: bool,
    /// SETXATTR has all its fields.
    pub setxattr_ext: bool,
    /// OPEN also truncates.
    pub atomic_truncate: bool,
    /// The kernel keeps what is written.
    pub writeback: bool,
    /// The kernel can be told to look a name up before it trusts it again, and need not drop it.
    pub expires_names: bool,
}

impl Agreement {
    /// Whether the server can tell that the kernel holds nothing of a file that the volume lacks: it is asked at each
    /// opening, and what is written is sent at once. What programs store through a mapping is sent at the latest when the
    /// last file that was opened for writing is released.
    pub fn knows_writers(&self) -> bool {
        !self.no_open && !self.writeback
    }
}

/// Answers INIT: of our wishes, those that the kernel knows.
pub fn negotiate(theirs: &InitIn, wishes: Wishes) -> (InitOut, Agreement) {
    let extended = u64::from(theirs.flags) & init::INIT_EXT != 0;
    let offered = u64::from(theirs.flags) | if extended { u64::from(theirs.flags2) << 32 } else { 0 };
    let agreed = offered & wishes.flags();
    let out = InitOut {
        major: MAJOR,
        minor: MINOR,
        // The kernel takes the lesser of this and what the mount's device is set to, which is ours to set (`mount_point`).
        max_readahead: u32::MAX,
        flags: agreed as u32,
        flags2: (agreed >> 32) as u32,
        max_background: 64,
        congestion_threshold: 48,
        max_write: REQUEST_MAX as u32,
        time_gran: 1,
        max_pages: pages_max(rustix::param::page_size()),
        ..InitOut::default()
    };
    let has = |flag| agreed & flag != 0;
    let agreement = Agreement {
        no_open: wishes.no_open && has(init::NO_OPEN_SUPPORT),
        acl: has(init::POSIX_ACL),
        ring: has(init::OVER_IO_URING),
        setxattr_ext: has(init::SETXATTR_EXT),
        atomic_truncate: has(init::ATOMIC_O_TRUNC),
        writeback: has(init::WRITEBACK_CACHE),
        expires_names: theirs.minor >= EXPIRE_ONLY_SINCE,
    };
    (out, agreement)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes() -> Wishes {
        Wishes { no_open: true, acl: true, writeback: false, direct_io: false, ring: true }
    }

    #[test]
    fn nothing_is_taken_that_was_not_offered() {
        let theirs = InitIn { major: 7, minor: 31, flags: init::BIG_WRITES as u32, ..InitIn::default() };
        let (out, agreement) = negotiate(&theirs, wishes());
        assert_eq!((u64::from(out.flags), out.flags2), (init::BIG_WRITES, 0));
        assert_eq!(agreement, Agreement::default());
        // Flags from bit 32 on count only with INIT_EXT.
        let high = (init::OVER_IO_URING >> 32) as u32;
        let theirs = InitIn { flags2: high, ..theirs };
        assert!(!negotiate(&theirs, wishes()).1.ring);
        let theirs = InitIn { flags: init::INIT_EXT as u32, ..theirs };
        assert!(negotiate(&theirs, wishes()).1.ring);
        assert!(!agreement.setxattr_ext);
        let theirs = InitIn { flags: theirs.flags | init::SETXATTR_EXT as u32, ..theirs };
        assert!(negotiate(&theirs, wishes()).1.setxattr_ext);
        for (minor, expires_names) in [(37, false), (38, true), (45, true)] {
            assert_eq!(negotiate(&InitIn { minor, ..theirs }, wishes()).1.expires_names, expires_names, "7.{minor}");
        }
    }

    /// Pages were taken to have 4 KiB everywhere: with larger ones a READ was for more than its answer could hold.
    #[test]
    fn a_request_has_no_more_pages_than_it_has_room_for() {
        assert_eq!([4 << 10, 16 << 10, 64 << 10].map(pages_max), [256, 64, 16]);
        assert_eq!(pages_max(4 << 20), 1);
        let (out, _) = negotiate(&InitIn { major: 7, minor: 31, ..InitIn::default() }, wishes());
        assert!(usize::from(out.max_pages) * rustix::param::page_size() <= REQUEST_MAX);
    }

    #[test]
    fn truncation_by_open_needs_opens() {
        let theirs = InitIn { flags: u32::MAX, flags2: u32::MAX, ..InitIn::default() };
        let (out, agreement) = negotiate(&theirs, wishes());
        assert!(agreement.no_open && !agreement.atomic_truncate);
        assert_eq!(u64::from(out.flags) & (init::ATOMIC_O_TRUNC | init::WRITEBACK_CACHE), 0);
        let (_, agreement) = negotiate(&theirs, Wishes { no_open: false, ..wishes() });
        assert!(!agreement.no_open && agreement.atomic_truncate);
        let options = Options { direct_io: true, ..Options::default() };
        assert!(!Wishes::new(&options, false, true, false).no_open);
    }

    #[test]
    fn access_control_lists_are_for_who_is_checked_by_the_kernel_and_mounts_for_himself() {
        let acl = |options: Options, has_acls| Wishes::new(&options, has_acls, true, false).acl;
        let default = Options::default;
        assert!(acl(default(), false));
        assert!(!Wishes::new(&default(), false, false, false).acl);
        assert!(!acl(Options { allow_other: true, ..default() }, false));
        for options in [Options { unchecked: true, ..default() }, Options { default_permissions: false, ..default() }] {
            assert!(!acl(Options { acl: None, ..options }, false));
        }
        assert!(acl(Options { default_permissions: false, acl: Some(true), ..default() }, false));
        for (has_acls, no_xattr, expected) in [(false, false, false), (true, false, true), (true, true, false)] {
            assert_eq!(acl(Options { acl: Some(false), no_xattr, ..default() }, has_acls), expected);
        }
    }
}
