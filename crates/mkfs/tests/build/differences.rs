//! Compares two directory trees.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

/// The compared properties of an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    mode: u32,
    owner: (u32, u32),
    size: u64,
    links: u64,
    modified: (i64, i64),
    device: u64,
    target: Option<PathBuf>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the same inode.
    same_as: PathBuf,
    content: Option<Vec<u8>>,
}

/// Properties that may differ.
#[derive(Clone, Copy, Default)]
pub(crate) struct Leave {
    pub(crate) times: bool,
    pub(crate) owners: bool,
    pub(crate) xattrs: bool,
    pub(crate) link_counts: bool,
}

/// All inodes below a directory, including itself, by path.
pub(crate) fn walk(root: &Path, leave: Leave) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut open = vec![PathBuf::new()];
    while let Some(inner) = open.pop() {
        let path = if inner.as_os_str().is_empty() { root.to_path_buf() } else { root.join(&inner) };
        let status = fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if status.is_dir() {
            for entry in fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())) {
                open.push(inner.join(entry.expect("the directory can be listed").file_name()));
            }
        }
        let is_device = status.file_type().is_char_device() || status.file_type().is_block_device();
        let content =
            status.is_file().then(|| fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
        let found = Seen {
            mode: status.mode(),
            owner: if leave.owners { (0, 0) } else { (status.uid(), status.gid()) },
            size: if status.is_dir() { 0 } else { status.size() },
            links: if status.is_dir() || leave.link_counts { 0 } else { status.nlink() },
            modified: if leave.times { (0, 0) } else { (status.mtime(), status.mtime_nsec()) },
            device: if is_device { status.rdev() } else { 0 },
            target: status.is_symlink().then(|| fs::read_link(&path).expect("links can be read")),
            xattrs: if leave.xattrs { BTreeMap::new() } else { xattrs(&path) },
            same_as: PathBuf::from(status.ino().to_string()),
            content,
        };
        seen.insert(inner, found);
    }
    name_links(&mut seen);
    seen
}

/// Fails with the first few paths at which two trees differ.
pub(crate) fn check_equal(expected: &BTreeMap<PathBuf, Seen>, found: &BTreeMap<PathBuf, Seen>, what: &str) {
    let paths: Vec<&PathBuf> =
        expected.keys().chain(found.keys().filter(|path| !expected.contains_key(*path))).collect();
    let differences: Vec<String> = paths
        .into_iter()
        .filter(|path| expected.get(*path) != found.get(*path))
        .map(|path| {
            format!(
                "{}:\n  expected {}\n  found    {}",
                path.display(),
                brief(expected.get(path)),
                brief(found.get(path))
            )
        })
        .collect();
    assert!(
        differences.is_empty(),
        "{what}: {} of {} paths differ\n{}",
        differences.len(),
        expected.len(),
        differences[..differences.len().min(5)].join("\n")
    );
}

fn brief(seen: Option<&Seen>) -> String {
    let Some(seen) = seen else { return "nothing".into() };
    let hash = seen.content.as_ref().map(|content| xxhash_rust::xxh64::xxh64(content, 0));
    format!("{:?} hash {hash:?}", Seen { content: None, ..seen.clone() })
}

/// Replaces each inode number by its first path.
fn name_links(seen: &mut BTreeMap<PathBuf, Seen>) {
    let mut first: HashMap<PathBuf, PathBuf> = HashMap::new();
    for (path, found) in seen.iter_mut() {
        found.same_as = first.entry(found.same_as.clone()).or_insert_with(|| path.clone()).clone();
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65536];
    let Ok(len) = rustix::fs::llistxattr(path, &mut names) else { return BTreeMap::new() };
    names[..len]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0; 65536];
            let len = rustix::fs::lgetxattr(path, name, &mut value).expect("a listed attribute can be read");
            value.truncate(len);
            (name.to_vec(), value)
        })
        .collect()
}
