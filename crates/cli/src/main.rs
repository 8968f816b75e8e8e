//! The `myriad` command. All of it is in the library beside, so that fuzz targets reach its parsers.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    myriad_cli::run()
}
