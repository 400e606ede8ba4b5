//! The extents of an inode according to its map.

use std::ops::ControlFlow;

use floe_image::{ByteRange, DeviceId, Nid, Result};

use super::{Erofs, algorithm_name};
use crate::read::{
    inode::Inode,
    layout::{Coding, CompressedExtent, Pcluster, PieceData},
    map::Mapper,
    parameters::Space,
    volume::Volume,
};

/// One extent of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentReport {
    /// The range within the file.
    pub range: ByteRange,
    /// The location of the bytes.
    pub place: ExtentPlace,
}

/// The location of an extent's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentPlace {
    /// A hole: the bytes are zero.
    Hole,
    /// The packed inode.
    Fragment {
        /// The offset in the packed inode.
        offset: u64,
    },
    /// The image or an extra device.
    Stored {
        /// The source.
        device: DeviceId,
        /// The offset of the first stored byte.
        offset: u64,
        /// The stored length in bytes.
        len: u64,
        /// The name of the algorithm; `None` if the bytes are uncompressed.
        algorithm: Option<&'static str>,
        /// The bytes follow the inode.
        is_inline: bool,
        /// The bytes are in the metabox, and `offset` is relative to it.
        is_in_metabox: bool,
        /// The block decodes to more than the extent.
        is_partial: bool,
    },
}

/// Visits the extents of an inode in order, according to its map, until `visit` breaks.
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
