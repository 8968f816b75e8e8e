//! A phase's operations, made before the clock starts: paths lie in memory in the order of their use, so that reading the
//! plan costs every target the same few nanoseconds.

/// One kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// What follows lies mostly in this directory (a C program would hold it open). Not counted as an operation.
    Enter,
    Create,
    Mkdir,
    Unlink,
    Rmdir,
    Rename,
    Stat,
    /// A name that is not there.
    StatMissing,
    /// A directory's entries: `size` of them, each counted.
    List,
    /// The same with each entry's attributes.
    ListStat,
    /// Lists a directory of `size` files, then asks for each by its name, in the order of the listing. Each file is counted.
    StatListed,
    /// The same, removing them.
    UnlinkListed,
    /// Every file below a directory, itself included, with attributes: `size` of them, each counted.
    Walk,
    /// The same without attributes.
    Find,
    /// Removes the directory and all below it: `size` files, each counted.
    RemoveTree,
    /// A new file of `size` bytes.
    WriteFile,
    /// The whole of a file of `size` bytes.
    ReadFile,
    /// Makes the file that `WriteAt` and `ReadAt` work on. Not counted.
    OpenNew,
    /// Opens it. Not counted.
    OpenOld,
    WriteAt,
    ReadAt,
    /// Another name, `target`, of a file.
    Link,
    /// Sets the times of last access and change to now.
    Utime,
    /// `size` bytes more at the end of a file.
    Append,
    /// A new file of `size` bytes that are all a hole: its metadata as if it had been written, and no data.
    CreateSized,
}

impl Verb {
    /// Those that count as operations, by the names that people write.
    pub const OPERATIONS: [(&'static str, Self); 22] = [
        ("create", Self::Create),
        ("mkdir", Self::Mkdir),
        ("unlink", Self::Unlink),
        ("rmdir", Self::Rmdir),
        ("rename", Self::Rename),
        ("stat", Self::Stat),
        ("stat_missing", Self::StatMissing),
        ("list", Self::List),
        ("list_stat", Self::ListStat),
        ("stat_listed", Self::StatListed),
        ("unlink_listed", Self::UnlinkListed),
        ("walk", Self::Walk),
        ("find", Self::Find),
        ("remove_tree", Self::RemoveTree),
        ("write_file", Self::WriteFile),
        ("read_file", Self::ReadFile),
        ("write_at", Self::WriteAt),
        ("read_at", Self::ReadAt),
        ("link", Self::Link),
        ("utime", Self::Utime),
        ("append", Self::Append),
        ("create_sized", Self::CreateSized),
    ];

    /// `None` for what is not counted.
    pub fn name(self) -> Option<&'static str> {
        Self::OPERATIONS.iter().find(|(_, verb)| *verb == self).map(|(name, _)| *name)
    }

    /// Operations that one line of the plan stands for.
    fn count(self, size: u64) -> u64 {
        match self {
            Self::Enter | Self::OpenNew | Self::OpenOld => 0,
            Self::List | Self::ListStat | Self::StatListed | Self::UnlinkListed => size,
            Self::Walk | Self::Find | Self::RemoveTree => size,
            _ => 1,
        }
    }

    /// Bytes of file content moved.
    fn bytes(self, size: u64) -> u64 {
        match self {
            Self::WriteFile | Self::ReadFile | Self::WriteAt | Self::ReadAt | Self::Append => size,
            _ => 0,
        }
    }

    /// Whether a sync after this operation has something to do.
    pub fn changes(self) -> bool {
        match self {
            Self::Create | Self::Mkdir | Self::Unlink | Self::Rmdir => true,
            Self::Rename | Self::RemoveTree | Self::UnlinkListed => true,
            Self::WriteFile | Self::OpenNew | Self::WriteAt => true,
            Self::Link | Self::Utime | Self::Append | Self::CreateSized => true,
            Self::Enter | Self::Stat | Self::StatMissing | Self::Walk | Self::Find => false,
            Self::List | Self::ListStat | Self::StatListed => false,
            Self::ReadFile | Self::OpenOld | Self::ReadAt => false,
        }
    }
}

/// A path relative to the target's root, with the NUL that system calls want behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathZ<'a>(&'a [u8]);

