//! mkfs on a device that fails.

use myriad_device::{FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_engine::{Error, Fs};
use myriad_trials::setup::Setup;
use std::sync::Arc;

const EIO: i32 = 5;

/// mkfs says so when it cannot write, and leaves nothing that opens as a volume: the superblock used to go home among the
/// other blocks, and a volume without its root opened after a write beside it had failed.
#[test]
fn mkfs_fails_cleanly() {
    let setup = Setup::new(4096, 16 << 20);
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(setup.size)));
    Fs::format_device(device.clone(), None, &setup.mkfs_options()).unwrap();
    let seen = [FaultOp::Write, FaultOp::Flush].map(|op| (op, device.seen(op)));
    for (op, seen) in seen {
        for nth in 1..=seen {
            let device = Arc::new(FaultDevice::new(MemoryDevice::new(setup.size)));
            device.fail(op, nth, FaultSpan::Once, EIO);
            let made = Fs::format_device(device.clone(), None, &setup.mkfs_options());
            assert!(matches!(made, Err(Error::Io(_))), "{op:?} {nth}: {made:?}");
            // The superblock is the last to be written; only its flush can fail with it in place.
            let is_last = op == FaultOp::Flush && nth == seen;
            let opened = setup.open(device);
            assert!(is_last || opened.is_err(), "{op:?} {nth}: half a volume opens");
        }
    }
}
