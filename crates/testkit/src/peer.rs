//! Programs for tests: reference programs for comparisons with their versions, and copies.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The program with this name in `FLOE_PEERS`, in `FLOE_SERVERS` or on `PATH`.
pub fn peer(program: &str) -> Option<PathBuf> {
    let folders = ["FLOE_PEERS", "FLOE_SERVERS", "PATH"].into_iter().filter_map(env::var_os);
    let folders: Vec<PathBuf> = folders.flat_map(|list| env::split_paths(&list).collect::<Vec<_>>()).collect();
    folders.into_iter().map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// The versions of a program that a test supports.
///
/// The output and options of these programs differ between releases, and machines may have any release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Versions {
    /// This release and later ones: the test needs an option or a fix.
    Since(&'static str),
    /// The releases that begin with these numbers, as 4.7.5 begins with 4.7: the test compares output.
    Series(&'static str),
}

impl Versions {
    /// Why the installed program does not qualify; `None` if it does.
    pub(crate) fn missing(self, program: &str) -> Option<String> {
        let Some(path) = peer(program) else { return Some(absent(program)) };
        let wanted = match self {
            Self::Since(version) => format!("{version} or later"),
            Self::Series(version) => format!("{version}.x"),
        };
        match version_of(program, &path) {
            Some(version) if self.contain(&version) => None,
            Some(version) => Some(format!("{} is version {version}, and the test needs {wanted}", path.display())),
            None => Some(format!("{} reports no version, and the test needs {wanted}", path.display())),
        }
    }

    fn contain(self, version: &str) -> bool {
        match self {
            Self::Since(first) => numbers(version) >= numbers(first),
            Self::Series(series) => numbers(version).starts_with(&numbers(series)),
        }
    }
}

/// The reason for skipping if the program is missing.
pub(crate) fn absent(program: &str) -> String {
    format!("{program} is neither in FLOE_PEERS nor in FLOE_SERVERS nor on PATH")
}

/// The version that a program reports. All these programs print it for this option; some also report an error.
fn version_of(program: &str, path: &Path) -> Option<String> {
    let option = if program.ends_with("squashfs") { "-version" } else { "-V" };
    let output = Command::new(path).arg(option).stdin(Stdio::null()).output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    version_in(program, &String::from_utf8_lossy(&said))
}

/// The first version number in the lines that begin with the program's name. `squashfuse_ll` calls itself `squashfuse`.
fn version_in(program: &str, said: &str) -> Option<String> {
    let program = program.trim_end_matches("_ll");
    let mut words = said.lines().filter_map(|line| line.trim().strip_prefix(program)).flat_map(str::split_whitespace);
    let version = words.find(|word| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit()));
    version.map(str::to_owned)
}

/// The numeric components of a version; a suffix such as `-rc1` or `-g28a9f5e` is ignored.
fn numbers(version: &str) -> Vec<u32> {
    let end = version.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(version.len());
    version[..end].split('.').map_while(|number| number.parse().ok()).collect()
}

/// Copies a program, in a process of its own, so that the copy can be run.
///
/// A process that writes the copy itself cannot safely run it: a child that another thread forks meanwhile inherits the
/// descriptor, and until that child calls `execve` the copy is busy (`ETXTBSY`).
///
/// # Panics
///
/// The program cannot be copied.
pub fn copy_program(program: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (program, to) = (program.as_ref(), to.as_ref());
    let status = Command::new("cp").arg("-p").args([program, to]).status().expect("cp runs");
    assert!(status.success(), "{} cannot be copied to {}", program.display(), to.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_program_output() {
        for (program, said, expected) in [
            ("mkfs.erofs", "mkfs.erofs (erofs-utils) 1.9.4\navailable compressors: lz4", Some("1.9.4")),
            ("mkfs.erofs", "mkfs.erofs 1.5\nmkfs.erofs: invalid option -- 'V'\nusage:", Some("1.5")),
            ("mkfs.erofs", "mkfs.erofs 1.8.10-g28a9f5e8\n", Some("1.8.10-g28a9f5e8")),
            ("unsquashfs", "unsquashfs version 4.5.1 (2022/03/17)\ncopyright (C) 2022", Some("4.5.1")),
            ("squashfuse_ll", "squashfuse 0.5.2 (c) 2012 Dave Vasilevsky\n", Some("0.5.2")),
            ("unsquashfs", "no such option\n", None),
            ("unsquashfs", "", None),
        ] {
            assert_eq!(version_in(program, said).as_deref(), expected, "{said}");
        }
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (versions, version, expected) in [
            (Versions::Since("1.9"), "1.9", true),
            (Versions::Since("1.9"), "1.10.1", true),
            (Versions::Since("1.9"), "1.8.10-g28a9f5e8", false),
            (Versions::Since("1.9"), "2.0-rc1", true),
            (Versions::Series("4.7"), "4.7.5", true),
            (Versions::Series("4.7"), "4.7", true),
            (Versions::Series("4.7"), "4.5.1", false),
            (Versions::Series("4.7"), "4.70", false),
        ] {
            assert_eq!(versions.contain(version), expected, "{versions:?} {version}");
        }
    }
}
