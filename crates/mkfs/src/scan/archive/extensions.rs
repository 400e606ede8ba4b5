//! Extended headers of members: pax records and the long names of GNU tar.

use std::collections::BTreeMap;

use floe_image::Timestamp;

use crate::tree::xattrs::Xattr;

/// The extended headers of a member, or those of global headers, which apply to all following members.
#[derive(Clone, Default)]
pub(super) struct Extensions {
    /// The values by name. An empty value cancels a global record.
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// The records of sparse format 0.0, which repeat for each run.
    pub(super) sparse_numbers: Vec<u64>,
    /// The long name in a GNU archive.
    pub(super) long_name: Option<Vec<u8>>,
    /// The long link target in a GNU archive.
    pub(super) long_link: Option<Vec<u8>>,
    /// Whether there are pax records.
    pub(super) is_pax: bool,
}

/// The prefixes of records that hold xattrs. The first is followed by a name in which GNU tar writes `%3D` for an equals sign
/// and `%25` for a percent sign; the second by a name with `%XX` escapes, and its value is in base 64.
const XATTR_PREFIX: &[u8] = b"SCHILY.xattr.";
const XATTR_PREFIX_CODED: &[u8] = b"LIBARCHIVE.xattr.";
/// The record with the SELinux label, written by GNU tar.
const SELINUX: &[u8] = b"RHT.security.selinux";
/// The memory of a record in addition to its name and value, in bytes.
const RECORD_OVERHEAD: usize = 64;

impl Extensions {
    /// Adds the records of an extended header; an error names the violated rule.
    pub(super) fn add(&mut self, mut data: &[u8]) -> Result<(), &'static str> {
        self.is_pax = true;
        let broken = "an extended header has a record that is not of the form 'length name=value'";
        while !data.is_empty() {
            if data.iter().all(|byte| *byte == 0) {
                return Ok(());
            }
            let space = data.iter().take(20).position(|byte| *byte == b' ').ok_or(broken)?;
            let len = decimal(&data[..space]).and_then(|len| usize::try_from(len).ok()).ok_or(broken)?;
            let record = data.get(space + 1..len).ok_or(broken)?.strip_suffix(b"\n").ok_or(broken)?;
            let sign = record.iter().position(|byte| *byte == b'=').ok_or(broken)?;
            self.record(&record[..sign], &record[sign + 1..])?;
            data = &data[len..];
        }
        Ok(())
    }

    fn record(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if let Some(name) = name.strip_prefix(XATTR_PREFIX) {
            self.xattrs.insert(keyword_decoded(name).into(), value.into());
        } else if let Some(name) = name.strip_prefix(XATTR_PREFIX_CODED) {
            let name = percent_decoded(name);
            let value = base64_decoded(value).ok_or("an extended attribute is not in base 64")?;
            // A record in the other form takes precedence.
            self.xattrs.entry(name.into()).or_insert_with(|| value.into());
        } else if name == SELINUX {
            let value = [value, b"\0"].concat();
            self.xattrs.entry(b"security.selinux"[..].into()).or_insert_with(|| value.into());
        } else if name == b"GNU.sparse.offset" || name == b"GNU.sparse.numbytes" {
            self.sparse_numbers.push(decimal(value).ok_or("the map of a sparse file has an invalid number")?);
        } else {
            self.records.insert(name.into(), value.into());
        }
        Ok(())
    }

    /// The approximate memory of the records in bytes.
    pub(super) fn len(&self) -> usize {
        let len = |name: &[u8], value: &[u8]| name.len() + value.len() + RECORD_OVERHEAD;
        let records: usize = self.records.iter().map(|(name, value)| len(name, value)).sum();
        let xattrs: usize = self.xattrs.iter().map(|(name, value)| len(name, value)).sum();
        records + xattrs + size_of_val(self.sparse_numbers.as_slice())
    }

    /// Adds the global records that this member does not override.
    pub(super) fn complete(&mut self, globals: &Self) {
        for (name, value) in &globals.records {
            self.records.entry(name.clone()).or_insert_with(|| value.clone());
        }
        for (name, value) in &globals.xattrs {
            self.xattrs.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }

    /// The value of a record, unless it is empty.
    pub(super) fn text(&self, name: &str) -> Option<&[u8]> {
        self.records.get(name.as_bytes()).map(Vec::as_slice).filter(|value| !value.is_empty())
    }

    /// Whether there is such a record, even an empty one.
    pub(super) fn has(&self, name: &str) -> bool {
        self.records.contains_key(name.as_bytes())
    }

    /// The value of a record as a number; an error if it is not a number.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, &'static str> {
        let value = |text| decimal(text).ok_or("an extended header has an invalid number");
        self.text(name).map(value).transpose()
    }

    /// The modification time, with fractions of a second.
    pub(super) fn modified(&self) -> Result<Option<Timestamp>, &'static str> {
        let broken = "an extended header has an invalid time";
        self.text("mtime").map(|text| timestamp(text).ok_or(broken)).transpose()
    }

    /// The xattrs in the order of their names.
    pub(super) fn into_xattrs(self) -> Vec<Xattr> {
        self.xattrs.into_iter().collect()
    }
}

