//! Options of an open volume.

use super::Fs;
use crate::error::Result;
use crate::options::{Options, Row, Value};

impl Fs {
    /// How the volume was made and is open, with what [`Fs::tune`] has changed since.
    pub fn options(&self) -> Options {
        self.volume().all_options()
    }

    /// Changes options of the open volume, as [`read_for_tune`](crate::options::read_for_tune) has read them: all or none. What
    /// is kept in the volume (the label) is durable when it returns; the rest holds until the volume is closed.
    ///
    /// ```
    /// # use myriad_engine::{Fs, options};
    /// # fn main() -> myriad_engine::Result<()> {
    /// let fs = Fs::in_memory(64 << 20)?;
    /// fs.tune(&options::read_for_tune(["placement=rotor", "commit=1"]).expect("both can change"))?;
    /// assert_eq!(options::row("commit").expect("it is there").get(&fs.options()).to_string(), "1");
    /// # Ok(())
    /// # }
    /// ```
    pub fn tune(&self, changes: &[(&'static Row, Value)]) -> Result<()> {
        self.inner.check_process()?;
        self.volume().tune(changes)
    }
}
