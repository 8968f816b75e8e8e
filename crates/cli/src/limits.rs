//! Limits that the host sets to this process.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Lets this process have as many files open at a time as it may; how many that are, and `None` without a limit. Where trees are deep,
/// many directories are open; whoever cannot have them is refused by name.
pub fn raise_open_files() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    let lowest = limit.current;
    limit.current = limit.maximum;
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.current,
        Err(_) => lowest,
    }
}