impl<'a> PathZ<'a> {
    /// `with_nul` ends in its only NUL.
    pub fn new(with_nul: &'a [u8]) -> Self {
        assert_eq!(with_nul.last(), Some(&0), "a path ends in NUL");
        Self(with_nul)
    }

    pub fn bytes(self) -> &'a [u8] {
        &self.0[..self.0.len() - 1]
    }

    pub fn c_str(self) -> &'a std::ffi::CStr {
        std::ffi::CStr::from_bytes_with_nul(self.0).expect("one NUL, at the end")
    }

    /// The rest behind `directory` and a slash, if the path lies in it.
    pub fn below(self, directory: &[u8]) -> Option<Self> {
        let rest = self.0.strip_prefix(directory)?.strip_prefix(b"/")?;
        Some(Self(rest))
    }

    /// For messages.
    pub fn display(self) -> std::borrow::Cow<'a, str> {
        String::from_utf8_lossy(self.bytes())
    }
}

impl myriad_engine::AsPath for PathZ<'_> {
    #[inline]
    fn as_path_bytes(&self) -> &[u8] {
        self.bytes()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    verb: Verb,
    path_len: u16,
    target_len: u16,
    size: u64,
    offset: u64,
}

/// One operation as the runner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op<'a> {
    pub verb: Verb,
    pub path: PathZ<'a>,
    /// New path of a rename or link; else empty.
    pub target: PathZ<'a>,
    pub size: u64,
    /// Place in the file of `WriteAt` and `ReadAt`; for whole files, where their content begins in [`Contents`].
    pub offset: u64,
}

/// A thread's share of a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    lines: Vec<Line>,
    paths: Vec<u8>,
    ops: u64,
    bytes: u64,
}

impl Plan {
    /// Operations counted.
    pub fn ops(&self) -> u64 {
        self.ops
    }

    /// Bytes of file content moved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Largest request, for the buffer.
    pub fn request_bytes_max(&self) -> u64 {
        self.lines.iter().map(|line| line.verb.bytes(line.size)).max().unwrap_or(0)
    }

    pub fn iter(&self) -> impl Iterator<Item = Op<'_>> {
        let mut rest = self.paths.as_slice();
        self.lines.iter().map(move |line| {
            let (path, after) = rest.split_at(usize::from(line.path_len));
            let (target, after) = after.split_at(usize::from(line.target_len));
            rest = after;
            Op { verb: line.verb, path: PathZ(path), target: PathZ(target), size: line.size, offset: line.offset }
        })
    }

    /// Adds an operation; `path` appends its path.
    pub fn push(&mut self, verb: Verb, path: impl FnOnce(&mut Vec<u8>)) {
        self.push_full(verb, path, |_| {}, 0, 0);
    }

    pub fn push_sized(&mut self, verb: Verb, path: impl FnOnce(&mut Vec<u8>), size: u64, offset: u64) {
        self.push_full(verb, path, |_| {}, size, offset);
    }

    pub fn push_rename(&mut self, source: impl FnOnce(&mut Vec<u8>), target: impl FnOnce(&mut Vec<u8>)) {
        self.push_full(Verb::Rename, source, target, 0, 0);
    }

    pub fn push_link(&mut self, source: impl FnOnce(&mut Vec<u8>), target: impl FnOnce(&mut Vec<u8>)) {
        self.push_full(Verb::Link, source, target, 0, 0);
    }

    fn push_full(
        &mut self,
        verb: Verb,
        path: impl FnOnce(&mut Vec<u8>),
        target: impl FnOnce(&mut Vec<u8>),
        size: u64,
        offset: u64,
    ) {
        let start = self.paths.len();
        path(&mut self.paths);
        self.paths.push(0);
        let middle = self.paths.len();
        target(&mut self.paths);
        self.paths.push(0);
        let length = |bytes: usize| u16::try_from(bytes).expect("a generator's paths are short");
        self.lines.push(Line {
            verb,
            path_len: length(middle - start),
            target_len: length(self.paths.len() - middle),
            size,
            offset,
        });
        self.ops += verb.count(size);
        self.bytes += verb.bytes(size);
    }
}

