//! How volumes under test are made and opened.

use crate::table::Row;
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine as engine;
use myriad_engine::{Clock, Cred, Discard, Fs, MkfsOptions, MountOptions, Order, StatFs, SyncMode};
use myriad_format::choices::{Choices, Directory};
use myriad_sim::compare::Rules;
use myriad_sim::crash::{Found, History};
use myriad_sim::rng::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// The devices that a volume lies on.
#[derive(Clone)]
pub struct Devices {
    pub main: Arc<dyn BlockDevice>,
    /// The log's own, if it has one.
    pub log: Option<Arc<dyn BlockDevice>>,
}

impl<D: BlockDevice + 'static> From<Arc<D>> for Devices {
    fn from(main: Arc<D>) -> Self {
        Self { main, log: None }
    }
}

impl From<Arc<dyn BlockDevice>> for Devices {
    fn from(main: Arc<dyn BlockDevice>) -> Self {
        Self { main, log: None }
    }
}

/// How a test's volumes are made and opened.
#[derive(Clone, Debug)]
pub struct Setup {
    pub size: u64,
    /// Of what all but files' pointers call a block: a fragment, if blocks have more than one.
    pub block_size: u32,
    pub fragments: u32,
    pub choices: Choices,
    pub order: Order,
    pub log_size: Option<u64>,
    /// Bytes of the log's own device; `None`: the log lies in the volume.
    pub log_device_size: Option<u64>,
    pub ag_size: Option<u64>,
    /// `None`: as mkfs chooses.
    pub region_size: Option<u64>,
    /// Of volumes with inode tables.
    pub bytes_per_inode: u64,
    pub data_checksums: bool,
    pub options: MountOptions,
    pub time: Arc<AtomicI64>,
}

/// Has directories that drop what they have no use for when a name is added, some blocks at a time, do so with the root.
pub fn let_root_shrink(fs: &Fs) -> engine::Result<()> {
    // Names that are gone may keep their place until that is durable.
    fs.sync()?;
    let root = fs.session(Cred::root());
    (0..20).try_for_each(|_| {
        root.create("settled", 0o644)?;
        root.unlink("settled")
    })
}

/// What a volume has left, the blocks that the root directory keeps among what is free: directories of some kinds keep theirs as
/// long as they are there, and this one always is.
pub fn statfs_but_root(fs: &Fs) -> engine::Result<StatFs> {
    let left = fs.statfs()?;
    let kept = fs.session(Cred::root()).stat("/")?.blocks * 512 / u64::from(left.block_size);
    Ok(StatFs { free_blocks: left.free_blocks + kept, ..left })
}

/// Options that make a run the same every time: no thread of its own, no clock but this one.
pub fn repeatable(clock: Arc<AtomicI64>) -> MountOptions {
    MountOptions {
        commit_interval_ms: 0,
        seed: Some(1),
        background: false,
        clock: Clock::Manual(clock),
        ..MountOptions::default()
    }
}

impl Setup {
    /// What mkfs chooses unless told otherwise.
    pub fn new(block_size: u32, size: u64) -> Self {
        Self::of(Row::default(), block_size, size)
    }

    /// Volumes of a row of the table of trials.
    pub fn of(row: Row, block_size: u32, size: u64) -> Self {
        let time = Arc::new(AtomicI64::new(0));
        let options = MountOptions {
            cache_size: 64 << 20,
            // Who looks at what it does says so.
            discard: Discard::Never,
            ..repeatable(time.clone())
        };
        Self {
            size,
            block_size,
            choices: row.choices,
            order: row.order,
            fragments: row.fragments.min(65536 / block_size),
            log_size: None,
            log_device_size: None,
            ag_size: None,
            region_size: None,
            bytes_per_inode: MkfsOptions::default().bytes_per_inode,
            data_checksums: false,
            options,
            time,
        }
    }

    /// What of a volume's answers is held against the model's.
    pub fn rules(&self) -> Rules {
        // Those keep the space of entries that are gone.
        Rules { dir_sizes: self.choices.directory != Directory::Linear, ..Rules::from_env() }
    }

    pub fn mkfs_options(&self) -> MkfsOptions {
        let default = MkfsOptions::default();
        MkfsOptions {
            choices: self.choices,
            block_size: self.block_size * self.fragments,
            fragments: self.fragments,
            ag_size: self.ag_size,
            region_size: self.region_size.unwrap_or(default.region_size),
            bytes_per_inode: self.bytes_per_inode,
            data_checksums: self.data_checksums,
            log_size: self.log_size,
            order: self.order,
            seed: Some(7),
            clock: engine::Clock::Manual(self.time.clone()),
            ..default
        }
    }

    /// A fresh volume with its log inside.
    pub fn format(&self) -> MemoryDevice {
        let (main, log) = self.format_all();
        assert!(log.is_none(), "the log has a device of its own");
        main
    }

    /// A fresh volume, and its log's device if it has one.
    pub fn format_all(&self) -> (MemoryDevice, Option<MemoryDevice>) {
        let main = Arc::new(MemoryDevice::new(self.size));
        let log = self.log_device_size.map(|size| Arc::new(MemoryDevice::new(size)));
        self.time.store(0, Ordering::Relaxed);
        let external = log.clone().map(|log| log as Arc<dyn BlockDevice>);
        Fs::format_device(main.clone(), external, &self.mkfs_options()).expect("mkfs on memory");
        (main.clone_image(), log.map(|log| log.clone_image()))
    }

    /// The devices of a fresh volume.
    pub fn format_devices(&self) -> Devices {
        let (main, log) = self.format_all();
        Devices { main: Arc::new(main), log: log.map(|log| Arc::new(log) as Arc<dyn BlockDevice>) }
    }

    /// Changes are held back by kind, where the order does that, for so many milliseconds: of the model's clock, an operation each.
    pub fn hold_back(&mut self, [data, directories, metadata]: [u64; 3]) {
        if self.order == Order::Soft {
            let options = &mut self.options;
            options.file_delay_ms = Some(data);
            options.dir_delay_ms = Some(directories);
            options.meta_delay_ms = Some(metadata);
        }
    }

    /// Whether its volumes can be opened in order `log`.
    pub fn has_log(&self) -> bool {
        self.log_size != Some(0) || self.log_device_size.is_some()
    }

    /// The same, and nothing is held back.
    pub fn at_once(&self) -> Self {
        let mut setup = self.clone();
        let options = &mut setup.options;
        (options.file_delay_ms, options.dir_delay_ms, options.meta_delay_ms) = (None, None, None);
        setup
    }

    pub fn holds_back(&self) -> bool {
        self.options.meta_delay_ms.is_some()
    }

    /// Now and then: without a log if the order needs none, or with the log on a device of its own.
    pub fn vary_log(&mut self, rng: &mut Rng) {
        if self.order == Order::None {
            self.log_size = rng.percent(50).then_some(0);
        }
        if self.log_size.is_none() && rng.percent(30) {
            self.log_device_size = Some(8 << 20);
        }
    }

    /// Whether what was `found` after a loss of power is allowed on a volume that promises to be usable at once.
    pub fn judge_usable(&self, history: &History, point: usize, found: &Found) -> Result<(), String> {
        if self.order == Order::Sync {
            history.judge_returned(point, found, self.options.sync_mode == SyncMode::All)
        } else {
            history.judge_usable(point, found)
        }
    }

    pub fn open(&self, devices: impl Into<Devices>) -> engine::Result<Fs> {
        let devices = devices.into();
        Fs::open_device(devices.main, devices.log, self.options.clone())
    }
}
