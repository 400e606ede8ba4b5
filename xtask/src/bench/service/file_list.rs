//! A list of files that processes pass on, with names of any bytes.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use crate::{
    bench::listing::ListedFile,
    task_error::{Outcome, TaskError},
};

/// Writes a list: for each file its size, a space, its path and a NUL.
pub(super) fn encode(files: &[ListedFile]) -> Vec<u8> {
    let mut text = Vec::new();
    for file in files {
        text.extend_from_slice(format!("{} ", file.size).as_bytes());
        text.extend_from_slice(file.path.as_os_str().as_bytes());
        text.push(0);
    }
    text
}

/// Reads a list.
///
/// # Errors
/// The text is none.
pub(super) fn decode(text: &[u8]) -> Outcome<Vec<ListedFile>> {
    let entry = |entry: &[u8]| {
        let space = entry.iter().position(|byte| *byte == b' ')?;
        let size = std::str::from_utf8(&entry[..space]).ok()?.parse().ok()?;
        Some(ListedFile { path: OsStr::from_bytes(&entry[space + 1..]).into(), size })
    };
    let mut entries: Vec<&[u8]> = text.split(|byte| *byte == 0).collect();
    let end = entries.pop();
    let files: Option<Vec<ListedFile>> = entries.into_iter().map(entry).collect();
    files.filter(|_| end == Some(&[])).ok_or(TaskError::new("the list of files is damaged"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_were_written() {
        let file = |name: &[u8], size| ListedFile { path: OsStr::from_bytes(name).into(), size };
        let files = vec![file(b"a b/c", 0), file(b"\xff\n", u64::MAX)];
        assert_eq!(decode(&encode(&files)).expect("a list"), files);
        assert_eq!(decode(b"").expect("an empty list"), Vec::new());
        for damaged in [&b"1 a"[..], b"a\0", b"1\0", b"-1 a\0"] {
            assert!(decode(damaged).is_err(), "{damaged:?}");
        }
    }
}
