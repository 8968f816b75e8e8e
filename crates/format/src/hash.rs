//! The keyed hash of names.

use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// SipHash-1-3 under the volume's secret key (Aumasson & Bernstein 2012; one compression and three finalisation
/// rounds, as in Rust's own hash maps). Without the key nobody can build names that collide.
#[derive(Clone, Copy)]
pub struct NameHasher {
    hasher: SipHasher13,
    /// The bits of a hash that count. A release has no such field, and takes them all.
    #[cfg(debug_assertions)]
    counting: u64,
}

/// The key of a volume whose names share eight tags, in builds with debug assertions only: nobody can find many names that share a
/// tag of an honest hash, and tests of what happens to them need hundreds.
pub const FEW_TAGS_KEY: [u8; 16] = *b"eight tags only!";

impl NameHasher {
    pub fn new(key: [u8; 16]) -> Self {
        Self {
            hasher: SipHasher13::new_with_key(&key),
            #[cfg(debug_assertions)]
            counting: if key == FEW_TAGS_KEY { u64::MAX << 32 | 7 } else { u64::MAX },
        }
    }

    /// The 64-bit hash of a name. Its low 32 bits are the directory index's tag.
    pub fn hash(&self, name: &[u8]) -> u64 {
        let mut hasher = self.hasher;
        hasher.write(name);
        #[cfg(debug_assertions)]
        return hasher.finish() & self.counting;
        #[cfg(not(debug_assertions))]
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depends_on_key_and_name() {
        let a = NameHasher::new([1; 16]);
        let b = NameHasher::new([2; 16]);
        assert_ne!(a.hash(b"x"), a.hash(b"y"));
        assert_ne!(a.hash(b"x"), b.hash(b"x"));
        assert_eq!(a.hash(b"x"), NameHasher::new([1; 16]).hash(b"x"));
    }
}
