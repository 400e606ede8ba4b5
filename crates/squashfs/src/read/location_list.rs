//! Tables of fixed-size entries whose metadata blocks are located through a list.

use floe_image::{BlockReader, DeviceId, Error, Place, Result};

use super::metadata::{Metadata, MetadataCursor, MetadataPosition, TableRange};
use crate::format::{METADATA_BYTES, Raw, XattrId, XattrIdTable};

/// The length of a block position in a list, in bytes.
const LOCATION_BYTES: u64 = 8;

/// The maximum stored length of a metadata block in bytes, including its length word.
const STORED_BLOCK_BYTES_MAX: u64 = 8194;

/// Identifies a table with a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ListedTable {
    /// Fragment blocks.
    Fragments,
    /// Inode references by inode number.
    Export,
    /// User and group ids.
    Ids,
    /// Attribute sets.
    Xattrs,
}

impl ListedTable {
    const fn does_not_fit(self) -> &'static str {
        match self {
            Self::Fragments => "list of the fragment table runs into the next table",
            Self::Export => "list of the export table does not end where the next table begins",
            Self::Ids => "list of the id table does not end where the next table begins",
            Self::Xattrs => "list of the attribute id table does not end where the file system does",
        }
    }

    const fn is_out_of_order(self) -> &'static str {
        match self {
            Self::Fragments => "blocks of the fragment table are not consecutive",
            Self::Export => "blocks of the export table are not consecutive",
            Self::Ids => "blocks of the id table are not consecutive",
            Self::Xattrs => "blocks of the attribute id table are not consecutive",
        }
    }

    const fn has_no_such_entry(self) -> &'static str {
        match self {
            Self::Fragments => "fragment index past the fragment table",
            Self::Export => "inode number past the export table",
            Self::Ids => "id index past the id table",
            Self::Xattrs => "attribute set past the attribute id table",
        }
    }
}

/// The location of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListPlace {
    pub(crate) table: ListedTable,
    /// The end of the table's metadata blocks.
    pub(crate) blocks_end: u64,
    /// The start of the list.
    pub(crate) start: u64,
    /// The start of the next structure.
    pub(crate) next: u64,
    pub(crate) entry_count: u32,
    pub(crate) entry_bytes: u32,
}

/// A table of fixed-size entries (section "Tables with a list").
///
/// The list stays in memory: 8 bytes for each 8 KiB of entries, all of them present in the image.
#[derive(Clone, Debug)]
pub(crate) struct LocationList {
    table: ListedTable,
    range: TableRange,
    entry_count: u32,
    entries_per_block: u32,
    entry_bytes: u32,
    locations: Vec<u64>,
}

impl LocationList {
    /// Reads the list.
    pub(crate) fn read(reader: &dyn BlockReader, place: ListPlace) -> Result<Self> {
        let ListPlace { table, blocks_end, start, next, entry_count, entry_bytes } = place;
        let corrupt = |rule| Error::corrupt(rule, Place::at(start));
        let entries_per_block = METADATA_BYTES.checked_div(entry_bytes).unwrap_or(1).max(1);
        let block_count = u64::from(entry_count.div_ceil(entries_per_block));
        let list_bytes = block_count.saturating_mul(LOCATION_BYTES);
        let end = start.checked_add(list_bytes).ok_or_else(|| corrupt(table.does_not_fit()))?;
        let fits = if table == ListedTable::Fragments { end <= next } else { end == next };
        if !fits {
            return Err(corrupt(table.does_not_fit()));
        }
        let locations = read_locations(reader, start, end)?;
        let mut following = locations.iter().skip(1).copied().chain([blocks_end]);
        for location in &locations {
            let limit = location.saturating_add(STORED_BLOCK_BYTES_MAX);
            if !following.next().is_some_and(|next| *location < next && next <= limit) {
                return Err(corrupt(table.is_out_of_order()));
            }
        }
        let range = TableRange { start: locations.first().copied().unwrap_or(blocks_end), end: blocks_end };
        Ok(Self { table, range, entry_count, entries_per_block, entry_bytes, locations })
    }

    /// The range of the table's metadata blocks, which ends where the list, or the header before it, begins.
    pub(crate) const fn range(&self) -> TableRange {
        self.range
    }

    /// The number of entries.
    pub(crate) const fn entry_count(&self) -> u32 {
        self.entry_count
    }

    /// Reads the entry at this index.
    pub(crate) fn entry<T: Raw>(&self, metadata: &Metadata, index: u32) -> Result<T> {
        self.cursor_at(metadata, index)?.read()
    }

    /// A cursor at the entry of this index.
    pub(crate) fn cursor_at<'image>(&self, metadata: &'image Metadata, index: u32) -> Result<MetadataCursor<'image>> {
        let block = index.checked_div(self.entries_per_block).and_then(|block| usize::try_from(block).ok());
        let location = block.and_then(|block| self.locations.get(block)).filter(|_| index < self.entry_count);
        let Some(location) = location else {
            return Err(Error::corrupt(self.table.has_no_such_entry(), Place::at(self.range.end)));
        };
        let within = index.checked_rem(self.entries_per_block).unwrap_or_default();
        let offset = within.saturating_mul(self.entry_bytes);
        Ok(metadata.cursor(self.range, MetadataPosition { block: *location, offset }))
    }
}

