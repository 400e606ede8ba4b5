//! Listing a directory on disk into a tree.

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    ffi::OsString,
    fs, io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

use floe_image::{DeviceNumber, FileType, Timestamp};

use crate::{
    content::{Content, Identity},
    error::{Error, Result},
    excludes::Excludes,
    options::{Options, Whiteouts},
    progress::{Phase, Progress, report},
    tree::{Body, Metadata, Node, NodeId, Tree, Xattr},
    whiteout::Whiteout,
    workers,
};

/// After how many inodes progress is told.
const REPORT_INTERVAL: u64 = 1024;
/// The longest target of a symbolic link, in bytes.
const LINK_TARGET_LEN_MAX: usize = 4095;

/// What a directory to be listed takes in memory until it is in the tree, and how much of that may be under way, in
/// bytes: by a guess, as its size is not known before.
const DIRECTORY_COST: usize = 64 << 10;
const COST_MAX: usize = 16 << 20;

/// Lists directories on disk into a tree: several threads list, one puts into the tree what they found, in an order that
/// does not depend on them.
pub(crate) struct Scanner<'a> {
    tree: &'a mut Tree,
    options: &'a Options,
    excludes: &'a Excludes,
    links: HashMap<(u64, u64), NodeId>,
    scanned: u64,
}

/// A directory to be listed.
struct OpenDirectory {
    node: NodeId,
    path: PathBuf,
    /// Its path within the image.
    inner_path: PathBuf,
}

/// A directory that was listed.
struct Listing {
    node: NodeId,
    /// The names of whiteouts.
    whiteouts: Vec<OsString>,
    entries: Vec<Entry>,
}

/// What a directory names.
struct Entry {
    name: OsString,
    path: PathBuf,
    inner_path: PathBuf,
    node: Node,
    /// The device and inode number of what has several names.
    link: Option<(u64, u64)>,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(tree: &'a mut Tree, options: &'a Options, excludes: &'a Excludes) -> Self {
        Self { tree, options, excludes, links: HashMap::new(), scanned: 0 }
    }

    /// Puts the content of `directory` into the root. What is in the tree already stays, unless it has the same name.
    pub(crate) fn scan(&mut self, directory: &Path, progress: &mut dyn Progress) -> Result<()> {
        let status = fs::metadata(directory).map_err(Error::source(directory, "look at"))?;
        if !status.is_dir() {
            return Err(Error::unfit(directory, "the source is not a directory"));
        }
        let (options, excludes) = (self.options, self.excludes);
        let xattrs = xattrs(directory, options)?;
        let root = self.tree.node_mut(Tree::ROOT);
        root.metadata = metadata_of(&status);
        root.xattrs = xattrs;
        let first = OpenDirectory { node: Tree::ROOT, path: directory.to_path_buf(), inner_path: PathBuf::new() };
        // First in, first out: then the order depends on what is there alone, not on when it was found.
        let open = RefCell::new(VecDeque::from([first]));
        let next = || open.borrow_mut().pop_front().map(|directory| (directory, DIRECTORY_COST));
        let worker = || Ok(|directory: OpenDirectory| list(directory, options, excludes));
        workers::run(options.jobs, COST_MAX, worker, next, |listing: Listing| {
            for name in &listing.whiteouts {
                if let Some(whiteout) = Whiteout::of(name.as_bytes(), options.whiteouts) {
                    whiteout.put(self.tree, listing.node, options.whiteouts);
                }
            }
            for entry in listing.entries {
                open.borrow_mut().extend(self.add(listing.node, entry));
                self.scanned += 1;
                if self.scanned.is_multiple_of(REPORT_INTERVAL) {
                    report(progress, Phase::Scan, self.scanned, 0)?;
                }
            }
            Ok(())
        })
    }

    /// Puts what a directory names into the tree; gives it back if it is a directory itself.
    fn add(&mut self, parent: NodeId, entry: Entry) -> Option<OpenDirectory> {
        let Entry { name, path, inner_path, node, link } = entry;
        let name = name.as_bytes();
        if let Some(&node) = link.and_then(|link| self.links.get(&link)) {
            self.tree.link(parent, name, node);
            return None;
        }
        let is_directory = node.file_type() == FileType::Directory;
        // A directory of an earlier source keeps its entries.
        let before = self.tree.lookup(parent, name).filter(|_| is_directory);
        if let Some(before) = before.filter(|id| self.tree.node(*id).file_type() == FileType::Directory) {
            let known = self.tree.node_mut(before);
            (known.metadata, known.xattrs) = (node.metadata, node.xattrs);
            return Some(OpenDirectory { node: before, path, inner_path });
        }
        let node = self.tree.add(node);
        self.tree.link(parent, name, node);
        if let Some(link) = link {
            self.links.insert(link, node);
        }
        is_directory.then_some(OpenDirectory { node, path, inner_path })
    }
}

