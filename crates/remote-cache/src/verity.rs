//! dm-verity: hash trees over the blocks of an image, in the layout of the kernel, veritysetup and containerd.

mod append;
mod geometry;
mod sidecar;
mod superblock;
mod tree;

pub use append::{VerityOptions, append_verity};
pub(crate) use geometry::Geometry;
pub use sidecar::{parse_sidecar, sidecar_path, sidecar_text};
pub use superblock::{BadVerity, Superblock};
pub(crate) use tree::{Attempt, TreeBlocks, VerifyError, VerityTree};
