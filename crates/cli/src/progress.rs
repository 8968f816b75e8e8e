//! Progress of long work, drawn on standard error while that is a terminal.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::time::Duration;

/// A line that shows how far the work is. Dropping it removes the line.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub fn new(bars: &MultiProgress, what: &'static str) -> Self {
        let bar = bars.add(ProgressBar::new_spinner().with_message(what));
        bar.set_style(style("{spinner} {msg}: {human_pos} in {elapsed}, {per_sec}"));
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self { bar }
    }

    /// `done` so far of an unknown total.
    pub fn set(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// `done` of `total`: from now on with time left.
    pub fn set_of(&self, done: u64, total: u64) {
        if self.bar.length() != Some(total) {
            self.bar.set_length(total);
            self.bar.set_style(style("{spinner} {msg} [{wide_bar}] {percent}%, {eta} left"));
        }
        self.bar.set_position(done);
    }

    /// The work is now at another stage.
    pub fn stage(&self, what: String) {
        self.bar.set_message(what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates above are sound").progress_chars("=> ")
}
