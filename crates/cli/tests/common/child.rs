//! A copy of the test program that does what it is told, line by line.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// Starts this program again as `child_works`, a test that does nothing unless `prepare` sets its environment: the process, what
/// takes its orders, and what it says behind `mark`.
pub fn start(
    mark: &'static str,
    prepare: impl FnOnce(&mut Command),
) -> Result<(Child, ChildStdin, Receiver<String>), String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(this);
    command.args(["child_works", "--exact", "--nocapture"]);
    prepare(&mut command);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("starting a process: {error}"))?;
    let (orders, said) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let (answer, answers) = channel();
    std::thread::spawn(move || {
        // The test harness may have begun the line, and has lines of its own.
        let lines = BufReader::new(said).lines().map_while(Result::ok);
        let marked = lines.filter_map(|line| line.split_once(mark).map(|(_, said)| said.to_owned()));
        // Whoever is gone needs no answers.
        let _ = { marked }.try_for_each(|said| answer.send(said));
    });
    Ok((child, orders, answers))
}
