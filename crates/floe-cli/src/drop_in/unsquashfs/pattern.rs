//! Matches paths with the patterns of the command line.

use std::{ffi::OsString, os::unix::ffi::OsStrExt};

use regex::bytes::{Regex, RegexBuilder};

/// The notation of names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Matching {
    /// Literal names.
    Exact,
    /// Shell wildcards.
    Wildcards,
    /// Extended regular expressions.
    Expressions,
}

/// Paths, each a list of patterns of names.
#[derive(Default)]
pub(super) struct Patterns {
    paths: Vec<Vec<Pattern>>,
}

/// The pattern for one name.
enum Pattern {
    Exact(Vec<u8>),
    Wildcards(Vec<u8>),
    Expression(Regex),
}

/// The memory limit of a compiled expression, in bytes.
const EXPRESSION_BYTES_MAX: usize = 10 << 20;

impl Pattern {
    fn new(text: &[u8], matching: Matching) -> Result<Self, String> {
        Ok(match matching {
            Matching::Exact => Self::Exact(text.to_vec()),
            Matching::Wildcards => Self::Wildcards(text.to_vec()),
            Matching::Expressions => Self::Expression(expression(text)?),
        })
    }

    fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::Exact(expected) => expected == name,
            Self::Wildcards(pattern) => matches(pattern, name),
            Self::Expression(expression) => expression.is_match(name),
        }
    }
}

impl Patterns {
    /// # Errors
    /// A message if an expression is invalid.
    pub(super) fn new(paths: &[OsString], matching: Matching) -> Result<Self, String> {
        let patterns = |path: &OsString| -> Result<Vec<Pattern>, String> {
            names(path.as_bytes()).map(|name| Pattern::new(name, matching)).collect()
        };
        Ok(Self { paths: paths.iter().map(patterns).collect::<Result<_, _>>()? })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Whether a path matches a pattern, lies below a match, or is a directory that may lead to one.
    pub(super) fn match_or_lead(&self, path: &[u8], is_directory: bool) -> bool {
        let path: Vec<&[u8]> = names(path).collect();
        self.paths.iter().any(|pattern| {
            (is_directory || path.len() >= pattern.len())
                && pattern.iter().zip(&path).all(|(pattern, name)| pattern.matches(name))
        })
    }

    /// Whether a path matches a pattern.
    pub(super) fn match_whole(&self, path: &[u8]) -> bool {
        let path: Vec<&[u8]> = names(path).collect();
        self.paths.iter().any(|pattern| {
            pattern.len() == path.len() && pattern.iter().zip(&path).all(|(pattern, name)| pattern.matches(name))
        })
    }
}

/// Compiles an extended regular expression.
///
/// # Errors
/// A message if it is invalid.
pub(super) fn expression(text: &[u8]) -> Result<Regex, String> {
    let text = std::str::from_utf8(text).map_err(|_| "an expression is not UTF-8".to_owned())?;
    let expression = RegexBuilder::new(text).unicode(false).size_limit(EXPRESSION_BYTES_MAX).build();
    expression.map_err(|_| format!("'{text}' is not a regular expression"))
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

/// Whether a name matches a pattern with `*`, `?`, `[…]` and `\`. The number of steps is at most the product of the
/// lengths.
fn matches(mut pattern: &[u8], mut name: &[u8]) -> bool {
    // Where matching resumes if the last star must match one more byte.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        let step = match (pattern.split_first(), name.split_first()) {
            (None, None) => return true,
            (Some((b'*', rest)), _) => {
                retry = Some((rest, name));
                pattern = rest;
                continue;
            }
            (Some((b'?', rest)), Some(_)) => Some(rest),
            (Some((b'[', rest)), Some((byte, _))) => match class(rest, *byte) {
                Some((true, rest)) => Some(rest),
                Some((false, _)) => None,
                None => (*byte == b'[').then_some(rest),
            },
            (Some((b'\\', [escaped, rest @ ..])), Some((byte, _))) => (escaped == byte).then_some(rest),
            (Some((expected, rest)), Some((byte, _))) => (expected == byte).then_some(rest),
            (None, Some(_)) | (Some(_), None) => None,
        };
        match (step, &mut retry) {
            (Some(rest), _) => {
                pattern = rest;
                name = &name[1..];
            }
            (None, Some((after_star, from))) if !from.is_empty() => {
                *from = &from[1..];
                (pattern, name) = (after_star, from);
            }
            (None, _) => return false,
        }
    }
}

/// Whether a byte is in a class, and the pattern after the class; `None` if the class has no end.
fn class(pattern: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let (is_negated, mut rest) = match pattern {
        [b'!' | b'^', rest @ ..] => (true, rest),
        _ => (false, pattern),
    };
    let (mut found, mut is_first) = (false, true);
    loop {
        match rest {
            [] => return None,
            [b']', after @ ..] if !is_first => return Some((found != is_negated, after)),
            [low, b'-', high, after @ ..] if *high != b']' => {
                found |= (*low..=*high).contains(&byte);
                rest = after;
            }
            [one, after @ ..] => {
                found |= *one == byte;
                rest = after;
            }
        }
        is_first = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_in_shells() {
        for (pattern, name, expected) in [
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("*", "", true),
            ("*.txt", "a.txt", true),
            ("*.txt", "a.txt.gz", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("a*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
        let paths = |paths: [&str; 2], matching| Patterns::new(&paths.map(OsString::from), matching);
        let patterns = paths(["etc/*.conf", "/usr"], Matching::Wildcards).expect("no expressions");
        let expressions = paths(["^etc$/[.]conf$", "^u?usr"], Matching::Expressions).expect("expressions");
        assert!(paths(["etc", "("], Matching::Expressions).is_err());
        for (path, is_directory, expected) in [
            ("/", true, true),
            ("/etc", true, true),
            ("/etc", false, false),
            ("/etc/a.conf", false, true),
            ("/etc/a.txt", false, false),
            ("/usr/lib/x", false, true),
            ("/var", true, false),
        ] {
            assert_eq!(patterns.match_or_lead(path.as_bytes(), is_directory), expected, "{path}");
            assert_eq!(expressions.match_or_lead(path.as_bytes(), is_directory), expected, "{path}");
        }
    }
}
