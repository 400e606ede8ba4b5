//! Access to OCI registries.

mod companions;
mod document;
mod endpoint;
mod images;
mod manifest;
mod push;
mod referrers;
mod resolve;
mod rooted_layer;
mod upload;

pub use companions::{Companion, Companions};
pub use images::{RegistryImages, StoredBlob};
pub(crate) use manifest::Layer;
pub use manifest::{EROFS_FEATURE, EROFS_LAYER, FORMAT_ANNOTATION, SOURCE_ANNOTATION, TOC_ANNOTATION, TWIN_ARTIFACT};
pub use push::{ImageToPush, Pushed, PushedFormat};
pub(crate) use resolve::{Repository, ResolvedBlob};
pub use rooted_layer::RootedLayer;
