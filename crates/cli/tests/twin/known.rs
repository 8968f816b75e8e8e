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

/// Whether the data of one answer lies within that of another.
fn is_within(narrow: &str, wide: &str) -> bool {
    let (Some(narrow), Some(wide)) = (extents(narrow), extents(wide)) else { return false };
    narrow.iter().all(|(from, to)| wide.iter().any(|(first, last)| first <= from && to <= last))
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
    TheKernel,
    /// It is meant to be so.
    Choice,
}

/// A difference that is known.
pub struct Known {
    pub name: &'static str,
    pub reason: &'static str,
    pub because: Because,
    pub then: Then,
    applies: fn(&Difference) -> bool,
}

use Because::{Choice, TheKernel};
use Then::{Ends, GoesOn, LeftOut};

/// Every known difference. The first that applies counts.
pub const KNOWN: &[Known] = &[
    Known {
        name: "user 0 without capabilities, unchecked by the kernel",
        reason: "requests name users, not capabilities: where the kernel does not check, user 0 may do everything",
        because: TheKernel,
        then: LeftOut,
        applies: |d| d.is_unchecked_by_kernel() && d.lacks() != Lacks::Nothing,
    },
    Known {
        name: "attributes of the system by user 0 as somebody else",
        reason: "CAP_SYS_ADMIN stays with who takes on another fsuid, and the daemon cannot know of it",
        because: TheKernel,
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
        because: TheKernel,
        then: GoesOn,
        applies: |d| d.is_refused_by_both() && (d.ours == "EPERM" || d.theirs == "EPERM"),
    },
    Known {
        name: "space asked for by user 0 without capabilities",
        reason: "no flag of FALLOCATE and COPY_FILE_RANGE says whether set-id bits stay: they stay for user 0 alone",
        because: TheKernel,
        then: LeftOut,
        applies: |d| {
            d.lacks() == Lacks::Everything && matches!(d.step.call, Call::Allocate { .. } | Call::CopyRange { .. })
        },
    },
    Known {
        name: "refusals in another order, checked by the daemon",
        reason: "the kernel walks all paths of a call before it asks the daemon, and finds names missing on the way",
        because: TheKernel,
        then: GoesOn,
        applies: |d| d.has("nodefault_permissions") && d.is_refused_by_both(),
    },
    Known {
        name: "the way up from a directory that may not be searched, checked by the daemon",
        reason: "the kernel goes from a directory to the one above it by itself, and asks nobody",
        because: TheKernel,
        then: Ends,
        applies: |d| {
            let goes_up = || format!("{:?}", d.step.call).contains("/..");
            d.has("nodefault_permissions")
                && d.what == What::Answer
                && d.theirs == "EACCES"
                && !is_refusal(d.ours)
                && goes_up()
        },
    },
    Known {
        name: "a default ACL taken from an immutable file",
        reason: "what is no directory has none, so the kernel answers by itself, and has no room for the flag",
        because: TheKernel,
        then: GoesOn,
        applies: |d| {
            d.what == What::Answer
                && d.ours == "ok"
                && d.theirs == "EPERM"
                && matches!(d.step.call, Call::RemoveAcl { is_default: true, .. })
        },
    },
    Known {
        name: "chown to nobody",
        reason: "of chown(-1, -1) FUSE tells the server nothing, neither whose set-id bits go nor whom to refuse",
        because: TheKernel,
        then: LeftOut,
        applies: |d| {
            matches!(d.step.call, Call::Chown { uid: None, gid: None, .. } | Call::Fchown { uid: None, gid: None, .. })
        },
    },
    Known {
        name: "pipes, sockets and devices opened unchecked",
        reason: "without default_permissions the kernel opens them by itself and asks nobody",
        because: TheKernel,
        then: GoesOn,
        applies: |d| {
            let is_special = ["ENXIO", "opened Fifo", "opened CharacterDevice", "opened BlockDevice"];
            d.has("nodefault_permissions")
                && d.what == What::Answer
                && d.theirs == "EACCES"
                && (d.ours == "no file" || is_special.iter().any(|special| d.ours.starts_with(special)))
        },
    },
    Known {
        name: "writes to a file made immutable, with writeback",
        reason: "the kernel takes what is written and sends it later, when the server can only refuse it",
        because: TheKernel,
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
        because: TheKernel,
        then: GoesOn,
        // One that was missed is made up for by the next.
        applies: |d| d.has("relatime") && d.what == What::Times && d.ours.starts_with("access"),
    },
    Known {
        name: "flags' change time with writeback",
        reason: "with the writeback cache the kernel keeps change times of files itself, and an ioctl does not move them",
        because: TheKernel,
        then: GoesOn,
        applies: |d| {
            d.has("writeback")
                && d.what == What::Times
                && d.ours == "change stayed"
                && matches!(d.step.call, Call::SetFlags { .. })
        },
    },
    Known {
        name: "times of a truncation to the same size, with writeback",
        reason: "the kernel moves the times that it keeps if the size changes",
        because: TheKernel,
        then: GoesOn,
        applies: |d| {
            d.has("writeback")
                && d.what == What::Times
                && d.ours.ends_with("stayed")
                && matches!(
                    d.step.call,
                    Call::Truncate { .. } | Call::Ftruncate { .. } | Call::Open { .. } | Call::Plant { .. }
                )
        },
    },
    Known {
        name: "times of a refused change of space, with writeback",
        reason: "the kernel moves the times that it keeps before it asks the server, which then refuses",
        because: TheKernel,
        then: GoesOn,
        applies: |d| {
            d.has("writeback")
                && d.what == What::Times
                && d.ours.ends_with("moved")
                && matches!(d.step.call, Call::Allocate { .. } | Call::CopyRange { .. })
        },
    },
    Known {
        name: "flags that ext4 hands on",
        reason: "what is made in a directory with nodump or noatime has them as well there; here a flag is of what it was set on",
        because: Choice,
        then: GoesOn,
        applies: |d| {
            let handed_on = ["40", "80", "c0"].map(|flags| format!(" flags {flags}"));
            d.what == What::Tree && handed_on.iter().any(|flags| d.theirs.replace(flags, "") == d.ours)
        },
    },
    Known {
        name: "space without data",
        reason: "ext4 fills small preallocations beside data with zeros, which are data then",
        because: Choice,
        then: GoesOn,
        applies: |d| matches!(d.step.call, Call::Extents { .. }) && is_within(d.ours, d.theirs),
    },
    Known {
        name: "holes told as data",
        reason: "the server tells of holes only where no program can have stored anything that the kernel still has",
        because: TheKernel,
        then: GoesOn,
        applies: |d| matches!(d.step.call, Call::Extents { .. }) && is_within(d.theirs, d.ours),
    },
    Known {
        name: "the first immutable and append-only files of a volume opened for writing",
        reason: "the kernel opens by itself on volumes that had none when they were mounted; they are refused at the write",
        because: Choice,
        then: Ends,
        applies: |d| {
            !["open", "direct_io", "nodefault_permissions"].iter().any(|word| d.has(word))
                && d.what == What::Answer
                && d.theirs == "EPERM"
                && matches!(d.step.call, Call::Open { .. } | Call::Plant { .. })
                && (d.ours.starts_with("opened RegularFile") || d.ours == "ok")
        },
    },
    Known {
        name: "files made append-only while open for writing",
        reason: "ext4 looks at the flag when a file is opened; here bytes of such a file stay what they are in any case",
        because: Choice,
        then: Ends,
        applies: |d| {
            d.what == What::Answer
                && d.ours == "EPERM"
                && !is_refusal(d.theirs)
                && matches!(d.step.call, Call::Write { .. } | Call::CopyRange { .. })
        },
    },
    Known {
        name: "change time of an ACL that was not there",
        reason: "removing nothing is a change of attributes here, as it is in other file systems",
        because: Choice,
        then: GoesOn,
        applies: |d| d.what == What::Times && d.ours == "change moved" && matches!(d.step.call, Call::RemoveAcl { .. }),
    },
];

pub fn find(difference: &Difference) -> Option<usize> {
    let is_asked = |known: &Known| (known.then == LeftOut) == (difference.what == What::Before);
    KNOWN.iter().position(|known| is_asked(known) && (known.applies)(difference))
}
