//! Overwrites parts of metadata blocks with bytes of the fuzzer's own, makes their checksums right, and does everything
//! to the image. Where `mutant` knows what is interesting, this one finds out by coverage.
//!
//! Input: base, plan, then patches: which block (2 bytes), offset (2), length (1), bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use myriad_device::BlockDevice;
use myriad_format::header;
use myriad_sim::rng::Rng;
use myriad_trials::hostile::bases::{self, Base};
use myriad_trials::hostile::exercise::{Plan, examine};
use myriad_trials::table;
use std::sync::LazyLock;

/// Volumes of every set of choices that mkfs makes.
static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let sets = table::sets(&table::rows());
    sets.iter().flat_map(|set| bases::all(set).expect("sound volumes to start from")).collect()
});

fuzz_target!(|input: &[u8]| {
    let [base, plan, patches @ ..] = input else { return };
    let mut rest = patches;
    let base = &BASES[usize::from(*base) % BASES.len()];
    let image = base.image.clone_image();
    while let [site0, site1, at0, at1, length, tail @ ..] = rest {
        let site = &base.sites[usize::from(u16::from_le_bytes([*site0, *site1])) % base.sites.len()];
        let offset = site.block.0 << base.geometry.block_bits;
        let mut block = vec![0; base.geometry.block_size()];
        image.read(offset, &mut block).expect("a block of the base");
        let at = usize::from(u16::from_le_bytes([*at0, *at1])) % block.len();
        let length = usize::from(*length).min(tail.len()).min(block.len() - at);
        block[at..at + length].copy_from_slice(&tail[..length]);
        header::reseal(&mut block, &base.volume, site.block);
        image.write(offset, &block).expect("a block of the base");
        rest = &tail[length..];
    }
    let plan = Plan { change: plan & 1 != 0, check: plan & 2 != 0, repair: plan & 4 != 0 };
    if let Err(complaint) = examine(&image, plan, &mut Rng::new(1)) {
        panic!("{complaint}");
    }
});
