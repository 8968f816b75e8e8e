//! Limits that the host sets to this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::OnceLock;

/// What this process was given, once it has raised that.
static GIVEN: OnceLock<Rlimit> = OnceLock::new();

/// Lets this process have as many files open at a time as it may; how many that are, and `None` without a limit. Where trees are deep,
/// many directories are open; whoever cannot have them is refused by name.
pub fn raise_open_files() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    let lowest = limit.current;
    GIVEN.get_or_init(|| limit);
    limit.current = limit.maximum;
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.current,
        Err(_) => lowest,
    }
}

/// Starts a program of the user's under the limit that this process was given: programs that wait by select(2) cannot have more files than
/// usual, and some close as many as they may have.
pub fn as_given<T>(start: impl FnOnce() -> T) -> T {
    let Some(given) = GIVEN.get() else { return start() };
    let raised = getrlimit(Resource::Nofile);
    // Both are within what this process may have.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: given.current, maximum: raised.maximum });
    let started = start();
    let _ = setrlimit(Resource::Nofile, raised);
    started
}
