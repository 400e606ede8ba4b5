//! The file that an image is written to: nameless until it is whole.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, FileTypeExt},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use crate::error::{Error, Result};

/// What is collected before it is written, in bytes.
const BUFFER_LEN: usize = 1 << 20;
/// How many temporary names are tried.
const NAME_ATTEMPTS_MAX: u32 = 100;
/// The mode of a new image, before the umask.
const IMAGE_MODE: u32 = 0o644;

/// A file that is written from its beginning to its end, with corrections, and gets its name at last. Dropped before,
/// it leaves nothing behind.
pub(crate) struct ImageFile {
    file: File,
    path: PathBuf,
    name: Name,
    buffer: Vec<u8>,
    written: u64,
}

enum Name {
    /// It has none yet: not even a kill leaves anything behind.
    None,
    /// A temporary one, where the file system cannot do without.
    Temporary(PathBuf),
    /// Its own: a block device, or it is whole.
    Final,
}

impl ImageFile {
    /// A file that will be at `path`. A block device there is written to itself.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let (file, name) = match fs::metadata(path) {
            Ok(status) if status.file_type().is_block_device() => {
                let file = File::options().read(true).write(true).open(path).map_err(output(path, "open"))?;
                (file, Name::Final)
            }
            Ok(status) if !status.is_file() => {
                let error = io::Error::other("it is there, and neither a regular file nor a block device");
                return Err(output(path, "replace")(error));
            }
            _ => nameless(path).map_err(output(path, "create"))?,
        };
        Ok(Self { file, path: path.to_path_buf(), name, buffer: Vec::with_capacity(BUFFER_LEN), written: 0 })
    }

    /// How many bytes there are so far.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Puts bytes at the end.
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

    /// Puts zeros at the end, up to a multiple of `alignment`.
    pub(crate) fn pad(&mut self, alignment: u64) -> Result<()> {
        let missing = self.len().next_multiple_of(alignment) - self.len();
        self.append(&vec![0; usize::try_from(missing).unwrap_or(0)])
    }

    /// Forgets what was appended after `len`.
    pub(crate) fn rewind(&mut self, len: u64) -> Result<()> {
        if len >= self.written {
            self.buffer.truncate(usize::try_from(len - self.written).unwrap_or(usize::MAX));
        } else {
            self.buffer.clear();
            self.written = len;
            if !matches!(self.name, Name::Final) {
                self.file.set_len(len).map_err(output(&self.path, "shorten"))?;
            }
        }
        Ok(())
    }

    /// Whether these bytes stand at `offset`.
    pub(crate) fn holds(&mut self, offset: u64, bytes: &[u8]) -> Result<bool> {
        if offset + bytes.len() as u64 > self.written {
            self.flush()?;
        }
        let mut there = vec![0; bytes.len()];
        self.file.read_exact_at(&mut there, offset).map_err(output(&self.path, "read back"))?;
        Ok(there == bytes)
    }

    /// Overwrites what was appended before.
    pub(crate) fn overwrite(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.flush()?;
        self.write(bytes, offset)
    }

    /// Writes what is not written yet, and gives a path by which the file can be opened now.
    pub(crate) fn readable_path(&mut self) -> Result<PathBuf> {
        self.flush()?;
        Ok(match &self.name {
            Name::None => format!("/proc/self/fd/{}", self.file.as_raw_fd()).into(),
            Name::Temporary(temporary) => temporary.clone(),
            Name::Final => self.path.clone(),
        })
    }

    /// Gives the file its name.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.flush()?;
        let renamed = match &self.name {
            Name::Final => Ok(()),
            Name::Temporary(temporary) => fs::rename(temporary, &self.path),
            Name::None => give_name(&self.file, &self.path),
        };
        renamed.map_err(output(&self.path, "name"))?;
        self.name = Name::Final;
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
        self.file.write_all_at(bytes, offset).map_err(output(&self.path, "write"))
    }
}

impl Drop for ImageFile {
    fn drop(&mut self) {
        if let Name::Temporary(temporary) = &self.name {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// A file for data that is needed only meanwhile, in the directory of `path`, without a name.
pub(crate) fn scratch_file(path: &Path) -> Result<File> {
    let (file, name) = nameless(path).map_err(output(path, "make a temporary file beside"))?;
    if let Name::Temporary(temporary) = name {
        fs::remove_file(temporary).map_err(output(path, "make a temporary file beside"))?;
    }
    Ok(file)
}

fn nameless(path: &Path) -> io::Result<(File, Name)> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(directory_of(path), flags, Mode::from_raw_mode(IMAGE_MODE)) {
        Ok(file) => return Ok((File::from(file), Name::None)),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR | rustix::io::Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    with_temporary_name(path, |temporary| File::options().read(true).write(true).create_new(true).open(temporary))
        .map(|(file, temporary)| (file, Name::Temporary(temporary)))
}

/// A file without a name cannot take the place of another one; where there is one, it gets a temporary name in between.
fn give_name(file: &File, path: &Path) -> io::Result<()> {
    let this = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::linkat(CWD, &this, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Err(rustix::io::Errno::EXIST) => {}
        result => return Ok(result?),
    }
    let ((), temporary) = with_temporary_name(path, |temporary| {
        Ok(rustix::fs::linkat(CWD, &this, CWD, temporary, AtFlags::SYMLINK_FOLLOW)?)
    })?;
    fs::rename(&temporary, path).inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

/// Removes what a build of this process has left beside the image at `path` where it could not do without a temporary
/// name: for a program that ends while one is under way.
pub fn remove_unfinished(path: &Path) {
    let Some(base) = path.file_name() else { return };
    for attempt in 0..=NAME_ATTEMPTS_MAX {
        let _ = fs::remove_file(temporary_path(path, base, attempt));
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
