//! Which files `ls` shows: those given, and those in directories.

use super::print::Printer;
use super::{BATCH, Form, Item, Ls};
use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::name::join;
use crate::volume::{Opened, Place};
use anyhow::Result;
use myriad_engine::FileType;
use std::io::Write;

/// What one run of `ls` keeps between directories.
pub struct Listing<'a> {
    context: &'a Context,
    ls: &'a Ls,
    printer: Printer<'a>,
    /// Listings shown so far.
    shown: usize,
}

impl<'a> Listing<'a> {
    pub fn new(context: &'a Context, ls: &'a Ls, form: Form) -> Self {
        Self { context, ls, printer: Printer::new(context, ls, form), shown: 0 }
    }

    /// Files that were given by name.
    pub fn files(&mut self, volume: &Opened, items: &[Item]) -> Result<()> {
        self.shown += 1;
        self.printer.print(volume, items, false)
    }

    /// A directory and, with -R, those below it: each before its content, in the order shown.
    pub fn tree(&mut self, volume: &Opened, top: &Place, with_heading: bool) -> Result<()> {
        // Each with how many directories lie above it.
        let mut ahead = vec![(top.clone(), 0)];
        // The directories from the top to the one in hand.
        let mut entered = Vec::new();
        while let Some((place, depth)) = ahead.pop() {
            self.context.check()?;
            entered.truncate(depth);
            let entering = self.enter(volume, &place, &mut entered);
            let result = entering.and_then(|()| self.directory(volume, &place, with_heading)).map(|below| {
                if self.ls.recursive {
                    ahead.extend(below.iter().rev().map(|name| (place.below(name), depth + 1)));
                }
            });
            self.context.tolerate(result)?;
        }
        Ok(())
    }

    /// Refuses a directory that a symbolic link has led back to.
    fn enter(&self, volume: &Opened, place: &Place, entered: &mut Vec<u64>) -> Result<()> {
        if self.ls.recursive && self.ls.dereference {
            let ino = volume.tree().stat(&place.path).at(place)?.ino;
            if entered.contains(&ino) {
                let what = "leads back to a directory above it, and is not listed again";
                return Err(Failure::new(place, what, "").into());
            }
            entered.push(ino);
        }
        Ok(())
    }

    /// Shows one directory; the names of the directories in it.
    fn directory(&mut self, volume: &Opened, place: &Place, with_heading: bool) -> Result<Vec<Vec<u8>>> {
        let items = self.read(volume, place)?;
        if with_heading && !self.ls.json {
            let shown = self.printer.quoted(&place.bytes());
            let mut out = self.context.out();
            if self.shown > 0 {
                writeln!(out)?;
            }
            out.name(&shown)?;
            writeln!(out, ":")?;
        }
        self.shown += 1;
        self.printer.print(volume, &items, true)?;
        let is_below = |item: &Item| item.stat.is_dir() && item.name != b"." && item.name != b"..";
        Ok(items.into_iter().filter(is_below).map(|item| item.name).collect())
    }

    /// A directory's entries with their attributes, sorted.
    fn read(&self, volume: &Opened, place: &Place) -> Result<Vec<Item>> {
        let tree = volume.tree();
        let mut names = Vec::new();
        for name in tree.names(&place.path).at(place)? {
            let name = name.at(place)?;
            if self.ls.is_shown(&name) {
                names.push(name);
            }
        }
        let mut items = Vec::with_capacity(names.len() + 2);
        if self.ls.all || self.ls.raw {
            for name in [&b"."[..], b".."] {
                let place = place.below(name);
                let stat = tree.stat(&place.path).at(&place)?;
                items.push(Item { name: name.to_vec(), place, stat });
            }
        }
        for batch in names.chunks(BATCH) {
            self.context.check()?;
            let paths: Vec<Vec<u8>> = batch.iter().map(|name| join(&place.path, name)).collect();
            for ((name, path), stat) in batch.iter().zip(&paths).zip(tree.lstat_many(&paths)) {
                let place = Place { path: path.clone(), ..place.clone() };
                match stat.at(&place) {
                    Ok(stat) => {
                        let follows = self.ls.dereference && stat.file_type() == FileType::Symlink;
                        let led = if follows { tree.stat(path).at(&place) } else { Ok(stat) };
                        // One that leads nowhere is shown as what it is.
                        let stat = self.context.tolerated(led)?.unwrap_or(stat);
                        items.push(Item { name: name.clone(), place, stat });
                    }
                    Err(error) => self.context.report(&error),
                }
            }
        }
        self.ls.sort(volume, &mut items);
        Ok(items)
    }
}
