//! Launch profiles.

use std::fmt::Write;

use floe_image::ByteRange;

use crate::error::{Error, Result};

/// The first line of a profile.
const FIRST_LINE: &str = "# floe profile 1";

/// The ranges that a launch read, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Profile {
    ranges: Vec<ProfileRange>,
}

/// A range of file bytes that the launch read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProfileRange {
    /// The path within the image, with a leading slash.
    pub path: Vec<u8>,
    /// The range.
    pub range: ByteRange,
}

impl Profile {
    /// Creates a profile of these ranges and merges contiguous ones.
    pub fn new(ranges: impl IntoIterator<Item = ProfileRange>) -> Self {
        let mut merged: Vec<ProfileRange> = Vec::new();
        for next in ranges {
            match merged.last_mut() {
                Some(last) if last.path == next.path && last.range.end() == next.range.offset() => {
                    last.range = ByteRange::between(last.range.offset(), next.range.end());
                }
                _ => merged.push(next),
            }
        }
        Self { ranges: merged }
    }

    /// Parses the text form of [`Profile::to_text`].
    ///
    /// # Errors
    /// The text is invalid; the error names the line and the fault.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().zip(1..);
        if lines.next().is_none_or(|(line, _)| line != FIRST_LINE) {
            return Err(Error::Option(format!("the first line of the profile must be '{FIRST_LINE}'")));
        }
        let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
        let ranges = lines.map(|(line, number)| {
            let broken = || Error::Option(format!("line {number} of the profile must be 'OFFSET LENGTH /PATH'"));
            range(line).ok_or_else(broken)
        });
        Ok(Self { ranges: ranges.collect::<Result<_>>()? })
    }

    /// The profile as text: a line for each range; bytes of a path that are not printable ASCII appear as `\\xNN`.
    pub fn to_text(&self) -> String {
        let mut text = format!("{FIRST_LINE}\n");
        for ProfileRange { path, range } in &self.ranges {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{} {} {}", range.offset(), range.len(), path.escape_ascii());
        }
        text
    }

    /// The ranges in order.
    pub fn ranges(&self) -> &[ProfileRange] {
        &self.ranges
    }
}

fn range(line: &str) -> Option<ProfileRange> {
    let mut fields = line.splitn(3, ' ');
    let (offset, len): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    offset.checked_add(len)?;
    let path = unescaped(fields.next()?)?;
    path.starts_with(b"/").then_some(ProfileRange { path, range: ByteRange::new(offset, len) })
}

/// The inverse of `escape_ascii`.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next()? {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'x' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other @ (b'\\' | b'\'' | b'"') => other,
            _ => return None,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_survive_their_text() {
        let range = |path: &[u8], offset, len| ProfileRange { path: path.to_vec(), range: ByteRange::new(offset, len) };
        let profile = Profile::new([
            range(b"/bin/a", 0, 4096),
            range(b"/bin/a", 4096, 4096),
            range(b"/with space\n\\\xff'", 7, 1),
            range(b"/bin/a", 8192, 10),
        ]);
        assert_eq!(profile.ranges().len(), 3);
        assert_eq!(profile.ranges()[0].range, ByteRange::new(0, 8192));
        assert_eq!(Profile::parse(&profile.to_text()).expect("it is one"), profile);
    }

    #[test]
    fn broken_profiles_are_refused() {
        for (text, words) in [
            ("", "first line"),
            ("0 1 /a\n", "first line"),
            ("# floe profile 1\n0 1 a\n", "line 2"),
            ("# floe profile 1\n\n0 1\n", "line 3"),
            ("# floe profile 1\nx 1 /a\n", "line 2"),
            ("# floe profile 1\n18446744073709551615 1 /a\n", "line 2"),
            ("# floe profile 1\n0 1 /a\\xg0\n", "line 2"),
        ] {
            let said = Profile::parse(text).err().map(|error| error.to_string());
            assert!(said.as_ref().is_some_and(|said| said.contains(words)), "{text:?}: {said:?}");
        }
    }
}
