//! POSIX ACLs (docs/format/erofs.md, Extended attributes).

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
pub(super) fn as_getxattr(stored: &[u8]) -> Option<Vec<u8>> {
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
