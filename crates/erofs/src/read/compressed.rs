//! Compressed files and their map header (docs/format/erofs.md, Compressed files).

use floe_image::{ByteRange, DecodedLen, DeviceId, Error, Nid, Place, Result, StoredBlock, StoredLen};

use super::{
    compact_index::CompactIndex,
    encoded_extents::EncodedExtents,
    inode::Inode,
    pcluster::{Index, LclusterMap},
    piece::{Piece, PieceData},
    plain,
    volume::{Space, Volume},
    window::Window,
};
use crate::format::{self, FRAGMENT_INODE_BIT, MapHeader, PCLUSTER_MAX_DSIZE, PCLUSTER_MAX_SIZE};

/// The layout of a compressed file's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CompressedLayout {
    /// The whole file is a fragment in the packed inode, at this offset.
    Fragment { offset: u64 },
    /// An index with an entry for each lcluster.
    Lclusters(LclusterMap),
    /// A record for each extent.
    Extents(EncodedExtents),
}

impl CompressedLayout {
    /// Reads the map header of `inode`.
    ///
    /// # Errors
    /// The map header or the index of the last lcluster cannot be read or breaks the format.
    pub(super) fn read(volume: &Volume, inode: &Inode, is_compact: bool) -> Result<Self> {
        let corrupt = |rule| Error::corrupt(rule, Place::inode(inode.nid));
        let mut window = Window::new(volume, inode.space, inode.nid);
        let (header, end) = read_header(inode, &mut window)?;
        if header.h_clusterbits >> FRAGMENT_INODE_BIT != 0 {
            let whole_file = u64::from_le_bytes(header.to_bytes()) & !(1 << 63);
            return Ok(Self::Fragment { offset: whole_file });
        }
        let block_size = volume.superblock.block_size;
        let lcluster_size_log2 = block_size.log2() + (header.h_clusterbits & format::CLUSTERBITS_MASK);
        if !is_compact && header.h_advise & format::ADVISE_EXTENTS != 0 {
            let extents = EncodedExtents::read(&mut window, &header, end, lcluster_size_log2);
            return extents.map(Self::Extents).map_err(|error| error.for_inode(inode.nid));
        }
        let advises = |bit: u16| header.h_advise & bit != 0;
        let has_big_pclusters = [advises(format::ADVISE_BIG_PCLUSTER_1), advises(format::ADVISE_BIG_PCLUSTER_2)];
        let is_big_allowed = volume.superblock.features.has(format::FEATURE_INCOMPAT_BIG_PCLUSTER);
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
        map.with_tail(volume, inode, &header, &mut window).map(Self::Lclusters)
    }

    /// The extent that contains byte `position`, which must be before the end of `inode`.
    ///
    /// # Errors
    /// The index cannot be read or breaks the format.
    pub(super) fn extent_at(&self, inode: &Inode, window: &mut Window<'_>, position: u64) -> Result<CompressedExtent> {
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
    pub(super) fn check_extent(&self, inode: &Inode, window: &mut Window<'_>, range: ByteRange) -> Result<u64> {
        match self {
            Self::Lclusters(map) => map.check_extent(inode, window, range),
            Self::Fragment { .. } | Self::Extents(_) => Ok(0),
        }
    }

    /// Why the kernel refuses to read `extent`, although it breaks no rule that reads rely on.
    ///
    /// # Errors
    /// The index of the last lcluster cannot be read or breaks the format.
    pub(super) fn kernel_refusal(
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
pub(super) fn read_header(inode: &Inode, window: &mut Window<'_>) -> Result<(MapHeader, u64)> {
    let position = inode.body_end().checked_next_multiple_of(8);
    let end = position.and_then(|position| position.checked_add(8));
    let Some((position, end)) = position.zip(end) else {
        return Err(Error::corrupt("map header past the address space", Place::inode(inode.nid)));
    };
    let bytes: [u8; MapHeader::SIZE] = window.array(position)?;
    Ok((MapHeader::from_prefix(&bytes).unwrap_or_default(), end))
}

/// A run of a compressed file that comes from one pcluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CompressedExtent {
    pub(super) range: ByteRange,
    pub(super) source: Pcluster,
}

/// The origin of the bytes of a [`CompressedExtent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pcluster {
    /// A hole.
    None,
    /// The packed inode, at this offset.
    Fragment { offset: u64 },
    /// A stored pcluster.
    Stored {
        /// The position of its first byte.
        position: u64,
        /// Its length in bytes.
        len: u64,
        /// The metadata space that contains the pcluster if it is inline, rather than in the data area.
        inline: Option<Space>,
        /// Its encoding.
        coding: Coding,
        /// The pcluster decodes to more than the extent.
        is_partial: bool,
    },
}

/// The encoding of a pcluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Coding {
    /// Uncompressed, starting with the extent's first byte.
    Shifted,
    /// Uncompressed, rotated to the block boundaries of the file.
    Interlaced,
    /// Compressed with this algorithm.
    Algorithm(u8),
}

