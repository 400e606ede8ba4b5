//! The tables of extended attributes.

use floe_image::{BlockReader, DeviceId, Error, Place, Result};

use super::{
    location_list::{ListPlace, ListedTable, LocationList},
    metadata::{Metadata, TableRange},
};
use crate::format::{XattrId, XattrIdTable};

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
