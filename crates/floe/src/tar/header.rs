//! The headers of members: ustar, with pax records for what does not fit.

use crate::{Attr, ByteRange, FileType, Timestamp};

/// The unit of an archive in bytes.
pub(super) const BLOCK_LEN: usize = 512;
/// The longest name and link target in a header, in bytes.
const NAME_LEN_MAX: usize = 100;

/// A member to be written.
pub(super) struct Member<'a> {
    /// Its name; that of a directory ends with a slash.
    pub(super) name: &'a [u8],
    pub(super) kind: MemberKind<'a>,
    pub(super) attr: &'a Attr,
    /// Names and values, sorted.
    pub(super) xattrs: &'a [(Vec<u8>, Vec<u8>)],
}

/// The type of a member with what belongs to it.
#[derive(Clone, Copy)]
pub(super) enum MemberKind<'a> {
    /// A file with its content.
    File,
    /// A file whose map and data follow.
    Sparse(&'a SparseMap),
    Directory,
    /// A device or pipe.
    Special,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A hard link to the member of this name.
    HardLink(&'a [u8]),
}

/// Where a file has data.
pub(super) struct SparseMap {
    pub(super) ranges: Vec<ByteRange>,
    pub(super) size: u64,
}

impl SparseMap {
    /// The map as it precedes the data: a number on each line, and zeros up to the end of the block. The last range is empty,
    /// at the end of the file.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut text = format!("{}\n", self.ranges.len() + 1);
        for (offset, len) in self.ranges.iter().map(|range| (range.offset(), range.len())).chain([(self.size, 0)]) {
            text.push_str(&format!("{offset}\n{len}\n"));
        }
        let mut bytes = text.into_bytes();
        bytes.resize(bytes.len().next_multiple_of(BLOCK_LEN), 0);
        bytes
    }

    /// The length of map and data.
    pub(super) fn stored_len(&self) -> u64 {
        self.to_bytes().len() as u64 + self.ranges.iter().map(|range| range.len()).sum::<u64>()
    }
}

impl Member<'_> {
    /// The header, preceded by its pax records if there are any.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let attr = self.attr;
        let stored_len = match self.kind {
            MemberKind::File => attr.size,
            MemberKind::Sparse(map) => map.stored_len(),
            _ => 0,
        };
        let (link, link_is_long) = match self.kind {
            MemberKind::Symlink(target) | MemberKind::HardLink(target) => (target, target.len() > NAME_LEN_MAX),
            _ => (&[][..], false),
        };
        let mut records = Records::default();
        let mut name = self.name.to_vec();
        if let MemberKind::Sparse(map) = self.kind {
            records.add(b"GNU.sparse.major", b"1");
            records.add(b"GNU.sparse.minor", b"0");
            records.add(b"GNU.sparse.name", self.name);
            records.add(b"GNU.sparse.realsize", map.size.to_string().as_bytes());
            name = [b"GNUSparseFile.0/", last_name(self.name)].concat();
        } else if name.len() > NAME_LEN_MAX {
            records.add(b"path", &name);
        }
        name.truncate(NAME_LEN_MAX);
        if link_is_long {
            records.add(b"linkpath", link);
        }
        let mut header = Header::new(&name, &link[..link.len().min(NAME_LEN_MAX)], self.kind_letter());
        header.put_octal(100..108, u64::from(attr.permissions));
        for (field, key, value) in [
            (108..116, &b"uid"[..], u64::from(attr.uid)),
            (116..124, b"gid", u64::from(attr.gid)),
            (124..136, b"size", stored_len),
        ] {
            if !header.put_octal(field, value) {
                records.add(key, value.to_string().as_bytes());
            }
        }
        let seconds = u64::try_from(attr.modified.seconds);
        let fits = seconds.is_ok_and(|seconds| header.put_octal(136..148, seconds));
        if !fits || attr.modified.nanoseconds > 0 {
            records.add(b"mtime", decimal_time(attr.modified).as_bytes());
        }
        if matches!(self.kind, MemberKind::Special) {
            header.put_octal(329..337, u64::from(attr.device.major));
            header.put_octal(337..345, u64::from(attr.device.minor));
        }
        for (name, value) in self.xattrs {
            records.add(&[b"SCHILY.xattr.".as_slice(), &keyword(name)].concat(), value);
        }
        let mut bytes = records.into_member(self.name);
        bytes.extend(header.finish());
        bytes
    }

    fn kind_letter(&self) -> u8 {
        match (self.kind, self.attr.file_type) {
            (MemberKind::HardLink(_), _) => b'1',
            (MemberKind::Symlink(_), _) => b'2',
            (MemberKind::Directory, _) => b'5',
            (MemberKind::Special, FileType::CharacterDevice) => b'3',
            (MemberKind::Special, FileType::BlockDevice) => b'4',
            (MemberKind::Special, _) => b'6',
            (MemberKind::File | MemberKind::Sparse(_), _) => b'0',
        }
    }
}

