//! Stores images, wherever that is.

use std::path::Path;

use floe::remote::Companion;
use floe_remote_cache::Digest;

use crate::{document::Descriptor, error::Result};

/// Where a converted image is stored.
pub(crate) trait Target: Sync {
    /// A directory for unfinished files, preferably of the file system that the finished ones are on.
    fn scratch(&self) -> &Path;

    /// The document that the image's name stands for at present.
    fn existing(&self) -> Result<Option<Vec<u8>>>;

    /// Reads a manifest that is stored there.
    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>>;

    /// Whether a blob is stored there. May make it so, without a copy of the bytes.
    fn has(&self, digest: &Digest) -> Result<bool>;

    /// Stores a file. It may be moved if it `may_move`. Returns whether it was missing.
    fn put_file(&self, digest: &Digest, path: &Path, may_move: bool) -> Result<bool>;

    /// Stores a small blob. Returns whether it was missing.
    fn put_blob(&self, bytes: &[u8]) -> Result<bool>;

    /// Whether companions of layers stay with an image that is copied from here. Without them, manifests must not name them.
    fn keeps_companions(&self) -> bool;

    /// Stores a manifest, with the companions of its layers, which are stored already.
    fn put_manifest(&self, media_type: &str, bytes: &[u8], companions: &[Companion]) -> Result<()>;

    /// Stores a converted manifest that refers to the original manifest `subject`, with the companions of its layers, which are stored
    /// already.
    fn put_referrer(&self, subject: &Digest, bytes: &[u8], companions: &[Companion]) -> Result<()>;

    /// The converted manifests that refer to a manifest.
    fn referrers(&self, subject: &Digest) -> Vec<Vec<u8>>;

    /// Stores the index, under the name of the image.
    fn finish(&self, index: &Descriptor, bytes: &[u8]) -> Result<()>;
}
