//! The file of the original, in which the kernel reads data by itself; and where plain data is in it.

use std::{fs::File, io, os::unix::fs::FileExt};

use floe_image::{ByteRange, DeviceId, Extent, ExtentData, FileSystem, Nid};

use super::{algorithms::Algorithms, not_kept::NotKept};
use crate::{
    fault::lasting,
    geometry::{BLOCK_BYTES, KEPT_PLAIN_BLOCK, META_BLOCK},
};

/// The source of an original that has its data: the image itself.
pub(super) const IMAGE: DeviceId = DeviceId(0);

/// How many bytes of a file are mapped at a time at most, and how this grows: most files of a compressed image are compressed
/// from the first block on.
const MAP_STEP_BYTES: u64 = 64 << 20;
const MAP_STEP_GROWTH: u64 = 8;

/// The number of blocks that the image can have addresses for in a kept image.
const BLOCK_COUNT_MAX: u32 = META_BLOCK - KEPT_PLAIN_BLOCK;

/// The file of an image, in which the kernel may read data by itself: an extra device of the kept image.
///
/// Other programs can change it as they can change an image that the kernel has mounted: the kernel then shows the new bytes.
#[derive(Debug)]
pub struct ImageFile {
    file: File,
    /// The number of whole blocks, as far as they can have addresses.
    block_count: u32,
    /// What the kernel may decode.
    algorithms: Algorithms,
}

/// Where the data of a file is, if it is plain.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct PlainFile {
    /// The first of its blocks in the image; `None` if there are none.
    pub(super) start_block: Option<u32>,
    /// A copy of the bytes behind the last block, which do not fill another one in the image; empty if the blocks have all.
    pub(super) tail: Vec<u8>,
}

/// A part of a file with adjacent bytes of the image.
#[derive(Clone, Copy)]
struct Piece {
    range: ByteRange,
    /// The offset in the image.
    offset: u64,
}

impl ImageFile {
    /// `file` contains an image from its first byte on.
    ///
    /// # Errors
    /// Its length cannot be read.
    pub fn new(file: File) -> io::Result<Self> {
        let block_count = file.metadata()?.len() / BLOCK_BYTES;
        let block_count = u32::try_from(block_count).unwrap_or(u32::MAX).min(BLOCK_COUNT_MAX);
        Ok(Self { file, block_count, algorithms: Algorithms::default() })
    }

    /// The kernel reads plain data, and also decodes small files with these algorithms.
    #[must_use]
    pub fn decoding(self, algorithms: Algorithms) -> Self {
        Self { algorithms, ..self }
    }

    /// What the kernel may decode.
    pub fn algorithms(&self) -> Algorithms {
        self.algorithms
    }

    /// Whether the image has these blocks, and they have addresses.
    pub(super) fn contains(&self, start: u64, count: u64) -> bool {
        start.checked_add(count).is_some_and(|end| end <= self.block_count.into())
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where the data of file `nid` of `original` is; `None` if the kernel cannot read it without copies of more than
    /// `tail_bytes_max` bytes.
    pub(super) fn find(
        &self,
        original: &dyn FileSystem,
        nid: Nid,
        size: u64,
        tail_bytes_max: u64,
    ) -> Result<Option<PlainFile>, NotKept> {
        if self.is_short_for(size) {
            return Ok(None);
        }
        let Some(pieces) = pieces_of(original, nid, size)? else { return Ok(None) };
        let (tail_len, whole_len) = (size % BLOCK_BYTES, size - size % BLOCK_BYTES);
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Ok(None) };
        if pieces.len() == 1
            && let Some(start) = self.block_of(first.offset, size)
            && self.is_padded(first.offset + size)?
        {
            return Ok(Some(PlainFile { start_block: Some(start), tail: Vec::new() }));
        }
        let start_block = match whole_len {
            0 => None,
            _ if first.range.len() >= whole_len => match self.block_of(first.offset, whole_len) {
                None => return Ok(None),
                start => start,
            },
            _ => return Ok(None),
        };
        if tail_len > tail_bytes_max || last.range.offset() > whole_len {
            return Ok(None);
        }
        let mut tail = vec![0; tail_len as usize];
        let offset = last.offset + (whole_len - last.range.offset());
        match self.file.read_exact_at(&mut tail, offset) {
            Ok(()) => Ok(Some(PlainFile { start_block, tail })),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(NotKept::File(error)),
        }
    }

    /// The first block in the image of a range of a file, which ends at a block boundary or with the file; `None` if the kernel
    /// cannot read it there.
    pub(super) fn find_range(
        &self,
        original: &dyn FileSystem,
        nid: Nid,
        range: ByteRange,
    ) -> Result<Option<u32>, NotKept> {
        if self.is_short_for(range.len()) {
            return Ok(None);
        }
        let Some(piece) = piece_of(original, nid, range)? else { return Ok(None) };
        let Some(block) = self.block_of(piece.offset, range.len()) else { return Ok(None) };
        Ok(self.is_padded(piece.offset + range.len())?.then_some(block))
    }

