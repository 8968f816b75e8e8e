//! SIGINT, SIGTERM and SIGHUP as a flag that long work looks at, so that every guard gets to clean up.

use anyhow::Result;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The run was stopped by a signal.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// From now on these signals only set the flag, however often they come: a second Ctrl-C must not leave a mount behind.
pub fn watch() -> Result<()> {
    if FLAG.get().is_some() {
        return Ok(());
    }
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, flag.clone())?;
    }
    let _ = FLAG.set(flag);
    Ok(())
}

/// Fails with [`Interrupted`] once a signal came.
pub fn check() -> Result<()> {
    match FLAG.get() {
        Some(flag) if flag.load(Ordering::Relaxed) => Err(Interrupted.into()),
        _ => Ok(()),
    }
}
