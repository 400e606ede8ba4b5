//! Launch profiles, and their text form.

use std::{collections::HashSet, fmt::Write, io::Read};

use floe_image::{ByteRange, FileType};

use crate::error::{Error, Result};

/// The steps of a launch, in order: the ranges that it read, and the names that it used (docs/format/erofs.md, Launch
/// list).
///
/// A range implies lookups of its file and of the directories above it. The profile names them only if another range
/// lies between the lookup and the range.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Profile {
    ranges: Vec<ProfileRange>,
    names: Vec<ProfileName>,
}

/// A range of file bytes that the launch read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProfileRange {
    /// The path within the image, with a leading slash.
    pub path: Vec<u8>,
    /// The range.
    pub range: ByteRange,
}

/// A name that the launch used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProfileName {
    /// The path within the image, with a leading slash.
    pub path: Vec<u8>,
    /// How the launch used it.
    pub usage: NameUsage,
    /// The number of ranges before this name.
    ranges_before: usize,
}

/// How a launch used a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NameUsage {
    /// It looked the name up and found it.
    Found,
    /// It looked the name up, and there is none.
    Missing,
    /// It read the target of a symbolic link.
    Link,
    /// It listed a directory.
    List,
}

/// One step of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProfileStep<'a> {
    /// It read a range.
    Range(&'a ProfileRange),
    /// It needed a name.
    Name(&'a ProfileName),
}

/// One step of a launch, to be recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecordedStep {
    /// It read a range.
    Range(ProfileRange),
    /// It used the name with this path.
    Name(Vec<u8>, NameUsage),
}

impl Profile {
    /// The maximum length of the text of a profile, in bytes.
    pub const TEXT_BYTES_MAX: u64 = 16 << 20;

    /// The maximum number of steps.
    pub const STEPS_MAX: usize = 1 << 18;

    /// Creates a profile of these ranges and merges contiguous ones.
    pub fn new(ranges: impl IntoIterator<Item = ProfileRange>) -> Self {
        Self::of_steps(ranges.into_iter().map(RecordedStep::Range))
    }

    /// Creates a profile of these steps. Merges contiguous ranges, and omits repeated names, names that the next range
    /// implies, and steps beyond [`Profile::STEPS_MAX`].
    pub fn of_steps(steps: impl IntoIterator<Item = RecordedStep>) -> Self {
        let mut profile = Self::default();
        let mut known = HashSet::new();
        // Names that the next range may imply.
        let mut waiting: Vec<(Vec<u8>, NameUsage)> = Vec::new();
        for step in steps {
            if profile.ranges.len() + profile.names.len() + waiting.len() >= Self::STEPS_MAX {
                break;
            }
            match step {
                RecordedStep::Name(path, usage) => {
                    if known.insert((path.clone(), usage)) {
                        waiting.push((path, usage));
                    }
                }
                RecordedStep::Range(range) => {
                    waiting.retain(|(path, usage)| *usage != NameUsage::Found || !leads_to(path, &range.path));
                    profile.take_names(&mut waiting);
                    profile.take_range(range);
                }
            }
        }
        profile.take_names(&mut waiting);
        profile
    }

    /// The steps of a launch from several images that are about one of them: ranges of its files, names that it has, and names that are
    /// missing in its directories. `file_type` tells what is at a path. Returns `None` if there are no such ranges: the launch does not
    /// need the image then.
    pub(crate) fn of_image(&self, file_type: impl Fn(&[u8]) -> Option<FileType>) -> Option<Self> {
        let has_directory = |path: &[u8]| {
            let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            file_type(&path[..end]) == Some(FileType::Directory)
        };
        let steps = self.steps().filter_map(|step| match step {
            ProfileStep::Range(range) => {
                (file_type(&range.path) == Some(FileType::Regular)).then(|| RecordedStep::Range(range.clone()))
            }
            ProfileStep::Name(ProfileName { path, usage, .. }) => {
                let is_own = match usage {
                    NameUsage::Missing => file_type(path).is_none() && has_directory(path),
                    _ => file_type(path).is_some(),
                };
                is_own.then(|| RecordedStep::Name(path.clone(), *usage))
            }
        });
        Some(Self::of_steps(steps)).filter(|profile| !profile.ranges.is_empty())
    }

    /// Reads the text form of [`Profile::to_text`].
    ///
    /// # Errors
    /// The text cannot be read, is longer than [`Profile::TEXT_BYTES_MAX`] or invalid; the error names the line and the
    /// fault.
    pub fn read(from: impl Read) -> Result<Self> {
        let mut text = Vec::new();
        let read = from.take(Self::TEXT_BYTES_MAX + 1).read_to_end(&mut text);
        read.map_err(|error| Error::Option(error.to_string()))?;
        if text.len() as u64 > Self::TEXT_BYTES_MAX {
            return Err(Error::Option(format!("a profile has at most {} MiB", Self::TEXT_BYTES_MAX >> 20)));
        }
        let text = str::from_utf8(&text).map_err(|_| Error::Option("the profile is not text".to_owned()))?;
        Self::parse(text)
    }

    /// The ranges in order.
    pub fn ranges(&self) -> &[ProfileRange] {
        &self.ranges
    }

