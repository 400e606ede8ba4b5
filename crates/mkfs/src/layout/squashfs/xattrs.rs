//! Attribute sets: each different one is stored once, and so is each value that is longer than a reference to it.

use std::collections::HashMap;

use floe_squashfs::format::{self, XattrEntry, XattrId, XattrIdTable, XattrVal};

use super::{
    metadata::{MetadataBlocks, MetadataWriter},
    tables::append_table,
};
use crate::{
    error::{Error, Result, shown},
    files::image_file::ImageFile,
    options::SquashfsOptions,
    tree::{OrderedNode, Tree, xattrs::Xattr},
};

/// The prefixes of names, by their number.
const PREFIXES: [(&[u8], u16); 3] = [(b"user.", 0), (b"trusted.", 1), (b"security.", 2)];
/// The longest name and the longest value in bytes, as in the kernel.
const NAME_LEN_MAX: usize = 255;
const VALUE_LEN_MAX: usize = 65_536;
/// The longest list of an inode's names in bytes, with a zero byte after each, as in the kernel.
const NAMES_LEN_MAX: usize = 65_536;
/// The largest total length of an inode's values in bytes.
const VALUES_LEN_MAX: usize = 16 << 20;
/// The length of a reference to a value in bytes.
const REFERENCE_LEN: usize = size_of::<u64>();

/// The attribute sets of a tree.
pub(crate) struct XattrSets {
    /// The number of each node's set, in tree order; empty if no node has attributes.
    numbers: Vec<u32>,
    /// The entries of the table of sets.
    entries: Vec<u8>,
    count: u32,
    blocks: MetadataBlocks,
    left_out: u64,
}

/// The parts of a name: the number of its prefix, and the rest.
fn parts(name: &[u8]) -> Option<(u16, &[u8])> {
    PREFIXES.iter().find_map(|(prefix, number)| Some((*number, name.strip_prefix(*prefix)?)))
}

/// Whether SquashFS can store an attribute, and Linux accepts it.
pub(crate) fn keeps(name: &[u8], value: &[u8]) -> bool {
    let is_name = parts(name).is_some_and(|(_, rest)| !rest.is_empty());
    is_name && name.len() <= NAME_LEN_MAX && !name.contains(&0) && value.len() <= VALUE_LEN_MAX
}

impl XattrSets {
    /// The sets of a tree.
    pub(super) fn new(tree: &Tree, order: &[OrderedNode], squashfs: &SquashfsOptions) -> Result<Self> {
        let mut writer = MetadataWriter::new(squashfs, squashfs.uncompressed.xattrs)?;
        let mut sets =
            Self { numbers: Vec::new(), entries: Vec::new(), count: 0, blocks: MetadataBlocks::default(), left_out: 0 };
        let mut known: HashMap<Vec<&Xattr>, u32> = HashMap::new();
        let mut values: HashMap<&[u8], u64> = HashMap::new();
        for (place, ordered) in order.iter().enumerate() {
            let xattrs = &tree.node(ordered.node).xattrs;
            let kept: Vec<&Xattr> = xattrs.iter().filter(|(name, value)| keeps(name, value)).collect();
            sets.left_out += (xattrs.len() - kept.len()) as u64;
            if kept.is_empty() {
                continue;
            }
            sets.numbers.resize(order.len(), format::ABSENT_XATTRS);
            if let Some(number) = known.get(&kept) {
                sets.numbers[place] = *number;
                continue;
            }
            let names_len: usize = kept.iter().map(|(name, _)| name.len() + 1).sum();
            let values_len: usize = kept.iter().map(|(_, value)| value.len()).sum();
            if names_len > NAMES_LEN_MAX || values_len > VALUES_LEN_MAX {
                let path = shown(&tree.path(order, ordered.node));
                return Err(Error::Layout(format!("{path}: it has too many extended attributes")));
            }
            let too_many = || Error::Layout("there are too many sets of extended attributes".into());
            sets.entries.extend(
                XattrId {
                    xattr: writer.reference(),
                    count: u32::try_from(kept.len()).map_err(|_| too_many())?,
                    size: u32::try_from(names_len + values_len).map_err(|_| too_many())?,
                }
                .to_bytes(),
            );
            for (name, value) in &kept {
                write_xattr(&mut writer, name, value, &mut values)?;
            }
            sets.numbers[place] = sets.count;
            known.insert(kept, sets.count);
            sets.count = sets.count.checked_add(1).filter(|count| *count < u32::MAX).ok_or_else(too_many)?;
        }
        sets.blocks = writer.finish()?;
        Ok(sets)
    }

    /// The number of a node's set, or [`format::ABSENT_XATTRS`].
    pub(super) fn number(&self, place: usize) -> u32 {
        self.numbers.get(place).copied().unwrap_or(format::ABSENT_XATTRS)
    }

    /// The number of sets.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The number of attributes that the format cannot store.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The length of the attributes and of the table of sets before compression.
    pub(super) fn decoded_len(&self) -> u64 {
        self.blocks.decoded_len + self.entries.len() as u64
    }

    /// Appends the attributes and the table of sets. Returns the position of its header.
    pub(super) fn append_to(&self, image: &mut ImageFile, squashfs: &SquashfsOptions) -> Result<u64> {
        if self.count == 0 {
            return Ok(format::ABSENT_TABLE);
        }
        let header = XattrIdTable { xattr_table_start: image.len(), xattr_ids: self.count, unused: 0 };
        image.append(&self.blocks.stored)?;
        let writer = MetadataWriter::new(squashfs, squashfs.uncompressed.xattrs)?;
        append_table(image, writer, XattrId::SIZE, &self.entries, &header.to_bytes())
    }
}

/// Writes an attribute. `values` has the references of values that were written before.
fn write_xattr<'t>(
    writer: &mut MetadataWriter,
    name: &[u8],
    value: &'t [u8],
    values: &mut HashMap<&'t [u8], u64>,
) -> Result<()> {
    let Some((prefix, rest)) = parts(name) else { return Ok(()) };
    let known = values.get(value).copied();
    let kind = if known.is_some() { prefix | format::XATTR_VALUE_OUT_OF_LINE } else { prefix };
    writer.write(&XattrEntry { kind, size: u16::try_from(rest.len()).unwrap_or(u16::MAX) }.to_bytes())?;
    writer.write(rest)?;
    let reference = writer.reference();
    let stored: &[u8] = match &known {
        Some(known) => &known.to_le_bytes(),
        None => value,
    };
    writer.write(&XattrVal { vsize: u32::try_from(stored.len()).unwrap_or(u32::MAX) }.to_bytes())?;
    writer.write(stored)?;
    if known.is_none() && value.len() > REFERENCE_LEN {
        values.insert(value, reference);
    }
    Ok(())
}
