//! Decoders, their memory budget, and how long decoding takes.

pub(crate) mod costs;
pub(crate) mod decoders;
pub(crate) mod windows;
