//! dm-verity: hash trees over the blocks of an image, in the layout of the kernel, veritysetup and containerd.

mod append;
mod geometry;
mod superblock;
mod tree;

pub use append::{VerityOptions, append_verity, parse_sidecar, sidecar_path, sidecar_text};
pub(crate) use geometry::Geometry;
pub use superblock::BadVerity;
pub(crate) use superblock::Superblock;
pub(crate) use tree::{Attempt, TreeBlocks, VerifyError, VerityTree};
