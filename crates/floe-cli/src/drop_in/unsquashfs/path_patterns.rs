//! Patterns for paths.

use std::{
    collections::{HashMap, hash_map::Entry},
    ffi::OsString,
    os::unix::ffi::OsStrExt,
};

use super::pattern::{Matching, Pattern, names};

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
}
