//! Patterns for one name.

use regex::bytes::{Regex, RegexBuilder};

use super::wildcards::Wildcards;
use crate::expression_text::expression_text;

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

/// The pattern for one name.
#[derive(Debug)]
pub(super) enum Pattern {
    Exact(Vec<u8>),
    Wildcards(Wildcards),
    Expression(Regex),
}

/// The memory limit of a compiled expression, in bytes.
const EXPRESSION_BYTES_MAX: usize = 10 << 20;

impl Pattern {
    /// # Errors
    /// A message: the expression is invalid, or the pattern is too long.
    pub(super) fn new(text: &[u8], matching: Matching) -> Result<Self, String> {
        Ok(match matching {
            Matching::Exact => Self::Exact(text.to_vec()),
            Matching::Expressions => Self::Expression(expression(text)?),
            Matching::Wildcards => {
                let wildcards = Wildcards::new(text)?;
                wildcards.literal().map_or(Self::Wildcards(wildcards), Self::Exact)
            }
        })
    }

    pub(super) fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::Exact(expected) => expected == name,
            Self::Wildcards(wildcards) => wildcards.matches(name),
            Self::Expression(expression) => expression.is_match(name),
        }
    }
}

/// Compiles an extended regular expression.
///
/// # Errors
/// A message if it is invalid.
pub(super) fn expression(text: &[u8]) -> Result<Regex, String> {
    let text = expression_text(text);
    let expression =
        RegexBuilder::new(&with_lower_bounds(&text)).unicode(false).size_limit(EXPRESSION_BYTES_MAX).build();
    expression.map_err(|_| format!("'{text}' is not a regular expression"))
}

/// Writes `{,n}`, which the engine does not know, as `{0,n}`.
fn with_lower_bounds(text: &str) -> String {
    let (mut result, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '\\' => rest.char_indices().nth(2).map_or(rest.len(), |(end, _)| end),
            '[' => bracket_len(rest),
            _ => first.len_utf8(),
        };
        let (part, after) = rest.split_at(len);
        result.push_str(part);
        if part == "{" && after.starts_with(',') {
            result.push('0');
        }
        rest = after;
    }
    result
}

/// The length of the bracket expression at the beginning of `text`, or of the whole text if it does not end.
fn bracket_len(text: &str) -> usize {
    let inner = text.strip_prefix("[^").or(text.strip_prefix('[')).unwrap_or(text);
    // A bracket in the first place stands for itself.
    let inner = inner.strip_prefix(']').unwrap_or(inner);
    let mut end = text.len() - inner.len();
    while let Some(len) = text[end..].find(']') {
        let part = &text[end..end + len];
        end += len + 1;
        // A class, as in [[:alpha:]], ends with a bracket of its own.
        if !(part.contains("[:") && part.ends_with(':')) {
            return end;
        }
    }
    text.len()
}

/// The names in a path.
pub(super) fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_may_have_any_bytes_and_no_lower_bound() {
        for (text, name, is_match) in [
            (&b"^\xff$"[..], &b"\xff"[..], true),
            (b"^[\xe4\xff]{2}$", b"\xff\xe4", true),
            (b"^[\xe4\xff]$", b"\xfe", false),
            ("^ä$".as_bytes(), "ä".as_bytes(), true),
            (b"^a{,2}$", b"aa", true),
            (b"^a{,2}$", b"aaa", false),
            (b"^a\\{,2}$", b"a{,2}", true),
            (b"^[{,2}]$", b",", true),
            (b"^[{,2}]$", b"0", false),
            (b"^[]{,2}]$", b"0", false),
            (b"^[[:alpha:]{,]b{,1}$", b"{b", true),
        ] {
            let found = expression(text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(found.is_match(name), is_match, "{text:?} {name:?}");
        }
        assert!(expression(b"(a)\\1").is_err());
    }
}
