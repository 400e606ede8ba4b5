//! The compression algorithms of the format (docs/format/erofs.md, Algorithms).
//!
//! [`ALGORITHMS`] is the only list of them: the reader, the writer, reports and checks use its rows.

use floe_image::{Encoding, Error, Padding, Place, Result};

use crate::format::{self, DeflateCfgs, Lz4Cfgs, LzmaCfgs, ZstdCfgs};

/// A compression algorithm of the format.
#[derive(Debug)]
pub struct Algorithm {
    /// Its `COMPRESSION_` number, also the number of its bit in `available_compr_algs`.
    pub number: u8,
    /// Its name in reports.
    pub name: &'static str,
    /// The first kernel that supports it, major times 100 plus minor; `None` if every kernel with EROFS does.
    pub kernel_min: Option<u32>,
    /// Parses its record after the superblock, which is at the given place.
    parse: fn(&[u8], Place) -> Result<AlgorithmConfiguration>,
    /// Creates its record.
    record: fn(&AlgorithmConfiguration) -> Vec<u8>,
    /// The encoding of its pclusters. The padding is that of LZ4; other algorithms always have leading padding.
    encoding: fn(&AlgorithmConfiguration, Padding) -> Encoding,
}

/// The algorithms in the order of their numbers, which begin with 0.
pub const ALGORITHMS: [Algorithm; 4] = [
    Algorithm {
        number: format::COMPRESSION_LZ4,
        name: "lz4",
        kernel_min: None,
        parse: |record, place| {
            let raw = Lz4Cfgs::from_prefix(record).ok_or(short(place))?;
            Ok(AlgorithmConfiguration { pcluster_blocks_max: raw.max_pclusterblks, ..lz4(raw.max_distance) })
        },
        record: |configuration| {
            let max_distance = u16::try_from(configuration.window_bytes).unwrap_or(u16::MAX);
            let max_pclusterblks = configuration.pcluster_blocks_max;
            Lz4Cfgs { max_distance, max_pclusterblks, ..Lz4Cfgs::default() }.to_bytes().to_vec()
        },
        encoding: |configuration, padding| Encoding::Lz4 { padding, window_bytes: configuration.window_bytes },
    },
    Algorithm {
        number: format::COMPRESSION_LZMA,
        name: "lzma",
        kernel_min: Some(516),
        parse: |record, place| {
            let raw = LzmaCfgs::from_prefix(record).ok_or(short(place))?;
            if raw.format != 0 {
                return Err(Error::unsupported(format!("EROFS LZMA form {}", raw.format)));
            }
            match (format::LZMA_MIN_DICT_SIZE..=format::LZMA_MAX_DICT_SIZE).contains(&raw.dict_size) {
                true => Ok(AlgorithmConfiguration::new(format::COMPRESSION_LZMA, raw.dict_size)),
                false => Err(Error::corrupt("LZMA dictionary below 4 KiB or above 8 MiB", place)),
            }
        },
        record: |configuration| {
            LzmaCfgs { dict_size: configuration.window_bytes, ..LzmaCfgs::default() }.to_bytes().to_vec()
        },
        encoding: |configuration, _| Encoding::MicroLzma {
            padding: Padding::Leading,
            dictionary_bytes: configuration.window_bytes,
        },
    },
    Algorithm {
        number: format::COMPRESSION_DEFLATE,
        name: "deflate",
        kernel_min: Some(606),
        parse: |record, place| {
            let raw = DeflateCfgs::from_prefix(record).ok_or(short(place))?;
            match raw.windowbits {
                log2 @ ..=DEFLATE_WINDOW_LOG2_MAX => {
                    Ok(AlgorithmConfiguration::new(format::COMPRESSION_DEFLATE, 1 << log2))
                }
                other => Err(Error::unsupported(format!("DEFLATE window of 2^{other} bytes"))),
            }
        },
        record: |configuration| {
            DeflateCfgs { windowbits: configuration.window_log2(), ..DeflateCfgs::default() }.to_bytes().to_vec()
        },
        encoding: |configuration, _| Encoding::Deflate {
            padding: Padding::Leading,
            window_log2: configuration.window_log2(),
        },
    },
    Algorithm {
        number: format::COMPRESSION_ZSTD,
        name: "zstd",
        kernel_min: Some(610),
        parse: |record, place| {
            let raw = ZstdCfgs::from_prefix(record).ok_or(short(place))?;
            if raw.format != 0 {
                return Err(Error::unsupported(format!("EROFS zstd form {}", raw.format)));
            }
            let log2 = raw.windowlog.saturating_add(format::ZSTD_WINDOWLOG_BASE);
            match 1u32.checked_shl(u32::from(log2)).filter(|bytes| *bytes <= format::ZSTD_MAX_DICT_SIZE) {
                Some(bytes) => Ok(AlgorithmConfiguration::new(format::COMPRESSION_ZSTD, bytes)),
                None => Err(Error::unsupported(format!("zstd window of 2^{log2} bytes"))),
            }
        },
        record: |configuration| {
            let windowlog = configuration.window_log2().saturating_sub(format::ZSTD_WINDOWLOG_BASE);
            ZstdCfgs { windowlog, ..ZstdCfgs::default() }.to_bytes().to_vec()
        },
        encoding: |configuration, _| Encoding::Zstd {
            padding: Padding::Leading,
            window_log2_max: configuration.window_log2(),
        },
    },
];

