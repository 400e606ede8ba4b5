//! Runs of data.

/// A run of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// The offset in the content.
    pub(crate) offset: u64,
    /// Its length.
    pub(crate) len: u64,
    /// The offset in the open file.
    pub(crate) position: u64,
}
