//! Whole files and whole paths in one call, as `std::fs` has them.

use super::{AsPath, Session};
use crate::error::{Errno, Error, Result};
use crate::types::*;

impl Session {
    /// The content of a file. What is written to it meanwhile may be in it in part.
    ///
    /// ```
    /// # fn main() -> myriad_engine::Result<()> {
    /// # let session = myriad_engine::Fs::in_memory(64 << 20)?.session(myriad_engine::Cred::root());
    /// session.write("greeting", "hello")?;
    /// assert_eq!(session.read("greeting")?, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(&self, path: &(impl AsPath + ?Sized)) -> Result<Vec<u8>> {
        self.read_whole(path.as_path_bytes())
    }

    fn read_whole(&self, path: &[u8]) -> Result<Vec<u8>> {
        let file = self.open(path, OpenOptions::READ)?;
        let size = usize::try_from(file.stat()?.size).map_err(|_| Errno::FBIG)?;
        let mut bytes = Vec::new();
        // One more, to see the end without growing.
        bytes.try_reserve_exact(size.saturating_add(1)).map_err(|_| Errno::NOMEM)?;
        bytes.resize(size + 1, 0);
        let mut done = 0;
        loop {
            if done == bytes.len() {
                // It has grown since.
                bytes.try_reserve(done).map_err(|_| Errno::NOMEM)?;
                bytes.resize(2 * done, 0);
            }
            match file.read_at(&mut bytes[done..], done as u64)? {
                0 => break,
                count => done += count,
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    /// The content of a file as text; EILSEQ if it is not UTF-8.
    ///
    /// ```
    /// # fn main() -> myriad_engine::Result<()> {
    /// # let session = myriad_engine::Fs::in_memory(64 << 20)?.session(myriad_engine::Cred::root());
    /// session.write("greeting", "hello")?;
    /// assert_eq!(session.read_to_string("greeting")?, "hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_to_string(&self, path: &(impl AsPath + ?Sized)) -> Result<String> {
        String::from_utf8(self.read_whole(path.as_path_bytes())?).map_err(|_| Errno::ILSEQ.into())
    }

    /// Makes a file (with permissions 666, but for what the umask takes away), or empties the one that is there, and writes `content`
    /// to it. A crash before the next sync may leave it empty or written in part; to replace a file in one step, write another one and
    /// [rename](Session::rename) it.
    ///
    /// ```
    /// # fn main() -> myriad_engine::Result<()> {
    /// # let session = myriad_engine::Fs::in_memory(64 << 20)?.session(myriad_engine::Cred::root());
    /// use std::path::Path;
    ///
    /// session.create_dir_all("letters/2026")?;
    /// session.write(&Path::new("letters").join("2026/first"), "Dear all,")?;
    /// session.write(&format!("letters/{}/second", 2026), [0x42; 7])?;
    /// # assert_eq!(session.stat("letters/2026/second")?.size, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(&self, path: &(impl AsPath + ?Sized), content: impl AsRef<[u8]>) -> Result<()> {
        self.write_whole(path.as_path_bytes(), content.as_ref())
    }

    fn write_whole(&self, path: &[u8], content: &[u8]) -> Result<()> {
        let file = self.open(path, OpenOptions::CREATE)?;
        let mut done = 0;
        while done < content.len() {
            match file.write_at(&content[done..], done as u64)? {
                // The next one would say why.
                0 => return Err(Errno::NOSPC.into()),
                count => done += count,
            }
        }
        Ok(())
    }

    /// Makes a directory and those above it that are missing, with permissions 777 but for what the umask takes away. One that is there
    /// already is no error; EEXIST or ENOTDIR if it is no directory.
    ///
    /// ```
    /// # fn main() -> myriad_engine::Result<()> {
    /// # let session = myriad_engine::Fs::in_memory(64 << 20)?.session(myriad_engine::Cred::root());
    /// session.create_dir_all("a/b/c")?;
    /// session.create_dir_all("/a/b")?;
    /// assert!(session.stat("a/b/c")?.is_dir());
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_dir_all(&self, path: &(impl AsPath + ?Sized)) -> Result<()> {
        self.create_directories(path.as_path_bytes())
    }

    fn create_directories(&self, path: &[u8]) -> Result<()> {
        // From the whole path up to the first part that is there, and down again.
        let mut ends = Vec::new();
        let mut end = path.len();
        loop {
            match self.mkdir(&path[..end], 0o777) {
                Ok(_) => break,
                Err(Error::Refused(Errno::EXIST)) if self.stat(&path[..end])?.is_dir() => break,
                Err(Error::Refused(Errno::NOENT)) => {
                    let Some(above) = parent_end(&path[..end]) else { return Err(Errno::NOENT.into()) };
                    ends.push(end);
                    end = above;
                }
                // One that is there already is no error: though nothing could be made here, nothing has to be.
                Err(_) if self.stat(&path[..end]).is_ok_and(|stat| stat.is_dir()) => break,
                Err(error) => return Err(error),
            }
        }
        for end in ends.into_iter().rev() {
            match self.mkdir(&path[..end], 0o777) {
                // Somebody else made it meanwhile, or its name is `.` or `..`.
                Err(Error::Refused(Errno::EXIST)) if self.stat(&path[..end])?.is_dir() => {}
                made => drop(made?),
            }
        }
        Ok(())
    }

    /// Whether a path leads to something, symbolic links followed. An error if that cannot be told: a directory on the way may not be
    /// searched, or is damaged.
    ///
    /// ```
    /// # fn main() -> myriad_engine::Result<()> {
    /// # let session = myriad_engine::Fs::in_memory(64 << 20)?.session(myriad_engine::Cred::root());
    /// assert!(!session.exists("notes")?);
    /// session.write("notes", "")?;
    /// assert!(session.exists("notes")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn exists(&self, path: &(impl AsPath + ?Sized)) -> Result<bool> {
        match self.stat(path) {
            Ok(_) => Ok(true),
            Err(Error::Refused(Errno::NOENT | Errno::NOTDIR)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Where the path of the directory above ends; `None` for a path of one component.
fn parent_end(path: &[u8]) -> Option<usize> {
    let name_end = path.iter().rposition(|&byte| byte != b'/')?;
    let slash = path[..name_end].iter().rposition(|&byte| byte == b'/')?;
    path[..slash].iter().rposition(|&byte| byte != b'/').map(|last| last + 1)
}
