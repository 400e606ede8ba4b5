//! What decoding needs and costs.

pub(crate) mod costs;
pub(crate) mod decoders;
pub(crate) mod windows;
