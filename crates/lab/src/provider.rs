//! Makes a target anew for each run, so that every run starts from the same state, and takes it away afterwards.

use crate::targets::in_process::InProcess;
use crate::targets::sqlite::Sqlite;
use crate::targets::sys_calls::SysCalls;
use crate::targets::{Durability, Target};
use anyhow::{Context, Result, anyhow, bail, ensure};
use myriad_engine::options::{self, Options, Values};
use myriad_engine::{MkfsOptions, MountOptions};
use std::path::{Path, PathBuf};

/// What a target counts as in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Ours,
    /// A kernel file system: a rival in the ratio.
    Kernel,
    /// Shown, but no rival in the ratio.
    Other,
}

/// Where commands work: a directory or an image, empty.
pub struct Place {
    /// Values for `{dir}` or `{image}` in a command.
    pub variable: (&'static str, PathBuf),
    /// What holds the directory, to sync it and to drop its caches; an image has none, its commands close it.
    pub target: Option<Box<dyn Target>>,
}

pub trait Provider {
    fn label(&self) -> &str;
    fn side(&self) -> Side;
    fn make(&mut self) -> Result<Box<dyn Target>>;
    /// `None`: commands cannot work in it.
    fn place(&mut self) -> Result<Option<Place>> {
        Ok(None)
    }
}

/// How volumes are made and opened.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// `None`: the image file's own.
    pub size: Option<u64>,
    pub mkfs: MkfsOptions,
    pub mount: MountOptions,
}

/// A volume in an image file.
pub struct ImageProvider {
    label: String,
    image: PathBuf,
    options: VolumeOptions,
    /// The file goes with the provider.
    remove: bool,
}

impl ImageProvider {
    /// For an image file that is there: it stays, with its size.
    pub fn existing(label: String, image: &Path, options: VolumeOptions) -> Self {
        Self { label, image: image.to_owned(), options: VolumeOptions { size: None, ..options }, remove: false }
    }

    /// For a file that is made and, unless `keep`, removed in the end. One that is there is replaced with `force` only.
    pub fn new(label: String, image: &Path, options: VolumeOptions, force: bool, keep: bool) -> Result<Self> {
        refuse_existing(image, force)?;
        Ok(Self { label, image: image.to_owned(), options, remove: !keep })
    }
}

impl Provider for ImageProvider {
    fn label(&self) -> &str {
        &self.label
    }

    fn side(&self) -> Side {
        Side::Ours
    }

    fn make(&mut self) -> Result<Box<dyn Target>> {
        let VolumeOptions { size, mkfs, mount } = &self.options;
        Ok(Box::new(InProcess::make(&self.image, *size, mkfs, mount.clone())?))
    }

    fn place(&mut self) -> Result<Option<Place>> {
        myriad_engine::Fs::format(&self.image, self.options.size, &self.options.mkfs)
            .with_context(|| format!("mkfs of {}", self.image.display()))?;
        Ok(Some(Place { variable: ("image", self.image.clone()), target: None }))
    }
}

impl Drop for ImageProvider {
    fn drop(&mut self) {
        if self.remove {
            remove_file(&self.image);
        }
    }
}

/// A folder of its own in a directory of the user's.
pub struct DirectoryProvider {
    label: String,
    directory: PathBuf,
    direct: bool,
}

impl DirectoryProvider {
    pub fn new(label: String, directory: &Path, direct: bool) -> Self {
        Self { label, directory: directory.to_owned(), direct }
    }
}

impl Provider for DirectoryProvider {
    fn label(&self) -> &str {
        &self.label
    }

    fn side(&self) -> Side {
        Side::Kernel
    }

    fn make(&mut self) -> Result<Box<dyn Target>> {
        let folder = tempfile::Builder::new().prefix("myriad-bench-").tempdir_in(&self.directory);
        let folder = folder.with_context(|| format!("making a folder in {}", self.directory.display()))?;
        Ok(Box::new(SysCalls::new(folder.path(), self.direct).with_guard(Box::new(folder))))
    }
}

/// An SQLite database.
pub struct SqliteProvider {
    label: String,
    database: PathBuf,
    durability: Durability,
    cache_size: u64,
    keep: bool,
}

impl SqliteProvider {
    pub fn new(
        label: String,
        database: &Path,
        durability: Durability,
        cache_size: u64,
        force: bool,
        keep: bool,
    ) -> Result<Self> {
        refuse_existing(database, force)?;
        Ok(Self { label, database: database.to_owned(), durability, cache_size, keep })
    }

    fn remove(&self) {
        for suffix in ["", "-wal", "-shm"] {
            let mut path = self.database.clone().into_os_string();
            path.push(suffix);
            remove_file(Path::new(&path));
        }
    }
}

impl Provider for SqliteProvider {
    fn label(&self) -> &str {
        &self.label
    }

    fn side(&self) -> Side {
        Side::Other
    }

    fn make(&mut self) -> Result<Box<dyn Target>> {
        self.remove();
        Ok(Box::new(Sqlite::make(&self.database, self.durability, self.cache_size)?))
    }
}

impl Drop for SqliteProvider {
    fn drop(&mut self) {
        if !self.keep {
            self.remove();
        }
    }
}

fn refuse_existing(path: &Path, force: bool) -> Result<()> {
    ensure!(force || !path.exists(), "{} exists and would be overwritten; --force if that is meant", path.display());
    if let Ok(file) = std::fs::File::open(path)
        && let Some(in_use) = myriad_device::holder(&file, path).with_context(|| path.display().to_string())?
    {
        bail!("{in_use}; a volume in use is not overwritten: choose another file");
    }
    Ok(())
}

