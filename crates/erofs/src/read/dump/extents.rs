//! The extents of an inode, as its map has them.

use std::ops::ControlFlow;

use floe_image::{ByteRange, DeviceId, Nid, Result};

use super::{Erofs, algorithm_name};
use crate::read::{
    compressed::{Coding, CompressedExtent, Pcluster},
    inode::Inode,
    map::Mapper,
    piece::PieceData,
    volume::{Space, Volume},
};

/// One extent of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentReport {
    /// The bytes of the file.
    pub range: ByteRange,
    /// Where they are.
    pub place: ExtentPlace,
}

/// Where the bytes of an extent are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentPlace {
    /// Nowhere: they are zero.
    Hole,
    /// In the packed inode.
    Fragment {
        /// The first of them in it.
        offset: u64,
    },
    /// In the image or on an extra device.
    Stored {
        /// The source.
        device: DeviceId,
        /// The first stored byte.
        offset: u64,
        /// How many bytes are stored.
        len: u64,
        /// The algorithm's name; `None` where they are stored as they are.
        algorithm: Option<&'static str>,
        /// They stand behind the inode.
        is_inline: bool,
        /// They stand in the metabox, and `offset` is an offset in that.
        is_in_metabox: bool,
        /// They decode to more than the extent.
        is_partial: bool,
    },
}

/// Visits the extents of an inode in order, as its map has them, until `visit` breaks off.
///
/// # Errors
/// The map cannot be read or breaks the format.
pub fn extents(erofs: &Erofs, nid: Nid, visit: &mut dyn FnMut(ExtentReport) -> ControlFlow<()>) -> Result<()> {
    let volume = erofs.volume();
    let inode = Inode::read(volume, nid)?;
    let mut mapper = Mapper::new(volume, &inode)?;
    let mut position = 0;
    while position < inode.size {
        let report = match mapper.compressed_extent_at(position)? {
            Some(extent) => of_compressed(volume, &extent),
            None => of_piece(&mut mapper, position)?,
        };
        if report.range.end() <= position || visit(report).is_break() {
            break;
        }
        position = report.range.end();
    }
    Ok(())
}

fn of_compressed(volume: &Volume, extent: &CompressedExtent) -> ExtentReport {
    let place = match extent.source {
        Pcluster::None => ExtentPlace::Hole,
        Pcluster::Fragment { offset } => ExtentPlace::Fragment { offset },
        Pcluster::Stored { position, len, inline, coding, is_partial } => {
            let (device, offset) = match inline {
                None => volume.devices.resolve(position),
                Some(_) => (DeviceId(0), position),
            };
            let algorithm = match coding {
                Coding::Algorithm(number) => Some(algorithm_name(number)),
                Coding::Shifted | Coding::Interlaced => None,
            };
            let is_in_metabox = inline == Some(Space::Metabox);
            ExtentPlace::Stored {
                device,
                offset,
                len,
                algorithm,
                is_inline: inline.is_some(),
                is_in_metabox,
                is_partial,
            }
        }
    };
    ExtentReport { range: extent.range, place }
}

fn of_piece(mapper: &mut Mapper<'_>, position: u64) -> Result<ExtentReport> {
    let piece = mapper.piece_at(position)?;
    let stored = |device, offset, inline: Option<Space>| ExtentPlace::Stored {
        device,
        offset,
        len: piece.range.len(),
        algorithm: None,
        is_inline: inline.is_some(),
        is_in_metabox: inline == Some(Space::Metabox),
        is_partial: false,
    };
    let place = match piece.data {
        PieceData::Stored { device, offset } => stored(device, offset, None),
        PieceData::Inline { space, position } => stored(DeviceId(0), position, Some(space)),
        PieceData::Fragment { offset } => ExtentPlace::Fragment { offset },
        PieceData::Hole | PieceData::Encoded(_) => ExtentPlace::Hole,
    };
    Ok(ExtentReport { range: piece.range, place })
}
