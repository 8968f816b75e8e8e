//! How a mount differs from ext4, and why that is as it should be or cannot be otherwise. Nothing else may differ.
//!
//! Each entry is met by some program, or the long form says that it is stale.

use crate::calls::{ACTORS, Call, Lacks, Step};

/// Two answers, trees or times that are not the same.
pub struct Difference<'a> {
    /// Options of the mount, with a comma before and behind each.
    pub options: &'a str,
    pub step: &'a Step,
    /// What is compared.
    pub what: What,
    pub ours: &'a str,
    pub theirs: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Nothing yet: whether the step is to be done at all.
    Before,
    Answer,
    Times,
    Tree,
}

impl Difference<'_> {
    fn has(&self, word: &str) -> bool {
        self.options.contains(&format!(",{word},"))
    }

    /// The daemon checks permissions, or nobody.
    fn is_unchecked_by_kernel(&self) -> bool {
        self.has("nodefault_permissions") || !self.has("allow_other")
    }

    fn lacks(&self) -> Lacks {
        ACTORS[self.step.actor].lacks
    }

    fn is_answer(&self, ours: &str, theirs: &str) -> bool {
        self.what == What::Answer && self.ours == ours && self.theirs == theirs
    }

    fn is_refused_by_both(&self) -> bool {
        self.what == What::Answer && is_refusal(self.ours) && is_refusal(self.theirs)
    }
}

/// An errno by its name, and nothing else.
fn is_refusal(answer: &str) -> bool {
    answer.starts_with('E') && answer.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
}

/// Where data is, of an answer that says so.
fn extents(answer: &str) -> Option<Vec<(u64, u64)>> {
    let list = answer.split_once("data [")?.1.strip_suffix(']')?;
    let ranges = list.split(", ").filter(|range| !range.is_empty());
    let numbers = |range: &str| {
        let (from, to) = range.split_once("..")?;
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    ranges.map(numbers).collect()
}

/// How a program goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The step is left out.
    LeftOut,
    /// Both sides are what they were, or the same as each other: the program goes on.
    GoesOn,
    /// The sides are no longer the same: the program ends.
    Ends,
}

/// Why a difference is known and not mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// Of FUSE: the kernel asks nothing, or tells too little.
    OfTheKernel,
    /// It is meant to be so.
    OfChoice,
    /// It is wrong, and to be mended.
    OfFault,
}

/// A difference that is known.
pub struct Known {
    pub name: &'static str,
    pub reason: &'static str,
    pub because: Because,
    pub then: Then,
    applies: fn(&Difference) -> bool,
}

use Because::{OfChoice, OfFault, OfTheKernel};
use Then::{Ends, GoesOn, LeftOut};

