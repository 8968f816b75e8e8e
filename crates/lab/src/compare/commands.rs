//! Rows that time programs: `tar -xf` onto a mounted file system against our importer, and whatever else a file of rows
//! says. A row's preparation is not timed; its timed commands are, with the sync after them (an image's commands close it,
//! which syncs it).

use super::kernel::run_program;
use crate::provider::Place;
use crate::runner::Sample;
use crate::targets::Counters;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A program with arguments. `{dir}`, `{image}`, `{exe}` (this program) and `{tar}` are filled in.
pub type Line = Vec<String>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commands {
    #[serde(default)]
    pub prepare: Vec<Line>,
    pub timed: Vec<Line>,
}

/// A row. Rows run one after the other in the same place, each on what those before left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub name: String,
    /// Unmount and mount first. Our own commands open the volume anew in any case, so for rows that read only this is like with like.
    #[serde(default)]
    pub cold: bool,
    /// What one operation is to be: files of the tree, say.
    #[serde(default = "one")]
    pub ops: u64,
    /// In a mounted directory; `None`: the row is ours alone.
    #[serde(default)]
    pub dir: Option<Commands>,
    /// On an image.
    #[serde(default)]
    pub image: Option<Commands>,
}

fn one() -> u64 {
    1
}

/// Rows of a JSON file: an array of [`Row`].
pub fn read_rows(path: &Path) -> Result<Vec<Row>> {
    let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} does not hold rows", path.display()))
}

/// Life of a tree: unpacked, searched, counted, packed, removed.
pub fn tar_rows(tar: &Path) -> Result<Vec<Row>> {
    let name = tar.to_str().context("the archive's path is not UTF-8")?;
    let listing = run_program("tar", &["-tf".to_owned(), name.to_owned()])?;
    let ops = listing.lines().count().max(1) as u64;
    // In a directory of its own, which can be removed in one command; the root of a mount or of a volume cannot.
    let line = |text: &str| text.split(' ').map(str::to_owned).collect::<Line>();
    let row = |name: &str, cold, dir: &str, image: &str| {
        let timed = |text: &str| Some(Commands { prepare: Vec::new(), timed: vec![line(text)] });
        Row { name: name.to_owned(), cold, ops, dir: timed(dir), image: timed(image) }
    };
    let mut rows = vec![
        row("import", false, "tar -xf {tar} -C {dir}/t", "{exe} import {tar} {image}:/t"),
        row("find", true, "find {dir}/t -name *.h", "{exe} find {image}:/t -name *.h"),
        // Warm for the kernel's alone: ours opens the volume.
        row("find, warm", false, "find {dir}/t -name *.h", "{exe} find {image}:/t -name *.h"),
        row("du", true, "du -s {dir}/t", "{exe} du -s {image}:/t"),
        row("export", true, "tar -cf - -C {dir}/t .", "{exe} export {image}:/t -"),
        row("rm", true, "rm -r {dir}/t", "{exe} rm -r {image}:/t"),
    ];
    if let Some(unpack) = &mut rows[0].dir {
        unpack.prepare.push(line("mkdir {dir}/t"));
    }
    Ok(rows)
}

/// Values of the variables.
pub struct Variables<'a> {
    pub place: (&'static str, &'a Path),
    pub tar: Option<&'a Path>,
}

impl Variables<'_> {
    fn fill(&self, word: &str) -> Result<String> {
        let mut filled = word.to_owned();
        let exe = std::env::current_exe().context("this program's own path")?;
        let values = [Some(self.place), Some(("exe", exe.as_path())), self.tar.map(|tar| ("tar", tar))];
        for (name, value) in values.into_iter().flatten() {
            filled = filled.replace(&format!("{{{name}}}"), value.to_str().context("a path that is not UTF-8")?);
        }
        Ok(filled)
    }

    fn run(&self, lines: &[Line]) -> Result<()> {
        for line in lines {
            let words = line.iter().map(|word| self.fill(word)).collect::<Result<Vec<_>>>()?;
            let (program, arguments) = words.split_first().context("an empty command")?;
            run_to_nowhere(program, arguments)?;
        }
        Ok(())
    }
}

