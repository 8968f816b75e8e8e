//! Tar archives, read and written as streams.
//!
//!     header.rs   the 512-byte header: numbers, names, checksum
//!     pax.rs      extended headers: records of keys and values
//!     acl.rs      ACLs, which archives hold as text
//!     sparse.rs   maps of files with holes, in the four ways GNU tar has written them
//!     read.rs     archive -> batches
//!     write.rs    batches -> archive, in PAX format
//!
//! Why not the `tar` crate: it reads extended headers of any length into memory, knows of GNU's sparse formats only the
//! oldest and shows holes as zeros, and reports no offsets. What it would save is the header, the small part.

mod header;
pub(super) mod pax;
mod read;
mod sparse;
#[cfg(test)]
mod tests;
mod write;

pub use read::read;
pub use write::{Writer, takes};

/// Unit of an archive.
const BLOCK: usize = 512;
