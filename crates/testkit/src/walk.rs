//! Manifests made by walking: a file system through its contract, or a directory of the machine.

mod directory;
mod image;

pub use directory::{DirectoryWalk, directory};
pub use image::{ReadFile, image};
