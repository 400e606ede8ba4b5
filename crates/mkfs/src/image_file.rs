//! The output file, which stays unnamed until the image is complete.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, FileTypeExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags},
    io::Errno,
};

use crate::{
    error::{Error, Result},
    replaced_file::ReplacedFile,
};

/// The write buffer size in bytes.
const BUFFER_LEN: usize = 1 << 20;
/// How many temporary names to try.
const NAME_ATTEMPTS_MAX: u32 = 100;
/// The mode of a new image, before the umask.
const IMAGE_MODE: u32 = 0o644;
/// The mode of a replacement until it gets the mode of the replaced file.
const REPLACEMENT_MODE: u32 = 0o600;
/// The maximum number of symbolic links to follow, as in the kernel.
const LINKS_MAX: usize = 40;
/// The length of the image's head in bytes, which contains the superblock. While the head is zero, a block device has
/// no image.
const HEAD_LEN: usize = 4096;

/// A file that is written sequentially, except for its head, and named at the end. If it is dropped before
/// [`ImageFile::finish`], no file remains; a block device has no superblock then.
pub(crate) struct ImageFile {
    file: File,
    /// The path as given, for errors.
    path: PathBuf,
    /// The final path, with symbolic links at `path` resolved.
    target: PathBuf,
    /// The offset of the image in the file. All other offsets and lengths are relative to it.
    start: u64,
    replaced: Option<ReplacedFile>,
    name: Name,
    buffer: Vec<u8>,
    written: u64,
}

enum Name {
    /// No name. If the process is killed, no file remains.
    None,
    /// A temporary name, on file systems that do not support unnamed files.
    Temporary(PathBuf),
    /// A block device.
    Device,
    /// The final name: the image is complete.
    Final,
}

impl ImageFile {
    /// Creates the file for `path`, with the image starting at byte `start`. If `path` is a block device that is not in
    /// use, the image is written to it directly.
    pub(crate) fn create(path: &Path, start: u64) -> Result<Self> {
        let target = link_target(path);
        let (file, name, replaced) = match fs::metadata(path) {
            Ok(status) if status.file_type().is_block_device() => {
                (open_device(path).map_err(output(path, "write to"))?, Name::Device, None)
            }
            Ok(status) if !status.is_file() => {
                let error = io::Error::other("it exists and is neither a regular file nor a block device");
                return Err(output(path, "replace")(error));
            }
            Ok(status) => {
                let (file, name) = nameless(&target, REPLACEMENT_MODE).map_err(output(path, "create"))?;
                (file, name, Some(ReplacedFile::of(&status)))
            }
            Err(_) => {
                let (file, name) = nameless(&target, IMAGE_MODE).map_err(output(path, "create"))?;
                (file, name, None)
            }
        };
        let buffer = Vec::with_capacity(BUFFER_LEN);
        Ok(Self { file, path: path.to_path_buf(), target, start, replaced, name, buffer, written: 0 })
    }

