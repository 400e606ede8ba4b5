//! Extended attributes: which are stored once for many inodes, and what stands behind each inode.

use std::collections::BTreeMap;

use floe_erofs::write::{LongPrefix, StoredName, filter_bit, xattr_body, xattr_entry};

use crate::{
    error::{Error, Result},
    options::Xattrs,
    tree::{Tree, Visit, Xattr},
};

/// How many shared attributes one inode can have.
const SHARED_MAX: usize = 255;
/// The longest body of attributes, in bytes.
const BODY_LEN_MAX: usize = 8 + 4 * u16::MAX as usize;

/// The attributes that are stored once, and how all are stored.
pub(crate) struct XattrTable {
    long_prefixes: Vec<LongPrefix>,
    filter: bool,
    /// Where each shared attribute is, in steps of four bytes.
    shared: BTreeMap<Xattr, u32>,
    shared_bytes: Vec<u8>,
    left_out: u64,
}

impl XattrTable {
    /// The table for all that is in the tree.
    pub(crate) fn new(tree: &Tree, visits: &[Visit], options: &Xattrs) -> Result<Self> {
        let mut long_prefixes = Vec::new();
        for prefix in &options.long_prefixes {
            let text = String::from_utf8_lossy(prefix).into_owned();
            long_prefixes.push(LongPrefix::new(prefix).ok_or_else(|| {
                Error::Option(format!("{text}: a prefix of attributes begins with user., trusted. or security."))
            })?);
        }
        if long_prefixes.len() > 128 {
            return Err(Error::Option("there are at most 128 prefixes of attributes".into()));
        }
        let mut table = Self {
            long_prefixes,
            filter: options.filter,
            shared: BTreeMap::new(),
            shared_bytes: Vec::new(),
            left_out: 0,
        };
        let mut counts: BTreeMap<(&[u8], &[u8]), usize> = BTreeMap::new();
        for visit in visits {
            for (name, value) in &tree.node(visit.node).xattrs {
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

    /// The prefixes that are stored once.
    pub(crate) fn long_prefixes(&self) -> &[LongPrefix] {
        &self.long_prefixes
    }

    /// The attributes that are stored once.
    pub(crate) fn shared_bytes(&self) -> &[u8] {
        &self.shared_bytes
    }

    /// How many attributes the format has no place for.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether the format has a place for this attribute.
    pub(crate) fn keeps(&self, name: &[u8], value: &[u8]) -> bool {
        self.entry(name, value).is_some()
    }

    /// Whether inodes have filters that say something.
    pub(crate) fn has_filter(&self, tree: &Tree, visits: &[Visit]) -> bool {
        self.filter && visits.iter().any(|visit| !tree.node(visit.node).xattrs.is_empty())
    }

    /// What stands behind an inode with these attributes; `None` where they are too many.
    pub(crate) fn body(&self, xattrs: &[Xattr]) -> Option<Vec<u8>> {
        let (mut shared, mut entries, mut bits) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in xattrs {
            let Some(entry) = self.entry(name, value) else { continue };
            bits.extend(filter_bit(name));
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
        xattr_entry(StoredName::new(name, &self.long_prefixes)?, value)
    }
}
