//! What the fuzz targets share.

mod block;
pub mod image;
mod lz4;

pub use block::Block;
