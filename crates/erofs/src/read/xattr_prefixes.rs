//! Prefixes of xattr names (docs/format/erofs.md, Extended attributes).

use floe_image::{Bytes, Error, Nid, Place, Result};

use super::{content, parameters::Space, volume::Volume, window::Metadata};
use crate::format::{self, NAME_LEN};

/// A prefix that the image defines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LongPrefix {
    /// The short prefix at its beginning.
    pub(super) base: u8,
    /// The text after the short prefix.
    pub(super) infix: Vec<u8>,
}

/// The text of a short prefix; `None` if the number is unknown.
pub(super) fn short_prefix(index: u8) -> Option<&'static [u8]> {
    Some(match index {
        format::XATTR_INDEX_USER => b"user.",
        format::XATTR_INDEX_POSIX_ACL_ACCESS => b"system.posix_acl_access",
        format::XATTR_INDEX_POSIX_ACL_DEFAULT => b"system.posix_acl_default",
        format::XATTR_INDEX_TRUSTED => b"trusted.",
        format::XATTR_INDEX_SECURITY => b"security.",
        _ => return None,
    })
}

/// Splits a full name into its short prefix and the rest; `None` if no attribute can have the name.
pub(super) fn split_name(name: &[u8]) -> Option<(u8, &[u8])> {
    let indexes = [format::XATTR_INDEX_USER, format::XATTR_INDEX_TRUSTED, format::XATTR_INDEX_SECURITY];
    for index in indexes {
        if let Some(rest) = name.strip_prefix(short_prefix(index)?) {
            return (!rest.is_empty() && rest.len() <= NAME_LEN).then_some((index, rest));
        }
    }
    let acls = [format::XATTR_INDEX_POSIX_ACL_ACCESS, format::XATTR_INDEX_POSIX_ACL_DEFAULT];
    acls.into_iter().find(|index| short_prefix(*index) == Some(name)).map(|index| (index, &b""[..]))
}

/// The alignment of records in bytes.
const RECORD_ALIGN: u64 = 4;

/// Reads the long prefixes from the metabox or the packed inode if there is one, otherwise from the image.
///
/// # Errors
/// The prefixes cannot be read or break the format.
pub(super) fn read(volume: &Volume) -> Result<Vec<LongPrefix>> {
    let mut prefixes = Vec::new();
    let mut position = u64::from(volume.superblock.raw.xattr_prefix_start) * RECORD_ALIGN;
    for _ in 0..volume.superblock.raw.xattr_prefix_count {
        position = position.next_multiple_of(RECORD_ALIGN);
        let word = record_bytes(volume, position, 2)?;
        let len = word.first_chunk().map_or(0, |word| usize::from(u16::from_le_bytes(*word)));
        if !(1..=NAME_LEN + 1).contains(&len) {
            return Err(Error::corrupt("xattr prefix is empty or longer than 255 bytes", Place::at(position)));
        }
        let record = record_bytes(volume, position + 2, len)?;
        if let Some((base, infix)) = record.split_first() {
            prefixes.push(LongPrefix { base: *base, infix: infix.to_vec() });
        }
        position += 2 + u64::try_from(len).unwrap_or(u64::MAX);
    }
    Ok(prefixes)
}

fn record_bytes(volume: &Volume, position: u64, len: usize) -> Result<Bytes> {
    let is_plain = volume.superblock.features.has_compatible(format::FEATURE_COMPAT_PLAIN_XATTR_PFX);
    match [&volume.metabox, &volume.packed].into_iter().find_map(|special| special.get()) {
        Some(special) if !is_plain => content::read(volume, &special.inode, position, len),
        _ => volume.metadata(Space::Image, position, len, Nid(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::split_name;

    #[test]
    fn names_split_at_their_short_prefix() {
        for (name, expected) in [
            ("user.a", Some((1, "a"))),
            ("user.", None),
            ("user", None),
            ("trusted.overlay.opaque", Some((4, "overlay.opaque"))),
            ("security.capability", Some((6, "capability"))),
            ("system.posix_acl_access", Some((2, ""))),
            ("system.posix_acl_default", Some((3, ""))),
            ("system.posix_acl_accessx", None),
            ("lustre.x", None),
        ] {
            let expected = expected.map(|(index, rest): (u8, &str)| (index, rest.as_bytes()));
            assert_eq!(split_name(name.as_bytes()), expected, "{name}");
        }
    }
}
