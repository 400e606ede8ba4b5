//! The superblock (docs/format/erofs.md, Superblock).

use floe_image::{BlockReader, Bytes, DeviceId, Error, Nid, Place, Result, Timestamp};

use super::{block_size::BlockSize, features::Features};
use crate::format::{self, DIRENT_NID_METABOX_BIT, SUPER_OFFSET, SuperBlock, SuperBlockExtension};

/// The superblock ends within this many bytes of the image, or within the first block if that is larger.
const SUPERBLOCK_END_MAX: u64 = 4096;

/// The treatment of an image with a wrong superblock checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SuperblockChecksum {
    /// The image is refused.
    #[default]
    Required,
    /// The image is read.
    Ignored,
}

/// A validated superblock.
#[derive(Clone, Debug)]
pub(crate) struct Superblock {
    /// The block size.
    pub(crate) block_size: BlockSize,
    /// The features.
    pub(crate) features: Features,
    /// Where the superblock ends, in bytes.
    pub(crate) end: u64,
    /// The root.
    pub(crate) root: Nid,
    /// The packed inode, if any.
    pub(crate) packed: Option<Nid>,
    /// The metabox inode, if any.
    pub(crate) metabox: Option<Nid>,
    /// The position of the metadata area.
    pub(crate) metadata_position: u64,
    /// The position of the shared xattrs.
    pub(crate) shared_xattr_position: u64,
    /// The number of blocks of the image itself.
    pub(crate) block_count: u64,
    /// The number of inodes.
    pub(crate) inode_count: u64,
    /// The base of compact inodes' timestamps.
    pub(crate) epoch: Timestamp,
    /// The raw superblock.
    pub(crate) raw: SuperBlock,
}

impl Superblock {
    /// Reads the superblock.
    ///
    /// # Errors
    /// There is no superblock, it breaks the format, its checksum is required and wrong, or it requires an unknown feature.
    pub(crate) fn read(reader: &dyn BlockReader, checksum: SuperblockChecksum) -> Result<Self> {
        let found = FoundSuperblock::read(reader)?;
        if checksum == SuperblockChecksum::Required {
            found.check_checksum(reader)?;
        }
        found.parse()
    }
}

/// A superblock that has been located but not parsed.
pub(crate) struct FoundSuperblock {
    raw: SuperBlock,
    extensions: Bytes,
    block_size: BlockSize,
}

impl FoundSuperblock {
    /// Locates the superblock.
    ///
    /// # Errors
    /// There is no superblock, or its size or block size is invalid.
    pub(crate) fn read(reader: &dyn BlockReader) -> Result<Self> {
        let image_len = reader.device_len(DeviceId(0))?;
        let place = Place::at(SUPER_OFFSET);
        let image_rest = usize::try_from(image_len.saturating_sub(SUPER_OFFSET)).unwrap_or(usize::MAX);
        if image_rest < SuperBlock::SIZE {
            return Err(Error::corrupt("too short for an EROFS superblock", Place::at(image_len)));
        }
        let raw = SuperBlock::from_prefix(&reader.stored(DeviceId(0), SUPER_OFFSET, SuperBlock::SIZE)?);
        let raw = raw.filter(|raw| raw.magic == format::SUPER_MAGIC_V1);
        let raw = raw.ok_or(Error::corrupt("no EROFS magic number", place))?;
        let block_size = BlockSize::from_log2(raw.blkszbits)
            .ok_or_else(|| Error::unsupported(format!("block size of 2^{} bytes", raw.blkszbits)))?;
        if raw.dirblkbits != 0 {
            return Err(Error::unsupported(format!("directory block size of 2^{} blocks", raw.dirblkbits)));
        }
        let len = SuperBlock::SIZE + usize::from(raw.sb_extslots) * format::SB_EXTSLOT_SIZE;
        let len_max = usize::try_from(SUPERBLOCK_END_MAX.max(block_size.bytes()) - SUPER_OFFSET).unwrap_or(0);
        if len > len_max.min(image_rest) {
            return Err(Error::corrupt("superblock longer than 3072 bytes and its block, or than the image", place));
        }
        let extensions = reader.stored(DeviceId(0), SUPER_OFFSET, len)?.slice(SuperBlock::SIZE..len);
        Ok(Self { raw, extensions, block_size })
    }

