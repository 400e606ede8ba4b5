//! The permitted dependencies between crates.

use std::{env, process::Command};

use floe_testkit::workspace_root;
use serde::Deserialize;

use crate::task_error::{During, Outcome, TaskError};

/// Each crate with the workspace crates that it may depend on, as ARCHITECTURE.md lists them.
const ALLOWED: [(&str, &[&str]); 19] = [
    ("floe-image", &[]),
    ("floe-codec", &["floe-image"]),
    ("floe-source", &["floe-image"]),
    ("floe-erofs", &["floe-image"]),
    ("floe-squashfs", &["floe-image"]),
    ("floe-engine", &["floe-image", "floe-codec"]),
    ("floe-fuse-wire", &[]),
    // Its tests serve and mount the images that it renders.
    ("floe-front", &["floe-image", "floe-erofs", "floe-squashfs", "floe-source", "floe-engine", "floe-fuse"]),
    ("floe-fuse", &["floe-image", "floe-engine", "floe-fuse-wire"]),
    ("floe-mkfs", &["floe-image", "floe-codec", "floe-erofs"]),
    ("floe-sandbox", &[]),
    ("floe-remote-cache", &["floe-image"]),
    ("floe-remote", &["floe-image", "floe-remote-cache"]),
    ("floe-lab", &[]),
    (
        "floe",
        &[
            "floe-image",
            "floe-codec",
            "floe-source",
            "floe-erofs",
            "floe-squashfs",
            "floe-engine",
            "floe-mkfs",
            "floe-remote",
        ],
    ),
    (
        "floe-cli",
        &[
            "floe",
            "floe-image",
            "floe-source",
            "floe-erofs",
            "floe-squashfs",
            "floe-engine",
            "floe-front",
            "floe-fuse",
            "floe-mkfs",
            "floe-lab",
            "floe-remote-cache",
            "floe-sandbox",
        ],
    ),
    ("floe-capi", &["floe"]),
    ("floe-testkit", &["floe-image", "floe-codec"]),
    ("xtask", &["floe-testkit", "floe-image", "floe-erofs", "floe-squashfs", "floe-engine", "floe"]),
];

/// The crate that only tests may use.
const FOR_TESTS: &str = "floe-testkit";

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
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

/// The forbidden dependencies.
pub(super) fn violations() -> Outcome<Vec<String>> {
    let program = env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(program);
    command.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).current_dir(workspace_root());
    let output = command.output().during("cargo cannot be run")?;
    if !output.status.success() {
        return Err(TaskError::new(String::from_utf8_lossy(&output.stderr)));
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).during("cargo metadata")?;
    Ok(metadata.packages.iter().flat_map(violations_of).collect())
}

fn violations_of(package: &Package) -> Vec<String> {
    let Some((name, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package.name) else {
        return vec![format!("{}: not listed in xtask/src/tidy/dependencies.rs", package.name)];
    };
    let ours = package.dependencies.iter().filter(|dependency| dependency.path.is_some());
    let wrong = ours.filter(|dependency| {
        let is_for_tests = dependency.kind.as_deref() == Some("dev") && dependency.name == FOR_TESTS;
        !is_for_tests && !allowed.contains(&dependency.name.as_str())
    });
    wrong.map(|dependency| format!("{name} may not depend on {}", dependency.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_ways_are_found() {
        for (name, dependency, kind, expected) in [
            ("floe-engine", "floe-image", None, 0),
            ("floe-engine", "floe-erofs", None, 1),
            ("floe-engine", "floe-erofs", Some("dev"), 1),
            ("floe-engine", "floe-testkit", Some("dev"), 0),
            ("floe-engine", "floe-testkit", None, 1),
            ("floe-image", "floe-codec", None, 1),
            ("floe", "floe-lab", None, 1),
            ("floe-cli", "floe-lab", None, 0),
            ("floe-fuse", "floe-lab", None, 1),
            ("floe-other", "floe-image", None, 1),
        ] {
            let dependency =
                Dependency { name: dependency.to_owned(), kind: kind.map(str::to_owned), path: Some(String::new()) };
            let package = Package { name: name.to_owned(), dependencies: vec![dependency] };
            assert_eq!(violations_of(&package).len(), expected, "{:?}", violations_of(&package));
        }
    }
}
