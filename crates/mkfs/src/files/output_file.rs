//! A file that gets its name when it is complete.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd,
        unix::{
            ffi::OsStrExt,
            fs::{FileExt, FileTypeExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags},
    io::Errno,
};

use super::{
    existing_file::{OverwriteError, ReplacedFile, overwrite},
    temporaries::{Temporaries, with_temporary_name},
};
use crate::{
    error::{Error, Result},
    tree::source_root::has_preloaded_library,
};

/// The mode of a new file, before the umask.
const NEW_MODE: u32 = 0o644;
/// The mode of a replacement until it gets the mode of the replaced file.
const REPLACEMENT_MODE: u32 = 0o600;
/// The maximum number of symbolic links to follow, as in the kernel.
const LINKS_MAX: usize = 40;
/// The length of an image's head in bytes, which contains the superblock. While the head is zero, a block device has no
/// image.
const HEAD_LEN: usize = 4096;
/// The open files of this process by number; without procfs, unnamed files cannot get a name.
const DESCRIPTORS: &str = "/proc/self/fd";

/// A file that gets its name when it is complete. If it is dropped before, no file remains, and an existing one stays; a
/// block device that was written to has no superblock then.
pub(crate) struct OutputFile {
    file: File,
    /// The path as given, for errors.
    path: PathBuf,
    /// The final path, with symbolic links at `path` resolved.
    target: PathBuf,
    /// The offset of the image's head in the file.
    head_offset: u64,
    replaced: Option<ReplacedFile>,
    /// The existing file, if a new one cannot take its place.
    fixed: Option<File>,
    /// Whether the path names an open file.
    is_open: bool,
    name: Name,
    has_data: bool,
    temporaries: Temporaries,
}

enum Name {
    /// No name. If the process is killed, no file remains.
    None,
    /// A temporary name, where unnamed files are not supported.
    Temporary(PathBuf),
    /// A block device.
    Device,
    /// The final name: the file is complete.
    Final,
}

impl OutputFile {
    /// Creates the file for `path`, with the image starting at byte `head_offset`. If `path` is a block device that is
    /// not in use, it is written to directly.
    pub(crate) fn create(path: &Path, head_offset: u64, temporaries: &Temporaries) -> Result<Self> {
        temporaries.begin()?;
        let Target { path: target, is_open } = Target::of(path).map_err(output(path, "look at"))?;
        let mut fixed = None;
        let (file, name, replaced) = match fs::metadata(path) {
            Ok(status) if status.file_type().is_block_device() => {
                (open_device(path).map_err(output(path, "write to"))?, Name::Device, None)
            }
            Ok(status) if !status.is_file() => {
                let error = io::Error::other("it exists and is neither a regular file nor a block device");
                return Err(output(path, "replace")(error));
            }
            Ok(_) if is_open => {
                // Whoever has the file open expects the image in that file, not in a new one.
                fixed = Some(File::options().write(true).open(&target).map_err(output(path, "write to"))?);
                let (file, name) = nameless_elsewhere()?;
                (file, name, None)
            }
            Ok(status) => {
                if is_mountpoint(&target) {
                    fixed = Some(File::options().write(true).open(&target).map_err(output(path, "write to"))?);
                }
                let (file, name) = match nameless(&target, REPLACEMENT_MODE) {
                    Err(error) if is_refused(&error) => {
                        fixed = Some(File::options().write(true).open(&target).map_err(output(path, "write to"))?);
                        nameless_elsewhere()?
                    }
                    made => made.map_err(output(path, "create"))?,
                };
                let replaced = ReplacedFile::of(&target, &status).map_err(output(path, "read the attributes of"))?;
                (file, name, Some(replaced))
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(output(path, "look at")(error)),
            Err(_) => {
                let (file, name) = nameless(&target, NEW_MODE).map_err(output(path, "create"))?;
                (file, name, None)
            }
        };
        if let Name::Temporary(temporary) = &name {
            temporaries.add(temporary);
        }
        let (path, temporaries) = (path.to_path_buf(), temporaries.clone());
        Ok(Self { file, path, target, head_offset, replaced, fixed, is_open, name, has_data: false, temporaries })
    }

    /// The file itself.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The path as given.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The final path, if the file there can be set aside: it exists, and a new one takes its place.
    pub(crate) fn replaced_path(&self) -> Option<&Path> {
        (self.replaced.is_some() && self.fixed.is_none()).then_some(self.target.as_path())
    }

    /// The final path.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    pub(crate) fn is_device(&self) -> bool {
        matches!(self.name, Name::Device)
    }

