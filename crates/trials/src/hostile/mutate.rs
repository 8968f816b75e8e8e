//! The mutator: damage that knows the format. Most of it gets its checksums right, as an attacker would, so that what
//! reads the volume has only its own care left.

use crate::hostile::Field;
use crate::hostile::bases::{Base, Site};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_format::superblock::Superblock;
use myriad_format::{BlockHeader, BlockKind, FsBlock, header};
use myriad_sim::rng::Rng;

/// Kinds of damage; a summary counts by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Fields at their limits, or off by one.
    Field,
    /// Pointers that lead to other blocks of the right kind, to themselves, to an ancestor.
    Pointer,
    /// Single bits anywhere in a metadata block.
    Bits,
    /// A run of random bytes.
    Bytes,
    /// Two blocks of one kind exchanged.
    Swap,
    /// A block in another's place.
    Copy,
    /// A block as it was earlier.
    Stale,
    /// Half of a block as it was earlier, or zeros; checksum as it comes.
    Torn,
    /// A block of another kind, or no block at all.
    Kind,
    /// The image cut short, or a superblock that says it is longer.
    Truncated,
    /// Anchors, checkpoint headers and records of the log.
    Log,
    /// Several of the above.
    Several,
}

impl Class {
    pub const ALL: [Self; 12] = [
        Self::Field,
        Self::Pointer,
        Self::Bits,
        Self::Bytes,
        Self::Swap,
        Self::Copy,
        Self::Stale,
        Self::Torn,
        Self::Kind,
        Self::Truncated,
        Self::Log,
        Self::Several,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Field => "field",
            Self::Pointer => "pointer",
            Self::Bits => "bits",
            Self::Bytes => "bytes",
            Self::Swap => "swap",
            Self::Copy => "copy",
            Self::Stale => "stale",
            Self::Torn => "torn",
            Self::Kind => "kind",
            Self::Truncated => "truncated",
            Self::Log => "log",
            Self::Several => "several",
        }
    }

    /// Per cent of all mutations.
    fn weight(self) -> u64 {
        match self {
            Self::Field => 34,
            Self::Pointer => 16,
            Self::Bits => 6,
            Self::Bytes => 4,
            Self::Swap | Self::Copy | Self::Stale => 5,
            Self::Torn | Self::Kind | Self::Truncated => 2,
            Self::Log => 9,
            Self::Several => 10,
        }
    }
}

/// One damaged image.
pub struct Mutant {
    pub image: MemoryDevice,
    pub class: Class,
    /// What was done, for people.
    pub story: Vec<String>,
}

/// Damages a copy of `base`.
pub fn mutate(base: &Base, rng: &mut Rng) -> Mutant {
    let mut drawn = rng.below(Class::ALL.iter().map(|class| class.weight()).sum());
    let class = *Class::ALL
        .iter()
        .find(|class| {
            let is_it = drawn < class.weight();
            drawn = drawn.saturating_sub(class.weight());
            is_it
        })
        .expect("the weights add up");
    let mut work = Work { base, image: base.image.clone_image(), rng, story: Vec::new() };
    match class {
        Class::Several => {
            for _ in 0..2 + work.rng.below(4) {
                let class = Class::ALL[work.rng.index(Class::ALL.len() - 1)];
                work.damage(class);
            }
        }
        class => work.damage(class),
    }
    Mutant { class, story: std::mem::take(&mut work.story), image: work.image }
}

struct Work<'a> {
    base: &'a Base,
    image: MemoryDevice,
    rng: &'a mut Rng,
    story: Vec<String>,
}

