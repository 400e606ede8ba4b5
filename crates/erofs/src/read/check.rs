//! Checks of a whole image.
//!
//! [`Check::walk`] reads all metadata, on the calling thread. It gives the [`DataPart`]s that are left to be decoded;
//! [`Check::data`] names the runs of stored bytes of one, and may be called on many threads at once. Nothing here starts
//! threads or decodes file data: that is the caller's.

mod content;
mod encoded_blocks;
mod inodes;
mod marks;
mod superblock;
mod tree;

use std::sync::Arc;

use floe_image::{BlockReader, ByteRange, DeviceId, Error, Finding, Nid, Result, Severity, StoredBlock};

pub use self::tree::Walked;
use super::{
    inode::Inode,
    map::Mapper,
    piece::PieceData,
    superblock::FoundSuperblock,
    volume::Volume,
    xattr_prefixes::{self, LongPrefix},
};

/// How many bytes of a file one [`DataPart`] has at most.
const PART_BYTES: u64 = 8 << 20;

/// A check of an image.
pub struct Check {
    volume: Volume,
    prefixes: Vec<LongPrefix>,
    /// What was found when the image was opened.
    opening: Vec<Finding>,
}

/// A part of a file whose data is to be checked. What several files share is in a part of one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataPart {
    /// The file.
    pub nid: Nid,
    pub(crate) data: PartData,
}

/// What there is to be checked in a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartData {
    /// Bytes of a device, as they are.
    Stored { device: DeviceId, range: ByteRange },
    /// The blocks that begin in this range of the file.
    Encoded { range: ByteRange },
}

/// A run of stored bytes that a file's data comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataRun {
    /// Bytes as they are.
    Plain {
        /// The source they lie in.
        device: DeviceId,
        /// The first of them.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// A block that must decode.
    Encoded(StoredBlock),
}

impl Check {
    /// Opens the image in `reader`, as [`Erofs::open`](crate::Erofs::open) does, but goes on where the superblock's
    /// checksum is wrong.
    ///
    /// # Errors
    /// The image is not EROFS, or so broken that there is nothing to walk: the error is the finding.
    pub fn open(reader: Arc<dyn BlockReader>) -> Result<Self> {
        let found = FoundSuperblock::read(reader.as_ref())?;
        let checksum = found.check_checksum(reader.as_ref()).err();
        let volume = Volume::open(reader, found.parse()?)?;
        let mut opening: Vec<Finding> = checksum.into_iter().map(|error| Finding::from(&error)).collect();
        opening.extend(superblock::findings(&volume)?);
        Ok(Self { prefixes: xattr_prefixes::read(&volume)?, volume, opening })
    }

    /// Walks the tree from the root: the superblock, every inode with its xattrs and its map, the order of directory
    /// entries, the bounds of data, overlaps, link counts and cycles. Tells `report` what is wrong, and ends soon once
    /// `is_cancelled`.
    ///
    /// Time and memory are in proportion to the bytes of the image, whatever sizes it claims.
    pub fn walk(&self, report: &mut dyn FnMut(Finding), is_cancelled: &dyn Fn() -> bool) -> Walked {
        for finding in &self.opening {
            report(finding.clone());
        }
        tree::walk(&self.volume, &self.prefixes, report, is_cancelled)
    }

    /// Gives the runs of a part to `each`, which reads and decodes them; tells `report` what `each` found wrong.
    pub fn data(
        &self,
        walked: &Walked,
        part: &DataPart,
        each: &mut dyn FnMut(DataRun) -> Result<()>,
        report: &mut dyn FnMut(Finding),
    ) {
        let mut each = |run| {
            if let Err(error) = each(run) {
                let path = walked.path(&self.volume, part.nid);
                report(Finding::from(&error.for_inode(part.nid)).with_path(path));
            }
        };
        let result = match part.data {
            PartData::Stored { device, range } => {
                each(DataRun::Plain { device, offset: range.offset(), len: range.len() });
                Ok(())
            }
            PartData::Encoded { range } => self.blocks(walked, part.nid, range, &mut each),
        };
        if let Err(error) = result {
            let path = walked.path(&self.volume, part.nid);
            report(Finding::from(&error.for_inode(part.nid)).with_path(path));
        }
    }

    /// Gives the blocks that begin in `range` of a file and that are decoded for this file.
    fn blocks(&self, walked: &Walked, nid: Nid, range: ByteRange, each: &mut dyn FnMut(DataRun)) -> Result<(), Error> {
        let inode = Inode::read(&self.volume, nid)?;
        let mut mapper = Mapper::new(&self.volume, &inode)?;
        let (mut position, end) = (range.offset(), range.end().min(inode.size));
        while position < end {
            let piece = mapper.piece_at(position)?;
            if let PieceData::Encoded(block) = piece.data
                && walked.blocks.is_decoded_for(&block, nid, piece.range.offset())
            {
                each(DataRun::Encoded(block));
            }
            position = piece.range.end();
        }
        Ok(())
    }
}
