//! What an index says of one lcluster (docs/format/erofs.md, Lclusters).

/// What an index says of one lcluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lcluster {
    /// An extent begins in it.
    Head(Head),
    /// It belongs whole to the extent that begins in an earlier one.
    NonHead {
        /// How many lclusters back its head is, as far as this one knows.
        to_head: u64,
        /// How many lclusters ahead the next head is, as far as this one knows.
        to_next_head: u64,
        /// The number of blocks of the pcluster; only the first lcluster behind a head says it.
        block_count: Option<u64>,
    },
}

/// The beginning of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) kind: HeadKind,
    /// Where in the lcluster the extent begins, in bytes.
    pub(super) offset: u64,
    /// The first block of the pcluster.
    pub(super) block: u64,
    /// The extent has no pcluster: it is a hole.
    pub(super) is_hole: bool,
    /// The pcluster decodes to more than the extent.
    pub(super) is_partial: bool,
}

/// How the pcluster of an extent is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HeadKind {
    /// Not at all.
    Plain,
    /// With the inode's first algorithm.
    First,
    /// With the inode's second algorithm.
    Second,
}

/// An lcluster and where the index goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Loaded {
    pub(super) lcluster: Lcluster,
    /// The first byte behind the record, or behind the pack of records, that the lcluster was in.
    pub(super) record_end: u64,
}
