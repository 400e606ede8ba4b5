//! The permitted dependencies between crates.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::PathBuf,
    process::Command,
};

use floe_testkit::workspace_root;
use serde::Deserialize;

use super::source_files::rust_files;
use crate::task_error::{During, Outcome, TaskError};

/// Dependencies that the table does not show: those of tests, and those of the tasks, which are no crate of the product.
const BESIDE_THE_TABLE: [(&str, &[&str]); 2] = [
    // Its tests serve and mount the images that it renders.
    ("front", &["squashfs", "engine", "fuse"]),
    ("xtask", &["testkit", "image", "erofs", "squashfs", "floe"]),
];

/// The crate that only tests may use.
const FOR_TESTS: &str = "testkit";

/// The heading of the table in ARCHITECTURE.md. Its first column names crates, its last one the crates that they may use.
const HEADING: &str = "| crate | holds | may use |";

/// Each crate with the crates of the workspace that it may depend on. Names are without `floe-`, except for `floe-cli`.
type Permissions = BTreeMap<String, BTreeSet<String>>;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev` or `build`; null for ordinary dependencies.
    kind: Option<String>,
    /// The path of a crate in the workspace.
    path: Option<String>,
}

/// The forbidden dependencies, and permitted ones that no file uses.
pub(super) fn violations() -> Outcome<Vec<String>> {
    let root = workspace_root();
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).during("ARCHITECTURE.md")?;
    let permissions = permissions_of(&text);
    let program = env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(program);
    command.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).current_dir(&root);
    let output = command.output().during("cargo cannot be run")?;
    if !output.status.success() {
        return Err(TaskError::new(String::from_utf8_lossy(&output.stderr)));
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).during("cargo metadata")?;
    let mut lines = Vec::new();
    for package in &metadata.packages {
        let directory = package.manifest_path.parent().unwrap_or(&root);
        let mut sources = String::new();
        for path in rust_files(directory)? {
            sources.push_str(&fs::read_to_string(&path).during(path.display())?);
        }
        lines.extend(violations_of(package, &permissions, &sources));
    }
    Ok(lines)
}

/// The rows of the table: a list of crates, `no other crate`, or `all but` a list.
fn permissions_of(text: &str) -> Permissions {
    let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    let rows = text.lines().skip_while(|line| !line.starts_with(HEADING)).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|')).filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        Some((words(cells.first()?), *cells.last()?))
    });
    let rows: Vec<_> = rows.collect();
    let all: BTreeSet<String> = rows.iter().flat_map(|(names, _)| names.iter().cloned()).collect();
    let mut permissions = Permissions::new();
    for (names, cell) in rows {
        for name in names {
            let mut allowed = words(cell);
            if cell.starts_with("all but") {
                allowed = all.difference(&allowed).filter(|other| **other != name).cloned().collect();
            }
            permissions.insert(name, allowed);
        }
    }
    permissions
}

/// The name of a crate in the table.
fn short(name: &str) -> &str {
    if name == "floe-cli" { name } else { name.strip_prefix("floe-").unwrap_or(name) }
}

/// Whether Rust code names a crate.
fn names(sources: &str, dependency: &str) -> bool {
    let identifier = dependency.replace('-', "_");
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    sources.match_indices(&identifier).any(|(at, _)| {
        let after = &sources[at + identifier.len()..];
        !sources[..at].ends_with(is_part)
            && (after.starts_with("::") || after.starts_with(';') || after.starts_with(" as "))
    })
}

fn violations_of(package: &Package, permissions: &Permissions, sources: &str) -> Vec<String> {
    let name = short(&package.name);
    let beside: BTreeSet<&str> =
        BESIDE_THE_TABLE.iter().filter(|(known, _)| *known == name).flat_map(|(_, others)| *others).copied().collect();
    let allowed = permissions.get(name);
    if allowed.is_none() && beside.is_empty() {
        return vec![format!("{name}: not listed in ARCHITECTURE.md")];
    }
    let allowed: BTreeSet<&str> = allowed.into_iter().flatten().map(String::as_str).chain(beside).collect();
    let ours: Vec<&Dependency> = package.dependencies.iter().filter(|dependency| dependency.path.is_some()).collect();
    let wrong = ours.iter().filter(|dependency| {
        let is_for_tests = dependency.kind.as_deref() == Some("dev") && short(&dependency.name) == FOR_TESTS;
        !is_for_tests && !allowed.contains(short(&dependency.name))
    });
    let mut lines: Vec<_> =
        wrong.map(|dependency| format!("{name} may not depend on {}", short(&dependency.name))).collect();
    for other in allowed {
        let dependency = ours.iter().find(|dependency| short(&dependency.name) == other);
        if dependency.is_none_or(|dependency| !names(sources, &dependency.name)) {
            lines.push(format!("{name} may use {other}, which it does not"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "text\n\n| crate | holds | may use |\n| --- | --- | --- |\n| `image` | `a` | no other crate of the workspace |\n\
                         | `erofs`, `squashfs` | b | `image` |\n| `engine` | c | `image` |\n\
                         | `floe` | d | `image`, `erofs` |\n| `floe-cli` | e | all but `engine`, `testkit` |\n\
                         | `testkit` | f | `image` |\n\n| other |\n";

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Package {
        let dependency = |(name, kind): &(&str, Option<&str>)| Dependency {
            name: (*name).to_owned(),
            kind: kind.map(str::to_owned),
            path: Some(String::new()),
        };
        let dependencies = dependencies.iter().map(dependency).collect();
        Package { name: name.to_owned(), manifest_path: PathBuf::new(), dependencies }
    }

    #[test]
    fn the_table_is_read() {
        let permissions = permissions_of(TABLE);
        for (name, expected) in [
            ("image", &[][..]),
            ("erofs", &["image"]),
            ("squashfs", &["image"]),
            ("floe-cli", &["erofs", "floe", "image", "squashfs"]),
        ] {
            assert!(permissions[name].iter().eq(expected.iter()), "{name}: {:?}", permissions[name]);
        }
        assert_eq!(permissions.len(), 7);
    }

    #[test]
    fn wrong_ways_and_needless_permissions_are_found() {
        let permissions = permissions_of(TABLE);
        for (name, dependencies, sources, expected) in [
            ("floe-engine", &[("floe-image", None)][..], "use floe_image::Nid;", &[][..]),
            (
                "floe-engine",
                &[("floe-image", None), ("floe-erofs", None)],
                "use floe_image::Nid;",
                &["engine may not depend on erofs"],
            ),
            (
                "floe-engine",
                &[("floe-image", None), ("floe-erofs", Some("dev"))],
                "use floe_image as image;",
                &["engine may not depend on erofs"],
            ),
            ("floe-engine", &[("floe-image", None), ("floe-testkit", Some("dev"))], "floe_image::open()", &[]),
            (
                "floe-engine",
                &[("floe-image", None), ("floe-testkit", None)],
                "floe_image::open()",
                &["engine may not depend on testkit"],
            ),
            // A permission without a dependency, and a dependency without an import.
            ("floe-engine", &[], "use floe_image::Nid;", &["engine may use image, which it does not"]),
            (
                "floe-engine",
                &[("floe-image", None)],
                "use floe_image_of::Nid; // floe_image",
                &["engine may use image, which it does not"],
            ),
            ("floe-other", &[], "", &["other: not listed in ARCHITECTURE.md"]),
        ] {
            let found = violations_of(&package(name, dependencies), &permissions, sources);
            assert_eq!(found, expected, "{name} {sources}");
        }
    }
}
