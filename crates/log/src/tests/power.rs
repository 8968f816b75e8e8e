//! Many lives of one volume: power is lost at any request, and the log opened again must have what the model has.

use super::*;
use myriad_device::BlockDevice;
use std::collections::BTreeMap;

/// Blocks as the engine sees them, by number; `None`: freed, and home is anyone's.
type Blocks = BTreeMap<u64, Option<Vec<u8>>>;
type Pending = Vec<(FsBlock, u32)>;

/// A caller that keeps the log's contract to the letter and no further, and what it may expect after a crash.
struct World {
    disk: Arc<Disk>,
    place: LogPlace,
    random: Random,
    log: Option<Log>,
    /// As of the last acknowledged checkpoint.
    committed: Blocks,
    last: Option<Lsn>,
    pending: Pending,
    /// As of the checkpoint being written, with its LSN.
    flying: Option<(Lsn, Blocks, Pending)>,
    /// On the volume; home writes are durable at once.
    home: BTreeMap<u64, Vec<u8>>,
    /// First checkpoint that changed a block since it was last home.
    unhomed: BTreeMap<u64, Lsn>,
    checkpoints: u64,
    crashes: u64,
}

const BLOCKS: u64 = 12;

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let (disk, place) = new_log(5 + random.below(8));
        let home: BTreeMap<_, _> = (0..BLOCKS).map(|block| (block, image(block as u8))).collect();
        let committed = home.iter().map(|(&block, bytes)| (block, Some(bytes.clone()))).collect();
        let log = Some(open(&place).0);
        let (last, pending, flying, unhomed) = (None, Vec::new(), None, BTreeMap::new());
        Self { disk, place, random, log, committed, last, pending, flying, home, unhomed, checkpoints: 0, crashes: 0 }
    }

    /// One thing a caller may do. An error means the device is gone.
    fn step(&mut self) -> Result<(), LogError> {
        match self.random.below(4) {
            0 => {
                self.write_home();
                Ok(())
            }
            1 if self.random.one_in(3) => self.log.as_mut().unwrap().write_anchor(),
            _ => self.commit(),
        }
    }

    /// Writes home what is oldest, and promises no more than that.
    fn write_home(&mut self) {
        let log = self.log.as_mut().unwrap();
        let span = log.head().0 - log.tail().0;
        let target = Lsn(log.tail().0 + self.random.below(span / UNIT + 2) * UNIT);
        let due: Vec<_> = self.unhomed.iter().filter(|&(_, &lsn)| lsn < target).map(|(&block, _)| block).collect();
        for block in due {
            self.home.insert(block, self.committed[&block].clone().unwrap());
            self.unhomed.remove(&block);
        }
        log.set_tail(self.unhomed.values().copied().min().unwrap_or(log.head()));
    }

    fn commit(&mut self) -> Result<(), LogError> {
        let log = self.log.as_mut().unwrap();
        let random = &mut self.random;
        let mut next = self.committed.clone();
        let mut checkpoint = Checkpoint::new(BLOCK);
        let (mut changed, mut freed, mut pending) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..random.below(if random.0 % 3 == 0 { 40 } else { 6 }) {
            let block = random.below(BLOCKS);
            if freed.contains(&block) {
                continue;
            }
            let content = next.get_mut(&block).unwrap();
            // A freed block comes back whole.
            let mask = if content.is_none() { !0 } else { random.next() & random.next() | 1 << random.below(64) };
            let bytes = content.get_or_insert_with(|| image(0));
            for bit in (0..64).filter(|bit| mask >> bit & 1 == 1) {
                random.fill(&mut bytes[bit * 8..][..8]);
            }
            checkpoint.record(FsBlock(block), mask, bytes);
            changed.push(block);
            if random.one_in(8) {
                next.insert(block, None);
                checkpoint.revoke(FsBlock(block));
                freed.push(block);
            }
        }
        for _ in 0..random.below(3) {
            let free = (FsBlock(random.below(1000)), 1 + random.below(9) as u32);
            checkpoint.pending(free.0, free.1);
            pending.push(free);
        }
        let sealed = match log.seal(&mut checkpoint, 0) {
            Ok(sealed) => sealed,
            Err(LogError::Full { needed, room }) => {
                assert!(needed > room);
                return Ok(());
            }
            Err(error) => panic!("{error}"),
        };
        let lsn = sealed.lsn();
        self.flying = Some((lsn, next, pending));
        if random.one_in(2) {
            log.write_all(&sealed)?;
        } else {
            log.write_body(&sealed)?;
            if random.one_in(2) {
                let flushed = self.disk.flush();
                flushed.map_err(|source| LogError::Io { op: "flush", offset: 0, source })?;
            }
            log.write_commit(&sealed)?;
        }
        (_, self.committed, self.pending) = self.flying.take().unwrap();
        self.last = Some(lsn);
        self.checkpoints += 1;
        for block in changed {
            self.unhomed.entry(block).or_insert(lsn);
        }
        for block in freed {
            // The revoke has committed: the block may be someone's data now.
            self.unhomed.remove(&block);
            self.random.fill(self.home.get_mut(&block).unwrap());
        }
        Ok(())
    }

    /// Opens the log again, after a power loss or (`power`: false) after the process alone has died.
    fn reopen(&mut self, power: bool) {
        self.crashes += 1;
        self.log = None;
        self.disk.set_fuse(None);
        if power {
            self.disk.lose_power(&mut self.random);
        }
        let (log, recovered) = open(&self.place);
        match self.flying.take() {
            Some((lsn, blocks, pending)) if recovered.last == Some(lsn) => {
                (self.last, self.committed, self.pending) = (Some(lsn), blocks, pending);
            }
            _ => assert_eq!(recovered.last, self.last, "exactly the acknowledged checkpoints"),
        }
        assert_eq!(recovered.pending, self.pending);
        for (&block, content) in &self.committed {
            let mut bytes = self.home[&block].clone();
            let applied = recovered.overlay.apply(FsBlock(block), &mut bytes);
            match content {
                Some(content) => assert!(bytes == *content, "block {block}: {applied:?}"),
                None => assert!(applied.is_none(), "block {block} was revoked"),
            }
        }
        self.unhomed = recovered.overlay.blocks().map(|(block, lsn)| (block.0, lsn)).collect();
        self.log = Some(log);
    }
}

