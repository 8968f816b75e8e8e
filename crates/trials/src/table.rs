//! The table of trials: which volumes are put on trial. A row is what is chosen when a volume is made, and the order in which it
//! is written afterwards.
//!
//! The rows follow from the table of choices (`myriad_format::choices`): each profile, and each set of choices that differs from a
//! profile at one seam, with each order that it can be written in, as far as this build has it. So a choice that comes into the
//! build joins all trials by itself. A flip that does not go without a second one takes that along: `map=blockmap` brings
//! `inodes=static`.
//!
//! ```text
//! order=log                                  profile myriad
//! order=none
//! space=bitmap,order=log                     one flip from it
//! inodes=static,map=blockmap,order=none      one flip, and what it needs
//! ...,map=blockmap,...,fragments=8,...       profile ffs once more, with fragments of blocks
//! ```

use myriad_engine::Order;
use myriad_format::Incompatible;
use myriad_format::choices::{self, Choices, MYRIAD, PROFILES, Profile, SEAMS};

/// What is chosen when a volume is made, and the order in which it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub choices: Choices,
    pub order: Order,
    /// Fragments of a block.
    pub fragments: u32,
}

/// Of a block of those volumes that have any.
const FRAGMENTS: u32 = 8;

impl Default for Row {
    fn default() -> Self {
        Self { choices: Choices::default(), order: Order::Log, fragments: 1 }
    }
}

impl Row {
    /// As `--choices` takes it: what differs from the default, and the order.
    pub fn name(&self) -> String {
        let fragments = if self.fragments > 1 { format!("fragments={},", self.fragments) } else { String::new() };
        let order = format!("{fragments}order={}", self.order.name());
        if self.is_default() { order } else { format!("{},{order}", name_of(&self.choices)) }
    }

    /// The line that says how to do the run of this name on its volumes again (`replay`).
    pub fn replay_line(&self, name: &str) -> String {
        format!("replay: scripts/reliability --choices {} --replay {name}", self.name())
    }

    /// Whether its volumes can have checksums of data: only a log makes a block and its checksum one change, and a block that is moved as a
    /// whole has none.
    pub fn has_checksums(&self) -> bool {
        !matches!(self.order, Order::Sync | Order::Soft) && self.fragments == 1
    }

    /// Whether its volumes are those that mkfs makes unless told otherwise. They are tried hardest.
    pub fn is_default(&self) -> bool {
        self.choices == Choices::default() && self.fragments == 1
    }
}

/// A set of choices as `--choices` takes it: what differs from the default.
pub fn name_of(choices: &Choices) -> String {
    let default = Choices::default().all();
    let differing = choices.all().into_iter().filter(|choice| !default.contains(choice));
    let parts: Vec<String> = differing.map(|(seam, choice)| format!("{seam}={}", choice.name)).collect();
    if parts.is_empty() { format!("profile={}", MYRIAD.name) } else { parts.join(",") }
}

/// What a volume promises of the time after a crash. Each order gives one of these, and the trials ask it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Names, links, owners and modes are those after some prefix of the operations, none older than the last sync that was
    /// acknowledged; what was synced is there; the check has nothing to say.
    Prefix,
    /// The volume can be used at once. What was synced and not changed since is there; what was changed is as before or as after, but
    /// nothing is lost in between. The check finds nothing but space that is in use for nothing and links that are too many.
    Usable,
    /// As [`Self::Usable`], and of names, links, owners, modes and attributes all is there that an operation had answered; of contents as
    /// well, if it was opened so (`MountOptions::sync_mode`).
    Returned,
    /// Until it has been checked, the volume is not changed. The check can always repair it, and then has nothing to say.
    Repair,
}

impl Promise {
    pub fn of(order: Order) -> Self {
        match order {
            Order::Log => Self::Prefix,
            Order::Soft => Self::Usable,
            Order::Sync => Self::Returned,
            Order::None => Self::Repair,
        }
    }
}