/// Parses an unsigned decimal number.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if is_number { std::str::from_utf8(text).ok()?.parse().ok() } else { None }
}

fn timestamp(text: &[u8]) -> Option<Timestamp> {
    let (is_negative, text) = match text.strip_prefix(b"-") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let seconds = i64::try_from(decimal(parts.next()?)?).ok()?;
    let fraction = parts.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().chain(std::iter::repeat(&b'0')).take(9);
    let nanoseconds = digits.fold(0u32, |value, digit| value * 10 + u32::from(digit - b'0'));
    Some(match (is_negative, nanoseconds) {
        (false, _) => Timestamp { seconds, nanoseconds },
        (true, 0) => Timestamp { seconds: -seconds, nanoseconds: 0 },
        (true, _) => Timestamp { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    })
}

/// The name of an attribute that GNU tar encoded. It decodes no other escapes.
fn keyword_decoded(mut text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    while let [first, after @ ..] = text {
        let (byte, rest) = match text {
            [b'%', b'3', b'D', rest @ ..] => (b'=', rest),
            [b'%', b'2', b'5', rest @ ..] => (b'%', rest),
            _ => (*first, after),
        };
        decoded.push(byte);
        text = rest;
    }
    decoded
}

fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match (first, digits.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                rest = &after[2..];
            }
            _ => {
                decoded.push(*first);
                rest = after;
            }
        }
    }
    decoded
}

fn base64_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0);
    let end = text.iter().position(|byte| *byte == b'=').unwrap_or(text.len());
    for byte in &text[..end] {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'\n' | b'\r' => continue,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            decoded.push((bits >> count & 0xff) as u8);
        }
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(text: &str) -> Vec<u8> {
        let mut len = text.len() + 3;
        while format!("{len} {text}\n").len() != len {
            len += 1;
        }
        format!("{len} {text}\n").into_bytes()
    }

    #[test]
    fn records_may_hold_anything() {
        let mut extensions = Extensions::default();
        let data = [
            record("path=a/b=c"),
            record("mtime=1700000000.25"),
            record("SCHILY.xattr.user.a=one\ntwo = three\n"),
            record("LIBARCHIVE.xattr.user.b%3d=AAEC/w=="),
            record("LIBARCHIVE.xattr.user.a=AAEC"),
            record("SCHILY.xattr.user.c%3Dd%253D%3d%41%=1"),
            record("uid=4000000000"),
            record("gid="),
        ];
        extensions.add(&data.concat()).expect("they are well-formed");
        assert_eq!(extensions.text("path"), Some(&b"a/b=c"[..]));
        assert_eq!(extensions.number("uid"), Ok(Some(4_000_000_000)));
        assert_eq!(extensions.number("gid"), Ok(None));
        let time = Timestamp { seconds: 1_700_000_000, nanoseconds: 250_000_000 };
        assert_eq!(extensions.modified(), Ok(Some(time)));
        let xattrs = extensions.into_xattrs();
        let names: Vec<&[u8]> = xattrs.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, [&b"user.a"[..], b"user.b=", b"user.c=d%3D%3d%41%"]);
        assert_eq!(&*xattrs[0].1, b"one\ntwo = three\n");
        assert_eq!(&*xattrs[1].1, [0, 1, 2, 255]);
    }

    #[test]
    fn broken_records_are_refused() {
        for data in ["path=x\n", "8 path=x\n", "99 path=x\n", "3 p\n", "0 path=x\n", "99999999999999999999999 a=b\n"] {
            assert!(Extensions::default().add(data.as_bytes()).is_err(), "{data:?}");
        }
    }

    #[test]
    fn times_before_1970_round_down() {
        for (text, expected) in [
            ("0", Some((0, 0))),
            ("-1", Some((-1, 0))),
            ("-1.25", Some((-2, 750_000_000))),
            ("1.1234567891", Some((1, 123_456_789))),
            ("1.", Some((1, 0))),
            ("", None),
            ("1.x", None),
            ("+1", None),
        ] {
            let found = timestamp(text.as_bytes()).map(|time| (time.seconds, time.nanoseconds));
            assert_eq!(found, expected, "{text}");
        }
    }
}
