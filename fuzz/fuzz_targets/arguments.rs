//! Command lines: sizes, dates, modes, IMAGE:/path, patterns, options. Parsed, not run.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let arguments: Vec<&[u8]> = input.split(|&byte| byte == 0).collect();
    for argument in &arguments {
        myriad_cli::fuzzing::parse_argument(argument);
    }
    myriad_cli::fuzzing::parse_command(&arguments);
});
