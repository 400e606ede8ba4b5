//! Shared code of the fuzz targets.

mod block;
pub mod image;
pub mod indexed;
pub mod remote_cache;

pub use block::Block;
