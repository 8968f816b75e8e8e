//! A look at one moment of a volume that programs go on changing.
//!
//! The engine, which writes the volume, holds the moment: a committed state, the log as it was then, and before-images
//! of all metadata blocks that it has written over since (`myriad_device::Moment`). So the look sees what it would see
//! after a crash at that moment, in the same passes and with the same findings, and no later change shows in it.
//!
//! With `Options::scrub` it also reads the data of the moment. Data with checksums stays where it is until it is freed;
//! the scrub passes over blocks that were freed by the time it reads them (`Scrub::freed_blocks`).

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
