//! SQLite as a store of files, a row each, in the table of its own archiver (sqlar), with a write-ahead log: the best it
//! offers without changing the task. Keys are whole paths; a directory is a row too.
//!
//! | durability | how |
//! |---|---|
//! | each operation | a transaction each, `synchronous=FULL`: the log is synced before the call returns |
//! | every n        | a transaction of n operations, `synchronous=FULL` |
//! | at the end     | transactions of 1000 operations, `synchronous=NORMAL`; the final sync is a checkpoint, which syncs |
//!
//! Its pages live in the host's page cache and, `cache_size`, in the connection; `mmap_size` covers the database, so reads
//! copy nothing on the way. Connections are kept from phase to phase, warm.

use super::sys_calls::{Guard, device_counters};
use super::{Counters, Durability, Target, Usage, Worker};
use crate::workloads::plan::PathZ;
use anyhow::{Context, Result, bail, ensure};
use rusqlite::{Connection, OptionalExtension, Statement};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

pub struct Sqlite {
    database: PathBuf,
    durability: Durability,
    cache_size: u64,
    idle: Mutex<Vec<Connection>>,
    /// Block device that the database lies on, by its name in /sys/class/block, and what keeps it there. Behind the connections: it goes
    /// after them.
    device: Option<(String, Guard)>,
}

const SCHEMA: &str = "CREATE TABLE sqlar(name TEXT PRIMARY KEY, mode INT, mtime INT, sz INT, data BLOB)";
const FILE_MODE: u32 = 0o100_644;
const DIRECTORY_MODE: u32 = 0o040_755;
/// Operations of a transaction when nothing is promised before the end.
const TRANSACTION_OPS: u32 = 1000;

impl Sqlite {
    /// Makes the database `path`, which must not exist.
    pub fn make(path: &Path, durability: Durability, cache_size: u64) -> Result<Self> {
        ensure!(!path.exists(), "{} exists", path.display());
        let sqlite = Self { database: path.to_owned(), durability, cache_size, idle: Mutex::default(), device: None };
        let connection = sqlite.connect()?;
        connection.execute_batch(SCHEMA)?;
        sqlite.put_back(connection);
        Ok(sqlite)
    }

    /// On a block device of its own, whose requests are counted.
    pub fn with_device(self, device: String, guard: Guard) -> Self {
        Self { device: Some((device, guard)), ..self }
    }

    fn connect(&self) -> Result<Connection> {
        let connection =
            Connection::open(&self.database).with_context(|| format!("opening {}", self.database.display()))?;
        let synchronous = if self.durability == Durability::End { "NORMAL" } else { "FULL" };
        connection.busy_timeout(std::time::Duration::from_secs(600))?;
        connection.execute_batch(&format!(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}; PRAGMA cache_size=-{}; PRAGMA mmap_size={};",
            self.cache_size >> 10,
            1_u64 << 40,
        ))?;
        Ok(connection)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().expect("no panic with the lock held")
    }

    fn take(&self) -> Result<Connection> {
        let idle = self.idle().pop();
        idle.map_or_else(|| self.connect(), Ok)
    }

    fn put_back(&self, connection: Connection) {
        self.idle().push(connection);
    }

    /// The database and its log.
    fn files(&self) -> impl Iterator<Item = PathBuf> {
        ["", "-wal"].into_iter().map(|suffix| {
            let mut path = self.database.clone().into_os_string();
            path.push(suffix);
            PathBuf::from(path)
        })
    }
}

impl Target for Sqlite {
    fn with_worker(&self, work: &mut dyn FnMut(&mut dyn Worker) -> Result<()>) -> Result<()> {
        let connection = self.take()?;
        work(&mut SqliteWorker::new(&connection, self.durability)?)?;
        self.put_back(connection);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        // The other durabilities have synced the log with the last transaction.
        if self.durability == Durability::End {
            let connection = self.take()?;
            let busy: i64 = connection.query_row("PRAGMA wal_checkpoint(FULL)", [], |row| row.get(0))?;
            ensure!(busy == 0, "checkpoint of {} was held up", self.database.display());
            self.put_back(connection);
        }
        Ok(())
    }

