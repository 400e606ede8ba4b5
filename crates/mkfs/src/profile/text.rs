//! The text form of launch profiles.

use std::fmt::Write;

use floe_image::ByteRange;

use super::{NameUsage, Profile, ProfileName, ProfileRange, ProfileStep};
use crate::error::{Error, Result};

/// The first line of a profile of ranges alone.
const FIRST_LINE: &str = "# floe profile 1";

/// The first line of a profile that also has names.
const FIRST_LINE_WITH_NAMES: &str = "# floe profile 2";

/// The word before a name.
const WORDS: [(&str, NameUsage); 4] =
    [("name", NameUsage::Found), ("missing", NameUsage::Missing), ("link", NameUsage::Link), ("list", NameUsage::List)];

impl Profile {
    /// Parses the text form of [`Profile::to_text`].
    ///
    /// # Errors
    /// The text is invalid, or has more than [`Profile::STEPS_MAX`] steps; the error names the line and the fault.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().zip(1..);
        let has_names = match lines.next() {
            Some((FIRST_LINE, _)) => false,
            Some((FIRST_LINE_WITH_NAMES, _)) => true,
            _ => {
                return Err(Error::Option(format!(
                    "the first line of a profile must be '{FIRST_LINE_WITH_NAMES}' or '{FIRST_LINE}'"
                )));
            }
        };
        let mut profile = Self::default();
        for (line, number) in lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#')) {
            if profile.ranges.len() + profile.names.len() >= Self::STEPS_MAX {
                return Err(Error::Option(format!("the profile has more than {} steps", Self::STEPS_MAX)));
            }
            if let Some(range) = range(line) {
                profile.ranges.push(range);
            } else if let Some((path, usage)) = name(line).filter(|_| has_names) {
                profile.names.push(ProfileName { path, usage, ranges_before: profile.ranges.len() });
            } else {
                let wanted = if has_names { " or 'name|missing|link|list /PATH'" } else { "" };
                let message = format!("line {number} of the profile must be 'OFFSET LENGTH /PATH'{wanted}");
                return Err(Error::Option(message));
            }
        }
        Ok(profile)
    }

    /// The profile as text: a line for each step; bytes of a path that are not printable ASCII appear as `\\xNN`.
    pub fn to_text(&self) -> String {
        let mut text = format!("{}\n", if self.names.is_empty() { FIRST_LINE } else { FIRST_LINE_WITH_NAMES });
        for step in self.steps() {
            // Writing to a string cannot fail.
            let _ = match step {
                ProfileStep::Range(ProfileRange { path, range }) => {
                    writeln!(text, "{} {} {}", range.offset(), range.len(), path.escape_ascii())
                }
                ProfileStep::Name(ProfileName { path, usage, .. }) => {
                    let word = WORDS.iter().find_map(|(word, of)| (of == usage).then_some(*word));
                    writeln!(text, "{} {}", word.unwrap_or_default(), path.escape_ascii())
                }
            };
        }
        text
    }
}

fn range(line: &str) -> Option<ProfileRange> {
    let mut fields = line.splitn(3, ' ');
    let (offset, len): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    offset.checked_add(len)?;
    Some(ProfileRange { path: path(fields.next()?)?, range: ByteRange::new(offset, len) })
}

fn name(line: &str) -> Option<(Vec<u8>, NameUsage)> {
    let (word, rest) = line.split_once(' ')?;
    let usage = WORDS.iter().find_map(|(known, usage)| (*known == word).then_some(*usage))?;
    Some((path(rest)?, usage))
}

/// Parses a path that begins at the root of the image. No component is empty, `.` or `..`.
fn path(text: &str) -> Option<Vec<u8>> {
    let path = unescaped(text)?;
    let below = path.strip_prefix(b"/")?;
    let is_name = |name: &[u8]| !name.is_empty() && name != b"." && name != b".." && !name.contains(&0);
    (below.is_empty() || below.split(|byte| *byte == b'/').all(is_name)).then_some(path)
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
                u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other @ (b'\\' | b'\'' | b'"') => other,
            _ => return None,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{super::RecordedStep, *};

    #[test]
    fn profiles_survive_their_text() {
        let range = |path: &[u8], offset, len| {
            RecordedStep::Range(ProfileRange { path: path.to_vec(), range: ByteRange::new(offset, len) })
        };
        let name = |path: &[u8], usage| RecordedStep::Name(path.to_vec(), usage);
        let ranges = [range(b"/bin/a", 0, 4096), range(b"/with space\n\\\xff'", 7, 1), range(b"/bin/a", 8192, 10)];
        let profile = Profile::of_steps(ranges.clone());
        assert!(profile.to_text().starts_with("# floe profile 1\n0 4096 /bin/a\n"));
        assert_eq!(Profile::parse(&profile.to_text()).expect("it is one"), profile);
        let [first, second, third] = ranges;
        let profile = Profile::of_steps([
            name(b"/", NameUsage::List),
            name(b"/lib/\x01", NameUsage::Missing),
            first,
            second,
            name(b"/bin/sh", NameUsage::Link),
            third,
            name(b"/end", NameUsage::Found),
        ]);
        assert_eq!(profile.names().len(), 4);
        assert!(profile.to_text().starts_with("# floe profile 2\nlist /\nmissing /lib/\\x01\n0 4096 /bin/a\n"));
        assert_eq!(Profile::parse(&profile.to_text()).expect("it is one"), profile);
    }

    #[test]
    fn broken_profiles_are_refused() {
        for (text, words) in [
            ("", "first line"),
            ("0 1 /a\n", "first line"),
            ("# floe profile 3\n", "first line"),
            ("# floe profile 1\n0 1 a\n", "line 2"),
            ("# floe profile 1\n\n0 1\n", "line 3"),
            ("# floe profile 1\nx 1 /a\n", "line 2"),
            ("# floe profile 1\nname /a\n", "line 2"),
            ("# floe profile 2\nnames /a\n", "line 2"),
            ("# floe profile 1\n18446744073709551615 1 /a\n", "line 2"),
            ("# floe profile 1\n0 1 /a\\xg0\n", "line 2"),
            ("# floe profile 2\nmissing /a/../b\n", "line 2"),
            ("# floe profile 2\nname /a//b\n", "line 2"),
            ("# floe profile 2\nname /a\\x00b\n", "line 2"),
        ] {
            let said = Profile::parse(text).err().map(|error| error.to_string());
            assert!(said.as_ref().is_some_and(|said| said.contains(words)), "{text:?}: {said:?}");
        }
        let many = format!("# floe profile 1\n{}", "0 1 /a\n".repeat(Profile::STEPS_MAX + 1));
        assert!(Profile::parse(&many).is_err_and(|error| error.to_string().contains("more than")));
    }
}
