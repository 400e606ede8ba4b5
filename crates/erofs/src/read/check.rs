//! The check of a whole image.
//!
//! [`Check::walk`] reads all metadata on the calling thread and returns the [`DataPart`]s whose data has yet to be
//! verified. [`Check::data`] lists the stored runs of a part and may be called from many threads at once. Nothing here
//! starts threads or decodes file data; the caller does both.

mod encoded_blocks;
mod inodes;
mod tree;
mod uses;

pub use self::tree::Walked;

use std::sync::Arc;

use floe_image::{BlockReader, ByteRange, DeviceId, Error, Finding, Nid, Place, Result, Severity, StoredBlock};

use super::{
    inode::Inode,
    layout::PieceData,
    map::Mapper,
    parameters,
    superblock::FoundSuperblock,
    volume::Volume,
    xattr_prefixes::{self, LongPrefix},
};
use crate::format::{self, SUPER_OFFSET};

/// The maximum number of file bytes in one [`DataPart`].
const PART_BYTES: u64 = 8 << 20;

/// A check of an image.
pub struct Check {
    volume: Volume,
    prefixes: Vec<LongPrefix>,
    /// The findings from opening the image.
    opening: Vec<Finding>,
}

/// A part of a file whose data has to be verified. Data that several files share belongs to a part of one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataPart {
    /// The file.
    pub nid: Nid,
    pub(crate) data: PartData,
}

/// The data of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartData {
    /// Uncompressed bytes of a device.
    Stored { device: DeviceId, range: ByteRange },
    /// The blocks that begin in this range of the file.
    Encoded { range: ByteRange },
}

/// A run of stored bytes that holds file data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataRun {
    /// Uncompressed bytes.
    Plain {
        /// The source that contains them.
        device: DeviceId,
        /// The offset of the first byte.
        offset: u64,
        /// The length in bytes.
        len: u64,
    },
    /// A block that must decode.
    Encoded(StoredBlock),
}

impl Check {
    /// Opens the image in `reader` as [`Erofs::open`](crate::Erofs::open) does, but continues if the superblock's
    /// checksum is wrong.
    ///
    /// # Errors
    /// The image is not EROFS, or too damaged for a walk: the error is the finding.
    pub fn open(reader: Arc<dyn BlockReader>) -> Result<Self> {
        let found = FoundSuperblock::read(reader.as_ref())?;
        let checksum = found.check_checksum(reader.as_ref()).err();
        let volume = Volume::open(reader, found.parse()?)?;
        let mut opening: Vec<Finding> = checksum.into_iter().map(|error| Finding::from(&error)).collect();
        opening.extend(findings(&volume)?);
        Ok(Self { prefixes: xattr_prefixes::read(&volume)?, volume, opening })
    }

    /// Walks the tree from the root. Checks the superblock, every inode with its xattrs and its map, the order of
    /// directory entries, the bounds of data, overlaps, link counts and cycles. Passes faults to `report`; stops soon
    /// after `is_cancelled` returns true.
    ///
    /// Time and memory are proportional to the length of the image, whatever sizes it claims.
    pub fn walk(&self, report: &mut dyn FnMut(Finding), is_cancelled: &dyn Fn() -> bool) -> Walked {
        for finding in &self.opening {
            report(finding.clone());
        }
        tree::walk(&self.volume, &self.prefixes, report, is_cancelled)
    }

    /// Passes the runs of a part to `each`, which reads and decodes them; passes the faults that `each` returns to
    /// `report`.
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

    /// Passes the blocks that begin in `range` of a file, and that are verified for this file, to `each`.
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

/// Checks the superblock of an image that could be opened.
///
/// # Errors
/// A configuration cannot be read.
fn findings(volume: &Volume) -> Result<Vec<Finding>> {
    let (superblock, mut findings) = (&volume.superblock, Vec::new());
    let mut warn = |rule: &'static str| {
        findings.push(Finding::warning(rule, Place::at(SUPER_OFFSET)));
    };
    let image_blocks = superblock.block_size.blocks(volume.image_len);
    if superblock.block_count > image_blocks {
        warn("block count past the end of the image");
    }
    let has_device_table = superblock.features.has(format::FEATURE_INCOMPAT_DEVICE_TABLE);
    if superblock.raw.extra_devices != 0 && !has_device_table {
        warn("number of devices without a device table");
    }
    if parameters::pcluster_blocks_max(volume.reader.as_ref(), superblock)?
        .is_some_and(|blocks| u64::from(blocks) << superblock.block_size.log2() > format::PCLUSTER_MAX_SIZE)
    {
        warn("LZ4 pclusters above 1 MiB announced");
    }
    Ok(findings)
}
