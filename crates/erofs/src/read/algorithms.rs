//! The compression algorithms of an image and their limits (docs/format/erofs.md, Algorithms).

use floe_image::{BlockReader, DeviceId, Encoding, Error, Padding, Place, Result};

use super::superblock::Superblock;
use crate::format::{self, DeflateCfgs, Lz4Cfgs, LzmaCfgs, ZstdCfgs};

/// The encodings of an image's compressed data, indexed by algorithm number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Algorithms {
    lz4: Option<Encoding>,
    lzma: Option<Encoding>,
    deflate: Option<Encoding>,
    zstd: Option<Encoding>,
}

impl Algorithms {
    /// Reads the configurations that follow the superblock.
    ///
    /// # Errors
    /// A configuration breaks the format, or names an unknown algorithm or variant.
    pub(super) fn read(reader: &dyn BlockReader, superblock: &Superblock) -> Result<Self> {
        let has_zero_padding = superblock.features.has(format::FEATURE_INCOMPAT_ZERO_PADDING);
        let lz4_padding = if has_zero_padding { Padding::Leading } else { Padding::Trailing };
        let mut algorithms = Self::default();
        if !superblock.features.has(format::FEATURE_INCOMPAT_COMPR_CFGS) {
            algorithms.lz4 = Some(lz4(superblock.raw.u1, lz4_padding));
            return Ok(algorithms);
        }
        let available = superblock.raw.u1;
        if available & !format::ALL_COMPR_ALGS != 0 {
            let unknown = available & !format::ALL_COMPR_ALGS;
            return Err(Error::unsupported(format!(
                "EROFS compression algorithms {unknown:#x} (bits of available_compr_algs)"
            )));
        }
        let mut position = superblock.end;
        for number in (0..format::COMPRESSION_MAX).filter(|number| available >> number & 1 != 0) {
            let (record, end) = read_record(reader, position)?;
            let place = Place::at(position);
            let short = Error::corrupt("algorithm configuration too short", place);
            match number {
                format::COMPRESSION_LZ4 => {
                    let raw = Lz4Cfgs::from_prefix(&record).ok_or(short)?;
                    algorithms.lz4 = Some(lz4(raw.max_distance, lz4_padding));
                }
                format::COMPRESSION_LZMA => {
                    let raw = LzmaCfgs::from_prefix(&record).ok_or(short)?;
                    algorithms.lzma = Some(lzma(&raw, place)?);
                }
                format::COMPRESSION_DEFLATE => {
                    let raw = DeflateCfgs::from_prefix(&record).ok_or(short)?;
                    algorithms.deflate = Some(deflate(&raw)?);
                }
                _ => {
                    let raw = ZstdCfgs::from_prefix(&record).ok_or(short)?;
                    algorithms.zstd = Some(zstd(&raw)?);
                }
            }
            position = end;
        }
        Ok(algorithms)
    }

    /// The encoding of algorithm `number`; `None` if the superblock does not announce it.
    pub(super) fn encoding(&self, number: u8) -> Option<Encoding> {
        match number {
            format::COMPRESSION_LZ4 => self.lz4,
            format::COMPRESSION_LZMA => self.lzma,
            format::COMPRESSION_DEFLATE => self.deflate,
            format::COMPRESSION_ZSTD => self.zstd,
            _ => None,
        }
    }

    /// Whether the superblock announces algorithm `number`.
    pub(super) fn is_announced(&self, number: u8) -> bool {
        self.encoding(number).is_some()
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
    let has_record = superblock.features.has(format::FEATURE_INCOMPAT_COMPR_CFGS) && superblock.raw.u1 & 1 != 0;
    if !has_record {
        return Ok(None);
    }
    let (record, _) = read_record(reader, superblock.end)?;
    Ok(Lz4Cfgs::from_prefix(&record).map(|raw| raw.max_pclusterblks))
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

fn lz4(max_distance: u16, padding: Padding) -> Encoding {
    let window = if max_distance == 0 { format::LZ4_MAX_DISTANCE } else { max_distance };
    Encoding::Lz4 { padding, window_bytes: u32::from(window) }
}

fn lzma(raw: &LzmaCfgs, place: Place) -> Result<Encoding> {
    if raw.format != 0 {
        return Err(Error::unsupported(format!("EROFS LZMA form {}", raw.format)));
    }
    match (format::LZMA_MIN_DICT_SIZE..=format::LZMA_MAX_DICT_SIZE).contains(&raw.dict_size) {
        true => Ok(Encoding::MicroLzma { padding: Padding::Leading, dictionary_bytes: raw.dict_size }),
        false => Err(Error::corrupt("LZMA dictionary below 4 KiB or above 8 MiB", place)),
    }
}

/// log2 of the largest DEFLATE window.
const DEFLATE_WINDOW_LOG2_MAX: u8 = 15;

fn deflate(raw: &DeflateCfgs) -> Result<Encoding> {
    match raw.windowbits {
        ..=DEFLATE_WINDOW_LOG2_MAX => Ok(Encoding::Deflate { padding: Padding::Leading, window_log2: raw.windowbits }),
        other => Err(Error::unsupported(format!("DEFLATE window of 2^{other} bytes"))),
    }
}

fn zstd(raw: &ZstdCfgs) -> Result<Encoding> {
    if raw.format != 0 {
        return Err(Error::unsupported(format!("EROFS zstd form {}", raw.format)));
    }
    let window_log2_max = raw.windowlog.saturating_add(format::ZSTD_WINDOWLOG_BASE);
    match 1u32.checked_shl(u32::from(window_log2_max)).is_some_and(|bytes| bytes <= format::ZSTD_MAX_DICT_SIZE) {
        true => Ok(Encoding::Zstd { padding: Padding::Leading, window_log2_max }),
        false => Err(Error::unsupported(format!("zstd window of 2^{window_log2_max} bytes"))),
    }
}
