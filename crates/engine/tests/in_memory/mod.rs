//! Volumes in memory, for tests of maps.

use myriad_device::MemoryDevice;
use myriad_engine::{Cred, File, Fs, MkfsOptions, MountOptions, OpenOptions};
use std::sync::Arc;

pub const CREATE: OpenOptions = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };

pub fn mount(device: &Arc<MemoryDevice>) -> Fs {
    let options = MountOptions { background: false, cache_size: 8 << 20, ..MountOptions::default() };
    Fs::open_device(device.clone(), None, options).unwrap()
}

pub fn formatted(size: u64, mkfs: &MkfsOptions) -> (Arc<MemoryDevice>, Fs) {
    let device = Arc::new(MemoryDevice::new(size));
    Fs::format_device(device.clone(), None, mkfs).unwrap();
    let fs = mount(&device);
    (device, fs)
}

pub fn open(fs: &Fs, name: &str) -> File {
    fs.session(Cred::root()).open(name, CREATE).unwrap()
}
