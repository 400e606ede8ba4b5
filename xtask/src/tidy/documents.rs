//! Checks links between documents, and that no address of a repository is named: there is none yet.

use std::{fs, path::Path};

use floe_testkit::workspace_root;

use super::source_files::files;
use crate::task_error::{During, Outcome};

/// The folders with documents and manifests, besides the root.
const FOLDERS: [&str; 8] = [".cargo", "crates", "docs", "fixtures", "fuzz", "packaging", "python", "xtask"];

/// The files at the root.
const ROOT_FILES: [&str; 6] =
    ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "Cargo.toml", "README.md", "deny.toml"];

/// The extensions of files that can name an address.
const KINDS: [&str; 10] = ["", "go", "h", "in", "json", "md", "mod", "rs", "spec", "toml"];

/// Hosts of repositories.
const HOSTS: [&str; 5] = ["github.com", "gitlab.com", "codeberg.org", "bitbucket.org", "sr.ht"];

/// Settings that would name the address.
const SETTINGS: [&str; 6] =
    ["repository", "homepage", "documentation", "git-repository-url", "edit-url-template", "site-url"];

/// The violations in the documents and manifests of the workspace.
pub(super) fn violations() -> Outcome<Vec<String>> {
    let root = workspace_root();
    let mut paths: Vec<_> = ROOT_FILES.iter().map(|name| root.join(name)).collect();
    for folder in FOLDERS {
        paths.extend(files(&root.join(folder), &KINDS)?);
    }
    let mut lines = Vec::new();
    for path in paths {
        let name = path.strip_prefix(&root).unwrap_or(&path);
        if name.starts_with("xtask/src/tidy") {
            continue;
        }
        // Fixtures without an extension are bytes.
        let text = String::from_utf8_lossy(&fs::read(&path).during(path.display())?).into_owned();
        let found = addresses_in(name, &text).into_iter().chain(broken_links_in(&path, &text));
        lines.extend(found.map(|line| format!("{}: {line}", name.display())));
    }
    Ok(lines)
}

/// Lines that name an address of the project's own repository.
fn addresses_in(name: &Path, text: &str) -> Vec<String> {
    let is_manifest = name.extension().is_some_and(|extension| extension == "toml");
    let is_address = |line: &&str| {
        let line = line.to_ascii_lowercase();
        let after_host = HOSTS.iter().filter_map(|host| line.split_once(host)).map(|(_, after)| after);
        let setting = line.split(['=', '.']).next().unwrap_or_default().trim();
        after_host.into_iter().any(|after| after.starts_with(['/', ':']) && after.contains("floe"))
            || line.contains("floe-fs")
            || is_manifest && SETTINGS.contains(&setting)
    };
    let lines = text.lines().filter(is_address);
    lines.map(|line| format!("names an address of the repository: {}", line.trim())).collect()
}

/// Relative links of a document that lead nowhere.
fn broken_links_in(path: &Path, text: &str) -> Vec<String> {
    if path.extension().is_none_or(|extension| extension != "md") {
        return Vec::new();
    }
    let mut is_code = false;
    let mut broken = Vec::new();
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        for target in line.split("](").skip(1).filter(|_| !is_code) {
            let target = target.split([')', '#']).next().unwrap_or_default();
            let is_absolute = target.is_empty() || target.contains("://") || target.starts_with("mailto:");
            if !is_absolute && !path.parent().is_some_and(|folder| folder.join(target).exists()) {
                broken.push(format!("the link {target} leads nowhere"));
            }
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_broken_links_are_found() {
        let readme = workspace_root().join("README.md");
        for (name, text, expected) in [
            ("Cargo.toml", "repository = \"https://example.org\"", 1),
            ("crates/a/Cargo.toml", "repository.workspace = true", 1),
            ("docs/book.toml", "git-repository-url = \"x\"", 1),
            ("docs/a.md", "see https://github.com/someone/floe/blob/main/a", 1),
            ("docs/a.md", "see git@gitlab.com:someone/floe.git", 1),
            ("docs/a.md", "the crate https://github.com/gimli-rs/object", 0),
            ("docs/a.md", "repository = of a registry", 0),
            ("packaging/a.json", "\"mail@floe-fs.org\"", 1),
        ] {
            assert_eq!(addresses_in(Path::new(name), text).len(), expected, "{name}: {text}");
        }
        for (text, expected) in [
            ("[a](docs/start.md) [b](docs/start.md#first) [c](#here) [d](https://example.org/a)", 0),
            ("[a](docs/none.md) and [b](docs)", 1),
            ("```\nlist[0](nothing)\n```\n[a](nothing)", 1),
        ] {
            assert_eq!(broken_links_in(&readme, text).len(), expected, "{text}");
        }
    }
}
