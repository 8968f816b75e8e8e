//! The table of options: a row each, in the order in which they are shown.

use super::{Named, Options, Row, Value, Values, When, Word};
use crate::types::{
    AccessTimes, Allocation, DirCache, DirPrefRule, DirPrefVersion, Discard, Order, PlacementPolicy, SyncMode,
    default_cache_size,
};
use myriad_format::choices::{self, Choices, PROFILES, Profile, Seam};

/// A row whose values are choices at a seam that mkfs fixes.
const fn seam(seam: &'static Seam, get: fn(&Options) -> Value, set: fn(&mut Options, Value)) -> Row {
    Row {
        name: seam.name,
        values: Values::Seam(seam),
        when: When::Mkfs,
        about: seam.about,
        source: "each choice names its own",
        unset: "",
        words: &[],
        get,
        set,
    }
}

/// Getter and setter of a seam's row, by the field of `Choices`.
macro_rules! choice {
    ($field:ident, $kind:ty) => {
        seam(
            &<$kind>::SEAM,
            |options| Value::Name(options.mkfs.choices.$field.name()),
            |options, value| {
                options.mkfs.choices.$field = <$kind>::named(value.name()).expect("a value of this row");
            },
        )
    };
}

/// Names of a row and what each stands for. Gives the list that the table shows, and both directions.
macro_rules! names {
    ($list:ident, $name_of:ident, $named:ident, $kind:ty { $($variant:path = $name:literal, $about:literal;)* }) => {
        const $list: &[Named] = &[$(Named { name: $name, about: $about },)*];

        fn $name_of(value: $kind) -> Value {
            Value::Name(match value {
                $($variant => $name,)*
            })
        }

        fn $named(value: Value) -> $kind {
            match value.name() {
                $($name => $variant,)*
                other => unreachable!("{other} is no value of this row"),
            }
        }
    };
}

names!(PLACEMENTS, placement_name, placement, PlacementPolicy {
    PlacementPolicy::DirPref = "dirpref", "by region, as the option `dirpref` says";
    PlacementPolicy::Rotor = "rotor", "each into the next allocation group in turn";
});
names!(VERSIONS, version_name, version, DirPrefVersion {
    DirPrefVersion::New = "new", "near their parent, until a region is too full or too crowded";
    DirPrefVersion::Old = "old", "into the region with the fewest directories, wherever their parent is";
});
names!(SYNC_MODES, sync_mode_name, sync_mode, SyncMode {
    SyncMode::Metadata = "metadata", "names, links and attributes; file data later";
    SyncMode::All = "all", "file data as well";
});
names!(RULES, rule_name, rule, DirPrefRule {
    DirPrefRule::Orlov = "2001", "a region may have a quarter of its size less free than the average";
    DirPrefRule::FreeBsd9 = "9.3", "a region must have three quarters of the average free";
});
names!(ALLOCATIONS, allocation_name, allocation, Allocation {
    Allocation::Delayed = "delayed", "when data is written out";
    Allocation::AtWrite = "write", "at each write";
});
names!(DIR_CACHES, dir_cache_name, dir_cache, DirCache {
    DirCache::Bounded = "bounded", "a pool of their own, as large as `dircache_size` says";
    DirCache::Unified = "unified", "all of it, in competition with all other blocks";
});
names!(DISCARDS, discard_name, discard, Discard {
    Discard::Auto = "auto", "in an image that has holes";
    Discard::Always = "always", "";
    Discard::Never = "never", "only by trim";
});
names!(ACCESS_TIMES, access_name, access_times, AccessTimes {
    AccessTimes::Never = "never", "";
    AccessTimes::Relative = "relative", "if they are older than the last change, or than a day";
    AccessTimes::Strict = "strict", "at each read";
});

impl Value {
    // What follows is asked of values that the row's own parser has made.

