//! The validated superblock.

use floe_image::{BlockReader, DeviceId, Error, Nid, Place, Result};

use super::Compression;
use crate::format::{self, SUPERBLOCK_BYTES, SuperBlock};

/// log2 of the smallest block size: 4 KiB.
const BLOCK_SIZE_LOG2_MIN: u16 = 12;

/// log2 of the largest block size: 1 MiB.
const BLOCK_SIZE_LOG2_MAX: u16 = 20;

/// A validated superblock (section "Superblock").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Superblock {
    /// Its position in bytes: 0, or near the end of a streamed image.
    pub offset: u64,
    /// The number of inodes.
    pub inode_count: u32,
    /// The build time in seconds since 1970.
    pub built_seconds: u32,
    /// log2 of the data block size; 12 to 20.
    pub block_size_log2: u8,
    /// The number of fragment blocks.
    pub fragment_count: u32,
    /// The compressor.
    pub compression: Compression,
    /// The flags.
    pub flags: Flags,
    /// The number of ids; at least 1.
    pub id_count: u16,
    /// The root inode.
    pub root: Nid,
    /// The length of the file system in bytes, without padding; at most the length of the image.
    pub bytes_used: u64,
    /// The start of the inode table.
    pub inode_table_start: u64,
    /// The start of the directory table.
    pub directory_table_start: u64,
    /// The start of the fragment table's list of blocks.
    pub fragment_table_start: Option<u64>,
    /// The start of the export table's list of blocks.
    pub export_table_start: Option<u64>,
    /// The start of the id table's list of blocks.
    pub id_table_start: u64,
    /// The start of the attribute id table's header.
    pub xattr_id_table_start: Option<u64>,
}

impl Superblock {
    /// Reads the superblock of an image.
    ///
    /// # Errors
    /// There is no superblock, its version or compressor is unsupported, or its fields are invalid.
    pub fn read(reader: &dyn BlockReader) -> Result<Self> {
        let image_len = reader.device_len(DeviceId(0))?;
        let raw = raw_at(reader, 0, image_len)?;
        if raw.s_magic != format::MAGIC_STREAMED {
            return Self::parse(&raw, 0, image_len);
        }
        let offset = image_len.saturating_sub(SUPERBLOCK_BYTES);
        let raw = raw_at(reader, offset, image_len)?;
        if raw.s_magic != format::MAGIC {
            return Err(Error::corrupt("streamed image without a superblock at its end", Place::at(offset)));
        }
        Self::parse(&raw, offset, image_len)
    }

    fn parse(raw: &SuperBlock, offset: u64, image_len: u64) -> Result<Self> {
        let corrupt = |rule| Err(Error::corrupt(rule, Place::at(offset)));
        match (raw.s_magic, raw.s_major, raw.s_minor) {
            (format::MAGIC, format::MAJOR, format::MINOR) => {}
            (format::MAGIC, major, minor) => {
                return Err(Error::unsupported(format!("SquashFS version {major}.{minor}; only 4.0 is read")));
            }
            (format::MAGIC_SWAPPED, ..) => {
                return Err(Error::unsupported("big-endian SquashFS, which is older than version 4.0"));
            }
            _ => return corrupt("no SquashFS magic number"),
        }
        let Some(compression) = Compression::from_id(raw.compression) else {
            return Err(Error::unsupported(format!("SquashFS compressor {}", raw.compression)));
        };
        if !(BLOCK_SIZE_LOG2_MIN..=BLOCK_SIZE_LOG2_MAX).contains(&raw.block_log) {
            return corrupt("block size is not between 4 KiB and 1 MiB");
        }
        if raw.block_size.checked_ilog2() != Some(u32::from(raw.block_log)) || !raw.block_size.is_power_of_two() {
            return corrupt("block size and its logarithm differ");
        }
        if raw.bytes_used > image_len {
            return corrupt("file system is longer than the image, which may be cut short");
        }
        if raw.bytes_used < SUPERBLOCK_BYTES {
            return corrupt("file system is shorter than its superblock");
        }
        if raw.no_ids == 0 {
            return corrupt("there are no ids");
        }
        let table = |start: u64| (start != format::ABSENT_TABLE).then_some(start);
        Ok(Self {
            offset,
            inode_count: raw.inodes,
            built_seconds: raw.mkfs_time,
            block_size_log2: u8::try_from(raw.block_log).unwrap_or_default(),
            fragment_count: raw.fragments,
            compression,
            flags: Flags(raw.flags),
            id_count: raw.no_ids,
            root: Nid(raw.root_inode),
            bytes_used: raw.bytes_used,
            inode_table_start: raw.inode_table_start,
            directory_table_start: raw.directory_table_start,
            fragment_table_start: table(raw.fragment_table_start),
            export_table_start: table(raw.lookup_table_start),
            id_table_start: raw.id_table_start,
            xattr_id_table_start: table(raw.xattr_id_table_start),
        })
    }

