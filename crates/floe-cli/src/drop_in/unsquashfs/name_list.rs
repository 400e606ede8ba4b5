//! Files that list names.

use std::{
    ffi::OsString,
    fs::File,
    io::{BufRead, BufReader, Read},
    os::unix::ffi::OsStringExt,
    path::Path,
};

use floe_image::ShownName;

/// The maximum length of a line, in bytes.
const LINE_BYTES_MAX: usize = 16_383;

/// Reads a file with one name a line. Blanks at the start of a line are skipped, and so are empty lines and comments, which
/// begin with `#`. A name that begins with a blank, with `#` or with `\` has a `\` in front.
///
/// # Errors
/// A message: the file cannot be read, or a line is too long.
pub(in crate::drop_in) fn read(path: &Path) -> Result<Vec<OsString>, String> {
    let failed = |error| format!("{}: {error}", path.shown());
    let mut reader = BufReader::new(File::open(path).map_err(failed)?);
    let (mut names, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        let taken = reader.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line);
        if taken.map_err(failed)? == 0 {
            return Ok(names);
        }
        if line.pop_if(|byte| *byte == b'\n').is_none() && line.len() > LINE_BYTES_MAX {
            return Err(format!("{}: a line is longer than {LINE_BYTES_MAX} bytes", path.shown()));
        }
        let start = line.iter().position(|byte| !matches!(byte, b' ' | b'\t'..=b'\r')).unwrap_or(line.len());
        let name = match &line[start..] {
            [] | [b'#', ..] | [b'\\'] => continue,
            [b'\\', name @ ..] | name => name,
        };
        names.push(OsString::from_vec(name.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lines_are_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("list");
        let long = "x".repeat(LINE_BYTES_MAX);
        for (content, expected) in [
            ("", Some(&[][..])),
            (
                "one\n  two\n\n# three\n\t#four\n\\#five\n\\ six\n\\\\seven\n\\\n   \nlast",
                Some(&["one", "two", "#five", " six", "\\seven", "last"]),
            ),
            ("... a b\n", Some(&["... a b"])),
            (&format!("{long}\n"), Some(&[long.as_str()])),
            (&long, Some(&[long.as_str()])),
            (&format!("{long}x\n"), None),
        ] {
            fs::write(&path, content).expect("written");
            let expected = expected.map(|names| names.iter().map(OsString::from).collect::<Vec<_>>());
            assert_eq!(read(&path).ok(), expected, "{content}");
        }
        assert!(read(&folder.path().join("missing")).is_err());
    }
}
