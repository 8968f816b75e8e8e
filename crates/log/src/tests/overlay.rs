//! What recovery holds in memory, against a plain map; and how fast it reads a log.

use super::*;
use crate::Sealed;
use std::collections::BTreeMap;

/// The overlay against a map of whole blocks: overlapping records, revokes, then removals. Of few blocks the log has very many records.
#[test]
fn overlay_agrees_with_a_map() {
    for seed in 0..60 {
        println!("overlay_agrees_with_a_map: seed {seed}");
        let mut random = Random(seed);
        let blocks = [40, 4000, 4][seed as usize % 3];
        let mut changes = crate::overlay::Changes::default();
        let mut log = vec![0; 24];
        let mut model: BTreeMap<u64, (u64, Lsn, Vec<u8>)> = BTreeMap::new();
        for lsn in (1..60).map(Lsn) {
            changes.begin(lsn);
            for _ in 0..random.below(100) {
                let block = random.below(blocks);
                let mask = match random.below(4) {
                    0 => 1 << random.below(64),
                    1 => random.next() & random.next() & random.next() | 1,
                    2 => random.next() | 1,
                    _ => !0,
                };
                let (old_mask, _, bytes) = model.entry(block).or_insert_with(|| (0, lsn, image(0)));
                *old_mask |= mask;
                changes.record(block, log.len());
                log.extend_from_slice(&block.to_le_bytes());
                log.extend_from_slice(&mask.to_le_bytes());
                for bit in (0..64).filter(|bit| mask >> bit & 1 == 1) {
                    random.fill(&mut bytes[bit * 8..][..8]);
                    log.extend_from_slice(&bytes[bit * 8..][..8]);
                }
            }
            let revokes = if blocks > 4 { random.below(20) } else { u64::from(random.one_in(40)) };
            for _ in 0..revokes {
                let block = random.below(blocks);
                changes.revoke(block);
                model.remove(&block);
            }
        }
        let mut overlay = changes.into_overlay(BLOCK, log);
        while !model.is_empty() {
            assert_eq!(overlay.len(), model.len());
            assert_eq!(overlay.oldest(), model.values().map(|&(_, lsn, _)| lsn).min());
            assert!(overlay.blocks().eq(model.iter().map(|(&block, &(_, lsn, _))| (FsBlock(block), lsn))));
            for (&block, (mask, lsn, expected)) in &model {
                let mut bytes = image(0);
                let applied = overlay.apply(FsBlock(block), &mut bytes).unwrap();
                assert_eq!((applied.mask, applied.lsn), (*mask, *lsn));
                assert!(bytes == *expected);
            }
            let from = random.below(blocks);
            let rest = overlay.blocks_from(FsBlock(from)).map(|(block, _)| block.0);
            assert!(rest.eq(model.range(from..).map(|(&block, _)| block)));
            for _ in 0..blocks.div_ceil(4) {
                let block = random.below(blocks);
                assert_eq!(overlay.remove(FsBlock(block)), model.remove(&block).is_some());
            }
        }
        assert!(overlay.is_empty() && overlay.blocks().next().is_none() && overlay.oldest().is_none());
    }
}

/// 256 MiB of log with two million granules in records of one, the worst case, spread over `blocks` blocks. Run with
/// `cargo test -p myriad-log --release -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn replay_speed() {
    for (blocks, per_record) in [(50_000, 1), (500_000, 1), (2_000_000, 1), (200_000, 8)] {
        let ring: u64 = 256 << 20;
        let disk = Disk::new(ring + 2 * UNIT);
        let place = LogPlace {
            device: disk.clone(),
            start: 0,
            length: ring + 2 * UNIT,
            block_size: 4096,
            volume: VOLUME,
            known_end: Lsn(0),
        };
        format(&place, Lsn(0)).unwrap();
        let mut log = open(&place).0;
        let mut random = Random(1);
        let block = vec![7; 4096];
        let mut left = 2_000_000 / per_record;
        let mut checkpoint = Checkpoint::new(4096);
        let mut building = std::time::Duration::ZERO;
        while left > 0 {
            let start = std::time::Instant::now();
            for _ in 0..left.min(10_000) {
                let mask = if per_record == 1 { 1 << random.below(64) } else { 0xff << random.below(56) };
                checkpoint.record(FsBlock(random.below(blocks)), mask, &block);
            }
            building += start.elapsed();
            left -= left.min(10_000);
            let sealed: Sealed = log.seal(&mut checkpoint, 0).unwrap();
            log.write_all(&sealed).unwrap();
            checkpoint = sealed.recycle();
        }
        drop(log);
        let start = std::time::Instant::now();
        let recovered = open(&place).1;
        let elapsed = start.elapsed();
        let blocks_found: Vec<_> = recovered.overlay.blocks().collect();
        let start = std::time::Instant::now();
        let mut bytes = vec![0; 4096];
        for &(block, _) in &blocks_found {
            recovered.overlay.apply(block, &mut bytes);
        }
        let applying = start.elapsed() / blocks_found.len() as u32;
        println!(
            "{blocks} blocks, {per_record} granules a record: \
             {} MiB, {} checkpoints, {} blocks: replay {elapsed:?}; \
             applying {applying:?} a block; building took {building:?}",
            recovered.bytes >> 20,
            recovered.checkpoints,
            recovered.overlay.len(),
        );
    }
}
