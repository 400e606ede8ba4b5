//! The state of a mount, in memory that outlives the process.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::fs::FileExt,
};

use floe_sync::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::State;

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
