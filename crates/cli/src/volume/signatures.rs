//! Marks of other file systems, arrays and tables on a device: found, erased, brought back.

use super::device::read_at;
use myriad_device::BlockDevice;
use std::collections::BTreeSet;
use std::io;

/// Bytes at the start of a device that hold the signatures below, and the first label of a ZFS device.
pub const HEAD_SIZE: usize = 256 << 10;
/// Begins the superblock of an md array's member.
pub const MD: &[u8] = b"\xfc\x4e\x2b\xa9";

/// Offset, bytes, what they are the mark of.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
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
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (0x218, b"LVM2 001", "an LVM physical volume"),
    (0, MD, "a member of a RAID array (md)"),
    (4096, MD, "a member of a RAID array (md)"),
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
    (4086, b"SWAPSPACE2", "swap space"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (257, b"ustar", "a tar archive"),
    // Last: file systems carry this mark too.
    (510, b"\x55\xaa", "a partition table or boot sector"),
];

/// What of others the start of a device bears the mark of.
pub fn mark(device: &dyn BlockDevice) -> Option<&'static str> {
    let size = HEAD_SIZE.min(usize::try_from(device.size()).unwrap_or(HEAD_SIZE));
    other(&read_at(device, 0, size).ok()?)
}

/// The same, of the start of a file.
pub fn other(head: &[u8]) -> Option<&'static str> {
    let found = signatures(head).next().map(|(_, _, what)| *what);
    found.or_else(|| uberblocks(head).next().map(|_| "a device of a ZFS pool"))
}

fn signatures(head: &[u8]) -> impl Iterator<Item = &'static (usize, &'static [u8], &'static str)> {
    SIGNATURES.iter().filter(|(offset, bytes, _)| head.get(*offset..).is_some_and(|rest| rest.starts_with(bytes)))
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
    let size = HEAD_SIZE.min(usize::try_from(device.size()).unwrap_or(HEAD_SIZE));
    let head = read_at(device, 0, size)?;
    let in_head = signatures(&head).map(|(offset, bytes, _)| (*offset, bytes.len()));
    let in_ring = uberblocks(&head).map(|offset| (offset, size_of::<u64>()));
    let mut marks: Vec<(u64, usize)> = in_head.chain(in_ring).map(|(offset, length)| (offset as u64, length)).collect();
    for offset in md_at_end(device.size()) {
        if read_at(device, offset, MD.len())? == MD {
            marks.push((offset, MD.len()));
        }
    }
    let sector = device.alignment().max(512);
    let numbers = marks.into_iter().flat_map(|(offset, length)| {
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
pub fn md_at_end(size: u64) -> impl Iterator<Item = u64> {
    let last = (size & !0xffff).checked_sub(64 << 10);
    let before_last = size.checked_sub(8 << 10).map(|offset| offset & !0xfff);
    last.into_iter().chain(before_last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_found_where_they_lie() {
        assert_eq!(other(&[0; 4096]), None);
        for (offset, bytes, what) in SIGNATURES {
            let mut head = vec![0; HEAD_SIZE];
            head[*offset..*offset + bytes.len()].copy_from_slice(bytes);
            assert_eq!(other(&head), Some(*what));
            assert_eq!(other(&head[..*offset]), None, "a short file is no reason to fail");
        }
        let mut label = vec![0; HEAD_SIZE];
        label[0x20000 + 37 * 1024..][..8].copy_from_slice(&0x00ba_b10c_u64.to_be_bytes());
        assert_eq!(other(&label), Some("a device of a ZFS pool"));
    }
}