/// The orders that these choices can be written in.
pub fn orders(choices: &Choices) -> impl Iterator<Item = Order> {
    // Strongest promise first.
    let all = Order::SEAM.choices.iter().rev().filter_map(|choice| Order::from_code(choice.code));
    all.filter(|&order| order.choice().is_built && choices.check_order(order).is_ok())
}

/// Every row, the default first.
pub fn rows() -> Vec<Row> {
    let mut sets: Vec<Choices> = Vec::new();
    for profile in PROFILES {
        add(&mut sets, profile.choices);
        for seam in SEAMS {
            for choice in seam.choices {
                flip(&mut sets, profile.choices, seam.name, choice.name);
            }
        }
    }
    let of_set = |choices: &Choices, fragments| {
        let choices = *choices;
        orders(&choices).map(move |order| Row { choices, order, fragments }).collect::<Vec<_>>()
    };
    let mut rows: Vec<Row> = sets.iter().flat_map(|choices| of_set(choices, 1)).collect();
    for profile in PROFILES.iter().filter(|profile| profile.choices.map == choices::Map::Blocks) {
        rows.extend(of_set(&profile.choices, FRAGMENTS));
    }
    rows
}

/// Adds a set if this build has it and it is new.
fn add(sets: &mut Vec<Choices>, choices: Choices) {
    if choices.check_built().is_ok() && choices.check_together().is_ok() && !sets.contains(&choices) {
        sets.push(choices);
    }
}

/// Adds `choices` with one seam set otherwise, and a second one if the first does not go without it.
fn flip(sets: &mut Vec<Choices>, mut choices: Choices, seam: &str, choice: &str) {
    // What is no seam of a volume is the order; what is refused is not in this build.
    if choices.set(seam, choice) != Ok(true) {
        return;
    }
    match choices.check_together() {
        Ok(()) => add(sets, choices),
        Err(Incompatible::Apart { one, other, .. }) => {
            let second = if one.0 == seam { other.0 } else { one.0 };
            let seam = SEAMS.iter().find(|seam| seam.name == second).expect("a seam of the table");
            for choice in seam.choices {
                let mut both = choices;
                if both.set(second, choice.name) == Ok(true) {
                    add(sets, both);
                }
            }
        }
        Err(_) => {}
    }
}

/// The rows that `text` selects: `seam=choice` with commas, as mkfs takes them, also `profile=NAME`, `order=NAME` and `fragments=NUMBER`. Without an
/// order, all in which these choices can be written. They need not be in the table.
pub fn select(text: &str) -> Result<Vec<Row>, String> {
    let (mut choices, mut wanted, mut fragments) = (Choices::default(), None, 1);
    for part in text.split(',') {
        let Some((seam, choice)) = part.split_once('=') else {
            return Err(format!("`{part}`: seam=choice is expected, such as directory=indexed or order=log"));
        };
        match seam {
            "profile" => choices = Profile::parse(choice)?.choices,
            "order" => wanted = Some(Order::parse(choice)?),
            "fragments" => fragments = choice.parse().map_err(|_| format!("`{choice}` is no number of fragments"))?,
            _ if choices.set(seam, choice)? => {}
            _ => {
                let seams: Vec<&str> = SEAMS.iter().map(|seam| seam.name).collect();
                return Err(format!("`{seam}` is no seam; there are profile, {}", seams.join(", ")));
            }
        }
    }
    choices.check_built().and_then(|()| choices.check_together()).map_err(|error| error.to_string())?;
    let rows: Vec<Row> = orders(&choices)
        .filter(|order| wanted.is_none_or(|wanted| wanted == *order))
        .map(|order| Row { choices, order, fragments })
        .collect();
    match (rows.is_empty(), wanted) {
        (true, Some(order)) => Err(format!("`{text}`: these choices are not written with order={}", order.name())),
        (true, None) => Err(format!("`{text}`: this build has no order in which these choices are written")),
        (false, _) => Ok(rows),
    }
}

