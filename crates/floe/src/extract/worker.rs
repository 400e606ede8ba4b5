//! Creates files, links and special files.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
    sync::{
        Arc,
        atomic::Ordering::{AcqRel, Acquire, Relaxed},
    },
};

use rustix::{
    fs::{AtFlags, Dev, Mode, OFlags, ftruncate, linkat, makedev, mknodat, openat, statat, symlinkat, unlinkat},
    io::Errno,
};

use super::{
    ExtractOptions, Ledger,
    metadata::Metadata,
    outcome::{ExtractAction, ExtractOmission, ExtractPart, ExtractWarningCause},
    task::{CreatedName, Item, LargeFile, PART_BYTES, PIECE_BYTES, SpecialFile, Task, next_data, pieces, tasks},
    tree::{Directories, Identity, TreeDirectory, is_preloaded},
};
use crate::{Attr, ByteRange, Extent, FileType, Image, Nid};

/// Creates files, links and special files. Each thread has its own.
pub(super) struct Worker<'a> {
    image: &'a Image,
    options: &'a ExtractOptions,
    ledger: &'a Ledger<'a>,
    metadata: Metadata<'a>,
    directories: Directories,
    extents: Vec<Extent>,
    buffer: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        image: &'a Image,
        options: &'a ExtractOptions,
        ledger: &'a Ledger<'a>,
        directories: Directories,
    ) -> Self {
        let metadata = Metadata::new(image, options, ledger);
        Self { image, options, ledger, metadata, directories, extents: Vec::new(), buffer: Vec::new() }
    }

    pub(super) fn run(&mut self, task: Task) {
        match task {
            Task::Items(items) => {
                for item in items {
                    if self.ledger.is_over() {
                        return;
                    }
                    self.make(&item);
                }
            }
            Task::Parts(file) => self.write_parts(&file),
        }
    }

    /// Creates a further name of an inode: a hard link to a name under which this extraction created the inode. If an
    /// existing file was in the way of that name, or the link is impossible in the target, the inode is created here.
    pub(super) fn link(&mut self, item: Item) {
        if self.ledger.is_over() {
            return;
        }
        let failed = |error: io::Error| ExtractWarningCause::Target(ExtractAction::HardLink, error);
        let Some(names) = item.names.clone() else { return };
        let Some(created) = names.created() else {
            return self.ledger.fail(item.path(), failed(Errno::NOENT.into()));
        };
        let mut refused = None;
        for name in created.iter().rev() {
            match self.link_to(name, &item) {
                Ok(()) => return self.ledger.count_hard_link(),
                Err(error) if is_impossible_link(&error) => refused = Some(error),
                Err(error) => return self.ledger.fail(item.path(), failed(error)),
            }
        }
        let (directory, name, attr, count) = (Arc::clone(&item.directory), item.name.clone(), item.attr, names.count());
        tasks(vec![item], 1, |task| self.run(task));
        if let Some(error) = refused
            && names.count() > count
        {
            let omission = ExtractOmission { part: ExtractPart::HardLink, error };
            self.ledger.omit(|| directory.path_of(&name), &attr, &[omission]);
        }
    }

    fn link_to(&mut self, created: &CreatedName, item: &Item) -> io::Result<()> {
        let CreatedName { directory, name, identity } = created;
        let from = self.directories.open(directory)?.try_clone_to_owned()?;
        if Identity::of_entry(from.as_fd(), name)? != *identity {
            return Err(io::Error::other("another file took the place of its first name"));
        }
        let inside = self.directories.open(&item.directory)?;
        let link_here = || linkat(&from, name.as_ref(), inside, item.name.as_ref(), AtFlags::empty());
        self.options.replacing(inside, &item.name, link_here)
    }

    /// Sets the attributes of a directory after all its entries were created.
    pub(super) fn finish_directory(&mut self, directory: &TreeDirectory) {
        if self.ledger.is_over() {
            return;
        }
        let opened = match directory.parent_and_name() {
            None if directory.is_old && !self.options.finish_root => return,
            None => self.directories.open(directory).and_then(|inside| inside.try_clone_to_owned()),
            Some((parent, name)) => self.directories.open(parent).and_then(|inside| {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let opened = openat(inside, name, flags, Mode::empty())?;
                directory.identity.check(opened.as_fd())?;
                Ok(opened)
            }),
        };
        let finished = match opened {
            Ok(opened) => self.metadata.finish_open(&File::from(opened), &directory.attr),
            Err(error) => Err(unreachable_directory(error)),
        };
        match finished {
            Ok(omitted) => {
                self.ledger.omit(|| directory.path(), &directory.attr, &omitted);
                self.ledger.count_made(FileType::Directory);
            }
            Err(cause) => self.ledger.fail(directory.path(), cause),
        }
    }

    fn make(&mut self, item: &Item) {
        let made = match item.attr.file_type {
            FileType::Regular => self.make_file(item),
            FileType::Symlink => self.make_symlink(item),
            FileType::CharacterDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket => {
                self.make_special(item)
            }
            FileType::Directory => Err(ExtractWarningCause::Refused("directory in place of another type")),
        };
        if let Err(cause) = made {
            self.fail(item, cause);
        }
    }

    /// Records that an entry could not be created. If something was in its way, another name may still be possible.
    fn fail(&self, item: &Item, cause: ExtractWarningCause) {
        if !is_in_the_way(&cause)
            && let Some(names) = &item.names
        {
            names.give_up();
        }
        self.ledger.fail(item.path(), cause);
    }

    /// Counts a created entry, of which some parts were left out. If its inode has more names, they become links to it.
    fn count_made(&self, item: &Item, identity: Option<Identity>, omitted: &[ExtractOmission]) {
        if let Some(names) = &item.names {
            let (directory, name) = (Arc::clone(&item.directory), item.name.clone());
            names.add(identity.map(|identity| CreatedName { directory, name, identity }));
        }
        self.ledger.omit(|| item.path(), &item.attr, omitted);
        self.ledger.count_made(item.attr.file_type);
    }

    fn make_file(&mut self, item: &Item) -> Result<(), ExtractWarningCause> {
        let file = self.create(item)?;
        let filled = self.fill(&file, item.attr.nid, ByteRange::new(0, item.attr.size)).and_then(|written_end| {
            if written_end < item.attr.size {
                resize(&file, item.attr.size)?;
            }
            self.metadata.finish_open(&file, &item.attr)
        });
        match filled {
            Ok(omitted) if !self.ledger.is_over() => {
                self.count_made(item, item.identity(|| Identity::of(file.as_fd())), &omitted);
                Ok(())
            }
            filled => {
                self.remove(item);
                filled.map(drop)
            }
        }
    }

    /// Writes the data in `range` of a file. Returns the end of the last data.
    fn fill(&mut self, file: &File, nid: Nid, range: ByteRange) -> Result<u64, ExtractWarningCause> {
        if range.is_empty() {
            return Ok(range.offset());
        }
        let mut extents = std::mem::take(&mut self.extents);
        extents.clear();
        let mapped = self.image.file_system().map(nid, range, &mut extents);
        let mut result = mapped.map(|()| range.offset()).map_err(ExtractWarningCause::Image);
        if result.is_ok() {
            pieces(range, &extents, |piece| {
                result = self.copy(file, nid, piece).map(|()| piece.end());
                result.is_ok() && !self.ledger.is_over()
            });
        }
        self.extents = extents;
        result
    }

    fn copy(&mut self, file: &File, nid: Nid, piece: ByteRange) -> Result<(), ExtractWarningCause> {
        let len = piece.len().min(PIECE_BYTES) as usize;
        if self.buffer.len() < len {
            self.buffer.resize(len, 0);
        }
        let buffer = &mut self.buffer[..len];
        let read = self.image.read_at(nid, piece.offset(), buffer).map_err(ExtractWarningCause::Image)?;
        if read < len {
            let place = floe_image::Place::inode(nid);
            return Err(ExtractWarningCause::Image(floe_image::Error::corrupt("file shorter than its size", place)));
        }
        file.write_all_at(buffer, piece.offset())
            .map_err(|error| ExtractWarningCause::Target(ExtractAction::Write, error))?;
        self.ledger.count_written(len as u64);
        Ok(())
    }

    /// Writes parts of a large file until none is left. The last worker to leave finishes the file.
    fn write_parts(&mut self, large: &LargeFile) {
        while let Some((file, range)) = self.next_part(large) {
            if let Err(cause) = self.fill(&file, large.item.attr.nid, range) {
                self.fail_once(large, cause);
            }
        }
        if large.workers_left.fetch_sub(1, AcqRel) > 1 {
            return;
        }
        let progress = std::mem::take(&mut *large.progress.lock());
        let Some(file) = progress.file else { return };
        if !large.has_failed.load(Acquire) && !self.ledger.is_over() {
            match self.metadata.finish_open(&file, &large.item.attr) {
                Ok(omitted) => {
                    let identity = large.item.identity(|| Identity::of(file.as_fd()));
                    return self.count_made(&large.item, identity, &omitted);
                }
                Err(cause) => self.fail(&large.item, cause),
            }
        }
        self.remove(&large.item);
    }

    /// Records that a large file could not be created, unless another worker did.
    fn fail_once(&self, large: &LargeFile, cause: ExtractWarningCause) {
        if !large.has_failed.swap(true, AcqRel) {
            self.fail(&large.item, cause);
        }
    }

    /// Takes the next part of a large file that contains data. The first worker creates the file.
    fn next_part(&mut self, large: &LargeFile) -> Option<(Arc<File>, ByteRange)> {
        let mut progress = large.progress.lock();
        let Item { attr, .. } = &large.item;
        let taken = loop {
            if large.has_failed.load(Relaxed) || self.ledger.is_over() || progress.next >= attr.size {
                return None;
            }
            if progress.file.is_some() {
                let rest = ByteRange::between(progress.next, attr.size);
                let file_system = self.image.file_system().as_ref();
                let is_over = || self.ledger.is_over();
                break next_data(file_system, attr.nid, rest, PART_BYTES, &mut self.extents, is_over)
                    .map_err(ExtractWarningCause::Image);
            }
            let created = self.create(&large.item).and_then(|file| {
                let file = progress.file.insert(Arc::new(file));
                resize(file, attr.size)
            });
            if let Err(cause) = created {
                break Err(cause);
            }
        };
        match taken {
            Ok(Some(range)) => {
                progress.next = range.end();
                progress.file.clone().map(|file| (file, range))
            }
            Ok(None) => {
                progress.next = attr.size;
                None
            }
            Err(cause) => {
                self.fail_once(large, cause);
                None
            }
        }
    }

    fn make_symlink(&mut self, item: &Item) -> Result<(), ExtractWarningCause> {
        let target = self.image.file_system().read_link(item.attr.nid).map_err(ExtractWarningCause::Image)?;
        if target.contains(&0) {
            return Err(ExtractWarningCause::Refused("link target with a NUL"));
        }
        let inside = self.directories.open(&item.directory).map_err(unreachable_directory)?;
        self.options
            .replacing(inside, &item.name, || symlinkat(target.as_slice(), inside, item.name.as_ref()))
            .map_err(|error| not_created(item, error))?;
        self.finish_named(item)
    }

    fn make_special(&mut self, item: &Item) -> Result<(), ExtractWarningCause> {
        let inside = self.directories.open(&item.directory).map_err(unreachable_directory)?;
        let (file_type, device) = special_file(&item.attr);
        let mode = Mode::RUSR | Mode::WUSR;
        let made =
            self.options.replacing(inside, &item.name, || mknodat(inside, item.name.as_ref(), file_type, mode, device));
        match made {
            Ok(()) if is_preloaded() => {
                let (directory, name) = (Arc::clone(&item.directory), item.name.clone());
                self.ledger.note_special_file(SpecialFile { directory, name, attr: item.attr });
                self.finish_named(item)
            }
            Ok(()) => self.finish_named(item),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let omission = ExtractOmission { part: ExtractPart::Entry, error };
                self.ledger.omit(|| item.path(), &item.attr, &[omission]);
                Ok(())
            }
            Err(error) => Err(not_created(item, error)),
        }
    }

    /// Reports special files that are other files now. fakeroot-tcp can forget a file: it hears about the removal of another
    /// one by an earlier process, which had the same inode number, only after the file was created.
    pub(super) fn check_special_files(&mut self) {
        for SpecialFile { directory, name, attr } in self.ledger.take_special_files() {
            let (file_type, device) = special_file(&attr);
            let is_right = self.directories.open(&directory).is_ok_and(|inside| {
                let found = statat(inside, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW);
                found.is_ok_and(|found| {
                    rustix::fs::FileType::from_raw_mode(found.st_mode) == file_type
                        && (device == 0 || found.st_rdev == device)
                })
            });
            if !is_right {
                let error = io::Error::other("the preloaded library has forgotten the type; extract again");
                let cause = ExtractWarningCause::Target(ExtractAction::Create(attr.file_type), error);
                self.ledger.fail(directory.path_of(&name), cause);
            }
        }
    }

    fn finish_named(&mut self, item: &Item) -> Result<(), ExtractWarningCause> {
        let inside = self.directories.open(&item.directory).map_err(unreachable_directory)?;
        let omitted = self.metadata.finish_named(inside, &item.name, &item.attr)?;
        let identity = item.identity(|| Identity::of_entry(inside, &item.name));
        self.count_made(item, identity, &omitted);
        Ok(())
    }

    fn create(&mut self, item: &Item) -> Result<File, ExtractWarningCause> {
        let inside = self.directories.open(&item.directory).map_err(unreachable_directory)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        self.options
            .replacing(inside, &item.name, || openat(inside, item.name.as_ref(), flags, mode))
            .map(File::from)
            .map_err(|error| not_created(item, error))
    }

    /// Removes an incomplete file, whose failure was recorded.
    fn remove(&mut self, item: &Item) {
        let removed = self
            .directories
            .open(&item.directory)
            .and_then(|inside| Ok(unlinkat(inside, item.name.as_ref(), AtFlags::empty())?));
        if let Err(error) = removed {
            self.ledger.warn(item.path(), ExtractWarningCause::Target(ExtractAction::Remove, error));
        }
    }
}

