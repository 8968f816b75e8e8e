//! dirhash: directories with hashes in memory over them.

mod gone;
mod hashes;
mod volume;

/// Bytes of a unit of a directory, of which entries are written as one.
const UNIT: u64 = 512;
