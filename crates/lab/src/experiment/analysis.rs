//! The way to the analysis (docs/lab-report.md), which is Python: finds its script, has it make a page, says what it lacks.

use anyhow::{Context, Result, anyhow, bail};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the script calls itself in messages, so that the next step is a command that a user has.
const CALLED: &str = "myriad lab report";

/// A page that was made.
#[derive(Debug)]
pub struct Page {
    pub html: PathBuf,
    /// In the order of their names.
    pub pictures: Vec<PathBuf>,
    /// What the analysis said of it.
    pub said: String,
}

/// Beside an installed program, or in the checkout that this one was built from.
fn script() -> Result<PathBuf> {
    let exe = std::env::current_exe().and_then(|exe| exe.canonicalize()).context("this program's own path")?;
    let installed = exe.parent().map(|bin| bin.join("../share/myriad/lab"));
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places: Vec<PathBuf> =
        installed.into_iter().chain([checkout]).map(|place| place.join("scripts/lab-report")).collect();
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        anyhow!(
            "the analysis is not here (looked for {}): scripts/install of a checkout puts it beside the program; \
             in the checkout itself it is scripts/lab-report",
            looked.join(" and ")
        )
    })
}

/// Runs the script; gives what it wrote to standard output. Its complaints go to standard error as they come, and the last is the error.
fn run(arguments: &[OsString]) -> Result<String> {
    let script = script()?;
    let mut command = Command::new(&script);
    command.args(arguments).env("LAB_REPORT_CALLED", CALLED);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("running {} (it wants bash)", script.display()))?;
    let complaints = BufReader::new(child.stderr.take().context("its complaints")?);
    // What it writes to standard output is short: it does not wait for us.
    let mut last = String::new();
    for line in complaints.lines() {
        if !last.is_empty() {
            eprintln!("{last}");
        }
        last = line?;
    }
    let mut said = String::new();
    child.stdout.take().context("its output")?.read_to_string(&mut said)?;
    let status = child.wait()?;
    if !status.success() {
        crate::interrupt::check()?;
        match last.strip_prefix(CALLED).and_then(|rest| rest.strip_prefix(": ")) {
            Some(why) => bail!("{why}"),
            None => bail!("{} failed ({status}): {last}", script.display()),
        }
    }
    if !last.is_empty() {
        eprintln!("{last}");
    }
    Ok(said)
}

/// Installs what the analysis needs, and ends.
pub fn set_up() -> Result<String> {
    run(&["--setup".into()])
}

/// Has a page made of result files, into `out`. Without `may_install` it fails where something is missing.
pub fn page(results: &[PathBuf], out: &Path, more: &[OsString], may_install: bool) -> Result<Page> {
    let mut arguments: Vec<OsString> = Vec::new();
    if !may_install {
        arguments.push("--no-install".into());
    }
    arguments.extend(results.iter().map(|path| path.clone().into_os_string()));
    arguments.extend(["--out".into(), out.as_os_str().to_owned()]);
    arguments.extend(more.iter().cloned());
    let said = run(&arguments)?;
    let figures = out.join("figures");
    let mut pictures = Vec::new();
    for entry in figures.read_dir().with_context(|| format!("reading {}", figures.display()))? {
        pictures.push(entry?.path());
    }
    pictures.sort_unstable();
    Ok(Page { html: out.join("index.html"), pictures, said })
}
