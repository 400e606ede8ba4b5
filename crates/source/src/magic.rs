//! Recognition of image formats.

use std::{fmt, io};

use floe_image::ImageSource;

/// The formats that Floe reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ImageFormat {
    /// EROFS.
    Erofs,
    /// SquashFS 4.
    Squashfs,
}

/// The number of bytes at the start of an image that are needed to recognise it.
pub(crate) const HEAD_LEN: usize = EROFS_SUPERBLOCK_OFFSET + EROFS_SUPERBLOCK_LEN;

/// Offset and minimum length of the EROFS superblock, in bytes.
const EROFS_SUPERBLOCK_OFFSET: usize = 1024;
const EROFS_SUPERBLOCK_LEN: usize = 128;
const EROFS_MAGIC: [u8; 4] = 0xe0f5_e1e2_u32.to_le_bytes();
/// log2 of the block sizes that EROFS allows.
const EROFS_BLOCK_SIZE_LOG2: std::ops::RangeInclusive<u8> = 9..=16;

const SQUASHFS_SUPERBLOCK_LEN: u64 = 96;
const SQUASHFS_MAGIC: [u8; 4] = *b"hsqs";
/// The magic number at the beginning of an image that was written to a pipe; its superblock is at its end.
const SQUASHFS_STREAMED_MAGIC: [u8; 4] = *b"HSQS";
const SQUASHFS_VERSION: u16 = 4;
/// log2 of the block sizes that SquashFS allows.
const SQUASHFS_BLOCK_SIZE_LOG2: std::ops::RangeInclusive<u16> = 12..=20;

impl ImageFormat {
    /// The format of the image at the beginning of the source, by its magic number alone, so that a broken image is
    /// still recognised.
    ///
    /// An image with both magic numbers counts as SquashFS, as for a mount without a type.
    ///
    /// # Errors
    /// The source cannot be read.
    pub fn of(source: &dyn ImageSource) -> io::Result<Option<Self>> {
        let head = read_head(source, 0)?;
        if head.starts_with(&SQUASHFS_MAGIC) || is_streamed_squashfs(source, &head)? {
            return Ok(Some(Self::Squashfs));
        }
        Ok(has_erofs_magic(&head).then_some(Self::Erofs))
    }

    /// The format of the image that begins with `head`, if its superblock is plausible beyond the magic number.
    /// `rest_len` is the length from the beginning of `head` to the end of the source.
    pub(crate) fn of_valid_superblock(head: &[u8], rest_len: u64) -> Option<Self> {
        if is_sound_squashfs(head, rest_len) {
            return Some(Self::Squashfs);
        }
        is_sound_erofs(head).then_some(Self::Erofs)
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Erofs => "EROFS",
            Self::Squashfs => "SquashFS",
        })
    }
}

/// Reads the bytes at `offset` that are needed to recognise a format, or as many as there are.
pub(crate) fn read_head(source: &dyn ImageSource, offset: u64) -> io::Result<Vec<u8>> {
    let rest = source.len().saturating_sub(offset);
    let mut head = vec![0; HEAD_LEN.min(usize::try_from(rest).unwrap_or(HEAD_LEN))];
    source.read_at(offset, &mut head)?;
    Ok(head)
}

fn has_erofs_magic(head: &[u8]) -> bool {
    head.get(EROFS_SUPERBLOCK_OFFSET..).is_some_and(|superblock| superblock.starts_with(&EROFS_MAGIC))
}

fn is_sound_erofs(head: &[u8]) -> bool {
    has_erofs_magic(head)
        && head.len() >= HEAD_LEN
        && EROFS_BLOCK_SIZE_LOG2.contains(&head[EROFS_SUPERBLOCK_OFFSET + 12])
        // log2 of the directory block size relative to the block size: always zero.
        && head[EROFS_SUPERBLOCK_OFFSET + 90] == 0
}

fn is_sound_squashfs(head: &[u8], rest_len: u64) -> bool {
    let field = |offset: usize| head.get(offset..offset + 2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    let (Some(block_size_log2), Some(version)) = (field(22), field(28)) else { return false };
    let (Some(block_size), Some(bytes_used)) = (head.get(12..16), head.get(40..48)) else { return false };
    let bytes_used = bytes_used.try_into().map_or(0, u64::from_le_bytes);
    head.starts_with(&SQUASHFS_MAGIC)
        && version == SQUASHFS_VERSION
        && SQUASHFS_BLOCK_SIZE_LOG2.contains(&block_size_log2)
        && block_size == (1_u32 << block_size_log2).to_le_bytes()
        && (SQUASHFS_SUPERBLOCK_LEN..=rest_len).contains(&bytes_used)
}

fn is_streamed_squashfs(source: &dyn ImageSource, head: &[u8]) -> io::Result<bool> {
    let Some(offset) = source.len().checked_sub(SQUASHFS_SUPERBLOCK_LEN) else { return Ok(false) };
    if !head.starts_with(&SQUASHFS_STREAMED_MAGIC) {
        return Ok(false);
    }
    let mut magic = [0; 4];
    source.read_at(offset, &mut magic)?;
    Ok(magic == SQUASHFS_MAGIC)
}
