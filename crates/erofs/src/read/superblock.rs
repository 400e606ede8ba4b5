//! The superblock (docs/format/erofs.md, Superblock): the block size, and the features with their names (docs/format/erofs.md,
//! Features).

use floe_image::{BlockReader, Bytes, DeviceId, Error, Nid, Place, Result, Timestamp};

use crate::format::{
    self, BLOCK_SIZE_LOG2_MAX, BLOCK_SIZE_LOG2_MIN, DIRENT_NID_METABOX_BIT, SUPER_OFFSET, SuperBlock,
    SuperBlockExtension,
};

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

/// The block size of an image: a power of two from 512 to 65,536 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockSize {
    log2: u8,
}

impl BlockSize {
    /// A block size of `1 << log2` bytes; `None` if it is out of range.
    pub(crate) fn from_log2(log2: u8) -> Option<Self> {
        (BLOCK_SIZE_LOG2_MIN..=BLOCK_SIZE_LOG2_MAX).contains(&log2).then_some(Self { log2 })
    }

    /// log2 of the block size.
    pub(crate) fn log2(self) -> u8 {
        self.log2
    }

    /// The block size in bytes.
    pub(crate) fn bytes(self) -> u64 {
        1 << self.log2
    }

    /// The offset of `position` within its block.
    pub(crate) fn offset_within(self, position: u64) -> u64 {
        position & (self.bytes() - 1)
    }

    /// The offset of a block in bytes; `None` past the address space.
    pub(crate) fn position(self, block: u64) -> Option<u64> {
        block.checked_mul(self.bytes())
    }

    /// The number of blocks needed for `len` bytes.
    pub(crate) fn blocks(self, len: u64) -> u64 {
        len.div_ceil(self.bytes())
    }
}

/// The features of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Features {
    compatible: u32,
    incompatible: u32,
}

impl Features {
    /// Parses the feature bits of the superblock.
    ///
    /// # Errors
    /// An incompatible bit is unknown; the error names it.
    fn new(compatible: u32, incompatible: u32) -> Result<Self> {
        match incompatible & !format::ALL_FEATURE_INCOMPAT {
            0 => Ok(Self { compatible, incompatible }),
            unknown => Err(Error::unsupported(format!("EROFS feature_incompat {}", bit_names(unknown)))),
        }
    }

    /// Whether all compatible bits of `bits` are set.
    pub(crate) fn has_compatible(self, bits: u32) -> bool {
        self.compatible & bits == bits
    }

    /// Whether all incompatible bits of `bits` are set.
    pub(crate) fn has(self, bits: u32) -> bool {
        self.incompatible & bits == bits
    }

    /// The names of the features. Unknown compatible bits appear as numbers.
    pub(crate) fn words(self) -> Vec<String> {
        let mut words = Vec::new();
        for (bits, names) in [(self.compatible, COMPATIBLE_NAMES), (self.incompatible, INCOMPATIBLE_NAMES)] {
            words.extend(names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| String::from(*name)));
        }
        let known = COMPATIBLE_NAMES.iter().fold(0, |all, (bit, _)| all | bit);
        if self.compatible & !known != 0 {
            words.push(format!("compatible {}", bit_names(self.compatible & !known)));
        }
        words
    }
}

const COMPATIBLE_NAMES: &[(u32, &str)] = &[
    (format::FEATURE_COMPAT_SB_CHKSUM, "sb_csum"),
    (format::FEATURE_COMPAT_MTIME, "mtime"),
    (format::FEATURE_COMPAT_XATTR_FILTER, "xattr_filter"),
    (format::FEATURE_COMPAT_SHARED_EA_IN_METABOX, "shared_ea_in_metabox"),
    (format::FEATURE_COMPAT_PLAIN_XATTR_PFX, "plain_xattr_pfx"),
    (format::FEATURE_COMPAT_ISHARE_XATTRS, "ishare_xattrs"),
];

const INCOMPATIBLE_NAMES: &[(u32, &str)] = &[
    (format::FEATURE_INCOMPAT_ZERO_PADDING, "0padding"),
    (format::FEATURE_INCOMPAT_COMPR_CFGS, "compr_cfgs/big_pcluster"),
    (format::FEATURE_INCOMPAT_CHUNKED_FILE, "chunked_file"),
    (format::FEATURE_INCOMPAT_DEVICE_TABLE, "device_table/compr_head2"),
    (format::FEATURE_INCOMPAT_ZTAILPACKING, "ztailpacking"),
    (format::FEATURE_INCOMPAT_FRAGMENTS, "fragments/dedupe"),
    (format::FEATURE_INCOMPAT_XATTR_PREFIXES, "xattr_prefixes"),
    (format::FEATURE_INCOMPAT_48BIT, "48bit"),
    (format::FEATURE_INCOMPAT_METABOX, "metabox"),
];

fn bit_names(bits: u32) -> String {
    let numbers = (0..u32::BITS).map(|number| 1u32 << number).filter(|bit| bits & bit != 0);
    numbers.map(|bit| format!("bit {bit:#x}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::{BlockSize, Features};

    #[test]
    fn sizes_are_powers_of_two_in_bounds() {
        for (log2, bytes) in [(8, None), (9, Some(512)), (12, Some(4096)), (16, Some(65_536)), (17, None), (255, None)]
        {
            assert_eq!(BlockSize::from_log2(log2).map(BlockSize::bytes), bytes, "{log2}");
        }
    }

    #[test]
    fn positions_are_in_blocks() {
        let size = BlockSize::from_log2(9).expect("512 is a block size");
        for (position, within) in [(0, 0), (1, 1), (511, 511), (512, 0), (u64::MAX, 511)] {
            assert_eq!(size.offset_within(position), within, "{position}");
        }
        assert_eq!(size.position(u64::MAX), None);
        assert_eq!(size.blocks(513), 2);
    }

    #[test]
    fn unknown_incompatible_bits_are_refused_by_number() {
        for (bits, expected) in [
            (0x1ff, None),
            (0x200, Some("not supported: EROFS feature_incompat bit 0x200")),
            (0x8000_0401, Some("not supported: EROFS feature_incompat bit 0x400, bit 0x80000000")),
        ] {
            let error = Features::new(0, bits).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), expected);
        }
    }

    #[test]
    fn words_name_each_bit() {
        let features = Features::new(0x8000_0003, 0x11).expect("the bits are known");
        assert_eq!(features.words(), ["sb_csum", "mtime", "0padding", "ztailpacking", "compatible bit 0x80000000"]);
    }
}
