//! Patterns for paths, and for one name.

use std::{
    collections::{HashMap, hash_map::Entry},
    ffi::OsString,
    os::unix::ffi::OsStrExt,
};

use regex::bytes::{Regex, RegexBuilder};

use super::wildcards::Wildcards;
use crate::expression_text::expression_text;

/// Patterns for paths: a tree whose edges are patterns for names. Patterns that begin alike share nodes, and names without
/// wildcards are looked up, so that a name is compared with few of many patterns.
#[derive(Default)]
pub(super) struct PathPatterns {
    /// The first node is the root. There is none without patterns.
    nodes: Vec<Node>,
}

#[derive(Default)]
struct Node {
    /// Whether a pattern ends here.
    is_end: bool,
    exact: HashMap<Vec<u8>, usize>,
    others: Vec<(Pattern, usize)>,
}

/// The nodes that a path leads to.
pub(super) type Places = Vec<usize>;

/// The result of matching one name.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The end of a pattern: it matches.
    End,
    /// Nodes; none if no pattern continues with the name.
    Places(Places),
}

impl PathPatterns {
    /// # Errors
    /// A message if a pattern is invalid.
    pub(super) fn new(paths: &[OsString], matching: Matching) -> Result<Self, String> {
        let mut patterns = Self::default();
        let mut known = HashMap::new();
        for path in paths {
            patterns.add(path.as_bytes(), matching, &mut known)?;
        }
        Ok(patterns)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Whether a pattern without names matches the root.
    pub(super) fn match_root(&self) -> bool {
        self.nodes.first().is_some_and(|root| root.is_end)
    }

    /// The places before the first name.
    pub(super) fn start() -> Places {
        vec![0]
    }

    /// Where a name leads from `places`.
    pub(super) fn step(&self, places: &[usize], name: &[u8]) -> Step {
        let mut reached = Vec::new();
        for node in places.iter().filter_map(|place| self.nodes.get(*place)) {
            let others = node.others.iter().filter(|(pattern, _)| pattern.matches(name)).map(|(_, child)| child);
            for child in node.exact.get(name).into_iter().chain(others) {
                if self.nodes[*child].is_end {
                    return Step::End;
                }
                reached.push(*child);
            }
        }
        Step::Places(reached)
    }

    /// Adds a pattern. `known` has the children of nodes by their texts.
    fn add(
        &mut self,
        path: &[u8],
        matching: Matching,
        known: &mut HashMap<(usize, Vec<u8>), usize>,
    ) -> Result<(), String> {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut node = 0;
        for text in names(path).filter(|name| *name != b".") {
            let key = (node, text.to_vec());
            node = match known.get(&key) {
                Some(child) => *child,
                None => {
                    let child = self.child(node, Pattern::new(text, matching)?);
                    known.insert(key, child);
                    child
                }
            };
        }
        self.nodes[node].is_end = true;
        Ok(())
    }

    /// The child of a node for a pattern that is new there.
    fn child(&mut self, node: usize, pattern: Pattern) -> usize {
        let child = self.nodes.len();
        match pattern {
            // Different texts may stand for the same name.
            Pattern::Exact(name) => match self.nodes[node].exact.entry(name) {
                Entry::Occupied(known) => return *known.get(),
                Entry::Vacant(new) => drop(new.insert(child)),
            },
            pattern => self.nodes[node].others.push((pattern, child)),
        }
        self.nodes.push(Node::default());
        child
    }
}

/// The notation of names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::drop_in) enum Matching {
    /// Literal names.
    Exact,
    /// Shell wildcards.
    Wildcards,
    /// Extended regular expressions.
    Expressions,
}

/// The pattern for one name.
#[derive(Debug)]
pub(in crate::drop_in) enum Pattern {
    Exact(Vec<u8>),
    Wildcards(Wildcards),
    Expression(Regex),
}

/// The memory limit of a compiled expression, in bytes.
const EXPRESSION_BYTES_MAX: usize = 10 << 20;

impl Pattern {
    /// # Errors
    /// A message: the expression is invalid, or the pattern is too long.
    pub(in crate::drop_in) fn new(text: &[u8], matching: Matching) -> Result<Self, String> {
        Ok(match matching {
            Matching::Exact => Self::Exact(text.to_vec()),
            Matching::Expressions => Self::Expression(expression(text)?),
            Matching::Wildcards => {
                let wildcards = Wildcards::new(text)?;
                wildcards.literal().map_or(Self::Wildcards(wildcards), Self::Exact)
            }
        })
    }

    pub(in crate::drop_in) fn matches(&self, name: &[u8]) -> bool {
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
    fn patterns_match_name_by_name() {
        let patterns = |paths: &[&str], matching| {
            let paths: Vec<OsString> = paths.iter().map(OsString::from).collect();
            PathPatterns::new(&paths, matching)
        };
        let wildcards = patterns(&["etc/*.conf", "/usr", "./e*/x/y", "e\\tc/.conf"], Matching::Wildcards);
        let expressions = patterns(&["^etc$/[.]conf$", "^u?usr", "e./x/y"], Matching::Expressions);
        assert!(patterns(&["etc", "("], Matching::Expressions).is_err());
        for patterns in [wildcards, expressions].map(|patterns| patterns.expect("valid")) {
            // How many names lead to a match, or whether more may follow.
            for (path, is_match, may_lead) in [
                ("/", false, true),
                ("/etc", false, true),
                ("/etc/a.conf", true, false),
                ("/etc/a.dat", false, false),
                ("/etc/x", false, true),
                ("/etc/x/y", true, false),
                ("/usr", true, false),
                ("/var", false, false),
            ] {
                let mut step = Step::Places(PathPatterns::start());
                for name in names(path.as_bytes()) {
                    let Step::Places(places) = step else { panic!("{path} goes on") };
                    step = patterns.step(&places, name);
                }
                assert_eq!(step == Step::End, is_match, "{path}");
                assert_eq!(matches!(&step, Step::Places(places) if !places.is_empty()), may_lead, "{path}");
            }
        }
    }

    #[test]
    fn equal_texts_share_a_node() {
        let paths: Vec<OsString> = (0..1000).map(|number| format!("*/{number}").into()).collect();
        let patterns = PathPatterns::new(&paths, Matching::Wildcards).expect("valid");
        assert_eq!(patterns.nodes.len(), 1002);
        assert_eq!(patterns.step(&[0], b"x"), Step::Places(vec![1]));
        assert_eq!(patterns.step(&[1], b"999"), Step::End);
    }

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
