//! Where an image is stored.

use std::path::PathBuf;

use floe::remote::ImageReference;

/// Where an image is stored.
#[derive(Clone, Debug)]
pub enum Place {
    /// In a registry.
    Registry(ImageReference),
    /// In a directory with the layout of OCI, or in an archive of such a directory or of docker. A target is always a directory.
    Local {
        /// The directory or the archive.
        path: PathBuf,
        /// The name of the image, if there are several.
        name: Option<String>,
    },
}
