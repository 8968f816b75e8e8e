//! What lies where: the volume in rows of cells, and how near things are to each other.

use crate::failure::At;
use crate::show::name::Shown;
use crate::show::size;
use anyhow::Result;
use myriad_engine::{BlockRun, Cred, Fs};
use myriad_format::{Geometry, Ino};
use std::collections::HashSet;

/// Rows of a picture, where regions allow it.
const ROWS: (u64, u64) = (32, 64);
/// Cells of a row.
const COLUMNS: u64 = 96;

/// What a block can be, most telling first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Directories,
    Inodes,
    Data,
    Other,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Directories, Self::Inodes, Self::Data, Self::Other];

    pub fn name(self) -> &'static str {
        match self {
            Self::Directories => "directories: inodes and entries",
            Self::Inodes => "inodes of files",
            Self::Data => "data of files",
            Self::Other => "other metadata and the log",
        }
    }

    pub fn sign(self) -> char {
        match self {
            Self::Directories => 'D',
            Self::Inodes => 'i',
            Self::Data => '#',
            Self::Other => '+',
        }
    }
}

/// The kinds that a cell holds some of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell(u8);

impl Cell {
    fn add(&mut self, kind: Kind) {
        self.0 |= 1 << kind as u8;
    }

    pub fn kinds(self) -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(move |&kind| self.0 >> kind as u8 & 1 == 1)
    }

    pub fn first(self) -> Option<Kind> {
        self.kinds().next()
    }
}

#[derive(Default)]
pub struct Row {
    pub first_block: u64,
    pub blocks: u64,
    pub cells: Vec<Cell>,
    /// Blocks of each cell of which it is known what they hold.
    known: Vec<u64>,
    pub directories: u64,
    /// Inodes of what is no directory.
    pub files: u64,
    pub data_blocks: u64,
    pub directory_blocks: u64,
    pub free_blocks: u64,
}

/// How near things lie to each other.
#[derive(Default)]
pub struct Near {
    pub regions: u64,
    pub regions_with_directories: u64,
    /// Without the root.
    pub directories: u64,
    pub directories_near: u64,
    pub files: u64,
    pub files_near: u64,
    /// Blocks between a directory's inode and its parent's; between a file's inode and its first block of data.
    parent_distance: u64,
    with_data: u64,
    data_distance: u64,
}

pub struct Survey {
    pub block_size: u64,
    pub region_blocks: u64,
    pub cell_blocks: u64,
    pub columns: usize,
    pub rows: Vec<Row>,
    pub near: Near,
}

