//! As what the kernel has a mount: `fuse` or `fuseblk`.

use std::str::FromStr;

/// Which type to mount as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KindChoice {
    /// `fuseblk` where that can be had, else `fuse`.
    #[default]
    Auto,
    Fuse,
    /// Mounting fails where it cannot be had.
    FuseBlk,
}

impl FromStr for KindChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "fuse" => Ok(Self::Fuse),
            "fuseblk" => Ok(Self::FuseBlk),
            _ => Err(format!("{text} is none of auto, fuse, fuseblk")),
        }
    }
}

/// The type that it is mounted as, and with it what the kernel passes on to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// sync(2), syncfs(2) and umount(2) return without having asked the server.
    Fuse {
        /// What stood in the way of `fuseblk`.
        because: String,
    },
    /// umount(2) waits until the volume is closed, and what sync(2) and syncfs(2) do, see [`Kind::passes_sync`].
    FuseBlk,
}

impl Kind {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fuse { .. } => "fuse",
            Self::FuseBlk => "fuseblk",
        }
    }

    /// Whether sync(2) and syncfs(2) make the volume durable.
    pub fn passes_sync(&self) -> bool {
        *self == Self::FuseBlk && passes_sync(&rustix::system::uname().release().to_string_lossy())
    }

    /// Why sync(2) and syncfs(2) do not, if so.
    pub fn why_no_sync(&self) -> Option<String> {
        match self {
            Self::Fuse { because } => Some(because.clone()),
            Self::FuseBlk if self.passes_sync() => None,
            Self::FuseBlk => Some("the kernel is older than Linux 6.18".into()),
        }
    }
}

/// The first release that sends SYNCFS to a server of this type. It cannot be asked for: there is no flag of INIT.
const SYNCS_SINCE: (u32, u32) = (6, 18);

fn passes_sync(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= SYNCS_SINCE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_their_numbers() {
        for release in ["6.18.0", "6.18-rc1", "6.18.44-fc-v445", "6.20.1", "7.0.0-generic"] {
            assert!(passes_sync(release), "{release}");
        }
        for release in ["6.17.9", "6.9.1", "5.19.0-45-generic", "", "unknown"] {
            assert!(!passes_sync(release), "{release}");
        }
    }
}
