//! Descriptions of an image.
//!
//! Each function returns a value with public fields for programs; its `Display` form is a report in lines.

mod inode;
mod statistics;

pub use inode::{InodeDescription, describe_inode, hole_bytes};
pub use statistics::{DataStatistics, InodeStatistics, Statistics, TableStatistics, count};

use std::{fmt, sync::Arc};

use crate::{
    CompressorOptions, Squashfs, Superblock,
    read::{LocationList, TableRange},
};

/// `part` of `whole` in percent with one decimal.
fn percent(part: u64, whole: u64) -> String {
    let tenths = u128::from(part).saturating_mul(1000).checked_div(u128::from(whole)).unwrap_or_default();
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// A description of an image and the locations of its tables.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Overview {
    /// The superblock.
    pub superblock: Superblock,
    /// The compressor's options, if they are stored.
    pub options: Option<CompressorOptions>,
    /// The tables in image order.
    pub tables: Vec<TablePlace>,
}

/// The location of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TablePlace {
    /// Its name.
    pub name: &'static str,
    /// The start of its metadata blocks.
    pub start: u64,
    /// The end of its metadata blocks.
    pub end: u64,
}

/// Describes an image.
pub fn describe_image(squashfs: &Squashfs) -> Overview {
    Overview { superblock: squashfs.superblock, options: squashfs.options, tables: table_places(squashfs) }
}

/// The tables of an image, in image order.
fn table_places(squashfs: &Squashfs) -> Vec<TablePlace> {
    let listed = |list: &Option<Arc<LocationList>>| list.as_deref().map(LocationList::range);
    let tables = [
        ("inode table", Some(squashfs.inode_table)),
        ("directory table", Some(squashfs.directory_table)),
        ("fragment table", listed(&squashfs.fragments)),
        ("export table", listed(&squashfs.export)),
        ("id table", Some(squashfs.id_table)),
        ("attributes", squashfs.xattr_attributes()),
        ("attribute id table", squashfs.xattr_sets().map(LocationList::range)),
    ];
    let present = tables.into_iter().filter_map(|(name, range)| range.map(|range| (name, range)));
    present.map(|(name, TableRange { start, end })| TablePlace { name, start, end }).collect()
}

impl fmt::Display for Overview {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let superblock = &self.superblock;
        let flags: Vec<&str> = superblock.flags.words().collect();
        let options = match &self.options {
            Some(options) => format!(" ({options})"),
            None => String::new(),
        };
        writeln!(formatter, "format:             SquashFS 4.0")?;
        writeln!(formatter, "superblock:         byte {}", superblock.offset)?;
        writeln!(formatter, "compressor:         {}{options}", superblock.compression)?;
        writeln!(formatter, "block size:         {} bytes", superblock.block_size())?;
        writeln!(formatter, "flags:              {} ({:#06x})", flags.join(", "), superblock.flags.0)?;
        writeln!(formatter, "built:              {} s since 1970", superblock.built_seconds)?;
        writeln!(formatter, "bytes used:         {}", superblock.bytes_used)?;
        writeln!(formatter, "inodes:             {}", superblock.inode_count)?;
        writeln!(formatter, "fragments:          {}", superblock.fragment_count)?;
        writeln!(formatter, "ids:                {}", superblock.id_count)?;
        writeln!(formatter, "root inode:         {:#x}", superblock.root.0)?;
        for table in &self.tables {
            writeln!(formatter, "{:<19} bytes {} to {}", format!("{}:", table.name), table.start, table.end)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn percentages_never_overflow() {
        for (part, whole, expected) in
            [(1, 3, "33.3 %"), (3, 2, "150.0 %"), (5, 0, "0.0 %"), (u64::MAX, 1, "1844674407370955161500.0 %")]
        {
            assert_eq!(percent(part, whole), expected);
        }
    }
}
