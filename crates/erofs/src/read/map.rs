//! Maps file ranges to image ranges (docs/format/erofs.md, Where data is).

use floe_image::{ByteRange, DeviceId, Error, Extent, ExtentData, Place, Result, SeekTarget};

use super::{
    inode::Inode,
    layout::{CompressedExtent, DataMap, Piece, PieceData},
    parameters::Space,
    volume::{Special, Volume},
    window::Window,
};

/// Maps the bytes of one inode.
pub(super) struct Mapper<'volume> {
    volume: &'volume Volume,
    inode: &'volume Inode,
    window: Window<'volume>,
    map: DataMap,
}

impl<'volume> Mapper<'volume> {
    /// Creates a mapper of `inode`.
    ///
    /// # Errors
    /// The inode has no data, or its map header cannot be read or breaks the format.
    pub(super) fn new(volume: &'volume Volume, inode: &'volume Inode) -> Result<Self> {
        if !inode.has_content() {
            return Err(Error::WrongType { expected: "a file, a directory or a symbolic link", nid: inode.nid });
        }
        let map = match volume.special(inode.nid) {
            Some(special) => special.map(volume)?,
            None => DataMap::read(volume, inode)?,
        };
        Ok(Self { volume, inode, window: Window::new(volume, inode.space, inode.nid), map })
    }

    /// The piece that contains byte `position`, which must be before the inode's end.
    ///
    /// # Errors
    /// The map cannot be read or breaks the format.
    pub(super) fn piece_at(&mut self, position: u64) -> Result<Piece> {
        let piece = self.map.piece_at(self.inode, &mut self.window, position)?;
        match piece.range.offset() <= position && position < piece.range.end() && piece.range.end() <= self.inode.size {
            true => Ok(piece),
            false => {
                Err(Error::corrupt("extent does not contain its position", Place::inode_at(self.inode.nid, position)))
            }
        }
    }

    /// The compressed extent that contains byte `position`, which must be before the inode's end; `None` if the inode
    /// is not compressed.
    ///
    /// # Errors
    /// The map cannot be read or breaks the format.
    pub(super) fn compressed_extent_at(&mut self, position: u64) -> Result<Option<CompressedExtent>> {
        let map = self.map.compressed();
        map.map(|map| map.extent_at(self.inode, &mut self.window, position)).transpose()
    }

    /// Checks the index entries inside an extent that this mapper returned; returns how many there are.
    ///
    /// # Errors
    /// The map cannot be read or contradicts itself.
    pub(super) fn check_extent(&mut self, range: ByteRange) -> Result<u64> {
        let map = self.map.compressed();
        map.map_or(Ok(0), |map| map.check_extent(self.inode, &mut self.window, range))
    }