impl Survey {
    pub fn take(fs: &Fs, geometry: &Geometry, name: &str) -> Result<Self> {
        let mut survey = Self::empty(geometry);
        for run in fs.free_runs().at(name)? {
            survey.add_run(run, None);
        }
        let session = fs.session(Cred::root());
        let (mut region_has, mut inode_blocks, mut linked) = (HashSet::new(), HashSet::new(), HashSet::new());
        // The directories above: path, and block of the inode.
        let mut above: Vec<(Vec<u8>, u64)> = Vec::new();
        for entry in session.walk("/").at(name)? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(damaged) => return Err(damaged.error).at(format_args!("{name}:/{}", Shown(&damaged.path))),
            };
            let stat = &entry.stat;
            let block = geometry.locate(Ino(stat.ino)).map_or(0, |(block, _)| block.0);
            while above.last().is_some_and(|(path, _)| !is_in(path, &entry.path)) {
                above.pop();
            }
            let parent = above.last().map(|above| above.1);
            if stat.is_dir() {
                region_has.insert(block / survey.region_blocks);
                above.push((entry.path.clone(), block));
            } else if stat.nlink > 1 && !linked.insert(stat.ino) {
                continue;
            }
            let runs = session.block_runs_at(stat.node()).at(format_args!("{name}:/{}", Shown(&entry.path)))?;
            let kind = if stat.is_dir() { Kind::Directories } else { Kind::Inodes };
            let is_new = inode_blocks.insert(block);
            survey.add_inode(block, kind, is_new);
            survey.note_distances(block, parent, kind, runs.first());
            let kind = if stat.is_dir() { Kind::Directories } else { Kind::Data };
            runs.into_iter().for_each(|run| survey.add_run(run, Some(kind)));
        }
        survey.near.regions_with_directories = region_has.len() as u64;
        survey.find_others();
        Ok(survey)
    }

    fn empty(geometry: &Geometry) -> Self {
        let region_blocks = u64::from(geometry.region_blocks());
        let mut row_blocks = region_blocks;
        while geometry.block_count.div_ceil(row_blocks) > ROWS.1 {
            row_blocks *= 2;
        }
        while geometry.block_count.div_ceil(row_blocks) < ROWS.0 && row_blocks > COLUMNS {
            row_blocks /= 2;
        }
        let cell_blocks = row_blocks.div_ceil(COLUMNS);
        let row = |first_block: u64| {
            let blocks = row_blocks.min(geometry.block_count - first_block);
            let cells = vec![Cell::default(); blocks.div_ceil(cell_blocks) as usize];
            let known = vec![0; cells.len()];
            Row { first_block, blocks, cells, known, ..Row::default() }
        };
        Self {
            block_size: geometry.block_size() as u64,
            region_blocks,
            cell_blocks,
            columns: row_blocks.div_ceil(cell_blocks) as usize,
            rows: (0..geometry.block_count).step_by(row_blocks as usize).map(row).collect(),
            near: Near { regions: u64::from(geometry.region_count()), ..Near::default() },
        }
    }

    /// Row and cell of a block.
    fn place(&self, block: u64) -> (usize, usize) {
        let row_blocks = self.rows[0].blocks;
        ((block / row_blocks) as usize, (block % row_blocks / self.cell_blocks) as usize)
    }

    /// Blocks that are free (`None`) or hold something.
    fn add_run(&mut self, run: BlockRun, kind: Option<Kind>) {
        let mut at = run.start;
        while at < run.start + run.length {
            let (row, cell) = self.place(at);
            let row = &mut self.rows[row];
            let cell_end = row.first_block + ((cell as u64 + 1) * self.cell_blocks).min(row.blocks);
            let end = cell_end.min(run.start + run.length);
            row.known[cell] += end - at;
            match kind {
                None => row.free_blocks += end - at,
                Some(Kind::Directories) => row.directory_blocks += end - at,
                Some(_) => row.data_blocks += end - at,
            }
            if let Some(kind) = kind {
                row.cells[cell].add(kind);
            }
            at = end;
        }
    }

    fn add_inode(&mut self, block: u64, kind: Kind, is_new: bool) {
        let (row, cell) = self.place(block);
        let row = &mut self.rows[row];
        row.cells[cell].add(kind);
        row.known[cell] += u64::from(is_new);
        if kind == Kind::Directories {
            row.directories += 1;
        } else {
            row.files += 1;
        }
    }

    fn note_distances(&mut self, block: u64, parent: Option<u64>, kind: Kind, first: Option<&BlockRun>) {
        let near = &mut self.near;
        if let Some(parent) = parent {
            let is_near = u64::from(parent / self.region_blocks == block / self.region_blocks);
            if kind == Kind::Directories {
                near.directories += 1;
                near.directories_near += is_near;
                near.parent_distance += block.abs_diff(parent);
            } else {
                near.files += 1;
                near.files_near += is_near;
            }
        }
        if let (Kind::Inodes, Some(run)) = (kind, first) {
            near.with_data += 1;
            near.data_distance += block.abs_diff(run.start);
        }
    }

    /// What is neither free nor in use by a file is something else.
    fn find_others(&mut self) {
        for row in &mut self.rows {
            for (index, (cell, known)) in row.cells.iter_mut().zip(&row.known).enumerate() {
                let blocks = self.cell_blocks.min(row.blocks - index as u64 * self.cell_blocks);
                if *known < blocks {
                    cell.add(Kind::Other);
                }
            }
        }
    }

    pub fn cell_size(&self) -> String {
        size::human(self.cell_blocks * self.block_size)
    }

    pub fn row_size(&self) -> String {
        size::human(self.rows[0].blocks * self.block_size)
    }

    /// Where a row begins, in bytes.
    pub fn label(&self, row: &Row) -> String {
        size::human(row.first_block * self.block_size)
    }

    /// The regions of a row: `7`, or `8-15`.
    pub fn regions_of(&self, row: &Row) -> String {
        let first = row.first_block / self.region_blocks;
        let last = (row.first_block + row.blocks - 1) / self.region_blocks;
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    }

    pub fn nearness(&self) -> [String; 3] {
        let near = &self.near;
        let share = |part: u64, all: u64| if all == 0 { 0.0 } else { 100.0 * part as f64 / all as f64 };
        let mean = |sum: u64, count: u64| size::human(sum.checked_div(count).unwrap_or(0) * self.block_size);
        let region = size::human(self.region_blocks * self.block_size);
        [
            format!("{} of {} regions of {region} hold directories", near.regions_with_directories, near.regions),
            format!(
                "{:.0}% of {} directories lie in the region of their parent, on average {} from it",
                share(near.directories_near, near.directories),
                near.directories,
                mean(near.parent_distance, near.directories)
            ),
            format!(
                "{:.0}% of {} files lie in the region of their directory, their data on average {} from their inode",
                share(near.files_near, near.files),
                near.files,
                mean(near.data_distance, near.with_data)
            ),
        ]
    }
}

