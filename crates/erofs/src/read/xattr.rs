//! Extended attributes and POSIX ACLs (docs/format/erofs.md, Extended attributes).

use std::{
    collections::{HashMap, HashSet},
    ops::ControlFlow,
};

use floe_image::{Bytes, Error, Place, Result, Xattr};
use xxhash_rust::xxh32::xxh32;

use super::{
    inode::Inode,
    parameters::Space,
    volume::Volume,
    window::Metadata,
    xattr_prefixes::{LongPrefix, short_prefix, split_name},
};
use crate::format::{self, XattrEntry, XattrIbodyHeader};

/// The size of the header.
const HEADER_LEN: usize = XattrIbodyHeader::SIZE;

/// The largest total length of an inode's xattr names in bytes, each with a terminating zero byte: the limit of
/// `listxattr`.
const NAMES_BYTES_MAX: usize = 65_536;

/// Caches the results of checking shared xattrs: by number, the fault and the length of the name in bytes. Each shared
/// xattr is checked once, however many inodes refer to it.
#[derive(Default)]
pub(super) struct SharedXattrFaults {
    known: HashMap<u32, (XattrFault, usize)>,
}

/// A fault of an attribute.
#[derive(Clone, Copy)]
enum XattrFault {
    /// The attribute has this fault.
    Is(&'static str),
    /// The attribute is hidden from inodes whose filter has this bit set.
    HiddenBy(u32),
    /// The attribute has no fault.
    None,
}

/// The extended attributes of an inode.
pub(super) struct Xattrs<'volume> {
    volume: &'volume Volume,
    inode: &'volume Inode,
    prefixes: &'volume [LongPrefix],
    header: XattrIbodyHeader,
}

/// An attribute as it is stored.
struct Stored {
    index: u8,
    name: Bytes,
    value: Bytes,
}

impl<'volume> Xattrs<'volume> {
    /// Opens the attributes of `inode`; `None` if it has none.
    ///
    /// # Errors
    /// The header cannot be read or breaks the format.
    pub(super) fn new(
        volume: &'volume Volume,
        inode: &'volume Inode,
        prefixes: &'volume [LongPrefix],
    ) -> Result<Option<Self>> {
        let corrupt = |rule| Error::corrupt(rule, Place::inode_at(inode.nid, inode.xattr_position));
        if inode.xattr_len == 0 {
            return Ok(None);
        }
        let bytes = volume.metadata(inode.space, inode.xattr_position, HEADER_LEN, inode.nid)?;
        let header = XattrIbodyHeader::from_prefix(&bytes).ok_or(corrupt("xattr header is short"))?;
        let room = inode.xattr_len.saturating_sub(bytes_u64(HEADER_LEN));
        if room == 0 {
            return Err(Error::unsupported(format!("EROFS xattr body without entries (inode {})", inode.nid)));
        }
        if u64::from(header.h_shared_count) * 4 > room {
            return Err(corrupt("shared xattrs exceed the xattr body"));
        }
        Ok(Some(Self { volume, inode, prefixes, header }))
    }

    /// The value of attribute `name`.
    ///
    /// # Errors
    /// The attributes cannot be read or break the format.
    pub(super) fn value(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some((index, rest)) = split_name(name) else { return Ok(None) };
        if self.filter_excludes(index, rest) {
            return Ok(None);
        }
        let mut found = None;
        self.visit(|stored| {
            if self.is_named(stored, index, rest) {
                found = Some(stored.value.to_vec());
            }
            found.is_none()
        })?;
        let is_acl = rest.is_empty();
        Ok(if is_acl { found.as_deref().and_then(as_getxattr) } else { found })
    }

    /// The full names of all attributes, inline ones first. Skips attributes with an unknown prefix.
    ///
    /// # Errors
    /// The attributes cannot be read or break the format, or their names take more than 64 KiB.
    pub(super) fn names(&self) -> Result<Vec<Vec<u8>>> {
        let (mut names, mut bytes) = (Vec::new(), 0usize);
        self.visit(|stored| {
            bytes = bytes.saturating_add(self.listed_bytes(stored));
            names.extend(self.full_name(stored));
            bytes <= NAMES_BYTES_MAX
        })?;
        if bytes > NAMES_BYTES_MAX { Err(self.too_many_names()) } else { Ok(names) }
    }

