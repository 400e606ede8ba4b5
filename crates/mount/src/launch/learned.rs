//! The place of a learned profile.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use floe::{Offset, OpenOptions, remote::RemoteProcess};
use floe_image::ShownName;
use floe_mkfs::Profile;
use floe_remote_cache::{CacheOptions, TrustedDirectory};
use floe_sandbox::{Access, Policy};
use sha2::{Digest, Sha256};

use crate::{failure::Failure, log::MountLog};

/// The directory of learned profiles in the cache directory.
const DIRECTORY: &str = "launches";

/// The name of a profile in the directory of its image.
const NAME: &str = "profile";

/// The number of bytes at either end of a file that identify an image. They contain superblocks and tables.
const END_BYTES: u64 = 128 << 10;

/// The place of the profile that is learned for an image: `launches/IDENTITY/profile` in the cache directory.
///
/// A local image is identified by the length of the file, the offset given for the image, and a SHA-256 of the first and the
/// last 128 KiB. A remote image is identified by its length and its name, in which tags are resolved to digests. Images that
/// differ only in the middle share a profile, which is acceptable because a wrong profile costs only time.
pub(super) struct LearnedPlace {
    directory: TrustedDirectory,
}

impl LearnedPlace {
    /// Finds or creates the place for an image. Parses nothing of the image.
    ///
    /// # Errors
    /// The image cannot be read, or no cache directory was given and there is no home directory. The inner error: the place
    /// cannot be created, or other users could change it.
    pub(super) fn of(
        image: &Path,
        options: &OpenOptions,
        remote: Option<&RemoteProcess>,
    ) -> Result<io::Result<Self>, Failure> {
        let cache = options.remote.cache_directory.clone().or_else(CacheOptions::default_directory);
        let cache = cache.ok_or_else(|| {
            Failure::failed("there is no directory for learned profiles: name one with -o cache-directory=DIR")
        })?;
        let identity = match remote {
            Some(process) => {
                let about = process.about();
                Ok(hex(Sha256::new()
                    .chain_update(b"remote")
                    .chain_update(about.len.to_le_bytes())
                    .chain_update(&about.name)))
            }
            None => identity_of(image, options.offset),
        };
        let identity = identity.map_err(|error| Failure::failed(format!("cannot read {}: {error}", image.shown())))?;
        let directory = TrustedDirectory::create(&cache.join(DIRECTORY), &identity);
        Ok(directory.map(|directory| Self { directory }))
    }

    /// The path of the profile.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join(NAME)
    }

    /// The profile, if there is a valid one. An invalid one is reported, and will be replaced.
    pub(super) fn read(&self, log: &MountLog) -> Option<Profile> {
        let file = self.directory.read_file(NAME).ok()?;
        match Profile::read(file) {
            Ok(profile) if !profile.is_empty() => Some(profile),
            Ok(_) => None,
            Err(error) => {
                let path = self.path();
                log.remark(format_args!("{}: {error}; the next launch will be learned", path.shown()));
                None
            }
        }
    }

    /// Allows a confined process to write the profile.
    pub(super) fn allow(&self, policy: &mut Policy) {
        policy.allow(self.directory.path(), Access::Files);
    }

    /// Writes the profile atomically.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&self, profile: &Profile) -> io::Result<()> {
        let (unfinished, mut file) = self.directory.new_file()?;
        let written = file.write_all(profile.to_text().as_bytes());
        let written = written.and_then(|()| self.directory.rename(&unfinished, &self.directory, NAME));
        written.inspect_err(|_| drop(self.directory.remove_file(&unfinished)))
    }
}

fn identity_of(image: &Path, offset: Offset) -> io::Result<String> {
    // Opening a FIFO would otherwise wait for a writer.
    let file = fs::OpenOptions::new().read(true).custom_flags(NONBLOCK).open(image)?;
    let len = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
    let start = match offset {
        Offset::At(start) => start,
        Offset::None => 0,
        // A number that no offset has.
        Offset::Auto => u64::MAX,
    };
    let first = if start == u64::MAX { 0 } else { start.min(len) };
    let mut digest =
        Sha256::new().chain_update(b"local").chain_update(len.to_le_bytes()).chain_update(start.to_le_bytes());
    for at in [first, len.saturating_sub(END_BYTES)] {
        let mut bytes = Vec::new();
        At { file: &file, position: at }.take(END_BYTES).read_to_end(&mut bytes)?;
        digest.update(&bytes);
    }
    Ok(hex(digest))
}

const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();

fn hex(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file, read from a position on.
struct At<'a> {
    file: &'a File,
    position: u64,
}

impl Read for At<'_> {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(output, self.position)?;
        self.position += len as u64;
        Ok(len)
    }
}
