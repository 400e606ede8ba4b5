//! The directories of the target, reached without ever following a link.

use std::{
    collections::HashMap,
    fs::DirBuilder,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::Path,
    sync::Arc,
};

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::Attr;

/// How many directories one thread keeps open.
const OPEN_DIRECTORIES_MAX: usize = 64;

/// A directory of the target.
#[derive(Debug)]
pub(super) struct TreeDirectory {
    /// Its place in the order of making; the root's is 0.
    index: usize,
    place: DirectoryPlace,
    pub(super) attr: Attr,
    /// Whether it was there before.
    pub(super) is_old: bool,
}

#[derive(Debug)]
enum DirectoryPlace {
    Root(OwnedFd),
    In { parent: Arc<TreeDirectory>, name: Box<[u8]> },
}

impl TreeDirectory {
    /// Opens the target, or makes it.
    pub(super) fn open_root(path: &Path, attr: Attr) -> io::Result<Arc<Self>> {
        let made = DirBuilder::new().mode(0o700).create(path);
        if let Err(error) = &made
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return made.map(|()| unreachable!("it is an error"));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, path, flags, Mode::empty())?;
        let is_old = made.is_err() && std::fs::read_dir(path)?.next().is_some();
        Ok(Arc::new(Self { index: 0, place: DirectoryPlace::Root(opened), attr, is_old }))
    }

    /// A directory `name` in `parent`.
    pub(super) fn new(index: usize, parent: &Arc<Self>, name: &[u8], attr: Attr, is_old: bool) -> Arc<Self> {
        let place = DirectoryPlace::In { parent: Arc::clone(parent), name: name.into() };
        Arc::new(Self { index, place, attr, is_old })
    }

    /// The directory it lies in and its name there; `None` for the root.
    pub(super) fn parent_and_name(&self) -> Option<(&Arc<Self>, &[u8])> {
        match &self.place {
            DirectoryPlace::Root(_) => None,
            DirectoryPlace::In { parent, name } => Some((parent, name)),
        }
    }

    /// Its path in the image.
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

    /// The path in the image of `name` in it.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = if self.index == 0 { Vec::new() } else { self.path() };
        path.push(b'/');
        path.extend_from_slice(name);
        path
    }
}

/// Directories that a thread has open.
#[derive(Default)]
pub(super) struct Directories {
    open: HashMap<usize, OwnedFd>,
}

impl Directories {
    /// Opens a directory for looking names up in it. Each name on the way must be a real directory.
    pub(super) fn open<'s>(&'s mut self, directory: &'s TreeDirectory) -> io::Result<BorrowedFd<'s>> {
        if let DirectoryPlace::Root(root) = &directory.place {
            return Ok(root.as_fd());
        }
        if !self.open.contains_key(&directory.index) {
            self.open_way(directory)?;
        }
        Ok(self.open[&directory.index].as_fd())
    }

    fn open_way(&mut self, directory: &TreeDirectory) -> io::Result<()> {
        let mut way = Vec::new();
        let mut nearest = directory;
        while let Some((parent, name)) = nearest.parent_and_name()
            && !self.open.contains_key(&nearest.index)
        {
            way.push((nearest.index, name));
            nearest = parent;
        }
        let mut current = match &nearest.place {
            DirectoryPlace::Root(root) => root.try_clone()?,
            DirectoryPlace::In { .. } => self.open[&nearest.index].try_clone()?,
        };
        for (index, name) in way.into_iter().rev() {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let next = openat(&current, name, flags, Mode::empty())?;
            if self.open.len() >= OPEN_DIRECTORIES_MAX {
                self.open.clear();
            }
            current = next.try_clone()?;
            self.open.insert(index, next);
        }
        Ok(())
    }
}
