//! `-z`: algorithms and what is said of them.

use std::ffi::OsStr;

use floe_mkfs::{Compression, LZ4_WINDOW_MAX, LZMA_DICTIONARY_USUAL_MAX};

use crate::drop_in::erofs_tool::number;

/// An algorithm as it was asked for.
pub(super) struct Algorithm {
    name: Name,
    level: Option<u8>,
    dictionary: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Lz4,
    Lz4hc,
    Lzma,
    Deflate,
    Zstd,
}

/// The names that `-z` knows. Both of DEFLATE mean the same encoder.
const NAMES: [(&str, Name); 6] = [
    ("lz4", Name::Lz4),
    ("lz4hc", Name::Lz4hc),
    ("lzma", Name::Lzma),
    ("deflate", Name::Deflate),
    ("libdeflate", Name::Deflate),
    ("zstd", Name::Zstd),
];
impl Algorithm {
    /// The algorithms of a list, the first of which is the one that is used where no hint says otherwise.
    pub(super) fn list(text: &OsStr) -> Result<Vec<Self>, String> {
        text.to_string_lossy().split(':').map(Self::one).collect()
    }

    fn one(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        let found = NAMES.iter().find(|(known, _)| *known == name);
        let (_, name) = *found.ok_or_else(|| format!("Cannot find a valid compressor {name}"))?;
        let mut algorithm = Self { name, level: None, dictionary: None };
        for (place, part) in parts.enumerate() {
            match part.split_once('=') {
                Some(("level", level)) => algorithm.level = Some(level_of(level)?),
                Some(("dictsize", size)) => {
                    let size = number(OsStr::new(size)).and_then(|size| u32::try_from(size).ok());
                    algorithm.dictionary = Some(size.ok_or_else(|| format!("invalid dictionary size in {part}"))?);
                }
                Some((name, _)) => return Err(format!("-z{text}: {name} is not offered by floe")),
                None if place == 0 => algorithm.level = Some(level_of(part)?),
                None => return Err(format!("invalid compression option {part}")),
            }
        }
        Ok(algorithm)
    }

    /// What is asked for, for pclusters of this size.
    pub(super) fn compression(&self, pcluster_bytes: u32) -> Compression {
        let window_bytes = LZ4_WINDOW_MAX;
        let dictionary = |factor: u32, max: u32| {
            self.dictionary.unwrap_or_else(|| pcluster_bytes.saturating_mul(factor).clamp(32 << 10, max))
        };
        let level = |default| self.level.unwrap_or(default);
        match self.name {
            Name::Lz4 => Compression::Lz4 { window_bytes },
            Name::Lz4hc => Compression::Lz4High { level: level(9), window_bytes },
            Name::Lzma => {
                Compression::MicroLzma { level: level(6), dictionary_bytes: dictionary(4, LZMA_DICTIONARY_USUAL_MAX) }
            }
            Name::Deflate => Compression::Deflate { level: level(1) },
            Name::Zstd => {
                let window_log2 = u8::try_from(dictionary(8, 1 << 20).max(1).ilog2()).unwrap_or(u8::MAX);
                Compression::Zstd { level: level(3), window_log2 }
            }
        }
    }
}

fn level_of(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| format!("invalid compression level {text}"))
}
