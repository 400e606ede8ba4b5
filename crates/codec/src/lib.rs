//! Compression and decompression behind one interface, over well-kept libraries.
//!
//! [`Decoder`] is the one type that other crates need. Each codec has a module. The codecs that decode piece by piece
//! share the code that skips, fills and checks the end (`stream`). All codecs share the description of the requested
//! bytes (`request`) and scratch memory (`scratch`).

mod allocator_sys;
mod decoder;
mod deflate;
pub mod encode;
mod lz4;
mod lz4_ring;
mod lz4_sequences;
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

pub use allocator_sys::{limit_arenas, release_freed_memory};
pub use decoder::Decoder;