/// The exclusive upper bound of block numbers: addresses have 48 bits.
const BLOCK_END_MAX: u64 = 1 << 48;

impl CompressedExtent {
    /// The piece of this extent that contains byte `position`.
    ///
    /// # Errors
    /// The pcluster breaks the format.
    pub(super) fn piece_at(&self, volume: &Volume, nid: Nid, position: u64) -> Result<Piece> {
        let (stored, stored_len, inline, coding, is_partial) = match self.source {
            Pcluster::None => return Ok(Piece::hole(self.range)),
            Pcluster::Fragment { offset } => {
                return Ok(Piece { range: self.range, data: PieceData::Fragment { offset } });
            }
            Pcluster::Stored { position, len, inline, coding, is_partial } => {
                (position, len, inline, coding, is_partial)
            }
        };
        let corrupt = |rule| Error::corrupt(rule, Place::inode_at(nid, stored));
        if stored_len > PCLUSTER_MAX_SIZE {
            return Err(corrupt("pcluster above 1 MiB"));
        }
        let block_size = volume.superblock.block_size;
        let end = stored.checked_add(stored_len).filter(|end| end >> block_size.log2() < BLOCK_END_MAX);
        end.ok_or(corrupt("pcluster past the address space"))?;
        let (range, past) = match coding {
            Coding::Algorithm(number) => {
                return self.encoded(volume, nid, (stored, stored_len, inline), number, is_partial);
            }
            _ if self.range.len() > stored_len => return Err(corrupt("plain pcluster shorter than its extent")),
            Coding::Shifted => (self.range, 0),
            Coding::Interlaced => match plain::interlaced_run(block_size, self.range, stored_len, position) {
                Some(run) => run,
                // mkfs.erofs up to 1.9.4 does not rotate inline data. Longer data is read rotated, as in the kernel.
                None if inline.is_some() => (self.range, 0),
                None => return Err(corrupt("interlaced pcluster shorter than its block")),
            },
        };
        let data = match inline {
            Some(space) => PieceData::Inline { space, position: stored + past },
            None => {
                let (device, offset) = volume.devices.resolve(stored + past);
                PieceData::Stored { device, offset }
            }
        };
        Ok(Piece { range, data })
    }

    fn encoded(
        &self,
        volume: &Volume,
        nid: Nid,
        (stored, stored_len, inline): (u64, u64, Option<Space>),
        algorithm: u8,
        is_partial: bool,
    ) -> Result<Piece> {
        let corrupt = |rule| Error::corrupt(rule, Place::inode_at(nid, stored));
        if algorithm >= format::COMPRESSION_MAX {
            return Err(Error::unsupported(format!("EROFS compression algorithm {algorithm} (inode {nid})")));
        }
        let encoding = volume.algorithms.encoding(algorithm);
        let encoding = encoding.ok_or(corrupt("algorithm not announced by the superblock"))?;
        let decoded_len = u32::try_from(self.range.len()).ok().filter(|len| u64::from(*len) <= PCLUSTER_MAX_DSIZE);
        let decoded_len = decoded_len.ok_or(corrupt("pcluster decodes to more than 12 MiB"))?;
        let stored_len = u32::try_from(stored_len).map_err(|_| corrupt("pcluster above 1 MiB"))?;
        let (device, offset) = match inline {
            None => volume.devices.resolve(stored),
            Some(Space::Image) => (DeviceId(0), stored),
            Some(Space::Metabox) => (volume.metabox_device()?, stored),
        };
        Ok(Piece {
            range: self.range,
            data: PieceData::Encoded(StoredBlock {
                device,
                offset,
                stored_len: StoredLen::Known(stored_len),
                decoded_len: if is_partial { DecodedLen::AtLeast(decoded_len) } else { DecodedLen::Exact(decoded_len) },
                encoding,
            }),
        })
    }
}
