//! The seams of a volume, and what can be chosen at each: one table, which mkfs, the opening, `info` and the lab read.
//!
//! A seam is a place where the papers differ, such as how a directory lies on the device. At each seam one choice is made
//! when the volume is made; its code is in the superblock. The table knows all choices by name. Not all are in this build:
//! one that is not is refused by its name, by mkfs and at an opening, and never taken for another.

use crate::incompatible::{Incompatible, Unsafe};

/// A choice at a seam, as the table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub name: &'static str,
    /// In the superblock.
    pub code: u8,
    pub is_built: bool,
    /// What it is, without full stop.
    pub about: &'static str,
    /// The paper or system it comes from.
    pub source: &'static str,
}

/// A seam, as the table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seam {
    pub name: &'static str,
    /// What is chosen, without full stop.
    pub about: &'static str,
    pub choices: &'static [Choice],
}

impl Seam {
    /// The names of its choices that are in this build, with commas.
    pub fn built(&self) -> String {
        let names: Vec<&str> = self.choices.iter().filter(|choice| choice.is_built).map(|choice| choice.name).collect();
        names.join(", ")
    }

    /// The choice of a name; the error says which there are.
    pub fn parse(&self, name: &str) -> Result<&'static Choice, String> {
        match self.choices.iter().find(|choice| choice.name == name) {
            Some(choice) if choice.is_built => Ok(choice),
            Some(choice) => Err(format!(
                "{}={} ({}) is not in this build, which has: {}",
                self.name,
                name,
                choice.about,
                self.built()
            )),
            None => Err(format!("`{name}` is no choice of {}; this build has: {}", self.name, self.built())),
        }
    }
}

