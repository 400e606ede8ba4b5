//! The compression algorithms that an image announces (docs/format/erofs.md, Algorithms).

use floe_image::{BlockReader, DeviceId, Encoding, Error, Padding, Place, Result};

use super::superblock::Superblock;
use crate::{
    algorithm::{ALGORITHMS, Algorithm, AlgorithmConfiguration},
    format::{self, COMPRESSION_LZ4},
};

/// The encodings of an image's compressed data, indexed by algorithm number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Algorithms {
    encodings: [Option<Encoding>; ALGORITHMS.len()],
}

impl Algorithms {
    /// Reads the configurations that follow the superblock.
    ///
    /// # Errors
    /// A configuration breaks the format, or names an unknown algorithm or variant.
    pub(super) fn read(reader: &dyn BlockReader, superblock: &Superblock) -> Result<Self> {
        let configurations = read_configurations(reader, superblock)?;
        let has_zero_padding = superblock.features.has(format::FEATURE_INCOMPAT_ZERO_PADDING);
        let lz4_padding = if has_zero_padding { Padding::Leading } else { Padding::Trailing };
        let configured = |number| configurations.iter().find(|configuration| configuration.algorithm == number);
        let encoding = |number| configured(number).and_then(|configuration| configuration.encoding(lz4_padding));
        Ok(Self { encodings: ALGORITHMS.map(|algorithm| encoding(algorithm.number)) })
    }

    /// The encoding of algorithm `number`; `None` if the superblock does not announce it.
    pub(super) fn encoding(&self, number: u8) -> Option<Encoding> {
        self.encodings.get(usize::from(number)).copied().flatten()
    }

    /// The algorithms that the superblock announces.
    pub(super) fn announced(&self) -> impl Iterator<Item = &'static Algorithm> {
        (0..format::COMPRESSION_MAX).filter(|number| self.encoding(*number).is_some()).filter_map(Algorithm::of)
    }

    /// Whether the superblock announces no algorithm, so that no inode may be compressed.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The largest LZ4 pcluster in blocks, if the image states it.
///
/// # Errors
/// The configuration cannot be read.
pub(super) fn pcluster_blocks_max(reader: &dyn BlockReader, superblock: &Superblock) -> Result<Option<u16>> {
    if !superblock.features.has(format::FEATURE_INCOMPAT_COMPR_CFGS) {
        return Ok(None);
    }
    let configurations = read_configurations(reader, superblock)?;
    let lz4 = configurations.iter().find(|configuration| configuration.algorithm == COMPRESSION_LZ4);
    Ok(lz4.map(|configuration| configuration.pcluster_blocks_max))
}

/// The configurations of the algorithms that the superblock announces.
///
/// # Errors
/// As for [`Algorithms::read`].
fn read_configurations(reader: &dyn BlockReader, superblock: &Superblock) -> Result<Vec<AlgorithmConfiguration>> {
    let available = superblock.raw.u1;
    if !superblock.features.has(format::FEATURE_INCOMPAT_COMPR_CFGS) {
        return Ok(vec![AlgorithmConfiguration::without_record(available)]);
    }
    if available & !format::ALL_COMPR_ALGS != 0 {
        let unknown = available & !format::ALL_COMPR_ALGS;
        return Err(Error::unsupported(format!(
            "EROFS compression algorithms {unknown:#x} (bits of available_compr_algs)"
        )));
    }
    let mut position = superblock.end;
    let mut configurations = Vec::new();
    for algorithm in ALGORITHMS.iter().filter(|algorithm| available >> algorithm.number & 1 != 0) {
        let (record, end) = read_record(reader, position)?;
        configurations.push(AlgorithmConfiguration::parse(algorithm, &record, Place::at(position))?);
        position = end;
    }
    Ok(configurations)
}

/// The alignment of configurations in bytes.
const RECORD_ALIGN: u64 = 4;
/// How many bytes of a configuration are read. The rest of a longer one is ignored.
const RECORD_LEN_MAX: u16 = 64;

/// Reads the record at or after `position`; returns it with its end.
fn read_record(reader: &dyn BlockReader, position: u64) -> Result<(floe_image::Bytes, u64)> {
    let position = position.next_multiple_of(RECORD_ALIGN);
    let image_len = reader.device_len(DeviceId(0))?;
    let past_end = Error::corrupt("algorithm configuration past the end of the image", Place::at(position));
    if position + 2 > image_len {
        return Err(past_end);
    }
    let word = reader.stored(DeviceId(0), position, 2)?;
    let len = word.first_chunk().map_or(0, |word| u16::from_le_bytes(*word));
    let stored_len = if len == 0 { 1 << 16 } else { u64::from(len) };
    let end = position + 2 + stored_len;
    if end > image_len {
        return Err(past_end);
    }
    let read_len = if len == 0 { RECORD_LEN_MAX } else { len.min(RECORD_LEN_MAX) };
    Ok((reader.stored(DeviceId(0), position + 2, usize::from(read_len))?, end))
}
