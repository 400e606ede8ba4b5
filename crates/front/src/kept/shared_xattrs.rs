//! Extended attributes that several inodes of a kept image share.

use std::collections::HashMap;

use floe_erofs::{
    format::{XattrEntry, XattrIbodyHeader},
    write::xattr_body,
};

/// The maximum size of all attributes that are remembered, to be shared when they are seen again.
const KNOWN_BYTES_MAX: usize = 1 << 20;

/// The maximum number of shared attributes of an inode.
const SHARED_COUNT_MAX: usize = u8::MAX as usize;

/// The table of shared attributes. The first inode with some attributes has them inline; the next ones with the same share an
/// entry of the table, so attributes that only one inode has cost no further read.
#[derive(Default)]
pub(super) struct SharedXattrs {
    /// The numbers in the table of all attributes of an inode, by their bytes; empty for those that were seen once.
    known: HashMap<Vec<u8>, Vec<u32>>,
    known_bytes: usize,
    table: Vec<u8>,
}

impl SharedXattrs {
    /// The bytes of attributes behind an inode that has the inline attributes `inline`, with their header.
    pub(super) fn body(&mut self, inline: Vec<u8>) -> Vec<u8> {
        let Some(entries) = inline.get(XattrIbodyHeader::SIZE..).filter(|entries| !entries.is_empty()) else {
            return inline;
        };
        let Some(numbers) = self.known.get_mut(entries) else {
            if self.known_bytes + entries.len() <= KNOWN_BYTES_MAX {
                self.known_bytes += entries.len();
                self.known.insert(entries.to_vec(), Vec::new());
            }
            return inline;
        };
        if numbers.is_empty() {
            let parts = split(entries);
            if parts.len() > SHARED_COUNT_MAX {
                return inline;
            }
            for part in parts {
                numbers.push((self.table.len() / 4) as u32);
                self.table.extend(part);
            }
        }
        xattr_body(None, numbers, &[])
    }

    /// The table.
    pub(super) fn table(&self) -> &[u8] {
        &self.table
    }
}

/// The entries, which are padded to four bytes each.
fn split(entries: &[u8]) -> Vec<&[u8]> {
    let (mut parts, mut rest) = (Vec::new(), entries);
    while let Some(entry) = XattrEntry::from_prefix(rest) {
        let len = XattrEntry::SIZE + usize::from(entry.e_name_len) + usize::from(entry.e_value_size);
        let (part, after) = rest.split_at(len.next_multiple_of(4).min(rest.len()));
        parts.push(part);
        rest = after;
    }
    parts
}

#[cfg(test)]
mod tests {
    use floe_erofs::write::{StoredName, xattr_entry};

    use super::*;

    #[test]
    fn the_second_inode_shares_attributes() {
        let entry = |name: &[u8], value: &[u8]| {
            xattr_entry(StoredName::new(name, &[]).expect("a prefix"), value).expect("it fits")
        };
        let (label, note) = (entry(b"security.selinux", b"system_u"), entry(b"user.note", b"x"));
        let both = xattr_body(None, &[], &[label.clone(), note.clone()].concat());
        let one = xattr_body(None, &[], &note);
        let mut shared = SharedXattrs::default();
        assert_eq!(shared.body(Vec::new()), Vec::<u8>::new());
        assert_eq!((shared.body(both.clone()), shared.body(one.clone())), (both.clone(), one.clone()));
        assert!(shared.table().is_empty());
        let second = (label.len() / 4) as u32;
        assert_eq!(shared.body(both.clone()), xattr_body(None, &[0, second], &[]));
        assert_eq!(shared.body(one), xattr_body(None, &[second + (note.len() / 4) as u32], &[]));
        assert_eq!(shared.body(both), xattr_body(None, &[0, second], &[]));
        assert_eq!(shared.table(), [label, note.clone(), note].concat());
    }
}