    fn name(&self) -> &'static str {
        let Self::Name(name) = self else { unreachable!("{self:?} is no name") };
        name
    }

    fn bytes(&self) -> u64 {
        let Self::Bytes(bytes) = self else { unreachable!("{self:?} is no size") };
        *bytes
    }

    fn time_ms(&self) -> u64 {
        let Self::Time(ms) = self else { unreachable!("{self:?} is no time") };
        *ms
    }

    fn number(&self) -> u64 {
        let Self::Number(number) = self else { unreachable!("{self:?} is no number") };
        *number
    }

    fn is_on(&self) -> bool {
        let Self::Switch(on) = self else { unreachable!("{self:?} is neither on nor off") };
        *on
    }
}

fn bytes_or_unset(bytes: Option<u64>) -> Value {
    bytes.map_or(Value::Unset, Value::Bytes)
}

fn unset_or_bytes(value: &Value) -> Option<u64> {
    (*value != Value::Unset).then(|| value.bytes())
}

/// The row of one of soft updates' delays, by the field of `MountOptions`: of what, and how many seconds FreeBSD has.
macro_rules! delay {
    ($name:literal, $field:ident, $what:literal, $usual:literal) => {
        Row {
            name: $name,
            values: Values::Time { most_ms: 1_000_000_000_000 },
            when: When::Live,
            about: concat!(
                "with order=softdep: how long ",
                $what,
                " held back; ",
                $usual,
                " in FreeBSD; 0: until a sync"
            ),
            source: "FreeBSD's syncer; McKusick and Ganger 1999",
            unset: "the commit interval",
            words: &[],
            get: |options| options.mount.$field.map_or(Value::Unset, Value::Time),
            set: |options, value| options.mount.$field = (value != Value::Unset).then(|| value.time_ms()),
        }
    };
}

fn path_or_unset(path: &Option<std::path::PathBuf>) -> Value {
    path.clone().map_or(Value::Unset, Value::Path)
}

fn unset_or_path(value: Value) -> Option<std::path::PathBuf> {
    if let Value::Path(path) = value { Some(path) } else { None }
}

fn profile_of(choices: &Choices) -> Value {
    let found = PROFILES.iter().find(|profile| profile.choices == *choices);
    found.map_or(Value::Unset, |profile| Value::Name(profile.name))
}

fn set_profile(options: &mut Options, value: Value) {
    if let Value::Name(name) = value {
        let profile = Profile::parse(name).expect("a value of this row");
        options.mkfs.choices = profile.choices;
        options.mkfs.spreads_directories = profile.spreads_directories;
        options.mkfs.order = profile.order;
    }
}

const fn a_number(name: &'static str) -> Named {
    Named { name, about: "" }
}

/// Into how many fragments a block can be divided.
static FRAGMENTS: [Named; 4] = [a_number("1"), a_number("2"), a_number("4"), a_number("8")];

