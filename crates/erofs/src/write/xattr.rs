//! Extended attributes: names, entries, bodies and long prefixes (docs/format/erofs.md, Extended attributes).

use xxhash_rust::xxh32::xxh32;

use crate::format::{self, XattrEntry, XattrIbodyHeader};

/// The prefixes with their numbers.
const PREFIXES: [(&[u8], u8); 5] = [
    (b"user.", format::XATTR_INDEX_USER),
    (b"system.posix_acl_access", format::XATTR_INDEX_POSIX_ACL_ACCESS),
    (b"system.posix_acl_default", format::XATTR_INDEX_POSIX_ACL_DEFAULT),
    (b"trusted.", format::XATTR_INDEX_TRUSTED),
    (b"security.", format::XATTR_INDEX_SECURITY),
];

/// A long name prefix: a numbered prefix and further text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LongPrefix {
    base_index: u8,
    infix: Vec<u8>,
}

impl LongPrefix {
    /// Parses the text of a long prefix; `None` if it does not begin with `user.`, `trusted.` or `security.`, or is too
    /// long.
    pub fn new(prefix: &[u8]) -> Option<Self> {
        let (base, base_index) =
            PREFIXES.into_iter().find(|(base, _)| base.ends_with(b".") && prefix.starts_with(base))?;
        let infix = prefix.get(base.len()..)?.to_vec();
        (infix.len() < format::NAME_LEN).then_some(Self { base_index, infix })
    }

    /// The prefix of the attribute with the digest of a file: its whole name. A name that begins with none of the prefixes of
    /// [`LongPrefix::new`] is hidden from users. `None` if the name is empty or too long.
    pub fn of_fingerprint(name: &[u8]) -> Option<Self> {
        let is_fit = !name.is_empty() && name.len() <= format::NAME_LEN;
        let hidden = || Self { base_index: format::XATTR_INDEX_NONE, infix: name.to_vec() };
        is_fit.then(|| Self::new(name).unwrap_or_else(hidden))
    }

    /// Whether no file system shows attributes with this prefix.
    pub fn is_hidden(&self) -> bool {
        self.base_index == format::XATTR_INDEX_NONE
    }
}

/// A name in its stored form: the number of its prefix, and the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredName<'name> {
    /// The number of the prefix: an `XATTR_INDEX_` number, or with [`format::XATTR_LONG_PREFIX`] that of a long prefix.
    pub index: u8,
    /// The text after the prefix.
    pub suffix: &'name [u8],
}

impl<'name> StoredName<'name> {
    /// Splits `name` at the longest prefix that it has; `None` if the format has no prefix for it.
    pub fn new(name: &'name [u8], long_prefixes: &[LongPrefix]) -> Option<Self> {
        let hidden = long_prefixes.iter().zip(format::XATTR_LONG_PREFIX..);
        let mut hidden = hidden.filter(|(prefix, _)| prefix.is_hidden() && prefix.infix == name);
        if let Some((_, index)) = hidden.next() {
            return Some(Self { index, suffix: &[] });
        }
        let (base, base_index) = base(name)?;
        let rest = name.get(base.len()..)?;
        let long = long_prefixes
            .iter()
            .zip(format::XATTR_LONG_PREFIX..)
            .filter(|(prefix, _)| prefix.base_index == base_index && rest.starts_with(&prefix.infix))
            .max_by_key(|(prefix, _)| prefix.infix.len());
        match long {
            Some((prefix, index)) => Some(Self { index, suffix: rest.get(prefix.infix.len()..)? }),
            None => Some(Self { index: base_index, suffix: rest }),
        }
    }
}

/// The filter bit that the full `name` clears, counted from the lowest.
pub fn filter_bit(name: &[u8]) -> u32 {
    let (base, base_index) = base(name).unwrap_or((&[], format::XATTR_INDEX_NONE));
    let rest = name.get(base.len()..).unwrap_or_default();
    xxh32(rest, format::XATTR_FILTER_SEED.wrapping_add(u32::from(base_index))) % format::XATTR_FILTER_BITS
}

/// An entry, padded to a multiple of four bytes; `None` if the name or the value is too long for the format.
pub fn xattr_entry(name: StoredName<'_>, value: &[u8]) -> Option<Vec<u8>> {
    let entry = XattrEntry {
        e_name_len: u8::try_from(name.suffix.len()).ok()?,
        e_name_index: name.index,
        e_value_size: u16::try_from(value.len()).ok()?,
    };
    let mut bytes = [&entry.to_bytes(), name.suffix, value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    Some(bytes)
}

/// The xattr body of an inode: the header, the numbers of shared xattrs (at most 255) and the inline entries.
/// `filter_bits` are the bits that the names clear; `None` disables the filter.
pub fn xattr_body(filter_bits: Option<&[u32]>, shared: &[u32], entries: &[u8]) -> Vec<u8> {
    let filter = |bits: &[u32]| bits.iter().fold(format::XATTR_FILTER_DEFAULT, |filter, bit| filter & !(1 << bit));
    let header = XattrIbodyHeader {
        h_name_filter: filter_bits.map_or(0, filter),
        h_shared_count: u8::try_from(shared.len()).unwrap_or(u8::MAX),
        h_reserved2: [0; 7],
    };
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend(shared.iter().flat_map(|number| number.to_le_bytes()));
    bytes.extend(entries);
    bytes
}

/// The records of long prefixes, each aligned to four bytes.
pub(super) fn long_prefix_bytes(prefixes: &[LongPrefix]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for prefix in prefixes {
        let len = u16::try_from(prefix.infix.len() + 1).unwrap_or(u16::MAX);
        bytes.extend(len.to_le_bytes());
        bytes.push(prefix.base_index);
        bytes.extend(&prefix.infix);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

fn base(name: &[u8]) -> Option<(&'static [u8], u8)> {
    PREFIXES.into_iter().find(|(base, _)| if base.ends_with(b".") { name.starts_with(base) } else { name == *base })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_take_the_longest_prefix() {
        let long =
            [b"user.".as_slice(), b"security.ima", b"user.org.example."].map(|text| LongPrefix::new(text).unwrap());
        for (name, expected) in [
            (b"user.a".as_slice(), Some((0x80, b"a".as_slice()))),
            (b"user.org.example.x", Some((0x82, b"x"))),
            (b"security.ima", Some((0x81, b""))),
            (b"security.capability", Some((6, b"capability"))),
            (b"trusted.t", Some((4, b"t"))),
            (b"system.posix_acl_access", Some((2, b""))),
            (b"system.posix_acl_accessory", None),
            (b"system.nfs4_acl", None),
        ] {
            let stored = StoredName::new(name, &long).map(|stored| (stored.index, stored.suffix));
            assert_eq!(stored, expected, "{}", String::from_utf8_lossy(name));
        }
        assert_eq!(LongPrefix::new(b"system.posix_acl_access"), None);
    }
}
