//! Indexes of large directories.

use floe_image::{Error, Nid, Result};

use super::{
    DirectoryInode, Name, Squashfs,
    directory::{Listing, ListingPosition},
    metadata::{MetadataCursor, MetadataPosition},
};
use crate::format::{DirIndex, METADATA_BYTES};

/// Reads the index of a directory, which has about one entry per metadata block of the listing (section "Directory
/// index").
pub(crate) struct IndexEntries<'image> {
    cursor: MetadataCursor<'image>,
    directory: Nid,
    left: u16,
    table_start: u64,
    listing_offset: u32,
    listing_bytes: u32,
    previous: Option<u32>,
}

impl Squashfs {
    pub(crate) fn index_entries(&self, nid: Nid, directory: &DirectoryInode) -> IndexEntries<'_> {
        IndexEntries {
            cursor: self.metadata.cursor(self.inode_table, directory.index),
            directory: nid,
            left: directory.index_count,
            table_start: self.directory_table.start,
            listing_offset: u32::from(directory.offset),
            listing_bytes: directory.listing_bytes(),
            previous: None,
        }
    }

    /// The listing from the last indexed header for which `is_before` holds, given the header's offset in the listing
    /// and its first name; the whole listing if there is none.
    pub(crate) fn listing_from(
        &self,
        nid: Nid,
        directory: &DirectoryInode,
        is_before: impl Fn(u32, &[u8]) -> bool,
    ) -> Result<Listing<'_>> {
        let mut found = self.listing_start(directory);
        let mut first_name = None;
        let mut entries = self.index_entries(nid, directory);
        let mut name = Name::new();
        while let Some(position) = entries.next(&mut name)? {
            if !is_before(position.offset, name.as_bytes()) {
                break;
            }
            found = position;
            first_name.get_or_insert_with(Name::new).copy_from(&name);
        }
        let mut listing = self.listing(nid, directory, found);
        listing.expect_first(first_name);
        Ok(listing)
    }
}

impl IndexEntries<'_> {
    /// The position of the next entry.
    pub(crate) const fn position(&self) -> MetadataPosition {
        self.cursor.position()
    }

    /// Reads the next indexed header and copies its first name to `name`; `None` at the end.
    pub(crate) fn next(&mut self, name: &mut Name) -> Result<Option<ListingPosition>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.read_next(name).map(Some).map_err(|error| error.for_inode(self.directory))
    }

    fn read_next(&mut self, name: &mut Name) -> Result<ListingPosition> {
        let place = self.cursor.position().place();
        let entry: DirIndex = self.cursor.read()?;
        name.read(&mut self.cursor, entry.size)?;
        let is_ascending = self.previous.is_none_or(|previous| previous < entry.index);
        if entry.index >= self.listing_bytes || !is_ascending {
            return Err(Error::corrupt("directory index out of order or past its listing", place));
        }
        self.previous = Some(entry.index);
        let block = self.table_start.saturating_add(u64::from(entry.start_block));
        // Every block of the listing except the last decodes to this many bytes.
        let offset = self.listing_offset.saturating_add(entry.index) % METADATA_BYTES;
        Ok(ListingPosition { metadata: MetadataPosition { block, offset }, offset: entry.index })
    }
}
