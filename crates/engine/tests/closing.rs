//! The end of an open volume that others still have: what was done before it is there, nothing is done after it.

use myriad_check::{Options as CheckOptions, check};
use myriad_device::{BlockDevice, FaultDevice, MemoryDevice};
use myriad_engine::{Cred, Errno, Error, Fs, MkfsOptions, MountOptions, OpenOptions};
use myriad_format::header;
use myriad_format::superblock::Superblock;
use myriad_trials::verdict::check_silent;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn volume(options: MountOptions) -> (Arc<MemoryDevice>, Fs) {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    (device, fs)
}

fn quiet() -> MountOptions {
    MountOptions { background: false, commit_interval_ms: 0, cache_size: 8 << 20, ..MountOptions::default() }
}

fn is_closed<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Closed))
}

/// A clone that was still there went on to change the volume, which was marked as closed cleanly: the next opening did
/// not believe the log, and what had been synced was there in part.
#[test]
fn what_one_clone_has_closed_no_other_changes() {
    let (device, fs) = volume(quiet());
    let other = fs.clone();
    let session = other.session(Cred::root());
    let before = session.create("before", 0o644).unwrap();
    session.open("before", OpenOptions::READ_WRITE).unwrap().write_at(b"content", 0).unwrap();
    fs.close().unwrap();

    let mut refused = Vec::new();
    for i in 0..300 {
        refused.push(is_closed(session.create(&format!("after {i}"), 0o644)));
        refused.push(is_closed(other.sync()));
    }
    // Looks go on; what a handle would change is refused as well.
    let file = session.open("before", OpenOptions::READ_WRITE).unwrap();
    let mut bytes = [0; 7];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 7);
    assert_eq!(&bytes, b"content");
    refused.push(is_closed(file.write_at(b"more", 0)));
    refused.push(is_closed(file.truncate(0)));
    refused.push(is_closed(file.sync()));
    drop(file);
    refused.push(is_closed(session.unlink("before")));
    refused.push(is_closed(other.drop_caches()));
    drop(session);
    other.close().unwrap();

    check_silent(&device.clone().into()).unwrap();
    let fs = Fs::open_device(device, None, quiet()).unwrap();
    assert!(!fs.info().recovered);
    let session = fs.session(Cred::root());
    assert_eq!(session.stat_node(before).unwrap().size, 7);
    assert_eq!(session.stat("after 0").unwrap_err().errno(), Errno::NOENT);
    assert!(refused.iter().all(|&is_closed| is_closed), "{refused:?}");
}

#[test]
fn a_volume_that_was_not_closed_for_open_files_goes_on() {
    let (device, fs) = volume(MountOptions::default());
    let other = fs.clone();
    let session = other.session(Cred::root());
    let file = session.open("file", OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE }).unwrap();
    assert_eq!(fs.close().unwrap_err().errno(), Errno::BUSY);
    file.write_at(b"content", 0).unwrap();
    file.sync().unwrap();
    drop(file);
    drop(session);
    other.close().unwrap();
    check_silent(&device.into()).unwrap();
}

/// A volume that could not be closed for an open file had been flushed, and nothing committed. If its process ended then, it all was gone.
#[test]
fn what_cannot_be_closed_is_durable() {
    let (device, fs) = volume(quiet());
    let session = fs.session(Cred::root());
    let file = session.open("file", OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE }).unwrap();
    file.write_at(b"content", 0).unwrap();
    assert_eq!(fs.close().unwrap_err().errno(), Errno::BUSY);
    let after = Fs::open_device(Arc::new(device.clone_image()), None, quiet()).unwrap();
    assert_eq!(after.session(Cred::root()).read("file").unwrap(), b"content");
}

