//! Tar archives as sources.

mod acl;
mod extensions;
mod header;
mod import;
mod member;
mod sparse;
mod unpack;

use std::{fs::File, io, os::unix::fs::FileExt, path::Path, sync::Arc};

use crate::{
    error::{Error, Result, shown},
    options::Options,
    progress::Progress,
    tree::{
        ReferredDevice,
        content::{Identity, OpenFile},
    },
};

/// The name of an archive from standard input in error messages.
const INPUT_NAME: &str = "standard input";

/// Whether the file at `path` begins as a tar archive or a compressed file does. `false` if it is not a regular file or
/// cannot be read.
pub fn is_archive(path: &Path) -> bool {
    let mut head = [0; unpack::HEAD_LEN];
    path.is_file()
        && File::open(path)
            .and_then(|file| read_up_to(&file, &mut head))
            .is_ok_and(|len| unpack::is_packed(&head[..len]))
}

/// An open tar archive with random access: the file itself, or a decompressed copy.
pub(crate) struct Archive {
    /// The file; a copy has no identity.
    file: Arc<OpenFile>,
    len: u64,
    /// Account names for access control lists.
    accounts: acl::Accounts,
}

impl Archive {
    /// Opens the archive at `path`. A compressed archive, or one without random access, is first copied to a temporary
    /// file next to the image.
    pub(crate) fn open(path: &Path, options: &Options, progress: &mut dyn Progress) -> Result<Self> {
        let file = File::open(path).map_err(Error::source(path, "open"))?;
        let status = file.metadata().map_err(Error::source(path, "look at"))?;
        if status.is_dir() {
            return Err(Error::unfit(path, "the source is a directory, not a tar archive"));
        }
        if status.is_file() {
            let mut head = [0; unpack::HEAD_LEN];
            let len = read_up_to(&file, &mut head).map_err(Error::source(path, "read"))?;
            if unpack::is_plain(&head[..len]) {
                let identity = Identity::of_file(&file).map_err(Error::source(path, "look at"))?;
                let (file, path) = (Arc::new(file), path.to_path_buf());
                let file = Arc::new(OpenFile { file, path, identity: Some(identity) });
                return Self { file, len: status.len(), accounts: acl::Accounts::default() }.recognize();
            }
        }
        Self::copied(file, path, options, progress)
    }

    /// Reads the archive from standard input.
    pub(crate) fn from_input(options: &Options, progress: &mut dyn Progress) -> Result<Self> {
        Self::copied(io::stdin().lock(), Path::new(INPUT_NAME), options, progress)
    }

    fn copied(input: impl io::Read, path: &Path, options: &Options, progress: &mut dyn Progress) -> Result<Self> {
        let (file, len) = unpack::unpacked(input, path, &options.output, progress)?;
        let file = Arc::new(OpenFile { file: Arc::new(file), path: path.to_path_buf(), identity: None });
        Self { file, len, accounts: acl::Accounts::default() }.recognize()
    }

    /// The path, for messages.
    fn path(&self) -> &Path {
        &self.file.path
    }

    /// The archive as an extra device.
    fn referred_device(&self) -> Result<ReferredDevice> {
        if self.file.identity.is_none() {
            return Err(Error::unfit(
                self.path(),
                "a compressed archive cannot be an extra device: decompress it first",
            ));
        }
        Ok(ReferredDevice {
            path: self.path().to_path_buf(),
            tag: Vec::new(),
            len: self.len,
            configurations: Vec::new(),
            has_partial_pclusters: false,
        })
    }

    /// Fills `output` with the bytes from `offset` on; fails if the archive ends before.
    fn read_at(&self, offset: u64, output: &mut [u8]) -> Result<()> {
        if offset.checked_add(output.len() as u64).is_none_or(|end| end > self.len) {
            return Err(self.truncated());
        }
        self.file.file.read_exact_at(output, offset).map_err(Error::source(self.path(), "read"))
    }

    fn truncated(&self) -> Error {
        Error::unfit(self.path(), "the archive is truncated: it has no end marker")
    }

    /// An error about the header at `offset`.
    fn broken(&self, offset: u64, rule: &str) -> Error {
        Error::unfit(self.path(), format!("invalid header at byte {offset}: {rule}"))
    }

    /// An error about a member.
    fn unfit(&self, member: &[u8], reason: &str) -> Error {
        Error::unfit(self.path(), format!("{}: {reason}", shown(member)))
    }
}

fn read_up_to(file: &File, output: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < output.len() {
        match file.read_at(&mut output[len..], len as u64)? {
            0 => break,
            read => len += read,
        }
    }
    Ok(len)
}
