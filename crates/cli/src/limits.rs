//! What the host lets a process have.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Many directories are open at a time where trees are deep.
pub fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it only very deep trees are refused, by name.
    let _ = setrlimit(Resource::Nofile, limit);
}
