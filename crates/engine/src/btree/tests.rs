use super::testing::{Rng, TestSource, TestStore, geometry};
use super::*;
use crate::error::Error;
use myriad_format::btree::{EXTENTS, FREE_BY_START, INODE_CHUNKS};
use std::collections::BTreeMap;

const POOL: std::ops::Range<u64> = 100..60_000;

fn record(kind: TreeKind, key: u64, salt: u64) -> Vec<u8> {
    let mut bytes = vec![0; kind.record_size];
    let low = salt & ((1 << kind.key_shift) - 1);
    bytes[..8].copy_from_slice(&(key << kind.key_shift | low).to_le_bytes());
    for word in bytes[8..].chunks_mut(8) {
        word.copy_from_slice(&salt.to_le_bytes());
    }
    bytes
}

fn fixture(block_bits: u32) -> (TestStore, TestSource) {
    (TestStore::new(geometry(block_bits, 16, 12, 1 << 16)), TestSource::new(POOL))
}

/// Walks the tree and checks invariants 1 to 3; returns its nodes and records.
fn audit(tree: &Tree, store: &mut TestStore) -> (usize, Vec<Vec<u8>>) {
    fn walk(
        tree: &Tree,
        store: &mut TestStore,
        block: FsBlock,
        level: u16,
        low: u64,
        high: Option<u64>,
        out: &mut Vec<Vec<u8>>,
    ) -> usize {
        let limit = store.geometry().block_count;
        let entries = tree
            .visit(store, block, level, |node| {
                (0..node.count)
                    .map(|i| {
                        Ok((
                            node.key(i),
                            node.item(i).to_vec(),
                            if level > 0 { node.child(i, limit)? } else { FsBlock(0) },
                        ))
                    })
                    .collect::<Checked<Vec<_>>>()
            })
            .unwrap();
        assert!(!entries.is_empty() || block == tree.root);
        assert!(level == 0 || block != tree.root || entries.len() > 1, "root with one child");
        let mut nodes = 1;
        for (i, (key, item, child)) in entries.iter().enumerate() {
            if level == 0 || i > 0 {
                assert!(*key >= low && high.is_none_or(|high| *key < high), "key outside its separators");
            }
            if i > 0 && (level == 0 || i > 1) {
                assert!(entries[i - 1].0 < *key, "keys do not rise");
            }
            if level == 0 {
                out.push(item.clone());
            } else {
                let low = if i == 0 { low } else { *key };
                let high = entries.get(i + 1).map_or(high, |next| Some(next.0));
                nodes += walk(tree, store, *child, level - 1, low, high, out);
            }
        }
        nodes
    }
    let mut out = Vec::new();
    let nodes = walk(tree, store, tree.root, tree.level, 0, None, &mut out);
    assert_eq!(nodes, store.blocks.len(), "nodes of the tree and of the store");
    (nodes, out)
}

fn short(kind: TreeKind, record: Option<Record>) -> Option<Vec<u8>> {
    record.map(|record| record[..kind.record_size].to_vec())
}