impl ExtractOptions {
    /// Creates an entry with `make`. If the name exists and `force` is set, the existing entry is removed first, unless
    /// it is a directory with entries.
    fn replacing<T>(
        &self,
        directory: impl AsFd,
        name: &[u8],
        make: impl Fn() -> rustix::io::Result<T>,
    ) -> io::Result<T> {
        match make() {
            Err(Errno::EXIST) if self.force => {
                match unlinkat(&directory, name, AtFlags::empty()) {
                    Err(Errno::ISDIR) => unlinkat(&directory, name, AtFlags::REMOVEDIR)?,
                    removed => removed?,
                }
                Ok(make()?)
            }
            other => Ok(other?),
        }
    }
}

fn resize(file: &File, size: u64) -> Result<(), ExtractWarningCause> {
    ftruncate(file, size).map_err(|error| ExtractWarningCause::Target(ExtractAction::Resize, error.into()))
}

/// Whether an entry could not be created because an existing one has its name.
fn is_in_the_way(cause: &ExtractWarningCause) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, ResourceBusy};
    let ExtractWarningCause::Target(_, error) = cause else { return false };
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | ResourceBusy)
}

/// Whether the error of a hard link means that the target cannot have it: its names are on different mounts, the file has
/// too many names, or the file system has no hard links.
fn is_impossible_link(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::NOTSUP | Errno::NOSYS))
}

/// The type of a special file, and the number of a device.
fn special_file(attr: &Attr) -> (rustix::fs::FileType, Dev) {
    let device = || makedev(attr.device.major, attr.device.minor);
    match attr.file_type {
        FileType::CharacterDevice => (rustix::fs::FileType::CharacterDevice, device()),
        FileType::BlockDevice => (rustix::fs::FileType::BlockDevice, device()),
        FileType::Socket => (rustix::fs::FileType::Socket, 0),
        _ => (rustix::fs::FileType::Fifo, 0),
    }
}

fn not_created(item: &Item, error: io::Error) -> ExtractWarningCause {
    ExtractWarningCause::Target(ExtractAction::Create(item.attr.file_type), error)
}

fn unreachable_directory(error: io::Error) -> ExtractWarningCause {
    ExtractWarningCause::Target(ExtractAction::Reopen, error)
}
