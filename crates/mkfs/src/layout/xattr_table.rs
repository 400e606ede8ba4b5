//! Extended attributes: those shared by many inodes, and the xattr body of each inode.

use std::collections::BTreeMap;

use floe_erofs::write::{LongPrefix, StoredName, filter_bit, xattr_body, xattr_entry};

use crate::{
    error::{Error, Result},
    options::Xattrs,
    tree::{
        OrderedNode, Tree,
        xattrs::{ACL_ACCESS, ACL_DEFAULT, Acl, Xattr},
    },
};

/// The maximum number of shared xattrs of one inode.
const SHARED_MAX: usize = 255;
/// The longest name of an xattr in bytes.
const NAME_LEN_MAX: usize = 255;
/// Prefixes that are not names by themselves.
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// The longest xattr body in bytes.
const BODY_LEN_MAX: usize = 8 + 4 * u16::MAX as usize;

/// The shared xattrs, and the form of all others.
pub(crate) struct XattrTable {
    long_prefixes: Vec<LongPrefix>,
    filter: bool,
    /// The position of each shared xattr in units of four bytes.
    shared: BTreeMap<Xattr, u32>,
    shared_bytes: Vec<u8>,
    left_out: u64,
}

/// Whether Linux accepts an xattr. Archives may contain others.
fn is_valid(name: &[u8], value: &[u8]) -> bool {
    let is_bare = PREFIXES.contains(&name);
    let is_list = name == ACL_ACCESS || name == ACL_DEFAULT;
    !is_bare && name.len() <= NAME_LEN_MAX && !name.contains(&0) && (!is_list || Acl::is_valid(value))
}

impl XattrTable {
    /// Builds the table for a tree.
    pub(crate) fn new(tree: &Tree, order: &[OrderedNode], options: &Xattrs) -> Result<Self> {
        let mut table = Self {
            long_prefixes: options.parsed_prefixes()?,
            filter: options.filter,
            shared: BTreeMap::new(),
            shared_bytes: Vec::new(),
            left_out: 0,
        };
        let mut counts: BTreeMap<(&[u8], &[u8]), usize> = BTreeMap::new();
        for ordered in order {
            for (name, value) in tree.node(ordered.node).xattrs.iter() {
                *counts.entry((name, value)).or_default() += 1;
            }
        }
        for ((name, value), count) in counts {
            let Some(entry) = table.entry(name, value) else {
                table.left_out += count as u64;
                continue;
            };
            if options.share_above.is_some_and(|limit| count > limit) {
                let number = u32::try_from(table.shared_bytes.len() / 4);
                let number = number.map_err(|_| Error::Layout("there are too many shared attributes".into()))?;
                table.shared.insert((name.into(), value.into()), number);
                table.shared_bytes.extend(entry);
            }
        }
        Ok(table)
    }

    /// The long name prefixes.
    pub(crate) fn long_prefixes(&self) -> &[LongPrefix] {
        &self.long_prefixes
    }

    /// The bytes of the shared xattrs.
    pub(crate) fn shared_bytes(&self) -> &[u8] {
        &self.shared_bytes
    }

    /// The number of xattrs that the format cannot represent.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether readers show an xattr: the format can represent it, and it is not hidden.
    pub(crate) fn shows(&self, name: &[u8], value: &[u8]) -> bool {
        let is_hidden = || StoredName::new(name, &[]).is_none();
        self.entry(name, value).is_some() && !is_hidden()
    }

    /// The xattr body of an inode; `None` if it would be too long.
    pub(crate) fn body(&self, xattrs: &[Xattr]) -> Option<Vec<u8>> {
        let (mut shared, mut entries, mut bits) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in xattrs {
            let Some(entry) = self.entry(name, value) else { continue };
            bits.push(filter_bit(name));
            match self.shared.get(&(name.clone(), value.clone())) {
                Some(number) if shared.len() < SHARED_MAX => shared.push(*number),
                _ => entries.extend(entry),
            }
        }
        if shared.is_empty() && entries.is_empty() {
            return Some(Vec::new());
        }
        let body = xattr_body(self.filter.then_some(bits.as_slice()), &shared, &entries);
        (body.len() <= BODY_LEN_MAX).then_some(body)
    }

    fn entry(&self, name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        if !is_valid(name, value) {
            return None;
        }
        xattr_entry(StoredName::new(name, &self.long_prefixes)?, value)
    }
}
