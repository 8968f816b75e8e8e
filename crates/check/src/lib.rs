//! Check and repair of a volume: the second opinion. It shares format, device and log replay with the engine, nothing
//! else; what it believes about a volume is what `docs/FORMAT.md` says.
//!
//! ```text
//! open       superblock or a copy of it, log scanned into an overlay
//! inodes     group headers, inode trees or tables, inodes, file maps, attributes   (groups in parallel)
//! names      directories: entries, list of blocks with room, index             (directories in parallel)
//! links      orphan list, link counts, identities, every directory below the root
//! space      free-space trees or bitmaps, header counts, leaks, tables of data checksums   (groups in parallel)
//! totals     superblock
//! data       with `Options::scrub`: all file data, in the order of its blocks; who owns what is damaged
//! beside     a look at a volume that somebody has open for changes
//! online     a look at a moment of such a volume that its writer holds
//! repair     salvage, then everything derivable written anew (see `repair`), then all of the above again
//! ```
//!
//! Invariants
//!   1. Nothing is written unless `Options::repair`.
//!   2. Bytes from the device never reach an assertion, an index or unchecked arithmetic before they were checked. Each
//!      metadata block is followed once: the second owner of a block is a finding, not a descent.
//!   3. Memory: a bit a block in use (in pages, so that a sparse giant costs nothing), 9 bytes an inode slot for as many as
//!      `Options::slots_max` (see `table`), 17 a directory, the extents of damaged directories (in parts), a list of
//!      blocks with room of one directory; with `Options::scrub` one more bit a block. Findings are capped.
//!
//! Not here: exit codes and printing (the command line), policy of any kind.

#![forbid(unsafe_code)]

mod attributes;
mod beside;
mod bitmap;
mod blocks;
mod checksums;
mod context;
mod directory;
mod exchange;
mod fault;
mod findings;
mod inodes;
mod io;
mod links;
mod look;
mod map;
mod needed;
mod online;
mod options;
mod orphans;
mod owners;
mod repair;
mod replay;
mod report;
mod run;
mod scrub;
mod slots;
mod space;
mod superblock;
mod table;
mod tree;
mod visitor;

pub use beside::check_beside;
pub use findings::{KINDS, Kind, kind, number};
pub use online::{Online, check_moment};
pub use options::{CheckError, Options, Progress};
pub use report::{FileRange, Finding, LogLoss, Place, Report, Scrub, Totals};
pub use run::check;
pub use superblock::{Copies, CopyFound, find_superblock_copy};
