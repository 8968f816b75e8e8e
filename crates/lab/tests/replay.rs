//! What `lab run --trace` records, `lab replay` asks other devices for.

use clap::Parser;
use myriad_lab::experiment::Line;
use myriad_lab::experiment::cli::Lab;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    lab: Lab,
}

/// Runs the verb; the last argument is a path.
fn lab(words: &str, path: &Path) -> anyhow::Result<Vec<Line>> {
    let words = std::iter::once("lab").chain(words.split(' ')).map(Into::into);
    let program = Program::try_parse_from(words.chain([path.as_os_str().to_owned()]))?;
    let mut out = Vec::new();
    program.lab.run(&mut out, true)?;
    Ok(String::from_utf8(out)?.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// Seconds of each phase.
fn seconds(lines: &[Line], target: &str) -> BTreeMap<(String, Option<u64>, String), f64> {
    let of = lines.iter().filter(|line| line.target == target);
    of.map(|line| ((line.workload.clone(), line.size, line.phase.clone()), line.seconds.unwrap())).collect()
}

#[test]
fn a_recording_replayed_on_its_own_device_takes_what_it_took() {
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().join("traces");
    let run = "run tar postmark --scale 0.001 --runs 1 --sparse --json --target disk2001,machine2001 --trace";
    let measured = lab(run, &traces).unwrap();
    for device in ["disk2001", "machine2001"] {
        let of_device = folder.path().join(device);
        std::fs::create_dir(&of_device).unwrap();
        for entry in traces.read_dir().unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if name.contains(device) {
                std::fs::copy(entry.path(), of_device.join(name)).unwrap();
            }
        }
        let replayed = lab(&format!("replay --json --device {device},ssd"), &of_device).unwrap();
        let took = seconds(&measured, device);
        assert!(took.values().filter(|&&seconds| seconds > 0.0).count() > 5, "{took:?}");
        assert_eq!(seconds(&replayed, device), took);
        // The drive alone takes what it took without a processor, which asked for the same.
        let again = lab("replay --json --device disk2001", &of_device).unwrap();
        assert_eq!(seconds(&again, "disk2001"), seconds(&measured, "disk2001"));
        let in_all = |target| seconds(&replayed, target).values().sum::<f64>();
        assert!(in_all(device) > in_all("ssd"), "{replayed:?}");
    }
    // Of 3 GiB.
    let error = lab("replay --device disk1996", &traces).unwrap_err();
    assert!(format!("{error:#}").contains("disk1996 has"), "{error:#}");
    let error = lab(run, &traces).unwrap_err();
    assert!(format!("{error:#}").contains("trace.zst"), "a recording is not written over: {error:#}");
}

#[test]
fn a_run_on_this_machine_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().join("traces");
    let images = folder.path().display();
    let run = format!("run tar --scale 0.001 --runs 2 --sparse --json --folder {images} --target process --trace");
    let measured = lab(&run, &traces).unwrap();
    let samples = folder.path().join("samples.jsonl");
    let replayed = lab(&format!("replay {} --json --device disk2001 --out", traces.display()), &samples).unwrap();
    assert_eq!(replayed.len(), measured.len());
    for (again, line) in replayed.iter().zip(&measured) {
        assert_eq!((&again.phase, again.count, &again.device), (&line.phase, line.count, &line.device));
        assert_eq!((again.clock.as_str(), line.clock.as_str()), ("modelled", "wall"));
    }
    let kept = std::fs::read_to_string(&samples).unwrap();
    assert_eq!(kept.lines().count(), 1 + replayed.len());
}

#[test]
fn what_cannot_be_recorded_or_replayed_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |words: &str, path: &Path| format!("{:#}", lab(words, path).unwrap_err());
    let error = refused("run tar --scale 0.001 --target process,sqlite --trace", &folder.path().join("traces"));
    assert!(error.contains("--trace") && error.contains("sqlite"), "{error}");
    let error = refused("replay", folder.path());
    assert!(error.contains("no recordings"), "{error}");
    lab("run tar --scale 0.001 --runs 1 --target disk2001 --json --trace", &folder.path().join("whole")).unwrap();
    let error = refused("replay --device floppy", folder.path());
    assert!(error.contains("disk2001"), "{error}");
    let error = refused("replay --device machine2001", &folder.path().join("whole"));
    assert!(error.contains("made on disk2001") && error.contains("machine2001"), "{error}");
    let samples = folder.path().join("there");
    std::fs::write(&samples, "").unwrap();
    let error = refused(&format!("replay {}/whole --out", folder.path().display()), &samples);
    assert!(error.contains("there already"), "{error}");
    // A run that was killed.
    let cut = folder.path().join("cut.trace.zst");
    let whole = folder.path().join("whole").read_dir().unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::read(whole).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let error = refused("replay", &cut);
    assert!(error.contains("cut.trace.zst") && error.contains("--resume"), "{error}");
}
