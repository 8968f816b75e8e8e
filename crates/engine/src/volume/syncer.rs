//! Order `softdep` with changes held back: what is due is written by visits, as by FreeBSD's syncer; and what is oldest, if too much waits.
//! What is due, and how much is too much, `order/soft/delays.rs` and `limits.rs` say.

use super::Volume;
use crate::counters::Count;
use crate::error::Result;
use crate::file;
use crate::order::soft::{Delays, Soft};
use crate::types::Order;

impl Volume {
    /// How long changes are held back, if they are.
    pub fn delays(&self) -> Option<Delays> {
        if self.order == Order::Soft { self.live.delays() } else { None }
    }

    /// Makes durable what is due; false if nothing is held back. Whoever syncs a file that could not be flushed is told of that.
    pub fn write_due(&self) -> Result<bool> {
        let (Some(delays), Some(soft)) = (self.delays(), &self.soft) else { return Ok(false) };
        let due = delays.due_at(self.ticks());
        let flushed = file::flush_due(self, due);
        let has_due = soft.has_due(due);
        self.checkpointer.lock().run_due(self, due, has_due)?;
        // What is overdue was due before, too.
        if has_due && delays.overdue_at(self.ticks()).is_some_and(|overdue| soft.has_due(overdue)) {
            self.counters.bump(Count::soft_overdue);
            self.commit_now()?;
        }
        flushed.map(|()| true)
    }

    /// Writes what is oldest of what soft updates hold, and if that is not enough, all of it.
    pub fn write_oldest(&self) -> Result<()> {
        let Some(soft) = &self.soft else { return Ok(()) };
        if self.order == Order::Soft
            && let Some(due) = soft.older_half(self.ticks())
        {
            self.counters.bump(Count::soft_sheds);
            self.checkpointer.lock().run_due(self, due, true)?;
        }
        if soft.is_much() { self.commit_now() } else { Ok(()) }
    }

    /// So much waits that whoever begins has it written, or waits for that.
    #[cold]
    pub(super) fn throttle_soft(&self, soft: &Soft) -> Result<()> {
        if soft.is_full() {
            self.counters.bump(Count::soft_stalls);
            self.commit_now()
        } else if self.options.background {
            self.wake_to_shed();
            Ok(())
        } else {
            self.write_oldest()
        }
    }
}