/// Many lives of one volume: power is lost at a random request, in a random state of the disk's cache, again and again.
#[test]
fn lives() {
    let (mut crashes, mut checkpoints) = (0, 0);
    for seed in 0..150 {
        println!("lives: seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..40 {
            let fuse = world.random.below(30);
            world.disk.set_fuse(Some(fuse));
            while world.step().is_ok() {}
            // Now and then several processes die before the power does.
            let power = !world.random.one_in(4);
            world.reopen(power);
        }
        crashes += world.crashes;
        checkpoints += world.checkpoints;
    }
    println!("{crashes} crashes, {checkpoints} checkpoints");
    assert!(checkpoints > 2 * crashes, "the run did too little to mean anything");
}

/// The same life, cut at every request in turn, with the cache lost in several ways.
#[test]
fn every_prefix() {
    for seed in 1000..1004 {
        for cut in 0.. {
            let mut finished = false;
            for luck in 0..6 {
                println!("every_prefix: seed {seed}, cut {cut}, luck {luck}");
                let mut world = World::new(seed);
                world.disk.set_fuse(Some(cut));
                finished = (0..250).all(|_| world.step().is_ok());
                world.random = Random(luck);
                world.reopen(true);
                // It must go on from there.
                while world.checkpoints < 3 || world.random.one_in(3) {
                    world.step().unwrap();
                }
                world.reopen(true);
            }
            if finished {
                assert!(cut > 100, "the life was too short");
                break;
            }
        }
    }
}