/// The rows.
pub static TABLE: [Row; 45] = [
    Row {
        name: "profile",
        values: Values::Profile,
        when: When::Mkfs,
        about: "choices at all seams under one name, from which the other options differ",
        source: "each system of the papers",
        unset: "",
        words: &[],
        get: |options| profile_of(&options.mkfs.choices),
        set: set_profile,
    },
    choice!(space, choices::Space),
    choice!(inodes, choices::Inodes),
    choice!(map, choices::Map),
    choice!(directory, choices::Directory),
    choice!(lookup, choices::Lookup),
    choice!(volume, choices::VolumeKind),
    Row {
        name: "block-size",
        values: Values::Bytes { least: 512, most: 64 << 10, powers: true },
        when: When::Mkfs,
        about: "size of a block",
        source: "FFS",
        unset: "",
        words: &[],
        get: |options| Value::Bytes(options.mkfs.block_size.into()),
        set: |options, value| options.mkfs.block_size = value.bytes() as u32,
    },
    Row {
        name: "fragments",
        values: Values::Names(&FRAGMENTS),
        when: When::Mkfs,
        about: "with map=blockmap: of how many fragments a block is; the last block of a small file takes only as many as it needs",
        source: "FFS",
        unset: "",
        words: &[],
        get: |options| Value::Name(FRAGMENTS[options.mkfs.fragments.min(8).ilog2() as usize].name),
        set: |options, value| options.mkfs.fragments = value.to_string().parse().expect("a value of this row"),
    },
    Row {
        name: "ag-size",
        values: Values::Bytes { least: 64 * 512, most: 1 << 47, powers: true },
        when: When::Mkfs,
        about: "size of an allocation group",
        source: "XFS 1996, 5.1",
        unset: "by the volume's size, at most 1G",
        words: &[],
        get: |options| bytes_or_unset(options.mkfs.ag_size),
        set: |options, value| options.mkfs.ag_size = unset_or_bytes(&value),
    },
    Row {
        name: "region-size",
        values: Values::Bytes { least: 512, most: 1 << 47, powers: true },
        when: When::Mkfs,
        about: "size of a placement region, which placement of directories goes by",
        source: "cylinder groups of FFS",
        unset: "",
        words: &[],
        get: |options| Value::Bytes(options.mkfs.region_size),
        set: |options, value| options.mkfs.region_size = value.bytes(),
    },
    Row {
        name: "bytes-per-inode",
        values: Values::Bytes { least: 1 << 10, most: 16 << 20, powers: true },
        when: When::Mkfs,
        about: "with inodes=static: how much of the volume there is one inode for; what there is then is all there will be",
        source: "newfs -i of FFS",
        unset: "",
        words: &[],
        get: |options| Value::Bytes(options.mkfs.bytes_per_inode),
        set: |options, value| options.mkfs.bytes_per_inode = value.bytes(),
    },
    Row {
        name: "log-size",
        values: Values::Bytes { least: 0, most: myriad_log::RING_BYTES_MAX, powers: false },
        when: When::Mkfs,
        about: "size of the log; 0: no log, for the other orders",
        source: "XFS 1996, 4.1",
        unset: "by the volume's size, at most 128M",
        words: &[],
        get: |options| bytes_or_unset(options.mkfs.log_size),
        set: |options, value| options.mkfs.log_size = unset_or_bytes(&value),
    },
    Row {
        name: "log-device",
        values: Values::Path,
        when: When::Mkfs,
        about: "keep the log on this device",
        source: "XFS 1996, 4.1",
        unset: "in the volume",
        words: &[],
        get: |options| path_or_unset(&options.mkfs.log_device),
        set: |options, value| options.mkfs.log_device = unset_or_path(value),
    },
    Row {
        name: "data-checksums",
        values: Values::Switch,
        when: When::Mkfs,
        about: "keep a checksum of each block of file data, compared whenever it is read from the device: damage is an error, \
                never wrong bytes. What overwrites goes to new blocks then, also on a volume that is nearly full",
        source: "Myriad",
        unset: "",
        words: &[],
        get: |options| Value::Switch(options.mkfs.data_checksums),
        set: |options, value| options.mkfs.data_checksums = value.is_on(),
    },
    Row {
        name: "preallocate",
        values: Values::Switch,
        when: When::Once,
        about: "have the host give the image file all of its room at once: a host that fills up later does not stop the volume",
        source: "Myriad",
        unset: "",
        words: &[],
        get: |options| Value::Switch(options.mkfs.preallocate),
        set: |options, value| options.mkfs.preallocate = value.is_on(),
    },
    Row {
        name: "label",
        values: Values::Text { most_bytes: LABEL_MAX },
        when: When::Kept,
        about: "name of the volume",
        source: "every file system",
        unset: "",
        words: &[],
        get: |options| Value::Text(options.mkfs.label.clone()),
        set: |options, value| options.mkfs.label = value.to_string(),
    },
    Row {
        name: "order",
        values: Values::Seam(&Order::SEAM),
        when: When::MkfsOrMount,
        about: "order of writes; with none the volume wants fsck after a crash",
        source: "each choice names its own",
        unset: "the profile's, later that of the last opening",
        words: &[],
        get: |options| options.mount.order.map_or(Value::Unset, |order| Value::Name(order.name())),
        set: |options, value| {
            let order = (value != Value::Unset).then(|| Order::parse(value.name()).expect("a choice of this build"));
            options.mount.order = order;
            options.mkfs.order = order.unwrap_or(options.mkfs.order);
        },
    },
    Row {
        name: "syncmode",
        values: Values::Names(SYNC_MODES),
        when: When::Live,
        about: "with order=sync: what is durable when an operation returns",
        source: "FFS mounted as usual, and with -o sync",
        unset: "",
        words: &[],
        get: |options| sync_mode_name(options.mount.sync_mode),
        set: |options, value| options.mount.sync_mode = sync_mode(value),
    },
    Row {
        name: "logdev",
        values: Values::Path,
        when: When::Mount,
        about: "device that holds the log, for a volume made with one",
        source: "XFS 1996, 4.1",
        unset: "none",
        words: &[],
        get: |options| path_or_unset(&options.mount.log_device),
        set: |options, value| options.mount.log_device = unset_or_path(value),
    },
    Row {
        name: "cachesize",
        values: Values::Bytes { least: 0, most: 1 << 60, powers: false },
        when: When::Mount,
        about: "memory for cached blocks, at least 1024 of them",
        source: "Dowse and Malone 2002, 2.3",
        unset: "a quarter of the machine's, at most 4G",
        words: &[],
        get: |options| Value::Bytes(options.mount.cache_size),
        set: |options, value| {
            options.mount.cache_size = unset_or_bytes(&value).unwrap_or_else(default_cache_size);
        },
    },
    Row {
        name: "dircache",
        values: Values::Names(DIR_CACHES),
        when: When::Live,
        about: "memory of the cache for blocks of directories",
        source: "vmiodir; Dowse and Malone 2002, 2.3",
        unset: "",
        words: &[],
        get: |options| dir_cache_name(options.mount.dir_cache),
        set: |options, value| options.mount.dir_cache = dir_cache(value),
    },
    Row {
        name: "dircache_size",
        values: Values::Bytes { least: 0, most: 1 << 60, powers: false },
        when: When::Live,
        about: "with dircache=bounded: memory for blocks of directories, at least 32 of them and at most half of the cache",
        source: "FreeBSD before vmiodir",
        unset: "a twentieth of the cache",
        words: &[],
        get: |options| bytes_or_unset(options.mount.dir_cache_size),
        set: |options, value| options.mount.dir_cache_size = unset_or_bytes(&value),
    },
    Row {
        name: "dirlimit",
        values: Values::Number { least: 1, most: u32::MAX as u64 },
        when: When::Live,
        about: "most names of a directory of kind slots; simplefs has 30600",
        source: "simplefs",
        unset: "none",
        words: &[],
        get: |options| options.mount.dir_limit.map_or(Value::Unset, Value::Number),
        set: |options, value| {
            options.mount.dir_limit = match value {
                Value::Number(most) => Some(most),
                _ => None,
            };
        },
    },
    Row {
        name: "namecache",
        values: Values::Switch,
        when: When::Mount,
        about: "remember names that were looked up",
        source: "FFS",
        unset: "",
        words: &[Word { word: "nonamecache", value: "off", about: "look each name up in its directory" }],
        get: |options| Value::Switch(options.mount.name_cache),
        set: |options, value| options.mount.name_cache = value.is_on(),
    },
    Row {
        name: "namecache_absent",
        values: Values::Number { least: 0, most: u32::MAX as u64 },
        when: When::Mount,
        about: "size of the table of missing names: the table of known names divided by this; 0: none",
        source: "Dowse and Malone 2002, 3.1",
        unset: "",
        words: &[],
        get: |options| Value::Number(options.mount.name_cache_absent),
        set: |options, value| options.mount.name_cache_absent = value.number(),
    },
    Row {
        name: "dirhash",
        values: Values::Switch,
        when: When::Live,
        about: "keep hashes in memory over directories, made when one is first used",
        source: "Dowse and Malone 2002, 2.4",
        unset: "on where directories are linear",
        words: &[],
        get: |options| options.mount.dirhash.is_on.map_or(Value::Unset, Value::Switch),
        set: |options, value| options.mount.dirhash.is_on = (value != Value::Unset).then(|| value.is_on()),
    },
    Row {
        name: "dirhash_maxmem",
        values: Values::Bytes { least: 0, most: 1 << 40, powers: false },
        when: When::Live,
        about: "memory for all hashes of directories; 0: there are none",
        source: "Dowse and Malone 2002, 3.4",
        unset: "",
        words: &[],
        get: |options| Value::Bytes(options.mount.dirhash.memory_max),
        set: |options, value| options.mount.dirhash.memory_max = value.bytes(),
    },
    Row {
        name: "dirhash_minsize",
        values: Values::Bytes { least: 0, most: 1 << 40, powers: false },
        when: When::Live,
        about: "size of the smallest directory that gets a hash",
        source: "Dowse and Malone 2002, 3.4",
        unset: "",
        words: &[],
        get: |options| Value::Bytes(options.mount.dirhash.size_min),
        set: |options, value| options.mount.dirhash.size_min = value.bytes(),
    },
    Row {
        name: "dirhash_check",
        values: Values::Switch,
        when: When::Live,
        about: "compare each block of a directory that changes with the directory's hash",
        source: "FreeBSD",
        unset: "",
        words: &[],
        get: |options| Value::Switch(options.mount.dirhash.checks),
        set: |options, value| options.mount.dirhash.checks = value.is_on(),
    },
    Row {
        name: "commit",
        values: Values::Time { most_ms: 1_000_000_000_000 },
        when: When::Live,
        about: "longest time a change stays in memory only; 0: until a sync",
        source: "FreeBSD's syncer; XFS 1996, 4.1",
        unset: "",
        words: &[],
        get: |options| Value::Time(options.mount.commit_interval_ms),
        set: |options, value| options.mount.commit_interval_ms = value.time_ms(),
    },
    delay!("filedelay", file_delay_ms, "data of files is", "30"),
    delay!("dirdelay", dir_delay_ms, "directories are", "29"),
    delay!("metadelay", meta_delay_ms, "other metadata is", "28"),
    Row {
        name: "softdep_maxmem",
        values: Values::Bytes { least: 64 << 10, most: 1 << 40, powers: false },
        when: When::Live,
        about: "with order=softdep: memory for changes that are not durable; past half of it the oldest are written, past all of it operations wait",
        source: "McKusick and Ganger 1999 (max_softdeps)",
        unset: "a quarter of the cache, at most 256M",
        words: &[],
        get: |options| bytes_or_unset(options.mount.softdep_memory),
        set: |options, value| options.mount.softdep_memory = unset_or_bytes(&value),
    },
    Row {
        name: "placement",
        values: Values::Names(PLACEMENTS),
        when: When::Live,
        about: "where new directories go",
        source: "dirpref: FFS; rotor: XFS 1996, 5.1",
        unset: "the profile's: rotor with xfs, else dirpref",
        words: &[],
        get: |options| options.mount.placement.map_or(Value::Unset, placement_name),
        set: |options, value| options.mount.placement = (value != Value::Unset).then(|| placement(value)),
    },
    Row {
        name: "dirpref",
        values: Values::Names(VERSIONS),
        when: When::Live,
        about: "where placement=dirpref puts them",
        source: "new: Orlov 2001; old: FFS before",
        unset: "",
        words: &[],
        get: |options| version_name(options.mount.dirpref.version),
        set: |options, value| options.mount.dirpref.version = version(value),
    },
    Row {
        name: "dirprefrule",
        values: Values::Names(RULES),
        when: When::Live,
        about: "when dirpref=new leaves a region",
        source: "Orlov 2001; FreeBSD 9.3",
        unset: "",
        words: &[],
        get: |options| rule_name(options.mount.dirpref.rule),
        set: |options, value| options.mount.dirpref.rule = rule(value),
    },
    Row {
        name: "avgfilesize",
        values: Values::Bytes { least: 1, most: 1 << 40, powers: false },
        when: When::Live,
        about: "size of a file that dirpref expects",
        source: "Orlov 2001; newfs -g",
        unset: "",
        words: &[],
        get: |options| Value::Bytes(options.mount.dirpref.average_file_size),
        set: |options, value| options.mount.dirpref.average_file_size = value.bytes(),
    },
    Row {
        name: "avgfpdir",
        values: Values::Number { least: 0, most: 1 << 20 },
        when: When::Live,
        about: "files in a directory that dirpref expects; 0: it expects none",
        source: "Orlov 2001; newfs -h",
        unset: "",
        words: &[],
        get: |options| Value::Number(options.mount.dirpref.average_files_per_dir),
        set: |options, value| options.mount.dirpref.average_files_per_dir = value.number(),
    },
    Row {
        name: "alloc",
        values: Values::Names(ALLOCATIONS),
        when: When::Live,
        about: "when blocks of files are chosen",
        source: "XFS 1996, 6.1",
        unset: "",
        words: &[],
        get: |options| allocation_name(options.mount.allocation),
        set: |options, value| options.mount.allocation = allocation(value),
    },
    Row {
        name: "discard",
        values: Values::Names(DISCARDS),
        when: When::Live,
        about: "whether freed space goes back to the host by itself; fstrim(8) and myriad trim give it back in any case",
        source: "ext4",
        unset: "",
        words: &[
            Word { word: "discard", value: "always", about: "give freed space back to the host" },
            Word { word: "nodiscard", value: "never", about: "keep freed space" },
        ],
        get: |options| discard_name(options.mount.discard),
        set: |options, value| options.mount.discard = discard(value),
    },
    Row {
        name: "discard_piece",
        values: Values::Bytes { least: 1, most: 1 << 47, powers: false },
        when: When::Live,
        about: "the least that goes back by itself, rounded up to a power of two",
        source: "Myriad",
        unset: "",
        words: &[],
        get: |options| Value::Bytes(options.mount.discard_piece),
        set: |options, value| options.mount.discard_piece = value.bytes(),
    },
    Row {
        name: "atime",
        values: Values::Names(ACCESS_TIMES),
        when: When::Live,
        about: "when access times are written",
        source: "POSIX; Linux",
        unset: "",
        words: &[
            Word { word: "noatime", value: "never", about: "never write access times" },
            Word {
                word: "relatime",
                value: "relative",
                about: "write access times that are older than the last change or than a day, at reads that the daemon sees",
            },
            Word {
                word: "strictatime",
                value: "strict",
                about: "write access times at each read that the daemon sees, not those that the kernel answers from what it keeps",
            },
        ],
        get: |options| access_name(options.mount.atime),
        set: |options, value| options.mount.atime = access_times(value),
    },
    Row {
        name: "diratime",
        values: Values::Switch,
        when: When::Live,
        about: "write access times of directories, too",
        source: "Linux",
        unset: "",
        words: &[Word { word: "nodiratime", value: "off", about: "never write access times of directories" }],
        get: |options| Value::Switch(options.mount.dir_atime),
        set: |options, value| options.mount.dir_atime = value.is_on(),
    },
];

/// Bytes of the longest label.
const LABEL_MAX: usize = 63;
