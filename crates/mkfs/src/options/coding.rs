//! How files are compressed: the settings of all files and of some, and their limits in the superblock.

use std::collections::BTreeMap;

use floe_codec::encode::Compression;
use floe_erofs::{AlgorithmConfiguration, format};
use regex::bytes::{Regex, RegexBuilder};

use super::Options;
use crate::error::{Error, Result};

/// The memory limit of a compiled expression in bytes.
const EXPRESSION_SIZE_MAX: usize = 10 << 20;

/// A compression method with its pcluster size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coding {
    /// The codec and its settings.
    pub compression: Compression,
    /// The pcluster size in bytes.
    pub pcluster_bytes: u32,
}

/// A compression setting for some files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hint {
    /// An extended regular expression that matches some part of the path, which has no leading slash.
    pub expression: String,
    /// The coding of matching files; `None` stores them uncompressed.
    pub coding: Option<Coding>,
}

impl Options {
    /// The codings of files; the default one first, if any.
    pub(crate) fn codings(&self) -> Vec<Coding> {
        let usual = self.compression.map(|compression| Coding { compression, pcluster_bytes: self.pcluster_bytes });
        let mut codings: Vec<Coding> = usual.into_iter().collect();
        for coding in self.hints.iter().filter_map(|hint| hint.coding).chain(self.layout.codings()) {
            if !codings.contains(&coding) {
                codings.push(coding);
            }
        }
        codings
    }

    /// The index of a coding in [`Options::codings`].
    pub(crate) fn coding_number(&self, coding: Coding) -> Option<usize> {
        self.codings().iter().position(|known| *known == coding)
    }

    /// The algorithm number of a coding.
    pub(crate) fn algorithm(&self, coding: Coding) -> u8 {
        self.configuration(coding).algorithm
    }

    /// The algorithm configurations for the superblock: each algorithm once, with limits that cover all codings.
    pub(crate) fn configurations(&self) -> Vec<AlgorithmConfiguration> {
        let mut joined = BTreeMap::new();
        for configuration in self.codings().into_iter().map(|coding| self.configuration(coding)) {
            let known = joined.entry(configuration.algorithm).or_insert(configuration);
            *known = known.covering(configuration);
        }
        joined.into_values().collect()
    }

    fn configuration(&self, coding: Coding) -> AlgorithmConfiguration {
        let pcluster_blocks = u64::from(coding.pcluster_bytes) >> self.block_size_log2;
        let (algorithm, window_bytes) = match coding.compression {
            Compression::Lz4 { window_bytes } | Compression::Lz4High { window_bytes, .. } => {
                (format::COMPRESSION_LZ4, window_bytes.get())
            }
            Compression::MicroLzma { dictionary_bytes, .. } => (format::COMPRESSION_LZMA, dictionary_bytes),
            Compression::Deflate { .. } => (format::COMPRESSION_DEFLATE, 32 << 10),
            Compression::Zstd { window_log2, .. } => {
                (format::COMPRESSION_ZSTD, 1u32.checked_shl(window_log2.into()).unwrap_or(u32::MAX))
            }
        };
        let pcluster_blocks_max = u16::try_from(pcluster_blocks).unwrap_or(u16::MAX);
        AlgorithmConfiguration { algorithm, window_bytes, pcluster_blocks_max }
    }
}

/// An extended regular expression over bytes.
pub(crate) fn expression(text: &str) -> Result<Regex> {
    let built = RegexBuilder::new(text).unicode(false).size_limit(EXPRESSION_SIZE_MAX).build();
    built.map_err(|error| {
        let said = error.to_string();
        let reason = said.lines().last().unwrap_or_default().trim_start_matches("error: ");
        Error::Option(format!("'{text}' is not a valid regular expression: {reason}"))
    })
}
