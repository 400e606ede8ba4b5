//! The compression algorithms that the kernel may decode.

use floe_erofs::{
    AlgorithmConfiguration,
    format::{COMPRESSION_LZ4, COMPRESSION_ZSTD, LZ4_MAX_DISTANCE},
};
use floe_image::{Encoding, Padding, StoredBlock};

/// The smallest window of all algorithms.
const WINDOW_BYTES_MIN: u32 = 1 << 10;

/// A set of compression algorithms.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Algorithms(u16);

impl Algorithms {
    /// Those for which it was measured that the kernel reads small files faster.
    pub const FASTER: Self = Self(1 << COMPRESSION_LZ4 | 1 << COMPRESSION_ZSTD);

    /// LZ4 alone: all kernels with compressed files have it.
    pub const LZ4: Self = Self(1 << COMPRESSION_LZ4);

    /// The set as a number, for another process.
    pub fn to_number(self) -> u16 {
        self.0
    }

    /// The set with this number.
    pub fn from_number(number: u16) -> Self {
        Self(number)
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of the `others` are among them.
    pub(super) fn contain(self, others: Self) -> bool {
        others.0 & !self.0 == 0
    }

    pub(super) fn has(self, number: u8) -> bool {
        self.0 >> number & 1 != 0
    }

    /// A configuration of each.
    pub(super) fn configurations(self) -> Vec<AlgorithmConfiguration> {
        let of = |number| AlgorithmConfiguration::new(number, WINDOW_BYTES_MIN);
        (0..u16::BITS as u8).filter(|number| self.has(*number)).map(of).collect()
    }
}

/// The configuration for blocks of this encoding; `None` if the kernel is not to decode them.
pub(super) fn configuration_of(encoding: &Encoding) -> Option<AlgorithmConfiguration> {
    let (number, window_bytes) = match *encoding {
        // Larger than stated by the image: a smaller one allows the kernel to keep less of what it has decoded.
        Encoding::Lz4 { padding: Padding::Leading, .. } => (COMPRESSION_LZ4, LZ4_MAX_DISTANCE.into()),
        Encoding::Zstd { padding: Padding::Leading, window_log2_max } => {
            (COMPRESSION_ZSTD, 1_u32.checked_shl(window_log2_max.into())?)
        }
        _ => return None,
    };
    Some(AlgorithmConfiguration::new(number, window_bytes))
}

/// The number of the algorithm of a block, if the kernel may decode it.
pub(super) fn algorithm_of(block: &StoredBlock) -> Option<u8> {
    configuration_of(&block.encoding).map(|configuration| configuration.algorithm)
}
