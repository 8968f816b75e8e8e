//! Links in the place of copies: `cp -l` and `cp -s`.

use super::path;
use crate::show::name::join;
use crate::volume::way;

/// What is linked. Both paths begin at the root of the file system that has the source and the target.
#[derive(Clone, Debug)]
pub enum Linking {
    /// Further names of the files below this path, or of what symbolic links there lead to.
    Hard { source: Vec<u8>, follow: bool },
    /// Symbolic links from below the directory `target` to the files below `source`. There are no links on the way to either.
    Symbolic { source: Vec<u8>, target: Vec<u8> },
}

/// What one file becomes.
pub enum Link {
    /// A further name of the file at this path, or of what it leads to.
    Hard(Vec<u8>, bool),
    /// A symbolic link that holds this.
    Symbolic(Vec<u8>),
}

impl Linking {
    /// For the entry at `from`, below the source, that is to get the name at `to`, below the target.
    pub fn of(&self, from: &[u8], to: &[u8]) -> Link {
        match self {
            Self::Hard { source, follow } => Link::Hard(join(source, from), *follow),
            Self::Symbolic { source, target } => {
                Link::Symbolic(way(&join(target, path::split(to).0), &join(source, from)))
            }
        }
    }
}