/// Every known difference. The first that applies counts.
pub const KNOWN: &[Known] = &[
    Known {
        name: "user 0 without capabilities, unchecked by the kernel",
        reason: "requests name users, not capabilities: where the kernel does not check, user 0 may do everything",
        because: OfTheKernel,
        then: LeftOut,
        applies: |d| d.is_unchecked_by_kernel() && d.lacks() != Lacks::Nothing,
    },
    Known {
        name: "attributes of the system by user 0 as somebody else",
        reason: "CAP_SYS_ADMIN stays with who takes on another fsuid, and the daemon cannot know of it",
        because: OfTheKernel,
        then: LeftOut,
        applies: |d| {
            d.has("nodefault_permissions")
                && ACTORS[d.step.actor].fsuid.is_some()
                && matches!(&d.step.call, Call::SetAttribute { name, .. } | Call::GetAttribute { name, .. }
                    | Call::RemoveAttribute { name, .. } if name.starts_with("trusted.") || name.starts_with("security."))
        },
    },
    Known {
        name: "immutable and append-only files refused later",
        reason: "the kernel has no room for these flags in a FUSE inode, so its own refusals go first",
        because: OfTheKernel,
        then: GoesOn,
        applies: |d| d.is_refused_by_both() && (d.ours == "EPERM" || d.theirs == "EPERM"),
    },
    Known {
        name: "space asked for by user 0 without capabilities",
        reason: "no flag of FALLOCATE and COPY_FILE_RANGE says whether set-id bits stay: they stay for user 0 alone",
        because: OfTheKernel,
        then: LeftOut,
        applies: |d| {
            d.lacks() == Lacks::Everything && matches!(d.step.call, Call::Allocate { .. } | Call::CopyRange { .. })
        },
    },
    Known {
        name: "refusals in another order, checked by the daemon",
        reason: "the kernel walks all paths of a call before it asks the daemon, and finds names missing on the way",
        because: OfTheKernel,
        then: GoesOn,
        applies: |d| d.has("nodefault_permissions") && d.is_refused_by_both(),
    },
    Known {
        name: "chown to nobody",
        reason: "of chown(-1, -1) FUSE tells the server nothing, neither whose set-id bits go nor whom to refuse",
        because: OfTheKernel,
        then: LeftOut,
        applies: |d| {
            matches!(d.step.call, Call::Chown { uid: None, gid: None, .. } | Call::Fchown { uid: None, gid: None, .. })
        },
    },
    Known {
        name: "pipes, sockets and devices opened unchecked",
        reason: "without default_permissions the kernel opens them by itself and asks nobody",
        because: OfTheKernel,
        then: GoesOn,
        applies: |d| {
            let is_special = ["ENXIO", "opened Fifo", "opened CharacterDevice", "opened BlockDevice"];
            d.has("nodefault_permissions")
                && d.what == What::Answer
                && d.theirs == "EACCES"
                && matches!(d.step.call, Call::Open { .. } | Call::Plant { .. } | Call::CopyByHoles { .. })
                && (d.ours == "no file" || is_special.iter().any(|special| d.ours.starts_with(special)))
        },
    },
    Known {
        name: "writes to a file made immutable, with writeback",
        reason: "the kernel takes what is written and sends it later, when the server can only refuse it",
        because: OfTheKernel,
        then: Ends,
        applies: |d| {
            d.has("writeback")
                && d.what == What::Answer
                && d.theirs == "EPERM"
                && matches!(d.step.call, Call::Write { .. } | Call::CopyRange { .. } | Call::Plant { .. })
        },
    },
    Known {
        name: "access times of cached reads",
        reason: "the server does not see reads that the kernel answers from what it has",
        because: OfTheKernel,
        then: GoesOn,
        // One that was missed is made up for by the next.
        applies: |d| d.has("relatime") && d.what == What::Times && d.ours.starts_with("access"),
    },
    Known {
        name: "flags' change time with writeback",
        reason: "with the writeback cache the kernel keeps change times of files itself, and an ioctl does not move them",
        because: OfTheKernel,
        then: GoesOn,
        applies: |d| {
            d.has("writeback")
                && d.what == What::Times
                && d.ours == "change stayed"
                && matches!(d.step.call, Call::SetFlags { .. })
        },
    },
    Known {
        name: "times of a refused change of space, with writeback",
        reason: "the kernel moves the times that it keeps before it asks the server, which then refuses",
        because: OfTheKernel,
        then: GoesOn,
        applies: |d| {
            d.has("writeback")
                && d.what == What::Times
                && d.ours.ends_with("moved")
                && matches!(d.step.call, Call::Allocate { .. } | Call::CopyRange { .. })
        },
    },
    Known {
        name: "space without data",
        reason: "ext4 fills small preallocations beside data with zeros, which are data then",
        because: OfChoice,
        then: GoesOn,
        applies: |d| {
            let covers = |wide: &[(u64, u64)], narrow: &[(u64, u64)]| {
                narrow.iter().all(|(from, to)| wide.iter().any(|(first, last)| first <= from && to <= last))
            };
            let is_covered = |ours, theirs| Some(covers(&extents(theirs)?, &extents(ours)?));
            matches!(d.step.call, Call::Extents { .. }) && is_covered(d.ours, d.theirs) == Some(true)
        },
    },
    Known {
        name: "change time of an ACL that was not there",
        reason: "removing nothing is a change of attributes here, as it is in other file systems",
        because: OfChoice,
        then: GoesOn,
        applies: |d| d.what == What::Times && d.ours == "change moved" && matches!(d.step.call, Call::RemoveAcl { .. }),
    },
    Known {
        name: "user 0 as somebody else on a mount for user 0 alone",
        reason: "nobody checks there, for whom user 0 takes on another fsuid may do what only user 0 should",
        because: OfFault,
        then: Ends,
        applies: |d| {
            !d.has("allow_other")
                && ACTORS[d.step.actor].fsuid.is_some()
                && d.what == What::Answer
                && ["EACCES", "EPERM"].iter().any(|refusal| d.theirs.contains(refusal))
        },
    },
    Known {
        name: "access(2) on a mount for user 0 alone",
        reason: "all is granted there, also the execution of what nobody may execute",
        because: OfFault,
        then: GoesOn,
        applies: |d| !d.has("allow_other") && d.is_answer("ok", "EACCES") && matches!(d.step.call, Call::Access { .. }),
    },
    Known {
        name: "files open for writing, checked by the daemon",
        reason: "who has a file open may truncate it and, if it has no name, name it; the daemon asks for his rights anew",
        because: OfFault,
        then: Ends,
        applies: |d| {
            d.has("nodefault_permissions")
                && d.what == What::Answer
                && is_refusal(d.ours)
                && !is_refusal(d.theirs)
                && matches!(d.step.call, Call::Ftruncate { .. } | Call::LinkOpen { .. })
        },
    },
    Known {
        name: "programs that may be executed and not read, checked by the daemon",
        reason: "the kernel opens a program like any other file, and the daemon asks for the right to read",
        because: OfFault,
        then: Ends,
        applies: |d| {
            d.has("nodefault_permissions") && d.ours == "EACCES" && matches!(d.step.call, Call::Execute { .. })
        },
    },
    Known {
        name: "set-id bits that a write took away",
        reason: "the kernel goes on with the mode that it had",
        because: OfFault,
        then: Ends,
        applies: |d| matches!(d.step.call, Call::Mode { .. }) && !is_refusal(d.ours) && !is_refusal(d.theirs),
    },
    Known {
        name: "immutable and append-only files opened for writing",
        reason: "opened without asking, they are refused at the write",
        because: OfFault,
        then: Ends,
        applies: |d| {
            d.what == What::Answer
                && d.theirs == "EPERM"
                && matches!(d.step.call, Call::Open { .. } | Call::Plant { .. })
                && (d.ours.starts_with("opened RegularFile") || d.ours == "ok")
        },
    },
    Known {
        name: "links to others' files, checked by the daemon",
        reason: "the rule of fs.protected_hardlinks is the kernel's, which does not apply it here",
        because: OfFault,
        then: Ends,
        applies: |d| {
            d.has("nodefault_permissions") && d.is_answer("ok", "EPERM") && matches!(d.step.call, Call::Link { .. })
        },
    },
    Known {
        name: "holes where data is mapped or held back",
        reason: "SEEK_DATA and SEEK_HOLE are answered by what the server has",
        because: OfFault,
        then: Ends,
        applies: |d| {
            matches!(d.step.call, Call::CopyByHoles { .. }) && d.what == What::Answer && d.ours != d.theirs
                || d.what == What::Tree && d.ours.contains("a copy has")
        },
    },
];

pub fn find(difference: &Difference) -> Option<usize> {
    let is_asked = |known: &Known| (known.then == LeftOut) == (difference.what == What::Before);
    KNOWN.iter().position(|known| is_asked(known) && (known.applies)(difference))
}
