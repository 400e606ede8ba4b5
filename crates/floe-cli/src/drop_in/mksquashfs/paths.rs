//! Paths on the command line and in sort files, as paths within the image.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

use floe_image::{Shown, ShownName};
use floe_mkfs::{PathFilter, Source};

use crate::drop_in::unsquashfs::path_patterns::{Matching, Pattern};

/// The start of a name that excludes at any depth.
const STICKY: &[u8] = b"... ";

/// Where the sources are in the image.
pub(super) struct ImagePaths {
    roots: Vec<SourceRoot>,
}

/// A source: the directory to which the paths of its files are relative in the image, and the part of the image that it is.
struct SourceRoot {
    directory: PathBuf,
    name: PathBuf,
}

impl ImagePaths {
    /// The places of these sources.
    pub(super) fn of(sources: &[Source]) -> Self {
        let root = |source: &Source| match source {
            Source::Directory(path) => Some(SourceRoot { directory: path.clone(), name: PathBuf::new() }),
            Source::Entry(path) => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let directory = parent.unwrap_or(Path::new(".")).to_path_buf();
                Some(SourceRoot { directory, name: path.file_name().map(PathBuf::from).unwrap_or_default() })
            }
            _ => None,
        };
        Self { roots: sources.iter().filter_map(root).collect() }
    }

    /// The paths within the image of a file of the sources: absolute, relative to the working directory if it begins with
    /// `./` or `../`, or else relative to the sources. Without sources that are directories, it is a path within the image.
    pub(super) fn find(&self, name: &OsStr) -> Vec<PathBuf> {
        let bytes = name.as_bytes();
        let is_own = bytes.starts_with(b"/") || bytes.starts_with(b"./") || bytes.starts_with(b"../");
        if self.roots.is_empty() {
            return vec![plain(Path::new(name))];
        }
        let found = self.roots.iter().filter_map(|root| {
            let inner = if is_own { root.inner(Path::new(name))? } else { root.name.join(plain(Path::new(name))) };
            let is_there = !inner.as_os_str().is_empty() && root.directory.join(&inner).symlink_metadata().is_ok();
            (is_there && inner.starts_with(&root.name)).then_some(inner)
        });
        found.collect()
    }

    /// The priorities in a sort file: lines with a path and a number.
    ///
    /// # Errors
    /// A message about a line.
    pub(super) fn priorities(&self, text: &[u8]) -> Result<Vec<(PathBuf, i16)>, String> {
        let mut priorities = Vec::new();
        for line in text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let wrong = || format!("'{}' is not a line of a sort file: a path and -32768 to 32767", Shown(line));
            let space = line.iter().rposition(u8::is_ascii_whitespace).ok_or_else(wrong)?;
            let (path, number) = line.split_at(space);
            let number = str::from_utf8(number).ok().and_then(|number| number.trim().parse().ok()).ok_or_else(wrong)?;
            let path = unescaped(path.trim_ascii_end());
            priorities.extend(self.find(OsStr::from_bytes(&path)).into_iter().map(|path| (path, number)));
        }
        Ok(priorities)
    }
}

impl SourceRoot {
    /// The path of a file below the source's directory.
    fn inner(&self, path: &Path) -> Option<PathBuf> {
        let directory = fs::canonicalize(&self.directory).ok()?;
        // A symbolic link is meant itself.
        let name = path.file_name()?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let actual = fs::canonicalize(parent).ok()?.join(name);
        actual.strip_prefix(directory).ok().map(Path::to_path_buf)
    }
}

/// Excluded paths by patterns, one for each name in them.
pub(in crate::drop_in) struct ExcludedNames {
    patterns: Vec<(Vec<Pattern>, bool)>,
}

impl ExcludedNames {
    /// The patterns in these texts.
    ///
    /// # Errors
    /// A message: a pattern is invalid.
    pub(in crate::drop_in) fn new(texts: &[OsString], matching: Matching) -> Result<Self, String> {
        let patterns = texts.iter().map(|text| {
            let bytes = text.as_bytes();
            let (bytes, is_sticky) = bytes.strip_prefix(STICKY).map_or((bytes, false), |rest| (rest, true));
            let names = bytes.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
            let patterns = names.map(|name| Pattern::new(name, matching)).collect::<Result<Vec<_>, _>>()?;
            if patterns.is_empty() {
                return Err(format!("'{}' excludes nothing", text.shown()));
            }
            Ok((patterns, is_sticky))
        });
        Ok(Self { patterns: patterns.collect::<Result<_, _>>()? })
    }

    /// Whether a path is excluded.
    fn matches(&self, path: &Path) -> bool {
        self.patterns.iter().any(|(patterns, is_sticky)| {
            let mut names = path.iter().rev();
            let matches = |pattern: &Pattern| names.next().is_some_and(|name| pattern.matches(name.as_bytes()));
            patterns.iter().rev().all(matches) && (*is_sticky || names.next().is_none())
        })
    }

    /// The patterns as a filter of the build.
    pub(in crate::drop_in) fn into_filter(self) -> PathFilter {
        PathFilter::new(move |path| self.matches(path))
    }
}

/// A path without `.` and slashes at its ends.
fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| !matches!(part, Component::CurDir | Component::RootDir)).collect()
}

/// A text without the backslashes before its other bytes.
pub(super) fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = text.iter();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        plain.push(if *byte == b'\\' { *bytes.next().unwrap_or(byte) } else { *byte });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_of_paths() {
        let names = |texts: &[&str], matching| {
            let texts: Vec<OsString> = texts.iter().map(OsString::from).collect();
            ExcludedNames::new(&texts, matching).expect("they are valid")
        };
        let wildcards = names(&["*.o", "... *.pyc", "usr/*/doc"], Matching::Wildcards);
        let expressions = names(&["^a", "... [0-9]+$", "b/c.$"], Matching::Expressions);
        for (names, path, expected) in [
            (&wildcards, "x.o", true),
            (&wildcards, "d/x.o", false),
            (&wildcards, ".o", false),
            (&wildcards, "d/e/x.pyc", true),
            (&wildcards, "usr/share/doc", true),
            (&wildcards, "usr/share/x/doc", false),
            (&expressions, "abc", true),
            (&expressions, "bab", false),
            (&expressions, "x/y/7", true),
            (&expressions, "xb/ccd", true),
            (&expressions, "xb/dc", false),
        ] {
            assert_eq!(names.matches(Path::new(path)), expected, "{path}");
        }
    }
}
