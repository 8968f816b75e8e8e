//! What may reach the device before what.
//!
//! An operation changes metadata inside one transaction ([`Txn`]); a transaction lives inside the gate, so that a
//! checkpoint sees all of it or nothing. Changes gather in the *open epoch* (`epoch`): the frames changed, with a mask of granules
//! each; blocks freed (limbo), metadata blocks forgotten (revokes), and file data to be written first.
//!
//! `checkpoint` closes an epoch and makes it durable, as the order in force demands: `log`, `soft` or `none`. `moment` holds a committed
//! state for a reader. `orphan_list` is written by checkpoints of `log` and `none`. `facts` say what a change means, for orders that
//! must know. No operation, tree or directory knows the order in force.

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
