//! The permitted dependencies between crates, and the crates that the library `floe` must not depend on.

use std::{env, fs, path::PathBuf, process::Command};

use floe_testkit::workspace_root;
use serde::Deserialize;

use super::{
    permissions::{FILE, Permissions},
    source_files::rust_files,
};
use crate::task_error::{During, Outcome, TaskError};

/// The crate that only tests may use.
const FOR_TESTS: &str = "testkit";

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
pub(super) fn violations(permissions: &Permissions) -> Outcome<Vec<String>> {
    let root = workspace_root();
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
        lines.extend(violations_of(package, permissions, &sources));
    }
    Ok(lines)
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
    let Some(allowed) = permissions.crates.get(name) else {
        return vec![format!("{name}: not listed in {FILE}")];
    };
    let for_tests = permissions.tests.get(name);
    let ours: Vec<&Dependency> = package.dependencies.iter().filter(|dependency| dependency.path.is_some()).collect();
    let wrong = ours.iter().filter(|dependency| {
        let other = short(&dependency.name);
        let is_for_tests = other == FOR_TESTS || for_tests.is_some_and(|others| others.contains(other));
        let is_allowed_for_tests = is_for_tests && dependency.kind.as_deref() == Some("dev");
        !allowed.contains(other) && !is_allowed_for_tests
    });
    let mut lines: Vec<_> =
        wrong.map(|dependency| format!("{name} may not depend on {}", short(&dependency.name))).collect();
    for other in allowed.iter().chain(for_tests.into_iter().flatten()) {
        let dependency = ours.iter().find(|dependency| short(&dependency.name) == *other);
        if dependency.is_none_or(|dependency| !names(sources, &dependency.name)) {
            lines.push(format!("{name} may use {other}, which it does not"));
        }
    }
    lines
}

/// Crates for command lines, progress bars, signals, mounts and confinement: they belong to the program.
const FOR_THE_PROGRAM: [&str; 11] = [
    "clap",
    "clap_builder",
    "console",
    "floe-fuse-wire",
    "floe-keeper",
    "indicatif",
    "landlock",
    "regex",
    "seccompiler",
    "serde_json",
    "signal-hook",
];

/// Each crate for the program that an embedder of `floe` would have to build.
pub(super) fn library_violations() -> Outcome<Vec<String>> {
    let program = env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(program);
    command.args(["tree", "--package", "floe", "--edges", "normal", "--prefix", "none", "--offline"]);
    let output = command.current_dir(workspace_root()).output().during("cargo cannot be run")?;
    if !output.status.success() {
        return Err(TaskError::new(String::from_utf8_lossy(&output.stderr)));
    }
    Ok(foreign_crates(&String::from_utf8_lossy(&output.stdout)))
}

/// The crates for the program in a list of `name version`.
fn foreign_crates(tree: &str) -> Vec<String> {
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    let mut lines: Vec<_> = names
        .filter(|name| FOR_THE_PROGRAM.contains(name))
        .map(|name| format!("the library floe depends on {name}, which is for the program"))
        .collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: &str = "[crates]\nimage = []\nerofs = ['image']\nengine = ['image']\ntestkit = ['image']\n\
                          front = ['image']\nxtask = ['testkit']\n[tests]\nfront = ['engine']\n[rooms]\n";

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
    fn wrong_ways_and_needless_permissions_are_found() {
        let permissions = Permissions::parse(TABLES).unwrap_or_else(|error| panic!("{error}"));
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
            // Uses of tests.
            (
                "floe-front",
                &[("floe-image", None), ("floe-engine", Some("dev"))],
                "floe_image::open(); floe_engine::open()",
                &[],
            ),
            (
                "floe-front",
                &[("floe-image", None), ("floe-engine", None)],
                "floe_image::open(); floe_engine::open()",
                &["front may not depend on engine"],
            ),
            ("floe-front", &[("floe-image", None)], "floe_image::open()", &["front may use engine, which it does not"]),
            ("xtask", &[("floe-testkit", None)], "floe_testkit::open()", &[]),
            ("floe-other", &[], "", &["other: not listed in xtask/rooms.toml"]),
        ] {
            let found = violations_of(&package(name, dependencies), &permissions, sources);
            assert_eq!(found, expected, "{name} {sources}");
        }
    }

    #[test]
    fn crates_for_the_program_are_found() {
        for (tree, expected) in [
            ("floe v0.1.0 (/a)\nfloe-engine v0.1.0 (/b)\nbytes v1.10.0\n", 0),
            ("floe v0.1.0 (/a)\nclap v4.6.0\nclap v4.6.0 (*)\n", 1),
            ("floe v0.1.0 (/a)\nindicatif v0.18.0\nsignal-hook v0.4.0\n", 2),
        ] {
            assert_eq!(foreign_crates(tree).len(), expected, "{tree}");
        }
    }
}
