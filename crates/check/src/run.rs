//! One check from end to end.

use crate::exchange;
use crate::look::{Writer, look};
use crate::options::{CheckError, Options};
use crate::repair::repair;
use crate::report::Report;
use myriad_device::BlockDevice;
use std::sync::Arc;

/// Checks a volume, and repairs it if asked to and needed.
pub fn check(
    device: Arc<dyn BlockDevice>,
    log_device: Option<Arc<dyn BlockDevice>>,
    options: &Options<'_>,
) -> Result<Report, CheckError> {
    if options.repair {
        return repair(&device, log_device.as_ref(), options);
    }
    Ok(look(&exchange::finished(&device), log_device.as_ref(), options, Writer::Nobody)?.report)
}
