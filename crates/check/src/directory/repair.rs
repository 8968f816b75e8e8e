//! Repair, second half: directories from the root down, inodes without a name, and the counts that follow from names.

use super::entries::{Entry, entry_at, length_at, next_entry, parse};
use super::fix::{Added, DIR_TYPE, Pass};
use crate::context::directory_kind;
use crate::options::CheckError;
use crate::repair::volume::{Item, Repair, state};
use crate::slots::inode_at;
use myriad_format::Ino;
use myriad_format::choices::Directory;
use myriad_format::dir::LIST_END;
use myriad_format::inode::{RawInode, S_IFDIR};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// Directories that the root does not lead to.
#[derive(Default)]
struct Strays {
    /// How often each is named by others that have not been visited yet, if it is.
    names: HashMap<Ino, u32>,
    /// One that names each.
    above: HashMap<Ino, Ino>,
    /// Those that no other one names.
    tops: VecDeque<Ino>,
}

impl Repair<'_> {
    /// Reads every directory that the root leads to; what cannot be an entry goes.
    pub(crate) fn walk_names(&mut self) -> Result<(), CheckError> {
        self.directories = self.items.iter().filter(|item| item.file_type == DIR_TYPE).count() as u64;
        let root = Ino(self.superblock.root_ino.get());
        let is_dir = self.item(root).is_some_and(|item| item.file_type == DIR_TYPE);
        if !is_dir {
            let made = self.make_inode(S_IFDIR | 0o755, Some(root))?;
            let none_left = || CheckError::Repair("no inode is left for the root directory, which was lost".to_owned());
            let root = made.ok_or_else(none_left)?;
            self.superblock.root_ino.set(root.0);
            self.act(format!("the root directory was lost; made an empty one, inode {root}"));
        }
        let root = Ino(self.superblock.root_ino.get());
        if let Some(item) = self.item(root) {
            item.state |= state::NAMED;
        }
        self.set_identity(root, root, 0, 0)?;
        self.visit_below(root, None)?;
        self.attach_strays(root)
    }

    /// Visits a directory and all below it.
    fn visit_below(&mut self, top: Ino, mut strays: Option<&mut Strays>) -> Result<(), CheckError> {
        let mut queue = VecDeque::from([top]);
        while let Some(directory) = queue.pop_front() {
            if let Some(strays) = &mut strays {
                self.leave_out(directory, strays)?;
            }
            self.visit(directory, &mut queue)?;
        }
        Ok(())
    }

    fn visit(&mut self, directory: Ino, queue: &mut VecDeque<Ino>) -> Result<(), CheckError> {
        match self.item(directory) {
            Some(item) if item.state & state::VISITED == 0 => item.state |= state::VISITED,
            _ => return Ok(()),
        }
        self.visited += 1;
        self.tick("repairing names", self.visited, self.directories, 0.5, 0.8);
        let pass = Pass { room_head: LIST_END, ..Pass::default() };
        of_kind!(directory_kind(&self.superblock), visit(self, directory, pass, queue))
    }

    /// What no name leads to: directories first, for what lies below them has a name there.
    fn attach_strays(&mut self, root: Ino) -> Result<(), CheckError> {
        // Of directories that the root leads to: none of them lies below a stray one.
        let beyond = std::mem::take(&mut self.beyond);
        let mut added: Vec<Added> = Vec::new();
        let is_unvisited = |item: &Item| item.file_type == DIR_TYPE && item.state & (state::VISITED | state::GONE) == 0;
        let unvisited: Vec<Ino> = self.items.iter().filter(|item| is_unvisited(item)).map(|item| item.ino).collect();
        let mut strays = Strays::default();
        for &directory in &unvisited {
            for child in self.peek(directory)? {
                *strays.names.entry(child).or_default() += 1;
                strays.above.insert(child, directory);
            }
        }
        strays.tops.extend(unvisited.iter().copied().filter(|ino| !strays.names.contains_key(ino)));
        let mut rest = unvisited.into_iter().peekable();
        loop {
            while rest.next_if(|&ino| !self.is_stray(ino)).is_some() {}
            let Some(&first) = rest.peek() else { break };
            // Where no top is left there are only circles, and what lies below them: any directory of a circle will do.
            let top = strays.tops.pop_front().unwrap_or_else(|| self.in_circle(first, &strays));
            if !self.is_stray(top) {
                // It has been visited, from a circle or from another top: what is torn names it only then.
                continue;
            }
            if self.item(top).is_some_and(|item| item.state & state::NO_LINKS != 0) {
                self.leave_out(top, &mut strays)?;
                self.free_inode(top)?;
                continue;
            }
            if let Some(item) = self.item(top) {
                item.state |= state::NAMED;
            }
            added.push(stray(top, DIR_TYPE));
            self.visit_below(top, Some(&mut strays))?;
        }
        let strays: Vec<Item> = self
            .items
            .iter()
            .copied()
            .filter(|item| item.file_type != DIR_TYPE && item.names == 0 && item.state & state::GONE == 0)
            .collect();
        for item in strays {
            if item.state & state::NO_LINKS != 0 {
                self.free_inode(item.ino)?;
            } else {
                added.push(stray(item.ino, item.file_type));
            }
        }
        let mut added = self.name_from_beyond(&beyond, added)?;
        if added.is_empty() {
            return Ok(());
        }
        let (home, whither) = self.lost_and_found(root)?;
        let taken = self.names_of(home)?;
        for added in &mut added {
            let mut names = (0..).map(|attempt| stray_name(added.ino, attempt));
            added.name = names.find(|name| !taken.contains_key(name)).expect("a name that nothing has");
        }
        let moved = self.append_what_fits(home, &added)?;
        if moved > 0 {
            self.act(format!("moved {moved} inodes to {whither}"));
        }
        if moved < added.len() {
            self.act(format!(
                "left {} inodes without a name, for there was no room: remove something, and repair again",
                added.len() - moved
            ));
        }
        Ok(())
    }

    /// Gives inodes that nothing names the names that lie behind the last blocks of directories; the others.
    fn name_from_beyond(
        &mut self,
        beyond: &BTreeMap<Ino, (Ino, Vec<u8>)>,
        strays: Vec<Added>,
    ) -> Result<Vec<Added>, CheckError> {
        let mut found: BTreeMap<Ino, Vec<Added>> = BTreeMap::new();
        let mut rest = Vec::new();
        for stray in strays {
            match beyond.get(&stray.ino) {
                Some((directory, name)) => {
                    found.entry(*directory).or_default().push(Added { name: name.clone(), ..stray });
                }
                None => rest.push(stray),
            }
        }
        for (directory, added) in found {
            self.change_directories()?;
            let mut names = match directory_kind(&self.superblock) {
                Directory::Indexed => self.names_made(directory)?,
                _ => self.names_of(directory)?.into_keys().collect(),
            };
            let (new, others): (Vec<Added>, _) = added.into_iter().partition(|added| names.insert(added.name.clone()));
            rest.extend(others);
            let done = self.append_what_fits(directory, &new)?;
            self.act(format!("directory {directory}: took {done} names from behind its last block"));
            rest.extend(new.into_iter().skip(done));
        }
        Ok(rest)
    }

    /// Adds as many names to a directory, from the first on, as there is room for; how many.
    fn append_what_fits(&mut self, directory: Ino, added: &[Added]) -> Result<usize, CheckError> {
        let (mut done, mut count) = (0, added.len());
        while count > 0 {
            if self.if_room(|repair| repair.append(directory, &added[done..done + count]))? {
                done += count;
                count = count.min(added.len() - done);
            } else {
                count /= 2;
            }
        }
        Ok(done)
    }

    /// A directory of the circle that an unvisited one lies in or below.
    fn in_circle(&mut self, mut directory: Ino, strays: &Strays) -> Ino {
        let mut met = HashSet::new();
        while met.insert(directory)
            && let Some(&above) = strays.above.get(&directory)
            && self.is_stray(above)
        {
            directory = above;
        }
        directory
    }

    /// Whether no name has led to it so far.
    fn is_stray(&mut self, ino: Ino) -> bool {
        self.item(ino).is_some_and(|item| item.state & state::NAMED == 0)
    }

    /// Counts out what an unvisited directory names, before it is visited or freed: each directory is looked into twice, however
    /// they name each other.
    fn leave_out(&mut self, directory: Ino, strays: &mut Strays) -> Result<(), CheckError> {
        for child in self.peek(directory)? {
            if let Some(names) = strays.names.get_mut(&child) {
                // A medium that reads otherwise the second time is no reason to stop.
                *names = names.saturating_sub(1);
                if *names == 0 {
                    strays.tops.push_back(child);
                }
            }
        }
        Ok(())
    }

    /// Marks the directories to which the root leads by names that directories say are their own; once, when a directory is met under another
    /// name than its own, which is hardly ever.
    pub(crate) fn find_homes(&mut self) -> Result<(), CheckError> {
        if std::mem::replace(&mut self.are_homes_known, true) {
            return Ok(());
        }
        let root = Ino(self.superblock.root_ino.get());
        let mut stack = vec![root];
        while let Some(directory) = stack.pop() {
            for (child, hash) in self.subdirectories(directory)? {
                let is_own = child != root && self.is_identity(directory, child, hash);
                if let Some(item) = self.item(child).filter(|item| is_own && item.state & state::AT_HOME == 0) {
                    item.state |= state::AT_HOME;
                    stack.push(child);
                }
            }
        }
        Ok(())
    }

    /// Other unvisited directories that an unvisited directory names, as far as can be read.
    fn peek(&mut self, directory: Ino) -> Result<Vec<Ino>, CheckError> {
        let mut children = self.subdirectories(directory)?;
        children.retain(|&(child, _)| {
            child != directory && self.item(child).is_some_and(|item| item.state & state::VISITED == 0)
        });
        Ok(children.into_iter().map(|(child, _)| child).collect())
    }

    /// The directories that a directory names, as far as can be read, and the hashes of the names.
    fn subdirectories(&mut self, directory: Ino) -> Result<Vec<(Ino, u64)>, CheckError> {
        let raw = self.raw(directory)?;
        let mut children = Vec::new();
        self.for_each_name(directory, &raw, &mut |repair, entry, is_torn| {
            if repair.item(entry.ino).is_none_or(|item| item.file_type != DIR_TYPE) {
                return;
            }
            let hash = repair.hasher.hash(entry.name);
            if !is_torn || repair.is_believed(directory, entry, hash) {
                children.push((entry.ino, hash));
            }
        })?;
        Ok(children)
    }

    /// What a directory names, as far as can be read, and the hashes of the names. No inode need have been found yet.
    pub(crate) fn names_in(&mut self, directory: Ino, raw: &RawInode) -> Result<Vec<(Ino, u64)>, CheckError> {
        let mut names = Vec::new();
        self.for_each_name(directory, raw, &mut |repair, entry, _| {
            names.push((entry.ino, repair.hasher.hash(entry.name)));
        })?;
        Ok(names)
    }

    /// Hands the entries of a directory to `f`, as far as they can be read, and whether each is torn.
    fn for_each_name(
        &mut self,
        directory: Ino,
        raw: &RawInode,
        f: &mut dyn FnMut(&mut Self, &Entry<'_>, bool),
    ) -> Result<(), CheckError> {
        for (run, mut is_torn) in of_kind!(directory_kind(&self.superblock), runs(self, directory, raw))? {
            // As `fix_entries` goes through them.
            let mut at = 0;
            while at < run.len() {
                let Ok(length) = length_at(&run, at) else {
                    let Some(next) = next_entry(&run, at, &self.hasher) else { break };
                    is_torn = true;
                    at = next;
                    continue;
                };
                let entry = entry_at(&run, at);
                at += length;
                match entry {
                    Ok(entry) => f(self, &entry, is_torn),
                    Err(_) => is_torn = true,
                }
            }
        }
        Ok(())
    }

    /// The directory for strays and its path, made if need be: the root directory, if there is no room for one of their own.
    ///
    /// Where users may make names in the root directory they may have taken any of these: the names that it has end, and the numbers do not. And what
    /// they made there is not for the files of others, which may have lain where only their owners can search.
    fn lost_and_found(&mut self, root: Ino) -> Result<(Ino, String), CheckError> {
        self.change_directories()?;
        let names = self.names_of(root)?;
        let mut attempt = 0;
        let name = loop {
            let name = home_name(attempt);
            match names.get(name.as_bytes()) {
                Some(&ino) if self.is_for_root_alone(ino)? => return Ok((ino, format!("/{name}"))),
                Some(_) => attempt += 1,
                None => break name,
            }
        };
        let no_room = || (root, "the root directory, for there was no room for /lost+found".to_owned());
        let Some(ino) = self.make_inode(S_IFDIR | 0o700, None)? else { return Ok(no_room()) };
        // Before it has a name.
        self.store_at_hand()?;
        self.flush()?;
        if let Some(item) = self.item(ino) {
            item.state |= state::NAMED | state::VISITED;
        }
        let added = [Added { name: name.clone().into_bytes(), ino, file_type: DIR_TYPE }];
        if self.if_room(|repair| repair.append(root, &added))? {
            return Ok((ino, format!("/{name}")));
        }
        self.free_inode(ino)?;
        Ok(no_room())
    }

    /// Whether this is a directory of root's that nobody else may search or write. Those whom an ACL names have no more rights than the group.
    fn is_for_root_alone(&mut self, ino: Ino) -> Result<bool, CheckError> {
        const OTHERS: u16 = 0o033;
        if self.item(ino).is_none_or(|item| item.file_type != DIR_TYPE) {
            return Ok(false);
        }
        let raw = self.raw(ino)?;
        Ok(raw.uid.get() == 0 && raw.mode.get() & OTHERS == 0)
    }

    /// Names of a directory that has been visited.
    fn names_of(&mut self, directory: Ino) -> Result<HashMap<Vec<u8>, Ino>, CheckError> {
        let raw = self.raw(directory)?;
        let mut names = HashMap::new();
        for (run, _) in of_kind!(directory_kind(&self.superblock), runs(self, directory, &raw))? {
            for entry in parse(&run).map_while(Result::ok).filter(|entry| !entry.ino.is_none()) {
                names.insert(entry.name.to_vec(), entry.ino);
            }
        }
        Ok(names)
    }

    /// Adds names at the end of a directory.
    fn append(&mut self, directory: Ino, added: &[Added]) -> Result<(), CheckError> {
        of_kind!(directory_kind(&self.superblock), append(self, directory, added))
    }

    /// Link counts, now that every name is known.
    pub(crate) fn settle_links(&mut self) -> Result<(), CheckError> {
        for index in 0..self.items.len() {
            let item = self.items[index];
            if item.state & state::GONE != 0 {
                continue;
            }
            if item.file_type != DIR_TYPE && item.names == 0 {
                // There was no room for a name. Without links it would be gone with the next repair.
                continue;
            }
            let links = if item.file_type == DIR_TYPE { item.names.saturating_add(2) } else { item.names };
            let Some((block, slot)) = self.geometry.locate(item.ino) else { continue };
            self.load_at_hand(block)?;
            let differs = self
                .at_hand
                .as_ref()
                .is_some_and(|(_, buf, _)| inode_at(&self.geometry, buf, slot).nlink.get() != links);
            if differs {
                self.change_inode(item.ino, |raw| raw.nlink.set(links))?;
            }
        }
        Ok(())
    }
}

/// What the directory for strays is called: `lost+found`, or the next name that is left.
fn home_name(attempt: u32) -> String {
    if attempt == 0 { "lost+found".to_owned() } else { format!("lost+found.{attempt}") }
}

/// What comes to lost+found, with its name there unless something has that already.
fn stray(ino: Ino, file_type: u8) -> Added {
    Added { name: stray_name(ino, 0), ino, file_type }
}

/// A stray's name in lost+found: its number, and which attempt at a name it is, if not the first.
fn stray_name(ino: Ino, attempt: u32) -> Vec<u8> {
    if attempt == 0 { format!("#{ino}") } else { format!("#{ino}.{attempt}") }.into_bytes()
}
