//! Lists a directory into a tree.

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_image::{DeviceNumber, FileType, ShownName, Timestamp};
use rustix::{
    fs::{AtFlags, Dir, OFlags, Stat},
    io::Errno,
};

use super::{LINK_TARGET_LEN_MAX, excludes::Excludes, whiteout::Whiteout};
use crate::{
    error::{Error, Result},
    files::output_file::directory_of,
    options::{Options, Whiteouts},
    progress::{Phase, Progress, report},
    tree::{
        Body, Metadata, Node, NodeId, Tree,
        content::{Content, Identity},
        listed::{AllocatedLen, ListedDirectory, ListedName},
        source_root::{SourceRoot, is_gone},
        xattrs::{XattrSet, names_at, value_at},
    },
    workers,
};

/// Progress is reported once for this many inodes.
const REPORT_INTERVAL: u64 = 1024;

/// The number of directories that are listed ahead of the tree, which bounds the memory for their entries.
const LISTED_AHEAD_MAX: usize = 64;

/// Lists directories into a tree: several threads list, one thread adds the results to the tree, in an order that does
/// not depend on the number of threads.
pub(crate) struct DirectoryScanner<'a> {
    tree: &'a mut Tree,
    options: &'a Options,
    excludes: &'a Excludes,
    links: HashMap<(u64, u64), NodeId>,
    scanned: u64,
    /// Warnings about changes during listing.
    warnings: Vec<String>,
}

/// A directory to be listed.
struct OpenDirectory {
    node: NodeId,
    /// Its path below the source and within the image.
    inner_path: PathBuf,
}

/// The result of listing a directory.
struct Listing {
    node: NodeId,
    /// The names of whiteouts.
    whiteouts: Vec<OsString>,
    entries: Vec<Entry>,
    /// Entries that vanished while they were listed.
    gone: Vec<PathBuf>,
}

/// A directory entry.
struct Entry {
    name: OsString,
    node: Node,
    /// The path below the source, of a directory.
    inner_path: Option<PathBuf>,
    /// The device and inode number, if the inode has several links.
    link: Option<(u64, u64)>,
}

impl<'a> DirectoryScanner<'a> {
    pub(crate) fn new(tree: &'a mut Tree, options: &'a Options, excludes: &'a Excludes) -> Self {
        Self { tree, options, excludes, links: HashMap::new(), scanned: 0, warnings: Vec::new() }
    }

    /// Adds the content of `directory` to the root. Existing nodes stay, unless an entry has the same name. Returns
    /// warnings about items that changed while they were listed, and were omitted.
    pub(crate) fn scan(mut self, directory: &Path, progress: &mut dyn Progress) -> Result<Vec<String>> {
        let failed = |action| move |error: Errno| Error::source(directory, action)(error.into());
        let source = match SourceRoot::open(directory) {
            Err(Errno::NOTDIR) => return Err(Error::unfit(directory, "the source is not a directory")),
            opened => Arc::new(opened.map_err(failed("look at"))?),
        };
        let options = self.options;
        let opened = source.open_below(Path::new(""), OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed("open"))?;
        let status = rustix::fs::fstat(&opened).map_err(failed("look at"))?;
        let root = self.tree.node_mut(Tree::ROOT);
        root.metadata = metadata_of(&status);
        root.xattrs = xattrs(opened.as_fd(), OsStr::new("."), directory, options)?;
        drop(opened);
        let first = OpenDirectory { node: Tree::ROOT, inner_path: PathBuf::new() };
        self.walk(&source, first, progress)?;
        Ok(self.warnings)
    }

    /// Adds the file or directory at `path` to the root, under its own name. Returns warnings as [`DirectoryScanner::scan`].
    pub(crate) fn scan_entry(mut self, path: &Path, progress: &mut dyn Progress) -> Result<Vec<String>> {
        let failed = |action| move |error: Errno| Error::source(path, action)(error.into());
        let name = path.file_name().ok_or_else(|| Error::unfit(path, "it has no name of its own"))?;
        let source = Arc::new(SourceRoot::open(directory_of(path)).map_err(failed("look at"))?);
        let opened = source.open_below(Path::new(""), OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed("open"))?;
        if self.tree.lookup(Tree::ROOT, name.as_bytes()).is_some() {
            return Err(Error::unfit(path, "another source has the same name"));
        }
        let inner_path = PathBuf::from(name);
        if self.excludes.has(&inner_path) {
            return Ok(self.warnings);
        }
        let names = [name.to_owned()];
        let (listed, places) = ListedDirectory::new(Arc::clone(&source), Path::new(""), &names);
        let listed = Arc::new(listed);
        let found = names.into_iter().zip(places).next();
        let (name, place) = found.ok_or_else(|| Error::unfit(path, "it has no name of its own"))?;
        let entry = entry(&listed, opened.as_fd(), name, place, self.options)?;
        let entry = entry.map_err(|Gone(_)| failed("look at")(Errno::NOENT))?;
        if let Some(first) = self.add(Tree::ROOT, entry) {
            self.walk(&source, first, progress)?;
        }
        Ok(self.warnings)
    }

