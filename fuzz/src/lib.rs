//! What the fuzz targets share.

mod block;
mod lz4;

pub use block::Block;
