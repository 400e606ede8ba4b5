//! Extended attributes: those of existing files, and the access control lists in them.

use std::{ops::Deref, path::Path, sync::Arc};

use rustix::io::{Errno, Result};

/// The full name and the value of an xattr.
pub(crate) type Xattr = (Box<[u8]>, Box<[u8]>);

/// The xattrs of an inode, sorted by name. Inodes with equal xattrs can share them.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct XattrSet(Option<Arc<Vec<Xattr>>>);

impl XattrSet {
    /// The xattrs to change. They must be sorted again.
    pub(crate) fn to_mut(&mut self) -> &mut Vec<Xattr> {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

impl From<Vec<Xattr>> for XattrSet {
    fn from(xattrs: Vec<Xattr>) -> Self {
        Self((!xattrs.is_empty()).then(|| Arc::new(xattrs)))
    }
}

impl Deref for XattrSet {
    type Target = [Xattr];

    fn deref(&self) -> &[Xattr] {
        self.0.as_ref().map_or(&[], |xattrs| xattrs.as_slice())
    }
}

/// The longest list of names and the longest value that the kernel has, in bytes.
const LEN_MAX: usize = 1 << 16;

/// The names of the xattrs of the file at `path`. A symbolic link at its end is not followed.
pub(crate) fn names_at(path: &Path) -> Result<Vec<Box<[u8]>>> {
    let names = grown(|buffer| rustix::fs::llistxattr(path, buffer))?;
    Ok(names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(Into::into).collect())
}

/// The value of an xattr of the file at `path`; `None` if it was removed meanwhile, or may be listed but not read.
pub(crate) fn value_at(path: &Path, name: &[u8]) -> Result<Option<Box<[u8]>>> {
    match grown(|buffer| rustix::fs::lgetxattr(path, name, buffer)) {
        Ok(value) => Ok(Some(value.into())),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Calls `read` with larger and larger buffers until one is large enough.
fn grown(mut read: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut buffer = vec![0; 256];
    loop {
        match read(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < LEN_MAX => buffer.resize(buffer.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}

/// The xattr names of access control lists.
pub(crate) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// The version of the attribute's format.
const ACL_VERSION: u32 = 2;

/// The tags of entries in the attribute, in their required order.
pub(crate) const USER_OWNER: u16 = 0x01;
pub(crate) const USER: u16 = 0x02;
pub(crate) const GROUP_OWNER: u16 = 0x04;
pub(crate) const GROUP: u16 = 0x08;
pub(crate) const MASK: u16 = 0x10;
pub(crate) const OTHER: u16 = 0x20;

/// An access control list: permissions by tag and id.
#[derive(Clone)]
pub(crate) struct Acl {
    /// Tag, id and permissions.
    pub(crate) entries: Vec<(u16, u32, u8)>,
}

impl Acl {
    /// Whether the value of an attribute is a list that the kernel can read.
    pub(crate) fn is_valid(value: &[u8]) -> bool {
        let Some((version, entries)) = value.split_first_chunk() else { return false };
        let (entries, rest) = entries.as_chunks::<8>();
        let is_entry = |[tag_low, tag_high, rights_low, rights_high, ..]: &[u8; 8]| {
            let tag = u16::from_le_bytes([*tag_low, *tag_high]);
            let is_tag = matches!(tag, USER_OWNER | USER | GROUP_OWNER | GROUP | MASK | OTHER);
            is_tag && u16::from_le_bytes([*rights_low, *rights_high]) <= 7
        };
        u32::from_le_bytes(*version) == ACL_VERSION && rest.is_empty() && entries.iter().all(is_entry)
    }

    /// The list in the value of an attribute, if the kernel can read it.
    pub(crate) fn of_attribute(value: &[u8]) -> Option<Self> {
        let (entries, _) = value.get(size_of_val(&ACL_VERSION)..).filter(|_| Self::is_valid(value))?.as_chunks::<8>();
        let entries = entries.iter().map(|[tag_low, tag_high, rights, _, id @ ..]| {
            (u16::from_le_bytes([*tag_low, *tag_high]), u32::from_le_bytes(*id), *rights)
        });
        Some(Self { entries: entries.collect() })
    }

    /// The permissions of the group within the mask.
    pub(crate) fn group_rights(&self) -> u8 {
        self.rights(GROUP_OWNER).unwrap_or(0) & self.rights(MASK).unwrap_or(7)
    }

    /// Sets the permissions of the group, which the mask still limits.
    pub(crate) fn set_group_rights(&mut self, rights: u8) {
        let of_group = self.entries.iter_mut().filter(|(tag, ..)| *tag == GROUP_OWNER);
        of_group.for_each(|(.., known)| *known = rights);
    }

    /// The value of the attribute.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = ACL_VERSION.to_le_bytes().to_vec();
        for (tag, id, rights) in &self.entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(u16::from(*rights).to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// Whether the permission bits express the whole list.
    pub(crate) fn is_plain(&self) -> bool {
        self.entries.iter().all(|(tag, ..)| matches!(*tag, USER_OWNER | GROUP_OWNER | OTHER))
    }

    /// Whether the list has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The permissions of the first entry with this tag.
    pub(crate) fn rights(&self, wanted: u16) -> Option<u8> {
        self.entries.iter().find(|(tag, ..)| *tag == wanted).map(|(.., rights)| *rights)
    }
}
