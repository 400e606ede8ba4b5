//! Converts the layers of container images to EROFS, from which containers start without unpacking.
//!
//! [`convert`] reads an image from a registry, an OCI layout or an archive, and writes it to a registry or a layout. Each layer
//! becomes an EROFS image, as containerd's own differ makes it: whiteouts become those of overlayfs. The original manifests
//! stay beside the converted ones. Equal input and settings give equal bytes.
//!
//! A recorded launch ([`Settings::profile`]) becomes part of the layers that it reads; [`SourceImage::merge`] makes one image of all layers,
//! in which it can be recorded.
//!
//! `source` and `target` hide where an image is stored; `document` has its manifests and configurations; `plan` decides which
//! manifests and layers are converted; `layer` converts one; `conversion` runs all of it on several threads.
#![forbid(unsafe_code)]

mod archive;
mod conversion;
mod document;
mod error;
mod image;
mod layer;
mod layout;
mod place;
mod plan;
mod registry;
mod settings;
mod source;
mod target;

pub use conversion::{Converted, convert};
pub use error::Error;
pub use image::{SourceImage, StartConfiguration};
pub use place::Place;
pub use settings::{LaunchParts, Settings};
