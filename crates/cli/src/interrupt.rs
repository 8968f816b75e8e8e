//! SIGINT and SIGTERM: the first one asks long work to stop at its next step, so that the volume is closed; a second
//! one ends the process at once, which for the volume is no worse than a power cut.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{SigId, flag};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The user asked us to stop, by this signal.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted; the volume was closed cleanly, and what had been done stays done")]
pub struct Interrupted(pub u8);

/// Number of the signal that came; 0 for none.
static SIGNAL: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// What ends the process at the second signal.
static ABRUPT: Mutex<Vec<SigId>> = Mutex::new(Vec::new());

/// Watches for the signals from here on.
pub fn watch() {
    let signal = SIGNAL.get_or_init(Arc::default);
    let seen = Arc::new(AtomicBool::new(false));
    for number in [SIGINT, SIGTERM] {
        // In this order: the first signal finds `seen` false and passes, the second one finds it true.
        let registered = flag::register_conditional_shutdown(number, 128 + number, Arc::clone(&seen)).and_then(|id| {
            flag::register(number, Arc::clone(&seen))?;
            flag::register_usize(number, Arc::clone(signal), number as usize)?;
            Ok(id)
        });
        let id = registered.expect("these two signals may be handled by any process");
        ABRUPT.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }
}

/// From here on a second signal does not end the process either: for work that has more to clean up than a volume, or has
/// a volume that others use.
pub fn never_abruptly() {
    for id in ABRUPT.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        signal_hook::low_level::unregister(id);
    }
}

impl Interrupted {
    /// The signal that came, if one did.
    pub fn received() -> Option<Self> {
        match SIGNAL.get()?.load(Ordering::Relaxed) {
            0 => None,
            number => Some(Self(number as u8)),
        }
    }

    /// For work that was cancelled: by which signal.
    pub fn latest() -> Self {
        Self::received().unwrap_or(Self(SIGINT as u8))
    }
}
