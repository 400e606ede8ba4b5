//! `-z`: algorithms and their parameters.

use std::{ffi::OsStr, ops::RangeInclusive};

use floe_mkfs::{Compression, Compressor, CompressorSettings, LZ4_WINDOW_MAX};

use super::{Wrong, sized};

/// An algorithm as requested.
pub(super) struct Algorithm {
    compressor: &'static Compressor,
    level: Option<u8>,
    dictionary: Option<u32>,
}

/// The window of DEFLATE in bytes.
const DEFLATE_WINDOW: u32 = 32 << 10;

/// The valid levels of an algorithm.
type Levels = &'static [RangeInclusive<u8>];

/// The names for `-z`, the names of their compressors, and their levels. Both names of DEFLATE mean the same encoder.
/// Where the encoder has no level 0, it means the default.
const NAMES: [(&str, &str, Levels); 6] = [
    ("lz4", "lz4", &[]),
    ("lz4hc", "lz4hc", &[0..=12]),
    ("lzma", "lzma", &[0..=9, 100..=109]),
    ("deflate", "deflate", &[1..=9]),
    ("libdeflate", "deflate", &[1..=12]),
    ("zstd", "zstd", &[0..=22]),
];

impl Algorithm {
    /// Parses a list of algorithms. The first one applies to files without a hint.
    pub(super) fn list(text: &OsStr) -> Result<Vec<Self>, Wrong> {
        text.to_string_lossy().split(':').map(Self::one).collect()
    }

    fn one(text: &str) -> Result<Self, Wrong> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        let found = NAMES.iter().find(|(known, _, _)| *known == name);
        let found = found.and_then(|(shown, name, levels)| Some((*shown, Compressor::named(name)?, *levels)));
        let (shown, compressor, levels) = found.ok_or_else(|| {
            let is_level = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
            let advice = if is_level { ": a level follows a comma, as in zstd,9" } else { "" };
            format!("Cannot find a valid compressor {name}{advice}")
        })?;
        let level_of = |text: &str| level_of(shown, text, levels);
        let mut algorithm = Self { compressor, level: None, dictionary: None };
        for (place, part) in parts.enumerate() {
            match part.split_once('=') {
                Some(("level", level)) => algorithm.level = Some(level_of(level)?),
                Some(("dictsize", size)) => {
                    let size = sized(size).ok_or_else(|| format!("invalid dictionary size in {part}"))?;
                    // 0 is the default.
                    algorithm.dictionary = Some(size).filter(|size| *size > 0);
                }
                Some((name, _)) => {
                    return Err(Wrong::Refused(format!(
                        "-z{text} is not offered by floe: {name} cannot be set; omit it"
                    )));
                }
                None if place == 0 => algorithm.level = Some(level_of(part)?),
                None => return Err(Wrong::Call(format!("invalid compression option {part}"))),
            }
        }
        algorithm.check_dictionary(shown, text)?;
        Ok(algorithm)
    }

    /// Refuses a dictionary that the algorithm, which is called `name` in `text`, does not have.
    fn check_dictionary(&self, name: &str, text: &str) -> Result<(), Wrong> {
        let Some(size) = self.dictionary else { return Ok(()) };
        let invalid = || Err(Wrong::Call(format!("invalid dictionary size {size} for {name}")));
        match name {
            "lz4" | "lz4hc" | "libdeflate" => Err(Wrong::Call(format!("unsupported dict size for {name}"))),
            "deflate" if size == DEFLATE_WINDOW => Ok(()),
            "deflate" if size.is_power_of_two() && (256..DEFLATE_WINDOW).contains(&size) => {
                Err(Wrong::Refused(format!(
                    "-z{text} is not offered by floe: the window of deflate is {DEFLATE_WINDOW} bytes; omit dictsize"
                )))
            }
            "deflate" => invalid(),
            "zstd" if !size.is_power_of_two() => invalid(),
            _ => Ok(()),
        }
    }

    /// The requested compression for pclusters of this size.
    pub(super) fn compression(&self, pcluster_bytes: u32) -> Compression {
        self.compressor.compression(&CompressorSettings {
            level: self.level.filter(|level| *level > 0 || self.compressor.has_level(0)),
            dictionary_bytes: self.dictionary,
            lz4_window_bytes: LZ4_WINDOW_MAX,
            pcluster_bytes,
        })
    }
}

fn level_of(name: &str, text: &str, levels: Levels) -> Result<u8, String> {
    let level = text.parse().ok().filter(|level| levels.iter().any(|levels| levels.contains(level)));
    level.ok_or_else(|| {
        let levels: Vec<String> =
            levels.iter().map(|levels| format!("{} to {}", levels.start(), levels.end())).collect();
        match levels.as_slice() {
            [] => format!("compression level {text} is not supported for {name}: it has no levels"),
            levels => {
                format!("compression level {text} is not supported for {name}: its levels are {}", levels.join(", "))
            }
        }
    })
}
