//! Groups files by similarity, judged by their names.

use xxhash_rust::xxh64::xxh64;

use crate::tree::{Body, Tree, Visit};

/// The similarity group of each visit, by its first name; files of a group have the same number.
pub(crate) fn kinds(tree: &Tree, visits: &[Visit]) -> Vec<u64> {
    let mut by_node = vec![None; tree.len()];
    for visit in visits.iter().filter(|visit| matches!(tree.node(visit.node).body, Body::Directory(_))) {
        for (name, node) in tree.entries(visit.node) {
            by_node[node.index()].get_or_insert_with(|| xxh64(extension(name), 0));
        }
    }
    visits.iter().map(|visit| by_node[visit.node.index()].unwrap_or(0)).collect()
}

/// The part of a name that determines the group: the extension without version numbers (`libc.so.6` is a `so`), or the
/// whole name if there is no extension.
fn extension(name: &[u8]) -> &[u8] {
    let mut rest = name;
    while let Some(dot) = rest.iter().rposition(|byte| *byte == b'.').filter(|dot| *dot > 0) {
        let extension = &rest[dot + 1..];
        if !extension.iter().all(u8::is_ascii_digit) {
            return extension;
        }
        rest = &rest[..dot];
    }
    if rest.len() < name.len() { &name[rest.len()..] } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_determine_the_similarity_group() {
        for (name, kind) in [
            ("libc.so.6", "so"),
            ("libstdc++.so.6.0.30", "so"),
            ("ls.1", ".1"),
            ("ls.1.gz", "gz"),
            ("README", "README"),
            (".profile", ".profile"),
            ("a.py", "py"),
            ("odd.", "."),
        ] {
            assert_eq!(extension(name.as_bytes()), kind.as_bytes(), "{name}");
        }
    }
}
