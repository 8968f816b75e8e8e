//! Shapes of trees: which directories there are, which files lie in each, and how large they are; made from a seed.
//!
//! A shape is names and numbers. What is done with it is `trees`' matter.

use super::random::Random;
use std::io::Write;

/// A directory below the top, which is number 0. Parents have lower numbers than their children.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Dir {
    parent: u32,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    pub dir: u32,
    pub size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    dirs: Vec<Dir>,
    /// In the order of their directories' numbers.
    files: Vec<File>,
    /// What files are called after their number.
    suffix: &'static str,
}

/// How sizes of files are drawn: log-normal.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Mean of the natural logarithm of bytes, and its standard deviation.
    pub mu: f64,
    pub sigma: f64,
    /// Bytes at most.
    pub most: u64,
}

impl Sizes {
    fn draw(self, random: &mut Random) -> u64 {
        ((self.mu + self.sigma * random.normal()).exp() as u64).min(self.most)
    }
}

impl Shape {
    fn top() -> Self {
        Self { dirs: vec![Dir { parent: 0, name: String::new() }], files: Vec::new(), suffix: "" }
    }

    fn add_dir(&mut self, parent: u32, name: String) -> u32 {
        self.dirs.push(Dir { parent, name });
        u32::try_from(self.dirs.len() - 1).expect("a tree that fits in memory")
    }

    /// Gives the tree its files, so many in each directory.
    fn fill(&mut self, counts: &[u64], sizes: Sizes, random: &mut Random) {
        for (dir, &count) in counts.iter().enumerate() {
            for _ in 0..count {
                self.files.push(File { dir: dir as u32, size: sizes.draw(random) });
            }
        }
    }

    /// A source tree: `dirs` directories, each below one drawn from those there are (so that some are wide and few are deep), and
    /// `files` files, none in the top.
    pub fn source(dirs: u64, files: u64, sizes: Sizes, suffix: &'static str, seed: u64) -> Self {
        let mut random = Random::stream(seed, "source", 0);
        let mut shape = Self { suffix, ..Self::top() };
        for number in 1..dirs.max(2) {
            let parent = random.below(number.min(1 + number / 2)) as u32;
            shape.add_dir(parent, format!("dir{number}"));
        }
        let mut counts = vec![0; shape.dirs.len()];
        for _ in 0..files {
            counts[1 + random.below(shape.dirs.len() as u64 - 1) as usize] += 1;
        }
        shape.fill(&counts, sizes, &mut random);
        shape
    }

    /// OpenBSD's ports: categories of ports, each with a Makefile and more, and directories `files`, `pkg` and `patches` of little files.
    pub fn ports(dirs: u64, files: u64, seed: u64) -> Self {
        let mut random = Random::stream(seed, "ports", 0);
        let mut shape = Self::top();
        let categories = (dirs / 108).max(1);
        let tops: Vec<u32> = (0..categories).map(|number| shape.add_dir(0, format!("category{number}"))).collect();
        let mut port = 0;
        while (shape.dirs.len() as u64) < dirs {
            let parent = shape.add_dir(tops[random.below(categories) as usize], format!("port{port}"));
            port += 1;
            for part in ["pkg", "files", "patches"].into_iter().take(1 + random.below(3) as usize) {
                if (shape.dirs.len() as u64) < dirs {
                    shape.add_dir(parent, part.to_owned());
                }
            }
        }
        let below_tops = categories + 1;
        let mut counts = vec![0; shape.dirs.len()];
        for number in 0..files {
            let places = (shape.dirs.len() as u64).saturating_sub(below_tops).max(1);
            // One for each at first, the rest anywhere.
            let place = if number < places { number } else { random.below(places) };
            counts[(below_tops + place).min(shape.dirs.len() as u64 - 1) as usize] += 1;
        }
        shape.fill(&counts, Sizes { mu: 6.4, sigma: 1.0, most: 64 << 10 }, &mut random);
        shape
    }

