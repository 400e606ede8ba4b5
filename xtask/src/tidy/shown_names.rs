//! Checks that names in messages go through `floe_image::Shown`.

use std::{fs, path::Path};

use floe_testkit::workspace_root;

use super::source_files::rust_files;
use crate::task_error::{During, Outcome};

/// How Rust turns a path into text that a terminal would act on.
const RAW: &str = ".display()";

/// Macros that print without `say!`, and so without making the words of others harmless.
const PRINTING: [&str; 4] = ["eprintln!(", "eprint!(", "println!(", "print!("];

/// Crates whose users are the developers of this project.
const OUR_OWN: [&str; 2] = ["crates/testkit", "crates/fuse-wire"];

/// Files that may turn names into text in such a way, and why.
const ALLOWED: [(&str, &str); 3] = [
    ("crates/lab/src/launch/mounted.rs", "options of a program"),
    ("crates/lab/src/machine/undo.rs", "lines of a journal that a shell reads"),
    ("crates/lab/src/machine/lab_lock.rs", "a fixed text"),
];

/// The violations in the crates.
pub(super) fn violations() -> Outcome<Vec<String>> {
    let root = workspace_root();
    let mut lines = Vec::new();
    let mut unused: Vec<&str> = ALLOWED.iter().map(|(name, _)| *name).collect();
    for path in rust_files(&root.join("crates"))? {
        let name = path.strip_prefix(&root).unwrap_or(&path);
        if !name.components().any(|part| part.as_os_str() == "src") || OUR_OWN.iter().any(|own| name.starts_with(own)) {
            continue;
        }
        let found = violations_of(name, &fs::read_to_string(&path).during(path.display())?);
        if ALLOWED.iter().any(|(allowed, _)| name == Path::new(allowed)) {
            unused.retain(|allowed| found.is_empty() || name != Path::new(allowed));
        } else {
            lines.extend(found.into_iter().map(|line| format!("{}: {line}", name.display())));
        }
    }
    lines.extend(unused.into_iter().map(|name| format!("{name}: is allowed raw names and has none")));
    Ok(lines)
}

fn violations_of(name: &Path, text: &str) -> Vec<String> {
    if name.file_stem().is_some_and(|stem| stem == "tests") {
        return Vec::new();
    }
    let code = text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
    let code = code.filter(|line| !line.trim_start().starts_with("//"));
    let raw = |line: &&str| line.contains(RAW) || PRINTING.iter().any(|call| line.trim_start().starts_with(call));
    let advice = "display names with floe_image::Shown, and print with say!";
    code.filter(raw).map(|line| format!("{advice}: {}", line.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_names_in_messages_are_found() {
        for (name, text, expected) in [
            ("crates/a/src/a.rs", "format!(\"{}: {error}\", path.display())", 1),
            ("crates/a/src/a.rs", "let shown = path\n    .display();", 1),
            ("crates/a/src/a.rs", "eprintln!(\"{name}\");", 1),
            ("crates/a/src/a.rs", "format!(\"{}: {error}\", path.shown())", 0),
            ("crates/a/src/a.rs", "/// `path.display()`", 0),
            ("crates/a/src/a.rs", "#[cfg(test)]\nmod tests { path.display() }", 0),
            ("crates/a/src/a/tests.rs", "path.display()", 0),
        ] {
            assert_eq!(violations_of(Path::new(name), text).len(), expected, "{text}");
        }
    }
}
