//! Extents of compressed files and their pclusters (docs/format/erofs.md, Compressed files).

use floe_image::{ByteRange, DecodedLen, DeviceId, Error, Nid, Place, Result, StoredBlock, StoredLen};

use super::{Piece, PieceData};
use crate::{
    format::{self, PCLUSTER_MAX_DSIZE, PCLUSTER_MAX_SIZE},
    read::{
        parameters::{Parameters, Space},
        superblock::BlockSize,
    },
};

/// A run of a compressed file that comes from one pcluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) struct CompressedExtent {
    pub(in crate::read) range: ByteRange,
    pub(in crate::read) source: Pcluster,
}

/// The origin of the bytes of a [`CompressedExtent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) enum Pcluster {
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
pub(in crate::read) enum Coding {
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
    pub(in crate::read) fn piece_at(&self, parameters: &Parameters, nid: Nid, position: u64) -> Result<Piece> {
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
        let block_size = parameters.superblock.block_size;
        let end = stored.checked_add(stored_len).filter(|end| end >> block_size.log2() < BLOCK_END_MAX);
        end.ok_or(corrupt("pcluster past the address space"))?;
        let (range, past) = match coding {
            Coding::Algorithm(number) => {
                return self.encoded(parameters, nid, (stored, stored_len, inline), number, is_partial);
            }
            _ if self.range.len() > stored_len => return Err(corrupt("plain pcluster shorter than its extent")),
            Coding::Shifted => (self.range, 0),
            Coding::Interlaced => match interlaced_run(block_size, self.range, stored_len, position) {
                Some(run) => run,
                // mkfs.erofs up to 1.9.4 does not rotate inline data. Longer data is read rotated, as in the kernel.
                None if inline.is_some() => (self.range, 0),
                None => return Err(corrupt("interlaced pcluster shorter than its block")),
            },
        };
        let data = match inline {
            Some(space) => PieceData::Inline { space, position: stored + past },
            None => {
                let (device, offset) = parameters.devices.resolve(stored + past);
                PieceData::Stored { device, offset }
            }
        };
        Ok(Piece { range, data })
    }

    fn encoded(
        &self,
        parameters: &Parameters,
        nid: Nid,
        (stored, stored_len, inline): (u64, u64, Option<Space>),
        algorithm: u8,
        is_partial: bool,
    ) -> Result<Piece> {
        let corrupt = |rule| Error::corrupt(rule, Place::inode_at(nid, stored));
        if algorithm >= format::COMPRESSION_MAX {
            return Err(Error::unsupported(format!("EROFS compression algorithm {algorithm} (inode {nid})")));
        }
        let encoding = parameters.algorithms.encoding(algorithm);
        let encoding = encoding.ok_or(corrupt("algorithm not announced by the superblock"))?;
        let decoded_len = u32::try_from(self.range.len()).ok().filter(|len| u64::from(*len) <= PCLUSTER_MAX_DSIZE);
        let decoded_len = decoded_len.ok_or(corrupt("pcluster decodes to more than 12 MiB"))?;
        let stored_len = u32::try_from(stored_len).map_err(|_| corrupt("pcluster above 1 MiB"))?;
        let (device, offset) = match inline {
            None => parameters.devices.resolve(stored),
            Some(Space::Image) => (DeviceId(0), stored),
            Some(Space::Metabox) => (parameters.metabox_device()?, stored),
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

/// The contiguous run of an interlaced extent that contains byte `position`: its range in the file, and its offset in
/// the pcluster of `stored_len` bytes.
///
/// The part up to the first block boundary of the file is stored at the end of the pcluster, the rest at its beginning.
/// `None` if the pcluster is too short.
fn interlaced_run(
    block_size: BlockSize,
    extent: ByteRange,
    stored_len: u64,
    position: u64,
) -> Option<(ByteRange, u64)> {
    let to_boundary = block_size.bytes() - block_size.offset_within(extent.offset());
    let boundary = extent.offset().saturating_add(to_boundary);
    let (head, tail) = (ByteRange::between(extent.offset(), boundary), ByteRange::between(boundary, extent.end()));
    match position < boundary {
        true => Some((head.intersection(extent), stored_len.checked_sub(to_boundary)?)),
        false => Some((tail, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interlaced_extents_are_rotated_to_the_files_blocks() {
        let block_size = BlockSize::from_log2(12).expect("4096 is a block size");
        for (start, len, position, expected) in [
            (0, 4096, 0, Some((0, 4096, 0))),
            (100, 4096, 100, Some((100, 3996, 100))),
            (100, 4096, 4096, Some((4096, 100, 0))),
            (100, 50, 120, Some((100, 50, 100))),
        ] {
            let found = interlaced_run(block_size, ByteRange::new(start, len), 4096, position);
            assert_eq!(found.map(|(range, offset)| (range.offset(), range.len(), offset)), expected, "{start} {len}");
        }
        assert_eq!(interlaced_run(block_size, ByteRange::new(0, 50), 50, 0), None);
    }
}