    /// Verifies the checksum, if there is one.
    ///
    /// # Errors
    /// The checksum is wrong, or the superblock's block cannot be read.
    pub(crate) fn check_checksum(&self, reader: &dyn BlockReader) -> Result<()> {
        if self.raw.feature_compat & format::FEATURE_COMPAT_SB_CHKSUM == 0 {
            return Ok(());
        }
        // The checksum covers the rest of the superblock's block, or the whole block if the superblock starts it.
        let len = match self.block_size.bytes() {
            bytes if bytes > SUPER_OFFSET => bytes - SUPER_OFFSET,
            bytes => bytes,
        };
        let bytes = reader.stored(DeviceId(0), SUPER_OFFSET, usize::try_from(len).unwrap_or(usize::MAX))?;
        let (head, rest) = bytes.split_at_checked(8).unwrap_or((&bytes, &[]));
        let magic = head.get(..4).unwrap_or_default();
        let sum = [magic, &[0; 4], rest].iter().fold(0, |sum, part| crc32c::crc32c_append(sum, part));
        // The format omits the final inversion of crc32c.
        match !sum == self.raw.checksum {
            true => Ok(()),
            false => Err(Error::corrupt("superblock checksum is wrong", Place::at(SUPER_OFFSET))),
        }
    }

    /// Parses the superblock.
    ///
    /// # Errors
    /// The superblock breaks the format or requires an unknown feature.
    pub(crate) fn parse(&self) -> Result<Superblock> {
        let (raw, block_size, place) = (&self.raw, self.block_size, Place::at(SUPER_OFFSET));
        let features = Features::new(raw.feature_compat, raw.feature_incompat)?;
        let is_48bit = features.has(format::FEATURE_INCOMPAT_48BIT) && raw.rootnid_8b != 0;
        let (root, blocks_hi) = if is_48bit { (raw.rootnid_8b, raw.rb) } else { (u64::from(raw.rb), 0) };
        let metabox = match features.has(format::FEATURE_INCOMPAT_METABOX) {
            true => Some(
                SuperBlockExtension::from_prefix(&self.extensions)
                    .map(|extension| Nid(extension.metabox_nid))
                    .ok_or(Error::corrupt("superblock too short for the metabox inode", place))?,
            ),
            false => None,
        };
        let has_packed = features.has(format::FEATURE_INCOMPAT_FRAGMENTS) && raw.packed_nid != 0;
        let packed = has_packed.then_some(Nid(raw.packed_nid));
        for (nid, rule) in [(metabox, "metabox inode inside the metabox"), (packed, "packed inode inside the metabox")]
        {
            if nid.is_some_and(|nid| nid.0 >> DIRENT_NID_METABOX_BIT != 0) {
                return Err(Error::corrupt(rule, place));
            }
        }
        let position = |block: u32| {
            block_size.position(u64::from(block)).ok_or(Error::corrupt("area past the address space", place))
        };
        let len = u64::try_from(SuperBlock::SIZE + self.extensions.len()).unwrap_or(SUPERBLOCK_END_MAX);
        Ok(Superblock {
            block_size,
            features,
            end: SUPER_OFFSET + len,
            root: Nid(root),
            packed,
            metabox,
            metadata_position: position(raw.meta_blkaddr)?,
            shared_xattr_position: position(raw.xattr_blkaddr)?,
            block_count: u64::from(blocks_hi) << 32 | u64::from(raw.blocks_lo),
            inode_count: raw.inos,
            epoch: Timestamp { seconds: raw.epoch.cast_signed(), nanoseconds: nanoseconds(raw.fixed_nsec) },
            raw: *raw,
        })
    }
}

/// The largest number of nanoseconds within a second.
const NANOSECONDS_MAX: u32 = 999_999_999;

/// Clamps a stored number of nanoseconds to a valid one, as FUSE does.
pub(crate) fn nanoseconds(stored: u32) -> u32 {
    stored.min(NANOSECONDS_MAX)
}