    pub(crate) fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.has_data |= !bytes.is_empty();
        self.file.write_all_at(bytes, offset)
    }

    /// A path at which the file can be opened now.
    pub(crate) fn readable_path(&self) -> PathBuf {
        match &self.name {
            Name::None => format!("{DESCRIPTORS}/{}", self.file.as_raw_fd()).into(),
            Name::Temporary(temporary) => temporary.clone(),
            Name::Device | Name::Final => self.target.clone(),
        }
    }

    /// Syncs the file, which takes over the mode, the xattrs and, if permitted, the owner of the file that it replaces.
    pub(crate) fn store(&self) -> Result<()> {
        if let Some(replaced) = self.replaced.as_ref().filter(|_| self.fixed.is_none()) {
            replaced.pass_on(&self.file).map_err(self.failed("set the attributes of"))?;
        }
        self.file.sync_all().map_err(self.failed("store"))
    }

    /// Gives the file its name, or copies it into an existing file that cannot be replaced. Returns whether it was copied although
    /// the path names no open file.
    pub(crate) fn take_name(&mut self) -> Result<bool> {
        let renamed = match &self.name {
            _ if self.fixed.is_some() => Err(Errno::BUSY.into()),
            Name::Device | Name::Final => Ok(()),
            Name::Temporary(temporary) => fs::rename(temporary, &self.target),
            Name::None => self.name_unnamed(),
        };
        let is_copied = match renamed {
            Ok(()) => false,
            Err(error) if is_refused(&error) || error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                self.copy_into_existing(error)?;
                true
            }
            Err(error) => return Err(self.failed("name")(error)),
        };
        if let Name::Temporary(temporary) = std::mem::replace(&mut self.name, Name::Final) {
            if is_copied {
                let _ = fs::remove_file(&temporary);
            }
            self.temporaries.forget(&temporary);
        }
        Ok(is_copied && !self.is_open)
    }

    /// An unnamed file cannot replace a file; if one exists, the new file first gets a temporary name.
    fn name_unnamed(&self) -> io::Result<()> {
        let this = format!("{DESCRIPTORS}/{}", self.file.as_raw_fd());
        match rustix::fs::linkat(CWD, &this, CWD, &self.target, AtFlags::SYMLINK_FOLLOW) {
            Err(Errno::EXIST) => {}
            result => return Ok(result?),
        }
        let ((), temporary) = with_temporary_name(&self.target, |temporary| {
            Ok(rustix::fs::linkat(CWD, &this, CWD, temporary, AtFlags::SYMLINK_FOLLOW)?)
        })?;
        fs::rename(&temporary, &self.target).inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
    }

    fn copy_into_existing(&self, refusal: io::Error) -> Result<()> {
        let opened;
        let existing = match &self.fixed {
            Some(fixed) => fixed,
            None => {
                let result = File::options().write(true).open(&self.target);
                opened = result.map_err(|_| self.failed("name")(refusal))?;
                &opened
            }
        };
        overwrite(existing, &self.file, self.head_offset, HEAD_LEN).map_err(|error| match error {
            OverwriteError::Untouched(error) => self.failed("write")(error),
            OverwriteError::Incomplete(error) => Error::Incomplete { path: self.path.clone(), error },
        })
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> Error {
        output(&self.path, action)
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        match &self.name {
            Name::Temporary(temporary) => {
                let _ = fs::remove_file(temporary);
                self.temporaries.forget(temporary);
            }
            Name::Device if self.has_data => {
                let _ = self.file.write_all_at(&[0; HEAD_LEN], self.head_offset);
                let _ = self.file.sync_data();
            }
            Name::None | Name::Device | Name::Final => {}
        }
    }
}

