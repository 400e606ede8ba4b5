//! Fetches stored bytes from the sources.

mod drop_behind;
pub(crate) mod sources;
