//! Patterns for one name.

use regex::bytes::{Regex, RegexBuilder};

use super::wildcards::Wildcards;

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
    let text = std::str::from_utf8(text).map_err(|_| "an expression is not UTF-8".to_owned())?;
    let expression = RegexBuilder::new(text).unicode(false).size_limit(EXPRESSION_BYTES_MAX).build();
    expression.map_err(|_| format!("'{text}' is not a regular expression"))
}

/// The names in a path.
pub(super) fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}
