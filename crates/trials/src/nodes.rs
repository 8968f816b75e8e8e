//! Steps done by node instead of by path, as a mount would do them.

use crate::convert::*;
use crate::machine::Engine;
use crate::tree::read_pages;
use myriad_engine as engine;
use myriad_sim::op::*;

impl Engine {
    /// The same through nodes, as a mount would do it; `None` where only a path says what is meant.
    pub(crate) fn perform_by_node(&mut self, step: &Step) -> Option<engine::Result<Value>> {
        let session = &self.sessions[step.cred];
        let split = |path: &[u8]| plain(&self.at(path));
        // A refusal on the way to the parent is the answer, as for the path.
        macro_rules! parent {
            ($path:expr) => {
                match session.resolve(&$path) {
                    Ok(node) => node,
                    Err(error) => return Some(Err(error)),
                }
            };
        }
        let made = |result: engine::Result<engine::Stat>| result.map(|_| Value::None);
        let none = |result: engine::Result<()>| result.map(|()| Value::None);
        Some(match &step.op {
            Op::Create { path, mode } => {
                let (dir, name) = split(path)?;
                made(session.mknod_at(parent!(dir), &name, Kind::File.mode_bits() | mode, 0))
            }
            Op::Mkdir { path, mode } => {
                let (dir, name) = split(path)?;
                made(session.mkdir_at(parent!(dir), &name, *mode))
            }
            Op::Mknod { path, kind, mode, rdev } => {
                let (dir, name) = split(path)?;
                made(session.mknod_at(parent!(dir), &name, kind.mode_bits() | mode, *rdev))
            }
            Op::Symlink { target, path } if !target.is_empty() => {
                let (dir, name) = split(path)?;
                made(session.symlink_at(target, parent!(dir), &name))
            }
            Op::Readlink { path } => {
                let (dir, name) = split(path)?;
                let link = session.lookup(parent!(dir), &name);
                link.and_then(|stat| session.readlink_node(stat.node())).map(Value::Bytes)
            }
            Op::Link { source, target } => {
                let ((source_dir, source), (dir, name)) = (split(source)?, split(target)?);
                let stat = match session.lookup(parent!(source_dir), &source) {
                    Ok(stat) => stat,
                    Err(error) => return Some(Err(error)),
                };
                made(session.link_at(stat.node(), parent!(dir), &name))
            }
            Op::Unlink { path } => {
                let (dir, name) = split(path)?;
                none(session.unlink_at(parent!(dir), &name))
            }
            Op::Rmdir { path } => {
                let (dir, name) = split(path)?;
                none(session.rmdir_at(parent!(dir), &name))
            }
            Op::Rename { source, target, how } => {
                let ((from, source), (to, target)) = (split(source)?, split(target)?);
                let from = parent!(from);
                // As the kernel walks: the source's directory must be searchable before the target's is looked for.
                if let Err(error) = session.access_node(from, 1) {
                    return Some(Err(error));
                }
                none(session.rename_at(from, &source, parent!(to), &target, rename_mode(*how)))
            }
            Op::Stat { path, follow: true } => {
                session.stat_node(parent!(self.at(path))).map(|stat| Value::Stat(stat_of(&stat)))
            }
            Op::Stat { path, follow: false } => {
                let (dir, name) = split(path)?;
                session.lookup(parent!(dir), &name).map(|stat| Value::Stat(stat_of(&stat)))
            }
            Op::Access { path, mask } => none(session.access_node(parent!(self.at(path)), *mask)),
            Op::ReadDir { path } => {
                let page = 1 + self.rng.clone().index(60);
                let dir = parent!(self.at(path));
                read_pages(session, dir, page).map(Value::Entries)
            }
            Op::SetAttr { path, change } => {
                let node = parent!(self.at(path));
                session.set_attr_node(node, set_attr(*change)).map(|stat| Value::Stat(stat_of(&stat)))
            }
            Op::GetXattr { path, name } => session.get_xattr_node(parent!(self.at(path)), name).map(Value::Bytes),
            Op::SetXattr { path, name, value, how } => {
                none(session.set_xattr_node(parent!(self.at(path)), name, value, xattr_mode(*how)))
            }
            Op::ListXattr { path } => session.list_xattr_node(parent!(self.at(path))).map(Value::Names),
            Op::RemoveXattr { path, name } => none(session.remove_xattr_node(parent!(self.at(path)), name)),
            Op::Open { slot, path, how } if !how.create && !how.no_follow => {
                let file = session.open_node(parent!(self.at(path)), open_options(how));
                let slot = *slot;
                file.map(|file| {
                    self.files[slot] = Some(file);
                    Value::None
                })
            }
            _ => return None,
        })
    }
}

/// Directory and name of a path whose last component is an ordinary name without slashes after it.
fn plain(path: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let end = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (dir, name) = path.split_at(end);
    if name.is_empty() || name == b"." || name == b".." {
        return None;
    }
    Some((if dir.is_empty() { b"/".to_vec() } else { dir.to_vec() }, name.to_vec()))
}
