//! The target of an extraction: its directories, opened without ever following a link.

use std::{
    collections::HashMap,
    env,
    fs::DirBuilder,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, statat},
    io::Errno,
};

use crate::Attr;

/// The maximum length in bytes of a path that is opened in one call.
const WAY_BYTES_MAX: usize = 4000;

/// A directory of the target.
#[derive(Debug)]
pub(super) struct TreeDirectory {
    /// The position in the order of creation; the root has 0.
    index: usize,
    place: DirectoryPlace,
    pub(super) identity: Identity,
    pub(super) attr: Attr,
    /// Whether the directory existed before the extraction; for the root, whether it had entries.
    pub(super) is_old: bool,
}

#[derive(Debug)]
enum DirectoryPlace {
    Root(OwnedFd),
    In { parent: Arc<TreeDirectory>, name: Box<[u8]> },
}

/// Identifies a file or directory on this machine by its device and inode number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// The identity of an open file or directory.
    pub(super) fn of(opened: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        fstat(opened).map(Self::from)
    }

    /// The identity of an entry of a directory. Links are not followed.
    pub(super) fn of_entry(directory: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Self> {
        statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(Self::from)
    }

    /// Fails unless `opened` has this identity.
    pub(super) fn check(self, opened: BorrowedFd<'_>) -> io::Result<()> {
        if Self::of(opened)? == self { Ok(()) } else { Err(io::Error::other("another directory took its place")) }
    }
}

impl From<Stat> for Identity {
    fn from(said: Stat) -> Self {
        Self { device: said.st_dev, inode: said.st_ino }
    }
}

impl TreeDirectory {
    /// Opens the target, or creates it.
    pub(super) fn open_root(target: ExtractTarget, attr: Attr) -> io::Result<Arc<Self>> {
        let (opened, is_old) = target.open()?;
        let identity = Identity::of(opened.as_fd())?;
        Ok(Arc::new(Self { index: 0, place: DirectoryPlace::Root(opened), identity, attr, is_old }))
    }

    /// Describes the directory `name` in `parent`, which has `identity`.
    pub(super) fn new(
        index: usize,
        (parent, name): (&Arc<Self>, &[u8]),
        identity: Identity,
        attr: Attr,
        is_old: bool,
    ) -> Arc<Self> {
        let place = DirectoryPlace::In { parent: Arc::clone(parent), name: name.into() };
        Arc::new(Self { index, place, identity, attr, is_old })
    }

    /// The parent directory and the name in it; `None` for the root.
    pub(super) fn parent_and_name(&self) -> Option<(&Arc<Self>, &[u8])> {
        match &self.place {
            DirectoryPlace::Root(_) => None,
            DirectoryPlace::In { parent, name } => Some((parent, name)),
        }
    }

    /// The path in the image.
    pub(super) fn path(&self) -> Vec<u8> {
        let mut names = Vec::new();
        let mut directory = self;
        while let Some((parent, name)) = directory.parent_and_name() {
            names.push(name);
            directory = parent;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() { b"/".to_vec() } else { path }
    }

    /// The path in the image of the entry `name` in this directory.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = if self.index == 0 { Vec::new() } else { self.path() };
        path.push(b'/');
        path.extend_from_slice(name);
        path
    }
}

/// The open directories of a thread. Only a few stay open, so that all threads together stay within the limit of the
/// process. A closed directory is opened again from its nearest open ancestor.
pub(super) struct Directories {
    open: HashMap<usize, OwnedFd>,
    open_max: usize,
    /// Whether directories are opened one by one. The C library has no `openat2` that a preloaded library could replace,
    /// and pseudo fails below a directory whose opening it has not seen.
    walks: bool,
}

impl Directories {
    /// Keeps at most `open_max` directories open; at least 1.
    pub(super) fn new(open_max: usize) -> Self {
        Self { open: HashMap::new(), open_max: open_max.max(1), walks: is_preloaded() }
    }

    /// Opens a directory for lookups in it. Each name on the path must be a real directory, and the last one must be
    /// the directory that was created or found at first.
    pub(super) fn open<'s>(&'s mut self, directory: &'s TreeDirectory) -> io::Result<BorrowedFd<'s>> {
        if let DirectoryPlace::Root(root) = &directory.place {
            return Ok(root.as_fd());
        }
        if !self.open.contains_key(&directory.index) {
            let opened = match self.open_way(directory) {
                Err(Errno::MFILE | Errno::NFILE) if !self.open.is_empty() => {
                    self.open.clear();
                    self.open_way(directory)?
                }
                opened => opened?,
            };
            directory.identity.check(opened.as_fd())?;
            self.keep(directory.index, opened);
        }
        Ok(self.open[&directory.index].as_fd())
    }

    /// Adds an open directory to those that are kept open.
    pub(super) fn keep(&mut self, index: usize, opened: OwnedFd) {
        if self.open.len() >= self.open_max {
            self.open.clear();
        }
        self.open.insert(index, opened);
    }

