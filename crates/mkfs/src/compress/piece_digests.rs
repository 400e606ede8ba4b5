//! The digests of the pieces of all files. There may be millions, so each takes 16 bytes.

use super::piece::PieceDigest;

/// The digests of pieces, in the order of storage.
#[derive(Default)]
pub(crate) struct PieceDigests {
    records: Vec<Record>,
    /// Where the next piece is expected: behind the last one.
    next: Next,
}

/// A piece, or what the piece after it has.
#[derive(Clone, Copy)]
struct Record {
    inode: u32,
    /// The length in bytes, or [`HOLE`], or [`OFFSET`].
    len: u32,
    /// The hash; of a hole the length, and of an offset the offset of the next piece.
    value: u64,
}

/// Marks a hole.
const HOLE: u32 = u32::MAX;
/// Marks the offset of a piece that does not follow the last one.
const OFFSET: u32 = u32::MAX - 1;

/// The inode and the offset at which the last piece ended.
#[derive(Clone, Copy, Default)]
struct Next {
    inode: u32,
    offset: u64,
}

impl PieceDigests {
    pub(crate) fn push(&mut self, piece: PieceDigest) {
        let inode = u32::try_from(piece.inode).unwrap_or(u32::MAX);
        if self.next.offset_of(inode) != piece.offset {
            self.records.push(Record { inode, len: OFFSET, value: piece.offset });
        }
        let long = piece.len as u64;
        self.records.push(match (piece.hash, u32::try_from(piece.len)) {
            (Some(hash), Ok(len)) if len < OFFSET => Record { inode, len, value: hash },
            // A piece with data is in memory as a whole and never as long.
            _ => Record { inode, len: HOLE, value: long },
        });
        self.next = Next { inode, offset: piece.offset + long };
    }

    /// The digests in the order in which they were added.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PieceDigest> + Clone {
        let mut next = Next::default();
        self.records.iter().filter_map(move |record| {
            let Record { inode, len, value } = *record;
            if len == OFFSET {
                next = Next { inode, offset: value };
                return None;
            }
            let offset = next.offset_of(inode);
            let (long, hash) = if len == HOLE { (value, None) } else { (len.into(), Some(value)) };
            next = Next { inode, offset: offset + long };
            Some(PieceDigest { inode: inode as usize, offset, len: usize::try_from(long).unwrap_or(usize::MAX), hash })
        })
    }
}

impl Next {
    /// The offset at which a piece of this inode is expected.
    fn offset_of(self, inode: u32) -> u64 {
        if self.inode == inode { self.offset } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_kept() {
        let piece = |inode, offset, len, hash| PieceDigest { inode, offset, len, hash };
        let pieces = [
            piece(0, 0, 5, Some(7)),
            piece(1, 0, 4096, Some(u64::MAX)),
            piece(1, 4096, 1 << 30, None),
            piece(1, 4096 + (1 << 30), 17 << 30, None),
            piece(2, 0, 1, Some(0)),
            // The end of an earlier file, as in a fragment, and what follows it.
            piece(1, 4096 + (18 << 30), 9, Some(1)),
            piece(4, 0, 9, Some(2)),
            piece(4, 0, 3, Some(3)),
        ];
        let mut digests = PieceDigests::default();
        pieces.into_iter().for_each(|piece| digests.push(piece));
        assert_eq!(digests.iter().collect::<Vec<_>>(), pieces);
        assert_eq!(size_of::<Record>(), 16);
    }
}
