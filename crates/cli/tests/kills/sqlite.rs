//! What a commit of SQLite promises.
//!
//! With a journal that is removed, the removal is the commit. SQLite syncs the directory after it (`synchronous = EXTRA`), but
//! where the directory cannot be opened, `unixDelete` passes over that and reports success. When a mount dies between the
//! answer to the removal and the opening of the directory, the program is told of a commit that nobody has synced. Then the
//! next opening finds the journal, and takes the transaction back.

use crate::common::mount::{MountPlace, Signal, is_alive, kill, wait_until};
use crate::programs::which;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

/// Three transactions of a row each, then silence.
const COMMITS: &str = "
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute('PRAGMA journal_mode = delete')
database.execute('PRAGMA synchronous = EXTRA')
database.execute('CREATE TABLE t (id INTEGER PRIMARY KEY)')
for id in (1, 2, 3):
    database.execute('INSERT INTO t VALUES (?)', (id,))
print('committed', flush=True)
sys.stdin.read()
";

/// The rows that a database has.
const ROWS: &str = "
import sqlite3, sys
print([id for id, in sqlite3.connect(sys.argv[1]).execute('SELECT id FROM t')])
";

#[test]
fn a_commit_is_synced_if_the_directory_can_be_opened() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: a process without CAP_DAC_OVERRIDE is made by root");
    }
    if let Some(name) = ["python3", "setpriv"].into_iter().find(|name| which(name).is_none()) {
        return println!("skipped: {name} is not installed");
    }
    // A directory that may be searched and written, but not read, is for SQLite what one on a dead mount is.
    for (mode, rows) in [(0o755, "[1, 2, 3]"), (0o333, "[1, 2]")] {
        let Some(place) = MountPlace::with_volume(64 << 20) else { return };
        // Nothing is made durable but by a sync.
        place.mount("-o allow_other,commit=0");
        let directory = place.mounted("directory");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
        let database = directory.join("rows.db");
        let without = "-dac_override,-dac_read_search";
        let privileges = ["--bounding-set", without, "--inh-caps", without, "python3", "-c", COMMITS];
        let arguments = [&privileges[..], &[database.to_str().unwrap()]].concat();
        let mut command = place.command("setpriv", &arguments);
        let mut program = command.stdin(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut said = BufReader::new(program.stdout.take().unwrap()).lines();
        assert_eq!(said.next().expect("a line").unwrap(), "committed");
        let daemon = place.daemon();
        kill(daemon, Signal::KILL);
        wait_until("the daemon is gone", || !is_alive(daemon));
        program.kill().unwrap();
        program.wait().unwrap();
        place.mount("");
        let found = place.command("python3", &["-c", ROWS, database.to_str().unwrap()]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout).trim(), rows, "in a directory of mode {mode:o}: {found:?}");
        place.umount();
        place.assert_sound();
    }
}
