//! Filling frames with metadata: from the device, with what the log still holds laid over it.

use super::{Cache, flag};
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use myriad_device::AlignedBuf;
use myriad_format::{BlockKind, FsBlock, header};
use std::sync::atomic::Ordering;

impl Cache {
    /// Fills a frame. `ahead` becomes what was read from `block` on, if that was more than the block.
    pub(super) fn load(
        &self,
        block: FsBlock,
        kind: BlockKind,
        bytes: &mut [u8],
        index: u32,
        ahead: &mut Option<AlignedBuf>,
    ) -> Result<()> {
        let offset = block.0 << self.block_bits;
        *ahead = self.read_along(block, kind);
        match ahead {
            Some(run) => bytes.copy_from_slice(&run[..bytes.len()]),
            None => self.device.read(offset, bytes).map_err(|source| Error::Io { op: "read", offset, source })?,
        }
        if self.has_overlay.load(Ordering::Acquire) {
            let mut overlay = self.overlay.write();
            if let Some(applied) = overlay.apply(block, bytes) {
                // A reader never brings it home: there the overlay stays, and the frame may be evicted and filled again.
                if !self.read_only {
                    overlay.remove(block);
                    let header = self.arena.header(index);
                    header.unhomed.store(applied.mask, Ordering::Relaxed);
                    header.first_lsn.store(applied.lsn.0, Ordering::Relaxed);
                    header.flags.fetch_or(flag::AWAY, Ordering::Relaxed);
                    self.recovered.lock().push(index);
                }
                drop(overlay);
                // The home copy may be torn and its checksum with it; replay has set right what was torn. Seal what
                // now stands, so that the same verification holds.
                header::seal(bytes, applied.lsn.0);
            }
        }
        if planted(Bug::TornSuperblock) && kind == BlockKind::Superblock {
            header::seal(bytes, 0);
        }
        header::verify(bytes, kind, &self.volume, block)?;
        Ok(())
    }

    /// Brings a block that the log has changes for into the cache, whatever its kind. Inside the gate.
    pub fn fetch_recovered(&self, block: FsBlock) -> Result<()> {
        // The log holds a block's first granule whenever the block was made or changed kind; if it does not, the home
        // copy tells.
        let mut bytes = AlignedBuf::zeroed(self.block_size());
        let offset = block.0 << self.block_bits;
        self.device.read(offset, &mut bytes).map_err(|source| Error::Io { op: "read", offset, source })?;
        if self.overlay.write().apply(block, &mut bytes).is_none() {
            return Ok(());
        }
        let magic = myriad_format::BlockHeader::read(&bytes).magic.get();
        let kind = BlockKind::from_magic(magic).ok_or(myriad_format::Corrupt::BlockKind {
            block,
            expected: "a metadata block",
            found: magic,
        })?;
        self.get(block, kind).map(|_| ())
    }

    /// Frames filled from the log since the last call.
    pub fn take_recovered(&self) -> Vec<u32> {
        std::mem::take(&mut self.recovered.lock())
    }

    pub fn has_overlay(&self) -> bool {
        self.has_overlay.load(Ordering::Relaxed)
    }

    pub fn overlay_done(&self) {
        if self.overlay.read().is_empty() {
            self.has_overlay.store(false, Ordering::Release);
        }
    }
}
