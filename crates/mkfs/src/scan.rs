//! Listing a directory on disk into a tree.

use std::{
    collections::HashMap,
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
};

/// After how many inodes progress is told.
const REPORT_INTERVAL: u64 = 1024;
/// The longest target of a symbolic link, in bytes.
const LINK_TARGET_LEN_MAX: usize = 4095;

/// Lists directories on disk into a tree.
pub(crate) struct Scanner<'a> {
    tree: &'a mut Tree,
    options: &'a Options,
    excludes: &'a Excludes,
    links: HashMap<(u64, u64), NodeId>,
    scanned: u64,
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
        let xattrs = self.xattrs(directory)?;
        let root = self.tree.node_mut(Tree::ROOT);
        root.metadata = metadata_of(&status);
        root.xattrs = xattrs;
        let mut open = vec![(Tree::ROOT, directory.to_path_buf(), PathBuf::new())];
        while let Some((node, path, inner_path)) = open.pop() {
            let (whiteouts, names) = split_names(names(&path)?, self.options.whiteouts);
            for name in whiteouts {
                if let Some(whiteout) = Whiteout::of(name.as_bytes(), self.options.whiteouts) {
                    whiteout.put(self.tree, node, self.options.whiteouts);
                }
            }
            for name in names {
                let (path, inner_path) = (path.join(&name), inner_path.join(&name));
                if self.excludes.has(&inner_path) {
                    continue;
                }
                let status = fs::symlink_metadata(&path).map_err(Error::source(&path, "look at"))?;
                let child = self.add(node, name.as_bytes(), &path, &status)?;
                if status.is_dir() {
                    open.push((child, path, inner_path));
                }
                self.scanned += 1;
                if self.scanned.is_multiple_of(REPORT_INTERVAL) {
                    report(progress, Phase::Scan, self.scanned, 0)?;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, parent: NodeId, name: &[u8], path: &Path, status: &fs::Metadata) -> Result<NodeId> {
        let identity = Identity::of(status);
        if !status.is_dir()
            && status.nlink() > 1
            && let Some(&node) = self.links.get(&identity.inode())
        {
            self.tree.link(parent, name, node);
            return Ok(node);
        }
        let mode = u16::try_from(status.mode() & 0xffff).unwrap_or(0);
        let kind = FileType::from_mode(mode).ok_or_else(|| Error::unfit(path, "it is of an unknown type"))?;
        let (metadata, xattrs) = (metadata_of(status), self.xattrs(path)?);
        let body = match kind {
            FileType::Directory => {
                // A directory of an earlier source keeps its entries.
                let before = self.tree.lookup(parent, name);
                if let Some(before) = before.filter(|id| self.tree.node(*id).file_type() == FileType::Directory) {
                    let node = self.tree.node_mut(before);
                    (node.metadata, node.xattrs) = (metadata, xattrs);
                    return Ok(before);
                }
                Body::Directory(Default::default())
            }
            FileType::Regular => Body::File(Content::Path { path: path.to_path_buf(), identity }),
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
        let node = self.tree.add(Node { metadata, xattrs, body });
        self.tree.link(parent, name, node);
        if !status.is_dir() && status.nlink() > 1 {
            self.links.insert(identity.inode(), node);
        }
        Ok(node)
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<Xattr>> {
        if !self.options.xattrs.keep {
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