/// Random operations on a tree and on a `BTreeMap`, with node allocation failing now and then.
fn check(kind: TreeKind, block_bits: u32, seed: u64, steps: u64, span: u64) {
    let mut rng = Rng::new(seed);
    let (mut store, mut source) = fixture(block_bits);
    let mut tree = Tree::create(kind, 9, &mut store, &mut source).unwrap();
    let mut model = BTreeMap::<u64, Vec<u8>>::new();
    let (mut refused, mut top) = (0, 0);
    for step in 0..steps {
        // Phases that grow, shrink, and empty the tree.
        let growing = step * 5 / steps % 2 == 0;
        let key = rng.below(span);
        let rec = record(kind, key, rng.next());
        source.budget = if rng.one_in(4) { rng.below(4) as usize } else { usize::MAX };
        match rng.below(10) {
            0 => {
                assert_eq!(short(kind, tree.get(&mut store, key).unwrap()), model.get(&key).cloned());
                let floor = model.range(..=key).next_back().map(|(_, rec)| rec.clone());
                assert_eq!(short(kind, tree.floor(&mut store, key).unwrap()), floor);
                let ceiling = model.range(key..).next().map(|(_, rec)| rec.clone());
                assert_eq!(short(kind, tree.ceiling(&mut store, key).unwrap()), ceiling);
            }
            1 => {
                assert_eq!(tree.replace(&mut store, &rec).unwrap(), model.contains_key(&key));
                if let Some(old) = model.get_mut(&key) {
                    *old = rec;
                }
            }
            2 | 3 => {
                // Near or far from the old key.
                let old = model.range(key..).next().map_or(key, |(&old, _)| old);
                let new = if rng.one_in(2) { old.saturating_sub(2) + rng.below(5) } else { key };
                let rec = record(kind, new, step);
                let before = (tree, store.changes, source.free.len());
                match tree.rekey(&mut store, &mut source, old, &rec) {
                    Ok(found) => {
                        assert_eq!(found, model.remove(&old).is_some());
                        if found {
                            assert!(model.insert(new, rec).is_none());
                        }
                    }
                    Err(Error::Refused(Errno::NOSPC)) => {
                        refused += 1;
                        assert_eq!(before, (tree, store.changes, source.free.len()));
                    }
                    Err(Error::Corrupt(found)) if matches!(*found, Corrupt::TreeNode { field: "key", .. }) => {
                        assert!(new != old && model.contains_key(&new));
                        assert_eq!(before, (tree, store.changes, source.free.len()));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            4..=8 if growing => {
                let before = (tree, store.changes, source.free.len());
                match tree.insert(&mut store, &mut source, &rec) {
                    Ok(()) => assert!(model.insert(key, rec).is_none()),
                    Err(Error::Refused(Errno::NOSPC)) => {
                        refused += 1;
                        assert_eq!(before, (tree, store.changes, source.free.len()), "a refusal left a trace");
                    }
                    Err(_) => assert!(model.contains_key(&key)),
                }
            }
            _ => {
                let key = model.range(key..).next().map_or(key, |(&key, _)| key);
                assert_eq!(tree.remove(&mut store, &mut source, key).unwrap(), model.remove(&key).is_some());
            }
        }
        top = top.max(tree.level);
        if step % (steps / 50) == 0 {
            let (_, records) = audit(&tree, &mut store);
            assert!(records.iter().eq(model.values()));
        }
    }
    let (nodes, records) = audit(&tree, &mut store);
    assert!(records.iter().eq(model.values()));
    assert_eq!(nodes + source.free.len(), POOL.count());
    assert!(top > 0 && refused > 0, "the test did not reach splits ({top}) and refusals ({refused})");
    tree.free_all(&mut store, &mut source).unwrap();
    assert_eq!(source.free.len(), POOL.count());
    assert!(store.blocks.is_empty());
}

#[test]
fn behaves_as_a_map() {
    for seed in 0..4 {
        check(FREE_BY_START, 9, seed, 20_000, 3_000);
        check(INODE_CHUNKS, 9, seed, 20_000, 100_000);
        check(EXTENTS, 9, seed, 20_000, 100_000);
    }
    check(EXTENTS, 12, 10, 40_000, 1 << 40);
    check(INODE_CHUNKS, 12, 11, 40_000, 1 << 40);
    check(FREE_BY_START, 16, 12, 200_000, 1 << 40);
}

#[test]
fn records_in_order_fill_their_nodes() {
    let (mut store, mut source) = fixture(12);
    let mut tree = Tree::create(EXTENTS, 9, &mut store, &mut source).unwrap();
    for key in 0..20_000 {
        tree.insert(&mut store, &mut source, &record(EXTENTS, key, key)).unwrap();
    }
    let (nodes, records) = audit(&tree, &mut store);
    let full = EXTENTS.leaf_max(4096);
    assert!(nodes * full * 85 / 100 < records.len(), "{nodes} nodes of {full} for {} records", records.len());
}

#[test]
fn rekey_under_the_same_start_never_needs_a_node() {
    // The free-space tree by start relies on this: an extent that shrinks or grows at its end changes its key.
    let mut rng = Rng::new(5);
    let (mut store, mut source) = fixture(9);
    let mut tree = Tree::create(FREE_BY_START, 9, &mut store, &mut source).unwrap();
    let mut lengths = vec![500u64; 4000];
    for start in 0..4000u64 {
        tree.insert(&mut store, &mut source, &record(FREE_BY_START, start << 42 | 500, 0)).unwrap();
    }
    source.budget = 0;
    let blocks = store.blocks.len();
    for _ in 0..20_000 {
        let start = rng.below(4000);
        let (old, new) = (lengths[start as usize], rng.below(1000) + 1);
        lengths[start as usize] = new;
        assert!(
            tree.rekey(&mut store, &mut source, start << 42 | old, &record(FREE_BY_START, start << 42 | new, 0))
                .unwrap()
        );
    }
    assert_eq!(store.blocks.len(), blocks);
    audit(&tree, &mut store);
}

/// Sets bytes of random nodes to random values: every operation must end, with or without an error.
#[test]
fn hostile_nodes_neither_loop_nor_panic() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (mut store, mut source) = fixture(9);
        let mut tree = Tree::create(EXTENTS, 9, &mut store, &mut source).unwrap();
        for key in 0..2000 {
            tree.insert(&mut store, &mut source, &record(EXTENTS, key * 7, key)).unwrap();
        }
        let blocks: Vec<FsBlock> = (POOL.start..POOL.start + store.blocks.len() as u64).map(FsBlock).collect();
        for _ in 0..=rng.below(4) {
            let victim = if rng.one_in(3) { tree.root } else { blocks[rng.below(blocks.len() as u64) as usize] };
            let bytes = store.blocks.get_mut(&victim).unwrap();
            let at = 48 + 8 * rng.below((512 - 48) / 8) as usize;
            let value = match rng.below(3) {
                0 => rng.next(),
                1 => blocks[rng.below(blocks.len() as u64) as usize].0,
                _ => rng.below(20_000),
            };
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        if rng.one_in(10) {
            tree.level = rng.below(40) as u16;
        }
        for _ in 0..50 {
            let key = rng.below(14_000);
            let _ = tree.get(&mut store, key);
            let _ = tree.floor(&mut store, key);
            let _ = tree.ceiling(&mut store, key);
            let mut seen = 0;
            let _ = tree.for_each_from(&mut store, 0, |_| {
                seen += 1;
                ControlFlow::Continue(())
            });
            assert!(seen < 10_000);
        }
        (store.lenient, source.lenient) = (true, true);
        for _ in 0..200 {
            let key = rng.below(14_000);
            let _ = tree.insert(&mut store, &mut source, &record(EXTENTS, key, 0));
            let _ = tree.remove(&mut store, &mut source, rng.below(2000) * 7);
            let _ = tree.rekey(&mut store, &mut source, rng.below(2000) * 7, &record(EXTENTS, key, 1));
            if rng.one_in(20) {
                // A free-space tree that offers nodes in use.
                source.free.insert(blocks[rng.below(blocks.len() as u64) as usize]);
            }
        }
        let _ = tree.free_all(&mut store, &mut source);
    }
}

#[test]
fn damage_is_reported_by_node() {
    let (mut store, mut source) = fixture(9);
    let mut tree = Tree::create(EXTENTS, 9, &mut store, &mut source).unwrap();
    for key in 0..500 {
        tree.insert(&mut store, &mut source, &record(EXTENTS, key, key)).unwrap();
    }
    let root = tree.root;
    let fails = |store: &mut TestStore, tree: Tree, expected: &str| match tree.get(store, 0) {
        Err(Error::Corrupt(found)) => {
            assert!(
                matches!(*found, Corrupt::TreeNode { block, field, .. } if (block, field) == (root, expected)),
                "{found}"
            );
        }
        other => panic!("{expected}: {other:?}"),
    };
    let mut damage = |at: usize, value: &[u8], expected: &str| {
        let sound = store.blocks[&root].clone();
        store.blocks.get_mut(&root).unwrap()[at..at + value.len()].copy_from_slice(value);
        fails(&mut store, tree, expected);
        store.blocks.insert(root, sound);
    };
    damage(48, &[0], "level");
    damage(50, &[29, 0], "count");
    damage(50, &[0, 0], "count");
    damage(72, &[0; 8], "child");
    damage(72, &[0, 0, 1, 0, 0, 0, 0, 0], "child");
    fails(&mut store, Tree { level: 16, ..tree }, "root level");
    let stranger = Tree { owner: 8, ..tree };
    assert!(matches!(
        stranger.get(&mut store, 0),
        Err(Error::Corrupt(found)) if matches!(*found, Corrupt::BlockOwner { stored: 9, expected: 8, .. })
    ));
    assert!(tree.get(&mut store, 0).unwrap().is_some(), "sound again");
}

/// An inner node whose first child went takes keys below its new first entry's; joined to the right of another, that
/// entry's own key would be too large a separator.
#[test]
fn first_entries_get_their_separator_when_nodes_join() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let (mut store, mut source) = fixture(9);
        let mut tree = Tree::create(EXTENTS, 9, &mut store, &mut source).unwrap();
        let mut keys: std::collections::BTreeSet<u64> = (0..4000).map(|key| key * 10).collect();
        for &key in &keys {
            tree.insert(&mut store, &mut source, &record(EXTENTS, key, 0)).unwrap();
        }
        assert!(tree.level >= 2);
        for _ in 0..150 {
            // Empties a leaf, and puts a record where it began.
            let mut first = false;
            let leaf = tree
                .descend(&mut store, rng.below(40_000), |level, step| first |= level == 1 && step.index == 0)
                .unwrap();
            let high = leaf.high.unwrap_or(u64::MAX);
            if !first {
                continue;
            }
            for key in keys.range(leaf.low..high).copied().collect::<Vec<_>>() {
                assert!(tree.remove(&mut store, &mut source, key).unwrap() && keys.remove(&key));
            }
            tree.insert(&mut store, &mut source, &record(EXTENTS, leaf.low, 0)).unwrap();
            keys.insert(leaf.low);
        }
        while !keys.is_empty() {
            let from = rng.below(40_000);
            for key in keys.range(from..).take(20).copied().collect::<Vec<_>>() {
                assert!(tree.remove(&mut store, &mut source, key).unwrap() && keys.remove(&key));
            }
            let (_, records) = audit(&tree, &mut store);
            assert!(records.iter().map(|record| key_of(EXTENTS, record)).eq(keys.iter().copied()));
        }
    }
}

#[test]
fn separators_are_as_round_as_they_can_be() {
    assert_eq!(roundest(5 << 32 | 77, 6 << 32 | 3), 6 << 32);
    assert_eq!(roundest(0, 1), 1);
    assert_eq!(roundest(7, 9), 8);
    assert_eq!(roundest(0, u64::MAX), 1 << 63);
    let mut rng = Rng::new(1);
    for _ in 0..1000 {
        let (a, b) = (rng.next(), rng.next());
        let (left, right) = (a.min(b), a.max(b));
        let mid = roundest(left, right);
        assert!(left < mid && mid <= right);
    }
}
