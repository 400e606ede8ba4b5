//! Checks that temporary files come from `tempfile` or are created exclusively.
//!
//! Another user can put a symbolic link under any name in a shared directory before this program writes to it, and have the
//! program, possibly root's, write to any file. So no source names a file there. A path in a shared directory is only for the
//! few places that create nothing, or only what does not exist.

use std::{fs, path::Path};

use floe_testkit::workspace_root;

use super::source_files::files;
use crate::task_error::{During, Outcome};

/// The folders with programs.
const FOLDERS: [&str; 6] = [".ci", "crates", "fuzz", "packaging", "python", "xtask"];

/// The extensions of programs; those of shell scripts have none.
const KINDS: [&str; 6] = ["", "c", "go", "py", "rs", "sh"];

/// How sources name a directory in which all users can create files.
const SHARED: [&str; 8] =
    ["temp_dir()", "gettempdir()", "tempfile.mktemp(", "tmpnam(", "/tmp", "/var/tmp", "/dev/shm", "{TMPDIR"];

/// How sources create temporary files in a directory that they name.
const SAFE: [&str; 3] = ["tempfile_in(", "tempdir_in(", "new_in("];

/// Files that name one, and why they may.
const ALLOWED: [(&str, &str); 21] = [
    ("crates/floe-cli/src/command/demo.rs", "the directory of `tempfile`, in an error"),
    ("crates/floe-cli/tests/lab/main.rs", "lists the directories"),
    ("crates/floe-cli/tests/mounts/exporter.rs", "names that an attacker creates"),
    ("crates/floe-cli/tests/mounts/mounting_as_user.rs", "the path of a socket"),
    ("crates/floe-cli/tests/mounts/control_sockets.rs", "names that an attacker creates"),
    ("crates/floe-cli/tests/mounts/status.rs", "a working directory"),
    ("crates/floe-cli/tests/reading/book.rs", "a command of the documentation, which is not run"),
    ("crates/floe-cli/tests/reading/extraction.rs", "a place for `tempfile`"),
    ("crates/floe-cli/tests/reading/extraction_limits.rs", "a place for `tempfile`"),
    ("crates/floe-cli/tests/remotes/remote.rs", "a mountpoint that is never reached"),
    ("crates/floe-cli/tests/support/mod.rs", "a place for `tempfile`"),
    ("crates/mount/src/control/socket_path.rs", "directories of sockets, whose owner is checked"),
    ("crates/floe/tests/library/corpus.rs", "a place for `tempfile`"),
    ("crates/keeper/src/table.rs", "lines of a mount table"),
    ("crates/lab/src/load/load.rs", "a random name that does not exist"),
    ("crates/lab/src/machine/undo.rs", "directories: one with a checked owner, one that does not exist"),
    ("crates/lab/tests/machine/measure.rs", "lists the directory"),
    ("crates/mkfs/src/files/output_file.rs", "unnamed files, or random names that do not exist"),
    ("crates/source/tests/sources/file_source.rs", "a message"),
    ("packaging/try-release", "the root that it has made"),
    ("xtask/src/mutate/worker.rs", "a place for `tempfile`"),
];

/// The violations in the programs of the workspace.
pub(super) fn violations() -> Outcome<Vec<String>> {
    let root = workspace_root();
    let mut lines = Vec::new();
    let mut unused: Vec<&str> = ALLOWED.iter().map(|(name, _)| *name).collect();
    for folder in FOLDERS {
        for path in files(&root.join(folder), &KINDS)? {
            let name = path.strip_prefix(&root).unwrap_or(&path);
            // Fixtures without an extension are bytes.
            let Ok(text) = String::from_utf8(fs::read(&path).during(path.display())?) else { continue };
            let found = violations_of(name, &text);
            if ALLOWED.iter().any(|(allowed, _)| name == Path::new(allowed)) {
                unused.retain(|allowed| found.is_empty() || name != Path::new(allowed));
            } else {
                lines.extend(found.into_iter().map(|line| format!("{}: {line}", name.display())));
            }
        }
    }
    lines.extend(unused.into_iter().map(|name| format!("{name}: is allowed shared directories and names none")));
    Ok(lines)
}

fn violations_of(name: &Path, text: &str) -> Vec<String> {
    if name.starts_with("xtask/src/tidy") {
        return Vec::new();
    }
    let marks = if name.extension().is_some_and(|extension| extension == "rs") { ["//", "///"] } else { ["#", "//"] };
    let is_comment = |line: &&str| marks.iter().any(|mark| line.trim_start().starts_with(mark));
    let is_shared =
        |line: &&str| SHARED.iter().any(|place| names(line, place)) && !SAFE.iter().any(|safe| line.contains(safe));
    let lines = text.lines().filter(|line| !is_comment(line)).filter(is_shared);
    let advice = "use tempfile, mkdtemp or O_EXCL instead of a name in a shared directory";
    lines.map(|line| format!("{advice}: {}", line.trim())).collect()
}

/// Whether a line names the place. A directory is a whole word, so that `/run/tmp` and `/tmpfs` are none.
fn names(line: &str, place: &str) -> bool {
    let is_start =
        |before: &str| before.is_empty() || before.ends_with(['"', '\'', ' ', '=', '(', '`', '>', '<', ':', '-']);
    let is_end = |after: &str| after.is_empty() || after.starts_with(['"', '\'', ' ', ')', '`', '/', '}', ':']);
    line.match_indices(place).any(|(at, _)| {
        let (before, after) = (line.get(..at).unwrap_or_default(), line.get(at + place.len()..).unwrap_or_default());
        !place.starts_with('/') || is_start(before) && is_end(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_shared_directories_are_found() {
        for (name, line, expected) in [
            ("a.rs", "let path = env::temp_dir().join(name);", 1),
            ("a.rs", "fs::write(\"/tmp/floe\", text)", 1),
            ("a.rs", "format!(\"/var/tmp/floe-{number}\")", 1),
            ("a.rs", "Path::new(\"/var/tmp\").join(name)", 1),
            ("a.rs", "(\"none\", \"tmpfs\", \"/tmpfs\")", 0),
            ("a.rs", "// such as /tmp/a", 0),
            ("a.rs", "let mounts = \"rw,relatime /mnt/tmp/a\";", 0),
            ("a.rs", "tempfile::tempdir()", 0),
            ("a.rs", "tempfile_in(\"/var/tmp\")", 0),
            ("a.py", "open(tempfile.mktemp())", 1),
            ("a.py", "with tempfile.TemporaryDirectory() as folder:", 0),
            ("try", "exec >/tmp/log", 1),
            ("try", "work=$(mktemp -d)", 0),
            ("try", "log=${TMPDIR:-/tmp}/log", 1),
            ("try", "# in /tmp/work", 0),
            ("a.c", "fopen(\"/dev/shm/a\", \"w\")", 1),
        ] {
            assert_eq!(violations_of(Path::new(name), line).len(), expected, "{name}: {line}");
        }
    }
}
