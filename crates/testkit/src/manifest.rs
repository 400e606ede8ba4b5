//! The contents of a tree, one entry per path, and comparisons of trees.

mod difference;
mod entry;

use std::collections::BTreeMap;

pub use difference::{Comparison, differences};
pub use entry::{Entry, Segment, bytes_from_hex, escape, hex_from_bytes, sha256_hex, unescape};
use serde_json::{Map, Value};

use crate::corpus::Overrides;

/// The contents of a tree: maps raw paths, starting with `/`, to entries.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Manifest {
    entries: BTreeMap<Vec<u8>, Entry>,
}

impl Manifest {
    /// Parses manifest lines of the corpus, and applies the fields and paths of `overrides`.
    ///
    /// # Errors
    /// The first malformed line and its fault.
    pub fn parse(text: &str, overrides: &Overrides) -> Result<Self, String> {
        let mut lines: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let fields: Map<String, Value> = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
            let path = fields.get("path").and_then(Value::as_str).ok_or(format!("no path: {line}"))?;
            lines.insert(path.to_owned(), fields);
        }
        for (path, change) in overrides {
            let Some(change) = change else {
                lines.remove(path).ok_or(format!("override of {path}, which the manifest does not have"))?;
                continue;
            };
            let fields = lines.entry(path.clone()).or_default();
            for (field, value) in change {
                if value.is_null() {
                    fields.remove(field)
                } else {
                    fields.insert(field.clone(), value.clone())
                };
            }
        }
        let mut manifest = Self::default();
        for (path, fields) in lines {
            let entry = serde_json::from_value(fields.into()).map_err(|error| format!("{path}: {error}"))?;
            manifest.insert(unescape(&path).ok_or(format!("escapes in {path}"))?, entry);
        }
        Ok(manifest)
    }

    /// Adds an entry.
    pub fn insert(&mut self, path: Vec<u8>, entry: Entry) {
        self.entries.insert(path, entry);
    }

    /// The entry at a path.
    pub fn entry(&self, path: &[u8]) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// All entries, by raw path.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &Entry)> {
        self.entries.iter().map(|(path, entry)| (path.as_slice(), entry))
    }

    /// All entries, mutable.
    pub fn entries_mut(&mut self) -> impl Iterator<Item = (&[u8], &mut Entry)> {
        self.entries.iter_mut().map(|(path, entry)| (path.as_slice(), entry))
    }

    /// The number of paths.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no paths.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The manifest in the line format of the corpus.
    pub fn to_lines(&self) -> String {
        let lines = self.entries.iter().map(|(path, entry)| entry.to_line(path));
        lines.map(|line| line + "\n").collect()
    }

    /// Sets `link_of` of each entry whose inode has an earlier path to the first such path.
    pub(crate) fn link(&mut self, inode_of: &BTreeMap<Vec<u8>, u64>) {
        let mut first_path = BTreeMap::new();
        for (path, entry) in &mut self.entries {
            if entry.file_type == 'd' {
                continue;
            }
            if let Some(inode) = inode_of.get(path) {
                let first: &Vec<u8> = first_path.entry(*inode).or_insert_with(|| path.clone());
                entry.link_of = (first != path).then(|| first.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check_rows, corpus::Corpus};

    const LINES: &str = concat!(
        r#"{"path":"/","type":"d","mode":"0755","uid":0,"gid":0,"size":60,"nlink":4,"mtime":[1700000000,0]}"#,
        "\n",
        r#"{"path":"/a%20b","type":"f","mode":"4644","uid":1,"gid":4294967295,"size":4,"nlink":2,"mtime":[-1,999999999],"#,
        r#""xattrs":{"user.%FF":"00ff"},"sha256":"79f0"}"#,
        "\n",
        r#"{"path":"/a+b","type":"f","mode":"4644","uid":1,"gid":4294967295,"size":4,"nlink":2,"mtime":[-1,999999999],"#,
        r#""sha256":"79f0","link_of":"/a%20b"}"#,
        "\n",
        r#"{"path":"/c","type":"c","mode":"0000","uid":0,"gid":0,"size":0,"nlink":1,"mtime":[0,0],"rdev":[1,3]}"#,
        "\n",
        r#"{"path":"/s","type":"l","mode":"0777","uid":0,"gid":0,"size":3,"nlink":1,"mtime":[0,0],"target":"a%20b"}"#,
        "\n",
    );

    #[test]
    fn lines_survive_a_round_trip() {
        let manifest = Manifest::parse(LINES, &Overrides::new()).expect("well formed");
        assert_eq!(manifest.to_lines(), LINES);
        assert_eq!(manifest.entry(b"/a b").and_then(|entry| entry.xattrs.get(&b"user.\xff"[..])), Some(&vec![0, 0xff]));
    }

    #[test]
    fn overrides_change_and_remove_entries() {
        let overrides = serde_json::from_str(
            r#"{"/c":null,"/s":{"size":9,"target":"x"},"/a%20b":{"xattrs":null},"/a+b":{"link_of":null}}"#,
        );
        let manifest = Manifest::parse(LINES, &overrides.expect("json")).expect("well formed");
        assert!(manifest.entry(b"/c").is_none());
        let link = manifest.entry(b"/s").expect("kept");
        assert_eq!((link.size, link.target.as_deref()), (9, Some(&b"x"[..])));
        assert!(manifest.entry(b"/a b").expect("kept").xattrs.is_empty());
        assert!(manifest.entry(b"/a+b").expect("kept").link_of.is_none());
    }

    #[test]
    fn differences_name_path_and_field() {
        let one = Manifest::parse(LINES, &Overrides::new()).expect("well formed");
        assert!(differences(&one, &one, &Comparison::default()).is_empty());
        let changes = r#"{"/c":{"rdev":[1,4]},"/s":null,"/a%20b":{"xattrs":{"user.%FF":"00fe"},"sha256":"80"}}"#;
        let other = Manifest::parse(LINES, &serde_json::from_str(changes).expect("json")).expect("well formed");
        let told = differences(&one, &other, &Comparison::default());
        assert_eq!(
            told,
            [
                "/a%20b: xattr user.%FF is 00fe, not 00ff",
                "/a%20b: sha256 is 80, not 79f0",
                "/c: rdev is [1, 4], not [1, 3]",
                "/s: missing",
            ]
        );
        assert_eq!(differences(&other, &one, &Comparison::default())[3], "/s: not expected");
    }

    #[test]
    fn every_corpus_manifest_survives_a_round_trip() {
        let corpus = Corpus::locate_or_fixtures();
        check_rows(
            &corpus.images(),
            |image| image.name.clone(),
            |image| {
                let manifest = corpus.manifest(image);
                let again = Manifest::parse(&manifest.to_lines(), &Overrides::new()).expect("own lines");
                differences(&manifest, &again, &Comparison::default())
            },
        );
    }
}