    fn drop_caches(&self) -> Result<()> {
        // The last connection to close makes a checkpoint and removes the log.
        self.idle().clear();
        for path in self.files().filter(|path| path.exists()) {
            let file = std::fs::File::open(&path)?;
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        Ok(())
    }

    /// SQLite counts no device requests: the device does, where it has one of its own.
    fn counters(&self) -> Result<Counters> {
        let device = self.device.as_ref().and_then(|(name, _)| device_counters(name));
        Ok(device.unwrap_or_default())
    }

    fn usage(&self) -> Result<Usage> {
        let mut used_bytes = 0;
        for path in self.files().filter(|path| path.exists()) {
            used_bytes += path.metadata()?.len();
        }
        Ok(Usage { used_bytes, table_bytes_per_inode: 0 })
    }

    fn names(&self) -> Result<u64> {
        let connection = self.take()?;
        let count: i64 = connection.query_row("SELECT count(*) FROM sqlar", [], |row| row.get(0))?;
        self.put_back(connection);
        Ok(count as u64)
    }

    fn has_random_access(&self) -> bool {
        false
    }

    /// A row has one name.
    fn has_links(&self) -> bool {
        false
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()
    }
}

struct SqliteWorker<'a> {
    connection: &'a Connection,
    /// Operations until a transaction ends by itself; 1: none is ever begun.
    transaction_ops: u32,
    /// Changes in the open transaction; 0: none is open.
    pending: u32,
    insert: Statement<'a>,
    delete: Statement<'a>,
    rename: Statement<'a>,
    stat: Statement<'a>,
    read: Statement<'a>,
    utime: Statement<'a>,
    replace: Statement<'a>,
    list: Statement<'a>,
    list_stat: Statement<'a>,
    remove_below: Statement<'a>,
}

/// Names below a directory: between `directory/` and `directory0`, the next byte after the slash.
const BELOW: &str = "name > ?1 || '/' AND name < ?1 || '0'";

fn text(path: PathZ<'_>) -> &str {
    std::str::from_utf8(path.bytes()).expect("generators make ASCII paths")
}

impl<'a> SqliteWorker<'a> {
    fn new(connection: &'a Connection, durability: Durability) -> Result<Self> {
        Ok(Self {
            connection,
            transaction_ops: match durability {
                Durability::End => TRANSACTION_OPS,
                Durability::Every(ops) => ops,
            },
            pending: 0,
            insert: connection.prepare("INSERT INTO sqlar VALUES(?1, ?2, 0, ?3, ?4)")?,
            delete: connection.prepare("DELETE FROM sqlar WHERE name = ?1")?,
            rename: connection.prepare("UPDATE OR REPLACE sqlar SET name = ?2 WHERE name = ?1")?,
            stat: connection.prepare("SELECT rowid, mode, mtime, sz FROM sqlar WHERE name = ?1")?,
            read: connection.prepare("SELECT data FROM sqlar WHERE name = ?1")?,
            utime: connection.prepare("UPDATE sqlar SET mtime = unixepoch() WHERE name = ?1")?,
            replace: connection.prepare("UPDATE sqlar SET sz = ?2, data = ?3 WHERE name = ?1")?,
            list: connection.prepare(&format!("SELECT name FROM sqlar WHERE {BELOW}"))?,
            list_stat: connection.prepare(&format!("SELECT name, rowid, mode, mtime, sz FROM sqlar WHERE {BELOW}"))?,
            remove_below: connection.prepare(&format!("DELETE FROM sqlar WHERE {BELOW}"))?,
        })
    }

    /// Before a change.
    fn begin(&mut self) -> Result<()> {
        if self.transaction_ops > 1 && self.pending == 0 {
            self.connection.execute_batch("BEGIN IMMEDIATE")?;
        }
        Ok(())
    }

    /// After a change.
    fn changed(&mut self, rows: usize, path: PathZ) -> Result<()> {
        ensure!(rows > 0, "{} is missing", path.display());
        if self.transaction_ops > 1 {
            self.pending += 1;
            if self.pending == self.transaction_ops {
                self.settle()?;
            }
        }
        Ok(())
    }

    fn insert(&mut self, path: PathZ, mode: u32, content: &[u8]) -> Result<()> {
        self.begin()?;
        let rows = self.insert.execute((text(path), mode, content.len() as i64, content))?;
        self.changed(rows, path)
    }

    fn delete(&mut self, path: PathZ) -> Result<()> {
        self.begin()?;
        let rows = self.delete.execute([text(path)])?;
        self.changed(rows, path)
    }
}

