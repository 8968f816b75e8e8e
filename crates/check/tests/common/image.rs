//! A volume that has been built, to look into and to damage.

use super::builder::VOLUME;
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_format::group::{GroupHeader, HEADER_BLOCK};
use myriad_format::inode::RawInode;
use myriad_format::superblock::Superblock;
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, Geometry, Ino, header};
use std::sync::Arc;

/// A volume in memory.
pub struct Image {
    pub device: Arc<MemoryDevice>,
    pub geometry: Geometry,
    pub root: Ino,
    pub log_blocks: u64,
}

impl Image {
    pub fn log_place(&self) -> myriad_log::LogPlace {
        let size = self.geometry.block_size() as u64;
        myriad_log::LogPlace {
            device: self.device.clone(),
            start: u64::from(self.geometry.first_data_block(AgNo(0))) * size,
            length: self.log_blocks * size,
            block_size: self.geometry.block_size(),
            volume: VOLUME,
            known_end: myriad_format::Lsn(0),
        }
    }

    pub fn read(&self, block: FsBlock) -> Vec<u8> {
        let mut buf = vec![0; self.geometry.block_size()];
        self.device.read(block.0 << self.geometry.block_bits, &mut buf).unwrap();
        buf
    }

    pub fn write(&self, block: FsBlock, bytes: &[u8]) {
        self.device.write(block.0 << self.geometry.block_bits, bytes).unwrap();
    }

    /// Changes a block and seals it again.
    pub fn change(&self, block: FsBlock, f: impl FnOnce(&mut [u8])) {
        let mut bytes = self.read(block);
        f(&mut bytes);
        header::seal_at(&mut bytes, &VOLUME, block, 0);
        self.write(block, &bytes);
    }

    /// Changes a block behind its checksum's back.
    pub fn smash(&self, block: FsBlock) {
        let mut bytes = self.read(block);
        let at = bytes.len() / 2 + 43;
        bytes[at] ^= 0x55;
        self.write(block, &bytes);
    }

    pub fn inode(&self, ino: Ino) -> RawInode {
        let (block, slot) = self.geometry.locate(ino).unwrap();
        *RawInode::read(&self.read(block)[self.geometry.inode_offset(slot)..])
    }

    pub fn change_inode(&self, ino: Ino, f: impl FnOnce(&mut RawInode)) {
        let (block, slot) = self.geometry.locate(ino).unwrap();
        self.change(block, |bytes| f(RawInode::read_mut(&mut bytes[self.geometry.inode_offset(slot)..])));
    }

    pub fn change_superblock(&self, f: impl FnOnce(&mut Superblock)) {
        self.change(FsBlock(0), |bytes| f(Superblock::read_mut(bytes)));
    }

    pub fn header_block(&self, ag: u32) -> FsBlock {
        self.geometry.fs_block(AgNo(ag), AgBlock(HEADER_BLOCK))
    }

    pub fn change_group(&self, ag: u32, f: impl FnOnce(&mut GroupHeader)) {
        self.change(self.header_block(ag), |bytes| f(GroupHeader::read_mut(bytes)));
    }

    /// Every block of a kind that belongs to `owner`.
    pub fn blocks_of(&self, kind: BlockKind, owner: u64) -> Vec<FsBlock> {
        let mut found = Vec::new();
        for block in (0..self.geometry.block_count).map(FsBlock) {
            let bytes = self.read(block);
            if header::verify(&bytes, kind, &VOLUME, block).is_ok()
                && header::verify_owner(&bytes, block, owner).is_ok()
            {
                found.push(block);
            }
        }
        found
    }

    /// Flips bits of one byte of the device.
    pub fn device_smash(&self, offset: u64) {
        let mut byte = [0];
        self.device.read(offset, &mut byte).unwrap();
        byte[0] ^= 0x55;
        self.device.write(offset, &byte).unwrap();
    }
}