    /// Whether the image is too short for this many plain bytes, of which at most a part of a block is elsewhere. A corrupt image
    /// can state any size.
    fn is_short_for(&self, len: u64) -> bool {
        len / BLOCK_BYTES > self.block_count.into()
    }

    /// The first block of bytes that begin a block, if the image has all of their blocks.
    fn block_of(&self, offset: u64, len: u64) -> Option<u32> {
        let end = offset.checked_add(len)?.div_ceil(BLOCK_BYTES);
        let start = u32::try_from(offset / BLOCK_BYTES).ok()?;
        (offset.is_multiple_of(BLOCK_BYTES) && self.contains(start.into(), end - u64::from(start))).then_some(start)
    }

    /// Whether the bytes from `end` to the end of the block are zeros: programs that map the file see them.
    fn is_padded(&self, end: u64) -> Result<bool, NotKept> {
        let mut rest = vec![0; (end.next_multiple_of(BLOCK_BYTES) - end) as usize];
        match self.file.read_exact_at(&mut rest, end) {
            Ok(()) => Ok(rest.iter().all(|byte| *byte == 0)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(NotKept::File(error)),
        }
    }
}

/// The parts of a file, if all of it is plain and consists of at most two; else `None`.
fn pieces_of(original: &dyn FileSystem, nid: Nid, size: u64) -> Result<Option<Vec<Piece>>, NotKept> {
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut position, mut step) = (0, BLOCK_BYTES);
    while position < size {
        let range = ByteRange::between(position, size.min(position.saturating_add(step)));
        let Some(next) = plain_pieces(original, nid, range)? else { return Ok(None) };
        for piece in next {
            match pieces.last_mut() {
                Some(last) if last.offset + last.range.len() == piece.offset => {
                    last.range = ByteRange::between(last.range.offset(), piece.range.end());
                }
                _ => pieces.push(piece),
            }
        }
        if pieces.len() > 2 {
            return Ok(None);
        }
        (position, step) = (range.end(), MAP_STEP_BYTES.min(step * MAP_STEP_GROWTH));
    }
    Ok(Some(pieces))
}

/// The part of the image with all bytes of a range of a file, if they are plain and adjacent.
fn piece_of(original: &dyn FileSystem, nid: Nid, range: ByteRange) -> Result<Option<Piece>, NotKept> {
    let pieces = plain_pieces(original, nid, range)?.unwrap_or_default();
    let Some(first) = pieces.first().copied() else { return Ok(None) };
    let is_adjacent = |piece: &Piece| piece.range.offset() - first.range.offset() == piece.offset - first.offset;
    Ok(pieces.iter().all(|piece| piece.offset >= first.offset && is_adjacent(piece)).then_some(first))
}

/// The parts of a range of a file, if all are plain; else `None`.
fn plain_pieces(original: &dyn FileSystem, nid: Nid, range: ByteRange) -> Result<Option<Vec<Piece>>, NotKept> {
    let mut extents: Vec<Extent> = Vec::new();
    let mapped = original.map(nid, range, &mut extents);
    // A file with a broken map is read through Floe, which tells its readers what is wrong.
    if lasting(mapped).map_err(NotKept::Original)?.is_none() {
        return Ok(None);
    }
    let mut position = range.offset();
    let mut pieces = Vec::with_capacity(extents.len());
    for extent in &extents {
        let part = extent.range.intersection(range);
        let ExtentData::Plain { device: IMAGE, offset } = extent.data else { return Ok(None) };
        let offset = part.offset().checked_sub(extent.range.offset()).and_then(|skipped| offset.checked_add(skipped));
        // No file is longer than its image, whose length is a signed number.
        let offset = offset.filter(|offset| offset.checked_add(part.len()).is_some_and(|end| end <= i64::MAX as u64));
        let Some(offset) = offset.filter(|_| part.offset() == position) else { return Ok(None) };
        position = part.end();
        pieces.push(Piece { range: part, offset });
    }
    Ok((position == range.end()).then_some(pieces))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gets_whole_blocks_of_the_image() {
        let file = tempfile::tempfile().expect("a file");
        let mut bytes = vec![0; 10_000];
        bytes[5000] = 1;
        file.write_all_at(&bytes, 0).expect("written");
        let plain = ImageFile::new(file).expect("it has a length");
        for (offset, len, block, is_padded) in [
            (0, 8192, Some(0), true),
            (4096, 4096, Some(1), true),
            (4096, 905, Some(1), true),
            (4096, 904, Some(1), false),
            (1, 1, None, true),
            (512, 4096, None, false),
            // The last block is not whole.
            (8192, 1, None, false),
            (4096, 4097, None, false),
            (1 << 62, 4096, None, true),
        ] {
            assert_eq!(plain.block_of(offset, len), block, "{offset} {len}");
            assert_eq!(plain.is_padded(offset + len).expect("read"), is_padded, "{offset} {len}");
        }
        assert_eq!(plain.block_of(u64::MAX, 1), None);
    }
}
