//! Decompression and compression behind one interface, over well-kept libraries.

mod decoder;
pub mod encode;

pub use decoder::Decoder;
