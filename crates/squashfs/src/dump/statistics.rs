//! Statistics of an image.

use std::{collections::BTreeMap, fmt};

use floe_image::{FileType, Result};

use super::{TablePlace, percent, table_places};
use crate::{
    Squashfs,
    read::{InodeData, RegularInode, SizeWord},
};

/// Statistics of an image.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// The inodes.
    pub inodes: InodeStatistics,
    /// The space that files take.
    pub data: DataStatistics,
    /// The space that tables take, in image order.
    pub tables: Vec<TableStatistics>,
}

/// The number of inodes by type.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct InodeStatistics {
    /// Counts by type and whether the inode is extended.
    pub counts: BTreeMap<(FileType, bool), u64>,
}

/// The space that files take. Shared blocks count for each file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DataStatistics {
    /// The total size of all regular files, in bytes.
    pub file_bytes: u64,
    /// Blocks that are holes.
    pub hole_block_count: u64,
    /// Blocks that are stored uncompressed.
    pub uncompressed_block_count: u64,
    /// The space that those take, in bytes.
    pub uncompressed_stored_bytes: u64,
    /// Blocks that are compressed.
    pub compressed_block_count: u64,
    /// The space that those take, in bytes.
    pub compressed_stored_bytes: u64,
    /// Their decoded length, in bytes.
    pub compressed_decoded_bytes: u64,
    /// Files with a tail end in a fragment.
    pub tail_count: u64,
    /// The total length of those tail ends, in bytes.
    pub tail_bytes: u64,
    /// Fragment blocks.
    pub fragment_count: u64,
    /// The space that those take, in bytes.
    pub fragment_stored_bytes: u64,
    /// The bytes between the superblock and the inode table: all data, shared or not.
    pub area_bytes: u64,
}

/// The space that a table's metadata blocks take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TableStatistics {
    /// Its name.
    pub name: &'static str,
    /// The number of blocks.
    pub block_count: u64,
    /// Their stored length in bytes, including length words.
    pub stored_bytes: u64,
    /// Their decoded length in bytes.
    pub decoded_bytes: u64,
}

/// Computes the statistics of an image. Reads all metadata and no data.
///
/// # Errors
/// Metadata cannot be read or breaks the format.
pub fn count(squashfs: &Squashfs) -> Result<Statistics> {
    let mut statistics = Statistics::default();
    for inode in squashfs.scan_inodes() {
        let inode = inode?;
        let counted = statistics.inodes.counts.entry((inode.file_type(), inode.is_extended)).or_default();
        *counted = counted.saturating_add(1);
        if let InodeData::Regular(file) = &inode.data {
            let mut list = squashfs.block_list(inode.nid, file, 0)?;
            let block_size = squashfs.superblock.block_size();
            statistics.data.add_file(file, block_size);
            while let Some(block) = list.next()? {
                statistics.data.add_block(block.size, file, block.index, block_size);
            }
        }
    }
    for index in 0..squashfs.superblock.fragment_count {
        let fragment = squashfs.fragment(index)?;
        add(&mut statistics.data.fragment_count, 1);
        add(&mut statistics.data.fragment_stored_bytes, u64::from(fragment.size.stored_len()));
    }
    statistics.data.area_bytes = squashfs.inode_table.start.saturating_sub(crate::format::SUPERBLOCK_BYTES);
    for place in table_places(squashfs) {
        statistics.tables.push(count_table(squashfs, place)?);
    }
    Ok(statistics)
}

fn count_table(squashfs: &Squashfs, place: TablePlace) -> Result<TableStatistics> {
    let mut table = TableStatistics { name: place.name, block_count: 0, stored_bytes: 0, decoded_bytes: 0 };
    let mut position = place.start;
    // Each block ends after its start, so the loop ends.
    while position < place.end {
        let (bytes, end) = squashfs.metadata.block(position)?;
        add(&mut table.block_count, 1);
        add(&mut table.stored_bytes, end.saturating_sub(position));
        add(&mut table.decoded_bytes, u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        position = end;
    }
    Ok(table)
}

fn add(sum: &mut u64, number: u64) {
    *sum = sum.saturating_add(number);
}

impl DataStatistics {
    fn add_file(&mut self, file: &RegularInode, block_size: u32) {
        add(&mut self.file_bytes, file.size);
        if file.fragment.is_some() {
            add(&mut self.tail_count, 1);
            add(&mut self.tail_bytes, file.tail_bytes(block_size));
        }
    }

    fn add_block(&mut self, size: SizeWord, file: &RegularInode, index: u64, block_size: u32) {
        let start = index.saturating_mul(u64::from(block_size));
        let stored_len = u64::from(size.stored_len());
        match size {
            SizeWord::Hole => add(&mut self.hole_block_count, 1),
            SizeWord::Uncompressed(_) => {
                add(&mut self.uncompressed_block_count, 1);
                add(&mut self.uncompressed_stored_bytes, stored_len);
            }
            SizeWord::Compressed(_) => {
                add(&mut self.compressed_block_count, 1);
                add(&mut self.compressed_stored_bytes, stored_len);
                add(&mut self.compressed_decoded_bytes, file.size.saturating_sub(start).min(u64::from(block_size)));
            }
        }
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((file_type, is_extended), count) in &self.inodes.counts {
            let kind = if *is_extended { "extended" } else { "basic" };
            writeln!(formatter, "{kind} inodes of type {}: {count}", file_type.letter())?;
        }
        let data = &self.data;
        writeln!(formatter, "bytes in files: {}", data.file_bytes)?;
        writeln!(
            formatter,
            "compressed data blocks: {}, {} of {} bytes, {}",
            data.compressed_block_count,
            data.compressed_stored_bytes,
            data.compressed_decoded_bytes,
            percent(data.compressed_stored_bytes, data.compressed_decoded_bytes),
        )?;
        let (count, bytes) = (data.uncompressed_block_count, data.uncompressed_stored_bytes);
        writeln!(formatter, "uncompressed data blocks: {count}, {bytes} bytes")?;
        writeln!(formatter, "holes: {} blocks", data.hole_block_count)?;
        writeln!(
            formatter,
            "fragments: {}, {} bytes, with {} tail ends of {} bytes",
            data.fragment_count, data.fragment_stored_bytes, data.tail_count, data.tail_bytes,
        )?;
        let ratio = percent(data.area_bytes, data.file_bytes);
        writeln!(formatter, "data takes {} bytes, {ratio} of the file contents", data.area_bytes)?;
        for table in &self.tables {
            writeln!(
                formatter,
                "{}: {} blocks, {} of {} bytes, {}",
                table.name,
                table.block_count,
                table.stored_bytes,
                table.decoded_bytes,
                percent(table.stored_bytes, table.decoded_bytes),
            )?;
        }
        Ok(())
    }
}