/// Like [`run_program`], but what it writes to standard output is read and forgotten: `tar -cf -` may neither wait for us
/// nor notice /dev/null (GNU tar reads no files then).
fn run_to_nowhere(program: &str, arguments: &[String]) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("running {program}"))?;
    let mut output = child.stdout.take().context("its output")?;
    let drain = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        while output.read(&mut buffer).is_ok_and(|length| length > 0) {}
    });
    // Its output is gone from `child`, so this waits for the end and reads its complaints only.
    let ended = child.wait_with_output()?;
    drain.join().expect("reading does not panic");
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{program} {} failed ({}): {}", arguments.join(" "), ended.status, said.trim());
    Ok(())
}

/// Runs the rows that this place has commands for.
pub fn run_rows(
    rows: &[Row],
    place: &Place,
    tar: Option<&Path>,
    (label, run): (&str, u32),
    done: &mut dyn FnMut(Sample) -> Result<()>,
) -> Result<()> {
    let variables = Variables { place: (place.variable.0, &place.variable.1), tar };
    for row in rows {
        crate::interrupt::check()?;
        let commands = if place.target.is_some() { &row.dir } else { &row.image };
        let Some(commands) = commands else { continue };
        let measure = || -> Result<Sample> {
            variables.run(&commands.prepare)?;
            if let Some(target) = &place.target {
                target.sync()?;
                if row.cold {
                    target.drop_caches()?;
                }
            }
            let counters = || place.target.as_ref().map_or(Ok(Counters::default()), |target| target.counters());
            let before = counters()?;
            let start = Instant::now();
            variables.run(&commands.timed)?;
            let elapsed = start.elapsed();
            if let Some(target) = &place.target {
                target.sync()?;
            }
            let total = start.elapsed();
            Ok(Sample {
                workload: "command".to_owned(),
                phase: row.name.clone(),
                target: label.to_owned(),
                run,
                ops: row.ops,
                bytes: 0,
                elapsed_ns: elapsed.as_nanos() as u64,
                sync_ns: (total - elapsed).as_nanos() as u64,
                counters: counters()?.since(&before),
                metadata: None,
                slowed: None,
            })
        };
        done(measure().with_context(|| format!("row {} on {label}", row.name))?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::sys_calls::SysCalls;

    #[test]
    fn rows_are_read_and_strangers_refused() {
        let text = r#"[{"name": "copy", "ops": 10, "dir": {"prepare": [["true"]], "timed": [["cp", "-r", "/etc", "{dir}"]]}}]"#;
        let rows: Vec<Row> = serde_json::from_str(text).unwrap();
        assert_eq!((rows[0].ops, rows[0].cold, rows[0].image.is_none()), (10, false, true));
        assert!(serde_json::from_str::<Vec<Row>>(r#"[{"name": "x", "kernal": {}}]"#).is_err());
    }

    #[test]
    fn rows_run_in_their_place() {
        let folder = tempfile::tempdir().unwrap();
        let target = Box::new(SysCalls::new(folder.path(), false));
        let place = Place { variable: ("dir", folder.path().to_owned()), target: Some(target) };
        let line = |text: &str| text.split(' ').map(str::to_owned).collect::<Line>();
        let commands = Commands {
            prepare: vec![line("mkdir {dir}/a")],
            timed: vec![line("touch {dir}/a/b"), line("ls {dir}/a/b")],
        };
        let row = Row { name: "touch".to_owned(), cold: false, ops: 2, dir: Some(commands), image: None };
        let broken = Row { dir: Some(Commands { prepare: vec![], timed: vec![line("ls {dir}/zzz")] }), ..row.clone() };
        let mut samples = Vec::new();
        let mut done = |sample| {
            samples.push(sample);
            Ok(())
        };
        run_rows(&[row], &place, None, ("here", 3), &mut done).unwrap();
        assert_eq!((samples[0].phase.as_str(), samples[0].run, samples[0].ops), ("touch", 3, 2));
        let error = run_rows(&[broken], &place, None, ("here", 3), &mut |_| Ok(())).unwrap_err();
        assert!(format!("{error:#}").contains("zzz"), "{error:#}");
    }
}
