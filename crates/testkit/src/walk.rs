//! Creates manifests by walking a file system through its trait, or a directory of the machine.

mod directory;
mod image;

pub use directory::{DirectoryWalk, directory};
pub use image::{ReadFile, image};
