//! Names, sizes, times, owners and attributes: as people and as programs read them.

pub mod color;
pub mod date;
pub mod directive;
pub mod mode;
pub mod mode_change;
pub mod name;
pub mod option;
pub mod owner;
pub mod quoted;
pub mod size;
pub mod stat;
pub mod statfs;
pub mod table;
pub mod time;
