//! What writes write: every 8 bytes name the write and the place, so that bytes found where they do not belong tell
//! where they came from.

/// Mixing function of splitmix64: a bijection.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The inverse of [`mix`].
fn unmix(mut x: u64) -> u64 {
    let unshift = |y: u64, by: u32| {
        let mut x = y;
        for _ in 0..64 / by {
            x = y ^ (x >> by);
        }
        x
    };
    x = unshift(x, 31).wrapping_mul(0x3196_42b2_d24d_8ec3);
    x = unshift(x, 27).wrapping_mul(0x96de_1b17_3f11_9089);
    unshift(x, 30)
}

fn word(tag: u32, offset: u64) -> [u8; 8] {
    // The offset's low 35 bits, in words: enough to recognise a place.
    mix(u64::from(tag) << 32 | (offset >> 3 & 0xffff_ffff)).to_le_bytes()
}

/// The bytes that write `tag` puts at `offset` of a file.
pub fn bytes(tag: u32, offset: u64, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 8);
    let skip = (offset & 7) as usize;
    let mut at = offset & !7;
    while out.len() < len + skip {
        out.extend_from_slice(&word(tag, at));
        at = at.wrapping_add(8);
    }
    out.drain(..skip);
    out.truncate(len);
    out
}

/// Which write, and which offset (modulo 2^35), bytes found at a multiple of 8 come from; `tag_max` is the highest tag in use.
pub fn identify(found: &[u8], tag_max: u32) -> Option<(u32, u64)> {
    let word = unmix(u64::from_le_bytes(found.get(..8)?.try_into().expect("8 bytes")));
    let tag = (word >> 32) as u32;
    (tag != 0 && tag <= tag_max).then_some((tag, (word & 0xffff_ffff) << 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_name_their_write_and_place() {
        let whole = bytes(7, 0, 64);
        assert_eq!(bytes(7, 13, 20), whole[13..33]);
        assert_eq!(identify(&bytes(9, 4096, 8), 10), Some((9, 4096)));
        assert_eq!(identify(&bytes(11, 4096, 8), 10), None);
        assert_eq!(identify(&[1, 2, 3, 4, 5, 6, 7, 8], 1000), None);
        for x in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            assert_eq!(unmix(mix(x)), x);
        }
    }
}
