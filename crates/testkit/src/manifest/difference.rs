//! Differences between two trees.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use super::{Entry, Manifest, escape, hex_from_bytes};

/// The maximum number of reported differences; the rest are counted.
const DIFFERENCES_TOLD_MAX: usize = 30;

/// How many bytes of an xattr value a message shows.
const VALUE_BYTES_TOLD_MAX: usize = 40;

/// What to compare. `Comparison::default()` compares everything that both sides know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Comparison {
    /// Ignore sizes and link counts of directories, which depend on the file system.
    pub directory_shape_is_free: bool,
    /// Ignore owners, device nodes, and xattrs outside `user.`, which unprivileged users cannot create.
    pub privileges_are_free: bool,
    /// Ignore xattrs.
    pub xattrs_are_free: bool,
    /// Allow hard links to be separate files, and so ignore link counts.
    pub links_are_free: bool,
}

/// The differences of `actual` from `expected` by path, one string each. Fields that one side does not know (`st_ino`,
/// `st_blocks`, segments) are not compared.
pub fn differences(expected: &Manifest, actual: &Manifest, comparison: &Comparison) -> Vec<String> {
    let mut told = Vec::new();
    let paths: BTreeSet<&[u8]> = expected.entries().chain(actual.entries()).map(|(path, _)| path).collect();
    for path in paths {
        let name = escape(path);
        match (expected.entry(path), actual.entry(path)) {
            (Some(expected), Some(actual)) => {
                let complaints = entry_differences(expected, actual, comparison);
                told.extend(complaints.into_iter().map(|complaint| format!("{name}: {complaint}")));
            }
            (Some(entry), None) if comparison.privileges_are_free && matches!(entry.file_type, 'c' | 'b') => {}
            (Some(_), None) => told.push(format!("{name}: missing")),
            (None, _) => told.push(format!("{name}: not expected")),
        }
    }
    if told.len() > DIFFERENCES_TOLD_MAX {
        let untold = told.len() - DIFFERENCES_TOLD_MAX;
        told.truncate(DIFFERENCES_TOLD_MAX);
        told.push(format!("and {untold} more"));
    }
    told
}

fn entry_differences(expected: &Entry, actual: &Entry, comparison: &Comparison) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut compare = |field: &str, expected: &dyn Debug, actual: &dyn Debug| {
        let (expected, actual) = (format!("{expected:?}"), format!("{actual:?}"));
        if expected != actual {
            complaints.push(format!("{field} is {actual}, not {expected}"));
        }
    };
    let shape_counts = !(expected.file_type == 'd' && comparison.directory_shape_is_free);
    compare("type", &expected.file_type, &actual.file_type);
    compare("mode", &Octal(expected.mode), &Octal(actual.mode));
    if !comparison.privileges_are_free {
        compare("uid", &expected.uid, &actual.uid);
        compare("gid", &expected.gid, &actual.gid);
    }
    if shape_counts {
        compare("size", &expected.size, &actual.size);
    }
    if shape_counts && !comparison.links_are_free {
        compare("nlink", &expected.link_count, &actual.link_count);
    }
    compare("mtime", &Numbers(Some(expected.modified)), &Numbers(Some(actual.modified)));
    compare("rdev", &Numbers(expected.device), &Numbers(actual.device));
    compare("target", &Text(expected.target.as_deref()), &Text(actual.target.as_deref()));
    if !comparison.links_are_free {
        compare("link_of", &Text(expected.link_of.as_deref()), &Text(actual.link_of.as_deref()));
    }
    if let (Some(expected), Some(actual)) = (expected.inode_number, actual.inode_number) {
        compare("st_ino", &expected, &actual);
    }
    if let (Some(expected), Some(actual)) = (expected.blocks_512, actual.blocks_512) {
        compare("st_blocks", &expected, &actual);
    }
    if let (Some(expected), Some(actual)) = (&expected.segments, &actual.segments) {
        compare("data and holes", expected, actual);
    }
    if !comparison.xattrs_are_free {
        let counts = |name: &[u8]| !comparison.privileges_are_free || name.starts_with(b"user.");
        complaints.extend(xattr_differences(&expected.xattrs, &actual.xattrs, counts));
    }
    if expected.sha256 != actual.sha256 {
        let name = |hash: &Option<String>| hash.clone().unwrap_or("none".to_owned());
        complaints.push(format!("sha256 is {}, not {}", name(&actual.sha256), name(&expected.sha256)));
    }
    complaints
}

fn xattr_differences(
    expected: &BTreeMap<Vec<u8>, Vec<u8>>,
    actual: &BTreeMap<Vec<u8>, Vec<u8>>,
    counts: impl Fn(&[u8]) -> bool,
) -> Vec<String> {
    let names: BTreeSet<&Vec<u8>> = expected.keys().chain(actual.keys()).filter(|name| counts(name)).collect();
    let tell = |value: &Vec<u8>| {
        let cut = value.get(..VALUE_BYTES_TOLD_MAX);
        cut.map_or_else(|| hex_from_bytes(value), |cut| format!("{}… ({} bytes)", hex_from_bytes(cut), value.len()))
    };
    let complain = |name: &Vec<u8>| match (expected.get(name), actual.get(name)) {
        (Some(expected), Some(actual)) if expected == actual => None,
        (Some(expected), Some(actual)) => {
            Some(format!("xattr {} is {}, not {}", escape(name), tell(actual), tell(expected)))
        }
        (Some(_), None) => Some(format!("xattr {} is missing", escape(name))),
        (None, _) => Some(format!("xattr {} is not expected", escape(name))),
    };
    names.into_iter().filter_map(complain).collect()
}

struct Octal(u32);

impl Debug for Octal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:04o}", self.0)
    }
}

struct Numbers<A, B>(Option<(A, B)>);

impl<A: Debug, B: Debug> Debug for Numbers<A, B> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some((first, second)) => write!(formatter, "[{first:?}, {second:?}]"),
            None => formatter.write_str("none"),
        }
    }
}

struct Text<'bytes>(Option<&'bytes [u8]>);

impl Debug for Text<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0.map_or("none".to_owned(), escape))
    }
}