    /// Why the kernel refuses to read an extent that this mapper returned, although it breaks no rule that reads rely on.
    ///
    /// # Errors
    /// The map cannot be read or contradicts itself.
    pub(super) fn kernel_refusal(&mut self, extent: &CompressedExtent) -> Result<Option<&'static str>> {
        let map = self.map.compressed();
        map.map_or(Ok(None), |map| map.kernel_refusal(self.inode, &mut self.window, extent))
    }

    /// Appends the extents of the part of `range` that is before the inode's end.
    ///
    /// # Errors
    /// As for [`Mapper::piece_at`], or a fragment exceeds the packed inode.
    pub(super) fn extents(&mut self, range: ByteRange, extents: &mut Vec<Extent>) -> Result<()> {
        let first = extents.len();
        let mut position = range.offset();
        let end = range.end().min(self.inode.size);
        while position < end {
            let piece = self.piece_at(position)?;
            if position != range.offset() && piece.range.offset() != position {
                return Err(Error::corrupt("extents overlap", Place::inode_at(self.inode.nid, position)));
            }
            let wanted = ByteRange::between(position, end).intersection(piece.range);
            self.follow(piece, wanted, first, extents)?;
            position = piece.range.end();
        }
        Ok(())
    }

    /// The offset of the first byte at or after `offset` of the requested kind. Bytes in the packed inode count as
    /// data.
    ///
    /// # Errors
    /// As for [`Mapper::piece_at`].
    pub(super) fn seek(&mut self, offset: u64, target: SeekTarget) -> Result<Option<u64>> {
        let mut position = offset;
        while position < self.inode.size {
            let piece = self.piece_at(position)?;
            if (piece.data == PieceData::Hole) == (target == SeekTarget::Hole) {
                return Ok(Some(position));
            }
            position = piece.range.end();
        }
        Ok((target == SeekTarget::Hole && offset < self.inode.size).then_some(self.inode.size))
    }

    /// Appends the extents of `piece`. If the piece is in another inode, appends only the part within `wanted`.
    fn follow(&self, piece: Piece, wanted: ByteRange, first: usize, extents: &mut Vec<Extent>) -> Result<()> {
        let volume = self.volume;
        let data = match piece.data {
            PieceData::Hole => ExtentData::Hole,
            PieceData::Stored { device, offset } => ExtentData::Plain { device, offset },
            PieceData::Encoded(block) => ExtentData::Encoded { block, skip: 0 },
            PieceData::Inline { space: Space::Image, position } => {
                let len = usize::try_from(piece.range.len()).unwrap_or(usize::MAX);
                volume.check_metadata(Space::Image, position, len, self.inode.nid)?;
                ExtentData::Plain { device: DeviceId(0), offset: position }
            }
            PieceData::Inline { space: Space::Metabox, position } => {
                let metabox = volume.metabox.get();
                return self.follow_into(metabox, "metadata in a missing metabox", position, piece, wanted, extents);
            }
            PieceData::Fragment { offset } => {
                if volume.superblock.packed == Some(self.inode.nid) {
                    return Err(Error::corrupt("fragment in the packed inode", Place::inode(self.inode.nid)));
                }
                let packed = volume.packed.get();
                return self.follow_into(packed, "fragment without a packed inode", offset, piece, wanted, extents);
            }
        };
        push(extents, first, Extent { range: piece.range, data });
        Ok(())
    }

    /// Appends the extents of `wanted`, a part of `piece`, whose first byte is byte `offset` of `special`.
    fn follow_into(
        &self,
        special: Option<&Special>,
        missing: &'static str,
        offset: u64,
        piece: Piece,
        wanted: ByteRange,
        extents: &mut Vec<Extent>,
    ) -> Result<()> {
        let corrupt = |rule| Error::corrupt(rule, Place::inode(self.inode.nid));
        let special = &special.ok_or(corrupt(missing))?.inode;
        let past_end = corrupt("fragment past the end of its inode");
        let start = offset.checked_add(wanted.offset() - piece.range.offset());
        let start = start.filter(|start| start.checked_add(wanted.len()).is_some_and(|end| end <= special.size));
        let range = ByteRange::new(start.ok_or(past_end)?, wanted.len());
        let mut inner = Vec::new();
        Mapper::new(self.volume, special)?.extents(range, &mut inner)?;
        let first = extents.len();
        // A piece may extend past the end of its inode: only a read of the excess bytes fails (checked above).
        let whole = ByteRange::between(offset, special.size.min(offset.saturating_add(piece.range.len())));
        for extent in inner {
            let part = extent.range.intersection(whole);
            let skipped = part.offset() - extent.range.offset();
            let data = advance(extent.data, skipped).ok_or(corrupt("fragment past the end of its pcluster"))?;
            let place = ByteRange::new(piece.range.offset() + (part.offset() - offset), part.len());
            push(extents, first, Extent { range: place, data });
        }
        Ok(())
    }
}

/// The location `len` bytes after the beginning of `data`.
fn advance(data: ExtentData, len: u64) -> Option<ExtentData> {
    Some(match data {
        ExtentData::Hole => ExtentData::Hole,
        ExtentData::Plain { device, offset } => ExtentData::Plain { device, offset: offset.checked_add(len)? },
        ExtentData::Encoded { block, skip } => {
            ExtentData::Encoded { block, skip: skip.checked_add(u32::try_from(len).ok()?)? }
        }
    })
}

/// Appends an extent, or extends the last one if the two are contiguous. Leaves extents before `first` unchanged.
fn push(extents: &mut Vec<Extent>, first: usize, extent: Extent) {
    let last = extents.len().checked_sub(1).filter(|last| *last >= first).and_then(|last| extents.get_mut(last));
    if let Some(last) = last
        && last.range.end() == extent.range.offset()
        && !matches!(last.data, ExtentData::Encoded { .. })
        && advance(last.data, last.range.len()) == Some(extent.data)
    {
        last.range = ByteRange::between(last.range.offset(), extent.range.end());
        return;
    }
    extents.push(extent);
}
