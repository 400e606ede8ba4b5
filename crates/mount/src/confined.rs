//! An open image in a process that is confined to serving it.

use std::{path::Path, sync::Arc};

use floe::{Image, remote::RemoteProcess};
use floe_image::ShownName;
use floe_sandbox::Enforced;

use crate::{
    confinement::{self, Opened},
    failure::Failure,
    held::Held,
    prepared::{Mounting, Prepared},
};

/// An open image in a process that is confined to serving it.
pub struct Confined {
    pub(crate) image: Image,
    pub(crate) enforced: Enforced,
    /// The process that fetches the image, if it is remote.
    pub(crate) remote: Option<Arc<RemoteProcess>>,
    pub(crate) mounting: Mounting,
    pub(crate) held: Held,
}

impl Prepared {
    /// Opens the image and confines this process to serving it.
    ///
    /// # Errors
    /// The process cannot be confined, or the image cannot be opened.
    pub fn confine(self) -> Result<Confined, Failure> {
        let Self { image: path, open, remote, policy, decode_marks, mounting, held } = self;
        let Opened { files, enforced, remote, .. } =
            confinement::open_from(remote, &path, &open, policy, mounting.settings.sandbox)??;
        let mut image = Image::of(files, &open)?;
        if let Some(subdirectory) = &mounting.settings.subdirectory {
            image = below(&image, subdirectory, &mounting.shown_image)?;
        }
        if let Some(marks) = decode_marks {
            image.reader().engine().mark_decodes(marks);
        }
        Ok(Confined { image, enforced, remote, mounting, held })
    }
}

/// The image with a directory of it as its root.
///
/// # Errors
/// There is no such directory in the image.
pub(crate) fn below(image: &Image, subdirectory: &Path, shown_image: &Path) -> Result<Image, Failure> {
    image
        .below(subdirectory.as_os_str().as_encoded_bytes())
        .map_err(|error| Failure::failed(format!("{}: subdir={}: {error}", shown_image.shown(), subdirectory.shown())))
}
