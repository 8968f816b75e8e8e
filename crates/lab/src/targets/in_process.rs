//! A Myriad volume opened in this process: operations by path through a session of each thread.

use super::{Counters, Target, Usage, Worker, push_path};
use crate::disk::{Done, Host, Meter, Traced};
use crate::workloads::plan::PathZ;
use anyhow::{Context, Result, ensure};
use myriad_device::BlockDevice;
use myriad_engine::{
    AsPath, Cred, Errno, Error, File, FileType, Fs, MkfsOptions, MountOptions, OpenOptions, RenameMode, Session,
    SetAttr, SetTime,
};
use std::path::Path;
use std::sync::{Arc, Mutex};

pub struct InProcess {
    fs: Fs,
    /// Of the device, where it has one.
    meter: Option<Meter>,
    processor: Option<Processor>,
}

/// A processor that is charged for what the volume does.
struct Processor {
    host: Host,
    meter: Meter,
    charged: Mutex<Charged>,
}

#[derive(Default)]
struct Charged {
    done: Done,
    /// Attributes that came with listings. The engine hands them out without a call, and no program of the time could ask for them so.
    listed: u64,
    ns: u64,
}

impl Processor {
    /// Charges it for what was done since the last time. Nanoseconds in all.
    fn charge(&self, fs: &Fs) -> u64 {
        let mut charged = self.charged.lock().expect("no panic with the lock held");
        let done = Done::of(fs.counters()).with_calls(charged.listed);
        let ns = self.host.ns(charged.done, done);
        self.meter.compute(ns);
        charged.done = done;
        charged.ns += ns;
        charged.ns
    }

    fn listed(&self, entries: u64) {
        self.charged.lock().expect("no panic with the lock held").listed += entries;
    }
}

impl InProcess {
    /// Makes a volume in `image` and opens it. An existing file keeps its size if `size` is `None`.
    pub fn make(image: &Path, size: Option<u64>, mkfs: &MkfsOptions, mount: MountOptions) -> Result<Self> {
        Fs::format(image, size, mkfs).with_context(|| format!("mkfs of {}", image.display()))?;
        let fs = Fs::open(image, mount).with_context(|| format!("opening {}", image.display()))?;
        Ok(Self { fs, meter: None, processor: None })
    }

    /// Makes a volume on a device, in a machine whose processor takes its time or not, and opens it.
    pub fn make_on<D: BlockDevice + 'static>(
        device: Traced<D>,
        host: Option<Host>,
        mkfs: &MkfsOptions,
        mount: MountOptions,
    ) -> Result<Self> {
        let meter = device.meter();
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        Fs::format_device(device.clone(), None, mkfs).context("mkfs")?;
        let fs = Fs::open_device(device, None, mount).context("opening the volume")?;
        let processor = host.map(|host| Processor { host, meter: meter.clone(), charged: Mutex::default() });
        Ok(Self { fs, meter: Some(meter), processor })
    }

    fn charge(&self) -> Option<u64> {
        self.processor.as_ref().map(|processor| processor.charge(&self.fs))
    }
}

impl Target for InProcess {
    fn with_worker(&self, work: &mut dyn FnMut(&mut dyn Worker) -> Result<()>) -> Result<()> {
        work(&mut InProcessWorker { target: self, session: self.fs.session(Cred::root()), file: None })
    }

    fn sync(&self) -> Result<()> {
        Ok(self.fs.sync()?)
    }

    fn drop_caches(&self) -> Result<()> {
        self.fs.sync()?;
        Ok(self.fs.drop_caches()?)
    }

    fn counters(&self) -> Result<Counters> {
        let mut counters = Counters { processor_ns: self.charge(), ..Counters::default() };
        for (name, value) in self.fs.counters() {
            let field = match name {
                "device_reads" => &mut counters.reads,
                "device_read_bytes" => &mut counters.read_bytes,
                "device_writes" => &mut counters.writes,
                "device_written_bytes" => &mut counters.written_bytes,
                "device_flushes" => &mut counters.flushes,
                "blocks_touched" => &mut counters.blocks_touched,
                _ => {
                    counters.others.insert(name.to_owned(), value);
                    continue;
                }
            };
            *field = Some(value);
        }
        if let Some(meter) = &self.meter {
            counters.seek_bytes = Some(meter.seek_bytes());
            counters.modelled_ns = meter.modelled_ns();
        }
        Ok(counters)
    }

    fn phase_begins(&self, name: &str) {
        self.meter.iter().for_each(|meter| meter.begin_phase(name));
    }

    fn phase_ends(&self) {
        self.meter.iter().for_each(Meter::end_phase);
    }

    fn usage(&self) -> Result<Usage> {
        let statfs = self.fs.statfs()?;
        let used_blocks = statfs.blocks - statfs.free_blocks;
        Ok(Usage { used_bytes: used_blocks * u64::from(statfs.block_size), table_bytes_per_inode: 0 })
    }

    fn names(&self) -> Result<u64> {
        Ok(find_below(&self.fs.session(Cred::root()), "/")? - 1)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.fs.close()?)
    }
}

struct InProcessWorker<'t> {
    target: &'t InProcess,
    session: Session,
    file: Option<File>,
}

/// From the start of a new file, or at the end of one opened for appending. One call takes no more than the cache has room for.
fn write_all(file: &File, content: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < content.len() {
        let written = file.write_at(&content[done..], done as u64)?;
        ensure!(written > 0, "{done} of {} bytes written", content.len());
        done += written;
    }
    Ok(())
}

