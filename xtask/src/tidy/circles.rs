//! Circles of imports between the files of a crate.
//!
//! A module and the modules inside it may import each other: they are one noun.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::{Path, PathBuf},
};

use floe_testkit::workspace_root;

use super::imports::Imports;
use crate::task_error::{During, Outcome};

/// Files, and the files that each imports.
type Graph<'files> = BTreeMap<&'files Path, BTreeSet<&'files Path>>;

/// The circles of all crates.
pub(super) fn violations() -> Outcome<Vec<String>> {
    let mut lines = Vec::new();
    for (name, source) in sources()? {
        let imports = Imports::read(&source)?;
        lines.extend(violations_of(&name, imports.uses()));
    }
    Ok(lines)
}

/// The crates, by the names of their folders, and their folders of sources.
fn sources() -> Outcome<BTreeMap<String, PathBuf>> {
    let root = workspace_root();
    let mut folders = vec![root.join("fuzz"), root.join("python"), root.join("xtask")];
    let crates = root.join("crates");
    for entry in crates.read_dir().during(crates.display())? {
        folders.push(entry?.path());
    }
    let sources = folders.into_iter().map(|folder| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name, folder.join("src"))
    });
    Ok(sources.filter(|(_, source)| source.is_dir()).collect())
}

fn violations_of(name: &str, mut graph: Graph<'_>) -> Vec<String> {
    for (file, others) in &mut graph {
        others.retain(|other| !is_around(file, other) && !is_around(other, file));
    }
    let mut lines = Vec::new();
    let mut told = BTreeSet::new();
    for file in graph.keys() {
        let circle = circle_from(file, &graph);
        if !circle.is_empty() && told.insert(*file) {
            told.extend(&circle);
            let files: Vec<String> = circle.iter().map(|file| file.display().to_string()).collect();
            lines.push(format!("{name}: a circle of imports: {} → {}", files.join(" → "), file.display()));
        }
    }
    lines
}

/// Whether `inner` is a module inside the module `outer`. The root is around all.
fn is_around(outer: &Path, inner: &Path) -> bool {
    let outer = if outer.ends_with("mod.rs") { outer.with_file_name("") } else { outer.with_extension("") };
    outer == Path::new("lib") || outer == Path::new("main") || inner.starts_with(outer)
}

/// The shortest circle of imports through a file, from it on; empty if there is none.
fn circle_from<'files>(start: &'files Path, graph: &Graph<'files>) -> Vec<&'files Path> {
    let mut importers = BTreeMap::new();
    let mut waiting = VecDeque::from([start]);
    while let Some(file) = waiting.pop_front() {
        for other in graph.get(file).into_iter().flatten() {
            if *other == start {
                let back = std::iter::successors(Some(file), |file| importers.get(file).copied());
                let mut circle: Vec<&Path> = back.collect();
                circle.reverse();
                return circle;
            }
            if !importers.contains_key(other) {
                importers.insert(*other, file);
                waiting.push_back(other);
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_found() {
        for (imports, expected) in [
            (&[("hall.rs", "cellar.rs"), ("attic.rs", "hall.rs")][..], None),
            (
                &[("hall.rs", "cellar.rs"), ("cellar.rs", "attic.rs"), ("attic.rs", "hall.rs")],
                Some("house: a circle of imports: attic.rs → hall.rs → cellar.rs → attic.rs"),
            ),
            // A module and those inside it, and the root.
            (&[("hall.rs", "hall/a/door.rs"), ("hall/a/door.rs", "hall.rs")], None),
            (&[("hall/mod.rs", "hall/door.rs"), ("hall/door.rs", "hall/mod.rs")], None),
            (&[("lib.rs", "hall.rs"), ("hall.rs", "lib.rs")], None),
            (
                &[("hall/door.rs", "hall/step.rs"), ("hall/step.rs", "hall/door.rs")],
                Some("house: a circle of imports: hall/door.rs → hall/step.rs → hall/door.rs"),
            ),
            (
                &[("hall.rs", "hallway.rs"), ("hallway.rs", "hall.rs")],
                Some("house: a circle of imports: hall.rs → hallway.rs → hall.rs"),
            ),
        ] {
            let mut graph = Graph::new();
            for (file, other) in imports {
                graph.entry(Path::new(file)).or_default().insert(Path::new(other));
            }
            assert_eq!(violations_of("house", graph), Vec::from_iter(expected), "{imports:?}");
        }
    }
}
