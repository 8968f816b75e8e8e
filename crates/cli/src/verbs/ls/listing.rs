//! Which files `ls` shows: those given, and those in directories.

use super::print::Printer;
use super::{BATCH, Form, Item, Ls};
use crate::context::Context;
use crate::failure::At;
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
        let mut ahead = vec![top.clone()];
        while let Some(place) = ahead.pop() {
            self.context.check()?;
            let result = self.directory(volume, &place, with_heading).map(|below| {
                if self.ls.recursive {
                    ahead.extend(below.iter().rev().map(|name| place.below(name)));
                }
            });
            self.context.tolerate(result)?;
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
        // What a link leads to is shown, and not entered: it might lead back here.
        let is_link = |item: &Item| {
            self.ls.dereference
                && volume.tree().lstat(&item.place.path).is_ok_and(|stat| stat.file_type() == FileType::Symlink)
        };
        Ok(items.into_iter().filter(|item| is_below(item) && !is_link(item)).map(|item| item.name).collect())
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
                        let stat = if follows { tree.stat(path).unwrap_or(stat) } else { stat };
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
