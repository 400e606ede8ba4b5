//! Decompression and compression behind one interface, over well-kept libraries.

mod decoder;

pub use decoder::Decoder;
