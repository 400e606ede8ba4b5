//! Decompression and compression behind one interface, over well-kept libraries.
//!
//! [`Decoder`] is the one type that the rest needs. Behind it there is a module for each codec; those that can decode in
//! pieces share one way of skipping, filling and checking the end (`stream`), and all share what is asked of them
//! (`request`) and the memory beside their state (`scratch`).

mod decoder;
mod deflate;
pub mod encode;
mod freed_memory_sys;
mod lz4;
mod lz4_ring;
mod lz4_sys;
mod lz4_window;
mod lzma_alone;
mod lzma_memory_sys;
mod lzma_sys;
mod lzo;
mod micro_lzma;
mod request;
mod scratch;
mod stored;
mod stream;
mod xz;
mod zstd;

pub use decoder::Decoder;
pub use freed_memory_sys::release_freed_memory;
