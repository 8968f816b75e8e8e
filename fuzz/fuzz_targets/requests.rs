//! Requests as the kernel would never make them: whatever the bytes, they are decoded or refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use myriad_fuse::{Dialect, Operation};

fuzz_target!(|input: &[u8]| {
    let mut bytes = input.to_vec();
    // The length that the header starts with must be the buffer's; half of the time it is made so.
    if bytes.len() >= 4 && bytes[bytes.len() - 1] & 1 == 0 {
        let length = u32::try_from(bytes.len()).expect("libFuzzer's inputs are short");
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
    }
    let dialect = Dialect { short_setxattr: bytes.last().is_some_and(|last| last & 2 != 0) };
    if let Ok(request) = myriad_fuse::decode(&bytes, dialect) {
        assert!(!format!("{request:?}").is_empty());
        if let Operation::BatchForget { nodes } = request.operation {
            assert!(nodes.count() <= bytes.len());
        }
    }
});
