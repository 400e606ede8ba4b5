//! Shared code of the fuzz targets.

mod block;
pub mod image;
pub mod indexed;
mod lz4;

pub use block::Block;
