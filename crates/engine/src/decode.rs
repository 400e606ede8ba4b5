//! Decoders, their memory budget and their measured costs.

pub(crate) mod costs;
pub(crate) mod decoders;
pub(crate) mod windows;