fn stat_row(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<u64> {
    let (rowid, mode, mtime): (i64, u32, i64) = (row.get(first)?, row.get(first + 1)?, row.get(first + 2)?);
    std::hint::black_box((rowid, mode, mtime));
    row.get::<_, i64>(first + 3).map(|size| size as u64)
}

impl Worker for SqliteWorker<'_> {
    fn create(&mut self, path: PathZ) -> Result<()> {
        self.insert(path, FILE_MODE, b"")
    }

    fn mkdir(&mut self, path: PathZ) -> Result<()> {
        self.insert(path, DIRECTORY_MODE, b"")
    }

    fn unlink(&mut self, path: PathZ) -> Result<()> {
        self.delete(path)
    }

    fn rmdir(&mut self, path: PathZ) -> Result<()> {
        self.delete(path)
    }

    fn rename(&mut self, source: PathZ, target: PathZ) -> Result<()> {
        self.begin()?;
        let rows = self.rename.execute((text(source), text(target)))?;
        self.changed(rows, source)
    }

    fn stat(&mut self, path: PathZ) -> Result<u64> {
        Ok(self.stat.query_row([text(path)], |row| stat_row(row, 0))?)
    }

    fn stat_missing(&mut self, path: PathZ) -> Result<()> {
        match self.stat.query_row([text(path)], |row| stat_row(row, 0)).optional()? {
            None => Ok(()),
            Some(_) => bail!("{} should be missing", path.display()),
        }
    }

    /// `List` asks for directories without subdirectories only.
    fn list(&mut self, directory: PathZ) -> Result<u64> {
        let mut rows = self.list.query([text(directory)])?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            std::hint::black_box(row.get_ref(0)?.as_bytes()?.len());
            count += 1;
        }
        Ok(count)
    }

    fn names(&mut self, directory: PathZ, paths: &mut Vec<u8>) -> Result<()> {
        let mut rows = self.list.query([text(directory)])?;
        while let Some(row) = rows.next()? {
            paths.extend(row.get_ref(0)?.as_bytes()?);
            paths.push(0);
        }
        Ok(())
    }

    fn list_stat(&mut self, directory: PathZ) -> Result<u64> {
        let mut rows = self.list_stat.query([text(directory)])?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            std::hint::black_box(row.get_ref(0)?.as_bytes()?.len());
            std::hint::black_box(stat_row(row, 1)?);
            count += 1;
        }
        Ok(count)
    }

    fn walk(&mut self, directory: PathZ) -> Result<u64> {
        std::hint::black_box(self.stat(directory)?);
        Ok(1 + self.list_stat(directory)?)
    }

    fn find(&mut self, directory: PathZ) -> Result<u64> {
        Ok(1 + self.list(directory)?)
    }

    fn remove_tree(&mut self, directory: PathZ) -> Result<u64> {
        // Both in one transaction, whatever the durability: half a removed tree helps nobody.
        self.settle()?;
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let below = self.remove_below.execute([text(directory)])?;
        let itself = self.delete.execute([text(directory)])?;
        self.connection.execute_batch("COMMIT")?;
        Ok((below + itself) as u64)
    }

    /// `sync` is what `Durability::Every(1)` does in any case.
    fn write_file(&mut self, path: PathZ, content: &[u8], _sync: bool) -> Result<()> {
        self.insert(path, FILE_MODE, content)
    }

    fn read_file(&mut self, path: PathZ, buf: &mut [u8]) -> Result<usize> {
        Ok(self.read.query_row([text(path)], |row| {
            let content = row.get_ref(0)?.as_blob()?;
            buf[..content.len()].copy_from_slice(content);
            Ok(content.len())
        })?)
    }

    fn open(&mut self, _path: PathZ, _new: bool) -> Result<()> {
        bail!("a row holds a whole file")
    }

    fn read_at(&mut self, _buf: &mut [u8], _offset: u64) -> Result<()> {
        bail!("a row holds a whole file")
    }

    fn write_at(&mut self, _content: &[u8], _offset: u64) -> Result<()> {
        bail!("a row holds a whole file")
    }

    fn link(&mut self, _path: PathZ, _name: PathZ) -> Result<()> {
        bail!("a row has one name")
    }

    fn utime(&mut self, path: PathZ) -> Result<()> {
        self.begin()?;
        let rows = self.utime.execute([text(path)])?;
        self.changed(rows, path)
    }

    fn append(&mut self, path: PathZ, content: &[u8]) -> Result<()> {
        self.begin()?;
        let mut whole: Vec<u8> = self.read.query_row([text(path)], |row| row.get(0))?;
        whole.extend_from_slice(content);
        let rows = self.replace.execute((text(path), whole.len() as i64, whole))?;
        self.changed(rows, path)
    }

    /// The size is in the row as of any file; there is no hole to hold beside it.
    fn create_sized(&mut self, path: PathZ, size: u64) -> Result<()> {
        self.begin()?;
        let rows = self.insert.execute((text(path), FILE_MODE, size as i64, &b""[..]))?;
        self.changed(rows, path)
    }

    fn settle(&mut self) -> Result<()> {
        if self.pending > 0 {
            self.connection.execute_batch("COMMIT")?;
            self.pending = 0;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.settle()
    }
}
