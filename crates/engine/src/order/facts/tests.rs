//! Facts of units that are made by hand.
