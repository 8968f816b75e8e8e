//! What may reach the device before what.
//!
//! An operation changes metadata inside one transaction ([`Txn`]). A transaction runs inside the gate, and a checkpoint closes the gate,
//! so a checkpoint has all of a transaction or nothing of it.
//!
//! The changes between two checkpoints are an *epoch* (`epoch`). The open epoch lists the frames that were changed, and in each frame's
//! header a mask of the *granules* (1/64 of a block) that were changed in it. It also lists the blocks that were freed (*limbo*), the
//! metadata blocks whose older log records no longer count (*revokes*), and the file data that has to be written first.
//!
//! `checkpoint` closes the epoch and makes it durable, in the way of the order in force: `log`, `soft` or `none`. `moment` holds a committed
//! state for a reader. `orphan_list` writes the list of orphans, for the orders `log` and `none`. `facts` say what a change means; soft
//! updates need that. Operations, trees and directories do not know which order is in force.

mod checkpoint;
pub(crate) mod checkpointer;
mod epoch;
mod facts;
mod group_commit;
mod images;
mod log;
pub(crate) mod moment;
mod none;
mod orphan_list;
pub(crate) mod soft;
mod txn;

pub(crate) use epoch::OpenEpoch;
pub(crate) use group_commit::commit_through;
pub(crate) use log::cost::Cost;
pub(crate) use orphan_list::OrphanList;
pub(crate) use txn::{Look, Txn};

use crate::error::{Error, Result};
use myriad_format::choices::{Choices, Order};

/// Refuses an order that cannot survive a crash with these choices.
pub(crate) fn check(order: Order, choices: &Choices, has_checksums: bool) -> Result<()> {
    let refuse = |reason: String| Err(Error::bad_option(Order::SEAM.name, reason));
    if let Err(why) = choices.check_order(order) {
        return refuse(why.to_string());
    }
    if order.goes_by_rounds() && has_checksums {
        let name = order.name();
        return refuse(format!(
            "order={name} is never safe with data checksums: a block and its checksum change together"
        ));
    }
    Ok(())
}
