//! Extended attributes.

use floe_image::{Error, Place, Result};

use super::{
    Inode, Squashfs,
    metadata::{Metadata, MetadataCursor, MetadataPosition, TableRange},
};
use crate::format::{self, XattrEntry, XattrId, XattrVal};

/// The longest value in bytes, as in the kernel.
const VALUE_BYTES_MAX: u32 = 65_536;

const VALUE_TOO_LONG: &str = "attribute value of more than 64 KiB";

/// The maximum number of attributes of an inode: more names would exceed the kernel's limit of 64 KiB.
const ATTRIBUTES_MAX: u32 = 65_536;

/// The largest total length of an inode's xattr names in bytes, each with a terminating zero byte: the limit of
/// `listxattr`.
const NAMES_BYTES_MAX: usize = 65_536;

/// The largest total length of an inode's xattr values in bytes when they are read together. A few bytes of an image
/// can refer to one value of 64 KiB many times.
const VALUES_BYTES_MAX: usize = 16 << 20;

/// The length of a reference to an out-of-line value in bytes. To find the next attribute, the kernel skips the stated
/// length, unsquashfs this constant.
const REFERENCE_BYTES: u32 = 8;

/// The prefix of an attribute name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum XattrPrefix {
    User,
    Trusted,
    Security,
}

impl XattrPrefix {
    /// The prefix for an attribute's type; `None` if it is unknown, and the attribute is not shown.
    pub(crate) const fn from_kind(kind: u16) -> Option<Self> {
        if kind & !(format::XATTR_PREFIX_MASK | format::XATTR_VALUE_OUT_OF_LINE) != 0 {
            return None;
        }
        Some(match kind & format::XATTR_PREFIX_MASK {
            0 => Self::User,
            1 => Self::Trusted,
            2 => Self::Security,
            _ => return None,
        })
    }

    pub(crate) const fn name(self) -> &'static [u8] {
        match self {
            Self::User => b"user.",
            Self::Trusted => b"trusted.",
            Self::Security => b"security.",
        }
    }
}

impl Squashfs {
    /// The attribute set of an inode; `None` if it has none, or the image has no attributes.
    pub(crate) fn xattr_set(&self, inode: &Inode) -> Result<Option<XattrId>> {
        match (&self.xattrs, inode.xattr_index) {
            (Some(table), Some(index)) => {
                table.set(&self.metadata, index).map(Some).map_err(|error| error.for_inode(inode.nid))
            }
            _ => Ok(None),
        }
    }

    /// Reads the attributes of a set.
    pub(crate) fn xattr_list(&self, set: &XattrId) -> Result<XattrList<'_>> {
        let Some(table) = &self.xattrs else {
            return Err(Error::corrupt("attribute set in an image without attributes", Place::UNKNOWN));
        };
        if set.count > ATTRIBUTES_MAX {
            return Err(Error::corrupt("set exceeds 65536 attributes", Place::at(table.start())));
        }
        let (metadata, table) = (&self.metadata, table.attributes());
        let cursor = metadata.cursor(table, position(table, set.xattr)?);
        Ok(XattrList { cursor, metadata, table, left: set.count })
    }
}

/// Sums the lengths of one inode's names and values.
pub(crate) struct XattrBytes {
    names: usize,
    values: usize,
    place: Place,
}

impl XattrBytes {
    /// Begins a sum; `place` is the location of a fault.
    pub(crate) const fn at(place: Place) -> Self {
        Self { names: 0, values: 0, place }
    }

    /// Adds the name of an attribute and returns the full name, if it is shown; fails if the names exceed the limit of
    /// `listxattr`. Names that are not shown count as values.
    pub(crate) fn add_name(&mut self, attribute: &Xattr<'_>) -> Result<Option<Vec<u8>>> {
        let Some(name) = attribute.full_name() else { return self.add_value(attribute.name.len()).map(|()| None) };
        self.names = self.names.saturating_add(name.len()).saturating_add(1);
        let rule = "attribute names exceed 64 KiB";
        if self.names > NAMES_BYTES_MAX { Err(Error::corrupt(rule, self.place)) } else { Ok(Some(name)) }
    }

