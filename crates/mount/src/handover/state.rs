//! The state that a process needs to continue to serve a mount.

use std::{ffi::OsString, path::Path};

use floe::Image;
use floe_engine::Blocking;
use floe_fuse::ConnectionTerms;
use floe_image::{DeviceId, Error};
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
    pub fn is_understood(&self) -> bool {
        self.schema == SCHEMA
    }

    /// Notes changes of options. They replace earlier ones of the same options.
    pub fn note_tuned(&mut self, changes: &[String]) {
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
    let blocks = image.reader().engine().block_reader(Blocking::Allowed);
    let len = blocks.device_len(DeviceId(0))?;
    let head = blocks.stored(DeviceId(0), 0, usize::try_from(len).unwrap_or(HEAD_BYTES).min(HEAD_BYTES))?;
    let digest: String = Sha256::digest(&head).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{} length={len} root={} sha256={digest}", image.format(), image.root()))
}

fn key(change: &str) -> String {
    change.split('=').next().unwrap_or_default().replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
