//! A mistake of the engine's own, in the middle of its work: what it leaves half done reaches nobody, and nobody is told that it is
//! durable. The mistake is a device that panics at its nth request.

use myriad_device::{FaultDevice, FaultKind, FaultOp, FaultSpan, MemoryDevice};
use myriad_engine::{Cred, Error, Fs, MkfsOptions, MountOptions, OpenOptions, RenameMode};
use myriad_trials::verdict::{check_silent, quietly};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type Device = Arc<FaultDevice<MemoryDevice>>;

fn volume(options: MountOptions) -> (Device, Fs) {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(64 << 20)));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    (device, fs)
}

fn quiet() -> MountOptions {
    MountOptions { background: false, commit_interval_ms: 0, cache_size: 8 << 20, ..MountOptions::default() }
}

/// Runs `work`; whether it came to its end.
fn ends(work: impl FnOnce()) -> bool {
    quietly(|| catch_unwind(AssertUnwindSafe(work))).is_ok()
}

/// What was synced is there, and the volume is sound.
fn look_again(device: &Device, synced: &[String]) {
    let image = Arc::new(device.inner().clone_image());
    check_silent(&image.clone().into()).unwrap();
    let fs = Fs::open_device(image.clone(), None, quiet()).unwrap();
    let session = fs.session(Cred::root());
    for name in synced {
        assert_eq!(session.stat(name).unwrap().size, 5, "{name}");
    }
    drop(session);
    fs.close().unwrap();
    check_silent(&image.into()).unwrap();
}

/// A checkpoint had taken what changed, and a panic ended it: the lock came free, and the next fsync found nothing to do and
/// answered OK.
#[test]
fn after_a_panic_in_a_checkpoint_nothing_is_said_to_be_durable() {
    let mut requests = 0;
    for op in [FaultOp::Write, FaultOp::Flush] {
        for nth in 1.. {
            let (device, fs) = volume(quiet());
            let session = fs.session(Cred::root());
            let put = |name: &str| {
                let file =
                    session.open(name, OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE }).unwrap();
                file.write_at(b"bytes", 0).unwrap();
                file
            };
            put("before").sync().unwrap();
            let file = put("file");
            device.inject(op, nth, FaultSpan::Once, FaultKind::Panic);
            let has_ended = ends(|| file.sync().unwrap());
            device.clear();
            let mut synced = vec!["before".to_string()];
            if has_ended {
                synced.push("file".into());
            } else {
                requests += 1;
                assert!(matches!(file.sync(), Err(Error::Shutdown)), "{op:?} {nth}");
                assert!(matches!(fs.sync(), Err(Error::Shutdown)), "{op:?} {nth}");
                assert!(matches!(session.mkdir("d", 0o755), Err(Error::Shutdown)), "{op:?} {nth}");
                assert!(fs.shut_down_reason().unwrap().contains("panic"));
                // Reads go on.
                assert_eq!(session.stat("before").unwrap().size, 5);
                assert!(fs.clone().close().is_err());
            }
            drop((file, session, fs));
            look_again(&device, &synced);
            if has_ended {
                break;
            }
        }
    }
    assert!(requests >= 4, "{requests}");
}

/// The same in the log's own thread, which ended with it: nobody made checkpoints any more.
#[test]
fn a_panic_in_the_background_shuts_the_volume_down() {
    let (device, fs) = volume(MountOptions { background: true, commit_interval_ms: 5, ..quiet() });
    let session = fs.session(Cred::root());
    device.inject(FaultOp::Write, 1, FaultSpan::Once, FaultKind::Panic);
    let refused = (0..20_000).any(|i| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        // One who waits for the log's thread makes the checkpoint himself.
        matches!(session.create(&format!("{i}"), 0o644), Err(Error::Shutdown))
    });
    assert!(refused);
    assert!(matches!(fs.sync(), Err(Error::Shutdown)));
    drop((session, fs));
    look_again(&device, &[]);
}

/// A read that panics somewhere inside a transaction: whatever it had changed by then, no checkpoint has it.
#[test]
fn after_a_panic_in_a_transaction_no_checkpoint_has_its_half() {
    let mut requests = 0;
    for nth in 1.. {
        let (device, fs) = volume(quiet());
        let session = fs.session(Cred::root());
        session.mkdir("d", 0o755).unwrap();
        session.mkdir("e", 0o755).unwrap();
        for i in 0..200 {
            session.create(&format!("d/{i:0100}"), 0o644).unwrap();
            session.create(&format!("e/{i:0100}"), 0o644).unwrap();
        }
        fs.sync().unwrap();
        fs.drop_caches().unwrap();
        device.inject(FaultOp::Read, nth, FaultSpan::Once, FaultKind::Panic);
        let has_ended = ends(|| {
            let (source, target) = (format!("d/{:0100}", 7), format!("e/{:0100}", 9));
            session.rename(&source, &target, RenameMode::Replace).unwrap();
            session.unlink(&format!("d/{:0100}", 8)).unwrap();
        });
        device.clear();
        // Another thread's, which begins after it.
        let synced = fs.sync();
        let is_shut_down = fs.shut_down_reason().is_some();
        assert!(synced.is_ok() != is_shut_down, "{nth}: {synced:?}");
        assert!(!(has_ended && is_shut_down));
        requests += u32::from(!has_ended);
        // Nothing hangs, and what is not half done is there.
        assert_eq!(session.read_dir("/").unwrap().count(), 2);
        drop((session, fs));
        look_again(&device, &[]);
        if has_ended {
            break;
        }
    }
    assert!(requests >= 6, "{requests}");
}
