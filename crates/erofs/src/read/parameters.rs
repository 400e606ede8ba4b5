//! What the superblock and the tables behind it state about an image, such as its compression algorithms (docs/format/erofs.md,
//! Algorithms).

use std::sync::OnceLock;

use floe_image::{BlockReader, DeviceId, Encoding, Error, Nid, Padding, Place, Result};

use super::{device_table::Devices, length_sums::LengthSums, superblock::Superblock};
use crate::{
    algorithm::{ALGORITHMS, Algorithm, AlgorithmConfiguration},
    format::{self, COMPRESSION_LZ4},
};

/// The address spaces of metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Space {
    /// In the image itself.
    Image,
    /// The content of the metabox inode.
    Metabox,
}

/// What an open image states about itself, and what was learnt from it. None of it depends on the reader.
pub(super) struct Parameters {
    pub(super) superblock: Superblock,
    pub(super) devices: Devices,
    pub(super) algorithms: Algorithms,
    /// The length of the image itself, in bytes.
    pub(super) image_len: u64,
    /// The known sums of stored lengths.
    pub(super) length_sums: LengthSums,
    /// The length of the metabox in bytes, if there is one.
    pub(super) metabox_len: OnceLock<u64>,
    /// The device number of the metabox's content, if the reader supports derived sources.
    pub(super) metabox_device: OnceLock<DeviceId>,
}

impl Parameters {
    /// Reads the device table and the configurations of algorithms of the image in `reader`.
    ///
    /// # Errors
    /// They break the format or use unsupported features.
    pub(super) fn read(reader: &dyn BlockReader, superblock: Superblock) -> Result<Self> {
        Ok(Self {
            devices: Devices::read(reader, &superblock)?,
            algorithms: Algorithms::read(reader, &superblock)?,
            image_len: reader.device_len(DeviceId(0))?,
            length_sums: LengthSums::default(),
            metabox_len: OnceLock::new(),
            metabox_device: OnceLock::new(),
            superblock,
        })
    }

    /// The number of metadata bytes in `space`.
    pub(super) fn space_len(&self, space: Space) -> u64 {
        match space {
            Space::Image => self.image_len,
            Space::Metabox => self.metabox_len.get().copied().unwrap_or(0),
        }
    }

    /// Checks that `len` bytes of metadata exist from `position` on, for inode `nid`.
    ///
    /// # Errors
    /// The range exceeds the space.
    pub(super) fn check_metadata(&self, space: Space, position: u64, len: usize, nid: Nid) -> Result<()> {
        let end = u64::try_from(len).ok().and_then(|len| position.checked_add(len));
        if end.is_some_and(|end| end <= self.space_len(space)) {
            return Ok(());
        }
        let rule = match (space, self.metabox_len.get()) {
            (Space::Image, _) => "metadata past the end of the image",
            (Space::Metabox, Some(_)) => "metadata past the end of the metabox",
            (Space::Metabox, None) => "metadata in a missing metabox",
        };
        Err(Error::corrupt(rule, Place::inode_at(nid, position)))
    }

    /// The device number under which the metabox's content is read.
    ///
    /// # Errors
    /// The reader does not support derived sources.
    pub(super) fn metabox_device(&self) -> Result<DeviceId> {
        self.metabox_device.get().copied().ok_or(Error::unsupported("compressed data inside compressed metadata"))
    }
}

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
