//! Small files that the kernel decodes by itself, from blocks as the original stores them.
//!
//! The kernel gets a map that is rendered from the extents of the file. Each block in a map was read and decoded here, and has
//! the length that the map states: so no block makes the kernel's decoders fail, and they decode what Floe would.
//!
//! Only files that have their blocks for themselves are decoded there, and no large ones: of other files, Floe's decoders are ahead
//! while CPUs are short (docs/measurements/front.md, Small files).

mod check;
mod pieces;

use floe_erofs::{
    AlgorithmConfiguration,
    write::{CompressedExtent, CompressedMap, InodeData, MapForm},
};
use floe_image::{ByteRange, Extent, ExtentData, FileSystem, Nid, StoredBlock};

use self::{
    check::Check,
    pieces::{blocks_of, pieces_of},
};
use super::{
    algorithms::{algorithm_of, configuration_of},
    image_file::ImageFile,
    not_kept::NotKept,
};
use crate::{
    fault::lasting,
    geometry::{BLOCK_BYTES, BLOCK_LOG2, KEPT_PLAIN_BLOCK},
    node::LARGE_FILE_BYTES_MIN,
};

/// The offset of a map is a multiple of this.
const MAP_ALIGNMENT: u64 = 8;

/// The form of a compact index depends on its distance from a multiple of this.
const COMPACT_ALIGNMENT: u64 = 32;

/// The compressed files of an image that is being kept.
#[derive(Default)]
pub(super) struct CompressedFiles {
    check: Check,
    /// By the number of the algorithm.
    configurations: Vec<AlgorithmConfiguration>,
    /// The number of blocks of the image up to the last one in use.
    image_blocks: u64,
}

/// Where the data of a file is, if the kernel can decode it. At least one extent.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct CompressedFile {
    extents: Vec<CompressedExtent>,
    /// A `COMPRESSION_` number.
    algorithm: u8,
}

impl CompressedFiles {
    /// Where the data of file `nid` of `original` is; `None` if the kernel is not to decode it.
    pub(super) fn find(
        &mut self,
        image: &ImageFile,
        original: &dyn FileSystem,
        nid: Nid,
        size: u64,
    ) -> Result<Option<CompressedFile>, NotKept> {
        if size >= LARGE_FILE_BYTES_MIN || image.algorithms().is_empty() {
            return Ok(None);
        }
        let mut extents = Vec::new();
        let mapped = original.map(nid, ByteRange::new(0, size), &mut extents);
        // A file with a broken map is read through Floe, which tells its readers what is wrong.
        if lasting(mapped).map_err(NotKept::Original)?.is_none() {
            return Ok(None);
        }
        let Some(pieces) = pieces_of(image, &extents, size) else { return Ok(None) };
        if !is_same_from_each_block(original, nid, size, &extents)? {
            return Ok(None);
        }
        let blocks = || pieces.iter().filter_map(|piece| piece.block.as_ref());
        let Some(algorithm) = blocks().next().and_then(algorithm_of) else { return Ok(None) };
        // A map has one algorithm here.
        if blocks().any(|block| algorithm_of(block) != Some(algorithm)) {
            return Ok(None);
        }
        for block in blocks() {
            if !self.check.is_sound(image, block)? {
                return Ok(None);
            }
        }
        for block in blocks() {
            self.cover(block);
        }
        let extents: Vec<_> = pieces.iter().map(|piece| piece.extent).collect();
        let end = |extent: &CompressedExtent| extent.block + u64::from(extent.stored_len) / BLOCK_BYTES;
        let image_end = extents.iter().map(end).max().unwrap_or(0).saturating_sub(KEPT_PLAIN_BLOCK.into());
        self.image_blocks = self.image_blocks.max(image_end);
        Ok(Some(CompressedFile { extents, algorithm }))
    }

    /// The number of blocks of the image up to the last one in use.
    pub(super) fn image_blocks(&self) -> u64 {
        self.image_blocks
    }

    /// The configurations of all algorithms in use.
    pub(super) fn configurations(&self) -> &[AlgorithmConfiguration] {
        &self.configurations
    }

    /// Makes the configurations cover a block.
    fn cover(&mut self, block: &StoredBlock) {
        let (Some(configuration), Some((_, count))) = (configuration_of(&block.encoding), blocks_of(block)) else {
            return;
        };
        let configuration = AlgorithmConfiguration { pcluster_blocks_max: count as u16, ..configuration };
        match self.configurations.binary_search_by_key(&configuration.algorithm, |known| known.algorithm) {
            Ok(index) => {
                if let Some(known) = self.configurations.get_mut(index) {
                    *known = known.covering(configuration);
                }
            }
            Err(index) => self.configurations.insert(index, configuration),
        }
    }
}

impl CompressedFile {
    /// The data as the inode states it.
    pub(super) fn form(&self, size: u64) -> InodeData {
        // As many blocks as the file would have uncompressed, as with files that Floe serves.
        InodeData::Compressed { blocks: size.div_ceil(BLOCK_BYTES), compact: self.map().fits_compact() }
    }

    /// The offset of the map in an inode whose attributes end at `body_len`.
    pub(super) fn map_start(body_len: u64) -> u64 {
        body_len.next_multiple_of(MAP_ALIGNMENT)
    }

    /// The map, at this offset in the inode.
    pub(super) fn map_bytes(&self, start: u64) -> Vec<u8> {
        let map = self.map();
        map.to_bytes(if map.fits_compact() { MapForm::Compact } else { MapForm::Full }, start % COMPACT_ALIGNMENT)
    }

    fn map(&self) -> CompressedMap<'_> {
        CompressedMap {
            extents: &self.extents,
            algorithm: self.algorithm,
            block_size_log2: BLOCK_LOG2,
            big: self.extents.iter().any(|extent| u64::from(extent.stored_len) > BLOCK_BYTES),
            inline_len: 0,
            fragment_offset: None,
        }
    }
}

/// Whether reads from any block on find the same extents. In a corrupt index, the entries within an extent can lead to another one
/// than the entry at its beginning.
fn is_same_from_each_block(
    original: &dyn FileSystem,
    nid: Nid,
    size: u64,
    extents: &[Extent],
) -> Result<bool, NotKept> {
    let mut found = Vec::new();
    for start in (0..size).step_by(BLOCK_BYTES as usize) {
        found.clear();
        let mapped = original.map(nid, ByteRange::between(start, size.min(start + BLOCK_BYTES)), &mut found);
        if lasting(mapped).map_err(NotKept::Original)?.is_none() {
            return Ok(false);
        }
        let is_part = |part: &Extent| extents.iter().any(|whole| is_part_of(part, whole));
        if !found.iter().all(is_part) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_part_of(part: &Extent, whole: &Extent) -> bool {
    match (part.data, whole.data) {
        (ExtentData::Plain { device, offset }, ExtentData::Plain { device: whole_device, offset: whole_offset }) => {
            let distance = part.range.offset().wrapping_sub(whole.range.offset());
            whole.range.contains(part.range) && device == whole_device && offset.wrapping_sub(whole_offset) == distance
        }
        _ => part == whole,
    }
}
