//! Myriad's engine: a local file system for very many files, in the caller's own process.
//!
//! A volume is one image file or block device. [`Fs`] opens it, a [`Session`] is one user's view of it, a [`File`] is a file
//! open for reading or writing. All three may be sent to other threads and shared between them.
//!
//! ```
//! use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, OpenOptions};
//! use std::io::Write;
//!
//! # fn main() -> std::io::Result<()> {
//! let image = std::env::temp_dir().join(format!("myriad-example-{}.img", std::process::id()));
//! Fs::format(&image, Some(64 << 20), &MkfsOptions::default())?;
//! let fs = Fs::open(&image, MountOptions::default())?;
//! let session = fs.session(Cred::root());
//! session.create_dir_all("notes/2026")?;
//! session.write("notes/2026/first", "Dear all,\n")?;
//! let mut file = session.open("notes/2026/first", OpenOptions { append: true, ..OpenOptions::READ })?;
//! writeln!(file, "a file is Read, Write and Seek.")?;
//! fs.sync()?; // all of it is durable
//! assert_eq!(session.read_to_string("notes/2026/first")?, "Dear all,\na file is Read, Write and Seek.\n");
//! drop((session, file));
//! fs.close()?;
//! # std::fs::remove_file(&image)?;
//! # Ok(())
//! # }
//! ```
//!
//! `examples/walk.rs` is a program that lists a volume: `cargo run -p myriad-engine --example walk -- vol.img`.
//!
//! Names are bytes, and a path may be anything that names a file ([`AsPath`]). Errors carry the errno a system call would return
//! ([`Error::errno`]), and `?` makes them `std::io::Error`. Without a sync, a change reaches the
//! device within [`MountOptions::commit_interval_ms`]; what a crash may leave is in `docs/design/crash-safety.md`.
//!
//! Many files at once: [`Session::stat_many`] overlaps the waits of its lookups, [`Session::walk`] visits a tree depth first,
//! [`Session::remove_tree`] reports progress and can be cancelled.
//!
//! ```
//! # use myriad_engine::{Cred, Fs};
//! # fn main() -> myriad_engine::Result<()> {
//! let session = Fs::in_memory(64 << 20)?.session(Cred::root());
//! for name in ["a", "b", "c"] {
//!     session.create(name, 0o644)?;
//! }
//! let stats = session.stat_many(&["a", "b", "missing"]);
//! assert!(stats[0].is_ok() && stats[2].is_err());
//! let names: Vec<_> = session.walk("/")?.map(|entry| entry.map(|entry| entry.path)).collect::<Result<_, _>>()?;
//! assert_eq!(names, [&b""[..], b"a", b"b", b"c"]);
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

mod attr_list;
mod btree;
mod cache;
mod checksums;
mod counters;
mod dir;
mod edit;
mod error;
mod file;
mod inode;
mod inodes;
mod locks;
mod map;
mod mkfs;
mod name_cache;
mod namei;
mod ops;
pub mod options;
mod order;
mod perm;
mod placement;
#[cfg_attr(feature = "planted-bugs", doc(hidden))]
#[cfg(feature = "planted-bugs")]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
mod planted;
mod random;
#[doc(hidden)]
pub mod schedule;
mod session;
mod space;
#[doc(hidden)]
pub mod starve;
mod sync;
mod thread_slot;
mod types;
mod volume;
mod way_up;
mod xattr;

pub use error::{BadOption, DamagedData, Errno, Error, IoError, Result, Truncated};
pub use myriad_format::leftovers::Leftovers;
pub use order::moment::HeldMoment;
pub use session::*;
pub use types::*;
