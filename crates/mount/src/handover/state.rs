//! The state that a process needs to continue to serve a mount, also in memory that outlives the process.

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::Path,
};

use floe::Image;
use floe_engine::Blocking;
use floe_fuse::ConnectionTerms;
use floe_image::{DeviceId, Error};
use floe_sync::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::front::FrontReport;

/// The version of the state. Another version cannot be taken over.
const SCHEMA: u32 = 1;

/// The length of the beginning of an image that identifies it, in bytes. It contains the superblock of all formats.
const HEAD_BYTES: usize = 4096;

/// The state that a process needs to continue to serve a mount, besides its arguments and descriptors.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct State {
    schema: u32,
    /// Identifies the image.
    pub image: String,
    /// The mountpoint: absolute and without links.
    pub directory: OsString,
    /// The device number of the mount's files.
    pub device: (u32, u32),
    /// The minor version of the FUSE protocol.
    minor: u32,
    /// The FUSE features in use.
    features: u64,
    /// The front of the mount (`kernel` or `fuse`), and the reason for it.
    pub front: FrontReport,
    /// The changes of `floe tune`, each of the form `key=value`, in their order.
    pub tuned: Vec<String>,
}

impl State {
    /// The state of a mount that was just made.
    pub fn new(
        image: String,
        directory: &Path,
        device: (u32, u32),
        terms: ConnectionTerms,
        front: FrontReport,
    ) -> Self {
        let ConnectionTerms { minor, features } = terms;
        let directory = directory.as_os_str().to_owned();
        Self { schema: SCHEMA, image, directory, device, minor, features, front, tuned: Vec::new() }
    }

    /// The terms of the connection.
    pub fn terms(&self) -> ConnectionTerms {
        ConnectionTerms { minor: self.minor, features: self.features }
    }

    /// Whether this version of the program understands the state.
    pub(crate) fn is_understood(&self) -> bool {
        self.schema == SCHEMA
    }

    /// Notes changes of options. They replace earlier ones of the same options.
    pub(crate) fn note_tuned(&mut self, changes: &[String]) {
        for change in changes {
            self.tuned.retain(|earlier| key(earlier) != key(change));
            self.tuned.push(change.clone());
        }
    }
}

/// Identifies an image by its beginning, its length and its root: a process that continues to serve a mount must use the
/// numbers of inodes that the kernel knows.
///
/// # Errors
/// The image cannot be read.
pub(super) fn identity(image: &Image) -> Result<String, Error> {
    let blocks = image.reader().volume().block_reader(Blocking::Allowed);
    let len = blocks.device_len(DeviceId(0))?;
    let head = blocks.stored(DeviceId(0), 0, usize::try_from(len).unwrap_or(HEAD_BYTES).min(HEAD_BYTES))?;
    let digest: String = Sha256::digest(&head).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{} length={len} root={} sha256={digest}", image.format(), image.root()))
}

fn key(change: &str) -> String {
    change.split('=').next().unwrap_or_default().replace('_', "-")
}

/// The size of each copy of the state, in bytes.
const SLOT_BYTES: usize = 64 << 10;

/// The state of a mount. If a service manager keeps a memory file, the state is also in that file. It has two copies, which are
/// written in turn, so that a process that is killed while it writes leaves one valid copy.
#[derive(Debug)]
pub(crate) struct StateFile {
    current: Mutex<Version>,
    file: Option<File>,
}

/// A version of the state. The version with the highest number is current.
#[derive(Serialize, Deserialize, Clone, Debug)]
struct Version {
    number: u64,
    state: State,
    /// The number again: in a copy that is half written, the two differ.
    number_at_end: u64,
}

impl StateFile {
    /// Creates an empty memory file. A confined process can no longer do this.
    ///
    /// # Errors
    /// The kernel has no memory or no descriptors.
    pub(crate) fn create() -> io::Result<File> {
        Ok(memfd_create("floe-state", MemfdFlags::CLOEXEC)?.into())
    }

