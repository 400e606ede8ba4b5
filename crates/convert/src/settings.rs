//! How images are converted.

use std::{num::NonZeroUsize, path::Path};

use floe_image::ByteRange;
use floe_mkfs::{Compression, Profile};
use floe_remote_cache::Digest;

/// Finds the parts of an image that a launch reads; see [`Settings::launch_parts`].
pub type LaunchParts = fn(image: &Path, profile: &Path) -> Result<Vec<Vec<ByteRange>>, String>;

/// How images are converted.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The compression of files; `None` stores them uncompressed.
    pub compression: Option<Compression>,
    /// The pcluster size in bytes.
    pub pcluster_bytes: u32,
    /// Whether the layers of an image become one.
    pub is_merged: bool,
    /// Whether layers have the media type that containerd 2.1 knows, and platforms no features, which it refuses.
    pub for_containerd_2_1: bool,
    /// Whether the original manifests and layers are stored, too.
    pub keeps_original: bool,
    /// Whether the original index stays as it is: the target is a registry, in which the converted manifests refer to the original ones.
    pub as_referrers: bool,
    /// The platforms to convert, `os/architecture[/variant]`; all, if there are none.
    pub platforms: Vec<String>,
    /// A recorded launch of the image. Each layer has the part that is about its files.
    pub profile: Option<Profile>,
    /// Finds the parts of a layer that a launch reads: in the image in a file, with the profile in another file. The parts are in groups
    /// that are fetched one after the other; an error is a message.
    pub launch_parts: LaunchParts,
    /// The number of threads.
    pub jobs: NonZeroUsize,
    /// The limit of file data in memory, in bytes, for all threads together.
    pub memory_bytes: usize,
}

impl Settings {
    /// A short text that differs if the bytes of converted layers may differ.
    pub(crate) fn identity(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let mut settings =
            format!("{:?} {} {} {}", self.compression, self.pcluster_bytes, self.is_merged, self.for_containerd_2_1);
        if let Some(profile) = &self.profile {
            settings.push_str(&profile.to_text());
        }
        format!("{version}-{}", &Digest::of(settings.as_bytes()).to_string()[..16])
    }
}
