//! What decoding needs and costs.

pub(crate) mod costs;
pub(crate) mod windows;
pub(crate) mod workspace;