/// Lists one directory.
fn list(directory: OpenDirectory, options: &Options, excludes: &Excludes) -> Result<Listing> {
    let OpenDirectory { node, path, inner_path } = directory;
    let (whiteouts, names) = split_names(names(&path)?, options.whiteouts);
    let mut entries = Vec::with_capacity(names.len());
    for name in names {
        let (path, inner_path) = (path.join(&name), inner_path.join(&name));
        if excludes.has(&inner_path) {
            continue;
        }
        let status = fs::symlink_metadata(&path).map_err(Error::source(&path, "look at"))?;
        let link = (!status.is_dir() && status.nlink() > 1).then(|| Identity::of(&status).inode());
        let node = node_of(&path, &status, options)?;
        entries.push(Entry { name, path, inner_path, node, link });
    }
    Ok(Listing { node, whiteouts, entries })
}

fn node_of(path: &Path, status: &fs::Metadata, options: &Options) -> Result<Node> {
    let mode = u16::try_from(status.mode() & 0xffff).unwrap_or(0);
    let kind = FileType::from_mode(mode).ok_or_else(|| Error::unfit(path, "it is of an unknown type"))?;
    let body = match kind {
        FileType::Directory => Body::Directory(Default::default()),
        FileType::Regular => Body::File(Content::Path { path: path.to_path_buf(), identity: Identity::of(status) }),
        FileType::Symlink => {
            let target = fs::read_link(path).map_err(Error::source(path, "read the link"))?;
            let target = target.into_os_string().into_vec();
            if target.is_empty() || target.len() > LINK_TARGET_LEN_MAX {
                return Err(Error::unfit(path, "the target of the link is empty or longer than 4095 bytes"));
            }
            Body::Symlink(target)
        }
        FileType::CharacterDevice | FileType::BlockDevice => Body::Special(kind, device_number(path, status)?),
        FileType::Fifo | FileType::Socket => Body::Special(kind, DeviceNumber::default()),
    };
    Ok(Node { metadata: metadata_of(status), xattrs: xattrs(path, options)?, body })
}

fn xattrs(path: &Path, options: &Options) -> Result<Vec<Xattr>> {
    if !options.xattrs.keep {
        return Ok(Vec::new());
    }
    let failed = |error: rustix::io::Errno| Error::source(path, "read the attributes of")(error.into());
    let names = match grown(|buffer| rustix::fs::llistxattr(path, buffer)) {
        Ok(names) => names,
        Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut xattrs = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match grown(|buffer| rustix::fs::lgetxattr(path, name, buffer)) {
            Ok(value) => xattrs.push((name.into(), value.into_boxed_slice())),
            // It was removed since, or is one that may be listed but not read.
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    xattrs.sort();
    Ok(xattrs)
}

/// The names of whiteouts and the other ones.
fn split_names(names: Vec<OsString>, whiteouts: Whiteouts) -> (Vec<OsString>, Vec<OsString>) {
    names.into_iter().partition(|name| Whiteout::of(name.as_bytes(), whiteouts).is_some())
}

fn names(directory: &Path) -> Result<Vec<OsString>> {
    let entries = fs::read_dir(directory).map_err(Error::source(directory, "list"))?;
    let names: io::Result<Vec<OsString>> = entries.map(|entry| entry.map(|entry| entry.file_name())).collect();
    let mut names = names.map_err(Error::source(directory, "list"))?;
    names.sort();
    Ok(names)
}

fn metadata_of(status: &fs::Metadata) -> Metadata {
    Metadata {
        permissions: u16::try_from(status.mode() & 0o7777).unwrap_or(0),
        uid: status.uid(),
        gid: status.gid(),
        modified: Timestamp { seconds: status.mtime(), nanoseconds: u32::try_from(status.mtime_nsec()).unwrap_or(0) },
    }
}

fn device_number(path: &Path, status: &fs::Metadata) -> Result<DeviceNumber> {
    let number = DeviceNumber { major: rustix::fs::major(status.rdev()), minor: rustix::fs::minor(status.rdev()) };
    if DeviceNumber::from_encoded(number.encoded()) != number {
        return Err(Error::unfit(path, "its device numbers are beyond 4095 and 1048575"));
    }
    Ok(number)
}

/// Calls `read` with a buffer that is made larger until it suffices.
fn grown(mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 256];
    loop {
        match read(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(rustix::io::Errno::RANGE) if buffer.len() < 1 << 17 => buffer.resize(buffer.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}