/// Creates an unnamed temporary file in the directory of the image at `path`; or in the system's temporary directory if
/// `path` is a device, or exists in a directory without room for other files.
pub(crate) fn scratch_file(path: &Path) -> Result<File> {
    let status = fs::metadata(path);
    let is_device = status.as_ref().is_ok_and(|status| status.file_type().is_block_device());
    let target = Target::of(path).map_err(output(path, "look at"))?;
    let beside = if is_device || target.is_open { elsewhere() } else { target.path };
    let made = match nameless(&beside, REPLACEMENT_MODE) {
        Err(error) if is_refused(&error) && status.is_ok() => nameless(&elsewhere(), REPLACEMENT_MODE),
        made => made,
    };
    let (file, name) = made.map_err(output(path, "create a temporary file next to"))?;
    if let Name::Temporary(temporary) = name {
        fs::remove_file(temporary).map_err(output(path, "create a temporary file next to"))?;
    }
    Ok(file)
}

/// A file name in the system's temporary directory.
fn elsewhere() -> PathBuf {
    env::temp_dir().join("floe")
}

/// Creates a file in the system's temporary directory.
fn nameless_elsewhere() -> Result<(File, Name)> {
    let place = elsewhere();
    let directory = directory_of(&place);
    nameless(&place, REPLACEMENT_MODE).map_err(output(directory, "create a temporary file in"))
}

/// Whether the directory does not accept files.
fn is_refused(error: &io::Error) -> bool {
    let refusals = [Errno::ACCESS, Errno::PERM, Errno::ROFS];
    refusals.iter().any(|refusal| error.raw_os_error() == Some(refusal.raw_os_error()))
}

/// Whether a file is a mountpoint, as files in containers often are. Linux answers this since 5.8; without an answer, the
/// attempt to replace the file shows it.
fn is_mountpoint(path: &Path) -> bool {
    let status = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
    status.is_ok_and(|status| status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// The place to which the symbolic links at a path lead.
struct Target {
    path: PathBuf,
    /// Whether the path is a link in procfs to an open file (`/proc/PID/fd/N`). Its text need not be a path to that file.
    is_open: bool,
}

impl Target {
    /// Resolves the symbolic links at `path`; the target need not exist.
    fn of(path: &Path) -> io::Result<Self> {
        let mut path = path.to_path_buf();
        for _ in 0..=LINKS_MAX {
            match rustix::fs::readlink(&path, Vec::new()) {
                Ok(_) if is_in_procfs(directory_of(&path)) => return Ok(Self { path, is_open: true }),
                Ok(link) => path = directory_of(&path).join(OsStr::from_bytes(link.as_bytes())),
                // It is not a link, or nothing is there.
                Err(Errno::INVAL | Errno::NOENT) => return Ok(Self { path, is_open: false }),
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::LOOP.into())
    }
}

fn is_in_procfs(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|said| said.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

/// Opens a block device exclusively: it must not be mounted or used by another device.
fn open_device(path: &Path) -> io::Result<File> {
    match rustix::fs::open(path, OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => Ok(File::from(file)),
        Err(Errno::BUSY) => Err(io::Error::other("the device is mounted or otherwise in use; unmount it first")),
        Err(error) => Err(error.into()),
    }
}

/// Creates a file in the directory of `path`: unnamed, or else with a temporary name.
fn nameless(path: &Path, mode: u32) -> io::Result<(File, Name)> {
    // pseudo cannot open an unnamed file again, nor name it: it takes the path in procfs for that of a removed file.
    if Path::new(DESCRIPTORS).exists() && !has_preloaded_library() {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::open(directory_of(path), flags, Mode::from_raw_mode(mode)) {
            Ok(file) => return Ok((File::from(file), Name::None)),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    with_temporary_name(path, |temporary| {
        File::options().read(true).write(true).create_new(true).mode(mode).open(temporary)
    })
    .map(|(file, temporary)| (file, Name::Temporary(temporary)))
}

/// The directory of a file.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Completes an error with its place.
pub(crate) fn output(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_path_buf();
    move |error| Error::Output { path, action, error }
}
