//! Target: one that is only looked at. What would be made is not there afterwards, and what would be replaced is; names
//! that are taken refuse what is to be made as in the target itself, so that a writer says the same.

use super::batch::Meta;
use super::target::{Attrs, Found, Lost, Result, Target};
use myriad_engine::{Errno, FileType};

pub struct Dry<T> {
    pub target: T,
    /// A directory in the way of something else, and the other way round, would have been removed before.
    pub clears_way: bool,
}

impl<T: Target> Dry<T> {
    fn check_free(&self, dir: Option<&T::Dir>, name: &[u8], is_directory: bool) -> Result<()> {
        let is_in_the_way =
            |found: &Found| !self.clears_way || (found.file_type == FileType::Directory) == is_directory;
        match dir.map_or(Ok(None), |dir| self.target.find(dir, name))?.filter(is_in_the_way) {
            Some(_) => Err(Errno::EXIST.into()),
            None => Ok(()),
        }
    }
}

impl<T: Target> Target for Dry<T> {
    /// `None`: one that would be made.
    type Dir = Option<T::Dir>;
    type File = ();

    fn find(&self, dir: &Self::Dir, name: &[u8]) -> Result<Option<Found>> {
        dir.as_ref().map_or(Ok(None), |dir| self.target.find(dir, name))
    }

    fn acl(&self, dir: &Self::Dir, name: &[u8]) -> Option<Vec<u8>> {
        dir.as_ref().and_then(|dir| self.target.acl(dir, name))
    }

    fn names(&self, dir: &Self::Dir) -> Result<Vec<Vec<u8>>> {
        dir.as_ref().map_or(Ok(Vec::new()), |dir| self.target.names(dir))
    }

    fn leads_to(&self, dir: &Self::Dir, name: &[u8], target: &[u8]) -> bool {
        dir.as_ref().is_some_and(|dir| self.target.leads_to(dir, name, target))
    }

    fn open_dir(&self, dir: &Self::Dir, name: &[u8]) -> Result<Self::Dir> {
        match dir {
            Some(dir) => self.target.open_dir(dir, name).map(Some),
            None => Err(Errno::NOENT.into()),
        }
    }

    fn stat_dir(&self, dir: &Self::Dir) -> Result<Found> {
        match dir {
            Some(dir) => self.target.stat_dir(dir),
            None => Err(Errno::NOENT.into()),
        }
    }

    fn hands_down_acl(&self, _: &Self::Dir) -> bool {
        false
    }

    fn drop_acls(&self, _: &Self::Dir) -> Result<()> {
        Ok(())
    }

    fn make_dir(&self, dir: &Self::Dir, name: &[u8]) -> Result<Self::Dir> {
        self.check_free(dir.as_ref(), name, true).map(|()| None)
    }

    fn finish_dir(&self, _: &Self::Dir, _: &Attrs, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn make_whole(&self, dir: &Self::Dir, name: &[u8], _: &[u8], _: &Attrs, _: &[u8]) -> Result<()> {
        self.check_free(dir.as_ref(), name, false)
    }

    fn make_file(&self, dir: &Self::Dir, name: &[u8]) -> Result<()> {
        self.check_free(dir.as_ref(), name, false)
    }

    fn write(&self, (): &(), _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn finish_file(&self, (): (), _: u64, _: &Attrs, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn make_symlink(&self, dir: &Self::Dir, name: &[u8], _: &[u8], _: &Attrs, _: &[u8]) -> Result<()> {
        self.check_free(dir.as_ref(), name, false)
    }

    fn make_node(&self, dir: &Self::Dir, name: &[u8], meta: &Meta, _: &Attrs, _: &[u8]) -> Result<()> {
        debug_assert_ne!(meta.file_type(), FileType::Directory);
        self.check_free(dir.as_ref(), name, false)
    }

    fn link(&self, _: (&Self::Dir, &[u8]), (dir, name): (&Self::Dir, &[u8])) -> Result<()> {
        self.check_free(dir.as_ref(), name, false)
    }

    fn link_path(&self, _: &[u8], _: bool, (dir, name): (&Self::Dir, &[u8])) -> Result<bool> {
        self.check_free(dir.as_ref(), name, false).map(|()| true)
    }

    fn check_replaced(&self, dir: &Self::Dir, name: &[u8], place: &str) -> anyhow::Result<()> {
        dir.as_ref().map_or(Ok(()), |dir| self.target.check_replaced(dir, name, place))
    }

    fn rename(&self, _: &Self::Dir, _: &[u8], _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn unlink(&self, _: &Self::Dir, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn room(&self) -> Option<u64> {
        self.target.room()
    }

    fn lost(&self) -> Lost {
        self.target.lost()
    }

    fn place(&self, path: &[u8]) -> String {
        self.target.place(path)
    }
}