/// Declares a seam: an enum of its choices, and its part of the table.
macro_rules! seam {
    (
        $(#[$doc:meta])* $kind:ident, $name:literal, $about:literal {
            $($(#[$more:meta])* $variant:ident = $code:literal, $choice:literal, $built:literal, $choice_about:literal, $source:literal;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $kind {
            $(#[doc = $choice_about] $(#[$more])* $variant = $code,)*
        }

        impl $kind {
            pub const SEAM: Seam = Seam {
                name: $name,
                about: $about,
                choices: &[$(Choice {
                    name: $choice, code: $code, is_built: $built, about: $choice_about, source: $source,
                },)*],
            };

            /// The choice that has this code.
            pub fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Its row of the table.
            pub fn choice(self) -> &'static Choice {
                let found = Self::SEAM.choices.iter().find(|choice| choice.code == self as u8);
                found.expect("the table is made of the same list")
            }

            /// As it is written.
            pub fn name(self) -> &'static str {
                self.choice().name
            }

            /// The choice of a name, whether or not it is in this build.
            pub fn named(name: &str) -> Option<Self> {
                Self::SEAM.choices.iter().find(|choice| choice.name == name).and_then(|choice| Self::from_code(choice.code))
            }

            /// The choice of a name, if it is in this build; the error says which are.
            pub fn parse(name: &str) -> Result<Self, String> {
                let choice = Self::SEAM.parse(name)?;
                Ok(Self::from_code(choice.code).expect("the table is made of the same list"))
            }
        }
    };
}

seam! {
    /// How free blocks are recorded.
    Space, "space", "how free blocks are recorded" {
        Bitmap = 1, "bitmap", true, "a bit a block in each group", "FFS; simplefs";
        Trees = 2, "btree", true, "two B+ trees in each group, by start and by length", "XFS 1996, 5.2";
    }
}
seam! {
    /// Where inodes lie.
    Inodes, "inodes", "where inodes lie" {
        Static = 1, "static", true, "a table of fixed size in each group", "FFS";
        Dynamic = 2, "dynamic", true, "chunks made when they are needed, found by a B+ tree", "XFS 1996, 5.4";
        Bucket = 3, "bucket", false, "buckets by the hash of the path", "DLFS, 2.1";
    }
}
seam! {
    /// How a block of a file is found.
    Map, "map", "how a block of a file is found" {
        Blocks = 1, "blockmap", true, "direct and indirect pointers", "FFS";
        Extents = 2, "extents", true, "extents in the inode, then in a B+ tree", "XFS 1996, 5.3";
    }
}
seam! {
    /// How a directory lies on the device.
    Directory, "directory", "how a directory lies on the device" {
        Linear = 1, "linear", true, "entries one after the other, searched from the front", "FFS";
        Slots = 2, "slots", true, "slots of fixed size in extents that count what they hold", "simplefs";
        Tree = 3, "btree", true, "entries in the leaves of a B+ tree by hash", "XFS 1996, 5.5";
        Indexed = 4, "indexed", true, "entry blocks that never move, and an index of hashes on the device", "Myriad";
        Append = 5, "append", false, "names that are only ever added", "DLFS";
    }
}
seam! {
    /// How a path becomes an inode.
    Lookup, "lookup", "how a path becomes an inode" {
        Walk = 1, "walk", true, "name by name, with a name cache", "FFS; XFS";
        Direct = 2, "direct", false, "at once, by the hash of the whole path", "DLFS, 2";
    }
}
seam! {
    /// What a volume is made of.
    VolumeKind, "volume", "what a volume is made of" {
        Single = 1, "single", true, "one device", "Myriad";
        Concatenated = 2, "concatenated", false, "devices one behind the other", "XLV";
        Striped = 3, "striped", false, "devices in stripes", "XLV";
        Mirrored = 4, "mirrored", false, "copies on several devices", "XLV";
    }
}
seam! {
    /// In which order changes reach the device. A volume may have room for several; each opening takes one.
    Order, "order", "in which order changes reach the device" {
        ///
        /// No promise after a crash but that repair can make the volume consistent.
        None = 0, "none", true, "any; after a crash fsck has to look", "FFS mounted async";
        ///
        /// Otherwise as [`Self::Soft`].
        Sync = 1, "sync", true, "each change of metadata is durable when the call returns", "FFS";
        ///
        /// After a crash the volume can be used at once. What may be wrong is lost space, link counts that are too high, and what a rename had
        /// not taken away yet.
        Soft = 2, "softdep", true, "soft updates: no block before what it depends on", "Dowse and Malone 2002, 2.1";
        ///
        /// After a crash names are those after a prefix of the operations.
        Log = 3, "log", true, "a write-ahead log, written behind the caller's back", "XFS 1996, 4.1";
    }
}

/// All seams at which a volume's choice is made by mkfs, and the orders it may have room for.
pub const SEAMS: [Seam; 7] =
    [Space::SEAM, Inodes::SEAM, Map::SEAM, Directory::SEAM, Lookup::SEAM, VolumeKind::SEAM, Order::SEAM];

/// What was chosen at each seam when a volume was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choices {
    pub space: Space,
    pub inodes: Inodes,
    pub map: Map,
    pub directory: Directory,
    pub lookup: Lookup,
    pub volume: VolumeKind,
}

impl Default for Choices {
    fn default() -> Self {
        MYRIAD.choices
    }
}

impl Order {
    /// Whether changes go straight to their places, each a sector that is sound by itself: after a crash the volume can be used at once.
    pub fn goes_by_rounds(self) -> bool {
        matches!(self, Self::Sync | Self::Soft)
    }
}

impl Choices {
    /// Seam by seam, in the order of the table.
    pub fn all(&self) -> [(&'static str, &'static Choice); 6] {
        [
            (Space::SEAM.name, self.space.choice()),
            (Inodes::SEAM.name, self.inodes.choice()),
            (Map::SEAM.name, self.map.choice()),
            (Directory::SEAM.name, self.directory.choice()),
            (Lookup::SEAM.name, self.lookup.choice()),
            (VolumeKind::SEAM.name, self.volume.choice()),
        ]
    }

