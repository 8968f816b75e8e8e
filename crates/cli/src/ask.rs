//! Questions before something is changed, as `rm -i` asks them: on standard error, the answer on standard input.

use crate::context::Context;
use anyhow::Result;
use std::io::BufRead;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// How long a signal may go unseen while nobody answers.
const PATIENCE: Duration = Duration::from_millis(100);

/// Who answers.
#[derive(Default)]
pub struct Asker {
    /// Lines are read by a thread of its own: a read that waits for a terminal goes on waiting when a signal comes.
    reader: OnceLock<Reader>,
}

/// Reads a line only when one is wanted: the rest of the input may be that of commands which are run in between.
struct Reader {
    wanted: SyncSender<()>,
    lines: Receiver<Vec<u8>>,
}

impl Asker {
    /// Whether the answer begins with `y` or `Y`. The end of the input is a no.
    pub fn ask(&self, context: &Context, question: &str) -> Result<bool> {
        context.prompt(&format!("{question}? "));
        let reader = self.reader.get_or_init(Reader::start);
        // One whose input has ended is gone, which the answer shows.
        let _ = reader.wanted.send(());
        loop {
            context.check()?;
            match reader.lines.recv_timeout(PATIENCE) {
                Ok(line) => return Ok(matches!(line.first(), Some(b'y' | b'Y'))),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
            }
        }
    }
}

impl Reader {
    fn start() -> Self {
        let ((wanted, wishes), (sender, lines)) = (sync_channel(1), sync_channel(1));
        let work = move || {
            for () in wishes {
                let mut line = Vec::new();
                // An input that cannot be read has ended.
                let is_line = std::io::stdin().lock().read_until(b'\n', &mut line).is_ok_and(|length| length > 0);
                if !is_line || sender.send(line).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("answers".into()).spawn(work).expect("the host has room for a thread");
        Self { wanted, lines }
    }
}
