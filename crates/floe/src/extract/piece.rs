//! Divides files into pieces for reading.

use crate::{ByteRange, Extent, ExtentData, FileSystem, Nid};

/// The maximum number of bytes in one read.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

/// The number of bytes of a file that one step maps.
const MAP_BYTES: u64 = 16 << 20;

/// Returns the next run of data in `range` of a file, of at most `len_max` bytes. Returns `None` if the rest is a hole,
/// or once `is_over` returns true.
///
/// # Errors
/// The map cannot be read or breaks the format.
pub(super) fn next_data(
    file_system: &dyn FileSystem,
    nid: Nid,
    range: ByteRange,
    len_max: u64,
    extents: &mut Vec<Extent>,
    is_over: impl Fn() -> bool,
) -> floe_image::Result<Option<ByteRange>> {
    let mut position = range.offset();
    while position < range.end() && !is_over() {
        let step = ByteRange::new(position, MAP_BYTES).intersection(range);
        extents.clear();
        file_system.map(nid, step, extents)?;
        for extent in extents.iter() {
            if extent.data != ExtentData::Hole && extent.range.end() > position {
                let start = extent.range.offset().max(position);
                return Ok(Some(ByteRange::new(start, len_max).intersection(range)));
            }
        }
        position = extents.last().map_or(step.end(), |last| last.range.end()).max(step.end());
    }
    Ok(None)
}

/// Passes the pieces of `extents` within `range` that contain data to `give`. Pieces end at block boundaries where
/// possible, so that a block is decoded directly into its piece.
pub(super) fn pieces(range: ByteRange, extents: &[Extent], mut give: impl FnMut(ByteRange) -> bool) {
    let mut piece = ByteRange::new(range.offset(), 0);
    for extent in extents {
        let wanted = extent.range.intersection(range);
        let is_data = extent.data != ExtentData::Hole && !wanted.is_empty();
        let fits = piece.end() == wanted.offset() && piece.len() + wanted.len() <= PIECE_BYTES;
        if is_data && fits {
            piece = ByteRange::between(piece.offset(), wanted.end());
            continue;
        }
        if !piece.is_empty() && !give(piece) {
            return;
        }
        piece = if is_data { wanted } else { ByteRange::new(wanted.end(), 0) };
        while piece.len() > PIECE_BYTES {
            if !give(ByteRange::new(piece.offset(), PIECE_BYTES)) {
                return;
            }
            piece = ByteRange::between(piece.offset() + PIECE_BYTES, piece.end());
        }
    }
    if !piece.is_empty() {
        give(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_image::DeviceId;

    const DATA: ExtentData = ExtentData::Plain { device: DeviceId(0), offset: 0 };
    const MIB: u64 = 1 << 20;

    #[test]
    fn pieces_leave_out_holes_and_keep_blocks_whole() {
        let extent = |offset, end, data| Extent { range: ByteRange::between(offset, end), data };
        for (name, range, extents, expected) in [
            ("nothing", (0, 0), vec![], vec![]),
            ("one", (0, 10), vec![extent(0, 10, DATA)], vec![(0, 10)]),
            (
                "hole",
                (0, 30),
                vec![extent(0, 10, DATA), extent(10, 20, ExtentData::Hole), extent(20, 30, DATA)],
                vec![(0, 10), (20, 30)],
            ),
            ("joined", (0, 20), vec![extent(0, 10, DATA), extent(10, 20, DATA)], vec![(0, 20)]),
            ("cut at the range", (5, 12), vec![extent(0, 10, DATA), extent(10, 20, DATA)], vec![(5, 12)]),
            (
                "whole blocks",
                (0, 2 * MIB),
                vec![extent(0, MIB - 1, DATA), extent(MIB - 1, 2 * MIB, DATA)],
                vec![(0, MIB - 1), (MIB - 1, 2 * MIB - 1), (2 * MIB - 1, 2 * MIB)],
            ),
            (
                "large",
                (0, 2 * MIB + 1),
                vec![extent(0, 2 * MIB + 1, DATA)],
                vec![(0, MIB), (MIB, 2 * MIB), (2 * MIB, 2 * MIB + 1)],
            ),
            ("only a hole", (0, 9), vec![extent(0, 9, ExtentData::Hole)], vec![]),
        ] {
            let mut given = Vec::new();
            pieces(ByteRange::between(range.0, range.1), &extents, |piece| {
                given.push((piece.offset(), piece.end()));
                true
            });
            assert_eq!(given, expected, "{name}");
        }
    }
}
