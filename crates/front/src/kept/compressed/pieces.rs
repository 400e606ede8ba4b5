//! What the extents of a file are in a map of compressed data.

use floe_erofs::write::{CompressedExtent, ExtentKind};
use floe_image::{DecodedLen, Extent, ExtentData, StoredBlock, StoredLen};

use crate::{
    geometry::{BLOCK_BYTES, KEPT_PLAIN_BLOCK},
    kept::{
        algorithms::algorithm_of,
        image_file::{IMAGE, ImageFile},
    },
};

/// A run of a file.
pub(super) struct Piece {
    pub(super) extent: CompressedExtent,
    /// The block; `None` if it is plain.
    pub(super) block: Option<StoredBlock>,
}

/// The pieces of a file with these extents; `None` if a map cannot have them.
pub(super) fn pieces_of(image: &ImageFile, extents: &[Extent], size: u64) -> Option<Vec<Piece>> {
    let (mut pieces, mut position) = (Vec::new(), 0);
    for extent in extents {
        let len = extent.range.len();
        if extent.range.offset() != position {
            return None;
        }
        position = extent.range.end();
        match extent.data {
            ExtentData::Encoded { block, skip: 0 } if decoded_len(&block) == Some(len) => {
                let (start, count) = blocks_of(&block)?;
                image.contains(start, count).then_some(())?;
                image.algorithms().has(algorithm_of(&block)?).then_some(())?;
                let kind = ExtentKind::Encoded { partial: false };
                pieces.push(Piece { extent: extent_at(start, count, len, kind)?, block: Some(block) });
            }
            ExtentData::Plain { device: IMAGE, offset } => {
                let (start, count) = (offset / BLOCK_BYTES, len.div_ceil(BLOCK_BYTES));
                (offset.is_multiple_of(BLOCK_BYTES) && image.contains(start, count)).then_some(())?;
                for index in 0..count {
                    let len = BLOCK_BYTES.min(len - index * BLOCK_BYTES);
                    let extent = extent_at(start + index, 1, len, ExtentKind::Plain)?;
                    pieces.push(Piece { extent, block: None });
                }
            }
            _ => return None,
        }
    }
    (position == size && fit_lclusters(&pieces)).then_some(pieces)
}

fn extent_at(start: u64, count: u64, len: u64, kind: ExtentKind) -> Option<CompressedExtent> {
    let (len, stored_len) = (u32::try_from(len).ok()?, u32::try_from(count * BLOCK_BYTES).ok()?);
    Some(CompressedExtent { len, stored_len, block: u64::from(KEPT_PLAIN_BLOCK) + start, kind })
}

/// Whether an index can have each piece: each begins in another lcluster than the next one, and the lcluster behind the head of
/// a block states the number of its blocks, unless that is 1.
fn fit_lclusters(pieces: &[Piece]) -> bool {
    let mut start = 0;
    pieces.iter().enumerate().all(|(index, Piece { extent, .. })| {
        let end = start + u64::from(extent.len);
        let crossed = end / BLOCK_BYTES - start / BLOCK_BYTES;
        start = end;
        let is_last = index + 1 == pieces.len();
        crossed >= if u64::from(extent.stored_len) > BLOCK_BYTES { 2 } else { u64::from(!is_last) }
    })
}

/// The decoded length, if that is exact.
pub(super) fn decoded_len(block: &StoredBlock) -> Option<u64> {
    match block.decoded_len {
        DecodedLen::Exact(len) => Some(len.into()),
        DecodedLen::AtLeast(_) | DecodedLen::AtMost(_) => None,
    }
}

/// The first block in the image and the number of blocks, if these are whole.
pub(super) fn blocks_of(block: &StoredBlock) -> Option<(u64, u64)> {
    let StoredLen::Known(len) = block.stored_len else { return None };
    let is_whole = (block.offset | u64::from(len)).is_multiple_of(BLOCK_BYTES) && len > 0 && block.device == IMAGE;
    is_whole.then_some((block.offset / BLOCK_BYTES, u64::from(len) / BLOCK_BYTES))
}

#[cfg(test)]
mod tests {
    use floe_image::{ByteRange, DeviceId, Encoding, Padding};

    use super::*;
    use crate::kept::algorithms::Algorithms;

    const LZ4: Encoding = Encoding::Lz4 { padding: Padding::Leading, window_bytes: 65_535 };

    fn encoded(offset: u64, len: u64, at: (u64, u32, u32), skip: u32) -> Extent {
        let (block, stored_len, decoded_len) = at;
        let block = StoredBlock {
            device: DeviceId(0),
            offset: block,
            stored_len: StoredLen::Known(stored_len),
            decoded_len: DecodedLen::Exact(decoded_len),
            encoding: LZ4,
        };
        Extent { range: ByteRange::new(offset, len), data: ExtentData::Encoded { block, skip } }
    }

    fn plain(offset: u64, len: u64, at: u64) -> Extent {
        Extent { range: ByteRange::new(offset, len), data: ExtentData::Plain { device: IMAGE, offset: at } }
    }

    #[test]
    fn files_have_whole_blocks_for_themselves() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1 << 20).expect("lengthened");
        let image = ImageFile::new(file).expect("it has a length").decoding(Algorithms::LZ4);
        let partial = {
            let mut extent = encoded(0, 9000, (4096, 4096, 9000), 0);
            if let ExtentData::Encoded { block, .. } = &mut extent.data {
                block.decoded_len = DecodedLen::AtLeast(9000);
            }
            extent
        };
        let hole = Extent { range: ByteRange::new(0, 4096), data: ExtentData::Hole };
        type Row<'a> = (&'a [Extent], Option<usize>);
        let rows: [Row<'_>; 16] = [
            (&[encoded(0, 9000, (4096, 4096, 9000), 0)], Some(1)),
            (&[encoded(0, 9000, (4096, 8192, 9000), 0)], Some(1)),
            (&[encoded(0, 9000, (4096, 4096, 9000), 0), encoded(9000, 100, (8192, 4096, 100), 0)], Some(2)),
            // A block that others share.
            (&[encoded(0, 9000, (4096, 4096, 9000), 0), encoded(9000, 100, (8192, 4096, 500), 7)], None),
            (&[encoded(0, 300, (8192, 4096, 500), 0)], None),
            (&[encoded(0, 9000, (4096, 4096, 9000), 0), plain(9000, 100, 8192)], Some(2)),
            (&[plain(0, 8192, 8192), encoded(8192, 9000, (4096, 4096, 9000), 0)], Some(3)),
            // Not a block of the image.
            (&[encoded(0, 9000, (4095, 4096, 9000), 0)], None),
            (&[encoded(0, 9000, (4096, 4000, 9000), 0)], None),
            (&[encoded(0, 9000, (1 << 20, 4096, 9000), 0)], None),
            (&[plain(0, 8192, 8193)], None),
            // Two extents would begin in one lcluster; or no lcluster is left for the number of blocks.
            (&[encoded(0, 4000, (4096, 4096, 4000), 0), encoded(4000, 100, (8192, 4096, 100), 0)], None),
            (&[encoded(0, 8000, (4096, 8192, 8000), 0)], None),
            // A block is decoded in part; a hole; a gap.
            (&[partial], None),
            (&[hole, encoded(4096, 9000, (4096, 4096, 9000), 0)], None),
            (&[encoded(4096, 9000, (4096, 4096, 9000), 0)], None),
        ];
        for (extents, expected) in rows {
            let size = extents.last().map_or(0, |extent| extent.range.end());
            let found = pieces_of(&image, extents, size);
            assert_eq!(found.map(|found| found.len()), expected, "{extents:?}");
        }
    }
}
