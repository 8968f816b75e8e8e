//! Numbers that nobody can guess: the host's, or in tests such as follow from a seed.

use crate::error::{Error, Result};
use rustix::rand::{GetRandomFlags, getrandom};

/// Three keys or UUIDs.
pub(crate) fn ids(seed: Option<u64>) -> Result<[[u8; 16]; 3]> {
    let mut bytes = [0_u8; 48];
    match seed {
        Some(seed) => {
            let mut state = seed;
            for chunk in bytes.chunks_mut(8) {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = state;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                chunk.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes());
            }
        }
        None => {
            let mut filled = 0;
            while filled < bytes.len() {
                filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())
                    .map_err(|errno| Error::host("random numbers", errno.into()))?;
            }
        }
    }
    Ok(std::array::from_fn(|i| bytes[i * 16..(i + 1) * 16].try_into().expect("16 bytes")))
}

/// A key for one opening of a volume. From the same seed as a volume's own keys follows another one than those that others see.
pub(crate) fn secret(seed: Option<u64>) -> Result<[u8; 16]> {
    ids(seed).map(|[.., key]| key)
}
