//! Who asks: from a request's header to a session of the engine.

use super::{VolumeService, errno};
use crate::wire::InHeader;
use myriad_engine::{Cred, Errno, Node, Session};

/// A user who owns nothing: for set-id bits that go though user 0 asks, who lacks the capability to keep them.
const NOBODY: u32 = 65534;
/// The bit of a mode.
const SETGID: u32 = 0o2000;

impl VolumeService {
    /// The caller, for requests that change things.
    pub(super) fn session(&self, header: &InHeader) -> Session {
        self.session_with(header, 0, false)
    }

    /// The caller of a request that makes a file of this mode. In a setgid directory only members of its group get setgid
    /// on a file that the group may execute. `umask` counts only where the kernel leaves it to us.
    pub(super) fn maker(&self, header: &InHeader, mode: u32, umask: u32) -> Session {
        self.session_with(header, umask, mode & SETGID != 0)
    }

    fn session_with(&self, header: &InHeader, umask: u32, group_matters: bool) -> Session {
        let is_checked = self.settings.default_permissions;
        let groups = if group_matters || !is_checked { groups_of(header) } else { Vec::new() };
        let umask = if self.agreement.acl { (umask & 0o777) as u16 } else { 0 };
        let cred = Cred { uid: header.uid, gid: header.gid, groups, umask };
        if is_checked { self.fs.session_checked(cred) } else { self.fs.session(cred) }
    }

    /// The caller of a request that only looks: nobody's, unless permissions are to be checked.
    pub(super) fn reader(&self, header: &InHeader) -> SessionRef<'_> {
        if self.settings.default_permissions {
            SessionRef::Shared(&self.kernel)
        } else {
            SessionRef::Own(Box::new(self.session(header)))
        }
    }

    /// The caller of a request that changes a file's content or ACL. The kernel says whether that takes set-id bits
    /// away; `group_matters` if setgid without group execute is among them, which members of the group keep.
    pub(super) fn writer(&self, header: &InHeader, kills_set_id: bool, group_matters: bool) -> Session {
        if !kills_set_id {
            return self.fs.session_checked(Cred { umask: 0, ..Cred::root() });
        }
        let uid = if header.uid == 0 { NOBODY } else { header.uid };
        let groups = if group_matters { groups_of(header) } else { Vec::new() };
        self.fs.session_checked(Cred { uid, gid: header.gid, groups, umask: 0 })
    }
}

/// What user 0 may lack, by its bit in the mask that /proc shows.
#[derive(Clone, Copy)]
pub(super) enum Capability {
    /// CAP_FSETID: what is written keeps its set-id bits.
    KeepSetId = 4,
    /// CAP_LINUX_IMMUTABLE: flags that say what may be done to a file at all.
    SetImmutable = 9,
    /// CAP_SYS_ADMIN: what concerns the whole volume.
    Administrate = 21,
}

/// Whether the thread that asks has a capability. Whoever makes a user namespace of his own (`unshare -U`) has all of them there; here they
/// count only in the namespace that this process is in. If that cannot be found out, he has none: no other file of /proc tells one namespace
/// from another for sure.
pub(super) fn has_capability(header: &InHeader, capability: Capability) -> bool {
    let effective = || u64::from_str_radix(status_of(header, "CapEff:")?.trim(), 16).ok();
    // Kernels without user namespaces have no such link.
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    effective().is_some_and(|mask| mask & 1 << capability as u32 != 0)
        && namespace(&header.pid.to_string()) == namespace("self")
}

impl VolumeService {
    /// Whether a change of content takes set-id bits away of which the request does not say so: unless user 0 asks, with the
    /// capability to keep them. That is looked at only where there are any.
    pub(super) fn kills_set_id(&self, header: &InHeader, node: Node) -> Result<bool, Errno> {
        if header.uid != 0 {
            return Ok(true);
        }
        let has_some = self.kernel.stat_node(node).map_err(errno)?.mode & 0o6000 != 0;
        Ok(has_some && !has_capability(header, Capability::KeepSetId))
    }
}

/// A session made for one request, or the one for all.
pub(super) enum SessionRef<'a> {
    Shared(&'a Session),
    Own(Box<Session>),
}

impl std::ops::Deref for SessionRef<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        match self {
            Self::Shared(session) => session,
            Self::Own(session) => session,
        }
    }
}

/// Supplementary groups of the process that asks, which requests do not carry. None if it is gone or not to be seen:
/// then it gets the permissions of its first group.
pub(super) fn groups_of(header: &InHeader) -> Vec<u32> {
    let line = status_of(header, "Groups:").unwrap_or_default();
    line.split_whitespace().filter_map(|gid| gid.parse().ok()).collect()
}

/// A line of what /proc has of the thread that asks; `None` if it is gone or not to be seen.
fn status_of(header: &InHeader, key: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", header.pid)).ok()?;
    status.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned)
}
