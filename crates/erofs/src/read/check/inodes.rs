//! Checks of one inode.

use floe_image::{ByteRange, DeviceId, Error, FileType, Nid, Place, Result, StoredLen};

use super::{DataPart, PART_BYTES, PartData, Severity, encoded_blocks::Added, tree::Walker};
use crate::{
    format,
    read::{
        content,
        inode::{Inode, Layout},
        layout::{Chunks, Coding, Pcluster, Piece, PieceData, read_header},
        map::Mapper,
        parameters::Space,
        window::Window,
        xattr::Xattrs,
    },
};

/// The known bits of `h_advise`.
const KNOWN_ADVISE: u16 = 0x3f;

/// A pcluster that the kernel reads rotated, although no released mkfs.erofs rotates it (docs/format/erofs.md, Plain pclusters).
const UNROTATED_INLINE_DATA: &str =
    "inline data of an interlaced file is not rotated by mkfs.erofs up to 1.9.4: the kernel reads other bytes";

impl Walker<'_> {
    /// Checks an inode, its xattrs and its map; returns whether its content can be checked.
    pub(super) fn inode(&mut self, inode: &Inode) -> bool {
        let nid = inode.nid;
        let body = ByteRange::between(inode.position, inode.body_end());
        if inode.space == Space::Image && self.marks.metadata(DeviceId(0), body) {
            self.add_finding(Severity::Error, "inode overlaps data", Place::inode(nid));
        }
        let [in_image, in_metabox] = &mut self.bodies;
        let bodies = if inode.space == Space::Image { in_image } else { in_metabox };
        if bodies.insert(body) {
            // The overlapping part was already checked for the other inode. Checking it again would never end if all
            // inodes overlap.
            self.add_finding(Severity::Error, "inode overlaps another one", Place::inode(nid));
            return false;
        }
        match Xattrs::new(self.volume, inode, self.prefixes).and_then(|xattrs| match xattrs {
            Some(xattrs) => xattrs.faults(&mut self.shared_xattrs),
            None => Ok(Vec::new()),
        }) {
            Ok(faults) => {
                for rule in faults {
                    self.add_finding(Severity::Warning, rule, Place::inode(nid));
                }
            }
            Err(error) => self.add_error(nid, error),
        }
        let data = self.data_of(inode);
        let is_sound = data.is_ok();
        if let Err(error) = data {
            self.add_error(nid, error);
        }
        is_sound
    }

    fn data_of(&mut self, inode: &Inode) -> Result<()> {
        // A special inode has to have content, because that contains metadata or fragments of other inodes.
        if !inode.has_content() && self.volume.special(inode.nid).is_none() {
            return Ok(());
        }
        if inode.file_type == FileType::Symlink {
            content::link_target(self.volume, inode)?;
        }
        let volume = self.volume;
        let mut mapper = Mapper::new(volume, inode)?;
        let stored_bytes = match inode.layout {
            Layout::Compressed { .. } if inode.size != 0 => Some(self.compressed_map(inode, &mut mapper)?),
            _ => self.map(inode, &mut mapper).map(|()| None)?,
        };
        if let Some(bytes) = stored_bytes.filter(|_| !self.is_cancelled()) {
            self.block_count(inode, bytes);
        }
        Ok(())
    }

    /// Compares the block count of an inode with the blocks that its pclusters occupy. The stated count may be lower:
    /// it may omit shared pclusters, and pclusters that were inline at first.
    fn block_count(&mut self, inode: &Inode, stored_bytes: u64) {
        let superblock = &self.volume.superblock;
        let features = superblock.features;
        let may_be_less =
            features.has(format::FEATURE_INCOMPAT_DEDUPE) || features.has(format::FEATURE_INCOMPAT_ZTAILPACKING);
        let found = superblock.block_size.blocks(stored_bytes);
        let stated = inode.blocks_512 >> (superblock.block_size.log2() - 9);
        if stated > found || stated < found && !may_be_less {
            let rule = format!("wrong number of compressed blocks: {stated} stated, {found} found");
            self.add_finding(Severity::Warning, rule, Place::inode(inode.nid));
        }
    }

    /// Checks the map of an uncompressed inode.
    fn map(&mut self, inode: &Inode, mapper: &mut Mapper<'_>) -> Result<()> {
        let mut window = Window::new(self.volume, inode.space, inode.nid);
        let mut names_device = false;
        let mut position = 0;
        while position < inode.size && !self.is_cancelled() {
            self.take_records(inode.nid, 1)?;
            let piece = mapper.piece_at(position)?;
            if let Layout::Chunked(chunks) = inode.layout {
                names_device |= Chunks { format: chunks }.record_at(inode, &mut window, position)?.stored_id != 0;
            }
            self.piece(inode, &piece)?;
            self.content(inode, &piece)?;
            position = piece.range.end();
        }
        if names_device && !self.volume.devices.has_any() {
            self.add_finding(
                Severity::Warning,
                "chunk on a device of an image without devices",
                Place::inode(inode.nid),
            );
        }
        Ok(())
    }

    /// Checks the map of a compressed inode; returns the number of bytes that its pclusters occupy.
    fn compressed_map(&mut self, inode: &Inode, mapper: &mut Mapper<'_>) -> Result<u64> {
        let volume = self.volume;
        let (header, _) = read_header(inode, &mut Window::new(volume, inode.space, inode.nid))?;
        let is_whole_fragment = header.h_clusterbits >> format::FRAGMENT_INODE_BIT != 0;
        if !is_whole_fragment && header.h_advise & !KNOWN_ADVISE != 0 {
            self.add_finding(Severity::Warning, "unknown bits in the map header", Place::inode(inode.nid));
        }
        let (mut position, mut stored) = (0, 0u64);
        while position < inode.size && !self.is_cancelled() {
            let Some(extent) = mapper.compressed_extent_at(position)? else { break };
            if extent.range.offset() != position {
                return Err(Error::corrupt("extents overlap", Place::inode_at(inode.nid, position)));
            }
            let record_count = mapper.check_extent(extent.range)?;
            self.take_records(inode.nid, record_count.max(1))?;
            let piece = extent.piece_at(volume, inode.nid, position)?;
            if let Some(rule) = mapper.kernel_refusal(&extent)? {
                self.add_finding(Severity::Warning, rule, Place::inode_at(inode.nid, position));
            }
            match extent.source {
                Pcluster::Stored { position: start, len, inline: None, .. } => {
                    stored = stored.saturating_add(len);
                    let (device, offset) = volume.devices.resolve(start);
                    self.run(inode, device, ByteRange::new(offset, len))?;
                }
                Pcluster::Stored { position: start, len, inline: Some(space), coding, .. } => {
                    let len = usize::try_from(len).unwrap_or(usize::MAX);
                    volume.check_metadata(space, start, len, inode.nid)?;
                    if coding == Coding::Interlaced {
                        self.add_finding(Severity::Warning, UNROTATED_INLINE_DATA, Place::inode_at(inode.nid, start));
                    }
                }
                Pcluster::Fragment { .. } => self.piece(inode, &piece)?,
                Pcluster::None => {}
            }
            self.content(inode, &piece)?;
            position = extent.range.end();
            if position <= piece.range.offset() {
                break;
            }
        }
        Ok(stored)
    }

    /// Queues the data of a file for verification; checks that no other directory shares the data of a directory.
    fn content(&mut self, inode: &Inode, piece: &Piece) -> Result<()> {
        match inode.file_type {
            FileType::Regular => {
                self.queue_data(inode.nid, piece);
                Ok(())
            }
            FileType::Directory if !self.contents.take(piece) => {
                Err(Error::corrupt("directory shares the content of another one", Place::inode(inode.nid)))
            }
            _ => Ok(()),
        }
    }

    /// Queues a piece of a file for verification: stored bytes that no earlier file has, and encoded blocks.
    fn queue_data(&mut self, nid: Nid, piece: &Piece) {
        match piece.data {
            PieceData::Stored { device, offset } => {
                let parts = &mut self.walked.parts;
                self.read.entry(device).or_default().insert_each_new(
                    ByteRange::new(offset, piece.range.len()),
                    |mut new| {
                        while !new.is_empty() {
                            let stored = ByteRange::new(new.offset(), PART_BYTES).intersection(new);
                            new = ByteRange::between(stored.end(), new.end());
                            match parts.last_mut() {
                                Some(DataPart { nid: last, data: PartData::Stored { device: before, range } })
                                    if (*last, *before, range.end()) == (nid, device, stored.offset())
                                        && range.len() + stored.len() <= PART_BYTES =>
                                {
                                    *range = ByteRange::between(range.offset(), stored.end());
                                }
                                _ => parts.push(DataPart { nid, data: PartData::Stored { device, range: stored } }),
                            }
                        }
                    },
                );
            }
            PieceData::Encoded(block) => {
                match self.walked.blocks.add(&block, nid, piece.range.offset()) {
                    Added::More => {}
                    Added::Nothing => return,
                    Added::OtherLength => {
                        let rule = "block that another file decodes to a different length";
                        return self.add_finding(Severity::Error, rule, Place::inode_at(nid, piece.range.offset()));
                    }
                }
                match self.walked.parts.last_mut() {
                    Some(DataPart { nid: last, data: PartData::Encoded { range } })
                        if *last == nid && piece.range.end() - range.offset() <= PART_BYTES =>
                    {
                        *range = ByteRange::between(range.offset(), piece.range.end());
                    }
                    _ => self.walked.parts.push(DataPart { nid, data: PartData::Encoded { range: piece.range } }),
                }
            }
            // Metadata and the packed inode are checked separately.
            PieceData::Hole | PieceData::Inline { .. } | PieceData::Fragment { .. } => {}
        }
    }

    fn piece(&mut self, inode: &Inode, piece: &Piece) -> Result<()> {
        match piece.data {
            PieceData::Hole => Ok(()),
            PieceData::Stored { device, offset } => self.run(inode, device, ByteRange::new(offset, piece.range.len())),
            PieceData::Encoded(block) => {
                let StoredLen::Known(len) = block.stored_len else { return Ok(()) };
                self.run(inode, block.device, ByteRange::new(block.offset, u64::from(len)))
            }
            PieceData::Inline { space, position } => {
                let len = usize::try_from(piece.range.len()).unwrap_or(usize::MAX);
                self.volume.check_metadata(space, position, len, inode.nid)
            }
            PieceData::Fragment { offset } => {
                let size = self.volume.packed.get().map(|packed| packed.inode.size);
                let end = offset.checked_add(piece.range.len());
                match end.zip(size) {
                    Some((end, size)) if end <= size && self.volume.superblock.packed != Some(inode.nid) => Ok(()),
                    _ => {
                        let rule = "fragment past the end of its inode";
                        Err(Error::corrupt(rule, Place::inode(inode.nid)))
                    }
                }
            }
        }
    }

    /// Checks the location of a run of stored bytes.
    fn run(&mut self, inode: &Inode, device: DeviceId, range: ByteRange) -> Result<()> {
        let place = Place { nid: Some(inode.nid), device, offset: Some(range.offset()) };
        if range.end() > self.volume.reader.device_len(device)? {
            return Err(Error::corrupt("data past the end of the image", place));
        }
        if device == DeviceId(0) && !self.volume.devices.is_mapped(range) {
            self.data_end = self.data_end.max(range.end());
        }
        let is_chunk = matches!(inode.layout, Layout::Chunked(_));
        if self.marks.data(device, range, is_chunk) {
            self.add_finding(Severity::Error, "data overlaps other data or metadata", place);
        }
        Ok(())
    }
}