/// The rows that a test tries: all, or those that `MYRIAD_CHOICES` selects.
pub fn asked() -> Vec<Row> {
    match std::env::var("MYRIAD_CHOICES") {
        Ok(text) => select(&text).unwrap_or_else(|why| panic!("MYRIAD_CHOICES: {why}")),
        Err(_) => rows(),
    }
}

/// The sets of choices of these rows, whatever the order.
pub fn sets(rows: &[Row]) -> Vec<Choices> {
    let mut sets = Vec::new();
    for row in rows {
        if !sets.contains(&row.choices) {
            sets.push(row.choices);
        }
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::Setup;
    use myriad_device::MemoryDevice;
    use myriad_engine::Fs;
    use std::sync::Arc;

    /// Every set of choices that there is, in this build or not.
    fn all_sets() -> Vec<Choices> {
        let mut sets = Vec::new();
        for space in (0..9).filter_map(choices::Space::from_code) {
            for inodes in (0..9).filter_map(choices::Inodes::from_code) {
                for map in (0..9).filter_map(choices::Map::from_code) {
                    for directory in (0..9).filter_map(choices::Directory::from_code) {
                        for lookup in (0..9).filter_map(choices::Lookup::from_code) {
                            sets.push(Choices { space, inodes, map, directory, lookup, ..Choices::default() });
                        }
                    }
                }
            }
        }
        sets
    }

    /// mkfs and the table agree: it makes all rows, and nothing of what the table's rules refuse.
    #[test]
    fn mkfs_makes_what_can_be_chosen_and_nothing_else() {
        for choices in all_sets() {
            let can = choices.check_built().is_ok() && choices.check_together().is_ok();
            for order in [Order::Log, Order::None] {
                let setup = Setup::of(Row { choices, order, fragments: 1 }, 4096, 16 << 20);
                let device = Arc::new(MemoryDevice::new(setup.size));
                let made = Fs::format_device(device, None, &setup.mkfs_options());
                let can = can && orders(&choices).any(|other| other == order);
                assert_eq!(made.is_ok(), can, "{choices:?} {order:?}: {made:?}");
            }
        }
    }

    #[test]
    fn each_built_choice_is_in_a_row_and_the_default_is_the_first() {
        let rows = rows();
        assert_eq!(rows[0], Row::default());
        for seam in SEAMS {
            for choice in seam.choices.iter().filter(|choice| choice.is_built) {
                let has = |row: &Row| {
                    row.choices.all().contains(&(seam.name, choice))
                        || seam.name == "order" && row.order.name() == choice.name
                };
                assert!(rows.iter().any(has), "{}={}", seam.name, choice.name);
            }
        }
        for (index, row) in rows.iter().enumerate() {
            assert!(!rows[..index].contains(row), "{} twice", row.name());
            assert_eq!(select(&row.name()), Ok(vec![*row]));
        }
    }

    /// A map by blocks needs static inodes: either seam, flipped, changes the other with it.
    #[test]
    fn flips_take_along_what_they_need() {
        let apart = Choices { map: choices::Map::Blocks, ..Choices::default() };
        let mut sets = Vec::new();
        add(&mut sets, apart);
        flip(&mut sets, Choices::default(), "order", "none");
        assert_eq!(sets, []);
        flip(&mut sets, apart, "inodes", "dynamic");
        assert_eq!(sets, [Choices::default()]);
    }

    #[test]
    fn rows_are_selected_by_name() {
        let names = |text| select(text).map(|rows| rows.iter().map(Row::name).collect::<Vec<_>>());
        assert_eq!(names("directory=indexed"), Ok(vec!["order=log".into(), "order=none".into()]));
        assert_eq!(names("profile=myriad,order=none"), Ok(vec!["order=none".into()]));
        assert!(names("colour=red").unwrap_err().starts_with("`colour` is no seam; there are profile, space,"));
        assert!(names("order=fast").unwrap_err().contains("log"));
        assert!(names("directory").unwrap_err().contains("seam=choice is expected"));
        assert!(names("directory=append").unwrap_err().contains("is not in this build"));
    }
}