    /// The names in order.
    pub fn names(&self) -> &[ProfileName] {
        &self.names
    }

    /// Ranges and names in order.
    pub fn steps(&self) -> impl Iterator<Item = ProfileStep<'_>> {
        let mut names = self.names.iter().peekable();
        let mut ranges = self.ranges.iter().enumerate().peekable();
        std::iter::from_fn(move || {
            let range = ranges.peek().map_or(usize::MAX, |(index, _)| *index);
            match names.next_if(|name| name.ranges_before <= range) {
                Some(name) => Some(ProfileStep::Name(name)),
                None => ranges.next().map(|(_, range)| ProfileStep::Range(range)),
            }
        })
    }

    /// Whether the profile has no steps.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.names.is_empty()
    }

    fn take_names(&mut self, names: &mut Vec<(Vec<u8>, NameUsage)>) {
        let ranges_before = self.ranges.len();
        self.names.extend(names.drain(..).map(|(path, usage)| ProfileName { path, usage, ranges_before }));
    }

    fn take_range(&mut self, next: ProfileRange) {
        let is_next = |last: &ProfileRange| last.path == next.path && last.range.end() == next.range.offset();
        let follows_a_name = self.names.last().is_some_and(|name| name.ranges_before == self.ranges.len());
        match self.ranges.last_mut().filter(|last| !follows_a_name && is_next(last)) {
            Some(last) => last.range = ByteRange::between(last.range.offset(), next.range.end()),
            None => self.ranges.push(next),
        }
    }
}

/// Whether `path` is that of the file or of a directory above it.
fn leads_to(path: &[u8], file: &[u8]) -> bool {
    file.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

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
    use super::{RecordedStep, *};

    fn range(path: &[u8], offset: u64, len: u64) -> ProfileRange {
        ProfileRange { path: path.to_vec(), range: ByteRange::new(offset, len) }
    }

    #[test]
    fn contiguous_ranges_are_merged() {
        let profile = Profile::new([
            range(b"/bin/a", 0, 4096),
            range(b"/bin/a", 4096, 4096),
            range(b"/bin/b", 7, 1),
            range(b"/bin/a", 8192, 10),
        ]);
        assert_eq!(profile.ranges().len(), 3);
        assert_eq!(profile.ranges()[0].range, ByteRange::new(0, 8192));
    }

    #[test]
    fn an_image_has_its_part_of_a_launch() {
        let name = |path: &[u8], usage| RecordedStep::Name(path.to_vec(), usage);
        let profile = Profile::of_steps([
            name(b"/etc/config", NameUsage::Missing),
            name(b"/lib/x", NameUsage::Missing),
            name(b"/top", NameUsage::Missing),
            name(b"/lib", NameUsage::List),
            RecordedStep::Range(range(b"/lib/a", 0, 10)),
            RecordedStep::Range(range(b"/lib/other", 0, 10)),
            RecordedStep::Range(range(b"/lib", 0, 10)),
            name(b"/lib/link", NameUsage::Link),
            name(b"/lib/other", NameUsage::Found),
        ]);
        let image = |path: &[u8]| match path {
            b"" | b"/lib" => Some(FileType::Directory),
            b"/lib/a" => Some(FileType::Regular),
            b"/lib/link" => Some(FileType::Symlink),
            _ => None,
        };
        let part = profile.of_image(image).expect("it is read");
        let lines =
            ["# floe profile 2", "missing /lib/x", "missing /top", "list /lib", "0 10 /lib/a", "link /lib/link"];
        assert_eq!(part.to_text().lines().collect::<Vec<_>>(), lines);
        // Names alone do not make an image differ.
        assert_eq!(profile.of_image(|path| image(path).filter(|found| *found != FileType::Regular)), None);
    }

    #[test]
    fn names_that_the_next_range_implies_are_left_out() {
        let name = |path: &[u8], usage| RecordedStep::Name(path.to_vec(), usage);
        let profile = Profile::of_steps([
            name(b"/lib", NameUsage::Found),
            name(b"/lib/x", NameUsage::Missing),
            name(b"/lib/later", NameUsage::Found),
            name(b"/lib/a", NameUsage::Found),
            RecordedStep::Range(range(b"/lib/a", 0, 10)),
            name(b"/lib/x", NameUsage::Missing),
            name(b"/lib", NameUsage::List),
            RecordedStep::Range(range(b"/lib/later", 0, 10)),
        ]);
        let steps: Vec<_> = profile
            .steps()
            .map(|step| match step {
                ProfileStep::Range(range) => (range.path.as_slice(), None),
                ProfileStep::Name(name) => (name.path.as_slice(), Some(name.usage)),
            })
            .collect();
        let expected: [(&[u8], _); 5] = [
            (b"/lib/x", Some(NameUsage::Missing)),
            (b"/lib/later", Some(NameUsage::Found)),
            (b"/lib/a", None),
            (b"/lib", Some(NameUsage::List)),
            (b"/lib/later", None),
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn oversized_profiles_are_refused_before_they_fill_memory() {
        let error = Profile::read(std::io::repeat(b'#')).err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains("at most 16 MiB")), "{error:?}");
        assert!(Profile::read(&b"\xff\xfe"[..]).is_err());
    }

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
