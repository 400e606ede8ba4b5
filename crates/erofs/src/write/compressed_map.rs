//! The body of a compressed inode: the map header, and an index or extents (docs/format/erofs.md, Compressed files).

use super::{
    compact_index::{CompactEntries, has_large_packs},
    encoded_extents::encoded_extents,
    full_index::full_index,
    lclusters::lclusters,
    low_u32,
};
use crate::format::{self, MapHeader};

/// The storage of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// Uncompressed, in one block.
    Plain,
    /// Compressed.
    Encoded {
        /// Whether the pcluster decodes to more than the extent.
        partial: bool,
    },
    /// In the packed inode; allowed for the last extent only.
    Fragment,
}

/// A run of a compressed file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompressedExtent {
    /// The length in the file, in bytes.
    pub len: u32,
    /// The length of its pcluster in bytes, whole blocks; 0 for a fragment, one block for an inline pcluster.
    pub stored_len: u32,
    /// The first block of its pcluster; for an inline pcluster, the block that would be next.
    pub block: u64,
    /// The storage.
    pub kind: ExtentKind,
}

/// The form of the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapForm {
    /// A compact index, for contiguous pclusters.
    Compact,
    /// A full index.
    Full,
    /// Encoded extents (48-bit layout only).
    Extents,
}

/// The map of a compressed file.
#[derive(Clone, Copy, Debug)]
pub struct CompressedMap<'a> {
    /// The extents in order, at least one. Each except the last reaches the end of the lcluster in which it begins.
    pub extents: &'a [CompressedExtent],
    /// A `COMPRESSION_` number.
    pub algorithm: u8,
    /// log2 of the block size, which is also the lcluster size.
    pub block_size_log2: u8,
    /// Whether the image has big pclusters.
    pub big: bool,
    /// The length of the last pcluster if it is inline, otherwise 0.
    pub inline_len: u16,
    /// The offset of the last extent in the packed inode, if it is a fragment.
    pub fragment_offset: Option<u64>,
}

impl CompressedMap<'_> {
    /// Whether a compact index can represent the map: lclusters are small enough, the pclusters are contiguous, and no
    /// extent uses part of a pcluster.
    pub fn fits_compact(&self) -> bool {
        if self.block_size_log2 > format::COMPACT_LCLUSTER_SIZE_LOG2_MAX {
            return false;
        }
        let stored = self.extents.iter().filter(|extent| extent.stored_len > 0);
        let mut next_block = None;
        let in_a_row = stored.clone().all(|extent| {
            let blocks = u64::from(extent.stored_len) >> self.block_size_log2;
            next_block.replace(extent.block + blocks).is_none_or(|expected| expected == extent.block)
        });
        let partial = self.extents.iter().any(|extent| extent.kind == ExtentKind::Encoded { partial: true });
        in_a_row && !partial && self.fragment_offset.is_none_or(|offset| offset <= u64::from(u32::MAX))
    }

    /// The map including its header. It starts at a multiple of 8 bytes, `offset` bytes after a multiple of 32.
    pub fn to_bytes(&self, form: MapForm, offset: u64) -> Vec<u8> {
        match form {
            MapForm::Extents => encoded_extents(self, offset),
            MapForm::Full => {
                let mut extents = self.extents.to_vec();
                if let (Some(last), Some(fragment_offset)) = (extents.last_mut(), self.fragment_offset) {
                    // The upper half of a fragment's offset replaces the block number.
                    last.block = fragment_offset >> 32;
                }
                let mut bytes = self.header(false).to_bytes().to_vec();
                bytes.extend([0; 8]);
                bytes.extend(full_index(&lclusters(&extents, self.block_size_log2, self.big)));
                bytes
            }
            MapForm::Compact => {
                let header_len = u64::try_from(MapHeader::SIZE).unwrap_or(0);
                let mut bytes = self.header(true).to_bytes().to_vec();
                let lclusters = lclusters(self.extents, self.block_size_log2, self.big);
                let entries = CompactEntries { lclusters: &lclusters, size_log2: self.block_size_log2, big: self.big };
                bytes.extend(entries.to_bytes(offset + header_len));
                bytes
            }
        }
    }

    fn header(&self, is_compact: bool) -> MapHeader {
        let mut h_advise = 0;
        if is_compact && has_large_packs(self.block_size_log2) {
            h_advise |= format::ADVISE_COMPACTED_2B;
        }
        if self.big {
            h_advise |= format::ADVISE_BIG_PCLUSTER_1;
            if is_compact {
                h_advise |= format::ADVISE_BIG_PCLUSTER_2;
            }
        }
        let mut h_u = u32::from(self.inline_len) << 16;
        if self.inline_len > 0 {
            h_advise |= format::ADVISE_INLINE_PCLUSTER;
        }
        if let Some(fragment_offset) = self.fragment_offset {
            h_advise |= format::ADVISE_FRAGMENT_PCLUSTER;
            h_u = low_u32(fragment_offset);
        }
        MapHeader { h_u, h_advise, h_algorithmtype: self.algorithm, h_clusterbits: 0 }
    }
}

/// The map of a file that is entirely in the packed inode, at `fragment_offset`.
pub fn whole_fragment_map(fragment_offset: u64) -> Vec<u8> {
    let flagged = fragment_offset | 1 << (56 + u32::from(format::FRAGMENT_INODE_BIT));
    flagged.to_le_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(len: u32, blocks: u32, block: u64) -> CompressedExtent {
        CompressedExtent { len, stored_len: blocks << 12, block, kind: ExtentKind::Encoded { partial: false } }
    }

    #[test]
    fn compact_indexes_need_pclusters_in_a_row() {
        let row = [extent(9000, 2, 5), extent(9000, 1, 7)];
        let gap = [extent(9000, 2, 5), extent(9000, 1, 8)];
        let partial = [CompressedExtent { kind: ExtentKind::Encoded { partial: true }, ..extent(9000, 2, 5) }];
        for (extents, fragment_offset, expected) in [
            (row.as_slice(), None, true),
            (&row, Some(5), true),
            (&row, Some(1 << 32), false),
            (&gap, None, false),
            (&partial, None, false),
        ] {
            let map =
                CompressedMap { extents, algorithm: 0, block_size_log2: 12, big: true, inline_len: 0, fragment_offset };
            assert_eq!(map.fits_compact(), expected, "{map:?}");
        }
    }
}