    /// Visits all attributes with their full names, inline ones first, until `visit` breaks. The first of two
    /// attributes with the same name counts. Skips attributes that [`Xattrs::value`] does not return.
    ///
    /// # Errors
    /// As for [`Xattrs::names`].
    pub(super) fn each(&self, visit: &mut dyn FnMut(Xattr<'_>) -> ControlFlow<()>) -> Result<()> {
        let (mut seen, mut bytes, mut is_over) = (HashSet::new(), 0usize, false);
        self.visit(|stored| {
            let Some(name) = self.full_name(stored) else { return true };
            bytes = bytes.saturating_add(name.len()).saturating_add(1);
            if bytes > NAMES_BYTES_MAX {
                return false;
            }
            let Some((index, rest)) = split_name(&name) else { return true };
            let is_hidden = self.filter_excludes(index, rest);
            let acl = if rest.is_empty() { as_getxattr(&stored.value) } else { None };
            let value = if rest.is_empty() { acl.as_deref() } else { Some(&*stored.value) };
            if let Some(value) = value
                && !is_hidden
                && !seen.contains(&name)
            {
                is_over = visit(Xattr { name: &name, value }).is_break();
            }
            seen.insert(name);
            !is_over
        })?;
        if bytes > NAMES_BYTES_MAX { Err(self.too_many_names()) } else { Ok(()) }
    }

    /// The faults of attributes that can nevertheless be read, one phrase each.
    ///
    /// # Errors
    /// As for [`Xattrs::names`].
    pub(super) fn faults(&self, shared: &mut SharedXattrFaults) -> Result<Vec<&'static str>> {
        let (mut faults, mut bytes) = (Vec::new(), 0usize);
        self.visit_inline(|stored| {
            faults.extend(self.visible_fault(self.fault(stored)));
            bytes = bytes.saturating_add(self.listed_bytes(stored));
            true
        })?;
        for id in self.shared_ids()? {
            let (fault, name_bytes) = match shared.known.get(&id) {
                Some(known) => *known,
                None => {
                    let stored = self.shared(id)?;
                    let found = (self.fault(&stored), self.listed_bytes(&stored));
                    shared.known.insert(id, found);
                    found
                }
            };
            faults.extend(self.visible_fault(fault));
            bytes = bytes.saturating_add(name_bytes);
        }
        if bytes > NAMES_BYTES_MAX { Err(self.too_many_names()) } else { Ok(faults) }
    }

    /// The number of bytes that the attribute's name takes in the result of `listxattr`; 0 if it is not listed.
    fn listed_bytes(&self, stored: &Stored) -> usize {
        let Some((base, infix)) = self.prefix(stored.index) else { return 0 };
        short_prefix(base).map_or(0, |prefix| prefix.len() + infix.len() + stored.name.len() + 1)
    }

