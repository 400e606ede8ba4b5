//! Why bytes are fetched ahead of readers.

/// Why a chunk is fetched although no reader waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AheadReason {
    /// A request of a reader was rounded to the unit of the link.
    Rounding,
    /// Most of the region around it was read.
    Region,
    /// A reader is sequential.
    Sequential,
    /// The engine, a profile or a launch list expects it to be read.
    Hint,
}

impl AheadReason {
    /// All reasons, in the order of [`AheadReason::index`].
    pub const ALL: [Self; 4] = [Self::Rounding, Self::Region, Self::Sequential, Self::Hint];

    /// The index in [`AheadReason::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether only the places of earlier reads suggest it, so that it needs an allowance.
    pub(crate) const fn is_guess(self) -> bool {
        matches!(self, Self::Rounding | Self::Region)
    }

    /// The name in counters: one lower-case word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rounding => "rounding",
            Self::Region => "region",
            Self::Sequential => "sequential",
            Self::Hint => "hint",
        }
    }
}

/// Bytes that were fetched although no reader waited for them, for one reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AheadCounts {
    /// All of them.
    pub fetched_bytes: u64,
    /// Those of which a reader has read at least a part of the chunk since.
    pub read_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_know_their_index() {
        for (index, reason) in AheadReason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index, "{}", reason.name());
        }
    }
}
