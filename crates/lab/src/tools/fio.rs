//! Axboe's fio 3.33: a large file written and read by requests of 8 KiB, in order and at random, one thread.
//!
//! Starting it takes longer than the phases of a small run. So its own clock counts: what its requests took, by their mean in nanoseconds.

use super::{Call, Held, Ran, Said, Tool, as_told, utf8};
use anyhow::{Context, Result, ensure};
use std::path::Path;

#[derive(Clone, Debug)]
pub struct Fio {
    /// Of the file; a multiple of the requests'.
    pub bytes: u64,
    /// At random.
    pub requests: u64,
    pub seed: u64,
}

pub const REQUEST: u64 = 8192;
const FILE: &str = "large";

/// Of one side, reads or writes, of one job.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Printed {
    requests: u64,
    bytes: u64,
    seconds: f64,
}

fn parse(output: &str, side: &str) -> Result<Printed> {
    // Notes may stand before it.
    let start = output.find('{').context("it wrote no JSON")?;
    let json: serde_json::Value = serde_json::from_str(&output[start..]).context("what it wrote is not JSON")?;
    let job = &json["jobs"][0];
    let error = job["error"].as_i64().context("it does not say whether there was an error")?;
    ensure!(error == 0, "it ended with error {error}");
    let number = |name: &str| job[side][name].as_u64().with_context(|| format!("it does not say {side} {name}"));
    ensure!(number("short_ios")? == 0, "some of its requests came back short");
    let mean_ns = job[side]["lat_ns"]["mean"].as_f64().context("it does not say how long a request took")?;
    let (requests, bytes) = (number("total_ios")?, number("io_bytes")?);
    Ok(Printed { requests, bytes, seconds: mean_ns * requests as f64 / 1e9 })
}

/// Name, what fio calls it, whose side, cold.
const PHASES: [(&str, &str, &str, bool); 4] = [
    ("write", "write", "write", false),
    ("read", "read", "read", true),
    ("random_read", "randread", "read", true),
    ("random_write", "randwrite", "write", false),
];

impl Fio {
    fn requests_of(&self, phase: &str) -> u64 {
        if phase.starts_with("random") { self.requests } else { self.bytes / REQUEST }
    }
}

impl Tool for Fio {
    fn name(&self) -> &'static str {
        "fio"
    }

    fn program(&self) -> (&'static str, &'static str) {
        ("fio", "fio")
    }

    fn phases(&self) -> Vec<&'static str> {
        PHASES.iter().map(|phase| phase.0).collect()
    }

    fn calls(&self, directory: &Path, _scratch: &Path) -> Result<Vec<Call>> {
        let directory = utf8(directory)?;
        let call = |&(name, rw, _, cold): &(&str, &str, &str, bool)| {
            let words = [
                "--name=lab".to_owned(),
                format!("--directory={directory}"),
                format!("--filename={FILE}"),
                format!("--rw={rw}"),
                format!("--bs={REQUEST}"),
                format!("--size={}", self.bytes),
                format!("--io_size={}", self.requests_of(name) * REQUEST),
                format!("--randseed={}", self.seed),
                "--ioengine=psync".to_owned(),
                // Blocks are allocated by the writes that are measured.
                "--fallocate=none".to_owned(),
                "--refill_buffers".to_owned(),
                "--clat_percentiles=0".to_owned(),
                "--thread".to_owned(),
                "--output-format=json".to_owned(),
            ];
            Call { arguments: words.to_vec(), cold, ..Call::default() }
        };
        Ok(PHASES.iter().map(call).collect())
    }

    fn judge(&self, directory: &Path, ran: &[Ran]) -> Result<Vec<Said>> {
        let judge = |(&(name, _, side, _), ran): (&(&'static str, &str, &str, bool), &Ran)| {
            let printed = parse(&ran.output, side).context(name)?;
            as_told("requests", printed.requests, self.requests_of(name)).context(name)?;
            as_told("bytes", printed.bytes, printed.requests * REQUEST).context(name)?;
            let rate = Some(printed.requests as f64 / printed.seconds).filter(|rate| rate.is_finite());
            Ok(Said { count: printed.requests, bytes: printed.bytes, seconds: Some(printed.seconds), rate })
        };
        let said = PHASES.iter().zip(ran).map(judge).collect::<Result<Vec<_>>>()?;
        Held::of(&directory.join(FILE))?.check_whole(self.bytes)?;
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_printed_is_read() {
        let text = include_str!("../../tests/tools/fio-randread.json");
        let printed = parse(text, "read").unwrap();
        assert_eq!((printed.requests, printed.bytes), (8, 8 * REQUEST));
        assert!((printed.seconds * 1e9 - 8.0 * 116_271.75).abs() < 1.0, "{printed:?}");
        assert_eq!(parse(text, "write").unwrap().requests, 0);
        let failed = text.replace("\"error\" : 0", "\"error\" : 28");
        assert!(parse(&failed, "read").unwrap_err().to_string().contains("error 28"));
        assert!(parse("fio: no space", "read").unwrap_err().to_string().contains("no JSON"));
    }
}
