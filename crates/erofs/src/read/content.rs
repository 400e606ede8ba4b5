//! The content of directories, symbolic links and the special inodes.

use floe_image::{ByteRange, Bytes, DeviceId, Error, Extent, ExtentData, Nid, Place, Result};

use super::{
    inode::Inode,
    map::Mapper,
    parameters::{Parameters, Space},
    volume::Volume,
    window::Metadata,
};

/// The `len` bytes of `inode` from `position` on, which must end before the end of the inode. `len` is at most
/// [`BlockReader::STORED_LEN_MAX`](floe_image::BlockReader).
///
/// # Errors
/// The bytes cannot be read, or the map breaks the format.
pub(super) fn read(volume: &Volume, inode: &Inode, position: u64, len: usize) -> Result<Bytes> {
    let mut mapper = Mapper::new(volume, inode)?;
    read_with(volume, &mut mapper, inode, position, len)
}

/// The longest symbolic link target in bytes.
const LINK_TARGET_LEN_MAX: u64 = 4095;

/// The target of the symbolic link `inode`.
///
/// # Errors
/// The target cannot be read or breaks the format.
pub(super) fn link_target(volume: &Volume, inode: &Inode) -> Result<Vec<u8>> {
    let corrupt = |rule| Error::corrupt(rule, Place::inode(inode.nid));
    let len = usize::try_from(inode.size).ok().filter(|_| (1..=LINK_TARGET_LEN_MAX).contains(&inode.size));
    let target = read(volume, inode, 0, len.ok_or(corrupt("link target is empty or longer than 4095 bytes"))?)?;
    match target.contains(&0) {
        true => Err(corrupt("link target has a zero byte")),
        false => Ok(target.to_vec()),
    }
}

/// As [`read`], with an existing mapper.
///
/// # Errors
/// As for [`read`].
pub(super) fn read_with(
    volume: &Volume,
    mapper: &mut Mapper<'_>,
    inode: &Inode,
    position: u64,
    len: usize,
) -> Result<Bytes> {
    let range = ByteRange::new(position, u64::try_from(len).unwrap_or(u64::MAX));
    let mut extents = Vec::new();
    mapper.extents(range, &mut extents)?;
    if let [extent] = extents.as_slice() {
        return part(volume, extent, range).map_err(|error| error.for_inode(inode.nid));
    }
    let mut content = Vec::with_capacity(len);
    for extent in &extents {
        let part = part(volume, extent, range).map_err(|error| error.for_inode(inode.nid))?;
        content.extend_from_slice(&part);
    }
    match content.len() == len {
        true => Ok(content.into()),
        false => Err(Error::corrupt("content past the end of the inode", Place::inode_at(inode.nid, position))),
    }
}

impl Metadata for Volume {
    fn parameters(&self) -> &Parameters {
        &self.parts.parameters
    }

    fn metadata(&self, space: Space, position: u64, len: usize, nid: Nid) -> Result<Bytes> {
        self.check_metadata(space, position, len, nid)?;
        match (space, self.metabox.get()) {
            (Space::Metabox, Some(metabox)) => read(self, &metabox.inode, position, len),
            _ => self.reader.stored(DeviceId(0), position, len),
        }
        .map_err(|error| error.for_inode(nid))
    }
}

/// The bytes of `extent` that are in `range`.
fn part(volume: &Volume, extent: &Extent, range: ByteRange) -> Result<Bytes> {
    let wanted = extent.range.intersection(range);
    let past = wanted.offset() - extent.range.offset();
    let short = Error::corrupt("block shorter than its extent", Place::UNKNOWN);
    let len = usize::try_from(wanted.len()).map_err(|_| short.clone())?;
    match extent.data {
        ExtentData::Hole => Ok(vec![0; len].into()),
        ExtentData::Plain { device, offset } => {
            volume.reader.stored(device, offset.checked_add(past).ok_or(short)?, len)
        }
        ExtentData::Encoded { block, skip } => {
            let decoded = volume.reader.decoded(&block)?.bytes;
            let start = usize::try_from(u64::from(skip) + past).map_err(|_| short.clone())?;
            let end = start.checked_add(len).filter(|end| *end <= decoded.len()).ok_or(short)?;
            Ok(decoded.slice(start..end))
        }
    }
}
