//! The image of a block that a round makes: its units that differ from what lasts, as they are but for what is not safe.

use super::census::Unit;
use super::shadow::Shadow;
use super::words::Words;
use crate::error::Error;
use crate::order::facts;
use myriad_format::BlockKind;
use myriad_format::unit::UNIT_SIZE;

/// A unit on its way to an image.
pub(super) struct Judged {
    pub number: usize,
    /// `None`: its block is new.
    pub lasting: Option<[u8; UNIT_SIZE]>,
    pub current: [u8; UNIT_SIZE],
    pub image: [u8; UNIT_SIZE],
}

pub(super) struct Image {
    kind: BlockKind,
    is_new: bool,
    /// Units that no facts are known of differ as well.
    has_others: bool,
    pub units: Vec<Judged>,
    /// Why some of its units stay as they last: something could not be read that says what of them may show.
    pub unreadable: Option<Error>,
}

impl Image {
    /// That of a block as it is, given its frame: of the units with facts those that have changed, and `more`.
    pub fn new(shadow: &Shadow, frame: &[u8], more: impl Fn(usize) -> bool) -> Self {
        let with_facts = if facts::has_facts(shadow.kind) { facts::units_of(shadow.kind, frame.len()) } else { 0 };
        let changed = shadow.changed_units(frame.len());
        let has_others = changed.last().is_some_and(|&last| last >= with_facts);
        let units = (0..with_facts).filter(|number| changed.binary_search(number).is_ok() || more(*number));
        let judged = |number: usize| {
            let unit = &frame[number * UNIT_SIZE..][..UNIT_SIZE];
            let current = unit.try_into().expect("a unit");
            Judged { number, lasting: shadow.lasting_unit(number, unit), current, image: current }
        };
        let units = units.map(judged).collect();
        Self { kind: shadow.kind, is_new: shadow.is_new, has_others, units, unreadable: None }
    }

    /// What of it is not so in the frame.
    pub fn words(&self) -> Words {
        let mut words = Words::default();
        self.units.iter().for_each(|unit| words.keep_differences(unit.number, &unit.image, &unit.current));
        words
    }

    /// Whether it shows all of the block.
    pub fn is_whole(&self) -> bool {
        self.units.iter().all(|unit| unit.image == unit.current)
    }

    /// Whether anything of it is not what lasts.
    pub fn differs(&self) -> bool {
        self.is_new || self.has_others || self.units.iter().any(|unit| unit.lasting != Some(unit.image))
    }

    /// Whether it differs from what lasts in nothing but values and the places of entries.
    pub fn has_only_values(&self) -> bool {
        self.has_only(facts::has_only_values)
    }

    /// Whether it differs from what lasts only where nothing is.
    pub fn has_only_remains(&self) -> bool {
        self.has_only(facts::has_only_remains)
    }

    fn has_only(&self, is_only: fn(BlockKind, Option<&[u8]>, &[u8]) -> bool) -> bool {
        let is_small = |unit: &Judged| {
            unit.lasting.is_some_and(|lasting| lasting == unit.image || is_only(self.kind, Some(&lasting), &unit.image))
        };
        !self.is_new && !self.has_others && self.units.iter().all(is_small)
    }

    /// Its units, to be counted.
    pub fn counted(&self) -> impl Iterator<Item = Unit<'_>> {
        self.units.iter().map(|unit| Unit {
            lasting: unit.lasting.as_ref().map(|unit| &unit[..]),
            current: &unit.current,
            image: &unit.image,
        })
    }
}
