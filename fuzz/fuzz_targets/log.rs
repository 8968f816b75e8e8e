//! Recovery of a log whose anchors and checkpoints the fuzzer has overwritten, with all checksums made right.
//!
//! Input: patches: which anchor or checkpoint (1 byte), offset in it (2), length (1), bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_format::FsBlock;
use myriad_format::choices::Choices;
use myriad_format::log::{ANCHOR_UNITS, AnchorBlock, unit};
use myriad_log::LogPlace;
use myriad_trials::hostile::LogImage;
use myriad_trials::hostile::bases::{self, Base, SHAPES};
use std::sync::{Arc, LazyLock};

/// A volume whose power was cut: its log is full of checkpoints.
static BASE: LazyLock<Base> = LazyLock::new(|| {
    let shape = SHAPES.iter().find(|shape| shape.name == "512, power cut").expect("a shape of this name");
    bases::make(Choices::default(), *shape).expect("a sound volume")
});

fuzz_target!(|input: &[u8]| {
    let mut log: LogImage = BASE.log.clone().expect("it has a log");
    let anchors = ANCHOR_UNITS as usize;
    let mut rest = input;
    while let [index, at0, at1, length, tail @ ..] = rest {
        let at = usize::from(u16::from_le_bytes([*at0, *at1]));
        let length = usize::from(*length).min(tail.len());
        let index = usize::from(*index) % (anchors + log.checkpoint_count());
        for (offset, byte) in tail[..length].iter().enumerate() {
            let place = match index.checked_sub(anchors) {
                None => index * unit(BASE.geometry.block_size()) + (at + offset) % AnchorBlock::SIZE,
                Some(checkpoint) => log.place(checkpoint, (at + offset) % log.length(checkpoint)),
            };
            log.bytes[place] = *byte;
        }
        rest = &tail[length..];
    }
    log.seal();
    let device = MemoryDevice::from_bytes(&log.bytes);
    let place = LogPlace {
        length: device.size(),
        device: Arc::new(device),
        start: 0,
        block_size: BASE.geometry.block_size(),
        volume: BASE.volume,
    };
    if let Ok(recovered) = myriad_log::recover(&place, myriad_log::Reach::Ring) {
        let blocks: Vec<FsBlock> = recovered.overlay.blocks().map(|(block, _)| block).collect();
        let mut bytes = vec![0; place.block_size];
        for block in blocks {
            assert!(recovered.overlay.apply(block, &mut bytes).is_some());
        }
    }
});
