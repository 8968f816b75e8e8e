//! Marks of other file systems, arrays and tables on a device: found, erased, brought back.

use super::device::read_at;
use myriad_device::BlockDevice;
use std::collections::BTreeSet;
use std::io;

/// Bytes at the start of a device that hold the signatures below, and the first label of a ZFS device.
const HEAD_SIZE: usize = 256 << 10;
/// Begins the superblock of an md array's member.
const MD: &[u8] = b"\xfc\x4e\x2b\xa9";
const MD_MEMBER: &str = "a member of a RAID array (md)";
const ZFS: &str = "a device of a ZFS pool";
/// Begins each further header of LUKS, by the sizes that the first one may have.
const LUKS: &[u8] = b"SKUL\xba\xbe";
const LUKS_VOLUME: &str = "an encrypted volume (LUKS)";

/// What is known of a mark: offset, bytes, what they are the mark of.
type Signature = (usize, &'static [u8], &'static str);

/// Those at the start of a device.
const SIGNATURES: &[Signature] = &[
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (0x10034, b"ReIsEr", "a ReiserFS file system"),
    (0x400, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (1024, b"\xe2\xe1\xf5\xe0", "an EROFS file system"),
    (0, b"hsqs", "a SquashFS file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (54, b"FAT1", "a FAT file system"),
    (82, b"FAT32", "a FAT file system"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
    (0, b"LUKS\xba\xbe", LUKS_VOLUME),
    (0x4000, LUKS, LUKS_VOLUME),
    (0x8000, LUKS, LUKS_VOLUME),
    (0x10000, LUKS, LUKS_VOLUME),
    (0x20000, LUKS, LUKS_VOLUME),
    (0x218, b"LVM2 001", "an LVM physical volume"),
    (0, MD, MD_MEMBER),
    (4096, MD, MD_MEMBER),
    (0x1018, b"\xc6\x85\x73\xf6", "a bcachefs or bcache device"),
    (0x8000, b"JFS1", "a JFS file system"),
    (0x8001, b"BEA01", "a UDF file system"),
    (0x2000, b"OCFSV2", "an OCFS2 file system"),
    (0x10000, b"\x01\x16\x19\x70", "a GFS2 file system"),
    (0x255c, b"\x54\x19\x01\x00", "a UFS file system"),
    (0x1055c, b"\x19\x01\x54\x19", "a UFS file system"),
    (0x406, b"\x34\x34", "a NILFS2 file system"),
    (1024, b"H+\0", "an HFS+ file system"),
    (32, b"NXSB", "an APFS container"),
    (0, b"\0\0\0ReFS\0", "a ReFS file system"),
    (3, b"-FVE-FS-", "an encrypted volume (BitLocker)"),
    // At the end of the first page, whose size is the host's.
    (0x0ff6, b"SWAPSPACE2", "swap space"),
    (0x1ff6, b"SWAPSPACE2", "swap space"),
    (0x3ff6, b"SWAPSPACE2", "swap space"),
    (0x7ff6, b"SWAPSPACE2", "swap space"),
    (0xfff6, b"SWAPSPACE2", "swap space"),
    (0x0ff6, b"SWAP-SPACE", "swap space"),
    (0x1ff6, b"SWAP-SPACE", "swap space"),
    (0x3ff6, b"SWAP-SPACE", "swap space"),
    (0x7ff6, b"SWAP-SPACE", "swap space"),
    (0xfff6, b"SWAP-SPACE", "swap space"),
    (0, b"bluestore block device", "a device of a Ceph cluster (BlueStore)"),
    (32, b"ORCLDISK", "a disk of Oracle ASM"),
    (0, b"integrt\0", "a device with checksums of its own (dm-integrity)"),
    (0, b"verity\0\0", "a device of checksums (dm-verity)"),
    (0, b"dmvdo001", "a device that stores blocks compressed (VDO)"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (257, b"ustar", "a tar archive"),
    // Last: file systems carry this mark too.
    (510, b"\x55\xaa", "a partition table or boot sector"),
];

/// A mark that was found.
struct Mark {
    offset: u64,
    length: usize,
    what: &'static str,
}

/// What of others a device bears the mark of.
pub fn mark(device: &dyn BlockDevice) -> Option<&'static str> {
    known(device.size(), |offset, length| read_at(device, offset, length)).ok().flatten()
}

/// The same, of `size` bytes that `read` gives, by offset and length.
pub fn known(size: u64, read: impl Fn(u64, usize) -> io::Result<Vec<u8>>) -> io::Result<Option<&'static str>> {
    let at_start = at_start(&read(0, head_size(size))?);
    let first = |marks: Vec<Mark>| marks.into_iter().next().map(|mark| mark.what);
    if at_start.is_empty() { beyond(size, read).map(first) } else { Ok(first(at_start)) }
}

fn head_size(size: u64) -> usize {
    HEAD_SIZE.min(usize::try_from(size).unwrap_or(HEAD_SIZE))
}

/// The marks that the start of a device bears.
fn at_start(head: &[u8]) -> Vec<Mark> {
    let is_there = |(offset, bytes, _): &&Signature| head.get(*offset..).is_some_and(|rest| rest.starts_with(bytes));
    let found = SIGNATURES.iter().filter(is_there);
    let found = found.map(|&(offset, bytes, what)| Mark { offset: offset as u64, length: bytes.len(), what });
    found.chain(zfs_marks(0, head)).collect()
}

/// The marks that lie beyond it, up to the end.
fn beyond(size: u64, read: impl Fn(u64, usize) -> io::Result<Vec<u8>>) -> io::Result<Vec<Mark>> {
    let read = |offset, length| match read(offset, length) {
        // What is not a whole sector, at the end of a file, cannot be read by itself.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Vec::new()),
        read => read,
    };
    let mut marks = Vec::new();
    for (offset, bytes, what) in elsewhere(size) {
        if read(offset, bytes.len())? == bytes {
            marks.push(Mark { offset, length: bytes.len(), what });
        }
    }
    for label in zfs_at_end(size) {
        marks.extend(zfs_marks(label, &read(label, HEAD_SIZE)?));
    }
    Ok(marks)
}

/// Of a ZFS label, which begins at this offset.
fn zfs_marks(label: u64, bytes: &[u8]) -> impl Iterator<Item = Mark> {
    uberblocks(bytes).map(move |offset| Mark { offset: label + offset as u64, length: size_of::<u64>(), what: ZFS })
}

/// Marks that lie beyond the start of a device of `size` bytes, or at its end.
fn elsewhere(size: u64) -> impl Iterator<Item = (u64, &'static [u8], &'static str)> {
    const RAID: &[u8] = b"Intel Raid ISM Cfg Sig. ";
    const VMFS: &[u8] = b"\x0d\xd0\x01\xc0";
    let arrays = md_at_end(size).map(|offset| (offset, MD, MD_MEMBER));
    // In the last sector but one.
    let sectors = [512, 4096].map(|sector| (size / sector).checked_sub(2).map(|number| number * sector));
    let firmware = sectors.into_iter().flatten().map(|offset| (offset, RAID, "a member of a RAID array (Intel)"));
    let vmfs = [(1 << 20, VMFS, "a VMFS file system")];
    let luks = (18..=22).map(|shift| (1 << shift, LUKS, LUKS_VOLUME));
    let all = arrays.chain(firmware).chain(vmfs).chain(luks);
    all.filter(move |(offset, bytes, _)| offset + bytes.len() as u64 <= size)
}

/// Where the last two labels of a ZFS device begin.
fn zfs_at_end(size: u64) -> impl Iterator<Item = u64> {
    const LABEL: u64 = HEAD_SIZE as u64;
    let end = size / LABEL * LABEL;
    // The first two are at the start, of which the head is one.
    [2, 1].into_iter().filter_map(move |labels| end.checked_sub(labels * LABEL).filter(|&label| label >= LABEL))
}

/// The second half of a ZFS label is its ring of uberblocks, of which any may be in use; their size is the pool's, in whole
/// KiB, their byte order the writer's.
fn uberblocks(head: &[u8]) -> impl Iterator<Item = usize> {
    const RING: usize = 128 << 10;
    const SLOT: usize = 1024;
    const MAGIC: u64 = 0x00ba_b10c;
    let slots = head.get(RING..).unwrap_or_default().chunks_exact(SLOT).enumerate();
    let used =
        slots.filter(|(_, slot)| slot.starts_with(&MAGIC.to_le_bytes()) || slot.starts_with(&MAGIC.to_be_bytes()));
    used.map(|(number, _)| RING + number * SLOT)
}

/// Sectors of a device: where each begins, and what it holds.
pub type Sectors = Vec<(u64, Vec<u8>)>;

/// Zeroes the sectors with marks of others, and gives what was in them. One that a new volume did not happen to write over would
/// make it two things in the eyes of those who look for marks, `fsck` of a damaged volume among them.
pub fn erase_marks(device: &dyn BlockDevice) -> io::Result<Sectors> {
    let read = |offset, length| read_at(device, offset, length);
    let mut marks = at_start(&read(0, head_size(device.size()))?);
    marks.extend(beyond(device.size(), read)?);
    let sector = device.alignment().max(512);
    let numbers = marks.into_iter().flat_map(|Mark { offset, length, .. }| {
        let [first, last] = [offset, offset + length as u64 - 1].map(|byte| byte / sector as u64);
        first..=last
    });
    // What is not a whole sector, at the end of a file, cannot be written by itself.
    let starts: BTreeSet<u64> = numbers.map(|number| number * sector as u64).collect();
    let starts = starts.into_iter().filter(|start| start + sector as u64 <= device.size());
    let mut erased = Sectors::new();
    for start in starts {
        erased.push((start, read_at(device, start, sector)?));
        device.write(start, &vec![0; sector])?;
    }
    device.flush()?;
    Ok(erased)
}

/// Brings back what was erased.
pub fn restore(device: &dyn BlockDevice, sectors: &Sectors) -> io::Result<()> {
    for (start, bytes) in sectors {
        device.write(*start, bytes)?;
    }
    device.flush()
}

/// Where arrays have their superblocks that have them at the end of their members: formats 0.90 and 1.0.
fn md_at_end(size: u64) -> impl Iterator<Item = u64> {
    let last = (size & !0xffff).checked_sub(64 << 10);
    let before_last = size.checked_sub(8 << 10).map(|offset| offset & !0xfff);
    last.into_iter().chain(before_last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What these bytes bear the mark of.
    fn other(bytes: &[u8]) -> Option<&'static str> {
        known(bytes.len() as u64, |offset, length| Ok(bytes[offset as usize..][..length].to_vec())).unwrap()
    }

    #[test]
    fn signatures_are_found_where_they_lie() {
        assert_eq!(other(&[0; 4096]), None);
        for (offset, bytes, what) in SIGNATURES {
            let mut head = vec![0; HEAD_SIZE];
            head[*offset..*offset + bytes.len()].copy_from_slice(bytes);
            assert_eq!(other(&head), Some(*what));
            assert_eq!(other(&head[..*offset]), None, "a short file is no reason to fail");
        }
    }

    /// Whoever writes to a device was asked only if its start had a mark.
    #[test]
    fn a_device_is_known_by_its_end() {
        const SIZE: u64 = 4 << 20;
        let device = myriad_device::MemoryDevice::with_alignment(SIZE, 4096);
        assert_eq!(mark(&device), None);
        let mut last = vec![0; 4096];
        last[3072..][..24].copy_from_slice(b"Intel Raid ISM Cfg Sig. ");
        device.write(SIZE - 4096, &last).unwrap();
        let found = mark(&device);
        assert_eq!(found, Some("a member of a RAID array (Intel)"));
        let erased = erase_marks(&device).unwrap();
        assert_eq!(mark(&device), None);
        restore(&device, &erased).unwrap();
        assert_eq!(mark(&device), found);
    }

    #[test]
    fn signatures_are_found_at_the_end() {
        const SIZE: usize = (5 << 20) + 512;
        assert_eq!(md_at_end(4096).count(), 0);
        assert_eq!(md_at_end((1 << 20) + 512).collect::<Vec<_>>(), [(1 << 20) - (64 << 10), (1 << 20) - (8 << 10)]);
        assert_eq!(zfs_at_end(256 << 10).count(), 0);
        assert_eq!(zfs_at_end((1 << 20) + 512).collect::<Vec<_>>(), [512 << 10, 768 << 10]);
        for (offset, bytes, what) in elsewhere(SIZE as u64) {
            let mut device = vec![0; SIZE];
            device[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            assert_eq!(other(&device), Some(what));
        }
        for size in [0, 1, 511, 512, 1024, 8 << 10, 64 << 10, 256 << 10] {
            assert_eq!(other(&vec![0; size]), None, "{size} bytes are no reason to fail");
        }
        for label in zfs_at_end(SIZE as u64).chain([0]) {
            let mut device = vec![0; SIZE];
            device[label as usize + 0x20000 + 37 * 1024..][..8].copy_from_slice(&0x00ba_b10c_u64.to_be_bytes());
            assert_eq!(other(&device), Some(ZFS));
        }
    }
}
