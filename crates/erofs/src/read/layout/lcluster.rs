//! A decoded index entry (docs/format/erofs.md, Lclusters).

/// The index entry of one lcluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lcluster {
    /// An extent begins in the lcluster.
    Head(Head),
    /// The lcluster belongs entirely to an extent that begins in an earlier one.
    NonHead {
        /// How many lclusters back the head is, as far as this entry states.
        to_head: u64,
        /// How many lclusters ahead the next head is, as far as this entry states.
        to_next_head: u64,
        /// The block count of the pcluster; only the first lcluster after a head states it.
        block_count: Option<u64>,
    },
}

/// The beginning of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) kind: HeadKind,
    /// The offset in the lcluster at which the extent begins, in bytes.
    pub(super) offset: u64,
    /// The first block of the pcluster.
    pub(super) block: u64,
    /// The extent is a hole and has no pcluster.
    pub(super) is_hole: bool,
    /// The pcluster decodes to more than the extent.
    pub(super) is_partial: bool,
}

/// The encoding of an extent's pcluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HeadKind {
    /// Uncompressed.
    Plain,
    /// Compressed with the inode's first algorithm.
    First,
    /// Compressed with the inode's second algorithm.
    Second,
}

/// A decoded index entry and its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Loaded {
    pub(super) lcluster: Lcluster,
    /// The position after the record, or after the pack that contains the entry.
    pub(super) record_end: u64,
}