/// log2 of the largest DEFLATE window.
const DEFLATE_WINDOW_LOG2_MAX: u8 = 15;

impl Algorithm {
    /// The algorithm with this number; `None` if the format knows none.
    pub fn of(number: u8) -> Option<&'static Self> {
        const { &ALGORITHMS }.get(usize::from(number))
    }
}

/// The configuration of one algorithm in an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AlgorithmConfiguration {
    /// The `COMPRESSION_` number of the algorithm.
    pub algorithm: u8,
    /// The largest window or dictionary in bytes: a power of two for DEFLATE and Zstandard, at most 65,535 for LZ4.
    pub window_bytes: u32,
    /// The largest pcluster in blocks. Only the record of LZ4 states it.
    pub pcluster_blocks_max: u16,
}

impl AlgorithmConfiguration {
    /// A configuration that states no largest pcluster.
    pub fn new(algorithm: u8, window_bytes: u32) -> Self {
        Self { algorithm, window_bytes, pcluster_blocks_max: 0 }
    }

    /// Combines it with another configuration of the same algorithm into one that covers both.
    #[must_use]
    pub fn covering(self, other: Self) -> Self {
        Self {
            algorithm: self.algorithm,
            window_bytes: self.window_bytes.max(other.window_bytes),
            pcluster_blocks_max: self.pcluster_blocks_max.max(other.pcluster_blocks_max),
        }
    }

    /// Parses the record of `algorithm` at `place`.
    ///
    /// # Errors
    /// The record is too short, breaks the format, or requires more than the decoder supports.
    pub(crate) fn parse(algorithm: &Algorithm, record: &[u8], place: Place) -> Result<Self> {
        (algorithm.parse)(record, place)
    }

    /// The configuration of an image without records: LZ4 with a window of `u1` bytes.
    pub(crate) fn without_record(u1: u16) -> Self {
        lz4(u1)
    }

    /// The record, without its length.
    pub(crate) fn record(&self) -> Vec<u8> {
        Algorithm::of(self.algorithm).map_or(Vec::new(), |algorithm| (algorithm.record)(self))
    }

    /// The encoding of the algorithm's pclusters; `lz4_padding` is that of LZ4.
    pub(crate) fn encoding(&self, lz4_padding: Padding) -> Option<Encoding> {
        Algorithm::of(self.algorithm).map(|algorithm| (algorithm.encoding)(self, lz4_padding))
    }

    fn window_log2(&self) -> u8 {
        self.window_bytes.checked_ilog2().and_then(|log2| u8::try_from(log2).ok()).unwrap_or(0)
    }
}

fn lz4(max_distance: u16) -> AlgorithmConfiguration {
    let window = if max_distance == 0 { format::LZ4_MAX_DISTANCE } else { max_distance };
    AlgorithmConfiguration::new(format::COMPRESSION_LZ4, u32::from(window))
}

fn short(place: Place) -> Error {
    Error::corrupt("algorithm configuration too short", place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_their_numbers_and_read_what_they_write() {
        for (index, algorithm) in ALGORITHMS.iter().enumerate() {
            assert_eq!(usize::from(algorithm.number), index, "{}", algorithm.name);
            let pcluster_blocks_max = if algorithm.number == format::COMPRESSION_LZ4 { 16 } else { 0 };
            for window_bytes in [4096, 32 << 10] {
                let written = AlgorithmConfiguration { algorithm: algorithm.number, window_bytes, pcluster_blocks_max };
                let record = written.record();
                let parsed = AlgorithmConfiguration::parse(algorithm, &record, Place::UNKNOWN);
                assert_eq!(parsed.ok(), Some(written), "{}", algorithm.name);
                let cut = AlgorithmConfiguration::parse(algorithm, &record[1..], Place::UNKNOWN);
                assert!(cut.is_err_and(|error| error.to_string().contains("too short")), "{}", algorithm.name);
            }
        }
        assert_eq!(ALGORITHMS.len(), usize::from(format::COMPRESSION_MAX));
    }
}