    /// The data block size in bytes: 4 KiB to 1 MiB.
    pub fn block_size(&self) -> u32 {
        1_u32.wrapping_shl(u32::from(self.block_size_log2))
    }
}

fn raw_at(reader: &dyn BlockReader, offset: u64, image_len: u64) -> Result<SuperBlock> {
    if image_len < SUPERBLOCK_BYTES {
        return Err(Error::corrupt("image is shorter than a superblock", Place::at(image_len)));
    }
    let bytes = reader.stored(DeviceId(0), offset, SuperBlock::SIZE)?;
    SuperBlock::from_prefix(&bytes).ok_or(Error::corrupt("image is shorter than a superblock", Place::at(offset)))
}

/// The flags of a superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flags(pub u16);

/// The known flags with their names.
const FLAG_WORDS: [(u16, &str); 12] = [
    (format::FLAG_UNCOMPRESSED_INODES, "uncompressed-inodes"),
    (format::FLAG_UNCOMPRESSED_DATA, "uncompressed-data"),
    (format::FLAG_CHECK, "check"),
    (format::FLAG_UNCOMPRESSED_FRAGMENTS, "uncompressed-fragments"),
    (format::FLAG_NO_FRAGMENTS, "no-fragments"),
    (format::FLAG_ALWAYS_FRAGMENTS, "tail-ends"),
    (format::FLAG_DUPLICATES, "duplicates-removed"),
    (format::FLAG_EXPORTABLE, "exportable"),
    (format::FLAG_UNCOMPRESSED_XATTRS, "uncompressed-xattrs"),
    (format::FLAG_NO_XATTRS, "no-xattrs"),
    (format::FLAG_COMPRESSOR_OPTIONS, "compressor-options"),
    (format::FLAG_UNCOMPRESSED_IDS, "uncompressed-ids"),
];

impl Flags {
    /// Whether all of `bits` are set.
    pub const fn has(self, bits: u16) -> bool {
        self.0 & bits == bits
    }

    /// The bits of the flags that no version of the format defines.
    pub fn unknown(self) -> u16 {
        FLAG_WORDS.iter().fold(self.0, |left, (bit, _)| left & !bit)
    }

    /// The names of the flags that are set.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        FLAG_WORDS.iter().filter(move |(bit, _)| self.has(*bit)).map(|(_, word)| *word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> SuperBlock {
        SuperBlock {
            s_magic: format::MAGIC,
            inodes: 1,
            block_size: 131_072,
            block_log: 17,
            compression: 1,
            no_ids: 1,
            s_major: 4,
            bytes_used: 4096,
            xattr_id_table_start: u64::MAX,
            ..SuperBlock::default()
        }
    }

    #[test]
    fn a_superblock_is_refused_for_its_first_fault() {
        type Edit = fn(&mut SuperBlock);
        let rows: [(Edit, &str); 13] = [
            (|raw| raw.s_magic = 0, "corrupt image: no SquashFS magic number (byte 0)"),
            (|raw| raw.s_magic = format::MAGIC_SWAPPED, "not supported: big-endian SquashFS, which is older than"),
            (|raw| raw.s_major = 3, "not supported: SquashFS version 3.0; only 4.0 is read"),
            (|raw| raw.s_minor = 1, "not supported: SquashFS version 4.1"),
            (|raw| raw.compression = 0, "not supported: SquashFS compressor 0"),
            (|raw| raw.compression = 7, "not supported: SquashFS compressor 7"),
            (|raw| raw.block_log = 11, "corrupt image: block size is not between"),
            (|raw| (raw.block_log, raw.block_size) = (21, 1 << 21), "corrupt image: block size is not between"),
            (|raw| raw.block_size = 0, "corrupt image: block size and its logarithm differ"),
            (|raw| raw.block_size += 1, "corrupt image: block size and its logarithm differ"),
            (|raw| raw.bytes_used = 4097, "corrupt image: file system is longer than the image"),
            (|raw| raw.bytes_used = 95, "corrupt image: file system is shorter than its superblock"),
            (|raw| raw.no_ids = 0, "corrupt image: there are no ids"),
        ];
        for (edit, expected) in rows {
            let mut raw = good();
            edit(&mut raw);
            let error = Superblock::parse(&raw, 0, 4096).expect_err(expected).to_string();
            assert!(error.starts_with(expected), "{error} where {expected} is expected");
        }
        let superblock = Superblock::parse(&good(), 0, 4096).expect("nothing is wrong");
        assert_eq!((superblock.block_size(), superblock.xattr_id_table_start), (131_072, None));
    }

    #[test]
    fn flags_have_words() {
        let flags = Flags(format::FLAG_DUPLICATES | format::FLAG_EXPORTABLE | 0x8000);
        assert_eq!(flags.words().collect::<Vec<_>>(), ["duplicates-removed", "exportable"]);
        assert_eq!(flags.unknown(), 0x8000);
    }
}