/// What files hold: random bytes, so that nothing on the way can compress them, the same for every target. Content is a
/// function of its place, so an overwrite writes what was there and any read can be checked.
pub struct Contents {
    bytes: Vec<u8>,
    start: usize,
}

/// Length after which contents repeat.
const CONTENTS_BYTES: usize = 4 << 20;
/// Alignment that direct I/O asks for at most.
const ALIGNMENT: usize = 4096;

impl Contents {
    /// For requests of at most `request_bytes_max`.
    pub fn new(seed: u64, request_bytes_max: u64) -> Self {
        let total = CONTENTS_BYTES + usize::try_from(request_bytes_max).expect("requests fit in memory");
        let mut bytes = vec![0; total + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        let mut random = super::random::Random::stream(seed, "contents", 0);
        for chunk in bytes[start..start + CONTENTS_BYTES].chunks_exact_mut(8) {
            chunk.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        for place in CONTENTS_BYTES..total {
            bytes[start + place] = bytes[start + place - CONTENTS_BYTES];
        }
        Self { bytes, start }
    }

    /// What `size` bytes at `offset` hold.
    pub fn at(&self, offset: u64, size: u64) -> &[u8] {
        let from = self.start + (offset % CONTENTS_BYTES as u64) as usize;
        &self.bytes[from..from + size as usize]
    }

    /// Whether `read` is what `offset` holds, by its ends: enough to find a wrong block without a second pass over it.
    pub fn matches(&self, offset: u64, read: &[u8]) -> bool {
        let expected = self.at(offset, read.len() as u64);
        let edge = read.len().min(8);
        read[..edge] == expected[..edge] && read[read.len() - edge..] == expected[read.len() - edge..]
    }
}

/// A buffer aligned for direct I/O.
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    pub fn new(len: u64) -> Self {
        let len = usize::try_from(len).expect("requests fit in memory");
        let bytes = vec![0; len + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, start, len }
    }

    pub fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_gives_back_what_was_pushed() {
        let mut plan = Plan::default();
        plan.push(Verb::Enter, |out| out.extend(b"d"));
        plan.push_rename(|out| out.extend(b"d/a"), |out| out.extend(b"d/b"));
        plan.push_sized(Verb::WriteFile, |out| out.extend(b"d/c"), 100, 7);
        plan.push_sized(Verb::List, |out| out.extend(b"d"), 2, 0);
        let ops: Vec<Op> = plan.iter().collect();
        assert_eq!(ops[1].path.bytes(), b"d/a");
        assert_eq!(ops[1].target.c_str(), c"d/b");
        assert_eq!((ops[2].verb, ops[2].size, ops[2].offset), (Verb::WriteFile, 100, 7));
        assert_eq!((plan.ops(), plan.bytes(), plan.request_bytes_max()), (1 + 1 + 2, 100, 100));
    }

    #[test]
    fn what_counts_has_a_name_of_its_own() {
        for (at, (name, verb)) in Verb::OPERATIONS.into_iter().enumerate() {
            assert!(verb.count(1) == 1 && verb.name() == Some(name), "{name}");
            assert!(Verb::OPERATIONS[..at].iter().all(|(other, _)| *other != name), "{name}");
        }
        assert_eq!([Verb::Enter, Verb::OpenNew, Verb::OpenOld].map(Verb::name), [None; 3]);
    }

    #[test]
    fn path_below() {
        let path = PathZ::new(b"d1/f2\0");
        assert_eq!(path.below(b"d1").map(PathZ::bytes), Some(&b"f2"[..]));
        assert_eq!(path.below(b"d"), None);
        assert_eq!(path.below(b"d1/f2"), None);
    }

    #[test]
    fn contents_repeat_and_tell_a_wrong_place() {
        let contents = Contents::new(1, 1 << 16);
        assert_eq!(contents.at(5, 100), contents.at(5 + (4 << 20), 100));
        let read = contents.at((4 << 20) - 10, 1 << 16).to_vec();
        assert!(contents.matches((4 << 20) - 10, &read));
        assert!(!contents.matches(0, &read));
        assert!(contents.matches(0, &[]));
        assert_eq!(contents.at(0, 1).as_ptr().align_offset(4096), 0);
        assert_eq!(Buffer::new(10).get().as_ptr().align_offset(4096), 0);
    }
}
