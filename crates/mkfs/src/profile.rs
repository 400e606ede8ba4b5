//! Launch profiles.

mod text;

use std::{collections::HashSet, io::Read};

use floe_image::ByteRange;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