    /// Sets a seam by name; `false`: there is no such seam. The error says which choices there are.
    pub fn set(&mut self, seam: &str, choice: &str) -> Result<bool, String> {
        match seam {
            "space" => self.space = Space::parse(choice)?,
            "inodes" => self.inodes = Inodes::parse(choice)?,
            "map" => self.map = Map::parse(choice)?,
            "directory" => self.directory = Directory::parse(choice)?,
            "lookup" => self.lookup = Lookup::parse(choice)?,
            "volume" => self.volume = VolumeKind::parse(choice)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether all of them are in this build.
    pub fn check_built(&self) -> Result<(), Incompatible> {
        match self.all().into_iter().find(|(_, choice)| !choice.is_built) {
            Some((seam, choice)) => Err(Incompatible::NotBuilt { seam, choice: choice.name }),
            None => Ok(()),
        }
    }

    /// Whether each choice finds at the other seams what it needs.
    pub fn check_together(&self) -> Result<(), Incompatible> {
        if self.map == Map::Blocks && self.inodes != Inodes::Static {
            let (map, inodes) = (self.map.name(), self.inodes.name());
            return Err(Incompatible::Apart {
                one: (Map::SEAM.name, map),
                other: (Inodes::SEAM.name, inodes),
                why: "only the inodes of inodes=static have room for its pointers",
            });
        }
        Ok(())
    }

    /// Whether a crash can be survived with this order of writes; the reason, if it never can.
    pub fn check_order(&self, order: Order) -> Result<(), Unsafe> {
        if !order.goes_by_rounds() {
            return Ok(());
        }
        // Without a log, one sector is all that a device writes as one.
        let fit = [
            (Space::SEAM.name, self.space.choice(), self.space == Space::Bitmap),
            (Inodes::SEAM.name, self.inodes.choice(), self.inodes == Inodes::Static),
            (Map::SEAM.name, self.map.choice(), self.map == Map::Blocks),
            (Directory::SEAM.name, self.directory.choice(), self.directory == Directory::Linear),
            (Lookup::SEAM.name, self.lookup.choice(), self.lookup == Lookup::Walk),
        ];
        match fit.into_iter().find(|(.., fits)| !fits) {
            Some((seam, choice, _)) => Err(Unsafe { order: order.name(), seam, choice: choice.name }),
            None => Ok(()),
        }
    }
}

/// A set of choices with a name.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    pub name: &'static str,
    pub choices: Choices,
    /// The order that a volume takes unless it is told otherwise.
    pub order: Order,
    /// Whether new directories go to other parts of the volume than their parents, unless an opening is told otherwise.
    pub spreads_directories: bool,
    /// What it is, without full stop.
    pub about: &'static str,
}

/// The default.
pub const MYRIAD: Profile = Profile {
    name: "myriad",
    choices: Choices {
        space: Space::Trees,
        inodes: Inodes::Dynamic,
        map: Map::Extents,
        directory: Directory::Indexed,
        lookup: Lookup::Walk,
        volume: VolumeKind::Single,
    },
    order: Order::Log,
    spreads_directories: false,
    about: "the fastest of all that can be chosen",
};

/// All profiles: of each system that the papers describe, and ours.
pub const PROFILES: [Profile; 5] = [
    MYRIAD,
    Profile {
        name: "xfs",
        choices: Choices { directory: Directory::Tree, ..MYRIAD.choices },
        order: Order::Log,
        spreads_directories: true,
        about: "XFS as Sweeney and others describe it in 1996",
    },
    Profile {
        name: "ffs",
        choices: Choices {
            space: Space::Bitmap,
            inodes: Inodes::Static,
            map: Map::Blocks,
            directory: Directory::Linear,
            ..MYRIAD.choices
        },
        order: Order::Soft,
        spreads_directories: false,
        about: "FreeBSD's file system with soft updates, as Dowse and Malone describe it in 2002",
    },
    Profile {
        name: "direct",
        choices: Choices {
            inodes: Inodes::Bucket,
            directory: Directory::Append,
            lookup: Lookup::Direct,
            ..MYRIAD.choices
        },
        order: Order::Log,
        spreads_directories: false,
        about: "direct lookup, as Lensing describes it in 2013",
    },
    Profile {
        name: "simplefs",
        choices: Choices {
            space: Space::Bitmap,
            inodes: Inodes::Static,
            directory: Directory::Slots,
            ..MYRIAD.choices
        },
        order: Order::None,
        spreads_directories: false,
        about: "simplefs with its counted directory blocks",
    },
];

impl Profile {
    /// The profile of a name, if all of it is in this build.
    pub fn parse(name: &str) -> Result<&'static Self, String> {
        let is_built = |profile: &Self| profile.choices.check_built().is_ok() && profile.order.choice().is_built;
        let built = || {
            let names: Vec<&str> =
                PROFILES.iter().filter(|profile| is_built(profile)).map(|profile| profile.name).collect();
            names.join(", ")
        };
        let Some(profile) = PROFILES.iter().find(|profile| profile.name == name) else {
            return Err(format!("`{name}` is no profile; this build has: {}", built()));
        };
        let mut lacks: Vec<String> = profile
            .choices
            .all()
            .into_iter()
            .filter(|(_, choice)| !choice.is_built)
            .map(|(seam, choice)| format!("{seam}={}", choice.name))
            .collect();
        if !profile.order.choice().is_built {
            lacks.push(format!("order={}", profile.order.name()));
        }
        if lacks.is_empty() {
            Ok(profile)
        } else {
            Err(format!("profile {name} ({}) is not in this build: it wants {}", profile.about, lacks.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_are_told_apart() {
        for seam in SEAMS {
            for (index, choice) in seam.choices.iter().enumerate() {
                for other in &seam.choices[..index] {
                    assert!(other.code != choice.code && other.name != choice.name, "{} {}", seam.name, choice.name);
                }
                assert_eq!(seam.parse(choice.name).is_ok(), choice.is_built);
            }
            assert!(seam.choices.iter().any(|choice| choice.is_built), "{}", seam.name);
        }
    }

    #[test]
    fn what_is_not_in_this_build_is_refused_by_name() {
        assert_eq!(
            Directory::parse("append").unwrap_err(),
            "directory=append (names that are only ever added) is not in this build, which has: linear, slots, btree, indexed"
        );
        assert_eq!(
            Space::parse("b-tree").unwrap_err(),
            "`b-tree` is no choice of space; this build has: bitmap, btree"
        );
        assert!(Profile::parse("direct").unwrap_err().contains("directory=append"));
        assert_eq!(Profile::parse("xfs").unwrap().choices.directory, Directory::Tree);
        assert_eq!(
            Profile::parse("zfs").unwrap_err(),
            "`zfs` is no profile; this build has: myriad, xfs, ffs, simplefs"
        );
        assert_eq!(Profile::parse("myriad").unwrap().choices, Choices::default());
        let mut choices = Choices::default();
        assert_eq!(choices.set("directory", "indexed"), Ok(true));
        assert_eq!(choices.set("colour", "red"), Ok(false));
    }

    #[test]
    fn choices_that_do_not_go_together_are_refused_with_the_reason() {
        assert_eq!(MYRIAD.choices.check_together(), Ok(()));
        let choices = Choices { map: Map::Blocks, ..MYRIAD.choices };
        assert_eq!(
            choices.check_together().unwrap_err().to_string(),
            "map=blockmap does not go with inodes=dynamic: only the inodes of inodes=static have room for its pointers"
        );
        assert_eq!(Choices { inodes: Inodes::Static, ..choices }.check_together(), Ok(()));
    }

    #[test]
    fn soft_updates_want_structures_that_change_by_one_sector() {
        let ffs = PROFILES.iter().find(|profile| profile.name == "ffs").unwrap();
        for order in [Order::None, Order::Sync, Order::Soft, Order::Log] {
            assert!(ffs.choices.check_order(order).is_ok());
        }
        let refused = MYRIAD.choices.check_order(Order::Soft).unwrap_err();
        assert!(refused.to_string().starts_with("order=softdep is never safe with space=btree"), "{refused}");
        assert!(MYRIAD.choices.check_order(Order::None).is_ok());
        let slots = Choices { directory: Directory::Slots, ..ffs.choices };
        let refused = slots.check_order(Order::Soft).unwrap_err();
        assert!(refused.to_string().starts_with("order=softdep is never safe with directory=slots"), "{refused}");
        let trees = Choices { directory: Directory::Tree, ..ffs.choices };
        let refused = trees.check_order(Order::Soft).unwrap_err();
        assert!(refused.to_string().starts_with("order=softdep is never safe with directory=btree"), "{refused}");
    }
}
