//! The names by which users choose a compression.

use std::{num::NonZeroU32, ops::RangeInclusive};

use super::{Compression, LZ4_WINDOW_MAX};

/// A compression that users choose by name, and the settings that it has.
#[derive(Debug)]
pub struct Compressor {
    /// Its name.
    pub name: &'static str,
    /// The valid levels; empty if it has none.
    pub levels: &'static [RangeInclusive<u8>],
    /// The level that is used without a choice.
    pub level_default: u8,
    /// The dictionary or window that is used without a choice; `None` if users cannot choose one.
    pub dictionary: Option<DictionaryDefault>,
    /// Whether users can choose the window of LZ4.
    pub has_lz4_window: bool,
    compression: fn(&Parameters) -> Compression,
}

/// The size of a dictionary: a multiple of the pcluster size, at least 32 KiB.
#[derive(Clone, Copy, Debug)]
pub struct DictionaryDefault {
    /// The size divided by that of pclusters.
    pub pclusters: u32,
    /// The largest size in bytes.
    pub bytes_max: u32,
}

/// What a user has chosen. Settings that a compressor does not have are ignored.
#[derive(Clone, Copy, Debug)]
pub struct CompressorSettings {
    /// The level, if any.
    pub level: Option<u8>,
    /// The size of the dictionary or window in bytes, if any.
    pub dictionary_bytes: Option<u32>,
    /// The largest match distance of LZ4 in bytes.
    pub lz4_window_bytes: NonZeroU32,
    /// The largest pcluster in bytes.
    pub pcluster_bytes: u32,
}

/// The settings with defaults in place of what was not chosen.
struct Parameters {
    level: u8,
    dictionary_bytes: u32,
    lz4_window_bytes: NonZeroU32,
}

/// The smallest default dictionary in bytes.
const DICTIONARY_DEFAULT_MIN: u32 = 32 << 10;

/// The largest default dictionary of MicroLZMA, in bytes. An encoder needs ten times this memory; 4 MiB would make
/// pclusters of 1 MiB only 0.9 % smaller.
const LZMA_DICTIONARY_DEFAULT_MAX: u32 = 5 << 19;

/// The compressors, in the order in which they are listed for users.
pub const COMPRESSORS: [Compressor; 5] = [
    Compressor {
        name: "lz4",
        levels: &[],
        level_default: 1,
        dictionary: None,
        has_lz4_window: true,
        compression: |parameters| Compression::Lz4 { window_bytes: parameters.lz4_window_bytes },
    },
    Compressor {
        name: "lz4hc",
        levels: &[1..=12],
        level_default: 9,
        dictionary: None,
        has_lz4_window: true,
        compression: |parameters| Compression::Lz4High {
            level: parameters.level,
            window_bytes: parameters.lz4_window_bytes,
        },
    },
    Compressor {
        name: "lzma",
        levels: &[0..=9, 100..=109],
        level_default: 6,
        dictionary: Some(DictionaryDefault { pclusters: 4, bytes_max: LZMA_DICTIONARY_DEFAULT_MAX }),
        has_lz4_window: false,
        compression: |parameters| Compression::MicroLzma {
            level: parameters.level,
            dictionary_bytes: parameters.dictionary_bytes,
        },
    },
    Compressor {
        name: "deflate",
        levels: &[1..=12],
        level_default: 1,
        dictionary: None,
        has_lz4_window: false,
        compression: |parameters| Compression::Deflate { level: parameters.level },
    },
    Compressor {
        name: "zstd",
        levels: &[1..=22],
        level_default: 3,
        dictionary: Some(DictionaryDefault { pclusters: 8, bytes_max: 1 << 20 }),
        has_lz4_window: false,
        compression: |parameters| Compression::Zstd {
            level: parameters.level,
            window_log2: u8::try_from(parameters.dictionary_bytes.max(1).ilog2()).unwrap_or(u8::MAX),
        },
    },
];

impl Compressor {
    /// The compressor with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        const { &COMPRESSORS }.iter().find(|compressor| compressor.name == name)
    }

    /// Whether the level is valid.
    pub fn has_level(&self, level: u8) -> bool {
        self.levels.iter().any(|levels| levels.contains(&level))
    }

    /// The compression with these settings. Settings that are out of range make [`Compression::encoder`] fail.
    pub fn compression(&self, settings: &CompressorSettings) -> Compression {
        let dictionary =
            self.dictionary.unwrap_or(DictionaryDefault { pclusters: 0, bytes_max: DICTIONARY_DEFAULT_MIN });
        let dictionary_default = settings.pcluster_bytes.saturating_mul(dictionary.pclusters);
        (self.compression)(&Parameters {
            level: settings.level.unwrap_or(self.level_default),
            dictionary_bytes: settings
                .dictionary_bytes
                .unwrap_or(dictionary_default.clamp(DICTIONARY_DEFAULT_MIN, dictionary.bytes_max)),
            lz4_window_bytes: settings.lz4_window_bytes.min(LZ4_WINDOW_MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoders_accept_the_valid_levels_and_no_others() {
        for compressor in &COMPRESSORS {
            for level in 0..=u8::MAX {
                let settings = CompressorSettings {
                    level: Some(level),
                    dictionary_bytes: None,
                    lz4_window_bytes: LZ4_WINDOW_MAX,
                    pcluster_bytes: 4096,
                };
                let is_valid = compressor.levels.is_empty() || compressor.has_level(level);
                let is_accepted = compressor.compression(&settings).encoder().is_ok();
                assert_eq!(is_accepted, is_valid, "{} {level}", compressor.name);
            }
            assert!(compressor.levels.is_empty() || compressor.has_level(compressor.level_default));
        }
    }
}
