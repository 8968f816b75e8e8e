//! A look at a moment of a volume that goes on being changed.
//!
//! The writer holds the moment: a committed state of the volume, with the log as it was, in before-images of all metadata
//! that it has written over since (`myriad_device::Moment`). So this is the look at a volume after a crash right then, with
//! the same passes and the same findings, and no change since can show in it.
//!
//! With `Options::scrub` it reads the data of the moment too. Data with checksums stays where it is until it is freed, and
//! what has been freed by the time that it is read is passed over (`Scrub::freed_blocks`).

use crate::look::{Writer, look};
use crate::options::{CheckError, Options};
use crate::report::Report;
use myriad_device::Moment;

/// What became of a look at a moment.
#[derive(Debug)]
pub enum Online {
    Checked(Box<Report>),
    /// The writer gave the moment up, and why; what was seen says nothing.
    GivenUp(String),
}

/// Looks at a moment, and writes nothing. Whether the writer itself is still there, the caller has to know.
pub fn check_moment(moment: &Moment, options: &Options<'_>) -> Result<Online, CheckError> {
    let looked = look(&moment.volume(), moment.log().as_ref(), options, Writer::Holds(moment));
    if let Err(CheckError::Cancelled) = looked {
        return Err(CheckError::Cancelled);
    }
    // Whatever went wrong may come of the moment's end.
    let failed = |source| CheckError::Io { op: "read of before-images", offset: 0, source };
    match moment.given_up().map_err(failed)? {
        Some(why) => Ok(Online::GivenUp(why)),
        None => looked.map(|outcome| Online::Checked(Box::new(outcome.report))),
    }
}
