//! Requests about file content. Files are found by their number and opened for each request: no handle outlives one.

use super::attributes::CAPABILITIES;
use super::doubts::Doubt;
use super::{Reply, VolumeService, errno};
use crate::answer::put;
use crate::negotiate::REQUEST_MAX;
use crate::wire::{CopyFileRangeIn, CopyFileRangeOut, FallocateIn, InHeader, LseekIn, LseekOut, OpenIn, ReadIn};
use crate::wire::{OPEN_KILL_SUIDGID, ROOT, WRITE_CACHE, WRITE_KILL_SUIDGID, WriteIn, WriteOut};
use myriad_engine::{AllocateMode, Errno, File, Node, OpenOptions};
use rustix::fs::{FallocateFlags, OFlags};

/// Most that one COPY_FILE_RANGE copies: a killed copy ends soon, and others get their turn.
pub(super) const COPY_MAX: u64 = 64 << 20;

/// The kernel opens a program to run it (FMODE_EXEC, which open(2) does not take).
const EXECUTE: u32 = 0x20;

/// Of the kernel's cache; larger ones lose nothing by it.
const PAGE: u64 = 4096;

/// The kernel caches what is read and written here.
pub(super) const READ: OpenOptions = OpenOptions { dont_cache: true, ..OpenOptions::READ };
const WRITE: OpenOptions = OpenOptions { read: false, write: true, ..READ };

impl VolumeService {
    pub(super) fn open(&self, header: &InHeader, args: &OpenIn, out: &mut [u8]) -> Reply {
        if self.opens_unasked() {
            // The kernel remembers, and opens files by itself from now on.
            return Err(Errno::NOSYS);
        }
        let flags = OFlags::from_bits_retain(args.flags);
        self.check_opening(header, self.node(header.nodeid)?, flags, args.open_flags)?;
        put(out, &self.opened(header.nodeid, flags))
    }

    /// Opens a file for the checks and, where that is asked for, to be cut to nothing. It is closed at once, for it lives by its lookup count.
    pub(super) fn check_opening(
        &self,
        header: &InHeader,
        node: Node,
        flags: OFlags,
        open_flags: u32,
    ) -> Result<(), Errno> {
        let access = flags & OFlags::ACCMODE;
        let options = OpenOptions {
            read: access != OFlags::WRONLY,
            write: access != OFlags::RDONLY,
            // Who opens for reading only appends nothing.
            append: access != OFlags::RDONLY && flags.contains(OFlags::APPEND),
            truncate: self.agreement.atomic_truncate && flags.contains(OFlags::TRUNC),
            ..READ
        };
        let session = if self.settings.default_permissions {
            let kills = open_flags & OPEN_KILL_SUIDGID != 0;
            self.writer(header, kills, kills && self.group_matters(node)?)
        } else if flags.bits() & EXECUTE != 0 {
            // Who runs a program need not be allowed to read it.
            self.session(header).access_node(node, 1).map_err(errno)?;
            self.writer(header, false, false)
        } else {
            self.session(header)
        };
        session.open_node(node, options).map_err(errno)?;
        if options.truncate { self.changed_file(node) } else { Ok(()) }
    }

    /// Whether the kernel may open files by itself. Immutable and append-only files it does not know: where there may be some,
    /// it asks, unless it was told before the first one was made that it need not.
    pub(super) fn opens_unasked(&self) -> bool {
        self.agreement.no_open && !self.fs.has_flagged()
    }

    /// Opened as the kernel has it: permissions were checked then.
    pub(super) fn file(&self, node: Node, options: OpenOptions) -> Result<File, Errno> {
        self.kernel.open_node(node, options).map_err(errno)
    }

    pub(super) fn read(&self, header: &InHeader, args: &ReadIn, out: &mut [u8]) -> Reply {
        if args.offset == 0 {
            self.callers.begins_reading(header.pid);
        }
        let no_atime = OFlags::from_bits_retain(args.flags).contains(OFlags::NOATIME);
        let file = self.file(self.node(header.nodeid)?, OpenOptions { no_atime, ..READ })?;
        let len = out.len().min(args.size as usize);
        file.read_at(&mut out[..len], args.offset).map_err(errno)
    }