    /// As Impressions 1.0 makes them (Agrawal and others 2009): a directory is attached to one that is there with a chance in proportion to
    /// its subdirectories + 2; files a directory follow an inverse polynomial of degree 2 and offset 2.36.
    pub fn impressions(dirs: u64, files: u64, sizes: Sizes, seed: u64) -> Self {
        let mut random = Random::stream(seed, "impressions", 0);
        let mut shape = Self::top();
        // Each directory is in here twice, and once more for each subdirectory.
        let mut urn = vec![0_u32, 0];
        for number in 1..dirs.max(1) {
            let parent = urn[random.below(urn.len() as u64) as usize];
            let dir = shape.add_dir(parent, format!("d{number}"));
            urn.extend([parent, dir, dir]);
        }
        let mut counts: Vec<u64> =
            (0..shape.dirs.len()).map(|_| (OFFSET / (1.0 - random.unit()) - OFFSET) as u64).collect();
        let mut total: u64 = counts.iter().sum();
        // The tail of one draw may be larger than the tree: what is too many or too few goes by chance.
        while total > files {
            let largest = (0..counts.len()).max_by_key(|&dir| counts[dir]).expect("there is a top");
            let less = (total - files).min(counts[largest].div_ceil(2));
            (counts[largest], total) = (counts[largest] - less, total - less);
        }
        while total < files {
            let dir = random.below(counts.len() as u64) as usize;
            let more = (files - total).min(counts[dir].max(1));
            (counts[dir], total) = (counts[dir] + more, total + more);
        }
        shape.fill(&counts, sizes, &mut random);
        shape
    }

    pub fn dir_count(&self) -> u64 {
        self.dirs.len() as u64
    }

    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// Bytes of all files, each in whole blocks of 4 KiB.
    pub fn block_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size.next_multiple_of(4096)).sum()
    }

    pub fn push_dir(&self, out: &mut Vec<u8>, top: &str, dir: u32) {
        if dir == 0 {
            out.extend_from_slice(top.as_bytes());
        } else {
            let Dir { parent, name } = &self.dirs[dir as usize];
            self.push_dir(out, top, *parent);
            out.push(b'/');
            out.extend_from_slice(name.as_bytes());
        }
    }

    pub fn push_file(&self, out: &mut Vec<u8>, top: &str, file: usize) {
        self.push_dir(out, top, self.files[file].dir);
        write!(out, "/f{file}{}", self.suffix).expect("a vector takes all");
    }

    /// Directories depth first, children in the order of their numbers, as tar has them.
    pub fn depth_first(&self) -> Vec<u32> {
        let mut children: Vec<Vec<u32>> = vec![Vec::new(); self.dirs.len()];
        for (number, dir) in self.dirs.iter().enumerate().skip(1) {
            children[dir.parent as usize].push(number as u32);
        }
        let (mut order, mut stack) = (Vec::with_capacity(self.dirs.len()), vec![0]);
        while let Some(dir) = stack.pop() {
            order.push(dir);
            stack.extend(children[dir as usize].iter().rev());
        }
        order
    }

    /// Numbers of a directory's files.
    pub fn files_of(&self, dir: u32) -> std::ops::Range<usize> {
        let first = self.files.partition_point(|file| file.dir < dir);
        first..first + self.files[first..].partition_point(|file| file.dir == dir)
    }
}

/// Of the inverse polynomial.
const OFFSET: f64 = 2.36;

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { mu: 7.48, sigma: 2.46, most: 1 << 40 };

    #[test]
    fn counts_are_those_of_the_papers() {
        let ports = Shape::ports(6_596, 13_868, 1);
        assert_eq!((ports.dir_count(), ports.files().len()), (6_596, 13_868));
        let below = ports.files().iter().filter(|file| file.size < 2048).count();
        assert!(below * 10 > ports.files().len() * 8, "{below} files are below 2 KiB");
        let impressions = Shape::impressions(25_309, 255_545, SIZES, 1);
        assert_eq!((impressions.dir_count(), impressions.files().len()), (25_309, 255_545));
        let mean = impressions.files().iter().map(|file| file.size).sum::<u64>() / 255_545;
        // 36.5 KB by the formula; a tenth of the tree has it within a factor.
        assert!((20_000..60_000).contains(&mean), "{mean}");
        let empty = (0..25_309).filter(|&dir| impressions.files_of(dir).is_empty()).count();
        assert!((5_000..10_000).contains(&empty), "{empty} directories hold no file");
    }

    #[test]
    fn a_shape_is_a_tree_and_the_same_again() {
        for shape in
            [Shape::source(100, 1000, SIZES, ".c", 5), Shape::ports(70, 140, 5), Shape::impressions(90, 900, SIZES, 5)]
        {
            let order = shape.depth_first();
            assert_eq!(order.len() as u64, shape.dir_count());
            let mut seen = std::collections::HashSet::new();
            for dir in order {
                assert!(dir == 0 || seen.contains(&shape.dirs[dir as usize].parent));
                assert!(seen.insert(dir));
            }
            assert_eq!(
                (0..shape.dir_count() as u32).map(|dir| shape.files_of(dir).len()).sum::<usize>(),
                shape.files().len()
            );
        }
        assert_eq!(Shape::ports(70, 140, 5), Shape::ports(70, 140, 5));
        assert_ne!(Shape::ports(70, 140, 5), Shape::ports(70, 140, 6));
    }
}