    /// The length so far, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Appends bytes.
    pub(crate) fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while self.buffer.len() + bytes.len() >= BUFFER_LEN {
            if self.buffer.is_empty() {
                self.write(bytes, self.written)?;
                self.written += bytes.len() as u64;
                return Ok(());
            }
            let (head, rest) = bytes.split_at(BUFFER_LEN - self.buffer.len());
            self.buffer.extend_from_slice(head);
            self.flush()?;
            bytes = rest;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Appends zeros up to a multiple of `alignment`.
    pub(crate) fn pad(&mut self, alignment: u64) -> Result<()> {
        let mut missing = self.len().next_multiple_of(alignment) - self.len();
        while missing > 0 {
            let len = missing.min(BUFFER_LEN as u64);
            self.append(&vec![0; usize::try_from(len).unwrap_or(0)])?;
            missing -= len;
        }
        Ok(())
    }

    /// Discards the bytes after `len`.
    pub(crate) fn rewind(&mut self, len: u64) -> Result<()> {
        if len >= self.written {
            self.buffer.truncate(usize::try_from(len - self.written).unwrap_or(usize::MAX));
        } else {
            self.buffer.clear();
            self.written = len;
            if !matches!(self.name, Name::Device) {
                self.file.set_len(self.start + len).map_err(output(&self.path, "shorten"))?;
            }
        }
        Ok(())
    }

    /// Whether these bytes are stored at `offset`.
    pub(crate) fn holds(&mut self, offset: u64, bytes: &[u8]) -> Result<bool> {
        if offset + bytes.len() as u64 > self.written {
            self.flush()?;
        }
        let mut there = vec![0; bytes.len()];
        self.file.read_exact_at(&mut there, self.start + offset).map_err(output(&self.path, "read back"))?;
        Ok(there == bytes)
    }

    /// Writes the superblock and the other data at the start over the zeros there. On a block device, all other data is
    /// synced first.
    pub(crate) fn put_head(&mut self, bytes: &[u8]) -> Result<()> {
        self.flush()?;
        if matches!(self.name, Name::Device) {
            self.file.sync_data().map_err(output(&self.path, "write"))?;
        }
        self.write(bytes, 0)
    }

    /// Flushes the buffer and returns a path at which the file can be opened now.
    pub(crate) fn readable_path(&mut self) -> Result<PathBuf> {
        self.flush()?;
        Ok(match &self.name {
            Name::None => format!("/proc/self/fd/{}", self.file.as_raw_fd()).into(),
            Name::Temporary(temporary) => temporary.clone(),
            Name::Device | Name::Final => self.target.clone(),
        })
    }

    /// Syncs the file and gives it its name. The file takes over the mode and, if permitted, the owner of the file that
    /// it replaces.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.flush()?;
        if let Some(replaced) = &self.replaced {
            replaced.pass_on(&self.file).map_err(output(&self.path, "set the mode of"))?;
        }
        self.file.sync_all().map_err(output(&self.path, "store"))?;
        let renamed = match &self.name {
            Name::Device | Name::Final => Ok(()),
            Name::Temporary(temporary) => fs::rename(temporary, &self.target),
            Name::None => give_name(&self.file, &self.target),
        };
        renamed.map_err(output(&self.path, "name"))?;
        if !matches!(std::mem::replace(&mut self.name, Name::Final), Name::Device) {
            store_directory(directory_of(&self.target)).map_err(output(&self.path, "store the name of"))?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        self.write(&buffer, self.written)?;
        self.written += buffer.len() as u64;
        self.buffer = buffer;
        self.buffer.clear();
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file.write_all_at(bytes, self.start + offset).map_err(output(&self.path, "write"))
    }
}

impl Drop for ImageFile {
    fn drop(&mut self) {
        match &self.name {
            Name::Temporary(temporary) => {
                let _ = fs::remove_file(temporary);
            }
            Name::Device if self.written > 0 => {
                let _ = self.write(&[0; HEAD_LEN], 0);
                let _ = self.file.sync_data();
            }
            Name::None | Name::Device | Name::Final => {}
        }
    }
}

/// Creates an unnamed temporary file in the directory of the image at `path`, or in the system's temporary directory if
/// `path` is a device.
pub(crate) fn scratch_file(path: &Path) -> Result<File> {
    let is_device = fs::metadata(path).is_ok_and(|status| status.file_type().is_block_device());
    let beside = if is_device { env::temp_dir().join("floe") } else { link_target(path) };
    let (file, name) = nameless(&beside, REPLACEMENT_MODE).map_err(output(path, "create a temporary file next to"))?;
    if let Name::Temporary(temporary) = name {
        fs::remove_file(temporary).map_err(output(path, "create a temporary file next to"))?;
    }
    Ok(file)
}

/// Resolves the symbolic links at `path`; the target need not exist.
fn link_target(path: &Path) -> PathBuf {
    let mut target = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&target) {
            Ok(link) => target = directory_of(&target).join(link),
            Err(_) => break,
        }
    }
    target
}

/// Opens a block device exclusively: it must not be mounted or used by another device.
fn open_device(path: &Path) -> io::Result<File> {
    match rustix::fs::open(path, OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => Ok(File::from(file)),
        Err(Errno::BUSY) => Err(io::Error::other("the device is mounted or otherwise in use; unmount it first")),
        Err(error) => Err(error.into()),
    }
}

/// Syncs a directory, if its file system supports that.
fn store_directory(directory: &Path) -> io::Result<()> {
    match rustix::fs::fsync(File::open(directory)?) {
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::BADF) => Ok(()),
        result => Ok(result?),
    }
}

fn nameless(path: &Path, mode: u32) -> io::Result<(File, Name)> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(directory_of(path), flags, Mode::from_raw_mode(mode)) {
        Ok(file) => return Ok((File::from(file), Name::None)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    with_temporary_name(path, |temporary| {
        File::options().read(true).write(true).create_new(true).mode(mode).open(temporary)
    })
    .map(|(file, temporary)| (file, Name::Temporary(temporary)))
}

/// An unnamed file cannot replace a file; if one exists, the new file first gets a temporary name.
fn give_name(file: &File, path: &Path) -> io::Result<()> {
    let this = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::linkat(CWD, &this, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Err(Errno::EXIST) => {}
        result => return Ok(result?),
    }
    let ((), temporary) = with_temporary_name(path, |temporary| {
        Ok(rustix::fs::linkat(CWD, &this, CWD, temporary, AtFlags::SYMLINK_FOLLOW)?)
    })?;
    fs::rename(&temporary, path).inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

/// Removes the temporary file of an unfinished build in this process next to the image at `path`. A program that exits
/// during a build calls it first.
pub fn remove_unfinished(path: &Path) {
    let target = link_target(path);
    let Some(base) = target.file_name() else { return };
    for attempt in 0..=NAME_ATTEMPTS_MAX {
        let _ = fs::remove_file(temporary_path(&target, base, attempt));
    }
}

fn temporary_path(path: &Path, base: &OsStr, attempt: u32) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(base.to_str().map_or(base, |base| OsStr::new(&base[..base.floor_char_boundary(200)])));
    name.push(format!(".{}-{attempt}", std::process::id()));
    directory_of(path).join(name)
}

fn with_temporary_name<T>(path: &Path, create: impl Fn(&Path) -> io::Result<T>) -> io::Result<(T, PathBuf)> {
    let base = path.file_name().ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut attempt = 0;
    loop {
        let temporary = temporary_path(path, base, attempt);
        match create(&temporary) {
            Ok(made) => return Ok((made, temporary)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < NAME_ATTEMPTS_MAX => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn output(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_path_buf();
    move |error| Error::Output { path, action, error }
}
