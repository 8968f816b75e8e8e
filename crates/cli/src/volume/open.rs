//! Opening volumes, each once however many operands name it, and closing them all.
//!
//! Whoever may write an image may do anything to what is in it, as with any archive; so the verbs pass every permission
//! check, and what they make belongs to the user who ran them.

use super::Place;
use crate::failure::{At, Failure, image_name};
use anyhow::Result;
use myriad_engine::{Cred, Fs, MountOptions, Node, Session, SetAttr, Stat};
use rustix::fs::Mode;
use std::path::{Path, PathBuf};
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Change,
}

/// An open volume and the session that the verbs use. Dropping it closes it too, but only `close` hears of errors.
pub struct Volume {
    fs: Fs,
    session: Session,
    image: PathBuf,
}

impl Volume {
    pub fn open(image: &Path, access: Access, options: &MountOptions) -> Result<Self> {
        check_is_image(image)?;
        let options = MountOptions { read_only: access == Access::Read, ..options.clone() };
        let fs = Fs::open(image, options).at(image_name(image))?;
        Ok(Self::new(fs, image))
    }

    pub fn new(fs: Fs, image: &Path) -> Self {
        let session = fs.session(credentials());
        Self { fs, session, image: image.to_owned() }
    }

    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The name by which messages call it.
    pub fn name(&self) -> String {
        image_name(&self.image)
    }

    /// Its root directory.
    pub fn root(&self) -> Place {
        Place { image: self.image.clone(), path: b"/".to_vec() }
    }

    /// Attributes of a place of this volume, the last symbolic link not followed.
    pub fn lstat(&self, place: &Place) -> Result<Stat> {
        self.session.lstat(&place.path).at(place)
    }

    /// Gives a file just made to the user who runs us.
    pub fn adopt(&self, node: Node) -> myriad_engine::Result<()> {
        let uid = rustix::process::geteuid().as_raw();
        if uid != 0 {
            self.session.set_attr_node(node, SetAttr { uid: Some(uid), ..SetAttr::default() })?;
        }
        Ok(())
    }

    /// Makes everything durable and closes the volume.
    pub fn close(self) -> Result<()> {
        let name = self.name();
        {
            // It holds the volume open.
            let _session = self.session;
        }
        self.fs.close().at(name)
    }
}

/// A user's view that passes all checks; new files get the caller's group and umask (the user: see `Volume::adopt`).
fn credentials() -> Cred {
    // Reading the umask means setting it; there is no other thread yet that could make a file in between.
    let umask = rustix::process::umask(Mode::empty());
    rustix::process::umask(umask);
    Cred { gid: rustix::process::getegid().as_raw(), umask: umask.bits() as u16, ..Cred::root() }
}

/// What cannot be an image is refused here, in words that fit the command line.
fn check_is_image(image: &Path) -> Result<()> {
    let metadata = std::fs::metadata(image).at(image_name(image))?;
    if metadata.is_dir() {
        let next = "give an image file or a block device";
        return Err(Failure::new(image_name(image), "a directory of the host, not an image", next).into());
    }
    if metadata.is_file() && metadata.len() == 0 {
        let next = "make a volume in it with myriad mkfs --size SIZE";
        return Err(Failure::new(image_name(image), "an empty file, not a Myriad volume", next).into());
    }
    Ok(())
}

/// The volumes of one run: each image is opened at its first use, and once only.
pub struct Volumes {
    access: Access,
    options: MountOptions,
    open: Vec<(PathBuf, Rc<Volume>)>,
}

impl Volumes {
    pub fn new(access: Access, options: MountOptions) -> Self {
        Self { access, options, open: Vec::new() }
    }

    /// The volume in `image`, by whichever of its paths.
    pub fn get(&mut self, image: &Path) -> Result<Rc<Volume>> {
        let canonical = image.canonicalize().at(image_name(image))?;
        if let Some((_, volume)) = self.open.iter().find(|(path, _)| *path == canonical) {
            return Ok(Rc::clone(volume));
        }
        let volume = Rc::new(Volume::open(image, self.access, &self.options)?);
        self.open.push((canonical, Rc::clone(&volume)));
        Ok(volume)
    }

    /// Runs `work`, which may fail or be interrupted, and closes all volumes in either case. The work's own error
    /// counts before one of closing.
    pub fn finish(mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let mut result = work(&mut self);
        for (_, volume) in self.open {
            let Some(volume) = Rc::into_inner(volume) else {
                unreachable!("the work has returned, and no verb keeps a volume beyond it");
            };
            result = result.and(volume.close());
        }
        result
    }
}
