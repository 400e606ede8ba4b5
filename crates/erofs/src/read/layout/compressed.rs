//! Compressed files and their map header (docs/format/erofs.md, Compressed files).

use floe_image::{ByteRange, Error, Place, Result};

use super::{
    compact_index::CompactIndex,
    encoded_extents::EncodedExtents,
    lcluster_map::{Index, LclusterMap},
    pcluster::{CompressedExtent, Pcluster},
};
use crate::{
    format::{self, FRAGMENT_INODE_BIT, MapHeader},
    read::{
        inode::Inode,
        window::{Metadata, Window},
    },
};

/// The map of a compressed file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) enum CompressedMap {
    /// The whole file is a fragment in the packed inode, at this offset.
    Fragment { offset: u64 },
    /// An index with an entry for each lcluster.
    Lclusters(LclusterMap),
    /// A record for each extent.
    Extents(EncodedExtents),
}

impl CompressedMap {
    /// Reads the map header of `inode`.
    ///
    /// # Errors
    /// The map header or the index of the last lcluster cannot be read or breaks the format.
    pub(in crate::read) fn read(metadata: &dyn Metadata, inode: &Inode, is_compact: bool) -> Result<Self> {
        let corrupt = |rule| Error::corrupt(rule, Place::inode(inode.nid));
        let mut window = Window::new(metadata, inode.space, inode.nid);
        let (header, end) = read_header(inode, &mut window)?;
        if header.h_clusterbits >> FRAGMENT_INODE_BIT != 0 {
            let whole_file = u64::from_le_bytes(header.to_bytes()) & !(1 << 63);
            return Ok(Self::Fragment { offset: whole_file });
        }
        let superblock = &window.parameters().superblock;
        let block_size = superblock.block_size;
        let lcluster_size_log2 = block_size.log2() + (header.h_clusterbits & format::CLUSTERBITS_MASK);
        if !is_compact && header.h_advise & format::ADVISE_EXTENTS != 0 {
            let extents = EncodedExtents::read(&mut window, &header, end, lcluster_size_log2);
            return extents.map(Self::Extents).map_err(|error| error.for_inode(inode.nid));
        }
        let advises = |bit: u16| header.h_advise & bit != 0;
        let has_big_pclusters = [advises(format::ADVISE_BIG_PCLUSTER_1), advises(format::ADVISE_BIG_PCLUSTER_2)];
        let is_big_allowed = superblock.features.has(format::FEATURE_INCOMPAT_BIG_PCLUSTER);
        if has_big_pclusters.contains(&true) && !is_big_allowed {
            return Err(corrupt("big pclusters in an image without that feature"));
        }
        let index = if is_compact {
            if has_big_pclusters == [true, false] || has_big_pclusters == [false, true] {
                return Err(corrupt("big pclusters for one of two algorithms with compact indexes"));
            }
            if lcluster_size_log2 > format::COMPACT_LCLUSTER_SIZE_LOG2_MAX {
                return Err(corrupt("lclusters above 16 KiB with compact indexes"));
            }
            Index::Compact(CompactIndex {
                start: end,
                entry_count: block_size.blocks(inode.size),
                lcluster_size_log2,
                has_large_packs: advises(format::ADVISE_COMPACTED_2B),
                counts_blocks: advises(format::ADVISE_BIG_PCLUSTER_1),
            })
        } else {
            let start = end.checked_add(8).ok_or(corrupt("index past the address space"))?;
            Index::Full { start, counts_blocks: has_big_pclusters.contains(&true) }
        };
        let map = LclusterMap {
            index,
            lcluster_size_log2,
            has_big_pclusters,
            algorithms: [header.h_algorithmtype & 0xf, header.h_algorithmtype >> 4],
            is_interlaced: advises(format::ADVISE_INTERLACED_PCLUSTER),
            tail: None,
        };
        map.with_tail(inode, &header, &mut window).map(Self::Lclusters)
    }

    /// The extent that contains byte `position`, which must be before the end of `inode`.
    ///
    /// # Errors
    /// The index cannot be read or breaks the format.
    pub(in crate::read) fn extent_at(
        &self,
        inode: &Inode,
        window: &mut Window<'_>,
        position: u64,
    ) -> Result<CompressedExtent> {
        match self {
            Self::Fragment { offset } => Ok(CompressedExtent {
                range: ByteRange::new(0, inode.size),
                source: Pcluster::Fragment { offset: *offset },
            }),
            Self::Lclusters(map) => map.extent_at(inode, window, position),
            Self::Extents(extents) => extents.extent_at(inode, window, position),
        }
    }

    /// Checks the index entries inside an extent; returns how many there are.
    ///
    /// # Errors
    /// The index cannot be read or contradicts itself.
    pub(in crate::read) fn check_extent(
        &self,
        inode: &Inode,
        window: &mut Window<'_>,
        range: ByteRange,
    ) -> Result<u64> {
        match self {
            Self::Lclusters(map) => map.check_extent(inode, window, range),
            Self::Fragment { .. } | Self::Extents(_) => Ok(0),
        }
    }

    /// Why the kernel refuses to read `extent`, although it breaks no rule that reads rely on.
    ///
    /// # Errors
    /// The index of the last lcluster cannot be read or breaks the format.
    pub(in crate::read) fn kernel_refusal(
        &self,
        inode: &Inode,
        window: &mut Window<'_>,
        extent: &CompressedExtent,
    ) -> Result<Option<&'static str>> {
        match self {
            Self::Lclusters(map) => map.kernel_refusal(inode, window, extent),
            Self::Fragment { .. } | Self::Extents(_) => Ok(None),
        }
    }
}

/// The map header of `inode`, and the position after it.
///
/// # Errors
/// The map header cannot be read.
pub(in crate::read) fn read_header(inode: &Inode, window: &mut Window<'_>) -> Result<(MapHeader, u64)> {
    let position = inode.body_end().checked_next_multiple_of(8);
    let end = position.and_then(|position| position.checked_add(8));
    let Some((position, end)) = position.zip(end) else {
        return Err(Error::corrupt("map header past the address space", Place::inode(inode.nid)));
    };
    let bytes: [u8; MapHeader::SIZE] = window.array(position)?;
    Ok((MapHeader::from_prefix(&bytes).unwrap_or_default(), end))
}
