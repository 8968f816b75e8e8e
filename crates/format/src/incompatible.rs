//! Why a sound volume is not opened, or an order of writes refused, as values.

/// The volume is sound but needs what this build lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    #[error("format version {found}; this build knows version {known}")]
    Version { found: u32, known: u32 },
    #[error("incompatible features {bits:#x} are unknown to this build")]
    Features { bits: u64 },
    #[error("the volume's choice {code} of {seam} is unknown to this build")]
    Seam { seam: &'static str, code: u8 },
    #[error("the volume's choice {seam}={choice} is not in this build")]
    NotBuilt { seam: &'static str, choice: &'static str },
    /// Seam and choice, of both.
    #[error("{}={} does not go with {}={}: {why}", one.0, one.1, other.0, other.1)]
    Apart { one: (&'static str, &'static str), other: (&'static str, &'static str), why: &'static str },
}

/// An order of writes that cannot survive a crash with a choice at another seam.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "order={order} is never safe with {seam}={choice}: without a log, a change must be one sector that a device writes as one, and \
     this structure changes several at a time; it goes with bitmap, static, blockmap, linear and walk"
)]
pub struct Unsafe {
    pub order: &'static str,
    pub seam: &'static str,
    pub choice: &'static str,
}
