//! How a run that came to its end exits.

use std::process::ExitCode;

/// Exit code of a run that came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u8);

impl Status {
    pub const OK: Self = Self(0);
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        status.0.into()
    }
}