fn read_locations(reader: &dyn BlockReader, start: u64, end: u64) -> Result<Vec<u64>> {
    let step = u64::try_from(<dyn BlockReader>::STORED_LEN_MAX).unwrap_or(LOCATION_BYTES);
    let mut locations = Vec::new();
    let mut position = start;
    while position < end {
        let len = end.saturating_sub(position).min(step);
        let bytes = reader.stored(DeviceId(0), position, usize::try_from(len).unwrap_or_default())?;
        let (chunks, _) = bytes.as_chunks();
        locations.extend(chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)));
        position = position.saturating_add(len);
    }
    Ok(locations)
}

/// The attributes and attribute sets (section "Attributes").
pub(super) struct XattrTable {
    sets: LocationList,
    attributes: TableRange,
}

impl XattrTable {
    /// Reads the table's header and list.
    pub(super) fn read(reader: &dyn BlockReader, header_start: u64, bytes_used: u64) -> Result<Self> {
        let place = Place::at(header_start);
        let list_start = header_start.saturating_add(16);
        if list_start > bytes_used {
            return Err(Error::corrupt("attribute id table past the end of the file system", place));
        }
        let bytes = reader.stored(DeviceId(0), header_start, XattrIdTable::SIZE)?;
        let header = XattrIdTable::from_prefix(&bytes)
            .ok_or(Error::corrupt("attribute id table past the end of the file system", place))?;
        if header.xattr_ids == 0 {
            return Err(Error::corrupt("attribute id table without attribute sets", place));
        }
        let table = ListedTable::Xattrs;
        let entry_bytes = u32::try_from(XattrId::SIZE).unwrap_or(u32::MAX);
        let list = ListPlace {
            table,
            blocks_end: header_start,
            start: list_start,
            next: bytes_used,
            entry_count: header.xattr_ids,
            entry_bytes,
        };
        let sets = LocationList::read(reader, list)?;
        let attributes = TableRange { start: header.xattr_table_start, end: sets.range().start };
        if attributes.start >= attributes.end {
            return Err(Error::corrupt("attributes do not precede the attribute id table", place));
        }
        Ok(Self { sets, attributes })
    }

    /// The start of the table.
    pub(super) const fn start(&self) -> u64 {
        self.attributes.start
    }

    /// The sets.
    pub(super) const fn sets(&self) -> &LocationList {
        &self.sets
    }

    /// The range of the attributes' metadata blocks.
    pub(super) const fn attributes(&self) -> TableRange {
        self.attributes
    }

    /// The set with this index.
    pub(super) fn set(&self, metadata: &Metadata, index: u32) -> Result<XattrId> {
        self.sets.entry(metadata, index)
    }
}

#[cfg(test)]
mod tests {
    use floe_testkit::DirectReader;

    use super::*;

    fn read(locations: &[u64], table: ListedTable, entry_count: u32, slack: u64) -> Result<LocationList> {
        let start = 20_000;
        let mut image = vec![0; start];
        image.extend(locations.iter().flat_map(|location| location.to_le_bytes()));
        let next = image.len() as u64 + slack;
        image.extend([0; 64]);
        let start = start as u64;
        let place = ListPlace { table, blocks_end: start, start, next, entry_count, entry_bytes: 16 };
        LocationList::read(&DirectReader::of(image), place)
    }

    #[test]
    fn lists_are_held_to_their_rules() {
        let ids = ListedTable::Ids;
        for (locations, table, entry_count, slack, expected) in [
            (&[12_000, 16_000][..], ids, 513, 0, Ok(())),
            (&[12_000, 16_000], ids, 1024, 0, Ok(())),
            (&[16_000], ids, 512, 0, Ok(())),
            (&[16_000], ids, 513, 0, Err("does not end where the next table begins")),
            (&[16_000], ids, 512, 8, Err("does not end where the next table begins")),
            (&[16_000], ListedTable::Fragments, 512, 8, Ok(())),
            (&[16_000], ListedTable::Fragments, 513, 0, Err("runs into the next table")),
            (&[16_000, 12_000], ids, 513, 0, Err("not consecutive")),
            (&[16_000, 16_000], ids, 513, 0, Err("not consecutive")),
            (&[3000, 16_000], ids, 513, 0, Err("not consecutive")),
            (&[20_000], ids, 1, 0, Err("not consecutive")),
            (&[u64::MAX], ids, 1, 0, Err("not consecutive")),
            (&[1], ids, u32::MAX, 0, Err("does not end where the next table begins")),
        ] {
            let told = read(locations, table, entry_count, slack).map(drop).map_err(|error| error.to_string());
            match (told, expected) {
                (Ok(()), Ok(())) => {}
                (Err(told), Err(expected)) => assert!(told.contains(expected), "{told} where {expected} is expected"),
                (told, _) => panic!("{told:?} where {expected:?} is expected for {locations:?}"),
            }
        }
    }

    #[test]
    fn entries_past_the_count_are_refused() {
        let list = read(&[16_000], ListedTable::Xattrs, 3, 0).expect("a good list");
        let metadata = Metadata::new(std::sync::Arc::new(DirectReader::of(vec![])), floe_image::Encoding::Stored);
        assert_eq!(list.cursor_at(&metadata, 2).expect("there").position().offset, 32);
        let error = list.cursor_at(&metadata, 3).err().expect("not there").to_string();
        assert_eq!(error, "corrupt image: attribute set past the attribute id table (byte 20000)");
    }
}
