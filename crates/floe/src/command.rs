//! The commands, one in each file.

pub(crate) mod cat;
pub(crate) mod extract;
pub(crate) mod ls;
pub(crate) mod stat;