    /// Keeps a state, and writes it to `file`.
    ///
    /// # Errors
    /// The file cannot be written, or the state is too large.
    pub(crate) fn new(state: State, file: Option<File>) -> io::Result<Self> {
        let number = file.as_ref().and_then(|file| read(file).ok()).map_or(0, |version| version.number + 1);
        let version = Version { number, state, number_at_end: number };
        if let Some(file) = &file {
            write(file, &version)?;
        }
        Ok(Self { current: Mutex::new(version), file })
    }

    /// Reads the state from a memory file of another process.
    ///
    /// # Errors
    /// The file has no valid state.
    pub(crate) fn read(file: &File) -> io::Result<State> {
        read(file).map(|version| version.state)
    }

    /// The current state.
    pub(crate) fn state(&self) -> State {
        self.current.lock().state.clone()
    }

    /// Notes changes of options by `floe tune`.
    pub(crate) fn note_tuned(&self, changes: &[String]) {
        let mut current = self.current.lock();
        current.state.note_tuned(changes);
        current.number += 1;
        current.number_at_end = current.number;
        if let Some(file) = &self.file {
            // If the changes cannot be written, a restarted process continues with older options.
            let _ = write(file, &current);
        }
    }

    /// The memory file.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

/// Turns a descriptor that another process has passed into a file.
pub(super) fn file_of(descriptor: OwnedFd) -> File {
    descriptor.into()
}

fn read(file: &File) -> io::Result<Version> {
    let versions = (0..2).filter_map(|slot| {
        let mut bytes = vec![0; SLOT_BYTES];
        let len = file.read_at(&mut bytes, slot * SLOT_BYTES as u64).ok()?;
        let line = bytes.get(..len)?.split(|byte| *byte == b'\n').next()?;
        serde_json::from_slice::<Version>(line).ok().filter(|version| version.number == version.number_at_end)
    });
    versions.max_by_key(|version| version.number).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn write(file: &File, version: &Version) -> io::Result<()> {
    let mut line = serde_json::to_vec(version)?;
    line.push(b'\n');
    if line.len() > SLOT_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    file.write_all_at(&line, version.number % 2 * SLOT_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use floe_fuse::ConnectionTerms;

    use super::*;
    use crate::front::FrontReport;

    #[test]
    fn later_changes_replace_earlier_ones() {
        let terms = ConnectionTerms { minor: 45, features: 7 };
        let mut state = State::new(String::new(), Path::new("/mnt"), (0, 1), terms, FrontReport::default());
        for (changes, expected) in [
            (&["cache=1M", "workers=shared"][..], &["cache=1M", "workers=shared"][..]),
            (&["cache=2M"], &["workers=shared", "cache=2M"]),
            (&["reserved_pages=0"], &["workers=shared", "cache=2M", "reserved_pages=0"]),
            (&["reserved-pages=9"], &["workers=shared", "cache=2M", "reserved-pages=9"]),
        ] {
            state.note_tuned(&changes.iter().map(|change| (*change).to_owned()).collect::<Vec<_>>());
            assert_eq!(state.tuned, expected);
        }
        assert_eq!((state.terms(), state.is_understood()), (terms, true));
    }

    fn state() -> State {
        let terms = ConnectionTerms { minor: 45, features: 1 << 39 };
        State::new("image".to_owned(), Path::new("/mnt"), (0, 57), terms, FrontReport::default())
    }

    #[test]
    fn the_newest_valid_copy_counts() {
        let file = StateFile::create().expect("memory");
        let kept = StateFile::new(state(), Some(file.try_clone().expect("a descriptor"))).expect("there is room");
        assert_eq!(StateFile::read(&file).expect("a state"), state());
        kept.note_tuned(&["cache=1M".to_owned()]);
        kept.note_tuned(&["cache=2M".to_owned()]);
        assert_eq!(StateFile::read(&file).expect("a state").tuned, ["cache=2M"]);
        // A process is killed while it writes the third version.
        file.write_all_at(b"{\"number\":9,", 0).expect("there is room");
        assert_eq!(StateFile::read(&file).expect("a state").tuned, ["cache=1M"]);
        let next = StateFile::new(kept.state(), Some(file.try_clone().expect("a descriptor"))).expect("there is room");
        assert_eq!(StateFile::read(&file).expect("a state"), next.state());
        file.set_len(0).expect("ours");
        assert!(StateFile::read(&file).is_err());
    }
}
