//! What the fuzz targets share.

mod block;

pub use block::Block;