    pub(super) fn write(&self, header: &InHeader, args: &WriteIn, data: &[u8], out: &mut [u8]) -> Reply {
        let node = self.node(header.nodeid)?;
        let cached = args.write_flags & WRITE_CACHE != 0;
        let flags = OFlags::from_bits_retain(args.flags);
        // Who wrote what the kernel sends of its cache it does not say. Where files are shown as somebody else's, or with another mode, that may
        // be one who may not have his content run with their owner's rights.
        let may_be_anybodys = cached && self.is_shown_otherwise();
        let kills_set_id = args.write_flags & WRITE_KILL_SUIDGID != 0 || may_be_anybodys;
        let takes_capabilities = self.settings.direct_io || may_be_anybodys;
        let session = self.writer(header, kills_set_id, kills_set_id && self.group_matters(node)?);
        // What the kernel writes back from its cache it wrote there as somebody who might, but for inode flags. The place
        // is the kernel's in any case: it sends pieces of a long write at the same time, and who appends may say for one
        // write that he does not.
        let append = cached || flags.contains(OFlags::APPEND);
        let sync = !cached && flags.intersects(OFlags::DSYNC | OFlags::SYNC);
        // The kernel has no use for a page of which it was given a part, and will ask for it.
        let dont_cache = cached || args.offset % PAGE == 0 && data.len() as u64 % PAGE == 0;
        let options = OpenOptions { append, dont_cache, ..WRITE };
        let opened = session.open_node(node, options).map_err(errno);
        let is_flagged = match &opened {
            // Who does not append was refused such a file by now.
            Ok(file) => append && file.is_append_only().map_err(errno)?,
            Err(errno) => *errno == Errno::PERM,
        };
        // Capabilities of a file that may not be changed cannot be taken away.
        let settling = if cached && is_flagged && !(takes_capabilities && self.has_capabilities(node)) {
            self.settling.find(header.nodeid)
        } else {
            None
        };
        let (file, is_append_only) = match (&settling, &opened) {
            (Some(before), _) => (&before.file, before.is_append_only),
            (None, Ok(file)) => (file, is_flagged),
            (None, Err(errno)) => return Err(*errno),
        };
        let write = |data: &[u8], offset| {
            if is_append_only {
                self.write_appended(file, offset, data, cached)
            } else {
                file.write_placed(data, offset).map_err(errno)
            }
        };
        let first = write(data, args.offset)?;
        // Where a program waits for its write it is told that a part was done. Where the kernel sends what its cache holds, it looks at
        // the error alone: without one it takes all pages for written, and drops what they hold. So it is told why the rest was not.
        let write_rest = |mut size: usize| {
            while cached && size < data.len() {
                match write(&data[size..], args.offset + size as u64)? {
                    0 => return Err(Errno::NOSPC),
                    more => size += more,
                }
            }
            Ok(size)
        };
        let written = write_rest(first);
        // Also if only a part was written: content has changed. The kernel removes them itself where it caches what is written, but for what
        // is stored through a mapping.
        if takes_capabilities && self.has_capabilities(node) {
            match self.kernel.remove_xattr_node(node, CAPABILITIES).map_err(errno) {
                // Another write has done it.
                Ok(()) | Err(Errno::NODATA) => {}
                Err(errno) => return Err(errno),
            }
        }
        let size = written?;
        // Here, and not with the write: who appends elsewhere is not to wait for it.
        if sync {
            file.sync().map_err(errno)?;
        }
        put(out, &WriteOut { size: size as u32, padding: 0 })
    }

    fn has_capabilities(&self, node: Node) -> bool {
        self.kernel.get_xattr_node(node, CAPABILITIES).is_ok()
    }

    /// Of a file or directory: it is durable after, and so are all names, or in order `softdep` those that lead to a file. Of the root:
    /// everything is, for the kernel passes no syncfs on to us, and this is what takes its place.
    pub(super) fn fsync(&self, header: &InHeader) -> Reply {
        if header.nodeid == ROOT {
            return self.fs.sync().map(|()| 0).map_err(errno);
        }
        self.make_durable(self.node(header.nodeid)?).map(|()| 0)
    }