fn remove_file(path: &Path) {
    // Block devices given as an image are emptied by the next mkfs, not removed.
    if path.is_file()
        && let Err(error) = std::fs::remove_file(path)
    {
        eprintln!("{} stays behind: {error}", path.display());
    }
}

impl VolumeOptions {
    /// These options, changed by words as in `order=none,placement=rotor,data-checksums`: any option of the engine's table. An
    /// error names the word.
    pub fn changed_by(&self, words: &str) -> Result<Self> {
        let mut options = Options { mkfs: self.mkfs.clone(), mount: self.mount.clone() };
        for word in words.split(',') {
            let name = word.split_once('=').map_or(word, |(name, _)| name);
            let (row, value) = options::read(word)
                .unwrap_or_else(|| Err(options::unknown(name)))
                .map_err(|why| anyhow!("{word}: {why}"))?;
            // It would be overwritten unasked.
            ensure!(!matches!(row.values, Values::Path), "{word}: a volume that is measured has its log in its image");
            row.set(&mut options, value);
        }
        let Options { mkfs, mount } = options;
        Ok(Self { size: self.size, mkfs, mount })
    }
}

/// Reads a target of `myriad bench`: `sqlite:PATH`, `direct:DIRECTORY`, a directory, or an image, which words may follow that say
/// how its volume is made and opened: `IMAGE,order=none,data-checksums`.
pub fn parse(
    text: &str,
    volume: &VolumeOptions,
    durability: Durability,
    force: bool,
    keep: bool,
) -> Result<Box<dyn Provider>> {
    let label = text.to_owned();
    if let Some(database) = text.strip_prefix("sqlite:") {
        let cache_size = volume.mount.cache_size;
        return Ok(Box::new(SqliteProvider::new(label, Path::new(database), durability, cache_size, force, keep)?));
    }
    if let Some(directory) = text.strip_prefix("direct:") {
        ensure!(Path::new(directory).is_dir(), "{directory} is not a directory");
        return Ok(Box::new(DirectoryProvider::new(label, Path::new(directory), true)));
    }
    let path = Path::new(text);
    if let Some((image, words)) = text.split_once(',')
        && !path.exists()
    {
        let volume = volume.changed_by(words)?;
        return Ok(Box::new(ImageProvider::new(label, Path::new(image), volume, force, keep)?));
    }
    if path.is_dir() {
        return Ok(Box::new(DirectoryProvider::new(label, path, false)));
    }
    ensure!(!text.is_empty(), "'' names no target; give an image, a directory or sqlite:PATH");
    if text.ends_with('/') {
        bail!("{text} is not a directory");
    }
    Ok(Box::new(ImageProvider::new(label, path, volume.clone(), force, keep)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_in(folder: &Path, text: &str, force: bool) -> Result<Side> {
        let volume =
            VolumeOptions { size: Some(1 << 26), mkfs: MkfsOptions::default(), mount: MountOptions::default() };
        let text = text.replace('@', folder.to_str().unwrap());
        parse(&text, &volume, Durability::End, force, true).map(|provider| provider.side())
    }

    #[test]
    fn targets_are_told_apart_and_nothing_is_overwritten_unasked() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("precious"), "x").unwrap();
        std::fs::write(folder.path().join("used"), [0; 4096]).unwrap();
        let used =
            myriad_device::FileDevice::open(folder.path().join("used"), myriad_device::Access::ReadWrite).unwrap();
        used.lock_exclusive().unwrap();
        let side = |text: &str, force| parse_in(folder.path(), text, force).map_err(|error| error.to_string());
        assert_eq!(side("@/new.img", false), Ok(Side::Ours));
        assert_eq!(side("@", false), Ok(Side::Kernel));
        assert_eq!(side("direct:@", false), Ok(Side::Kernel));
        assert_eq!(
            side("@/new.img,data-checksums,order=none,directory=linear,avgfpdir=0,noatime", false),
            Ok(Side::Ours)
        );
        for (words, why) in [
            ("directory=append", "directory=append: directory=append (names that are only ever added"),
            ("colour=red", "colour=red: there is no such option; there are profile, space, inodes"),
            ("data-checksum", "data-checksum: there is no such option; did you mean `data-checksums`?"),
            ("data-checksums,log-device=@/used", "log-device="),
            ("commit=-1", "commit=-1: `-1` is not a number of seconds from 0 to 1000000000"),
            ("order=none,placement=far", "placement=far: `far` is none of dirpref, rotor"),
        ] {
            let refused = side(&format!("@/new.img,{words}"), false).unwrap_err();
            assert!(refused.starts_with(why), "{refused}");
        }
        assert_eq!(side("sqlite:@/new.db", false), Ok(Side::Other));
        assert!(side("@/precious", false).unwrap_err().contains("--force"));
        assert!(side("sqlite:@/precious", false).unwrap_err().contains("--force"));
        assert!(side("@/precious,data-checksums", false).unwrap_err().contains("--force"));
        assert_eq!(side("@/precious", true), Ok(Side::Ours));
        for target in ["@/used", "@/used,data-checksums", "sqlite:@/used"] {
            assert!(side(target, true).unwrap_err().contains("in use"), "{target}");
        }
        assert!(side("@/missing/", false).unwrap_err().contains("not a directory"));
        assert!(side("direct:@/precious", false).is_err());
    }
}