/// Files below and with `directory`, by their names.
fn find_below(session: &Session, directory: &(impl AsPath + ?Sized)) -> Result<u64> {
    let mut waiting = vec![session.resolve(directory)?];
    let mut count = 1;
    while let Some(directory) = waiting.pop() {
        for entry in session.read_dir_node(directory)? {
            let entry = entry?;
            count += 1;
            if entry.file_type == FileType::Directory {
                waiting.push(session.node(entry.ino)?);
            }
        }
    }
    Ok(count)
}

const FILE_MODE: u16 = 0o644;
const DIRECTORY_MODE: u16 = 0o755;

impl Worker for InProcessWorker<'_> {
    fn done(&mut self) {
        self.target.charge();
    }

    fn create(&mut self, path: PathZ) -> Result<()> {
        self.session.create(&path, FILE_MODE)?;
        Ok(())
    }

    fn mkdir(&mut self, path: PathZ) -> Result<()> {
        self.session.mkdir(&path, DIRECTORY_MODE)?;
        Ok(())
    }

    fn unlink(&mut self, path: PathZ) -> Result<()> {
        Ok(self.session.unlink(&path)?)
    }

    fn rmdir(&mut self, path: PathZ) -> Result<()> {
        Ok(self.session.rmdir(&path)?)
    }

    fn rename(&mut self, source: PathZ, target: PathZ) -> Result<()> {
        Ok(self.session.rename(&source, &target, RenameMode::Replace)?)
    }

    fn stat(&mut self, path: PathZ) -> Result<u64> {
        Ok(self.session.lstat(&path)?.size)
    }

    fn stat_missing(&mut self, path: PathZ) -> Result<()> {
        match self.session.lstat(&path) {
            Err(Error::Refused(Errno::NOENT)) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => anyhow::bail!("{} should be missing", path.display()),
        }
    }

    fn stat_many(&mut self, paths: &[PathZ]) -> Result<()> {
        for stat in self.session.stat_many(paths) {
            std::hint::black_box(stat?.size);
        }
        Ok(())
    }

    fn list(&mut self, directory: PathZ) -> Result<u64> {
        let mut count = 0;
        for entry in self.session.read_dir(&directory)? {
            std::hint::black_box(entry?.name.len());
            count += 1;
        }
        Ok(count)
    }

    fn names(&mut self, directory: PathZ, paths: &mut Vec<u8>) -> Result<()> {
        for entry in self.session.read_dir(&directory)? {
            push_path(paths, directory, &entry?.name);
        }
        Ok(())
    }

    /// By a walk, which hands out attributes with names. `ListStat` asks for directories without subdirectories only.
    fn list_stat(&mut self, directory: PathZ) -> Result<u64> {
        Ok(self.walk(directory)? - 1)
    }

    fn walk(&mut self, directory: PathZ) -> Result<u64> {
        let mut count = 0;
        for entry in self.session.walk(&directory)? {
            std::hint::black_box(entry?.stat.size);
            count += 1;
        }
        if let Some(processor) = &self.target.processor {
            processor.listed(count);
        }
        Ok(count)
    }

    fn find(&mut self, directory: PathZ) -> Result<u64> {
        find_below(&self.session, &directory)
    }

    fn remove_tree(&mut self, directory: PathZ) -> Result<u64> {
        Ok(self.session.remove_tree(&directory, &mut |_| true)?)
    }

    fn write_file(&mut self, path: PathZ, content: &[u8], sync: bool) -> Result<()> {
        let options =
            OpenOptions { write: true, create: true, exclusive: true, mode: FILE_MODE, ..OpenOptions::default() };
        let file = self.session.open(&path, options)?;
        write_all(&file, content).with_context(|| path.display().into_owned())?;
        if sync {
            file.sync()?;
        }
        Ok(())
    }

    fn read_file(&mut self, path: PathZ, buf: &mut [u8]) -> Result<usize> {
        let file = self.session.open(&path, OpenOptions { read: true, ..OpenOptions::default() })?;
        Ok(file.read_at(buf, 0)?)
    }

    fn open(&mut self, path: PathZ, new: bool) -> Result<()> {
        let options = OpenOptions {
            read: true,
            write: true,
            create: new,
            exclusive: new,
            mode: FILE_MODE,
            ..OpenOptions::default()
        };
        self.file = Some(self.session.open(&path, options)?);
        Ok(())
    }

    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> Result<()> {
        let file = self.file.as_ref().context("no file is open")?;
        let read = file.read_at(buf, offset)?;
        ensure!(read == buf.len(), "{read} of {} bytes read at {offset}", buf.len());
        Ok(())
    }

    fn write_at(&mut self, content: &[u8], offset: u64) -> Result<()> {
        let file = self.file.as_ref().context("no file is open")?;
        let written = file.write_at(content, offset)?;
        ensure!(written == content.len(), "{written} of {} bytes written at {offset}", content.len());
        Ok(())
    }

    fn link(&mut self, path: PathZ, name: PathZ) -> Result<()> {
        Ok(self.session.link(&path, &name)?)
    }

    fn utime(&mut self, path: PathZ) -> Result<()> {
        let times = SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
        self.session.set_attr(&path, times)?;
        Ok(())
    }

    fn append(&mut self, path: PathZ, content: &[u8]) -> Result<()> {
        let file = self.session.open(&path, OpenOptions { write: true, append: true, ..OpenOptions::default() })?;
        write_all(&file, content).with_context(|| path.display().into_owned())
    }

    fn create_sized(&mut self, path: PathZ, size: u64) -> Result<()> {
        let options =
            OpenOptions { write: true, create: true, exclusive: true, mode: FILE_MODE, ..OpenOptions::default() };
        Ok(self.session.open(&path, options)?.truncate(size)?)
    }

    fn settle(&mut self) -> Result<()> {
        match &self.file {
            Some(file) => Ok(file.sync_data()?),
            None => Ok(self.session.fs().sync()?),
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.file = None;
        Ok(())
    }
}
