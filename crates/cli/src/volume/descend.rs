//! Every file of a tree visited by name in a directory that is held open, for verbs that change what they meet.

use super::{Folder, Names, Place, Tree};
use crate::context::Context;
use crate::failure::At;
use anyhow::Result;
use myriad_engine::{Errno, Error, Stat};

/// A file, as a name in a directory.
pub struct Visited<'a, 't> {
    pub folder: &'a dyn Folder<'t>,
    pub name: &'a [u8],
    pub place: &'a Place,
    pub stat: &'a Stat,
}

/// What is done to the files. An error is told of, and the rest is done all the same.
pub trait Visit {
    /// A directory before its content: whether to go into it.
    fn enter(&mut self, directory: &Visited<'_, '_>) -> Result<bool>;
    /// A directory after its content, and whether all went well and was agreed to there.
    fn leave(&mut self, directory: &Visited<'_, '_>, is_all: bool) -> Result<bool>;
    /// Anything but a directory. The answer is whether it was agreed to.
    fn file(&mut self, file: &Visited<'_, '_>) -> Result<bool>;
}

struct Level<'t> {
    folder: Box<dyn Folder<'t> + 't>,
    /// Its name in the level above.
    name: Vec<u8>,
    place: Place,
    stat: Stat,
    names: Names<'t>,
    is_all: bool,
}

/// Visits the directory `place` and all below it, no link followed. With `follow`, `place` itself may be a link to the
/// directory.
pub fn descend(context: &Context, tree: &dyn Tree, place: &Place, follow: bool, visit: &mut dyn Visit) -> Result<()> {
    let (above, name) = if follow { (place.clone(), b".".as_slice()) } else { place.split() };
    let base = tree.folder(&above.path).at(place)?;
    descend_in(context, &*base, name, place, visit)
}

/// The same from a name in a directory that is held open already.
pub fn descend_in<'t>(
    context: &Context,
    base: &dyn Folder<'t>,
    name: &[u8],
    place: &Place,
    visit: &mut dyn Visit,
) -> Result<()> {
    let stat = base.lstat(name).at(place)?;
    if !stat.is_dir() {
        // A link with a slash behind it.
        return Err(Error::from(Errno::NOTDIR)).at(place);
    }
    // A stack, not recursion: trees may be deeper than ours.
    let mut levels = Vec::new();
    levels.extend(open(context, base, name, place.clone(), stat, visit)?);
    while let Some(level) = levels.last_mut() {
        context.check()?;
        let Some(name) = level.names.next() else {
            let Level { folder, name, place, stat, is_all, .. } = levels.pop().expect("it was looked at above");
            drop(folder);
            let folder = levels.last().map_or(base, |above: &Level<'t>| &*above.folder);
            let left = visit.leave(&Visited { folder, name: &name, place: &place, stat: &stat }, is_all);
            let is_all = tolerate(context, left)?;
            if let Some(above) = levels.last_mut() {
                above.is_all &= is_all;
            }
            continue;
        };
        let Some(name) = tolerate_value(context, name.at(&level.place))? else {
            level.is_all = false;
            continue;
        };
        let place = level.place.below(&name);
        let stat = match level.folder.lstat(&name) {
            // Gone while we worked.
            Err(Error::Refused(Errno::NOENT | Errno::STALE)) => continue,
            other => match tolerate_value(context, other.at(&place))? {
                Some(stat) => stat,
                None => {
                    level.is_all = false;
                    continue;
                }
            },
        };
        if !stat.is_dir() {
            let visited = Visited { folder: &*level.folder, name: &name, place: &place, stat: &stat };
            let is_agreed = visit.file(&visited);
            level.is_all &= tolerate(context, is_agreed)?;
            continue;
        }
        let opened = open(context, &*level.folder, &name, place, stat, visit)?;
        level.is_all &= opened.is_some();
        levels.extend(opened);
    }
    Ok(())
}

/// Goes into a directory, if the visitor will have it.
fn open<'t>(
    context: &Context,
    folder: &dyn Folder<'t>,
    name: &[u8],
    place: Place,
    stat: Stat,
    visit: &mut dyn Visit,
) -> Result<Option<Level<'t>>> {
    let entered = visit.enter(&Visited { folder, name, place: &place, stat: &stat });
    if !tolerate(context, entered)? {
        return Ok(None);
    }
    let listed = folder.folder(name).and_then(|folder| {
        let names = folder.names()?;
        Ok((folder, names))
    });
    let listed = tolerate_value(context, listed.at(&place))?;
    Ok(listed.map(|(folder, names)| Level { folder, name: name.to_vec(), place, stat, names, is_all: true }))
}

fn tolerate(context: &Context, result: Result<bool>) -> Result<bool> {
    Ok(tolerate_value(context, result)?.unwrap_or(false))
}

/// `None` after an error that does not end the run.
fn tolerate_value<T>(context: &Context, result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => context.tolerate(Err(error)).map(|()| None),
    }
}