/// Whether a path lies in a directory of this path.
fn is_in(directory: &[u8], path: &[u8]) -> bool {
    directory.is_empty() || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_device::BlockDevice;
    use myriad_engine::{MountOptions, OpenOptions, options};
    use myriad_format::FsBlock;
    use myriad_format::choices::Inodes;
    use myriad_format::superblock::Superblock;
    use std::sync::Arc;

    /// A directory far from the root holds a file: each shows where it lies, and all blocks are accounted for.
    #[test]
    fn everything_is_found_where_it_lies() {
        for profile in ["myriad", "xfs", "ffs", "simplefs"] {
            let device = Arc::new(myriad_device::MemoryDevice::new(64 << 20));
            let mut options = options::Options::default();
            for setting in [&format!("profile={profile}"), "ag-size=8M", "region-size=1M"] {
                let (row, value) = options::read(setting).unwrap().unwrap();
                row.set(&mut options, value);
            }
            let mut options = options.mkfs;
            if options.choices.inodes == Inodes::Static {
                options.region_size = 8 << 20;
            }
            Fs::format_device(device.clone(), None, &options).unwrap();
            let fs = Fs::open_device(device.clone(), None, MountOptions::default()).unwrap();
            let session = fs.session(Cred::root());
            session.mkdir("d", 0o755).unwrap();
            for name in 0..40 {
                session.create(&format!("d/{name}{}", "x".repeat(40)), 0o644).unwrap();
            }
            let write = OpenOptions { read: true, write: true, create: true, mode: 0o644, ..OpenOptions::default() };
            session.open("d/data", write).unwrap().write_at(&[1; 1 << 20], 0).unwrap();
            session.link("d/data", "again").unwrap();
            fs.sync().unwrap();
            let mut block = myriad_device::AlignedBuf::zeroed(4096);
            device.read(0, &mut block).unwrap();
            let geometry = Superblock::decode(&block, FsBlock(0)).unwrap().geometry();
            let survey = Survey::take(&fs, &geometry, "test").unwrap();
            let sum = |of: fn(&Row) -> u64| survey.rows.iter().map(of).sum::<u64>();
            assert_eq!((sum(|row| row.directories), sum(|row| row.files)), (2, 41), "{profile}");
            assert_eq!(sum(|row| row.data_blocks), 256, "{profile}");
            assert_eq!(sum(|row| row.blocks), geometry.block_count);
            // What a group holds back for its trees is free, and not to be had.
            let held_back = fs.statfs().unwrap().free_blocks - sum(|row| row.free_blocks);
            assert!(held_back <= 8 * u64::from(geometry.ag_count), "{profile}: {held_back}");
            assert!(sum(|row| row.directory_blocks) > 0, "{profile}");
            let block = geometry.locate(Ino(session.stat("d").unwrap().ino)).unwrap().0.0;
            let (row, cell) = survey.place(block);
            assert_eq!(survey.rows[row].cells[cell].first(), Some(Kind::Directories), "{profile}");
            assert_eq!((survey.near.directories, survey.near.files), (1, 41));
        }
    }

    #[test]
    fn paths_lie_in_directories() {
        assert!(is_in(b"", b"a") && is_in(b"a", b"a/b") && !is_in(b"a", b"ab") && !is_in(b"a/b", b"a"));
    }
}
