//! Fetches stored bytes from the sources.

pub(crate) mod sources;