    /// Opens a directory from its nearest open ancestor.
    fn open_way(&self, directory: &TreeDirectory) -> rustix::io::Result<OwnedFd> {
        let (mut names, mut nearest) = (Vec::new(), directory);
        let start = loop {
            match (&nearest.place, self.open.get(&nearest.index)) {
                (DirectoryPlace::Root(root), _) => break root.as_fd(),
                (_, Some(opened)) => break opened.as_fd(),
                (DirectoryPlace::In { parent, name }, None) => {
                    names.push(name.as_ref());
                    nearest = parent;
                }
            }
        };
        names.reverse();
        let mut reached: Option<OwnedFd> = None;
        let mut rest = names.as_slice();
        while !rest.is_empty() {
            let from = reached.as_ref().map_or(start, AsFd::as_fd);
            let (opened, left) = open_below(from, rest, self.walks)?;
            (reached, rest) = (Some(opened), left);
        }
        reached.ok_or(Errno::NOENT)
    }
}

/// Whether a preloaded library may replace functions of the C library.
pub(super) fn is_preloaded() -> bool {
    env::var_os("LD_PRELOAD").is_some()
}

/// Opens a chain of `names`, each in the one before it, as far as one call can; or only the first if `walks` is set. Returns
/// the last directory and the remaining names. Follows no link and never leaves `from`.
fn open_below<'n>(
    from: BorrowedFd<'_>,
    names: &'n [&'n [u8]],
    walks: bool,
) -> rustix::io::Result<(OwnedFd, &'n [&'n [u8]])> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (mut path, mut count) = (Vec::new(), 0);
    for name in names {
        if count > 0 && path.len() + 1 + name.len() > WAY_BYTES_MAX {
            break;
        }
        if count > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        count += 1;
    }
    if count > 1 && !walks {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(from, path.as_slice(), flags, Mode::empty(), beneath) {
            // Kernels before 5.6 lack `openat2`, and filters of containers may refuse it. The fallback opens one name
            // at a time.
            Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => {}
            opened => return Ok((opened?, &names[count..])),
        }
    }
    let [name, left @ ..] = names else { return Err(Errno::NOENT) };
    Ok((openat(from, *name, flags, Mode::empty())?, left))
}

/// The directory into which an image is extracted.
#[derive(Debug)]
pub enum ExtractTarget {
    /// The directory at a path, which is created if it is missing.
    Path(PathBuf),
    /// An open directory.
    Open {
        /// The directory, or the error of opening it, with which the extraction fails.
        directory: io::Result<OwnedFd>,
        /// Its name in errors.
        path: PathBuf,
    },
}

impl ExtractTarget {
    /// The path of the directory, for messages.
    pub fn path(&self) -> &Path {
        let (Self::Path(path) | Self::Open { path, .. }) = self;
        path
    }

    /// Opens the directory, or creates it. Returns also whether it has entries.
    pub(super) fn open(self) -> io::Result<(OwnedFd, bool)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match self {
            Self::Open { directory, .. } => openat(directory?, ".", flags, Mode::empty())?,
            Self::Path(path) => match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => openat(CWD, path, flags, Mode::empty())?,
            },
        };
        let mut has_entries = false;
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            has_entries |= !matches!(entry.file_name().to_bytes(), b"." | b"..");
            if has_entries {
                break;
            }
        }
        Ok((opened, has_entries))
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for ExtractTarget {
    fn from(path: &P) -> Self {
        Self::Path(path.as_ref().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use floe_image::{DeviceNumber, FileType, Nid, Timestamp};

    use super::*;

    fn attr() -> Attr {
        Attr {
            nid: Nid(1),
            inode_number: 1,
            file_type: FileType::Directory,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            size: 0,
            link_count: 2,
            modified: Timestamp { seconds: 0, nanoseconds: 0 },
            device: DeviceNumber::default(),
            blocks_512: 0,
        }
    }

    #[test]
    fn a_replaced_directory_is_not_entered() {
        let folder = tempfile::tempdir().expect("a folder");
        let (target, outside) = (folder.path().join("target"), folder.path().join("outside"));
        fs::create_dir_all(outside.join("b")).expect("made");
        let root = TreeDirectory::open_root(ExtractTarget::from(&target), attr()).expect("made");
        fs::create_dir_all(target.join("a/b")).expect("made");
        let directory = |index, parent, name: &str, path: &str| {
            let opened = fs::File::open(target.join(path)).expect("there");
            let identity = Identity::of(opened.as_fd()).expect("known");
            TreeDirectory::new(index, (parent, name.as_bytes()), identity, attr(), false)
        };
        let a = directory(1, &root, "a", "a");
        let b = directory(2, &a, "b", "a/b");
        let open = || Directories::new(1).open(&b).map(drop).map_err(|error| error.to_string());
        assert_eq!(open(), Ok(()));
        fs::rename(target.join("a"), target.join("moved")).expect("moved");
        symlink(&outside, target.join("a")).expect("made");
        assert!(open().is_err(), "a link is followed");
        fs::remove_file(target.join("a")).expect("removed");
        fs::create_dir_all(target.join("a/b")).expect("made");
        assert_eq!(open(), Err("another directory took its place".to_owned()));
        fs::remove_dir_all(target.join("a")).expect("removed");
        fs::rename(target.join("moved"), target.join("a")).expect("moved back");
        assert_eq!(open(), Ok(()));
    }
}