/// A ustar header.
struct Header([u8; BLOCK_LEN]);

impl Header {
    fn new(name: &[u8], link: &[u8], kind: u8) -> Self {
        let mut header = Self([0; BLOCK_LEN]);
        header.0[..name.len()].copy_from_slice(name);
        header.0[157..157 + link.len()].copy_from_slice(link);
        header.0[156] = kind;
        header.0[257..265].copy_from_slice(b"ustar\x0000");
        for field in [100..108, 108..116, 116..124, 124..136, 136..148, 329..337, 337..345] {
            header.put_octal(field, 0);
        }
        header
    }

    /// Writes a number into a field, with a zero byte behind it. Returns false if it does not fit.
    fn put_octal(&mut self, field: std::ops::Range<usize>, value: u64) -> bool {
        let width = field.len() - 1;
        let digits = format!("{value:0width$o}\0");
        let fits = digits.len() == field.len();
        if fits {
            self.0[field].copy_from_slice(digits.as_bytes());
        }
        fits
    }

    /// The header with its checksum, for which the field of the checksum counts as blanks.
    fn finish(mut self) -> [u8; BLOCK_LEN] {
        self.0[148..156].fill(b' ');
        let sum: u64 = self.0.iter().map(|byte| u64::from(*byte)).sum();
        self.0[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.0
    }
}

/// Pax records.
#[derive(Default)]
struct Records(Vec<u8>);

impl Records {
    /// Adds `LENGTH KEY=VALUE` and a line feed; the length counts itself.
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let rest = key.len() + value.len() + 3;
        let mut len = rest + 1;
        while len.to_string().len() + rest > len {
            len += 1;
        }
        self.0.extend_from_slice(format!("{len} ").as_bytes());
        for part in [key, b"=", value, b"\n"] {
            self.0.extend_from_slice(part);
        }
    }

    /// A member with the records, for the member `name` that follows; nothing without records.
    fn into_member(self, name: &[u8]) -> Vec<u8> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let mut own_name = [b"PaxHeaders/", last_name(name)].concat();
        own_name.truncate(NAME_LEN_MAX);
        let mut header = Header::new(&own_name, b"", b'x');
        header.put_octal(100..108, 0o644);
        header.put_octal(124..136, self.0.len() as u64);
        let mut bytes = header.finish().to_vec();
        bytes.extend(self.0);
        bytes.resize(bytes.len().next_multiple_of(BLOCK_LEN), 0);
        bytes
    }
}

/// The last name of a path.
fn last_name(path: &[u8]) -> &[u8] {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// The name of an attribute as GNU tar writes it: an equals sign would end it.
fn keyword(name: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(name.len());
    for byte in name {
        match byte {
            b'=' => text.extend_from_slice(b"%3D"),
            b'%' => text.extend_from_slice(b"%25"),
            byte => text.push(*byte),
        }
    }
    text
}

/// A time as a decimal number of seconds.
fn decimal_time(time: Timestamp) -> String {
    let Timestamp { seconds, nanoseconds } = time;
    let (sign, seconds, nanoseconds) = match seconds {
        0.. => ("", seconds.unsigned_abs(), nanoseconds),
        _ if nanoseconds == 0 => ("-", seconds.unsigned_abs(), 0),
        _ => ("-", seconds.unsigned_abs() - 1, 1_000_000_000_u32.saturating_sub(nanoseconds)),
    };
    let text = format!("{sign}{seconds}.{nanoseconds:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_their_own_length() {
        for len in [0, 1, 80, 90, 91, 92, 93, 94, 95, 989, 990, 991, 992, 993, 5000] {
            let mut records = Records::default();
            records.add(b"key", &vec![b'v'; len]);
            let text = String::from_utf8(records.0).expect("it is text");
            let (length, _) = text.split_once(' ').expect("it begins with its length");
            assert_eq!(length.parse(), Ok(text.len()), "{len}");
        }
    }

    #[test]
    fn times_are_decimal_numbers() {
        for (seconds, nanoseconds, expected) in [
            (0, 0, "0"),
            (10, 0, "10"),
            (1_700_000_000, 123_456_789, "1700000000.123456789"),
            (100, 500_000_000, "100.5"),
            (-1, 0, "-1"),
            (-1, 500_000_000, "-0.5"),
            (-2, 750_000_000, "-1.25"),
        ] {
            assert_eq!(decimal_time(Timestamp { seconds, nanoseconds }), expected);
        }
    }

    #[test]
    fn headers_have_the_fields_of_ustar() {
        let mut header = Header::new(b"name", b"link", b'2');
        assert!(header.put_octal(108..116, 0o7_777_777) && !header.put_octal(108..116, 0o10_000_000));
        let bytes = header.finish();
        assert_eq!(&bytes[108..116], b"7777777\0");
        assert_eq!(&bytes[257..265], b"ustar\x0000");
        assert_eq!((bytes[154], bytes[155], bytes[156]), (0, b' ', b'2'));
    }
}
