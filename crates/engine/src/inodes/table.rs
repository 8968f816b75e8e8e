//! Inodes in a table of fixed size (`inodes=static`, as FFS has them: McKusick and others 1984), and a bitmap that says which are free.
//!
//! A block of the table is initialised when the first inode in it is taken, after all blocks before it. The group's header counts the
//! initialised blocks. A block behind them was never written, and is never read.
//!
//! Inodes are taken as FFS takes them. A search begins at the block of the inode that the new one is to lie near, and takes the first free inode from
//! there on. If there is none, it begins where the last such search ended (the *rotor*, which is in memory only), and goes around once.

use crate::edit::{BlockRead, BlockStore, NewBlock};
use crate::error::Result;
use crate::space::bitmap::Bits;
use crate::space::pool::Pool;
use myriad_format::group::GroupHeader;
use myriad_format::inode::RawInode;
use myriad_format::{AgBlock, BlockKind, Corrupt, Ino, header};

/// The inode table of a group.
pub(crate) struct Table {
    /// Which inodes are free.
    bits: Bits,
    inodes: u32,
    /// Blocks initialised.
    initialised: u32,
    rotor: u32,
}

impl Table {
    /// Makes the bitmap of a group's table: all its inodes are free, and none of its blocks is initialised.
    pub fn create<S: BlockStore>(pool: &Pool, store: &mut S) -> Result<Self> {
        let mut table = Self::of(pool, 0);
        table.bits.init(pool, store)?;
        let is_done = table.bits.put(pool, store, 0, table.inodes, true)?;
        assert!(is_done, "the bits were clear");
        Ok(table)
    }

    /// The table of which a group's header tells.
    pub fn load(pool: &Pool, head: &GroupHeader) -> std::result::Result<Self, Corrupt> {
        let initialised = head.inode_blocks.get();
        if initialised > pool.geometry.table_blocks(pool.ag) {
            return Err(Corrupt::Group { ag: pool.ag, field: "inode_blocks", value: u64::from(initialised) });
        }
        Ok(Self::of(pool, initialised))
    }

    fn of(pool: &Pool, initialised: u32) -> Self {
        let inodes = pool.geometry.table_inodes(pool.ag);
        let start = pool.geometry.inode_bitmap_start(pool.ag);
        Self { bits: Bits::new(BlockKind::InodeBitmap, start, inodes), inodes, initialised, rotor: 0 }
    }

    pub fn save(&self, head: &mut GroupHeader) {
        head.inode_blocks.set(self.initialised);
    }

    /// Takes an inode near a block of the group; `None` if all are taken.
    pub fn allocate<S: BlockStore>(
        &mut self,
        pool: &Pool,
        store: &mut S,
        near: AgBlock,
    ) -> Result<Option<(AgBlock, u32)>> {
        let (geometry, ag) = (&pool.geometry, pool.ag);
        let wanted = geometry.table_index(geometry.fs_block(ag, near), 1).unwrap_or(self.rotor);
        let mut found = None;
        for (from, to) in [(wanted, self.inodes), (0, wanted)] {
            found = self.bits.run_from(pool, store, from, 1)?.map(|(index, _)| index).filter(|&index| index < to);
            if found.is_some() {
                break;
            }
        }
        let Some(index) = found else { return Ok(None) };
        let (block, slot) = geometry.table_place(ag, index);
        let first = geometry.table_start(ag);
        while first + self.initialised <= block.0 {
            let new = geometry.fs_block(ag, AgBlock(first + self.initialised));
            store.init(NewBlock::free(new), BlockKind::InodeTable, u64::from(ag.0), |_| ())?;
            self.initialised += 1;
        }
        // Read before the inode counts as taken: whoever has taken it changes its block next.
        let at = geometry.fs_block(ag, block);
        let mode = store.read(at, BlockKind::InodeTable, |bytes| {
            header::verify_owner(bytes, at, u64::from(ag.0))?;
            Ok::<_, Corrupt>(RawInode::read(&bytes[geometry.inode_offset(slot)..]).mode.get())
        })??;
        if mode != 0 {
            // Its bit is wrong: a new inode would be written over it.
            return Err(Corrupt::Inode { ino: geometry.ino(at, slot), field: "mode", value: mode.into() }.into());
        }
        if !self.bits.put(pool, store, index, 1, false)? {
            return Err(pool.corrupt("bitmap of inodes", index));
        }
        self.rotor = index;
        Ok(Some((block, slot)))
    }

    /// Reads the bits from which an inode is taken or to which it is given back: once they have been read, they may have left the cache since.
    pub fn read_ahead<S: BlockRead>(&self, pool: &Pool, store: &mut S, block: AgBlock, slot: u32) -> Result<()> {
        match pool.geometry.table_index(pool.geometry.fs_block(pool.ag, block), slot) {
            Some(index) => self.bits.is_set(pool, store, index).map(drop),
            None => Ok(()),
        }
    }

    /// Gives an inode back.
    pub fn free<S: BlockStore>(
        &mut self,
        pool: &Pool,
        store: &mut S,
        block: AgBlock,
        slot: u32,
        body: Option<(u32, u32)>,
    ) -> Result<()> {
        if let Some((first, _)) = body {
            self.no_body(pool, block, first)?;
        }
        let at = pool.geometry.fs_block(pool.ag, block);
        let Some(index) = pool.geometry.table_index(at, slot) else {
            return Err(bad_inode(pool, block, "slot", u64::from(slot)).into());
        };
        if !self.bits.put(pool, store, index, 1, true)? {
            return Err(bad_inode(pool, block, "slot freed twice", u64::from(slot)).into());
        }
        Ok(())
    }

    /// How many inodes are taken.
    pub fn recount<S: BlockRead>(&mut self, pool: &Pool, store: &mut S) -> Result<u32> {
        let (mut free, mut from) = (0, 0);
        while let Some((start, length)) = self.bits.run_from(pool, store, from, u32::MAX)? {
            free += length;
            from = start + length;
        }
        Ok(self.inodes - free)
    }

    /// What a body of an inode of a table is: damage.
    pub fn no_body(&self, pool: &Pool, block: AgBlock, first: u32) -> Result<()> {
        Err(bad_inode(pool, block, "body_first", u64::from(first)).into())
    }

    /// As `AgSpace::holds_inode`.
    pub fn holds<S: BlockRead>(&self, pool: &Pool, store: &mut S, block: AgBlock, slot: u32) -> Result<bool> {
        match pool.geometry.table_index(pool.geometry.fs_block(pool.ag, block), slot) {
            Some(index) if block.0 < pool.geometry.table_start(pool.ag) + self.initialised => {
                Ok(!self.bits.is_set(pool, store, index)?)
            }
            _ => Ok(false),
        }
    }
}

#[cold]
fn bad_inode(pool: &Pool, block: AgBlock, field: &'static str, value: u64) -> Corrupt {
    let block = pool.geometry.fs_block(pool.ag, block);
    Corrupt::Inode { ino: Ino(block.0 * u64::from(pool.geometry.slots_per_block())), field, value }
}