    /// Lists a directory and all below it.
    fn walk(&mut self, source: &Arc<SourceRoot>, first: OpenDirectory, progress: &mut dyn Progress) -> Result<()> {
        let (options, excludes) = (self.options, self.excludes);
        // A queue, so that the order depends only on the tree and not on timing.
        let open = RefCell::new(VecDeque::from([first]));
        let next = || open.borrow_mut().pop_front().map(|directory| (directory, 1));
        let worker = || Ok(|directory: OpenDirectory| list(source, directory, options, excludes));
        workers::run(options.jobs, LISTED_AHEAD_MAX, worker, next, |listing: Listing| {
            for path in listing.gone {
                if options.strict {
                    return Err(Error::Changed { path });
                }
                self.warnings.push(format!("{} vanished while it was listed; it was omitted", path.shown()));
            }
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

    /// Adds an entry to the tree; returns it if it is a directory.
    fn add(&mut self, parent: NodeId, entry: Entry) -> Option<OpenDirectory> {
        let Entry { name, inner_path, node, link } = entry;
        let opened = |node| inner_path.map(|inner_path| OpenDirectory { node, inner_path });
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
            return opened(before);
        }
        let node = self.tree.add(node);
        self.tree.link(parent, name, node);
        if let Some(link) = link {
            self.links.insert(link, node);
        }
        opened(node)
    }
}

/// Lists a directory relative to its descriptor, so that a symbolic link that replaces an entry is not followed.
fn list(source: &Arc<SourceRoot>, directory: OpenDirectory, options: &Options, excludes: &Excludes) -> Result<Listing> {
    let OpenDirectory { node, inner_path } = directory;
    let mut listing = Listing { node, whiteouts: Vec::new(), entries: Vec::new(), gone: Vec::new() };
    let failed = |error: Errno| Error::source(source.path_of(&inner_path), "list")(error.into());
    let opened = match source.open_below(&inner_path, OFlags::RDONLY | OFlags::DIRECTORY) {
        Err(error) if is_gone(error) => {
            listing.gone.push(source.path_of(&inner_path));
            return Ok(listing);
        }
        opened => opened.map_err(failed)?,
    };
    let mut entries = Dir::new(opened).map_err(failed)?;
    let (whiteouts, mut names) = split_names(names(&mut entries).map_err(failed)?, options.whiteouts);
    listing.whiteouts = whiteouts;
    names.retain(|name| !excludes.has(&inner_path.join(name)));
    let opened = entries.fd().map_err(failed)?;
    listing.entries.reserve(names.len());
    let (listed, places) = ListedDirectory::new(Arc::clone(source), &inner_path, &names);
    let listed = Arc::new(listed);
    for (name, place) in names.into_iter().zip(places) {
        match entry(&listed, opened, name, place, options)? {
            Ok(entry) => listing.entries.push(entry),
            Err(Gone(inner_path)) => listing.gone.push(source.path_of(&inner_path)),
        }
    }
    Ok(listing)
}

/// An entry that vanished, by its path below the source.
struct Gone(PathBuf);

/// Reads the entry `name` of an open directory, whose names have it at `place`.
fn entry(
    listed: &Arc<ListedDirectory>,
    directory: BorrowedFd<'_>,
    name: OsString,
    place: ListedName,
    options: &Options,
) -> Result<std::result::Result<Entry, Gone>> {
    let inner_path = listed.inner(place);
    let path = listed.root.path_of(&inner_path);
    let status = match rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(error) if is_gone(error) => return Ok(Err(Gone(inner_path))),
        status => status.map_err(|error| Error::source(&path, "look at")(error.into()))?,
    };
    let kind = FileType::from_mode(u16::try_from(status.st_mode & 0xffff).unwrap_or(0));
    let body = match kind.ok_or_else(|| Error::unfit(&path, "it is of an unknown type"))? {
        FileType::Directory => Body::Directory(Default::default()),
        FileType::Regular => Body::File(Content::Listed {
            directory: Arc::clone(listed),
            name: place,
            identity: Identity::of(&status),
            allocated: AllocatedLen::of_blocks(status.st_blocks),
        }),
        FileType::Symlink => {
            let target = match rustix::fs::readlinkat(directory, &name, Vec::new()) {
                // It was replaced by something other than a link.
                Err(error) if is_gone(error) || error == Errno::INVAL => return Ok(Err(Gone(inner_path))),
                target => target.map_err(|error| Error::source(&path, "read the link")(error.into()))?.into_bytes(),
            };
            if target.is_empty() || target.len() > LINK_TARGET_LEN_MAX {
                return Err(Error::unfit(&path, "its link target is empty or longer than 4095 bytes"));
            }
            Body::Symlink(target.into())
        }
        kind @ (FileType::CharacterDevice | FileType::BlockDevice) => {
            Body::Special(kind, device_number(&path, &status)?)
        }
        kind @ (FileType::Fifo | FileType::Socket) => Body::Special(kind, DeviceNumber::default()),
    };
    let is_directory = matches!(body, Body::Directory(_));
    let link = (!is_directory && status.st_nlink > 1).then_some((status.st_dev, status.st_ino));
    let xattrs = xattrs(directory, &name, &path, options)?;
    let node = Node { metadata: metadata_of(&status), xattrs, body };
    Ok(Ok(Entry { name, node, inner_path: is_directory.then_some(inner_path), link }))
}

/// The xattrs of an entry in a directory, or of the directory itself if `name` is a dot. No system call takes a
/// descriptor and a name, so the path goes through /proc/self/fd; `path` is for systems without /proc, and for
/// messages.
fn xattrs(directory: BorrowedFd<'_>, name: &OsStr, path: &Path, options: &Options) -> Result<XattrSet> {
    if !options.xattrs.keep {
        return Ok(XattrSet::default());
    }
    let failed = |error: Errno| Error::source(path, "read the attributes of")(error.into());
    let mut reachable_path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    let mut names = names_at(&reachable_path);
    if names == Err(Errno::NOENT) && !Path::new("/proc/self/fd").exists() {
        reachable_path = path.to_path_buf();
        names = names_at(&reachable_path);
    }
    let names = match names {
        Ok(names) => names,
        // A vanished file is detected when it is read.
        Err(Errno::OPNOTSUPP | Errno::NOENT) => return Ok(XattrSet::default()),
        Err(error) => return Err(failed(error)),
    };
    let mut xattrs = Vec::new();
    for name in names {
        if let Some(value) = value_at(&reachable_path, &name).map_err(failed)? {
            xattrs.push((name, value));
        }
    }
    xattrs.sort();
    Ok(xattrs.into())
}

/// Separates the names of whiteouts from other names.
fn split_names(names: Vec<OsString>, whiteouts: Whiteouts) -> (Vec<OsString>, Vec<OsString>) {
    names.into_iter().partition(|name| Whiteout::of(name.as_bytes(), whiteouts).is_some())
}

/// The sorted names in a directory, without `.` and `..`.
fn names(directory: &mut Dir) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in directory {
        let name = entry?.file_name().to_bytes().to_vec();
        if !matches!(name.as_slice(), b"." | b"..") {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort();
    Ok(names)
}

fn metadata_of(status: &Stat) -> Metadata {
    Metadata {
        permissions: u16::try_from(status.st_mode & 0o7777).unwrap_or(0),
        uid: status.st_uid,
        gid: status.st_gid,
        modified: Timestamp { seconds: status.st_mtime, nanoseconds: u32::try_from(status.st_mtime_nsec).unwrap_or(0) },
    }
}

fn device_number(path: &Path, status: &Stat) -> Result<DeviceNumber> {
    let number = DeviceNumber { major: rustix::fs::major(status.st_rdev), minor: rustix::fs::minor(status.st_rdev) };
    if DeviceNumber::from_encoded(number.encoded()) != number {
        return Err(Error::unfit(path, "its device numbers exceed 4095 and 1048575"));
    }
    Ok(number)
}