    fn visible_fault(&self, fault: XattrFault) -> Option<&'static str> {
        match fault {
            XattrFault::Is(rule) => Some(rule),
            XattrFault::HiddenBy(bit) => {
                (self.header.h_name_filter >> bit & 1 != 0).then_some("xattr hidden by the inode's filter")
            }
            XattrFault::None => None,
        }
    }

    fn fault(&self, stored: &Stored) -> XattrFault {
        let Some((base, infix)) = self.prefix(stored.index) else {
            return XattrFault::Is("xattr with an unknown long prefix");
        };
        let rest = [infix, &stored.name].concat();
        let is_acl = matches!(base, format::XATTR_INDEX_POSIX_ACL_ACCESS | format::XATTR_INDEX_POSIX_ACL_DEFAULT);
        if base == format::XATTR_INDEX_NONE {
            // Free space, or private data of the tool that made the image. No file system shows it.
            XattrFault::None
        } else if short_prefix(base).is_none() {
            XattrFault::Is("xattr with an unknown prefix")
        } else if is_acl && (!rest.is_empty() || as_getxattr(&stored.value).is_none()) {
            XattrFault::Is("malformed ACL")
        } else if !is_acl && rest.is_empty() {
            XattrFault::Is("xattr without a name")
        } else {
            self.filter_bit(base, &rest).map_or(XattrFault::None, XattrFault::HiddenBy)
        }
    }

    /// The full name of an attribute; `None` if its prefix is unknown.
    fn full_name(&self, stored: &Stored) -> Option<Vec<u8>> {
        let (base, infix) = self.prefix(stored.index)?;
        short_prefix(base).map(|prefix| [prefix, infix, &stored.name].concat())
    }

    /// The short prefix and the infix of an entry's name.
    fn prefix(&self, index: u8) -> Option<(u8, &[u8])> {
        if index & format::XATTR_LONG_PREFIX == 0 {
            return Some((index, &[]));
        }
        let number = usize::from(index & format::XATTR_LONG_PREFIX_MASK);
        self.prefixes.get(number).map(|prefix| (prefix.base, prefix.infix.as_slice()))
    }

    fn is_named(&self, stored: &Stored, index: u8, rest: &[u8]) -> bool {
        self.prefix(stored.index).is_some_and(|(base, infix)| {
            base == index && rest.strip_prefix(infix).is_some_and(|suffix| suffix == stored.name)
        })
    }

    /// Whether the inode's filter rules the attribute out.
    fn filter_excludes(&self, index: u8, rest: &[u8]) -> bool {
        self.filter_bit(index, rest).is_some_and(|bit| self.header.h_name_filter >> bit & 1 != 0)
    }

    /// The filter bit that, if set, rules the attribute out; `None` if the image has no filters.
    fn filter_bit(&self, index: u8, rest: &[u8]) -> Option<u32> {
        let superblock = &self.volume.superblock;
        if !superblock.features.has_compatible(format::FEATURE_COMPAT_XATTR_FILTER)
            || superblock.raw.xattr_filter_reserved != 0
        {
            return None;
        }
        Some(xxh32(rest, format::XATTR_FILTER_SEED.wrapping_add(u32::from(index))) % format::XATTR_FILTER_BITS)
    }

    /// Visits all attributes, inline ones first, until `visit` returns `false`.
    fn visit(&self, mut visit: impl FnMut(&Stored) -> bool) -> Result<()> {
        if !self.visit_inline(&mut visit)? {
            return Ok(());
        }
        for id in self.shared_ids()? {
            if !visit(&self.shared(id)?) {
                break;
            }
        }
        Ok(())
    }

    /// Visits the inline attributes until `visit` returns `false`; returns the last result.
    fn visit_inline(&self, mut visit: impl FnMut(&Stored) -> bool) -> Result<bool> {
        let body_len = usize::try_from(self.inode.xattr_len).unwrap_or(usize::MAX);
        let body = self.volume.metadata(self.inode.space, self.inode.xattr_position, body_len, self.inode.nid)?;
        let mut at = self.shared_end();
        while at < body.len() {
            let (stored, end) = entry_at(&body, at).ok_or(self.corrupt("xattr past the inode's xattrs"))?;
            if !visit(&stored) {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }

    /// The numbers of the inode's shared attributes.
    fn shared_ids(&self) -> Result<Vec<u32>> {
        let end = self.shared_end();
        let body = self.volume.metadata(self.inode.space, self.inode.xattr_position, end, self.inode.nid)?;
        let ids = body.get(HEADER_LEN..end).unwrap_or_default();
        Ok(ids.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect())
    }

    /// The end of the shared attribute numbers, relative to the header.
    fn shared_end(&self) -> usize {
        HEADER_LEN + usize::from(self.header.h_shared_count) * 4
    }

    /// Reads the shared attribute `id`.
    fn shared(&self, id: u32) -> Result<Stored> {
        let superblock = &self.volume.superblock;
        let space = match superblock.features.has_compatible(format::FEATURE_COMPAT_SHARED_EA_IN_METABOX) {
            true => Space::Metabox,
            false => Space::Image,
        };
        let past = u64::from(id) * format::XATTR_ALIGN;
        let position = superblock.shared_xattr_position.checked_add(past);
        let position = position.ok_or(self.corrupt("shared xattr past the address space"))?;
        let head = self.volume.metadata(space, position, XattrEntry::SIZE, self.inode.nid)?;
        let raw = XattrEntry::from_prefix(&head).unwrap_or_default();
        let len = XattrEntry::SIZE + usize::from(raw.e_name_len) + usize::from(raw.e_value_size);
        let bytes = self.volume.metadata(space, position, len, self.inode.nid)?;
        entry_at(&bytes, 0).map(|(stored, _)| stored).ok_or(self.corrupt("shared xattr is short"))
    }

    fn too_many_names(&self) -> Error {
        self.corrupt("xattr names exceed 64 KiB")
    }

    fn corrupt(&self, rule: &'static str) -> Error {
        Error::corrupt(rule, Place::inode_at(self.inode.nid, self.inode.xattr_position))
    }
}

/// Parses the attribute at byte `at` of `body`; returns it with the start of the next one, or `None` if it does not
/// fit.
fn entry_at(body: &Bytes, at: usize) -> Option<(Stored, usize)> {
    let raw = XattrEntry::from_prefix(body.get(at..)?)?;
    let name_start = at + XattrEntry::SIZE;
    let value_start = name_start + usize::from(raw.e_name_len);
    let end = value_start + usize::from(raw.e_value_size);
    body.get(name_start..end)?;
    let (name, value) = (body.slice(name_start..value_start), body.slice(value_start..end));
    Some((Stored { index: raw.e_name_index, name, value }, end.next_multiple_of(4)))
}

fn bytes_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// The version number at the start of an ACL.
const VERSION: u32 = 2;
/// The size of an entry: tag, permissions and id.
const ENTRY_LEN: usize = 8;
/// The id in entries without a named user or group.
const NO_ID: u32 = u32::MAX;
/// The tags of entries for a named user or group.
const TAGS_WITH_ID: [u16; 2] = [0x2, 0x8];
/// The other tags: owner, owning group, mask, others.
const TAGS_WITHOUT_ID: [u16; 4] = [0x1, 0x4, 0x10, 0x20];

/// Converts a stored ACL to the form that `getxattr` returns: entries without a named user or group have no id. `None`
/// if it has no entries or is malformed.
fn as_getxattr(stored: &[u8]) -> Option<Vec<u8>> {
    let (version, entries) = stored.split_first_chunk()?;
    let (entries, rest) = entries.as_chunks::<ENTRY_LEN>();
    if u32::from_le_bytes(*version) != VERSION || entries.is_empty() || !rest.is_empty() {
        return None;
    }
    let mut acl = version.to_vec();
    for entry in entries {
        let [tag0, tag1, permissions0, permissions1, id @ ..] = *entry;
        let tag = u16::from_le_bytes([tag0, tag1]);
        acl.extend([tag0, tag1, permissions0, permissions1]);
        if TAGS_WITH_ID.contains(&tag) {
            acl.extend(id);
        } else if TAGS_WITHOUT_ID.contains(&tag) {
            acl.extend(NO_ID.to_le_bytes());
        } else {
            return None;
        }
    }
    Some(acl)
}

#[cfg(test)]
mod tests {
    use super::as_getxattr;

    #[test]
    fn ids_of_unnamed_entries_are_dropped() {
        let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &7u16.to_le_bytes(), &id.to_le_bytes()].concat();
        let acl = |entries: &[Vec<u8>]| [&2u32.to_le_bytes()[..], &entries.concat()].concat();
        let stored = acl(&[entry(1, 0), entry(2, 1000), entry(0x20, 5)]);
        let expected = acl(&[entry(1, u32::MAX), entry(2, 1000), entry(0x20, u32::MAX)]);
        assert_eq!(as_getxattr(&stored), Some(expected));
        for broken in [acl(&[]), acl(&[entry(3, 0)]), stored[..7].to_vec(), vec![1, 0, 0, 0], Vec::new()] {
            assert_eq!(as_getxattr(&broken), None, "{broken:?}");
        }
    }
}
