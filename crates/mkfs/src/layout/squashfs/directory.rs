//! Directory listings and their indexes.

use floe_squashfs::format::{DIRECTORY_HEADER_ENTRIES_MAX, DIRECTORY_SIZE_EXTRA, DirEntry, DirHeader, DirIndex};

use super::metadata::{BLOCK_LEN, MetadataWriter};
use crate::error::{Error, Result};

/// An entry of a directory.
pub(super) struct ListedEntry<'a> {
    pub(super) name: &'a [u8],
    /// The reference of its inode.
    pub(super) reference: u64,
    /// The number of its inode.
    pub(super) number: u32,
    /// The basic type of its inode.
    pub(super) kind: u16,
}

/// Where the directory table has the listing of a directory.
pub(super) struct Listing {
    /// The start of its first block.
    pub(super) start_block: u32,
    /// The offset in that block.
    pub(super) offset: u16,
    /// The length in bytes, plus [`DIRECTORY_SIZE_EXTRA`].
    pub(super) size: u32,
    /// The number of entries of the index, and the index.
    pub(super) index: (u16, Vec<u8>),
}

/// Writes a listing. Each block of a long one begins with the entries of a new header, to which the index leads.
pub(super) fn write_listing(writer: &mut MetadataWriter, entries: &[ListedEntry<'_>]) -> Result<Listing> {
    let too_long = || Error::Layout("the directories are too long for SquashFS".into());
    // The place of an empty listing has no meaning.
    let start = if entries.is_empty() { 0 } else { writer.reference() };
    let begin = writer.decoded_len();
    let (mut index, mut index_count, mut indexed_block) = (Vec::new(), 0u16, block_of(begin));
    let mut rest = entries;
    while let [first, ..] = rest {
        let header_at = writer.decoded_len();
        let block = block_of(header_at);
        if block != indexed_block && index_count < u16::MAX {
            let entry = DirIndex {
                index: u32::try_from(header_at - begin).map_err(|_| too_long())?,
                start_block: u32::try_from(writer.reference() >> 16).map_err(|_| too_long())?,
                size: len_less_1(first.name),
            };
            index.extend(entry.to_bytes());
            index.extend_from_slice(first.name);
            (index_count, indexed_block) = (index_count + 1, block);
        }
        let count = count_under_header(rest, header_at);
        let (under_header, after) = rest.split_at(count);
        write_header(writer, first, under_header)?;
        rest = after;
    }
    let size = u32::try_from(writer.decoded_len() - begin).ok();
    let size = size.and_then(|len| len.checked_add(DIRECTORY_SIZE_EXTRA)).ok_or_else(too_long)?;
    // A listing of at most a block is read completely anyway.
    let index = if size as usize > BLOCK_LEN { (index_count, index) } else { (0, Vec::new()) };
    Ok(Listing {
        start_block: u32::try_from(start >> 16).map_err(|_| too_long())?,
        offset: u16::try_from(start & 0xffff).unwrap_or(u16::MAX),
        size,
        index,
    })
}

/// How many entries a header at this position has: their inodes are in one block, their numbers are near that of the first
/// one, and they begin in the header's block.
fn count_under_header(entries: &[ListedEntry<'_>], header_at: u64) -> usize {
    let Some(first) = entries.first() else { return 0 };
    let mut at = header_at + DirHeader::SIZE as u64;
    let belongs = |entry: &&ListedEntry<'_>| {
        let is_near = entry.reference >> 16 == first.reference >> 16 && delta(first, entry).is_some();
        let is_here = block_of(at) == block_of(header_at) || entry.name == first.name;
        at += (DirEntry::SIZE + entry.name.len()) as u64;
        is_near && is_here
    };
    entries.iter().take(DIRECTORY_HEADER_ENTRIES_MAX as usize).take_while(belongs).count()
}

fn write_header(writer: &mut MetadataWriter, first: &ListedEntry<'_>, entries: &[ListedEntry<'_>]) -> Result<()> {
    let header = DirHeader {
        count: u32::try_from(entries.len()).unwrap_or(u32::MAX).wrapping_sub(1),
        start_block: u32::try_from(first.reference >> 16).unwrap_or(u32::MAX),
        inode_number: first.number,
    };
    writer.write(&header.to_bytes())?;
    for entry in entries {
        let dirent = DirEntry {
            offset: u16::try_from(entry.reference & 0xffff).unwrap_or(u16::MAX),
            inode_number: delta(first, entry).unwrap_or(0),
            kind: entry.kind,
            size: u16::try_from(len_less_1(entry.name)).unwrap_or(u16::MAX),
        };
        writer.write(&dirent.to_bytes())?;
        writer.write(entry.name)?;
    }
    Ok(())
}

/// The number of the metadata block with the byte at this position.
fn block_of(at: u64) -> u64 {
    at / BLOCK_LEN as u64
}

/// The difference of the inode numbers, if a dirent can have it.
fn delta(first: &ListedEntry<'_>, entry: &ListedEntry<'_>) -> Option<i16> {
    i16::try_from(i64::from(entry.number) - i64::from(first.number)).ok()
}

/// Names are never empty.
fn len_less_1(name: &[u8]) -> u32 {
    u32::try_from(name.len()).unwrap_or(u32::MAX).saturating_sub(1)
}