    pub(super) fn fallocate(&self, header: &InHeader, args: &FallocateIn) -> Reply {
        const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;
        let flags = FallocateFlags::from_bits_retain(args.mode);
        let mode = match flags {
            flags if flags.is_empty() => AllocateMode::Extend,
            KEEP => AllocateMode::KeepSize,
            flags if flags == FallocateFlags::PUNCH_HOLE | KEEP => AllocateMode::Punch,
            FallocateFlags::ZERO_RANGE => AllocateMode::Zero { keep_size: false },
            flags if flags == FallocateFlags::ZERO_RANGE | KEEP => AllocateMode::Zero { keep_size: true },
            _ => return Err(Errno::OPNOTSUPP),
        };
        let node = self.node(header.nodeid)?;
        let kills = self.kills_set_id(header, node)?;
        let session = self.writer(header, kills, kills && self.group_matters(node)?);
        // What only adds blocks an append-only file takes as well.
        let append = matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize);
        let file = session.open_node(node, OpenOptions { append, ..WRITE }).map_err(errno)?;
        file.allocate(mode, args.offset, args.length).map_err(errno)?;
        self.changed_through(args.fh, node).map(|()| 0)
    }

    /// Where data and holes are. The kernel does not write back what it holds of a file before it asks, so the volume may
    /// have a hole where a program has stored something: a copy that trusted the hole would lack it.
    pub(super) fn seek(&self, header: &InHeader, args: &LseekIn, out: &mut [u8]) -> Reply {
        const DATA: u32 = 3;
        const HOLE: u32 = 4;
        let is_known = self.settings.read_only || self.agreement.knows_writers();
        if !is_known {
            // The kernel remembers, asks no more, and calls all of every file data: it alone knows what it holds, and
            // with `writeback` where the file ends.
            return Err(Errno::NOSYS);
        }
        let file = self.file(self.node(header.nodeid)?, READ)?;
        if self.writers.any(header.nodeid) {
            let size = file.stat().map_err(errno)?.size;
            return match args.whence {
                DATA | HOLE if args.offset >= size => Err(Errno::NXIO),
                DATA => put(out, &LseekOut { offset: args.offset }),
                HOLE => put(out, &LseekOut { offset: size }),
                _ => Err(Errno::INVAL),
            };
        }
        let offset = match args.whence {
            DATA => file.seek_data(args.offset),
            HOLE => file.seek_hole(args.offset),
            _ => return Err(Errno::INVAL),
        };
        put(out, &LseekOut { offset: offset.map_err(errno)? })
    }

    /// Copies inside the server, through one buffer; holes become zeros.
    pub(super) fn copy_range(&self, header: &InHeader, args: &CopyFileRangeIn, wide: bool, out: &mut [u8]) -> Reply {
        if args.flags != 0 {
            return Err(Errno::INVAL);
        }
        let source = self.file(self.node(header.nodeid)?, READ)?;
        let atime = || if self.fs.moves_access_times() { source.stat().map(|stat| stat.atime).ok() } else { None };
        let atime_before = atime();
        let target_node = self.node(args.nodeid_out)?;
        let kills = self.kills_set_id(header, target_node)?;
        let session = self.writer(header, kills, kills && self.group_matters(target_node)?);
        let target = session.open_node(target_node, WRITE).map_err(errno)?;
        let wanted = args.len.min(COPY_MAX);
        let mut buf = vec![0; REQUEST_MAX.min(wanted as usize)];
        let mut done = 0;
        while done < wanted {
            let part = buf.len().min((wanted - done) as usize);
            let offset = args.off_out.saturating_add(done);
            let step = source
                .read_at(&mut buf[..part], args.off_in.saturating_add(done))
                .and_then(|len| if len == 0 { Ok(0) } else { target.write_at(&buf[..len], offset) });
            match step {
                Ok(0) => break,
                Ok(len) => done += len as u64,
                Err(_) if done > 0 => {
                    // Some of this part may be written as well, which the answer does not say.
                    let doubt = Doubt::Content { node: args.nodeid_out, offset, length: part as u64 };
                    self.doubts.note(header.unique, vec![doubt]);
                    break;
                }
                Err(error) => return Err(errno(error)),
            }
        }
        // Of a copy the kernel does not expect it, as it does of a READ.
        if atime() != atime_before {
            self.nodes.attributes_changed(source.node());
        }
        self.changed_through(args.fh_out, target_node)?;
        if wide {
            put(out, &CopyFileRangeOut { bytes_copied: done })
        } else {
            put(out, &WriteOut { size: done as u32, padding: 0 })
        }
    }
}