/// Threads make files, and sync now and then, until they are told that the volume is closed.
#[test]
fn what_was_made_before_the_end_is_there() {
    for round in 0..6 {
        let (device, fs) = volume(MountOptions { background: round % 2 == 0, ..quiet() });
        let (made, closed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (counts, image) = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..3)
                .map(|maker| {
                    let (fs, made, closed) = (fs.clone(), &made, &closed);
                    scope.spawn(move || {
                        let session = fs.session(Cred::root());
                        let mut synced = 0;
                        let mut last = usize::MAX;
                        for number in 0.. {
                            // Room for all, however late the end comes; and not for ever if it never does.
                            while number > 2000 && !closed.load(Ordering::Relaxed) {
                                std::thread::yield_now();
                            }
                            if closed.load(Ordering::Relaxed) {
                                last = last.min(number + 300);
                            }
                            if number > last {
                                break;
                            }
                            match session.create(&format!("{maker} {number}"), 0o644) {
                                Ok(_) => made.fetch_add(1, Ordering::Relaxed),
                                Err(Error::Closed) => return (synced, true),
                                Err(error) => panic!("{error:?}"),
                            };
                            if number % 5 == maker {
                                match fs.sync() {
                                    Ok(()) => synced = number + 1,
                                    Err(Error::Closed) => return (synced, true),
                                    Err(error) => panic!("{error:?}"),
                                }
                            }
                        }
                        (synced, false)
                    })
                })
                .collect();
            while made.load(Ordering::Relaxed) < 60 * (round + 1) {
                std::thread::yield_now();
            }
            fs.clone().close().unwrap();
            closed.store(true, Ordering::Relaxed);
            // From here on nothing reaches the device.
            let image = Arc::new(device.clone_image());
            (makers.into_iter().map(|maker| maker.join().unwrap()).collect::<Vec<_>>(), image)
        });
        drop(fs);
        for device in [image, device] {
            check_silent(&device.clone().into()).unwrap();
            let fs = Fs::open_device(device.clone(), None, quiet()).unwrap();
            assert!(!fs.info().recovered, "round {round}");
            let session = fs.session(Cred::root());
            for (maker, &(synced, _)) in counts.iter().enumerate() {
                for number in 0..synced {
                    let found = session.stat(&format!("{maker} {number}"));
                    assert!(found.is_ok(), "round {round}: file {number} of {synced} of maker {maker}: {found:?}");
                }
            }
            drop(session);
            fs.close().unwrap();
            check_silent(&device.into()).unwrap();
        }
        assert!(counts.iter().all(|&(_, was_told)| was_told), "round {round}: {counts:?}");
    }
}

/// Of a host without room for the last superblock closing said that the device had failed, and the volume was shut down. Tried again, it said that all was
/// closed.
#[test]
fn a_host_without_room_for_the_mark_is_waited_for() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(64 << 20)));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let fs = Fs::open_device(device.clone(), None, quiet()).unwrap();
    let session = fs.session(Cred::root());
    session.write("before", b"before").unwrap();
    fs.sync().unwrap();
    // All else is home.
    fs.drop_caches().unwrap();
    device.fill(0..4096);
    let refused = fs.clone().close();
    assert!(matches!(refused, Err(Error::HostFull(_))), "{refused:?}");
    device.clear();
    // What is durable of it meanwhile does not say that it is closed.
    session.write("meanwhile", b"meanwhile").unwrap();
    fs.sync().unwrap();
    let image = Arc::new(device.inner().clone_image());
    let found = Fs::open_device(image, None, quiet()).unwrap();
    assert!(found.info().recovered);
    assert_eq!(found.session(Cred::root()).read("meanwhile").unwrap(), b"meanwhile");
    fs.close().unwrap();
    let fs = Fs::open_device(device, None, quiet()).unwrap();
    assert!(!fs.info().recovered);
    assert_eq!(fs.session(Cred::root()).read("meanwhile").unwrap(), b"meanwhile");
}

/// Beside a volume that had been closed an older copy of its log was opened. What that one named as freed had other owners by then, and was given away again.
#[test]
fn a_log_older_than_a_closed_volume_frees_nothing() {
    const SIZE: usize = 8 << 20;
    let device = Arc::new(MemoryDevice::new(32 << 20));
    let log = Arc::new(MemoryDevice::new(2 << 20));
    Fs::format_device(device.clone(), Some(log.clone()), &MkfsOptions::default()).unwrap();
    let fs = Fs::open_device(device.clone(), Some(log.clone()), quiet()).unwrap();
    let session = fs.session(Cred::root());
    session.write("gone", vec![1; SIZE]).unwrap();
    fs.sync().unwrap();
    session.unlink("gone").unwrap();
    fs.sync().unwrap();
    let older = Arc::new(log.clone_image());
    (0..3).for_each(|_| fs.sync().unwrap());
    (0..2).for_each(|i| session.write(&format!("kept {i}"), vec![2; SIZE]).unwrap());
    drop(session);
    fs.close().unwrap();

    let refused = Fs::open_device(device.clone(), Some(older.clone()), quiet()).map(drop).unwrap_err();
    assert!(refused.to_string().contains("another state of the volume"), "{refused}");
    // An earlier build did not say where the log ends.
    let mut block = vec![0; 4096];
    device.read(0, &mut block).unwrap();
    Superblock::read_mut(&mut block).log_end.set(0);
    header::seal(&mut block, 0);
    device.write(0, &block).unwrap();
    let fs = Fs::open_device(device.clone(), Some(older.clone()), quiet()).unwrap();
    let session = fs.session(Cred::root());
    let more = session.open("more", OpenOptions::CREATE).unwrap();
    let mut end = 0;
    while let Ok(count) = more.write_at(&[3; 1 << 16], end) {
        end += count as u64;
    }
    fs.sync().unwrap();
    fs.drop_caches().unwrap();
    for i in 0..2 {
        assert!(session.read(&format!("kept {i}")).unwrap() == vec![2; SIZE], "{i}");
    }
    drop((more, session));
    fs.close().unwrap();
    let report = check(device, Some(older), &CheckOptions::default()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}
