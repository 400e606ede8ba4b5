//! Uncompressed pclusters (docs/format/erofs.md, Plain pclusters).

use floe_image::ByteRange;

use super::block_size::BlockSize;

/// The contiguous run of an interlaced extent that contains byte `position`: its range in the file, and its offset in
/// the pcluster of `stored_len` bytes.
///
/// The part up to the first block boundary of the file is stored at the end of the pcluster, the rest at its beginning.
/// `None` if the pcluster is too short.
pub(super) fn interlaced_run(
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
