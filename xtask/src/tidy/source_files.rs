//! Checks the names, the length and the contents of source files, and that names in messages go through `floe_image::Shown`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use floe_testkit::workspace_root;

use crate::task_error::{During, Outcome};

/// The maximum number of lines before the tests.
const LINES_MAX: usize = 500;

/// Names that do not describe the contents of a file.
const EMPTY_NAMES: [&str; 9] = ["util", "utils", "common", "helper", "helpers", "manager", "misc", "shared", "stuff"];

/// The crates without unsafe code, which must say so to the compiler.
const SAFE_CRATES: [&str; 7] = ["image", "erofs", "squashfs", "mkfs", "floe", "mount", "floe-cli"];

/// The formats, whose reader and writer share only `format.rs`.
const FORMATS: [&str; 2] = ["erofs", "squashfs"];

/// The violations in the source files of the workspace.
pub(super) fn violations() -> Outcome<Vec<String>> {
    let root = workspace_root();
    let mut lines = Vec::new();
    for folder in ["crates", "xtask", "fuzz"] {
        for path in rust_files(&root.join(folder))? {
            let text = fs::read_to_string(&path).during(path.display())?;
            let name = path.strip_prefix(&root).unwrap_or(&path);
            lines.extend(violations_of(name, &text).into_iter().map(|line| format!("{}: {line}", name.display())));
            if text.contains(&*root.to_string_lossy()) {
                lines.push(format!("{}: contains the path of this workspace", name.display()));
            }
        }
    }
    for name in SAFE_CRATES {
        let source = root.join("crates").join(name).join("src");
        let entry = ["lib.rs", "main.rs"].map(|file| source.join(file)).into_iter().find(|file| file.is_file());
        let entry = entry.unwrap_or(source);
        let text = fs::read_to_string(&entry).during(entry.display())?;
        let has_code = text.lines().any(|line| !line.is_empty() && !line.starts_with("//"));
        if has_code && !text.contains("#![forbid(unsafe_code)]") {
            let entry = entry.strip_prefix(&root).unwrap_or(&entry);
            lines.push(format!("{}: lacks #![forbid(unsafe_code)]", entry.display()));
        }
    }
    Ok(lines)
}

fn violations_of(name: &Path, text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let code: Vec<&str> = text.lines().take_while(|line| line.trim() != "#[cfg(test)]").collect();
    if code.len() > LINES_MAX {
        lines.push(format!("{} lines without tests; the limit is {LINES_MAX}", code.len()));
    }
    let stem = name.file_stem().unwrap_or_default().to_string_lossy();
    if EMPTY_NAMES.contains(&&*stem) {
        lines.push("the name does not describe the contents".to_owned());
    }
    let is_unsafe = |line: &&str| {
        let code = line.split("//").next().unwrap_or_default();
        ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "#[unsafe("].iter().any(|word| code.contains(word))
    };
    if !stem.ends_with("_sys") && code.iter().any(is_unsafe) && !name.starts_with("xtask/src/tidy") {
        lines.push("unsafe code outside a file named *_sys.rs".to_owned());
    }
    for format in FORMATS {
        for (half, other) in [("read", "write"), ("write", "read")] {
            let folder = format!("crates/{format}/src/{half}");
            let is_of_half = name.starts_with(&folder) || name == Path::new(&format!("{folder}.rs"));
            let names_other = |line: &&str| line.contains(&format!("crate::{other}"));
            if is_of_half && code.iter().any(names_other) {
                lines.push(format!("{half}/ uses {other}/; they share only format.rs"));
            }
        }
    }
    lines
}

pub(super) fn rust_files(folder: &Path) -> Outcome<Vec<PathBuf>> {
    files(folder, &["rs"])
}

/// The files with these extensions in a folder and its subfolders, except in those of builds and hidden ones.
pub(super) fn files(folder: &Path, extensions: &[&str]) -> Outcome<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&folder).during(folder.display())? {
            let path = entry?.path();
            let is_source = |name: &str| name != "target" && !name.starts_with('.');
            if path.is_dir() {
                folders.extend(path.file_name().and_then(|name| name.to_str()).is_some_and(is_source).then_some(path));
            } else if extensions.iter().any(|extension| path.extension().unwrap_or_default() == *extension) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

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
pub(super) fn raw_name_violations() -> Outcome<Vec<String>> {
    let root = workspace_root();
    let mut lines = Vec::new();
    let mut unused: Vec<&str> = ALLOWED.iter().map(|(name, _)| *name).collect();
    for path in rust_files(&root.join("crates"))? {
        let name = path.strip_prefix(&root).unwrap_or(&path);
        if !name.components().any(|part| part.as_os_str() == "src") || OUR_OWN.iter().any(|own| name.starts_with(own)) {
            continue;
        }
        let found = raw_names(name, &fs::read_to_string(&path).during(path.display())?);
        if ALLOWED.iter().any(|(allowed, _)| name == Path::new(allowed)) {
            unused.retain(|allowed| found.is_empty() || name != Path::new(allowed));
        } else {
            lines.extend(found.into_iter().map(|line| format!("{}: {line}", name.display())));
        }
    }
    lines.extend(unused.into_iter().map(|name| format!("{name}: is allowed raw names and has none")));
    Ok(lines)
}

fn raw_names(name: &Path, text: &str) -> Vec<String> {
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
    fn each_rule_is_checked() {
        let long = "//\n".repeat(LINES_MAX + 1);
        let long_tests = format!("fn a() {{}}\n#[cfg(test)]\n{long}");
        for (name, text, expected) in [
            ("crates/image/src/range.rs", "pub struct Range;", 0),
            ("crates/image/src/range.rs", &long, 1),
            ("crates/image/src/range.rs", &long_tests, 0),
            ("crates/image/src/utils.rs", "", 1),
            ("crates/engine/src/pool.rs", "unsafe { call() }", 1),
            ("crates/engine/src/pool.rs", "// unsafe { call() }", 0),
            ("crates/engine/src/pool_sys.rs", "unsafe { call() }", 0),
            ("crates/erofs/src/read/map.rs", "use crate::write::Thing;", 1),
            ("crates/erofs/src/read.rs", "use crate::format::Thing;", 0),
            ("crates/erofs/src/write/tree.rs", "use crate::read::Thing;", 1),
        ] {
            let found = violations_of(Path::new(name), text);
            assert_eq!(found.len(), expected, "{name}: {found:?}");
        }
    }

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
            assert_eq!(raw_names(Path::new(name), text).len(), expected, "{text}");
        }
    }
}