impl Work<'_> {
    fn damage(&mut self, class: Class) {
        match class {
            Class::Field => self.change_fields(false),
            Class::Pointer => self.change_fields(true),
            Class::Bits => self.change_bits(),
            Class::Bytes => self.change_bytes(),
            Class::Swap => self.swap(),
            Class::Copy => self.copy(),
            Class::Stale => self.make_stale(),
            Class::Torn => self.tear(),
            Class::Kind => self.change_kind(),
            Class::Truncated => self.truncate(),
            Class::Log => self.change_log(),
            Class::Several => {}
        }
    }

    /// A metadata block; rare kinds are drawn as often as common ones every second time.
    fn site(&mut self) -> &Site {
        let base = self.base;
        if self.rng.percent(50) {
            let kind = *self.rng.pick(&BlockKind::ALL);
            let of_kind: Vec<&Site> = base.sites.iter().filter(|site| site.kind == kind).collect();
            if !of_kind.is_empty() {
                return of_kind[self.rng.index(of_kind.len())];
            }
        }
        &base.sites[self.rng.index(base.sites.len())]
    }

    /// The block as it is now: earlier damage of the same mutant included.
    fn read(&self, block: FsBlock) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.base.block_size()];
        self.image.read(block.0 << self.base.geometry.block_bits, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Writes a block back, nearly always with its checksum made right.
    fn write(&mut self, block: FsBlock, bytes: &mut [u8]) {
        if self.rng.percent(94) {
            header::reseal(bytes, &self.base.volume, block);
        } else {
            self.story.push("checksum not made right".to_owned());
        }
        self.write_as_is(block, bytes);
    }

    fn write_as_is(&mut self, block: FsBlock, bytes: &[u8]) {
        // A mutant that was cut short has lost the block.
        let _ = self.image.write(block.0 << self.base.geometry.block_bits, bytes);
    }

    fn change_fields(&mut self, pointers_only: bool) {
        let site = self.site().clone();
        let Some(mut bytes) = self.read(site.block) else { return };
        let fields: Vec<Field> = if pointers_only && self.rng.percent(90) {
            site.fields.iter().copied().filter(Field::is_pointer).collect()
        } else {
            site.fields.clone()
        };
        if fields.is_empty() {
            return self.change_bits();
        }
        let count = if self.rng.percent(70) { 1 } else { 2 + self.rng.below(3) };
        for _ in 0..count {
            // The header's own fields are at the front of every list and say the least.
            let field = fields[self.rng.index(fields.len())];
            let old = field.get(&bytes);
            let new = if pointers_only { self.target(&site, field, old) } else { self.value(&site, field, old) };
            field.set(&mut bytes, new);
            let (kind, block, name, at) = (site.kind.name(), site.block, field.name, field.at);
            self.story.push(format!("{kind} {block}: {name} at {at}: {old:#x} -> {:#x}", field.get(&bytes)));
        }
        self.write(site.block, &mut bytes);
    }

    /// A value that somebody may not have thought of.
    fn value(&mut self, site: &Site, field: Field, old: u64) -> u64 {
        let max = field.max();
        let geometry = &self.base.geometry;
        let block_size = geometry.block_size() as u64;
        match self.rng.below(24) {
            0 => 0,
            1 => 1,
            2 => 2,
            3 => max,
            4 => max - 1,
            5 => max >> 1,
            6 => (max >> 1) + 1,
            7 | 8 => old.wrapping_add(1),
            9 | 10 => old.wrapping_sub(1),
            11 | 12 => old ^ 1 << self.rng.below(u64::from(field.bits)),
            13 => old.wrapping_mul(2),
            14 => old.wrapping_shl(8),
            15 => old.wrapping_add(8),
            16 => block_size + self.rng.below(3) - 1,
            17 => geometry.block_count + self.rng.below(3) - 1,
            18 => u64::from(geometry.ag_blocks()) + self.rng.below(3) - 1,
            19 => self.rng.below(256),
            20 => self.rng.next_u64() & max,
            21 => 1 << self.rng.below(u64::from(field.bits)),
            _ => self.target(site, field, old),
        }
    }

    /// A number that leads somewhere: block, inode, slot or position, whatever the field's width takes.
    fn target(&mut self, site: &Site, field: Field, old: u64) -> u64 {
        let base = self.base;
        let same: Vec<&Site> = base.sites.iter().filter(|other| other.kind == site.kind).collect();
        let target = match self.rng.below(12) {
            0 | 1 => site.block.0,
            2..=4 => same[self.rng.index(same.len())].block.0,
            5 => base.sites[self.rng.index(base.sites.len())].block.0,
            6 if !base.data_blocks.is_empty() => *self.rng.pick(&base.data_blocks),
            7 => base.geometry.block_count - self.rng.below(2),
            // What another field of this name holds: cross links, shared subtrees.
            8 | 9 => {
                let other = same[self.rng.index(same.len())].clone();
                let named: Vec<Field> = other.fields.into_iter().filter(|other| other.name == field.name).collect();
                match self.read(other.block) {
                    Some(bytes) if !named.is_empty() => named[self.rng.index(named.len())].get(&bytes),
                    _ => old.wrapping_add(1),
                }
            }
            10 => self.rng.below(base.geometry.block_count),
            _ => old.wrapping_add(1),
        };
        let is_inode = matches!(field.name, "ino" | "parent" | "owner" | "root_ino");
        if is_inode && self.rng.percent(85) && !base.inos.is_empty() {
            return *self.rng.pick(&base.inos);
        }
        // Group-relative fields.
        if field.bits == 32 && self.rng.percent(80) {
            return target & (u64::from(base.geometry.ag_blocks()) - 1);
        }
        target
    }

    fn change_bits(&mut self) {
        let site = self.site().clone();
        let Some(mut bytes) = self.read(site.block) else { return };
        for _ in 0..1 + self.rng.below(4) {
            let (at, bit) = (self.rng.index(bytes.len()), self.rng.below(8));
            bytes[at] ^= 1 << bit;
            self.story.push(format!("{} {}: bit {bit} of byte {at}", site.kind.name(), site.block));
        }
        self.write(site.block, &mut bytes);
    }

    fn change_bytes(&mut self) {
        let site = self.site().clone();
        let Some(mut bytes) = self.read(site.block) else { return };
        // Half of the time the block header is left alone: without it nothing is believed at all.
        let from = if self.rng.percent(50) { BlockHeader::SIZE } else { 0 };
        let at = from + self.rng.index(bytes.len() - from);
        let length = (1 + self.rng.index(64)).min(bytes.len() - at);
        let fill = self.rng.below(3);
        for byte in &mut bytes[at..at + length] {
            *byte = match fill {
                0 => 0,
                1 => 0xff,
                _ => self.rng.next_u64() as u8,
            };
        }
        self.story.push(format!("{} {}: {length} bytes at {at}", site.kind.name(), site.block));
        self.write(site.block, &mut bytes);
    }

    /// Two blocks of one kind, or now and then any two.
    fn two_sites(&mut self) -> (Site, Site) {
        let one = self.site().clone();
        let any = self.rng.percent(15);
        let others: Vec<&Site> = self.base.sites.iter().filter(|site| any || site.kind == one.kind).collect();
        let other = others[self.rng.index(others.len())].clone();
        (one, other)
    }

    /// Makes a block believe that it belongs where it is put.
    fn readdress(&mut self, bytes: &mut [u8], to: FsBlock, owner: u64) {
        if self.rng.percent(90) {
            BlockHeader::read_mut(bytes).address.set(to.0);
        }
        if self.rng.percent(60) {
            BlockHeader::read_mut(bytes).owner.set(owner);
        }
    }

    fn swap(&mut self) {
        let (one, other) = self.two_sites();
        let (Some(mut first), Some(mut second)) = (self.read(one.block), self.read(other.block)) else { return };
        let owners = (BlockHeader::read(&first).owner.get(), BlockHeader::read(&second).owner.get());
        self.readdress(&mut first, other.block, owners.1);
        self.readdress(&mut second, one.block, owners.0);
        self.story.push(format!(
            "{} {} and {} {} exchanged",
            one.kind.name(),
            one.block,
            other.kind.name(),
            other.block
        ));
        self.write(other.block, &mut first);
        self.write(one.block, &mut second);
    }

    fn copy(&mut self) {
        let (one, other) = self.two_sites();
        let (Some(mut bytes), Some(there)) = (self.read(one.block), self.read(other.block)) else { return };
        self.readdress(&mut bytes, other.block, BlockHeader::read(&there).owner.get());
        self.story.push(format!("{} {} copied over {} {}", one.kind.name(), one.block, other.kind.name(), other.block));
        self.write(other.block, &mut bytes);
    }

    /// Blocks that really were there once: believed by checksum, address and owner.
    fn make_stale(&mut self) {
        let mut old = vec![0; self.base.block_size()];
        for _ in 0..8 {
            let site = self.site().clone();
            let offset = site.block.0 << self.base.geometry.block_bits;
            let Some(now) = self.read(site.block) else { return };
            if self.base.earlier.read(offset, &mut old).is_ok() && old != now {
                self.story.push(format!("{} {} as it was earlier", site.kind.name(), site.block));
                return self.write_as_is(site.block, &old);
            }
        }
    }

    fn tear(&mut self) {
        let site = self.site().clone();
        let Some(mut bytes) = self.read(site.block) else { return };
        let mut old = vec![0; bytes.len()];
        if self.rng.percent(60) {
            let _ = self.base.earlier.read(site.block.0 << self.base.geometry.block_bits, &mut old);
        }
        // Inside a block of 512 bytes too: media promise sectors, hostile images nothing.
        let at = self.rng.index(bytes.len());
        bytes[at..].copy_from_slice(&old[at..]);
        self.story.push(format!("{} {} torn at byte {at}", site.kind.name(), site.block));
        if self.rng.percent(50) {
            self.write(site.block, &mut bytes);
        } else {
            self.write_as_is(site.block, &bytes);
        }
    }

    fn change_kind(&mut self) {
        let site = self.site().clone();
        let Some(mut bytes) = self.read(site.block) else { return };
        match self.rng.below(3) {
            0 => {
                bytes.fill(0);
                self.story.push(format!("{} {}: zeros", site.kind.name(), site.block));
                self.write_as_is(site.block, &bytes);
            }
            1 => {
                bytes.fill(0xa5);
                self.story.push(format!("{} {}: garbage", site.kind.name(), site.block));
                self.write_as_is(site.block, &bytes);
            }
            _ => {
                let kind = *self.rng.pick(&BlockKind::ALL);
                bytes[..4].copy_from_slice(&kind.magic().to_le_bytes());
                self.story.push(format!("{} {}: says {}", site.kind.name(), site.block, kind.name()));
                self.write(site.block, &mut bytes);
            }
        }
    }

    /// The image ends early; its superblock may say so, or even say that there is more than before.
    fn truncate(&mut self) {
        let base = self.base;
        let is_cut = self.rng.percent(70);
        let mut size = self.image.size();
        if is_cut {
            size = self.rng.below(size.max(1));
            if self.rng.percent(50) {
                size &= !(base.block_size() as u64 - 1);
            }
            let mut bytes = vec![0; size as usize];
            self.image.read(0, &mut bytes).expect("shorter than the image");
            self.image = MemoryDevice::from_bytes(&bytes);
            self.story.push(format!("cut to {size} bytes"));
        }
        if self.rng.percent(60) && size >= Superblock::SIZE as u64 {
            let mut bytes = vec![0; Superblock::SIZE];
            self.image.read(0, &mut bytes).expect("a superblock is there");
            if BlockKind::of(&bytes) != Some(BlockKind::Superblock) {
                // Other damage has made something else of it.
                return;
            }
            let superblock = Superblock::read_mut(&mut bytes);
            let blocks =
                if is_cut { size >> base.geometry.block_bits } else { self.rng.below(base.geometry.block_count) };
            superblock.block_count.set(blocks);
            superblock.ag_count.set(blocks.div_ceil(u64::from(base.geometry.ag_blocks())) as u32);
            let groups = superblock.ag_count.get();
            superblock.ag_high_water.set(superblock.ag_high_water.get().min(groups));
            header::seal(&mut bytes, 0);
            self.image.write(0, &bytes).expect("a superblock fits");
            self.story.push(format!("the superblock says {blocks} blocks"));
        }
    }

    fn change_log(&mut self) {
        let Some(mut log) = self.base.log.clone() else { return self.change_fields(true) };
        let checkpoints = log.checkpoint_count();
        match self.rng.below(10) {
            0 | 1 => {
                let fields = log.anchor_fields(self.rng.index(2));
                self.change_log_field(&mut log.bytes, &fields, "anchor");
            }
            2..=4 if checkpoints > 0 => {
                let fields = log.header_fields(self.rng.index(checkpoints));
                self.change_log_field(&mut log.bytes, &fields, "checkpoint");
            }
            5 | 6 if checkpoints > 0 => {
                let index = self.rng.index(checkpoints);
                let records = log.records(index, self.base.geometry.granule_size());
                if !records.is_empty() {
                    let record = records[self.rng.index(records.len())];
                    let at = log.place(index, record);
                    let field = Field { at, bit: 0, bits: 64, name: "block" };
                    let mask = Field { at: log.place(index, record + 8), bit: 0, bits: 64, name: "mask" };
                    let field = if self.rng.percent(60) { field } else { mask };
                    if field.at + 8 <= log.bytes.len() {
                        self.change_log_field(&mut log.bytes, &[field], "record");
                    }
                }
            }
            _ if checkpoints > 0 => {
                // Granules, revokes, pending frees: words at limits, or blocks' bytes that replay will believe.
                let index = self.rng.index(checkpoints);
                for _ in 0..1 + self.rng.below(3) {
                    let at = log.place(index, self.rng.index(log.length(index)));
                    let bits = *self.rng.pick(&[8_u32, 16, 32, 64]);
                    let at = at & !(bits as usize / 8 - 1);
                    if at + 8 <= log.bytes.len() {
                        self.change_log_field(&mut log.bytes, &[Field { at, bit: 0, bits, name: "body" }], "log");
                    }
                }
            }
            _ => {}
        }
        if self.rng.percent(92) {
            log.seal();
        }
        let _ = self.image.write(log.start, &log.bytes);
    }

    fn change_log_field(&mut self, bytes: &mut [u8], fields: &[Field], what: &str) {
        let field = fields[self.rng.index(fields.len())];
        let site = self.site().clone();
        let old = field.get(bytes);
        let new = self.value(&site, field, old);
        field.set(bytes, new);
        self.story.push(format!("{what}: {} at {}: {old:#x} -> {:#x}", field.name, field.at, field.get(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile::bases::{SHAPES, make};
    use myriad_format::choices::Choices;

    #[test]
    fn same_seed_same_mutant_and_checksums_hold() {
        let base = make(Choices::default(), SHAPES[1]).unwrap();
        let bytes = |image: &MemoryDevice| {
            let mut bytes = vec![0; image.size() as usize];
            image.read(0, &mut bytes).unwrap();
            bytes
        };
        let sound = bytes(&base.image);
        let (mut same, mut intact, mut blocks) = (0, 0, 0);
        for seed in 0..200 {
            let one = mutate(&base, &mut Rng::new(seed));
            let again = mutate(&base, &mut Rng::new(seed));
            assert_eq!(bytes(&one.image), bytes(&again.image), "seed {seed}");
            assert_eq!(one.story, again.story);
            if one.image.size() != base.image.size() {
                continue;
            }
            let now = bytes(&one.image);
            same += u32::from(now == sound);
            for (at, block) in now.chunks(512).enumerate().filter(|(at, block)| sound[at * 512..][..512] != **block) {
                if let Some(kind) = BlockKind::from_magic(BlockHeader::read(block).magic.get()) {
                    blocks += 1;
                    let volume = BlockHeader::read(block).volume;
                    let found = header::verify(block, kind, &volume, FsBlock(at as u64));
                    intact += u32::from(!matches!(found, Err(myriad_format::Corrupt::BlockCrc { .. })));
                }
            }
        }
        assert!(same < 30, "{same} of 200 mutants are no mutants");
        assert!(intact * 10 > blocks * 8, "{intact} of {blocks} changed blocks pass their checksum");
    }
}
