//! Directory listings, and the indexes of large directories.

use floe_image::{Error, FileType, Nid, Place, Result};

use super::{
    DirectoryInode, Squashfs,
    metadata::{MetadataCursor, MetadataPosition},
};
use crate::format::{self, DirEntry, DirHeader, DirIndex, METADATA_BYTES, NAME_BYTES_MAX};

/// A name in a reusable buffer.
pub(crate) struct Name {
    bytes: [u8; NAME_BYTES_MAX],
    len: usize,
}

impl Name {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; NAME_BYTES_MAX], len: 0 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    pub(super) fn copy_from(&mut self, other: &Self) {
        self.len = other.len;
        for (to, from) in self.bytes.iter_mut().zip(other.as_bytes()) {
            *to = *from;
        }
    }

    /// Reads a name of `len_less_1` + 1 bytes.
    pub(super) fn read(&mut self, cursor: &mut MetadataCursor<'_>, len_less_1: u32) -> Result<()> {
        let len = usize::try_from(len_less_1).unwrap_or(usize::MAX).saturating_add(1);
        let Some(output) = self.bytes.get_mut(..len) else {
            return Err(Error::corrupt("name of more than 256 bytes", cursor.position().place()));
        };
        cursor.fill(output)?;
        self.len = len;
        Ok(())
    }
}

/// A dirent without its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedInode {
    /// The reference of the inode.
    pub(crate) nid: Nid,
    /// The inode number recorded in the dirent.
    pub(crate) number: u32,
    /// The file type recorded in the dirent.
    pub(crate) file_type: FileType,
}

/// The position of a header in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ListingPosition {
    /// Its metadata position.
    pub(crate) metadata: MetadataPosition,
    /// Its offset in the listing.
    pub(crate) offset: u32,
}

/// Reads a listing: headers, each followed by its dirents (section "Directories"). Names must ascend, because searches
/// rely on the order.
pub(crate) struct Listing<'image> {
    cursor: MetadataCursor<'image>,
    directory: Nid,
    offset: u32,
    len: u32,
    header: DirHeader,
    header_position: ListingPosition,
    left_under_header: u32,
    starts_header: bool,
    previous: Name,
    expected_first: Option<Name>,
}

impl DirectoryInode {
    /// The length of the listing in bytes.
    pub(crate) const fn listing_bytes(&self) -> u32 {
        self.size.saturating_sub(format::DIRECTORY_SIZE_EXTRA)
    }
}

impl Squashfs {
    /// The start of a directory's listing.
    pub(crate) fn listing_start(&self, directory: &DirectoryInode) -> ListingPosition {
        let block = self.directory_table.start.saturating_add(u64::from(directory.start_block));
        let metadata = MetadataPosition { block, offset: u32::from(directory.offset) };
        ListingPosition { metadata, offset: 0 }
    }

    /// Reads the listing of directory `nid` from a header on.
    pub(crate) fn listing(&self, nid: Nid, directory: &DirectoryInode, from: ListingPosition) -> Listing<'_> {
        Listing {
            cursor: self.metadata.cursor(self.directory_table, from.metadata),
            directory: nid,
            offset: from.offset,
            len: directory.listing_bytes(),
            header: DirHeader { count: 0, start_block: 0, inode_number: 0 },
            header_position: from,
            left_under_header: 0,
            starts_header: false,
            previous: Name::new(),
            expected_first: None,
        }
    }
}

impl Listing<'_> {
    /// The offset in the listing of the next header or dirent.
    pub(crate) const fn offset(&self) -> u32 {
        self.offset
    }

    /// The position of the next header or dirent.
    pub(crate) const fn position(&self) -> MetadataPosition {
        self.cursor.position()
    }

    /// The position of the last dirent's header.
    pub(crate) const fn header(&self) -> ListingPosition {
        self.header_position
    }

    /// Whether the last dirent was the first one under its header.
    pub(crate) const fn was_first_under_header(&self) -> bool {
        self.starts_header
    }

    /// Sets the first name that the index states, for comparison.
    pub(super) fn expect_first(&mut self, name: Option<Name>) {
        self.expected_first = name;
    }

    /// Reads the next dirent and copies its name to `name`; `None` at the end.
    pub(crate) fn next(&mut self, name: &mut Name) -> Result<Option<ListedInode>> {
        if self.offset >= self.len && self.left_under_header == 0 {
            return Ok(None);
        }
        self.read_next(name).map(Some).map_err(|error| error.for_inode(self.directory))
    }

    fn read_next(&mut self, name: &mut Name) -> Result<ListedInode> {
        self.starts_header = self.left_under_header == 0;
        if self.starts_header {
            self.read_header()?;
        }
        let place = self.place();
        self.left_under_header = self.left_under_header.saturating_sub(1);
        self.advance(DirEntry::SIZE)?;
        let entry: DirEntry = self.cursor.read()?;
        self.advance(usize::from(entry.size).saturating_add(1))?;
        name.read(&mut self.cursor, u32::from(entry.size))?;
        check_name(name.as_bytes(), place)?;
        if name.as_bytes() <= self.previous.as_bytes() {
            return Err(Error::corrupt("directory is not sorted or has duplicate names", place));
        }
        self.previous.copy_from(name);
        if self.expected_first.take().is_some_and(|expected| expected.as_bytes() != name.as_bytes()) {
            return Err(Error::corrupt("directory index does not lead to a header", place));
        }
        let Some(file_type) = file_type(entry.kind) else {
            return Err(Error::corrupt("dirent of an unknown type", place));
        };
        let block = u64::from(self.header.start_block).wrapping_shl(16);
        Ok(ListedInode {
            nid: Nid(block | u64::from(entry.offset)),
            number: self.header.inode_number.wrapping_add_signed(i32::from(entry.inode_number)),
            file_type,
        })
    }

    fn read_header(&mut self) -> Result<()> {
        let place = self.place();
        self.header_position = ListingPosition { metadata: self.cursor.position(), offset: self.offset };
        self.advance(DirHeader::SIZE)?;
        self.header = self.cursor.read()?;
        if self.header.count >= format::DIRECTORY_HEADER_ENTRIES_MAX {
            return Err(Error::corrupt("directory header of more than 256 dirents", place));
        }
        self.left_under_header = self.header.count.saturating_add(1);
        Ok(())
    }

    fn advance(&mut self, len: usize) -> Result<()> {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        match self.offset.checked_add(len).filter(|end| *end <= self.len) {
            Some(end) => self.offset = end,
            None => return Err(Error::corrupt("dirent past the end of its directory", self.place())),
        }
        Ok(())
    }

    fn place(&self) -> Place {
        Place::inode_at(self.directory, self.cursor.position().block)
    }
}

fn check_name(name: &[u8], place: Place) -> Result<()> {
    if name.contains(&b'/') || name.contains(&0) {
        return Err(Error::corrupt("name contains a slash or NUL", place));
    }
    if matches!(name, b"." | b"..") {
        return Err(Error::corrupt("directory lists . or ..", place));
    }
    Ok(())
}

/// The file type of a dirent.
const fn file_type(kind: u16) -> Option<FileType> {
    Some(match kind {
        format::DIR_TYPE => FileType::Directory,
        format::REG_TYPE => FileType::Regular,
        format::SYMLINK_TYPE => FileType::Symlink,
        format::BLKDEV_TYPE => FileType::BlockDevice,
        format::CHRDEV_TYPE => FileType::CharacterDevice,
        format::FIFO_TYPE => FileType::Fifo,
        format::SOCKET_TYPE => FileType::Socket,
        _ => return None,
    })
}

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