    /// Adds a value; fails if the values are too long to be read together.
    pub(crate) fn add_value(&mut self, len: usize) -> Result<()> {
        self.values = self.values.saturating_add(len);
        let rule = "attribute values exceed 16 MiB";
        if self.values > VALUES_BYTES_MAX { Err(Error::corrupt(rule, self.place)) } else { Ok(()) }
    }
}

/// Reads the attributes of a set in order.
pub(crate) struct XattrList<'image> {
    cursor: MetadataCursor<'image>,
    metadata: &'image Metadata,
    table: TableRange,
    left: u32,
}

/// An attribute.
pub(crate) struct Xattr<'image> {
    /// The raw type.
    pub(crate) kind: u16,
    /// The name without its prefix.
    pub(crate) name: Vec<u8>,
    value: MetadataCursor<'image>,
    /// The length of the value, or of the reference to it, in bytes.
    stored_len: u32,
    metadata: &'image Metadata,
    table: TableRange,
}

impl<'image> XattrList<'image> {
    /// The position of the next attribute.
    pub(crate) const fn position(&self) -> MetadataPosition {
        self.cursor.position()
    }

    /// Reads the next attribute; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Xattr<'image>>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        let entry: XattrEntry = self.cursor.read()?;
        let name = self.cursor.take(u32::from(entry.size))?;
        let value = self.cursor.clone();
        let len: XattrVal = self.cursor.read()?;
        if len.vsize > VALUE_BYTES_MAX {
            return Err(Error::corrupt(VALUE_TOO_LONG, self.cursor.position().place()));
        }
        self.cursor.skip(u64::from(len.vsize))?;
        let (metadata, table) = (self.metadata, self.table);
        Ok(Some(Xattr { kind: entry.kind, name, value, stored_len: len.vsize, metadata, table }))
    }
}

impl Xattr<'_> {
    /// The length in bytes of what follows the name: the value, or the reference to it.
    pub(crate) fn stored_len(&self) -> usize {
        usize::try_from(self.stored_len).unwrap_or(usize::MAX)
    }

    /// The full name; `None` if the prefix is unknown.
    pub(crate) fn full_name(&self) -> Option<Vec<u8>> {
        XattrPrefix::from_kind(self.kind).map(|prefix| [prefix.name(), &self.name].concat())
    }

    /// Whether `full_name` is this attribute's name.
    pub(crate) fn is_named(&self, full_name: &[u8]) -> bool {
        let prefix = XattrPrefix::from_kind(self.kind);
        prefix.and_then(|prefix| full_name.strip_prefix(prefix.name())).is_some_and(|rest| rest == self.name)
    }

    /// The reference of an out-of-line value; `None` if the value is inline.
    pub(crate) fn value_reference(&self) -> Result<Option<u64>> {
        if self.kind & format::XATTR_VALUE_OUT_OF_LINE == 0 {
            return Ok(None);
        }
        let mut cursor = self.value.clone();
        let len: XattrVal = cursor.read()?;
        if len.vsize != REFERENCE_BYTES {
            let rule = "reference to an attribute's value is not 8 bytes";
            return Err(Error::corrupt(rule, cursor.position().place()));
        }
        cursor.read_u64().map(Some)
    }

    /// The value.
    pub(crate) fn value(&self) -> Result<Vec<u8>> {
        let mut cursor = match self.value_reference()? {
            Some(reference) => self.metadata.cursor(self.table, position(self.table, reference)?),
            None => self.value.clone(),
        };
        let len: XattrVal = cursor.read()?;
        if len.vsize > VALUE_BYTES_MAX {
            return Err(Error::corrupt(VALUE_TOO_LONG, cursor.position().place()));
        }
        cursor.take(len.vsize)
    }
}

fn position(table: TableRange, reference: u64) -> Result<MetadataPosition> {
    MetadataPosition::of_reference(table.start, reference)
        .ok_or(Error::corrupt("attribute reference of more than 48 bits", Place::at(table.start)))
}
