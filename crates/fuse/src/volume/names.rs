//! Requests about names: finding, making, moving and removing them.

use super::{Reply, VolumeService, device_of, errno, special, writers};
use crate::answer::put;
use crate::wire::{CreateIn, EntryOut, InHeader, MkdirIn, MknodIn, OpenOut, ROOT, fopen};
use myriad_engine::{Errno, FileType, LinkRules, Node, RenameMode, Stat};
use rustix::fs::{OFlags, RenameFlags};

impl VolumeService {
    /// Tells the kernel of a file that has got a name.
    fn tell(&self, stat: &Stat, out: &mut [u8]) -> Reply {
        self.changed_names()?;
        let len = put(out, &self.entry(stat))?;
        self.nodes.learn(stat.node());
        Ok(len)
    }

    pub(super) fn lookup(&self, header: &InHeader, name: &[u8], out: &mut [u8]) -> Reply {
        if header.nodeid == ROOT
            && let Some(len) = self.special.as_ref().and_then(|special| special.lookup(self, name, out))
        {
            return Ok(len);
        }
        let parent = self.node(header.nodeid)?;
        match self.reader(header).lookup(parent, name).map_err(errno) {
            // By a file handle of somebody who remembers more than the kernel does: what has no name any more is gone.
            Ok(stat) if name == b"." && stat.nlink == 0 => Err(Errno::STALE),
            Ok(stat) => {
                if !stat.is_dir() {
                    self.callers.looked_up(header.pid);
                }
                // Which inode it would be nobody knew; what changed it since then must show. Known to the kernel from here
                // on, it stays; it may have gone in between, and its number be another's.
                let node = stat.node();
                self.tellings.tell(self.nodes.id(node), header.pid);
                let known = self.nodes.suppose(node);
                let told = self.kernel.stat_node(node).map_err(errno).and_then(|mut stat| {
                    if known != node.generation() {
                        // Another file was taken to have the number, and this one was not kept for the kernel until now.
                        if !self.nodes.exchange(node, known) && self.nodes.find(node.ino()) != Some(node) {
                            return Err(Errno::STALE);
                        }
                        stat = self.kernel.stat_node(node).map_err(errno)?;
                    }
                    if stat.nlink == 0 && !self.nodes.holds(node) {
                        // It lost its last name and was forgotten before it was counted: nothing keeps it, and it is being freed.
                        return Err(Errno::STALE);
                    }
                    put(out, &self.entry(&stat))
                });
                if told.is_err() {
                    self.forget(self.nodes.id(node), 1);
                }
                told
            }
            // Node 0 says for how long the name is known to be missing.
            Err(Errno::NOENT) => {
                let valid = self.settings.entry_timeout;
                let missing = EntryOut {
                    entry_valid: valid.as_secs(),
                    entry_valid_nsec: valid.subsec_nanos(),
                    ..EntryOut::default()
                };
                put(out, &missing)
            }
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn make_node(&self, header: &InHeader, name: &[u8], args: &MknodIn, out: &mut [u8]) -> Reply {
        let parent = self.node(header.nodeid)?;
        let session = self.maker(header, args.mode, args.umask);
        let stat = session.mknod_at(parent, name, args.mode as u16, device_of(args.rdev)).map_err(errno)?;
        self.tell(&stat, out)
    }

    pub(super) fn make_dir(&self, header: &InHeader, name: &[u8], args: &MkdirIn, out: &mut [u8]) -> Reply {
        let parent = self.node(header.nodeid)?;
        let session = self.maker(header, args.mode, args.umask);
        let stat = session.mkdir_at(parent, name, args.mode as u16).map_err(errno)?;
        self.tell(&stat, out)
    }

    pub(super) fn symlink(&self, header: &InHeader, name: &[u8], target: &[u8], out: &mut [u8]) -> Reply {
        let parent = self.node(header.nodeid)?;
        let stat = self.session(header).symlink_at(target, parent, name).map_err(errno)?;
        self.tell(&stat, out)
    }

    pub(super) fn read_link(&self, header: &InHeader, out: &mut [u8]) -> Reply {
        let target = self.kernel.readlink_node(self.node(header.nodeid)?).map_err(errno)?;
        out.get_mut(..target.len()).ok_or(Errno::INVAL)?.copy_from_slice(&target);
        Ok(target.len())
    }

    pub(super) fn link(&self, header: &InHeader, node: u64, name: &[u8], out: &mut [u8]) -> Reply {
        let (node, parent) = (self.node(node)?, self.node(header.nodeid)?);
        // Which of its unnamed files may get a name the kernel knows in any case. Whose hard links it protects it asks of
        // permissions that it was told not to check.
        let protected = !self.settings.default_permissions && protects_hard_links();
        let rules = LinkRules { unnamed: true, protected };
        let stat = self.session(header).link_with(node, parent, name, rules).map_err(errno)?;
        self.tell(&stat, out)
    }

    pub(super) fn unlink(&self, header: &InHeader, name: &[u8]) -> Reply {
        let parent = self.node(header.nodeid)?;
        let victim = self.at_stake(parent, name);
        self.session(header).unlink_at(parent, name).map_err(errno)?;
        self.removed([victim])
    }

    pub(super) fn remove_dir(&self, header: &InHeader, name: &[u8]) -> Reply {
        let parent = self.node(header.nodeid)?;
        let victim = self.at_stake(parent, name);
        self.session(header).rmdir_at(parent, name).map_err(errno)?;
        self.removed([victim])
    }

    pub(super) fn rename(&self, header: &InHeader, name: &[u8], new_parent: u64, new_name: &[u8], flags: u32) -> Reply {
        let mode = match RenameFlags::from_bits_retain(flags) {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::NOREPLACE => RenameMode::NoReplace,
            RenameFlags::EXCHANGE => RenameMode::Exchange,
            RenameFlags::WHITEOUT => RenameMode::Whiteout,
            flags if flags == RenameFlags::NOREPLACE | RenameFlags::WHITEOUT => RenameMode::NoReplaceWhiteout,
            _ => return Err(Errno::INVAL),
        };
        if new_parent == ROOT && new_name == special::DIRECTORY && self.special.is_some() {
            return Err(Errno::PERM);
        }
        let (parent, new_parent) = (self.node(header.nodeid)?, self.node(new_parent)?);
        let session = self.session(header);
        if self.agreement.writeback && !mode.keeps_target() {
            self.fetch_before_rename((parent, name), (new_parent, new_name), mode);
        }
        let victims = [self.at_stake(parent, name), self.at_stake(new_parent, new_name)];
        session.rename_at(parent, name, new_parent, new_name, mode).map_err(errno)?;
        self.removed(victims)
    }

    /// What a name means that is to be removed, where that is to be durable. The kernel has the directory locked, so the name stays
    /// what it is.
    fn at_stake(&self, parent: Node, name: &[u8]) -> Option<Node> {
        let stat = || self.kernel.lookup(parent, name).ok();
        self.makes_names_durable().then(stat).flatten().map(|stat| stat.node())
    }

    /// Names went. If that cannot be made durable, the kernel is told that what had them is not what it was.
    fn removed<const N: usize>(&self, victims: [Option<Node>; N]) -> Reply {
        let tell = |_: &Errno| victims.into_iter().flatten().for_each(|node| self.nodes.attributes_changed(node));
        self.changed_names().map(|()| 0).inspect_err(tell)
    }

    /// What takes another file's place must be whole when it does (of two that are exchanged, each): what the kernel holds of it must be
    /// here first. The kernel has both directories locked, so names stay what they are.
    fn fetch_before_rename(&self, source: (Node, &[u8]), target: (Node, &[u8]), mode: RenameMode) {
        let find = |(parent, name)| self.kernel.lookup(parent, name).ok();
        let (Some(moved), Some(replaced)) = (find(source), find(target)) else { return };
        let exchanged = (mode == RenameMode::Exchange).then_some(replaced);
        for stat in [Some(moved), exchanged].into_iter().flatten() {
            if stat.file_type() == FileType::File {
                self.notifier.write_back(self.nodes.id(stat.node()));
            }
        }
    }

    /// Makes a file and opens it; one that is there already is opened, as O_CREAT without O_EXCL says.
    pub(super) fn create(&self, header: &InHeader, name: &[u8], args: &CreateIn, out: &mut [u8]) -> Reply {
        if self.agreement.no_open {
            // The kernel makes files by MKNOD from now on, and opens them itself.
            return Err(Errno::NOSYS);
        }
        let parent = self.node(header.nodeid)?;
        let session = self.maker(header, args.mode, args.umask);
        let flags = OFlags::from_bits_retain(args.flags);
        let stat = match session.mknod_at(parent, name, args.mode as u16, 0).map_err(errno) {
            // The kernel found no file a moment ago; one appeared by another of its names for this directory.
            Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {
                let node = session.lookup(parent, name).map_err(errno)?.node();
                self.check_opening(header, node, flags, args.open_flags)?;
                self.kernel.stat_node(node).map_err(errno)?
            }
            made => made?,
        };
        self.changed_names()?;
        self.tell_opened(&stat, flags, out).inspect(|_| self.nodes.learn(stat.node()))
    }

    pub(super) fn make_tmpfile(&self, header: &InHeader, args: &CreateIn, out: &mut [u8]) -> Reply {
        let parent = self.node(header.nodeid)?;
        let session = self.maker(header, args.mode, args.umask);
        let file = session.open_tmpfile_at(parent, args.mode as u16).map_err(errno)?;
        let stat = file.stat().map_err(errno)?;
        let len = self.tell_opened(&stat, OFlags::from_bits_retain(args.flags), out)?;
        self.nodes.learn_held(file.hold());
        Ok(len)
    }

    /// The answer to CREATE and TMPFILE: of a file, and how it was opened.
    fn tell_opened(&self, stat: &Stat, flags: OFlags, out: &mut [u8]) -> Reply {
        let entry = put(out, &self.entry(stat))?;
        let opened = put(&mut out[entry..], &self.opened(self.nodes.id(stat.node()), flags))?;
        Ok(entry + opened)
    }

    /// How files are open: no handle of ours goes with them, for they are found by their number. The number that takes a
    /// handle's place says whether this is one for writing, and whether what is changed through it is to be durable.
    pub(super) fn opened(&self, id: u64, flags: OFlags) -> OpenOut {
        // Elsewhere nobody asks, and a kernel that opens by itself does not tell when such an opening ends, as that of an unnamed file.
        let fh = if self.agreement.knows_writers() { self.writers.opened(id, flags) } else { writers::handle(flags) };
        let direct = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
        let open_flags = fopen::KEEP_CACHE | fopen::NOFLUSH | if self.settings.direct_io { direct } else { 0 };
        OpenOut { fh, open_flags, backing_id: 0 }
    }
}

/// As the host is set up now.
fn protects_hard_links() -> bool {
    std::fs::read_to_string("/proc/sys/fs/protected_hardlinks").is_ok_and(|text| text.trim() != "0")
}
